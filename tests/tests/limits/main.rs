//! What the server is told to limit in a fenced transaction, and that nothing of it reaches the connection's next user.

mod ends;
mod leaks;

/// The lease of every test.
const LEASE: &str = "admin:reconciliation";
