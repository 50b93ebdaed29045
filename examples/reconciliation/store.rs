//! What the reconciliation asks of its database: one trait, implemented once per database with that database's SQL.
//!
//! Terminal writes are plain functions marked `#[terminal_write]` in [`mysql`], [`postgres`] and [`sqlite`]; the trait only lets
//! the job be written once. A service with one database needs no such trait. Another database is one more file.

mod mysql;
mod postgres;
mod sqlite;

use std::time::Duration;

use fence_runtime::{Backend, Error, FencedTx, Written};
use sqlx::{Connection, Pool, migrate::Migrate, pool::PoolOptions};

use crate::ledger::Difference;

/// How the connection of a database is configured.
pub(crate) type Options<DB> = <<DB as sqlx::Database>::Connection as Connection>::Options;

/// A row of `reconciliation_runs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) run_id: i64,
    /// `scheduled`, `running` or `succeeded`.
    pub(crate) status: String,
    /// The token of the last owner that claimed the run; 0 before the first.
    pub(crate) fence_token: i64,
    pub(crate) owner_token: Option<String>,
    /// How many references have been compared, of how many.
    pub(crate) scanned: i64,
    pub(crate) total: i64,
    /// How many differences there are, once the run has succeeded.
    pub(crate) differences: Option<i64>,
}

/// The columns of a [`Run`], in its order.
type RunColumns = (i64, String, i64, Option<String>, i64, i64, Option<i64>);

impl From<RunColumns> for Run {
    fn from(row: RunColumns) -> Self {
        let (run_id, status, fence_token, owner_token, scanned, total, differences) = row;
        Self { run_id, status, fence_token, owner_token, scanned, total, differences }
    }
}

/// How many differences of a kind a run has, and under which token they were published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) kind: String,
    pub(crate) fence_token: i64,
    pub(crate) count: i64,
}

impl From<(String, i64, i64)> for Tally {
    fn from((kind, fence_token, count): (String, i64, i64)) -> Self {
        Self { kind, fence_token, count }
    }
}

/// A run to be, as an administrator orders it.
pub(crate) struct Plan {
    pub(crate) ours_entries: i64,
    pub(crate) bank_entries: i64,
    pub(crate) total: i64,
}

/// The application's SQL for one database.
pub(crate) trait Store: Backend<Connection: Migrate> {
    /// The word for the database in what is printed for programs.
    const WORD: &'static str;

    /// The server's own account of its name and version.
    fn version(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<String>> + Send;

    /// Creates the application's tables where they are missing. The lease table is not among them: it is fence's.
    fn create_tables(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Orders a run. An ordinary write: nobody owns the run yet.
    fn schedule(pool: &Pool<Self>, plan: &Plan) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// Moves the run to our token, so that from here on its row knows its owner. Refuses to go back to an older token.
    fn claim(tx: &mut FencedTx<'_, Self>, run: i64) -> impl Future<Output = Result<Written, Error>> + Send;

    /// Deletes what previous owners published before they were superseded. There may be nothing.
    fn delete_leftovers(tx: &mut FencedTx<'_, Self>, run: i64) -> impl Future<Output = Result<Written, Error>> + Send;

    /// Publishes differences, all of them or none.
    fn publish(
        tx: &mut FencedTx<'_, Self>,
        run: i64,
        differences: &[Difference],
    ) -> impl Future<Output = Result<Written, Error>> + Send;

    /// Notes how far the run has come.
    fn advance(
        tx: &mut FencedTx<'_, Self>,
        run: i64,
        scanned: i64,
    ) -> impl Future<Output = Result<Written, Error>> + Send;

    /// The success mark, with the count of what was published under our token.
    fn finish(tx: &mut FencedTx<'_, Self>, run: i64) -> impl Future<Output = Result<Written, Error>> + Send;

    /// The run as it stands.
    fn run(pool: &Pool<Self>, run: i64) -> impl Future<Output = sqlx::Result<Run>> + Send;

    /// The differences of a run as they stand, counted.
    fn tallies(pool: &Pool<Self>, run: i64) -> impl Future<Output = sqlx::Result<Vec<Tally>>> + Send;

    /// Fails soon unless the lease and the run could be written right now: does a stopped process hold a lock?
    fn look(options: &Options<Self>, lease: &str, run: i64) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// A pool that has not connected yet: `Fence::build` does that, and says what is wrong if something is.
pub(crate) fn pool<DB: Store>(options: Options<DB>) -> Pool<DB> {
    PoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(10)).connect_lazy_with(options)
}
