//! The check outside the transaction that writes, on every database.

use fence_tests::{conformance, servers::TestDb};

const RUNS: &str = "
    CREATE TABLE runs (run_id bigint PRIMARY KEY, status text, fence_token bigint);
    INSERT INTO runs VALUES (1, 'running', 1);";
const WRITE: &str = "UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1";
const STATUS: &str = "SELECT count(*) FROM runs WHERE status = 'done by a' AND fence_token = 1";

conformance! {
    control_loses_check_outside_the_transaction,
}

/// The check in autocommit, then a transaction that writes: as an `if` in the application does it.
async fn control_loses_check_outside_the_transaction<D: TestDb>(db: D) {
    db.sql(
        "CREATE TABLE leases (lease_name text, owner_token text, fence_token bigint, live bigint);
         INSERT INTO leases VALUES ('job', 'a', 1, 1)",
    )
    .await;
    db.sql(RUNS).await;
    let (mut a, mut b) = (db.session("a").await, db.session("b").await);
    assert_eq!(a.ok("SELECT count(*) FROM leases WHERE owner_token = 'a' AND live = 1").await.int(), 1);
    db.sql("UPDATE leases SET live = 0").await;
    b.ok("BEGIN").await;
    assert_eq!(b.ok("UPDATE leases SET owner_token = 'b', fence_token = 2, live = 1 WHERE live = 0").await.rows, 1);
    b.ok("UPDATE runs SET status = 'done by b', fence_token = 2 WHERE run_id = 1").await;
    b.ok("COMMIT").await;
    a.ok("BEGIN").await;
    assert_eq!(a.ok(WRITE).await.rows, 1);
    a.ok("COMMIT").await;
    assert_eq!(db.int(STATUS).await, 1, "the stale write has landed on B's");
}

mod check_inside_the_transaction {
    use super::*;

    conformance! {
        on sqlite, sqlite_rollback:
        control_is_saved,
    }

    /// SQLite's whole-file lock saves a check inside the writing transaction: an old snapshot cannot become a writer.
    async fn control_is_saved<D: TestDb>(db: D) {
        db.sql("CREATE TABLE leases (owner_token text); INSERT INTO leases VALUES ('a')").await;
        db.sql(RUNS).await;
        let (mut a, mut b) = (db.session("a").await, db.session("b").await);
        a.ok("BEGIN; SELECT owner_token FROM leases").await;
        let taken = b.run("BEGIN IMMEDIATE; UPDATE leases SET owner_token = 'b'; COMMIT").await;
        if let Err(refused) = &taken {
            // Rollback journal: A's read keeps B from committing, and B's wish to commit keeps A from writing.
            assert!(refused.is_busy(), "{refused}");
        }

        let refused = a.run(WRITE).await.unwrap_err();
        assert!(refused.is_busy(), "{refused}");
        a.ok("ROLLBACK").await;
        if taken.is_err() {
            // A refused COMMIT leaves its transaction open, and retryable once the reader has gone.
            b.ok("COMMIT").await;
        }
        assert_eq!(db.int(STATUS).await, 0);
        assert_eq!(db.text("SELECT owner_token FROM leases").await.as_deref(), Some("b"));
    }
}
