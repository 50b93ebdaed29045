//! MySQL and MariaDB, at every level.
//!
//! Two gates stand for what no statement of ours could come between. One is in the procedure that opens a fenced
//! transaction, between its look at the expiry and its lock on the token; the other in a trigger that keeps whoever has
//! written a lease row from committing it. They are user locks of the server, and who waits there is read from its list
//! of sessions.

use std::time::Duration;

use fence_runtime::{Isolation, TxOptions};
use fence_tests::{
    jobs::token_of,
    owner::{Act, FOR_GOOD, Owner},
    servers::{InnoDb, TestDb},
    stepper::{Session, Step, Task, within},
};

use crate::{
    server::holds,
    stage::{LEASE, Last, Stage, Write},
};

/// I1upd, and C commits. An UPDATE or DELETE goes on with the row as it is now; an INSERT finds its key taken, and that
/// undoes the statement alone: the guard holds until A ends its transaction. MariaDB at SERIALIZABLE undoes all of it.
pub async fn waits_on_target_that_changes<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = holds(&stage, "c", write.change_target()).await;
    stage.begin().await;
    let mut waiting = stage.start_write();
    waiting.blocked_by(&c).await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    c.ok("COMMIT").await;
    let answer = waiting.answer().await;
    if M && level == Isolation::Serializable {
        assert_eq!(answer.unwrap_err().code, "1020", "the row has changed since A's transaction began");
        c.ok("DELETE FROM results").await;
        let mut after = stage.takeover().await;
        let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
        assert_eq!(refused.code, "RolledBack", "{refused}");
        return after.nothing_of_a_lands(Last::Refused).await;
    }
    stage.takeover_is_refused().await;
    if write == Write::Insert {
        assert_eq!(answer.unwrap_err().code, "1062");
        let refused = stage.a.run(Act::Commit).await.unwrap_err();
        assert_eq!(refused.code, "RolledBack", "{refused}");
        // C's row would be in A's way for ever, fence or not.
        c.ok("DELETE FROM results").await;
        stage.takeover().await.nothing_of_a_lands(Last::Refused).await;
    } else {
        assert_eq!(answer.unwrap().rows, 1);
        stage.commit().await;
        stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
    }
}

/// I5. A's guard has seen a live lease and not yet locked it.
pub async fn takeover_while_guard_looks<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let (stage, mut gate, looking) = looks(db, level, write).await;
    stage.expire().await;
    let mut after = stage.takeover().await;
    gate.ok(OPEN_GATE).await;
    match looking.answer().await {
        Err(refused) => assert_eq!(refused.code, "Lost", "{refused}"),
        Ok(_) => {
            // The guard was fooled: let it show what that leads to.
            let write = after.stage.write_act();
            let tried = (after.stage.a.run(write).await, after.stage.a.run(Act::Commit).await);
            after.unchanged().await;
            panic!("a's guard has passed after the takeover; then {tried:?}");
        }
    }
    after.nothing_of_a_lands(Last::Refused).await;
}

pub async fn killed_between_guard_and_write<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
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

pub async fn killed_between_write_and_commit<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
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
pub async fn left_by_commit_between_guard_and_write<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    left_between_guard_and_write(db, level, write, "COMMIT", Some("1792")).await;
}

pub async fn left_by_rollback_between_guard_and_write<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    left_between_guard_and_write(db, level, write, "ROLLBACK", Some("1792")).await;
}

/// A transaction that says that it writes is let write, but it is not the one that was opened.
pub async fn left_by_start_between_guard_and_write<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    left_between_guard_and_write(db, level, write, "START TRANSACTION READ WRITE", None).await;
}

pub async fn left_by_chain_between_guard_and_write<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    left_between_guard_and_write(db, level, write, "COMMIT AND CHAIN", None).await;
}

async fn left_between_guard_and_write<const M: bool>(
    db: InnoDb<M>,
    level: Isolation,
    write: Write,
    leave: &str,
    refused_with: Option<&str>,
) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.a.ok(Act::Sql(leave.into())).await;
    let mut after = stage.takeover().await;
    let write = after.stage.write_act();
    match (after.stage.a.run(write).await, refused_with) {
        (Err(refused), Some(code)) => {
            assert_eq!(refused.code, code, "{refused}");
            let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
            assert_eq!(refused.code, "RolledBack", "{refused}");
            after.nothing_of_a_lands(Last::Refused).await;
        }
        // Nobody else has the row: the write itself cannot be refused.
        (Ok(_), None) => is_not_committed(after).await,
        (written, _) => panic!("{leave}: {written:?}"),
    }
}

