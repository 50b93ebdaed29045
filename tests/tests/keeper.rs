//! The keeper under everything that keeps other systems' heartbeats from beating: blocked executors, exhausted pools, killed
//! and dead connections, refusing servers, busy files, and ten thousand leases at once.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fence_runtime::{Backend, Error, Fence, LeaseName, LeaseStatus, OnLost, RunError, TxOptions};
use fence_tests::{
    app::{RUNS, eventually, on, status},
    conformance,
    jobs::job,
    log,
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, PostgresDb, SqliteDb, TestDb, postgres},
    stepper::within,
};
use sqlx::postgres::PgConnectOptions;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{RwLock, Semaphore, watch},
    task::{JoinHandle, JoinSet},
};
use tracing::Level;

/// Of leases that must be kept: as short as a busy machine allows.
const TTL: Duration = Duration::from_millis(1200);
/// How much later than it should, on a busy machine, a thread may notice that its time has come.
const LATE: Duration = Duration::from_millis(750);

/// The crowd needs the machine for itself; everybody else shares it.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// A job that does nothing but hold its lease, in a task of its own.
struct Parked {
    run: JoinHandle<Result<(), RunError<Error>>>,
    seen: watch::Receiver<Seen>,
    end: watch::Sender<bool>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    token: i64,
    /// Until when the job could rely on its lease, when it last looked.
    deadline: Option<Instant>,
    gone: Option<Instant>,
}

impl Parked {
    async fn start<DB: Backend>(fence: &Fence<DB>, lease: &str, ttl: Duration) -> Self {
        Self::renewed_every(fence, lease, ttl, ttl / 3).await
    }

    async fn renewed_every<DB: Backend>(fence: &Fence<DB>, lease: &str, ttl: Duration, pace: Duration) -> Self {
        let (seen, mut receiver) = watch::channel(Seen::default());
        let (end, mut ended) = watch::channel(false);
        let parked = job(lease, move |ctx| -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>> {
            Box::pin(async move {
                let gone = Gone(seen);
                loop {
                    let now = Instant::now();
                    let deadline = now + ctx.remaining();
                    assert!(ctx.remaining() < ttl, "relied on for longer than the database gives");
                    gone.0.send_modify(|seen| {
                        seen.token = ctx.fence_token().get();
                        if !ctx.is_lost() {
                            seen.deadline = Some(deadline);
                        }
                    });
                    tokio::select! {
                        _ = ended.wait_for(|end| *end) => return Ok(()),
                        () = tokio::time::sleep(Duration::from_millis(5)) => {}
                    }
                }
            })
        });
        // If somebody else holds it, for as long as he may.
        let mut run = tokio::spawn(fence.run(parked.ttl(ttl).renew(pace).wait(Duration::from_secs(15))));
        let started = async { receiver.wait_for(|seen| seen.token > 0).await.is_ok() };
        let started = within(&format!("{lease:?} is acquired"), started).await;
        if !started {
            panic!("{lease:?} is not acquired: {:?}", (&mut run).await);
        }
        Self { run, seen: receiver, end }
    }

    fn token(&self) -> i64 {
        self.seen.borrow().token
    }

    fn is_running(&self) -> bool {
        !self.run.is_finished()
    }

    /// Ends the job, which must have held its lease all the time.
    async fn end(self) {
        self.end.send_replace(true);
        within("the run ends", self.run).await.expect("no panic").expect("the lease was held to the end");
    }

    /// The lease must be lost: not before the job could no longer rely on it, and soon after. Returns the error in words.
    async fn lost(self) -> String {
        let result = within("the lease is lost", self.run).await.expect("no panic");
        let error = result.expect_err("the lease is lost");
        assert!(error.is_lost(), "{error}");
        let Seen { deadline: Some(deadline), gone: Some(gone), .. } = *self.seen.borrow() else {
            panic!("the job has not looked, or was not dropped")
        };
        assert!(gone >= deadline, "dropped {:?} too early", deadline - gone);
        assert!(gone <= deadline + LATE, "dropped {:?} late", gone - deadline);
        error.to_string()
    }
}

/// Notes when the job's future is gone.
struct Gone(watch::Sender<Seen>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.gone = Some(Instant::now()));
    }
}

async fn row<DB: Backend>(fence: &Fence<DB>, lease: &str) -> LeaseStatus {
    let lease = LeaseName::new(lease.to_owned()).unwrap();
    fence.inspect(&lease).await.expect("the lease table").expect("the row is there")
}

