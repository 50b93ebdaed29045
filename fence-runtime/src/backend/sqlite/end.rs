//! The guard of a fenced transaction on SQLite, which runs at both of its ends, and the COMMIT.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use sqlx::{AssertSqlSafe, SqliteConnection};
use sqlx_core::transaction::TransactionManager;

use super::{
    super::{Identity, Tables},
    ARMED, Depth, ENDED_EARLY, FORBID, Hooks, NESTED, NOW, is_busy,
};

/// How long a COMMIT that readers are in the way of is tried again. Each try may take the connection's busy timeout, which `verify` bounds: all
/// of it must end before a caller gives the connection up.
const COMMIT_PATIENCE: Duration = Duration::from_secs(10);

/// The guard: a renewal inside the transaction. At the end the expiry is no matter, since nobody can have taken over.
pub(super) async fn extend(
    conn: &mut SqliteConnection,
    tables: &Tables,
    id: &Identity,
    ttl: Duration,
    only_live: bool,
) -> Result<Option<Duration>, sqlx::Error> {
    let live = if only_live { format!(" AND leased_until > {NOW}") } else { String::new() };
    // Bound, so that it is prepared once on each connection: it runs twice in every fenced transaction.
    let sql = format!(
        "UPDATE {} SET leased_until = max(leased_until, {NOW} + ?), renewed_at = {NOW} \
         WHERE lease_name = ? AND owner_token = ? AND fence_token = ?{live} RETURNING leased_until - {NOW}",
        tables.leases()
    );
    let remaining: Option<i64> = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX))
        .bind(id.name.as_str())
        .bind(id.owner.to_string())
        .bind(id.token.get())
        .fetch_optional(conn)
        .await?;
    Ok(remaining.map(|us| Duration::from_micros(us.try_into().unwrap_or(0))))
}

pub(super) enum Commit {
    Done(Duration),
    Lost,
    Refused(&'static str, Option<sqlx::Error>),
    Unknown(sqlx::Error),
}

pub(super) async fn commit(
    conn: &mut SqliteConnection,
    tables: &Tables,
    mark: &Arc<Hooks>,
    id: &Identity,
    ttl: Duration,
) -> Commit {
    if mark.0.load(SeqCst) != FORBID {
        return Commit::Refused(ENDED_EARLY, None);
    }
    if Depth::get_transaction_depth(conn) != 1 {
        return Commit::Refused(NESTED, None);
    }
    let remaining = match extend(conn, tables, id, ttl, false).await {
        Ok(Some(remaining)) => remaining,
        Ok(None) => return Commit::Lost,
        Err(error) => return Commit::Refused("the lease could not be renewed before COMMIT", Some(error)),
    };
    if mark.0.compare_exchange(FORBID, ARMED, SeqCst, SeqCst).is_err() {
        return Commit::Refused(ENDED_EARLY, None);
    }
    // A reader can be in the way of the COMMIT: the transaction stays open, and asking again is right.
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < COMMIT_PATIENCE {
        match Depth::commit(conn).await {
            Ok(()) => return Commit::Done(remaining),
            Err(error) if is_busy(&error) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) if error.as_database_error().is_some() => {
                mark.0.store(FORBID, SeqCst);
                return Commit::Refused("SQLite refused the commit", Some(error));
            }
            Err(error) => return Commit::Unknown(error),
        }
    }
    mark.0.store(FORBID, SeqCst);
    Commit::Refused("readers were in the way of COMMIT for too long", None)
}
