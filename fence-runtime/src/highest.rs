//! The highest fencing token that this process has seen of each lease: a table that was restored or emptied gives tokens out again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::lease::LeaseName;

#[derive(Default)]
pub(crate) struct Highest(Mutex<HashMap<LeaseName, i64>>);

impl Highest {
    /// What a token that is given out from now on must be greater than.
    pub(crate) fn of(&self, lease: &LeaseName) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(lease).copied().unwrap_or(0)
    }

    pub(crate) fn saw(&self, lease: &LeaseName, token: i64) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match tokens.get_mut(lease) {
            Some(highest) => *highest = token.max(*highest),
            None => drop(tokens.insert(lease.clone(), token)),
        }
    }
}
