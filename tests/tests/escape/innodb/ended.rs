//! The server itself ends the transaction, or a part of it, and the job goes on as if nothing had happened.

use fence_tests::{
    app::count,
    conformance,
    owner::{
        Act::{Begin, Commit, Rollback, Sql},
        Owner,
    },
    servers::{InnoDb, TestDb},
    stepper::Session,
};

use crate::stage::{LEASE, Stage, insert};

conformance! { on mysql, mariadb:
    a_deadlock_swallowed_then_writes_then_commit,
    a_deadlock_swallowed_then_writes_then_rollback,
    a_lock_wait_that_took_too_long_undoes_its_statement_alone,
    a_lock_wait_that_took_too_long_then_writes_then_rollback,
    a_lock_wait_that_took_too_long_where_it_undoes_everything,
}

/// The owner has written, and is the victim of a deadlock: the server has rolled its transaction back.
async fn victim<const M: bool>(stage: &Stage<InnoDb<M>>) -> Owner {
    stage.db.sql("DROP TABLE IF EXISTS big; CREATE TABLE big (n bigint PRIMARY KEY); INSERT INTO big VALUES (1)").await;
    let (mut a, mut c) = (stage.owner().await, stage.db.session("c").await);
    a.ok(Begin(Default::default())).await;
    a.ok(Sql(insert(2))).await;
    // Who has written more is let live.
    let many = (10..60).map(|n| format!("({n})")).collect::<Vec<_>>().join(",");
    c.ok(format!("BEGIN; INSERT INTO big VALUES {many}; UPDATE big SET n = n WHERE n = 1")).await;
    let mut waits = a.start_act(Sql("UPDATE big SET n = n WHERE n = 1".into()));
    waits.blocked_by(&c).await;
    c.ok("UPDATE runs SET status = 'c' WHERE run_id = 2").await;
    let refused = waits.answer().await.unwrap_err();
    assert_eq!(refused.code, "1213");
    c.ok("ROLLBACK").await;
    a
}

async fn a_deadlock_swallowed_then_writes_then_commit<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = victim(&stage).await;
    for run in 3..6 {
        let write = a.run(Sql(insert(run))).await;
        assert_eq!(count(&stage.db, run).await, 0, "{write:?}");
    }
    let refused = a.run(Commit).await.unwrap_err();
    assert!(refused.message.contains("deadlock"), "{refused}");
    let error = a.end().await.unwrap_err();
    assert!(error.is_unknown() || error.is_uncommitted(), "{error}");
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id > 1").await, 0);
    stage.is_clean("a deadlock").await;
}

async fn a_deadlock_swallowed_then_writes_then_rollback<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = victim(&stage).await;
    for run in 3..6 {
        let write = a.run(Sql(insert(run))).await;
        assert_eq!(count(&stage.db, run).await, 0, "{write:?}");
    }
    a.ok(Rollback).await;
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id > 1").await, 0);
    a.end().await.unwrap();
    stage.is_clean("a deadlock").await;
}

/// The owner has written, and waited in vain for a row that somebody else has locked.
async fn waited_in_vain<const M: bool>(stage: &Stage<InnoDb<M>>) -> (Owner, Session) {
    let (mut a, mut c) = (stage.owner().await, stage.db.session("c").await);
    c.ok("BEGIN; UPDATE runs SET status = 'c' WHERE run_id = 1").await;
    a.ok(Begin(Default::default())).await;
    a.ok(Sql("SET SESSION innodb_lock_wait_timeout = 1".into())).await;
    a.ok(Sql(insert(2))).await;
    let both = "INSERT INTO runs VALUES (4, 'half', 0); UPDATE runs SET status = 'a' WHERE run_id = 1";
    assert_eq!(a.run(Sql(both.into())).await.unwrap_err().code, "1205");
    (a, c)
}

async fn a_lock_wait_that_took_too_long_undoes_its_statement_alone<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let (mut a, mut c) = waited_in_vain(&stage).await;
    a.ok(Sql(insert(3))).await;
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id > 1").await, 0);
    // The guard is held all the while.
    assert!(stage.db.expire(LEASE).await);
    assert!(Owner::start(&stage.db, "b", LEASE).await.unwrap_err().is_contended());
    a.ok(Commit).await;
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id IN (2, 3, 4)").await, 3);
    _ = a.end().await;
    c.ok("ROLLBACK").await;
    stage.is_clean("a lock wait").await;
}

async fn a_lock_wait_that_took_too_long_then_writes_then_rollback<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let (mut a, mut c) = waited_in_vain(&stage).await;
    a.ok(Sql(insert(3))).await;
    a.ok(Rollback).await;
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id > 1").await, 0);
    a.end().await.unwrap();
    c.ok("ROLLBACK").await;
    stage.is_clean("a lock wait").await;
}

async fn a_lock_wait_that_took_too_long_where_it_undoes_everything<const M: bool>(_: InnoDb<M>) {
    let Some(db) = InnoDb::<M>::started_with(&["--innodb-rollback-on-timeout=ON"]).await else { return };
    let stage = Stage::new(db).await;
    let (mut a, mut c) = waited_in_vain(&stage).await;
    for run in 3..6 {
        let write = a.run(Sql(insert(run))).await;
        assert_eq!(count(&stage.db, run).await, 0, "{write:?}");
    }
    assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
    assert!(a.end().await.unwrap_err().is_unknown());
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id > 1").await, 0);
    c.ok("ROLLBACK").await;
    stage.is_clean("a lock wait").await;
}
