//! PostgreSQL, at every level.

use std::time::Duration;

use fence_runtime::{Fence, Isolation, LeaseOptions, OnLost};
use fence_tests::{
    jobs::token_of,
    owner::{Act, FOR_GOOD},
    servers::{PostgresDb, TestDb},
    stepper::{Session, Task, within},
};
use sqlx::postgres::PgPoolOptions;

use crate::{
    server::holds,
    stage::{LEASE, Last, Stage, Write},
};

/// I1upd, and C commits: at the stricter levels, and for an INSERT at each, that is an error of A's write. Its lock on
/// the lease goes with the error, so B takes over while A has not yet noticed anything but that.
pub async fn waits_on_target_that_changes(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = holds(&stage, "c", write.change_target()).await;
    stage.begin().await;
    let mut waiting = stage.start_write();
    waiting.blocked_by(&c).await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    c.ok("COMMIT").await;
    let answer = waiting.answer().await;
    if level == Isolation::ReadCommitted && write != Write::Insert {
        assert_eq!(answer.unwrap().rows, 1);
        stage.takeover_is_refused().await;
        stage.commit().await;
        stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
    } else {
        let refused = answer.unwrap_err();
        assert!(["40001", "23505"].contains(&&*refused.code), "{refused}");
        let mut after = takeover_with_a_free_key(stage, &mut c).await;
        let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
        assert_eq!(refused.code, "RolledBack", "{refused}");
        after.nothing_of_a_lands(Last::Refused).await;
    }
}

/// C's row of the INSERT cells would be in A's way for ever, fence or not.
async fn takeover_with_a_free_key(stage: Stage<PostgresDb>, c: &mut Session) -> crate::stage::After<PostgresDb> {
    c.ok("DELETE FROM results").await;
    stage.takeover().await
}

/// I5. A's snapshot is older than the expiry and the takeover: its guard has read the row, live and its own, but not yet
/// locked it.
pub async fn takeover_while_guard_looks(db: PostgresDb, level: Isolation, write: Write) {
    let (mut stage, mut gate) = with_a_slow_look(db, level, write).await;
    gate.ok(CLOSE_LOOK).await;
    let begin = stage.begin_act();
    let mut looking = stage.a.start_act(begin);
    looking.blocked_by(&gate).await;
    stage.expire().await;
    let mut after = stage.takeover().await;
    looking.blocked_by(&gate).await;
    gate.ok(OPEN_LOOK).await;
    match looking.answer().await {
        Err(refused) => assert_eq!(refused.code, "Lost", "{refused}"),
        Ok(_) => {
            // The guard was fooled: let it show what that leads to.
            let write = after.stage.write_act();
            let tried = (after.stage.a.run(write).await, after.stage.a.run(Act::Commit).await);
            after.unchanged().await;
            panic!("a's guard has passed on an old snapshot, after the takeover; then {tried:?}");
        }
    }
    after.nothing_of_a_lands(Last::Refused).await;
}

pub async fn killed_between_guard_and_write(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    kill_a(&stage).await;
    let mut after = stage.takeover().await;
    let write = after.stage.write_act();
    after.stage.a.run(write).await.unwrap_err();
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "RolledBack", "{refused}");
    after.nothing_of_a_lands(Last::Refused).await;
}

pub async fn killed_between_write_and_commit(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    kill_a(&stage).await;
    let mut after = stage.takeover().await;
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "Unknown", "{refused}");
    after.nothing_of_a_lands(Last::Unknown).await;
}

/// The job's own COMMIT has dropped the guard: the server refuses what follows.
pub async fn left_by_commit_between_guard_and_write(db: PostgresDb, level: Isolation, write: Write) {
    left_between_guard_and_write(db, level, write, "COMMIT").await;
}

pub async fn left_by_rollback_between_guard_and_write(db: PostgresDb, level: Isolation, write: Write) {
    left_between_guard_and_write(db, level, write, "ROLLBACK").await;
}

