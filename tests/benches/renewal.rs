//! What does it cost to renew ten thousand leases of one process, compared with one plain UPDATE of as many rows?
//!
//! `cargo bench -p fence-tests --bench renewal`, against the server of the tests.

mod runner;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fence_runtime::{Backend, Error, Fence};
use fence_tests::{
    jobs::job,
    log,
    servers::{MariaDb, MySqlDb, PostgresDb, SqliteDb, TestDb},
};
use sqlx::sqlite::{SqlitePoolOptions, SqliteSynchronous};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

const LEASES: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(3);
const TICKS: u32 = 5;

fn main() {
    runner::main(async {
        if let Some(db) = PostgresDb::open().await {
            measure("PostgreSQL", &db, &db.fence().await).await;
        }
        if let Some(db) = MySqlDb::open().await {
            measure("MySQL", &db, &db.fence().await).await;
        }
        if let Some(db) = MariaDb::open().await {
            measure("MariaDB", &db, &db.fence().await).await;
        }
        if let Some(db) = SqliteDb::open().await {
            // Only to acquire them in less time; the keeper connects as durably as SQLite does by default.
            let options = db.options("bench").synchronous(SqliteSynchronous::Off);
            let pool = SqlitePoolOptions::new().max_connections(2).connect_lazy_with(options);
            let builder = Fence::builder(pool).keeper_options(db.options("keeper"));
            measure("SQLite (WAL)", &db, &builder.migrate().build().await.expect("a fence")).await;
        }
    });
}

async fn measure<D: TestDb>(title: &str, db: &D, fence: &Fence<D::Db>) {
    log::capture();
    let (end, runs) = hold_all(fence).await;
    log::take();
    let begin = Instant::now();
    tokio::time::sleep(TICKS * TICK).await;
    let ticks = begin.elapsed().div_duration_f64(TICK) / 0.95;
    let number = |line: &log::Line, name| line.field(name).and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0);
    let (mut statements, mut leases, mut busy) = (0.0, 0.0, 0.0);
    for line in log::take().iter().filter(|line| line.message == "asked for leases" && number(line, "leases") > 0.0) {
        statements += 1.0;
        leases += number(line, "leases");
        busy += number(line, "took_us") / 1e3;
    }
    // The same rows and columns, in one statement that checks nothing.
    let mut plain = Vec::new();
    for _ in 0..TICKS {
        let begin = Instant::now();
        db.sql("UPDATE fenced_job_leases SET leased_until = leased_until, renewed_at = renewed_at WHERE lease_name LIKE 'crowd:%'")
            .await;
        plain.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let plain = runner::sorted(plain.into_iter())[TICKS as usize / 2];
    let each = busy / leases * LEASES as f64;
    println!("{title}, {LEASES} leases of one process");
    println!(
        "  {:.1} statements a tick, {each:.0} ms for all = {:.1} × one plain UPDATE of all rows ({plain:.0} ms)",
        statements / ticks,
        each / plain
    );
    end.send_replace(true);
    let begin = Instant::now();
    for run in runs.join_all().await {
        run.expect("held to the end");
    }
    println!("  all released in {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
}

type Runs = JoinSet<Result<(), fence_runtime::RunError<Error>>>;

async fn hold_all<DB: Backend>(fence: &Fence<DB>) -> (watch::Sender<bool>, Runs) {
    let (end, ended) = watch::channel(false);
    let at_once = Arc::new(Semaphore::new(10));
    let mut runs = JoinSet::new();
    for number in 0..LEASES {
        let permit = at_once.clone().acquire_owned().await.expect("never closed");
        let mut ended = ended.clone();
        let parked = job(format!("crowd:{number}"), move |_| {
            Box::pin(async move {
                drop(permit);
                _ = ended.wait_for(|ended| *ended).await;
                Ok(())
            })
        });
        runs.spawn(fence.run(parked.ttl(TTL).renew(TICK)));
    }
    _ = at_once.acquire_many(10).await;
    (end, runs)
}
