//! What is found out, and when it cannot be.

use fence_runtime::TxOptions;
use fence_tests::{
    app::{RUNS, count, eventually},
    jobs::token_of,
    owner::{
        Act::{Begin, Commit, Sql},
        FOR_GOOD, Owner,
    },
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, PostgresDb, TestDb},
    stepper::Step,
};

use super::{LEASE, behind_a_proxy, receipts, ways};

mod on_a_server {
    fence_tests::conformance! { on postgres, mysql, mariadb:
        a_commit_that_did_not_arrive_is_rolled_back,
        an_answer_that_was_lost_is_found,
        after_one_takeover_it_is_still_found_out,
        after_two_takeovers_what_is_not_there_is_unknown,
        a_dropped_commit_is_looked_up_in_the_background,
        a_commit_that_is_late_is_waited_for,
    }
    use super::{
        a_commit_that_did_not_arrive_is_rolled_back, a_commit_that_is_late_is_waited_for,
        a_dropped_commit_is_looked_up_in_the_background, after_one_takeover_it_is_still_found_out,
        after_two_takeovers_what_is_not_there_is_unknown, an_answer_that_was_lost_is_found,
    };
}

mod on_postgres {
    fence_tests::conformance! { on postgres: a_commit_that_goes_on_without_its_client_is_waited_for }
    use super::a_commit_that_goes_on_without_its_client_is_waited_for;
}

/// The owner behind the proxy has written run 2, and its COMMIT is on its way into the trap.
async fn committing<D: TestDb>(db: &D, resolve: fence_runtime::Resolve, trap: Mode) -> (Proxy, Owner, Step)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let (proxy, fence, commit) = behind_a_proxy(db, resolve).await;
    let mut a = Owner::start_on::<D>(&fence, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    proxy.set_at(commit, trap);
    let commit = a.start_act(Commit);
    eventually("it is in the trap", async || proxy.mode() == trap).await;
    (proxy, a, commit)
}

async fn start_again<D: TestDb>(db: &D) {
    db.sql("DROP TABLE IF EXISTS runs").await;
    db.sql(RUNS).await;
}

async fn a_commit_that_did_not_arrive_is_rolled_back<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    for &resolve in ways::<D>() {
        start_again(&db).await;
        let (proxy, mut a, commit) = committing(&db, resolve, Mode::Cut).await;
        proxy.set(Mode::Pass);
        let refused = commit.answer().await.unwrap_err();
        assert_eq!(refused.code, "RolledBack", "{resolve:?}: {refused}");
        assert!(refused.message.contains("nothing was written"), "{refused}");
        assert_eq!(count(&db, 2).await, 0);
        // And the same work can be done again, by the same run.
        a.ok(Begin(TxOptions::new())).await;
        a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
        a.ok(Commit).await;
        a.end().await.unwrap();
        assert_eq!((count(&db, 2).await, receipts(&db).await), (1, 0), "{resolve:?}");
    }
}

async fn an_answer_that_was_lost_is_found<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    for &resolve in ways::<D>() {
        start_again(&db).await;
        let (proxy, a, commit) = committing(&db, resolve, Mode::SwallowAnswers).await;
        eventually("it is committed", async || count(&db, 2).await == 1).await;
        proxy.cut().await;
        commit.ok().await;
        a.end().await.unwrap();
        assert_eq!((count(&db, 2).await, receipts(&db).await), (1, 0), "{resolve:?}");
    }
}

async fn taken_over<D: TestDb>(db: &D, times: usize) {
    for _ in 0..times {
        assert!(db.expire(LEASE).await);
        // With receipts, because such a run deletes old ones.
        let fence = fence_runtime::Fence::builder(db.pool().clone()).keeper_options(db.options("b keeper"));
        let fence = fence.resolve(fence_runtime::Resolve::Receipts).build().await.unwrap();
        fence.run(token_of(LEASE)).await.unwrap();
    }
}

async fn after_one_takeover_it_is_still_found_out<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    for &resolve in ways::<D>() {
        for arrives in [true, false] {
            start_again(&db).await;
            let trap = if arrives { Mode::SwallowAnswers } else { Mode::Cut };
            let (proxy, a, commit) = committing(&db, resolve, trap).await;
            if arrives {
                eventually("it is committed", async || count(&db, 2).await == 1).await;
                proxy.set(Mode::Cut);
            }
            taken_over(&db, 1).await;
            proxy.set(Mode::Pass);
            let said = commit.answer().await;
            match arrives {
                true => drop(said.unwrap()),
                false => assert_eq!(said.unwrap_err().code, "RolledBack", "{resolve:?}"),
            }
            assert_eq!(count(&db, 2).await, i64::from(arrives));
            // Where it was committed, that was the last word.
            assert_eq!(a.end().await.is_ok(), arrives, "{resolve:?}");
        }
    }
}

