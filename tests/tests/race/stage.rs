//! The actors, and what every cell asserts.

use std::time::{Duration, SystemTime};

use fence_runtime::{
    Error, Fence, Isolation, LastTransaction, LeaseName, LeaseOptions, Revocation, RunError, TxOptions,
};
use fence_tests::{
    jobs::token_of,
    owner::{Act, FOR_GOOD, Owner},
    servers::TestDb,
    stepper::{LIMIT, Step, Task, within},
};

pub const LEASE: &str = "race";

const TABLES: &str = "
    CREATE TABLE runs (run_id bigint PRIMARY KEY, status text, fence_token bigint, note text);
    INSERT INTO runs VALUES (1, 'running', 0, '');
    CREATE TABLE results (run_id bigint REFERENCES runs, part bigint, fence_token bigint, PRIMARY KEY (run_id, part));
    CREATE TABLE drafts (run_id bigint PRIMARY KEY, note text);
    INSERT INTO drafts VALUES (1, '')";
const EVERYTHING: &str = "
    SELECT run_id, status, fence_token, note FROM runs;
    SELECT run_id, part, fence_token FROM results ORDER BY part;
    SELECT run_id, note FROM drafts";

/// The terminal write of A. Nothing in its SQL compares tokens: what refuses it must be the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Update,
    Insert,
    Delete,
}

impl Write {
    fn sql(self) -> &'static str {
        match self {
            Self::Update => "UPDATE runs SET status = 'done', fence_token = {token} WHERE run_id = 1",
            Self::Insert => "INSERT INTO results VALUES (1, {token}, {token})",
            Self::Delete => "DELETE FROM drafts WHERE run_id = 1",
        }
    }

    /// 1 once A's write is there.
    fn happened(self) -> &'static str {
        match self {
            Self::Update => "SELECT count(*) FROM runs WHERE fence_token = 1",
            Self::Insert => "SELECT count(*) FROM results WHERE fence_token = 1",
            Self::Delete => "SELECT 1 - count(*) FROM drafts",
        }
    }

    /// What C does to make A's write wait for C's transaction.
    pub fn change_target(self) -> &'static str {
        match self {
            Self::Update => "UPDATE runs SET note = 'c' WHERE run_id = 1",
            Self::Insert => "INSERT INTO results VALUES (1, 1, 0)",
            Self::Delete => "UPDATE drafts SET note = 'c' WHERE run_id = 1",
        }
    }

    /// A change of the target that does not stand in the way of A's write once it is committed.
    pub fn touch_target(self) -> &'static str {
        match self {
            Self::Update | Self::Insert => "UPDATE runs SET note = 'c' WHERE run_id = 1",
            Self::Delete => "UPDATE drafts SET note = 'c' WHERE run_id = 1",
        }
    }

    /// Locks it without a change: the row that an UPDATE or DELETE is about, or an INSERT refers to.
    pub fn lock_target(self) -> &'static str {
        match self {
            Self::Update | Self::Insert => "SELECT 1 FROM runs WHERE run_id = 1 FOR UPDATE",
            Self::Delete => "SELECT 1 FROM drafts WHERE run_id = 1 FOR UPDATE",
        }
    }
}

/// How A's last fenced transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Committed,
    /// Certainly not, and A was told so.
    Refused,
    /// A cannot know, and was told so. It was not committed either.
    Unknown,
}

/// A holds the lease with token 1.
pub struct Stage<D: TestDb> {
    pub db: D,
    pub a: Owner,
    pub b: Fence<D::Db>,
    pub write: Write,
    pub level: Isolation,
}

impl<D: TestDb> Stage<D> {
    pub async fn set(db: D, level: Isolation, write: Write) -> Self {
        Self::set_with(db, level, write, FOR_GOOD).await
    }

    pub async fn set_with(db: D, level: Isolation, write: Write, options: LeaseOptions) -> Self {
        let a = db.fence_as("a").await;
        Self::set_on(db, &a, level, write, options).await
    }

    /// With A on a fence that is not made like the others.
    pub async fn set_on(db: D, a: &Fence<D::Db>, level: Isolation, write: Write, options: LeaseOptions) -> Self {
        db.sql(TABLES).await;
        let b = db.fence_as("b").await;
        let a = Owner::start_on::<D>(a, "a", LEASE, options, db.view()).await.expect("the lease is free");
        assert_eq!(a.token(), 1);
        Self { db, a, b, write, level }
    }

