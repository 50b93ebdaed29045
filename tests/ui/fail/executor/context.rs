//! `.execute(ctx)`: the compiler's own advice there is to take a pool.

use fence_runtime::{FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:context-as-executor")]
async fn job(ctx: &FenceCtx<Sqlite>, run: i64) -> sqlx::Result<()> {
    sqlx::query("UPDATE runs SET status = 'done' WHERE id = ?").bind(run).execute(ctx).await?;
    let _ = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM runs").fetch_one(&*ctx).await?;
    Ok(())
}

fn main() {}
