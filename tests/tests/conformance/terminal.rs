//! Zero rows is a signal.

use fence_runtime::{Error, ErrorKind, RunError};
use fence_tests::{
    app::{RUNS, complete, count, insert, on, status},
    conformance,
    jobs::job,
    servers::TestDb,
};
use sqlx::AssertSqlSafe;

conformance! {
    a_run_that_bears_another_token_is_not_written_and_the_run_is_not_ok,
    zero_rows_swallowed_inside_the_transaction_is_not_committed,
    zero_rows_swallowed_outside_the_transaction_is_not_ok,
    a_write_after_zero_rows_is_not_committed,
    zero_rows_may_be_right,
    another_number_of_rows_is_not_written,
    what_is_no_write_is_no_proof,
    a_failed_terminal_write_is_not_committed_over,
    a_terminal_write_that_is_never_awaited_is_not_committed_over,
    the_proof_says_how_many_rows,
    every_kind_of_write_is_a_terminal_write,
}

const LEASE: &str = "admin:reconciliation";

/// The guard is valid; the run's row belongs to somebody else's term.
const STRANGER: &str = "UPDATE runs SET fence_token = 99";

async fn a_run_that_bears_another_token_is_not_written_and_the_run_is_not_ok<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    db.sql(STRANGER).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let result = ctx
                    .transaction(async |tx| {
                        insert::<D>(tx, 2).await.unwrap();
                        let token = tx.fence_token();
                        tx.terminal(sqlx::query(complete::<D>()).bind(token)).await
                    })
                    .await;
                // The lease is ours all the time.
                ctx.check().await?;
                result
            })
        }))
        .await
        .unwrap_err();
    let RunError::Job(error) = error else { panic!("{error}") };
    assert_eq!((error.kind(), error.lease().unwrap().as_str()), (ErrorKind::Unwritten, LEASE));
    assert_eq!(error.fence_token().unwrap().get(), 1);
    let text = error.to_string();
    let beginning: String = complete::<D>().chars().take(20).collect();
    let wanted = format!("lease \"admin:reconciliation\", fencing token 1: the terminal write `{beginning}");
    assert!(text.contains(&wanted), "{text}");
    assert!(text.contains("` changed no row"), "{text}");
    // What the transaction had written before is not there either.
    assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "new"));

    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move { ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await })
        }))
        .await
        .unwrap_err();
    assert_eq!(error.into_job().unwrap().kind(), ErrorKind::Unwritten);
}

async fn zero_rows_swallowed_inside_the_transaction_is_not_committed<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    db.sql(STRANGER).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    insert::<D>(tx, 2).await.unwrap();
                    let token = tx.fence_token();
                    _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await;
                    Ok::<_, Error>(())
                })
                .await
            })
        }))
        .await
        .unwrap_err();
    assert_eq!(error.into_job().unwrap().kind(), ErrorKind::RolledBack);
    assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "new"));
}

async fn zero_rows_swallowed_outside_the_transaction_is_not_ok<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    db.sql(STRANGER).await;
    let fence = db.fence().await;
    // Swallowed everywhere: the closure, the commit, the transaction by hand, the single statement.
    for form in ["closure", "by hand", "execute", "error in the closure"] {
        let result = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let complete = || sqlx::query(complete::<D>()).bind(ctx.fence_token());
                    match form {
                        "closure" => {
                            _ = ctx
                                .transaction(async |tx| {
                                    _ = tx.terminal(complete()).await;
                                    Ok::<_, Error>(())
                                })
                                .await;
                        }
                        "by hand" => {
                            let mut tx = ctx.begin().await?;
                            _ = tx.terminal(complete()).await;
                            _ = tx.commit().await;
                        }
                        "execute" => _ = ctx.execute(complete()).await,
                        _ => _ = ctx.transaction(async |tx| tx.terminal(complete()).await).await,
                    }
                    Ok::<_, Error>(())
                })
            }))
            .await;
        let error = result.expect_err(form);
        assert!(error.is_uncommitted(), "{form}: {error}");
        assert_eq!(status(&db).await, "new");
    }
}

