//! The hours of a changing summer time, and the years after 2038: on PostgreSQL with a clock of our own before the server's in the search path,
//! on MySQL and MariaDB with the session's.

use fence_runtime::{Fence, LeaseName};
use fence_tests::{
    app::RUNS,
    jobs::token_of,
    owner::{
        Act::{Check, Commit},
        FOR_GOOD, Owner,
    },
    servers::{InnoDb, PostgresDb, TestDb},
};
use sqlx::{AssertSqlSafe, Executor, mysql::MySqlPoolOptions};

use super::LEASE;

mod on_postgres {
    fence_tests::conformance! { on postgres: whatever_the_server_says_the_time_is }
    use super::whatever_the_server_says_the_time_is;
}

mod on_innodb {
    fence_tests::conformance! { on mysql, mariadb: whatever_the_session_says_the_time_is }
    use super::whatever_the_session_says_the_time_is;
}

async fn whatever_the_server_says_the_time_is(db: PostgresDb) {
    db.sql(RUNS).await;
    db.sql(
        "CREATE SCHEMA clock; CREATE TABLE clock.shift (by interval); INSERT INTO clock.shift VALUES ('0');
         CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
           'SELECT pg_catalog.clock_timestamp() + by FROM clock.shift';",
    )
    .await;
    let name = db.text("SELECT current_database()::text").await.unwrap();
    db.sql(format!("ALTER DATABASE {name} SET search_path = public, clock, pg_catalog")).await;
    db.sql(format!("ALTER DATABASE {name} SET timezone = 'Europe/Berlin'")).await;
    let fence = Fence::builder(db.pool_as("a", 3)).keeper_options(db.options("keeper")).schema("public").migrate();
    let fence = fence.build().await.unwrap();
    let mut last = 0;
    for (n, now) in [
        // The hour that does not exist, the one that exists twice, and both seconds of each edge.
        "2026-03-29 02:30:00+01",
        "2026-03-29 00:59:59+00",
        "2026-10-25 02:30:00+02",
        "2026-10-25 02:30:00+01",
        "2026-10-25 00:59:59+00",
        // The end of a 32-bit second, and beyond.
        "2038-01-19 03:14:06+00",
        "2106-02-07 06:28:16+00",
        "2500-02-28 23:59:59+00",
    ]
    .into_iter()
    .enumerate()
    {
        db.sql(format!("UPDATE clock.shift SET by = '{now}'::timestamptz - pg_catalog.clock_timestamp()")).await;
        let mut a = Owner::start_on::<PostgresDb>(&fence, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
        assert!(a.token() > last, "{now}");
        assert!(fence.run(token_of(LEASE)).await.unwrap_err().is_contended(), "{now}");
        let remaining = a.ok(Check).await.int();
        assert!((3_540_000..=3_600_000).contains(&remaining), "{now}: {remaining} ms");
        a.ok(fence_tests::owner::Act::Begin(Default::default())).await;
        a.ok(Commit).await;
        let seen = fence.inspect(&LeaseName::new(LEASE).unwrap()).await.unwrap().unwrap();
        let off = db.int(format!("SELECT extract(epoch FROM '{now}'::timestamptz)::bigint")).await
            - seen.acquired_at.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!(off.abs() < 600, "{now}: {off} s");
        last = a.token();
        // Alternately: it ends, or its holder is gone and two hours pass.
        if n % 2 == 0 {
            a.end().await.unwrap();
        } else {
            db.sql("UPDATE clock.shift SET by = by + '2 hours'").await;
            assert_eq!(fence.run(token_of(LEASE)).await.unwrap(), last + 1, "{now}");
            assert_eq!(a.run(Check).await.unwrap_err().code, "Lost", "{now}");
            // Its last word was a commit.
            a.end().await.unwrap();
        }
    }
}

/// Of MySQL's sessions.
const LAST: i64 = i32::MAX as i64;

/// A session's clock that was set stands still.
async fn whatever_the_session_says_the_time_is<const M: bool>(db: InnoDb<M>) {
    let fence_at = async |second: i64| {
        let set = format!("SET timestamp = {second}");
        let pool = MySqlPoolOptions::new().max_connections(2).after_connect(move |conn, _| {
            let set = AssertSqlSafe(set.clone());
            Box::pin(async move { conn.execute(sqlx::raw_sql(set)).await.map(drop) })
        });
        let builder = Fence::builder(pool.connect_lazy_with(db.options("a"))).keeper_options(db.options("keeper"));
        builder.migrate().build().await.unwrap()
    };
    // The two hours of 2026, and 2038; on MariaDB beyond it, where MySQL's session cannot go, but its leases do.
    let seconds: &[i64] = if M {
        &[1_774_747_799, 1_792_890_000, 2_147_483_646, 2_147_483_648, 4_000_000_000]
    } else {
        &[1_774_747_799, 1_792_890_000, LAST - 3599]
    };
    for (n, &second) in seconds.iter().enumerate() {
        let (now, soon) = (fence_at(second).await, fence_at(second + 3599).await);
        let mut a = Owner::start_on::<InnoDb<M>>(&now, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
        assert_eq!(a.token(), 2 * n as i64 + 1);
        assert_eq!(a.ok(Check).await.int(), 3_600_000);
        let error = soon.run(token_of(LEASE)).await.unwrap_err();
        assert!(error.is_contended(), "{second}: {error}");
        let later = match M || second + 3601 <= LAST {
            true => fence_at(second + 3601).await,
            false => {
                assert!(db.expire(LEASE).await);
                now
            }
        };
        assert_eq!(later.run(token_of(LEASE)).await.unwrap(), 2 * n as i64 + 2, "{second}");
        assert_eq!(a.run(Check).await.unwrap_err().code, "Lost");
        assert!(a.end().await.unwrap_err().is_lost());
    }
}
