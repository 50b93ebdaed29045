//! An acquisition of which nobody knows whether it happened: the lease must not stay held by nobody.

use std::time::Duration;

use fence_runtime::{Error, ErrorKind, Fence, RunError};
use fence_tests::{
    app::eventually,
    jobs::token_of,
    proxy::{Mode, Proxy, Route},
    servers::{ConnectOptionsOf, TestDb},
    stepper::Task,
};

use crate::{LEASE, unknown::behind_a_proxy};

mod on_a_server {
    fence_tests::conformance! { on postgres, mysql, mariadb:
        given_up_it_is_released,
        dropped_between_two_tries_it_is_released,
    }
    use super::{dropped_between_two_tries_it_is_released, given_up_it_is_released};
}

/// The lease is acquired, the answer lost, and no connection of the pool gets through any more.
async fn acquires_unheard<D: TestDb>(db: &D) -> (Proxy, Task<Result<i64, RunError<Error>>>)
where
    ConnectOptionsOf<D::Db>: Route,
{
    // Once before, so that it is a takeover, the same statement everywhere.
    let (proxy, fence, _): (_, Fence<D::Db>, _) = behind_a_proxy(db).await;
    fence.run(token_of(LEASE)).await.unwrap();
    proxy.set_at("SET owner_token", Mode::SwallowAnswers);
    let run = Task::start("a", db.view(), fence.run(token_of(LEASE).ttl(Duration::from_secs(3600))));
    eventually("it is acquired", async || held(db).await == 1).await;
    assert!(!run.is_finished());
    proxy.set(Mode::Cut);
    (proxy, run)
}

async fn held<D: TestDb>(db: &D) -> i64 {
    db.int(format!("SELECT count(*) FROM fenced_job_leases WHERE leased_until <> {}", D::EXPIRED)).await
}

async fn given_up_it_is_released<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let (_proxy, run) = acquires_unheard(&db).await;
    let RunError::Fence(error) = run.done().await.unwrap_err() else { panic!("the job has run") };
    assert_eq!((error.kind(), error.lease().unwrap().as_str()), (ErrorKind::Database, LEASE));
    eventually("the keeper, which is heard, releases it", async || held(&db).await == 0).await;
}

async fn dropped_between_two_tries_it_is_released<D: TestDb>(db: D)
where
    ConnectOptionsOf<D::Db>: Route,
{
    let (_proxy, run) = acquires_unheard(&db).await;
    eventually("its connection is gone", async || db.view().pids("a").await.is_empty()).await;
    run.abort().await;
    eventually("the keeper, which is heard, releases it", async || held(&db).await == 0).await;
}