/// Waits until the lease was renewed after this moment, by the database's clock as `row` shows it.
async fn renewed_after<DB: Backend>(fence: &Fence<DB>, lease: &str, status: &LeaseStatus) {
    let what = format!("{lease:?} is renewed");
    eventually(&what, async || row(fence, lease).await.renewed_at > status.renewed_at).await;
}

/// Connections that go through a proxy.
async fn proxied<D: TestDb>(db: &D, who: &str) -> (Proxy, ConnectOptionsOf<D::Db>)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let direct = db.options(who);
    let proxy = Proxy::to(direct.server()).await.unwrap();
    let through = direct.through(proxy.port());
    (proxy, through)
}

/// A fence whose keeper, and nothing else, goes through a proxy.
async fn keeper_behind_proxy<D: TestDb>(db: &D) -> (Proxy, Fence<D::Db>)
where
    ConnectOptionsOf<D::Db>: Route,
{
    log::capture();
    let (proxy, through) = proxied(db, "keeper").await;
    let fence = Fence::builder(db.pool().clone()).keeper_options(through).migrate().build().await.unwrap();
    (proxy, fence)
}

/// How often the keeper of this lease has said something.
fn said(lease: &str, level: Level, message: &str) -> usize {
    let lines = log::of_keeper(lease);
    lines.iter().filter(|line| line.level == level && line.message.starts_with(message)).count()
}

/// How often this lease was said to be lost.
fn said_lost(lease: &str) -> usize {
    let lines = log::of_keeper(lease);
    lines.iter().filter(|line| line.message == "lease lost" && line.field("lease") == Some(lease)).count()
}

const NO_RENEWALS: &str = "leases cannot be renewed";
const RENEWALS_AGAIN: &str = "leases are renewed again";

conformance! {
    on postgres, sqlite, mysql, mariadb:
    blocked_workers_do_not_stop_renewals,
    a_blocked_current_thread_runtime_does_not_stop_renewals,
    an_exhausted_pool_does_not_stop_renewals,
    a_long_fenced_transaction_is_not_lost_by_itself,
}

mod servers {
    use super::*;

    conformance! {
        on postgres, mysql, mariadb:
        a_killed_connection_costs_nothing,
        a_network_that_swallows_everything_is_noticed_by_the_deadline,
        a_release_waits_for_the_renewal_in_flight,
        a_locked_row_costs_its_own_lease_only,
        thousands_of_leases_are_renewed_in_a_handful_of_statements,
    }
}

/// Where the journal makes a difference.
mod files {
    use super::{a_busy_file_costs_the_lease_and_says_so, a_long_fenced_transaction_is_not_lost_by_itself};
    fence_tests::conformance! { on sqlite_rollback: a_long_fenced_transaction_is_not_lost_by_itself, a_busy_file_costs_the_lease_and_says_so }
}

async fn blocked_workers_do_not_stop_renewals<D: TestDb>(db: D) {
    let _shared = MACHINE.read().await;
    hold_through_a_blockade(&db).await;
}

async fn a_blocked_current_thread_runtime_does_not_stop_renewals<D: TestDb>(_: D) {
    let _shared = MACHINE.read().await;
    let alone = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // A database and a pool of this runtime's own.
            let db = D::open().await.expect("the first one was there");
            hold_through_a_blockade(&db).await;
        });
    });
    within("the job ends", alone).await.unwrap();
}

/// Blocks every thread of the runtime for three times the time to live, then writes.
async fn hold_through_a_blockade<D: TestDb>(db: &D) {
    log::capture();
    db.sql(RUNS).await;
    let fence = db.fence().await;
    // In the log of all tests it is known by its name.
    let lease = format!("blocked: {}", db.url());
    let run = fence.run(
        job(&*lease, |ctx| {
            Box::pin(async move {
                let workers = tokio::runtime::Handle::current().metrics().num_workers();
                let mut blocked: Vec<_> =
                    (0..workers).map(|_| tokio::spawn(async { std::thread::sleep(3 * TTL) })).collect();
                std::thread::sleep(3 * TTL);
                assert!(!ctx.is_lost() && ctx.remaining() > Duration::ZERO);
                ctx.check().await?;
                for worker in &mut blocked {
                    worker.await.unwrap();
                }
                ctx.transaction(async |tx| {
                    on::<D>(tx.executor(), "UPDATE runs SET status = 'done'").await.unwrap();
                    Ok::<_, Error>(ctx.fence_token().get())
                })
                .await
            })
        })
        .ttl(TTL),
    );
    assert_eq!(within("the job ends", run).await.unwrap(), 1);
    assert_eq!((status(db).await.as_str(), db.fence_token(&lease).await), ("done", 1));
    let said: Vec<_> = log::of_keeper(&lease).into_iter().filter(|line| line.level == Level::WARN).collect();
    // Once for each time: where there is one thread only, the others block it anew.
    let told = said.iter().all(|line| line.message.contains("not been polled for long"));
    assert!((1..=2).contains(&said.len()) && told, "{said:?}");
}

