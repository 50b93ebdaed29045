//! A holder of a lease whose fenced transaction is driven step by step, like a [`Session`](crate::stepper::Session).
//!
//! ```ignore
//! let mut a = Owner::start(&db, "a", "job").await.unwrap();          // holds the lease, its job runs
//! a.ok(Begin(TxOptions::new())).await;
//! a.ok(Terminal("UPDATE runs SET status = 'done' WHERE run_id = 1 AND fence_token = {token}")).await;
//! db.expire("job").await;
//! assert!(Owner::start(&db, "b", "job").await.unwrap_err().is_contended());   // a's transaction is still open
//! a.ok(Commit).await;
//! a.end().await.unwrap_err();
//! ```

use std::{marker::PhantomData, time::Duration};

use fence_runtime::{
    Error, ErrorKind, Fence, FenceCtx, FencedJob, FencedTx, Lease, LeaseName, LeaseOptions, OnLost, RunError, TxOptions,
};
use sqlx::{AssertSqlSafe, Executor};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    servers::TestDb,
    stepper::{Answer, Done, HasPid, LIMIT, Refused, Step, View, by_name, code_of, within},
};

/// What an [`Owner`] does next. In SQL, `{token}` stands for its fencing token.
#[derive(Clone, Debug)]
pub enum Act {
    /// Opens a fenced transaction.
    Begin(TxOptions),
    /// Runs SQL on its executor.
    Sql(String),
    /// Runs a terminal write.
    Terminal(String),
    /// Commits.
    Commit,
    /// Rolls back.
    Rollback,
    /// Drops the transaction as it is.
    Drop,
    /// One fenced statement without a transaction of its own: `ctx.execute`.
    Execute(String),
    /// Asks whether the lease is still ours: `ctx.check`. The answer's value is the remaining time in milliseconds.
    Check,
    /// Notes progress.
    Progress(String),
}

/// The lease of an [`Owner`].
#[derive(Clone, Debug)]
pub struct Named(pub String);

impl Lease for Named {
    fn lease_name(&self) -> Result<LeaseName, Error> {
        LeaseName::new(self.0.clone())
    }
}

/// How [`Owner::start`] holds its lease: for so long that nothing happens to it but what the test does, and the job goes
/// on after a loss, because what it then tries is what is tested.
pub const FOR_GOOD: LeaseOptions = LeaseOptions::new().ttl(Duration::from_secs(3600)).on_lost(OnLost::Signal);

/// A running job that holds its lease and waits for the next [`Act`].
pub struct Owner {
    who: String,
    view: View,
    token: i64,
    ask_pid: &'static str,
    pid: Option<i32>,
    acts: mpsc::UnboundedSender<(Act, oneshot::Sender<Answer>)>,
    run: JoinHandle<Result<(), RunError<Error>>>,
}

impl Owner {
    /// Acquires the lease through a fence of its own; returns when its job runs, or why it does not.
    ///
    /// # Errors
    /// Such as [`RunError::is_contended`].
    pub async fn start<D: TestDb>(db: &D, who: &str, lease: &str) -> Result<Self, RunError<Error>> {
        let fence = db.fence_as(who).await;
        Self::start_on::<D>(&fence, who, lease, FOR_GOOD, db.view()).await
    }

    /// As [`start`](Self::start), through this fence and with these options.
    ///
    /// # Errors
    /// Such as [`RunError::is_contended`].
    pub async fn start_on<D: TestDb>(
        fence: &Fence<D::Db>,
        who: &str,
        lease: &str,
        options: LeaseOptions,
        view: &View,
    ) -> Result<Self, RunError<Error>> {
        let (started, running) = oneshot::channel();
        let (acts, taken) = mpsc::unbounded_channel();
        let job = Job::<D> { lease: Named(lease.into()), options, started, acts: taken, database: PhantomData };
        let mut run = tokio::spawn(fence.run(job));
        let token = within(&format!("{who} acquires {lease:?}"), running).await;
        match token {
            Ok(token) => Ok(Self { who: who.into(), view: view.clone(), token, ask_pid: D::PID, pid: None, acts, run }),
            // The job was dropped without having run.
            Err(_) => match within(&format!("{who} is refused {lease:?}"), &mut run).await {
                Ok(Err(error)) => Err(error),
                other => panic!("{who}: the job has not run, and its run says {other:?}"),
            },
        }
    }

