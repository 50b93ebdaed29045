//! Small helpers around durations.

use std::{collections::hash_map::RandomState, hash::BuildHasher, time::Duration};

/// Between nine tenths of a duration and all of it, so that many waiters do not wake together.
pub(crate) fn jittered(duration: Duration) -> Duration {
    // Every `RandomState` has keys of its own.
    let random = RandomState::new().hash_one(0u8) % 1024;
    duration.mul_f64(0.9 + 0.1 * random as f64 / 1024.0)
}
