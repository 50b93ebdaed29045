//! What a running job holds: its lease, its token, and the only way to a connection.

use std::{fmt, sync::Arc, time::Duration};

use sqlx::Execute;

use crate::{
    Backend,
    backend::Protocol,
    error::{Error, ErrorKind},
    fence::Shared,
    lease::{FenceToken, LeaseName, OwnerToken, Untyped},
    read::ReadTx,
    term::{Holding, LastTx, Loss, Term},
    terminal::Written,
    tx::{FencedTx, Open, TxOptions},
};

/// The context of a running job. It lives exactly as long as the run, cannot be made, cloned or sent away, and is the only way from a job
/// to its database.
pub struct FenceCtx<DB: Backend, L = Untyped> {
    shared: Arc<Shared<DB>>,
    holding: Holding,
    lease: L,
}

impl<DB: Backend, L> FenceCtx<DB, L> {
    pub(crate) fn new(shared: Arc<Shared<DB>>, holding: Holding, lease: L) -> Self {
        Self { shared, holding, lease }
    }

    /// The lease, as a value of its type.
    #[must_use]
    pub fn lease(&self) -> &L {
        &self.lease
    }

    /// The lease's name.
    #[must_use]
    pub fn lease_name(&self) -> &LeaseName {
        &self.holding.id.name
    }

    /// The fencing token of this term. Hand it to a sink that can compare numbers and refuse smaller ones.
    #[must_use]
    pub fn fence_token(&self) -> FenceToken {
        self.holding.id.token
    }

    /// Who holds the lease: us, in this very run.
    #[must_use]
    pub fn owner_token(&self) -> OwnerToken {
        self.holding.id.owner
    }

