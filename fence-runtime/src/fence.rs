//! A fence: the pool, the keeper and the tables, behind one cheap handle.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use sqlx::{ConnectOptions, Connection, Pool};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Backend,
    backend::{Options, Protocol, Tables, options_of},
    carried::Carried,
    error::{Error, ErrorKind},
    highest::Highest,
    job::FencedJob,
    keeper::Keeper,
    lease::{DEFAULT_TTL, check_ttl},
    lent::Lent,
    resolve::Resolve,
    run::{self, RunError},
    session::{ANSWER_LIMIT, no_answer},
    time::jittered,
};

/// How long contention (a deadlock, a serialisation failure, a busy file) is met by asking again.
const CONTENTION_PATIENCE: Duration = Duration::from_secs(5);

/// Runs [fenced jobs](FencedJob) over one database. Build it once, when the service starts; it is cheap to clone.
///
/// The pool moves in: a job reaches the database through its [context](crate::FenceCtx) only. What else the service does with the database
/// goes through [`unfenced`](Self::unfenced).
pub struct Fence<DB: Backend> {
    pub(crate) shared: Arc<Shared<DB>>,
}

pub(crate) struct Shared<DB: Backend> {
    pub(crate) pool: Pool<DB>,
    pub(crate) tables: Tables,
    pub(crate) keeper: Keeper,
    pub(crate) holder: String,
    pub(crate) default_ttl: Duration,
    pub(crate) highest: Highest,
    pub(crate) resolve: Option<Resolve>,
}

impl<DB: Backend> Fence<DB> {
    /// Starts to build a fence over a pool.
    pub fn builder(pool: Pool<DB>) -> FenceBuilder<DB> {
        FenceBuilder {
            pool,
            holder: None,
            schema: None,
            table_prefix: String::new(),
            keeper: None,
            default_ttl: DEFAULT_TTL,
            migrate: None,
            resolve: None,
        }
    }

    /// Acquires the job's lease, runs the job while the lease is renewed, and releases the lease when the job has ended: by success, error
    /// or panic.
    ///
    /// # Errors
    /// See [`RunError`]. A panic of the job goes on after the release.
    ///
    /// # Cancel safety
    /// Dropped, the job is dropped at its current await; a commit in flight goes on in the background, and the keeper then releases the
    /// lease.
    pub fn run<J: FencedJob<Db = DB>>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<J::Output, RunError<J::Error>>> + Send + use<DB, J> {
        run::run(self.shared.clone(), job)
    }

    /// Lends the pool for ordinary writes that no fence needs to protect: web handlers, other jobs' tables. `why` is for whoever searches
    /// the code for such places.
    ///
    /// A terminal write made through it is not fenced.
    #[must_use]
    pub fn unfenced(&self, why: &'static str) -> Pool<DB> {
        tracing::trace!(why, "pool lent unfenced");
        self.shared.pool.clone()
    }
}

impl<DB: Backend> Shared<DB> {
    /// One short piece of work on a connection of the pool, carried on when its caller is dropped, repeated when others were in the way, and given
    /// up when no answer comes. After an error the connection is closed.
    pub(crate) async fn once<T: Send + 'static>(
        &self,
        failed: &'static str,
        work: impl for<'c> Fn(&'c mut DB::Connection) -> Answer<'c, T> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let started = Instant::now();
        loop {
            let mut lent = Lent::<DB>::new(self.pool.acquire().await.map_err(|error| Error::database(failed, error))?);
            let (work, runtime) = (work.clone(), lent.runtime().clone());
            let done = Carried::new(runtime, async move {
                let value = timeout(ANSWER_LIMIT, work(&mut lent)).await.map_err(|_| no_answer())??;
                lent.end(crate::backend::Fit::Reuse);
                Ok(value)
            });
            match done.await {
                Ok(value) => return Ok(value),
                Err(error) if is_passing::<DB>(&error) && started.elapsed() < CONTENTION_PATIENCE => {
                    sleep(jittered(Duration::from_millis(10))).await;
                }
                Err(error) => return Err(Error::database(failed, error)),
            }
        }
    }
}

pub(crate) type Answer<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

fn is_passing<DB: Backend>(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::RowNotFound) || DB::Protocol::is_contention(error)
}

pub(crate) fn is_in_the_way<DB: Backend>(error: &Error) -> bool {
    error.as_sqlx().is_some_and(DB::Protocol::is_contention)
}

