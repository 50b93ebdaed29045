//! The database refuses the commit, or has rolled back before.

use std::time::Duration;

use fence_runtime::{Error, ErrorKind, TxOptions};
use fence_tests::{
    app::{RUNS, count, eventually, insert, on},
    conformance,
    jobs::job,
    owner::{
        Act::{Begin, Commit, Sql},
        Owner,
    },
    servers::{PostgresDb, TestDb},
};

use crate::LEASE;

conformance! { a_statement_that_failed_is_never_half_committed }

mod deferred {
    fence_tests::conformance! { on postgres, sqlite, sqlite_rollback: a_constraint_that_is_checked_at_commit }
    use super::a_constraint_that_is_checked_at_commit;
}

mod on_a_server {
    fence_tests::conformance! { on postgres:
        a_swallowed_error_is_not_committed,
        a_serialization_failure_at_commit,
    }
    use super::{a_serialization_failure_at_commit, a_swallowed_error_is_not_committed};
}

mod idle {
    fence_tests::conformance! { on postgres, mysql, mariadb: a_transaction_left_idle_is_ended_by_the_server }
    use super::a_transaction_left_idle_is_ended_by_the_server;
}

async fn a_statement_that_failed_is_never_half_committed<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    // The first of its two rows would fit.
    a.run(Sql("INSERT INTO runs VALUES (3, 'new', 0), (1, 'again', 0)".into())).await.unwrap_err();
    // PostgreSQL aborts the transaction, others only the statement: what commit says is what is there.
    let committed = a.run(Commit).await.is_ok();
    assert_eq!(committed, D::NAME != "postgres");
    assert_eq!((count(&db, 2).await, count(&db, 3).await), (i64::from(committed), 0));
    assert_eq!(a.end().await.is_ok(), committed);
}

async fn a_swallowed_error_is_not_committed(db: PostgresDb) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<PostgresDb>(&mut tx, 2).await.unwrap();
                // sqlx would say Ok to the commit of a transaction in this state.
                assert_eq!(insert::<PostgresDb>(&mut tx, 1).await.unwrap_err().code, "23505");
                let refused = tx.commit().await.unwrap_err();
                assert_eq!((refused.kind(), refused.lease().unwrap().as_str()), (ErrorKind::RolledBack, LEASE));
                assert!(refused.to_string().contains("a statement in it had failed"), "{refused}");
                Ok::<_, Error>(())
            })
        }))
        .await
        .unwrap_err();
    assert!(error.is_uncommitted(), "{error}");
    assert_eq!(count(&db, 2).await, 0);
}

async fn a_constraint_that_is_checked_at_commit<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    db.sql("CREATE TABLE parts (run_id bigint REFERENCES runs (run_id) DEFERRABLE INITIALLY DEFERRED)").await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<D>(&mut tx, 2).await.unwrap();
                // Every statement is fine. It is COMMIT that fails.
                on::<D>(tx.executor(), "INSERT INTO parts VALUES (77)").await.unwrap();
                tx.commit().await
            })
        }))
        .await
        .unwrap_err()
        .into_job()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::RolledBack);
    let cause = error.as_sqlx().unwrap().as_database_error().unwrap();
    assert!(cause.is_foreign_key_violation(), "{error}");
    assert_eq!((count(&db, 2).await, db.int("SELECT count(*) FROM parts").await), (0, 0));
    // And the same transaction with its reference in place.
    let run = fence.run(job(LEASE, |ctx| {
        Box::pin(async move {
            ctx.transaction(async |tx| {
                on::<D>(tx.executor(), "INSERT INTO parts VALUES (2)").await.unwrap();
                insert::<D>(tx, 2).await.unwrap();
                Ok::<_, Error>(())
            })
            .await
        })
    }));
    run.await.unwrap();
    assert_eq!((count(&db, 2).await, db.int("SELECT count(*) FROM parts").await), (1, 1));
}

async fn a_transaction_left_idle_is_ended_by_the_server<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    // MySQL and MariaDB count in seconds.
    a.ok(Begin(TxOptions::new().idle_limit(Duration::from_millis(50)))).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    let pid = a.pid();
    eventually("the server ends it", async || !db.view().pids("a").await.contains(&pid)).await;
    // Nobody is kept waiting by it any more.
    assert!(db.expire(LEASE).await);
    let b = Owner::start(&db, "b", LEASE).await.unwrap();
    assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
    assert!(a.end().await.unwrap_err().is_unknown());
    assert_eq!(count(&db, 2).await, 0);
    b.end().await.unwrap();
}

async fn a_serialization_failure_at_commit(db: PostgresDb) {
    db.sql(RUNS).await;
    let serializable = || TxOptions::new().isolation(fence_runtime::Isolation::Serializable);
    // Each reads what the other writes: one of them must not commit.
    let (mut a, mut b) = (Owner::start(&db, "a", "one").await.unwrap(), Owner::start(&db, "b", "two").await.unwrap());
    for owner in [&mut a, &mut b] {
        owner.ok(Begin(serializable())).await;
        owner.ok(Sql("SELECT sum(run_id) FROM runs".into())).await;
    }
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    b.ok(Sql("INSERT INTO runs VALUES (3, 'new', 0)".into())).await;
    a.ok(Commit).await;
    let refused = b.run(Commit).await.unwrap_err();
    assert!(refused.code == "RolledBack" && refused.message.contains("serialize"), "{refused}");
    a.end().await.unwrap();
    assert!(b.end().await.unwrap_err().is_uncommitted());
    assert_eq!((count(&db, 2).await, count(&db, 3).await), (1, 0));
}
