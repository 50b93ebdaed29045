//! What is on its way when a term begins or ends, on the servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use fence_runtime::{Error, Fence, LeaseName, OnLost, Revocation, RunError};
use fence_tests::{
    conformance,
    jobs::{job, token_of},
    owner::{Act, FOR_GOOD, Owner},
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, InnoDb, PostgresDb, TestDb, postgres},
    stepper::{Gate, LIMIT, Session, Task, within},
};
use futures_util::future::join_all;
use sqlx::pool::PoolOptions;

use crate::fence_with;

conformance! { on postgres, mysql, mariadb:
    stale_retriers_do_not_hide_an_expired_lease,
    a_release_comes_after_the_renewal_in_flight,
    a_revocation_comes_after_the_renewal_in_flight,
    a_lost_answer_is_found_again,
}

/// A gate in the server: whoever writes a lease row in a way that is asked for waits there before it can commit.
trait Server: TestDb {
    const CLOSE: &'static str;
    const OPEN: &'static str;
    /// As a trigger, for connections of this name and rows of this kind.
    fn pause(who: &str, kind: &str) -> String;
    /// Waits until somebody is there.
    async fn at_the_gate(&self, who: &str);
    /// A request that takes over bears these bytes.
    const TAKES_OVER: &'static str;
    const LIVE: &'static str;
}

impl Server for PostgresDb {
    const CLOSE: &'static str = "SELECT pg_advisory_lock(1)";
    const OPEN: &'static str = "SELECT pg_advisory_unlock(1)";
    const TAKES_OVER: &'static str = "INSERT INTO";
    const LIVE: &'static str = "leased_until > clock_timestamp()";

    fn pause(who: &str, kind: &str) -> String {
        format!(
            "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               IF current_setting('application_name') LIKE '{who}' AND NEW.{kind} THEN
                 PERFORM pg_advisory_xact_lock_shared(1);
               END IF;
               RETURN NULL;
             END $$;
             CREATE TRIGGER pause AFTER UPDATE ON fenced_job_leases FOR EACH ROW EXECUTE FUNCTION pause()"
        )
    }

    async fn at_the_gate(&self, who: &str) {
        self.view().blocked_as(who).await;
    }
}

impl<const M: bool> Server for InnoDb<M> {
    const CLOSE: &'static str = "SELECT GET_LOCK(CONCAT('gate ', DATABASE()), 20)";
    const OPEN: &'static str = "SELECT RELEASE_LOCK(CONCAT('gate ', DATABASE()))";
    const TAKES_OVER: &'static str = "SKIP LOCKED";
    const LIVE: &'static str = "leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

    fn pause(who: &str, kind: &str) -> String {
        format!(
            "CREATE TRIGGER pause AFTER UPDATE ON fenced_job_leases FOR EACH ROW
             IF SUBSTRING_INDEX(USER(), '@', 1) LIKE '%:{who}' AND NEW.{kind} THEN
               DO GET_LOCK(CONCAT('gate ', DATABASE()), 60), RELEASE_LOCK(CONCAT('gate ', DATABASE()));
             END IF"
        )
    }

    async fn at_the_gate(&self, _who: &str) {
        self.view().at_user_lock().await;
    }
}

/// Not only that serialisation failures are retried: they cannot happen.
#[tokio::test]
async fn postgres_lease_statements_are_read_committed_whatever_the_default() {
    let Some(db) = postgres().await else { return };
    db.sql(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation TO serializable',
                                    current_database()); END $$",
    )
    .await;
    let default = PostgresDb::run(&mut db.connect("a").await, "SHOW default_transaction_isolation").await.unwrap();
    assert_eq!(default.text().as_deref(), Some("serializable"));
    let fence = db.fence_as("a").await;
    db.sql(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           IF current_setting('transaction_isolation') <> 'read committed' THEN
             RAISE 'at %', current_setting('transaction_isolation');
           END IF;
           RETURN NEW;
         END $$;
         CREATE TRIGGER look BEFORE INSERT OR UPDATE ON fenced_job_leases FOR EACH ROW EXECUTE FUNCTION look()",
    )
    .await;
    let often = FOR_GOOD.renew(Duration::from_millis(50));
    for _ in 0..2 {
        let mut a = Owner::start_on::<PostgresDb>(&fence, "a", "lease", often, db.view()).await.unwrap();
        let renewed_at = "SELECT renewed_at::text FROM fenced_job_leases";
        let before = db.text(renewed_at).await;
        within("a renewal", async { while db.text(renewed_at).await == before {} }).await;
        a.ok(Act::Progress("half".into())).await;
        a.end().await.unwrap();
        assert_eq!(db.int(ended::<PostgresDb>()).await, 1, "released");
    }
    let revoked = fence.revoke(&LeaseName::new("lease").unwrap(), Duration::from_secs(1)).await.unwrap();
    assert_eq!(revoked, Revocation::Complete { fence_token: 3 });
}

