//! A terminal write returns the proof that a row changed, not a count and not nothing.

use fence_runtime::{Error, FencedTx, terminal_write};
use sqlx::Sqlite;

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Sqlite>, run: i64) -> Result<u64, Error> {
    Ok(tx.terminal(sqlx::query("DELETE FROM runs WHERE id = ?").bind(run)).await?.rows())
}

#[terminal_write]
async fn forget(tx: &mut FencedTx<'_, Sqlite>) -> sqlx::Result<()> {
    tx.terminal(sqlx::query("DELETE FROM runs")).await?;
    Ok(())
}

fn main() {}
