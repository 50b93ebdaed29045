//! A pool connection that serves nobody else until it is known to be clean.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use tokio::runtime::Handle;

use crate::{Backend, backend::Fit};

/// Closed when dropped; goes back to its pool only through [`Lent::end`].
pub(crate) struct Lent<DB: Backend> {
    /// `None` only while the value is being consumed.
    conn: Option<PoolConnection<DB>>,
    runtime: Handle,
}

impl<DB: Backend> Lent<DB> {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new(conn: PoolConnection<DB>) -> Self {
        Self { conn: Some(conn), runtime: Handle::current() }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn end(mut self, fit: Fit) {
        if fit == Fit::Reuse {
            // The destructor of a pool connection spawns a task, which panics outside a runtime.
            let _inside = self.runtime.enter();
            self.conn.take();
        }
    }
}

impl<DB: Backend> Deref for Lent<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.conn.as_ref().expect("a lent connection is there until it is consumed")
    }
}

impl<DB: Backend> DerefMut for Lent<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.conn.as_mut().expect("a lent connection is there until it is consumed")
    }
}

impl<DB: Backend> Drop for Lent<DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            let _inside = self.runtime.enter();
            // Closes the socket here and now, and gives the pool its place back.
            drop(conn.detach());
        }
    }
}
