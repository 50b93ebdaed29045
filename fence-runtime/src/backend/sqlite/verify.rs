//! Is everything in place on SQLite? Each answer names what is wrong and how to mend it.

use sqlx::{AssertSqlSafe, Executor, Row, SqliteConnection};

use super::super::{
    Tables,
    drift::{Column, MIGRATE, column, missing_column, missing_table, wrong, wrong_column},
};
use crate::error::Error;

const COLUMNS: [Column; 9] = [
    column("lease_name", &["TEXT"]),
    column("owner_token", &["TEXT"]),
    column("fence_token", &["INTEGER"]),
    column("leased_until", &["INTEGER"]),
    column("holder", &["TEXT"]),
    column("acquired_at", &["INTEGER"]),
    column("renewed_at", &["INTEGER"]),
    column("seals", &["INTEGER"]),
    column("progress", &["TEXT"]),
];

/// With the time that a COMMIT is tried again, less than anybody waits for an answer.
const MOST_BUSY_MS: i64 = 15_000;

/// SQLite cannot change a column in place.
const REBUILD: &str = "ALTER TABLE … RENAME TO …_old, run the migration, copy the rows over";

pub(super) async fn verify(conn: &mut SqliteConnection, tables: &Tables) -> Result<(), Error> {
    let ask = |e| Error::database("could not verify the lease table", e);
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *conn).await.map_err(ask)?;
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (3, 37) {
        return Err(wrong(format!("SQLite {version}: 3.37 or later is needed")));
    }
    let read_only: i64 = sqlx::query_scalar("PRAGMA query_only").fetch_one(&mut *conn).await.map_err(ask)?;
    if read_only != 0 {
        return Err(wrong("the pool's connections are `query_only`: fenced transactions must be able to write"));
    }
    let locking: String = sqlx::query_scalar("PRAGMA locking_mode").fetch_one(&mut *conn).await.map_err(ask)?;
    if locking != "normal" {
        return Err(wrong(format!(
            "the pool's connections have locking mode {locking}, which shuts the keeper out: use the normal one"
        )));
    }

    let busy: i64 = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(&mut *conn).await.map_err(ask)?;
    if busy > MOST_BUSY_MS {
        return Err(wrong(format!(
            "the pool's busy timeout is {busy} ms and may be at most {MOST_BUSY_MS}, so that a COMMIT ends before it is given up: set \
             `busy_timeout` on the connect options"
        )));
    }

    let name = tables.leases();
    let table: Option<(String, i64)> =
        sqlx::query_as("SELECT type, strict FROM pragma_table_list WHERE schema = 'main' AND name = ?")
            .bind(&name)
            .fetch_optional(&mut *conn)
            .await
            .map_err(ask)?;
    let (kind, strict) = table.ok_or_else(|| missing_table(&name, MIGRATE))?;
    if kind != "table" {
        return Err(wrong(format!("{name} is a {kind} and must be a table: {MIGRATE}")));
    }
    let found = sqlx::query(AssertSqlSafe(format!("SELECT name, upper(type), pk FROM pragma_table_info('{name}')")))
        .fetch_all(&mut *conn)
        .await
        .map_err(ask)?;
    let mut key = Vec::new();
    for row in &found {
        if row.try_get::<i64, _>(2).map_err(ask)? > 0 {
            key.push(row.try_get::<String, _>(0).map_err(ask)?);
        }
    }
    for wanted in &COLUMNS {
        let (column, wants) = (wanted.name, wanted.types[0]);
        let row = found
            .iter()
            .find(|row| row.try_get::<String, _>(0).is_ok_and(|c| c == column))
            .ok_or_else(|| missing_column(&name, column, &format!("ALTER TABLE {name} ADD COLUMN {column} {wants}")))?;
        let is: String = row.try_get(1).map_err(ask)?;
        if !wanted.types.contains(&is.as_str()) {
            return Err(wrong_column(&name, column, &is, wants, REBUILD));
        }
    }
    if key != ["lease_name"] {
        return Err(wrong(format!(
            "the primary key of table {name} must be (lease_name), found ({}): run `{REBUILD}`",
            key.join(", ")
        )));
    }
    let collation: Option<String> = sqlx::query_scalar(
        "SELECT x.coll FROM pragma_index_list(?) i, pragma_index_xinfo(i.name) x WHERE i.origin = 'pk' AND x.name = 'lease_name'",
    )
    .bind(&name)
    .fetch_optional(&mut *conn)
    .await
    .map_err(ask)?;
    if let Some(other) = collation.filter(|collation| collation != "BINARY") {
        return Err(wrong_column(&name, "lease_name", &format!("of collation {other}"), "compared as bytes", REBUILD));
    }
    if strict == 0 {
        return Err(wrong(format!("table {name} is not STRICT, so a column can hold any type: run `{REBUILD}`")));
    }
    // Changes nothing, but wants to: a file that may only be read is found out now and not by the first job.
    match conn.execute(AssertSqlSafe(format!("UPDATE {name} SET seals = seals WHERE false"))).await {
        Err(error) if !super::is_busy(&error) => {
            Err(wrong("the file may only be read, and fenced transactions must be able to write").because(error))
        }
        _ => Ok(()),
    }
}
