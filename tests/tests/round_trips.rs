//! What a fence costs on the network: every operation is counted at a proxy, on connections that are warm.
//!
//! A pool asks each connection whether it is alive before it lends it and after it got it back. Those round trips are the
//! pool's own, so what goes through a pool is compared with plain statements through the same pool.
//!
//! On MySQL and MariaDB the connection makes one more on its way back into the pool: sqlx counts transactions, and has no other way to count
//! one less than a ROLLBACK. Whoever commits does not wait for it.

use std::{future::Future, sync::Arc, time::Duration};

use fence_runtime::{Error, Fence, FenceCtx, FencedJob};
use fence_tests::{
    app::RUNS,
    conformance,
    jobs::{Body, job},
    owner::Named,
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, TestDb},
    stepper::within,
};
use sqlx::{Database, Pool, pool::PoolOptions};

conformance! { on postgres, mysql, mariadb:
    acquire_is_one_round_trip,
    a_release_is_one_round_trip,
    a_renewal_is_one_round_trip,
    a_fenced_transaction_costs_the_round_trips_of_a_plain_one,
    check_and_progress_are_one_round_trip_each,
    a_read_costs_the_round_trips_of_a_plain_transaction,
}

mod on_innodb {
    fence_tests::conformance! { on mysql, mariadb: nobody_waits_for_the_rollback_behind_a_commit }
    use super::nobody_waits_for_the_rollback_behind_a_commit;
}

/// So often that a round trip too many now and then would show.
const TIMES: u64 = 10;
const PLAIN: &str = "UPDATE runs SET status = 'plain' WHERE run_id = 1";

fn fenced<D: TestDb>() -> &'static str {
    match D::Db::NAME {
        "MySQL" => "UPDATE runs SET fence_token = ? WHERE run_id = 1",
        _ => "UPDATE runs SET fence_token = $1 WHERE run_id = 1",
    }
}

/// Round trips behind the end of a transaction, for which nobody waits.
fn behind<D: TestDb>() -> u64 {
    u64::from(D::Db::NAME == "MySQL")
}

/// A fence over a pool of one connection; the pool and the keeper have a proxy each.
struct Setting<D: TestDb> {
    fence: Fence<D::Db>,
    pool: Pool<D::Db>,
    at_pool: Proxy,
    at_keeper: Proxy,
    _db: D,
}

impl<D: TestDb> Setting<D>
where
    ConnectOptionsOf<D::Db>: Route,
{
    async fn new(db: D) -> Arc<Self> {
        db.sql(RUNS).await;
        let direct = db.options("worker");
        let (at_pool, at_keeper) =
            (Proxy::to(direct.server()).await.unwrap(), Proxy::to(direct.server()).await.unwrap());
        let pool = PoolOptions::new().max_connections(1).connect_with(direct.through(at_pool.port())).await.unwrap();
        let keeper = direct.through(at_keeper.port());
        let fence = Fence::builder(pool.clone()).keeper_options(keeper).migrate().build().await.unwrap();
        Arc::new(Self { fence, pool, at_pool, at_keeper, _db: db })
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
        let statement = async { D::run(&mut *self.pool.acquire().await.unwrap(), "SELECT 1").await.unwrap() };
        self.counted(statement).await.1
    }

    async fn plain_transaction(&self, sql: &str) {
        let mut tx = self.pool.begin().await.unwrap();
        D::run(&mut tx, sql).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn plain_rollback(&self) {
        let mut tx = self.pool.begin().await.unwrap();
        D::run(&mut tx, PLAIN).await.unwrap();
        tx.rollback().await.unwrap();
    }
}

/// Runs a body in a job, on the setting; the lease lives long enough to need no renewal.
async fn in_a_job<D: TestDb, T: Send + 'static>(
    setting: &Arc<Setting<D>>,
    body: impl for<'c> FnOnce(Arc<Setting<D>>, &'c FenceCtx<D::Db, Named>) -> Body<'c, T, Error> + Send + 'static,
) -> T {
    let inside = setting.clone();
    within("the job ends", setting.fence.run(holder("counted", move |ctx| body(inside, ctx)))).await.unwrap()
}

fn holder<DB: fence_runtime::Backend, T: Send>(
    lease: &str,
    body: impl for<'c> FnOnce(&'c FenceCtx<DB, Named>) -> Body<'c, T, Error> + Send,
) -> impl FencedJob<Db = DB, Lease = Named, Output = T, Error = Error> {
    job(lease, body).ttl(Duration::from_secs(3600))
}

