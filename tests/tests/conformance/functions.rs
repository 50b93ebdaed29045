//! The shapes of an application's code: jobs and terminal writes by attribute, and repository functions that know
//! nothing of fence.

use std::time::Duration;

use fence_runtime::{Error, Fence, FenceCtx, FencedTx, LeaseOptions, RunError, Written, fenced_job, terminal_write};
use fence_tests::{
    app::{RUNS, complete_on, count, status},
    conformance,
    jobs::job,
    servers::TestDb,
};

conformance! {
    an_attribute_makes_a_job,
    many_jobs_of_one_service_at_once,
}

mod repositories {
    mod on_postgres {
        fence_tests::conformance! { on postgres: repository_functions_are_called_as_they_are }
        use super::postgres::repository_functions_are_called_as_they_are;
    }
    mod on_mysql {
        fence_tests::conformance! { on mysql, mariadb: repository_functions_are_called_as_they_are }
        use super::mysql::repository_functions_are_called_as_they_are;
    }
    mod on_sqlite {
        fence_tests::conformance! { on sqlite, sqlite_rollback: repository_functions_are_called_as_they_are }
        use super::sqlite::repository_functions_are_called_as_they_are;
    }

    mod postgres {
        use fence_runtime::Error;
        use fence_tests::{
            app::{RUNS, count, status},
            jobs::job,
            servers::{PostgresDb, TestDb},
        };
        use sqlx::{Connection, PgConnection, PgExecutor, Postgres};

        async fn insert(conn: &mut PgConnection, run: i64) -> sqlx::Result<()> {
            sqlx::query("INSERT INTO runs VALUES ($1, 'new', 0)").bind(run).execute(&mut *conn).await?;
            // Some use a transaction of their own, which is a savepoint here.
            let mut part = conn.begin().await?;
            sqlx::query("UPDATE runs SET status = 'inserted' WHERE run_id = $1").bind(run).execute(&mut *part).await?;
            part.commit().await
        }

        async fn find(executor: impl PgExecutor<'_>, run: i64) -> sqlx::Result<String> {
            sqlx::query_scalar("SELECT status FROM runs WHERE run_id = $1").bind(run).fetch_one(executor).await
        }

        async fn finish<'c, E: sqlx::Executor<'c, Database = Postgres>>(executor: E, run: i64) -> sqlx::Result<u64> {
            let done =
                sqlx::query("UPDATE runs SET status = 'done' WHERE run_id = $1").bind(run).execute(executor).await?;
            Ok(done.rows_affected())
        }

        pub(super) async fn repository_functions_are_called_as_they_are(db: PostgresDb) {
            db.sql(RUNS).await;
            let fence = db.fence().await;
            fence
                .run(job("lease", |ctx| {
                    Box::pin(async move {
                        ctx.transaction(async |tx| {
                            insert(tx.connection(), 2).await?;
                            assert_eq!(find(tx.executor(), 2).await?, "inserted");
                            assert_eq!(find(tx.connection(), 2).await?, "inserted");
                            assert_eq!(finish(tx.executor(), 1).await?, 1);
                            Ok::<_, Error>(())
                        })
                        .await?;
                        let mut read = ctx.read().await?;
                        assert_eq!(find(read.executor(), 1).await?, "done");
                        read.close().await
                    })
                }))
                .await
                .unwrap();
            assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (1, "done"));
        }
    }

    mod mysql {
        use fence_runtime::Error;
        use fence_tests::{
            app::{RUNS, count, status},
            jobs::job,
            servers::{InnoDb, TestDb},
        };
        use sqlx::{Connection, MySql, MySqlConnection, MySqlExecutor};

        async fn insert(conn: &mut MySqlConnection, run: i64) -> sqlx::Result<()> {
            sqlx::query("INSERT INTO runs VALUES (?, 'new', 0)").bind(run).execute(&mut *conn).await?;
            // Some use a transaction of their own, which is a savepoint here.
            let mut part = conn.begin().await?;
            sqlx::query("UPDATE runs SET status = 'inserted' WHERE run_id = ?").bind(run).execute(&mut *part).await?;
            part.commit().await
        }

        async fn find(executor: impl MySqlExecutor<'_>, run: i64) -> sqlx::Result<String> {
            sqlx::query_scalar("SELECT status FROM runs WHERE run_id = ?").bind(run).fetch_one(executor).await
        }

        async fn finish<'c, E: sqlx::Executor<'c, Database = MySql>>(executor: E, run: i64) -> sqlx::Result<u64> {
            let done =
                sqlx::query("UPDATE runs SET status = 'done' WHERE run_id = ?").bind(run).execute(executor).await?;
            Ok(done.rows_affected())
        }

        pub(super) async fn repository_functions_are_called_as_they_are<const MARIADB: bool>(db: InnoDb<MARIADB>) {
            db.sql(RUNS).await;
            let fence = db.fence().await;
            fence
                .run(job("lease", |ctx| {
                    Box::pin(async move {
                        ctx.transaction(async |tx| {
                            insert(tx.connection(), 2).await?;
                            assert_eq!(find(tx.executor(), 2).await?, "inserted");
                            assert_eq!(find(tx.connection(), 2).await?, "inserted");
                            assert_eq!(finish(tx.executor(), 1).await?, 1);
                            Ok::<_, Error>(())
                        })
                        .await?;
                        let mut read = ctx.read().await?;
                        assert_eq!(find(read.executor(), 1).await?, "done");
                        read.close().await
                    })
                }))
                .await
                .unwrap();
            assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (1, "done"));
        }
    }

    mod sqlite {
        use fence_runtime::Error;
        use fence_tests::{
            app::{RUNS, count, status},
            jobs::job,
            servers::{SqliteFile, TestDb},
        };
        use sqlx::{Connection, Sqlite, SqliteConnection, SqliteExecutor};

        async fn insert(conn: &mut SqliteConnection, run: i64) -> sqlx::Result<()> {
            sqlx::query("INSERT INTO runs VALUES ($1, 'new', 0)").bind(run).execute(&mut *conn).await?;
            let mut part = conn.begin().await?;
            sqlx::query("UPDATE runs SET status = 'inserted' WHERE run_id = $1").bind(run).execute(&mut *part).await?;
            part.commit().await
        }

        async fn find(executor: impl SqliteExecutor<'_>, run: i64) -> sqlx::Result<String> {
            sqlx::query_scalar("SELECT status FROM runs WHERE run_id = $1").bind(run).fetch_one(executor).await
        }

        async fn finish<'c, E: sqlx::Executor<'c, Database = Sqlite>>(executor: E, run: i64) -> sqlx::Result<u64> {
            let done =
                sqlx::query("UPDATE runs SET status = 'done' WHERE run_id = $1").bind(run).execute(executor).await?;
            Ok(done.rows_affected())
        }

        pub(super) async fn repository_functions_are_called_as_they_are<const WAL: bool>(db: SqliteFile<WAL>) {
            db.sql(RUNS).await;
            let fence = db.fence().await;
            fence
                .run(job("lease", |ctx| {
                    Box::pin(async move {
                        ctx.transaction(async |tx| {
                            insert(tx.connection(), 2).await?;
                            assert_eq!(find(tx.executor(), 2).await?, "inserted");
                            assert_eq!(find(tx.connection(), 2).await?, "inserted");
                            assert_eq!(finish(tx.executor(), 1).await?, 1);
                            Ok::<_, Error>(())
                        })
                        .await?;
                        let mut read = ctx.read().await?;
                        assert_eq!(find(read.executor(), 1).await?, "done");
                        read.close().await
                    })
                }))
                .await
                .unwrap();
            assert_eq!((count(&db, 2).await, status(&db).await.as_str()), (1, "done"));
        }
    }
}

