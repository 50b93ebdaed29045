//! A task that outlives the run must not hold the context.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:context-spawned")]
async fn job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    tokio::spawn(async move { ctx.check().await });
    Ok(())
}

fn main() {}
