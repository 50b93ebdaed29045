//! What `build` says where outcomes cannot be looked up.

use fence_runtime::{ErrorKind, Fence, Resolve};
use fence_tests::{conformance, servers::TestDb};

use super::ways;

conformance! {
    without_their_table_receipts_are_refused,
    a_way_that_the_database_does_not_know_is_refused,
}

async fn without_their_table_receipts_are_refused<D: TestDb>(db: D) {
    db.fence().await;
    db.sql("DROP TABLE fenced_job_receipts").await;
    let builder = Fence::builder(db.pool().clone()).keeper_options(db.options("keeper"));
    let error = builder.resolve(Resolve::Receipts).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("receipts cannot be written: run the migrations"), "{error}");
}

async fn a_way_that_the_database_does_not_know_is_refused<D: TestDb>(db: D) {
    db.fence().await;
    for way in [Resolve::Receipts, Resolve::TransactionStatus] {
        let builder = Fence::builder(db.pool().clone()).keeper_options(db.options("keeper"));
        match builder.resolve(way).build().await {
            Ok(_) => assert!(ways::<D>().contains(&way), "{way:?}"),
            Err(error) => {
                assert!(!ways::<D>().contains(&way), "{way:?}: {error}");
                assert_eq!(error.kind(), ErrorKind::Config);
                assert!(error.to_string().contains("use `Resolve::Receipts`"), "{error}");
            }
        }
    }
}
