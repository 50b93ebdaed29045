//! How errors travel: `?` into anyhow, sqlx and a job's own enum, and back.

use fence_runtime::{Error, ErrorKind, LeaseName, RunError};
use fence_tests::{
    app::{RUNS, complete, status},
    conformance,
    jobs::{job, token_of},
    owner::{
        Act::{Begin, Check},
        Owner,
    },
    servers::TestDb,
};
use sqlx::Executor;

conformance! {
    a_job_may_return_anyhow,
    a_job_may_return_sqlx_errors,
    a_job_may_return_its_own_enum,
    a_run_error_is_an_error,
    an_error_survives_the_way_through_sqlx,
}

const LEASE: &str = "admin:reconciliation";
const NOTHING: &str = "UPDATE runs SET status = 'x' WHERE run_id = 77";

async fn a_job_may_return_anyhow<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    let token = tx.fence_token();
                    _ = tx.terminal(sqlx::query(complete::<D>()).bind(token)).await?;
                    "seven".parse::<i64>()?;
                    anyhow::Ok(())
                })
                .await
            })
        }))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "invalid digit found in string");
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    _ = tx.terminal(sqlx::query(NOTHING)).await?;
                    anyhow::Ok(())
                })
                .await
            })
        }))
        .await
        .unwrap_err();
    let own = error.into_job().unwrap();
    assert_eq!(own.downcast_ref::<Error>().unwrap().kind(), ErrorKind::Unwritten);
    assert_eq!(status(&db).await, "new");
    // And `run` itself, in a function that returns anyhow.
    let outer = async || {
        fence.run(job(LEASE, |_| Box::pin(async { anyhow::bail!("inner") as anyhow::Result<()> }))).await?;
        anyhow::Ok(())
    };
    assert_eq!(outer().await.unwrap_err().to_string(), "inner");
}

async fn a_job_may_return_sqlx_errors<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    // A function that knows nothing of fence but the transaction it is given.
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let result: sqlx::Result<()> = ctx
                    .transaction(async |tx| {
                        _ = tx.terminal(sqlx::query(NOTHING)).await?;
                        sqlx::Result::Ok(())
                    })
                    .await;
                result
            })
        }))
        .await
        .unwrap_err();
    let RunError::Job(error) = error else { panic!("{error}") };
    assert!(error.to_string().contains("changed no row"), "{error}");
    assert_eq!(Error::from(error).kind(), ErrorKind::Unwritten);

    // An error of sqlx stays what it is.
    let error = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                ctx.transaction(async |tx| {
                    tx.executor().execute("INSERT INTO runs VALUES (1, 'again', 0)").await?;
                    sqlx::Result::Ok(())
                })
                .await
            })
        }))
        .await
        .unwrap_err();
    let unique: sqlx::Error = error.into_job().unwrap();
    assert!(unique.as_database_error().unwrap().is_unique_violation(), "{unique}");
}

#[derive(Debug)]
enum Mine {
    Fence(Error),
    Number,
}

impl From<Error> for Mine {
    fn from(error: Error) -> Self {
        Self::Fence(error)
    }
}

impl From<std::num::ParseIntError> for Mine {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::Number
    }
}

async fn a_job_may_return_its_own_enum<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    for number in ["7", "seven"] {
        let error = fence
            .run(job(LEASE, move |ctx| {
                Box::pin(async move {
                    ctx.transaction(async |tx| {
                        number.parse::<i64>()?;
                        Ok::<_, Mine>(tx.terminal(sqlx::query(NOTHING)).await?.rows())
                    })
                    .await
                })
            }))
            .await
            .map_err(|error| error.into_job().unwrap());
        match error.unwrap_err() {
            Mine::Fence(error) => assert_eq!((number, error.kind()), ("7", ErrorKind::Unwritten)),
            Mine::Number => assert_eq!(number, "seven"),
        }
    }
}

async fn a_run_error_is_an_error<D: TestDb>(db: D) {
    fn boxed<E: std::fmt::Debug + std::fmt::Display + Send + Sync + 'static>(
        error: RunError<E>,
    ) -> Box<dyn std::error::Error + Send + Sync> {
        error.into()
    }
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    let contended = db.fence().await.run(token_of(LEASE)).await.unwrap_err();
    assert!(boxed(contended).to_string().contains("is held by"));
    assert!(db.expire(LEASE).await);
    a.run(Check).await.unwrap_err();
    a.run(Begin(Default::default())).await.unwrap_err();
    let lost = boxed(a.end().await.unwrap_err());
    let text = format!("{lost} {lost:?}");
    assert!(text.contains("lease \"admin:reconciliation\", fencing token 1: lost"), "{text}");
    // The cause is told.
    let fence = db.fence().await;
    db.sql("DROP TABLE fenced_job_leases").await;
    let error = boxed(fence.run(token_of(LEASE)).await.unwrap_err());
    assert!(error.to_string().contains("fenced_job_leases"), "{error}");
}

async fn an_error_survives_the_way_through_sqlx<D: TestDb>(db: D) {
    let config = LeaseName::new("").unwrap_err();
    let text = config.to_string();
    let there = sqlx::Error::from(config);
    assert!(there.to_string().contains(&text), "{there}");
    let back = Error::from(there);
    assert_eq!((back.kind(), back.to_string()), (ErrorKind::Config, text));
    // Errors of sqlx itself come as they are.
    let plain = Error::from(sqlx::Error::RowNotFound);
    assert_eq!(plain.kind(), ErrorKind::Database);
    assert!(matches!(plain.as_sqlx(), Some(sqlx::Error::RowNotFound)));
    let io = Error::from(sqlx::Error::Io(std::io::Error::other("a cable")));
    assert_eq!((io.kind(), io.as_sqlx().is_some()), (ErrorKind::Database, true));

    db.sql(RUNS).await;
    let mut a = Owner::start(&db, "a", LEASE).await.unwrap();
    assert!(db.expire(LEASE).await);
    assert_eq!(a.run(Begin(Default::default())).await.unwrap_err().code, "Lost");
    let RunError::Lost { error, .. } = a.end().await.unwrap_err() else { panic!() };
    let (lease, token) = (error.lease().cloned(), error.fence_token());
    let back = Error::from(sqlx::Error::from(Error::from(sqlx::Error::from(error))));
    assert!(back.is_lost() && back.lease().cloned() == lease && back.fence_token() == token);
}
