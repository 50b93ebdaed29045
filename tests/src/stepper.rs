//! Sessions driven step by step, and proof of who waits for whom.
//!
//! A [`Session`] owns one connection in a task of its own and runs one statement after the other. A statement that is
//! started is a [`Step`]: the test may wait until *the server's own lock view* says that it [waits](Step::blocked),
//! or take its [answer](Step::answer). Nothing here sleeps to let something happen: views are asked again and again
//! until they say what the test expects, and after [`LIMIT`] the test fails with what the server says instead.
//!
//! ```ignore
//! let mut a = db.session("a").await;
//! let mut c = db.session("c").await;
//! c.ok("BEGIN; UPDATE runs SET note = 'c' WHERE run_id = 1").await;
//! let mut write = a.start("UPDATE runs SET status = 'done' WHERE run_id = 1");
//! write.blocked_by(&c).await;
//! c.ok("COMMIT").await;
//! assert_eq!(write.answer().await.unwrap().rows, 1);
//! ```
//!
//! A holder of a lease with a fenced transaction is driven in the same way: [`Owner`](crate::owner::Owner).
//! Other code runs as a [`Task`] of its own and meets the test at a [`Gate`]; whether it waits for a lock is asked by
//! the name of its connections ([`TestDb::pool_as`](crate::servers::TestDb::pool_as)).
//! SQLite has no lock view: there a session's statement that would wait is [refused as busy](Refused::is_busy) at once.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::{TryStreamExt, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, Database, Either, Executor, MySql, MySqlConnection, PgConnection, Postgres, Row, Sqlite,
    SqliteConnection, ValueRef,
    error::DatabaseError,
    mysql::{MySqlDatabaseError, MySqlQueryResult, MySqlRow},
    postgres::{PgQueryResult, PgRow},
    sqlite::{SqliteQueryResult, SqliteRow},
};
use tokio::{
    sync::{Mutex, mpsc, oneshot, watch},
    task::JoinHandle,
};

/// How long anything may take that a test expects to happen.
pub const LIMIT: Duration = Duration::from_secs(20);
/// The time between two looks at a view.
const LOOK: Duration = Duration::from_millis(2);

/// Waits for what must happen soon; panics with `what` when it does not.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {LIMIT:?}"),
    }
}

/// What a statement did, or the error of the database.
pub type Answer = Result<Done, Refused>;

/// What statements did that the database accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The rows that the *last* statement affected (PostgreSQL: or returned).
    pub rows: u64,
    /// The rows that all of them returned, as text.
    pub values: Vec<Vec<Option<String>>>,
}

impl Done {
    /// The only value, as text.
    #[track_caller]
    pub fn text(&self) -> Option<String> {
        match &self.values[..] {
            [row] if row.len() == 1 => row[0].clone(),
            other => panic!("one value expected, there are {other:?}"),
        }
    }

    /// The only value, as a number.
    #[track_caller]
    pub fn int(&self) -> i64 {
        let text = self.text();
        text.as_deref().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("a number expected, got {text:?}"))
    }
}

/// The error that the database answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// SQLSTATE, or the number of MySQL's and MariaDB's error, or SQLite's extended result code; empty for an error that is not the database's.
    pub code: String,
    /// What it says.
    pub message: String,
}

impl Refused {
    /// SQLite: somebody else holds the lock that this statement needs (`SQLITE_BUSY` in all its forms).
    pub fn is_busy(&self) -> bool {
        self.code.parse::<i32>().is_ok_and(|code| self.code.len() < 5 && code & 0xff == 5)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.code, self.message)
    }
}

impl From<sqlx::Error> for Refused {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().map(code_of).unwrap_or_default();
        Self { code, message: error.to_string() }
    }
}

/// What [`Refused::code`] says. On MySQL and MariaDB a number, since they have one SQLSTATE for many errors.
pub(crate) fn code_of(error: &dyn DatabaseError) -> String {
    match error.try_downcast_ref::<MySqlDatabaseError>() {
        Some(error) => error.number().to_string(),
        None => error.code().unwrap_or_default().into_owned(),
    }
}

/// What an executor answers to several statements.
pub type Answers<'a, DB> =
    BoxStream<'a, Result<Either<<DB as Database>::QueryResult, <DB as Database>::Row>, sqlx::Error>>;

