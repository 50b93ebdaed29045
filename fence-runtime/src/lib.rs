//! Fenced singleton jobs over SQL databases.
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
mod job;
mod keeper;
mod lease;
mod lent;
#[cfg(feature = "migrate")]
pub mod migrate;
mod operate;
mod probe;
mod read;
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
pub use run::{Contended, LastTransaction, RunError};
pub use terminal::{Terminal, Written};
pub use tx::{FencedTx, TxOptions};
