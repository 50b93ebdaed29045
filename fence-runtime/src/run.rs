//! Acquire, run, release: one run of a job, and what can come of it.

use std::{fmt, future::pending, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{Either, select},
};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::{
    Backend, FenceCtx,
    backend::{Claim, Identity, LeaseRow, Protocol},
    error::{Error, ErrorKind},
    fence::Shared,
    job::FencedJob,
    keeper::Keeper,
    lease::{FenceToken, Lease, LeaseName, OnLost, OwnerToken, Terms},
    resolve::{Resolve, forget},
    session::ANSWER_LIMIT,
    term::{Holding, LastTx, Term},
    time::jittered,
};

/// How long a finished run waits for its lease to be released; after that the keeper goes on trying without it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);
/// How long an acquire is asked again while connections fail.
const LOST_ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for what its transactions do in the background; each step of theirs is given up long before.
const SETTLE_PATIENCE: Duration = ANSWER_LIMIT.saturating_mul(4);
/// How long a waiting run sleeps at most before it asks again.
const POLL: Duration = Duration::from_secs(1);

/// Why [`Fence::run`](crate::Fence::run) does not return what the job returned.
///
/// An unknown commit outranks a lost lease, which outranks everything that follows from it.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// Another instance holds the lease: normal. The job was not started.
    Contended(Contended),
    /// The lease was lost while the job ran; nothing of ours was written after that.
    Lost {
        /// How it was lost.
        error: Error,
        /// What the job returned, if it came to an end by itself.
        job: Option<E>,
        /// How its last fenced transaction had ended.
        last: LastTransaction,
    },
    /// Whether the last fenced transaction was committed is unknown: read its rows before you repeat the work.
    Unknown {
        /// What happened around COMMIT.
        error: Error,
        /// What the job returned, if it came to an end by itself with an error.
        job: Option<E>,
    },
    /// The job returned `Ok`, but its last fenced transaction was not committed: nothing of that was written.
    Uncommitted(Error),
    /// The job returned this error.
    Job(E),
    /// The job could not be started.
    Fence(Error),
}

/// How the last fenced transaction of a run ended that had something to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LastTransaction {
    /// There was none.
    None,
    /// It was committed.
    Committed,
    /// It was rolled back.
    RolledBack,
}

/// Who holds a lease that we asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Contended {
    /// The lease.
    pub lease: LeaseName,
    /// The holder's label.
    pub holder: String,
    /// The holder's fencing token.
    pub fence_token: i64,
    /// How long the holder's lease lives without renewal, by the database's clock. Zero: it has expired, but a fenced transaction of the
    /// holder is still open, or somebody is taking over.
    pub remaining: Duration,
}