/// Runs SQL on PostgreSQL as one simple message.
pub(crate) async fn run_postgres(connection: &mut PgConnection, sql: &str) -> Answer {
    read_postgres(connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))).await
}

pub(crate) async fn read_postgres(answers: Answers<'_, Postgres>) -> Answer {
    // The simple protocol answers in text: every type is readable.
    let text = |row: &PgRow, at| row.try_get_raw(at)?.as_str().map(str::to_owned).map_err(sqlx::Error::Decode);
    read::<Postgres>(answers, text, PgQueryResult::rows_affected).await
}

/// Runs SQL on MySQL or MariaDB as one text message.
pub(crate) async fn run_mysql(connection: &mut MySqlConnection, sql: &str) -> Answer {
    read_mysql(connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))).await
}

pub(crate) async fn read_mysql(answers: Answers<'_, MySql>) -> Answer {
    // The text protocol: every type is readable, if not always as UTF-8.
    let text = |row: &MySqlRow, at| {
        row.try_get_unchecked::<Vec<u8>, _>(at).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    read::<MySql>(answers, text, MySqlQueryResult::rows_affected).await
}

/// Runs SQL on SQLite.
pub(crate) async fn run_sqlite(connection: &mut SqliteConnection, sql: &str) -> Answer {
    read_sqlite(connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))).await
}

pub(crate) async fn read_sqlite(answers: Answers<'_, Sqlite>) -> Answer {
    let text = |row: &SqliteRow, at| row.try_get_unchecked::<String, _>(at);
    read::<Sqlite>(answers, text, SqliteQueryResult::rows_affected).await
}

async fn read<DB: Database>(
    mut answers: Answers<'_, DB>,
    text: impl Fn(&DB::Row, usize) -> Result<String, sqlx::Error>,
    affected: impl Fn(&DB::QueryResult) -> u64,
) -> Answer
where
    usize: sqlx::ColumnIndex<DB::Row>,
{
    let mut done = Done::default();
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Left(result) => done.rows = affected(&result),
            Either::Right(row) => done.values.push(
                (0..row.len())
                    .map(|at| if row.try_get_raw(at)?.is_null() { Ok(None) } else { text(&row, at).map(Some) })
                    .collect::<Result<_, sqlx::Error>>()?,
            ),
        }
    }
    Ok(done)
}

/// What the server says about who waits for whom. Cheap to clone.
#[derive(Clone)]
pub struct View(Option<Arc<Observer>>);

enum Observer {
    Postgres(Mutex<PgConnection>),
    InnoDb { connection: Mutex<MySqlConnection>, mariadb: bool },
}

/// Who has which connection, and who waits for a record lock of whom: `pid`, `application_name`, `waits_for`.
///
/// The name is the user's, behind what tells one run of the tests from another. MySQL: a record that a transaction has
/// written is locked on its behalf by whoever waits first, whose thread that lock then bears; those of tables bear the
/// transaction's own.
const MYSQL_SESSIONS: &str = "(SELECT t.PROCESSLIST_ID AS pid, SUBSTRING(t.PROCESSLIST_USER, 12) AS application_name,
        t.PROCESSLIST_COMMAND AS command, t.PROCESSLIST_STATE AS state, t.PROCESSLIST_INFO AS info,
        (SELECT GROUP_CONCAT(DISTINCT b.PROCESSLIST_ID SEPARATOR ' ') FROM performance_schema.data_lock_waits w
           JOIN performance_schema.data_locks l ON l.ENGINE_TRANSACTION_ID = w.BLOCKING_ENGINE_TRANSACTION_ID
            AND l.LOCK_TYPE = 'TABLE'
           JOIN performance_schema.threads b ON b.THREAD_ID = l.THREAD_ID
          WHERE w.REQUESTING_THREAD_ID = t.THREAD_ID) AS waits_for
    FROM performance_schema.threads t WHERE t.PROCESSLIST_DB = DATABASE() AND t.PROCESSLIST_ID <> CONNECTION_ID()) s";
