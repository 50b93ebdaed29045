//! A job as a value: what `#[fenced_job]` makes of a function, and its boxed form.

use std::{future::Future, pin::Pin};

use crate::{
    Backend, FenceCtx,
    lease::{Lease, LeaseOptions, Untyped},
};

/// A job that a [`Fence`](crate::Fence) can run: nothing happens until it does.
///
/// `#[fenced_job]` implements this; calling the annotated function builds the value. Implemented by hand, nothing looks at what the job holds: a
/// pool in it is not refused.
#[must_use = "a job does nothing until a `Fence` runs it: `fence.run(job).await`"]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a fenced job",
    label = "not a fenced job",
    note = "annotate an async function with `#[fenced_job(lease = \"group:name\")]` and pass what calling it returns: `fence.run(job(…)).await`"
)]
pub trait FencedJob: Send + Sized {
    /// The database whose lease table decides.
    type Db: Backend;
    /// The lease by which the job's writes are fenced.
    type Lease: Lease;
    /// What the job returns when it succeeds.
    type Output: Send;
    /// What the job returns when it fails.
    type Error: Send;

    /// The job's name, for log lines.
    fn name(&self) -> &'static str;

    /// The lease to acquire.
    fn lease(&self) -> Self::Lease;

    /// What the attribute asks of the lease.
    fn options(&self) -> LeaseOptions;

    /// The body. Called by [`Fence::run`](crate::Fence::run) with a context that lives as long as the run.
    fn run(
        self,
        ctx: &FenceCtx<Self::Db, Self::Lease>,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;

    /// The job behind one type, for storage and `dyn` traits.
    fn boxed<'a>(self) -> BoxJob<'a, Self::Db, Self::Output, Self::Error, Self::Lease>
    where
        Self: 'a,
    {
        BoxJob(Box::new(self))
    }
}

type JobFuture<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

trait ErasedJob<DB: Backend, L, T, E>: Send {
    fn name(&self) -> &'static str;
    fn lease(&self) -> L;
    fn options(&self) -> LeaseOptions;
    fn run<'c>(self: Box<Self>, ctx: &'c FenceCtx<DB, L>) -> JobFuture<'c, T, E>
    where
        Self: 'c;
}

impl<J: FencedJob> ErasedJob<J::Db, J::Lease, J::Output, J::Error> for J {
    fn name(&self) -> &'static str {
        FencedJob::name(self)
    }

    fn lease(&self) -> J::Lease {
        FencedJob::lease(self)
    }

    fn options(&self) -> LeaseOptions {
        FencedJob::options(self)
    }

    fn run<'c>(self: Box<Self>, ctx: &'c FenceCtx<J::Db, J::Lease>) -> JobFuture<'c, J::Output, J::Error>
    where
        Self: 'c,
    {
        Box::pin((*self).run(ctx))
    }
}

/// A [`FencedJob`] behind one type: see [`FencedJob::boxed`].
pub struct BoxJob<'a, DB: Backend, T, E, L = Untyped>(Box<dyn ErasedJob<DB, L, T, E> + 'a>);

impl<DB: Backend, T: Send, E: Send, L: Lease> FencedJob for BoxJob<'_, DB, T, E, L> {
    type Db = DB;
    type Lease = L;
    type Output = T;
    type Error = E;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn lease(&self) -> L {
        self.0.lease()
    }

    fn options(&self) -> LeaseOptions {
        self.0.options()
    }

    async fn run(self, ctx: &FenceCtx<DB, L>) -> Result<T, E> {
        self.0.run(ctx).await
    }
}

impl<DB: Backend, T, E, L> std::fmt::Debug for BoxJob<'_, DB, T, E, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BoxJob").field(&self.0.name()).finish()
    }
}
