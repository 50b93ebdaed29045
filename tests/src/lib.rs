//! What the tests of fence stand on: [fresh databases](servers), [sessions](stepper) and [holders of a lease](owner)
//! driven step by step, [closures as jobs](jobs), and a [`proxy`] that disturbs and counts.
//!
//! ```ignore
//! conformance! { a_takeover_raises_the_token }
//!
//! async fn a_takeover_raises_the_token<D: TestDb>(db: D) {}        // postgres::…, sqlite::…, sqlite_rollback::…
//!
//! #[tokio::test]
//! async fn postgres_only() {
//!     let Some(db) = postgres().await else { return };                // a skip has been reported
//! }
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod app;
pub mod cut;
pub mod jobs;
pub mod log;
pub mod owner;
pub mod proxy;
pub mod servers;
pub mod stepper;

/// How often a test with a fault in it is repeated: 20 times, or as often as `FENCE_TEST_ROUNDS` says.
///
/// # Panics
/// If that is no number.
pub fn rounds() -> u64 {
    std::env::var("FENCE_TEST_ROUNDS").map_or(20, |rounds| rounds.parse().expect("FENCE_TEST_ROUNDS is a number"))
}

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
