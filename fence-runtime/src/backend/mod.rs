//! What a database must be able to do, and the words in which it answers. All SQL is in the modules below this one.

// Each database reads its own part of these words.
#![cfg_attr(not(all(feature = "mysql", feature = "postgres", feature = "sqlite")), allow(dead_code))]

use std::{future::Future, time::Duration};

use sqlx::{Database, Executor, IntoArguments, Pool, encode::IsNull, error::BoxDynError};

use crate::{
    error::{Error, ErrorKind},
    lease::{FenceToken, LeaseName, OwnerToken},
    resolve::Resolve,
    statement::Dialect,
};

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod drift;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// A database that `fence` knows: [`sqlx::Postgres`], [`sqlx::MySql`] (which is MariaDB too) and [`sqlx::Sqlite`], each behind the feature of
/// its name.
///
/// The trait is sealed: the guarantee rests on measured behaviour of each server, so a database is added here, with the conformance
/// suite, or not at all.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a database that `fence` knows",
    note = "`sqlx::Postgres`, `sqlx::MySql` and `sqlx::Sqlite` are, each with the feature of its name: `postgres`, `mysql` or `sqlite` of \
            `fence-runtime`"
)]
pub trait Backend: Database<Arguments: IntoArguments<Self>> {
    /// How it is done. An associated type, so that none of its functions gets in the way of a user's own trait over databases.
    #[doc(hidden)]
    type Protocol: Protocol<Db = Self>;
}

/// How far a fenced transaction is isolated from others. The fence holds at every level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Every statement sees what was committed before it.
    #[default]
    ReadCommitted,
    /// Every statement sees what was committed before the first.
    RepeatableRead,
    /// As if transactions ran one after the other.
    Serializable,
}

/// Where the tables are: what stands for `/*prefix*/` in the migrations.
#[derive(Clone, Debug)]
pub struct Tables {
    prefix: String,
    /// The server can look, in the middle of a statement, whether its client is still there.
    pub(crate) probes_clients: bool,
}

impl Tables {
    pub(crate) fn new(quote: char, schema: Option<&str>, table_prefix: &str) -> Result<Self, Error> {
        let plain = |word: &str| {
            word.len() <= 32
                && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
                && !word.starts_with(|c: char| c.is_ascii_digit())
        };
        if !plain(table_prefix) {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "table prefix {table_prefix:?} must be of a–z, 0–9 and _, not begin with a digit, and have at most 32 \
                     characters"
                ),
            ));
        }
        // Always quoted, so it may be what no unquoted name may; but not what ends a quote, a name or the body of a function.
        let quotable = |s: &str| {
            (1..=63).contains(&s.len()) && s.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-' || c == ' ')
        };
        if let Some(schema) = schema.filter(|schema| !quotable(schema)) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("schema {schema:?} must be of letters, digits, `_`, `-` and spaces, and have at most 63 bytes"),
            ));
        }
        let prefix = schema.map(|s| format!("{quote}{s}{quote}.")).unwrap_or_default() + table_prefix;
        Ok(Self { prefix, probes_clients: false })
    }

    /// One of our tables or functions, ready for a statement.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn leases(&self) -> String {
        self.name("fenced_job_leases")
    }

    pub(crate) fn receipts(&self) -> String {
        self.name("fenced_job_receipts")
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The lease table's schema and name as two strings in quotes, for a server's catalogue.
    #[cfg(feature = "mysql")]
    fn quoted_parts(&self) -> (String, String) {
        let leases = self.leases();
        let (schema, name) = leases.split_once("`.").unwrap_or(("", &leases));
        (format!("'{}'", schema.trim_start_matches('`')), format!("'{name}'"))
    }
}

/// One term of a lease, as the database knows it.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) name: LeaseName,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FenceToken,
}

/// A term of which the token need not be known: an owner token is given out once.
#[derive(Clone, Debug)]
pub struct Claim {
    pub(crate) name: LeaseName,
    pub(crate) owner: OwnerToken,
}

