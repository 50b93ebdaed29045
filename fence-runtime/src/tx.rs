//! A fenced transaction: the only place from which a job writes.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, Execute, Executor};
use tokio::time::{Instant, timeout};

use crate::{
    Backend,
    backend::{Ending, Fit, Identity, Isolation, NotOpened, Opening, Protocol, RolledBack, Trace, Verdict},
    carried::Carried,
    error::{Error, ErrorKind},
    fence::Shared,
    lease::{FenceToken, LeaseName, OwnerToken, Untyped},
    lent::Lent,
    resolve::{STILL_OPEN, resolve},
    session::{self, ANSWER_LIMIT, Session, no_answer, on_clean_connection},
    term::{Holding, LastTx, Loss, OpenTx, Term},
    terminal::Terminal,
};

/// How a fenced transaction shall be opened: see [`FenceCtx::begin_with`](crate::FenceCtx::begin_with).
#[derive(Clone, Copy, Debug, Default)]
pub struct TxOptions {
    isolation: Isolation,
    idle: Option<Duration>,
    lock: Option<Duration>,
    statement: Option<Duration>,
}

impl TxOptions {
    /// READ COMMITTED, the idle limit of the [`Fence`](crate::Fence), and otherwise the limits that the session has.
    #[must_use]
    pub const fn new() -> Self {
        Self { isolation: Isolation::ReadCommitted, idle: None, lock: None, statement: None }
    }

    /// How far the transaction is isolated. SQLite has one level only, which is the strictest.
    #[must_use]
    pub const fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// The server ends the transaction when no statement comes for this long, so that a frozen holder does not keep its successor
    /// waiting for ever. Default: the lease's time to live, at least 5 s. MySQL and MariaDB round it up to whole seconds. SQLite has no such limit.
    #[must_use]
    pub const fn idle_limit(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// A statement that waits for a lock longer than this fails. On PostgreSQL nothing else of the transaction can be committed then; on MySQL
    /// and MariaDB, which round it up to whole seconds, the statement alone is undone. On SQLite nothing waits inside a transaction.
    #[must_use]
    pub const fn lock_limit(mut self, limit: Duration) -> Self {
        self.lock = Some(limit);
        self
    }

    /// A statement that takes longer than this fails. On MySQL that goes for SELECT only; SQLite has no such limit. The commit is not
    /// cut short by it.
    #[must_use]
    pub const fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement = Some(limit);
        self
    }
}

const LEFT_HALF_WAY: &str = "a savepoint was left half-way";
const IDLE_LIMIT: Duration = Duration::from_secs(5);
/// A renewal between the snapshot and the lock of a guard at a strict isolation level is no loss: begin again.
const BEGIN_TRIES: usize = 10;

/// A transaction that commits only while its job holds the lease, and proves it to the database at both ends.
///
/// * Opening it locks the lease row against a takeover until it ends, and not against renewals.
/// * [`terminal`](Self::terminal) runs a write that must change a row; [`executor`](Self::executor) runs everything else.
/// * [`commit`](Self::commit) has three outcomes: committed, rolled back ([`ErrorKind::Lost`], [`ErrorKind::RolledBack`]) and
///   [unknown](ErrorKind::Unknown).
/// * Dropped, nothing of it is written, and a job that then returns `Ok` is told that it is
///   [`Uncommitted`](crate::RunError::Uncommitted).
///
/// It cannot be made, cloned, kept past its run or turned into a connection. [`FenceCtx::transaction`](crate::FenceCtx::transaction) is
/// the form to prefer: it cannot forget the commit.
#[must_use = "a fenced transaction that is dropped writes nothing: `commit` it"]
pub struct FencedTx<'c, DB: Backend, L = Untyped> {
    open: Open<DB>,
    fenced_by: PhantomData<FencedBy<'c, L>>,
}

type FencedBy<'c, L> = (&'c (), fn() -> L);

impl<'c, DB: Backend, L> FencedTx<'c, DB, L> {
    pub(crate) fn new(open: Open<DB>) -> Self {
        Self { open, fenced_by: PhantomData }
    }

    /// The fencing token of this term: bind it into the row that is written and into its condition.
    #[must_use]
    pub fn fence_token(&self) -> FenceToken {
        self.open.term().id.token
    }

