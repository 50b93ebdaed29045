//! The attributes of [`fence-runtime`](https://docs.rs/fence-runtime), which re-exports them: depend on that crate.
//!
//! Data flows one way: `args` reads the attribute, `item` the function; `job` and `terminal` check both and
//! hold what is left to say; `expand` says it in Rust. Every mistake goes through `diag`, which collects them, so
//! that one compiler run shows them all.

mod args;
mod attrs;
mod diag;
mod duration;
mod expand;
mod item;
mod job;
mod lease;
mod names;
mod params;
mod raw;
mod scan;
mod signature;
mod terminal;

#[cfg(test)]
mod snapshots;

use proc_macro::TokenStream;

/// Turns an async function into a job that only a `Fence` can run, under a lease, with every write fenced.
///
/// ```ignore
/// #[fenced_job(lease = "admin:reconciliation", ttl = "30s")]
/// async fn reconcile(ctx: &FenceCtx<Postgres>, deps: &Deps, run: i64) -> anyhow::Result<Report> {
///     ctx.transaction(async |tx| claim_run(tx, run).await).await?;
///     let report = deps.compare(run).await?;
///     ctx.transaction(async |tx| finish_run(tx, run).await).await?;
///     Ok(report)
/// }
///
/// let report = fence.run(reconcile(&deps, 42)).await?;
/// ```
///
/// The function becomes a constructor without its first parameter: calling it builds a value that implements
/// `FencedJob`, and nothing happens until a `Fence` runs it.
///
/// # Options
///
/// | option | meaning | default |
/// |---|---|---|
/// | `lease = "group:name"` | the lease: 1–190 bytes, no control characters, no white space at either end; see below | required |
/// | `ttl = "30s"` | how long the lease lives without renewal: `100ms` to `24h` | the `Fence`'s, 30 s |
/// | `renew = "10s"` | the time between two renewals: at most a third of `ttl` | a third of `ttl` |
/// | `wait = "5s"` | how long to keep asking for a lease that somebody else holds | not at all |
/// | `max_runtime = "10m"` | for how long the lease is renewed: a job that takes longer has lost it | for ever |
/// | `on_lost = "signal"` | what a lost lease does to the job, see below | `"drop"` |
/// | `crate = "path"` | where `fence_runtime` is found, if it was renamed or re-exported | `"::fence_runtime"` |
///
/// Durations are whole numbers with the units `ms`, `s`, `m`, `h`, also combined: `"1m30s"`.
///
/// A lease can be a template: `lease = "tenant:{tenant_id}:billing"` puts the `Display` of the job's parameter `tenant_id` there, so that each
/// tenant has a lease of its own. `{{` and `}}` stand for braces. A value that is empty, or makes a name that breaks a rule, is an
/// error of the run (`RunError::Fence`). Values are not escaped: `"{a}:{b}"` is one name for `a = "x:y", b = "z"` and `a = "x", b = "y:z"`.
///
/// When the lease is lost, `on_lost = "drop"` ends the job at its next await; with `"signal"` it goes on and may watch
/// `ctx.lost()`. Its writes are refused either way.
///
/// # The function
///
/// * It is a free `async fn` (no `self`, `Self`, `const`, `unsafe`, `extern`), generic or not: a job for every database
///   is `async fn job<DB: Backend>(ctx: &FenceCtx<DB>, …)`.
/// * Its first parameter is `&FenceCtx<_>`, without a named lifetime. An alias of `FenceCtx` is fine.
/// * It returns a `Result` (or an alias of one) of `Send` types, without elided lifetimes.
/// * No parameter is a raw handle: pools, connections, transactions, connect options, listeners, anything that is an
///   sqlx `Executor` or `Acquire`, and what implements `RawHandle`, bare or wrapped. This is asked of types, not of
///   names.
/// * Arguments are `Send`. `impl Trait`, patterns, `mut`, borrowed arguments work; a path that hides a lifetime is
///   written with it: `Page<'_>`.
///
/// `doc`, `must_use`, `deprecated` and `cfg` stay on the constructor; every other attribute goes to the function itself
/// (`allow` and `expect` reach both).
#[proc_macro_attribute]
pub fn fenced_job(args: TokenStream, item: TokenStream) -> TokenStream {
    job::fenced_job(args.into(), item.into()).into()
}

/// Marks an async function that makes a terminal write: one that another owner must never overwrite or repeat.
///
/// ```ignore
/// #[terminal_write]
/// async fn finish_run(tx: &mut FencedTx<'_, Postgres>, run: i64) -> Result<Written, Error> {
///     let token = tx.fence_token();
///     let done = "UPDATE runs SET status = 'done' WHERE run_id = $1 AND fence_token = $2";
///     tx.terminal(sqlx::query(done).bind(run).bind(token)).await
/// }
/// ```
///
/// The function stays as it is. The attribute checks its signature, so that nobody can loosen it by accident:
///
/// * it is a free `async fn`;
/// * its first parameter is `&mut FencedTx<'_, …>` (or an alias), and no other one is a raw handle, by the rules of
///   `#[fenced_job]`;
/// * it returns `Result<Written, _>` (or an alias): the proof that at least one row changed.
///
/// One option: `crate = "path"`, where `fence_runtime` is found, if it was renamed or re-exported.
#[proc_macro_attribute]
pub fn terminal_write(args: TokenStream, item: TokenStream) -> TokenStream {
    terminal::terminal_write(args.into(), item.into()).into()
}
