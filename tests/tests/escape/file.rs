//! SQLite: two hooks on the connection refuse every commit that `FencedTx::commit` has not armed.

use std::{mem, sync::Arc};

use fence_runtime::{Error, ErrorKind};
use fence_tests::{
    app::{count, on},
    conformance,
    cut::cut,
    jobs::job,
    owner::Act::{Begin, Commit, Sql},
    servers::{SqliteFile, TestDb},
};
use sqlx::{Connection, Executor};

use crate::stage::{LEASE, Stage, insert};

conformance! { on sqlite, sqlite_rollback:
    raw_commit,
    raw_rollback,
    rollback_and_begin,
    rollback_begin_write_and_commit_in_one_message,
    rollback_and_a_savepoint,
    insert_or_rollback,
    raise_rollback,
    a_rollback_to_before_the_first_savepoint,
    a_nested_begin_that_is_dropped_half_way,
    a_nested_begin_that_is_never_ended,
    another_file_is_fenced_as_well,
    a_read_made_writable,
    a_read_that_is_left,
    a_connection_that_is_taken_out,
}

/// `SQLITE_CONSTRAINT_COMMITHOOK`
const VETO: &str = "531";

async fn raw_commit<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    for way in ["COMMIT", "END", "COMMIT; COMMIT"] {
        let (write, refused) = stage.leaves_by(&[way]).await;
        assert_eq!((write.unwrap_err().code.as_str(), refused.code.as_str()), (VETO, "RolledBack"), "{way}");
        // Not even what was written inside: the COMMIT that was not ours has become a ROLLBACK.
        assert_eq!(count(&stage.db, 2).await, 0);
    }
}

async fn raw_rollback<const WAL: bool>(db: SqliteFile<WAL>) {
    Stage::is_refused(db, &["ROLLBACK"], VETO).await;
}

async fn rollback_and_begin<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    for way in ["ROLLBACK; BEGIN", "ROLLBACK; BEGIN IMMEDIATE"] {
        let (write, _) = stage.leaves_by(&[way]).await;
        assert!(write.is_ok(), "{way}");
    }
}

async fn rollback_begin_write_and_commit_in_one_message<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    let way = format!("ROLLBACK; BEGIN; {}; COMMIT", insert(3));
    let (write, _) = stage.leaves_by(&[&way, &way]).await;
    assert_eq!(write.unwrap_err().code, VETO);
}

async fn rollback_and_a_savepoint<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    let way = format!("ROLLBACK; SAVEPOINT s; {}; RELEASE s", insert(3));
    _ = stage.leaves_by(&[&way]).await;
}

async fn insert_or_rollback<const WAL: bool>(db: SqliteFile<WAL>) {
    Stage::is_refused(db, &["INSERT OR ROLLBACK INTO runs VALUES (1, 'again', 0)"], VETO).await;
}

async fn raise_rollback<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    let trigger =
        "CREATE TRIGGER no_four BEFORE INSERT ON runs WHEN new.run_id = 4 BEGIN SELECT RAISE(ROLLBACK, 'no'); END";
    stage.db.sql(trigger).await;
    let (write, _) = stage.leaves_by(&[&insert(4)]).await;
    assert_eq!(write.unwrap_err().code, VETO);
}

async fn a_rollback_to_before_the_first_savepoint<const WAL: bool>(db: SqliteFile<WAL>) {
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

async fn a_nested_begin_that_is_dropped_half_way<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Arc::new(Stage::new(db).await);
    let (mut at, mut ended) = (0, false);
    while !ended {
        let inside = stage.clone();
        let result = stage
            .fence
            .run(job::<sqlx::Sqlite, _, _, _>(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    on::<SqliteFile<WAL>>(tx.executor(), insert(2)).await.unwrap();
                    let whole = cut(at, tx.connection().begin()).await.is_some();
                    let write = on::<SqliteFile<WAL>>(tx.executor(), insert(3)).await;
                    assert_eq!(count(&inside.db, 3).await, 0, "dropped at poll {at}: {write:?}");
                    Ok::<_, Error>((whole, write.is_ok(), tx.commit().await.map_err(|error| error.kind())))
                })
            }))
            .await;
        let there = count(&stage.db, 3).await == 1;
        match result {
            Ok((whole, true, Ok(()))) => {
                assert!(there);
                ended = whole;
            }
            Ok(other) => panic!("dropped at poll {at}: run says Ok, the transaction {other:?}"),
            Err(error) => assert!(!there && error.is_uncommitted(), "dropped at poll {at}: {error}"),
        }
        stage.is_clean(&format!("poll {at}")).await;
        at += 1;
    }
}

