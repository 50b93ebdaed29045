//! SQLite in both journal modes. It has one level, the strictest, and one writer: while A's fenced transaction is open
//! nobody else can write, so a takeover or a revocation waits, and a session that does not wait is refused as busy.
//! There is no view of locks; a probe stands for it.

use std::time::Duration;

use fence_runtime::{LeaseName, LeaseOptions, OnLost, Revocation, RunError};
use fence_tests::{
    jobs::{job, token_of},
    owner::{Act, FOR_GOOD, Owner},
    servers::TestDb,
    stepper::{Gate, LIMIT, Session, Task, within},
};

use crate::stage::{LEASE, Last, Stage, Write};

type Level = fence_runtime::Isolation;

/// I1. C has the file; A's guard waits for it, and then holds.
pub async fn guard_waits_for_a_writer<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = stage.db.session("c").await;
    c.ok(format!("BEGIN IMMEDIATE; {}", write.touch_target())).await;
    let begin = stage.begin_act();
    let mut guard = stage.a.start_act(begin);
    is_busy(&stage).await;
    assert!(!guard.is_finished());
    commit(&mut c).await;
    guard.ok().await;
    nobody_gets_in(&stage).await;
    stage.write().await;
    stage.commit().await;
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// I1. The same, and the term of A ends in what C commits: A's guard is refused, whether it or B comes first.
pub async fn guard_waits_for_a_writer_and_the_term_ends<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = stage.db.session("c").await;
    c.ok("BEGIN IMMEDIATE; UPDATE fenced_job_leases SET leased_until = 0").await;
    let begin = stage.begin_act();
    let mut guard = stage.a.start_act(begin);
    let b = waiting_b(&stage);
    is_busy(&stage).await;
    assert!(!guard.is_finished() && !b.is_finished());
    commit(&mut c).await;
    let refused = guard.answer().await.unwrap_err();
    assert_eq!(refused.code, "Lost", "{refused}");
    let b = b.done().await.unwrap();
    assert_eq!(b.token(), 2);
    stage.work_of(b).await.nothing_of_a_lands(Last::Refused).await;
}

pub async fn takeover_before_guard<D: TestDb>(db: D, level: Level, write: Write) {
    let stage = Stage::set(db, level, write).await;
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Refused).await;
}

/// I4.
pub async fn takeover_between_guard_and_write<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    let b = waiting_b(&stage);
    nobody_gets_in(&stage).await;
    stage.write().await;
    nobody_gets_in(&stage).await;
    assert!(!b.is_finished());
    stage.commit().await;
    a_is_followed_by(stage, b).await;
}

/// I3.
pub async fn takeover_between_write_and_commit<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    let b = waiting_b(&stage);
    nobody_gets_in(&stage).await;
    assert!(!b.is_finished());
    stage.commit().await;
    a_is_followed_by(stage, b).await;
}

/// A's transaction stays open for longer than the lease lives without renewal. Nobody can take over, nor can A's keeper
/// renew: that is no loss, and the commit renews.
pub async fn open_past_expiry<D: TestDb>(db: D, level: Level, write: Write) {
    let options = LeaseOptions::new().ttl(Duration::from_secs(1)).on_lost(OnLost::Signal);
    let mut stage = Stage::set_with(db, level, write, options).await;
    stage.begin().await;
    let b = waiting_b(&stage);
    within("the lease expires", async {
        // The row as it was before the guard, which has renewed it for nobody else to see.
        let expired = "SELECT julianday('now') > 2440587.5 + (leased_until + 500000) / 86400000000.0
                         FROM fenced_job_leases";
        while stage.db.int(expired).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    nobody_gets_in(&stage).await;
    stage.a.ok(Act::Check).await;
    stage.write().await;
    assert!(!b.is_finished());
    stage.commit().await;
    let live = "SELECT julianday('now') < 2440587.5 + leased_until / 86400000000.0 FROM fenced_job_leases";
    assert_eq!(stage.db.int(live).await, 1);
    a_is_followed_by(stage, b).await;
}

/// Only with a rollback journal: C reads, and A's COMMIT has to wait for that. It still holds everybody else off.
pub async fn commit_waits_for_a_reader<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = stage.db.session("c").await;
    c.ok("BEGIN; SELECT * FROM runs").await;
    stage.begin().await;
    stage.write().await;
    let mut commit = stage.a.start_act(Act::Commit);
    let b = waiting_b(&stage);
    nobody_gets_in(&stage).await;
    assert!(!commit.is_finished() && !b.is_finished());
    c.ok("ROLLBACK").await;
    commit.ok().await;
    a_is_followed_by(stage, b).await;
}

/// I5. A job reads, and a takeover comes: what it read stays as it was, it cannot be made a writer, and the guard of a
/// new transaction is refused.
pub async fn takeover_after_a_snapshot<D: TestDb>(db: D, _level: Level, _write: Write) {
    db.sql("CREATE TABLE runs (run_id bigint PRIMARY KEY, fence_token bigint); INSERT INTO runs VALUES (1, 0)").await;
    let (fence, b, gate) = (db.fence_as("a").await, db.fence_as("b").await, Gate::new("a has a snapshot"));
    let inside = gate.clone();
    let a = fence.run(
        job(LEASE, move |ctx| {
            Box::pin(async move {
                let mut read = ctx.read().await?;
                let seen = D::read(fetch::<D>(&mut read, "SELECT fence_token FROM runs")).await.unwrap();
                inside.stop().await;
                assert_eq!(D::read(fetch::<D>(&mut read, "SELECT fence_token FROM runs")).await.unwrap(), seen);
                let refused = D::read(fetch::<D>(&mut read, "UPDATE runs SET fence_token = 1")).await.unwrap_err();
                assert_eq!(refused.code, "8", "read-only: {refused}");
                read.close().await?;
                ctx.begin().await.map(drop)
            })
        })
        .on_lost(OnLost::Signal),
    );
    let a = Task::start("a", db.view(), a);
    gate.reached().await;
    assert!(db.expire(LEASE).await);
    assert_eq!(b.run(token_of(LEASE)).await.unwrap(), 2);
    db.sql("UPDATE runs SET fence_token = 2").await;
    gate.open();
    let lost = a.done().await.unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    assert_eq!(db.int("SELECT fence_token FROM runs").await, 2);
}

fn fetch<'r, D: TestDb>(
    read: &'r mut fence_runtime::ReadTx<'_, D::Db>,
    sql: &'static str,
) -> fence_tests::stepper::Answers<'r, D::Db> {
    sqlx::Executor::fetch_many(read.executor(), sqlx::raw_sql(sql))
}