/// The write is undone with its transaction; the one that is there at the end is empty and not ours.
pub async fn left_by_chain_between_write_and_commit<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.a.ok(Act::Sql("ROLLBACK AND CHAIN".into())).await;
    is_not_committed(stage.takeover().await).await;
}

/// A deadlock rolls A's transaction back, guard and all. The job goes on as if it were a failed statement like others.
pub async fn left_by_deadlock_between_guard_and_write<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    a_is_the_victim(&mut stage).await;
    let mut after = stage.takeover().await;
    let write = after.stage.write_act();
    _ = after.stage.a.run(write).await;
    is_not_committed(after).await;
}

pub async fn left_by_deadlock_between_write_and_commit<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    a_is_the_victim(&mut stage).await;
    is_not_committed(stage.takeover().await).await;
}

/// A commits after the takeover, and its transaction is not the one that it has opened: what the job itself may have
/// committed before, nobody knows.
async fn is_not_committed<const M: bool>(mut after: crate::stage::After<InnoDb<M>>) {
    let refused = after.stage.a.run(Act::Commit).await.unwrap_err();
    assert_eq!(refused.code, "Unknown", "{refused}");
    after.nothing_of_a_lands(Last::Unknown).await;
}

/// C has done more than A, so that the server ends A's transaction when the two wait for each other.
async fn a_is_the_victim<const M: bool>(stage: &mut Stage<InnoDb<M>>) {
    let many = (10..60).map(|n| format!("({n}, '')")).collect::<Vec<_>>().join(", ");
    let mut c = holds(stage, "c", &format!("INSERT INTO drafts VALUES {many}")).await;
    stage.a.ok(Act::Sql("INSERT INTO drafts VALUES (2, 'a')".into())).await;
    let mut waiting = stage.a.start_act(Act::Sql("UPDATE drafts SET note = 'a' WHERE run_id = 10".into()));
    waiting.blocked_by(&c).await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    c.ok("UPDATE drafts SET note = 'c' WHERE run_id = 2").await;
    assert_eq!(waiting.answer().await.unwrap_err().code, "1213");
    c.ok("ROLLBACK").await;
}

/// The guard has seen a live lease, and when it locks, the lease has expired. It may still hold it, because nobody has
/// taken over: then nobody does until A's transaction has ended.
pub async fn guard_waits_past_expiry<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let (mut stage, mut gate, looking) = looks(db, level, write).await;
    stage.expire().await;
    gate.ok(OPEN_GATE).await;
    looking.ok().await;
    stage.takeover_is_refused().await;
    stage.write().await;
    stage.takeover_is_refused().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// Somebody has changed the token and not committed it; the lease looks live, so that the guard waits for the token.
const RAW_TAKEOVER: &str = "UPDATE fenced_job_leases SET owner_token = 'c', fence_token = 2, leased_until = 0";

/// It commits: A's guard finds another token than its own.
pub async fn guard_waits_behind_a_takeover<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = holds(&stage, "c", RAW_TAKEOVER).await;
    let begin = stage.begin_act();
    let mut guard = stage.a.start_act(begin);
    guard.blocked_by(&c).await;
    c.ok("COMMIT").await;
    let refused = guard.answer().await.unwrap_err();
    assert_eq!(refused.code, "Lost", "{refused}");
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Refused).await;
}

/// It is rolled back: A's guard passes, and holds what it must.
pub async fn guard_waits_behind_a_takeover_that_is_rolled_back<const M: bool>(
    db: InnoDb<M>,
    level: Isolation,
    write: Write,
) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = holds(&stage, "c", RAW_TAKEOVER).await;
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
pub async fn guard_beside_an_uncommitted_takeover<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.db.sql(pause_lease_writes_of("b")).await;
    let mut gate = stage.db.session("gate").await;
    gate.ok(CLOSE_GATE).await;
    stage.expire().await;
    let (fence, third) = (stage.b.clone(), stage.db.fence_as("third").await);
    let b = Task::start("b", stage.db.view(), {
        let view = stage.db.view().clone();
        async move { Owner::start_on::<InnoDb<M>>(&fence, "b", LEASE, FOR_GOOD, &view).await }
    });
    stage.db.view().at_user_lock().await;
    let begin = stage.begin_act();
    let refused = stage.a.run(begin).await.unwrap_err();
    assert_eq!(refused.code, "Lost", "{refused}");
    let refused = within("a third contender asks", third.run(token_of(LEASE))).await.unwrap_err();
    assert!(refused.is_contended(), "{refused}");
    assert!(!b.is_finished());
    gate.ok(OPEN_GATE).await;
    let b = b.done().await.unwrap();
    assert_eq!(b.token(), 2);
    stage.work_of(b).await.nothing_of_a_lands(Last::Refused).await;
}