async fn a_nested_begin_that_is_never_ended<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    let result = stage
        .fence
        .run(job::<sqlx::Sqlite, _, _, _>(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                let mut nested = tx.connection().begin().await?;
                nested.execute("INSERT INTO runs VALUES (3, 'new', 0)").await?;
                mem::forget(nested);
                let error = tx.commit().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::RolledBack);
                assert!(error.to_string().contains("nested"), "{error}");
                Ok::<_, Error>(())
            })
        }))
        .await;
    assert!(result.unwrap_err().is_uncommitted());
    assert_eq!(count(&stage.db, 3).await, 0);
    stage.is_clean("a nested transaction").await;
}

async fn another_file_is_fenced_as_well<const WAL: bool>(db: SqliteFile<WAL>) {
    let file = db.folder().join("other.db").display().to_string();
    let stage = Stage::new(db).await;
    stage.db.sql(format!("ATTACH '{file}' AS other; CREATE TABLE other.notes (note text)")).await;
    let attach = format!("ATTACH '{file}' AS other");
    on::<SqliteFile<WAL>>(&mut *stage.pool.acquire().await.unwrap(), attach).await.unwrap();
    let (write, _) = stage.leaves_by(&["ROLLBACK", "INSERT INTO other.notes VALUES ('out')"]).await;
    assert_eq!(write.unwrap_err().code, VETO);
    assert_eq!(stage.db.int("SELECT count(*) FROM other.notes").await, 0);
}

async fn a_read_made_writable<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Arc::new(Stage::new(db).await);
    for way in
        ["PRAGMA query_only = 0", "PRAGMA query_only = 0; COMMIT", "COMMIT; PRAGMA query_only = 0; BEGIN IMMEDIATE"]
    {
        let inside = stage.clone();
        let result = stage
            .fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut read = ctx.read().await?;
                    // What cannot be written before is not written after.
                    assert!(on::<SqliteFile<WAL>>(read.executor(), insert(3)).await.is_err());
                    _ = on::<SqliteFile<WAL>>(read.executor(), way).await;
                    let write = on::<SqliteFile<WAL>>(read.executor(), insert(3)).await;
                    assert_eq!(count(&inside.db, 3).await, 0, "{way}: {write:?}");
                    _ = on::<SqliteFile<WAL>>(read.executor(), "COMMIT").await;
                    assert_eq!(count(&inside.db, 3).await, 0, "{way}: {write:?}");
                    Ok::<_, Error>(read.close().await.map_err(|error| error.kind()))
                })
            }))
            .await;
        assert_eq!(result.unwrap(), Err(ErrorKind::RolledBack), "{way}");
        assert_eq!(count(&stage.db, 3).await, 0, "{way}");
        stage.is_clean(way).await;
    }
}

async fn a_read_that_is_left<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    for way in ["COMMIT", "ROLLBACK", "ROLLBACK; BEGIN"] {
        let result = stage
            .fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut read = ctx.read().await?;
                    on::<SqliteFile<WAL>>(read.executor(), "SELECT count(*) FROM runs").await.unwrap();
                    _ = on::<SqliteFile<WAL>>(read.executor(), way).await;
                    assert!(on::<SqliteFile<WAL>>(read.executor(), insert(3)).await.is_err());
                    Ok::<_, Error>(read.close().await.map_err(|error| error.kind()))
                })
            }))
            .await;
        assert_eq!(result.unwrap(), Err(ErrorKind::RolledBack), "{way}");
        assert_eq!(count(&stage.db, 3).await, 0, "{way}");
        stage.is_clean(way).await;
    }
}

async fn a_connection_that_is_taken_out<const WAL: bool>(db: SqliteFile<WAL>) {
    let stage = Stage::new(db).await;
    let mut other = stage.db.connect("other").await;
    let result = stage
        .fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                mem::swap(tx.connection(), &mut other);
                on::<SqliteFile<WAL>>(&mut other, insert(2)).await.unwrap();
                assert_eq!(on::<SqliteFile<WAL>>(&mut other, "COMMIT").await.unwrap_err().code, VETO);
                assert_eq!(on::<SqliteFile<WAL>>(&mut other, insert(3)).await.unwrap_err().code, VETO);
                let committed = tx.commit().await;
                drop(other);
                committed
            })
        }))
        .await;
    assert!(result.is_err());
    assert_eq!((count(&stage.db, 2).await, count(&stage.db, 3).await), (0, 0));
    stage.is_clean("a swap").await;
}
