//! Everything about the function itself, each on its own token.

use fence_runtime::{Error, FenceCtx, fenced_job};
use sqlx::{PgPool, Postgres, Sqlite};

#[fenced_job(lease = "ui:not-async")]
fn not_async(_ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:attributes")]
async fn attributes(_ctx: &FenceCtx<Sqlite>, #[allow(unused)] run: i64) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:no-parameter")]
async fn no_parameter() -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:pool-first")]
async fn pool_first(pool: PgPool, run: i64) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:pool-for-context")]
async fn pool_for_context(pool: &PgPool) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:by-value")]
async fn by_value(ctx: FenceCtx<Postgres>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:mutable")]
async fn mutable(ctx: &mut FenceCtx<Postgres>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:named-lifetime")]
async fn named_lifetime<'a>(ctx: &'a FenceCtx<Postgres>, out: &mut Vec<&'a str>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:impl-context")]
async fn impl_context(ctx: &FenceCtx<impl fence_runtime::Backend>) -> Result<(), Error> {
    Ok(())
}

#[fenced_job(lease = "ui:no-return-type")]
async fn no_return_type(_ctx: &FenceCtx<Sqlite>) {}

#[fenced_job(lease = "ui:elided")]
async fn elided(_ctx: &FenceCtx<Sqlite>, name: &str) -> Result<&str, Error> {
    Ok(name)
}

#[fenced_job(lease = "ui:impl-return")]
async fn impl_return(_ctx: &FenceCtx<Sqlite>) -> Result<impl Iterator<Item = u8>, Error> {
    Ok([1].into_iter())
}

#[fenced_job(lease = "ui:const")]
const unsafe extern "C" fn all_at_once(pool: PgPool) {}

struct Jobs;

impl Jobs {
    #[fenced_job(lease = "ui:method")]
    async fn method(&self, ctx: &FenceCtx<Sqlite>, other: &Self) -> Result<(), Error> {
        Ok(())
    }
}

#[fenced_job(lease = "ui:struct")]
struct NotAFunction;

fn main() {}
