//! SQLite 3.37 and later: all its SQL.
//!
//! `BEGIN IMMEDIATE` takes the one write lock of the file, so that nobody can take over (or renew) while a fenced transaction is open;
//! its guard is a renewal. Two hooks on the connection refuse every commit that [`finish`](Protocol::finish) has not armed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Database, Encode, Executor, Row, SqlSafeStr, Sqlite, SqliteConnection, Type,
    encode::IsNull,
    error::{BoxDynError, DatabaseError},
    sqlite::{SqliteConnectOptions, SqliteQueryResult, SqliteRow},
};
use sqlx_core::transaction::TransactionManager;

use super::{
    Backend, Claim, Ending, Fit, Identity, LeaseRow, NotOpened, Opening, Protocol, Renewal, RolledBack, Tables, Trace,
    Verdict, hex, is_plain,
};
use crate::{
    error::{Error, ErrorKind},
    lease::{LeaseName, OwnerToken},
    resolve::Resolve,
    statement::Dialect,
};

mod end;
mod receipts;
mod verify;

use end::{Commit, commit, extend};

type Depth = <Sqlite as sqlx::Database>::TransactionManager;

/// The live clock in microseconds: `julianday` because `unixepoch('subsec')` is NULL before 3.42.
const NOW: &str = "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)";
const BUSY: i32 = 5;
/// How long the keeper waits for a writer before it comes back later: its deadline must not pass in a wait.
const KEEPER_BUSY: Duration = Duration::from_millis(100);
/// The state of the hooks of one transaction. They stay on its connection until the next one brings its own: to remove them would cost as
/// much as a statement.
pub struct Hooks(AtomicU8);

/// The transaction is over: the hooks let everything through.
const OFF: u8 = 0;
/// Nobody may commit.
const FORBID: u8 = 1;
/// Our own COMMIT may pass.
const ARMED: u8 = 2;
/// Something that was not ours has rolled the fenced transaction back.
const DEAD: u8 = 3;

impl Backend for Sqlite {
    type Protocol = Lite;
}

/// The protocol on SQLite.
pub enum Lite {}