const MARIADB_SESSIONS: &str = "(SELECT p.ID AS pid, SUBSTRING(p.USER, 12) AS application_name, p.COMMAND AS command,
        p.STATE AS state, p.INFO AS info, w.waits_for
    FROM information_schema.PROCESSLIST p LEFT JOIN
        (SELECT r.trx_mysql_thread_id AS id, GROUP_CONCAT(DISTINCT b.trx_mysql_thread_id SEPARATOR ' ') AS waits_for
           FROM information_schema.INNODB_LOCK_WAITS w
           JOIN information_schema.INNODB_TRX r ON r.trx_id = w.requesting_trx_id
           JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id
          GROUP BY r.trx_mysql_thread_id) w ON w.id = p.ID
    WHERE p.DB = DATABASE() AND p.ID <> CONNECTION_ID()) s";

/// One backend as `pg_stat_activity` and `pg_blocking_pids` show it.
#[derive(Clone, Debug)]
struct Backend {
    pid: i32,
    waits_for: Vec<i32>,
}

impl View {
    pub(crate) fn postgres(connection: PgConnection) -> Self {
        Self(Some(Arc::new(Observer::Postgres(Mutex::new(connection)))))
    }

    pub(crate) fn innodb(connection: MySqlConnection, mariadb: bool) -> Self {
        Self(Some(Arc::new(Observer::InnoDb { connection: Mutex::new(connection), mariadb })))
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Has this database one?
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    fn observer(&self) -> &Observer {
        self.0.as_deref().expect("SQLite has no view of locks: a statement that would wait is refused as busy")
    }

    pub(crate) async fn run(&self, sql: &str) -> Answer {
        match self.observer() {
            Observer::Postgres(connection) => run_postgres(&mut *connection.lock().await, sql).await,
            Observer::InnoDb { connection, .. } => run_mysql(&mut *connection.lock().await, sql).await,
        }
    }

    /// MariaDB shows waits as they were when nobody had asked for a tenth of a second: whoever asks more often, in
    /// whatever test, would see the same for ever.
    async fn turn(&self) -> Option<tokio::sync::MutexGuard<'static, ()>> {
        static TURN: Mutex<()> = Mutex::const_new(());
        if !matches!(self.observer(), Observer::InnoDb { mariadb: true, .. }) {
            return None;
        }
        let turn = TURN.lock().await;
        tokio::time::sleep(Duration::from_millis(110)).await;
        Some(turn)
    }

