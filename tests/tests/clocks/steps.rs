//! The database's clock steps. It is only ever compared with the times in the lease table, so that it steps by an hour is the same as that all of
//! these are an hour off.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use fence_runtime::{LeaseName, TxOptions};
use fence_tests::{
    app::{RUNS, status},
    conformance,
    jobs::{job, token_of},
    owner::{
        Act::{Begin, Check, Commit, Sql},
        FOR_GOOD, Owner,
    },
    servers::TestDb,
};

use super::LEASE;

conformance! {
    back_nobody_takes_over_and_nobody_relies_on_it_for_longer,
    back_a_release_stays_one,
    forward_the_lease_is_free_and_its_holder_refused,
    forward_in_a_fenced_transaction_nobody_takes_over,
    wherever_it_steps_one_term_at_a_time_can_write,
}

const HOUR: i64 = 3600;
const YEARS: i64 = 20 * 365 * 24 * HOUR;

/// The database's clock goes forward, or back, by so many seconds.
async fn step<D: TestDb>(db: &D, seconds: i64) {
    let moved = |column: &str| match D::NAME {
        "postgres" => format!("{column} = {column} - interval '{seconds} seconds'"),
        _ => format!("{column} = {column} - {seconds} * 1000000"),
    };
    // What is released stays so: the epoch is before any time.
    let sql = format!("UPDATE fenced_job_leases SET {} WHERE leased_until <> {}", moved("leased_until"), D::EXPIRED);
    db.sql(sql).await;
    db.sql(format!("UPDATE fenced_job_leases SET {}, {}", moved("acquired_at"), moved("renewed_at"))).await;
}

async fn back_nobody_takes_over_and_nobody_relies_on_it_for_longer<D: TestDb>(db: D) {
    for seconds in [HOUR, YEARS] {
        let (fence, other) = (db.fence_as("a").await, db.fence_as("b").await);
        let db = &db;
        let ttl = Duration::from_secs(3);
        let run = fence.run(
            job(LEASE, move |ctx| {
                Box::pin(async move {
                    // So long that renewals that were made after the step have come back.
                    let before = tokio::time::Instant::now();
                    while before.elapsed() < ttl + Duration::from_millis(500) {
                        assert!(ctx.remaining() < ttl, "relied on for {:?}", ctx.remaining());
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    ctx.check().await
                })
            })
            .ttl(ttl),
        );
        let stepping = async {
            fence_tests::app::eventually("it is held", async || {
                db.int(format!("SELECT count(*) FROM fenced_job_leases WHERE leased_until <> {}", D::EXPIRED)).await
                    == 1
            })
            .await;
            step(db, -seconds).await;
            let refused = other.run(token_of(LEASE)).await.unwrap_err();
            assert!(refused.is_contended(), "{refused}");
        };
        let (lives, ()) = tokio::join!(run, stepping);
        assert!(lives.unwrap() > Duration::from_secs(HOUR as u64 - 60), "by the database's clock it lives that long");
        // And it was released.
        other.run(token_of(LEASE)).await.unwrap();
    }
}

async fn back_a_release_stays_one<D: TestDb>(db: D) {
    let fence = db.fence().await;
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 1);
    step(&db, -HOUR).await;
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 2);
    step(&db, -YEARS).await;
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 3);
}

async fn forward_the_lease_is_free_and_its_holder_refused<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    step(&db, 2 * HOUR).await;
    let mut b = Owner::start(&db, "b", LEASE).await.unwrap();
    assert_eq!((a.token(), b.token()), (1, 2));
    assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    // The step is undone: the one that was taken over stays so.
    step(&db, -2 * HOUR).await;
    assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    b.ok(Begin(TxOptions::new())).await;
    b.ok(Sql("UPDATE runs SET status = 'of b'".into())).await;
    b.ok(Commit).await;
    b.end().await.unwrap();
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!(status(&db).await, "of b");
}

async fn forward_in_a_fenced_transaction_nobody_takes_over<D: TestDb>(db: D) {
    if D::NAME.starts_with("sqlite") {
        // Its clock can step there, and the table be changed by nobody: that nobody takes over is what `race` shows.
        return;
    }
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("UPDATE runs SET status = 'of a'".into())).await;
    step(&db, 2 * HOUR).await;
    assert!(Owner::start(&db, "b", LEASE).await.unwrap_err().is_contended());
    a.ok(Commit).await;
    let b = Owner::start(&db, "b", LEASE).await.unwrap();
    assert_eq!(b.token(), 2);
    assert_eq!(a.run(Check).await.unwrap_err().code, "Lost");
    b.end().await.unwrap();
    assert_eq!(status(&db).await, "of a");
    _ = a.end().await;
}

/// Three holders and a clock that goes anywhere: tokens rise, and never can two of them write.
async fn wherever_it_steps_one_term_at_a_time_can_write<D: TestDb>(db: D) {
    let lease = LeaseName::new(LEASE).unwrap();
    let fences = [db.fence_as("a").await, db.fence_as("b").await, db.fence_as("c").await];
    let random = RandomState::new();
    println!("{random:?}");
    let (mut owners, mut highest): (Vec<Owner>, i64) = (Vec::new(), 0);
    for round in 0..fence_tests::rounds() as usize {
        let fence = &fences[round % 3];
        if let Ok(owner) = Owner::start_on::<D>(fence, ["a", "b", "c"][round % 3], LEASE, FOR_GOOD, db.view()).await {
            assert!(owner.token() > highest, "token {} after {highest}", owner.token());
            highest = owner.token();
            owners.push(owner);
        }
        let by = [-YEARS, -HOUR, -1, 1, HOUR, 2 * HOUR, YEARS][(random.hash_one(round) % 7) as usize];
        step(&db, by).await;
        let mut writers = Vec::new();
        for owner in &mut owners {
            if owner.run(Begin(TxOptions::new())).await.is_ok() {
                owner.ok(Commit).await;
                writers.push(owner.token());
            }
        }
        assert!(writers.is_empty() || writers == [highest], "{writers:?} can write, and {highest} was given out last");
        let seen = fences[0].inspect(&lease).await.unwrap().unwrap();
        assert_eq!(seen.fence_token, highest);
    }
    for owner in owners {
        _ = owner.end().await;
    }
}
