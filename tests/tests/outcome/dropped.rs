//! Futures and values that are dropped wherever they can be.

use std::time::Duration;

use fence_runtime::{Error, Fence};
use fence_tests::{
    app::{RUNS, complete, count, eventually, insert, on, status},
    conformance,
    cut::cut,
    jobs::{free_soon, job},
    servers::{InnoDb, PostgresDb, TestDb},
    stepper::{Task, within},
};
use sqlx::Pool;

use crate::LEASE;

conformance! {
    a_begin_that_is_dropped_leaves_nothing_open,
    a_commit_that_is_dropped_goes_on_and_run_knows,
    a_rollback_that_is_dropped_goes_on,
    a_terminal_write_that_is_dropped_is_not_committed,
    a_run_that_is_dropped_anywhere_leaves_no_trace,
    a_transaction_that_is_dropped_outside_the_runtime,
    a_runtime_that_is_dropped_under_a_run,
    a_run_that_is_dropped_on_a_runtime_that_nobody_drives,
}

mod on_a_server {
    fence_tests::conformance! { on postgres: a_transaction_that_is_dropped_in_the_middle_of_a_statement }
    use super::a_transaction_that_is_dropped_in_the_middle_of_a_statement;
}

mod on_innodb {
    fence_tests::conformance! { on mysql, mariadb: a_statement_goes_on_without_the_transaction_that_was_dropped }
    use super::a_statement_goes_on_without_the_transaction_that_was_dropped;
}

/// A fence over a pool of one: whoever leaves something behind leaves it to the next one.
async fn pool_of_one<D: TestDb>(db: &D) -> (Fence<D::Db>, Pool<D::Db>) {
    db.sql(RUNS).await;
    let pool = db.pool_as("a", 1);
    let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    (fence, pool)
}

/// The only connection writes for all to see, and nobody holds a lock.
async fn at_rest<D: TestDb>(db: &D, pool: &Pool<D::Db>, what: &str) {
    let mut conn = pool.acquire().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    D::run(&mut conn, "INSERT INTO runs VALUES (99, '', 0)").await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(count(db, 99).await, 1, "{what}: the connection is inside a transaction");
    D::run(&mut conn, "DELETE FROM runs WHERE run_id = 99").await.unwrap();
    drop(conn);
    let lock = match D::NAME {
        "postgres" => "BEGIN; SELECT 1 FROM fenced_job_leases FOR UPDATE NOWAIT; ROLLBACK",
        "mysql" | "mariadb" => "BEGIN; SELECT 1 FROM fenced_job_leases FOR UPDATE NOWAIT; ROLLBACK",
        _ => "BEGIN IMMEDIATE; ROLLBACK",
    };
    // The keeper may be at work in this moment.
    eventually(&format!("{what}: the lease's row is free"), async || match db.try_sql(lock).await {
        Ok(_) => true,
        Err(_) => {
            _ = db.try_sql("ROLLBACK").await;
            false
        }
    })
    .await;
}

async fn a_begin_that_is_dropped_leaves_nothing_open<D: TestDb>(db: D) {
    let (fence, pool) = pool_of_one(&db).await;
    let (mut at, mut whole) = (0, false);
    while !whole {
        let run = fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                let whole = cut(at, ctx.begin()).await.map(drop).is_some();
                // What is still going on in the background does not hinder the next one.
                ctx.transaction(async |tx| Ok::<_, Error>(insert::<D>(tx, 100 + at as i64).await)).await?.unwrap();
                Ok::<_, Error>(whole)
            })
        }));
        whole = within("the run", run).await.unwrap_or_else(|error| panic!("dropped at poll {at}: {error}"));
        assert_eq!(count(&db, 100 + at as i64).await, 1);
        at_rest(&db, &pool, &format!("dropped at poll {at}")).await;
        // The last thing that the job does, too.
        let run = fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                _ = cut(at, ctx.begin()).await;
                Ok::<_, Error>(())
            })
        }));
        within("the run", run).await.unwrap_or_else(|error| panic!("dropped at poll {at}: {error}"));
        at_rest(&db, &pool, &format!("dropped at poll {at}, at the end")).await;
        at += 1;
    }
    assert!(at > 1, "{at}");
}

async fn a_commit_that_is_dropped_goes_on_and_run_knows<D: TestDb>(db: D) {
    let (fence, pool) = pool_of_one(&db).await;
    let (mut at, mut whole) = (0, false);
    while !whole {
        let run = 100 + at as i64;
        let result = within(
            "the run",
            fence.run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    insert::<D>(&mut tx, run).await.unwrap();
                    Ok::<_, Error>(cut(at, tx.commit()).await.map(|committed| committed.unwrap()).is_some())
                })
            })),
        )
        .await;
        let there = count(&db, run).await == 1;
        // Never polled, it is rolled back; polled once, it goes on, and `run` waits for what comes of it.
        match result {
            Ok(done) => {
                assert!(there && at > 0, "dropped at poll {at}: run says Ok");
                whole = done;
            }
            Err(error) => assert!(!there && at == 0 && error.is_uncommitted(), "dropped at poll {at}: {error}"),
        }
        at_rest(&db, &pool, &format!("dropped at poll {at}")).await;
        at += 1;
    }
    assert!(at > 1, "{at}");
}

