//! What an operator sees and does: who holds what, and revoking it.

use std::time::{Duration, SystemTime};

use fence_runtime::{ErrorKind, LeaseName, Revocation, TxOptions};
use fence_tests::{
    app::{COMPLETE, RUNS, status},
    conformance,
    jobs::token_of,
    owner::{
        Act::{Begin, Commit, Execute, Sql, Terminal},
        Owner,
    },
    servers::TestDb,
    stepper::Task,
};

conformance! {
    leases_are_listed_with_who_holds_them,
    a_lease_that_was_never_acquired_is_not_there,
    revoking_ends_the_holders_term,
    revoking_what_nobody_holds_raises_the_token,
    revoking_an_unknown_lease_is_an_error,
    a_revocation_waits_for_an_open_fenced_transaction,
}

mod draining {
    fence_tests::conformance! { on postgres, mysql, mariadb: a_revocation_says_that_a_fenced_transaction_is_open }
    use super::a_revocation_says_that_a_fenced_transaction_is_open;
}

mod on_a_file {
    fence_tests::conformance! { on sqlite, sqlite_rollback: a_revocation_waits_as_long_as_it_is_told_to }
    use super::a_revocation_waits_as_long_as_it_is_told_to;
}

const LEASE: &str = "admin:reconciliation";

fn name(name: &'static str) -> LeaseName {
    LeaseName::new(name).unwrap()
}

async fn leases_are_listed_with_who_holds_them<D: TestDb>(db: D) {
    let fence = db.fence().await;
    assert!(fence.leases().await.unwrap().is_empty());
    let started = SystemTime::now();
    let held = Owner::start(&db, "worker b", "b:held").await.unwrap();
    for lease in ["c:free", "A:free", "a:free", "c:free"] {
        fence.run(token_of(lease)).await.unwrap();
    }
    let leases = fence.leases().await.unwrap();
    // In the order of their bytes.
    let names: Vec<_> = leases.iter().map(|lease| (&*lease.lease, lease.fence_token)).collect();
    assert_eq!(names, [("A:free", 1), ("a:free", 1), ("b:held", 1), ("c:free", 2)]);
    for lease in &leases {
        let here = fence.inspect(&LeaseName::new(lease.lease.clone()).unwrap()).await.unwrap().unwrap();
        assert_eq!(
            (here.fence_token, here.acquired_at, &here.holder),
            (lease.fence_token, lease.acquired_at, &lease.holder)
        );
        assert!(lease.acquired_at <= lease.renewed_at && lease.progress.is_none());
        // The clocks of this machine and of the server may differ a little, the units may not.
        let off = lease.acquired_at.duration_since(started).unwrap_or_else(|early| early.duration());
        assert!(off < Duration::from_secs(300), "{lease:?}");
        match &*lease.lease {
            "b:held" => {
                assert_eq!(lease.holder, "worker b");
                let left = lease.remaining.unwrap();
                assert!(left > Duration::from_secs(3500) && left <= Duration::from_secs(3600), "{left:?}");
            }
            _ => assert_eq!(lease.remaining, None),
        }
    }
    held.end().await.unwrap();
    assert_eq!(fence.inspect(&name("b:held")).await.unwrap().unwrap().remaining, None);
}

async fn a_lease_that_was_never_acquired_is_not_there<D: TestDb>(db: D) {
    assert!(db.fence().await.inspect(&name("nobody's")).await.unwrap().is_none());
}

async fn revoking_ends_the_holders_term<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    let revoked = fence.revoke(&name(LEASE), Duration::from_secs(5)).await.unwrap();
    assert_eq!(revoked, Revocation::Complete { fence_token: 2 });
    let refused = a.run(Begin(TxOptions::new())).await.unwrap_err();
    assert!(refused.code == "Lost" && refused.message.contains("fencing token 2 (revoked)"), "{refused}");
    assert_eq!(a.run(Execute(COMPLETE.replace("$1", "{token}"))).await.unwrap_err().code, "Lost");
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!(status(&db).await, "new");
    let seen = fence.inspect(&name(LEASE)).await.unwrap().unwrap();
    assert_eq!((seen.fence_token, seen.remaining), (2, None));
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 3);
}

async fn revoking_what_nobody_holds_raises_the_token<D: TestDb>(db: D) {
    let fence = db.fence().await;
    fence.run(token_of(LEASE)).await.unwrap();
    for fence_token in 2..5 {
        let revoked = fence.revoke(&name(LEASE), Duration::from_secs(5)).await.unwrap();
        assert_eq!(revoked, Revocation::Complete { fence_token });
    }
    assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), 5);
}

async fn revoking_an_unknown_lease_is_an_error<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let error = fence.revoke(&name("nobody's"), Duration::ZERO).await.unwrap_err();
    assert_eq!((error.kind(), error.lease().unwrap().as_str()), (ErrorKind::Config, "nobody's"));
    assert!(fence.leases().await.unwrap().is_empty());
}

async fn a_revocation_waits_for_an_open_fenced_transaction<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence_as("operator").await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Terminal(COMPLETE.replace("$1", "{token}"))).await;
    let revoke =
        Task::start("operator", db.view(), async move { fence.revoke(&name(LEASE), Duration::from_secs(20)).await });
    // In time for it, this one commits: what the revocation promises begins when it says "complete".
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!revoke.is_finished());
    a.ok(Commit).await;
    assert_eq!(revoke.done().await.unwrap(), Revocation::Complete { fence_token: 2 });
    assert_eq!(
        (status(&db).await.as_str(), a.run(Begin(TxOptions::new())).await.unwrap_err().code.as_str()),
        ("done", "Lost")
    );
    // Not Ok: what it wanted to do after that was refused.
    assert!(a.end().await.unwrap_err().is_lost());
}

async fn a_revocation_says_that_a_fenced_transaction_is_open<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence_as("operator").await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    for _ in 0..2 {
        let revoked = fence.revoke(&name(LEASE), Duration::from_millis(100)).await.unwrap();
        assert_eq!(revoked, Revocation::Draining { fence_token: 1 });
    }
    // Nobody is let in, and nothing new begins, but what is open may still commit.
    assert!(Owner::start(&db, "b", LEASE).await.unwrap_err().is_contended());
    a.ok(Sql("UPDATE runs SET status = 'in time'".into())).await;
    a.ok(Commit).await;
    assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    let revoked = fence.revoke(&name(LEASE), Duration::from_secs(5)).await.unwrap();
    assert_eq!(revoked, Revocation::Complete { fence_token: 2 });
    assert_eq!(status(&db).await, "in time");
    assert!(a.end().await.unwrap_err().is_lost());
}

/// A fenced transaction keeps everybody from writing, a revocation too; each of its tries ends long before.
async fn a_revocation_waits_as_long_as_it_is_told_to<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    let fence = db.fence().await;
    let asked = fence.clone();
    let patient =
        Task::start("patient", db.view(), async move { asked.revoke(&name(LEASE), Duration::from_secs(20)).await });
    let error = fence.revoke(&name(LEASE), Duration::ZERO).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Database && error.to_string().contains("nothing was revoked"), "{error}");
    assert!(!patient.is_finished());
    a.ok(Terminal(COMPLETE.replace("$1", "{token}"))).await;
    a.ok(Commit).await;
    assert_eq!(patient.done().await.unwrap(), Revocation::Complete { fence_token: 2 });
    assert_eq!(status(&db).await, "done");
    assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    assert!(a.end().await.unwrap_err().is_lost());
}
