//! Fenced singleton jobs over SQL databases: one owner at a time may start, and only the current owner may finish.
//!
//! A *lease* decides who may start a job. A worker that was paused, partitioned or restarted can come back after its lease expired and
//! somebody else took over; its late write must be refused, by the database, in the transaction that writes. That is what the *fencing
//! token* is for, which every takeover raises.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use fence_runtime::{Error, Fence, FenceCtx, FencedTx, Written, fenced_job, terminal_write};
//! use sqlx::Sqlite;
//!
//! #[terminal_write]
//! async fn finish_run(tx: &mut FencedTx<'_, Sqlite>, run: i64) -> Result<Written, Error> {
//!     let sql = "UPDATE runs SET status = 'done' WHERE run_id = ? AND fence_token = ?";
//!     tx.terminal(sqlx::query(sql).bind(run).bind(tx.fence_token())).await // no row changed is an error
//! }
//!
//! #[fenced_job(lease = "admin:reconciliation", ttl = "30s")]
//! async fn reconcile(ctx: &FenceCtx<Sqlite>, run: i64) -> Result<(), Error> {
//!     let claim = "UPDATE runs SET fence_token = ?1 WHERE run_id = ?2 AND fence_token <= ?1";
//!     ctx.execute(sqlx::query(claim).bind(ctx.fence_token()).bind(run)).await?;
//!     // long work: no transaction is open, and the lease is renewed meanwhile
//!     ctx.transaction(async |tx| finish_run(tx, run).await).await?;
//!     Ok(())
//! }
//!
//! async fn start(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
//!     let fence = Fence::builder(pool).build().await?; // once, when the service starts
//!     match fence.run(reconcile(42)).await {
//!         Err(e) if e.is_contended() => {} // another instance has it: normal
//!         done => done?,
//!     }
//!     Ok(())
//! }
//! # }
//! ```
//!
//! # The guarantee
//!
//! If a takeover of a lease with token *n* + 1 has committed (or a [revocation](Fence::revoke)), no fenced transaction of a token ≤ *n*
//! commits afterwards. It holds at the database, whatever the clocks, pauses and partitions of the workers. Expiry by the database's clock
//! decides who may take over; local time only decides when a worker gives up early.
//!
//! It does not cover side effects outside this database, writes through another connection, SQL that deliberately puts back the session
//! settings by which the server keeps the lent connection inside its transaction, an asynchronous replica that is promoted without the last
//! takeover, or a lease table restored from an old backup. It is not exactly-once: it protects the place where a job writes.
//!
//! # The words
//!
//! A **lease** is a name that one **holder** at a time may hold, each acquisition under a fresh [`OwnerToken`]. Its **TTL** is how long it
//! lives without being **renewed**. Acquiring an expired or released lease is a **takeover** and raises the [`FenceToken`]. A lease is
//! **contended** when somebody else holds it, and **lost** when we held it and no longer do. A **terminal write** is one that another owner
//! must never overwrite or repeat: a completion, a publication, a deletion, a success mark.
//!
//! # The map
//!
//! | to | look at |
//! |---|---|
//! | make a job of a function | [`fenced_job`](macro@fenced_job), [`FencedJob`] |
//! | run it | [`Fence::run`], [`RunError`] |
//! | read and write in it | [`FenceCtx`], [`FencedTx`], [`ReadTx`] |
//! | write what must not be overwritten | [`terminal_write`](macro@terminal_write), [`FencedTx::terminal`], [`Written`] |
//! | set it up | [`FenceBuilder`], [`migrate`] |
//! | have lost commits looked up | [`Resolve`] |
//! | see and end who holds what | [`Fence::leases`], [`Fence::revoke`] |
//! | keep a team's own pool out of jobs | [`RawHandle`] |
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod backend;
mod carried;
mod ctx;
mod error;
mod fence;
mod highest;
mod job;
mod keeper;
mod lease;
mod lent;
#[cfg(feature = "migrate")]
pub mod migrate;
mod operate;
mod probe;
mod read;
mod resolve;
mod run;
mod session;
mod statement;
mod term;
mod terminal;
mod time;
mod tx;

pub use backend::{Backend, Isolation};
pub use ctx::FenceCtx;
pub use error::{Error, ErrorKind};
pub use fence::{Fence, FenceBuilder};
pub use fence_macros::{fenced_job, terminal_write};
pub use job::{BoxJob, FencedJob};
pub use lease::{
    DEFAULT_TTL, FenceToken, Lease, LeaseName, LeaseOptions, MAX_NAME_BYTES, MAX_TTL, MIN_TTL, OnLost, OwnerToken,
    Untyped,
};
pub use operate::{LeaseStatus, Revocation};
pub use probe::RawHandle;
pub use read::ReadTx;
pub use resolve::Resolve;
pub use run::{Contended, LastTransaction, RunError};
pub use terminal::{Terminal, Written};
pub use tx::{FencedTx, TxOptions};
