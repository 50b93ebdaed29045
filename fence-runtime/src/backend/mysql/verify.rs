//! Is everything in place on MySQL or MariaDB? Each answer names what is wrong and the statement that mends it.

use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row, mysql::MySqlRow};

use super::{
    super::{
        Tables,
        drift::{Column, MIGRATE, column, missing_column, missing_table, wrong, wrong_column},
    },
    READ_ONLY, REFUSED, number_of,
};
use crate::error::Error;

/// What `FORCE INDEX` says of a key that is not there or not visible.
const NO_SUCH_KEY: u16 = 1176;

/// No right to a database, a table, a column, a routine, or in general.
const DENIED: [u16; 5] = [1044, 1142, 1143, 1370, 1227];

const COLUMNS: [Column; 9] = [
    column("lease_name", &["varbinary(190)"]),
    column("owner_token", &["varbinary(64)"]),
    column("fence_token", &["bigint"]),
    column("leased_until", &["bigint"]),
    column("holder", &["varchar(255)"]),
    column("acquired_at", &["bigint"]),
    column("renewed_at", &["bigint"]),
    column("seals", &["bigint"]),
    column("progress", &["mediumtext", "longtext"]),
];

pub(super) async fn verify(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), Error> {
    // This connection is ours alone, and closed after it.
    let long = conn.execute("SET SESSION group_concat_max_len = 1000000").await;
    long.map_err(|error| Error::database("could not verify the lease table", error))?;
    let is_mariadb = server(conn).await?;
    let name = tables.leases();
    let table = tables.quoted_parts();
    let engine = rows(
        conn,
        format!(
            "SELECT COALESCE(ENGINE, ''), TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {}",
            table.0, table.1
        ),
    )
    .await?;
    let engine = engine.first().ok_or_else(|| missing_table(&name, MIGRATE))?;
    let (engine, kind) = (text(engine, 0)?, text(engine, 1)?);
    if kind != "BASE TABLE" {
        return Err(wrong(format!("{name} must be a table, found a {}", kind.to_ascii_lowercase())));
    }
    if !engine.eq_ignore_ascii_case("InnoDB") {
        return Err(wrong(format!(
            "table {name} is of engine {engine}, which has no row locks: run `ALTER TABLE {name} ENGINE = InnoDB`"
        )));
    }
    columns(conn, &name, &table).await?;
    keys(conn, &name, &table, is_mariadb).await?;
    privileges(conn, tables).await
}

/// True: it is MariaDB.
async fn server(conn: &mut MySqlConnection) -> Result<bool, Error> {
    let row =
        rows(conn, format!("SELECT VERSION(), @@GLOBAL.read_only, @@SESSION.{READ_ONLY}, COALESCE(DATABASE(), '')"))
            .await?;
    if text(first(&row)?, 3)?.is_empty() {
        return Err(wrong("the connection has no current database: put one into its URL"));
    }
    let version = text(first(&row)?, 0)?;
    let (is_mariadb, needed) = match version.contains("MariaDB") {
        true => (true, (10, 6, 0)),
        false => (false, (8, 0, 19)),
    };
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    if (part(), part(), part()) < needed {
        let product = if is_mariadb { "MariaDB" } else { "MySQL" };
        let (major, minor, patch) = needed;
        return Err(wrong(format!("{product} {version}: {major}.{minor}.{patch} or later is needed")));
    }
    // A user with the right to ignore it would not notice; ours must not be one to tell.
    if number(first(&row)?, 1)? != 0 {
        return Err(wrong("the server is read-only: connect to the primary"));
    }
    if number(first(&row)?, 2)? != 0 {
        return Err(wrong("the pool's sessions are read-only: fenced transactions must be able to write"));
    }
    let completion = rows(conn, "SELECT @@SESSION.completion_type".to_owned()).await?;
    let completion = text(first(&completion)?, 0)?;
    if !["NO_CHAIN", "0"].contains(&completion.as_str()) {
        return Err(wrong(format!(
            "completion_type = {completion} makes every COMMIT begin another transaction or close the connection: run \
             `SET GLOBAL completion_type = 'NO_CHAIN'` and connect anew"
        )));
    }
    let binlog = rows(conn, "SELECT @@GLOBAL.log_bin, @@SESSION.binlog_format".to_owned()).await?;
    if number(first(&binlog)?, 0)? != 0 && text(first(&binlog)?, 1)?.eq_ignore_ascii_case("STATEMENT") {
        return Err(wrong(
            "binlog_format = STATEMENT refuses every write at READ COMMITTED (error 1665): run `SET GLOBAL binlog_format = 'ROW'` \
             and connect anew",
        ));
    }
    one_writer(conn).await?;
    Ok(is_mariadb)
}