mod innodb {
    use super::*;

    conformance! { on mysql, mariadb:
        lease_statements_are_read_committed_whatever_the_default,
        a_row_that_another_contender_has_just_made_is_waited_for,
    }

    /// All contenders for a new lease make its row, and each has it locked for a moment: that is nobody's term.
    async fn a_row_that_another_contender_has_just_made_is_waited_for<const M: bool>(db: InnoDb<M>) {
        let (fence, mut c) = (db.fence_as("b").await, db.session("c").await);
        let insert = "INSERT IGNORE INTO fenced_job_leases (lease_name) VALUES ('lease')";
        c.ok(format!("{insert}; BEGIN; {insert}")).await;
        let run = Task::start("b", db.view(), fence.run(token_of::<sqlx::MySql>("lease")));
        // For as long as a busy machine may take for it.
        tokio::time::sleep(Duration::from_millis(80)).await;
        c.ok("COMMIT").await;
        assert_eq!(run.done().await.unwrap(), 1);
    }

    async fn lease_statements_are_read_committed_whatever_the_default<const M: bool>(db: InnoDb<M>) {
        let fence = fence_with(&db, "a", Some("SERIALIZABLE")).await;
        let lease = LeaseName::new("lease").unwrap();
        // Now there is a row, and every statement changes it.
        assert_eq!(fence.run(token_of("lease")).await.unwrap(), 1);
        db.sql(InnoDb::<M>::pause("%", "fence_token > 0")).await;
        let mut gate = db.session("gate").await;
        gate.ok(InnoDb::<M>::CLOSE).await;
        let a = Task::start("a", db.view(), {
            let (fence, view) = (fence.clone(), db.view().clone());
            let often = FOR_GOOD.renew(Duration::from_millis(50));
            async move { Owner::start_on::<InnoDb<M>>(&fence, "a", "lease", often, &view).await }
        });
        is_read_committed(&db, "the takeover").await;
        gate.ok(InnoDb::<M>::OPEN).await;
        let a = a.done().await.unwrap();
        gate.ok(InnoDb::<M>::CLOSE).await;
        is_read_committed(&db, "a renewal").await;
        gate.ok(InnoDb::<M>::OPEN).await;
        a.end().await.unwrap();
        gate.ok(InnoDb::<M>::CLOSE).await;
        let revoking = Task::start("a", db.view(), async move { fence.revoke(&lease, LIMIT).await });
        is_read_committed(&db, "a revocation").await;
        gate.ok(InnoDb::<M>::OPEN).await;
        assert_eq!(revoking.done().await.unwrap(), Revocation::Complete { fence_token: 3 });
    }

    async fn is_read_committed<const M: bool>(db: &InnoDb<M>, what: &str) {
        db.at_the_gate("").await;
        let level = "SELECT trx_isolation_level FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id IN
                      (SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE = 'User lock')";
        let shown = within(what, async {
            loop {
                // The servers show transactions as they were when nobody had asked for a tenth of a second.
                tokio::time::sleep(Duration::from_millis(130)).await;
                if let Some(row) = db.sql(level).await.values.pop() {
                    return row;
                }
            }
        })
        .await;
        assert_eq!(shown, [Some("READ COMMITTED".to_owned())], "{what}");
    }
}

/// Eight retriers of the old owner, refused again and again, must not hide the expired lease from `SKIP LOCKED`.
async fn stale_retriers_do_not_hide_an_expired_lease<D: TestDb>(db: D) {
    const RETRIERS: usize = 8;
    let (a, b) = (db.fence_as("a").await, db.fence_as("b").await);
    // InnoDB: a guard that is refused has not even tried to lock.
    let takeovers = if D::NAME == "postgres" { 200 } else { 50 };
    let mut missed = 0;
    for _ in 0..takeovers {
        let (expired, refusals) = (Gate::new("a has expired"), Arc::new(AtomicUsize::new(0)));
        let over = Arc::new(AtomicBool::new(false));
        let stale = {
            let (expired, refusals, over) = (expired.clone(), refusals.clone(), over.clone());
            job("lease", move |ctx| {
                Box::pin(async move {
                    expired.stop().await;
                    let retriers = (0..RETRIERS).map(|_| async {
                        while !over.load(SeqCst) {
                            assert!(ctx.begin().await.expect_err("a is stale").is_lost());
                            refusals.fetch_add(1, SeqCst);
                        }
                    });
                    join_all(retriers).await;
                    Ok::<_, Error>(())
                })
            })
        };
        let stale = Task::start("a", db.view(), a.run(stale.on_lost(OnLost::Signal)));
        expired.reached().await;
        assert!(db.expire("lease").await);
        expired.open();
        within("all retriers retry", async {
            while refusals.load(SeqCst) < RETRIERS {
                tokio::task::yield_now().await;
            }
        })
        .await;
        match b.run(token_of::<D::Db>("lease")).await {
            Ok(_) => {}
            Err(RunError::Contended(_)) => missed += 1,
            Err(other) => panic!("{other:?}"),
        }
        over.store(true, SeqCst);
        assert!(stale.done().await.unwrap_err().is_lost());
        db.expire("lease").await;
    }
    assert_eq!(missed, 0, "of {takeovers} takeovers");
}