impl<E> RunError<E> {
    /// Another instance holds the lease.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended(_))
    }

    /// The lease was lost while the job ran.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Whether the last fenced transaction was committed is unknown.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// The job returned `Ok` without committing its last fenced transaction.
    #[must_use]
    pub fn is_uncommitted(&self) -> bool {
        matches!(self, Self::Uncommitted(_))
    }

    /// What the job itself returned, if it did.
    #[must_use]
    pub fn into_job(self) -> Option<E> {
        match self {
            Self::Job(error) => Some(error),
            Self::Lost { job, .. } | Self::Unknown { job, .. } => job,
            Self::Contended(_) | Self::Uncommitted(_) | Self::Fence(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contended(contended) => contended.fmt(f),
            Self::Lost { error, job: Some(job), .. } | Self::Unknown { error, job: Some(job) } => {
                write!(f, "{error} (the job returned: {job})")
            }
            Self::Lost { error, .. } | Self::Unknown { error, .. } | Self::Uncommitted(error) | Self::Fence(error) => {
                error.fmt(f)
            }
            Self::Job(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for Contended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lease, holder, fence_token, remaining } = self;
        write!(f, "lease {:?} is held by {holder:?} with fencing token {fence_token}", lease.as_str())?;
        if remaining.is_zero() {
            f.write_str(
                "; it has expired, but a fenced transaction of its holder is still open or somebody is taking over",
            )
        } else {
            write!(f, " for {remaining:.1?} more without renewal")
        }
    }
}

// Not `E: Error`, which would shut out anyhow, eyre and boxed errors.
impl<E: fmt::Debug + fmt::Display> std::error::Error for RunError<E> {}

pub(crate) async fn run<DB: Backend, J: FencedJob<Db = DB>>(
    shared: Arc<Shared<DB>>,
    job: J,
) -> Result<J::Output, RunError<J::Error>> {
    let lease = job.lease();
    let (name, terms) = lease
        .lease_name()
        .and_then(|name| Ok((name, Terms::new(job.options(), shared.default_ttl)?)))
        .map_err(RunError::Fence)?;
    let holding = acquire(&shared, name, terms, job.name()).await?;
    let _end = EndOfRun(holding.clone());
    let ctx = FenceCtx::new(shared.clone(), holding.clone(), lease);
    let ended = drive(&ctx, job).await;
    // A commit that was dropped half-way goes on: its outcome is part of ours.
    if timeout(SETTLE_PATIENCE, holding.settled()).await.is_err() {
        holding.set_last(LastTx::Unknown(
            "whether the last transaction was committed is unknown: its future was leaked".into(),
        ));
    }
    match ended {
        Ended::Panicked(panic) => {
            let_go(&shared, &holding).await;
            std::panic::resume_unwind(panic)
        }
        Ended::Returned(result) => {
            let judged = judge(&holding, Some(result));
            let_go(&shared, &holding).await;
            judged
        }
        Ended::Dropped => {
            let judged = judge(&holding, None);
            let_go(&shared, &holding).await;
            judged
        }
    }
}

/// Has the lease released, and then nobody will ask for the receipts any more.
async fn let_go<DB: Backend>(shared: &Shared<DB>, holding: &Holding) {
    let _ = timeout(RELEASE_PATIENCE, holding.released()).await;
    if shared.resolve == Some(Resolve::Receipts) {
        let _ = timeout(RELEASE_PATIENCE, forget(shared, &holding.id)).await;
    }
}

/// The lease goes with the run, and not with what goes on in the background on a runtime that may not be driven any more.
struct EndOfRun(Holding);

impl Drop for EndOfRun {
    fn drop(&mut self) {
        self.0.release();
    }
}

enum Ended<T, E> {
    Returned(Result<T, E>),
    /// Because the lease was lost.
    Dropped,
    Panicked(Box<dyn std::any::Any + Send>),
}

/// The job's future is gone completely when this returns: only then may the lease be released.
async fn drive<DB: Backend, J: FencedJob<Db = DB>>(ctx: &FenceCtx<DB, J::Lease>, job: J) -> Ended<J::Output, J::Error> {
    let body = Box::pin(AssertUnwindSafe(job.run(ctx)).catch_unwind());
    let lost = pin!(async {
        let alive = async {
            loop {
                ctx.term().beat();
                sleep(ctx.term().terms.patience()).await;
            }
        };
        let lost = async {
            match ctx.term().terms.on_lost {
                OnLost::Drop => ctx.lost().await,
                OnLost::Signal => pending().await,
            }
        };
        select(pin!(lost), pin!(alive)).await;
    });
    // The body is polled first: a job that has ended is not lost any more.
    match select(body, lost).await {
        Either::Left((Ok(result), _)) => Ended::Returned(result),
        Either::Left((Err(panic), _)) => Ended::Panicked(panic),
        Either::Right(((), _body)) => Ended::Dropped,
    }
}

/// Decides from what the fence knows, never from the type of the job's error. `None`: the job was dropped.
fn judge<T, E>(term: &Term, result: Option<Result<T, E>>) -> Result<T, RunError<E>> {
    let id = &term.id;
    let error = |kind, message: String| Error::new(kind, message).of(&id.name, Some(id.token));
    let last = match term.last() {
        LastTx::Unknown(why) => LastTx::Unknown(why),
        _ if term.has_open_transaction() => LastTx::Abandoned("it was leaked: neither committed nor dropped"),
        last => last,
    };
    // The last word was a commit: that the lease ended after it changes nothing.
    let ok = matches!((&result, &last), (Some(Ok(_)), LastTx::Committed)) && !term.was_refused();
    if let Some(why) = term.unknown().filter(|_| !ok) {
        return Err(RunError::Unknown { error: error(ErrorKind::Unknown, why), job: result.and_then(Result::err) });
    }
    match (result, last, term.loss()) {
        (Some(Ok(value)), _, _) if ok => Ok(value),
        (result, last, Some(loss)) => {
            let (last, written) = match last {
                LastTx::None => (LastTransaction::None, "; no fenced transaction had anything to commit"),
                LastTx::Committed => {
                    (LastTransaction::Committed, "; its last fenced transaction had been committed before")
                }
                _ => (LastTransaction::RolledBack, "; its last fenced transaction was rolled back"),
            };
            Err(RunError::Lost { error: loss.error(id, written), job: result.and_then(Result::err), last })
        }
        (Some(Ok(_)), LastTx::Abandoned(why), None) => Err(RunError::Uncommitted(error(
            ErrorKind::RolledBack,
            format!("the job returned Ok, but its last fenced transaction was not committed: {why}"),
        ))),
        (Some(result), _, None) => result.map_err(RunError::Job),
        // Dropped only for a loss, which is answered above.
        (None, _, None) => Err(RunError::Fence(error(ErrorKind::Lost, "the job was dropped".into()))),
    }
}

async fn acquire<DB: Backend, E>(
    shared: &Arc<Shared<DB>>,
    name: LeaseName,
    terms: Terms,
    job: &'static str,
) -> Result<Holding, RunError<E>> {
    let started = Instant::now();
    // Fresh for this acquisition and the same for all its tries: one whose answer was lost may have won.
    let owner = OwnerToken::fresh();
    let mut attempt =
        Attempt { keeper: &shared.keeper, claim: Claim { name: name.clone(), owner }, terms, unanswered: false };
    let mut failing_since = None;
    let before = shared.highest.of(&name);
    loop {
        attempt.unanswered = true;
        let answer = try_acquire(shared, &name, owner, terms, job).await;
        attempt.unanswered = answer.is_err();
        let contended = match answer {
            Ok(Acquired::Ours(holding)) => {
                let token = holding.id.token;
                shared.highest.saw(&name, token.get());
                if token.get() > before {
                    return Ok(holding);
                }
                let _ = timeout(RELEASE_PATIENCE, holding.released()).await;
                return Err(RunError::Fence(set_back(&name, token, before)));
            }
            Ok(Acquired::Theirs(contended)) => {
                if contended.fence_token < before {
                    let (token, holder) = (contended.fence_token, &contended.holder);
                    warn!(lease = %name, token, before, holder, "a fencing token was given out again: was the lease table restored?");
                }
                shared.highest.saw(&name, contended.fence_token);
                contended
            }
            Err(error) if is_lost_answer(&error) => {
                if failing_since.get_or_insert_with(Instant::now).elapsed() >= LOST_ANSWER_PATIENCE {
                    return Err(RunError::Fence(error));
                }
                sleep(jittered(Duration::from_millis(100))).await;
                continue;
            }
            Err(error) => return Err(RunError::Fence(error)),
        };
        failing_since = None;
        let left = terms.wait.saturating_sub(started.elapsed());
        if left.is_zero() {
            debug!(lease = %name, holder = contended.holder, "lease contended");
            return Err(RunError::Contended(contended));
        }
        let nap = contended.remaining.clamp(Duration::from_millis(20), POLL).min(left);
        sleep(jittered(nap)).await;
    }
}

fn set_back(lease: &LeaseName, token: FenceToken, before: i64) -> Error {
    Error::new(
        ErrorKind::TokenSetBack,
        format!(
            "the lease table gave it out although this process has seen token {before} before, so it was restored or emptied; nothing was run. \
             Find the highest token in your own rows, and call `raise_floor` with it"
        ),
    )
    .of(lease, Some(token))
}

/// Given up without an answer, the lease may have been acquired all the same: it must not stay held until it expires.
struct Attempt<'a> {
    keeper: &'a Keeper,
    claim: Claim,
    terms: Terms,
    unanswered: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.unanswered {
            self.keeper.disown(self.claim.clone(), self.terms);
        }
    }
}

