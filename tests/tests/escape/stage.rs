//! The stage of every test: a fence over a pool of one, and the question whether that one is clean.

use fence_runtime::{Fence, TxOptions};
use fence_tests::{
    app::{RUNS, count},
    owner::{Act, FOR_GOOD, Owner},
    servers::TestDb,
    stepper::{Answer, Refused},
};
use sqlx::Pool;

pub(crate) const LEASE: &str = "admin:reconciliation";

pub(crate) struct Stage<D: TestDb> {
    pub(crate) db: D,
    pub(crate) fence: Fence<D::Db>,
    pub(crate) pool: Pool<D::Db>,
}

pub(crate) fn insert(run: i64) -> String {
    format!("INSERT INTO runs VALUES ({run}, 'new', 0)")
}

impl<D: TestDb> Stage<D> {
    pub(crate) async fn new(db: D) -> Self {
        db.sql(RUNS).await;
        let pool = db.pool_as("a", 1);
        let fence = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).migrate().build().await.unwrap();
        Self { db, fence, pool }
    }

    pub(crate) async fn owner(&self) -> Owner {
        Owner::start_on::<D>(&self.fence, "a", LEASE, FOR_GOOD, self.db.view()).await.unwrap()
    }

    /// Leaves the transaction by these statements, one after the other, and writes. What the write and the commit say.
    pub(crate) async fn leaves_by(&self, way: &[&str]) -> (Answer, Refused) {
        let mut a = self.owner().await;
        a.ok(Act::Begin(TxOptions::new())).await;
        a.ok(Act::Sql(insert(2))).await;
        for sql in way {
            // The way may be barred already.
            _ = a.run(Act::Sql((*sql).to_owned())).await;
        }
        let write = a.run(Act::Sql(insert(3))).await;
        assert_eq!(count(&self.db, 3).await, 0, "{way:?}: written before the commit, {write:?}");
        let refused = match a.run(Act::Commit).await {
            Err(refused) => refused,
            Ok(_) => panic!("{way:?}: commit said Ok, the write {write:?}"),
        };
        assert!(["RolledBack", "Unknown"].contains(&&*refused.code), "{way:?}: {refused}");
        assert_eq!(count(&self.db, 3).await, 0, "{way:?}: written by the commit, {write:?}");
        let error = a.end().await.unwrap_err();
        assert!(error.is_unknown() || error.is_uncommitted(), "{way:?}: {error}");
        self.is_clean(&format!("{way:?}")).await;
        (write, refused)
    }

    /// As [`leaves_by`](Self::leaves_by), where the server must refuse the write itself, with this code.
    pub(crate) async fn is_refused(db: D, way: &[&str], code: &str) {
        let (write, _) = Self::new(db).await.leaves_by(way).await;
        assert_eq!(write.unwrap_err().code, code, "{way:?}");
    }

    /// As [`leaves_by`](Self::leaves_by), where the write gets through to a transaction that nobody commits.
    pub(crate) async fn is_discarded(db: D, way: &[&str]) {
        let (write, _) = Self::new(db).await.leaves_by(way).await;
        assert_eq!(write.unwrap().rows, 1, "{way:?}");
    }

    /// The pool's only connection is outside every transaction, may write, and what it writes is everybody's at once.
    pub(crate) async fn is_clean(&self, after: &str) {
        let mut next = self.pool.acquire().await.unwrap_or_else(|error| panic!("after {after}: {error}"));
        if D::NAME == "postgres" {
            let setting = D::run(&mut next, "SHOW default_transaction_read_only").await.unwrap();
            assert_eq!(setting.text().as_deref(), Some("off"), "after {after}");
            let settings = "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name <> 'application_name'
                              AND name NOT IN ('TimeZone', 'client_encoding', 'extra_float_digits')";
            assert_eq!(D::run(&mut next, settings).await.unwrap().int(), 0, "after {after}");
        } else if matches!(D::NAME, "mysql" | "mariadb") {
            let settings = "SELECT CONCAT(@@autocommit + 0, /*!80000 @@transaction_read_only + 0*/ /*M!100600 @@tx_read_only + 0*/,
                                   @@SESSION.wait_timeout = @@GLOBAL.wait_timeout)";
            let setting = D::run(&mut next, settings).await.unwrap();
            assert_eq!(setting.text().as_deref(), Some("101"), "after {after}");
        } else {
            assert_eq!(D::run(&mut next, "PRAGMA query_only").await.unwrap().int(), 0, "after {after}");
        }
        D::run(&mut next, "INSERT INTO runs VALUES (99, 'next', 0)")
            .await
            .unwrap_or_else(|e| panic!("after {after}: {e}"));
        assert_eq!(count(&self.db, 99).await, 1, "after {after}: not visible to others, so inside a transaction");
        D::run(&mut next, "BEGIN; DELETE FROM runs WHERE run_id > 1; COMMIT")
            .await
            .unwrap_or_else(|e| panic!("after {after}: {e}"));
        assert_eq!(count(&self.db, 99).await, 0, "after {after}");
    }
}
