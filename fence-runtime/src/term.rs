//! One term of a lease in this process: until when it may be relied on, whether it is lost, and how its transactions ended.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tracing::warn;

use crate::{
    backend::{Identity, LeaseRow},
    error::{Error, ErrorKind},
    keeper::Keeper,
    lease::Terms,
};

/// Why a term ended before the job did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Somebody took over, or an operator revoked it.
    Superseded { token: i64, holder: String },
    /// The database's clock passed the expiry before a renewal came.
    Expired,
    /// The row is not in the table any more, or its token was set back.
    RowGone,
    /// The job took longer than its `max_runtime`, and the lease is not renewed any more.
    Overrun(Duration),
    /// No renewal was confirmed in time; whether the lease is still ours is unknown, so we do not rely on it. With what the last try said.
    Unconfirmed(Option<Arc<str>>),
}

impl Loss {
    /// What the row says about a term that a renewal or a guard did not find.
    pub(crate) fn read(id: &Identity, row: Option<&LeaseRow>) -> Option<Self> {
        match row {
            None => Some(Self::RowGone),
            Some(row) if row.token < id.token.get() => Some(Self::RowGone),
            Some(row) if !row.is_of(id) => Some(Self::Superseded { token: row.token, holder: row.holder.clone() }),
            Some(row) if row.remaining_us <= 0 => Some(Self::Expired),
            Some(_) => None,
        }
    }

    /// `written`: what that means for what was written.
    pub(crate) fn error(&self, id: &Identity, written: &str) -> Error {
        let error = Error::new(ErrorKind::Lost, format!("lost: {self}{written}")).of(&id.name, Some(id.token));
        match self {
            Self::Superseded { token, .. } => error.superseded(*token),
            _ => error,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superseded { token, holder } if holder.is_empty() => {
                write!(f, "superseded by fencing token {token} (revoked)")
            }
            Self::Superseded { token, holder } => write!(f, "superseded by fencing token {token}, held by {holder:?}"),
            Self::Expired => f.write_str("expired or revoked: no renewal came in time"),
            Self::RowGone => {
                f.write_str("its row was deleted or its token set back; look for a restored or truncated table")
            }
            Self::Overrun(limit) => write!(f, "the job took longer than its `max_runtime` of {limit:?}"),
            Self::Unconfirmed(why) => {
                f.write_str("no renewal was confirmed in time, so the lease cannot be relied on")?;
                why.as_ref().map_or(Ok(()), |why| write!(f, " (the last try: {why})"))
            }
        }
    }
}

/// How the last writing transaction of a run ended.
#[derive(Clone, Debug, Default)]
pub(crate) enum LastTx {
    #[default]
    None,
    Committed,
    /// As the job asked, or as it was told by an error that it has seen.
    RolledBack,
    /// Nobody asked for it: dropped, or its commit refused.
    Abandoned(&'static str),
    Unknown(String),
}

/// What the job, its transactions and the keeper share.
pub(crate) struct Term {
    pub(crate) id: Identity,
    pub(crate) terms: Terms,
    pub(crate) job: &'static str,
    started: Instant,
    clock: Mutex<Clock>,
    /// When the run was polled last.
    alive: Mutex<Instant>,
    lost: watch::Sender<Option<Loss>>,
    last: Mutex<LastTx>,
    unknown: Mutex<Option<String>>,
    /// A fenced transaction was refused since then.
    refused: AtomicBool,
    transactions: watch::Sender<Transactions>,
}

#[derive(Clone, Copy, Default)]
struct Transactions {
    /// In the job's hands.
    open: usize,
    /// Beginning or ending, wherever that is being driven.
    moving: usize,
}

struct Clock {
    deadline: Instant,
    /// Transactions that keep everybody from taking over, and the keeper from renewing.
    suspended: usize,
}

/// The database measures with its clock and we with ours: a little less than it said.
fn margin(remaining: Duration) -> Duration {
    (remaining / 20).clamp(Duration::from_millis(5), Duration::from_millis(500))
}

impl Term {
    pub(crate) fn new(id: Identity, terms: Terms, job: &'static str, sent: Instant, remaining: Duration) -> Self {
        let clock = Clock { deadline: deadline(sent, remaining, &terms), suspended: 0 };
        Self {
            id,
            terms,
            job,
            started: sent,
            clock: Mutex::new(clock),
            alive: Mutex::new(Instant::now()),
            lost: watch::Sender::new(None),
            last: Mutex::default(),
            unknown: Mutex::default(),
            refused: AtomicBool::new(false),
            transactions: watch::Sender::default(),
        }
    }

