//! Fresh databases for tests.
//!
//! Where a database comes from, in this order:
//! 1. `FENCE_TEST_POSTGRES_URL`, `FENCE_TEST_MYSQL_URL`, `FENCE_TEST_MARIADB_URL`, if set: every test gets a new database on that server, dropped when the test ends
//!    (or, after a kill, when the next test binary starts);
//! 2. a container of `postgres:18`, `mysql:9.7`, `mariadb:11.8` (or `FENCE_TEST_POSTGRES_IMAGE` and so on), one per test
//!    binary, which is gone whatever way the binary ends;
//! 3. else the test is skipped, with one line `FENCE-SKIP <database>: <why>; <what to do>` on stderr.
//!
//! `FENCE_TEST_REQUIRE=all` (or a list such as `postgres,sqlite`) turns a skip into a failure.
//! SQLite needs nothing: a file in a temporary directory.
//!
//! A database here is a type that implements [`TestDb`]; another one needs a file beside `postgres.rs`, its name in
//! [`DATABASES`] and a line in [`conformance!`](crate::conformance).

mod container;
mod mysql;
mod postgres;
mod sqlite;

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    io::Write,
    sync::OnceLock,
    time::Duration,
};

use fence_runtime::{Backend, Fence, FenceBuilder};
use sqlx::{Connection, Database, Pool};

pub use self::{
    mysql::{InnoDb, MariaDb, MySqlDb},
    postgres::PostgresDb,
    sqlite::{SqliteDb, SqliteFile, SqliteRollbackDb},
};
use crate::stepper::{Answer, Answers, Done, Session, View};

/// What `FENCE_TEST_REQUIRE` may name.
pub const DATABASES: &[&str] = &["postgres", "sqlite", "mysql", "mariadb"];

/// The options by which a connection of this database is made.
pub type ConnectOptionsOf<DB> = <<DB as Database>::Connection as Connection>::Options;