/// A renewal of A that has not been committed yet when its term is ended, by its own release or by a revocation.
async fn renewal_in_flight<D: Server>(db: &D) -> (Owner, Session) {
    let a = db.fence_as("a").await;
    let soon = FOR_GOOD.renew(Duration::from_millis(300));
    let a = Owner::start_on::<D>(&a, "a", "lease", soon, db.view()).await.unwrap();
    let mut gate = db.session("gate").await;
    gate.ok(D::CLOSE).await;
    db.sql(D::pause("a keeper", D::LIVE)).await;
    db.at_the_gate("a keeper").await;
    (a, gate)
}

/// 1 once the term has been ended.
fn ended<D: TestDb>() -> String {
    format!("SELECT count(*) FROM fenced_job_leases WHERE leased_until = {}", D::EXPIRED)
}

async fn a_release_comes_after_the_renewal_in_flight<D: Server>(db: D) {
    let (a, mut gate) = renewal_in_flight(&db).await;
    let run = Task::start("a", db.view(), a.end());
    // The keeper does one thing after the other, and the row is locked by the first of them.
    db.at_the_gate("a keeper").await;
    assert!(!run.is_finished());
    assert_eq!(db.int(ended::<D>()).await, 0);
    gate.ok(D::OPEN).await;
    run.done().await.unwrap();
    assert_eq!(db.int(ended::<D>()).await, 1);
    assert_eq!(db.fence_as("b").await.run(token_of("lease")).await.unwrap(), 2);
}

async fn a_revocation_comes_after_the_renewal_in_flight<D: Server>(db: D) {
    let (mut a, mut gate) = renewal_in_flight(&db).await;
    let b = db.fence_as("b").await;
    let revoking = Task::start("b", db.view(), async move { b.revoke(&LeaseName::new("lease").unwrap(), LIMIT).await });
    revoking.blocked().await;
    gate.ok(D::OPEN).await;
    assert_eq!(revoking.done().await.unwrap(), Revocation::Complete { fence_token: 2 });
    assert_eq!(db.int(ended::<D>()).await, 1);
    assert_eq!(a.run(Act::Check).await.unwrap_err().code, "Lost");
    assert!(a.end().await.unwrap_err().is_lost());
    assert_eq!((db.int(ended::<D>()).await, db.fence_token("lease").await), (1, 2));
}

/// The acquire is committed, its answer is lost with the connection: asked again, it finds what it has won.
async fn a_lost_answer_is_found_again<D: Server>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let direct = db.options("a");
    let proxy = Proxy::to(direct.server()).await.unwrap();
    let pool = PoolOptions::<D::Db>::new().max_connections(1).connect_lazy_with(direct.through(proxy.port()));
    let fence = Fence::builder(pool).keeper_options(db.options("a keeper")).migrate().build().await.unwrap();
    // InnoDB: the first time ever the row is made first.
    assert_eq!(db.fence_as("b").await.run(token_of("lease")).await.unwrap(), 1);
    for token in 2..=4 {
        proxy.set_at(D::TAKES_OVER, Mode::SwallowAnswers);
        let run = Task::start("a", db.view(), fence.run(token_of::<D::Db>("lease")));
        let won = format!("SELECT count(*) FROM fenced_job_leases WHERE fence_token = {token} AND {}", D::LIVE);
        within("it has won, and does not know", async { while db.int(&won).await == 0 {} }).await;
        assert!(!run.is_finished());
        proxy.set(Mode::Cut);
        within("its connection is cut", async { while !db.view().pids("a").await.is_empty() {} }).await;
        proxy.set(Mode::Pass);
        assert_eq!(run.done().await.unwrap(), token);
    }
}
