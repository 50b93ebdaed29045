//! What a fence costs on the network: every operation is counted at a proxy, on connections that are warm.
//!
//! A pool asks each connection whether it is alive before it lends it and after it got it back. Those round trips are the
//! pool's own, so what goes through a pool is compared with plain statements through the same pool.

use std::{future::Future, sync::Arc, time::Duration};

use fence_runtime::{Error, Fence, FenceCtx, FencedJob};
use fence_tests::{
    jobs::{Body, job},
    owner::Named,
    proxy::Proxy,
    servers::{PostgresDb, TestDb, postgres},
    stepper::within,
};
use sqlx::{PgPool, Postgres, postgres::PgPoolOptions};

/// So often that a round trip too many now and then would show.
const TIMES: u64 = 10;
const UPDATE: &str = "UPDATE runs SET note = $1 WHERE id = 1";

/// A fence over a pool of one connection; the pool and the keeper have a proxy each.
struct Setting {
    fence: Fence<Postgres>,
    pool: PgPool,
    at_pool: Proxy,
    at_keeper: Proxy,
    _db: PostgresDb,
}

impl Setting {
    async fn new() -> Option<Arc<Self>> {
        let db = postgres().await?;
        db.sql("CREATE TABLE runs (id bigint PRIMARY KEY, note text); INSERT INTO runs VALUES (1, 'new')").await;
        let direct = db.options("worker");
        let server = format!("{}:{}", direct.get_host(), direct.get_port());
        let (at_pool, at_keeper) = (Proxy::to(server.clone()).await.unwrap(), Proxy::to(server).await.unwrap());
        let through = |proxy: &Proxy| direct.clone().host("127.0.0.1").port(proxy.port());
        let pool = PgPoolOptions::new().max_connections(1).connect_with(through(&at_pool)).await.unwrap();
        let fence = Fence::builder(pool.clone()).keeper_options(through(&at_keeper)).migrate().build().await.unwrap();
        Some(Arc::new(Self { fence, pool, at_pool, at_keeper, _db: db }))
    }

    /// The round trips of the pool's connection until it is back in the pool.
    async fn counted<T>(&self, work: impl Future<Output = T>) -> (T, u64) {
        self.at_rest().await;
        let before = self.at_pool.round_trips();
        let value = work.await;
        self.at_rest().await;
        (value, self.at_pool.round_trips() - before)
    }

    async fn at_rest(&self) {
        let returned = async {
            while self.pool.num_idle() < self.pool.size() as usize {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within("the connection goes back to the pool", returned).await;
    }

    async fn plain_statement(&self) -> u64 {
        self.counted(sqlx::raw_sql("SELECT 1").execute(&self.pool)).await.1
    }

    async fn plain_transaction(&self) {
        let mut tx = self.pool.begin().await.unwrap();
        sqlx::query(UPDATE).bind("plain").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn plain_rollback(&self) {
        let mut tx = self.pool.begin().await.unwrap();
        sqlx::query(UPDATE).bind("plain").execute(&mut *tx).await.unwrap();
        tx.rollback().await.unwrap();
    }
}

/// Runs a body in a job, on the setting; the lease lives long enough to need no renewal.
async fn in_a_job<T: Send + 'static>(
    setting: &Arc<Setting>,
    body: impl for<'c> FnOnce(Arc<Setting>, &'c FenceCtx<Postgres, Named>) -> Body<'c, T, Error> + Send + 'static,
) -> T {
    let inside = setting.clone();
    within("the job ends", setting.fence.run(holder("counted", move |ctx| body(inside, ctx)))).await.unwrap()
}

fn holder<T: Send>(
    lease: &str,
    body: impl for<'c> FnOnce(&'c FenceCtx<Postgres, Named>) -> Body<'c, T, Error> + Send,
) -> impl FencedJob<Db = Postgres, Lease = Named, Output = T, Error = Error> {
    job(lease, body).ttl(Duration::from_secs(3600))
}

#[tokio::test]
async fn postgres_acquire_is_one_round_trip() {
    let Some(setting) = Setting::new().await else { return };
    let plain = setting.plain_statement().await;
    // A new row, then a released one; the job itself asks nothing.
    for _ in 0..TIMES {
        let ((), trips) = setting
            .counted(async { setting.fence.run(holder("counted", |_| Box::pin(async { Ok(()) }))).await.unwrap() })
            .await;
        assert_eq!(trips, plain);
    }
    // Refused: it learns who holds the lease in the same round trip.
    in_a_job(&setting, move |setting, _| {
        Box::pin(async move {
            let contended = setting.fence.run(holder("counted", |_| Box::pin(async { Ok(()) })));
            let (refused, trips) = setting.counted(contended).await;
            assert!(refused.unwrap_err().is_contended());
            assert_eq!(trips, plain);
            Ok(())
        })
    })
    .await;
}

#[tokio::test]
async fn postgres_a_release_is_one_round_trip() {
    let Some(setting) = Setting::new().await else { return };
    let run = || async { setting.fence.run(holder("counted", |_| Box::pin(async { Ok(()) }))).await.unwrap() };
    // The keeper connects.
    run().await;
    let before = setting.at_keeper.round_trips();
    for _ in 0..TIMES {
        run().await;
    }
    // `run` returns when the release has been answered; nothing was to be renewed.
    assert_eq!(setting.at_keeper.round_trips() - before, TIMES);
    assert_eq!(setting.at_keeper.connections(), 2, "one to verify, one to keep");
}