/// A's keeper has renewed and not committed it: the guard does not wait for that.
pub async fn guard_beside_an_uncommitted_renewal<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let soon = FOR_GOOD.renew(Duration::from_millis(100));
    let mut stage = Stage::set_with(db, level, write, soon).await;
    let mut gate = stage.db.session("gate").await;
    gate.ok(CLOSE_GATE).await;
    stage.db.sql(pause_lease_writes_of("a keeper")).await;
    stage.db.view().at_user_lock().await;
    stage.begin().await;
    stage.write().await;
    // The renewal is still open.
    stage.db.view().at_user_lock().await;
    stage.commit().await;
    gate.ok(OPEN_GATE).await;
    stage.db.sql("DROP TRIGGER pause").await;
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// The lease is renewed between the guard's look and its lock: no loss, at any level.
pub async fn guard_looks_while_renewed<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let (mut stage, mut gate, looking) = looks(db, level, write).await;
    stage.db.sql("UPDATE fenced_job_leases FORCE INDEX (PRIMARY) SET leased_until = leased_until + 1000000").await;
    gate.ok(OPEN_GATE).await;
    looking.ok().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.write().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// Jobs of one service, each with its guard: one statement renews all their leases, and waits for none.
pub async fn a_batch_is_renewed_under_its_guards<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) {
    let (fence, often) = (db.fence_as("a").await, FOR_GOOD.renew(Duration::from_millis(50)));
    let mut others = Vec::new();
    for n in 0..4 {
        let mut other =
            Owner::start_on::<InnoDb<M>>(&fence, "a", &format!("other {n}"), often, db.view()).await.unwrap();
        other.ok(Act::Begin(TxOptions::new().isolation(level))).await;
        others.push(other);
    }
    let mut stage = Stage::set_on(db, &fence, level, write, often).await;
    stage.begin().await;
    stage.write().await;
    for _ in 0..3 {
        let newest = stage.db.int("SELECT MAX(renewed_at) FROM fenced_job_leases").await;
        within("all are renewed under their guards", async {
            while stage.db.int("SELECT MIN(renewed_at) FROM fenced_job_leases").await <= newest {}
        })
        .await;
    }
    stage.commit().await;
    for mut other in others {
        other.ok(Act::Commit).await;
        other.end().await.unwrap();
    }
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// The server ends A's connection; gone when this returns.
async fn kill_a<const M: bool>(stage: &Stage<InnoDb<M>>) {
    let pid = stage.a.pid();
    assert!(stage.db.view().terminate(pid).await);
    within("a's connection ends", async { while stage.db.view().pids("a").await.contains(&pid) {} }).await;
}

const CLOSE_GATE: &str = "SELECT GET_LOCK(CONCAT('gate ', DATABASE()), 0)";
const OPEN_GATE: &str = "SELECT RELEASE_LOCK(CONCAT('gate ', DATABASE()))";

/// Whoever connects by this name waits here while the gate is closed.
fn gate_for(who: &str) -> String {
    format!(
        "IF SUBSTRING_INDEX(USER(), '@', 1) LIKE '%:{who}' THEN
           DO GET_LOCK(CONCAT('gate ', DATABASE()), 60), RELEASE_LOCK(CONCAT('gate ', DATABASE()));
         END IF"
    )
}

/// Whoever writes the lease row by this name waits before it can commit.
fn pause_lease_writes_of(who: &str) -> String {
    format!("CREATE TRIGGER pause AFTER UPDATE ON fenced_job_leases FOR EACH ROW {}", gate_for(who))
}

/// A's guard has seen a live lease, its transaction has begun, and it waits at the gate before it locks.
async fn looks<const M: bool>(db: InnoDb<M>, level: Isolation, write: Write) -> (Stage<InnoDb<M>>, Session, Step) {
    let mut stage = Stage::set(db, level, write).await;
    let start = "START TRANSACTION READ WRITE;";
    change_procedure(&stage.db, "fence_begin_v1", start, &format!("{start} {};", gate_for("a"))).await;
    let mut gate = stage.db.session("gate").await;
    gate.ok(CLOSE_GATE).await;
    let begin = stage.begin_act();
    let looking = stage.a.start_act(begin);
    stage.db.view().at_user_lock().await;
    (stage, gate, looking)
}

/// Replaces a part of one of the procedures, which must be there once.
pub async fn change_procedure<const M: bool>(db: &InnoDb<M>, name: &str, part: &str, by: &str) {
    let shown = db.sql(format!("SHOW CREATE PROCEDURE {name}")).await.values;
    let create = shown[0][2].as_deref().expect("whoever asks may see it");
    assert_eq!(create.matches(part).count(), 1, "{part} in {create}");
    db.sql(format!("DROP PROCEDURE {name}")).await;
    db.sql(create.replace(part, by)).await;
}