/// The lock of a guard is known to its own node only.
async fn one_writer(conn: &mut MySqlConnection) -> Result<(), Error> {
    let several = "SHOW GLOBAL VARIABLES WHERE (Variable_name = 'wsrep_on' AND Value = 'ON') \
                   OR (Variable_name = 'group_replication_single_primary_mode' AND Value = 'OFF')";
    let Some(row) = rows(conn, several.to_owned()).await?.pop() else { return Ok(()) };
    let (name, value) = (text(&row, 0)?, text(&row, 1)?);
    Err(wrong(format!(
        "{name} = {value}: the server is one of several that write, and a takeover on another of them passes the lock of a fenced \
         transaction here: use a server that is the only one to write (a cluster of the Galera kind is not; Group Replication is with \
         group_replication_single_primary_mode = ON)"
    )))
}

type Table = (String, String);

async fn columns(conn: &mut MySqlConnection, name: &str, table: &Table) -> Result<(), Error> {
    let found = rows(
        conn,
        format!(
            "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COALESCE(CHARACTER_SET_NAME, '') FROM information_schema.COLUMNS \
             WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {}",
            table.0, table.1
        ),
    )
    .await?;
    for wanted in &COLUMNS {
        let (column, wants) = (wanted.name, wanted.types[0]);
        let row = found.iter().find(|row| text(row, 0).is_ok_and(|c| c == column)).ok_or_else(|| {
            missing_column(name, column, &format!("ALTER TABLE {name} ADD COLUMN {column} {}", full(column, wants)))
        })?;
        // Display widths (`bigint(20)`) say nothing.
        let is = text(row, 1)?.to_ascii_lowercase();
        let is = if is.starts_with("bigint(") {
            is.replace(|c: char| c.is_ascii_digit() || "()".contains(c), "")
        } else {
            is
        };
        let mend = format!("ALTER TABLE {name} MODIFY COLUMN {column} {}", full(column, wants));
        if !wanted.types.contains(&is.as_str()) {
            return Err(wrong_column(name, column, &is, wants, &mend));
        }
        let charset = text(row, 3)?;
        if !charset.is_empty() && charset != "utf8mb4" {
            return Err(wrong_column(name, column, &format!("of character set {charset}"), "utf8mb4", &mend));
        }
        if column != "progress" && text(row, 2)? == "YES" {
            return Err(wrong_column(name, column, "nullable", "NOT NULL", &mend));
        }
    }
    Ok(())
}

fn full(column: &str, wants: &str) -> String {
    match column {
        "progress" => "MEDIUMTEXT CHARACTER SET utf8mb4".to_owned(),
        "holder" => "VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL DEFAULT ''".to_owned(),
        "lease_name" => format!("{wants} NOT NULL"),
        "owner_token" => format!("{wants} NOT NULL DEFAULT ''"),
        _ => format!("{wants} NOT NULL DEFAULT 0"),
    }
}

/// Both keys: one for renewals, one for guards.
async fn keys(conn: &mut MySqlConnection, name: &str, table: &Table, is_mariadb: bool) -> Result<(), Error> {
    let found = rows(
        conn,
        format!(
            "SELECT INDEX_NAME, GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX), MAX(NON_UNIQUE), MAX(SUB_PART IS NOT NULL) \
             FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {} GROUP BY INDEX_NAME",
            table.0, table.1
        ),
    )
    .await?;
    for (key, columns, drop, add) in [
        ("PRIMARY", "lease_name", "DROP PRIMARY KEY", "ADD PRIMARY KEY (lease_name)"),
        (
            "uq_fence",
            "lease_name,fence_token,owner_token",
            "DROP INDEX uq_fence",
            "ADD UNIQUE KEY uq_fence (lease_name, fence_token, owner_token)",
        ),
    ] {
        let row = found.iter().find(|row| text(row, 0).is_ok_and(|k| k == key));
        let Some(row) = row else {
            return Err(wrong(format!("table {name} has no key {key} ({columns}): run `ALTER TABLE {name} {add}`")));
        };
        let (is, loose) = (text(row, 1)?, number(row, 2)? != 0 || number(row, 3)? != 0);
        if is != columns || loose {
            return Err(wrong(format!(
                "key {key} of table {name} must be unique over ({columns}) in this order, found ({is}): run \
                 `ALTER TABLE {name} {drop}, {add}`"
            )));
        }
        // One that is invisible (MySQL) or ignored (MariaDB) is as good as none.
        let usable = format!("SELECT 1 FROM {name} FORCE INDEX ({key}) WHERE FALSE");
        if let Err(error) = conn.execute(AssertSqlSafe(usable)).await
            && number_of(&error) == Some(NO_SUCH_KEY)
        {
            let show = if is_mariadb { "NOT IGNORED" } else { "VISIBLE" };
            let mend = format!("ALTER TABLE {name} ALTER INDEX {key} {show}");
            return Err(
                wrong(format!("key {key} of table {name} is hidden from statements: run `{mend}`")).because(error)
            );
        }
    }
    Ok(())
}

