//! Bad input: each a typed error that names the thing and the fix, where it can be known, and nothing half-started
//! stays behind. A fix that is SQL is run as it stands in the text, and then the fence works.

mod config;
mod innodb;
mod migrations;
mod reach;
mod roles;
mod session;
mod table;

use std::time::Duration;

use fence_runtime::{Backend, Error, Fence, FenceBuilder, Revocation};
use fence_tests::{
    app::eventually,
    jobs::{job, token_of},
    servers::TestDb,
};
use sqlx::migrate::Migrate;

/// Tells the connections of this test's builders from all others.
const POOL: &str = "setup pool";
const KEEPER: &str = "setup keeper";

fn builder<D: TestDb>(db: &D) -> FenceBuilder<D::Db> {
    Fence::builder(db.pool_as(POOL, 2)).keeper_options(db.options(KEEPER))
}

/// The statements that an error names, in their order.
fn fixes(error: &Error) -> Vec<String> {
    let text = error.to_string();
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Nothing that a builder began goes on: no connection to the database, and so no keeper.
async fn nothing_is_left<D: TestDb>(db: &D, what: &str) {
    match () {
        () if db.view().is_there() => {
            let none = async || db.view().pids(POOL).await.is_empty() && db.view().pids(KEEPER).await.is_empty();
            eventually(&format!("{what}: no connection is left"), none).await;
        }
        // In WAL mode SQLite keeps files open that nobody uses any more, for the sake of its locks.
        () if db.text("PRAGMA journal_mode").await.as_deref() == Some("wal") => {}
        // The observer of the test, and nobody else.
        () => eventually(&format!("{what}: the file is open once"), async || open_files(db.url()) <= 1).await,
    }
}

/// How often this process has the database's file open. Where the system does not tell: once.
fn open_files(url: &str) -> usize {
    let file = std::path::PathBuf::from(url.trim_start_matches("sqlite://"));
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 1 };
    entries.flatten().filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == file)).count()
}

/// Acquire, renew, check, note, write, release, revoke, look, take over.
async fn works<DB: Backend<Connection: Migrate>>(fence: &Fence<DB>, what: &str) {
    let observer = fence.clone();
    let run = fence.run(
        job("works", move |ctx| {
            Box::pin(async move {
                ctx.progress("it's working").await?;
                let before = observer.inspect(ctx.lease_name()).await?.unwrap();
                ctx.transaction(async |_| Ok::<_, Error>(())).await?;
                eventually("a renewal", async || {
                    observer.inspect(ctx.lease_name()).await.unwrap().unwrap().renewed_at > before.renewed_at
                })
                .await;
                ctx.check().await?;
                Ok::<_, Error>((ctx.lease_name().clone(), ctx.fence_token().get()))
            })
        })
        .ttl(Duration::from_secs(3))
        .renew(Duration::from_millis(100)),
    );
    let (lease, token) = run.await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let revoked = fence.revoke(&lease, Duration::from_secs(5)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(revoked, Revocation::Complete { fence_token: token + 1 }, "{what}");
    assert!(fence.leases().await.unwrap().iter().all(|lease| lease.remaining.is_none()), "{what}");
    assert_eq!(fence.run(token_of("works")).await.unwrap_or_else(|error| panic!("{what}: {error}")), token + 2);
}
