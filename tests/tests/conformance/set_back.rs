//! Tokens that would be given out again, because the lease table was restored or emptied; and how an operator raises the floor.

use std::time::Duration;

use fence_runtime::{ErrorKind, Fence, LeaseName, Revocation, RunError, TxOptions, migrate};
use fence_tests::{
    app::{COMPLETE, RUNS, status},
    conformance,
    jobs::token_of,
    owner::{
        Act::{Begin, Commit, Execute, Sql},
        Owner,
    },
    servers::TestDb,
};

conformance! {
    a_floor_is_what_the_next_token_is_above,
    a_floor_ends_the_holders_term,
    a_floor_that_makes_no_sense_is_refused,
    a_token_that_was_given_out_before_is_noticed,
    a_job_whose_row_is_gone_is_lost,
}

mod draining {
    fence_tests::conformance! { on postgres: a_floor_waits_for_an_open_fenced_transaction }
    use super::a_floor_waits_for_an_open_fenced_transaction;
}

const LEASE: &str = "admin:reconciliation";
const WAIT: Duration = Duration::from_secs(10);

fn lease() -> LeaseName {
    LeaseName::new(LEASE).unwrap()
}

async fn a_floor_is_what_the_next_token_is_above<D: TestDb>(db: D) {
    let fence = db.fence().await;
    // Of a lease that was never acquired; above what was given out; and below it.
    for (floor, now) in [(41, 41), (43, 43), (1000, 1000), (7, 1002), (1002, 1004), (1 << 62, 1 << 62)] {
        let raised = fence.raise_floor(&lease(), floor, WAIT).await.unwrap();
        assert_eq!(raised, Revocation::Complete { fence_token: now }, "floor {floor}");
        assert_eq!(fence.inspect(&lease()).await.unwrap().unwrap().remaining, None);
        assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), now + 1, "after floor {floor}");
    }
}

async fn a_floor_ends_the_holders_term<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    let raised = fence.raise_floor(&lease(), 100, WAIT).await.unwrap();
    assert_eq!(raised, Revocation::Complete { fence_token: 100 });
    let refused = a.run(Execute(COMPLETE.replace("$1", "{token}"))).await.unwrap_err();
    assert!(refused.code == "Lost" && refused.message.contains("fencing token 100 (revoked)"), "{refused}");
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!(status(&db).await, "new");
}

async fn a_floor_that_makes_no_sense_is_refused<D: TestDb>(db: D) {
    let fence = db.fence().await;
    for floor in [0, -1, i64::MIN, (1 << 62) + 1, i64::MAX] {
        let error = fence.raise_floor(&lease(), floor, WAIT).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("between 1 and 2⁶²"), "{error}");
    }
    assert!(fence.leases().await.unwrap().is_empty());
}

async fn a_floor_waits_for_an_open_fenced_transaction<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence_as("operator").await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    let draining = fence.raise_floor(&lease(), 100, Duration::ZERO).await.unwrap();
    assert_eq!(draining, Revocation::Draining { fence_token: 1 });
    a.ok(Sql("UPDATE runs SET status = 'in time'".into())).await;
    a.ok(Commit).await;
    let raised = fence.raise_floor(&lease(), 100, WAIT).await.unwrap();
    assert_eq!(raised, Revocation::Complete { fence_token: 100 });
    assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!(status(&db).await, "in time");
}

/// What happens to tables.
const ACCIDENTS: [&str; 3] = ["UPDATE fenced_job_leases SET fence_token = 2", "DELETE FROM fenced_job_leases", "anew"];

async fn happens<D: TestDb>(db: &D, accident: &str) {
    if accident != "anew" {
        db.sql(accident).await;
        return;
    }
    db.sql("DROP TABLE fenced_job_leases").await;
    for step in migrate::steps::<D::Db>(None, "").unwrap() {
        db.sql(step.sql).await;
    }
}

async fn a_token_that_was_given_out_before_is_noticed<D: TestDb>(db: D) {
    let fence: Fence<D::Db> = db.fence().await;
    for accident in ACCIDENTS {
        let mut highest = 0;
        while highest < 5 {
            highest = fence.run(token_of(LEASE)).await.unwrap();
        }
        happens(&db, accident).await;
        for _ in 0..2 {
            let RunError::Fence(error) = fence.run(token_of(LEASE)).await.unwrap_err() else { panic!("{accident}") };
            assert_eq!(error.kind(), ErrorKind::TokenSetBack, "{accident}: {error}");
            let (token, text) = (error.fence_token().unwrap().get(), error.to_string());
            assert!(token < highest && text.contains(&format!("seen token {highest} before")), "{accident}: {error}");
            assert!(text.contains("`raise_floor`"), "{accident}: {error}");
        }
        // Nobody is left holding it.
        assert_eq!(fence.inspect(&lease()).await.unwrap().unwrap().remaining, None, "{accident}");
        fence.raise_floor(&lease(), highest, WAIT).await.unwrap();
        assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), highest + 1, "{accident}");
    }
}

async fn a_job_whose_row_is_gone_is_lost<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for accident in ACCIDENTS {
        fence.raise_floor(&lease(), 100, WAIT).await.unwrap();
        let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
        happens(&db, accident).await;
        let refused = a.run(Execute(COMPLETE.replace("$1", "{token}"))).await.unwrap_err();
        assert!(refused.code == "Lost" && refused.message.contains("look for a restored"), "{accident}: {refused}");
        let error = a.end().await.unwrap_err();
        assert!(error.is_lost(), "{accident}: {error}");
        assert_eq!(status(&db).await, "new");
    }
}
