//! `.execute(tx)` in a terminal write.

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::Sqlite;

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Sqlite>, run: i64) -> Result<Written, Error> {
    sqlx::query("DELETE FROM parts WHERE run_id = ?").bind(run).execute(&mut *tx).await?;
    tx.terminal(sqlx::query("DELETE FROM runs WHERE id = ?").bind(run)).await
}

fn main() {}