async fn after_two_takeovers_what_is_not_there_is_unknown<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    for arrives in [true, false] {
        start_again(&db).await;
        let trap = if arrives { Mode::SwallowAnswers } else { Mode::Cut };
        let (proxy, a, commit) = committing(&db, fence_runtime::Resolve::Receipts, trap).await;
        if arrives {
            eventually("it is committed", async || count(&db, 2).await == 1).await;
            proxy.set(Mode::Cut);
        }
        taken_over(&db, 2).await;
        assert_eq!(receipts(&db).await, 0);
        proxy.set(Mode::Pass);
        let refused = commit.answer().await.unwrap_err();
        assert_eq!(refused.code, "Unknown", "{refused}");
        assert!(refused.message.contains("taken over more than once"), "{refused}");
        assert!(a.end().await.unwrap_err().is_unknown());
    }
}

async fn a_dropped_commit_is_looked_up_in_the_background<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    use fence_tests::{app::insert, cut::cut, jobs::job};
    for &resolve in ways::<D>() {
        start_again(&db).await;
        let (proxy, fence, commit) = behind_a_proxy(&db, resolve).await;
        let proxy = std::sync::Arc::new(proxy);
        let (trap, mut looks) = (proxy.clone(), db.session("looks").await);
        let run = fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<D>(&mut tx, 2).await.unwrap();
                trap.set_at(commit, Mode::SwallowAnswers);
                assert!(cut(1, tx.commit()).await.is_none());
                while looks.ok("SELECT count(*) FROM runs").await.int() < 2 {}
                trap.cut().await;
                Ok::<_, fence_runtime::Error>(())
            })
        }));
        run.await.unwrap_or_else(|error| panic!("{resolve:?}: {error}"));
        assert_eq!((count(&db, 2).await, receipts(&db).await), (1, 0), "{resolve:?}");
    }
}

/// PostgreSQL looks now and then whether its client is still there, and gives up where it is not; unless it is told not to.
async fn a_commit_that_goes_on_without_its_client_is_waited_for(db: PostgresDb) {
    for &resolve in ways::<PostgresDb>() {
        for gives_up in [true, false] {
            start_again(&db).await;
            // Runs in COMMIT, and waits there for as long as the test wants.
            let look = if gives_up { "300ms" } else { "0" };
            db.sql(format!(
                "CREATE OR REPLACE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
                   'BEGIN PERFORM set_config(''client_connection_check_interval'', ''{look}'', true);
                          PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
                 CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON runs DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW EXECUTE FUNCTION waits()"
            ))
            .await;
            let mut c = db.session("c").await;
            c.ok("SELECT pg_advisory_lock(1)").await;
            let (proxy, a, mut commit) = committing(&db, resolve, Mode::SwallowAnswers).await;
            db.view().at_user_lock().await;
            proxy.cut().await;
            let asked = proxy.connections();
            if !gives_up {
                eventually("it is asked for", async || proxy.connections() > asked && proxy.round_trips() > 0).await;
                let before = proxy.round_trips();
                eventually("again and again", async || proxy.round_trips() > before + 5).await;
                assert!(!commit.is_finished(), "{resolve:?}");
                c.ok("SELECT pg_advisory_unlock(1)").await;
            }
            match commit.answer().await {
                Ok(_) => assert!(!gives_up, "{resolve:?}"),
                Err(refused) => assert!(gives_up && refused.code == "RolledBack", "{resolve:?}: {refused}"),
            }
            c.ok("SELECT pg_advisory_unlock_all()").await;
            assert_eq!(count(&db, 2).await, i64::from(!gives_up));
            assert_eq!(a.end().await.is_ok(), !gives_up);
        }
    }
}

/// The client sees its connection end, the server does not: COMMIT is still on its way. It may arrive, or its session may be ended.
async fn a_commit_that_is_late_is_waited_for<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    for &resolve in ways::<D>() {
        for arrives in [true, false] {
            start_again(&db).await;
            let (proxy, fence, bytes) = behind_a_proxy(&db, resolve).await;
            let mut a = Owner::start_on::<D>(&fence, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
            a.ok(Begin(TxOptions::new())).await;
            a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
            let pid = a.pid();
            proxy.sever_at(bytes);
            let connections = proxy.connections();
            let mut commit = a.start_act(Commit);
            eventually("it is asked for", async || proxy.connections() > connections).await;
            let before = proxy.round_trips();
            eventually("again and again", async || proxy.round_trips() > before + 10).await;
            assert!(!commit.is_finished(), "{resolve:?}");
            match arrives {
                true => proxy.deliver(),
                false => assert!(db.view().terminate(pid).await),
            }
            match commit.answer().await {
                Ok(_) => assert!(arrives, "{resolve:?}"),
                Err(refused) => assert!(!arrives && refused.code == "RolledBack", "{resolve:?}: {refused}"),
            }
            assert_eq!(count(&db, 2).await, i64::from(arrives));
            assert_eq!(a.end().await.is_ok(), arrives);
            assert_eq!(receipts(&db).await, 0);
        }
    }
}