    /// A renewal was confirmed: `remaining` by the database's clock, counted from when the request was sent.
    pub(crate) fn renewed(&self, sent: Instant, remaining: Duration) {
        let mut clock = lock(&self.clock);
        clock.deadline = clock.deadline.max(deadline(sent, remaining, &self.terms));
    }

    /// When the term may no longer be relied on. `None`: nobody can take over at present.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let clock = lock(&self.clock);
        (clock.suspended == 0).then_some(clock.deadline)
    }

    /// When the job has taken as long as it may.
    pub(crate) fn overrun(&self) -> Option<(Instant, Duration)> {
        let limit = self.terms.max_runtime?;
        Some((self.started.checked_add(limit)?, limit))
    }

    /// The run is being polled.
    pub(crate) fn beat(&self) {
        *lock(&self.alive) = Instant::now();
    }

    /// Since when it has not been polled.
    pub(crate) fn silent_since(&self) -> Instant {
        *lock(&self.alive)
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        lock(&self.clock).deadline.saturating_duration_since(Instant::now())
    }

    /// The first loss counts; only what the database says later replaces that we did not know. True: this was the first.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        let said = loss.to_string();
        let first = self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            if first || matches!(lost, Some(Loss::Unconfirmed(_))) {
                *lost = Some(loss);
            }
            first
        });
        if first {
            warn!(lease = %self.id.name, token = %self.id.token, job = self.job, loss = said, "lease lost");
        }
        first
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lost.borrow().clone()
    }

    pub(crate) async fn lost(&self) {
        // The sender lives in `self`, so it cannot be closed.
        let _ = self.lost.subscribe().wait_for(Option::is_some).await;
    }

    /// A fenced transaction was not opened, because the lease is lost.
    pub(crate) fn refused(&self, loss: Loss) {
        self.refused.store(true, SeqCst);
        self.lose(loss);
    }

    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(SeqCst)
    }

    /// What is unknown stays unknown until a later commit is certain.
    pub(crate) fn set_last(&self, outcome: LastTx) {
        self.refused.store(false, SeqCst);
        let mut last = lock(&self.last);
        if let LastTx::Unknown(why) = &outcome {
            lock(&self.unknown).get_or_insert_with(|| why.clone());
        }
        if !matches!(*last, LastTx::Unknown(_)) || matches!(outcome, LastTx::Committed) {
            *last = outcome;
        }
    }

    /// The first commit of this run of which nobody can say whether it happened.
    pub(crate) fn unknown(&self) -> Option<String> {
        lock(&self.unknown).clone()
    }

    pub(crate) fn last(&self) -> LastTx {
        lock(&self.last).clone()
    }

    /// Waits until no transaction of this term is beginning or ending.
    pub(crate) async fn settled(&self) {
        let _ = self.transactions.subscribe().wait_for(|transactions| transactions.moving == 0).await;
    }

    /// A transaction that outlives its job's future can only have been leaked.
    pub(crate) fn has_open_transaction(&self) -> bool {
        self.transactions.borrow().open > 0
    }
}

#[cfg(test)]
impl Term {
    pub(crate) fn of_a_test() -> Self {
        use crate::lease::{FenceToken, LeaseName, LeaseOptions, OwnerToken};
        let id = Identity {
            name: LeaseName::new("group:job").expect("a name"),
            owner: OwnerToken::fresh(),
            token: FenceToken::from_database(7).expect("a token"),
        };
        let ttl = Duration::from_secs(30);
        Self::new(id, Terms::new(LeaseOptions::new(), ttl).expect("terms"), "job", Instant::now(), ttl)
    }
}