/// One database of one test: nobody else's, gone with the value.
pub trait TestDb: Sized + Send + Sync + 'static {
    /// The database, as sqlx and fence know it.
    type Db: Backend<Connection: sqlx::migrate::Migrate>;

    /// The name in test names, in `FENCE-SKIP` lines and in `FENCE_TEST_REQUIRE`.
    const NAME: &'static str;
    /// A value of `leased_until` that is in the past for whoever reads it.
    const EXPIRED: &'static str;
    /// Asks a connection for its number in the server's views.
    const PID: &'static str;

    /// A fresh database; `None` when there is no server, and the line that says so has been written.
    fn open() -> impl Future<Output = Option<Self>> + Send;

    /// The URL of this database, for another process.
    fn url(&self) -> &str;

    /// Connect options whose connections the server's views show as `who`.
    fn options(&self, who: &str) -> ConnectOptionsOf<Self::Db>;

    /// This test's pool. It belongs to the runtime of the test: never share it with another one.
    fn pool(&self) -> &Pool<Self::Db>;

    /// Another pool of at most `size` connections, whose connections the server's views show as `who`.
    fn pool_as(&self, who: &str, size: u32) -> Pool<Self::Db>;

    /// A connection of its own, outside every pool.
    fn connect(&self, who: &str) -> impl Future<Output = <Self::Db as Database>::Connection> + Send;

    /// Runs SQL (one statement or more, no parameters) as it stands.
    fn run(connection: &mut <Self::Db as Database>::Connection, sql: &str) -> impl Future<Output = Answer> + Send;

    /// Reads what an executor answers to several statements, whatever their types.
    fn read(answers: Answers<'_, Self::Db>) -> impl Future<Output = Answer> + Send;

    /// A connection that takes one statement after the other, see [`stepper`](crate::stepper).
    fn session(&self, who: &str) -> impl Future<Output = Session> + Send;

    /// What the server says about who waits for whom.
    fn view(&self) -> &View;

    /// Runs SQL on the test's own observing connection, in autocommit.
    fn try_sql(&self, sql: impl AsRef<str> + Send) -> impl Future<Output = Answer> + Send;

    /// As [`try_sql`](Self::try_sql), for SQL that must not fail.
    fn sql(&self, sql: impl AsRef<str> + Send) -> impl Future<Output = Done> + Send {
        async move {
            let sql = sql.as_ref();
            self.try_sql(sql).await.unwrap_or_else(|refused| panic!("{}: {sql}: {refused}", Self::NAME))
        }
    }

    /// The one number that the SQL asks for.
    fn int(&self, sql: impl AsRef<str> + Send) -> impl Future<Output = i64> + Send {
        async move { self.sql(sql).await.int() }
    }

    /// The one text that the SQL asks for; `None` for NULL.
    fn text(&self, sql: impl AsRef<str> + Send) -> impl Future<Output = Option<String>> + Send {
        async move { self.sql(sql).await.text() }
    }

    /// A fence over this test's pool, with the tables in place.
    fn fence(&self) -> impl Future<Output = Fence<Self::Db>> + Send {
        build(Fence::builder(self.pool().clone()).keeper_options(self.options("keeper")))
    }

    /// A fence over a pool of its own: another worker of the same service. The server's views show its connections as
    /// `who`, its keeper's as `who keeper`.
    fn fence_as(&self, who: &str) -> impl Future<Output = Fence<Self::Db>> + Send {
        let keeper = self.options(&format!("{who} keeper"));
        build(Fence::builder(self.pool_as(who, 10)).keeper_options(keeper).holder(who))
    }

    /// A string in SQL.
    fn literal(text: &str) -> String {
        format!("'{}'", text.replace('\'', "''"))
    }

    /// Ends the term of a lease as the database sees it, without waiting for its TTL. True if there was such a row.
    fn expire(&self, lease: &str) -> impl Future<Output = bool> + Send {
        let sql = format!(
            "UPDATE fenced_job_leases SET leased_until = {} WHERE lease_name = {}",
            Self::EXPIRED,
            Self::literal(lease)
        );
        async move { self.sql(sql).await.rows == 1 }
    }

    /// The fencing token in the lease's row.
    fn fence_token(&self, lease: &str) -> impl Future<Output = i64> + Send {
        let sql = format!("SELECT fence_token FROM fenced_job_leases WHERE lease_name = {}", Self::literal(lease));
        async move { self.int(sql).await }
    }
}

async fn build<DB: Backend<Connection: sqlx::migrate::Migrate>>(builder: FenceBuilder<DB>) -> Fence<DB> {
    builder.migrate().build().await.unwrap_or_else(|error| panic!("no fence: {error}"))
}

/// A fresh PostgreSQL database, or a skip.
pub async fn postgres() -> Option<PostgresDb> {
    PostgresDb::open().await
}

/// A fresh SQLite file in WAL mode.
pub async fn sqlite() -> Option<SqliteDb> {
    SqliteDb::open().await
}

/// Says that this test cannot run here, or fails it where `FENCE_TEST_REQUIRE` wants it run.
///
/// The line goes straight to stderr: what a passing test prints in any other way is swallowed.
pub fn skip(database: &str, why: &str, what_to_do: &str) {
    let thread = std::thread::current();
    let test = match thread.name() {
        Some(name) if name != "main" => format!("{name}: "),
        _ => String::new(),
    };
    let why = why.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    assert!(!required(database), "FENCE_TEST_REQUIRE wants {database}: {why}; {what_to_do}");
    // One write for the whole line, so that lines of parallel tests do not mix.
    let line = format!("FENCE-SKIP {database}: {test}{why}; {what_to_do}\n");
    _ = std::io::stderr().lock().write_all(line.as_bytes());
}

fn required(database: &str) -> bool {
    let list = std::env::var("FENCE_TEST_REQUIRE").unwrap_or_default();
    let mut named = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    named.clone().for_each(|name| {
        // A misspelt name would require nothing, silently.
        assert!(
            name == "all" || DATABASES.contains(&name),
            "FENCE_TEST_REQUIRE names {name:?}: it may be `all` or a list of {DATABASES:?}"
        );
    });
    named.any(|name| name == "all" || name == database)
}

