//! One error type with a kind; it says what happened and what to do, and names the lease and the token.

use std::{error::Error as StdError, fmt};

use crate::lease::{FenceToken, LeaseName};

/// What went wrong, for a program. The text of the [`Error`] is for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, a duration or another option breaks a rule. Nothing was sent to a database.
    Config,
    /// The lease table or the server is not as it must be. The text has the statement that mends it.
    Schema,
    /// The lease table gave out a fencing token that is not higher than one before: it was restored or emptied. Nothing was run.
    TokenSetBack,
    /// The lease is no longer ours: superseded, expired, revoked, or its row is gone. Nothing was written after that.
    Lost,
    /// A terminal write changed no row; its transaction can only be rolled back.
    Unwritten,
    /// The statement given to a terminal write is no INSERT, UPDATE, DELETE, MERGE or REPLACE.
    NotAWrite,
    /// The transaction was rolled back, or can only be: a statement failed, or the server had ended it.
    RolledBack,
    /// The connection failed around COMMIT: the transaction may or may not have been committed.
    Unknown,
    /// The database refused a statement, or could not be reached.
    Database,
}

/// What `fence` reports: a [kind](ErrorKind), the lease and its fencing token where there is one, and the cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    lease: Option<(LeaseName, Option<FenceToken>)>,
    superseded_by: Option<i64>,
    message: String,
    source: Option<sqlx::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, lease: None, superseded_by: None, message: message.into(), source: None }))
    }

    pub(crate) fn database(doing: impl Into<String>, source: sqlx::Error) -> Self {
        Self::new(ErrorKind::Database, doing).because(source)
    }

    pub(crate) fn because(mut self, source: sqlx::Error) -> Self {
        self.0.source = Some(source);
        self
    }

    pub(crate) fn superseded(mut self, by: i64) -> Self {
        self.0.superseded_by = Some(by);
        self
    }

    pub(crate) fn of(mut self, lease: &LeaseName, token: Option<FenceToken>) -> Self {
        self.0.lease = Some((lease.clone(), token));
        self
    }

    /// What went wrong, for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lease that the error is about.
    #[must_use]
    pub fn lease(&self) -> Option<&LeaseName> {
        self.0.lease.as_ref().map(|(name, _)| name)
    }

    /// The fencing token that we held or tried to use.
    #[must_use]
    pub fn fence_token(&self) -> Option<FenceToken> {
        self.0.lease.as_ref().and_then(|(_, token)| *token)
    }

    /// The fencing token that the database found in our place, when a takeover or a revocation ended our term.
    #[must_use]
    pub fn superseded_by(&self) -> Option<i64> {
        self.0.superseded_by
    }

    /// The lease is no longer ours; nothing was written after that.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// A commit may or may not have happened.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.kind() == ErrorKind::Unknown
    }

    /// The error of the database, where one caused this.
    #[must_use]
    pub fn as_sqlx(&self) -> Option<&sqlx::Error> {
        self.0.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.lease {
            Some((name, Some(token))) => write!(f, "lease {:?}, fencing token {token}: ", name.as_str())?,
            Some((name, None)) => write!(f, "lease {:?}: ", name.as_str())?,
            None => {}
        }
        f.write_str(&self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.kind())
    }
}

// The cause is part of the text, so it is not told again as a source; `as_sqlx` has it.
impl StdError for Error {}

/// So that a terminal write may use `?` on its own queries. An [`Error`] that travelled as a [`sqlx::Error`] comes back as it was.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(io) if io.get_ref().is_some_and(|inner| inner.is::<Error>()) => {
                match io.into_inner().map(|inner| inner.downcast::<Error>()) {
                    Some(Ok(own)) => *own,
                    // Unreachable: the guard above has looked; a plain answer is better than a panic.
                    _ => Self::new(ErrorKind::Database, "the cause of an error was lost"),
                }
            }
            other => Self::database("a statement failed", other),
        }
    }
}

/// So that a job may return [`sqlx::Result`]. The way back ([`From<sqlx::Error>`](Error)) restores the [`Error`].
impl From<Error> for sqlx::Error {
    fn from(error: Error) -> Self {
        sqlx::Error::Io(std::io::Error::other(error))
    }
}
