//! What is held across an await must be `Send`: the message names both.

use std::rc::Rc;

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job(lease = "ui:not-send")]
async fn job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    let shared = Rc::new(1);
    ctx.check().await?;
    drop(shared);
    Ok(())
}

#[fenced_job(lease = "ui:argument-not-send")]
async fn argument(_ctx: &FenceCtx<Sqlite>, shared: Rc<u8>) -> Result<(), Error> {
    drop(shared);
    Ok(())
}

fn main() {}
