//! Sessions in zones that are a day apart see the same times.

use std::time::Duration;

use fence_runtime::{Fence, LeaseName};
use fence_tests::{
    jobs::token_of,
    owner::{Act::Check, FOR_GOOD, Owner},
    servers::TestDb,
};
use sqlx::pool::PoolOptions;

use super::LEASE;

fence_tests::conformance! { on postgres, mysql, mariadb: sessions_a_day_apart_agree }

/// As far apart as the server has them, and one that has a summer time.
fn zones<D: TestDb>() -> &'static [&'static str] {
    match D::NAME {
        "postgres" => &["Etc/GMT-14", "Etc/GMT+12", "Europe/Berlin", "Australia/Lord_Howe"],
        "mysql" => &["+14:00", "-13:59"],
        _ => &["+13:00", "-12:59"],
    }
}

async fn fence_in<D: TestDb>(db: &D, zone: &str) -> Fence<D::Db> {
    let set =
        if D::NAME == "postgres" { format!("SET timezone = '{zone}'") } else { format!("SET time_zone = '{zone}'") };
    let pool = PoolOptions::<D::Db>::new().max_connections(2).after_connect(move |conn, _| {
        let set = set.clone();
        Box::pin(async move { run::<D>(conn, set).await })
    });
    let builder = Fence::builder(pool.connect_lazy_with(db.options("a"))).keeper_options(db.options("keeper"));
    builder.migrate().build().await.unwrap_or_else(|error| panic!("{zone}: {error}"))
}

async fn run<D: TestDb>(conn: &mut <D::Db as sqlx::Database>::Connection, sql: String) -> sqlx::Result<()> {
    match D::run(conn, &sql).await {
        Ok(_) => Ok(()),
        Err(refused) => Err(sqlx::Error::Protocol(refused.to_string())),
    }
}

async fn sessions_a_day_apart_agree<D: TestDb>(db: D) {
    let lease = LeaseName::new(LEASE).unwrap();
    let mut fences = Vec::new();
    for zone in zones::<D>() {
        fences.push(fence_in(&db, zone).await);
    }
    let hour = Duration::from_secs(3600);
    for (n, holder) in fences.iter().enumerate() {
        let mut owner = Owner::start_on::<D>(holder, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
        let first = fences[0].inspect(&lease).await.unwrap().unwrap();
        for other in &fences {
            let error = other.run(token_of(LEASE)).await.unwrap_err();
            assert!(error.is_contended(), "{error}");
            let seen = other.inspect(&lease).await.unwrap().unwrap();
            let remaining = seen.remaining.unwrap();
            assert!(remaining <= hour && remaining > hour - Duration::from_secs(60), "{remaining:?}");
            assert_eq!((seen.acquired_at, seen.renewed_at), (first.acquired_at, first.renewed_at));
        }
        let now = std::time::SystemTime::now();
        let apart = now.duration_since(first.acquired_at).unwrap_or_else(|error| error.duration());
        assert!(apart < Duration::from_secs(600), "acquired {apart:?} from now");
        owner.ok(Check).await;
        owner.end().await.unwrap();
        assert_eq!(fences[n].run(token_of(LEASE)).await.unwrap(), 2 * n as i64 + 2);
    }
}
