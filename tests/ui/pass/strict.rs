//! Expansions raise no lint, need no prelude, and mind no name that the user's code takes.

#![no_implicit_prelude]
#![deny(warnings, missing_docs, unreachable_pub, unused_qualifications, single_use_lifetimes)]
#![deny(
    elided_lifetimes_in_paths,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    let_underscore_drop,
    clippy::all
)]
#![deny(clippy::pedantic, clippy::nursery)]
#![allow(dead_code, reason = "the test is that this compiles")]

use ::fence_runtime::{Error, FenceCtx, FencedTx, Written, fenced_job, terminal_write};
use ::sqlx::Sqlite;
use ::std::string::String as Text;

/// Names of the prelude and of the expansion, taken.
mod shadow {
    pub(super) struct Option;
    pub(super) struct Some;
    pub(super) struct Ok;
    pub(super) struct String;
    pub(super) struct Send;
    pub(super) struct Job;
    pub(super) struct PhantomData;
    pub(super) mod core {}
    pub(super) mod std {}
    pub(super) mod fence_runtime {}
}
use self::shadow::*;

/// Documented, as the constructor must be.
#[fenced_job(lease = "ui:strict", ttl = "30s", renew = "10s", wait = "1s", on_lost = "signal")]
pub(crate) async fn job(
    ctx: &FenceCtx<Sqlite>,
    job: &Job,
    _unused: Option,
    ctx2: i64,
    pool: &mut Text,
    each: &(dyn ::std::ops::Fn(&str) -> bool + ::std::marker::Sync),
) -> ::std::result::Result<i64, Error> {
    let _ = (job, each("x"));
    pool.push('x');
    let _left = ctx.check().await?;
    ::std::result::Result::Ok(ctx2)
}

/// Generic.
#[fenced_job(lease = "ui:strict-generic")]
pub(crate) async fn generic<'a, DB: ::fence_runtime::Backend, T: ::std::marker::Send, const N: usize>(
    ctx: &FenceCtx<DB>,
    names: &'a [Text; N],
    (first, _second): (T, T),
    each: impl ::std::ops::Fn(&str) -> bool + ::std::marker::Send,
) -> ::std::result::Result<(&'a [Text], T), Error> {
    let _left = ctx.check().await?;
    let _ = names.first().map(|name| each(name));
    ::std::result::Result::Ok((names, first))
}

/// A terminal write.
#[terminal_write]
pub(crate) async fn finish(
    tx: &mut FencedTx<'_, Sqlite>,
    _job: &Job,
    run: i64,
) -> ::std::result::Result<Written, Error> {
    use ::sqlx::query;
    const DONE: &str = "UPDATE runs SET status = 'done' WHERE id = ?";
    tx.terminal(query(DONE).bind(run)).await
}
