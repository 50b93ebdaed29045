//! The application's SQL for SQLite.

use std::time::Duration;

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::{Connection, Executor, Sqlite, SqlitePool, sqlite::SqliteConnectOptions};

use super::{Plan, Run, RunColumns, Store, Tally};
use crate::ledger::Difference;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS reconciliation_runs (
        run_id INTEGER PRIMARY KEY AUTOINCREMENT,
        fence_token INTEGER NOT NULL DEFAULT 0,
        owner_token TEXT,
        status TEXT NOT NULL DEFAULT 'scheduled' CHECK (status IN ('scheduled', 'running', 'succeeded')),
        ours_entries INTEGER NOT NULL,
        bank_entries INTEGER NOT NULL,
        scanned INTEGER NOT NULL DEFAULT 0,
        total INTEGER NOT NULL,
        differences INTEGER,
        scheduled_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
        claimed_at TEXT,
        finished_at TEXT) STRICT;
    CREATE TABLE IF NOT EXISTS reconciliation_differences (
        run_id INTEGER NOT NULL REFERENCES reconciliation_runs,
        reference TEXT NOT NULL,
        fence_token INTEGER NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('missing_at_bank', 'missing_in_books', 'other_amount')),
        booked_on TEXT NOT NULL,
        ours_cents INTEGER,
        bank_cents INTEGER,
        PRIMARY KEY (run_id, reference)) STRICT, WITHOUT ROWID;";

#[terminal_write]
async fn claim(tx: &mut FencedTx<'_, Sqlite>, run: i64) -> Result<Written, Error> {
    let (token, owner) = (tx.fence_token(), tx.owner_token().to_string());
    let query = sqlx::query(
        "UPDATE reconciliation_runs
         SET fence_token = $2, owner_token = $3, status = 'running', scanned = 0,
             claimed_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
         WHERE run_id = $1 AND fence_token < $2 AND status <> 'succeeded'",
    );
    tx.terminal(query.bind(run).bind(token).bind(owner)).await
}

#[terminal_write]
async fn delete_leftovers(tx: &mut FencedTx<'_, Sqlite>, run: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query("DELETE FROM reconciliation_differences WHERE run_id = $1 AND fence_token < $2");
    tx.terminal(query.bind(run).bind(token)).rows(0..).await
}

#[terminal_write]
async fn publish(tx: &mut FencedTx<'_, Sqlite>, run: i64, found: &[Difference]) -> Result<Written, Error> {
    let token = tx.fence_token();
    let rows: Vec<_> = found
        .iter()
        .map(|d| serde_json::json!([d.reference, d.kind.as_str(), d.booked_on, d.ours_cents, d.bank_cents]))
        .collect();
    // SQLite has no arrays: the rows travel as JSON.
    let query = sqlx::query(
        "INSERT INTO reconciliation_differences
             (run_id, fence_token, reference, kind, booked_on, ours_cents, bank_cents)
         SELECT $1, $2, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
         FROM json_each($3)
         WHERE EXISTS (SELECT 1 FROM reconciliation_runs WHERE run_id = $1 AND fence_token = $2)",
    );
    tx.terminal(query.bind(run).bind(token).bind(serde_json::Value::from(rows).to_string()))
        .rows(found.len() as u64..)
        .await
}

#[terminal_write]
async fn advance(tx: &mut FencedTx<'_, Sqlite>, run: i64, scanned: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query("UPDATE reconciliation_runs SET scanned = $3 WHERE run_id = $1 AND fence_token = $2");
    tx.terminal(query.bind(run).bind(token).bind(scanned)).await
}

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Sqlite>, run: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query(
        "UPDATE reconciliation_runs
         SET status = 'succeeded', finished_at = strftime('%Y-%m-%d %H:%M:%f', 'now'), differences =
             (SELECT count(*) FROM reconciliation_differences d WHERE d.run_id = $1 AND d.fence_token = $2)
         WHERE run_id = $1 AND fence_token = $2 AND status = 'running'",
    );
    tx.terminal(query.bind(run).bind(token)).await
}

impl Store for Sqlite {
    const WORD: &'static str = "sqlite";

    async fn version(pool: &SqlitePool) -> sqlx::Result<String> {
        sqlx::query_scalar("SELECT 'SQLite ' || sqlite_version()").fetch_one(pool).await
    }

    async fn create_tables(pool: &SqlitePool) -> sqlx::Result<()> {
        pool.execute(sqlx::raw_sql(TABLES)).await.map(drop)
    }

    async fn schedule(pool: &SqlitePool, plan: &Plan) -> sqlx::Result<i64> {
        sqlx::query_scalar(
            "INSERT INTO reconciliation_runs (ours_entries, bank_entries, total) VALUES ($1, $2, $3) RETURNING run_id",
        )
        .bind(plan.ours_entries)
        .bind(plan.bank_entries)
        .bind(plan.total)
        .fetch_one(pool)
        .await
    }

    async fn claim(tx: &mut FencedTx<'_, Self>, run: i64) -> Result<Written, Error> {
        claim(tx, run).await
    }

    async fn delete_leftovers(tx: &mut FencedTx<'_, Self>, run: i64) -> Result<Written, Error> {
        delete_leftovers(tx, run).await
    }

    async fn publish(tx: &mut FencedTx<'_, Self>, run: i64, found: &[Difference]) -> Result<Written, Error> {
        publish(tx, run, found).await
    }

    async fn advance(tx: &mut FencedTx<'_, Self>, run: i64, scanned: i64) -> Result<Written, Error> {
        advance(tx, run, scanned).await
    }

    async fn finish(tx: &mut FencedTx<'_, Self>, run: i64) -> Result<Written, Error> {
        finish(tx, run).await
    }

    async fn run(pool: &SqlitePool, run: i64) -> sqlx::Result<Run> {
        let query = sqlx::query_as::<_, RunColumns>(
            "SELECT run_id, status, fence_token, owner_token, scanned, total, differences
             FROM reconciliation_runs WHERE run_id = $1",
        );
        Ok(query.bind(run).fetch_one(pool).await?.into())
    }

    async fn tallies(pool: &SqlitePool, run: i64) -> sqlx::Result<Vec<Tally>> {
        let query = sqlx::query_as::<_, (String, i64, i64)>(
            "SELECT kind, fence_token, count(*) FROM reconciliation_differences
             WHERE run_id = $1 GROUP BY kind, fence_token ORDER BY kind, fence_token",
        );
        Ok(query.bind(run).fetch_all(pool).await?.into_iter().map(Tally::from).collect())
    }

    async fn look(options: &SqliteConnectOptions, _lease: &str, _run: i64) -> sqlx::Result<()> {
        // The whole file is one lock. EXCLUSIVE also sees a reader that would keep others from committing.
        let options = options.clone().busy_timeout(Duration::from_millis(100));
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await?;
        connection.execute("BEGIN EXCLUSIVE").await?;
        connection.execute("ROLLBACK").await?;
        connection.close().await
    }
}
