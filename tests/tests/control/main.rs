//! The control group: the naive ways to fence a write, driven through the same stepper as the race matrix, must lose.
//!
//! Each `control_loses` ends with a stale write that was committed *after* the takeover was. If one of them stops
//! losing, then the database has changed or the stepper does not step, and the zeros of the race matrix prove nothing.
//!
//! *A* is the old owner (token 1), *B* takes over (token 2) in the right way, with the lease row locked, and *C* is an
//! unrelated transaction.
//!
//! | interleaving | |
//! |---|---|
//! | `i1upd` | A's write has passed its check and waits for the target row, which C has changed; takeover; C commits |
//! | `i1lck` | the same, but C has only locked the row |
//! | `i2` | A's write waits for the target row, which B holds; B takes over and writes the row in that transaction |
//! | `i3` | A's write is done, its COMMIT is not; takeover; A commits |
//! | `i4` | A's check is done, its write is not; takeover; A writes and commits |
//! | `i5` | A's transaction has read something; takeover; A writes with its check and commits |
//!
//! `control_is_saved` shows that the stepper does not simply say "lost" to everything.

mod everywhere;
mod innodb;
mod postgres;
