//! The leases that the keeper holds, so ordered that nothing takes longer for ten thousand than for one.

use std::{
    collections::{BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tracing::warn;

use crate::{
    lease::OwnerToken,
    term::{Loss, Term},
    time::jittered,
};

/// No less is told of, however short a lease lives.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// How often a term is looked at whose deadline stands still.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Roster {
    kept: HashMap<OwnerToken, Kept>,
    // What is in these is in `kept` and not lost.
    /// When to renew; whoever is in a batch is not in here.
    due: BTreeSet<(Instant, OwnerToken)>,
    /// When to look at the deadline, which moves without telling: only ever later.
    looks: BTreeSet<(Instant, OwnerToken)>,
    paces: BTreeSet<(Duration, OwnerToken)>,
}

struct Kept {
    term: Arc<Term>,
    /// It was said that its run has been silent since then.
    silent: Option<Instant>,
    due: Instant,
    look: Instant,
    /// What the last try said, if it confirmed nothing.
    why: Option<Arc<str>>,
    /// Not renewed any more, but not released either before its job has ended.
    lost: Option<Loss>,
}

impl Roster {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many are renewed.
    pub(super) fn renewed(&self) -> usize {
        self.paces.len()
    }

    pub(super) fn add(&mut self, term: Arc<Term>) {
        let (owner, now) = (term.id.owner, Instant::now());
        let (due, look) = (now + jittered(term.terms.renew), next_look(&term, now));
        self.due.insert((due, owner));
        self.looks.insert((look, owner));
        self.paces.insert((term.terms.patience(), owner));
        self.kept.insert(owner, Kept { term, silent: None, due, look, why: None, lost: None });
    }

    /// Its job has ended. The inner option: how it had been lost.
    pub(super) fn remove(&mut self, owner: OwnerToken) -> Option<Option<Loss>> {
        self.forget(owner);
        self.kept.remove(&owner).map(|kept| kept.lost)
    }

    /// How long a try may take for whoever is in the greatest hurry.
    pub(super) fn pace(&self) -> Option<Duration> {
        self.paces.first().map(|(pace, _)| *pace)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Could any of them be lost if nothing is renewed?
    pub(super) fn is_at_stake(&self) -> bool {
        self.kept.values().any(|kept| kept.lost.is_none() && kept.term.deadline().is_some())
    }

    /// Whoever is due, and whoever would be soon; they come back through one of the functions below.
    pub(super) fn take_due(&mut self, now: Instant, most: usize) -> Vec<Arc<Term>> {
        let mut batch = Vec::new();
        while batch.len() < most
            && let Some(&(at, owner)) = self.due.first()
            && let Some(kept) = self.kept.get(&owner)
            && at <= now + kept.term.terms.renew / 4
        {
            self.due.pop_first();
            match kept.term.loss() {
                // A guard or a check has found out before us.
                Some(loss) => self.lose(owner, loss),
                None => batch.push(kept.term.clone()),
            }
        }
        batch
    }

    /// It was confirmed by a request sent at this time.
    pub(super) fn confirmed(&mut self, term: &Term, sent: Instant) {
        if let Some(kept) = self.kept.get_mut(&term.id.owner) {
            kept.listen(sent);
        }
        self.put_back(term, sent + jittered(term.terms.renew), None);
    }

    /// Unknown is not lost: it is asked for again, until the deadline.
    pub(super) fn unconfirmed(&mut self, term: &Term, again: Instant, why: Arc<str>) {
        self.put_back(term, again, Some(why));
    }

    fn put_back(&mut self, term: &Term, due: Instant, why: Option<Arc<str>>) {
        let owner = term.id.owner;
        if let Some(kept) = self.kept.get_mut(&owner).filter(|kept| kept.lost.is_none()) {
            (kept.due, kept.why) = (due, why);
            self.due.insert((due, owner));
        }
    }

    /// Released while it was asked for: not found, that is no loss.
    pub(super) fn lose(&mut self, owner: OwnerToken, loss: Loss) {
        self.forget(owner);
        if let Some(kept) = self.kept.get_mut(&owner) {
            kept.term.lose(loss.clone());
            kept.lost.get_or_insert(loss);
        }
    }

    /// Loses every lease whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(at, owner)) = self.looks.first()
            && at <= now
        {
            self.looks.pop_first();
            let Some(kept) = self.kept.get_mut(&owner) else { continue };
            if kept.term.deadline().is_some_and(|deadline| deadline <= now) {
                let why = kept.why.clone();
                self.lose(owner, Loss::Unconfirmed(why));
            } else if let Some((_, limit)) = kept.term.overrun().filter(|(at, _)| *at <= now) {
                self.lose(owner, Loss::Overrun(limit));
            } else {
                kept.look = next_look(&kept.term, now);
                self.looks.insert((kept.look, owner));
            }
        }
    }

    fn forget(&mut self, owner: OwnerToken) {
        if let Some(kept) = self.kept.get(&owner) {
            self.due.remove(&(kept.due, owner));
            self.looks.remove(&(kept.look, owner));
            self.paces.remove(&(kept.term.terms.patience(), owner));
        }
    }
}

/// When to look at a term next.
fn next_look(term: &Term, now: Instant) -> Instant {
    let deadline = term.deadline().unwrap_or(now + LOOK);
    term.overrun().map_or(deadline, |(at, _)| deadline.min(at))
}

impl Kept {
    /// Says once when the run has not been polled for so long that its job cannot be well.
    fn listen(&mut self, now: Instant) {
        let (term, since) = (&self.term, self.term.silent_since());
        let silence = now.saturating_duration_since(since);
        if silence > term.terms.ttl.max(LEAST_SILENCE) && self.silent != Some(since) {
            self.silent = Some(since);
            warn!(
                lease = %term.id.name, token = %term.id.token, job = term.job, ?silence,
                "the run has not been polled for long: is its thread blocked, or its future not awaited?"
            );
        }
    }
}

/// Only a panic of the thread leaves any: nobody renews them any more.
impl Drop for Roster {
    fn drop(&mut self) {
        for kept in self.kept.values() {
            // What panicked may have been the log.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                kept.term.lose(Loss::Unconfirmed(Some("the keeper's thread has panicked".into())));
            }));
        }
    }
}
