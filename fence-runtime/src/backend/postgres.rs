//! PostgreSQL 12 and later: all its SQL.
//!
//! A fenced transaction locks the lease row `FOR KEY SHARE`: that conflicts with a takeover, which takes the row `FOR UPDATE`, and not
//! with a renewal, which changes no key. Lease statements go as one unprepared message, so that they need no session state.

use std::time::Duration;

use futures_util::StreamExt;
use sqlx::{
    AssertSqlSafe, Database, Either, Encode, Executor, PgConnection, Postgres, Row, SqlSafeStr, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgConnectOptions, PgQueryResult, PgRow},
};
use sqlx_core::transaction::TransactionManager;

use super::{
    Backend, Claim, Ending, Fit, Identity, Isolation, LeaseRow, NotOpened, Opening, Protocol, Renewal, RolledBack,
    Tables, Trace, Verdict, hex, is_plain,
};
use crate::{
    error::{Error, ErrorKind},
    lease::{LeaseName, OwnerToken},
    resolve::Resolve,
    statement::Dialect,
};
use sqlstate::{
    CANCELED, ENDED_EARLY, IN_TRANSACTION, NO_SUCH_CURSOR, PASSING, REFUSED, code_of, severity_of, why_refused,
};

mod outcome;
mod sqlstate;
mod verify;

type Depth = <Postgres as sqlx::Database>::TransactionManager;

impl Backend for Postgres {
    type Protocol = Pg;
}

/// The protocol on PostgreSQL.
pub enum Pg {}

