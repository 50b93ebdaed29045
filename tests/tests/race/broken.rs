//! The fence of MySQL and MariaDB with one part taken out, through the same stage: each shows what that part is for, and
//! that the cells of the matrix would notice if it were missing.

use fence_runtime::Isolation;
use fence_tests::{
    jobs::token_of,
    owner::Act,
    servers::{InnoDb, TestDb},
};

use crate::{
    innodb::change_procedure,
    stage::{After, LEASE, Stage, Write},
};

/// A holds the lease, and the procedure that opens its transactions is another one than it should be.
async fn stage<const M: bool>(db: InnoDb<M>, level: Isolation, part: &str, by: &str) -> Stage<InnoDb<M>> {
    let stage = Stage::set(db, level, Write::Insert).await;
    change_procedure(&stage.db, "fence_begin_v1", part, by).await;
    stage
}

/// A writes after the takeover, and it is there.
async fn loses<const M: bool>(mut after: After<InnoDb<M>>, commit: Act) {
    let write = after.stage.write_act();
    after.stage.a.ok(write).await;
    after.stage.a.ok(commit).await;
    after.stage.has_landed(after.b.token()).await;
}

/// What a guard does that only looks: the takeover passes it. B does nothing yet, because MariaDB would refuse a write of A
/// beside B's at REPEATABLE READ, where looking is the beginning of a snapshot.
pub async fn without_the_lock<const M: bool>(db: InnoDb<M>, level: Isolation, _: Write) {
    let mut stage = stage(db, level, " LOCK IN SHARE MODE", "").await;
    stage.begin().await;
    stage.expire().await;
    assert_eq!(stage.b.run(token_of(LEASE)).await.unwrap(), 2);
    stage.write().await;
    stage.a.ok(Act::Commit).await;
    stage.has_landed(2).await;
}

/// A guard that holds the lease whoever has it.
pub async fn without_the_token<const M: bool>(db: InnoDb<M>, level: Isolation, _: Write) {
    let stage = stage(db, level, " AND fence_token = token AND owner_token = owner", "").await;
    stage.expire().await;
    let mut after = stage.takeover().await;
    let begin = after.stage.begin_act();
    after.stage.a.ok(begin).await;
    loses(after, Act::Commit).await;
}

/// Whatever comes after the job's own COMMIT is let write, and its next COMMIT is too.
pub async fn without_the_read_only_session<const M: bool>(db: InnoDb<M>, level: Isolation, _: Write) {
    let mut stage = stage(db, level, "SET SESSION TRANSACTION READ ONLY;", "").await;
    stage.begin().await;
    stage.a.ok(Act::Sql("COMMIT".into())).await;
    stage.expire().await;
    loses(stage.takeover().await, Act::Sql("COMMIT".into())).await;
}

/// Safe, but it locks the row itself: the heartbeat waits until the transaction ends.
pub async fn without_the_index<const M: bool>(db: InnoDb<M>, level: Isolation, _: Write) {
    let mut stage = stage(db, level, "FORCE INDEX (uq_fence)", "FORCE INDEX (PRIMARY)").await;
    stage.begin().await;
    let mut heartbeat = stage.db.session("heartbeat").await;
    let renew = "UPDATE fenced_job_leases FORCE INDEX (PRIMARY) SET leased_until = leased_until + 1";
    let mut waiting = heartbeat.start(renew);
    waiting.blocked_by(&stage.a).await;
    stage.a.ok(Act::Commit).await;
    assert_eq!(waiting.ok().await.rows, 1);
    // With the key it does not.
    change_procedure(
        &stage.db,
        "fence_begin_v1",
        "FORCE INDEX (PRIMARY)\n             WHERE",
        "FORCE INDEX (uq_fence) WHERE",
    )
    .await;
    stage.begin().await;
    assert_eq!(heartbeat.ok(renew).await.rows, 1);
    stage.a.ok(Act::Commit).await;
    stage.a.end().await.unwrap();
}
