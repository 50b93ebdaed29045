//! Receipts come with their transactions, and go with their runs.

use fence_runtime::{Error, Fence, Resolve};
use fence_tests::{
    app::{RUNS, insert, on},
    conformance,
    jobs::{job, token_of},
    servers::TestDb,
};

use super::{LEASE, receipts};

conformance! {
    a_receipt_comes_and_goes_with_its_transaction,
    those_of_a_run_that_was_dropped_go_two_terms_later,
    many_are_deleted_in_parts,
    without_resolution_there_are_none,
}

async fn fence<D: TestDb>(db: &D) -> Fence<D::Db> {
    let builder = Fence::builder(db.pool().clone()).keeper_options(db.options("keeper"));
    builder.resolve(Resolve::Receipts).migrate().build().await.unwrap()
}

async fn a_receipt_comes_and_goes_with_its_transaction<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = fence(&db).await;
    let mut looks = db.session("looks").await;
    let run = fence.run(job(LEASE, move |ctx| {
        Box::pin(async move {
            let mut there = async || looks.ok("SELECT count(*) FROM fenced_job_receipts").await.int();
            let mut tx = ctx.begin().await?;
            insert::<D>(&mut tx, 2).await.unwrap();
            tx.commit().await?;
            assert_eq!(there().await, 1);
            let mut tx = ctx.begin().await?;
            insert::<D>(&mut tx, 3).await.unwrap();
            tx.rollback().await;
            assert_eq!(there().await, 1);
            let mut tx = ctx.begin().await?;
            // It is a row of the transaction, which others do not see.
            insert::<D>(&mut tx, 4).await.unwrap();
            assert_eq!(there().await, 1);
            tx.commit().await?;
            assert_eq!(there().await, 2);
            Ok::<_, Error>(())
        })
    }));
    run.await.unwrap();
    assert_eq!(receipts(&db).await, 0);
    // After an error of the job, too.
    let failed = fence.run(job(LEASE, |ctx| {
        Box::pin(async move {
            let mut tx = ctx.begin().await?;
            insert::<D>(&mut tx, 5).await.unwrap();
            tx.commit().await?;
            Err::<(), _>(Error::from(sqlx::Error::RowNotFound))
        })
    }));
    failed.await.unwrap_err();
    assert_eq!(receipts(&db).await, 0);
}

async fn those_of_a_run_that_was_dropped_go_two_terms_later<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = fence(&db).await;
    let (committed, seen) = tokio::sync::oneshot::channel();
    let run = tokio::spawn(fence.run(job(LEASE, |ctx| {
        Box::pin(async move {
            let mut tx = ctx.begin().await?;
            insert::<D>(&mut tx, 2).await.unwrap();
            tx.commit().await?;
            _ = committed.send(());
            std::future::pending::<Result<(), Error>>().await
        })
    })));
    seen.await.unwrap();
    run.abort();
    _ = run.await;
    for (token, there) in [(2, 1), (3, 0)] {
        assert_eq!(fence_tests::jobs::free_soon(&fence, LEASE).await, token);
        assert_eq!(receipts(&db).await, there, "after token {token}");
    }
}

async fn many_are_deleted_in_parts<D: TestDb>(db: D) {
    let fence = fence(&db).await;
    for _ in 0..3 {
        fence.run(token_of(LEASE)).await.unwrap();
    }
    let mut conn = db.connect("old runs").await;
    for part in 0..25 {
        let row = |n: i32| format!("('{LEASE}', 1, 'of an old run {part} {n}')");
        let rows = (0..1000).map(row).collect::<Vec<_>>().join(", ");
        D::run(&mut conn, &format!("INSERT INTO fenced_job_receipts VALUES {rows}")).await.unwrap();
    }
    // Not those of other leases.
    D::run(&mut conn, "INSERT INTO fenced_job_receipts VALUES ('another', 1, 'x')").await.unwrap();
    assert_eq!(receipts(&db).await, 25_001);
    fence.run(token_of(LEASE)).await.unwrap();
    assert_eq!(receipts(&db).await, 1);
}

async fn without_resolution_there_are_none<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    // Nor is the table needed.
    db.sql("DROP TABLE fenced_job_receipts").await;
    let run = fence.run(job(LEASE, |ctx| {
        Box::pin(async move {
            let mut tx = ctx.begin().await?;
            on::<D>(tx.executor(), "UPDATE runs SET status = 'done'").await.unwrap();
            tx.commit().await
        })
    }));
    run.await.unwrap();
    db.fence_as("b").await;
}
