//! Outside its transaction the lent connection cannot write: every way out that we know, taken on purpose.
//!
//! Each test writes run 2 in a fenced transaction, leaves it in some way, and writes run 3 in whatever it is in then.
//! Run 3 must not be there, before `commit` or after it; `commit` must not say Ok; and the pool's only connection must
//! serve its next user as if nothing had happened.

mod common;
mod file;
mod innodb;
mod server;
mod stage;
