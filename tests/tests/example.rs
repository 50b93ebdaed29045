//! The example `reconciliation`, on databases that stay: what it says stands in their tables afterwards.
//!
//! Its own package runs it on SQLite without a server, with bad input and with dying processes.
#![cfg(unix)]

use fence_tests::{conformance, servers::TestDb};

#[path = "../../examples/tests/support/reconciliation.rs"]
mod support;

use support::{assert_shown, number, result, run};

conformance! { on postgres, sqlite, mysql, mariadb: twice_on_one_database }

async fn twice_on_one_database<D: TestDb>(db: D) {
    let first = result(&run(&["--database-url", db.url()]));
    let second = result(&run(&["--database-url", db.url()]));
    // One URL and one kind of pool for both; which of them it is stands beside it.
    let database = if D::NAME == "mariadb" { "mysql" } else { D::NAME };
    assert_shown(&first, database);
    assert_shown(&second, database);
    if database == "mysql" {
        let server = first["server"].as_str().unwrap_or_default();
        assert_eq!(server.starts_with("MariaDB"), D::NAME == "mariadb", "{server}");
    }
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
