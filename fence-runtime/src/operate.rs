//! What an operator does: see who holds what, and end a holder's term.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::info;

use crate::{
    Backend, Fence,
    backend::{LeaseRow, Protocol},
    error::{Error, ErrorKind},
    fence::is_in_the_way,
    lease::LeaseName,
};

/// A lease as it stands in its table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Its name.
    pub lease: String,
    /// The last fencing token given out.
    pub fence_token: i64,
    /// The label of the last holder.
    pub holder: String,
    /// How long it lives without renewal, by the database's clock; `None` when nobody holds it.
    pub remaining: Option<Duration>,
    /// When the last holder acquired it, by the database's clock.
    pub acquired_at: SystemTime,
    /// When it was last renewed, by the database's clock.
    pub renewed_at: SystemTime,
    /// What the holder last said with [`FenceCtx::progress`](crate::FenceCtx::progress).
    pub progress: Option<String>,
}

impl LeaseStatus {
    fn read(row: LeaseRow) -> Self {
        let at = |us: i64| SystemTime::UNIX_EPOCH + Duration::from_micros(us.try_into().unwrap_or(0));
        Self {
            remaining: (row.remaining_us > 0).then(|| row.remaining()),
            fence_token: row.token,
            acquired_at: at(row.acquired_at_us),
            renewed_at: at(row.renewed_at_us),
            lease: row.name,
            holder: row.holder,
            progress: row.progress,
        }
    }
}

/// What [`Fence::revoke`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Revocation {
    /// The holder's term is over: no fenced transaction of it commits any more.
    Complete {
        /// The token now. Nobody holds it, unless somebody took over in the meantime: then it is theirs.
        fence_token: i64,
    },
    /// No new fenced transaction of the holder begins, but one that was open already may still commit. Ask again to wait for it, or let
    /// its idle limit end it.
    Draining {
        /// The token whose transactions are draining.
        fence_token: i64,
    },
}

/// How long one try may take, and how long it may at least, which is what a lock that nobody holds costs on a busy server.
const PATIENCE: Duration = Duration::from_millis(500);
const LEAST: Duration = Duration::from_millis(200);

impl<DB: Backend> Fence<DB> {
    /// Every lease there is, in the order of their names.
    ///
    /// # Errors
    /// [`ErrorKind::Database`].
    pub async fn leases(&self) -> Result<Vec<LeaseStatus>, Error> {
        let rows = self.rows_of(None).await?;
        Ok(rows.into_iter().map(LeaseStatus::read).collect())
    }

    /// One lease; `None` when it was never acquired.
    ///
    /// # Errors
    /// [`ErrorKind::Database`].
    pub async fn inspect(&self, lease: &LeaseName) -> Result<Option<LeaseStatus>, Error> {
        let rows = self.rows_of(Some(lease.clone())).await?;
        Ok(rows.into_iter().next().map(LeaseStatus::read))
    }

    async fn rows_of(&self, lease: Option<LeaseName>) -> Result<Vec<LeaseRow>, Error> {
        let tables = self.shared.tables.clone();
        self.shared
            .once("the leases could not be read", move |conn| {
                let (tables, lease) = (tables.clone(), lease.clone());
                Box::pin(async move { DB::Protocol::rows_of(conn, &tables, lease.as_ref()).await })
            })
            .await
    }

    /// Ends the term of whoever holds the lease: at once no new fenced transaction of it begins; then its token is raised, as a takeover
    /// does, for which fenced transactions that are open already are waited for, at most `wait`.
    ///
    /// ```no_run
    /// # async fn example<DB: fence_runtime::Backend>(fence: fence_runtime::Fence<DB>) -> Result<(), fence_runtime::Error> {
    /// use fence_runtime::{LeaseName, Revocation};
    ///
    /// let lease = LeaseName::new("admin:reconciliation")?;
    /// match fence.revoke(&lease, std::time::Duration::from_secs(30)).await? {
    ///     Revocation::Complete { fence_token } => println!("nothing below token {fence_token} can be written any more"),
    ///     Revocation::Draining { fence_token } => println!("a transaction with token {fence_token} is still open: ask again"),
    ///     _ => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when there is no such lease, [`ErrorKind::Database`]. On SQLite an open fenced transaction keeps everybody from
    /// writing: when one was open all the time, that is a [`ErrorKind::Database`] that says so, and nothing was revoked.
    ///
    /// # Cancel safety
    /// Dropped, either step may or may not have been done; calling it again is right.
    pub async fn revoke(&self, lease: &LeaseName, wait: Duration) -> Result<Revocation, Error> {
        let started = Instant::now();
        let expired = loop {
            let (tables, name) = (self.shared.tables.clone(), lease.clone());
            let expired = self
                .shared
                .once("nothing was revoked", move |conn| {
                    let (tables, name) = (tables.clone(), name.clone());
                    Box::pin(async move { DB::Protocol::expire(conn, &tables, &name).await })
                })
                .await;
            match expired {
                // Only where a fenced transaction keeps everybody from writing.
                Err(error) if started.elapsed() < wait && is_in_the_way::<DB>(&error) => {}
                other => break other.map_err(|error| error.of(lease, None))?,
            }
        };
        let Some(expired) = expired else {
            return Err(Error::new(ErrorKind::Config, "there is no such lease: it was never acquired").of(lease, None));
        };
        let token = expired.token;
        loop {
            let patience = PATIENCE.min(wait.saturating_sub(started.elapsed())).max(LEAST);
            let (tables, name) = (self.shared.tables.clone(), lease.clone());
            let raised = self
                .shared
                .once("the lease has expired, but its token could not be raised", move |conn| {
                    let (tables, name) = (tables.clone(), name.clone());
                    Box::pin(async move { DB::Protocol::raise(conn, &tables, &name, token, patience).await })
                })
                .await
                .map_err(|error| error.of(lease, None))?;
            if let Some(row) = raised {
                info!(%lease, token, "lease revoked");
                return Ok(Revocation::Complete { fence_token: row.token });
            }
            if started.elapsed() >= wait {
                return Ok(Revocation::Draining { fence_token: token });
            }
        }
    }
}
