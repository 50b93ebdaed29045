//! A transaction that the server keeps read-only.

use std::{marker::PhantomData, sync::Arc};

use sqlx::Executor;
use tokio::time::timeout;

use crate::{
    Backend,
    backend::{Fit, NotOpened, Protocol, RolledBack},
    carried::Carried,
    error::{Error, ErrorKind},
    fence::Shared,
    lent::Lent,
    session::{self, ANSWER_LIMIT, Session, no_answer, on_clean_connection},
    term::{Holding, OpenTx},
};

/// Reads for a job: every statement sees what was committed before the first, and the server refuses every write.
///
/// Reading is not fenced: what was read may be outdated once the lease is lost, which the next fenced transaction finds out.
/// Dropped, it gives its connection back in the background, or closes it.
#[must_use = "open a read to read from it"]
pub struct ReadTx<'c, DB: Backend> {
    session: Session<DB>,
    context: PhantomData<&'c ()>,
}

impl<DB: Backend> ReadTx<'_, DB> {
    pub(crate) async fn begin(shared: &Arc<Shared<DB>>, holding: &Holding) -> Result<Self, Error> {
        let opened = on_clean_connection(&shared.pool, |lent| open_on(lent, OpenTx::beginning(holding.clone()))).await;
        match opened {
            Ok(mut session) => {
                session.books().handed_over();
                Ok(Self { session, context: PhantomData })
            }
            Err(NotOpened::Failed(error)) => Err(Error::database("a read could not be opened", error)),
            Err(NotOpened::Stray | NotOpened::Refused) => Err(Error::new(
                ErrorKind::Database,
                "the pool hands out connections that are inside a transaction of somebody else",
            )),
        }
    }

    /// An executor for `sqlx::query(…)` and everything like it, on this read.
    pub fn executor(&mut self) -> impl Executor<'_, Database = DB> {
        DB::Protocol::executor(self.session.conn())
    }

    /// Ends the read and gives the connection back.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] when something had ended the transaction before: what was read after that is not of one moment.
    ///
    /// # Cancel safety
    /// Once polled it goes on in the background when dropped.
    pub async fn close(self) -> Result<(), Error> {
        let mut session = self.session;
        let runtime = session.runtime();
        Carried::new(runtime, async move {
            session.books().ending();
            let (id, mark) = (session.term().id.clone(), session.mark.clone());
            let (result, fit) =
                session::answered(DB::Protocol::finish_read(session.conn(), &mark)).await.unwrap_or_else(|| {
                    (Err(RolledBack::Because("the database did not answer", Some(no_answer()))), Fit::Close)
                });
            session.end(fit);
            result.map_err(|why| {
                let (why, source) = match why {
                    RolledBack::Because(why, source) => (why, source),
                    RolledBack::Lost => ("the lease was lost", None),
                };
                let error = Error::new(ErrorKind::RolledBack, format!("a read did not end as it began: {why}"))
                    .of(&id.name, Some(id.token));
                match source {
                    Some(source) => error.because(source),
                    None => error,
                }
            })
        })
        .await
    }
}

impl<DB: Backend> std::fmt::Debug for ReadTx<'_, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadTx").finish_non_exhaustive()
    }
}

/// Never dropped half-way.
async fn open_on<DB: Backend>(mut lent: Lent<DB>, mut books: OpenTx) -> Result<Session<DB>, NotOpened> {
    let mark = DB::Protocol::mark();
    let why = match timeout(ANSWER_LIMIT, DB::Protocol::open_read(&mut lent, &mark)).await {
        Ok(Ok(())) => {
            books.opened(false);
            return Ok(Session::new(lent, mark, books));
        }
        Ok(Err(NotOpened::Stray)) => return Err(NotOpened::Stray),
        Ok(Err(why)) => why,
        Err(_) => return Err(NotOpened::Failed(no_answer())),
    };
    let fit = session::undo(&mut lent, &mark).await;
    lent.end(fit);
    Err(why)
}
