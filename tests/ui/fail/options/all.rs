//! Every mistake in the options, on its own token, all in one compiler run.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::Sqlite;

#[fenced_job]
async fn missing(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(leese = "ui:misspelled", frequency = "1s", ttl)]
async fn names(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:twice", lease = "ui:twice")]
async fn twice(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = " ui:white-space", ttl = 30, renew = "10", wait = "5 s", on_lost = "dorp", crate = fence)]
async fn values(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "tenant:{id}", ttl = "30s", renew = "20s")]
async fn rules(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "tenant:{tenant}:{}")]
async fn template(_ctx: &FenceCtx<Sqlite>, _tenant_id: i64) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "tenant:{tenant}")]
async fn placeholder(_ctx: &FenceCtx<Sqlite>, _tenant_id: i64) -> Result<(), Error> {
    Ok(())
}

#[fenced_job("tenant:billing", ttl = "30 sec")]
async fn keyless(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = Typed, ttl = "25h")]
async fn expression(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

fn main() {}
