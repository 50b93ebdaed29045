//! The status of a transaction on PostgreSQL: its number may be given out twice, and then it is not believed.

use fence_runtime::{Resolve, TxOptions};
use fence_tests::{
    app::{RUNS, count, eventually},
    owner::{
        Act::{Begin, Commit, Sql},
        FOR_GOOD, Owner,
    },
    proxy::Mode,
    servers::{PostgresDb, TestDb},
};

use super::{LEASE, behind_a_proxy};

fence_tests::conformance! { on postgres: of_another_history_it_is_unknown }

/// What recovery after a crash does to the statistics, an operator can do too.
async fn of_another_history_it_is_unknown(db: PostgresDb) {
    db.sql(RUNS).await;
    let (proxy, fence, commit) = behind_a_proxy(&db, Resolve::TransactionStatus).await;
    let mut a = Owner::start_on::<PostgresDb>(&fence, "a", LEASE, FOR_GOOD, db.view()).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Sql("INSERT INTO runs VALUES (2, 'new', 0)".into())).await;
    proxy.set_at(commit, Mode::SwallowAnswers);
    let commit = a.start_act(Commit);
    eventually("it is committed", async || count(&db, 2).await == 1).await;
    db.sql("SELECT pg_stat_reset_shared('bgwriter')").await;
    proxy.cut().await;
    let refused = commit.answer().await.unwrap_err();
    assert_eq!(refused.code, "Unknown", "{refused}");
    assert!(refused.message.contains("failed over or crashed"), "{refused}");
    assert!(a.end().await.unwrap_err().is_unknown());
}
