//! Acquiring: one winner whatever the number of contenders and the server's default isolation, tokens that only rise,
//! and what must not stand in the way of a takeover or undo it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use fence_runtime::{Error, Fence, LeaseName, OnLost, Revocation, RunError};
use fence_tests::{
    conformance,
    jobs::{job, token_of},
    owner::{Act, FOR_GOOD, Owner},
    proxy::{Mode, Proxy},
    servers::{PostgresDb, SqliteDb, SqliteRollbackDb, TestDb, block_on, on, postgres},
    stepper::{Gate, Task, within},
};
use futures_util::future::join_all;
use sqlx::postgres::PgPoolOptions;
use tokio::{sync::Barrier, task::JoinSet};

const CONTENDERS: usize = 32;

/// A test for every default that a server may have: fence asks for what it needs.
macro_rules! whatever_the_default {
    ($($test:ident),+ $(,)?) => {
        pastey::paste! {
            $(
                #[test]
                fn [<postgres_read_committed_ $test>]() {
                    block_on(on::<PostgresDb, _>(async |db| $test(by_default(db, "read committed").await).await));
                }

                #[test]
                fn [<postgres_repeatable_read_ $test>]() {
                    block_on(on::<PostgresDb, _>(async |db| $test(by_default(db, "repeatable read").await).await));
                }

                #[test]
                fn [<postgres_serializable_ $test>]() {
                    block_on(on::<PostgresDb, _>(async |db| $test(by_default(db, "serializable").await).await));
                }

                #[test]
                fn [<sqlite_wal_ $test>]() {
                    block_on(on::<SqliteDb, _>($test));
                }

                #[test]
                fn [<sqlite_rollback_ $test>]() {
                    block_on(on::<SqliteRollbackDb, _>($test));
                }
            )+
        }
    };
}

async fn by_default(db: PostgresDb, level: &str) -> PostgresDb {
    db.sql(format!(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation TO %L', current_database(),
                                    '{level}'); END $$"
    ))
    .await;
    let default = PostgresDb::run(&mut db.connect("a").await, "SHOW default_transaction_isolation").await.unwrap();
    assert_eq!(default.text().as_deref(), Some(level));
    db
}

whatever_the_default! {
    a_fresh_lease_has_one_winner_of_32,
    an_expired_lease_has_one_winner_of_32,
    five_hundred_cycles_raise_the_token,
}

async fn five_hundred_cycles_raise_the_token<D: TestDb>(db: D) {
    cycles_raise_the_token(db, 500).await;
}

mod long {
    use super::*;

    conformance! {
        // A rollback journal takes three times as long for it as the others.
        on postgres, sqlite:
        ten_thousand_cycles_raise_the_token,
    }

    async fn ten_thousand_cycles_raise_the_token<D: TestDb>(db: D) {
        cycles_raise_the_token(db, 10_000).await;
    }
}

async fn a_fresh_lease_has_one_winner_of_32<D: TestDb>(db: D) {
    let (fences, rounds) = (fences(&db, 4).await, rounds::<D>());
    for round in 0..rounds {
        assert_eq!(winner(&fences, &format!("fresh:{round}")).await, 1);
    }
    assert_eq!(db.int("SELECT count(*) FROM fenced_job_leases WHERE fence_token = 1").await, rounds);
}

async fn an_expired_lease_has_one_winner_of_32<D: TestDb>(db: D) {
    let fences = fences(&db, 4).await;
    let a = Owner::start_on::<D>(&fences[0], "a", "expired", FOR_GOOD, db.view()).await.unwrap();
    assert!(db.expire("expired").await);
    for token in 2..2 + rounds::<D>() {
        assert_eq!(winner(&fences, "expired").await, token);
    }
    // The first owner has not noticed anything: it has not asked.
    a.end().await.unwrap();
}

/// On SQLite one round takes a second: 32 writers wait for the file by turns.
fn rounds<D: TestDb>() -> i64 {
    if D::NAME == "sqlite" { 2 } else { 8 }
}

/// Several processes: each has its own pool and keeper.
async fn fences<D: TestDb>(db: &D, number: usize) -> Vec<Fence<D::Db>> {
    let mut fences = Vec::new();
    for n in 0..number {
        fences.push(db.fence_as(&format!("fence {n}")).await);
    }
    fences
}

/// All ask at once. One has the lease until every other one has been told that it is contended; its token.
async fn winner<D: fence_runtime::Backend>(fences: &[Fence<D>], lease: &str) -> i64 {
    let (start, end) = (Arc::new(Barrier::new(CONTENDERS)), Gate::new("the winner"));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut runs = JoinSet::new();
    for n in 0..CONTENDERS {
        let (fence, lease, start) = (fences[n % fences.len()].clone(), lease.to_owned(), start.clone());
        let (inside, end) = (inside.clone(), end.clone());
        runs.spawn(async move {
            start.wait().await;
            let job = job(lease, move |ctx| {
                Box::pin(async move {
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two winners");
                    end.stop().await;
                    Ok::<_, Error>(ctx.fence_token().get())
                })
            });
            fence.run(job).await
        });
    }
    for _ in 1..CONTENDERS {
        match within("31 are refused", runs.join_next()).await.unwrap().unwrap() {
            Err(RunError::Contended(_)) => {}
            other => panic!("contended is all that a loser may hear, not {other:?}"),
        }
    }
    end.open();
    within("the winner ends", runs.join_next()).await.unwrap().unwrap().unwrap()
}

