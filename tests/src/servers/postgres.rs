//! PostgreSQL: a database per test on the server of `FENCE_TEST_POSTGRES_URL` or in a container.

use std::{
    str::FromStr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Pool, Postgres,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    TestDb,
    container::{self, Recipe, Running},
    run_id, skip, with_database,
};
use crate::stepper::{self, Answer, Answers, Session, View};

const URL: &str = "FENCE_TEST_POSTGRES_URL";
const WHAT_TO_DO: &str = "start Docker, or set FENCE_TEST_POSTGRES_URL to a server where databases may be created";

/// A PostgreSQL database of one test.
pub struct PostgresDb {
    name: String,
    url: String,
    options: PgConnectOptions,
    pool: PgPool,
    view: View,
}

impl TestDb for PostgresDb {
    type Db = Postgres;

    const NAME: &'static str = "postgres";
    const EXPIRED: &'static str = "'epoch'";
    const PID: &'static str = "SELECT pg_backend_pid()";

    async fn open() -> Option<Self> {
        let server = match server() {
            Ok(server) => server,
            Err(why) => {
                skip(Self::NAME, why, WHAT_TO_DO);
                return None;
            }
        };
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{}{}", prefix(run_id()), NEXT.fetch_add(1, Ordering::Relaxed));
        server.order(Order::Create(name.clone())).unwrap_or_else(|error| {
            panic!("no fresh database on the PostgreSQL server of the tests: {error} (the role needs CREATEDB)")
        });
        let options = server.options.clone().database(&name);
        let pool = pool(&options, "pool", 10);
        let view = View::postgres(connect(&options, "view").await);
        Some(Self { url: with_database(&server.url, &name), name, options, pool, view })
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn options(&self, who: &str) -> PgConnectOptions {
        self.options.clone().application_name(who)
    }

    fn pool(&self) -> &Pool<Postgres> {
        &self.pool
    }

    fn pool_as(&self, who: &str, size: u32) -> Pool<Postgres> {
        pool(&self.options, who, size)
    }

    async fn connect(&self, who: &str) -> PgConnection {
        connect(&self.options, who).await
    }

    async fn run(connection: &mut PgConnection, sql: &str) -> Answer {
        stepper::run_postgres(connection, sql).await
    }

    async fn read(answers: Answers<'_, Postgres>) -> Answer {
        stepper::read_postgres(answers).await
    }

    async fn session(&self, who: &str) -> Session {
        Session::postgres(who, self.connect(who).await, self.view.clone()).await
    }

    fn view(&self) -> &View {
        &self.view
    }

    async fn try_sql(&self, sql: impl AsRef<str> + Send) -> Answer {
        self.view.run(sql.as_ref()).await
    }
}

impl Drop for PostgresDb {
    fn drop(&mut self) {
        if let Ok(server) = server() {
            // If it fails, the next test binary sweeps it up.
            _ = server.order(Order::Drop(self.name.clone()));
        }
    }
}

fn pool(options: &PgConnectOptions, who: &str, size: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(Duration::from_secs(20))
        .connect_lazy_with(options.clone().application_name(who))
}

async fn connect(options: &PgConnectOptions, who: &str) -> PgConnection {
    let options = options.clone().application_name(who);
    stepper::within(&format!("connect as {who}"), options.connect())
        .await
        .unwrap_or_else(|error| panic!("cannot connect to PostgreSQL as {who}: {error}"))
}

/// The server of this test binary. Databases are made and dropped on a thread of its own, because the runtimes of the
/// tests come and go and a connection belongs to one of them.
struct Server {
    url: String,
    options: PgConnectOptions,
    orders: UnboundedSender<(Order, mpsc::Sender<Result<(), String>>)>,
}

enum Order {
    Create(String),
    Drop(String),
}

impl Server {
    fn order(&self, order: Order) -> Result<(), String> {
        let (done, answer) = mpsc::channel();
        self.orders.send((order, done)).map_err(|_| "the thread that makes databases has ended".to_owned())?;
        answer.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// The server, started by the first test that asks, or why there is none.
fn server() -> Result<&'static Server, &'static str> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let (ready, started) = mpsc::channel();
        std::thread::Builder::new()
            .name("postgres of the tests".into())
            .spawn(move || super::block_on(serve(ready)))
            .map_err(|error| error.to_string())?;
        match started.recv() {
            Ok(Ok(server)) => Ok(server),
            Ok(Err(NoServer::Nowhere(why))) => Err(why),
            Ok(Err(NoServer::Broken(why))) => panic!("{why}"),
            Err(_) => panic!("the thread that starts PostgreSQL panicked"),
        }
    });
    server.as_ref().map_err(String::as_str)
}

enum NoServer {
    /// There is no server on this machine: a skip.
    Nowhere(String),
    /// There is one and it does not do: a failure.
    Broken(String),
}

