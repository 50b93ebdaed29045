//! Acquire, contend, take over, renew, release.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use fence_runtime::{Error, Fence, RunError, TxOptions};
use fence_tests::{
    app::{RUNS, complete, status},
    conformance,
    jobs::{free_soon, job, token_of},
    owner::{
        Act::{Begin, Commit, Execute, Terminal},
        Owner,
    },
    servers::TestDb,
    stepper::{Gate, Task, within},
};

conformance! {
    after_a_takeover_the_old_holders_release_is_refused_and_the_new_holder_keeps_the_lease,
    after_a_takeover_the_old_owners_completion_is_refused_and_the_new_result_stands,
    a_contender_learns_who_holds_the_lease_and_for_how_long,
    a_run_may_wait_until_the_lease_is_released,
    a_wait_that_ends_in_vain_says_contended,
    an_expired_lease_is_taken_over_and_not_before,
    a_lease_is_free_at_once_after_success_and_error,
    a_lease_is_free_after_a_panic_which_goes_on,
    a_lease_is_free_after_the_run_was_dropped,
    a_lease_is_free_after_the_fence_was_dropped_in_a_run,
    a_lease_is_released_only_when_the_job_is_gone,
    a_job_of_ten_times_its_ttl_is_never_taken_over,
    a_run_holds_its_own_lease_against_itself,
    jobs_of_other_leases_run_inside,
}

const LEASE: &str = "admin:reconciliation";
const LONG: Duration = Duration::from_secs(3600);

async fn after_a_takeover_the_old_holders_release_is_refused_and_the_new_holder_keeps_the_lease<D: TestDb>(db: D) {
    let a = Owner::start(&db, "a", LEASE).await.unwrap();
    assert!(db.expire(LEASE).await);
    let b = Owner::start(&db, "b", LEASE).await.unwrap();
    assert_eq!((a.token(), b.token()), (1, 2));
    let before = db.sql("SELECT * FROM fenced_job_leases").await;
    // A does not know that it has lost the lease: when this returns, it has tried to release it.
    a.end().await.unwrap();
    assert_eq!(db.sql("SELECT * FROM fenced_job_leases").await, before);
    assert!(Owner::start(&db, "c", LEASE).await.unwrap_err().is_contended());
    b.end().await.unwrap();
    // The row is still there, and with it the token.
    assert_eq!(Owner::start(&db, "c", LEASE).await.unwrap().token(), 3);
}

async fn after_a_takeover_the_old_owners_completion_is_refused_and_the_new_result_stands<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let claim = || Terminal("UPDATE runs SET status = 'claimed', fence_token = {token} WHERE run_id = 1".into());
    // Deliberately without a condition on the token: it is the fence that refuses, and not the application.
    let complete =
        |by: &str| format!("UPDATE runs SET status = 'done by {by}', fence_token = {{token}} WHERE run_id = 1");
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(claim()).await;
    a.ok(Commit).await;

    assert!(db.expire(LEASE).await);
    let mut b = Owner::start(&db, "b", LEASE).await.unwrap();
    for act in [Begin(TxOptions::new()), claim(), Terminal(complete("b")), Commit] {
        b.ok(act).await;
    }

    let refused = a.run(Begin(TxOptions::new())).await.unwrap_err();
    assert_eq!(refused.code, "Lost");
    for part in ["admin:reconciliation", "token 1", "token 2", "\"b\""] {
        assert!(refused.message.contains(part), "{part} in {refused}");
    }
    assert_eq!(a.run(Execute(complete("a"))).await.unwrap_err().code, "Lost");
    let lost = a.end().await.unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    assert_eq!((status(&db).await.as_str(), db.fence_token(LEASE).await), ("done by b", 2));
    b.end().await.unwrap();
    assert_eq!(db.int("SELECT fence_token FROM runs").await, 2);
}

async fn a_contender_learns_who_holds_the_lease_and_for_how_long<D: TestDb>(db: D) {
    let a = Owner::start(&db, "worker \"a\"", LEASE).await.unwrap();
    let error = db.fence_as("b").await.run(token_of(LEASE)).await.unwrap_err();
    assert!(error.is_contended() && !error.is_lost());
    let text = error.to_string();
    let RunError::Contended(contended) = error else { panic!("{text}") };
    assert_eq!((contended.lease.as_str(), &*contended.holder, contended.fence_token), (LEASE, "worker \"a\"", 1));
    assert!(contended.remaining <= LONG && contended.remaining > LONG - Duration::from_secs(60), "{contended:?}");
    assert!(text.contains("held by \"worker \\\"a\\\"\" with fencing token 1 for 3"), "{text}");
    a.end().await.unwrap();
}