async fn an_exhausted_pool_does_not_stop_renewals<D: TestDb>(db: D) {
    let _shared = MACHINE.read().await;
    drop(db.fence().await);
    let one = Fence::builder(db.pool_as("one", 1)).keeper_options(db.options("one keeper")).build().await.unwrap();
    let inside = one.clone();
    let run = one.run(
        job("exhausted", move |ctx| {
            Box::pin(async move {
                let connection = inside.unfenced("the test takes the only one").acquire().await?;
                tokio::time::sleep(3 * TTL).await;
                drop(connection);
                ctx.check().await.map(drop)
            })
        })
        .ttl(TTL),
    );
    within("the job ends", run).await.unwrap();
    assert_eq!(row(&one, "exhausted").await.fence_token, 1);
}

/// A server: it is renewed meanwhile. SQLite: nobody can take over or renew, and the commit is a renewal.
async fn a_long_fenced_transaction_is_not_lost_by_itself<D: TestDb>(db: D) {
    let _shared = MACHINE.read().await;
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let run = fence.run(
        job("long transaction", |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin_with(TxOptions::new().idle_limit(Duration::from_secs(60))).await?;
                on::<D>(tx.executor(), "UPDATE runs SET status = 'done'").await.unwrap();
                tokio::time::sleep(3 * TTL).await;
                assert!(!ctx.is_lost());
                tx.commit().await?;
                assert!(ctx.remaining() > TTL / 3, "{:?}", ctx.remaining());
                ctx.check().await.map(drop)
            })
        })
        .ttl(TTL),
    );
    within("the job ends", run).await.unwrap();
    assert_eq!(status(&db).await, "done");
}

#[tokio::test]
async fn sqlite_the_deadline_stands_still_only_for_the_lease_of_the_open_transaction() {
    let _shared = MACHINE.read().await;
    let db = SqliteDb::open().await.unwrap();
    let fence = db.fence().await;
    let other = Parked::start(&fence, "the other", TTL).await;
    let writer = fence.run(
        job("the writer", |ctx| {
            Box::pin(async move {
                let tx = ctx.begin().await?;
                let open_since = Instant::now();
                let error = other.lost().await;
                assert!(error.contains("locked"), "{error}");
                tokio::time::sleep_until((open_since + 3 * TTL).into()).await;
                assert!(!ctx.is_lost());
                tx.commit().await?;
                ctx.check().await.map(drop)
            })
        })
        .ttl(TTL),
    );
    within("the writer ends", writer).await.unwrap();
}

/// Another connection holds the write lock of the file: bounded retries, then lost, said clearly, and well again.
async fn a_busy_file_costs_the_lease_and_says_so<D: TestDb>(db: D) {
    let _shared = MACHINE.read().await;
    log::capture();
    let lease = format!("busy file {}", db.url());
    let fence = db.fence().await;
    let parked = Parked::start(&fence, &lease, TTL).await;
    let mut writer = db.connect("writer").await;
    D::run(&mut writer, "BEGIN IMMEDIATE").await.unwrap();
    let error = parked.lost().await;
    assert!(error.contains("no renewal was confirmed in time") && error.contains("database is locked"), "{error}");
    assert_eq!((said(&lease, Level::WARN, NO_RENEWALS), said_lost(&lease)), (1, 1));
    let tries = said(&lease, Level::DEBUG, "renewal or release failed");
    assert!((1..=20).contains(&tries), "{tries} tries");

    D::run(&mut writer, "ROLLBACK").await.unwrap();
    let again = Parked::start(&fence, &lease, TTL).await;
    assert_eq!(again.token(), 2);
    renewed_after(&fence, &lease, &row(&fence, &lease).await).await;
    assert_eq!((said(&lease, Level::WARN, NO_RENEWALS), said(&lease, Level::INFO, RENEWALS_AGAIN)), (1, 1));
    again.end().await;
}

