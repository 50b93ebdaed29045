//! Hostile text on a server whose string literals mean something else.

use fence_runtime::{Error, Fence, LeaseName, Revocation};
use fence_tests::{
    app::{COMPLETE, RUNS, on},
    jobs::job,
    servers::{PostgresDb, TestDb},
};
use std::time::Duration;

mod on_a_server {
    fence_tests::conformance! { on postgres: without_standard_conforming_strings_nothing_can_be_injected }
    use super::without_standard_conforming_strings_nothing_can_be_injected;
}

/// Where `\'` does not end a literal, doubled quotes do not keep one together.
const INJECTIONS: &[&str] = &[
    "\\'; DROP TABLE canary; --",
    "\\''; DROP TABLE canary; --",
    "'; DROP TABLE canary; --",
    "''; DROP TABLE canary; --",
    "\\",
    "\\\\'; DROP TABLE canary; --",
    "\\'||(SELECT 'x')||\\'",
    "\\047; DROP TABLE canary; --",
    "\\x27; DROP TABLE canary; --",
    "$fence$; DROP TABLE canary; --",
    "\\') ; DROP TABLE canary; --",
    "x'; DROP TABLE canary; --",
    "\u{2019}; DROP TABLE canary; --",
    "\\u0027; DROP TABLE canary; --",
];

async fn without_standard_conforming_strings_nothing_can_be_injected(db: PostgresDb) {
    let name = db.text("SELECT current_database()").await.unwrap();
    for setting in ["standard_conforming_strings = off", "backslash_quote = on", "escape_string_warning = off"] {
        db.sql(format!("ALTER DATABASE {name} SET {setting}")).await;
    }
    db.sql(RUNS).await;
    db.sql("CREATE TABLE canary (n int)").await;
    for (n, text) in INJECTIONS.iter().enumerate() {
        let fence = Fence::builder(db.pool_as("a", 2)).holder(*text).migrate().build().await.unwrap();
        let off = fence.unfenced("its settings");
        let off =
            on::<PostgresDb>(&mut *off.acquire().await.unwrap(), "SHOW standard_conforming_strings").await.unwrap();
        assert_eq!(off.text().as_deref(), Some("off"));
        db.sql("UPDATE runs SET status = 'new'").await;
        let observer = fence.clone();
        let token = fence
            .run(
                job(*text, move |ctx| {
                    Box::pin(async move {
                        let lease = ctx.lease_name().clone();
                        assert_eq!(lease.as_str(), *text);
                        ctx.progress(text).await?;
                        ctx.check().await?;
                        // Through more than one renewal.
                        let before = observer.inspect(&lease).await?.unwrap();
                        fence_tests::app::eventually("a renewal", async || {
                            observer.inspect(&lease).await.unwrap().unwrap().renewed_at > before.renewed_at
                        })
                        .await;
                        assert_eq!(
                            (&*before.lease, &*before.holder, before.progress.as_deref()),
                            (*text, *text, Some(*text))
                        );
                        _ = ctx.execute(sqlx::query(COMPLETE).bind(ctx.fence_token())).await?;
                        let mut tx = ctx.begin().await?;
                        on::<PostgresDb>(tx.executor(), "SELECT 1").await.unwrap();
                        tx.commit().await?;
                        Ok::<_, Error>(ctx.fence_token().get())
                    })
                })
                .ttl(Duration::from_secs(3))
                .renew(Duration::from_millis(100)),
            )
            .await
            .unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(token, 1);
        let lease = LeaseName::new(*text).unwrap();
        let revoked = fence.revoke(&lease, Duration::from_secs(5)).await.unwrap();
        assert_eq!(revoked, Revocation::Complete { fence_token: 2 });
        assert_eq!(db.int("SELECT count(*) FROM canary").await, 0);
        assert_eq!(db.int("SELECT count(*) FROM fenced_job_leases").await, n as i64 + 1);
    }
}
