//! The proof of a write comes from the write.

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::Sqlite;

#[terminal_write]
async fn finish(_tx: &mut FencedTx<'_, Sqlite>) -> Result<Written, Error> {
    Ok(Written { rows: 1 })
}

fn main() {}