/// Never later than the time to live: where the database's clock was set back, the lease lives longer there, until that is corrected.
fn deadline(sent: Instant, remaining: Duration, terms: &Terms) -> Instant {
    let remaining = remaining.min(terms.ttl);
    sent + remaining.saturating_sub(margin(remaining))
}

/// A panic elsewhere leaves these plain values usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever holds the lease: the last clone to go has the keeper release it.
#[derive(Clone)]
pub(crate) struct Holding(Arc<Held>);

struct Held {
    term: Arc<Term>,
    keeper: Keeper,
}

impl Holding {
    /// From here on the keeper renews the lease.
    pub(crate) fn new(term: Term, keeper: Keeper) -> Self {
        let term = Arc::new(term);
        keeper.keep(term.clone());
        Self(Arc::new(Held { term, keeper }))
    }

    /// Has the keeper release the lease, in the background. An open fenced transaction is kept safe by its lock, not by the lease.
    pub(crate) fn release(&self) {
        self.0.keeper.release(self.0.term.clone());
    }

    /// Resolves when the lease is released, or cannot be any more.
    pub(crate) async fn released(&self) {
        self.0.keeper.released(self.0.term.clone()).await;
    }
}

impl std::ops::Deref for Holding {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.0.term
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.release(self.term.clone());
    }
}

/// One transaction in the books of its term, from before it begins until it has ended completely.
pub(crate) struct OpenTx {
    holding: Holding,
    open: bool,
    suspends: bool,
    /// What the run shall know of it, if nothing better is said before it is dropped.
    if_dropped: Option<LastTx>,
}

impl OpenTx {
    pub(crate) fn beginning(holding: Holding) -> Self {
        holding.transactions.send_modify(|transactions| transactions.moving += 1);
        Self { holding, open: false, suspends: false, if_dropped: None }
    }

    /// It is open; `suspend`: nobody can take over (or renew) until it ends, so the local deadline stands still.
    pub(crate) fn opened(&mut self, suspend: bool) {
        if suspend {
            self.suspends = true;
            lock(&self.holding.0.term.clock).suspended += 1;
        }
    }

    /// It is in the job's hands. One whose `begin()` was dropped never is: it ends as it began, in the background.
    pub(crate) fn handed_over(&mut self) {
        self.open = true;
        self.holding.transactions.send_modify(|transactions| {
            transactions.moving -= 1;
            transactions.open += 1;
        });
    }

    pub(crate) fn ending(&mut self) {
        if std::mem::take(&mut self.open) {
            self.holding.transactions.send_modify(|transactions| {
                transactions.open -= 1;
                transactions.moving += 1;
            });
        }
    }

    /// There is something to commit, or it is being committed.
    pub(crate) fn if_dropped(&mut self, outcome: LastTx) {
        self.if_dropped = Some(outcome);
    }

    pub(crate) fn dropped(&mut self) {
        if let Some(outcome) = self.if_dropped.take() {
            self.holding.set_last(outcome);
        }
    }

    pub(crate) fn ended(&mut self, outcome: LastTx) {
        self.if_dropped = None;
        self.holding.set_last(outcome);
    }

    /// As the job asked: noted only if there was something to commit.
    pub(crate) fn rolled_back(&mut self) {
        if self.if_dropped.take().is_some() {
            self.holding.set_last(LastTx::RolledBack);
        }
    }

    pub(crate) fn term(&self) -> &Term {
        &self.holding
    }
}

impl Drop for OpenTx {
    fn drop(&mut self) {
        self.dropped();
        if self.suspends {
            lock(&self.holding.0.term.clock).suspended -= 1;
        }
        self.ending();
        self.holding.transactions.send_modify(|transactions| transactions.moving -= 1);
    }
}
