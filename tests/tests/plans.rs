//! InnoDB with thousands of leases: a renewal must not take the key that the guard has locked. The optimizer prefers
//! it once the table is large and analysed; what comes here is pinned to the other one.

use std::time::Duration;

use fence_runtime::{Error, ErrorKind, Fence, FenceCtx, TxOptions};
use fence_tests::{
    app::{RUNS, eventually, on},
    conformance,
    jobs::job,
    owner::{
        Act::{Begin, Check, Commit, Progress, Sql},
        FOR_GOOD, Named, Owner,
    },
    servers::{InnoDb, TestDb},
};
use sqlx::MySql;

conformance! { on mysql, mariadb:
    a_renewal_passes_an_open_guard,
    a_batch_of_renewals_passes_all_their_guards,
    the_naive_renewal_waits_for_the_guard,
    every_statement_works_among_thousands,
    an_index_that_is_dropped_while_a_job_runs,
}

const ROWS: i64 = 5_000;

/// As many leases as a large service has, and the server knows it.
async fn crowd<const M: bool>(db: &InnoDb<M>) {
    db.sql(RUNS).await;
    drop(db.fence().await);
    db.sql(
        "INSERT INTO fenced_job_leases (lease_name, owner_token, fence_token, leased_until, holder, acquired_at, renewed_at)
           SELECT CONCAT('lease:', LPAD(a.n + 10 * b.n + 100 * c.n + 1000 * d.n, 6, '0')), UUID(), 1, 0, 'nobody', 1, 1
             FROM (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
                   UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) a,
                  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
                   UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) b,
                  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
                   UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) c,
                  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4) d",
    )
    .await;
    db.sql("ANALYZE TABLE fenced_job_leases").await;
    assert_eq!(db.int("SELECT count(*) FROM fenced_job_leases").await, ROWS);
}

fn lease(n: usize) -> String {
    format!("lease:{n:06}")
}

async fn renewed_at<const M: bool>(db: &InnoDb<M>, lease: &str) -> i64 {
    db.int(format!("SELECT renewed_at FROM fenced_job_leases WHERE lease_name = '{lease}'")).await
}

async fn a_renewal_passes_an_open_guard<const M: bool>(db: InnoDb<M>) {
    crowd(&db).await;
    let fence = db.fence_as("a").await;
    let often = FOR_GOOD.renew(Duration::from_millis(50));
    for options in [
        TxOptions::new(),
        TxOptions::new().isolation(fence_runtime::Isolation::RepeatableRead),
        TxOptions::new().isolation(fence_runtime::Isolation::Serializable),
    ] {
        let mut a = Owner::start_on::<InnoDb<M>>(&fence, "a", &lease(2500), often, db.view()).await.unwrap();
        a.ok(Begin(options)).await;
        a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
        for _ in 0..3 {
            let before = renewed_at(&db, &lease(2500)).await;
            eventually("a renewal under the guard", async || renewed_at(&db, &lease(2500)).await > before).await;
        }
        a.ok(Check).await;
        a.ok(Progress("under the guard".into())).await;
        a.ok(Commit).await;
        a.end().await.unwrap();
        db.sql("DELETE FROM runs WHERE run_id = 2").await;
    }
}

/// Forty jobs of one service, each with its transaction open: one statement renews all of them.
async fn a_batch_of_renewals_passes_all_their_guards<const M: bool>(db: InnoDb<M>) {
    crowd(&db).await;
    let fence = Fence::builder(db.pool_as("a", 45)).keeper_options(db.options("keeper")).build().await.unwrap();
    let often = FOR_GOOD.renew(Duration::from_millis(100));
    let mut owners = Vec::new();
    for n in 0..40 {
        let mut a = Owner::start_on::<InnoDb<M>>(&fence, "a", &lease(n * 100 + 3), often, db.view()).await.unwrap();
        a.ok(Begin(TxOptions::new())).await;
        a.ok(Sql(format!("INSERT INTO runs VALUES ({}, 'new', 0)", n + 10))).await;
        owners.push(a);
    }
    let oldest = "SELECT MIN(renewed_at) FROM fenced_job_leases WHERE fence_token = 2";
    for _ in 0..3 {
        let newest = db.int("SELECT MAX(renewed_at) FROM fenced_job_leases").await;
        eventually("all are renewed under their guards", async || db.int(oldest).await > newest).await;
    }
    // One that somebody has locked keeps none of the others waiting.
    let mut c = db.session("c").await;
    c.ok(format!(
        "BEGIN; SELECT 1 FROM fenced_job_leases FORCE INDEX (PRIMARY) WHERE lease_name = '{}' FOR UPDATE",
        lease(3)
    ))
    .await;
    let others = format!("{oldest} AND lease_name <> '{}'", lease(3));
    let newest = db.int("SELECT MAX(renewed_at) FROM fenced_job_leases").await;
    eventually("the others are renewed", async || db.int(&others).await > newest).await;
    c.ok("ROLLBACK").await;
    for mut a in owners {
        a.ok(Commit).await;
        a.end().await.unwrap();
    }
    assert_eq!(db.int("SELECT count(*) FROM runs WHERE run_id >= 10").await, 40);
}

