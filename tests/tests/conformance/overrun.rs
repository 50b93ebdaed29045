//! A job that takes longer than its `max_runtime`: it must not hold its lease for ever.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use fence_runtime::{Error, ErrorKind, Fence, OnLost, RunError, TxOptions};
use fence_tests::{
    app::{COMPLETE, RUNS, count, insert, status},
    conformance,
    jobs::{free_soon, job, token_of},
    owner::{
        Act::{Begin, Commit, Execute, Sql},
        FOR_GOOD, Owner,
    },
    servers::TestDb,
    stepper::within,
};

conformance! {
    a_job_that_takes_too_long_is_dropped_and_its_lease_released,
    a_job_that_wants_a_signal_begins_nothing_more_and_ends_what_it_began,
    a_job_that_hangs_is_not_renewed_any_more,
    a_limit_that_was_not_reached_changes_nothing,
    no_time_at_all_is_refused,
}

const LEASE: &str = "admin:reconciliation";
const LIMIT: Duration = Duration::from_millis(300);

async fn a_job_that_takes_too_long_is_dropped_and_its_lease_released<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let begun = Instant::now();
    let forever = job(LEASE, |_| Box::pin(std::future::pending::<Result<(), Error>>()));
    let error = within("it is dropped", fence.run(forever.ttl(Duration::from_secs(3600)).max_runtime(LIMIT)));
    let error = error.await.unwrap_err();
    assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
    assert!(error.is_lost() && error.to_string().contains("its `max_runtime` of 300ms"), "{error}");
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 2);
}

async fn a_job_that_wants_a_signal_begins_nothing_more_and_ends_what_it_began<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence_as("a").await;
    let options = FOR_GOOD.max_runtime(LIMIT).on_lost(OnLost::Signal);
    let mut a = Owner::start_on::<D>(&fence, "a", LEASE, options, db.view()).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("UPDATE runs SET status = 'in time'".into())).await;
    tokio::time::sleep(2 * LIMIT).await;
    a.ok(Commit).await;
    for act in [Begin(TxOptions::new()), Execute(COMPLETE.replace("$1", "{token}"))] {
        let refused = a.run(act).await.unwrap_err();
        assert!(refused.code == "Lost" && refused.message.contains("`max_runtime`"), "{refused}");
    }
    assert_eq!(status(&db).await, "in time");
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 2);
}

async fn a_job_that_hangs_is_not_renewed_any_more<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let others = db.fence_as("b").await;
    let (started, running) = tokio::sync::oneshot::channel();
    let (go_on, hangs) = mpsc::channel::<()>();
    let stuck = job(LEASE, move |ctx| {
        Box::pin(async move {
            started.send(()).expect("the test waits");
            // Without an await: nothing can drop it.
            hangs.recv().expect("the test goes on");
            ctx.transaction(async |tx| {
                insert::<D>(tx, 2).await.unwrap();
                Ok::<_, Error>(())
            })
            .await
        })
    });
    // A runtime of its own, because this one would hang with it.
    let builder = Fence::builder(db.pool_as("a", 2)).keeper_options(db.options("a keeper"));
    let run = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fence = builder.build().await.unwrap();
            fence.run(stuck.ttl(Duration::from_millis(600)).max_runtime(LIMIT)).await
        })
    });
    within("it holds the lease", running).await.unwrap();
    assert_eq!(free_soon(&others, LEASE).await, 2);
    go_on.send(()).unwrap();
    let error = within("it ends", run).await.unwrap().unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(count(&db, 2).await, 0);
}

async fn a_limit_that_was_not_reached_changes_nothing<D: TestDb>(db: D) {
    let fence = db.fence().await;
    for limit in [Duration::from_secs(60), Duration::MAX] {
        fence.run(token_of(LEASE).max_runtime(limit)).await.unwrap();
    }
}

async fn no_time_at_all_is_refused<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let RunError::Fence(error) = fence.run(token_of(LEASE).max_runtime(Duration::ZERO)).await.unwrap_err() else {
        panic!("it has run")
    };
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("`max_runtime`"), "{error}");
    assert!(fence.leases().await.unwrap().is_empty());
}
