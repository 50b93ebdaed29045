//! A pool in a job's arguments: writes through it would carry no token.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::{PgPool, Postgres};

#[fenced_job(lease = "ui:raw-pool")]
async fn job(_ctx: &FenceCtx<Postgres>, pool: &PgPool, run: i64) -> Result<(), Error> {
    let _ = (pool, run);
    Ok(())
}

fn main() {}