/// What the pin is for. Where a server learns to choose better, this says so.
async fn the_naive_renewal_waits_for_the_guard<const M: bool>(db: InnoDb<M>) {
    crowd(&db).await;
    let mut a = Owner::start(&db, "a", &lease(2500)).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    let mut c = db.session("c").await;
    let owner =
        db.text(format!("SELECT owner_token FROM fenced_job_leases WHERE lease_name = '{}'", lease(2500))).await;
    let renew = |pin: &str| {
        format!(
            "UPDATE fenced_job_leases {pin} SET leased_until = leased_until + 1 WHERE lease_name = '{}'
                AND fence_token = {} AND owner_token = '{}'",
            lease(2500),
            2,
            owner.as_deref().unwrap()
        )
    };
    assert_eq!(c.ok(renew("FORCE INDEX (PRIMARY)")).await.rows, 1);
    let mut waits = c.start(renew("FORCE INDEX (uq_fence)"));
    waits.blocked_by(&a).await;
    a.ok(Commit).await;
    assert_eq!(waits.ok().await.rows, 1);
    a.end().await.unwrap();
}

async fn every_statement_works_among_thousands<const M: bool>(db: InnoDb<M>) {
    crowd(&db).await;
    let fence = db.fence_as("a").await;
    let observer = fence.clone();
    let run = fence.run(job(lease(77), move |ctx: &FenceCtx<MySql, Named>| {
        Box::pin(async move {
            let mut tx = ctx.begin().await?;
            on::<InnoDb<M>>(tx.executor(), "UPDATE runs SET status = 'done'").await.unwrap();
            // Nobody else is in the way of the guard, nor it in theirs.
            let other = observer.run(job(lease(78), |ctx| Box::pin(async move { ctx.check().await }))).await;
            other.map_err(|error| Error::from(sqlx::Error::Protocol(error.to_string())))?;
            tx.commit().await
        })
    }));
    run.await.unwrap();
    assert_eq!(fence.leases().await.unwrap().len(), ROWS as usize);
    let lease = fence_runtime::LeaseName::new(lease(77)).unwrap();
    let revoked = fence.revoke(&lease, Duration::from_secs(5)).await.unwrap();
    assert_eq!(revoked, fence_runtime::Revocation::Complete { fence_token: 3 });
}

/// Nothing is written without a guard, and what is said names the key.
async fn an_index_that_is_dropped_while_a_job_runs<const M: bool>(db: InnoDb<M>) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", "job").await.unwrap();
    db.sql("ALTER TABLE fenced_job_leases DROP INDEX uq_fence").await;
    let refused = a.run(Begin(TxOptions::new())).await.unwrap_err();
    assert!(refused.message.contains("uq_fence"), "{refused}");
    let refused = a.run(Sql("UPDATE runs SET status = 'unfenced'".into())).await.unwrap_err();
    assert_eq!(refused.code, "NoTransaction");
    let fence = Fence::builder(db.pool_as("b", 2)).build().await;
    assert_eq!(fence.map(drop).unwrap_err().kind(), ErrorKind::Schema);
    // And when it is back, the job goes on.
    db.sql("ALTER TABLE fenced_job_leases ADD UNIQUE KEY uq_fence (lease_name, fence_token, owner_token)").await;
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Commit).await;
    a.end().await.unwrap();
}