    pub fn begin_act(&self) -> Act {
        Act::Begin(TxOptions::new().isolation(self.level))
    }

    /// A's guard has passed.
    pub async fn begin(&mut self) {
        let begin = self.begin_act();
        self.a.ok(begin).await;
    }

    pub fn write_act(&self) -> Act {
        Act::Terminal(self.write.sql().into())
    }

    /// A's terminal write is begun; whether it ends is another matter.
    pub fn start_write(&mut self) -> Step {
        let write = self.write_act();
        self.a.start_act(write)
    }

    /// A's terminal write is done.
    pub async fn write(&mut self) {
        assert_eq!(self.start_write().ok().await.rows, 1);
    }

    /// A commits, and its write is there. Nobody has taken over before.
    pub async fn commit(&mut self) {
        let (token, happened) = (self.db.fence_token(LEASE).await, self.db.int(self.write.happened()).await);
        assert_eq!((token, happened), (1, 0), "the takeover has not come first, nor the write");
        self.a.ok(Act::Commit).await;
        assert_eq!(self.db.int(self.write.happened()).await, 1);
    }

    /// A's term ends by the database's clock, whatever A has open: as a renewal, that does not wait.
    pub async fn expire(&self) {
        assert!(within("the term ends", self.db.expire(LEASE)).await);
    }

    /// B asks for the lease, and is told at once that it has expired but cannot be had yet.
    pub async fn takeover_is_refused(&self) {
        let refused = within("b asks for the lease", self.b.run(token_of(LEASE))).await;
        match refused {
            Err(RunError::Contended(contended)) => {
                assert!(contended.remaining.is_zero(), "{contended:?}");
                assert_eq!((contended.fence_token, &*contended.holder), (1, "a"));
            }
            other => panic!("a's guard holds, but b's run says {other:?}"),
        }
        assert_eq!(self.db.fence_token(LEASE).await, 1);
    }

    /// B takes over; committed when this returns, and B's own work too.
    pub async fn takeover(self) -> After<D> {
        self.takeover_with(2).await
    }

    /// As [`takeover`](Self::takeover), where a revocation has raised the token before.
    pub async fn takeover_with(self, token: i64) -> After<D> {
        let b = Owner::start_on::<D>(&self.b, "b", LEASE, FOR_GOOD, self.db.view()).await;
        let b = b.unwrap_or_else(|error| panic!("nothing of a is in the way: {error}"));
        assert_eq!((b.token(), self.db.fence_token(LEASE).await), (token, token));
        self.work_of(b).await
    }

    /// B holds the lease and does its work.
    pub async fn work_of(self, mut b: Owner) -> After<D> {
        b.ok(Act::Begin(TxOptions::new())).await;
        b.ok(Act::Terminal("UPDATE runs SET status = 'done', fence_token = {token} WHERE run_id = 1".into())).await;
        b.ok(Act::Terminal("INSERT INTO results VALUES (1, {token}, {token})".into())).await;
        // So that a stale DELETE has something to delete.
        b.ok(Act::Sql("DELETE FROM drafts".into())).await;
        b.ok(Act::Terminal("INSERT INTO drafts VALUES (1, 'b')".into())).await;
        b.ok(Act::Commit).await;
        let then = self.db.sql(EVERYTHING).await.values;
        After { stage: self, b, then }
    }

    /// A fence that is broken: the lease is somebody else's, and A's write is there.
    pub async fn has_landed(&self, token: i64) {
        assert_eq!((self.db.fence_token(LEASE).await, self.db.int(self.write.happened()).await), (token, 1));
    }

    /// When the lease was last renewed, as everybody sees it.
    pub async fn renewed_at(&self) -> SystemTime {
        self.b.inspect(&self.lease_name()).await.unwrap().expect("the row is there").renewed_at
    }

    fn lease_name(&self) -> LeaseName {
        LeaseName::new(LEASE).expect("a good name")
    }

