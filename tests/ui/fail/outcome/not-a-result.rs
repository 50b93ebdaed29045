//! What a job returns is checked by type: an alias of `Result` is fine, these are not.

use fence_runtime::{FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:option")]
async fn option(_ctx: &FenceCtx<Sqlite>) -> Option<u64> {
    None
}

fn main() {}
