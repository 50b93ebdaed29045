//! MySQL and MariaDB: a database per test on the server of `FENCE_TEST_MYSQL_URL` or `FENCE_TEST_MARIADB_URL`, or in a
//! container of each.

use std::{
    collections::HashSet,
    str::FromStr,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, MySql, MySqlConnection, MySqlPool, Pool,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    TestDb,
    container::{self, Recipe, Running},
    run_id, skip, with_database,
};
use crate::stepper::{self, Answer, Answers, Session, View};

/// A MySQL database of one test.
pub type MySqlDb = InnoDb<false>;
/// A MariaDB database of one test.
pub type MariaDb = InnoDb<true>;

/// A database of one test on MySQL or on MariaDB.
///
/// The servers show no names of connections but the user's: every `who` is a user of its own, with all rights.
pub struct InnoDb<const MARIADB: bool> {
    name: String,
    url: String,
    options: MySqlConnectOptions,
    pool: MySqlPool,
    view: View,
    server: &'static Server,
}

/// What differs between the two.
struct Product {
    name: &'static str,
    url: &'static str,
    what_to_do: &'static str,
    image: &'static str,
    variable: &'static str,
    mariadb: bool,
    command: &'static [&'static str],
    server: OnceLock<Result<Server, String>>,
}

// Nothing here survives a crash, and nothing needs to. Many connections: 32 contenders in several tests at once.
static MYSQL: Product = Product {
    name: "mysql",
    url: "FENCE_TEST_MYSQL_URL",
    what_to_do: "start Docker, or set FENCE_TEST_MYSQL_URL to a server where databases and users may be created",
    image: "mysql:9.7",
    variable: "FENCE_TEST_MYSQL_IMAGE",
    mariadb: false,
    command: &[
        "mysqld",
        "--skip-log-bin",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=OFF",
        "--innodb-buffer-pool-size=64M",
        "--max-connections=400",
        "--loose-mysqlx=OFF",
    ],
    server: OnceLock::new(),
};
static MARIADB: Product = Product {
    name: "mariadb",
    url: "FENCE_TEST_MARIADB_URL",
    what_to_do: "start Docker, or set FENCE_TEST_MARIADB_URL to a server where databases and users may be created",
    image: "mariadb:11.8",
    variable: "FENCE_TEST_MARIADB_IMAGE",
    mariadb: true,
    command: &[
        "mariadbd",
        "--skip-log-bin",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=OFF",
        "--innodb-buffer-pool-size=64M",
        "--max-connections=400",
    ],
    server: OnceLock::new(),
};

impl<const IS_MARIADB: bool> InnoDb<IS_MARIADB> {
    const PRODUCT: &'static Product = if IS_MARIADB { &MARIADB } else { &MYSQL };

    /// Is this MariaDB?
    pub const MARIADB: bool = IS_MARIADB;