/// The connection failed while we waited for the answer. Not: no answer came for so long that we gave up.
fn is_lost_answer(error: &Error) -> bool {
    matches!(error.as_sqlx(), Some(sqlx::Error::Io(io)) if io.kind() != std::io::ErrorKind::TimedOut)
}

enum Acquired {
    Ours(Holding),
    Theirs(Contended),
}

/// Dropped half-way it goes on in the background, and what it acquires is released at once.
async fn try_acquire<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    name: &LeaseName,
    owner: OwnerToken,
    terms: Terms,
    job: &'static str,
) -> Result<Acquired, Error> {
    let (inner, lease) = (shared.clone(), name.clone());
    let acquired = shared
        .once("the lease could not be acquired", move |conn| {
            let (shared, name) = (inner.clone(), lease.clone());
            Box::pin(async move {
                let sent = Instant::now();
                let row = DB::Protocol::acquire(conn, &shared.tables, &name, owner, terms.ttl, &shared.holder).await?;
                // Another's insert of the same row was rolled back in between.
                let row = row.ok_or(sqlx::Error::RowNotFound)?;
                if row.owner != owner.to_string() {
                    return Ok(Ok(Acquired::Theirs(theirs(name, row))));
                }
                Ok(FenceToken::from_database(row.token).map(|token| {
                    let term = Term::new(Identity { name, owner, token }, terms, job, sent, row.remaining());
                    Acquired::Ours(Holding::new(term, shared.keeper.clone()))
                }))
            })
        })
        .await
        .and_then(|acquired| acquired)
        .map_err(|error| error.of(name, None))?;
    if let Acquired::Ours(holding) = &acquired {
        info!(lease = %name, token = %holding.id.token, job, "lease acquired");
    }
    Ok(acquired)
}

