//! A closure as a [`FencedJob`], for tests that need no function of their own.
//!
//! ```ignore
//! fence.run(job("lease", |ctx| Box::pin(async move { ctx.check().await }))).await
//! ```
//!
//! Where the steps of a job matter, use an [`Owner`](crate::owner::Owner).

use std::{future::Future, marker::PhantomData, pin::Pin, time::Duration};

use fence_runtime::{Backend, Error, Fence, FenceCtx, FencedJob, LeaseOptions, OnLost};

use crate::{owner::Named, stepper::within};

/// What a closure returns.
pub type Body<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

/// A job of a closure.
pub struct Job<DB, F> {
    lease: Named,
    options: LeaseOptions,
    body: F,
    database: PhantomData<fn() -> DB>,
}

/// A job that holds this lease while the closure's future runs.
pub fn job<DB: Backend, T, E, F>(lease: impl Into<String>, body: F) -> Job<DB, F>
where
    F: for<'c> FnOnce(&'c FenceCtx<DB, Named>) -> Body<'c, T, E>,
{
    Job { lease: Named(lease.into()), options: LeaseOptions::new(), body, database: PhantomData }
}

/// A job that does nothing but hold its lease for a moment, and returns its fencing token.
pub fn token_of<DB: Backend>(
    lease: impl Into<String>,
) -> Job<DB, impl for<'c> FnOnce(&'c FenceCtx<DB, Named>) -> Body<'c, i64, Error> + Send> {
    job(lease, |ctx| {
        let token = ctx.fence_token().get();
        Box::pin(async move { Ok(token) })
    })
}

/// Waits until nobody holds the lease, which must be soon; returns the fencing token that is next, held for a moment.
///
/// # Panics
/// If the lease is not free within [`LIMIT`](crate::stepper::LIMIT).
pub async fn free_soon<DB: Backend>(fence: &Fence<DB>, lease: &str) -> i64 {
    let ask = async {
        loop {
            // Not with `wait`, which rests between two looks for longer than a test has time.
            match fence.run(token_of(lease).ttl(Duration::from_secs(3600))).await {
                Ok(token) => return token,
                Err(error) if error.is_contended() => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(error) => panic!("{lease:?}: {error}"),
            }
        }
    };
    within(&format!("{lease:?} is free"), ask).await
}

impl<DB, F> Job<DB, F> {
    /// The lease's time to live.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|options| options.ttl(ttl))
    }

    /// The time between two renewals.
    pub fn renew(self, every: Duration) -> Self {
        self.with(|options| options.renew(every))
    }

    /// How long `run` keeps asking for a lease that somebody else holds.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|options| options.wait(wait))
    }

    /// For how long the lease is renewed.
    pub fn max_runtime(self, limit: Duration) -> Self {
        self.with(|options| options.max_runtime(limit))
    }

    /// What happens when the lease is lost.
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.with(|options| options.on_lost(on_lost))
    }

    fn with(mut self, change: impl FnOnce(LeaseOptions) -> LeaseOptions) -> Self {
        self.options = change(self.options);
        self
    }
}

impl<DB: Backend, T, E, F> FencedJob for Job<DB, F>
where
    T: Send,
    E: Send,
    F: for<'c> FnOnce(&'c FenceCtx<DB, Named>) -> Body<'c, T, E> + Send,
{
    type Db = DB;
    type Lease = Named;
    type Output = T;
    type Error = E;

    fn name(&self) -> &'static str {
        "closure"
    }

    fn lease(&self) -> Named {
        self.lease.clone()
    }

    fn options(&self) -> LeaseOptions {
        self.options
    }

    async fn run(self, ctx: &FenceCtx<DB, Named>) -> Result<T, E> {
        (self.body)(ctx).await
    }
}
