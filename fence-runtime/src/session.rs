//! A connection with a transaction of ours on it, fenced or read-only: what both do when they are left alone.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use sqlx::Pool;
use tokio::time::timeout;

use crate::{
    Backend,
    backend::{Fit, MarkOf, NotOpened, Protocol},
    carried::Carried,
    lent::Lent,
    term::{OpenTx, Term},
};

/// sqlx has no read timeout: whoever waits longer than this for an answer of the database gives the connection up.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Connections that may turn out to be inside somebody else's transaction before we give up.
const STRAYS: usize = 8;

/// Dropped, it is rolled back in the background or closed, as the database has it, before the connection serves anybody.
pub(crate) struct Session<DB: Backend> {
    /// `None` only while the value is being consumed.
    lent: Option<Lent<DB>>,
    pub(crate) mark: MarkOf<DB>,
    /// `None` only while the value is being consumed.
    books: Option<OpenTx>,
}

impl<DB: Backend> Session<DB> {
    pub(crate) fn new(lent: Lent<DB>, mark: MarkOf<DB>, books: OpenTx) -> Self {
        Self { lent: Some(lent), mark, books: Some(books) }
    }

    pub(crate) fn conn(&mut self) -> &mut Lent<DB> {
        self.lent.as_mut().expect("a session is whole until it is consumed")
    }

    pub(crate) fn books(&mut self) -> &mut OpenTx {
        self.books.as_mut().expect("a session is whole until it is consumed")
    }

    pub(crate) fn term(&self) -> &Term {
        self.books.as_ref().expect("a session is whole until it is consumed").term()
    }

    pub(crate) fn runtime(&self) -> tokio::runtime::Handle {
        self.lent.as_ref().expect("a session is whole until it is consumed").runtime().clone()
    }

    /// The transaction has ended.
    pub(crate) fn end(self, fit: Fit) {
        drop(self.close(fit));
    }

    /// The connection is not needed any more; what became of the transaction is still to be written down.
    pub(crate) fn close(mut self, fit: Fit) -> OpenTx {
        if let Some(lent) = self.lent.take() {
            lent.end(fit);
        }
        self.books.take().expect("a session is whole until it is consumed")
    }

    /// Rolls back and gives the connection back; carried on in the background when dropped.
    pub(crate) async fn roll_back(mut self) {
        self.books().ending();
        let runtime = self.runtime();
        Carried::new(runtime, async move {
            let mark = self.mark.clone();
            let fit = undo::<DB>(self.conn(), &mark).await;
            self.end(fit);
        })
        .await;
    }
}

impl<DB: Backend> Drop for Session<DB> {
    fn drop(&mut self) {
        let Some(mut lent) = self.lent.take() else { return };
        if !DB::Protocol::start_undo(&mut lent) {
            return; // dropping `lent` closes the connection, here and now
        }
        let (mark, mut books, runtime) = (self.mark.clone(), self.books.take(), lent.runtime().clone());
        if let Some(books) = &mut books {
            // Now, and not when the background is done with it: another transaction may have been committed by then.
            books.dropped();
            books.ending();
        }
        runtime.spawn(async move {
            let fit = undo::<DB>(&mut lent, &mark).await;
            lent.end(fit);
            drop(books);
        });
    }
}

pub(crate) async fn undo<DB: Backend>(conn: &mut Lent<DB>, mark: &MarkOf<DB>) -> Fit {
    answered(DB::Protocol::undo(conn, mark)).await.unwrap_or(Fit::Close)
}

/// What the database answers, if it does in time. Not a panic of the driver: sqlx panics in MySQL's when it reads the answer to another
/// statement, one that somebody had dropped while it was prepared.
pub(crate) async fn answered<T>(question: impl Future<Output = T>) -> Option<T> {
    let answer = AssertUnwindSafe(timeout(ANSWER_LIMIT, question)).catch_unwind();
    // The connection is not used after that: whoever gets nothing here closes it.
    answer.await.ok()?.ok()
}

/// A connection of the pool, after `attempt` has opened something on it: one that was handed out inside a stray transaction is closed,
/// and another one is tried.
pub(crate) async fn on_clean_connection<DB, T, W>(
    pool: &Pool<DB>,
    attempt: impl Fn(Lent<DB>) -> W,
) -> Result<T, NotOpened>
where
    DB: Backend,
    T: Send + 'static,
    W: Future<Output = Result<T, NotOpened>> + Send + 'static,
{
    for _ in 0..STRAYS {
        let lent = Lent::new(pool.acquire().await.map_err(NotOpened::Failed)?);
        let runtime = lent.runtime().clone();
        match Carried::new(runtime, attempt(lent)).await {
            Err(NotOpened::Stray) => {}
            other => return other,
        }
    }
    Err(NotOpened::Stray)
}

/// What to say when an answer did not come in time.
pub(crate) fn no_answer() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("the database did not answer within {ANSWER_LIMIT:?}"),
    ))
}
