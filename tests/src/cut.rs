//! Futures that are dropped half-way, at every point where they can be.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Polls a future until it is ready, or drops it as soon as it has been pending this many times. Zero: it is never
/// polled.
pub async fn cut<T>(at: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = at;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => {
                left -= 1;
                if left == 0 { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    })
    .await
}