    /// Who holds the lease: us, in this very run.
    #[must_use]
    pub fn owner_token(&self) -> OwnerToken {
        self.open.term().id.owner
    }

    /// The lease by which this transaction is fenced.
    #[must_use]
    pub fn lease_name(&self) -> &LeaseName {
        &self.open.term().id.name
    }

    /// An executor for `sqlx::query(…)` and everything like it, on this transaction.
    ///
    /// A terminal write belongs into [`terminal`](Self::terminal), where zero rows changed is an error.
    pub fn executor(&mut self) -> impl Executor<'_, Database = DB> {
        DB::Protocol::executor(self.open.conn())
    }

    /// The connection itself, for repository functions that insist on `&mut PgConnection` or `&mut SqliteConnection`.
    ///
    /// Whatever they do to the transaction (a raw COMMIT or ROLLBACK, a nested `begin()` whose future is dropped half-way), the database
    /// refuses what follows and [`commit`](Self::commit) says so. A nested transaction is a savepoint: dropped without its own commit, it undoes
    /// its own part, as everywhere in sqlx, and the rest can be committed.
    pub fn connection(&mut self) -> &mut DB::Connection {
        self.open.conn()
    }

    /// A write that another owner must never overwrite or repeat: a completion, a publication, a deletion, a success mark.
    ///
    /// Await it for the proof ([`Written`](crate::Written)). When no row changed, that is [`ErrorKind::Unwritten`], and the transaction can
    /// only be rolled back; [`Terminal::rows`] says that another number is right.
    ///
    /// # Errors
    /// [`ErrorKind::Unwritten`], [`ErrorKind::NotAWrite`] for a statement that is none, [`ErrorKind::Database`]. After each of them the
    /// transaction can only be rolled back. Dropped half-way: likewise.
    pub fn terminal<'q>(&mut self, query: impl Execute<'q, DB>) -> Terminal<'_, DB> {
        Terminal::new(&mut self.open, query)
    }

    /// A part of the transaction that is undone alone when it fails.
    ///
    /// # Errors
    /// What `part` returned, after undoing its writes (a [`Written`](crate::Written) that it had got is a proof no more); or the database
    /// refused the savepoint. Dropped half-way, the whole transaction can only be rolled back.
    pub async fn savepoint<T, E: From<Error>>(
        &mut self,
        // Not `&mut Self`: a closure for one lifetime only would not be `Send` in the eyes of the compiler.
        part: impl AsyncFnOnce(&mut FencedTx<'_, DB, L>) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = self.open.poison.replace(LEFT_HALF_WAY);
        self.open.parts += 1;
        let depth = self.open.parts;
        self.open.statement(format!("SAVEPOINT fence_part_{depth}")).await?;
        let result = part(self).await;
        // One inside that was left half-way is still counted.
        let is_sound = self.open.parts == depth && self.open.poison == Some(LEFT_HALF_WAY);
        if result.is_err() {
            self.open.statement(format!("ROLLBACK TO SAVEPOINT fence_part_{depth}")).await?;
        }
        self.open.statement(format!("RELEASE SAVEPOINT fence_part_{depth}")).await?;
        self.open.parts = depth - 1;
        if is_sound || result.is_err() {
            self.open.poison = before;
        }
        result
    }

    /// Commits, if the transaction is still the one that was opened and the lease is still ours.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] and [`ErrorKind::RolledBack`]: certainly nothing was written. [`ErrorKind::Unknown`]: the connection failed
    /// around COMMIT, and nobody can say.
    ///
    /// # Cancel safety
    /// Dropped before its first poll, the transaction is rolled back. Dropped later, the commit goes on in the background;
    /// [`Fence::run`](crate::Fence::run) waits for its outcome.
    pub async fn commit(self) -> Result<(), Error> {
        let runtime = self.open.session.runtime();
        Carried::new(runtime, self.open.finish()).await
    }

    /// Rolls back, and gives the connection back to the pool.
    ///
    /// # Cancel safety
    /// Once polled it goes on in the background when dropped.
    pub async fn rollback(self) {
        self.open.roll_back().await;
    }
}

impl<DB: Backend, L> std::fmt::Debug for FencedTx<'_, DB, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FencedTx")
            .field("lease", self.lease_name())
            .field("fence_token", &self.fence_token())
            .finish_non_exhaustive()
    }
}

