//! The example `reconciliation`, on databases that stay: what it says stands in their tables afterwards.
//!
//! Its own package runs it on SQLite without a server, with bad input and with dying processes.
#![cfg(unix)]

use fence_tests::{conformance, servers::TestDb};

#[path = "../../examples/tests/support/reconciliation.rs"]
mod support;

use support::{assert_shown, number, result, run};

conformance! { on postgres, sqlite: twice_on_one_database }

async fn twice_on_one_database<D: TestDb>(db: D) {
    let first = result(&run(&["--database-url", db.url()]));
    let second = result(&run(&["--database-url", db.url()]));
    assert_shown(&first, D::NAME);
    assert_shown(&second, D::NAME);
    assert!(number(&second, "first_token") > number(&first, "second_token"), "{first}\n{second}");
    assert!(number(&second, "run_id") > number(&first, "run_id"), "{first}\n{second}");

    assert_eq!(db.fence_token("admin:reconciliation").await, number(&second, "final_token"));
    for shown in [first, second] {
        let run = number(&shown, "run_id");
        let token = db.int(format!("SELECT fence_token FROM reconciliation_runs WHERE run_id = {run}")).await;
        assert_eq!(token, number(&shown, "final_token"));
        let status = db.text(format!("SELECT status FROM reconciliation_runs WHERE run_id = {run}")).await;
        assert_eq!(status.as_deref(), Some("succeeded"));
        let differences =
            format!("SELECT count(*) FROM reconciliation_differences WHERE run_id = {run} AND fence_token = {token}");
        assert_eq!(db.int(differences).await, number(&shown, "differences"));
    }
}