async fn a_run_may_wait_until_the_lease_is_released<D: TestDb>(db: D) {
    let a = Owner::start(&db, "a", LEASE).await.unwrap();
    let fence = db.fence_as("b").await;
    let b = Task::start("b", db.view(), fence.run(token_of(LEASE).wait(LONG)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!b.is_finished());
    a.end().await.unwrap();
    assert_eq!(b.done().await.unwrap(), 2);
}

async fn a_wait_that_ends_in_vain_says_contended<D: TestDb>(db: D) {
    let a = Owner::start(&db, "a", LEASE).await.unwrap();
    let (wait, started) = (Duration::from_millis(200), Instant::now());
    let error = db.fence_as("b").await.run(token_of(LEASE).wait(wait)).await.unwrap_err();
    assert!(error.is_contended() && started.elapsed() >= wait, "{error} after {:?}", started.elapsed());
    a.end().await.unwrap();
}

/// `leased_until` so many milliseconds from now.
fn in_ms<D: TestDb>(ms: i64) -> String {
    match D::NAME {
        "postgres" => format!("clock_timestamp() + {ms} * interval '1 millisecond'"),
        "mysql" | "mariadb" => format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + {ms}000"),
        _ => format!("CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + {ms}000"),
    }
}

async fn an_expired_lease_is_taken_over_and_not_before<D: TestDb>(db: D) {
    let fence = db.fence().await;
    fence.run(token_of(LEASE)).await.unwrap();
    // Held by somebody who has crashed.
    let until = in_ms::<D>(400);
    db.sql(format!("UPDATE fenced_job_leases SET owner_token = 'crashed', leased_until = {until}")).await;
    let late = format!("SELECT count(*) FROM fenced_job_leases WHERE leased_until <= {}", in_ms::<D>(0));
    let contended = fence.run(token_of(LEASE)).await;
    // On a machine so slow that it was over already, there is nothing to see.
    if db.int(late).await == 0 {
        assert!(contended.unwrap_err().is_contended());
    }
    let expiry = db.text("SELECT leased_until FROM fenced_job_leases").await.unwrap();
    assert_eq!(fence.run(token_of(LEASE).wait(LONG)).await.unwrap(), 2);
    // Times of one format, or numbers of one length, compare as text.
    let acquired = db.text("SELECT acquired_at FROM fenced_job_leases").await.unwrap();
    assert!(acquired >= expiry, "taken over at {acquired}, before {expiry}");
}

/// Proves that nobody holds the lease: the next token, without waiting.
async fn free_at_once<D: TestDb>(fence: &Fence<D::Db>, token: i64) {
    assert_eq!(fence.run(token_of(LEASE).ttl(LONG)).await.unwrap(), token);
}

async fn a_lease_is_free_at_once_after_success_and_error<D: TestDb>(db: D) {
    let (fence, other) = (db.fence().await, db.fence_as("b").await);
    free_at_once::<D>(&fence, 1).await;
    free_at_once::<D>(&other, 2).await;
    let failed = fence.run(job(LEASE, |_| Box::pin(async { Err::<(), _>("no") })).ttl(LONG)).await;
    assert!(matches!(failed, Err(RunError::Job("no"))), "{failed:?}");
    free_at_once::<D>(&other, 4).await;
}

async fn a_lease_is_free_after_a_panic_which_goes_on<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let (fence, other) = (db.fence().await, db.fence_as("b").await);
    let run = fence.run(
        job::<D::Db, (), Error, _>(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                _ = tx.terminal(sqlx::query(complete::<D>()).bind(tx.fence_token())).await?;
                panic!("the job's own words")
            })
        })
        .ttl(LONG),
    );
    let panic = within("the run panics", tokio::spawn(run)).await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the job's own words"));
    // The connection of the open transaction was closed, which the server learns a moment later.
    assert_eq!(free_soon(&other, LEASE).await, 2);
    assert_eq!(status(&db).await, "new");
}

async fn a_lease_is_free_after_the_run_was_dropped<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let other = db.fence_as("b").await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    // In the worst moment: with a fenced transaction open.
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Terminal("UPDATE runs SET status = 'done'".into())).await;
    a.abort().await;
    // A minute of an hour's TTL would not be enough: it was released.
    assert_eq!(free_soon(&other, LEASE).await, 2);
    assert_eq!(status(&db).await, "new");
}

async fn a_lease_is_free_after_the_fence_was_dropped_in_a_run<D: TestDb>(db: D) {
    let other = db.fence_as("b").await;
    let (started, running) = tokio::sync::oneshot::channel();
    let run = {
        let fence = db.fence_as("a").await;
        fence.run(
            job(LEASE, |ctx| {
                Box::pin(async move {
                    _ = started.send(());
                    tokio::time::sleep(Duration::from_millis(700)).await;
                    ctx.check().await
                })
            })
            .ttl(Duration::from_millis(450)),
        )
    };
    let run = tokio::spawn(run);
    running.await.unwrap();
    assert!(other.run(token_of(LEASE)).await.unwrap_err().is_contended());
    // The handle is gone; whoever runs on it is renewed and released all the same.
    run.await.unwrap().unwrap();
    free_at_once::<D>(&other, 2).await;
}

