//! A placeholder of the lease's template is written with `Display`.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

pub struct Tenant(pub i64);

#[fenced_job(lease = "tenant:{tenant}:billing")]
async fn bill(_ctx: &FenceCtx<Sqlite>, tenant: Tenant) -> Result<(), Error> {
    _ = tenant.0;
    Ok(())
}

fn main() {}
