//! Is everything in place on PostgreSQL? Each answer names what is wrong and the statement that mends it.

use sqlx::{PgConnection, Row};

use super::super::{
    Tables,
    drift::{Column, MIGRATE, column, missing_column, missing_table, wrong, wrong_column},
};
use crate::error::Error;

// A time zone is not optional: `timestamp` moves with the zone of each session. Whole seconds would round a deadline.
const INSTANT: &[&str] = &[
    "timestamp with time zone",
    "timestamp(6) with time zone",
    "timestamp(5) with time zone",
    "timestamp(4) with time zone",
    "timestamp(3) with time zone",
];

const COLUMNS: [Column; 9] = [
    column("lease_name", &["text", "character varying", "character varying(190)"]),
    column("owner_token", &["text", "character varying"]),
    column("fence_token", &["bigint"]),
    column("leased_until", INSTANT),
    column("holder", &["text", "character varying"]),
    column("acquired_at", INSTANT),
    column("renewed_at", INSTANT),
    column("seals", &["bigint"]),
    column("progress", &["text", "character varying"]),
];

pub(super) async fn verify(conn: &mut PgConnection, tables: &Tables) -> Result<(), Error> {
    let ask = |e| Error::database("could not verify the lease table", e);
    let server = sqlx::query("SELECT current_setting('server_version_num')::int, pg_is_in_recovery()")
        .fetch_one(&mut *conn)
        .await
        .map_err(ask)?;
    let version: i32 = server.try_get(0).map_err(ask)?;
    if version < 120_000 {
        return Err(wrong(format!("PostgreSQL {}: 12 or later is needed", version / 10_000)));
    }
    if server.try_get(1).map_err(ask)? {
        return Err(wrong("the server is a read-only standby: connect to the primary"));
    }

    let name = tables.leases();
    let table = sqlx::query(
        "SELECT c.oid::bigint, c.relpersistence::text, c.relkind::text, \
         has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE') \
         FROM pg_class c WHERE c.oid = to_regclass($1)",
    )
    .bind(&name)
    .fetch_optional(&mut *conn)
    .await
    .map_err(|error| may_not_enter(tables, &error).unwrap_or_else(|| ask(error)))?
    .ok_or_else(|| missing_table(&name, MIGRATE))?;
    let oid: i64 = table.try_get(0).map_err(ask)?;
    if table.try_get::<String, _>(1).map_err(ask)? != "p" {
        return Err(wrong(format!(
            "table {name} is unlogged or temporary, so a crash would set its tokens back: run `ALTER TABLE {name} SET LOGGED`"
        )));
    }
    if !["r", "p"].contains(&table.try_get::<String, _>(2).map_err(ask)?.as_str()) {
        return Err(wrong(format!("{name} is not a table: its rows cannot be locked; {MIGRATE}")));
    }

    columns(conn, &name, oid).await?;
    primary_key(conn, &name, oid).await?;
    if !table.try_get::<bool, _>(3).map_err(ask)? {
        return Err(wrong(format!(
            "this role may not use table {name}: run `GRANT SELECT, INSERT, UPDATE ON {name} TO …`"
        )));
    }
    function(conn, tables).await
}

/// Without a right on the schema, PostgreSQL does not say what is in it.
fn may_not_enter(tables: &Tables, error: &sqlx::Error) -> Option<Error> {
    let denied = error.as_database_error()?.code()? == "42501";
    let (schema, _) = tables.prefix().split_once('.')?;
    denied.then(|| wrong(format!("this role may not use schema {schema}: run `GRANT USAGE ON SCHEMA {schema} TO …`")))
}

async fn columns(conn: &mut PgConnection, name: &str, oid: i64) -> Result<(), Error> {
    let ask = |e| Error::database("could not verify the lease table", e);
    // `quote_all_identifiers` puts types in quotes too.
    let found = sqlx::query(
        "SELECT a.attname::text, replace(format_type(a.atttypid, a.atttypmod), '\"', ''), coalesce(c.collisdeterministic, true) \
         FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation \
         WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped",
    )
    .bind(oid)
    .fetch_all(&mut *conn)
    .await
    .map_err(ask)?;
    for wanted in &COLUMNS {
        let (column, wants) = (wanted.name, wanted.types[0]);
        let row = found
            .iter()
            .find(|row| row.try_get::<String, _>(0).is_ok_and(|c| c == column))
            .ok_or_else(|| missing_column(name, column, &format!("ALTER TABLE {name} ADD COLUMN {column} {wants}")))?;
        let is: String = row.try_get(1).map_err(ask)?;
        let mend = format!("ALTER TABLE {name} ALTER COLUMN {column} TYPE {wants}");
        if !wanted.types.contains(&is.as_str()) {
            return Err(wrong_column(name, column, &is, wants, &mend));
        }
        if !row.try_get::<bool, _>(2).map_err(ask)? {
            let mend = format!("{mend} COLLATE \"C\"");
            return Err(wrong_column(name, column, "of a nondeterministic collation", "compared as bytes", &mend));
        }
    }
    Ok(())
}

async fn primary_key(conn: &mut PgConnection, name: &str, oid: i64) -> Result<(), Error> {
    let keys: Vec<String> = sqlx::query_scalar(
        "SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
         WHERE i.indrelid = $1::bigint::oid AND i.indisprimary AND i.indimmediate AND i.indisvalid",
    )
    .bind(oid)
    .fetch_all(conn)
    .await
    .map_err(|e| Error::database("could not verify the lease table", e))?;
    if keys != ["lease_name"] {
        return Err(wrong(format!(
            "the primary key of table {name} must be (lease_name), found ({}): run `ALTER TABLE {name} ADD PRIMARY KEY (lease_name)`",
            keys.join(", ")
        )));
    }
    Ok(())
}

async fn function(conn: &mut PgConnection, tables: &Tables) -> Result<(), Error> {
    let function = format!("{}(text,text,bigint,text,text,text)", tables.name("fence_begin_v1"));
    let may: Option<bool> = sqlx::query_scalar("SELECT has_function_privilege(to_regprocedure($1)::oid, 'EXECUTE')")
        .bind(&function)
        .fetch_one(conn)
        .await
        .map_err(|e| Error::database("could not verify the function that opens a fenced transaction", e))?;
    match may {
        Some(true) => Ok(()),
        Some(false) => {
            Err(wrong(format!("this role may not call {function}: run `GRANT EXECUTE ON FUNCTION {function} TO …`")))
        }
        None => Err(wrong(format!("there is no function {function}: {MIGRATE}"))),
    }
}