/// The part of a fenced transaction that can outlive its borrow of the context, in the background.
pub(crate) struct Open<DB: Backend> {
    session: Session<DB>,
    shared: Arc<Shared<DB>>,
    trace: Option<Trace>,
    /// How many savepoints are open, one inside the other.
    parts: u32,
    /// Why this transaction can only be rolled back.
    pub(crate) poison: Option<&'static str>,
}

impl<DB: Backend> Open<DB> {
    pub(crate) async fn begin(shared: &Arc<Shared<DB>>, holding: &Holding, options: TxOptions) -> Result<Self, Error> {
        let id = &holding.id;
        // Not asked of the database, where it has not expired yet.
        if let Some(loss @ Loss::Overrun(_)) = holding.loss() {
            let error = loss.error(id, "; nothing of this transaction was written");
            holding.refused(loss);
            return Err(error);
        }
        let opening = Opening {
            isolation: options.isolation,
            idle: options.idle.unwrap_or(holding.terms.ttl.max(IDLE_LIMIT)),
            lock: options.lock,
            statement: options.statement,
            ttl: holding.terms.ttl,
            resolve: shared.resolve,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let opened = on_clean_connection(&shared.pool, |lent| {
                open_on(lent, shared.clone(), OpenTx::beginning(holding.clone()), opening)
            })
            .await;
            let failed = |error| {
                Err(Error::database("a fenced transaction could not be opened", error).of(&id.name, Some(id.token)))
            };
            match opened {
                Ok(Ok(mut open)) => {
                    open.session.books().handed_over();
                    return Ok(open);
                }
                Ok(Err(Some(loss))) => {
                    let error = loss.error(id, "; nothing of this transaction was written");
                    holding.refused(loss);
                    return Err(error);
                }
                // The row says that the lease is ours and alive, so the guard met something that has passed.
                Ok(Err(None)) if tries < BEGIN_TRIES => {}
                Ok(Err(None)) => return failed(sqlx::Error::BeginFailed),
                Err(NotOpened::Failed(error)) if tries < BEGIN_TRIES && is_renewal_in_between::<DB>(&error) => {}
                Err(NotOpened::Failed(error)) => return failed(error),
                Err(NotOpened::Stray | NotOpened::Refused) => {
                    return Err(Error::new(
                        ErrorKind::Database,
                        "the pool hands out connections that are inside a transaction of somebody else: \
                         look for a `begin()` whose future was dropped",
                    )
                    .of(&id.name, Some(id.token)));
                }
            }
        }
    }

    pub(crate) fn term(&self) -> &Term {
        self.session.term()
    }

    pub(crate) fn conn(&mut self) -> &mut DB::Connection {
        self.session.books().if_dropped(LastTx::Abandoned("it was dropped without a commit or a rollback"));
        self.session.conn()
    }

    async fn statement(&mut self, sql: String) -> Result<(), Error> {
        let done = DB::Protocol::executor(self.session.conn()).execute(AssertSqlSafe(sql.clone())).await;
        done.map(drop).map_err(|error| {
            let id = &self.term().id;
            Error::database(format!("`{sql}` failed"), error).of(&id.name, Some(id.token))
        })
    }