impl Protocol for Lite {
    type Db = Sqlite;
    const NAME: &'static str = "SQLite";
    const DIALECT: Dialect = Dialect::Sqlite;
    const QUOTE: char = '"';
    const GUARD_RENEWS: bool = true;
    const MIGRATIONS: &'static [(i64, &'static str, &'static str)] = &[
        (1, "leases", include_str!("../../migrations/sqlite/0001_leases.sql")),
        (2, "receipts", include_str!("../../migrations/sqlite/0002_receipts.sql")),
    ];
    type Mark = Arc<Hooks>;

    fn executor(conn: &mut SqliteConnection) -> impl Executor<'_, Database = Sqlite> {
        conn
    }

    fn rows(result: &SqliteQueryResult) -> u64 {
        result.rows_affected()
    }

    fn number_type() -> <Sqlite as Database>::TypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }

    fn is_number(ty: &<Sqlite as Database>::TypeInfo) -> bool {
        <i64 as Type<Sqlite>>::compatible(ty)
    }

    fn encode_number(number: i64, buffer: &mut <Sqlite as Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Sqlite>::encode(number, buffer)
    }

    /// Connections that share a cache wait for one another without a limit: a check for the fenced transaction that it is made in.
    fn check_options(options: &SqliteConnectOptions) -> Result<(), Error> {
        if options.to_url_lossy().query_pairs().any(|pair| pair == ("cache".into(), "shared".into())) {
            return Err(Error::new(
                ErrorKind::Config,
                "the connections share a cache (`shared_cache(true)`, `cache=shared`), in which a job would wait for itself: \
                 leave that out; use journal mode WAL for readers beside a writer",
            ));
        }
        Ok(())
    }

    fn keeper_options(options: SqliteConnectOptions) -> SqliteConnectOptions {
        options.busy_timeout(KEEPER_BUSY).create_if_missing(false)
    }

    async fn locate(conn: &mut SqliteConnection, schema: Option<&str>, prefix: &str) -> Result<Tables, Error> {
        if let Some(schema) = schema {
            return Err(Error::new(
                ErrorKind::Config,
                format!("SQLite has no schema {schema:?}: use `.table_prefix(\"…\")` to keep tables apart"),
            ));
        }
        let file: String = sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(conn)
            .await
            .map_err(|e| Error::database("could not ask SQLite for its file", e))?;
        if file.is_empty() {
            return Err(Error::new(
                ErrorKind::Config,
                "an in-memory SQLite database cannot be shared with the keeper, which renews leases on a connection of its own: \
                 use a file, for tests one in a temporary directory",
            ));
        }
        Tables::new(Self::QUOTE, None, prefix)
    }

    async fn verify(conn: &mut SqliteConnection, tables: &Tables) -> Result<(), Error> {
        verify::verify(conn, tables).await
    }

    async fn verify_resolve(conn: &mut SqliteConnection, tables: &Tables, resolve: Resolve) -> Result<(), Error> {
        receipts::verify(conn, tables, resolve).await
    }

    fn is_contention(error: &sqlx::Error) -> bool {
        is_busy(error) || is_nested_begin(error)
    }

    async fn acquire(
        conn: &mut SqliteConnection,
        tables: &Tables,
        name: &LeaseName,
        owner: OwnerToken,
        ttl: Duration,
        holder: &str,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n, until) = (tables.leases(), text(name.as_str()), after(ttl));
        let sql = format!(
            "INSERT INTO {t} (lease_name, owner_token, fence_token, leased_until, holder, acquired_at, renewed_at, seals) \
             VALUES ({n}, {}, 1, {until}, {}, {NOW}, {NOW}, 0) ON CONFLICT (lease_name) DO UPDATE SET \
             owner_token = excluded.owner_token, fence_token = fence_token + 1, leased_until = excluded.leased_until, \
             holder = excluded.holder, acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at, progress = NULL \
             WHERE leased_until <= {NOW}",
            text(&owner.to_string()),
            text(holder)
        );
        short(conn, &[sql, select_row(tables, name)]).await?.pop().map(lease_row).transpose()
    }

    async fn renew(
        conn: &mut SqliteConnection,
        tables: &Tables,
        terms: &[(Identity, Duration)],
    ) -> Result<Vec<Renewal>, sqlx::Error> {
        let t = tables.leases();
        let want = want(terms.iter().map(|(id, ttl)| (id, *ttl)));
        let update = format!(
            "{want} UPDATE {t} SET leased_until = max(leased_until, {NOW} + want.ttl_us), renewed_at = {NOW} FROM want \
             WHERE lease_name = want.name AND owner_token = want.owner AND fence_token = want.token AND leased_until > {NOW}"
        );
        // Nobody else can write between the two: what is ours and alive now was renewed.
        let select =
            format!("{want} SELECT {COLUMNS} FROM want LEFT JOIN {t} l ON l.lease_name = want.name ORDER BY place");
        let rows = short(conn, &[update, select]).await?;
        let mut found = Vec::with_capacity(terms.len());
        for (row, (id, _)) in rows.into_iter().zip(terms) {
            found.push(match row.try_get::<Option<String>, _>("lease_name")? {
                None => Renewal::Gone(None),
                Some(_) => match lease_row(row)? {
                    row if row.is_of(id) && row.remaining_us > 0 => Renewal::Renewed(row.remaining()),
                    row => Renewal::Gone(Some(row)),
                },
            });
        }
        Ok(found)
    }

    async fn release(conn: &mut SqliteConnection, tables: &Tables, claims: &[Claim]) -> Result<Vec<bool>, sqlx::Error> {
        let rows = claims.iter().map(|claim| format!("({},'{}')", text(claim.name.as_str()), claim.owner));
        let sql = format!(
            "WITH want (name, owner) AS (VALUES {}) UPDATE {} SET leased_until = 0 FROM want \
             WHERE lease_name = want.name AND owner_token = want.owner",
            rows.collect::<Vec<_>>().join(","),
            tables.leases()
        );
        short(conn, &[sql]).await?;
        Ok(vec![true; claims.len()])
    }

    async fn rows_of(
        conn: &mut SqliteConnection,
        tables: &Tables,
        name: Option<&LeaseName>,
    ) -> Result<Vec<LeaseRow>, sqlx::Error> {
        let sql = match name {
            Some(name) => select_row(tables, name),
            None => format!("SELECT {COLUMNS} FROM {} l ORDER BY l.lease_name", tables.leases()),
        };
        conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?.into_iter().map(lease_row).collect()
    }

    async fn progress(
        conn: &mut SqliteConnection,
        tables: &Tables,
        id: &Identity,
        note: &str,
    ) -> Result<bool, sqlx::Error> {
        let (t, held, note) = (tables.leases(), is_held(id), text(note));
        let sql = format!("UPDATE {t} SET progress = {note} WHERE {held} AND leased_until > {NOW} RETURNING 1");
        Ok(!short(conn, &[sql]).await?.is_empty())
    }

    async fn expire(
        conn: &mut SqliteConnection,
        tables: &Tables,
        name: &LeaseName,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n) = (tables.leases(), text(name.as_str()));
        let sql = format!("UPDATE {t} SET leased_until = 0 WHERE lease_name = {n}");
        short(conn, &[sql, select_row(tables, name)]).await?.pop().map(lease_row).transpose()
    }

    async fn raise(
        conn: &mut SqliteConnection,
        tables: &Tables,
        name: &LeaseName,
        from: i64,
        floor: i64,
        _patience: Duration,
    ) -> Result<Option<LeaseRow>, sqlx::Error> {
        let (t, n) = (tables.leases(), text(name.as_str()));
        let sql = format!(
            "UPDATE {t} SET owner_token = '', holder = '', fence_token = max(fence_token + 1, {floor}), leased_until = 0, progress = NULL \
             WHERE lease_name = {n} AND fence_token = {from}"
        );
        match short(conn, &[sql, select_row(tables, name)]).await {
            Ok(mut rows) => rows.pop().map(lease_row).transpose(),
            Err(error) if is_busy(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn mark() -> Arc<Hooks> {
        Arc::new(Hooks(AtomicU8::new(FORBID)))
    }

    async fn open(
        conn: &mut SqliteConnection,
        tables: &Tables,
        mark: &Arc<Hooks>,
        id: &Identity,
        opening: Opening,
    ) -> Result<Option<Trace>, NotOpened> {
        begin(conn, mark, "BEGIN IMMEDIATE").await?;
        match extend(conn, tables, id, opening.ttl, true).await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(NotOpened::Refused),
            Err(error) => return Err(NotOpened::Failed(error)),
        }
        match opening.resolve {
            Some(_) => receipts::write(conn, tables, id).await.map(Some).map_err(NotOpened::Failed),
            None => Ok(None),
        }
    }

    async fn finish(
        conn: &mut SqliteConnection,
        tables: &Tables,
        mark: &Arc<Hooks>,
        id: &Identity,
        ttl: Duration,
    ) -> (Ending, Fit) {
        let (why, error) = match commit(conn, tables, mark, id, ttl).await {
            Commit::Done(remaining) => {
                mark.0.store(OFF, SeqCst);
                return (Ending::Committed(Some(remaining)), Fit::Reuse);
            }
            Commit::Lost => return (Ending::RolledBack(RolledBack::Lost), Self::undo(conn, mark).await),
            Commit::Unknown(error) => {
                return (Ending::Unheard("SQLite's worker thread failed around COMMIT", Some(error)), Fit::Close);
            }
            Commit::Refused(why, error) => (why, error),
        };
        (Ending::RolledBack(RolledBack::Because(why, error)), Self::undo(conn, mark).await)
    }

    async fn look_up(
        conn: &mut SqliteConnection,
        tables: &Tables,
        id: &Identity,
        trace: &Trace,
    ) -> Result<Verdict, sqlx::Error> {
        receipts::look_up(conn, tables, id, trace).await
    }

    async fn forget(conn: &mut SqliteConnection, tables: &Tables, id: &Identity) -> Result<u64, sqlx::Error> {
        receipts::forget(conn, tables, id).await
    }

    async fn open_read(conn: &mut SqliteConnection, mark: &Arc<Hooks>) -> Result<(), NotOpened> {
        begin(conn, mark, "BEGIN").await?;
        // The savepoint dies with this transaction: without a write to commit, no hook would notice its end.
        conn.execute("PRAGMA query_only = 1; SAVEPOINT fence_read").await.map(drop).map_err(NotOpened::Failed)
    }

    async fn finish_read(conn: &mut SqliteConnection, mark: &Arc<Hooks>) -> (Result<(), RolledBack>, Fit) {
        let intact =
            Depth::get_transaction_depth(conn) == 1 && conn.execute("RELEASE SAVEPOINT fence_read").await.is_ok();
        let fit = Self::undo(conn, mark).await;
        (if intact { Ok(()) } else { Err(RolledBack::Because(ENDED_EARLY, None)) }, fit)
    }

    async fn undo(conn: &mut SqliteConnection, mark: &Arc<Hooks>) -> Fit {
        while Depth::get_transaction_depth(conn) > 0 {
            if Depth::rollback(conn).await.is_ok() {
                continue;
            }
            // SQLite had ended the transaction itself and sqlx's depth sticks: give it something to roll back.
            let given = Depth::get_transaction_depth(conn) == 1 && conn.execute("BEGIN").await.is_ok();
            if !given || Depth::rollback(conn).await.is_err() {
                return Fit::Close;
            }
        }
        // Depth 0 inside a transaction: something of ours was dropped half-way.
        match conn.execute("ROLLBACK").await {
            Ok(_) => {}
            Err(error) if message_of(&error).contains("no transaction is active") => {}
            Err(_) => return Fit::Close,
        }
        mark.0.store(OFF, SeqCst);
        if conn.execute("PRAGMA query_only = 0").await.is_ok() { Fit::Reuse } else { Fit::Close }
    }

    /// Only queues to the connection's worker thread, so that it needs no runtime; the file's lock is free at once.
    fn start_undo(conn: &mut SqliteConnection) -> bool {
        Depth::start_rollback(conn);
        true
    }
}

const NESTED: &str = "a nested transaction or savepoint was still open";
const ENDED_EARLY: &str =
    "SQLite had ended the transaction (a ROLLBACK or COMMIT that was not fence's, or a statement that rolls back)";

// Named explicitly: how else a column is called is a matter of pragmas.
const COLUMNS: &str = "l.lease_name AS lease_name, l.owner_token AS owner_token, l.fence_token AS fence_token, \
    l.holder AS holder, l.progress AS progress, \
    l.leased_until - (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000) AS remaining_us, \
    l.acquired_at AS acquired_at_us, l.renewed_at AS renewed_at_us";

fn select_row(tables: &Tables, name: &LeaseName) -> String {
    format!("SELECT {COLUMNS} FROM {} l WHERE l.lease_name = {}", tables.leases(), text(name.as_str()))
}

fn text(value: &str) -> String {
    if is_plain(value) { format!("'{value}'") } else { format!("CAST(X'{}' AS TEXT)", hex(value)) }
}

fn want<'a>(terms: impl Iterator<Item = (&'a Identity, Duration)>) -> String {
    let rows = terms.enumerate().map(|(place, (id, ttl))| {
        let (name, owner) = (text(id.name.as_str()), text(&id.owner.to_string()));
        format!("({place},{name},{owner},{},{})", id.token, ttl.as_micros())
    });
    format!("WITH want (place, name, owner, token, ttl_us) AS (VALUES {})", rows.collect::<Vec<_>>().join(","))
}

