//! MySQL 8.0.19 and MariaDB 10.6, or later: all their SQL. What differs between the two stands in comments that only one of them reads
//! (`/*!80000 … */` MySQL, `/*M!100600 … */` MariaDB).
//!
//! A fenced transaction share-locks the lease's record in `uq_fence`: a takeover, which changes the token in it, waits or goes away; a
//! renewal, which changes none of its columns, passes as long as it is pinned to PRIMARY. Left to the optimizer it would take `uq_fence` once
//! the table is large, and wait for our own guard.

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Database, Encode, Executor, MySql, MySqlConnection, Row, SqlSafeStr, Type,
    encode::IsNull,
    error::BoxDynError,
    mysql::{MySqlConnectOptions, MySqlQueryResult, MySqlRow},
};
use sqlx_core::transaction::TransactionManager;

use super::{
    Backend, Claim, Ending, Fit, Identity, Isolation, LeaseRow, NotOpened, Opening, Protocol, Renewal, RolledBack,
    Tables, Trace, Verdict, hex,
};
use crate::{
    error::{Error, ErrorKind},
    lease::{LeaseName, OwnerToken},
    resolve::Resolve,
    statement::Dialect,
};
use batch::{OWNERS, change, wanted};
use errno::{
    ENDED_EARLY, IN_TRANSACTION, NO_SUCH_SAVEPOINT, NOT_COMMITTED, PASSING, REFUSED, TABLE_LOCKED, TABLES_LOCKED,
    is_about, number_of,
};
use session::{READ_ONLY, STATEMENT_LIMIT_BACK, is_mark, put_back};

mod batch;
mod errno;
mod receipts;
mod session;
mod verify;

type Depth = <MySql as Database>::TransactionManager;

/// How often a free lease is tried that somebody has locked.
const ACQUIRE_TRIES: usize = 4;

impl Backend for MySql {
    type Protocol = My;
}

/// The protocol on MySQL and MariaDB.
pub enum My {}

