//! Work on a connection that must not stop half-way.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

/// Driven by whoever awaits it; dropped half-way, it goes on in the background. What comes out then is dropped, so its destructor must
/// do the cleaning.
pub(crate) struct Carried<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Carried<T> {
    pub(crate) fn new(runtime: Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime }
    }
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("polled after it was done");
        let result = ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            // On a runtime that has shut down the work is dropped instead, and its connection closed.
            self.runtime.spawn(async move { drop(work.await) });
        }
    }
}
