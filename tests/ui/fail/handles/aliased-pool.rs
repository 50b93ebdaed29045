//! An alias, a wrapper and a renamed import hide nothing.

use std::sync::Arc;

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::{Sqlite, SqlitePool as Numbers};

type Handle = Arc<Numbers>;
type State = (u64, Option<Vec<Handle>>);

#[fenced_job(lease = "ui:aliased-pool")]
async fn job(_ctx: &FenceCtx<Sqlite>, handle: Handle, state: &State) -> Result<(), Error> {
    let _ = (handle, state);
    Ok(())
}

fn main() {}
