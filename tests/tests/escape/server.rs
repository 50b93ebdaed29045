//! PostgreSQL: the session is read-only outside the fenced transaction, and the cursor that proves it dies with it.

use std::mem;

use fence_runtime::{Error, ErrorKind};
use fence_tests::{
    app::{count, on},
    conformance,
    cut::cut,
    jobs::job,
    owner::Act::{Begin, Commit, Sql},
    servers::{PostgresDb, TestDb},
};
use sqlx::{Connection, Executor};

use crate::stage::{LEASE, Stage, insert};

conformance! { on postgres:
    raw_commit,
    raw_rollback,
    commit_and_begin,
    commit_and_begin_read_write,
    commit_and_chain,
    rollback_and_chain,
    end_and_abort_are_the_same,
    a_commit_in_the_middle_of_a_message,
    a_commit_as_a_prepared_statement,
    a_commit_in_a_procedure,
    a_rollback_to_before_the_first_savepoint,
    a_nested_begin_that_is_dropped_half_way,
    a_nested_begin_that_is_never_ended,
    a_read_made_writable,
    a_read_that_is_left,
    connections_that_are_swapped,
    a_connection_that_is_taken_out,
    a_setting_put_back_on_purpose_is_not_covered_but_told,
}

type At = Stage<PostgresDb>;

/// "cannot execute … in a read-only transaction"
const READ_ONLY: &str = "25006";

async fn raw_commit(db: PostgresDb) {
    At::is_refused(db, &["COMMIT"], READ_ONLY).await;
}

async fn raw_rollback(db: PostgresDb) {
    At::is_refused(db, &["ROLLBACK"], READ_ONLY).await;
}

async fn commit_and_begin(db: PostgresDb) {
    At::is_refused(db, &["COMMIT; BEGIN"], READ_ONLY).await;
}

async fn commit_and_begin_read_write(db: PostgresDb) {
    At::is_discarded(db, &["COMMIT; BEGIN READ WRITE"]).await;
}

async fn commit_and_chain(db: PostgresDb) {
    At::is_discarded(db, &["COMMIT AND CHAIN"]).await;
}

async fn rollback_and_chain(db: PostgresDb) {
    At::is_discarded(db, &["ROLLBACK AND CHAIN"]).await;
}

async fn end_and_abort_are_the_same(db: PostgresDb) {
    let stage = At::new(db).await;
    for way in [&["END"][..], &["ABORT"], &["END; START TRANSACTION"], &["ABORT", "BEGIN", "COMMIT"]] {
        let (write, _) = stage.leaves_by(way).await;
        assert_eq!(write.unwrap_err().code, READ_ONLY, "{way:?}");
    }
}

async fn a_commit_in_the_middle_of_a_message(db: PostgresDb) {
    let stage = At::new(db).await;
    for end in ["COMMIT", "ROLLBACK"] {
        let way = format!("{}; {end}; {}", insert(4), insert(3));
        _ = stage.leaves_by(&[&way]).await;
        assert_eq!(count(&stage.db, 3).await, 0);
    }
}

