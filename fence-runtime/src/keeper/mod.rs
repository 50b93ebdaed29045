//! The keeper: one thread, one runtime and one connection of its own for each [`Fence`](crate::Fence), so that neither a blocked executor
//! nor an exhausted pool stops a renewal.
//!
//! It renews, notices losses, and releases: a release waits for the renewal in flight because both go through the same connection.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::{
    Backend,
    backend::{Claim, Options, Tables},
    error::{Error, ErrorKind},
    lease::Terms,
    term::{Loss, Term},
};

mod roster;
mod tick;

/// A handle on the keeper's thread. The thread ends when the last handle is gone and nothing is left to release.
#[derive(Clone)]
pub(crate) struct Keeper(mpsc::UnboundedSender<Command>);

enum Command {
    Keep(Arc<Term>),
    Release(Arc<Term>, Option<oneshot::Sender<()>>),
    Disown(Claim, Terms),
}

impl Keeper {
    pub(crate) fn start<DB: Backend>(options: Options<DB>, tables: Tables) -> Result<Self, Error> {
        let failed = |what: &str, error: std::io::Error| {
            Error::new(ErrorKind::Config, format!("the keeper's {what} could not be started: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("runtime", error))?;
        let (sender, commands) = mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("fence-keeper".into())
            .spawn(move || runtime.block_on(tick::keep::<DB>(options, tables, commands)))
            .map_err(|error| failed("thread", error))?;
        Ok(Self(sender))
    }

    pub(crate) fn keep(&self, term: Arc<Term>) {
        // The thread outlives every handle, unless something in it panicked: a lease that nobody renews cannot be relied on.
        if self.0.send(Command::Keep(term.clone())).is_err() {
            term.lose(Loss::Unconfirmed(Some("the keeper's thread has panicked; build the fence anew".into())));
        }
    }

    /// Releases in the background.
    pub(crate) fn release(&self, term: Arc<Term>) {
        let _ = self.0.send(Command::Release(term, None));
    }

    /// Releases in the background what may have been acquired although no answer said so.
    pub(crate) fn disown(&self, claim: Claim, terms: Terms) {
        let _ = self.0.send(Command::Disown(claim, terms));
    }

    /// Resolves when the lease is released, or when that is no longer possible because its term is over.
    pub(crate) async fn released(&self, term: Arc<Term>) {
        let (done, released) = oneshot::channel();
        let _ = self.0.send(Command::Release(term, Some(done)));
        let _ = released.await;
    }
}

#[cfg(test)]
mod tests {
    use super::{roster::Roster, *};

    #[tokio::test]
    async fn a_keeper_that_is_gone_keeps_nothing() {
        let (sender, commands) = mpsc::unbounded_channel();
        drop(commands);
        let term = Arc::new(Term::of_a_test());
        Keeper(sender).keep(term.clone());
        assert!(matches!(term.loss(), Some(Loss::Unconfirmed(Some(why))) if why.contains("panicked")));
    }

    #[tokio::test]
    async fn a_keeper_that_panics_loses_what_it_kept() {
        let term = Arc::new(Term::of_a_test());
        let kept = term.clone();
        let thread = tokio::task::spawn_blocking(move || {
            let mut roster = Roster::default();
            roster.add(kept);
            panic!("as a log does that cannot be written");
        });
        assert!(thread.await.is_err());
        assert!(matches!(term.loss(), Some(Loss::Unconfirmed(Some(why))) if why.contains("panicked")));
    }
}
