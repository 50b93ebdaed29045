//! What a running job asks and learns: check, lost, remaining, progress, idempotency keys.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use fence_runtime::{Error, ErrorKind, Fence, FenceCtx, OnLost, RunError};
use fence_tests::{
    app::eventually,
    conformance,
    jobs::{job, token_of},
    owner::{
        Act::{Check, Progress},
        Named, Owner,
    },
    servers::{SqliteDb, TestDb},
    stepper::{Gate, Task},
};

conformance! {
    check_asks_the_database,
    check_says_how_it_was_lost,
    a_lost_job_is_dropped_and_its_run_says_so,
    a_lost_job_that_wants_a_signal_goes_on,
    remaining_falls_between_renewals_and_never_rises_above_the_ttl,
    progress_is_seen_by_others_and_refused_after_a_takeover,
    progress_takes_any_text_but_nul,
    an_idempotency_key_is_the_same_for_every_owner,
    an_idempotency_key_is_unambiguous,
    the_context_says_what_it_holds,
}

mod on_a_file {
    fence_tests::conformance! { on sqlite: a_check_that_a_transaction_overtakes_is_no_loss }
    use super::a_check_that_a_transaction_overtakes_is_no_loss;
}

const LEASE: &str = "admin:reconciliation";
const SHORT: Duration = Duration::from_millis(450);
/// A lease that is renewed often but lives long: what ends it is seen soon, and nothing but what the test does ends it.
const QUICK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(50));

async fn check_asks_the_database<D: TestDb>(db: D) {
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    let left = a.ok(Check).await.int();
    assert!((3_540_000..=3_600_000).contains(&left), "{left} ms");
    // Nobody has told the process: the row alone decides.
    assert!(db.expire(LEASE).await);
    assert_eq!(a.run(Check).await.unwrap_err().code, "Lost");
    let error = a.end().await.unwrap_err();
    assert!(error.is_lost() && error.to_string().contains("expired"), "{error}");
}

async fn check_says_how_it_was_lost<D: TestDb>(db: D) {
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    assert!(db.expire(LEASE).await);
    let b = Owner::start(&db, "b", LEASE).await.unwrap();
    let refused = a.run(Check).await.unwrap_err();
    assert!(refused.message.contains("superseded by fencing token 2, held by \"b\""), "{refused}");
    a.end().await.unwrap_err();
    b.end().await.unwrap();

    let mut c = Owner::start(&db, "c", LEASE).await.unwrap();
    // Restored from an old backup, or emptied by somebody who tidied up.
    for (sql, after) in [
        ("UPDATE fenced_job_leases SET fence_token = 1", "row was deleted or its token set back"),
        ("DELETE FROM fenced_job_leases", "row was deleted or its token set back"),
    ] {
        db.sql(sql).await;
        let refused = c.run(Check).await.unwrap_err();
        assert!(refused.code == "Lost" && refused.message.contains(after), "{sql}: {refused}");
    }
    c.end().await.unwrap_err();
}

struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

async fn a_lost_job_is_dropped_and_its_run_says_so<D: TestDb>(db: D) {
    let (fence, dropped, gate) = (db.fence().await, Arc::new(AtomicBool::new(false)), Gate::new("running"));
    let (flag, started) = (Flag(dropped.clone()), gate.clone());
    let run = fence.run(
        job::<D::Db, (), Error, _>(LEASE, |_| {
            Box::pin(async move {
                let _flag = flag;
                started.stop().await;
                std::future::pending().await
            })
        })
        .ttl(QUICK.0)
        .renew(QUICK.1),
    );
    let run = Task::start("a", db.view(), run);
    gate.reached().await;
    gate.open();
    assert!(db.expire(LEASE).await);
    let error = run.done().await.unwrap_err();
    assert!(dropped.load(SeqCst));
    let RunError::Lost { error, job: None, .. } = error else { panic!("{error}") };
    assert_eq!((error.kind(), error.lease().unwrap().as_str()), (ErrorKind::Lost, LEASE));
    assert_eq!(error.fence_token().unwrap().get(), 1);
}