async fn a_commit_as_a_prepared_statement(db: PostgresDb) {
    let stage = At::new(db).await;
    for end in ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"] {
        let result = stage
            .fence
            .run(job(LEASE, move |ctx| {
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

async fn a_commit_in_a_procedure(db: PostgresDb) {
    db.sql("CREATE PROCEDURE ends() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'").await;
    // "invalid transaction termination": the transaction is aborted, and so is what follows.
    At::is_refused(db, &["CALL ends()"], "25P02").await;
}

async fn a_rollback_to_before_the_first_savepoint(db: PostgresDb) {
    let stage = At::new(db).await;
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    // The guard and the cursor are older than any savepoint: this is no way out, and no reason to refuse.
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

async fn a_nested_begin_that_is_dropped_half_way(db: PostgresDb) {
    let stage = std::sync::Arc::new(At::new(db).await);
    let (mut at, mut ended, mut refused) = (0, false, 0);
    while !ended {
        let inside = stage.clone();
        let result = stage
            .fence
            .run(job::<sqlx::Postgres, _, _, _>(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    on::<PostgresDb>(tx.executor(), insert(2)).await.unwrap();
                    let whole = cut(at, tx.connection().begin()).await.is_some();
                    let write = on::<PostgresDb>(tx.executor(), insert(3)).await;
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
            Err(error) => {
                assert!(!there && (error.is_unknown() || error.is_uncommitted()), "dropped at poll {at}: {error}");
                refused += 1;
            }
        }
        stage.is_clean(&format!("poll {at}")).await;
        at += 1;
    }
    // Where sqlx learns to leave the outer transaction alone, nothing is refused any more: then this may go.
    assert!(refused > 0, "of {at} drops none led out of the transaction");
}

async fn a_nested_begin_that_is_never_ended(db: PostgresDb) {
    let stage = At::new(db).await;
    let result = stage
        .fence
        .run(job::<sqlx::Postgres, _, _, _>(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                let mut nested = tx.connection().begin().await?;
                nested.execute("INSERT INTO runs VALUES (3, 'new', 0)").await?;
                // Leaked: its destructor would have rolled it back.
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

async fn a_read_made_writable(db: PostgresDb) {
    let stage = At::new(db).await;
    for way in [
        "SET TRANSACTION READ WRITE",
        "SET transaction_read_only = off",
        "SET LOCAL default_transaction_read_only = off",
    ] {
        let result = stage
            .fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut read = ctx.read().await?;
                    _ = read.executor().execute(way).await;
                    let write = on::<PostgresDb>(read.executor(), insert(3)).await;
                    assert!(write.is_err(), "{way}");
                    Ok::<_, Error>(read.close().await.map_err(|error| error.kind()))
                })
            }))
            .await;
        assert_eq!(result.unwrap(), Err(ErrorKind::RolledBack), "{way}");
        assert_eq!(count(&stage.db, 3).await, 0, "{way}");
        stage.is_clean(way).await;
    }
}

async fn a_read_that_is_left(db: PostgresDb) {
    let stage = std::sync::Arc::new(At::new(db).await);
    for (way, goes_through) in [
        ("COMMIT", false),
        ("ROLLBACK", false),
        ("COMMIT; BEGIN", false),
        ("COMMIT AND CHAIN", false),
        ("COMMIT; BEGIN READ WRITE", true),
    ] {
        let inside = stage.clone();
        let result = stage
            .fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut read = ctx.read().await?;
                    on::<PostgresDb>(read.executor(), way).await.unwrap();
                    let write = on::<PostgresDb>(read.executor(), insert(3)).await;
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

async fn connections_that_are_swapped(db: PostgresDb) {
    let fence = db.fence().await;
    db.sql(fence_tests::app::RUNS).await;
    let result = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let (mut one, mut two) = (ctx.begin().await?, ctx.begin().await?);
                mem::swap(one.connection(), two.connection());
                on::<PostgresDb>(one.executor(), insert(3)).await.unwrap();
                on::<PostgresDb>(two.executor(), insert(4)).await.unwrap();
                for tx in [one, two] {
                    assert!(tx.commit().await.is_err());
                }
                Ok::<_, Error>(())
            })
        }))
        .await;
    assert!(result.unwrap_err().is_unknown());
    assert_eq!(db.int("SELECT count(*) FROM runs").await, 1);
    // Every connection of the pool is clean, whichever way it came back.
    let mut all = Vec::new();
    for _ in 0..4 {
        let mut conn = db.pool().acquire().await.unwrap();
        let off = on::<PostgresDb>(&mut *conn, "SHOW default_transaction_read_only").await.unwrap().text();
        assert_eq!(off.as_deref(), Some("off"));
        all.push(conn);
    }
}

async fn a_connection_that_is_taken_out(db: PostgresDb) {
    let stage = At::new(db).await;
    let mut other = stage.db.connect("other").await;
    let result = stage
        .fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                mem::swap(tx.connection(), &mut other);
                // `other` is the fenced connection now, and sees to it itself that it stays inside.
                on::<PostgresDb>(&mut other, insert(2)).await.unwrap();
                on::<PostgresDb>(&mut other, "COMMIT").await.unwrap();
                assert_eq!(on::<PostgresDb>(&mut other, insert(3)).await.unwrap_err().code, READ_ONLY);
                tx.commit().await
            })
        }))
        .await;
    assert!(result.is_err());
    assert_eq!(count(&stage.db, 3).await, 0);
    stage.is_clean("a swap").await;
}

/// What the guarantee excludes, so that nobody has to guess: SQL that puts back the session's settings.
async fn a_setting_put_back_on_purpose_is_not_covered_but_told(db: PostgresDb) {
    let stage = At::new(db).await;
    for way in [
        "COMMIT; SET default_transaction_read_only = off",
        "COMMIT; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "COMMIT; RESET ALL",
    ] {
        let mut a = stage.owner().await;
        a.ok(Begin(Default::default())).await;
        a.ok(Sql(way.into())).await;
        a.ok(Sql(insert(3))).await;
        assert_eq!(count(&stage.db, 3).await, 1);
        assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
        assert!(a.end().await.unwrap_err().is_unknown());
        stage.is_clean(way).await;
    }
}
