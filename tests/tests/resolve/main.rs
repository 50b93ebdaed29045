//! The answer to COMMIT is lost, and the database is asked afterwards what became of it: by receipts on every database, by the status of the
//! transaction on PostgreSQL.

mod cuts;
mod look_up;
mod receipts;
mod setup;
mod sqlite;
mod status;

use std::time::Duration;

use fence_runtime::{Fence, Resolve};
use fence_tests::{
    proxy::{Proxy, Route},
    servers::{ConnectOptionsOf, TestDb},
};
use sqlx::pool::PoolOptions;

/// The lease of every test.
const LEASE: &str = "admin:payouts";

/// The ways that this database knows.
fn ways<D: TestDb>() -> &'static [Resolve] {
    match D::NAME {
        "postgres" => &[Resolve::Receipts, Resolve::TransactionStatus],
        _ => &[Resolve::Receipts],
    }
}

/// A fence whose pool of one connection, and not its keeper, goes through a proxy; and the bytes of its COMMIT.
async fn behind_a_proxy<D: TestDb>(db: &D, resolve: Resolve) -> (Proxy, Fence<D::Db>, &'static str)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let direct = db.options("a");
    let proxy = Proxy::to(direct.server()).await.unwrap();
    let pool = PoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(direct.through(proxy.port()));
    let builder = Fence::builder(pool).keeper_options(db.options("a keeper")).resolve(resolve);
    let fence = builder.migrate().build().await.unwrap();
    (proxy, fence, if D::NAME == "postgres" { "COMMIT AND CHAIN" } else { "fence_end_v1" })
}

/// How many receipts there are.
async fn receipts<D: TestDb>(db: &D) -> i64 {
    db.int("SELECT count(*) FROM fenced_job_receipts").await
}
