//! Every handle of sqlx, and what holds one.

use std::{cell::RefCell, collections::HashMap, sync::Mutex};

use fence_runtime::{Backend, Error, FenceCtx, fenced_job};
use sqlx::{
    PgConnection, Pool, SqliteConnection, Transaction,
    pool::{PoolConnection, PoolOptions},
    postgres::{PgConnectOptions, PgListener},
    sqlite::SqliteConnectOptions,
};

#[fenced_job(lease = "ui:wrapped-handles")]
async fn job<DB: Backend>(
    _ctx: &FenceCtx<DB>,
    any: &Pool<DB>,
    lent: &mut DB::Connection,
    transaction: Option<Transaction<'static, DB>>,
    pooled: Box<[PoolConnection<DB>]>,
    locked: tokio::sync::MutexGuard<'_, PgConnection>,
    listener: &mut PgListener,
    options: (u8, PgConnectOptions),
    by_tenant: HashMap<u64, Mutex<SqliteConnectOptions>>,
    in_cell: RefCell<[SqliteConnection; 2]>,
    make: impl Fn() -> PoolOptions<DB> + Send,
) -> Result<(), Error> {
    let _ = (any, lent, transaction, pooled, locked, listener, options, by_tenant, in_cell, make);
    Ok(())
}

fn main() {}
