//! What a job's and a terminal write's signature may look like.

#![deny(warnings)]

use std::{collections::HashMap, fmt::Display, sync::Arc};

use fence_runtime::{Backend, Error, Fence, FenceCtx, FencedTx, Untyped, Written, fenced_job, terminal_write};
use sqlx::{Postgres, Sqlite};

struct Deps;
struct Page<'a>(&'a str);
type Ctx = FenceCtx<Sqlite>;
type Outcome<T> = Result<T, Error>;

#[fenced_job(lease = "ui:nothing")]
async fn nothing(_: &Ctx) -> Outcome<()> {
    Ok(())
}

#[fenced_job(lease = "ui:borrowed")]
async fn borrowed(ctx: &FenceCtx<Sqlite, Untyped>, deps: &Deps, names: &mut Vec<String>) -> anyhow::Result<usize> {
    let _: (&Deps, _) = (deps, ctx.fence_token());
    names.push(String::new());
    Ok(names.len())
}

#[fenced_job(lease = "ui:patterns")]
async fn patterns(
    _ctx: &Ctx,
    (from, to): (i64, i64),
    [first, ..]: [u8; 4],
    mut rows: Vec<Page<'_>>,
    _unused: &str,
    _: &dyn Display2,
) -> sqlx::Result<i64> {
    rows.retain(|page| !page.0.is_empty());
    Ok(from + to + i64::from(first))
}

trait Display2: Display + Sync {}

#[fenced_job(lease = "ui:generic")]
async fn generic<'a, DB: Backend, T, const N: usize>(
    _ctx: &FenceCtx<DB>,
    names: &'a [String; N],
    values: Vec<T>,
) -> Result<Option<&'a str>, Error>
where
    T: Into<i64> + Send,
{
    drop(values);
    Ok(names.first().map(String::as_str))
}

#[fenced_job(lease = "ui:unused-generic")]
async fn unused_generic<DB: Backend, T: Default + Send>(_ctx: &FenceCtx<DB>) -> Result<T, Error> {
    Ok(T::default())
}

#[fenced_job(lease = "ui:impl-traits")]
async fn impl_traits(
    _ctx: &Ctx,
    each: impl Fn(&str) -> bool + Send,
    sources: Vec<impl Iterator<Item = &str> + Send>,
) -> Result<usize, Error> {
    Ok(sources.into_iter().flatten().filter(|word| each(word)).count())
}

#[fenced_job(lease = "ui:own-errors")]
async fn own_errors(_ctx: &Ctx) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Err("no".into())
}

#[allow(clippy::too_many_arguments)]
#[fenced_job(lease = "ui:attributes", ttl = "1m30s", renew = "30s", wait = "0s", on_lost = "signal")]
#[cfg_attr(all(), must_use = "it does nothing", inline)]
#[expect(unused_variables)]
#[deprecated(note = "for the test")]
async fn attributes(ctx: &Ctx, map: HashMap<String, Arc<Deps>>) -> Result<(), Error> {
    Ok(())
}

/// Nested inside a function, and in an `impl`.
struct Jobs;

impl Jobs {
    #[fenced_job(lease = "ui:associated")]
    async fn associated(_ctx: &Ctx, id: i64) -> Result<i64, Error> {
        Ok(id)
    }
}

/// Domain types with the names of handles, and callbacks that *take* a connection.
mod ledger {
    pub struct Transaction;
    pub struct Pool<T>(pub T);
    pub trait Executor: Send + Sync {}
}

#[fenced_job(lease = "ui:ledger")]
async fn domain_types(
    _ctx: &Ctx,
    transaction: ledger::Transaction,
    pool: &ledger::Pool<u8>,
    executor: &impl ledger::Executor,
    with: impl AsyncFn(&mut sqlx::SqliteConnection) + Send,
    fence: &Fence<Postgres>,
) -> Result<(), Error> {
    let _ = (transaction, pool, executor, with, fence);
    Ok(())
}

/// A user's own methods with the names of sqlx's.
struct Step;

impl Step {
    async fn execute(&self, _ctx: &Ctx) -> Result<(), Error> {
        Ok(())
    }
}

#[fenced_job(lease = "ui:steps")]
async fn steps(ctx: &Ctx, step: &Step) -> Result<(), Error> {
    step.execute(ctx).await
}

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Postgres>, run: i64, status: &str) -> sqlx::Result<Written> {
    let query = sqlx::query("UPDATE runs SET status = $1 WHERE id = $2 AND fence_token = $3");
    let token = tx.fence_token();
    Ok(tx.terminal(query.bind(status).bind(run).bind(token)).await?)
}

type Tx<'a> = FencedTx<'a, Sqlite>;

#[terminal_write]
async fn finish_alias(tx: &mut Tx<'_>, _note: impl Display, _: &Deps) -> Result<Written, impl std::error::Error> {
    tx.terminal(sqlx::query("UPDATE runs SET status = 'done'")).await
}

#[terminal_write]
async fn finish_generic<'a, DB: Backend>(tx: &'a mut FencedTx<'_, DB>, query: &'static str) -> Outcome<Written> {
    tx.terminal(sqlx::query(query)).await
}

async fn run_all(sqlite: &Fence<Sqlite>, postgres: &Fence<Postgres>) -> anyhow::Result<()> {
    sqlite.run(nothing()).await?;
    let mut names = vec![];
    sqlite.run(borrowed(&Deps, &mut names)).await?;
    sqlite.run(generic(&[String::new()], vec![1_i32])).await?;
    postgres.run(generic::<_, i64, 0>(&[], vec![])).await?;
    let _: String = postgres.run(unused_generic()).await?;
    sqlite.run(impl_traits(|word| word.is_empty(), vec!["a b".split(' ')])).await?;
    sqlite.run(Jobs::associated(1)).await?;
    sqlite.run(nothing()).await?;
    let job = sqlite.run(steps(&Step));
    job.await?;
    tokio::spawn(sqlite.run(Jobs::associated(1))).await??;
    sqlite.run(domain_types(ledger::Transaction, &ledger::Pool(1), &Worker, async |_: &mut _| (), postgres)).await?;
    Ok(())
}

async fn finish_all(tx: &mut FencedTx<'_, Sqlite>) -> anyhow::Result<()> {
    drop(finish_alias(tx, 'x', &Deps).await);
    let _proof = finish_generic(tx, "DELETE FROM runs").await?;
    Ok(())
}

fn main() {
    let _ = (run_all, patterns, own_errors, finish, finish_all);
    #[allow(deprecated)]
    let _ = attributes(HashMap::new());
}

struct Worker;
impl ledger::Executor for Worker {}