    /// MySQL's or MariaDB's sessions in this database; `None` on PostgreSQL.
    fn innodb_sessions(&self) -> Option<&'static str> {
        match self.observer() {
            Observer::Postgres(_) => None,
            Observer::InnoDb { mariadb: true, .. } => Some(MARIADB_SESSIONS),
            Observer::InnoDb { mariadb: false, .. } => Some(MYSQL_SESSIONS),
        }
    }

    /// The backends that wait for a heavyweight lock (row locks are among them), in this database; InnoDB: for a record's.
    async fn waiting(&self, filter: &str) -> Vec<Backend> {
        let sql = match self.innodb_sessions() {
            None => format!(
                "SELECT pid, array_to_string(pg_blocking_pids(pid), ' ') FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock' AND ({filter})"
            ),
            Some(sessions) => {
                format!("SELECT pid, waits_for FROM {sessions} WHERE waits_for IS NOT NULL AND ({filter})")
            }
        };
        let _turn = self.turn().await;
        let done = self.run(&sql).await.unwrap_or_else(|refused| panic!("the view of locks: {refused}"));
        let backends = done.values.iter().map(|row| Backend {
            pid: row[0].as_deref().and_then(|pid| pid.parse().ok()).expect("a pid"),
            waits_for: row[1].as_deref().unwrap_or_default().split(' ').filter_map(|pid| pid.parse().ok()).collect(),
        });
        // Between the two columns the wait may end: a waiter without a blocker is not proof.
        backends.filter(|backend| !backend.waits_for.is_empty()).collect()
    }

    /// Does this backend wait for a lock now?
    pub async fn is_blocked(&self, pid: i32) -> bool {
        !self.waiting(&format!("pid = {pid}")).await.is_empty()
    }

    /// Waits until this backend waits for a lock; returns whom it waits for.
    pub async fn blocked(&self, pid: i32) -> Vec<i32> {
        self.until_blocked(&format!("backend {pid}"), &format!("pid = {pid}"), || None).await.waits_for
    }

    /// Waits until a connection of this name waits for a lock; returns its pid.
    pub async fn blocked_as(&self, who: &str) -> i32 {
        self.until_blocked(who, &by_name(who), || None).await.pid
    }

    /// `over` says why it can no longer happen.
    async fn until_blocked(&self, who: &str, filter: &str, mut over: impl FnMut() -> Option<String>) -> Backend {
        let look = async {
            loop {
                if let Some(backend) = self.waiting(filter).await.into_iter().next() {
                    return Ok(backend);
                }
                if let Some(why) = over() {
                    return Err(why);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(LIMIT, look).await {
            Ok(Ok(backend)) => backend,
            Ok(Err(why)) => panic!("{who} should wait for a lock, but {why}\n{}", self.describe().await),
            Err(_) => panic!("{who} should wait for a lock; after {LIMIT:?} it does not\n{}", self.describe().await),
        }
    }

    /// True if, following waits, one backend ends at the other.
    async fn leads_to(&self, from: &[i32], to: i32) -> bool {
        if from.contains(&to) {
            return true;
        }
        let waiting = self.waiting("true").await;
        let mut seen = from.to_vec();
        let mut at = 0;
        while let Some(&pid) = seen.get(at) {
            for next in waiting.iter().filter(|backend| backend.pid == pid).flat_map(|backend| &backend.waits_for) {
                if !seen.contains(next) {
                    seen.push(*next);
                }
            }
            at += 1;
        }
        seen.contains(&to)
    }

    /// The pids of the connections of this name.
    pub async fn pids(&self, who: &str) -> Vec<i32> {
        let sql = match self.innodb_sessions() {
            None => format!("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND {}", by_name(who)),
            // Without the waits, which MariaDB tells only now and then.
            Some(_) => format!(
                "SELECT pid FROM (SELECT ID AS pid, SUBSTRING(USER, 12) AS application_name
                   FROM information_schema.PROCESSLIST WHERE DB = DATABASE()) s WHERE {}",
                by_name(who)
            ),
        };
        let done = self.run(&sql).await.unwrap_or_else(|refused| panic!("the view of sessions: {refused}"));
        done.values.iter().filter_map(|row| row[0].as_deref()?.parse().ok()).collect()
    }

    /// MySQL, MariaDB: waits until somebody waits for a user lock (`GET_LOCK`) in this database. Who it is they do not say of
    /// one that waits in a trigger.
    pub async fn at_user_lock(&self) {
        let waits = "SELECT count(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE = 'User lock'";
        let look = async { while self.run(waits).await.is_ok_and(|done| done.int() == 0) {} };
        if tokio::time::timeout(LIMIT, look).await.is_err() {
            panic!("somebody should wait for a user lock; after {LIMIT:?} nobody does\n{}", self.describe().await);
        }
    }

    /// Ends a backend as an operator would; true if it was there.
    pub async fn terminate(&self, pid: i32) -> bool {
        if self.innodb_sessions().is_some() {
            return self.run(&format!("KILL {pid}")).await.is_ok();
        }
        let answer = self.run(&format!("SELECT pg_terminate_backend({pid})")).await;
        answer.is_ok_and(|done| done.text().as_deref() == Some("t"))
    }

    /// Everything the server knows about the sessions of this database, for a message.
    pub async fn describe(&self) -> String {
        if !self.is_there() {
            return String::new();
        }
        let postgres = r"SELECT application_name, pid, state, wait_event_type, wait_event, pg_blocking_pids(pid),
                          left(regexp_replace(query, '\s+', ' ', 'g'), 160)
                     FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid";
        let sql = match self.innodb_sessions() {
            None => postgres.to_owned(),
            Some(sessions) => format!(
                "SELECT application_name, pid, command, state, COALESCE(waits_for, ''), LEFT(COALESCE(info, ''), 160)
                   FROM {sessions} ORDER BY pid"
            ),
        };
        match tokio::time::timeout(LIMIT, self.run(&sql)).await {
            Ok(Ok(done)) => {
                let line = |row: &Vec<Option<String>>| {
                    row.iter().map(|value| value.as_deref().unwrap_or("-")).collect::<Vec<_>>().join(" | ")
                };
                done.values.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            other => format!("(the server does not say: {other:?})"),
        }
    }
}

pub(crate) fn by_name(who: &str) -> String {
    format!("application_name = '{}'", who.replace('\'', "''"))
}

/// A connection in a task of its own that takes one statement after the other. Dropped, the connection closes once
/// its statement has ended.
pub struct Session {
    who: String,
    pid: Option<i32>,
    view: View,
    statements: mpsc::UnboundedSender<(String, oneshot::Sender<Answer>)>,
}

impl Session {
    pub(crate) async fn postgres(who: &str, mut connection: PgConnection, view: View) -> Self {
        let pid = run_postgres(&mut connection, "SELECT pg_backend_pid()").await;
        let pid = pid.unwrap_or_else(|refused| panic!("the pid of {who}: {refused}")).int() as i32;
        let (statements, mut taken) = mpsc::unbounded_channel::<(String, oneshot::Sender<Answer>)>();
        tokio::spawn(async move {
            while let Some((sql, answer)) = taken.recv().await {
                _ = answer.send(run_postgres(&mut connection, &sql).await);
            }
        });
        Self { who: who.into(), pid: Some(pid), view, statements }
    }

    pub(crate) async fn mysql(who: &str, mut connection: MySqlConnection, view: View) -> Self {
        let pid = run_mysql(&mut connection, "SELECT connection_id()").await;
        let pid = pid.unwrap_or_else(|refused| panic!("the number of {who}: {refused}")).int() as i32;
        let (statements, mut taken) = mpsc::unbounded_channel::<(String, oneshot::Sender<Answer>)>();
        tokio::spawn(async move {
            while let Some((sql, answer)) = taken.recv().await {
                _ = answer.send(run_mysql(&mut connection, &sql).await);
            }
        });
        Self { who: who.into(), pid: Some(pid), view, statements }
    }

    pub(crate) fn sqlite(who: &str, mut connection: SqliteConnection) -> Self {
        let (statements, mut taken) = mpsc::unbounded_channel::<(String, oneshot::Sender<Answer>)>();
        tokio::spawn(async move {
            while let Some((sql, answer)) = taken.recv().await {
                _ = answer.send(run_sqlite(&mut connection, &sql).await);
            }
        });
        Self { who: who.into(), pid: None, view: View::none(), statements }
    }

    /// The server's number for this connection.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.pid.expect("a SQLite connection has no pid")
    }

    /// Begins a statement (or several in one message) and does not wait for it.
    pub fn start(&mut self, sql: impl Into<String>) -> Step {
        let sql = sql.into();
        let backend = self.pid.map(|pid| format!("pid = {pid}")).unwrap_or_default();
        let (answer, step) = Step::new(format!("{}: {sql}", self.who), backend, self.view.clone());
        // A closed channel shows when the answer is taken.
        _ = self.statements.send((sql, answer));
        step
    }

    /// Runs a statement that must end, whatever its answer. It proves that nothing blocks it.
    pub async fn run(&mut self, sql: impl Into<String>) -> Answer {
        self.start(sql).answer().await
    }

    /// Runs a statement that must succeed.
    pub async fn ok(&mut self, sql: impl Into<String>) -> Done {
        self.start(sql).ok().await
    }
}

/// What has one backend on the server.
pub trait HasPid {
    /// The server's number for it.
    fn pid(&self) -> i32;
}

impl HasPid for Session {
    #[track_caller]
    fn pid(&self) -> i32 {
        Self::pid(self)
    }
}

impl HasPid for i32 {
    fn pid(&self) -> i32 {
        *self
    }
}

/// A statement that was started.
#[must_use = "take its answer: what a statement did is the point of a step"]
pub struct Step {
    what: String,
    /// Which backends the view of locks is asked about.
    backend: String,
    view: View,
    receiver: oneshot::Receiver<Answer>,
    answer: Option<Answer>,
}

impl Step {
    /// A step and where its answer goes.
    pub(crate) fn new(what: String, backend: String, view: View) -> (oneshot::Sender<Answer>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self { what, backend, view, receiver, answer: None })
    }

    /// Has it ended?
    pub fn is_finished(&mut self) -> bool {
        if self.answer.is_none() {
            self.answer = self.receiver.try_recv().ok();
        }
        self.answer.is_some()
    }

    /// Waits until the server says that this statement waits for a lock; returns the backends that it waits for.
    ///
    /// # Panics
    /// If the statement ends instead, or nothing of the kind happens within [`LIMIT`].
    pub async fn blocked(&mut self) -> Vec<i32> {
        let (view, what, backend) = (self.view.clone(), self.what.clone(), self.backend.clone());
        view.until_blocked(&what, &backend, || self.is_finished().then(|| format!("it ended: {:?}", self.answer)))
            .await
            .waits_for
    }

    /// As [`blocked`](Self::blocked), by this backend: directly, or behind others who wait for it.
    pub async fn blocked_by(&mut self, other: &impl HasPid) {
        let (blockers, other) = (self.blocked().await, other.pid());
        if !self.view.leads_to(&blockers, other).await {
            let all = self.view.describe().await;
            panic!("{}: waits for {blockers:?}, not for {other}\n{all}", self.what);
        }
    }

    /// Its answer, once it has ended.
    ///
    /// # Panics
    /// If it does not end within [`LIMIT`]: the message shows whom it waits for.
    pub async fn answer(mut self) -> Answer {
        if let Some(answer) = self.answer.take() {
            return answer;
        }
        match tokio::time::timeout(LIMIT, &mut self.receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => panic!("{}: the session is gone", self.what),
            Err(_) => panic!("{}: does not end within {LIMIT:?}\n{}", self.what, self.view.describe().await),
        }
    }

    /// Its answer, which must not be an error.
    pub async fn ok(self) -> Done {
        let what = self.what.clone();
        self.answer().await.unwrap_or_else(|refused| panic!("{what}: {refused}"))
    }
}

