//! A context is for one run: no copy of it can be kept.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:context-cloned")]
async fn job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    let kept: FenceCtx<Sqlite> = ctx.clone();
    tokio::spawn(async move { kept.check().await });
    Ok(())
}

fn main() {}
