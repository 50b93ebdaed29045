//! The first parameter is checked by type: an alias of `FenceCtx` is fine, this is not.

use fence_runtime::{Error, fenced_job};

struct Deps;

#[fenced_job(lease = "ui:not-a-context")]
async fn job(deps: &Deps) -> Result<(), Error> {
    Ok(())
}

fn main() {}
