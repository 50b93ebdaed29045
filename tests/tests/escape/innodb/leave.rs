//! The session is read-only and does not commit by itself outside the fenced transaction: whatever ends that, what comes next is
//! refused, or in a transaction that nobody commits.

use fence_runtime::{Error, ErrorKind};
use fence_tests::{
    app::{count, on},
    conformance,
    jobs::job,
    owner::Act::{Begin, Commit, Sql},
    servers::{InnoDb, TestDb},
};
use sqlx::{Executor, MySql};

use super::READ_ONLY;
use crate::stage::{LEASE, Stage, insert};

conformance! { on mysql, mariadb:
    raw_commit,
    raw_rollback,
    commit_and_start,
    start_transaction_alone,
    start_transaction_read_write,
    commit_and_chain,
    rollback_and_chain,
    a_commit_in_the_middle_of_a_message,
    a_commit_as_a_prepared_statement,
    a_commit_in_a_procedure,
    an_xa_transaction,
    a_rollback_to_before_the_first_savepoint,
    a_read_that_is_left,
    a_setting_put_back_on_purpose_is_not_covered_but_told,
}

async fn raw_commit<const M: bool>(db: InnoDb<M>) {
    Stage::is_refused(db, &["COMMIT"], READ_ONLY).await;
}

async fn raw_rollback<const M: bool>(db: InnoDb<M>) {
    Stage::is_refused(db, &["ROLLBACK"], READ_ONLY).await;
}

async fn commit_and_start<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for way in ["COMMIT; START TRANSACTION", "ROLLBACK; BEGIN", "COMMIT; BEGIN; COMMIT; BEGIN", "COMMIT; SAVEPOINT s"] {
        let (write, _) = stage.leaves_by(&[way]).await;
        assert_eq!(write.unwrap_err().code, READ_ONLY, "{way}");
    }
}

/// It commits what it finds, and what comes then is refused or nobody's: alone it keeps the access mode that it finds.
async fn start_transaction_alone<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for way in ["START TRANSACTION", "BEGIN", "START TRANSACTION WITH CONSISTENT SNAPSHOT"] {
        _ = stage.leaves_by(&[way]).await;
    }
    let (write, _) = stage.leaves_by(&["START TRANSACTION READ ONLY"]).await;
    assert_eq!(write.unwrap_err().code, READ_ONLY);
}

async fn start_transaction_read_write<const M: bool>(db: InnoDb<M>) {
    Stage::is_discarded(db, &["START TRANSACTION READ WRITE"]).await;
}

async fn commit_and_chain<const M: bool>(db: InnoDb<M>) {
    Stage::is_discarded(db, &["COMMIT AND CHAIN"]).await;
}

async fn rollback_and_chain<const M: bool>(db: InnoDb<M>) {
    Stage::is_discarded(db, &["ROLLBACK AND CHAIN"]).await;
}

async fn a_commit_in_the_middle_of_a_message<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for end in ["COMMIT", "ROLLBACK"] {
        let way = format!("{}; {end}; {}", insert(4), insert(3));
        _ = stage.leaves_by(&[&way]).await;
        assert_eq!(count(&stage.db, 3).await, 0);
    }
}

async fn a_commit_as_a_prepared_statement<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for end in ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"] {
        let result = stage
            .fence
            .run(job::<MySql, (), Error, _>(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    tx.executor().execute("INSERT INTO runs VALUES (2, 'new', 0)").await?;
                    sqlx::query(end).execute(tx.executor()).await?;
                    let write = sqlx::query("INSERT INTO runs VALUES (3, 'new', 0)").execute(tx.executor()).await;
                    assert_eq!(write.is_ok(), end == "COMMIT AND CHAIN", "{end}: {write:?}");
                    tx.commit().await
                })
            }))
            .await;
        assert!(result.unwrap_err().is_unknown(), "{end}");
        assert_eq!(count(&stage.db, 3).await, 0, "{end}");
        stage.is_clean(end).await;
    }
}

async fn a_commit_in_a_procedure<const M: bool>(db: InnoDb<M>) {
    db.sql("CREATE PROCEDURE ends() BEGIN COMMIT; INSERT INTO runs VALUES (3, 'inside', 0); END").await;
    Stage::is_refused(db, &["CALL ends()"], READ_ONLY).await;
}

async fn an_xa_transaction<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let inside = format!("XA START 'x'; {}; XA END 'x'; XA COMMIT 'x' ONE PHASE", insert(3));
    for way in [&["COMMIT", &*inside][..], &["ROLLBACK", "XA START 'y'"]] {
        _ = stage.leaves_by(way).await;
    }
}

async fn a_rollback_to_before_the_first_savepoint<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    for sql in [
        "SAVEPOINT s",
        "INSERT INTO runs VALUES (2, 'new', 0)",
        "ROLLBACK TO s",
        "INSERT INTO runs VALUES (3, 'new', 0)",
    ] {
        a.ok(Sql(sql.into())).await;
    }
    a.ok(Commit).await;
    a.end().await.unwrap();
    assert_eq!((count(&stage.db, 2).await, count(&stage.db, 3).await), (0, 1));
    stage.is_clean("a savepoint").await;
}

async fn a_read_that_is_left<const M: bool>(db: InnoDb<M>) {
    let stage = std::sync::Arc::new(Stage::new(db).await);
    for (way, goes_through) in [
        ("COMMIT", false),
        ("ROLLBACK", false),
        ("COMMIT; BEGIN", false),
        ("COMMIT AND CHAIN", false),
        ("SET autocommit = 1; SELECT 1 FROM runs", false),
        ("COMMIT; START TRANSACTION READ WRITE", true),
    ] {
        let inside = stage.clone();
        let result = stage
            .fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut read = ctx.read().await?;
                    on::<InnoDb<M>>(read.executor(), way).await.unwrap();
                    let write = on::<InnoDb<M>>(read.executor(), insert(3)).await;
                    assert_eq!(write.is_ok(), goes_through, "{way}: {write:?}");
                    assert_eq!(count(&inside.db, 3).await, 0, "{way}");
                    Ok::<_, Error>(read.close().await.map_err(|error| error.kind()))
                })
            }))
            .await;
        assert_eq!(result.unwrap(), Err(ErrorKind::RolledBack), "{way}");
        assert_eq!(count(&stage.db, 3).await, 0, "{way}");
        stage.is_clean(way).await;
    }
}

/// What the guarantee excludes, so that nobody has to guess: SQL that puts back the session's settings.
async fn a_setting_put_back_on_purpose_is_not_covered_but_told<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for way in [
        "COMMIT; SET SESSION TRANSACTION READ WRITE; SET autocommit = 1",
        "COMMIT; START TRANSACTION READ WRITE; INSERT INTO runs VALUES (4, '', 0); COMMIT; \
         SET SESSION TRANSACTION READ WRITE, autocommit = 1",
        "COMMIT; SET SESSION TRANSACTION READ WRITE; SET SESSION autocommit = ON",
    ] {
        let mut a = stage.owner().await;
        a.ok(Begin(Default::default())).await;
        _ = a.run(Sql(way.into())).await;
        _ = a.run(Sql(insert(3))).await;
        assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
        assert!(a.end().await.unwrap_err().is_unknown());
        stage.is_clean(way).await;
    }
}
