//! Acquiring: one winner whatever the number of contenders and the server's default isolation, tokens that only rise,
//! and what must not stand in the way of a takeover or undo it.

mod flight;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use fence_runtime::{Error, Fence, OnLost, RunError};
use fence_tests::{
    conformance,
    jobs::{job, token_of},
    owner::{FOR_GOOD, Owner},
    servers::{MariaDb, MySqlDb, PostgresDb, SqliteDb, SqliteRollbackDb, TestDb, block_on, on},
    stepper::{Gate, Task, within},
};
use futures_util::future::join_all;
use sqlx::pool::PoolOptions;
use tokio::{sync::Barrier, task::JoinSet};

const CONTENDERS: usize = 32;

/// A test for every default that a server may have: fence asks for what it needs.
macro_rules! whatever_the_default {
    ($($test:ident),+ $(,)?) => {
        $(
            whatever_the_default! { @levels $test [read_committed, repeatable_read, serializable] }
            pastey::paste! {
                #[test]
                fn [<sqlite_wal_ $test>]() {
                    block_on(on::<SqliteDb, _>(async |db| $test(db, None).await));
                }

                #[test]
                fn [<sqlite_rollback_ $test>]() {
                    block_on(on::<SqliteRollbackDb, _>(async |db| $test(db, None).await));
                }
            }
        )+
    };
    (@levels $test:ident [$($level:ident),+]) => {
        $(
            whatever_the_default! { @one $test $level postgres PostgresDb }
            whatever_the_default! { @one $test $level mysql MySqlDb }
            whatever_the_default! { @one $test $level mariadb MariaDb }
        )+
    };
    (@one $test:ident $level:ident $name:ident $db:ident) => {
        pastey::paste! {
            #[test]
            fn [<$name _ $level _ $test>]() {
                let level = stringify!($level).replace('_', " ");
                block_on(on::<$db, _>(async |db| $test(db, Some(&level)).await));
            }
        }
    };
}

/// What a connection says first, so that this level is its default as if it were the server's.
fn by_default<D: TestDb>(level: &str) -> String {
    match D::NAME {
        "postgres" => format!("SET default_transaction_isolation = '{level}'"),
        _ => format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"),
    }
}

whatever_the_default! {
    a_fresh_lease_has_one_winner_of_32,
    an_expired_lease_has_one_winner_of_32,
    five_hundred_cycles_raise_the_token,
}

async fn five_hundred_cycles_raise_the_token<D: TestDb>(db: D, default: Option<&str>) {
    cycles_raise_the_token(db, default, 500).await;
}

mod long {
    use super::*;

    conformance! {
        // A rollback journal takes three times as long for it as the others.
        on postgres, sqlite:
        ten_thousand_cycles_raise_the_token,
    }

    async fn ten_thousand_cycles_raise_the_token<D: TestDb>(db: D) {
        cycles_raise_the_token(db, None, 10_000).await;
    }
}

async fn a_fresh_lease_has_one_winner_of_32<D: TestDb>(db: D, default: Option<&str>) {
    let (fences, rounds) = (fences(&db, default, 4).await, rounds::<D>());
    for round in 0..rounds {
        assert_eq!(winner(&fences, &format!("fresh:{round}")).await, 1);
    }
    assert_eq!(db.int("SELECT count(*) FROM fenced_job_leases WHERE fence_token = 1").await, rounds);
}

async fn an_expired_lease_has_one_winner_of_32<D: TestDb>(db: D, default: Option<&str>) {
    let fences = fences(&db, default, 4).await;
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
async fn fences<D: TestDb>(db: &D, default: Option<&str>, number: usize) -> Vec<Fence<D::Db>> {
    let mut fences = Vec::new();
    for n in 0..number {
        fences.push(fence_with::<D>(db, &format!("fence {n}"), default).await);
    }
    fences
}

/// As [`TestDb::fence_as`], over connections for which this level is the default.
async fn fence_with<D: TestDb>(db: &D, who: &str, default: Option<&str>) -> Fence<D::Db> {
    let Some(level) = default else { return db.fence_as(who).await };
    let set = by_default::<D>(level);
    let pool = PoolOptions::<D::Db>::new().max_connections(10).acquire_timeout(Duration::from_secs(20));
    let pool = pool.after_connect(move |connection, _| {
        let set = set.clone();
        Box::pin(async move {
            let done = D::run(connection, &set).await;
            done.map(drop).map_err(|refused| sqlx::Error::Protocol(refused.to_string()))
        })
    });
    let keeper = db.options(&format!("{who} keeper"));
    let fence = Fence::builder(pool.connect_lazy_with(db.options(who))).keeper_options(keeper).holder(who).migrate();
    fence.build().await.unwrap()
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
async fn cycles_raise_the_token<D: TestDb>(db: D, default: Option<&str>, cycles: usize) {
    let tokens = Arc::new(Mutex::new(Vec::with_capacity(cycles)));
    let workers = fences(&db, default, 2).await.into_iter().map(|fence| {
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