async fn a_write_after_zero_rows_is_not_committed<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                _ = tx.terminal(sqlx::query("UPDATE runs SET status = 'x' WHERE run_id = 77")).await;
                // A good one does not make up for it.
                let token = tx.fence_token();
                _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await;
                assert_eq!(tx.commit().await.unwrap_err().kind(), ErrorKind::RolledBack);
                Ok::<_, Error>(())
            })
        }))
        .await
        .unwrap_err();
    assert!(error.is_uncommitted(), "{error}");
    assert_eq!(status(&db).await, "new");
}

async fn zero_rows_may_be_right<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let rows = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    let token = tx.fence_token();
                    let none = tx.terminal(sqlx::query("DELETE FROM runs WHERE run_id > 1")).rows(0..).await?;
                    let one = tx.terminal(sqlx::query(complete::<D>()).bind(token)).rows(1..=1).await?;
                    Ok::<_, Error>((none.rows(), one.rows()))
                })
                .await
            })
        }))
        .await;
    assert_eq!(rows.unwrap(), (0, 1));
    assert_eq!(status(&db).await, "done");
}

async fn another_number_of_rows_is_not_written<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    db.sql("INSERT INTO runs VALUES (2, 'new', 0), (3, 'new', 0)").await;
    let fence = db.fence().await;
    let all = || sqlx::query("UPDATE runs SET status = 'done'");
    for n in 0..5 {
        let error = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    ctx.transaction(async |tx| match n {
                        0 => tx.terminal(all()).rows(1..=1).await,
                        1 => tx.terminal(all()).rows(..3).await,
                        2 => tx.terminal(all()).rows(4..).await,
                        3 => tx.terminal(all()).rows(0..=0).await,
                        _ => tx.terminal(all()).rows((std::ops::Bound::Excluded(3), std::ops::Bound::Unbounded)).await,
                    })
                    .await
                })
            }))
            .await
            .unwrap_err()
            .into_job()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Unwritten);
        assert!(error.to_string().contains("changed 3 rows"), "{error}");
        assert_eq!(status(&db).await, "new");
    }
}

async fn what_is_no_write_is_no_proof<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for (sql, named) in [
        ("SELECT 1", "SELECT"),
        ("SELECT * FROM runs FOR UPDATE", "SELECT"),
        ("CREATE TABLE other (a int)", "CREATE"),
        ("DROP TABLE runs", "DROP"),
        ("WITH w AS (SELECT 1) SELECT * FROM w", "SELECT"),
        ("UPDATE runs SET status = 'x'; UPDATE runs SET status = 'y'", "one statement"),
        ("UPDATE runs SET status = 'x'; COMMIT", "one statement"),
        ("COMMIT", "COMMIT"),
        ("", "empty"),
        ("/* UPDATE */ SELECT 1", "SELECT"),
    ] {
        let error = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    insert::<D>(&mut tx, 2).await.unwrap();
                    let refused = tx.terminal(sqlx::query(AssertSqlSafe(sql))).await.unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::NotAWrite, "{sql}");
                    // And it was not sent: the transaction is as alive as it was, but may not be committed.
                    assert_eq!(on::<D>(tx.executor(), "SELECT count(*) FROM runs").await.unwrap().int(), 2);
                    assert_eq!(tx.commit().await.unwrap_err().kind(), ErrorKind::RolledBack, "{sql}");
                    Err::<(), _>(refused)
                })
            }))
            .await
            .unwrap_err()
            .into_job()
            .unwrap();
        assert!(error.to_string().contains(named), "{sql}: {error}");
        assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "new"), "{sql}");
    }
}