impl Protocol for Pg {
    type Db = Postgres;
    const NAME: &'static str = "PostgreSQL";
    const DIALECT: Dialect = Dialect::Postgres;
    const QUOTE: char = '"';
    const GUARD_RENEWS: bool = false;
    const MIGRATIONS: &'static [(i64, &'static str, &'static str)] = &[
        (1, "leases", include_str!("../../migrations/postgres/0001_leases.sql")),
        (2, "receipts", include_str!("../../migrations/postgres/0002_receipts.sql")),
    ];
    /// The name of the cursor that `fence_begin_v1` opens.
    type Mark = String;

    fn executor(conn: &mut PgConnection) -> impl Executor<'_, Database = Postgres> {
        conn
    }

    fn rows(result: &PgQueryResult) -> u64 {
        result.rows_affected()
    }

    fn number_type() -> <Postgres as Database>::TypeInfo {
        <i64 as Type<Postgres>>::type_info()
    }

    fn is_number(ty: &<Postgres as Database>::TypeInfo) -> bool {
        <i64 as Type<Postgres>>::compatible(ty)
    }

    fn encode_number(number: i64, buffer: &mut <Postgres as Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(number, buffer)
    }

    fn keeper_options(options: PgConnectOptions) -> PgConnectOptions {
        options
    }

    async fn locate(conn: &mut PgConnection, schema: Option<&str>, prefix: &str) -> Result<Tables, Error> {
        let mut tables = match schema {
            Some(_) => Tables::new(Self::QUOTE, schema, prefix)?,
            None => {
                let current: Option<String> = sqlx::query_scalar("SELECT current_schema()::text")
                    .persistent(false)
                    .fetch_one(&mut *conn)
                    .await
                    .map_err(|e| Error::database("could not ask PostgreSQL for its current schema", e))?;
                let current = current.ok_or_else(|| {
                    Error::new(ErrorKind::Schema, "the session has no current schema: name one with `.schema(\"…\")`")
                })?;
                Tables::new(Self::QUOTE, Some(&current), prefix)?
            }
        };
        tables.probes_clients =
            conn.execute("BEGIN; SET LOCAL client_connection_check_interval = '300ms'; COMMIT").await.is_ok();
        if !tables.probes_clients {
            conn.execute("ROLLBACK").await.map_err(|e| Error::database("PostgreSQL could not be reached", e))?;
        }
        Ok(tables)
    }

    async fn verify(conn: &mut PgConnection, tables: &Tables) -> Result<(), Error> {
        verify::verify(conn, tables).await
    }

    async fn verify_resolve(conn: &mut PgConnection, tables: &Tables, resolve: Resolve) -> Result<(), Error> {
        outcome::verify(conn, tables, resolve).await
    }

    fn is_contention(error: &sqlx::Error) -> bool {
        code_of(error).is_some_and(|code| PASSING.contains(&&*code) || IN_TRANSACTION.contains(&&*code))
    }

    async fn acquire(
        conn: &mut PgConnection,
        tables: &Tables,
        name: &LeaseName,
        owner: OwnerToken,
        ttl: Duration,
        holder: &str,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n, o, h, until) = (tables.leases(), name_of(name), text(&owner.to_string()), text(holder), after(ttl));
        // The row lock is taken explicitly: a plain UPDATE of the token would pass under an open guard.
        // SKIP LOCKED: a contender never queues behind a fenced transaction of the old holder.
        let body = format!(
            "{DURABLE}; WITH cur AS MATERIALIZED (SELECT lease_name FROM {t} \
              WHERE lease_name = {n} AND leased_until <= clock_timestamp() FOR UPDATE SKIP LOCKED), \
             upd AS (UPDATE {t} l SET owner_token = {o}, fence_token = l.fence_token + 1, leased_until = {until}, \
              holder = {h}, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), progress = NULL \
              FROM cur WHERE l.lease_name = cur.lease_name AND l.leased_until <= clock_timestamp() RETURNING 1), \
             ins AS (INSERT INTO {t} (lease_name, owner_token, fence_token, leased_until, holder, acquired_at, renewed_at, seals) \
              SELECT {n}, {o}, 1, {until}, {h}, clock_timestamp(), clock_timestamp(), 0 \
              WHERE NOT EXISTS (SELECT 1 FROM {t} WHERE lease_name = {n}) \
              ON CONFLICT DO NOTHING RETURNING 1) \
             SELECT FROM upd UNION ALL SELECT FROM ins; {}",
            select_row(tables, name)
        );
        last_row(short(conn, &body).await?)
    }

    async fn renew(
        conn: &mut PgConnection,
        tables: &Tables,
        terms: &[(Identity, Duration)],
    ) -> Result<Vec<Renewal>, sqlx::Error> {
        let t = tables.leases();
        let names = array(terms, "text", |(id, _)| text(id.name.as_str()));
        let owners = array(terms, "text", |(id, _)| text(&id.owner.to_string()));
        let tokens = array(terms, "bigint", |(id, _)| id.token.to_string());
        let ttls = array(terms, "bigint", |(_, ttl)| ttl.as_micros().to_string());
        // One row that somebody holds must not delay a thousand others: it is skipped, and the answer says so.
        let body = format!(
            "WITH want AS (SELECT * FROM unnest({names}, {owners}, {tokens}, {ttls}) \
              WITH ORDINALITY AS w (name, owner, token, ttl_us, place)), \
             held AS MATERIALIZED (SELECT l.lease_name, w.ttl_us FROM want w JOIN {t} l ON l.lease_name = w.name COLLATE \"C\" \
              AND l.owner_token = w.owner COLLATE \"C\" AND l.fence_token = w.token WHERE l.leased_until > clock_timestamp() \
              ORDER BY l.lease_name FOR NO KEY UPDATE OF l SKIP LOCKED), \
             done AS (UPDATE {t} l SET leased_until = GREATEST(l.leased_until, \
              clock_timestamp() + h.ttl_us * interval '1 microsecond'), renewed_at = clock_timestamp() FROM held h \
              WHERE l.lease_name = h.lease_name AND l.leased_until > clock_timestamp() \
              RETURNING l.lease_name, {REMAINING} AS renewed_us) \
             SELECT d.renewed_us, {COLUMNS} FROM want w LEFT JOIN done d ON d.lease_name = w.name COLLATE \"C\" \
              LEFT JOIN {t} l ON l.lease_name = w.name COLLATE \"C\" ORDER BY w.place"
        );
        let rows = short(conn, &body).await?;
        let mut found = Vec::with_capacity(terms.len());
        for (row, (id, _)) in rows.into_iter().zip(terms) {
            found.push(match row.try_get::<Option<i64>, _>("renewed_us")? {
                Some(us) => Renewal::Renewed(Duration::from_micros(us.try_into().unwrap_or(0))),
                None if row.try_get::<Option<String>, _>("lease_name")?.is_none() => Renewal::Gone(None),
                None => match lease_row(row)? {
                    row if row.is_of(id) && row.remaining_us > 0 => Renewal::Skipped,
                    row => Renewal::Gone(Some(row)),
                },
            });
        }
        Ok(found)
    }

    async fn release(conn: &mut PgConnection, tables: &Tables, claims: &[Claim]) -> Result<Vec<bool>, sqlx::Error> {
        let t = tables.leases();
        let names = array(claims, "text", |claim| text(claim.name.as_str()));
        let owners = array(claims, "text", |claim| text(&claim.owner.to_string()));
        // One alone may wait for whoever has locked its row.
        let skip = if claims.len() == 1 { "" } else { "SKIP LOCKED" };
        let ours = "l.lease_name = w.name COLLATE \"C\" AND l.owner_token = w.owner COLLATE \"C\"";
        let body = format!(
            "WITH want AS (SELECT * FROM unnest({names}, {owners}) WITH ORDINALITY AS w (name, owner, place)), \
             held AS MATERIALIZED (SELECT w.* FROM want w JOIN {t} l ON {ours} \
              ORDER BY l.lease_name FOR NO KEY UPDATE OF l {skip}), \
             done AS (UPDATE {t} l SET leased_until = 'epoch' FROM held w WHERE {ours} RETURNING w.place) \
             SELECT d.place IS NOT NULL OR l.lease_name IS NULL AS released FROM want w LEFT JOIN done d ON d.place = w.place \
              LEFT JOIN {t} l ON {ours} ORDER BY w.place"
        );
        short(conn, &body).await?.iter().map(|row| row.try_get("released")).collect()
    }

    async fn rows_of(
        conn: &mut PgConnection,
        tables: &Tables,
        name: Option<&LeaseName>,
    ) -> Result<Vec<LeaseRow>, sqlx::Error> {
        let body = match name {
            Some(name) => select_row(tables, name),
            None => format!("SELECT {COLUMNS} FROM {} l ORDER BY l.lease_name", tables.leases()),
        };
        short(conn, &body).await?.into_iter().map(lease_row).collect()
    }

    async fn progress(
        conn: &mut PgConnection,
        tables: &Tables,
        id: &Identity,
        note: &str,
    ) -> Result<bool, sqlx::Error> {
        let (t, held, note) = (tables.leases(), is_held(id), text(note));
        let body =
            format!("UPDATE {t} SET progress = {note} WHERE {held} AND leased_until > clock_timestamp() RETURNING 1");
        Ok(!short(conn, &body).await?.is_empty())
    }

    async fn expire(
        conn: &mut PgConnection,
        tables: &Tables,
        name: &LeaseName,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n) = (tables.leases(), name_of(name));
        let body = format!(
            "{DURABLE}; UPDATE {t} SET leased_until = 'epoch' WHERE lease_name = {n}; {}",
            select_row(tables, name)
        );
        last_row(short(conn, &body).await?)
    }

    async fn raise(
        conn: &mut PgConnection,
        tables: &Tables,
        name: &LeaseName,
        from: i64,
        floor: i64,
        patience: Duration,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n, ms) = (tables.leases(), name_of(name), patience.as_millis().max(1));
        // `statement_timeout` and not `lock_timeout`, which starts anew for each holder of the row that is waited for.
        let body = format!(
            "SET LOCAL statement_timeout = {ms}; {DURABLE}; \
             WITH cur AS MATERIALIZED (SELECT lease_name FROM {t} WHERE lease_name = {n} AND fence_token = {from} FOR UPDATE) \
             UPDATE {t} l SET owner_token = '', holder = '', fence_token = GREATEST(l.fence_token + 1, {floor}), leased_until = 'epoch', progress = NULL \
              FROM cur WHERE l.lease_name = cur.lease_name; {}",
            select_row(tables, name)
        );
        match short(conn, &body).await {
            Ok(rows) => last_row(rows),
            Err(error) if code_of(&error).as_deref() == Some(CANCELED) => {
                conn.execute("ROLLBACK").await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn mark() -> String {
        format!("fence_{}", uuid::Uuid::new_v4().simple())
    }

    async fn open(
        conn: &mut PgConnection,
        tables: &Tables,
        mark: &String,
        id: &Identity,
        opening: Opening,
    ) -> Result<Option<Trace>, NotOpened> {
        // Outside our transaction the session is read-only: whatever leaves it (COMMIT, ROLLBACK) cannot write.
        // NOT DEFERRABLE is refused by a connection that was handed out inside a stray transaction.
        let sql = format!(
            "{SESSION_READ_ONLY} BEGIN ISOLATION LEVEL {} READ WRITE NOT DEFERRABLE; {}{}SELECT {}({}, '{}', {}, '{mark}', '{}ms', '{}'){}",
            level(opening.isolation),
            limit("lock_timeout", opening.lock),
            limit("statement_timeout", opening.statement),
            tables.name("fence_begin_v1"),
            text(id.name.as_str()),
            id.owner,
            id.token,
            milliseconds(opening.idle),
            if tables.probes_clients { "300ms" } else { "" },
            if opening.resolve == Some(Resolve::Receipts) {
                outcome::write_receipt(tables, id, mark)
            } else {
                String::new()
            },
        );
        match begin(conn, sql).await {
            Ok(()) => outcome::trace(conn, mark, opening.resolve).await.map_err(NotOpened::Failed),
            Err(NotOpened::Failed(error)) if code_of(&error).as_deref() == Some(REFUSED) => Err(NotOpened::Refused),
            Err(other) => Err(other),
        }
    }

    async fn finish(
        conn: &mut PgConnection,
        _tables: &Tables,
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
        match prove_and_commit(conn, mark).await {
            Ended::Committed(fit) => (Ending::Committed(None), fit),
            Ended::Error(error) if severity_of(&error).is_none() => {
                (Ending::Unheard("the connection failed around COMMIT", Some(error)), Fit::Close)
            }
            Ended::Error(error) if code_of(&error).as_deref() == Some(NO_SUCH_CURSOR) => {
                let fit = Self::undo(conn, mark).await;
                (Ending::Unknown(ENDED_EARLY, Some(error)), fit)
            }
            Ended::Error(error) => {
                let fit = Self::undo(conn, mark).await;
                (Ending::RolledBack(RolledBack::Because(why_refused(&error), Some(error))), fit)
            }
            Ended::Confused => (Ending::Unknown("the answers do not belong to our question", None), Fit::Close),
        }
    }

    async fn look_up(
        conn: &mut PgConnection,
        tables: &Tables,
        id: &Identity,
        trace: &Trace,
    ) -> Result<Verdict, sqlx::Error> {
        outcome::look_up(conn, tables, id, trace).await
    }

    async fn forget(conn: &mut PgConnection, tables: &Tables, id: &Identity) -> Result<u64, sqlx::Error> {
        outcome::forget(conn, tables, id).await
    }

    async fn open_read(conn: &mut PgConnection, mark: &String) -> Result<(), NotOpened> {
        // Without a query in this message, SET TRANSACTION READ WRITE would undo READ ONLY.
        let sql = format!(
            "{SESSION_READ_ONLY} BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY NOT DEFERRABLE; \
             DECLARE \"{mark}\" CURSOR FOR SELECT '{mark}'::text; SELECT 1"
        );
        begin(conn, sql).await
    }

    async fn finish_read(conn: &mut PgConnection, mark: &String) -> (Result<(), RolledBack>, Fit) {
        if Depth::get_transaction_depth(conn) != 1 {
            return (Err(RolledBack::Because(NESTED, None)), Self::undo(conn, mark).await);
        }
        match prove_and_commit(conn, mark).await {
            Ended::Committed(fit) => (Ok(()), fit),
            Ended::Confused => (Err(RolledBack::Because(ENDED_EARLY, None)), Fit::Close),
            Ended::Error(error) => {
                let fit = if severity_of(&error).is_some() { Self::undo(conn, mark).await } else { Fit::Close };
                (Err(RolledBack::Because(why_refused(&error), Some(error))), fit)
            }
        }
    }

    async fn undo(conn: &mut PgConnection, mark: &String) -> Fit {
        if !roll_back(conn).await {
            return Fit::Close;
        }
        // A COPY that was dropped half-way leaves sqlx one answer behind: is this answer ours, and are we outside a transaction?
        let sql = format!("RESET default_transaction_read_only; SELECT '{mark}'::text, now() = statement_timestamp()");
        match sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(&mut *conn).await {
            Ok(Some(row))
                if row.try_get::<String, _>(0).is_ok_and(|m| m == *mark) && row.try_get(1).unwrap_or(false) =>
            {
                Fit::Reuse
            }
            _ => Fit::Close,
        }
    }

    /// Closing frees the lease row at once, in the middle of a statement too, and needs no runtime.
    fn start_undo(_conn: &mut PgConnection) -> bool {
        false
    }
}

const NESTED: &str = "a nested transaction or savepoint was still open";
const SWAPPED: &str = "its connection was exchanged for another one";
/// A takeover that is lost in a crash of the server would issue its token twice: it is made durable even where others are not.
const DURABLE: &str =
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'";

const SESSION_READ_ONLY: &str = "BEGIN NOT DEFERRABLE; SET default_transaction_read_only = on; COMMIT;";

const REMAINING: &str = "(extract(epoch FROM l.leased_until - clock_timestamp()) * 1000000)::bigint";

const COLUMNS: &str = "l.lease_name, l.owner_token, l.fence_token, l.holder, l.progress, \
    (extract(epoch FROM l.leased_until - clock_timestamp()) * 1000000)::bigint AS remaining_us, \
    (extract(epoch FROM l.acquired_at) * 1000000)::bigint AS acquired_at_us, \
    (extract(epoch FROM l.renewed_at) * 1000000)::bigint AS renewed_at_us";

fn select_row(tables: &Tables, name: &LeaseName) -> String {
    format!("SELECT {COLUMNS} FROM {} l WHERE l.lease_name = {}", tables.leases(), name_of(name))
}

fn text(value: &str) -> String {
    if is_plain(value) { format!("'{value}'") } else { format!("convert_from(decode('{}','hex'),'UTF8')", hex(value)) }
}

fn name_of(name: &LeaseName) -> String {
    format!("{} COLLATE \"C\"", text(name.as_str()))
}

fn array<T>(items: &[T], of: &str, item: impl Fn(&T) -> String) -> String {
    format!("ARRAY[{}]::{of}[]", items.iter().map(item).collect::<Vec<_>>().join(","))
}

fn is_held(id: &Identity) -> String {
    format!("lease_name = {} AND owner_token = '{}' AND fence_token = {}", name_of(&id.name), id.owner, id.token)
}

fn after(ttl: Duration) -> String {
    format!("clock_timestamp() + {} * interval '1 microsecond'", ttl.as_micros())
}

/// For this transaction only.
fn limit(name: &str, limit: Option<Duration>) -> String {
    limit.map_or_else(String::new, |limit| format!("SET LOCAL {name} = {}; ", milliseconds(limit)))
}

/// As a setting takes them, where 0 is no limit.
fn milliseconds(limit: Duration) -> u128 {
    limit.as_millis().clamp(1, i32::MAX as u128)
}

fn level(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    }
}

