//! On SQLite nothing can be cut; but COMMIT can take so long that nobody waits for it any more.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use fence_runtime::{Error, ErrorKind, Fence, Resolve};
use fence_tests::{
    app::{RUNS, count, insert},
    jobs::job,
    servers::{SqliteDb, TestDb},
};

use super::{LEASE, receipts};

fence_tests::conformance! { on sqlite: a_commit_that_takes_too_long_is_looked_up }

async fn a_commit_that_takes_too_long_is_looked_up(first: SqliteDb) {
    let Some(second) = SqliteDb::open().await else { return };
    tokio::join!(takes_too_long(first, true), takes_too_long(second, false));
}

/// In the place of the hook of ours that refuses commits: it takes longer than anybody waits, and then lets it pass or not.
async fn takes_too_long(db: SqliteDb, passes: bool) {
    db.sql(RUNS).await;
    let builder = Fence::builder(db.pool().clone()).keeper_options(db.options("keeper"));
    let fence = builder.resolve(Resolve::Receipts).migrate().build().await.unwrap();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let inside = gate.clone();
    let run = fence.run(
        job(LEASE, move |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<SqliteDb>(&mut tx, 2).await.unwrap();
                tx.connection().lock_handle().await?.set_commit_hook(move || {
                    let (open, opened) = &*inside;
                    drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
                    passes
                });
                tx.commit().await
            })
        })
        .ttl(Duration::from_secs(3600)),
    );
    let late = async {
        // The limit is 30 s.
        tokio::time::sleep(Duration::from_secs(33)).await;
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    };
    let (result, ()) = tokio::join!(run, late);
    match passes {
        true => result.unwrap(),
        false => {
            assert_eq!(result.unwrap_err().into_job().map(|error: Error| error.kind()), Some(ErrorKind::RolledBack))
        }
    }
    assert_eq!((count(&db, 2).await, receipts(&db).await), (i64::from(passes), 0));
}