async fn a_failed_terminal_write_is_not_committed_over<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for sql in ["INSERT INTO runs VALUES (1, 'again', 1)", "UPDATE nowhere SET a = 1", "UPDATE runs SET"] {
        let error = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    insert::<D>(&mut tx, 2).await.unwrap();
                    let failed = tx.terminal(sqlx::query(AssertSqlSafe(sql))).await.unwrap_err();
                    assert_eq!(failed.kind(), ErrorKind::Database);
                    assert!(failed.as_sqlx().unwrap().as_database_error().is_some() && failed.lease().is_some());
                    assert_eq!(tx.commit().await.unwrap_err().kind(), ErrorKind::RolledBack);
                    Ok::<_, Error>(())
                })
            }))
            .await
            .unwrap_err();
        assert!(error.is_uncommitted(), "{sql}: {error}");
        assert_eq!(count(&db, 2).await, 0);
    }
}

async fn the_proof_says_how_many_rows<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let three = "INSERT INTO runs VALUES (2, 'new', 0), (3, 'new', 0), (4, 'new', 0)";
                assert_eq!(ctx.execute(sqlx::query(three)).await?.rows(), 3);
                // Not those of the statement before: SQLite's count outlives a statement that changes nothing.
                let none = ctx.execute(sqlx::query("UPDATE runs SET status = 'x' WHERE run_id = 77")).await;
                assert_eq!(none.unwrap_err().kind(), ErrorKind::Unwritten);
                assert_eq!(ctx.execute(sqlx::query("DELETE FROM runs WHERE run_id >= 3")).await?.rows(), 2);
                Ok::<_, Error>(())
            })
        }))
        .await
        .unwrap();
}

async fn every_kind_of_write_is_a_terminal_write<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let mut writes = vec![
        "INSERT INTO runs VALUES (2, 'new', 0)",
        "INSERT INTO runs SELECT run_id + 10, status, fence_token FROM runs",
        "DELETE FROM runs WHERE run_id = 2;",
    ];
    let standard = [
        "INSERT INTO runs VALUES (3, 'new', 0)",
        "INSERT INTO runs VALUES (3, 'x', 0) ON CONFLICT (run_id) DO UPDATE SET status = 'upserted'",
        "UPDATE runs SET status = 'done' WHERE run_id = 1 RETURNING run_id",
        "WITH low AS (SELECT run_id FROM runs WHERE run_id < 3)
         UPDATE runs SET status = 'low' WHERE run_id IN (SELECT * FROM low)",
    ];
    match D::NAME {
        "postgres" => {
            writes.extend(standard);
            writes.push(
                "WITH gone AS (DELETE FROM runs WHERE run_id = 11 RETURNING *)
                 INSERT INTO runs SELECT 20, status, 0 FROM gone",
            );
        }
        "sqlite" => {
            writes.extend(standard);
            writes.push("REPLACE INTO runs VALUES (1, 'replaced', 0)");
        }
        _ => writes.extend([
            "INSERT INTO runs VALUES (3, 'new', 0)",
            "INSERT INTO runs VALUES (3, 'x', 0) ON DUPLICATE KEY UPDATE status = 'upserted'",
            "UPDATE runs r JOIN (SELECT run_id FROM runs WHERE run_id < 3) low ON low.run_id = r.run_id SET r.status = 'low'",
            "REPLACE INTO runs VALUES (1, 'replaced', 0)",
            // Not changed, but found: that it is there is what is asked.
            "UPDATE runs SET status = 'replaced' WHERE run_id = 1",
        ]),
    }
    for sql in writes {
        let run = fence
            .run(job(LEASE, move |ctx| Box::pin(async move { ctx.execute(sqlx::query(AssertSqlSafe(sql))).await })));
        assert!(run.await.unwrap_or_else(|error| panic!("{sql}: {error}")).rows() >= 1);
    }
}

async fn a_terminal_write_that_is_never_awaited_is_not_committed_over<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    insert::<D>(tx, 2).await.unwrap();
                    let token = tx.fence_token();
                    let _ = tx.terminal(sqlx::query(complete::<D>()).bind(token));
                    Ok::<_, Error>(())
                })
                .await
            })
        }))
        .await
        .unwrap_err();
    assert_eq!(error.into_job().unwrap().kind(), ErrorKind::RolledBack);
    assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "new"));
}
