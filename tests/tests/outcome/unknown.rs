//! The connection fails around COMMIT: unknown, whichever way it went.

use std::time::Duration;

use fence_runtime::{Error, ErrorKind, Fence, TxOptions};
use fence_tests::{
    app::{RUNS, count, eventually, insert, on},
    jobs::{job, token_of},
    owner::{
        Act::{Begin, Commit, Sql},
        FOR_GOOD, Owner,
    },
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, InnoDb, PostgresDb, TestDb},
};
use sqlx::pool::PoolOptions;

use crate::LEASE;

mod on_a_server {
    fence_tests::conformance! { on postgres, mysql, mariadb:
        a_backend_that_is_killed_before_commit,
        a_commit_that_does_not_arrive,
        an_answer_to_commit_that_is_lost,
        a_connection_that_was_exchanged,
        a_network_that_stalls_at_commit,
        unknown_outranks_lost,
        a_keeper_whose_network_is_slower_than_its_pace,
    }
    use super::{
        a_backend_that_is_killed_before_commit, a_commit_that_does_not_arrive, a_connection_that_was_exchanged,
        a_keeper_whose_network_is_slower_than_its_pace, a_network_that_stalls_at_commit,
        an_answer_to_commit_that_is_lost, unknown_outranks_lost,
    };
}

mod on_postgres {
    fence_tests::conformance! { on postgres: a_backend_that_is_killed_in_commit, a_copy_that_is_dropped_half_way }
    use super::{a_backend_that_is_killed_in_commit, a_copy_that_is_dropped_half_way};
}

mod on_innodb {
    fence_tests::conformance! { on mysql, mariadb: a_connection_that_is_lost_in_commit }
    use super::a_connection_that_is_lost_in_commit;
}

async fn a_backend_that_is_killed_before_commit<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    assert!(db.view().terminate(a.pid()).await);
    assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
    let error = a.end().await.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("read its rows"), "{error}");
    assert_eq!(count(&db, 2).await, 0);
    // The lease is nevertheless released, by the keeper.
    assert_eq!(db.fence_as("b").await.run(token_of(LEASE)).await.unwrap(), 2);
}

async fn a_backend_that_is_killed_in_commit(db: PostgresDb) {
    db.sql(RUNS).await;
    // Runs in COMMIT, and waits there for as long as the test wants.
    db.sql(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
         CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON runs DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION waits()",
    )
    .await;
    let mut c = db.session("c").await;
    for killed in [true, false] {
        c.ok("SELECT pg_advisory_lock(1)").await;
        let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
        a.ok(Begin(TxOptions::new())).await;
        a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
        let pid = a.pid();
        let mut commit = a.start_act(Commit);
        assert!(commit.blocked().await.contains(&c.pid()));
        // Nobody gets in while the commit is being made.
        assert!(db.expire(LEASE).await);
        assert!(Owner::start(&db, "b", LEASE).await.unwrap_err().is_contended());
        if killed {
            assert!(db.view().terminate(pid).await);
            assert_eq!(commit.answer().await.unwrap_err().code, "Unknown");
            assert!(a.end().await.unwrap_err().is_unknown());
            c.ok("SELECT pg_advisory_unlock(1)").await;
        } else {
            c.ok("SELECT pg_advisory_unlock(1)").await;
            commit.ok().await;
            a.end().await.unwrap();
        }
        assert_eq!(count(&db, 2).await, i64::from(!killed));
    }
}

/// A fence whose pool, and not its keeper, goes through a proxy; and the bytes of its COMMIT.
pub(crate) async fn behind_a_proxy<D: TestDb>(db: &D) -> (Proxy, Fence<D::Db>, &'static str)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let direct = db.options("a");
    let proxy = Proxy::to(direct.server()).await.unwrap();
    let pool = PoolOptions::new().max_connections(2).connect_lazy_with(direct.through(proxy.port()));
    let fence = Fence::builder(pool).keeper_options(db.options("a keeper")).migrate().build().await.unwrap();
    (proxy, fence, if D::NAME == "postgres" { "COMMIT AND CHAIN" } else { "fence_end_v1" })
}

