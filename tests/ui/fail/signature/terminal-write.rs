//! The same for terminal writes.

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::{PgPool, Sqlite};

#[terminal_write]
fn not_async(tx: &mut FencedTx<'_, Sqlite>) -> Result<Written, Error> {
    unreachable!()
}

#[terminal_write]
async fn shared(tx: &FencedTx<'_, Sqlite>) -> Result<Written, Error> {
    unreachable!()
}

#[terminal_write]
async fn by_value(tx: FencedTx<'_, Sqlite>) -> Result<Written, Error> {
    unreachable!()
}

#[terminal_write]
async fn pool(pool: &PgPool) -> Result<Written, Error> {
    unreachable!()
}

#[terminal_write(lease = "ui:terminal")]
async fn no_return_type(tx: &mut FencedTx<'_, Sqlite>) {}

fn main() {}
