//! What became of a transaction on PostgreSQL, asked afterwards.

use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::{
    super::{
        FORGET_AT_ONCE, Identity, Tables, Trace, Verdict,
        drift::{MIGRATE, wrong},
        without_receipt,
    },
    CANCELED, code_of, name_of, short,
};
use crate::{error::Error, resolve::Resolve};

/// Which of its histories the server is on: a promotion begins another timeline, and recovery after a crash throws statistics away. Numbers of
/// transactions that had come after what was recovered are given out again.
const HISTORY: &str = "left(pg_walfile_name(pg_current_wal_lsn()), 8) || ' ' || \
    coalesce((SELECT extract(epoch FROM stats_reset)::text FROM pg_stat_bgwriter), '')";

const LOCKED: &str = "55P03";

pub(super) async fn verify(conn: &mut PgConnection, tables: &Tables, resolve: Resolve) -> Result<(), Error> {
    let receipts = tables.receipts();
    let (sql, what) = match resolve {
        Resolve::Receipts => (
            format!(
                "INSERT INTO {receipts} (lease_name, fence_token, receipt) SELECT '', 1, '' WHERE false; \
                 DELETE FROM {receipts} WHERE false; SELECT 1 FROM {receipts} WHERE false"
            ),
            format!(
                "receipts cannot be written: {MIGRATE}, and `GRANT SELECT, INSERT, DELETE ON {receipts} TO …` for this role"
            ),
        ),
        Resolve::TransactionStatus => (
            format!("SELECT txid_status(txid_current()), {HISTORY}"),
            "the status of transactions cannot be asked for: use `Resolve::Receipts`".to_owned(),
        ),
    };
    let done = conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
    done.map(drop).map_err(|error| wrong(what).because(error))
}

/// Goes behind the guard, in the same message.
pub(super) fn write_receipt(tables: &Tables, id: &Identity, receipt: &str) -> String {
    format!("; {}", insert(tables, id, receipt))
}

fn insert(tables: &Tables, id: &Identity, receipt: &str) -> String {
    let (receipts, name) = (tables.receipts(), name_of(&id.name));
    format!("INSERT INTO {receipts} (lease_name, fence_token, receipt) VALUES ({name}, {}, '{receipt}')", id.token)
}

/// Of the transaction that was just opened: the lock of its guard has given it a number already.
pub(super) async fn trace(
    conn: &mut PgConnection,
    mark: &str,
    resolve: Option<Resolve>,
) -> Result<Option<Trace>, sqlx::Error> {
    match resolve {
        None => Ok(None),
        Some(Resolve::Receipts) => Ok(Some(Trace::Receipt(mark.to_owned()))),
        Some(Resolve::TransactionStatus) => {
            let sql = format!("SELECT txid_current_if_assigned()::text, {HISTORY}");
            let row = conn.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
            let number: Option<String> = row.try_get(0)?;
            let history = row.try_get(1)?;
            Ok(number.map(|number| Trace::Number(number, history)))
        }
    }
}

pub(super) async fn look_up(
    conn: &mut PgConnection,
    tables: &Tables,
    id: &Identity,
    trace: &Trace,
) -> Result<Verdict, sqlx::Error> {
    match trace {
        Trace::Receipt(receipt) => receipt_of(conn, tables, id, receipt).await,
        Trace::Number(number, history) => {
            let sql = format!(
                "SELECT CASE WHEN {HISTORY} = '{history}' THEN coalesce(txid_status({number}), 'too old') ELSE 'another' END"
            );
            let row = conn.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
            Ok(match row.try_get::<String, _>(0)?.as_str() {
                "committed" => Verdict::Committed,
                "aborted" => Verdict::RolledBack,
                "in progress" => Verdict::Open,
                "too old" => {
                    Verdict::Unknown("the answer to COMMIT was lost, and the server has forgotten its transaction")
                }
                _ => Verdict::Unknown(
                    "the answer to COMMIT was lost, and the server has failed over or crashed since (or its statistics were reset)",
                ),
            })
        }
    }
}

/// Only an insert meets a row of a transaction that has not ended: it waits for it.
async fn receipt_of(
    conn: &mut PgConnection,
    tables: &Tables,
    id: &Identity,
    receipt: &str,
) -> Result<Verdict, sqlx::Error> {
    let sql = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE; SET LOCAL lock_timeout = '200ms'; \
         WITH made AS ({} ON CONFLICT DO NOTHING RETURNING 1) SELECT count(*) FROM made; \
         SELECT fence_token FROM {} WHERE lease_name = {}; ROLLBACK",
        insert(tables, id, receipt),
        tables.leases(),
        name_of(&id.name)
    );
    let rows = match conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await {
        Ok(rows) => rows,
        Err(error) if code_of(&error).is_some_and(|code| code == LOCKED || code == CANCELED) => {
            conn.execute("ROLLBACK").await?;
            return Ok(Verdict::Open);
        }
        Err(error) => return Err(error),
    };
    let made: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    if made == 0 {
        return Ok(Verdict::Committed);
    }
    Ok(without_receipt(id, rows.get(1).map(|row| row.try_get(0)).transpose()?))
}

pub(super) async fn forget(conn: &mut PgConnection, tables: &Tables, id: &Identity) -> Result<u64, sqlx::Error> {
    let (receipts, name, token) = (tables.receipts(), name_of(&id.name), id.token.get());
    let body = format!(
        "WITH gone AS (DELETE FROM {receipts} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {receipts} WHERE lease_name = {name} \
          AND (fence_token = {token} OR fence_token < {token} - 1) LIMIT {FORGET_AT_ONCE})) RETURNING 1) SELECT count(*) FROM gone"
    );
    let rows = short(conn, &body).await?;
    let gone: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(gone.unsigned_abs())
}
