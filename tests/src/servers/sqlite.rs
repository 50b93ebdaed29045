//! SQLite: a file in a temporary directory, in either journal mode.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use sqlx::{
    ConnectOptions, Pool, Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tokio::sync::Mutex;

use super::{TestDb, run_id};
use crate::stepper::{self, Answer, Answers, Session, View};

/// A SQLite file of one test in WAL mode: readers and the writer do not meet.
pub type SqliteDb = SqliteFile<true>;
/// A SQLite file of one test with a rollback journal, SQLite's own default: a reader stops the writer's COMMIT.
pub type SqliteRollbackDb = SqliteFile<false>;

/// A SQLite file of one test.
pub struct SqliteFile<const WAL: bool> {
    url: String,
    folder: Folder,
    options: SqliteConnectOptions,
    pool: SqlitePool,
    observer: Mutex<SqliteConnection>,
    view: View,
}

impl<const WAL: bool> SqliteFile<WAL> {
    /// The file.
    pub fn file(&self) -> PathBuf {
        self.folder.0.join("test.db")
    }

    /// The directory that is removed at the end: room for other files of the test.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }
}

impl<const WAL: bool> TestDb for SqliteFile<WAL> {
    type Db = Sqlite;

    const NAME: &'static str = "sqlite";
    const EXPIRED: &'static str = "0";
    /// Nothing like it is there.
    const PID: &'static str = "SELECT 0";

    async fn open() -> Option<Self> {
        let folder = Folder::new();
        let file = folder.0.join("test.db");
        let options = SqliteConnectOptions::new().filename(&file);
        // The mode is a property of the file: who opens it later need not say it, and a busy file cannot refuse it.
        let mode = if WAL { SqliteJournalMode::Wal } else { SqliteJournalMode::Delete };
        let observer = connect(&options.clone().create_if_missing(true).journal_mode(mode)).await;
        let pool = pool(&options, 10);
        let url = format!("sqlite://{}", file.display());
        Some(Self { url, folder, options, pool, observer: Mutex::new(observer), view: View::none() })
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn options(&self, _who: &str) -> SqliteConnectOptions {
        self.options.clone()
    }

    fn pool(&self) -> &Pool<Sqlite> {
        &self.pool
    }

    fn pool_as(&self, _who: &str, size: u32) -> Pool<Sqlite> {
        pool(&self.options, size)
    }

    async fn connect(&self, _who: &str) -> SqliteConnection {
        connect(&self.options).await
    }

    async fn run(connection: &mut SqliteConnection, sql: &str) -> Answer {
        stepper::run_sqlite(connection, sql).await
    }

    async fn read(answers: Answers<'_, Sqlite>) -> Answer {
        stepper::read_sqlite(answers).await
    }

    /// There is no view of locks here: a statement that would wait answers `SQLITE_BUSY` at once instead.
    async fn session(&self, who: &str) -> Session {
        Session::sqlite(who, connect(&self.options.clone().busy_timeout(Duration::ZERO)).await)
    }

    fn view(&self) -> &View {
        &self.view
    }

    async fn try_sql(&self, sql: impl AsRef<str> + Send) -> Answer {
        stepper::run_sqlite(&mut *self.observer.lock().await, sql.as_ref()).await
    }
}

fn pool(options: &SqliteConnectOptions, size: u32) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(size)
        .acquire_timeout(Duration::from_secs(20))
        .connect_lazy_with(options.clone())
}

async fn connect(options: &SqliteConnectOptions) -> SqliteConnection {
    options.connect().await.unwrap_or_else(|error| panic!("cannot open {:?}: {error}", options.get_filename()))
}

/// A directory that goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("fence-test-{:08x}-{}", run_id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}