/// The row of the lease, which is asked for last: without one, the last may be that of another statement in the message.
fn last_row(mut rows: Vec<PgRow>) -> Result<Option<LeaseRow>, sqlx::Error> {
    rows.pop().filter(|row| row.try_column("lease_name").is_ok()).map(lease_row).transpose()
}

fn lease_row(row: PgRow) -> Result<LeaseRow, sqlx::Error> {
    Ok(LeaseRow {
        name: row.try_get("lease_name")?,
        owner: row.try_get("owner_token")?,
        token: row.try_get("fence_token")?,
        holder: row.try_get("holder")?,
        remaining_us: row.try_get("remaining_us")?,
        acquired_at_us: row.try_get("acquired_at_us")?,
        renewed_at_us: row.try_get("renewed_at_us")?,
        progress: row.try_get("progress")?,
    })
}

/// One message, one round trip, one transaction at READ COMMITTED. After an error the connection must be closed.
async fn short(conn: &mut PgConnection, body: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    let sql = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE; {body}; COMMIT");
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await
}

async fn begin(conn: &mut PgConnection, sql: String) -> Result<(), NotOpened> {
    Depth::begin(conn, Some(AssertSqlSafe(sql).into_sql_str())).await.map_err(|error| {
        match code_of(&error).as_deref() {
            Some(code) if IN_TRANSACTION.contains(&code) => NotOpened::Stray,
            _ => NotOpened::Failed(error),
        }
    })
}

