//! A fenced transaction that would live longer than the run.

use fence_runtime::{Error, FenceCtx, FencedTx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:transaction-kept")]
async fn job(ctx: &FenceCtx<Sqlite>, kept: &mut Option<FencedTx<'_, Sqlite>>) -> Result<(), Error> {
    *kept = Some(ctx.begin().await?);
    Ok(())
}

fn main() {}