/// A row of the lease table; `remaining` is measured by the database's clock and negative once the lease has expired.
#[derive(Clone, Debug)]
pub struct LeaseRow {
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) token: i64,
    pub(crate) holder: String,
    pub(crate) remaining_us: i64,
    pub(crate) acquired_at_us: i64,
    pub(crate) renewed_at_us: i64,
    pub(crate) progress: Option<String>,
}

impl LeaseRow {
    pub(crate) fn remaining(&self) -> Duration {
        Duration::from_micros(self.remaining_us.try_into().unwrap_or(0))
    }

    pub(crate) fn is_of(&self, id: &Identity) -> bool {
        self.owner == id.owner.to_string() && self.token == id.token.get()
    }
}

/// What a renewal found for one lease.
#[derive(Debug)]
pub enum Renewal {
    /// The lease was extended; it lives this long from the moment of the answer.
    Renewed(Duration),
    /// The row was locked by somebody, or the answer is missing: ask again. Not a loss.
    Skipped,
    /// The row as it is: not ours, or expired, or gone.
    Gone(Option<LeaseRow>),
}

/// How a fenced transaction shall be opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub(crate) isolation: Isolation,
    /// The server ends the transaction when no statement comes for this long (where it can).
    pub(crate) idle: Duration,
    /// The server ends a statement that waits for a lock, or takes, this long (where it can).
    pub(crate) lock: Option<Duration>,
    pub(crate) statement: Option<Duration>,
    /// The lease's time to live, where the guard renews.
    pub(crate) ttl: Duration,
    /// What the transaction leaves behind, by which its outcome can be looked up.
    pub(crate) resolve: Option<Resolve>,
}

/// By which the outcome of a transaction can be looked up when the answer to its COMMIT was lost.
#[derive(Clone, Debug)]
pub enum Trace {
    /// A row of this name, which the transaction has written.
    Receipt(String),
    /// The number of the transaction, and of the server's history that it belongs to.
    Number(String, String),
}