mod wal {
    use super::a_busy_file_costs_the_lease_and_says_so;
    fence_tests::conformance! { on sqlite: a_busy_file_costs_the_lease_and_says_so }
}

async fn a_killed_connection_costs_nothing<D: TestDb>(db: D) {
    let _shared = MACHINE.read().await;
    let lease = &*format!("killed on {}", D::NAME);
    log::capture();
    let fence = db.fence_as("killed").await;
    let parked = Parked::renewed_every(&fence, lease, TTL, TTL / 10).await;
    for _ in 0..10 {
        eventually("the keeper is connected", async || !db.view().pids("killed keeper").await.is_empty()).await;
        let before = row(&fence, lease).await;
        for pid in db.view().pids("killed keeper").await {
            db.view().terminate(pid).await;
        }
        renewed_after(&fence, lease, &before).await;
    }
    parked.end().await;
    // A connection that ends is no news; nothing was lost.
    assert_eq!(said(lease, Level::WARN, ""), 0, "{:?}", log::of_keeper(lease));
}

async fn a_network_that_swallows_everything_is_noticed_by_the_deadline<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let _shared = MACHINE.read().await;
    let lease = &*format!("swallowed on {}", D::NAME);
    let (proxy, fence) = keeper_behind_proxy(&db).await;
    let parked = Parked::start(&fence, lease, TTL).await;
    renewed_after(&fence, lease, &row(&fence, lease).await).await;
    proxy.set(Mode::Swallow);
    let error = parked.lost().await;
    assert!(error.contains("no renewal was confirmed in time"), "{error}");
    assert_eq!(said_lost(lease), 1);
    // Without a restart, on the same fence.
    proxy.set(Mode::Pass);
    let again = Parked::start(&fence, lease, TTL).await;
    assert_eq!(again.token(), 2);
    renewed_after(&fence, lease, &row(&fence, lease).await).await;
    again.end().await;
    assert_eq!(said_lost(lease), 1);
}

#[tokio::test]
async fn postgres_a_job_that_watches_is_signalled_once_and_goes_on() {
    let _shared = MACHINE.read().await;
    let Some(db) = postgres().await else { return };
    db.sql(RUNS).await;
    let (proxy, fence) = keeper_behind_proxy(&db).await;
    let run = fence.run(
        job("signalled", |ctx| {
            Box::pin(async move {
                proxy.set(Mode::Swallow);
                ctx.lost().await;
                assert!(ctx.is_lost() && ctx.remaining().is_zero());
                proxy.set(Mode::Pass);
                // Renewals would succeed again until the database's expiry; but lost is lost.
                for _ in 0..20 {
                    tokio::time::sleep(TTL / 20).await;
                    assert!(ctx.is_lost());
                }
                let refused = ctx.execute(sqlx::query("UPDATE runs SET status = 'done'")).await.unwrap_err();
                assert!(refused.is_lost(), "{refused}");
                Ok::<_, Error>(())
            })
        })
        .ttl(TTL)
        .on_lost(OnLost::Signal),
    );
    let error = within("the job ends", run).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!((said_lost("signalled"), status(&db).await.as_str()), (1, "new"));
}

/// A server that answers with errors, one class for each lease: read-only after a fail-over, a privilege revoked, serialisation
/// failure, deadlock, time-out, no memory, an internal error.
#[tokio::test]
async fn postgres_whatever_the_server_refuses_with_the_lease_is_lost_by_the_deadline() {
    const CLASSES: [&str; 7] = ["25006", "42501", "40001", "40P01", "57014", "53200", "XX000"];
    let _shared = MACHINE.read().await;
    let Some(db) = postgres().await else { return };
    log::capture();
    let hold = async |class| {
        let fence = db.fence_as(class).await;
        let parked = Parked::start(&fence, class, TTL).await;
        (class, fence, parked)
    };
    let held = futures_util::future::join_all(CLASSES.into_iter().map(hold)).await;
    db.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           RAISE EXCEPTION 'refused with %', OLD.lease_name USING ERRCODE = OLD.lease_name; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON fenced_job_leases FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    let mut fences = Vec::new();
    for (class, fence, parked) in held {
        let error = parked.lost().await;
        assert!(error.contains(&format!("refused with {class}")), "{error}");
        assert_eq!((said(class, Level::WARN, NO_RENEWALS), said_lost(class)), (1, 1), "{class}");
        fences.push((class, fence));
    }
    db.sql("DROP TRIGGER refuse ON fenced_job_leases").await;
    let again = fences.iter().map(async |(class, fence)| {
        let again = Parked::start(fence, class, TTL).await;
        renewed_after(fence, class, &row(fence, class).await).await;
        again.end().await;
        assert_eq!(said(class, Level::INFO, RENEWALS_AGAIN), 1, "{class}");
    });
    futures_util::future::join_all(again).await;
}