    async fn finish(mut self) -> Result<(), Error> {
        let id = self.term().id.clone();
        let fail = |kind, message: String| Error::new(kind, message).of(&id.name, Some(id.token));
        if let Some(why) = self.poison {
            self.session.books().ended(LastTx::Abandoned(why));
            self.session.roll_back().await;
            return Err(fail(ErrorKind::RolledBack, format!("not committed, because {why}: it was rolled back")));
        }
        let books = self.session.books();
        books.ending();
        books.if_dropped(LastTx::Unknown(
            "whether the last transaction was committed is unknown: the runtime was shut down around COMMIT".into(),
        ));
        let (sent, ttl, mark, shared) =
            (Instant::now(), self.term().terms.ttl, self.session.mark.clone(), self.shared.clone());
        let (ending, fit) =
            session::answered(DB::Protocol::finish(self.session.conn(), &shared.tables, &mark, &id, ttl))
                .await
                .unwrap_or_else(|| {
                    (Ending::Unheard("the database did not answer COMMIT in time", Some(no_answer())), Fit::Close)
                });
        let mut books = self.session.close(fit);
        let ending = match (ending, &self.trace) {
            (Ending::Unheard(why, source), Some(trace)) => resolved(&shared, &id, trace, why, source).await,
            (ending, _) => ending,
        };
        match ending {
            Ending::Committed(renewed) => {
                if let Some(remaining) = renewed {
                    books.term().renewed(sent, remaining);
                }
                books.ended(LastTx::Committed);
                Ok(())
            }
            Ending::RolledBack(RolledBack::Lost) => {
                books.term().lose(Loss::Expired);
                books.ended(LastTx::Abandoned("its lease was lost"));
                Err(fail(ErrorKind::Lost, "lost before COMMIT; nothing was written".into()))
            }
            Ending::RolledBack(RolledBack::Because(why, source)) => {
                books.ended(LastTx::Abandoned(why));
                Err(with(
                    fail(ErrorKind::RolledBack, format!("not committed, because {why}; nothing was written")),
                    source,
                ))
            }
            Ending::Unheard(why, source) | Ending::Unknown(why, source) => {
                let message = format!(
                    "whether the transaction was committed is unknown: {why}; read its rows before you repeat it"
                );
                let said = source.as_ref().map_or_else(|| message.clone(), |source| format!("{message}: {source}"));
                books.ended(LastTx::Unknown(said));
                Err(with(fail(ErrorKind::Unknown, message), source))
            }
        }
    }

    async fn roll_back(mut self) {
        match self.poison {
            // A terminal write that came to nothing is no success, whatever the job makes of its error.
            Some(why) => self.session.books().ended(LastTx::Abandoned(why)),
            None => self.session.books().rolled_back(),
        }
        self.session.roll_back().await;
    }
}

/// What the database says afterwards of a COMMIT whose answer was not heard.
async fn resolved<DB: Backend>(
    shared: &Shared<DB>,
    id: &Identity,
    trace: &Trace,
    why: &'static str,
    source: Option<sqlx::Error>,
) -> Ending {
    match resolve(shared, id, trace).await {
        Verdict::Committed => Ending::Committed(None),
        Verdict::RolledBack => Ending::RolledBack(RolledBack::Because(why, source)),
        Verdict::Open => Ending::Unknown(STILL_OPEN, source),
        Verdict::Unknown(why) => Ending::Unknown(why, source),
    }
}

fn with(error: Error, source: Option<sqlx::Error>) -> Error {
    match source {
        Some(source) => error.because(source),
        None => error,
    }
}

fn is_renewal_in_between<DB: Backend>(error: &sqlx::Error) -> bool {
    DB::Protocol::is_contention(error) && !DB::Protocol::GUARD_RENEWS
}

type Opened<DB> = Result<Open<DB>, Option<Loss>>;

/// Never dropped half-way. `Ok(Err(…))`: the guard refused, and what the row says about it.
async fn open_on<DB: Backend>(
    mut lent: Lent<DB>,
    shared: Arc<Shared<DB>>,
    mut books: OpenTx,
    opening: Opening,
) -> Result<Opened<DB>, NotOpened> {
    let (mark, id) = (DB::Protocol::mark(), books.term().id.clone());
    let opened = session::answered(DB::Protocol::open(&mut lent, &shared.tables, &mark, &id, opening));
    match opened.await {
        Some(Ok(trace)) => {
            books.opened(DB::Protocol::GUARD_RENEWS);
            Ok(Ok(Open { session: Session::new(lent, mark, books), shared, trace, parts: 0, poison: None }))
        }
        Some(Err(NotOpened::Stray)) => Err(NotOpened::Stray),
        Some(Err(why)) => {
            let fit = session::undo(&mut lent, &mark).await;
            let NotOpened::Refused = why else {
                lent.end(fit);
                return Err(why);
            };
            let rows = match fit {
                Fit::Reuse => {
                    timeout(ANSWER_LIMIT, DB::Protocol::rows_of(&mut lent, &shared.tables, Some(&id.name))).await
                }
                Fit::Close => return Ok(Err(Some(Loss::Expired))),
            };
            match rows {
                Ok(Ok(rows)) => {
                    lent.end(Fit::Reuse);
                    Ok(Err(Loss::read(&id, rows.first())))
                }
                Ok(Err(error)) => Err(NotOpened::Failed(error)),
                Err(_) => Err(NotOpened::Failed(no_answer())),
            }
        }
        None => Err(NotOpened::Failed(no_answer())),
    }
}