async fn serve(ready: mpsc::Sender<Result<Server, NoServer>>) {
    let start = async {
        let (name, url, running) = match std::env::var(URL) {
            Ok(url) if !url.is_empty() => (URL, url, None),
            _ => {
                let (url, running) = in_container().await.map_err(NoServer::Nowhere)?;
                ("the PostgreSQL container", url, Some(running))
            }
        };
        let (options, admin) = administer(&url).await.map_err(|error| NoServer::Broken(format!("{name}: {error}")))?;
        Ok((url, options, admin, running))
    };
    // `_running` lives as long as this thread, that is, as long as the process.
    let (url, options, connection, _running) = match start.await {
        Ok(up) => up,
        Err(none) => {
            _ = ready.send(Err(none));
            return;
        }
    };
    let (orders, taken) = unbounded_channel();
    _ = ready.send(Ok(Server { url, options: options.clone(), orders }));
    Admin { options, connection, orders: taken }.work().await;
}

async fn in_container() -> Result<(String, Running), String> {
    let password = format!("{:08x}", run_id());
    let running = container::start(Recipe {
        image: "postgres:18",
        variable: "FENCE_TEST_POSTGRES_IMAGE",
        port: 5432,
        ready: "ready to accept connections",
        data: "/var/lib/postgresql",
        // In clear text, on the loopback: the client's half of SCRAM takes 50 ms a connection in an unoptimised build.
        env: vec![("POSTGRES_PASSWORD", password.clone()), ("POSTGRES_HOST_AUTH_METHOD", "password".into())],
        // Nothing here survives a crash, and nothing needs to. Many connections: 32 contenders in several tests at once.
        command: vec!["postgres", "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "max_connections=400"],
    })
    .await?;
    Ok((format!("postgres://postgres:{password}@127.0.0.1:{}/postgres", running.port), running))
}

/// Opens the connection that makes databases, and drops what killed test binaries have left.
async fn administer(url: &str) -> Result<(PgConnectOptions, PgConnection), sqlx::Error> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(sqlx::Error::Configuration("the URL must begin with postgres:// or postgresql://".into()));
    }
    let options = PgConnectOptions::from_str(url)?;
    let mut admin = tokio::time::timeout(Duration::from_secs(20), open_admin(&options))
        .await
        .map_err(|_| sqlx::Error::Io(std::io::Error::other("does not answer within 20 s")))??;
    let names: Vec<String> = sqlx::query_scalar(r"SELECT datname FROM pg_database WHERE datname LIKE 'fence\_test\_%'")
        .fetch_all(&mut admin)
        .await?;
    for name in names {
        let Some(run) = name.get(11..19).and_then(|run| i32::from_str_radix(run, 16).ok()) else { continue };
        // Whoever made it holds this lock for as long as it lives.
        let abandoned: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
            .bind(LOCK_CLASS)
            .bind(run)
            .fetch_one(&mut admin)
            .await?;
        if abandoned {
            // Another binary may be sweeping too.
            _ = drop_database(&mut admin, &name).await;
            sqlx::query("SELECT pg_advisory_unlock($1, $2)").bind(LOCK_CLASS).bind(run).execute(&mut admin).await?;
        }
    }
    Ok((options, admin))
}

/// Ends what is connected to it and drops it.
async fn drop_database(admin: &mut PgConnection, name: &str) -> Result<(), sqlx::Error> {
    // FORCE alone would look for the ended ones only every 100 ms.
    for _ in 0..200 {
        let connected = sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1");
        if connected.bind(name).execute(&mut *admin).await?.rows_affected() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(admin).await.map(|_| ())
}

async fn open_admin(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut admin = options.clone().application_name("fence-tests admin").connect().await?;
    sqlx::query("SELECT pg_advisory_lock_shared($1, $2)")
        .bind(LOCK_CLASS)
        .bind(run_id() as i32)
        .execute(&mut admin)
        .await?;
    Ok(admin)
}

struct Admin {
    options: PgConnectOptions,
    connection: PgConnection,
    orders: UnboundedReceiver<(Order, mpsc::Sender<Result<(), String>>)>,
}

impl Admin {
    async fn work(&mut self) {
        while let Some((order, done)) = self.orders.recv().await {
            _ = done.send(self.carry_out(order).await.map_err(|error| error.to_string()));
        }
    }

    async fn carry_out(&mut self, order: Order) -> Result<(), sqlx::Error> {
        if self.connection.ping().await.is_err() {
            // A test has restarted the server, or ended every backend of it.
            self.connection = open_admin(&self.options).await?;
        }
        match order {
            Order::Create(name) => {
                let create = format!("CREATE DATABASE {name}");
                // Files copied as they are, not through the buffers: quicker to make and much quicker to drop.
                let copied = AssertSqlSafe(format!("{create} STRATEGY FILE_COPY"));
                match sqlx::raw_sql(copied).execute(&mut self.connection).await {
                    // Before PostgreSQL 15 there is no other way, and no word for it.
                    Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == "42601") => {
                        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut self.connection).await.map(drop)
                    }
                    other => other.map(drop),
                }
            }
            Order::Drop(name) => drop_database(&mut self.connection, &name).await,
        }
    }
}

/// The class of the advisory locks that say "this run is alive".
const LOCK_CLASS: i32 = 0x0066_656e;

fn prefix(run: u32) -> String {
    format!("fence_test_{run:08x}_")
}
