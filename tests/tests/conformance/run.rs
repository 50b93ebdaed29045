//! What `run` says: from what the fence knows, never from what the job says.

use std::time::Duration;

use fence_runtime::{BoxJob, Error, ErrorKind, FencedJob, LastTransaction, RunError, TxOptions};
use fence_tests::{
    app::{RUNS, complete, count, insert, on, status},
    conformance,
    cut::cut,
    jobs::{free_soon, job, token_of},
    owner::{
        Act::{Begin, Commit, Drop, Rollback, Sql, Terminal},
        Owner,
    },
    servers::TestDb,
    stepper::within,
};

conformance! {
    a_job_that_forgets_to_commit_is_told,
    a_job_that_rolls_back_has_said_so,
    a_transaction_without_a_statement_needs_no_commit,
    the_last_transaction_decides,
    a_write_that_was_dropped_anywhere_is_not_ok,
    the_jobs_own_error_comes_back,
    a_closure_that_fails_rolls_back,
    ok_after_the_last_commit_stays_ok_though_the_lease_is_lost,
    lost_says_how_the_last_transaction_ended,
    jobs_are_values,
    a_job_that_is_not_run_does_nothing,
}

mod with_several_connections {
    fence_tests::conformance! { on postgres, mysql, mariadb: two_fenced_transactions_at_once, a_leaked_transaction_is_not_ok }
    use super::{a_leaked_transaction_is_not_ok, two_fenced_transactions_at_once};
}

const LEASE: &str = "admin:reconciliation";

async fn a_job_that_forgets_to_commit_is_told<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    // Of different leases: the connection of a dropped transaction is closed, which the server learns a moment later.
    for (lease, write) in [
        ("terminal", Terminal("UPDATE runs SET status = 'done' WHERE run_id = 1".into())),
        ("sql", Sql("UPDATE runs SET status = 'done' WHERE run_id = 1".into())),
    ] {
        let mut a = Owner::start(&db, "a", lease).await.unwrap();
        a.ok(Begin(TxOptions::new())).await;
        a.ok(write).await;
        a.ok(Drop).await;
        let error = a.end().await.unwrap_err();
        assert!(error.is_uncommitted(), "{error}");
        let text = error.to_string();
        for part in [lease, "returned Ok", "not committed", "dropped"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(status(&db).await, "new");
    }
    // Dropped by the job's own return.
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                tx.terminal(sqlx::query(complete::<D>()).bind(tx.fence_token())).await
            })
        }))
        .await
        .unwrap_err();
    assert!(error.is_uncommitted(), "{error}");
    assert_eq!(status(&db).await, "new");
}

async fn a_job_that_rolls_back_has_said_so<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    a.ok(Begin(TxOptions::new())).await;
    a.ok(Terminal("UPDATE runs SET status = 'done' WHERE run_id = 1".into())).await;
    a.ok(Rollback).await;
    a.end().await.unwrap();
    assert_eq!(status(&db).await, "new");
}

async fn a_transaction_without_a_statement_needs_no_commit<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let run = fence.run(job(LEASE, |ctx| {
        Box::pin(async move {
            drop(ctx.begin().await?);
            Ok::<_, Error>(())
        })
    }));
    run.await.unwrap();
}

async fn the_last_transaction_decides<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let write = |status: &str| Terminal(format!("UPDATE runs SET status = '{status}' WHERE run_id = 1"));
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    // A job that tries again after a failure has done what it had to do.
    for act in [Begin(TxOptions::new()), write("one"), Drop, Begin(TxOptions::new()), write("two"), Commit] {
        a.ok(act).await;
    }
    a.end().await.unwrap();
    assert_eq!(status(&db).await, "two");
    let mut a = Owner::start(&db, "b", "another").await.unwrap();
    for act in [Begin(TxOptions::new()), write("three"), Commit, Begin(TxOptions::new()), write("four"), Drop] {
        a.ok(act).await;
    }
    assert!(a.end().await.unwrap_err().is_uncommitted());
    assert_eq!(status(&db).await, "three");
}

async fn the_jobs_own_error_comes_back<D: TestDb>(db: D) {
    #[derive(Debug, PartialEq)]
    struct Mine(u8);
    let fence = db.fence().await;
    let error = fence.run(job(LEASE, |_| Box::pin(async { Err::<(), _>(Mine(7)) }))).await.unwrap_err();
    assert!(!error.is_contended() && !error.is_lost() && !error.is_unknown() && !error.is_uncommitted());
    assert_eq!(error.into_job(), Some(Mine(7)));
}

async fn a_closure_that_fails_rolls_back<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    insert::<D>(tx, 2).await.unwrap();
                    let token = tx.fence_token();
                    _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await?;
                    Err::<(), _>(anyhow::anyhow!("changed my mind"))
                })
                .await
            })
        }))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "changed my mind");
    assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "new"));
}

async fn ok_after_the_last_commit_stays_ok_though_the_lease_is_lost<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    for act in [Begin(TxOptions::new()), Terminal("UPDATE runs SET status = 'done'".into()), Commit] {
        a.ok(act).await;
    }
    assert!(db.expire(LEASE).await);
    assert_eq!(a.run(fence_tests::owner::Act::Check).await.unwrap_err().code, "Lost");
    a.end().await.unwrap();
    assert_eq!(status(&db).await, "done");
}