impl Protocol for My {
    type Db = MySql;
    const NAME: &'static str = "MySQL or MariaDB";
    const DIALECT: Dialect = Dialect::MySql;
    const QUOTE: char = '`';
    const GUARD_RENEWS: bool = false;
    const MIGRATIONS: &'static [(i64, &'static str, &'static str)] = &[
        (1, "leases", include_str!("../../migrations/mysql/0001_leases.sql")),
        (2, "receipts", include_str!("../../migrations/mysql/0002_receipts.sql")),
    ];
    /// Names the savepoint that dies with the transaction, and proves that an answer belongs to its question. Nobody can guess it.
    type Mark = String;

    fn executor(conn: &mut MySqlConnection) -> impl Executor<'_, Database = MySql> {
        conn
    }

    fn rows(result: &MySqlQueryResult) -> u64 {
        result.rows_affected()
    }

    fn number_type() -> <MySql as Database>::TypeInfo {
        <i64 as Type<MySql>>::type_info()
    }

    fn is_number(ty: &<MySql as Database>::TypeInfo) -> bool {
        <i64 as Type<MySql>>::compatible(ty)
    }

    fn encode_number(number: i64, buffer: &mut <MySql as Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<MySql>::encode(number, buffer)
    }

    fn keeper_options(options: MySqlConnectOptions) -> MySqlConnectOptions {
        options
    }

    async fn locate(conn: &mut MySqlConnection, schema: Option<&str>, prefix: &str) -> Result<Tables, Error> {
        let row = conn.fetch_one("SELECT DATABASE()").await;
        let current = row.and_then(|row| row.try_get::<Option<String>, _>(0));
        let current = current.map_err(|e| Error::database("could not ask for the current database", e))?;
        let current = current.ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                // MySQL refuses a renewal without one, and so does sqlx to migrate.
                "the connection has no current database: put one into its URL, even where `.schema(\"…\")` names another",
            )
        })?;
        Tables::new(Self::QUOTE, Some(schema.unwrap_or(&current)), prefix)
    }

    async fn verify(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), Error> {
        verify::verify(conn, tables).await
    }

    async fn verify_resolve(conn: &mut MySqlConnection, tables: &Tables, resolve: Resolve) -> Result<(), Error> {
        receipts::verify(conn, tables, resolve).await
    }

    fn is_contention(error: &sqlx::Error) -> bool {
        number_of(error).is_some_and(|number| PASSING.contains(&number) || number == IN_TRANSACTION)
    }

    async fn acquire(
        conn: &mut MySqlConnection,
        tables: &Tables,
        name: &LeaseName,
        owner: OwnerToken,
        ttl: Duration,
        holder: &str,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n, ttl) = (tables.leases(), bytes(name.as_str()), ttl.as_micros());
        // Lock first, then read the clock. SKIP LOCKED: a contender never queues behind a fenced transaction of the old holder. Nor does
        // the UPDATE behind whoever has the row: it looks for the name that was locked, so that where none was it comes to no row at all.
        let body = format!(
            "SET @fence_lease = NULL; SELECT lease_name, fence_token INTO @fence_lease, @fence_token FROM {t} FORCE INDEX (uq_fence) \
              WHERE lease_name = {n} AND leased_until <= {NOW} FOR UPDATE SKIP LOCKED; \
             UPDATE {t} FORCE INDEX (PRIMARY) SET owner_token = {}, fence_token = fence_token + 1, leased_until = {NOW} + {ttl}, \
              holder = {}, acquired_at = {NOW}, renewed_at = {NOW}, progress = NULL \
              WHERE lease_name = @fence_lease AND fence_token = @fence_token AND leased_until <= {NOW}; {}",
            bytes(&owner.to_string()),
            text(holder),
            select_row(tables, name)
        );
        let (mut tries, mut made) = (0, false);
        loop {
            let Some(row) = short(conn, &body).await?.pop() else {
                if made {
                    return Ok(None);
                }
                // The first time ever. On its own, because an insert and a locking read in one transaction deadlock.
                made = true;
                short(conn, &format!("INSERT IGNORE INTO {t} (lease_name) VALUES ({n})")).await?;
                continue;
            };
            let row = lease_row(&row)?;
            tries += 1;
            // Free, and locked: by a renewal or a release, in this moment. Or by a fenced transaction, which may last. Where nobody has
            // ever held it there is none: it is locked by the insert of another contender, and if all gave up, nobody would have it.
            let enough = if row.token == 0 { 20 * ACQUIRE_TRIES } else { ACQUIRE_TRIES };
            if row.remaining_us > 0 || row.owner == owner.to_string() || tries >= enough {
                return Ok(Some(row));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    async fn renew(
        conn: &mut MySqlConnection,
        tables: &Tables,
        terms: &[(Identity, Duration)],
    ) -> Result<Vec<Renewal>, sqlx::Error> {
        let want =
            terms.iter().map(|(id, ttl)| wanted(&id.name, id.owner, &format!(",{},{}", id.token, ttl.as_micros())));
        let ours = format!("{OWNERS} AND l.fence_token = w.token");
        let live = format!("AND l.leased_until > {NOW}");
        let set = format!("l.leased_until = GREATEST(l.leased_until + 1, {NOW} + w.ttl_us), l.renewed_at = {NOW}");
        let rows = change(conn, tables, want, &ours, &live, &set).await?;
        let mut found = Vec::with_capacity(terms.len());
        for (row, (id, _)) in rows.iter().zip(terms) {
            let changed: bool = row.try_get::<i64, _>("changed")? != 0;
            found.push(match row.try_get::<Option<Vec<u8>>, _>("lease_name")? {
                None => Renewal::Gone(None),
                Some(_) => match lease_row(row)? {
                    row if changed => Renewal::Renewed(row.remaining()),
                    row if row.is_of(id) && row.remaining_us > 0 => Renewal::Skipped,
                    row => Renewal::Gone(Some(row)),
                },
            });
        }
        Ok(found)
    }

    async fn release(conn: &mut MySqlConnection, tables: &Tables, claims: &[Claim]) -> Result<Vec<bool>, sqlx::Error> {
        let want = claims.iter().map(|claim| wanted(&claim.name, claim.owner, ""));
        let rows = change(conn, tables, want, OWNERS, "", "l.leased_until = 0").await?;
        let mut released = Vec::with_capacity(claims.len());
        for (row, claim) in rows.iter().zip(claims) {
            let gone = row.try_get::<Option<Vec<u8>>, _>("lease_name")?.is_none()
                || lease_row(row)?.owner != claim.owner.to_string();
            released.push(gone || row.try_get::<i64, _>("changed")? != 0);
        }
        Ok(released)
    }

    async fn rows_of(
        conn: &mut MySqlConnection,
        tables: &Tables,
        name: Option<&LeaseName>,
    ) -> Result<Vec<LeaseRow>, sqlx::Error> {
        let body = match name {
            Some(name) => select_row(tables, name),
            // Token 0: asked for and never held.
            None => {
                format!("SELECT {COLUMNS} FROM {} l WHERE l.fence_token > 0 ORDER BY l.lease_name", tables.leases())
            }
        };
        short(conn, &body).await?.iter().map(lease_row).collect()
    }

    async fn progress(
        conn: &mut MySqlConnection,
        tables: &Tables,
        id: &Identity,
        note: &str,
    ) -> Result<bool, sqlx::Error> {
        let (t, held, note) = (tables.leases(), is_held(id), text(note));
        let body = format!(
            "UPDATE {t} FORCE INDEX (PRIMARY) SET progress = {note} WHERE {held} AND leased_until > {NOW}; \
             SELECT 1 FROM {t} WHERE {held} AND leased_until > {NOW}"
        );
        Ok(!short(conn, &body).await?.is_empty())
    }

    async fn expire(
        conn: &mut MySqlConnection,
        tables: &Tables,
        name: &LeaseName,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n) = (tables.leases(), bytes(name.as_str()));
        let body = format!(
            "UPDATE {t} FORCE INDEX (PRIMARY) SET leased_until = 0 WHERE lease_name = {n}; {}",
            select_row(tables, name)
        );
        short(conn, &body).await?.iter().map(lease_row).next().transpose()
    }

    async fn raise(
        conn: &mut MySqlConnection,
        tables: &Tables,
        name: &LeaseName,
        from: i64,
        floor: i64,
        patience: Duration,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n) = (tables.leases(), bytes(name.as_str()));
        // SKIP LOCKED and asking again, because a lock wait can only be bounded for a whole session, and in seconds.
        let body = format!(
            "SET @fence_lease = NULL; SELECT lease_name INTO @fence_lease FROM {t} FORCE INDEX (uq_fence) \
              WHERE lease_name = {n} AND fence_token = {from} FOR UPDATE SKIP LOCKED; \
             UPDATE {t} FORCE INDEX (PRIMARY) SET owner_token = '', holder = '', fence_token = GREATEST(fence_token + 1, {floor}), \
              leased_until = 0, progress = NULL WHERE lease_name = @fence_lease AND fence_token = {from}; {}",
            select_row(tables, name)
        );
        let row = short(conn, &body).await?.iter().map(lease_row).next().transpose()?;
        if row.as_ref().is_some_and(|row| row.token == from) {
            tokio::time::sleep(patience.min(Duration::from_millis(20))).await;
            return Ok(None);
        }
        Ok(row)
    }

    fn migration_lock(tables: &Tables) -> Option<(String, String)> {
        // sqlx takes a lock of its own, but waits for it with a time-out of -1, which is none on MariaDB.
        // At most 64 characters; MySQL 9 has no MD5.
        let name = format!("CONCAT('fence:', SHA2({}, 224))", bytes(tables.prefix()));
        Some((format!("DO GET_LOCK({name}, 600)"), format!("DO RELEASE_LOCK({name})")))
    }

    fn mark() -> String {
        format!("fence_{}", uuid::Uuid::new_v4().simple())
    }

    async fn open(
        conn: &mut MySqlConnection,
        tables: &Tables,
        mark: &String,
        id: &Identity,
        opening: Opening,
    ) -> Result<Option<Trace>, NotOpened> {
        let trace = opening.resolve.map(|_| Trace::Receipt(mark.clone()));
        let sql = format!(
            "CALL {}({}, {}, {}, '{}', {}, {}, {}); {}SAVEPOINT {mark}",
            tables.name("fence_begin_v1"),
            bytes(id.name.as_str()),
            id.token,
            bytes(&id.owner.to_string()),
            level(opening.isolation),
            seconds(opening.idle),
            opening.lock.map_or_else(|| "NULL".to_owned(), |limit| seconds(limit).to_string()),
            opening.statement.map_or_else(|| "NULL".to_owned(), |limit| limit.as_millis().max(1).to_string()),
            trace.as_ref().map_or_else(String::new, |_| receipts::write(tables, id, mark)),
        );
        match begin(conn, sql).await {
            Ok(()) => Ok(trace),
            Err(NotOpened::Failed(error)) if number_of(&error) == Some(REFUSED) => Err(NotOpened::Refused),
            Err(other) => Err(other),
        }
    }

    async fn finish(
        conn: &mut MySqlConnection,
        tables: &Tables,
        mark: &String,
        _id: &Identity,
        _ttl: Duration,
    ) -> (Ending, Fit) {
        match Depth::get_transaction_depth(conn) {
            0 => return (Ending::Unknown(SWAPPED, None), Fit::Close),
            1 => {}
            _ => {
                let fit = Self::undo(conn, mark).await;
                return (Ending::RolledBack(RolledBack::Because(NESTED, None)), fit);
            }
        }
        // A message ends at its first error: where the savepoint is gone, nothing is committed. The row behind it proves that the answers
        // are those to this: a statement that is dropped while sqlx prepares it leaves sqlx in the middle of another answer. The limit of a
        // statement is put back before, because it could end the procedure after its COMMIT.
        let sql = format!(
            "RELEASE SAVEPOINT {mark}; SET {STATEMENT_LIMIT_BACK}; CALL {}(); SELECT '{mark}'",
            tables.name("fence_end_v1")
        );
        let error = match conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await {
            Ok(rows) if is_mark(&rows, mark) => {
                Depth::start_rollback(conn);
                return (Ending::Committed(None), Fit::Reuse);
            }
            Ok(_) => return (Ending::Unheard("the answer to COMMIT was that to another statement", None), Fit::Close),
            Err(error) => error,
        };
        match number_of(&error) {
            Some(NO_SUCH_SAVEPOINT) if is_about(&error, mark) => {
                let fit = Self::undo(conn, mark).await;
                (Ending::Unknown(ENDED_EARLY, Some(error)), fit)
            }
            Some(number) if NOT_COMMITTED.contains(&number) => match Self::undo(conn, mark).await {
                Fit::Reuse => {
                    (Ending::RolledBack(RolledBack::Because("the server refused the commit", Some(error))), Fit::Reuse)
                }
                // Whose error that was is not known then.
                Fit::Close => (Ending::Unheard("the connection failed around COMMIT", Some(error)), Fit::Close),
            },
            _ => (Ending::Unheard("the connection failed around COMMIT", Some(error)), Fit::Close),
        }
    }

    async fn look_up(
        conn: &mut MySqlConnection,
        tables: &Tables,
        id: &Identity,
        trace: &Trace,
    ) -> Result<Verdict, sqlx::Error> {
        receipts::look_up(conn, tables, id, trace).await
    }

    async fn forget(conn: &mut MySqlConnection, tables: &Tables, id: &Identity) -> Result<u64, sqlx::Error> {
        receipts::forget(conn, tables, id).await
    }

    async fn open_read(conn: &mut MySqlConnection, mark: &String) -> Result<(), NotOpened> {
        let sql = format!(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SET @fence_autocommit = @@autocommit, @fence_read_only = @@SESSION.{READ_ONLY}, autocommit = 0; \
             SET SESSION TRANSACTION READ ONLY; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; SAVEPOINT {mark}"
        );
        begin(conn, sql).await
    }

    async fn finish_read(conn: &mut MySqlConnection, mark: &String) -> (Result<(), RolledBack>, Fit) {
        if Depth::get_transaction_depth(conn) != 1 {
            return (Err(RolledBack::Because(NESTED, None)), Self::undo(conn, mark).await);
        }
        match conn
            .fetch_all(sqlx::raw_sql(AssertSqlSafe(format!("RELEASE SAVEPOINT {mark}; {}", put_back(mark)))))
            .await
        {
            Ok(rows) if is_mark(&rows, mark) => {
                Depth::start_rollback(conn);
                (Ok(()), Fit::Reuse)
            }
            Ok(_) => (Err(RolledBack::Because("the answer was that to another statement", None)), Fit::Close),
            Err(error) => (Err(RolledBack::Because(ENDED_EARLY, Some(error))), Self::undo(conn, mark).await),
        }
    }

    async fn undo(conn: &mut MySqlConnection, mark: &String) -> Fit {
        while Depth::get_transaction_depth(conn) > 1 {
            // The first try may only have drained the error of a statement that was dropped half-way.
            if Depth::rollback(conn).await.is_err() && Depth::rollback(conn).await.is_err() {
                return Fit::Close;
            }
        }
        for _ in 0..2 {
            match conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(put_back(mark)))).await {
                Ok(rows) if is_mark(&rows, mark) => {
                    Depth::start_rollback(conn);
                    return Fit::Reuse;
                }
                // Again, for the same reason.
                Err(sqlx::Error::Database(_)) => {}
                _ => break,
            }
        }
        Fit::Close
    }

    /// Closing frees the lease's record at once and needs no runtime.
    fn start_undo(_conn: &mut MySqlConnection) -> bool {
        false
    }
}