    /// Opens a read: the server keeps it read-only, and every statement sees the same moment.
    ///
    /// # Errors
    /// [`ErrorKind::Database`].
    ///
    /// # Cancel safety
    /// Dropped half-way, it goes on in the background and gives its connection back.
    pub async fn read(&self) -> Result<ReadTx<'_, DB>, Error> {
        ReadTx::begin(&self.shared, &self.holding).await
    }

    /// Runs `body` in a fenced transaction: committed when it returns `Ok`, rolled back when it returns `Err`.
    ///
    /// # Errors
    /// What `body` returned; [`ErrorKind::Lost`] when the lease is no longer ours, and then `body` has not run; or what
    /// [`FencedTx::commit`] says.
    ///
    /// # Cancel safety
    /// Dropped in `body`, the transaction is rolled back; dropped in the commit, that goes on in the background and
    /// [`Fence::run`](crate::Fence::run) waits for its outcome.
    pub async fn transaction<T, E: From<Error>>(
        &self,
        body: impl AsyncFnOnce(&mut FencedTx<'_, DB, L>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tx = self.begin_to_write().await?;
        match body(&mut tx).await {
            Ok(value) => {
                tx.commit().await?;
                Ok(value)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Opens a fenced transaction to commit by hand. Prefer [`transaction`](Self::transaction), which cannot forget it.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lease is no longer ours: the database was asked. [`ErrorKind::Database`].
    ///
    /// # Cancel safety
    /// Dropped half-way, it goes on in the background and is rolled back there.
    pub async fn begin(&self) -> Result<FencedTx<'_, DB, L>, Error> {
        self.begin_with(TxOptions::new()).await
    }

    /// [`begin`](Self::begin) with another isolation level or idle limit.
    ///
    /// ```no_run
    /// # async fn example<DB: fence_runtime::Backend>(ctx: &fence_runtime::FenceCtx<DB>) -> Result<(), fence_runtime::Error> {
    /// use fence_runtime::{Isolation, TxOptions};
    ///
    /// let tx = ctx.begin_with(TxOptions::new().isolation(Isolation::Serializable)).await?;
    /// // …
    /// tx.commit().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_with(&self, options: TxOptions) -> Result<FencedTx<'_, DB, L>, Error> {
        Ok(FencedTx::new(Open::begin(&self.shared, &self.holding, options).await?))
    }

    /// One terminal write in a fenced transaction of its own.
    ///
    /// # Errors
    /// As [`begin`](Self::begin), [`FencedTx::terminal`] and [`FencedTx::commit`].
    pub async fn execute<'q>(&self, query: impl Execute<'q, DB>) -> Result<Written, Error> {
        let mut tx = self.begin_to_write().await?;
        match tx.terminal(query).await {
            Ok(written) => {
                tx.commit().await?;
                Ok(written)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Asks the database whether the lease is still ours; returns how long it still lives without renewal.
    ///
    /// The answer is old when it arrives: only a fenced transaction decides whether a write lands.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] or [`ErrorKind::Database`].
    pub async fn check(&self) -> Result<Duration, Error> {
        loop {
            let before = self.holding.deadline();
            let (name, tables) = (self.lease_name().clone(), self.shared.tables.clone());
            let rows = self
                .shared
                .once("the lease could not be checked", move |conn| {
                    let (tables, name) = (tables.clone(), name.clone());
                    Box::pin(async move { DB::Protocol::rows_of(conn, &tables, Some(&name)).await })
                })
                .await?;
            match (Loss::read(&self.holding.id, rows.first()), self.holding.deadline()) {
                (None, _) => return Ok(rows.first().map(crate::backend::LeaseRow::remaining).unwrap_or_default()),
                // A transaction is open whose guard has renewed the lease: the row that others see is the one before.
                (Some(Loss::Expired), None) => return Ok(self.remaining()),
                // Such a transaction ended while we were asking, or a renewal came: the answer may be older than that.
                (Some(Loss::Expired), after) if after != before => {}
                (Some(loss), _) => return Err(self.lose(loss)),
            }
        }
    }

    /// Resolves when the lease is lost. For jobs with `on_lost = "signal"`; others are dropped at that moment.
    ///
    /// ```no_run
    /// # async fn example<DB: fence_runtime::Backend>(ctx: &fence_runtime::FenceCtx<DB>, work: impl Future<Output = ()>) {
    /// tokio::select! {
    ///     () = ctx.lost() => println!("{} is lost: clean up, nothing can be written any more", ctx.lease_name()),
    ///     () = work => {}
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Yes.
    pub async fn lost(&self) {
        self.holding.lost().await;
    }

    /// Is the lease known to be lost?
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.holding.loss().is_some()
    }

    /// How long the lease may still be relied on without another renewal, by this process's clock. Zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.holding.remaining()
    }

    /// Notes in the lease's row how far the job is, for [`Fence::leases`](crate::Fence::leases) and whoever looks at the table. Only the
    /// holder can: after a takeover it is refused.
    ///
    /// On SQLite it waits for an open fenced transaction: call it outside of one.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], [`ErrorKind::Config`] for a text with a NUL character, [`ErrorKind::Database`].
    pub async fn progress(&self, text: &str) -> Result<(), Error> {
        let id = self.holding.id.clone();
        if text.contains('\0') {
            return Err(Error::new(ErrorKind::Config, "a progress note must not contain a NUL character")
                .of(&id.name, Some(id.token)));
        }
        let (tables, text) = (self.shared.tables.clone(), text.to_owned());
        let noted = self
            .shared
            .once("progress could not be noted", move |conn| {
                let (tables, id, text) = (tables.clone(), id.clone(), text.clone());
                Box::pin(async move { DB::Protocol::progress(conn, &tables, &id, &text).await })
            })
            .await?;
        match noted {
            true => Ok(()),
            // Says why, in the words of the row.
            false => match self.check().await {
                Ok(_) => Err(self.lose(Loss::Expired)),
                Err(error) => Err(error),
            },
        }
    }

    /// A key for a third party that does a thing once for each key, such as a payment.
    ///
    /// It is the same for every owner of the lease: the successor that repeats a step sends the key its predecessor sent. So `step` must name
    /// the piece of work and not only its kind: `"payout:2026-11:4711"`, not `"payout"`.
    #[must_use]
    pub fn idempotency_key(&self, step: &str) -> String {
        let name = self.lease_name().as_str();
        // The length keeps ("a", "bc") and ("ab", "c") apart.
        let key = format!("fence/{}/{name}/{step}", name.len());
        uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, key.as_bytes()).to_string()
    }

    /// Something was to be written: that it could not begin, or was dropped before, is no success whatever the job makes of it.
    async fn begin_to_write(&self) -> Result<FencedTx<'_, DB, L>, Error> {
        let mut intent = Intent(Some(&self.holding));
        let begun = self.begin().await;
        if begun.as_ref().map_or_else(Error::is_lost, |_| true) {
            intent.0 = None;
        }
        begun
    }

    pub(crate) fn term(&self) -> &Term {
        &self.holding
    }

    fn lose(&self, loss: Loss) -> Error {
        let error = loss.error(&self.holding.id, "");
        self.holding.lose(loss);
        error
    }
}

struct Intent<'h>(Option<&'h Holding>);

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        if let Some(holding) = self.0 {
            holding.set_last(LastTx::Abandoned("it could not be opened, or was dropped before it was"));
        }
    }
}

impl<DB: Backend, L> fmt::Debug for FenceCtx<DB, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceCtx")
            .field("lease", self.lease_name())
            .field("fence_token", &self.fence_token())
            .finish_non_exhaustive()
    }
}
