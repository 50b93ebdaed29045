//! The harness itself: what other tests rely on when they say "it waits" or "it is another database".

use std::time::Duration;

use fence_runtime::TxOptions;
use fence_tests::{
    conformance,
    owner::{Act, Owner},
    proxy::{Mode, Proxy},
    servers::{SqliteDb, TestDb, postgres},
    stepper::{Gate, Task},
};
use sqlx::{AssertSqlSafe, ConnectOptions};

conformance! {
    every_test_has_its_own_database,
    answers_are_text_and_errors_have_codes,
    an_owner_is_driven_step_by_step,
}

async fn every_test_has_its_own_database<D: TestDb>(db: D) {
    let other = D::open().await.expect("the first one was there");
    assert_ne!(db.url(), other.url());
    db.sql("CREATE TABLE here (n bigint)").await;
    other.sql("CREATE TABLE here (n bigint); INSERT INTO here VALUES (1)").await;
    assert_eq!((db.int("SELECT count(*) FROM here").await, other.int("SELECT count(*) FROM here").await), (0, 1));
    // The pool and a connection see the same database as the observer.
    let mut connection = db.connect("a").await;
    let done = D::run(&mut connection, "INSERT INTO here VALUES (2), (3)").await.unwrap();
    assert_eq!((done.rows, db.int("SELECT count(*) FROM here").await), (2, 2));
    let pool = db.pool_as("b", 1);
    let mut pooled = pool.acquire().await.unwrap();
    assert_eq!(D::run(&mut pooled, "SELECT sum(n) FROM here").await.unwrap().int(), 5);
}

async fn answers_are_text_and_errors_have_codes<D: TestDb>(db: D) {
    db.sql("CREATE TABLE t (id bigint PRIMARY KEY, note text)").await;
    let done = db.sql("INSERT INTO t VALUES (1, NULL), (2, 'two'); SELECT id, note FROM t ORDER BY id").await;
    let row = |id: &str, note: Option<&str>| vec![Some(id.to_owned()), note.map(str::to_owned)];
    assert_eq!(done.values, [row("1", None), row("2", Some("two"))]);
    assert_eq!(db.text("SELECT note FROM t WHERE id = 1").await, None);
    let refused = db.try_sql("INSERT INTO t VALUES (1, 'again')").await.unwrap_err();
    assert!(["23505", "1555", "1062"].contains(&refused.code.as_str()), "{refused}");
}