/// A COMMIT of the job's own is vetoed, and SQLite then rolls back.
pub async fn left_by_commit_between_guard_and_write<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    let refused = stage.a.run(Act::Sql("COMMIT".into())).await.unwrap_err();
    assert_eq!(refused.code, "531", "vetoed: {refused}");
    left(stage).await;
}

pub async fn left_by_rollback_between_guard_and_write<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.a.ok(Act::Sql("ROLLBACK".into())).await;
    left(stage).await;
}

/// What follows is inside a transaction again, but not in the one that was opened.
pub async fn left_by_rollback_and_begin_between_guard_and_write<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.a.ok(Act::Sql("ROLLBACK; BEGIN".into())).await;
    left(stage).await;
}

/// A has left its transaction, so B takes over; then A writes and commits.
async fn left<D: TestDb>(stage: Stage<D>) {
    stage.expire().await;
    let mut after = stage.takeover().await;
    let write = after.stage.write_act();
    // Refused at once, or with the transaction that it is in.
    _ = after.stage.a.run(write).await;
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "RolledBack", "{refused}");
    after.nothing_of_a_lands(Last::Refused).await;
}

/// A statement that fails and rolls the whole transaction back.
pub async fn left_by_a_statement_between_write_and_commit<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    stage.a.run(Act::Sql("INSERT OR ROLLBACK INTO runs VALUES (1, 'again', 0, '')".into())).await.unwrap_err();
    stage.expire().await;
    let mut after = stage.takeover().await;
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "RolledBack", "{refused}");
    after.nothing_of_a_lands(Last::Refused).await;
}

pub async fn revoked_before_guard<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.revoke_at_once().await;
    stage.no_new_guard().await;
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Refused).await;
}

pub async fn revoked_between_guard_and_write<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    let revoking = waiting_revocation(&stage);
    nobody_gets_in(&stage).await;
    stage.write().await;
    a_is_revoked_after_its_commit(stage, revoking).await;
}

pub async fn revoked_between_write_and_commit<D: TestDb>(db: D, level: Level, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    let revoking = waiting_revocation(&stage);
    a_is_revoked_after_its_commit(stage, revoking).await;
}

type Revoking = Task<Result<Revocation, fence_runtime::Error>>;

/// Both steps wait for the file.
fn waiting_revocation<D: TestDb>(stage: &Stage<D>) -> Revoking {
    let (b, name) = (stage.b.clone(), LeaseName::new(LEASE).unwrap());
    Task::start("b", stage.db.view(), async move { b.revoke(&name, LIMIT).await })
}

async fn a_is_revoked_after_its_commit<D: TestDb>(mut stage: Stage<D>, revoking: Revoking) {
    nobody_gets_in(&stage).await;
    assert!(!revoking.is_finished());
    stage.a.ok(Act::Commit).await;
    assert_eq!(revoking.done().await.unwrap(), Revocation::Complete { fence_token: 2 });
    stage.no_new_guard().await;
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Committed).await;
}

/// B's run, which waits for the lease.
fn waiting_b<D: TestDb>(stage: &Stage<D>) -> Task<Result<Owner, RunError<fence_runtime::Error>>> {
    let (fence, view) = (stage.b.clone(), stage.db.view().clone());
    Task::start("b", stage.db.view(), async move {
        Owner::start_on::<D>(&fence, "b", LEASE, FOR_GOOD.wait(LIMIT), &view).await
    })
}

/// A's commit has renewed its lease; once that ends, B has it.
async fn a_is_followed_by<D: TestDb>(stage: Stage<D>, b: Task<Result<Owner, RunError<fence_runtime::Error>>>) {
    assert_eq!(stage.db.fence_token(LEASE).await, 1);
    stage.expire().await;
    let b = b.done().await.unwrap();
    assert_eq!(b.token(), 2);
    stage.work_of(b).await.nothing_of_a_lands(Last::Committed).await;
}

/// With a rollback journal whoever looks whether it may write is in the way of a COMMIT, for a moment.
async fn commit(session: &mut Session) {
    within("the commit", async {
        while let Err(refused) = session.run("COMMIT").await {
            assert!(refused.is_busy(), "{refused}");
        }
    })
    .await;
}

/// The file has a writer: whoever does not wait for it is refused.
async fn is_busy<D: TestDb>(stage: &Stage<D>) {
    let refused = stage.db.session("probe").await.run("BEGIN IMMEDIATE").await.unwrap_err();
    assert!(refused.is_busy(), "{refused}");
}

/// Neither can A's term be ended nor its lease be taken.
async fn nobody_gets_in<D: TestDb>(stage: &Stage<D>) {
    is_busy(stage).await;
    let mut probe: Session = stage.db.session("probe").await;
    let refused = probe.run("UPDATE fenced_job_leases SET leased_until = 0").await.unwrap_err();
    assert!(refused.is_busy(), "{refused}");
}
