//! How a fenced transaction can end, and that `run` says which: committed, rolled back, or unknown, and never the
//! wrong one.

mod dropped;
mod pool;
mod refused;
mod text;
mod unanswered;
mod unknown;

/// The lease of every test.
const LEASE: &str = "admin:reconciliation";