async fn an_owner_is_driven_step_by_step<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", "job").await.unwrap();
    assert_eq!((a.token(), db.fence_token("job").await), (1, 1));
    assert!(Owner::start(&db, "b", "job").await.expect_err("one holder at a time").is_contended());
    assert!(a.ok(Act::Check).await.int() > 3_000_000);
    a.ok(Act::Begin(TxOptions::new())).await;
    assert_eq!(a.ok(Act::Sql("SELECT note FROM runs".into())).await.text().as_deref(), Some("new"));
    assert_eq!(a.ok(Act::Terminal("UPDATE runs SET note = 'by {token}'".into())).await.rows, 1);
    a.ok(Act::Commit).await;
    assert_eq!(db.text("SELECT note FROM runs").await.as_deref(), Some("by 1"));
    assert!(db.expire("job").await);
    let mut b = Owner::start(&db, "b", "job").await.unwrap();
    assert_eq!(a.run(Act::Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    assert_eq!(a.run(Act::Commit).await.unwrap_err().code, "NoTransaction");
    a.abort().await;
    assert_eq!(b.ok(Act::Execute("UPDATE runs SET note = 'by {token}'".into())).await.rows, 1);
    b.end().await.unwrap();
    assert_eq!(db.text("SELECT note FROM runs").await.as_deref(), Some("by 2"));
}

const RUNS: &str = "CREATE TABLE runs (id bigint PRIMARY KEY, note text); INSERT INTO runs VALUES (1, 'new')";

#[tokio::test]
async fn postgres_the_view_shows_who_waits_for_whom() {
    let Some(db) = postgres().await else { return };
    db.sql(RUNS).await;
    let (mut a, mut b, mut c) = (db.session("a").await, db.session("b").await, db.session("c").await);
    a.ok("BEGIN; UPDATE runs SET note = 'a'").await;
    let mut second = b.start("UPDATE runs SET note = note || 'b'");
    second.blocked_by(&a).await;
    // The third waits behind the second; it is the first that it waits for in the end.
    let mut third = c.start("UPDATE runs SET note = note || 'c'");
    third.blocked_by(&a).await;
    assert!(db.view().is_blocked(b.pid()).await && !db.view().is_blocked(a.pid()).await);
    assert!(!second.is_finished() && !third.is_finished());
    a.ok("COMMIT").await;
    assert_eq!((second.ok().await.rows, third.ok().await.rows), (1, 1));
    // PostgreSQL does not promise who comes first.
    let note = db.text("SELECT note FROM runs").await.unwrap();
    assert!(["abc", "acb"].contains(&note.as_str()), "{note}");
}

#[tokio::test]
#[should_panic(expected = "should wait for a lock, but it ended")]
async fn postgres_a_step_that_does_not_wait_fails_the_test() {
    let Some(db) = postgres().await else { panic!("should wait for a lock, but it ended: skipped") };
    db.session("a").await.start("SELECT 1").blocked().await;
}

#[tokio::test]
async fn postgres_a_task_meets_the_test_at_a_gate_and_waits_for_a_lock() {
    let Some(db) = postgres().await else { return };
    db.sql(RUNS).await;
    let mut a = db.session("a").await;
    a.ok("BEGIN; UPDATE runs SET note = 'a'").await;
    let (gate, pool) = (Gate::new("before the update"), db.pool_as("b", 1));
    let inside = gate.clone();
    let b = Task::start("b", db.view(), async move {
        let mut tx = pool.begin().await.unwrap();
        inside.stop().await;
        sqlx::query("UPDATE runs SET note = note || 'b'").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    });
    gate.reached().await;
    let pid = db.view().pids("b").await;
    assert!(!db.view().is_blocked(pid[0]).await);
    gate.open();
    assert_eq!(vec![b.blocked().await], pid);
    assert!(db.view().terminate(a.pid()).await);
    b.done().await;
    assert_eq!(a.run("COMMIT").await.unwrap_err().code, "57P01");
    assert_eq!(db.text("SELECT note FROM runs").await.as_deref(), Some("newb"));
}

#[tokio::test]
async fn postgres_a_proxy_counts_what_sqlx_sends() {
    let Some(db) = postgres().await else { return };
    db.sql(RUNS).await;
    let direct = db.options("a");
    let proxy = Proxy::to(format!("{}:{}", direct.get_host(), direct.get_port())).await.unwrap();
    let mut a = direct.host("127.0.0.1").port(proxy.port()).connect().await.unwrap();
    let connecting = proxy.round_trips();
    for n in 1..=3 {
        sqlx::raw_sql("BEGIN; UPDATE runs SET note = 'a'; COMMIT").execute(&mut a).await.unwrap();
        assert_eq!(proxy.round_trips(), connecting + n);
    }
    // The answer to COMMIT is lost, the commit is not.
    proxy.set_at("COMMIT", Mode::SwallowAnswers);
    let commit = sqlx::raw_sql("BEGIN; UPDATE runs SET note = 'committed'; COMMIT").execute(&mut a);
    assert!(tokio::time::timeout(Duration::from_millis(200), commit).await.is_err());
    assert_eq!(db.text("SELECT note FROM runs").await.as_deref(), Some("committed"));
}

#[tokio::test]
async fn sqlite_a_session_that_would_wait_is_busy() {
    let db = SqliteDb::open().await.unwrap();
    db.sql(RUNS).await;
    let (mut a, mut b) = (db.session("a").await, db.session("b").await);
    a.ok("BEGIN IMMEDIATE; UPDATE runs SET note = 'a'").await;
    let refused = b.run("BEGIN IMMEDIATE").await.unwrap_err();
    assert!(refused.is_busy(), "{refused}");
    // An old snapshot cannot become a writer: another code, also busy.
    b.ok("BEGIN; SELECT * FROM runs").await;
    a.ok("COMMIT").await;
    let refused = b.run("UPDATE runs SET note = 'b'").await.unwrap_err();
    assert!(refused.is_busy() && refused.code == "517", "{refused}");
}

#[tokio::test]
async fn sqlite_a_file_goes_with_its_test() {
    let db = SqliteDb::open().await.unwrap();
    let folder = db.folder().to_owned();
    sqlx::raw_sql(AssertSqlSafe(RUNS.to_owned())).execute(db.pool()).await.unwrap();
    assert!(folder.join("test.db").exists());
    drop(db);
    assert!(!folder.exists());
}
