//! Receipts of transactions on SQLite.

use sqlx::{AssertSqlSafe, Executor, Row, SqliteConnection};

use super::{
    super::{
        FORGET_AT_ONCE, Identity, Tables, Trace, Verdict,
        drift::{MIGRATE, no_status, wrong},
        without_receipt,
    },
    short, text,
};
use crate::{error::Error, resolve::Resolve};

/// In the place of a token, which is never below 1: the receipt is there.
const FOUND: i64 = -1;

pub(super) async fn verify(conn: &mut SqliteConnection, tables: &Tables, resolve: Resolve) -> Result<(), Error> {
    if resolve == Resolve::TransactionStatus {
        return Err(no_status("SQLite"));
    }
    let sql = format!("SELECT lease_name, fence_token, receipt FROM {} WHERE false", tables.receipts());
    let found = conn.execute(AssertSqlSafe(sql)).await;
    found.map(drop).map_err(|error| wrong(format!("receipts cannot be written: {MIGRATE}")).because(error))
}

pub(super) async fn write(conn: &mut SqliteConnection, tables: &Tables, id: &Identity) -> Result<Trace, sqlx::Error> {
    let receipt = uuid::Uuid::new_v4().simple().to_string();
    // Bound, so that it is prepared once on each connection.
    let sql = format!("INSERT INTO {} (lease_name, fence_token, receipt) VALUES (?, ?, ?)", tables.receipts());
    sqlx::query(AssertSqlSafe(sql)).bind(id.name.as_str()).bind(id.token.get()).bind(&receipt).execute(conn).await?;
    Ok(Trace::Receipt(receipt))
}

/// A transaction that has not ended is in the way of this one: that is contention.
pub(super) async fn look_up(
    conn: &mut SqliteConnection,
    tables: &Tables,
    id: &Identity,
    trace: &Trace,
) -> Result<Verdict, sqlx::Error> {
    let Trace::Receipt(receipt) = trace else {
        return Ok(Verdict::Unknown("the answer to COMMIT was lost, and no receipt was written"));
    };
    let name = text(id.name.as_str());
    let receipt = format!(
        "SELECT {FOUND} FROM {} WHERE lease_name = {name} AND fence_token = {} AND receipt = '{receipt}'",
        tables.receipts(),
        id.token
    );
    let lease = format!("SELECT fence_token FROM {} WHERE lease_name = {name}", tables.leases());
    let rows = short(conn, &[receipt, lease]).await?;
    match rows.first().map(|row| row.try_get(0)).transpose()? {
        Some(FOUND) => Ok(Verdict::Committed),
        token => Ok(without_receipt(id, token)),
    }
}

pub(super) async fn forget(conn: &mut SqliteConnection, tables: &Tables, id: &Identity) -> Result<u64, sqlx::Error> {
    let (receipts, name, token) = (tables.receipts(), text(id.name.as_str()), id.token.get());
    let sql = format!(
        "DELETE FROM {receipts} WHERE (lease_name, fence_token, receipt) IN (SELECT lease_name, fence_token, receipt FROM {receipts} \
         WHERE lease_name = {name} AND (fence_token = {token} OR fence_token < {token} - 1) LIMIT {FORGET_AT_ONCE})"
    );
    let rows = short(conn, &[sql, "SELECT changes()".to_owned()]).await?;
    let gone: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(gone.unsigned_abs())
}
