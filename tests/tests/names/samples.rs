//! Names are bytes, whatever they are made of.

use fence_runtime::{Error, LeaseName, RunError};
use fence_tests::{
    conformance,
    jobs::{job, token_of},
    owner::{
        Act::{Begin, Check, Commit, Progress},
        Owner,
    },
    servers::TestDb,
};

conformance! {
    hostile_names_are_kept_apart,
    a_hostile_holder_is_only_text,
}

/// All different, all names.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a",
        "A",
        "ä",
        "a\u{308}",
        "Ä",
        "ａ",
        "á",
        "a b",
        "a  b",
        "a\u{a0}b",
        "a.b",
        "a,b",
        "a;b",
        "1",
        "01",
        "1.0",
        "0x31",
        "NULL",
        "null",
        "'",
        "''",
        "\\",
        "\\\\",
        "\\'",
        "'; DROP TABLE fenced_job_leases; --",
        "\\'; DROP TABLE fenced_job_leases; --",
        "' OR '1'='1",
        "\"",
        "`",
        "$1",
        "$$",
        "$fence$",
        "?",
        ":name",
        "%",
        "_",
        "%s",
        "{}",
        "{token}",
        "/*prefix*/",
        "--",
        "E'\\x27'",
        "\\x27",
        "x'27'",
        "日本",
        "👩\u{200d}👩\u{200d}👧",
        "👩",
        "ß",
        "ss",
        "ﬁ",
        "fi",
        "İ",
        "i",
        "ı",
        "ς",
        "σ",
        "٣",
        "\u{202e}abc",
        "\u{feff}a",
        "\u{200b}",
        "a\u{200b}",
        "epoch",
        "infinity",
        "admin:reconciliation",
        "admin:reconciliation ".trim_end(),
        "admin:Reconciliation",
    ]
    .map(String::from)
    .into();
    names.extend(["x".repeat(190), "x".repeat(189), "ü".repeat(95), format!("{}a", "👧".repeat(47)), "'".repeat(190)]);
    names.sort();
    names.dedup();
    names
}

async fn hostile_names_are_kept_apart<D: TestDb>(db: D) {
    let fence = db.fence_as("a").await;
    let names = names();
    assert!(names.len() > 60);
    // All at once: were two of them one lease, the second would be contended.
    let mut owners = Vec::new();
    for name in &names {
        let owner = Owner::start_on::<D>(&fence, "a", name, fence_tests::owner::FOR_GOOD, db.view())
            .await
            .unwrap_or_else(|e| panic!("{name:?}: {e}"));
        assert_eq!(owner.token(), 1, "{name:?}");
        owners.push(owner);
    }
    let seen: Vec<_> = fence.leases().await.unwrap().into_iter().map(|lease| lease.lease).collect();
    assert_eq!(seen, names, "in the order of their bytes");
    for (owner, name) in owners.iter_mut().zip(&names) {
        owner.ok(Check).await;
        owner.ok(Begin(Default::default())).await;
        owner.ok(Commit).await;
        owner.ok(Progress(format!("of {name}"))).await;
        let there = fence.inspect(&LeaseName::new(name.clone()).unwrap()).await.unwrap().unwrap();
        assert_eq!((&there.lease, there.progress.unwrap()), (name, format!("of {name}")));
        assert!(
            matches!(fence.run(token_of(name.clone())).await, Err(RunError::Contended(c)) if c.lease.as_str() == name)
        );
    }
    for owner in owners {
        owner.end().await.unwrap();
    }
    for name in &names {
        assert_eq!(fence.run(token_of(name.clone())).await.unwrap(), 2, "{name:?}");
    }
}

async fn a_hostile_holder_is_only_text<D: TestDb>(db: D) {
    // The same literals as the names', so a sample will do.
    for (n, holder) in names().into_iter().step_by(4).enumerate() {
        let fence =
            fence_runtime::Fence::builder(db.pool().clone()).holder(holder.clone()).migrate().build().await.unwrap();
        let run = fence.run(job("lease", move |ctx| Box::pin(async move { Ok::<_, Error>(ctx.fence_token().get()) })));
        assert_eq!(run.await.unwrap(), n as i64 + 1);
        assert_eq!(fence.leases().await.unwrap()[0].holder, holder);
    }
}