async fn lost_says_how_the_last_transaction_ended<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let write = || Terminal("UPDATE runs SET status = 'done'".into());
    for (acts, wanted) in [
        (vec![], LastTransaction::None),
        (vec![Begin(TxOptions::new()), write(), Rollback], LastTransaction::RolledBack),
        (vec![Begin(TxOptions::new()), write(), Drop], LastTransaction::RolledBack),
    ] {
        let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
        for act in acts {
            a.ok(act).await;
        }
        assert!(db.expire(LEASE).await);
        assert_eq!(a.run(Begin(TxOptions::new())).await.unwrap_err().code, "Lost");
        // Returns Ok, which is worth nothing here.
        let RunError::Lost { last, job: None, error } = a.end().await.unwrap_err() else { panic!("{wanted:?}") };
        assert_eq!((last, error.kind()), (wanted, ErrorKind::Lost));
    }
    let fence = db.fence().await;
    let observer = std::sync::Arc::new(db);
    let sql = observer.clone();
    let error = fence
        .run(
            job("another", |ctx| {
                Box::pin(async move {
                    _ = ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await?;
                    assert!(sql.expire("another").await);
                    ctx.check().await?;
                    Ok::<_, Error>(())
                })
            })
            .ttl(Duration::from_secs(600))
            .on_lost(fence_runtime::OnLost::Signal),
        )
        .await
        .unwrap_err();
    let RunError::Lost { last, job: Some(job), .. } = error else { panic!("{error}") };
    assert_eq!((last, job.kind()), (LastTransaction::Committed, ErrorKind::Lost));
}

async fn jobs_are_values<D: TestDb>(db: D) {
    let fence = db.fence().await;
    let mut plan: Vec<BoxJob<'_, D::Db, String, Error, _>> = Vec::new();
    for n in 0..3 {
        plan.push(
            job(format!("{LEASE}:{n}"), move |ctx| Box::pin(async move { Ok(format!("{n} {}", ctx.fence_token())) }))
                .ttl(Duration::from_secs(7))
                .boxed(),
        );
    }
    assert!(format!("{:?}", plan[0]).contains("closure"));
    // Boxed twice, sent to another task, run in another order.
    for (n, boxed) in plan.into_iter().enumerate().rev() {
        assert_eq!(boxed.lease().0, format!("{LEASE}:{n}"));
        assert_eq!(fence.run(boxed.boxed()).await.unwrap(), format!("{n} 1"));
    }
    let spawned = tokio::spawn(fence.run(token_of(LEASE).boxed()));
    assert_eq!(within("the spawned job", spawned).await.unwrap().unwrap(), 1);
}

async fn a_job_that_is_not_run_does_nothing<D: TestDb>(db: D) {
    let fence = db.fence().await;
    drop(token_of::<D::Db>(LEASE));
    drop(fence.run(token_of(LEASE)));
    assert!(fence.leases().await.unwrap().is_empty());
}

async fn two_fenced_transactions_at_once<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let (mut one, mut two) = (ctx.begin().await?, ctx.begin().await?);
                insert::<D>(&mut one, 2).await.unwrap();
                insert::<D>(&mut two, 3).await.unwrap();
                let (a, b) = tokio::join!(one.commit(), two.commit());
                a?;
                b?;
                let parts = [4, 5, 6].map(|run| {
                    ctx.transaction(async move |tx| {
                        insert::<D>(tx, run).await.map_err(|e| anyhow::anyhow!(e.to_string()))
                    })
                });
                for part in futures_util::future::join_all(parts).await {
                    part.unwrap();
                }
                Ok::<_, Error>(())
            })
        }))
        .await
        .unwrap();
    assert_eq!(db.int("SELECT count(*) FROM runs WHERE run_id > 1").await, 5);
}

async fn a_leaked_transaction_is_not_ok<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                on::<D>(tx.executor(), "UPDATE runs SET status = 'done'").await.unwrap();
                std::mem::forget(tx);
                Ok::<_, Error>(())
            })
        }))
        .await
        .unwrap_err();
    assert!(error.is_uncommitted() && error.to_string().contains("leaked"), "{error}");
    assert_eq!(status(&db).await, "new");
}

async fn a_write_that_was_dropped_anywhere_is_not_ok<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    // While its transaction is being opened, too: whatever came of it, the job that says Ok has not seen it.
    let (mut at, mut whole) = (1, false);
    while !whole {
        let result = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let token = ctx.fence_token();
                    let written = cut(at, ctx.execute(sqlx::query(complete::<D>()).bind(token))).await;
                    Ok::<_, Error>(written.transpose()?.is_some())
                })
            }))
            .await;
        let written = status(&db).await == "done";
        match result {
            Ok(true) => whole = true,
            // The commit went on, and `run` has waited for it.
            Ok(false) => assert!(written, "dropped at poll {at}"),
            Err(error) => assert!(error.is_uncommitted() && !written, "dropped at poll {at}: {error}"),
        }
        // A server may notice a closed connection a moment later.
        free_soon(&fence, LEASE).await;
        db.sql("UPDATE runs SET status = 'new', fence_token = 0").await;
        at += 1;
    }
    assert!(at > 2, "{at}");
}
