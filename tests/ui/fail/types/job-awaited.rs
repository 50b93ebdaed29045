//! A job does not run by itself.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:job-awaited")]
async fn job(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

async fn caller() {
    let _ = job().await;
}

fn main() {}