fn theirs(lease: LeaseName, row: LeaseRow) -> Contended {
    Contended { lease, fence_token: row.token, remaining: row.remaining(), holder: row.holder }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::Loss;

    fn unknown() -> LastTx {
        LastTx::Unknown("nobody can say".into())
    }

    #[tokio::test]
    async fn an_unknown_commit_outranks_everything_but_a_later_commit() {
        for after in [None, Some(LastTx::RolledBack), Some(LastTx::Abandoned("dropped"))] {
            let term = Term::of_a_test();
            term.set_last(LastTx::Committed);
            term.set_last(unknown());
            after.into_iter().for_each(|outcome| term.set_last(outcome));
            term.lose(Loss::Expired);
            for result in [Some(Ok(())), Some(Err("own")), None] {
                assert!(judge(&term, result).unwrap_err().is_unknown());
            }
        }
        let term = Term::of_a_test();
        term.set_last(unknown());
        term.set_last(LastTx::Committed);
        assert!(judge(&term, Some(Err::<(), _>("own"))).unwrap_err().is_unknown());
        assert!(judge(&term, Some(Ok::<_, ()>(1))).is_ok());
    }

    #[tokio::test]
    async fn lost_says_what_became_of_the_last_transaction() {
        for (last, part) in [
            (LastTx::None, "no fenced transaction"),
            (LastTx::Committed, "had been committed"),
            (LastTx::RolledBack, "was rolled back"),
        ] {
            let term = Term::of_a_test();
            term.set_last(last);
            term.lose(Loss::Expired);
            let error = judge(&term, None::<Result<(), ()>>).unwrap_err();
            assert!(matches!(&error, RunError::Lost { error, .. } if error.to_string().contains(part)), "{error:?}");
        }
    }
}