async fn left_between_guard_and_write(db: PostgresDb, level: Isolation, write: Write, leave: &str) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.a.ok(Act::Sql(leave.into())).await;
    let mut after = stage.takeover().await;
    let write = after.stage.write_act();
    let refused = after.stage.a.run(write).await.unwrap_err();
    assert_eq!(refused.code, "25006", "read-only: {refused}");
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "RolledBack", "{refused}");
    after.nothing_of_a_lands(Last::Refused).await;
}

/// A transaction that follows by AND CHAIN is writable, but it is not the one that was opened.
pub async fn left_by_chain_between_guard_and_write(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.a.ok(Act::Sql("COMMIT AND CHAIN".into())).await;
    let mut after = stage.takeover().await;
    // Nobody else has the row: the write itself cannot be refused.
    let write = after.stage.write_act();
    after.stage.a.ok(write).await;
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    // What the job itself committed before, nobody knows.
    assert_eq!(refused.code, "Unknown", "{refused}");
    after.nothing_of_a_lands(Last::Unknown).await;
}

/// The write is undone with its transaction; the one that is there at the end is empty and not ours.
pub async fn left_by_chain_between_write_and_commit(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.a.ok(Act::Sql("ROLLBACK AND CHAIN".into())).await;
    let mut after = stage.takeover().await;
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "Unknown", "{refused}");
    after.nothing_of_a_lands(Last::Unknown).await;
}