/// The owner behind the proxy has written run 2.
async fn has_written<D: TestDb>(db: &D, fence: &Fence<D::Db>) -> Owner {
    let mut a = Owner::start_on::<D>(fence, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    a
}

async fn a_commit_that_does_not_arrive<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    db.sql(RUNS).await;
    let (proxy, fence, commit) = behind_a_proxy(&db).await;
    let mut a = has_written(&db, &fence).await;
    proxy.set_at(commit, Mode::Cut);
    assert_eq!(a.run(Commit).await.unwrap_err().code, "Unknown");
    assert!(a.end().await.unwrap_err().is_unknown());
    assert_eq!(count(&db, 2).await, 0);
}

async fn an_answer_to_commit_that_is_lost<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    db.sql(RUNS).await;
    let (proxy, fence, commit) = behind_a_proxy(&db).await;
    let mut a = has_written(&db, &fence).await;
    proxy.set_at(commit, Mode::SwallowAnswers);
    let commit = a.start_act(Commit);
    eventually("it is committed", async || count(&db, 2).await == 1).await;
    proxy.set(Mode::Cut);
    let refused = commit.answer().await.unwrap_err();
    assert_eq!(refused.code, "Unknown", "{refused}");
    let error = a.end().await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(count(&db, 2).await, 1);
}

/// `connection()` is `&mut`, so its place can be given to another: the transaction is then where nobody but the job knows.
async fn a_connection_that_was_exchanged<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let (fence, other) = (db.fence_as("a").await, db.connect("other").await);
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let (mut tx, mut taken) = (ctx.begin().await?, other);
                insert::<D>(&mut tx, 2).await.unwrap();
                std::mem::swap(tx.connection(), &mut taken);
                D::run(&mut taken, "COMMIT").await.unwrap();
                tx.commit().await
            })
        }))
        .await
        .unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("exchanged"), "{error}");
    assert_eq!(count(&db, 2).await, 1);
}

/// As a server that is paused: nothing is lost, and as long as the COMMIT is on its way nobody else gets the lease.
async fn a_network_that_stalls_at_commit<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    db.sql(RUNS).await;
    let (proxy, fence, commit) = behind_a_proxy(&db).await;
    let mut a = has_written(&db, &fence).await;
    proxy.set_at(commit, Mode::Hold);
    let commit = a.start_act(Commit);
    eventually("it is on its way", async || proxy.mode() == Mode::Hold).await;
    assert!(db.expire(LEASE).await);
    assert!(Owner::start(&db, "b", LEASE).await.unwrap_err().is_contended());
    assert_eq!(count(&db, 2).await, 0);
    proxy.set(Mode::Pass);
    commit.ok().await;
    assert_eq!(count(&db, 2).await, 1);
    // What is committed is committed, whoever gets the lease now.
    Owner::start(&db, "b", LEASE).await.unwrap().end().await.unwrap();
    _ = a.end().await;
}

/// The server is in the middle of COMMIT, for as long as the test wants, when the connection is killed or the network cut.
async fn a_connection_that_is_lost_in_commit<const M: bool>(_: InnoDb<M>) {
    // A server of its own, because it is stopped for everybody.
    let Some(db) = InnoDb::<M>::started_with(&[]).await else { return };
    db.sql(RUNS).await;
    let (proxy, fence, _) = behind_a_proxy(&db).await;
    let mut c = db.session("c").await;
    for killed in [true, false] {
        let mut a = has_written(&db, &fence).await;
        let pid = a.pid();
        c.ok("FLUSH TABLES WITH READ LOCK").await;
        let commit = a.start_act(Commit);
        let waits = format!(
            "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID = {pid} AND (STATE LIKE 'Waiting for%')"
        );
        eventually("it is in COMMIT", async || db.int(&waits).await == 1).await;
        match killed {
            true => assert!(db.view().terminate(pid).await),
            false => proxy.set(Mode::Cut),
        }
        assert_eq!(commit.answer().await.unwrap_err().code, "Unknown");
        c.ok("UNLOCK TABLES").await;
        assert!(a.end().await.unwrap_err().is_unknown());
        // The one is rolled back, the other goes on without anybody to tell.
        match killed {
            true => assert_eq!(count(&db, 2).await, 0),
            false => eventually("it is committed", async || count(&db, 2).await == 1).await,
        }
    }
}