fn released<D: TestDb>() -> String {
    format!("SELECT count(*) FROM fenced_job_leases WHERE leased_until = {}", D::EXPIRED)
}

async fn a_release_waits_for_the_renewal_in_flight<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let _shared = MACHINE.read().await;
    let lease = &*format!("in flight on {}", D::NAME);
    let (proxy, fence) = keeper_behind_proxy(&db).await;
    let parked = Parked::renewed_every(&fence, lease, 4 * TTL, TTL).await;
    let before = row(&fence, lease).await;
    proxy.set_at("SKIP LOCKED", Mode::Hold);
    eventually("a renewal is in flight", async || proxy.mode() == Mode::Hold).await;
    let ending = tokio::spawn(parked.end());
    assert!(db.int(released::<D>()).await == 0 && !ending.is_finished());
    proxy.set(Mode::Pass);
    within("the run ends", ending).await.unwrap();
    assert_eq!(db.int(released::<D>()).await, 1);
    assert!(row(&fence, lease).await.renewed_at > before.renewed_at, "the renewal came first");
}

/// Its connection is given up, the release goes over another one, and then the renewal arrives.
#[tokio::test]
async fn postgres_a_renewal_that_arrives_after_the_release_revives_nothing() {
    let _shared = MACHINE.read().await;
    let Some(db) = postgres().await else { return };
    let (old, direct) = proxied(&db, "keeper").await;
    let fork = Fork::before(old.port(), db.options("keeper")).await;
    let keeper = direct.port(fork.port);
    let fence = Fence::builder(db.pool().clone()).keeper_options(keeper).migrate().build().await.unwrap();
    let parked = Parked::renewed_every(&fence, "late", 4 * TTL, TTL / 2).await;
    old.set_at("SKIP LOCKED", Mode::Hold);
    eventually("a renewal is in flight", async || old.mode() == Mode::Hold).await;
    fork.turned.store(true, Ordering::Relaxed);
    parked.end().await;
    assert_eq!(db.int(released::<PostgresDb>()).await, 1);
    old.set(Mode::Pass);
    // Its session does what had been asked and only then notices that nobody is there.
    eventually("the late renewal has come and gone", async || db.view().pids("keeper").await.len() == 1).await;
    assert_eq!(db.int(released::<PostgresDb>()).await, 1);
}

/// Leads connections to one port, and once it is turned, new ones to the server.
struct Fork {
    port: u16,
    turned: Arc<AtomicBool>,
}

impl Fork {
    async fn before(port: u16, server: PgConnectOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fork = Self { port: listener.local_addr().unwrap().port(), turned: Arc::default() };
        let turned = fork.turned.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let to = match turned.load(Ordering::Relaxed) {
                    true => format!("{}:{}", server.get_host(), server.get_port()),
                    false => format!("127.0.0.1:{port}"),
                };
                tokio::spawn(async move {
                    let mut onward = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut onward).await
                });
            }
        });
        fork
    }
}

/// The connection hangs in a renewal that has time; a lease that has none must not wait for it.
#[tokio::test]
async fn postgres_a_lease_in_a_hurry_does_not_wait_for_a_dead_connection() {
    let _shared = MACHINE.read().await;
    let Some(db) = postgres().await else { return };
    let (proxy, fence) = keeper_behind_proxy(&db).await;
    let patient = Parked::renewed_every(&fence, "patient", Duration::from_secs(60), 2 * TTL).await;
    proxy.set_at("SKIP LOCKED", Mode::Swallow);
    eventually("a renewal is swallowed", async || proxy.mode() == Mode::Swallow).await;
    proxy.set(Mode::Pass);
    let hurried = Parked::start(&fence, "hurried", TTL).await;
    let begin = Instant::now();
    while begin.elapsed() < 2 * TTL {
        renewed_after(&fence, "hurried", &row(&fence, "hurried").await).await;
    }
    assert!(patient.is_running());
    hurried.end().await;
    patient.end().await;
}