const NESTED: &str = "a nested transaction or savepoint was still open";
const SWAPPED: &str = "its connection was exchanged for another one";

/// The live clock in microseconds, without a time zone on the way.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Texts as the bytes that they are in the table: the connection's character set may know fewer.
const COLUMNS: &str = "l.lease_name, l.owner_token, l.fence_token, CAST(l.holder AS BINARY) AS holder, CAST(l.progress AS BINARY) AS progress, \
    CAST(l.leased_until - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS SIGNED) AS remaining_us, \
    l.acquired_at AS acquired_at_us, l.renewed_at AS renewed_at_us";

fn select_row(tables: &Tables, name: &LeaseName) -> String {
    format!("SELECT {COLUMNS} FROM {} l WHERE l.lease_name = {}", tables.leases(), bytes(name.as_str()))
}

/// A name or a token, which are bytes there whatever the connection's character set is.
fn bytes(value: &str) -> String {
    format!("X'{}'", hex(value))
}

fn text(value: &str) -> String {
    format!("CONVERT(X'{}' USING utf8mb4)", hex(value))
}

fn is_held(id: &Identity) -> String {
    let (name, owner) = (bytes(id.name.as_str()), bytes(&id.owner.to_string()));
    format!("lease_name = {name} AND owner_token = {owner} AND fence_token = {}", id.token)
}