async fn a_rollback_that_is_dropped_goes_on<D: TestDb>(db: D) {
    let (fence, pool) = pool_of_one(&db).await;
    let (mut at, mut whole) = (0, false);
    while !whole {
        let run = fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<D>(&mut tx, 2).await.unwrap();
                Ok::<_, Error>(cut(at, tx.rollback()).await.is_some())
            })
        }));
        match within("the run", run).await {
            Ok(done) => whole = done,
            Err(error) => assert!(at == 0 && error.is_uncommitted(), "dropped at poll {at}: {error}"),
        }
        assert_eq!(count(&db, 2).await, 0);
        at_rest(&db, &pool, &format!("dropped at poll {at}")).await;
        at += 1;
    }
}

async fn a_terminal_write_that_is_dropped_is_not_committed<D: TestDb>(db: D) {
    let (fence, pool) = pool_of_one(&db).await;
    let (mut at, mut whole) = (0, false);
    while !whole {
        let result = within(
            "the run",
            fence.run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    insert::<D>(&mut tx, 100 + at as i64).await.unwrap();
                    let token = tx.fence_token();
                    let terminal = tx.terminal(sqlx::query(complete::<D>()).bind(token)).into_future();
                    let whole = cut(at, terminal).await.is_some();
                    let committed = tx.commit().await.map_err(|error| error.kind());
                    Ok::<_, Error>((whole, committed))
                })
            })),
        )
        .await;
        let there = count(&db, 100 + at as i64).await == 1;
        match result {
            // Zero polls: it was never begun, and nothing is half-way.
            Ok((done, Ok(()))) => {
                assert!(there && (done || at == 0), "dropped at poll {at}: committed");
                whole = done;
            }
            Ok((_, Err(kind))) => panic!("dropped at poll {at}: run says Ok, the commit {kind:?}"),
            Err(error) => assert!(!there && error.is_uncommitted(), "dropped at poll {at}: {error}"),
        }
        assert_eq!(status(&db).await, if whole { "done" } else { "new" }, "dropped at poll {at}");
        at_rest(&db, &pool, &format!("dropped at poll {at}")).await;
        at += 1;
    }
    assert!(at > 1, "{at}");
}

async fn a_run_that_is_dropped_anywhere_leaves_no_trace<D: TestDb>(db: D) {
    let (fence, pool) = pool_of_one(&db).await;
    let (mut at, mut whole) = (0, false);
    let mut token = 0;
    while !whole {
        let run = 100 + at as i64;
        // No time to live: what is left behind stays for an hour, and the next round fails.
        let dropped = cut(
            at,
            fence.run(
                job(LEASE, move |ctx| {
                    Box::pin(async move {
                        let mut read = ctx.read().await?;
                        on::<D>(read.executor(), "SELECT count(*) FROM runs").await.unwrap();
                        read.close().await?;
                        ctx.transaction(async |tx| Ok::<_, Error>(insert::<D>(tx, run).await)).await?.unwrap();
                        ctx.check().await
                    })
                })
                .ttl(Duration::from_secs(3600)),
            ),
        );
        whole = dropped.await.is_some_and(|result| result.map(drop).is_ok());
        let next = free_soon(&fence, LEASE).await;
        assert!(next > token && next <= token + 2, "dropped at poll {at}: token {next} after {token}");
        token = next;
        at_rest(&db, &pool, &format!("dropped at poll {at}")).await;
        if whole {
            assert_eq!(count(&db, run).await, 1);
        }
        at += 1;
    }
    assert!(at > 1, "{at}");
}

async fn a_transaction_that_is_dropped_outside_the_runtime<D: TestDb>(db: D) {
    let (fence, pool) = pool_of_one(&db).await;
    for begun in [true, false] {
        let result = within(
            "the run",
            fence.run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    if begun {
                        let mut tx = ctx.begin().await?;
                        insert::<D>(&mut tx, 2).await.unwrap();
                        std::thread::scope(|scope| scope.spawn(move || drop(tx)).join()).unwrap();
                    } else {
                        let mut read = ctx.read().await?;
                        on::<D>(read.executor(), "SELECT count(*) FROM runs").await.unwrap();
                        std::thread::scope(|scope| scope.spawn(move || drop(read)).join()).unwrap();
                    }
                    Ok::<_, Error>(())
                })
            })),
        )
        .await;
        assert_eq!(result.is_err_and(|error| error.is_uncommitted()), begun);
        assert_eq!(count(&db, 2).await, 0);
        at_rest(&db, &pool, "dropped on a thread").await;
    }
}

