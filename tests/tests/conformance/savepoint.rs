//! Parts of a fenced transaction that are undone alone.

use fence_runtime::{Error, ErrorKind, RunError};
use fence_tests::{
    app::{RUNS, complete, count, insert, on, status},
    conformance,
    cut::cut,
    jobs::job,
    servers::TestDb,
};

conformance! {
    a_part_that_fails_is_undone_alone,
    a_part_whose_statement_fails_is_undone_alone,
    a_part_whose_terminal_write_fails_is_undone_alone,
    a_part_that_swallows_its_terminal_write_poisons_the_whole,
    a_part_does_not_heal_what_was_poisoned_before,
    parts_nest,
    a_part_that_is_dropped_half_way_is_not_committed,
    a_part_that_is_dropped_inside_another_is_not_committed,
}

const LEASE: &str = "admin:reconciliation";
const NOTHING: &str = "UPDATE runs SET status = 'x' WHERE run_id = 77";

async fn a_part_that_fails_is_undone_alone<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                insert::<D>(&mut tx, 2).await.unwrap();
                let failed = tx
                    .savepoint(async |part| {
                        insert::<D>(part, 3).await.unwrap();
                        Err::<(), _>(anyhow::anyhow!("no"))
                    })
                    .await;
                assert_eq!(failed.unwrap_err().to_string(), "no");
                let four = tx.savepoint(async |part| Ok::<_, Error>(insert::<D>(part, 4).await)).await?;
                four.unwrap();
                let token = tx.fence_token();
                _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await?;
                tx.commit().await
            })
        }))
        .await
        .unwrap();
    assert_eq!([count(&db, 2).await, count(&db, 3).await, count(&db, 4).await], [1, 0, 1]);
    assert_eq!(status(&db).await, "done");
}

async fn a_part_whose_statement_fails_is_undone_alone<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                for run in [2, 1, 3] {
                    let part =
                        tx.savepoint(async |part| insert::<D>(part, run).await.map_err(|e| anyhow::anyhow!("{e}")));
                    // On PostgreSQL the failed statement aborts the transaction: the way back to the savepoint saves it.
                    assert_eq!(part.await.is_err(), run == 1);
                }
                tx.commit().await
            })
        }))
        .await
        .unwrap();
    assert_eq!(db.int("SELECT count(*) FROM runs").await, 3);
}

async fn a_part_whose_terminal_write_fails_is_undone_alone<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                let part = tx
                    .savepoint(async |part| {
                        insert::<D>(part, 2).await.unwrap();
                        part.terminal(sqlx::query(NOTHING)).await
                    })
                    .await;
                assert_eq!(part.unwrap_err().kind(), ErrorKind::Unwritten);
                let token = tx.fence_token();
                _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await?;
                tx.commit().await
            })
        }))
        .await
        .unwrap();
    assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (0, "done"));
}

async fn a_part_that_swallows_its_terminal_write_poisons_the_whole<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for nested in [false, true] {
        let error = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    tx.savepoint(async |part| {
                        if nested {
                            part.savepoint(async |inner| {
                                _ = inner.terminal(sqlx::query(NOTHING)).await;
                                Ok::<_, Error>(())
                            })
                            .await?;
                        } else {
                            _ = part.terminal(sqlx::query(NOTHING)).await;
                        }
                        Ok::<_, Error>(())
                    })
                    .await?;
                    let token = tx.fence_token();
                    _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await?;
                    tx.commit().await
                })
            }))
            .await
            .unwrap_err();
        let RunError::Job(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::RolledBack, "nested: {nested}");
        assert_eq!(status(&db).await, "new");
    }
}

async fn a_part_does_not_heal_what_was_poisoned_before<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for fails in [false, true] {
        let error = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    _ = tx.terminal(sqlx::query(NOTHING)).await;
                    _ = tx
                        .savepoint(async |part| {
                            let token = part.fence_token();
                            _ = part.terminal(sqlx::query(complete::<D>()).bind(token)).await?;
                            if fails { part.terminal(sqlx::query(NOTHING)).await.map(drop) } else { Ok::<_, Error>(()) }
                        })
                        .await;
                    tx.commit().await
                })
            }))
            .await
            .unwrap_err();
        assert_eq!(error.into_job().unwrap().kind(), ErrorKind::RolledBack, "fails: {fails}");
        assert_eq!(status(&db).await, "new");
    }
}

async fn parts_nest<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                tx.savepoint(async |outer| {
                    insert::<D>(outer, 2).await.unwrap();
                    let undone = outer
                        .savepoint(async |inner| {
                            insert::<D>(inner, 3).await.unwrap();
                            _ = inner.terminal(sqlx::query(NOTHING)).await?;
                            Ok::<_, Error>(())
                        })
                        .await;
                    assert!(undone.is_err());
                    insert::<D>(outer, 4).await.unwrap();
                    Ok::<_, Error>(())
                })
                .await?;
                tx.commit().await
            })
        }))
        .await
        .unwrap();
    assert_eq!([count(&db, 2).await, count(&db, 3).await, count(&db, 4).await], [1, 0, 1]);
}

async fn a_part_that_is_dropped_half_way_is_not_committed<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    // Dropped at every await: in SAVEPOINT, in the body, in RELEASE. The last round is not dropped at all.
    let (mut at, mut whole) = (1, false);
    while !whole {
        let run = 100 + i64::try_from(at).unwrap();
        let result = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    let part = tx.savepoint(async |part| {
                        on::<D>(part.executor(), format!("INSERT INTO runs VALUES ({run}, 'new', 0)")).await.unwrap();
                        Ok::<_, Error>(())
                    });
                    let done = cut(at, part).await.is_some();
                    Ok::<_, Error>((done, tx.commit().await.map_err(|error| error.kind())))
                })
            }))
            .await;
        match result {
            Ok((true, Ok(()))) => whole = true,
            Err(error) if error.is_uncommitted() => {}
            other => panic!("dropped at poll {at}: {other:?}"),
        }
        assert_eq!(count(&db, run).await, i64::from(whole), "dropped at poll {at}");
        at += 1;
    }
    assert!(at > 1, "{at}");
}

async fn a_part_that_is_dropped_inside_another_is_not_committed<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for outer_fails in [false, true] {
        let result = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    ctx.transaction(async |tx| {
                        let outer = tx
                            .savepoint(async |outer| {
                                insert::<D>(outer, 2).await.unwrap();
                                let inner = outer.savepoint(async |inner| {
                                    insert::<D>(inner, 3).await.unwrap();
                                    std::future::pending::<Result<(), Error>>().await
                                });
                                let dropped = tokio::time::timeout(std::time::Duration::from_millis(100), inner).await;
                                assert!(dropped.is_err());
                                if outer_fails { Err(anyhow::anyhow!("no")) } else { Ok(()) }
                            })
                            .await;
                        assert_eq!(outer.is_err(), outer_fails);
                        Ok::<_, Error>(())
                    })
                    .await
                })
            }))
            .await;
        // Undone as a whole, the outer part leaves a transaction that is sound; otherwise half of it would be committed.
        assert_eq!(result.is_ok(), outer_fails, "{result:?}");
        assert_eq!([count(&db, 2).await, count(&db, 3).await], [0, 0], "the outer part fails: {outer_fails}");
    }
}