/// What became of it.
#[derive(Debug)]
pub enum Verdict {
    Committed,
    RolledBack,
    /// It has not ended yet: ask again.
    Open,
    /// The database cannot say any more.
    Unknown(&'static str),
}

/// Why a fenced transaction was not opened.
#[derive(Debug)]
pub enum NotOpened {
    /// The guard found no live lease of ours.
    Refused,
    /// The connection was handed out inside somebody else's transaction: close it and take another.
    Stray,
    /// Anything else.
    Failed(sqlx::Error),
}

/// How a transaction ended.
#[derive(Debug)]
pub enum Ending {
    /// The database has said that it is committed. Where the guard renews the lease, it lives this long from then.
    Committed(Option<Duration>),
    /// Certainly nothing of it was written.
    RolledBack(RolledBack),
    /// The answer to COMMIT was not heard.
    Unheard(&'static str, Option<sqlx::Error>),
    /// Nobody can say.
    Unknown(&'static str, Option<sqlx::Error>),
}

/// Why a transaction was rolled back at its end.
#[derive(Debug)]
pub enum RolledBack {
    /// The lease is no longer ours.
    Lost,
    /// The reason, and what the database said.
    Because(&'static str, Option<sqlx::Error>),
}

/// May a connection serve somebody else?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is clean, and was asked.
    Reuse,
    /// It is not known to be clean.
    Close,
}

/// The protocol on one database. Every function that speaks of leases is a short transaction of its own at READ COMMITTED.
///
/// None of the futures may be dropped half-way on a connection that goes back to a pool: callers carry them on in the background.
pub trait Protocol: Sized + Send + Sync + 'static {
    /// The driver.
    type Db: Database;
    /// The database in messages.
    const NAME: &'static str;
    /// How its statements are read.
    const DIALECT: Dialect;
    /// Around a schema's name.
    const QUOTE: char;
    /// The guard renews the lease, and nobody can take over (or renew) while the transaction is open.
    const GUARD_RENEWS: bool;
    /// The numbered migrations: version, name, text.
    const MIGRATIONS: &'static [(i64, &'static str, &'static str)];
    /// Statements that take and release a lock around the migrations, where sqlx's own does not do.
    fn migration_lock(_tables: &Tables) -> Option<(String, String)> {
        None
    }

    /// By which the end of a transaction recognises its beginning.
    type Mark: Clone + Send + Sync + Unpin + 'static;

    /// The connection as an executor, without a where clause at the caller.
    fn executor(conn: &mut Conn<Self>) -> impl Executor<'_, Database = Self::Db>;
    /// Rows that a statement changed.
    fn rows(result: &<Self::Db as Database>::QueryResult) -> u64;
    /// The type of a 64-bit integer.
    fn number_type() -> <Self::Db as Database>::TypeInfo;
    /// Does the database's type take one?
    fn is_number(ty: &<Self::Db as Database>::TypeInfo) -> bool;
    /// Binds one.
    fn encode_number(number: i64, buffer: &mut <Self::Db as Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError>;

    /// Refuses connect options with which a job would not work.
    fn check_options(_options: &Options<Self::Db>) -> Result<(), Error> {
        Ok(())
    }
    /// The connect options of the keeper.
    fn keeper_options(options: Options<Self::Db>) -> Options<Self::Db>;
    /// Fills in the schema where the database has one and none was named; refuses what cannot work.
    fn locate(
        conn: &mut Conn<Self>,
        schema: Option<&str>,
        prefix: &str,
    ) -> impl Future<Output = Result<Tables, Error>> + Send;
    /// Is everything there, and as it must be?
    fn verify(conn: &mut Conn<Self>, tables: &Tables) -> impl Future<Output = Result<(), Error>> + Send;
    /// Can outcomes be looked up in this way?
    fn verify_resolve(
        conn: &mut Conn<Self>,
        tables: &Tables,
        resolve: Resolve,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Is it only that others want the same? Then asking again on a fresh connection is right.
    fn is_contention(error: &sqlx::Error) -> bool;

    /// Creates the lease or takes an expired one over; the row as it is afterwards says whether it is ours.
    fn acquire(
        conn: &mut Conn<Self>,
        tables: &Tables,
        name: &LeaseName,
        owner: OwnerToken,
        ttl: Duration,
        holder: &str,
    ) -> impl Future<Output = Result<Option<LeaseRow>, sqlx::Error>> + Send;
    /// Extends many leases; answers in the order of the question.
    fn renew(
        conn: &mut Conn<Self>,
        tables: &Tables,
        terms: &[(Identity, Duration)],
    ) -> impl Future<Output = Result<Vec<Renewal>, sqlx::Error>> + Send;
    /// Ends many terms, those that are still ours; rows and tokens stay. Answers in the order of the question. False: the row was locked by
    /// somebody, ask again.
    fn release(
        conn: &mut Conn<Self>,
        tables: &Tables,
        claims: &[Claim],
    ) -> impl Future<Output = Result<Vec<bool>, sqlx::Error>> + Send;
    /// One row, or all of them in the order of their names.
    fn rows_of(
        conn: &mut Conn<Self>,
        tables: &Tables,
        name: Option<&LeaseName>,
    ) -> impl Future<Output = Result<Vec<LeaseRow>, sqlx::Error>> + Send;
    /// Notes how far the job is. False: the lease is not ours.
    fn progress(
        conn: &mut Conn<Self>,
        tables: &Tables,
        id: &Identity,
        text: &str,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
    /// First step of a revocation: the lease expires at once, so that no new guard passes.
    fn expire(
        conn: &mut Conn<Self>,
        tables: &Tables,
        name: &LeaseName,
    ) -> impl Future<Output = Result<Option<LeaseRow>, sqlx::Error>> + Send;
    /// Second step: raises the token as a takeover does, to `floor` at least, if it still is `from`. None: a fenced transaction was open all
    /// the time.
    fn raise(
        conn: &mut Conn<Self>,
        tables: &Tables,
        name: &LeaseName,
        from: i64,
        floor: i64,
        patience: Duration,
    ) -> impl Future<Output = Result<Option<LeaseRow>, sqlx::Error>> + Send;

    /// A new mark.
    fn mark() -> Self::Mark;
    /// Opens a fenced transaction, which leaves the trace that `opening` asks for.
    fn open(
        conn: &mut Conn<Self>,
        tables: &Tables,
        mark: &Self::Mark,
        id: &Identity,
        opening: Opening,
    ) -> impl Future<Output = Result<Option<Trace>, NotOpened>> + Send;
    /// Proves that the transaction is the one that `open` began, and commits it.
    fn finish(
        conn: &mut Conn<Self>,
        tables: &Tables,
        mark: &Self::Mark,
        id: &Identity,
        ttl: Duration,
    ) -> impl Future<Output = (Ending, Fit)> + Send;
    /// What became of a fenced transaction of ours? On a connection of its own, after that of the transaction was closed.
    fn look_up(
        conn: &mut Conn<Self>,
        tables: &Tables,
        id: &Identity,
        trace: &Trace,
    ) -> impl Future<Output = Result<Verdict, sqlx::Error>> + Send;
    /// Deletes receipts for which nobody will ask any more: ours, whose run has ended, and those before our predecessor's. At most
    /// [`FORGET_AT_ONCE`] of them; says how many.
    fn forget(
        conn: &mut Conn<Self>,
        tables: &Tables,
        id: &Identity,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    /// Opens a transaction that the server keeps read-only.
    fn open_read(conn: &mut Conn<Self>, mark: &Self::Mark) -> impl Future<Output = Result<(), NotOpened>> + Send;
    /// Ends it. An error: it was no longer the transaction that was opened.
    fn finish_read(
        conn: &mut Conn<Self>,
        mark: &Self::Mark,
    ) -> impl Future<Output = (Result<(), RolledBack>, Fit)> + Send;
    /// Rolls back whatever state the connection is in, and proves that it is clean.
    fn undo(conn: &mut Conn<Self>, mark: &Self::Mark) -> impl Future<Output = Fit> + Send;
    /// The part of a rollback that a destructor can do. False: close the connection instead.
    fn start_undo(conn: &mut Conn<Self>) -> bool;
}

/// So that deleting them takes no long statement.
pub(crate) const FORGET_AT_ONCE: u64 = 10_000;

/// What the row of a lease says of a receipt that is not there. It was there once: the transaction had written it when it began.
///
/// Receipts are deleted by their own run when it has ended, and by runs that come two terms later. So until then one that is missing was
/// rolled back.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn without_receipt(id: &Identity, token: Option<i64>) -> Verdict {
    match token {
        Some(token) if (id.token.get()..=id.token.get() + 1).contains(&token) => Verdict::RolledBack,
        _ => Verdict::Unknown(
            "the answer to COMMIT was lost, and its receipt may have been deleted, because the lease has been taken over more than once",
        ),
    }
}

/// A connection of a protocol's database.
pub(crate) type Conn<P> = <<P as Protocol>::Db as Database>::Connection;

/// The mark of a database's transactions.
pub(crate) type MarkOf<DB> = <<DB as Backend>::Protocol as Protocol>::Mark;

/// The connect options of a database.
pub(crate) type Options<DB> = <<DB as Database>::Connection as sqlx::Connection>::Options;

pub(crate) fn options_of<DB: Database>(pool: &Pool<DB>) -> Options<DB> {
    (*pool.connect_options()).clone()
}

/// Bytes in hexadecimal: the one way to put text into an unbound statement that no server setting can reinterpret.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn hex(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len() * 2), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Is the text safe between plain quotes, whatever `standard_conforming_strings` or `sql_mode` say?
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b))
}