async fn a_lost_job_that_wants_a_signal_goes_on<D: TestDb>(db: D) {
    let (fence, gate) = (db.fence().await, Gate::new("running"));
    let started = gate.clone();
    let run = fence.run(
        job(LEASE, |ctx: &FenceCtx<D::Db, Named>| {
            Box::pin(async move {
                started.stop().await;
                ctx.lost().await;
                assert!(ctx.is_lost() && ctx.remaining() == Duration::ZERO);
                // It stays lost, and who asks again learns it at once.
                ctx.lost().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                let refused = ctx.begin().await.map(drop).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Lost);
                assert_eq!(ctx.read().await?.close().await.map_err(|e| e.kind()), Ok(()));
                Err::<(), _>(refused)
            })
        })
        .ttl(QUICK.0)
        .renew(QUICK.1)
        .on_lost(OnLost::Signal),
    );
    let run = Task::start("a", db.view(), run);
    gate.reached().await;
    gate.open();
    assert!(db.expire(LEASE).await);
    let error = run.done().await.unwrap_err();
    let RunError::Lost { job: Some(job), .. } = error else { panic!("{error}") };
    assert!(job.is_lost());
}

async fn remaining_falls_between_renewals_and_never_rises_above_the_ttl<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let seen = fence
        .run(
            job(LEASE, |ctx| {
                Box::pin(async move {
                    let mut seen = vec![ctx.remaining()];
                    for _ in 0..100 {
                        tokio::time::sleep(SHORT / 50).await;
                        seen.push(ctx.remaining());
                    }
                    Ok::<_, Error>(seen)
                })
            })
            .ttl(SHORT),
        )
        .await
        .unwrap();
    assert!(seen.iter().all(|left| *left <= SHORT), "{seen:?}");
    let (falls, rises) =
        (seen.windows(2).filter(|w| w[1] < w[0]).count(), seen.windows(2).filter(|w| w[1] > w[0]).count());
    assert!(falls > rises && rises >= 2, "{seen:?}");
}

async fn progress_is_seen_by_others_and_refused_after_a_takeover<D: TestDb>(db: D) {
    let noted = async || db.text("SELECT progress FROM fenced_job_leases").await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    assert_eq!(noted().await, None);
    a.ok(Progress("1 of 3".into())).await;
    assert_eq!(noted().await.as_deref(), Some("1 of 3"));
    let seen = db.fence().await.leases().await.unwrap();
    assert_eq!(seen[0].progress.as_deref(), Some("1 of 3"));

    assert!(db.expire(LEASE).await);
    // Expired is enough to be refused.
    assert_eq!(a.run(Progress("2 of 3".into())).await.unwrap_err().code, "Lost");
    let mut b = Owner::start(&db, "b", LEASE).await.unwrap();
    assert_eq!(noted().await, None, "the successor begins anew");
    b.ok(Progress("b's".into())).await;
    assert_eq!(a.run(Progress("3 of 3".into())).await.unwrap_err().code, "Lost");
    assert_eq!(noted().await.as_deref(), Some("b's"));
    a.end().await.unwrap_err();
    b.end().await.unwrap();
}

async fn progress_takes_any_text_but_nul<D: TestDb>(db: D) {
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    let long = "ü".repeat(100_000);
    for text in ["", "it's 50 % \\' done; -- $1 ? \"x\"\n\t\r", "日本 👩‍👩‍👧", "${name} {token} $fence$", &long]
    {
        a.ok(Progress(text.into())).await;
        assert_eq!(db.text("SELECT progress FROM fenced_job_leases").await.as_deref(), Some(text));
    }
    let refused = a.run(Progress("a\0b".into())).await.unwrap_err();
    assert!(refused.code == "Config" && refused.message.contains("NUL"), "{refused}");
    a.ok(Check).await;
    a.end().await.unwrap();
}

