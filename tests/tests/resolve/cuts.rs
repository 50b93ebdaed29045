//! The connection is cut at every point of a transaction, and what was cut is repeated until it is done: never twice.

use std::{sync::Arc, time::Duration};

use fence_runtime::{Error, FenceCtx, FencedTx};
use fence_tests::{
    app::on,
    jobs::job,
    owner::Named,
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, TestDb},
};
use tokio::task::JoinHandle;

use super::{LEASE, behind_a_proxy, receipts, ways};

mod on_a_server {
    fence_tests::conformance! { on postgres, mysql, mariadb: work_that_is_repeated_until_it_is_done_is_done_once }
    use super::work_that_is_repeated_until_it_is_done_is_done_once;
}

async fn book<D: TestDb>(tx: &mut FencedTx<'_, D::Db, Named>, round: u64) -> Result<(), Error> {
    let done = on::<D>(tx.executor(), format!("INSERT INTO effects VALUES ({round})")).await;
    done.map(drop).map_err(|refused| Error::from(sqlx::Error::Protocol(refused.to_string())))
}

/// As the documentation of [`fence_runtime::FenceBuilder::resolve`] has it.
async fn retry_if_not_committed<D: TestDb>(ctx: &FenceCtx<D::Db, Named>, round: u64) -> Result<(), Error> {
    loop {
        match ctx.transaction(async |tx| book::<D>(tx, round).await).await {
            Err(error) if !error.is_unknown() && !error.is_lost() => {}
            done => break done,
        }
    }
}

/// Lets everything pass again as soon as something was cut.
fn mending(proxy: Arc<Proxy>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            match proxy.mode() {
                Mode::Pass => {}
                Mode::Cut => proxy.cut().await,
                // What was asked for is done, and then the connection is cut.
                _ => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    proxy.cut().await;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

async fn work_that_is_repeated_until_it_is_done_is_done_once<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    db.sql("CREATE TABLE effects (round bigint)").await;
    let rounds = fence_tests::rounds();
    for &resolve in ways::<D>() {
        let (proxy, fence, commit) = behind_a_proxy(&db, resolve).await;
        let proxy = Arc::new(proxy);
        let mender = mending(proxy.clone());
        db.sql("DELETE FROM effects").await;
        let cutter = proxy.clone();
        let run = fence.run(
            job(LEASE, move |ctx| {
                Box::pin(async move {
                    for round in 0..rounds {
                        match round % 4 {
                            // Its request does not arrive.
                            0 => cutter.set_at(commit, Mode::Cut),
                            // It arrives, and the answer is lost.
                            1 => cutter.set_at(commit, Mode::SwallowAnswers),
                            // Anywhere: requests and answers of the pool, of BEGIN, of the statement, of COMMIT, of what comes behind it.
                            2 => cutter.set_after(round / 4 % 16, Mode::Cut),
                            _ => cutter.set_after(round / 4 % 16, Mode::SwallowAnswers),
                        }
                        retry_if_not_committed::<D>(ctx, round).await?;
                    }
                    Ok::<_, Error>(())
                })
            })
            .ttl(Duration::from_secs(3600)),
        );
        run.await.unwrap_or_else(|error| panic!("{resolve:?}: {error}"));
        mender.abort();
        let (all, different) =
            (db.int("SELECT count(*) FROM effects").await, db.int("SELECT count(DISTINCT round) FROM effects").await);
        assert_eq!((all, different), (rounds as i64, rounds as i64), "{resolve:?}");
        assert_eq!(receipts(&db).await, 0, "{resolve:?}");
    }
}
