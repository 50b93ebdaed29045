//! The interleavings that are the same on every server with a lock for each row.

use std::time::Duration;

use fence_runtime::Isolation;
use fence_tests::{
    jobs::token_of,
    owner::FOR_GOOD,
    servers::TestDb,
    stepper::{Session, within},
};

use crate::stage::{LEASE, Last, Stage, Write};

/// I1upd. A waits for a row that C has changed and changes back: A's transaction is the one that lands, before B's.
pub async fn waits_on_changed_target<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = holds(&stage, "c", write.change_target()).await;
    stage.begin().await;
    let mut waiting = stage.start_write();
    waiting.blocked_by(&c).await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    waiting.blocked_by(&c).await;
    c.ok("ROLLBACK").await;
    assert_eq!(waiting.ok().await.rows, 1);
    stage.takeover_is_refused().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// I1lck. C has only locked the row.
pub async fn waits_on_locked_target<D: TestDb>(db: D, level: Isolation, write: Write) {
    waits_on_target_of(db, level, write, "c").await;
}

/// I2. The next owner has the row already. Its takeover does not wait for A, so that there is no deadlock.
pub async fn waits_on_target_of_the_next_owner<D: TestDb>(db: D, level: Isolation, write: Write) {
    waits_on_target_of(db, level, write, "b").await;
}

async fn waits_on_target_of<D: TestDb>(db: D, level: Isolation, write: Write, who: &str) {
    let mut stage = Stage::set(db, level, write).await;
    let mut other = holds(&stage, who, write.lock_target()).await;
    stage.begin().await;
    let mut waiting = stage.start_write();
    waiting.blocked_by(&other).await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    waiting.blocked_by(&other).await;
    other.ok("COMMIT").await;
    assert_eq!(waiting.ok().await.rows, 1);
    stage.takeover_is_refused().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// The plain case: A comes back too late.
pub async fn takeover_before_guard<D: TestDb>(db: D, level: Isolation, write: Write) {
    let stage = Stage::set(db, level, write).await;
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Refused).await;
}

/// I4.
pub async fn takeover_between_guard_and_write<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.write().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// I3.
pub async fn takeover_between_write_and_commit<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    stage.expire().await;
    stage.takeover_is_refused().await;
    stage.commit().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

/// Renewals get through under A's open transaction, and its commit does not mind them, at any level.
pub async fn renewed_between_write_and_commit<D: TestDb>(db: D, level: Isolation, write: Write) {
    let often = FOR_GOOD.renew(Duration::from_millis(20));
    let mut stage = Stage::set_with(db, level, write, often).await;
    stage.begin().await;
    stage.write().await;
    for _ in 0..3 {
        let before = stage.renewed_at().await;
        within("a renewal under the guard", async { while stage.renewed_at().await == before {} }).await;
        // A live lease is refused as well, and asking for it locks nothing.
        let refused = within("b asks", stage.b.run(token_of(LEASE))).await.unwrap_err();
        assert!(refused.is_contended(), "{refused}");
    }
    stage.commit().await;
    stage.expire().await;
    stage.takeover().await.nothing_of_a_lands(Last::Committed).await;
}

pub async fn revoked_before_guard<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.revoke_at_once().await;
    stage.no_new_guard().await;
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Refused).await;
}

pub async fn revoked_between_guard_and_write<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    let revoking = stage.revoke().await;
    stage.no_new_guard().await;
    revoking.waits().await;
    stage.write().await;
    stage.commit().await;
    revoking.completes().await;
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Committed).await;
}

pub async fn revoked_between_write_and_commit<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    stage.begin().await;
    stage.write().await;
    let revoking = stage.revoke().await;
    stage.no_new_guard().await;
    revoking.waits().await;
    stage.commit().await;
    revoking.completes().await;
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Committed).await;
}

pub async fn revoked_while_waiting_on_target<D: TestDb>(db: D, level: Isolation, write: Write) {
    let mut stage = Stage::set(db, level, write).await;
    let mut c = holds(&stage, "c", write.lock_target()).await;
    stage.begin().await;
    let mut waiting = stage.start_write();
    waiting.blocked_by(&c).await;
    let revoking = stage.revoke().await;
    waiting.blocked_by(&c).await;
    c.ok("COMMIT").await;
    assert_eq!(waiting.ok().await.rows, 1);
    revoking.waits().await;
    stage.commit().await;
    revoking.completes().await;
    stage.takeover_with(3).await.nothing_of_a_lands(Last::Committed).await;
}

/// A session in a transaction that has done this.
pub async fn holds<D: TestDb>(stage: &Stage<D>, who: &str, sql: &str) -> Session {
    let mut session = stage.db.session(who).await;
    session.ok(format!("BEGIN; {sql}")).await;
    session
}