fn is_held(id: &Identity) -> String {
    let (name, owner) = (text(id.name.as_str()), id.owner);
    format!("lease_name = {name} AND owner_token = '{owner}' AND fence_token = {}", id.token)
}

fn after(ttl: Duration) -> String {
    format!("{NOW} + {}", ttl.as_micros())
}

fn lease_row(row: SqliteRow) -> Result<LeaseRow, sqlx::Error> {
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

/// A transaction of its own; returns the rows of its statements. After an error the connection must be closed.
async fn short(conn: &mut SqliteConnection, statements: &[String]) -> Result<Vec<SqliteRow>, sqlx::Error> {
    Depth::begin(conn, Some("BEGIN IMMEDIATE".into_sql_str())).await?;
    let sql = statements.join("; ");
    let rows = conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
    Depth::commit(conn).await?;
    Ok(rows)
}

async fn begin(conn: &mut SqliteConnection, mark: &Arc<Hooks>, statement: &'static str) -> Result<(), NotOpened> {
    {
        let mut handle = conn.lock_handle().await.map_err(NotOpened::Failed)?;
        let (commits, rollbacks) = (mark.clone(), mark.clone());
        handle.set_commit_hook(move || matches!(commits.0.load(SeqCst), OFF | ARMED));
        // Whatever rolls back before we ask for it has ended our transaction: nothing may be committed after it.
        handle.set_rollback_hook(move || {
            let _ = rollbacks.0.compare_exchange(FORBID, DEAD, SeqCst, SeqCst);
        });
    }
    match Depth::begin(conn, Some(statement.into_sql_str())).await {
        Ok(()) => Ok(()),
        Err(error) if is_nested_begin(&error) => Err(NotOpened::Stray),
        Err(error) => Err(NotOpened::Failed(error)),
    }
}

fn message_of(error: &sqlx::Error) -> &str {
    error.as_database_error().map_or("", DatabaseError::message)
}

fn is_nested_begin(error: &sqlx::Error) -> bool {
    message_of(error).contains("within a transaction")
}

/// SQLITE_BUSY in any of its extended forms.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.and_then(|code| code.parse::<i32>().ok()).is_some_and(|code| code & 0xff == BUSY)
}
