//! What expansions of the macros call. Not part of the public interface: it may change in any release.

use std::{
    fmt::{Display, Write as _},
    time::Duration,
};

use crate::{Backend, Written, lease::Lease};

pub use crate::{
    FenceCtx, FencedTx,
    job::FencedJob,
    lease::{LeaseOptions, OnLost, Untyped},
    probe::{admit, probe},
};

/// The lease of a job whose attribute names it by a string.
#[must_use]
pub fn untyped(name: &'static str) -> Untyped {
    Untyped::new(name)
}

/// The lease of a job whose attribute names it by a template.
#[must_use]
pub fn template(pieces: &[Piece<'_>]) -> Untyped {
    let mut name = String::new();
    let mut empty = None;
    for piece in pieces {
        match piece {
            Piece::Text(text) => name.push_str(text),
            Piece::Value(placeholder, value) => {
                let before = name.len();
                // Only a `Display` that fails makes this fail; what it has written is refused below, or by the rules of names.
                let failed = write!(name, "{value}").is_err();
                if failed || name.len() == before {
                    empty = Some(*placeholder);
                }
            }
        }
    }
    Untyped::of_template(name, empty)
}

/// A piece of a template.
pub enum Piece<'a> {
    /// As it stands there.
    Text(&'static str),
    /// A parameter, by its name.
    Value(&'static str, &'a dyn Display),
}

/// A parameter in a template.
pub fn value<'a, T: Placeholder>(name: &'static str, value: &'a T) -> Piece<'a> {
    Piece::Value(name, value)
}

/// What can stand in the template of a lease.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand in the name of a lease: it does not implement `Display`",
    label = "not for a name",
    note = "name a parameter that does, such as an id"
)]
pub trait Placeholder: Display {}

impl<T: Display> Placeholder for T {}

/// A duration of the attribute.
#[must_use]
pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What the attribute makes of a job: its arguments, and how to run it. As [`Job`] it is a [`FencedJob`].
///
/// Nothing is asked of the types here, so that a wrong one is told of once: where the constructor names it.
pub trait Body: Send + Sized {
    /// What the first parameter refers to.
    type Context: 'static;
    /// The context's lease.
    type Lease;
    /// The declared return type.
    type Returns;

    /// The job's name.
    fn name(&self) -> &'static str;

    /// The lease to acquire.
    fn lease(&self) -> Self::Lease;

    /// What the attribute asks of the lease.
    fn options(&self) -> LeaseOptions;

    /// The function itself.
    fn run(self, ctx: &Self::Context) -> impl Future<Output = Self::Returns> + Send;
}

/// A [`Body`] as a [`FencedJob`].
pub struct Job<B>(pub B);

impl<B: Body> FencedJob for Job<B>
where
    B::Context: Context<Lease = B::Lease>,
    B::Lease: Lease,
    B::Returns: Fallible,
{
    type Db = <B::Context as Context>::Db;
    type Lease = B::Lease;
    type Output = <B::Returns as Fallible>::Ok;
    type Error = <B::Returns as Fallible>::Err;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn lease(&self) -> Self::Lease {
        self.0.lease()
    }

    fn options(&self) -> LeaseOptions {
        self.0.options()
    }

    fn run(
        self,
        ctx: &FenceCtx<Self::Db, Self::Lease>,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send {
        let run = self.0.run(B::Context::given(ctx));
        async move { run.await.outcome() }
    }
}

/// What the first parameter of a job refers to: the only implementor is [`FenceCtx`], whatever a user's alias calls it.
#[diagnostic::on_unimplemented(
    message = "the first parameter of a fenced job must be `&FenceCtx<_>`, found `&{Self}`",
    label = "not a `FenceCtx`",
    note = "put `ctx: &FenceCtx<DB>` first: the job takes its connections from it, so that its writes carry the token"
)]
pub trait Context {
    /// The database of the job.
    type Db: Backend;
    /// The lease of the job.
    type Lease: Lease;

    /// The context of the run as the function takes it: itself.
    fn given(ctx: &FenceCtx<Self::Db, Self::Lease>) -> &Self;
}

#[diagnostic::do_not_recommend]
impl<DB: Backend, L: Lease> Context for FenceCtx<DB, L> {
    type Db = DB;
    type Lease = L;

    fn given(ctx: &FenceCtx<DB, L>) -> &Self {
        ctx
    }
}

/// What a job returns: the only implementor is [`Result`], whatever a user's alias calls it.
#[diagnostic::on_unimplemented(
    message = "a fenced job must return a `Result`, found `{Self}`",
    label = "not a `Result`",
    note = "return `Result<T, E>`, so that a refused write can end the job with `?`"
)]
pub trait Fallible {
    /// What the job returns when it succeeds.
    type Ok: Send;
    /// What the job returns when it fails.
    type Err: Send;

    /// The value as `run` returns it: itself.
    ///
    /// # Errors
    /// The job's.
    fn outcome(self) -> Result<Self::Ok, Self::Err>;
}

impl<T: Returnable, E: Returnable> Fallible for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn outcome(self) -> Self {
        self
    }
}

/// A type that a job may hand to the caller of `run`, who may be on another thread.
#[diagnostic::on_unimplemented(
    message = "a fenced job cannot return `{Self}`: it is not `Send`",
    label = "not `Send`",
    note = "a boxed error must be `Box<dyn std::error::Error + Send + Sync>`; `anyhow::Error`, `sqlx::Error` are fine"
)]
pub trait Returnable: Send {}

#[diagnostic::do_not_recommend]
impl<T: Send> Returnable for T {}

/// What the first parameter of a terminal write refers to: the only implementor is [`FencedTx`].
#[diagnostic::on_unimplemented(
    message = "the first parameter of a terminal write must be `&mut FencedTx<'_, DB>`, found `&mut {Self}`",
    label = "not a `FencedTx`",
    note = "put `tx: &mut FencedTx<'_, DB>` first: it is the transaction that the fencing token guards"
)]
pub trait TerminalTx {}

#[diagnostic::do_not_recommend]
impl<DB: Backend, L: Lease> TerminalTx for FencedTx<'_, DB, L> {}

/// Compiles only if `T` is a [`FencedTx`].
pub fn terminal_tx<T: TerminalTx + ?Sized>() {}

/// What a terminal write returns: the only implementor is `Result<Written, E>`.
#[diagnostic::on_unimplemented(
    message = "a terminal write must return `Result<Written, _>`, found `{Self}`",
    label = "does not prove that a row was written",
    note = "return what `tx.terminal(query).await` gives: `Written` is the proof that at least one row changed"
)]
pub trait ProvesWrite {}

#[diagnostic::do_not_recommend]
impl<E> ProvesWrite for Result<Written, E> {}

/// Compiles only if `T` is a `Result<Written, _>`.
pub fn proves_write<T: ProvesWrite>() {}