    /// Its fencing token.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// The backend of its transaction, once [`run`](Self::run) or [`ok`](Self::ok) has begun one.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.pid.expect("the transaction was begun, on a server")
    }

    /// Begins an act and does not wait for it.
    pub fn start_act(&mut self, act: Act) -> Step {
        let (answer, step) = Step::new(format!("{}: {act:?}", self.who), by_name(&self.who), self.view.clone());
        _ = self.acts.send((act, answer));
        step
    }

    /// Does what must end, whatever its answer.
    pub async fn run(&mut self, act: Act) -> Answer {
        let begins = matches!(act, Act::Begin(_));
        let answer = self.start_act(act).answer().await;
        if begins && answer.is_ok() && self.view.is_there() {
            let pid = self.start_act(Act::Sql(self.ask_pid.into())).ok().await;
            self.pid = Some(pid.int() as i32);
        }
        answer
    }

    /// Does what must succeed.
    pub async fn ok(&mut self, act: Act) -> Done {
        let what = format!("{}: {act:?}", self.who);
        self.run(act).await.unwrap_or_else(|refused| panic!("{what}: {refused}"))
    }

    /// Ends the job with `Ok`; what its run says.
    ///
    /// # Errors
    /// What [`Fence::run`] says.
    pub async fn end(self) -> Result<(), RunError<Error>> {
        drop(self.acts);
        match tokio::time::timeout(LIMIT, self.run).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => panic!("{}: the run panicked: {error}", self.who),
            Err(_) => panic!("{}: the run does not end\n{}", self.who, self.view.describe().await),
        }
    }

    /// Drops the future of its run, wherever it is.
    pub async fn abort(self) {
        self.run.abort();
        _ = self.run.await;
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("who", &self.who).field("token", &self.token).finish_non_exhaustive()
    }
}

impl HasPid for Owner {
    #[track_caller]
    fn pid(&self) -> i32 {
        Self::pid(self)
    }
}

struct Job<D: TestDb> {
    lease: Named,
    options: LeaseOptions,
    started: oneshot::Sender<i64>,
    acts: mpsc::UnboundedReceiver<(Act, oneshot::Sender<Answer>)>,
    database: PhantomData<fn() -> D>,
}

impl<D: TestDb> FencedJob for Job<D> {
    type Db = D::Db;
    type Lease = Named;
    type Output = ();
    type Error = Error;

    fn name(&self) -> &'static str {
        "owner"
    }

    fn lease(&self) -> Named {
        self.lease.clone()
    }

    fn options(&self) -> LeaseOptions {
        self.options
    }

    async fn run(mut self, ctx: &FenceCtx<D::Db, Named>) -> Result<(), Error> {
        _ = self.started.send(ctx.fence_token().get());
        let mut tx = None;
        while let Some((act, answer)) = self.acts.recv().await {
            _ = answer.send(perform::<D>(ctx, &mut tx, act).await);
        }
        Ok(())
    }
}

async fn perform<'c, D: TestDb>(
    ctx: &'c FenceCtx<D::Db, Named>,
    tx: &mut Option<FencedTx<'c, D::Db, Named>>,
    act: Act,
) -> Answer {
    let sql = |sql: String| AssertSqlSafe(sql.replace("{token}", &ctx.fence_token().to_string()));
    let none = || Refused { code: "NoTransaction".into(), message: "no transaction is open".into() };
    let mut done = Done::default();
    match act {
        Act::Begin(options) => *tx = Some(ctx.begin_with(options).await?),
        Act::Sql(text) => {
            let tx = tx.as_mut().ok_or_else(none)?;
            return D::read(tx.executor().fetch_many(sqlx::raw_sql(sql(text)))).await;
        }
        Act::Terminal(text) => {
            let tx = tx.as_mut().ok_or_else(none)?;
            done.rows = tx.terminal(sqlx::query(sql(text))).await?.rows();
        }
        Act::Commit => tx.take().ok_or_else(none)?.commit().await?,
        Act::Rollback => tx.take().ok_or_else(none)?.rollback().await,
        Act::Drop => drop(tx.take().ok_or_else(none)?),
        Act::Execute(text) => done.rows = ctx.execute(sqlx::query(sql(text))).await?.rows(),
        Act::Check => done.values = vec![vec![Some(ctx.check().await?.as_millis().to_string())]],
        Act::Progress(text) => ctx.progress(&text).await?,
    }
    Ok(done)
}

/// The code is the database's where the database refused, and else the kind of the error: `Lost`, `RolledBack`, …
impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let database = error.as_sqlx().and_then(|error| error.as_database_error()).map(code_of);
        let code = match (error.kind(), database) {
            (ErrorKind::Database, Some(code)) => code,
            (kind, _) => format!("{kind:?}"),
        };
        Self { code, message: error.to_string() }
    }
}