/// Two processes take turns as fast as they can. Whoever holds the lease notes its token: the notes are the numbers in
/// their order, without a gap (a refused acquire uses none up) or a repetition.
async fn cycles_raise_the_token<D: TestDb>(db: D, cycles: usize) {
    let tokens = Arc::new(Mutex::new(Vec::with_capacity(cycles)));
    let workers = fences(&db, 2).await.into_iter().map(|fence| {
        let tokens = tokens.clone();
        tokio::spawn(async move {
            while tokens.lock().unwrap().len() < cycles {
                let tokens = tokens.clone();
                let note = job("cycles", move |ctx| {
                    tokens.lock().unwrap().push(ctx.fence_token().get());
                    Box::pin(async { Ok::<_, Error>(()) })
                });
                match fence.run(note).await {
                    Ok(()) | Err(RunError::Contended(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    for worker in join_all(workers).await {
        worker.unwrap();
    }
    let tokens = Arc::into_inner(tokens).unwrap().into_inner().unwrap();
    assert!(tokens.iter().copied().eq(1..=tokens.len() as i64), "tokens do not rise one by one");
    assert_eq!(db.fence_token("cycles").await, tokens.len() as i64);
}

/// Not only that serialisation failures are retried: they cannot happen.
#[tokio::test]
async fn postgres_lease_statements_are_read_committed_whatever_the_default() {
    let Some(db) = postgres().await else { return };
    let db = by_default(db, "serializable").await;
    let fence = db.fence_as("a").await;
    db.sql(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           IF current_setting('transaction_isolation') <> 'read committed' THEN
             RAISE 'at %', current_setting('transaction_isolation');
           END IF;
           RETURN NEW;
         END $$;
         CREATE TRIGGER look BEFORE INSERT OR UPDATE ON fenced_job_leases FOR EACH ROW EXECUTE FUNCTION look()",
    )
    .await;
    let often = FOR_GOOD.renew(Duration::from_millis(50));
    for _ in 0..2 {
        let mut a = Owner::start_on::<PostgresDb>(&fence, "a", "lease", often, db.view()).await.unwrap();
        let renewed_at = "SELECT renewed_at::text FROM fenced_job_leases";
        let before = db.text(renewed_at).await;
        within("a renewal", async { while db.text(renewed_at).await == before {} }).await;
        a.ok(Act::Progress("half".into())).await;
        a.end().await.unwrap();
        assert_eq!(db.int(ENDED).await, 1, "released");
    }
    let revoked = fence.revoke(&LeaseName::new("lease").unwrap(), Duration::from_secs(1)).await.unwrap();
    assert_eq!(revoked, Revocation::Complete { fence_token: 3 });
}

/// Eight retriers of the old owner, refused again and again, must not hide the expired lease from `SKIP LOCKED`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_stale_retriers_do_not_hide_an_expired_lease() {
    const RETRIERS: usize = 8;
    const TAKEOVERS: usize = 200;
    let Some(db) = postgres().await else { return };
    let (a, b) = (db.fence_as("a").await, db.fence_as("b").await);
    let mut missed = 0;
    for _ in 0..TAKEOVERS {
        let (expired, refusals) = (Gate::new("a has expired"), Arc::new(AtomicUsize::new(0)));
        let over = Arc::new(AtomicBool::new(false));
        let stale = {
            let (expired, refusals, over) = (expired.clone(), refusals.clone(), over.clone());
            job("lease", move |ctx| {
                Box::pin(async move {
                    expired.stop().await;
                    let retriers = (0..RETRIERS).map(|_| async {
                        while !over.load(SeqCst) {
                            assert!(ctx.begin().await.expect_err("a is stale").is_lost());
                            refusals.fetch_add(1, SeqCst);
                        }
                    });
                    join_all(retriers).await;
                    Ok::<_, Error>(())
                })
            })
        };
        let stale = Task::start("a", db.view(), a.run(stale.on_lost(OnLost::Signal)));
        expired.reached().await;
        assert!(db.expire("lease").await);
        expired.open();
        within("all retriers retry", async {
            while refusals.load(SeqCst) < RETRIERS {
                tokio::task::yield_now().await;
            }
        })
        .await;
        match b.run(token_of::<sqlx::Postgres>("lease")).await {
            Ok(_) => {}
            Err(RunError::Contended(_)) => missed += 1,
            Err(other) => panic!("{other:?}"),
        }
        over.store(true, SeqCst);
        assert!(stale.done().await.unwrap_err().is_lost());
        db.expire("lease").await;
    }
    assert_eq!(missed, 0, "of {TAKEOVERS} takeovers");
}

conformance! {
    a_renewal_after_the_end_does_not_resurrect,
}

/// The keeper asks to renew a lease that has ended in the meantime, by a release or a revocation: it stays ended.
async fn a_renewal_after_the_end_does_not_resurrect<D: TestDb>(db: D) {
    let (a, gate) = (db.fence_as("a").await, Gate::new("a runs"));
    let inside = gate.clone();
    let run = a.run(
        job("lease", move |ctx| {
            Box::pin(async move {
                inside.stop().await;
                // Nobody but the keeper can have noticed: the local deadline is an hour away.
                ctx.lost().await;
                Ok::<_, Error>(())
            })
        })
        .ttl(Duration::from_secs(3600))
        .renew(Duration::from_millis(50))
        .on_lost(OnLost::Signal),
    );
    let run = Task::start("a", db.view(), run);
    gate.reached().await;
    assert!(db.expire("lease").await);
    gate.open();
    let lost = run.done().await.unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    let ended = format!("SELECT count(*) FROM fenced_job_leases WHERE leased_until = {}", D::EXPIRED);
    assert_eq!(db.int(ended).await, 1);
    assert_eq!(db.fence_as("b").await.run(token_of("lease")).await.unwrap(), 2);
}

/// A renewal of A that has not been committed yet when its term is ended, by its own release or by a revocation.
async fn renewal_in_flight(db: &PostgresDb) -> (Owner, fence_tests::stepper::Session) {
    let a = db.fence_as("a").await;
    let a = Owner::start_on::<PostgresDb>(&a, "a", "lease", FOR_GOOD.renew(Duration::from_millis(300)), db.view());
    let a = a.await.unwrap();
    let mut gate = db.session("gate").await;
    gate.ok("SELECT pg_advisory_lock(1)").await;
    db.sql(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           IF current_setting('application_name') = 'a keeper' AND NEW.leased_until > clock_timestamp() THEN
             PERFORM pg_advisory_xact_lock_shared(1);
           END IF;
           RETURN NULL;
         END $$;
         CREATE TRIGGER pause AFTER UPDATE ON fenced_job_leases FOR EACH ROW EXECUTE FUNCTION pause()",
    )
    .await;
    db.view().blocked_as("a keeper").await;
    (a, gate)
}

const ENDED: &str = "SELECT (leased_until = 'epoch')::int FROM fenced_job_leases";

#[tokio::test]
async fn postgres_a_release_comes_after_the_renewal_in_flight() {
    let Some(db) = postgres().await else { return };
    let (a, mut gate) = renewal_in_flight(&db).await;
    let run = Task::start("a", db.view(), a.end());
    // The keeper does one thing after the other, and the row is locked by the first of them.
    db.view().blocked_as("a keeper").await;
    assert!(!run.is_finished());
    assert_eq!(db.int(ENDED).await, 0);
    gate.ok("SELECT pg_advisory_unlock(1)").await;
    run.done().await.unwrap();
    assert_eq!(db.int(ENDED).await, 1);
    assert_eq!(db.fence_as("b").await.run(token_of("lease")).await.unwrap(), 2);
}

#[tokio::test]
async fn postgres_a_revocation_comes_after_the_renewal_in_flight() {
    let Some(db) = postgres().await else { return };
    let (mut a, mut gate) = renewal_in_flight(&db).await;
    let b = db.fence_as("b").await;
    let revoking = Task::start("b", db.view(), async move {
        b.revoke(&LeaseName::new("lease").unwrap(), Duration::from_secs(20)).await
    });
    revoking.blocked().await;
    gate.ok("SELECT pg_advisory_unlock(1)").await;
    assert_eq!(revoking.done().await.unwrap(), Revocation::Complete { fence_token: 2 });
    assert_eq!(db.int(ENDED).await, 1);
    assert_eq!(a.run(Act::Check).await.unwrap_err().code, "Lost");
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!((db.int(ENDED).await, db.fence_token("lease").await), (1, 2));
}

/// The acquire is committed, its answer is lost with the connection: asked again, it finds what it has won.
#[tokio::test]
async fn postgres_a_lost_answer_is_found_again() {
    let Some(db) = postgres().await else { return };
    let direct = db.options("a");
    let proxy = Proxy::to(format!("{}:{}", direct.get_host(), direct.get_port())).await.unwrap();
    let through = direct.host("127.0.0.1").port(proxy.port());
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(through);
    let fence = Fence::builder(pool).keeper_options(db.options("a keeper")).migrate().build().await.unwrap();
    for token in 1..=3 {
        proxy.set_at("INSERT INTO", Mode::SwallowAnswers);
        let run = Task::start("a", db.view(), fence.run(token_of::<sqlx::Postgres>("lease")));
        let won = format!(
            "SELECT count(*) FROM fenced_job_leases WHERE fence_token = {token} AND leased_until > clock_timestamp()"
        );
        within("it has won, and does not know", async { while db.int(&won).await == 0 {} }).await;
        assert!(!run.is_finished());
        proxy.set(Mode::Cut);
        within("its connection is cut", async { while !db.view().pids("a").await.is_empty() {} }).await;
        proxy.set(Mode::Pass);
        assert_eq!(run.done().await.unwrap(), token);
    }
}
