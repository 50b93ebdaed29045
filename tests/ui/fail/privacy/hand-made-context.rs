//! A context comes from a run, a transaction from a context.

use fence_runtime::{FenceCtx, FencedTx};
use sqlx::Sqlite;

fn context() -> FenceCtx<Sqlite> {
    FenceCtx {}
}

fn transaction() -> FencedTx<'static, Sqlite> {
    FencedTx {}
}

fn main() {}