async fn a_runtime_that_is_dropped_under_a_run<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let (pool, keeper) = (db.options("a"), db.options("a keeper"));
    let other = db.fence_as("b").await;
    let (begun, running) = tokio::sync::oneshot::channel();
    // Another service in the same process, so to say; its runtime ends in the middle of a fenced transaction.
    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let fence = runtime.block_on(async {
            let pool = sqlx::pool::PoolOptions::<D::Db>::new().max_connections(1).connect_lazy_with(pool);
            let fence = Fence::builder(pool).keeper_options(keeper).build().await.unwrap();
            let run = fence.run(
                job(LEASE, move |ctx| {
                    Box::pin(async move {
                        let mut tx = ctx.begin().await?;
                        insert::<D>(&mut tx, 2).await.unwrap();
                        _ = begun.send(());
                        std::future::pending::<()>().await;
                        tx.commit().await
                    })
                })
                .ttl(Duration::from_secs(3600)),
            );
            tokio::spawn(run);
            running.await.unwrap();
            fence
        });
        drop(runtime);
        drop(fence);
    });
    within("the runtime ends", tokio::task::spawn_blocking(move || ended.join())).await.unwrap().unwrap();
    // The keeper has a runtime of its own, and releases.
    assert_eq!(free_soon(&other, LEASE).await, 2);
    assert_eq!(count(&db, 2).await, 0);
    at_rest(&db, db.pool(), "the runtime has ended").await;
}

async fn a_run_that_is_dropped_on_a_runtime_that_nobody_drives<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let (pool, keeper) = (db.options("a"), db.options("a keeper"));
    let other = db.fence_as("b").await;
    let (begun, running) = tokio::sync::oneshot::channel();
    let (left, over) = tokio::sync::oneshot::channel();
    let (seen, wait) = std::sync::mpsc::channel::<()>();
    // As in a program that is not asynchronous but for one call: what the run leaves in the background is never polled.
    let program = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fence = runtime.block_on(async {
            let pool = sqlx::pool::PoolOptions::<D::Db>::new().max_connections(1).connect_lazy_with(pool);
            let fence = Fence::builder(pool).keeper_options(keeper).build().await.unwrap();
            let run = fence.run(
                job(LEASE, move |ctx| {
                    Box::pin(async move {
                        let mut tx = ctx.begin().await?;
                        insert::<D>(&mut tx, 2).await.unwrap();
                        _ = begun.send(());
                        std::future::pending::<()>().await;
                        tx.commit().await
                    })
                })
                .ttl(Duration::from_secs(3600)),
            );
            tokio::select! {
                _ = run => unreachable!("the job never ends"),
                reached = running => reached.unwrap(),
            }
            fence
        });
        left.send(()).unwrap();
        _ = wait.recv();
        drop((fence, runtime));
    });
    within("the run is dropped", over).await.unwrap();
    assert_eq!(free_soon(&other, LEASE).await, 2);
    assert_eq!(count(&db, 2).await, 0);
    _ = seen.send(());
    within("the program ends", tokio::task::spawn_blocking(move || program.join())).await.unwrap().unwrap();
}

async fn a_transaction_that_is_dropped_in_the_middle_of_a_statement(db: PostgresDb) {
    db.sql(RUNS).await;
    let pool = db.pool_as("a", 1);
    let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    let run = fence.run(
        job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<PostgresDb>(&mut tx, 2).await.unwrap();
                on::<PostgresDb>(tx.executor(), "SELECT pg_sleep(3600)").await.unwrap();
                tx.commit().await
            })
        })
        .ttl(Duration::from_secs(3600)),
    );
    let run = Task::start("a", db.view(), run);
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'a' AND wait_event = 'PgSleep'
                     AND datname = current_database()";
    eventually("the statement runs", async || db.int(sleeps).await == 1).await;
    run.abort().await;
    // Not after an hour: the server looks, in the middle of a statement, whether its client is still there.
    assert_eq!(free_soon(&db.fence_as("b").await, LEASE).await, 2);
    assert_eq!(count(&db, 2).await, 0);
    at_rest(&db, &pool, "dropped in a statement").await;
}

/// There the server does not look: the lease stays locked until the statement ends, and then nothing of it is left.
async fn a_statement_goes_on_without_the_transaction_that_was_dropped<const M: bool>(db: InnoDb<M>) {
    db.sql(RUNS).await;
    let pool = db.pool_as("a", 1);
    let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    let mut c = db.session("c").await;
    c.ok("BEGIN; UPDATE runs SET status = 'c' WHERE run_id = 1").await;
    let run = fence.run(
        job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<InnoDb<M>>(&mut tx, 2).await.unwrap();
                on::<InnoDb<M>>(tx.executor(), "UPDATE runs SET status = 'a' WHERE run_id = 1").await.unwrap();
                tx.commit().await
            })
        })
        .ttl(Duration::from_secs(3600)),
    );
    let run = Task::start("a", db.view(), run);
    run.blocked().await;
    run.abort().await;
    let b = db.fence_as("b").await;
    assert!(b.run(fence_tests::jobs::token_of(LEASE)).await.unwrap_err().is_contended());
    c.ok("ROLLBACK").await;
    assert_eq!(free_soon(&b, LEASE).await, 2);
    assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "new"));
    at_rest(&db, &pool, "dropped in a statement").await;
}