async fn unknown_outranks_lost<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    assert!(db.view().terminate(a.pid()).await);
    assert!(db.expire(LEASE).await);
    let b = Owner::start(&db, "b", LEASE).await.unwrap();
    a.run(Commit).await.unwrap_err();
    // Now it learns that it is lost, too.
    assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
    assert!(a.end().await.unwrap_err().is_unknown());
    b.end().await.unwrap();
}

async fn a_copy_that_is_dropped_half_way(db: PostgresDb) {
    db.sql(RUNS).await;
    let pool = db.pool_as("a", 1);
    let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
    for way in ["in", "in, some data", "out", "in, never answered"] {
        let result = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    insert::<PostgresDb>(&mut tx, 2).await.unwrap();
                    match way {
                        "out" => {
                            use futures_util::StreamExt;
                            let mut rows = tx
                                .connection()
                                .copy_out_raw("COPY (SELECT generate_series(1, 100000)) TO STDOUT")
                                .await?;
                            assert!(rows.next().await.unwrap().is_ok());
                        }
                        "in, never answered" => {
                            _ = fence_tests::cut::cut(1, tx.connection().copy_in_raw("COPY runs FROM STDIN")).await;
                        }
                        _ => {
                            let mut copy = tx.connection().copy_in_raw("COPY runs FROM STDIN").await?;
                            if way != "in" {
                                copy.send(&b"3\tcopied\t0\n"[..]).await?;
                            }
                        }
                    }
                    // sqlx is now one answer behind: what it says to this may be the answer to something else.
                    for n in 5..8 {
                        _ = on::<PostgresDb>(tx.executor(), format!("SELECT {n}")).await;
                    }
                    let committed = tx.commit().await;
                    assert!(
                        committed.as_ref().is_ok_and(|()| way == "out")
                            || committed
                                .as_ref()
                                .is_err_and(|e| { matches!(e.kind(), ErrorKind::RolledBack | ErrorKind::Unknown) }),
                        "COPY {way}: {committed:?}"
                    );
                    Ok::<_, Error>(())
                })
            }))
            .await;
        // What it says is what is there.
        let there = count(&db, 2).await == 1;
        match result {
            Ok(()) => assert!(there, "COPY {way}"),
            Err(error) => assert!(!there || error.is_unknown(), "COPY {way}: {error}"),
        }
        assert_eq!(count(&db, 3).await, 0, "COPY {way}");
        // The next user of the pool's only connection gets its own answers.
        let mut next = pool.acquire().await.unwrap();
        for n in 11..14 {
            assert_eq!(on::<PostgresDb>(&mut *next, format!("SELECT {n}")).await.unwrap().int(), n, "after COPY {way}");
        }
        drop(next);
        db.sql("DELETE FROM runs WHERE run_id = 2").await;
    }
}

/// Renewals far more often than the time to live needs, on a network that takes longer for each: slow, and not lost.
async fn a_keeper_whose_network_is_slower_than_its_pace<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let direct = db.options("a keeper");
    let proxy = Proxy::to(direct.server()).await.unwrap();
    let through = direct.through(proxy.port());
    let fence = Fence::builder(db.pool().clone()).keeper_options(through).migrate().build().await.unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(40)));
    let run = fence.run(
        job(LEASE, |ctx| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(2500)).await;
                ctx.check().await
            })
        })
        .ttl(Duration::from_secs(2))
        .renew(Duration::from_millis(20)),
    );
    run.await.unwrap();
}