/// Other code that runs beside the test, such as a job with a fenced transaction.
#[must_use = "take its result"]
pub struct Task<T> {
    who: String,
    view: View,
    handle: JoinHandle<T>,
}

impl<T: Send + 'static> Task<T> {
    /// Starts it. `who` is the name of its connections, for the view of locks.
    pub fn start(who: &str, view: &View, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { who: who.into(), view: view.clone(), handle: tokio::spawn(future) }
    }

    /// Has it ended?
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits until one of its connections waits for a lock; returns that one's pid.
    ///
    /// # Panics
    /// If the task ends instead, or nothing of the kind happens within [`LIMIT`].
    pub async fn blocked(&self) -> i32 {
        let over = || self.is_finished().then(|| "the task has ended".to_owned());
        self.view.until_blocked(&self.who, &by_name(&self.who), over).await.pid
    }

    /// Its result, once it has ended; its panic goes on here.
    pub async fn done(self) -> T {
        match tokio::time::timeout(LIMIT, self.handle).await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Ok(Err(error)) => panic!("{}: {error}", self.who),
            Err(_) => panic!("{}: does not end within {LIMIT:?}\n{}", self.who, self.view.describe().await),
        }
    }

    /// Drops the task's future at its next await.
    pub async fn abort(self) {
        self.handle.abort();
        _ = self.handle.await;
    }
}