/// The guard has seen a live lease and waits for its row; when it gets it, the lease has expired by the live clock.
pub async fn guard_waits_past_expiry(db: PostgresDb, level: Isolation, write: Write) {
    // Long enough for the guard to begin in time, and nobody renews: C has the row.
    let options = LeaseOptions::new().ttl(Duration::from_secs(2)).on_lost(OnLost::Signal);
    let mut stage = Stage::set_with(db, level, write, options).await;
    let mut c = holds(&stage, "c", LOCK_LEASE).await;
    let begin = stage.begin_act();
    let mut guard = stage.a.start_act(begin);
    guard.blocked_by(&c).await;
    within("the lease expires", async {
        while stage.db.int("SELECT (leased_until > clock_timestamp())::int FROM fenced_job_leases").await == 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    guard.blocked_by(&c).await;
    c.ok("ROLLBACK").await;
    let refused = guard.answer().await.unwrap_err();
    assert_eq!(refused.code, "Lost", "{refused}");
    stage.takeover().await.nothing_of_a_lands(Last::Refused).await;
}

/// What C took was rolled back: A's guard, which waited for it, passes, and holds what it must.
pub async fn guard_waits_behind_a_takeover_that_is_rolled_back(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let raw_takeover = "UPDATE fenced_job_leases SET owner_token = 'c', fence_token = 2";
    let mut c = holds(&stage, "c", &format!("{LOCK_LEASE}; {raw_takeover}")).await;
    let begin = stage.begin_act();
    let mut guard = stage.a.start_act(begin);
    guard.blocked_by(&c).await;
    c.ok("ROLLBACK").await;
    guard.ok().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.write().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// B has taken over and not committed it: A's guard is refused at once, and a third contender does not queue.
pub async fn guard_beside_an_uncommitted_takeover(db: PostgresDb, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.db.sql(pause_lease_writes_of("b")).await;
    let mut gate = stage.db.session("gate").await;
    gate.ok(CLOSE_PAUSE).await;
    stage.expire().await;
    let (fence, third) = (stage.b.clone(), stage.db.fence_as("third").await);
    let b = Task::start("b", stage.db.view(), {
        let view = stage.db.view().clone();
        async move { fence_tests::owner::Owner::start_on::<PostgresDb>(&fence, "b", LEASE, FOR_GOOD, &view).await }
    });
    b.blocked().await;
    let begin = stage.begin_act();
    let refused = stage.a.run(begin).await.unwrap_err();
    assert_eq!(refused.code, "Lost", "{refused}");
    let refused = within("a third contender asks", third.run(token_of(LEASE))).await.unwrap_err();
    assert!(refused.is_contended(), "{refused}");
    b.blocked().await;
    gate.ok(OPEN_PAUSE).await;
    let b = b.done().await.unwrap();
    assert_eq!(b.token(), 2);
    stage.work_of(b).await.nothing_of_a_lands(Last::Refused).await;
}

/// A's keeper has renewed and not committed it: the guard does not wait for that.
pub async fn guard_beside_an_uncommitted_renewal(db: PostgresDb, level: Isolation, write: Write) {
    let soon = FOR_GOOD.renew(Duration::from_millis(100));
    let mut stage = Stage::set_with(db, level, write, soon).await;
    let mut gate = stage.db.session("gate").await;
    gate.ok(CLOSE_PAUSE).await;
    stage.db.sql(pause_lease_writes_of("a keeper")).await;
    let renewal = stage.db.view().blocked_as("a keeper").await;
    stage.begin().await;
    stage.write().await;
    assert!(stage.db.view().is_blocked(renewal).await, "the renewal is still open");
    stage.commit().await;
    gate.ok(OPEN_PAUSE).await;
    stage.db.sql("DROP TRIGGER pause ON fenced_job_leases").await;
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// The lease is renewed between the guard's snapshot and its lock: no loss, at any level.
pub async fn guard_looks_while_renewed(db: PostgresDb, level: Isolation, write: Write) {
    let (mut stage, mut gate) = with_a_slow_look(db, level, write).await;
    gate.ok(CLOSE_LOOK).await;
    let begin = stage.begin_act();
    let mut looking = stage.a.start_act(begin);
    looking.blocked_by(&gate).await;
    stage.db.sql("UPDATE fenced_job_leases SET leased_until = leased_until + interval '1 second'").await;
    gate.ok(OPEN_LOOK).await;
    looking.ok().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.write().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

const LOCK_LEASE: &str = "SELECT 1 FROM fenced_job_leases FOR UPDATE";

/// The server ends A's backend; gone when this returns.
async fn kill_a(stage: &Stage<PostgresDb>) {
    let pid = stage.a.pid();
    assert!(stage.db.view().terminate(pid).await);
    within("a's backend ends", async { while stage.db.view().pids("a").await.contains(&pid) {} }).await;
}

const CLOSE_LOOK: &str = "SELECT pg_advisory_lock(1)";
const OPEN_LOOK: &str = "SELECT pg_advisory_unlock(1)";

/// A's sessions find a `clock_timestamp()` that waits at a gate before it answers. The guard asks for it between its
/// snapshot and its row lock, where no statement of ours could come.
async fn with_a_slow_look(db: PostgresDb, level: Isolation, write: Write) -> (Stage<PostgresDb>, Session) {
    db.sql(
        "CREATE SCHEMA slow; CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN pg_catalog.clock_timestamp(); END $$",
    )
    .await;
    let options = db.options("a").options([("search_path", "slow,pg_catalog,public")]);
    let pool = PgPoolOptions::new().max_connections(4).connect_lazy_with(options);
    let fence = Fence::builder(pool).schema("public").keeper_options(db.options("a keeper")).holder("a").migrate();
    let fence = fence.build().await.unwrap();
    let gate = db.session("gate").await;
    (Stage::set_on(db, &fence, level, write, FOR_GOOD).await, gate)
}

const CLOSE_PAUSE: &str = "SELECT pg_advisory_lock(2)";
const OPEN_PAUSE: &str = "SELECT pg_advisory_unlock(2)";

/// Whoever writes the lease row by this name waits at a gate before it can commit.
fn pause_lease_writes_of(who: &str) -> String {
    format!(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           IF current_setting('application_name') = '{who}' THEN PERFORM pg_advisory_xact_lock_shared(2); END IF;
           RETURN NULL;
         END $$;
         CREATE TRIGGER pause AFTER UPDATE ON fenced_job_leases FOR EACH ROW EXECUTE FUNCTION pause()"
    )
}