/// Jobs end all the time, and every release takes a while: the renewals have their turn.
#[tokio::test]
async fn postgres_releases_do_not_starve_renewals() {
    let _shared = MACHINE.read().await;
    let Some(db) = postgres().await else { return };
    let (proxy, fence) = keeper_behind_proxy(&db).await;
    let parked = Parked::start(&fence, "among releases", TTL).await;
    proxy.set(Mode::Delay(Duration::from_millis(20)));
    let until = Instant::now() + 3 * TTL;
    let mut ending = JoinSet::new();
    for n in 0..8 {
        let fence = fence.clone();
        ending.spawn(async move {
            while Instant::now() < until {
                let run = fence.run(job(format!("ends {n}"), |_| Box::pin(async { Ok::<_, Error>(()) })));
                within("a short job", run).await.unwrap();
            }
        });
    }
    while let Some(ended) = ending.join_next().await {
        ended.unwrap();
    }
    assert_eq!(said_lost("among releases"), 0);
    parked.end().await;
}

/// Somebody holds one row: the others of the same statement are renewed all the same.
async fn a_locked_row_costs_its_own_lease_only<D: TestDb>(db: D) {
    let _shared = MACHINE.read().await;
    let lease = &*format!("locked on {}", D::NAME);
    log::capture();
    let fence = db.fence().await;
    let (locked, free) = (Parked::start(&fence, lease, TTL).await, Parked::start(&fence, "free", TTL).await);
    let mut somebody = db.session("somebody").await;
    somebody.ok(format!("BEGIN; SELECT 1 FROM fenced_job_leases WHERE lease_name = '{lease}' FOR UPDATE")).await;
    let error = locked.lost().await;
    assert!(error.contains("locked by somebody"), "{error}");
    renewed_after(&fence, "free", &row(&fence, "free").await).await;
    free.end().await;
    assert_eq!(said(lease, Level::WARN, NO_RENEWALS), 0);
    somebody.ok("ROLLBACK").await;
}

async fn thousands_of_leases_are_renewed_in_a_handful_of_statements<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    const TTL: Duration = Duration::from_millis(4500);
    const TICK: Duration = Duration::from_millis(1500);
    let _alone = MACHINE.write().await;
    // One large crowd is enough: acquiring it takes most of the time.
    let leases = if D::NAME == "postgres" { 10_000 } else { 3_000 };
    let (proxy, fence) = keeper_behind_proxy(&db).await;
    let (end, ended) = watch::channel(false);
    let (at_once, running) = (Arc::new(Semaphore::new(20)), Arc::new(AtomicUsize::new(0)));
    let mut runs = JoinSet::new();
    for n in 0..leases {
        let permit = at_once.clone().acquire_owned().await.unwrap();
        let (mut ended, running) = (ended.clone(), running.clone());
        let parked = job(format!("tenant:{n}:billing"), move |_| {
            Box::pin(async move {
                drop(permit);
                running.fetch_add(1, Ordering::Relaxed);
                _ = ended.wait_for(|ended| *ended).await;
                Ok::<_, Error>(())
            })
        });
        runs.spawn(fence.run(parked.ttl(TTL)));
    }
    eventually("all are acquired", async || running.load(Ordering::Relaxed) == leases).await;

    let (now, clock) = match D::NAME {
        "postgres" => ("clock_timestamp()", "SELECT clock_timestamp()::text"),
        _ => (
            "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
            "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        ),
    };
    let held = format!("SELECT count(*) FROM fenced_job_leases WHERE fence_token = 1 AND leased_until > {now}");
    let (begin, before) = (Instant::now(), proxy.round_trips());
    while begin.elapsed() < 2 * TTL {
        // Every one of them, since now.
        let now = db.text(clock).await.unwrap();
        let waiting = format!("SELECT count(*) FROM fenced_job_leases WHERE renewed_at < '{now}'");
        eventually("all are renewed", async || db.int(&waiting).await == 0).await;
        assert_eq!(db.int(&held).await, leases as i64);
    }
    let ticks = begin.elapsed().div_duration_f64(TICK) / 0.9;
    let statements = proxy.round_trips() - before;
    assert!((statements as f64) < 8.0 * ticks, "{statements} statements in {ticks:.1} ticks");
    assert!(runs.try_join_next().is_none(), "none has ended");

    let before = proxy.round_trips();
    end.send_replace(true);
    let ending = async {
        while let Some(run) = runs.join_next().await {
            run.unwrap().unwrap();
        }
    };
    within("all end", ending).await;
    assert_eq!(db.int(released::<D>()).await, leases as i64);
    let statements = proxy.round_trips() - before;
    assert!(statements < 500, "{statements} statements for {leases} releases");
}
