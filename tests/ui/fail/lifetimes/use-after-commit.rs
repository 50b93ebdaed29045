//! A committed transaction is gone.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:use-after-commit")]
async fn job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    let mut tx = ctx.begin().await?;
    tx.commit().await?;
    tx.terminal(sqlx::query("UPDATE runs SET status = 'done'")).await?;
    Ok(())
}

fn main() {}
