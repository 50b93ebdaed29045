//! A boxed error without `Send` cannot leave the job.

use fence_runtime::{FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:error-not-send")]
async fn job(_ctx: &FenceCtx<Sqlite>) -> Result<(), Box<dyn std::error::Error>> {
    Err("no".into())
}

fn main() {}
