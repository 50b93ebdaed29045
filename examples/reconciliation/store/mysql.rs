//! The application's SQL for MySQL and MariaDB.

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::{Connection, Executor, MySql, MySqlPool, mysql::MySqlConnectOptions};

use super::{Plan, Run, RunColumns, Store, Tally};
use crate::ledger::Difference;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS reconciliation_runs (
        run_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
        fence_token bigint NOT NULL DEFAULT 0,
        owner_token varchar(64),
        status varchar(20) NOT NULL DEFAULT 'scheduled' CHECK (status IN ('scheduled', 'running', 'succeeded')),
        ours_entries bigint NOT NULL,
        bank_entries bigint NOT NULL,
        scanned bigint NOT NULL DEFAULT 0,
        total bigint NOT NULL,
        differences bigint,
        scheduled_at datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
        claimed_at datetime(6),
        finished_at datetime(6)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
    CREATE TABLE IF NOT EXISTS reconciliation_differences (
        run_id bigint NOT NULL,
        reference varchar(200) COLLATE utf8mb4_bin NOT NULL,
        fence_token bigint NOT NULL,
        kind varchar(20) NOT NULL CHECK (kind IN ('missing_at_bank', 'missing_in_books', 'other_amount')),
        booked_on date NOT NULL,
        ours_cents bigint,
        bank_cents bigint,
        PRIMARY KEY (run_id, reference),
        FOREIGN KEY (run_id) REFERENCES reconciliation_runs (run_id)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;";

#[terminal_write]
async fn claim(tx: &mut FencedTx<'_, MySql>, run: i64) -> Result<Written, Error> {
    let (token, owner) = (tx.fence_token(), tx.owner_token().to_string());
    let query = sqlx::query(
        "UPDATE reconciliation_runs
         SET fence_token = ?, owner_token = ?, status = 'running', scanned = 0, claimed_at = UTC_TIMESTAMP(6)
         WHERE run_id = ? AND fence_token < ? AND status <> 'succeeded'",
    );
    tx.terminal(query.bind(token).bind(owner).bind(run).bind(token)).await
}

#[terminal_write]
async fn delete_leftovers(tx: &mut FencedTx<'_, MySql>, run: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query("DELETE FROM reconciliation_differences WHERE run_id = ? AND fence_token < ?");
    tx.terminal(query.bind(run).bind(token)).rows(0..).await
}

#[terminal_write]
async fn publish(tx: &mut FencedTx<'_, MySql>, run: i64, found: &[Difference]) -> Result<Written, Error> {
    let token = tx.fence_token();
    let rows: Vec<_> = found
        .iter()
        .map(|d| serde_json::json!([d.reference, d.kind.as_str(), d.booked_on, d.ours_cents, d.bank_cents]))
        .collect();
    // No arrays here either: the rows travel as JSON.
    let query = sqlx::query(
        "INSERT INTO reconciliation_differences
             (run_id, fence_token, reference, kind, booked_on, ours_cents, bank_cents)
         SELECT ?, ?, d.reference, d.kind, d.booked_on, d.ours_cents, d.bank_cents
         FROM JSON_TABLE(?, '$[*]' COLUMNS (
             reference varchar(200) PATH '$[0]', kind varchar(20) PATH '$[1]', booked_on date PATH '$[2]',
             ours_cents bigint PATH '$[3]', bank_cents bigint PATH '$[4]')) d
         WHERE EXISTS (SELECT 1 FROM reconciliation_runs WHERE run_id = ? AND fence_token = ?)",
    );
    let rows = serde_json::Value::from(rows).to_string();
    tx.terminal(query.bind(run).bind(token).bind(rows).bind(run).bind(token)).rows(found.len() as u64..).await
}

#[terminal_write]
async fn advance(tx: &mut FencedTx<'_, MySql>, run: i64, scanned: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query("UPDATE reconciliation_runs SET scanned = ? WHERE run_id = ? AND fence_token = ?");
    tx.terminal(query.bind(scanned).bind(run).bind(token)).await
}

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, MySql>, run: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query(
        "UPDATE reconciliation_runs
         SET status = 'succeeded', finished_at = UTC_TIMESTAMP(6), differences =
             (SELECT count(*) FROM reconciliation_differences d WHERE d.run_id = ? AND d.fence_token = ?)
         WHERE run_id = ? AND fence_token = ? AND status = 'running'",
    );
    tx.terminal(query.bind(run).bind(token).bind(run).bind(token)).await
}

impl Store for MySql {
    const WORD: &'static str = "mysql";

    async fn version(pool: &MySqlPool) -> sqlx::Result<String> {
        sqlx::query_scalar("SELECT IF(VERSION() LIKE '%MariaDB%', CONCAT('MariaDB ', SUBSTRING_INDEX(VERSION(), '-', 1)), CONCAT('MySQL ', VERSION()))").fetch_one(pool).await
    }

    async fn create_tables(pool: &MySqlPool) -> sqlx::Result<()> {
        pool.execute(sqlx::raw_sql(TABLES)).await.map(drop)
    }

    async fn schedule(pool: &MySqlPool, plan: &Plan) -> sqlx::Result<i64> {
        let query = sqlx::query("INSERT INTO reconciliation_runs (ours_entries, bank_entries, total) VALUES (?, ?, ?)");
        let done = query.bind(plan.ours_entries).bind(plan.bank_entries).bind(plan.total).execute(pool).await?;
        done.last_insert_id().try_into().map_err(|error| sqlx::Error::Decode(Box::new(error)))
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

    async fn run(pool: &MySqlPool, run: i64) -> sqlx::Result<Run> {
        let query = sqlx::query_as::<_, RunColumns>(
            "SELECT run_id, status, fence_token, owner_token, scanned, total, differences
             FROM reconciliation_runs WHERE run_id = ?",
        );
        Ok(query.bind(run).fetch_one(pool).await?.into())
    }

    async fn tallies(pool: &MySqlPool, run: i64) -> sqlx::Result<Vec<Tally>> {
        let query = sqlx::query_as::<_, (String, i64, i64)>(
            "SELECT kind, fence_token, count(*) FROM reconciliation_differences
             WHERE run_id = ? GROUP BY kind, fence_token ORDER BY kind, fence_token",
        );
        Ok(query.bind(run).fetch_all(pool).await?.into_iter().map(Tally::from).collect())
    }

    async fn look(options: &MySqlConnectOptions, lease: &str, run: i64) -> sqlx::Result<()> {
        let mut connection = sqlx::MySqlConnection::connect_with(options).await?;
        let mut tx = connection.begin().await?;
        for (row, key) in [
            ("SELECT 1 FROM fenced_job_leases WHERE lease_name = ? FOR UPDATE NOWAIT", lease),
            ("SELECT 1 FROM reconciliation_runs WHERE run_id = ? FOR UPDATE NOWAIT", &run.to_string()),
        ] {
            sqlx::query(row).bind(key).fetch_one(&mut *tx).await?;
        }
        tx.rollback().await?;
        connection.close().await
    }
}