/// Tells this process's databases and containers from those of others.
fn run_id() -> u32 {
    static RUN: OnceLock<u32> = OnceLock::new();
    // The standard library's only source of randomness.
    *RUN.get_or_init(|| RandomState::new().hash_one(std::process::id()) as u32 & 0x7fff_ffff)
}

/// A test that takes longer than this hangs.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// Opens the database and runs a test body on it. What [`conformance!`](crate::conformance) expands to.
pub async fn on<D: TestDb, F: Future<Output = ()>>(body: impl FnOnce(D) -> F) {
    let Some(db) = D::open().await else { return };
    let view = db.view().clone();
    if tokio::time::timeout(TEST_LIMIT, body(db)).await.is_err() {
        panic!("the test did not end within {TEST_LIMIT:?}\n{}", view.describe().await);
    }
}

/// Runs generic test bodies, `async fn name<D: TestDb>(db: D)`, on every database: the tests are called
/// `postgres::name`, `sqlite::name` (WAL), `sqlite_rollback::name` (rollback journal), `mysql::name` and `mariadb::name`.
///
/// ```ignore
/// conformance! {
///     /// The article's first test.
///     a_stale_release_is_refused,
///     #[ignore = "slow"]
///     ten_thousand_cycles,
/// }
/// async fn a_stale_release_is_refused<D: TestDb>(db: D) {}
/// ```
///
/// `conformance! { on postgres, sqlite: name, … }` leaves a database out. Once in a module: it makes modules itself.
#[macro_export]
macro_rules! conformance {
    (on $($database:ident),+ : $($(#[$meta:meta])* $test:ident),+ $(,)?) => {
        $crate::conformance! { @each ($($database),+) ($($(#[$meta])* $test),+) }
    };
    (@each ($($database:ident),+) $tests:tt) => {
        $($crate::conformance! { @on $database $tests })+
    };
    (@on postgres $tests:tt) => { $crate::conformance! { @module postgres PostgresDb $tests } };
    (@on sqlite $tests:tt) => { $crate::conformance! { @module sqlite SqliteDb $tests } };
    (@on sqlite_rollback $tests:tt) => { $crate::conformance! { @module sqlite_rollback SqliteRollbackDb $tests } };
    (@on mysql $tests:tt) => { $crate::conformance! { @module mysql MySqlDb $tests } };
    (@on mariadb $tests:tt) => { $crate::conformance! { @module mariadb MariaDb $tests } };
    (@module $module:ident $db:ident ($($(#[$meta:meta])* $test:ident),+)) => {
        mod $module {
            $(
                $(#[$meta])*
                #[test]
                fn $test() {
                    $crate::servers::block_on($crate::servers::on::<$crate::servers::$db, _>(super::$test));
                }
            )+
        }
    };
    ($($(#[$meta:meta])* $test:ident),+ $(,)?) => {
        $crate::conformance! { @each (postgres, sqlite, sqlite_rollback, mysql, mariadb) ($($(#[$meta])* $test),+) }
    };
}

/// The URL with another database.
fn with_database(url: &str, name: &str) -> String {
    let (url, query) = url.split_once('?').map_or((url, None), |(url, query)| (url, Some(query)));
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find('/').map_or(url.len(), |at| authority + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", &url[..end])
}

/// A runtime of two workers for one test: what a test spawns runs beside it, as in a service.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a tokio runtime")
        .block_on(test)
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn only_the_database_of_a_url_changes() {
        assert_eq!(with_database("postgres://u:p@h:1/a?sslmode=disable", "b"), "postgres://u:p@h:1/b?sslmode=disable");
        assert_eq!(with_database("postgres://h", "b"), "postgres://h/b");
        assert_eq!(with_database("postgres:///a?host=/run", "b"), "postgres:///b?host=/run");
    }
}