/// Blocks in its destructor for as long as it is told.
struct SlowDrop(Arc<AtomicBool>, Duration);

impl Drop for SlowDrop {
    fn drop(&mut self) {
        std::thread::sleep(self.1);
        self.0.store(true, SeqCst);
    }
}

async fn a_lease_is_released_only_when_the_job_is_gone<D: TestDb>(db: D) {
    let (fence, other) = (db.fence().await, db.fence_as("b").await);
    let gone = Arc::new(AtomicBool::new(false));
    let (slow, (started, running)) = (gone.clone(), tokio::sync::oneshot::channel());
    // Longer than the time to live: it is renewed while the destructor runs.
    let run = fence.run(
        job::<D::Db, (), Error, _>(LEASE, |_| {
            Box::pin(async move {
                let _slow = SlowDrop(slow, Duration::from_millis(900));
                _ = started.send(());
                tokio::task::yield_now().await;
                Ok(())
            })
        })
        .ttl(Duration::from_millis(600)),
    );
    let run = tokio::spawn(run);
    running.await.unwrap();
    let after = other.run(
        job(LEASE, |_| {
            let gone = gone.clone();
            Box::pin(async move { Ok::<_, Error>(gone.load(SeqCst)) })
        })
        .wait(LONG),
    );
    assert!(after.await.unwrap(), "the next holder ran before the first job was gone");
    run.await.unwrap().unwrap();
    assert_eq!(db.fence_token(LEASE).await, 2);
}

async fn a_job_of_ten_times_its_ttl_is_never_taken_over<D: TestDb>(db: D) {
    let ttl = Duration::from_millis(500);
    let (fence, other) = (db.fence().await, db.fence_as("b").await);
    let (ended, started) = (Arc::new(AtomicBool::new(false)), Gate::new("the job holds its lease"));
    let (end, start) = (ended.clone(), started.clone());
    let run = fence.run(
        job(LEASE, move |ctx| {
            Box::pin(async move {
                start.stop().await;
                tokio::time::sleep(ttl * 10).await;
                assert!(!ctx.is_lost() && ctx.remaining() > Duration::ZERO);
                let checked = ctx.check().await;
                end.store(true, SeqCst);
                checked
            })
        })
        .ttl(ttl),
    );
    let run = Task::start("a", db.view(), run);
    started.reached().await;
    started.open();
    let mut tries = 0;
    loop {
        match other.run(token_of(LEASE)).await {
            Err(error) if error.is_contended() => tries += 1,
            taken => {
                assert!(ended.load(SeqCst), "taken over after {tries} tries: {taken:?}");
                assert_eq!(taken.unwrap(), 2);
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    run.done().await.unwrap();
    assert!(tries > 20, "{tries}");
}

async fn a_run_holds_its_own_lease_against_itself<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let again = fence.clone();
    let inner = fence
        .run(job(LEASE, move |_| {
            Box::pin(async move { Ok::<_, Error>(again.run(token_of(LEASE)).await.map_err(|e| e.is_contended())) })
        }))
        .await;
    assert_eq!(inner.unwrap(), Err(true));
}

async fn jobs_of_other_leases_run_inside<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let inside = fence.clone();
    _ = fence
        .run(job(LEASE, move |ctx| {
            Box::pin(async move {
                for n in 1..=3 {
                    let inner = inside
                        .run(job(format!("{LEASE}:{n}"), |ctx| {
                            Box::pin(async move {
                                let sql = match D::NAME {
                                    "mysql" | "mariadb" => {
                                        "INSERT INTO runs SELECT 100 + count(*), 'inner', ? FROM runs"
                                    }
                                    _ => "INSERT INTO runs SELECT 100 + count(*), 'inner', $1 FROM runs",
                                };
                                _ = ctx.execute(sqlx::query(sql).bind(ctx.fence_token())).await?;
                                Ok::<_, Error>(ctx.lease_name().to_string())
                            })
                        }))
                        .await;
                    assert_eq!(inner.unwrap(), format!("{LEASE}:{n}"));
                }
                ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await
            })
        }))
        .await
        .unwrap();
    assert_eq!(db.int("SELECT count(*) FROM runs WHERE status = 'inner'").await, 3);
    assert_eq!(status(&db).await, "done");
    let free: Vec<_> = fence.leases().await.unwrap().into_iter().map(|l| (l.lease, l.remaining)).collect();
    assert_eq!(free.len(), 4);
    assert!(free.iter().all(|(_, remaining)| remaining.is_none()), "{free:?}");
}