async fn acquire_is_one_round_trip<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
    let plain = setting.plain_statement().await;
    // A new row, then a released one; the job itself asks nothing.
    for time in 0..TIMES {
        let ((), trips) = setting
            .counted(async { setting.fence.run(holder("counted", |_| Box::pin(async { Ok(()) }))).await.unwrap() })
            .await;
        // The first time ever it takes two more there: an insert and a locking read in one transaction would deadlock.
        let ever = if time == 0 { 2 * behind::<D>() } else { 0 };
        assert_eq!(trips, plain + ever);
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

async fn a_release_is_one_round_trip<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
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

async fn a_renewal_is_one_round_trip<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
    const PACE: Duration = Duration::from_millis(200);
    let body = |setting: Arc<Setting<D>>, mut renewed_at| async move {
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

async fn a_fenced_transaction_costs_the_round_trips_of_a_plain_one<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
    in_a_job(&setting, |setting, ctx| {
        Box::pin(async move {
            let update = || sqlx::query(fenced::<D>()).bind(ctx.fence_token());
            // Prepares the statement, once on this connection.
            let _ = ctx.execute(update()).await?;
            let ((), plain) = setting.counted(setting.plain_transaction(PLAIN)).await;
            let ((), plain_rollback) = setting.counted(setting.plain_rollback()).await;
            for _ in 0..TIMES {
                let closure = ctx.transaction(async |tx| {
                    let _ = tx.terminal(update()).await?;
                    Ok::<_, Error>(())
                });
                let (done, trips) = setting.counted(closure).await;
                assert_eq!((done.is_ok(), trips), (true, plain + behind::<D>()), "closure");

                let by_hand = async {
                    let mut tx = ctx.begin().await?;
                    let _ = tx.terminal(update()).await?;
                    tx.commit().await
                };
                let (done, trips) = setting.counted(by_hand).await;
                assert_eq!((done.is_ok(), trips), (true, plain + behind::<D>()), "by hand");

                let (done, trips) = setting.counted(ctx.execute(update())).await;
                assert_eq!((done.is_ok(), trips), (true, plain + behind::<D>()), "execute");

                let undone = async {
                    let mut tx = ctx.begin().await?;
                    let _ = tx.terminal(update()).await?;
                    tx.rollback().await;
                    Ok::<_, Error>(())
                };
                let (done, trips) = setting.counted(undone).await;
                // One more: there the server proves that the connection is clean, or sqlx counts one transaction less.
                assert_eq!((done.is_ok(), trips), (true, plain_rollback + 1), "rollback");
            }
            Ok(())
        })
    })
    .await;
}

async fn check_and_progress_are_one_round_trip_each<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
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

async fn a_read_costs_the_round_trips_of_a_plain_transaction<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
    const SELECT: &str = "SELECT status FROM runs WHERE run_id = 1";
    in_a_job(&setting, |setting, ctx| {
        Box::pin(async move {
            let ((), plain) = setting.counted(setting.plain_transaction(SELECT)).await;
            for _ in 0..TIMES {
                let read = async {
                    let mut read = ctx.read().await?;
                    fence_tests::app::on::<D>(read.executor(), SELECT).await.unwrap();
                    read.close().await
                };
                let (done, trips) = setting.counted(read).await;
                assert_eq!((done.is_ok(), trips), (true, plain + behind::<D>()));
            }
            Ok(())
        })
    })
    .await;
}

/// It cannot even leave, and the commit has long returned: what a transaction costs its job are the round trips of a plain one.
async fn nobody_waits_for_the_rollback_behind_a_commit<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let setting = Setting::new(db).await;
    in_a_job(&setting, |setting, ctx| {
        Box::pin(async move {
            for ending in ["commit", "close"] {
                setting.at_rest().await;
                if ending == "commit" {
                    let mut tx = ctx.begin().await?;
                    let _ = tx.terminal(sqlx::query(fenced::<D>()).bind(ctx.fence_token())).await?;
                    // The bytes of sqlx's own, which end there.
                    setting.at_pool.set_at([&[9, 0, 0, 0, 3][..], b"ROLLBACK"].concat(), Mode::Hold);
                    within("the commit", tx.commit()).await?;
                } else {
                    let read = ctx.read().await?;
                    setting.at_pool.set_at([&[9, 0, 0, 0, 3][..], b"ROLLBACK"].concat(), Mode::Hold);
                    within("the close", read.close()).await?;
                }
                fence_tests::app::eventually("it is queued", async || setting.at_pool.mode() == Mode::Hold).await;
                assert_eq!(setting.pool.num_idle(), 0, "{ending}");
                setting.at_pool.set(Mode::Pass);
            }
            Ok(())
        })
    })
    .await;
}
