//! Receipts of transactions on MySQL and MariaDB.

use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};

use super::{
    super::{
        FORGET_AT_ONCE, Identity, Tables, Trace, Verdict,
        drift::{MIGRATE, no_status, wrong},
        without_receipt,
    },
    bytes, number_of, short,
};
use crate::{error::Error, resolve::Resolve};

/// What `NOWAIT` says of a row that somebody has locked: MySQL, MariaDB.
const LOCKED: [u16; 2] = [3572, 1205];
/// In the place of a token, which is never below 0: the receipt is there.
const FOUND: i64 = -1;

pub(super) async fn verify(conn: &mut MySqlConnection, tables: &Tables, resolve: Resolve) -> Result<(), Error> {
    let receipts = tables.receipts();
    if resolve == Resolve::TransactionStatus {
        return Err(no_status("MySQL or MariaDB"));
    }
    for statement in [
        format!("INSERT INTO {receipts} (lease_name, fence_token, receipt) SELECT '', 1, '' FROM DUAL WHERE FALSE"),
        format!("DELETE FROM {receipts} WHERE FALSE"),
        format!("SELECT 1 FROM {receipts} WHERE FALSE FOR UPDATE"),
        // Where the server commits nothing by itself, these have begun a transaction.
        "ROLLBACK".to_owned(),
    ] {
        conn.execute(AssertSqlSafe(statement)).await.map_err(|error| {
            wrong(format!(
                "receipts cannot be written: {MIGRATE}, and `GRANT SELECT, INSERT, DELETE ON {receipts} TO …` for this user"
            ))
            .because(error)
        })?;
    }
    Ok(())
}

/// Goes behind the guard, in the same message.
pub(super) fn write(tables: &Tables, id: &Identity, receipt: &str) -> String {
    format!(
        "INSERT INTO {} (lease_name, fence_token, receipt) VALUES ({}, {}, '{receipt}'); ",
        tables.receipts(),
        bytes(id.name.as_str()),
        id.token
    )
}

/// The row of a transaction that has not ended is locked, and whoever will not wait is told so.
pub(super) async fn look_up(
    conn: &mut MySqlConnection,
    tables: &Tables,
    id: &Identity,
    trace: &Trace,
) -> Result<Verdict, sqlx::Error> {
    let Trace::Receipt(receipt) = trace else {
        return Ok(Verdict::Unknown("the answer to COMMIT was lost, and no receipt was written"));
    };
    let name = bytes(id.name.as_str());
    let body = format!(
        "SELECT {FOUND} FROM {} WHERE lease_name = {name} AND fence_token = {} AND receipt = '{receipt}' FOR UPDATE NOWAIT; \
         SELECT fence_token FROM {} WHERE lease_name = {name}",
        tables.receipts(),
        id.token,
        tables.leases()
    );
    match short(conn, &body).await {
        Ok(rows) => match rows.first().map(|row| row.try_get(0)).transpose()? {
            Some(FOUND) => Ok(Verdict::Committed),
            token => Ok(without_receipt(id, token)),
        },
        Err(error) if number_of(&error).is_some_and(|number| LOCKED.contains(&number)) => {
            conn.execute("ROLLBACK").await?;
            Ok(Verdict::Open)
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn forget(conn: &mut MySqlConnection, tables: &Tables, id: &Identity) -> Result<u64, sqlx::Error> {
    let (name, token) = (bytes(id.name.as_str()), id.token.get());
    let body = format!(
        "DELETE FROM {} WHERE lease_name = {name} AND (fence_token = {token} OR fence_token < {token} - 1) LIMIT {FORGET_AT_ONCE}; \
         SELECT CAST(ROW_COUNT() AS SIGNED)",
        tables.receipts()
    );
    let rows = short(conn, &body).await?;
    let gone: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(gone.unsigned_abs())
}