enum Ended {
    Committed(Fit),
    Error(sqlx::Error),
    Confused,
}

/// `FETCH` from the cursor that carries our mark proves that this is the transaction we opened: the cursor dies with it, and an aborted
/// transaction refuses the FETCH, so that nothing behind it in the message runs.
async fn prove_and_commit(conn: &mut PgConnection, mark: &str) -> Ended {
    // AND CHAIN leaves a transaction open for the ROLLBACK that sqlx then queues: without one the server logs a warning each time.
    let sql = format!("FETCH \"{mark}\"; RESET default_transaction_read_only; COMMIT AND CHAIN");
    let (mut completed, mut proved) = (0, false);
    let result = {
        let mut answers = conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql)));
        loop {
            match answers.next().await {
                Some(Ok(Either::Left(_))) => completed += 1,
                Some(Ok(Either::Right(row))) => proved |= row.try_get::<String, _>(0).is_ok_and(|m| m == mark),
                Some(Err(error)) => break Err(error),
                None => break Ok(()),
            }
        }
    };
    match result {
        Ok(()) if proved && completed == 3 => {
            Depth::start_rollback(conn);
            Ended::Committed(Fit::Reuse)
        }
        Ok(()) => Ended::Confused,
        // The commit was answered; what failed came after it.
        Err(_) if proved && completed == 3 => Ended::Committed(Fit::Close),
        Err(error) => Ended::Error(error),
    }
}

/// Rolls back to depth 0 and past it. False: the connection did not do as told.
async fn roll_back(conn: &mut PgConnection) -> bool {
    // Each first try may only have drained the error of a statement that was dropped half-way.
    if Depth::get_transaction_depth(conn) == 0 {
        // A refused guard, or a nested `begin()` that was dropped half-way.
        return conn.execute("ROLLBACK").await.is_ok() || conn.execute("ROLLBACK").await.is_ok();
    }
    while Depth::get_transaction_depth(conn) > 0 {
        if Depth::rollback(conn).await.is_err() && Depth::rollback(conn).await.is_err() {
            return false;
        }
    }
    true
}
