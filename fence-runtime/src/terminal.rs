//! A terminal write and its proof.

use std::{
    fmt,
    future::{Future, IntoFuture},
    ops::{Bound, RangeBounds},
    pin::Pin,
};

use sqlx::{Database, Execute, Executor, SqlStr, error::BoxDynError};

use crate::{
    Backend,
    backend::Protocol,
    error::{Error, ErrorKind},
    statement::why_not_a_write,
    tx::Open,
};

/// The proof that a terminal write changed as many rows as it had to: by default at least one.
///
/// Only [`FencedTx::terminal`](crate::FencedTx::terminal) makes one, so a function that returns it has made its write on a fenced transaction.
/// It is written for good once the transaction is committed.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    rows: u64,
}

impl Written {
    /// How many rows changed.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// A terminal write about to be made: `await` it. See [`FencedTx::terminal`](crate::FencedTx::terminal).
#[must_use = "a terminal write does nothing until it is awaited"]
pub struct Terminal<'t, DB: Backend> {
    open: &'t mut Open<DB>,
    before: Option<&'static str>,
    statement: Result<Statement<DB>, Error>,
    rows: (Bound<u64>, Bound<u64>),
}

struct Statement<DB: Database> {
    /// For errors.
    begins: String,
    sql: SqlStr,
    arguments: Option<DB::Arguments>,
    persistent: bool,
}

/// Run as it was given: bound or unbound, cached or not.
impl<DB: Database> Execute<'_, DB> for Statement<DB> {
    fn sql(self) -> SqlStr {
        self.sql
    }

    fn statement(&self) -> Option<&DB::Statement> {
        None
    }

    fn take_arguments(&mut self) -> Result<Option<DB::Arguments>, BoxDynError> {
        Ok(self.arguments.take())
    }

    fn persistent(&self) -> bool {
        self.persistent
    }
}

impl<'t, DB: Backend> Terminal<'t, DB> {
    pub(crate) fn new<'q>(open: &'t mut Open<DB>, mut query: impl Execute<'q, DB>) -> Self {
        let id = &open.term().id;
        let statement = match query.take_arguments() {
            Ok(arguments) => {
                let (persistent, sql) = (query.persistent(), query.sql());
                match why_not_a_write(sql.as_str(), DB::Protocol::DIALECT) {
                    None => Ok(Statement { begins: beginning(sql.as_str()), sql, arguments, persistent }),
                    Some(why) => Err(Error::new(ErrorKind::NotAWrite, why).of(&id.name, Some(id.token))),
                }
            }
            Err(error) => {
                let error = sqlx::Error::Encode(error);
                Err(Error::database("an argument could not be encoded", error).of(&id.name, Some(id.token)))
            }
        };
        // Poisoned until it is known to be good: one that failed, was dropped half-way or never awaited must not be committed over.
        let before = open.poison.replace("a terminal write did not succeed, or was not awaited");
        Self { open, before, statement, rows: (Bound::Included(1), Bound::Unbounded) }
    }

    /// How many changed rows are right: `.rows(0..)` where there may be nothing to delete, `.rows(1..=1)` for exactly one.
    pub fn rows(mut self, rows: impl RangeBounds<u64>) -> Self {
        self.rows = (rows.start_bound().cloned(), rows.end_bound().cloned());
        self
    }

    async fn write(self) -> Result<Written, Error> {
        let mut statement = self.statement?;
        let begins = std::mem::take(&mut statement.begins);
        let done = DB::Protocol::executor(self.open.conn()).execute(statement).await;
        let id = &self.open.term().id;
        let rows = match done {
            Ok(result) => DB::Protocol::rows(&result),
            Err(error) => {
                let message = format!("the terminal write `{begins}` failed; this transaction can only be rolled back");
                return Err(Error::database(message, error).of(&id.name, Some(id.token)));
            }
        };
        if !self.rows.contains(&rows) {
            let message = match rows {
                0 => format!(
                    "the terminal write `{begins}` changed no row: the row is not there, or it bears the token of another \
                     owner; this transaction can only be rolled back"
                ),
                rows => format!(
                    "the terminal write `{begins}` changed {rows} rows, which is not as many as it was to change; \
                     this transaction can only be rolled back"
                ),
            };
            return Err(Error::new(ErrorKind::Unwritten, message).of(&id.name, Some(id.token)));
        }
        // What went wrong before stays wrong.
        self.open.poison = self.before;
        Ok(Written { rows })
    }
}

/// Enough of a statement to know it by.
fn beginning(sql: &str) -> String {
    const MOST: usize = 60;
    let plain = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match plain.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain,
    }
}

impl<'t, DB: Backend> IntoFuture for Terminal<'t, DB> {
    type Output = Result<Written, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 't>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.write())
    }
}

impl<DB: Backend> fmt::Debug for Terminal<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal").field("rows", &self.rows).finish_non_exhaustive()
    }
}
