//! A commit whose answer was lost: what became of it.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use crate::{
    Backend,
    backend::{FORGET_AT_ONCE, Identity, Protocol, Trace, Verdict},
    fence::Shared,
    time::jittered,
};

/// How long the outcome of a commit is asked for.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is said of a verdict that is none.
pub(crate) const STILL_OPEN: &str = "the answer to COMMIT was lost, and its transaction has not ended on the server";
/// What is in the way then is a transaction that has not ended, or a server that is not there.
const POLL: Duration = Duration::from_millis(100);

/// How a commit whose answer was lost is looked up afterwards: see [`FenceBuilder::resolve`](crate::FenceBuilder::resolve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolve {
    /// Every fenced transaction writes a row into `fenced_job_receipts`, in the message that opens it; the run deletes its own when it has
    /// ended. On every database.
    Receipts,
    /// The server is asked for the number of every fenced transaction when it begins, which is one round trip more, and later for its
    /// status. PostgreSQL only. After a fail-over or a crash of the server the answer is unknown: the number may have been given out
    /// again.
    TransactionStatus,
}

/// Asks until there is an answer, or no more patience. Only once the connection of the transaction is closed.
pub(crate) async fn resolve<DB: Backend>(shared: &Shared<DB>, id: &Identity, trace: &Trace) -> Verdict {
    let mut so_far =
        Verdict::Unknown("the answer to COMMIT was lost, and the database did not say afterwards what became of it");
    let asking = async {
        loop {
            let (tables, own, trace) = (shared.tables.clone(), id.clone(), trace.clone());
            let answer = shared.once("the outcome of a commit could not be looked up", move |conn| {
                let (tables, own, trace) = (tables.clone(), own.clone(), trace.clone());
                Box::pin(async move { DB::Protocol::look_up(conn, &tables, &own, &trace).await })
            });
            match answer.await {
                Ok(Verdict::Open) => so_far = Verdict::Open,
                Ok(verdict) => return verdict,
                Err(error) => {
                    debug!(lease = %id.name, token = %id.token, %error, "the outcome of a commit could not be looked up yet");
                }
            }
            sleep(jittered(POLL)).await;
        }
    };
    match timeout(PATIENCE, asking).await {
        Ok(verdict) => verdict,
        Err(_) => so_far,
    }
}

/// Deletes what nobody will look up any more. Not having done it harms nothing: a later run does.
pub(crate) async fn forget<DB: Backend>(shared: &Shared<DB>, id: &Identity) {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let (tables, own) = (shared.tables.clone(), id.clone());
        let deleted = shared.once("old receipts could not be deleted", move |conn| {
            let (tables, own) = (tables.clone(), own.clone());
            Box::pin(async move { DB::Protocol::forget(conn, &tables, &own).await })
        });
        match deleted.await {
            Ok(FORGET_AT_ONCE) => {}
            Ok(_) => return,
            Err(error) => {
                debug!(lease = %id.name, token = %id.token, %error, "old receipts stay for the next run");
                return;
            }
        }
    }
}