    /// A database on a server of its own, started with these options besides ours: always in a container, gone with the
    /// test binary. `None` when there is none, and the line that says so has been written.
    pub async fn started_with(options: &'static [&'static str]) -> Option<Self> {
        match start(Self::PRODUCT, String::new(), options) {
            // It lives as long as its container, that is, as long as the process.
            Ok(server) => Some(Self::on(Box::leak(Box::new(server))).await),
            Err(why) => {
                skip(Self::NAME, &why, "start Docker");
                None
            }
        }
    }

    async fn on(server: &'static Server) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("fence_test_{:08x}_{}", run_id(), NEXT.fetch_add(1, Ordering::Relaxed));
        server.order(Order::Create(name.clone())).unwrap_or_else(|error| {
            panic!("no fresh database on the {} server of the tests: {error}", Self::NAME);
        });
        let options = server.options.clone().database(&name);
        let pool = pool(server.named(&options, "pool"), 10);
        let view = View::innodb(connect(server.named(&options, "view"), "view").await, IS_MARIADB);
        Self { url: with_database(&server.url, &name), name, options, pool, view, server }
    }

    /// The name of the database, which is its schema too.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<const IS_MARIADB: bool> TestDb for InnoDb<IS_MARIADB> {
    type Db = MySql;

    const NAME: &'static str = if IS_MARIADB { "mariadb" } else { "mysql" };
    const EXPIRED: &'static str = "0";
    const PID: &'static str = "SELECT connection_id()";

    async fn open() -> Option<Self> {
        match server(Self::PRODUCT) {
            Ok(server) => Some(Self::on(server).await),
            Err(why) => {
                skip(Self::NAME, why, Self::PRODUCT.what_to_do);
                None
            }
        }
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn options(&self, who: &str) -> MySqlConnectOptions {
        self.server.named(&self.options, who)
    }

    fn pool(&self) -> &Pool<MySql> {
        &self.pool
    }

    fn pool_as(&self, who: &str, size: u32) -> Pool<MySql> {
        pool(self.options(who), size)
    }

    async fn connect(&self, who: &str) -> MySqlConnection {
        connect(self.options(who), who).await
    }

    async fn run(connection: &mut MySqlConnection, sql: &str) -> Answer {
        stepper::run_mysql(connection, sql).await
    }

    async fn read(answers: Answers<'_, MySql>) -> Answer {
        stepper::read_mysql(answers).await
    }

    async fn session(&self, who: &str) -> Session {
        Session::mysql(who, self.connect(who).await, self.view.clone()).await
    }

    fn view(&self) -> &View {
        &self.view
    }

    async fn try_sql(&self, sql: impl AsRef<str> + Send) -> Answer {
        self.view.run(sql.as_ref()).await
    }

    /// A backslash means something in a string there.
    fn literal(text: &str) -> String {
        format!("X'{}'", text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    /// The table's other key is the one that an open fenced transaction locks.
    async fn expire(&self, lease: &str) -> bool {
        let lease = Self::literal(lease);
        let sql =
            format!("UPDATE fenced_job_leases FORCE INDEX (PRIMARY) SET leased_until = 0 WHERE lease_name = {lease}");
        self.sql(sql).await.rows == 1
    }
}

impl<const IS_MARIADB: bool> Drop for InnoDb<IS_MARIADB> {
    fn drop(&mut self) {
        // If it fails, the next test binary sweeps it up.
        _ = self.server.order(Order::Drop(self.name.clone()));
    }
}

fn pool(options: MySqlConnectOptions, size: u32) -> MySqlPool {
    MySqlPoolOptions::new().max_connections(size).acquire_timeout(Duration::from_secs(20)).connect_lazy_with(options)
}

async fn connect(options: MySqlConnectOptions, who: &str) -> MySqlConnection {
    stepper::within(&format!("connect as {who}"), options.connect())
        .await
        .unwrap_or_else(|error| panic!("cannot connect to MySQL or MariaDB as {who}: {error}"))
}

/// The server of this test binary. Databases and users are made on a thread of its own, because the runtimes of the
/// tests come and go and a connection belongs to one of them.
struct Server {
    url: String,
    options: MySqlConnectOptions,
    orders: UnboundedSender<(Order, mpsc::Sender<Result<(), String>>)>,
    users: Mutex<HashSet<String>>,
    password: String,
}

enum Order {
    Create(String),
    Drop(String),
    User(String, String),
}

impl Server {
    fn order(&self, order: Order) -> Result<(), String> {
        let (done, answer) = mpsc::channel();
        self.orders.send((order, done)).map_err(|_| "the thread that makes databases has ended".to_owned())?;
        answer.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The options of a user of this name, who is made when first asked for.
    fn named(&self, options: &MySqlConnectOptions, who: &str) -> MySqlConnectOptions {
        let user = format!("{}{who}", user_prefix(run_id()));
        let mut users = self.users.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !users.contains(&user) {
            self.order(Order::User(user.clone(), self.password.clone()))
                .unwrap_or_else(|error| panic!("no user {user:?} on the server of the tests: {error}"));
            users.insert(user.clone());
        }
        options.clone().username(&user).password(&self.password)
    }
}

/// What stands before `who` in the name of a user, so that another test binary can tell whose it was.
fn user_prefix(run: u32) -> String {
    format!("ft{run:08x}:")
}

/// The server, started by the first test that asks, or why there is none.
fn server(product: &'static Product) -> Result<&'static Server, &'static str> {
    let url = || std::env::var(product.url).unwrap_or_default();
    product.server.get_or_init(|| start(product, url(), &[])).as_ref().map_err(String::as_str)
}

/// The server of this URL; where there is none, one in a container.
fn start(product: &'static Product, url: String, options: &'static [&'static str]) -> Result<Server, String> {
    let (ready, started) = mpsc::channel();
    std::thread::Builder::new()
        .name(format!("{} of the tests", product.name))
        .spawn(move || super::block_on(serve(product, url, options, ready)))
        .map_err(|error| error.to_string())?;
    match started.recv() {
        Ok(Ok(server)) => Ok(server),
        Ok(Err(NoServer::Nowhere(why))) => Err(why),
        Ok(Err(NoServer::Broken(why))) => panic!("{why}"),
        Err(_) => panic!("the thread that starts {} panicked", product.name),
    }
}

enum NoServer {
    /// There is no server on this machine: a skip.
    Nowhere(String),
    /// There is one and it does not do: a failure.
    Broken(String),
}

async fn serve(
    product: &'static Product,
    url: String,
    options: &'static [&'static str],
    ready: mpsc::Sender<Result<Server, NoServer>>,
) {
    let start = async {
        let (url, running) = if url.is_empty() {
            let (url, running) = in_container(product, options).await.map_err(NoServer::Nowhere)?;
            (url, Some(running))
        } else {
            (url, None)
        };
        let opened = administer(product, &url).await;
        let (options, admin) = opened.map_err(|error| NoServer::Broken(format!("{}: {error}", product.url)))?;
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
    // Some servers want letters of both cases, digits and others.
    let password = format!("Fence-{:08x}", run_id());
    let users = Mutex::default();
    _ = ready.send(Ok(Server { url, options: options.clone(), orders, users, password }));
    Admin { options, connection, orders: taken, mariadb: product.mariadb }.work().await;
}

async fn in_container(product: &Product, options: &[&'static str]) -> Result<(String, Running), String> {
    let password = format!("{:08x}", run_id());
    let running = container::start(Recipe {
        image: product.image,
        variable: product.variable,
        port: 3306,
        // The official images start twice; the first time without a port.
        ready: "port: 3306",
        data: "/var/lib/mysql",
        env: vec![("MYSQL_ROOT_PASSWORD", password.clone())],
        command: [product.command, options].concat(),
    })
    .await?;
    Ok((format!("mysql://root:{password}@127.0.0.1:{}/mysql", running.port), running))
}

/// Opens the connection that makes databases, and drops what killed test binaries have left.
async fn administer(product: &Product, url: &str) -> Result<(MySqlConnectOptions, MySqlConnection), sqlx::Error> {
    let options = MySqlConnectOptions::from_str(url)?;
    let mut admin = tokio::time::timeout(Duration::from_secs(20), open_admin(&options))
        .await
        .map_err(|_| sqlx::Error::Io(std::io::Error::other("does not answer within 20 s")))??;
    let version = stepper::run_mysql(&mut admin, "SELECT VERSION()").await;
    let version = version.map_err(|refused| sqlx::Error::Protocol(refused.to_string()))?.text().unwrap_or_default();
    if version.contains("MariaDB") != product.mariadb {
        return Err(sqlx::Error::Configuration(
            format!("the server is {version}, which is not {}", product.name).into(),
        ));
    }
    for (names, at, what) in [
        (
            r"SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE 'fence\_test\_%'",
            11,
            "DATABASE",
        ),
        (r"SELECT User FROM mysql.user WHERE User LIKE 'ft________:%'", 2, "USER"),
    ] {
        let names = stepper::run_mysql(&mut admin, names).await.map_err(|e| sqlx::Error::Protocol(e.to_string()))?;
        for name in names.values.into_iter().filter_map(|row| row.into_iter().next()?) {
            let Some(run) = name.get(at..at + 8).filter(|run| u32::from_str_radix(run, 16).is_ok()) else { continue };
            // Whoever made it holds this lock for as long as it lives.
            let abandoned = stepper::run_mysql(&mut admin, &format!("SELECT IS_FREE_LOCK('fence_test_{run}')")).await;
            if abandoned.is_ok_and(|done| done.text().as_deref() == Some("1")) {
                // Another binary may be sweeping too.
                _ = match what {
                    "USER" => execute(&mut admin, format!("DROP USER IF EXISTS '{name}'@'%'")).await,
                    _ => drop_database(&mut admin, &name, product.mariadb).await,
                };
            }
        }
    }
    Ok((options, admin))
}

async fn execute(connection: &mut MySqlConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// Ends what is connected to it and drops it.
async fn drop_database(admin: &mut MySqlConnection, name: &str, mariadb: bool) -> Result<(), sqlx::Error> {
    let connected = match mariadb {
        true => format!("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{name}'"),
        false => format!("SELECT PROCESSLIST_ID FROM performance_schema.threads WHERE PROCESSLIST_DB = '{name}'"),
    };
    for _ in 0..200 {
        let connected = stepper::run_mysql(admin, &connected).await.unwrap_or_default().values;
        if connected.is_empty() {
            break;
        }
        for id in connected.into_iter().filter_map(|row| row.into_iter().next()?) {
            _ = execute(admin, format!("KILL {id}")).await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    execute(admin, format!("DROP DATABASE IF EXISTS `{name}`")).await
}

async fn open_admin(options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
    let mut admin = options.connect().await?;
    let lock = format!("SET SESSION lock_wait_timeout = 10; DO GET_LOCK('fence_test_{:08x}', 5)", run_id());
    execute(&mut admin, lock).await?;
    Ok(admin)
}

struct Admin {
    options: MySqlConnectOptions,
    connection: MySqlConnection,
    orders: UnboundedReceiver<(Order, mpsc::Sender<Result<(), String>>)>,
    mariadb: bool,
}

impl Admin {
    async fn work(&mut self) {
        while let Some((order, done)) = self.orders.recv().await {
            _ = done.send(self.carry_out(order).await.map_err(|error| error.to_string()));
        }
    }

    async fn carry_out(&mut self, order: Order) -> Result<(), sqlx::Error> {
        if self.connection.ping().await.is_err() {
            // A test has restarted the server, or ended every connection to it.
            self.connection = open_admin(&self.options).await?;
        }
        match order {
            Order::Create(name) => {
                execute(&mut self.connection, format!("CREATE DATABASE `{name}` CHARACTER SET utf8mb4")).await
            }
            Order::Drop(name) => drop_database(&mut self.connection, &name, self.mariadb).await,
            Order::User(user, password) => {
                let user = format!("'{}'@'%'", user.replace('\'', "''"));
                let create = format!(
                    "CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{password}'; \
                     GRANT ALL ON *.* TO {user} WITH GRANT OPTION"
                );
                execute(&mut self.connection, create).await
            }
        }
    }
}