/// Tries everything without changing anything.
async fn privileges(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), Error> {
    let (name, begin, end) = (tables.leases(), tables.name("fence_begin_v1"), tables.name("fence_end_v1"));
    for statement in [
        format!("UPDATE {name} SET seals = seals, leased_until = leased_until WHERE FALSE"),
        format!("INSERT INTO {name} (lease_name) SELECT lease_name FROM {name} WHERE FALSE"),
    ] {
        conn.execute(AssertSqlSafe(statement)).await.map_err(|error| {
            let what = if number_of(&error).is_some_and(|number| DENIED.contains(&number)) {
                format!("this user may not use table {name}: run `GRANT SELECT, INSERT, UPDATE ON {name} TO …`")
            } else {
                format!("table {name} cannot be written as it must be")
            };
            wrong(what).because(error)
        })?;
    }
    // Where the server commits nothing by itself, the questions above have begun a transaction.
    conn.execute("ROLLBACK").await.map_err(|error| Error::database("could not verify the lease table", error))?;
    let call = format!("CALL {begin}('', 0, '', 'READ COMMITTED', 60, NULL, NULL)");
    match conn.execute(sqlx::raw_sql(AssertSqlSafe(call))).await {
        Err(error) if number_of(&error) == Some(REFUSED) => {}
        Err(error) if matches!(number_of(&error), Some(1305)) => {
            return Err(wrong(format!("there is no procedure {begin}: {MIGRATE}")));
        }
        Err(error) if !number_of(&error).is_some_and(|number| DENIED.contains(&number)) => {
            return Err(wrong(format!("{begin} does not do what it must: {MIGRATE}")).because(error));
        }
        Err(error) => {
            return Err(wrong(format!(
                "this user may not call {begin}: run `GRANT EXECUTE ON PROCEDURE {begin} TO …` and the same for {end}"
            ))
            .because(error));
        }
        Ok(_) => return Err(wrong(format!("{begin} opened a transaction for a lease that nobody holds: {MIGRATE}"))),
    }
    // Outside a fenced transaction it has nothing to commit, and says so.
    match conn.execute(sqlx::raw_sql(AssertSqlSafe(format!("CALL {end}()")))).await {
        Err(error) if number_of(&error) == Some(REFUSED) => Ok(()),
        Err(error) if number_of(&error) == Some(1305) => Err(wrong(format!("there is no procedure {end}: {MIGRATE}"))),
        Err(error) => {
            Err(wrong(format!("this user may not call {end}: run `GRANT EXECUTE ON PROCEDURE {end} TO …`"))
                .because(error))
        }
        Ok(_) => Err(wrong(format!("{end} ended a transaction that nobody had opened: {MIGRATE}"))),
    }
}

async fn rows(conn: &mut MySqlConnection, sql: String) -> Result<Vec<MySqlRow>, Error> {
    let rows = conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await;
    rows.map_err(|error| Error::database("could not verify the lease table", error))
}

fn first(rows: &[MySqlRow]) -> Result<&MySqlRow, Error> {
    rows.first().ok_or_else(|| wrong("the server did not answer what it is"))
}

/// Whatever type the server gives a text there: each version has its own.
fn text(row: &MySqlRow, at: usize) -> Result<String, Error> {
    let value = row.try_get_unchecked::<Vec<u8>, _>(at);
    let value = value.map_err(|error| Error::database("could not verify the lease table", error))?;
    Ok(String::from_utf8_lossy(&value).into_owned())
}

fn number(row: &MySqlRow, at: usize) -> Result<i64, Error> {
    let value = text(row, at)?;
    Ok(value.parse().unwrap_or(i64::from(value.eq_ignore_ascii_case("ON"))))
}
