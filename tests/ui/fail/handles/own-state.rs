//! No macro sees into fields, but a team can mark its own state.

use fence_runtime::{Error, FenceCtx, RawHandle, fenced_job};
use sqlx::{Sqlite, SqlitePool};

struct AppState {
    pool: SqlitePool,
}

impl RawHandle for AppState {}

#[fenced_job(lease = "ui:own-state")]
async fn job(_ctx: &FenceCtx<Sqlite>, state: std::sync::Arc<AppState>) -> Result<(), Error> {
    let _ = &state.pool;
    Ok(())
}

fn main() {}
