//! Tokens come from the database, through a context or a transaction.

use fence_runtime::{FenceToken, OwnerToken};

fn tokens() -> (FenceToken, OwnerToken) {
    (FenceToken(1), OwnerToken::fresh())
}

fn main() {}
