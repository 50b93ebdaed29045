//! However a transaction ends, the connection is as it was.

use fence_runtime::Error;
use fence_tests::{
    app::{insert as write, on},
    conformance,
    cut::cut,
    jobs::job,
    servers::TestDb,
};

use crate::stage::{LEASE, Stage};

conformance! {
    the_connection_is_clean_however_a_transaction_ends,
    the_connection_is_clean_however_a_read_ends,
    a_stream_that_is_dropped_half_way_is_no_way_out,
}

const NOTHING: &str = "UPDATE runs SET status = 'x' WHERE run_id = 77";

async fn the_connection_is_clean_however_a_transaction_ends<D: TestDb>(db: D) {
    let stage = Stage::new(db).await;
    let endings = [
        "commit",
        "rollback",
        "drop",
        "failed statement",
        "error",
        "no rows",
        "execute",
        "commit dropped",
        "begin dropped",
        "refused",
    ];
    for ending in endings {
        let lease = format!("{LEASE}:{ending}");
        let (view, name) = (stage.db.connect("expirer").await, lease.clone());
        let run = stage.fence.run(
            job(lease, move |ctx| {
                Box::pin(async move {
                    if ending == "refused" {
                        let mut view = view;
                        let expire = format!(
                            "UPDATE fenced_job_leases SET leased_until = {} WHERE lease_name = '{name}'",
                            D::EXPIRED
                        );
                        D::run(&mut view, &expire).await.unwrap();
                        assert!(ctx.begin().await.map(drop).unwrap_err().is_lost());
                        return Ok(());
                    }
                    if ending == "begin dropped" {
                        _ = cut(1, ctx.begin()).await;
                        return Ok(());
                    }
                    if ending == "execute" {
                        return ctx.execute(sqlx::query("DELETE FROM runs WHERE run_id > 1")).await.map(drop);
                    }
                    let mut tx = ctx.begin().await?;
                    write::<D>(&mut tx, 2).await.unwrap();
                    match ending {
                        "commit" => tx.commit().await?,
                        "rollback" => tx.rollback().await,
                        "drop" => drop(tx),
                        "failed statement" => {
                            assert!(write::<D>(&mut tx, 1).await.is_err());
                            tx.commit().await?;
                        }
                        "error" => {
                            drop(tx);
                            let error = ctx.transaction(async |tx| {
                                write::<D>(tx, 3).await.unwrap();
                                Err::<(), _>(Error::from(sqlx::Error::RowNotFound))
                            });
                            error.await?;
                        }
                        "no rows" => {
                            _ = tx.terminal(sqlx::query(NOTHING)).await;
                            tx.commit().await?;
                        }
                        _ => _ = cut(1, tx.commit()).await,
                    }
                    Ok::<_, Error>(())
                })
            })
            .on_lost(fence_runtime::OnLost::Signal),
        );
        // What it says is another test's.
        _ = run.await;
        stage.is_clean(ending).await;
    }
}

async fn the_connection_is_clean_however_a_read_ends<D: TestDb>(db: D) {
    let stage = Stage::new(db).await;
    for ending in ["close", "drop", "failed statement", "close dropped", "read dropped"] {
        let run = stage.fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                if ending == "read dropped" {
                    _ = cut(1, ctx.read()).await;
                    return Ok(());
                }
                let mut read = ctx.read().await?;
                on::<D>(read.executor(), "SELECT count(*) FROM runs").await.unwrap();
                match ending {
                    "close" => read.close().await?,
                    "drop" => drop(read),
                    "failed statement" => {
                        assert!(on::<D>(read.executor(), "SELECT nothing FROM nowhere").await.is_err());
                        _ = read.close().await;
                    }
                    _ => _ = cut(1, read.close()).await,
                }
                Ok::<_, Error>(())
            })
        }));
        run.await.unwrap_or_else(|error| panic!("{ending}: {error}"));
        stage.is_clean(ending).await;
    }
}

async fn a_stream_that_is_dropped_half_way_is_no_way_out<D: TestDb>(db: D) {
    use futures_util::StreamExt;
    use sqlx::Executor;
    let stage = Stage::new(db).await;
    stage.db.sql("INSERT INTO runs SELECT a.run_id + 1000, 'x', 0 FROM runs a").await;
    let run = stage.fence.run(job(LEASE, |ctx| {
        Box::pin(async move {
            let mut tx = ctx.begin().await?;
            write::<D>(&mut tx, 2).await.unwrap();
            {
                let mut rows = tx.executor().fetch_many("SELECT * FROM runs; SELECT * FROM runs; SELECT * FROM runs");
                assert!(rows.next().await.unwrap().is_ok());
            }
            write::<D>(&mut tx, 3).await.unwrap();
            tx.commit().await
        })
    }));
    run.await.unwrap();
    assert_eq!(stage.db.int("SELECT count(*) FROM runs WHERE run_id IN (2, 3)").await, 2);
    stage.is_clean("a stream").await;
}