#[tokio::test]
async fn postgres_a_renewal_is_one_round_trip() {
    let Some(setting) = Setting::new().await else { return };
    const PACE: Duration = Duration::from_millis(200);
    let body = |setting: Arc<Setting>, mut renewed_at| async move {
        let lease = fence_runtime::LeaseName::new("counted").unwrap();
        let mut counts = Vec::new();
        // Looks at the row until it was renewed so often, and notes the keeper's count each time.
        while counts.len() <= TIMES as usize {
            let row = setting.fence.inspect(&lease).await?.expect("it is held");
            if renewed_at != Some(row.renewed_at) {
                renewed_at = Some(row.renewed_at);
                counts.push(setting.at_keeper.round_trips());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<_, Error>(counts)
    };
    let inside = setting.clone();
    let run = setting
        .fence
        .run(job("counted", move |_| Box::pin(body(inside, None))).ttl(Duration::from_secs(60)).renew(PACE));
    let counts = within("renewals", run).await.unwrap();
    // The row shows a renewal before its answer has reached the proxy, so the count may be behind, and not by more than one.
    let (first, last) = (counts[1], counts[counts.len() - 1]);
    let renewals = counts.len() as u64 - 2;
    assert!((renewals - 1..=renewals + 1).contains(&(last - first)), "{renewals} renewals: {counts:?}");
}

#[tokio::test]
async fn postgres_a_fenced_transaction_costs_the_round_trips_of_a_plain_one() {
    let Some(setting) = Setting::new().await else { return };
    in_a_job(&setting, |setting, ctx| {
        Box::pin(async move {
            // Prepares the statement, once on this connection.
            setting.plain_transaction().await;
            let ((), plain) = setting.counted(setting.plain_transaction()).await;
            let ((), plain_rollback) = setting.counted(setting.plain_rollback()).await;
            for _ in 0..TIMES {
                let closure = ctx.transaction(async |tx| {
                    sqlx::query(UPDATE).bind("fenced").execute(tx.executor()).await?;
                    Ok::<_, Error>(())
                });
                let (done, trips) = setting.counted(closure).await;
                assert_eq!((done.is_ok(), trips), (true, plain), "closure");

                let by_hand = async {
                    let mut tx = ctx.begin().await?;
                    let _ = tx.terminal(sqlx::query(UPDATE).bind("fenced")).await?;
                    tx.commit().await
                };
                let (done, trips) = setting.counted(by_hand).await;
                assert_eq!((done.is_ok(), trips), (true, plain), "by hand, with a terminal write");

                let (done, trips) = setting.counted(ctx.execute(sqlx::query(UPDATE).bind("fenced"))).await;
                assert_eq!((done.is_ok(), trips), (true, plain), "execute");

                let undone = async {
                    let mut tx = ctx.begin().await?;
                    let _ = tx.terminal(sqlx::query(UPDATE).bind("fenced")).await?;
                    tx.rollback().await;
                    Ok::<_, Error>(())
                };
                let (done, trips) = setting.counted(undone).await;
                // One more, in which the server proves that the connection is clean.
                assert_eq!((done.is_ok(), trips), (true, plain_rollback + 1), "rollback");
            }
            Ok(())
        })
    })
    .await;
}

#[tokio::test]
async fn postgres_check_and_progress_are_one_round_trip_each() {
    let Some(setting) = Setting::new().await else { return };
    let plain = setting.plain_statement().await;
    in_a_job(&setting, move |setting, ctx| {
        Box::pin(async move {
            for n in 0..TIMES {
                let (held, trips) = setting.counted(ctx.check()).await;
                assert_eq!((held.is_ok(), trips), (true, plain), "check");
                let note = format!("step {n}");
                let (noted, trips) = setting.counted(ctx.progress(&note)).await;
                assert_eq!((noted.is_ok(), trips), (true, plain), "progress");
            }
            Ok(())
        })
    })
    .await;
}

#[tokio::test]
async fn postgres_a_read_costs_the_round_trips_of_a_plain_transaction() {
    let Some(setting) = Setting::new().await else { return };
    const SELECT: &str = "SELECT note FROM runs WHERE id = 1";
    in_a_job(&setting, |setting, ctx| {
        Box::pin(async move {
            let plain = || async {
                let mut tx = setting.pool.begin().await.unwrap();
                sqlx::query(SELECT).fetch_one(&mut *tx).await.unwrap();
                tx.commit().await.unwrap();
            };
            plain().await;
            let ((), plain) = setting.counted(plain()).await;
            for _ in 0..TIMES {
                let read = async {
                    let mut read = ctx.read().await?;
                    sqlx::query(SELECT).fetch_one(read.executor()).await?;
                    read.close().await
                };
                let (done, trips) = setting.counted(read).await;
                assert_eq!((done.is_ok(), trips), (true, plain));
            }
            Ok(())
        })
    })
    .await;
}
