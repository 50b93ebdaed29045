//! What an operator does: see who holds what, and end a holder's term.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::info;

use crate::{
    Backend, Fence,
    backend::{LeaseRow, Protocol},
    error::{Error, ErrorKind},
    fence::is_in_the_way,
    lease::{LeaseName, MIN_TTL, OwnerToken},
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

/// Leaves room for more takeovers than there will ever be.
const HIGHEST_FLOOR: i64 = 1 << 62;

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
        match self.expire(lease, started, wait).await? {
            Some(token) => {
                let raised = self.raise(lease, token, 0, started, wait).await?;
                Ok(raised.map_or(Revocation::Draining { fence_token: token }, |row| Revocation::Complete {
                    fence_token: row.token,
                }))
            }
            None => Err(Error::new(ErrorKind::Config, "there is no such lease: it was never acquired").of(lease, None)),
        }
    }

    /// Raises the token of a lease so far that the next one is greater than `floor`, and ends the term of whoever holds it, as
    /// [`revoke`](Self::revoke) does. A lease that was never acquired is created.
    ///
    /// For after a restore, a promoted replica that had not heard of the last takeovers, or a table that was emptied: tokens would be given out
    /// again that your own rows or a third party know already. Ask those for the highest token that they have seen, before the jobs run again.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a floor below 1 or above 2⁶², and as [`revoke`](Self::revoke).
    ///
    /// # Cancel safety
    /// As [`revoke`](Self::revoke).
    pub async fn raise_floor(&self, lease: &LeaseName, floor: i64, wait: Duration) -> Result<Revocation, Error> {
        if !(1..=HIGHEST_FLOOR).contains(&floor) {
            let message = format!("the floor {floor} of the fencing token must be between 1 and 2⁶²");
            return Err(Error::new(ErrorKind::Config, message).of(lease, None));
        }
        let started = Instant::now();
        loop {
            let Some(token) = self.expire(lease, started, wait).await? else {
                self.create(lease).await?;
                continue;
            };
            match self.raise(lease, token, floor, started, wait).await? {
                None => return Ok(Revocation::Draining { fence_token: token }),
                Some(row) if row.token >= floor && row.owner.is_empty() => {
                    return Ok(Revocation::Complete { fence_token: row.token });
                }
                // Somebody took over in the meantime, with a token that is too low.
                Some(_) => {}
            }
        }
    }

    /// By acquiring it: the row is what is wanted, and its term is ended next.
    async fn create(&self, lease: &LeaseName) -> Result<(), Error> {
        let (tables, name, holder) = (self.shared.tables.clone(), lease.clone(), self.shared.holder.clone());
        let owner = OwnerToken::fresh();
        self.shared
            .once("the lease could not be created", move |conn| {
                let (tables, name, holder) = (tables.clone(), name.clone(), holder.clone());
                Box::pin(
                    async move { DB::Protocol::acquire(conn, &tables, &name, owner, MIN_TTL, &holder).await.map(drop) },
                )
            })
            .await
            .map_err(|error| error.of(lease, None))
    }

    /// The token of which no fenced transaction begins any more. `None`: there is no such lease.
    async fn expire(&self, lease: &LeaseName, started: Instant, wait: Duration) -> Result<Option<i64>, Error> {
        loop {
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
                Ok(row) => return Ok(row.map(|row| row.token)),
                Err(error) => return Err(error.of(lease, None)),
            }
        }
    }

    /// The row with the token raised, or as somebody has it who took over in the meantime. `None`: fenced transactions were open all the time.
    async fn raise(
        &self,
        lease: &LeaseName,
        token: i64,
        floor: i64,
        started: Instant,
        wait: Duration,
    ) -> Result<Option<LeaseRow>, Error> {
        loop {
            let patience = PATIENCE.min(wait.saturating_sub(started.elapsed())).max(LEAST);
            let (tables, name) = (self.shared.tables.clone(), lease.clone());
            let raised = self
                .shared
                .once("the lease has expired, but its token could not be raised", move |conn| {
                    let (tables, name) = (tables.clone(), name.clone());
                    Box::pin(async move { DB::Protocol::raise(conn, &tables, &name, token, floor, patience).await })
                })
                .await
                .map_err(|error| error.of(lease, None))?;
            if let Some(row) = raised {
                info!(%lease, token, now = row.token, "lease revoked");
                return Ok(Some(row));
            }
            if started.elapsed() >= wait {
                return Ok(None);
            }
        }
    }
}
