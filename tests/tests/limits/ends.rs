//! A limit ends what takes too long, and nothing else.

use std::time::Duration;

use fence_runtime::TxOptions;
use fence_tests::{
    app::{RUNS, count, status},
    owner::{
        Act::{Begin, Commit, Rollback, Sql},
        Owner,
    },
    servers::{InnoDb, PostgresDb, TestDb},
};

use super::LEASE;

mod on_a_server {
    fence_tests::conformance! { on postgres, mysql, mariadb: a_lock_that_does_not_come_ends_the_statement }
    use super::a_lock_that_does_not_come_ends_the_statement;
}

mod on_postgres {
    fence_tests::conformance! { on postgres: a_statement_that_takes_too_long_is_ended }
    use super::a_statement_that_takes_too_long_is_ended;
}

mod on_innodb {
    fence_tests::conformance! { on mysql, mariadb: a_select_that_takes_too_long_is_ended }
    use super::a_select_that_takes_too_long_is_ended;
}

async fn a_lock_that_does_not_come_ends_the_statement<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut other = db.session("other").await;
    other.ok("BEGIN").await;
    other.ok("UPDATE runs SET status = 'locked' WHERE run_id = 1").await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new().lock_limit(Duration::from_millis(300)))).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    let refused = a.run(Sql("UPDATE runs SET status = 'ours' WHERE run_id = 1".into())).await.unwrap_err();
    let (code, goes_on) = if D::NAME == "postgres" { ("55P03", false) } else { ("1205", true) };
    assert_eq!(refused.code, code, "{refused}");
    match goes_on {
        true => drop(a.ok(Commit).await),
        false => assert_eq!(a.run(Commit).await.unwrap_err().code, "RolledBack"),
    }
    assert_eq!(count(&db, 2).await, i64::from(goes_on));
    other.ok("ROLLBACK").await;
    // The next transaction of the same job waits for as long as it always did.
    other.ok("BEGIN").await;
    other.ok("UPDATE runs SET status = 'locked' WHERE run_id = 1").await;
    a.ok(Begin(TxOptions::new())).await;
    let mut waiting = a.start_act(Sql("UPDATE runs SET status = 'ours' WHERE run_id = 1".into()));
    waiting.blocked_by(&other).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!waiting.is_finished());
    other.ok("ROLLBACK").await;
    waiting.ok().await;
    a.ok(Commit).await;
    a.end().await.unwrap();
    assert_eq!(status(&db).await, "ours");
}

async fn a_statement_that_takes_too_long_is_ended(db: PostgresDb) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new().statement_limit(Duration::from_millis(200)))).await;
    let refused = a.run(Sql("UPDATE runs SET status = pg_sleep(60)::text".into())).await.unwrap_err();
    assert_eq!(refused.code, "57014", "{refused}");
    a.ok(Rollback).await;
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("SELECT pg_sleep(0.4)".into())).await;
    a.ok(Rollback).await;
    a.end().await.unwrap();
}

async fn a_select_that_takes_too_long_is_ended<const M: bool>(db: InnoDb<M>) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new().statement_limit(Duration::from_millis(200)))).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    // Each server has its own way to say so: MySQL ends SLEEP with 1.
    match a.run(Sql("SELECT SLEEP(60) FROM runs WHERE run_id = 1".into())).await {
        Ok(done) => assert!(!M && done.int() == 1),
        Err(refused) => assert_eq!(refused.code, if M { "1969" } else { "3024" }, "{refused}"),
    }
    // The statement alone is ended.
    a.ok(Commit).await;
    a.ok(Begin(TxOptions::new())).await;
    assert_eq!(a.ok(Sql("SELECT SLEEP(0.4)".into())).await.int(), 0);
    a.ok(Rollback).await;
    a.end().await.unwrap();
    assert_eq!(count(&db, 2).await, 1);
}
