//! Hostile text on servers where a backslash means something in a string.

use fence_runtime::{Error, Fence, LeaseName, Revocation};
use fence_tests::{
    app::{RUNS, complete, on},
    jobs::job,
    servers::TestDb,
};
use std::time::Duration;

mod on_a_server {
    fence_tests::conformance! { on postgres, mysql, mariadb: where_a_backslash_escapes_nothing_can_be_injected }
    use super::where_a_backslash_escapes_nothing_can_be_injected;
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

async fn where_a_backslash_escapes_nothing_can_be_injected<D: TestDb>(db: D) {
    // Elsewhere it does by default.
    if D::NAME == "postgres" {
        let name = db.text("SELECT current_database()").await.unwrap();
        for setting in ["standard_conforming_strings = off", "backslash_quote = on", "escape_string_warning = off"] {
            db.sql(format!("ALTER DATABASE {name} SET {setting}")).await;
        }
    }
    db.sql(RUNS).await;
    db.sql("CREATE TABLE canary (n int)").await;
    for (n, text) in INJECTIONS.iter().enumerate() {
        let fence = Fence::builder(db.pool_as("a", 2)).holder(*text).migrate().build().await.unwrap();
        let mut conn = fence.unfenced("its settings").acquire().await.unwrap();
        assert_eq!(D::run(&mut conn, r"SELECT CASE '\'' WHEN '''' THEN 1 END").await.unwrap().int(), 1);
        drop(conn);
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
                        _ = ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await?;
                        let mut tx = ctx.begin().await?;
                        on::<D>(tx.executor(), "SELECT 1").await.unwrap();
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
