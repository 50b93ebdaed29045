//! The application whose writes the tests fence: a table of runs, and statements on it that every database understands.

use fence_runtime::FencedTx;
use sqlx::{AssertSqlSafe, Database, Executor};

use crate::{
    owner::Named,
    servers::TestDb,
    stepper::{Answer, Refused},
};

/// One run, numbered 1, that nobody has begun.
pub const RUNS: &str = "
    CREATE TABLE runs (run_id bigint PRIMARY KEY, status text, fence_token bigint);
    INSERT INTO runs VALUES (1, 'new', 0);";

/// The terminal write of most tests: its one parameter is the fencing token.
pub const COMPLETE: &str =
    "UPDATE runs SET status = 'done', fence_token = $1 WHERE run_id = 1 AND fence_token <= $1 AND status <> 'done'";

/// [`COMPLETE`] as a statement of this database.
pub fn complete<D: TestDb>() -> &'static str {
    complete_on::<D::Db>()
}

/// As [`complete`].
pub fn complete_on<DB: Database>() -> &'static str {
    match DB::NAME {
        // There a parameter is a place and not a number: it can be used only once.
        "MySQL" => {
            "UPDATE runs JOIN (SELECT ? AS token) mine SET status = 'done', fence_token = token
              WHERE run_id = 1 AND fence_token <= token AND status <> 'done'"
        }
        _ => COMPLETE,
    }
}

/// Runs SQL (one statement or more, no parameters) on any executor.
///
/// # Errors
/// What the database says.
pub async fn on<'e, D: TestDb>(executor: impl Executor<'e, Database = D::Db>, sql: impl Into<String>) -> Answer {
    D::read(executor.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql.into())))).await
}

/// Inserts a run through the transaction's executor.
///
/// # Errors
/// What the database says.
pub async fn insert<D: TestDb>(tx: &mut FencedTx<'_, D::Db, Named>, run: i64) -> Result<(), Refused> {
    on::<D>(tx.executor(), format!("INSERT INTO runs VALUES ({run}, 'new', 0)")).await.map(drop)
}

/// How many runs there are with this number, as everybody sees it.
pub async fn count<D: TestDb>(db: &D, run: i64) -> i64 {
    db.int(format!("SELECT count(*) FROM runs WHERE run_id = {run}")).await
}

/// The status of run 1, as everybody sees it.
pub async fn status<D: TestDb>(db: &D) -> String {
    db.text("SELECT status FROM runs WHERE run_id = 1").await.unwrap_or_default()
}

/// Waits for a condition that must come about, looking again and again.
///
/// # Panics
/// If it does not within [`LIMIT`](crate::stepper::LIMIT).
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let look = async {
        while !holds().await {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    crate::stepper::within(what, look).await;
}
