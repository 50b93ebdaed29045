//! A crate that re-exports the runtime, or renames it.

use fence_elsewhere::{Error, FenceCtx, FencedTx, Written, fenced_job, terminal_write};
use sqlx::Sqlite;

mod fence_elsewhere {
    pub use fence_runtime::*;
}

#[fenced_job(lease = "ui:reexported", crate = "self::fence_elsewhere")]
async fn job(_ctx: &FenceCtx<Sqlite>, name: &str) -> Result<usize, Error> {
    Ok(name.len())
}

#[terminal_write(crate = "self::fence_elsewhere")]
async fn finish(tx: &mut FencedTx<'_, Sqlite>) -> Result<Written, Error> {
    tx.terminal(sqlx::query("DELETE FROM runs")).await
}
