//! A terminal write is given the transaction that the token guards.

use fence_runtime::{Error, Written, terminal_write};

struct Store;

#[terminal_write]
async fn finish(store: &mut Store) -> Result<Written, Error> {
    let _ = store;
    unreachable!()
}

fn main() {}