    /// B revokes A's term while A has a transaction open: its first step is done at once, its second one drains.
    pub async fn revoke(&mut self) -> Revoking<D> {
        let first = within("b revokes", self.b.revoke(&self.lease_name(), Duration::ZERO)).await.unwrap();
        assert_eq!(first, DRAINING);
        let expired =
            format!("SELECT count(*) FROM fenced_job_leases WHERE fence_token = 1 AND leased_until = {}", D::EXPIRED);
        assert_eq!(self.db.int(expired).await, 1);
        self.takeover_is_refused().await;
        let (b, name) = (self.b.clone(), self.lease_name());
        let raise = Task::start("b", self.db.view(), async move { b.revoke(&name, LIMIT).await });
        let revoking = Revoking { raise, b: self.b.clone(), name: self.lease_name() };
        revoking.waits().await;
        revoking
    }

    /// B revokes A's term while nothing is open.
    pub async fn revoke_at_once(&mut self) {
        let revoked = within("b revokes", self.b.revoke(&self.lease_name(), LIMIT)).await.unwrap();
        assert_eq!(revoked, Revocation::Complete { fence_token: 2 });
    }

    /// No guard of A passes any more.
    pub async fn no_new_guard(&mut self) {
        let refused = self.a.run(Act::Execute(self.write.sql().into())).await.unwrap_err();
        assert_eq!(refused.code, "Lost", "{refused}");
    }
}

const DRAINING: Revocation = Revocation::Draining { fence_token: 1 };

/// The second step of a revocation, which waits for A's transaction.
pub struct Revoking<D: TestDb> {
    raise: Task<Result<Revocation, Error>>,
    b: Fence<D::Db>,
    name: LeaseName,
}

impl<D: TestDb> Revoking<D> {
    /// A's transaction is still in its way.
    pub async fn waits(&self) {
        if D::NAME == "postgres" {
            self.raise.blocked().await;
        } else {
            // InnoDB: it goes away and asks again. So does this, and hears what it hears.
            let again = within("b asks again", self.b.revoke(&self.name, Duration::ZERO)).await.unwrap();
            assert_eq!(again, DRAINING);
            assert!(!self.raise.is_finished());
        }
    }

    /// A's transaction has ended: the token is raised.
    pub async fn completes(self) {
        assert_eq!(self.raise.done().await.unwrap(), Revocation::Complete { fence_token: 2 });
    }
}

/// B has taken over and done its work: committed.
pub struct After<D: TestDb> {
    pub stage: Stage<D>,
    pub b: Owner,
    /// What was in the tables then.
    pub then: Vec<Vec<Option<String>>>,
}

impl<D: TestDb> After<D> {
    /// A tries whatever it can, and nothing changes; it is told; B's lease is untouched.
    pub async fn nothing_of_a_lands(mut self, last: Last) {
        let write = self.stage.write.sql();
        for act in [self.stage.begin_act(), Act::Execute(write.into()), Act::Check, Act::Progress("late".into())] {
            match self.stage.a.run(act.clone()).await {
                Err(refused) => assert_eq!(refused.code, "Lost", "{act:?}: {refused}"),
                Ok(_) => {
                    // Whatever it was that let it in: does it get any further?
                    let write = self.stage.write_act();
                    let tried = (self.stage.a.run(write).await, self.stage.a.run(Act::Commit).await);
                    self.unchanged().await;
                    panic!("{act:?} was let in after the takeover, and then {tried:?}");
                }
            }
        }
        self.unchanged().await;
        let ended = self.stage.a.end().await;
        // What A was refused after the takeover makes it lost, and it hears how the transaction before that had ended.
        match (last, &ended) {
            (Last::Committed, Err(RunError::Lost { last: LastTransaction::Committed, .. })) => {}
            (Last::Refused, Err(RunError::Lost { last: LastTransaction::None | LastTransaction::RolledBack, .. })) => {}
            (Last::Unknown, Err(RunError::Unknown { .. })) => {}
            _ => panic!("a's last transaction: {last:?}; its run says {ended:?}"),
        }
        // A's release has not ended B's term.
        self.b.ok(Act::Check).await;
        let token = self.b.token();
        self.b.end().await.unwrap();
        assert_eq!(self.stage.db.fence_token(LEASE).await, token);
    }

    /// Whatever A did, nothing of it is there.
    pub async fn unchanged(&self) {
        let now = self.stage.db.sql(EVERYTHING).await.values;
        assert_eq!(now, self.then, "a STALE COMMIT: it came after the takeover");
    }
}