async fn an_idempotency_key_is_the_same_for_every_owner<D: TestDb>(db: D) {
    let keys = |fence: fence_runtime::Fence<D::Db>, lease: &'static str| async move {
        let run = fence.run(job(lease, |ctx| {
            Box::pin(async move {
                let again = ctx.idempotency_key("payout:2026-11");
                assert_eq!(again, ctx.idempotency_key("payout:2026-11"));
                Ok::<_, Error>((ctx.fence_token().get(), ctx.owner_token(), again))
            })
        }));
        run.await.unwrap()
    };
    let (a, b) = (keys(db.fence().await, LEASE).await, keys(db.fence_as("b").await, LEASE).await);
    assert_eq!((a.0, b.0), (1, 2));
    assert!(a.1 != b.1 && a.2 == b.2);
    // In every release of fence: what a third party has stored is compared with it.
    assert_eq!(a.2, "3d5fcdc8-46cc-5233-8fd9-72c575f04b1c");
    assert_ne!(keys(db.fence().await, "admin:other").await.2, a.2);
}

async fn an_idempotency_key_is_unambiguous<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let mut keys = std::collections::HashSet::new();
    let cases = [
        ("a", "bc"),
        ("ab", "c"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a/b/c", ""),
        ("1/a", "b"),
        ("a", ""),
        ("A", ""),
        ("a", "0"),
        ("a", "é"),
        ("a", "e\u{301}"),
        ("3/a/b", "c"),
        ("a", "/b/c"),
        ("a/", "b/c"),
        ("a", " "),
        ("a", "\0"),
    ];
    for (lease, step) in cases {
        let run = fence.run(job(lease, move |ctx| Box::pin(async move { Ok::<_, Error>(ctx.idempotency_key(step)) })));
        let key = run.await.unwrap();
        assert!(key.len() == 36 && key.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'), "{key}");
        assert!(keys.insert(key), "{lease:?} {step:?}");
    }
}

async fn the_context_says_what_it_holds<D: TestDb>(db: D) {
    let fence = db.fence().await;
    fence.run(token_of(LEASE)).await.unwrap();
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                assert_eq!((ctx.lease_name().as_str(), &*ctx.lease().0, ctx.fence_token().get()), (LEASE, LEASE, 2));
                let tx = ctx.begin().await?;
                assert_eq!((tx.lease_name(), tx.fence_token()), (ctx.lease_name(), ctx.fence_token()));
                assert_eq!(tx.owner_token(), ctx.owner_token());
                for text in [format!("{ctx:?}"), format!("{tx:?}")] {
                    assert!(text.contains(LEASE) && text.contains("fence_token: 2"), "{text}");
                }
                tx.rollback().await;
                Ok::<_, Error>(())
            })
        }))
        .await
        .unwrap();
    let owner = db.text("SELECT owner_token FROM fenced_job_leases").await.unwrap();
    assert_eq!(owner.len(), 36);
}

/// The check was asked for before the transaction was open, and is answered when the row that others see has expired: the guard has renewed it
/// for the transaction alone.
async fn a_check_that_a_transaction_overtakes_is_no_loss(db: SqliteDb) {
    let fence = Fence::builder(db.pool_as("a", 2)).migrate().build().await.unwrap();
    let pool = fence.unfenced("to be in the way");
    let (first, second) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    // A connection of the pool is needed to acquire.
    drop(first);
    let run = fence.run(
        job(LEASE, |ctx| {
            Box::pin(async move {
                let first = pool.acquire().await?;
                let checked = Gate::new("checked");
                // In this order they wait for a connection.
                let (written, check, ()) = tokio::join!(
                    async {
                        let tx = ctx.begin().await?;
                        checked.stop().await;
                        tx.commit().await
                    },
                    async {
                        let check = ctx.check().await;
                        checked.open();
                        check
                    },
                    async {
                        drop(first);
                        eventually("others see that it has expired", async || {
                            db.int("SELECT leased_until < unixepoch() * 1000000 FROM fenced_job_leases").await == 1
                        })
                        .await;
                        drop(second);
                    }
                );
                written?;
                check
            })
        })
        .ttl(Duration::from_millis(600)),
    );
    run.await.unwrap();
}