#[terminal_write]
async fn complete<DB: fence_runtime::Backend>(tx: &mut FencedTx<'_, DB>) -> Result<Written, Error> {
    let token = tx.fence_token();
    tx.terminal(sqlx::query(complete_on::<DB>()).bind(token)).await
}

/// Completes the run, or says why not.
#[fenced_job(lease = "admin:reconciliation", ttl = "10s", renew = "2s", wait = "1s", on_lost = "signal")]
async fn reconcile<DB: fence_runtime::Backend>(ctx: &FenceCtx<DB>, label: &str, fails: bool) -> anyhow::Result<String> {
    _ = ctx.transaction(async |tx| complete(tx).await).await?;
    anyhow::ensure!(!fails, "no {label}");
    Ok(format!("{label} {}", ctx.fence_token()))
}

async fn an_attribute_makes_a_job<D: TestDb>(db: D) {
    use fence_runtime::FencedJob;
    db.sql(RUNS).await;
    let fence: Fence<D::Db> = db.fence().await;
    let job = reconcile::<D::Db>("label", false);
    assert!(job.name().ends_with("reconcile"), "{}", job.name());
    let options = LeaseOptions::new().ttl(Duration::from_secs(10)).renew(Duration::from_secs(2));
    let options = options.wait(Duration::from_secs(1)).on_lost(fence_runtime::OnLost::Signal);
    assert_eq!(format!("{:?}", job.options()), format!("{options:?}"));
    assert_eq!(fence.run(job).await.unwrap(), "label 1");
    assert_eq!(status(&db).await, "done");
    db.sql("UPDATE runs SET status = 'new'").await;
    let error = fence.run(reconcile("money", true)).await.unwrap_err();
    assert!(matches!(&error, RunError::Job(error) if error.to_string() == "no money"), "{error}");
    // What the job had committed before it failed is committed; and now there is nothing left to complete.
    assert_eq!(status(&db).await, "done");
    let error = fence.run(reconcile("again", false)).await.unwrap_err().into_job().unwrap();
    assert_eq!(error.downcast::<Error>().unwrap().kind(), fence_runtime::ErrorKind::Unwritten);
    assert_eq!(db.fence_token("admin:reconciliation").await, 3);
}

async fn many_jobs_of_one_service_at_once<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let fence = db.fence().await;
    let runs = (2..22).map(|run| {
        fence.run(job(format!("job:{run}"), move |ctx| {
            Box::pin(async move {
                let token = if matches!(D::NAME, "mysql" | "mariadb") { "?" } else { "$1" };
                let sql = sqlx::AssertSqlSafe(format!("INSERT INTO runs VALUES ({run}, 'new', {token})"));
                ctx.execute(sqlx::query(sql).bind(ctx.fence_token())).await
            })
        }))
    });
    for done in futures_util::future::join_all(runs).await {
        assert_eq!(done.unwrap().rows(), 1);
    }
    assert_eq!(count(&db, 2).await + db.int("SELECT count(*) FROM runs WHERE fence_token = 1").await, 21);
}
