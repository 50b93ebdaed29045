//! A terminal write cannot be called with anything but a fenced transaction.

use fence_runtime::{Error, Fence, FencedTx, Written, terminal_write};
use sqlx::Sqlite;

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Sqlite>) -> Result<Written, Error> {
    tx.terminal(sqlx::query("UPDATE runs SET status = 'done'")).await
}

async fn handler(fence: &Fence<Sqlite>) -> sqlx::Result<()> {
    let pool = fence.unfenced("http handler");
    finish(&mut pool.begin().await?).await?;
    finish(&mut *pool.acquire().await?).await?;
    Ok(())
}

fn main() {}