fn level(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    }
}

/// Of an idle limit, as `wait_timeout` takes them.
fn seconds(idle: Duration) -> u64 {
    idle.as_millis().div_ceil(1000).clamp(1, 31_536_000) as u64
}

fn lease_row(row: &MySqlRow) -> Result<LeaseRow, sqlx::Error> {
    let text = |bytes| String::from_utf8(bytes).map_err(|error| sqlx::Error::Decode(error.into()));
    let utf8 = |column| text(row.try_get::<Vec<u8>, _>(column)?);
    Ok(LeaseRow {
        name: utf8("lease_name")?,
        owner: utf8("owner_token")?,
        token: row.try_get("fence_token")?,
        holder: utf8("holder")?,
        remaining_us: row.try_get("remaining_us")?,
        acquired_at_us: row.try_get("acquired_at_us")?,
        renewed_at_us: row.try_get("renewed_at_us")?,
        progress: row.try_get::<Option<Vec<u8>>, _>("progress")?.map(text).transpose()?,
    })
}

/// One message, one round trip, one transaction at READ COMMITTED. After an error the connection must be closed.
async fn short(conn: &mut MySqlConnection, body: &str) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let sql = format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ WRITE; {body}; COMMIT");
    conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await
}

async fn begin(conn: &mut MySqlConnection, sql: String) -> Result<(), NotOpened> {
    Depth::begin(conn, Some(AssertSqlSafe(sql).into_sql_str())).await.map_err(|error| {
        match (number_of(&error), &error) {
            (Some(IN_TRANSACTION | TABLES_LOCKED | TABLE_LOCKED), _) => NotOpened::Stray,
            // What the answer says is not what was asked for: it is that to another statement, which somebody has dropped half-way.
            (_, sqlx::Error::BeginFailed) => NotOpened::Stray,
            _ => NotOpened::Failed(error),
        }
    })
}