impl<DB: Backend> Clone for Fence<DB> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<DB: Backend> fmt::Debug for Fence<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("database", &DB::Protocol::NAME)
            .field("tables", &self.shared.tables.prefix())
            .field("holder", &self.shared.holder)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Fence`].
#[must_use = "call `build().await`"]
pub struct FenceBuilder<DB: Backend> {
    pool: Pool<DB>,
    holder: Option<String>,
    schema: Option<String>,
    table_prefix: String,
    keeper: Option<Options<DB>>,
    default_ttl: Duration,
    migrate: Option<Migrate<DB>>,
    resolve: Option<Resolve>,
}

type Migrate<DB> = for<'c> fn(
    &'c mut <DB as sqlx::Database>::Connection,
    &'c Tables,
    bool,
) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'c>>;

impl<DB: Backend> FenceBuilder<DB> {
    /// What operators read in the lease table: free text of at most 255 bytes. Default: the program, its process id and, where the
    /// environment names it, its host.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// The schema of the tables, on databases that have schemas. Default: the session's current schema when the fence is built.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Stands before the names of the tables and functions. Default: nothing.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// How the keeper connects. Default: as the pool does. It must reach the same database.
    pub fn keeper_options(mut self, options: Options<DB>) -> Self {
        self.keeper = Some(options);
        self
    }

    /// The time to live of leases whose job names none. Default: [`DEFAULT_TTL`].
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.default_ttl = ttl;
        self
    }

    /// Has the outcome of a commit whose answer was lost looked up on another connection, for at most 30 s, before it is reported: then
    /// [`FencedTx::commit`](crate::FencedTx::commit) says `Ok`, or [`ErrorKind::RolledBack`], and [`ErrorKind::Unknown`] only where that could
    /// not be found out either. Default: unknown at once.
    ///
    /// With it, work can be repeated until it is done, and is never done twice:
    ///
    /// ```no_run
    /// # use fence_runtime::{Backend, Error, FenceCtx, FencedTx};
    /// # async fn book<DB: Backend>(tx: &mut FencedTx<'_, DB>, payout: i64) -> Result<(), Error> { Ok(()) }
    /// # async fn retry_if_not_committed<DB: Backend>(ctx: &FenceCtx<DB>, payout: i64) -> Result<(), Error> {
    /// loop {
    ///     match ctx.transaction(async |tx| book(tx, payout).await).await {
    ///         // Whatever it was, nothing was committed. Count the tries.
    ///         Err(error) if !error.is_unknown() && !error.is_lost() => {}
    ///         done => break done,
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// What a raw COMMIT of the job's own did cannot be told apart from what ours did: leave that to `commit()`.
    pub fn resolve(mut self, resolve: Resolve) -> Self {
        self.resolve = Some(resolve);
        self
    }

    /// Creates or updates the tables when the fence is built; where that is done already, nothing is changed, and no right to is needed.
    /// Without it `build` only verifies them.
    #[cfg(feature = "migrate")]
    pub fn migrate(mut self) -> Self
    where
        DB::Connection: sqlx::migrate::Migrate,
    {
        self.migrate = Some(|conn, tables, schema| Box::pin(crate::migrate::run::<DB>(conn, tables, schema)));
        self
    }

    /// Connects, migrates if asked, verifies the server and the tables, and starts the keeper.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], [`ErrorKind::Schema`] with the statement that mends it, or [`ErrorKind::Database`]. Nothing half-started stays
    /// behind.
    pub async fn build(self) -> Result<Fence<DB>, Error> {
        check_ttl(self.default_ttl)?;
        let holder = self.holder.unwrap_or_else(default_holder);
        if holder.is_empty() || holder.len() > 255 || holder.chars().any(char::is_control) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("holder {holder:?} must have 1 to 255 bytes and no control characters"),
            ));
        }
        Tables::new(DB::Protocol::QUOTE, self.schema.as_deref(), &self.table_prefix)?;

        // Not through the pool: it would hide why a connection failed behind a time-out.
        let (pool_options, limit) = (options_of(&self.pool), self.pool.options().get_acquire_timeout());
        let mut conn = connect::<DB>(&pool_options, limit, "the database").await?;
        let tables = DB::Protocol::locate(&mut conn, self.schema.as_deref(), &self.table_prefix).await?;
        DB::Protocol::check_options(&pool_options)?;
        if let Some(migrate) = self.migrate {
            migrate(&mut conn, &tables, self.schema.is_some()).await?;
        }
        DB::Protocol::verify(&mut conn, &tables).await?;
        if let Some(resolve) = self.resolve {
            DB::Protocol::verify_resolve(&mut conn, &tables, resolve).await?;
        }
        close::<DB>(conn, limit).await;

        let keeper_options = self.keeper.unwrap_or(pool_options);
        DB::Protocol::check_options(&keeper_options)?;
        let keeper_options = DB::Protocol::keeper_options(keeper_options);
        let started = Instant::now();
        loop {
            let mut conn = connect::<DB>(&keeper_options, limit, "the database, as the keeper does,").await?;
            let verified = DB::Protocol::verify(&mut conn, &tables).await;
            close::<DB>(conn, limit).await;
            match verified {
                Ok(()) => break,
                // The keeper is in a hurry, and does not wait for a lock; here there is time.
                Err(error) if is_in_the_way::<DB>(&error) && started.elapsed() < CONTENTION_PATIENCE => {
                    sleep(jittered(Duration::from_millis(50))).await;
                }
                Err(error) => return Err(error),
            }
        }
        let keeper = Keeper::start::<DB>(keeper_options, tables.clone())?;
        let shared = Shared {
            pool: self.pool,
            tables,
            keeper,
            holder,
            default_ttl: self.default_ttl,
            highest: Highest::default(),
            resolve: self.resolve,
        };
        Ok(Fence { shared: Arc::new(shared) })
    }
}

impl<DB: Backend> fmt::Debug for FenceBuilder<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceBuilder").field("database", &DB::Protocol::NAME).finish_non_exhaustive()
    }
}

async fn connect<DB: Backend>(options: &Options<DB>, limit: Duration, what: &str) -> Result<DB::Connection, Error> {
    let failed = |error| Error::database(format!("could not connect to {what} ({})", DB::Protocol::NAME), error);
    match timeout(limit, options.connect()).await {
        Ok(connected) => connected.map_err(failed),
        Err(_) => Err(failed(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("no answer within {limit:?}"),
        )))),
    }
}

/// To the end, and not in the background: the last connection to a SQLite file locks it once more.
async fn close<DB: Backend>(conn: DB::Connection, limit: Duration) {
    // It has done its work, whatever it says now.
    let _ = timeout(limit, conn.close()).await;
}

fn default_holder() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    let host = ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok());
    let mut holder = format!("{}/{}", program.as_deref().unwrap_or("unknown"), std::process::id());
    if let Some(host) = host {
        holder = format!("{holder}@{host}");
    }
    holder.chars().filter(|c| !c.is_control()).take(60).collect()
}
