//! What the pool does to a job: connections inside somebody else's transaction, none at all, and its end.

use std::time::Duration;

use fence_runtime::{Error, Fence};
use fence_tests::{
    app::{RUNS, complete, count, insert, status},
    conformance,
    cut::cut,
    jobs::{job, token_of},
    servers::TestDb,
    stepper::{Gate, Task, within},
};
use sqlx::Pool;

use crate::LEASE;

mod slow {
    fence_tests::conformance! { on postgres: a_pool_that_hands_out_nothing_but_strays }
    use super::a_pool_that_hands_out_nothing_but_strays;
}

conformance! {
    a_connection_inside_a_stray_transaction_is_not_used,
    a_stray_transaction_of_a_dropped_begin_is_not_used,
    a_pool_that_is_closed_meanwhile,
    a_pool_that_has_no_connection_left,
}

async fn fence_of<D: TestDb>(db: &D, size: u32) -> (Fence<D::Db>, Pool<D::Db>) {
    db.sql(RUNS).await;
    let pool = db.pool_as("a", size);
    let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    (fence, pool)
}

/// Leaves one connection of the pool inside a transaction that sqlx does not know of.
async fn leave<D: TestDb>(pool: &Pool<D::Db>, stray: &str) {
    let mut conn = pool.acquire().await.unwrap();
    _ = D::run(&mut conn, stray).await;
    drop(conn);
    // It comes back in the background.
    fence_tests::app::eventually("the connection is back", async || pool.num_idle() > 0).await;
}

fn strays<D: TestDb>() -> &'static [&'static str] {
    match D::NAME {
        "postgres" => &[
            "BEGIN",
            "BEGIN; SELECT 1",
            "BEGIN; INSERT INTO runs VALUES (50, 'stray', 0)",
            "BEGIN; SELECT 1/0",
            "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT 1",
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM runs; SAVEPOINT s",
        ],
        "mysql" | "mariadb" => &[
            "BEGIN",
            "BEGIN; SELECT * FROM runs",
            "BEGIN; INSERT INTO runs VALUES (50, 'stray', 0)",
            "START TRANSACTION READ ONLY; SELECT 1 FROM runs",
            "SET autocommit = 0; INSERT INTO runs VALUES (50, 'stray', 0)",
            "SET autocommit = 0; SELECT * FROM runs",
            "BEGIN; SELECT 1 FROM runs; SAVEPOINT fence_g",
            "XA START 'stray'",
            "LOCK TABLES runs READ",
        ],
        _ => &[
            "BEGIN",
            "BEGIN; SELECT * FROM runs",
            "BEGIN IMMEDIATE",
            "BEGIN; INSERT INTO runs VALUES (50, 'stray', 0)",
            "SAVEPOINT s; INSERT INTO runs VALUES (50, 'stray', 0)",
        ],
    }
}

async fn a_connection_inside_a_stray_transaction_is_not_used<D: TestDb>(db: D) {
    let (fence, pool) = fence_of(&db, 1).await;
    for stray in strays::<D>() {
        db.sql("UPDATE runs SET status = 'new', fence_token = 0").await;
        leave::<D>(&pool, stray).await;
        // Acquiring gets it first.
        let inside = pool.clone();
        let run = fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                leave::<D>(&inside, stray).await;
                ctx.check().await?;
                leave::<D>(&inside, stray).await;
                ctx.progress("still here").await?;
                leave::<D>(&inside, stray).await;
                let mut read = ctx.read().await?;
                fence_tests::app::on::<D>(read.executor(), "SELECT count(*) FROM runs").await.unwrap();
                read.close().await?;
                leave::<D>(&inside, stray).await;
                ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await
            })
        }));
        let written = within("the run", run).await.unwrap_or_else(|error| panic!("{stray}: {error}"));
        assert_eq!((written.rows(), status(&db).await.as_str()), (1, "done"), "{stray}");
        // Neither committed nor rolled back by us as if it were ours.
        assert_eq!(count(&db, 50).await, 0, "{stray}: the stray transaction was committed");
        let seen = db.text("SELECT progress FROM fenced_job_leases").await;
        assert_eq!(seen.as_deref(), Some("still here"), "{stray}");
    }
}

