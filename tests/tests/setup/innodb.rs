//! MySQL and MariaDB.

mod drift;
mod reach;
mod settings;

use fence_runtime::{Error, ErrorKind};
use fence_tests::servers::InnoDb;

use crate::{builder, fixes, nothing_is_left};

async fn migrated<const M: bool>(db: &InnoDb<M>) {
    drop(builder(db).migrate().build().await.unwrap());
}

/// Why no fence is built, if it says all of this.
async fn refused<const M: bool>(db: &InnoDb<M>, says: &[&str]) -> Error {
    let error = builder(db).build().await.map(drop).expect_err(says[says.len() - 1]);
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    nothing_is_left(db, says[0]).await;
    error
}

/// A name in backquotes, as these servers have it, stands inside the backquotes of the text.
fn fixes_of(error: &Error) -> Vec<String> {
    let text = error.to_string();
    let Some((_, fix)) = text.split_once("run `") else { return fixes(error) };
    let end = fix.find("` and the same").or_else(|| fix.find("` and connect")).or_else(|| fix.rfind('`'));
    vec![fix[..end.unwrap_or(fix.len())].to_owned()]
}
