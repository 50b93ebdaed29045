//! A generic argument that promises to be an executor is a raw handle, whatever it will be.

use fence_runtime::{Error, FenceCtx, FencedTx, Written, fenced_job, terminal_write};
use sqlx::{Acquire, Executor as Runs, PgExecutor, Postgres};

#[fenced_job(lease = "ui:executor-bound")]
async fn job<'e, E>(
    _ctx: &FenceCtx<Postgres>,
    executor: E,
    acquire: impl Acquire<'e, Database = Postgres> + Send,
) -> Result<(), Error>
where
    E: Runs<'e, Database = Postgres>,
{
    let _ = (executor, acquire);
    Ok(())
}

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Postgres>, other: impl PgExecutor<'_>) -> Result<Written, Error> {
    let _ = other;
    tx.terminal(sqlx::query("DELETE FROM runs")).await
}

fn main() {}