async fn a_stray_transaction_of_a_dropped_begin_is_not_used<D: TestDb>(db: D) {
    for size in [1, 2] {
        let db = D::open().await.unwrap();
        let (fence, pool) = fence_of(&db, size).await;
        // sqlx 0.9.0 can hand the open transaction of a dropped `begin()` to the next user; at which poll, it knows.
        let (mut at, mut whole) = (0, false);
        while !whole {
            whole = cut(at, pool.begin()).await.map(drop).is_some();
            let inside = pool.clone();
            let run = fence.run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    _ = cut(at, inside.begin()).await;
                    ctx.transaction(async |tx| Ok::<_, Error>(insert::<D>(tx, 100 + at as i64).await)).await?.unwrap();
                    _ = cut(at, inside.begin()).await;
                    Ok::<_, Error>(())
                })
            }));
            within("the run", run).await.unwrap_or_else(|error| panic!("dropped at poll {at}: {error}"));
            assert_eq!(count(&db, 100 + at as i64).await, 1, "dropped at poll {at}");
            at += 1;
        }
    }
    drop(db);
}

async fn a_pool_that_hands_out_nothing_but_strays<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    // Every fresh connection begins inside a transaction: a mistake in a hook.
    let begin = match D::NAME {
        "sqlite" => "BEGIN; SELECT * FROM sqlite_schema",
        _ => "BEGIN; SELECT 1",
    };
    let pool = sqlx::pool::PoolOptions::<D::Db>::new()
        .max_connections(2)
        .after_connect(move |conn, _| {
            Box::pin(async move {
                D::run(conn, begin).await.map(drop).map_err(|refused| sqlx::Error::Protocol(refused.to_string()))
            })
        })
        .connect_lazy_with(db.options("a"));
    let fence = Fence::builder(pool).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    let error = within("the run", fence.run(token_of(LEASE))).await.unwrap_err();
    assert!(error.to_string().contains("could not be acquired"), "{error}");
    assert_eq!(db.int("SELECT count(*) FROM fenced_job_leases").await, 0);
}

async fn a_pool_that_is_closed_meanwhile<D: TestDb>(db: D) {
    let (fence, pool) = fence_of(&db, 2).await;
    let (inside, gate) = (pool.clone(), Gate::new("holds the lease"));
    let stop = gate.clone();
    let run = fence.run(
        job(LEASE, move |ctx| {
            Box::pin(async move {
                stop.stop().await;
                inside.close().await;
                // A word from the database, not a hang and not a loss: the lease is still ours.
                let error = ctx.begin().await.map(drop).unwrap_err();
                assert!(matches!(error.as_sqlx(), Some(sqlx::Error::PoolClosed)), "{error}");
                assert!(!ctx.is_lost());
                Err::<(), Error>(error)
            })
        })
        .ttl(Duration::from_secs(3600)),
    );
    let run = Task::start("a", db.view(), run);
    gate.reached().await;
    gate.open();
    assert!(run.done().await.unwrap_err().into_job().is_some());
    // The keeper has released it all the same.
    assert_eq!(db.fence_as("b").await.run(token_of(LEASE)).await.unwrap(), 2);
    let error = fence.run(token_of(LEASE)).await.unwrap_err();
    assert!(error.to_string().contains("could not be acquired"), "{error}");
}

async fn a_pool_that_has_no_connection_left<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let pool = sqlx::pool::PoolOptions::<D::Db>::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy_with(db.options("a"));
    let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    let run = fence.run(job(LEASE, move |ctx| {
        Box::pin(async move {
            let held = pool.acquire().await?;
            let error = ctx.begin().await.map(drop).unwrap_err();
            assert!(matches!(error.as_sqlx(), Some(sqlx::Error::PoolTimedOut)), "{error}");
            assert!(error.lease().is_some() && ctx.check().await.is_err() && !ctx.is_lost());
            drop(held);
            ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await
        })
    }));
    assert_eq!(within("the run", run).await.unwrap().rows(), 1);
}
