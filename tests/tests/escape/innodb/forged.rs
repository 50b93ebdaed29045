//! A transaction that pretends to be the one that was opened, a session that commits by itself again: the commit knows better.

use std::sync::Arc;

use fence_runtime::{Error, ErrorKind};
use fence_tests::{
    app::{count, on},
    conformance,
    jobs::job,
    owner::Act::{Begin, Commit, Sql},
    servers::{InnoDb, TestDb},
};

use super::READ_ONLY;
use crate::stage::{LEASE, Stage, insert};

conformance! { on mysql, mariadb:
    a_message_ends_at_its_first_error,
    a_savepoint_of_a_name_that_can_be_guessed,
    a_read_with_a_savepoint_of_a_name_that_can_be_guessed,
    a_rollback_to_a_savepoint_of_such_a_name,
    the_guard_called_by_the_job,
    the_end_called_by_the_job,
    autocommit_switched_on_lets_one_write_through_and_is_told,
    autocommit_set_to_what_it_is,
}

/// Names that we have, had or may have, and those of others.
const NAMES: [&str; 7] = [
    "fence_g",
    "fence",
    "fence_part_1",
    "_sqlx_savepoint_0",
    "_sqlx_savepoint_1",
    "fence_00000000000000000000000000000000",
    "s",
];

/// Upon this stands the end of a transaction: its savepoint, then COMMIT.
async fn a_message_ends_at_its_first_error<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut conn = stage.db.connect("c").await;
    let sql = format!("BEGIN; {}; RELEASE SAVEPOINT fence_g; COMMIT", insert(3));
    assert_eq!(InnoDb::<M>::run(&mut conn, &sql).await.unwrap_err().code, "1305");
    assert_eq!(count(&stage.db, 3).await, 0);
    InnoDb::<M>::run(&mut conn, "COMMIT").await.unwrap();
    assert_eq!(count(&stage.db, 3).await, 1);
}

async fn a_savepoint_of_a_name_that_can_be_guessed<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for name in NAMES {
        for begin in [
            "COMMIT; START TRANSACTION",
            "COMMIT; START TRANSACTION READ WRITE",
            "ROLLBACK; START TRANSACTION READ WRITE",
            "START TRANSACTION READ WRITE",
            "COMMIT AND CHAIN",
            "ROLLBACK AND CHAIN",
            "COMMIT; SET TRANSACTION READ WRITE",
            "COMMIT; XA START 'x'",
            "SET autocommit = 1, autocommit = 0",
        ] {
            _ = stage.leaves_by(&[&format!("{begin}; SAVEPOINT {name}")]).await;
        }
    }
}

async fn a_read_with_a_savepoint_of_a_name_that_can_be_guessed<const M: bool>(db: InnoDb<M>) {
    let stage = Arc::new(Stage::new(db).await);
    for name in NAMES {
        for begin in ["COMMIT; START TRANSACTION READ ONLY", "COMMIT; BEGIN", "ROLLBACK AND CHAIN"] {
            let way = format!("{begin}; SAVEPOINT {name}; SELECT * FROM runs");
            let result = stage
                .fence
                .run(job(LEASE, move |ctx| {
                    Box::pin(async move {
                        let mut read = ctx.read().await?;
                        on::<InnoDb<M>>(read.executor(), way).await.unwrap();
                        assert!(on::<InnoDb<M>>(read.executor(), insert(3)).await.is_err());
                        Ok::<_, Error>(read.close().await.map_err(|error| error.kind()))
                    })
                }))
                .await;
            assert_eq!(result.unwrap(), Err(ErrorKind::RolledBack), "{begin} {name}");
            stage.is_clean(begin).await;
        }
    }
}

/// There is none of ours to go back to.
async fn a_rollback_to_a_savepoint_of_such_a_name<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    a.ok(Sql(insert(2))).await;
    for name in NAMES {
        assert_eq!(a.run(Sql(format!("ROLLBACK TO {name}"))).await.unwrap_err().code, "1305", "{name}");
        assert_eq!(a.run(Sql(format!("RELEASE SAVEPOINT {name}"))).await.unwrap_err().code, "1305", "{name}");
    }
    a.ok(Commit).await;
    a.end().await.unwrap();
    assert_eq!(count(&stage.db, 2).await, 1);
    stage.is_clean("nothing").await;
}

/// With the right arguments: what it would put back afterwards is not how the session was.
async fn the_guard_called_by_the_job<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let call = "SELECT fence_token, owner_token INTO @t, @o FROM fenced_job_leases; \
                CALL fence_begin_v1('admin:reconciliation', @t, @o, 'READ COMMITTED', 60, NULL, NULL)";
    for way in ["COMMIT", "ROLLBACK", "COMMIT; START TRANSACTION READ WRITE", "COMMIT AND CHAIN"] {
        let (write, _) = stage.leaves_by(&[way, call, "SAVEPOINT fence_g"]).await;
        assert_eq!(write.is_ok(), way.contains("CHAIN") || way.contains("WRITE"), "{way}: {write:?}");
    }
    // Inside it changes nothing.
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    assert_eq!(a.run(Sql(call.into())).await.unwrap_err().code, "1568");
    a.ok(Sql(insert(2))).await;
    a.ok(Commit).await;
    a.end().await.unwrap();
    assert_eq!(count(&stage.db, 2).await, 1);
    stage.is_clean("a guard").await;
}

/// It commits what the guard covers, and puts the session back on purpose: no more is fenced after it, and the commit says so.
async fn the_end_called_by_the_job<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    a.ok(Sql("CALL fence_end_v1()".into())).await;
    // A second time there is nothing to put back.
    assert_eq!(a.run(Sql("CALL fence_end_v1()".into())).await.unwrap_err().code, "1644");
    assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
    assert!(a.end().await.unwrap_err().is_unknown());
    stage.is_clean("an end").await;
}

/// The server commits, keeps the access mode of what it has ended for the one statement that comes next, and is read-only after that.
async fn autocommit_switched_on_lets_one_write_through_and_is_told<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for way in ["SET autocommit = 1", "SET @@SESSION.autocommit = ON, @n = 1", "SET autocommit = DEFAULT"] {
        // A statement that touches a table is the one, were it a read.
        for (next, is_written) in [(insert(3), true), ("SELECT * FROM runs".to_owned(), false)] {
            let mut a = stage.owner().await;
            a.ok(Begin(Default::default())).await;
            a.ok(Sql(insert(2))).await;
            a.ok(Sql(way.into())).await;
            // Committed under the guard.
            assert_eq!(count(&stage.db, 2).await, 1, "{way}");
            a.ok(Sql(next)).await;
            assert_eq!(count(&stage.db, 3).await, i64::from(is_written), "{way}");
            for run in 4..6 {
                assert_eq!(a.run(Sql(insert(run))).await.unwrap_err().code, READ_ONLY, "{way}");
            }
            let refused = a.run(Commit).await.unwrap_err();
            assert_eq!(refused.code, "Unknown", "{way}");
            assert!(refused.message.contains("autocommit"), "{refused}");
            assert!(a.end().await.unwrap_err().is_unknown(), "{way}");
            stage.is_clean(way).await;
        }
    }
}

async fn autocommit_set_to_what_it_is<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    a.ok(Sql(insert(2))).await;
    a.ok(Sql("SET autocommit = 0".into())).await;
    assert_eq!(count(&stage.db, 2).await, 0);
    a.ok(Commit).await;
    a.end().await.unwrap();
    assert_eq!(count(&stage.db, 2).await, 1);
    stage.is_clean("autocommit").await;
}