/// A point that code under test stops at until the test lets it go on. Cheap to clone: both sides hold one.
#[derive(Clone)]
pub struct Gate {
    name: &'static str,
    state: Arc<watch::Sender<At>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nobody,
    Stopped,
    Open,
}

impl Gate {
    /// A closed gate.
    pub fn new(name: &'static str) -> Self {
        Self { name, state: Arc::new(watch::Sender::new(At::Nobody)) }
    }

    /// Code under test: stops here until the gate is open.
    pub async fn stop(&self) {
        self.state.send_if_modified(|at| *at == At::Nobody && std::mem::replace(at, At::Stopped) == At::Nobody);
        self.wait(At::Open).await;
    }

    /// Test: waits until somebody has stopped here (or passed it).
    pub async fn reached(&self) {
        let mut seen = self.state.subscribe();
        let reached = seen.wait_for(|at| *at != At::Nobody);
        _ = within(&format!("gate {:?}: nobody came", self.name), reached).await;
    }

    /// Test: lets them go on.
    pub fn open(&self) {
        self.state.send_replace(At::Open);
    }

    async fn wait(&self, state: At) {
        let mut seen = self.state.subscribe();
        // `self` holds the sender: it cannot be gone.
        _ = within(&format!("gate {:?}: nobody opened it", self.name), seen.wait_for(|at| *at == state)).await;
    }
}
