//! A terminal write has one way to the database.

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::{Postgres, postgres::PgListener};

#[terminal_write]
async fn finish(
    tx: &mut FencedTx<'_, Postgres>,
    pool: &sqlx::PgPool,
    listener: Option<&mut PgListener>,
) -> Result<Written, Error> {
    let _ = (pool, listener);
    tx.terminal(sqlx::query("DELETE FROM runs")).await
}

fn main() {}
