//! The application's SQL for PostgreSQL.

use fence_runtime::{Error, FencedTx, Written, terminal_write};
use sqlx::{Connection, Executor, PgPool, Postgres, postgres::PgConnectOptions};

use super::{Plan, Run, RunColumns, Store, Tally};
use crate::ledger::Difference;

/// Under a lock, because two demos that start at once would both find the tables missing.
const TABLES: &str = "
    SELECT pg_advisory_xact_lock(hashtextextended('reconciliation tables', 0));
    CREATE TABLE IF NOT EXISTS reconciliation_runs (
        run_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        fence_token bigint NOT NULL DEFAULT 0,
        owner_token text,
        status text NOT NULL DEFAULT 'scheduled' CHECK (status IN ('scheduled', 'running', 'succeeded')),
        ours_entries bigint NOT NULL,
        bank_entries bigint NOT NULL,
        scanned bigint NOT NULL DEFAULT 0,
        total bigint NOT NULL,
        differences bigint,
        scheduled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        claimed_at timestamptz,
        finished_at timestamptz);
    CREATE TABLE IF NOT EXISTS reconciliation_differences (
        run_id bigint NOT NULL REFERENCES reconciliation_runs,
        reference text NOT NULL,
        fence_token bigint NOT NULL,
        kind text NOT NULL CHECK (kind IN ('missing_at_bank', 'missing_in_books', 'other_amount')),
        booked_on date NOT NULL,
        ours_cents bigint,
        bank_cents bigint,
        PRIMARY KEY (run_id, reference));";

#[terminal_write]
async fn claim(tx: &mut FencedTx<'_, Postgres>, run: i64) -> Result<Written, Error> {
    let (token, owner) = (tx.fence_token(), tx.owner_token().to_string());
    let query = sqlx::query(
        "UPDATE reconciliation_runs
         SET fence_token = $2, owner_token = $3, status = 'running', scanned = 0, claimed_at = clock_timestamp()
         WHERE run_id = $1 AND fence_token < $2 AND status <> 'succeeded'",
    );
    tx.terminal(query.bind(run).bind(token).bind(owner)).await
}

#[terminal_write]
async fn delete_leftovers(tx: &mut FencedTx<'_, Postgres>, run: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query("DELETE FROM reconciliation_differences WHERE run_id = $1 AND fence_token < $2");
    tx.terminal(query.bind(run).bind(token)).rows(0..).await
}

#[terminal_write]
async fn publish(tx: &mut FencedTx<'_, Postgres>, run: i64, found: &[Difference]) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query(
        "INSERT INTO reconciliation_differences
             (run_id, fence_token, reference, kind, booked_on, ours_cents, bank_cents)
         SELECT $1, $2, d.reference, d.kind, d.booked_on::date, d.ours_cents, d.bank_cents
         FROM unnest($3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
             AS d (reference, kind, booked_on, ours_cents, bank_cents)
         WHERE EXISTS (SELECT FROM reconciliation_runs WHERE run_id = $1 AND fence_token = $2)",
    )
    .bind(run)
    .bind(token)
    .bind(found.iter().map(|d| d.reference.clone()).collect::<Vec<_>>())
    .bind(found.iter().map(|d| d.kind.as_str().to_owned()).collect::<Vec<_>>())
    .bind(found.iter().map(|d| d.booked_on.clone()).collect::<Vec<_>>())
    .bind(found.iter().map(|d| d.ours_cents).collect::<Vec<_>>())
    .bind(found.iter().map(|d| d.bank_cents).collect::<Vec<_>>());
    tx.terminal(query).rows(found.len() as u64..).await
}

#[terminal_write]
async fn advance(tx: &mut FencedTx<'_, Postgres>, run: i64, scanned: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query("UPDATE reconciliation_runs SET scanned = $3 WHERE run_id = $1 AND fence_token = $2");
    tx.terminal(query.bind(run).bind(token).bind(scanned)).await
}

#[terminal_write]
async fn finish(tx: &mut FencedTx<'_, Postgres>, run: i64) -> Result<Written, Error> {
    let token = tx.fence_token();
    let query = sqlx::query(
        "UPDATE reconciliation_runs
         SET status = 'succeeded', finished_at = clock_timestamp(), differences =
             (SELECT count(*) FROM reconciliation_differences d WHERE d.run_id = $1 AND d.fence_token = $2)
         WHERE run_id = $1 AND fence_token = $2 AND status = 'running'",
    );
    tx.terminal(query.bind(run).bind(token)).await
}

impl Store for Postgres {
    const WORD: &'static str = "postgres";

    async fn version(pool: &PgPool) -> sqlx::Result<String> {
        sqlx::query_scalar("SELECT 'PostgreSQL ' || current_setting('server_version')").fetch_one(pool).await
    }

    async fn create_tables(pool: &PgPool) -> sqlx::Result<()> {
        // Several statements in one message are one transaction.
        pool.execute(sqlx::raw_sql(TABLES)).await.map(drop)
    }

    async fn schedule(pool: &PgPool, plan: &Plan) -> sqlx::Result<i64> {
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

    async fn run(pool: &PgPool, run: i64) -> sqlx::Result<Run> {
        let query = sqlx::query_as::<_, RunColumns>(
            "SELECT run_id, status, fence_token, owner_token, scanned, total, differences
             FROM reconciliation_runs WHERE run_id = $1",
        );
        Ok(query.bind(run).fetch_one(pool).await?.into())
    }

    async fn tallies(pool: &PgPool, run: i64) -> sqlx::Result<Vec<Tally>> {
        let query = sqlx::query_as::<_, (String, i64, i64)>(
            "SELECT kind, fence_token, count(*) FROM reconciliation_differences
             WHERE run_id = $1 GROUP BY kind, fence_token ORDER BY kind, fence_token",
        );
        Ok(query.bind(run).fetch_all(pool).await?.into_iter().map(Tally::from).collect())
    }

    async fn look(options: &PgConnectOptions, lease: &str, run: i64) -> sqlx::Result<()> {
        let mut connection = sqlx::PgConnection::connect_with(options).await?;
        let mut tx = connection.begin().await?;
        for (row, key) in [
            ("SELECT 1 FROM fenced_job_leases WHERE lease_name = $1 FOR UPDATE NOWAIT", lease),
            ("SELECT 1 FROM reconciliation_runs WHERE run_id = $1::bigint FOR UPDATE NOWAIT", &run.to_string()),
        ] {
            sqlx::query(row).bind(key).fetch_one(&mut *tx).await?;
        }
        tx.rollback().await?;
        connection.close().await
    }
}
