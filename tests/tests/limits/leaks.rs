//! Every setting of a session is read before and after.

use std::time::Duration;

use fence_runtime::{Error, Fence, Isolation, Resolve, TxOptions};
use fence_tests::{
    app::{RUNS, complete, insert, on},
    conformance,
    jobs::job,
    servers::TestDb,
};

use super::LEASE;

conformance! { no_setting_reaches_the_next_user_of_the_connection }

/// Every setting that a session can have, as one text.
fn settings<D: TestDb>() -> &'static str {
    match D::NAME {
        "postgres" => {
            "SELECT string_agg(name || '=' || coalesce(setting, ''), ' ' ORDER BY name) || ' ' || pg_backend_pid()
                    || '/' || (SELECT count(*) FROM pg_cursors WHERE name <> '')::text
               FROM pg_settings WHERE name NOT IN ('transaction_isolation', 'transaction_read_only', 'transaction_deferrable')
                AND name NOT LIKE 'plpgsql.%'"
        }
        "mysql" => {
            "SET SESSION group_concat_max_len = 1000000;
             SELECT CONCAT(GROUP_CONCAT(VARIABLE_NAME, '=', VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ' '), ' ', connection_id())
               FROM performance_schema.session_variables
              WHERE VARIABLE_NAME NOT IN ('timestamp', 'rand_seed1', 'rand_seed2', 'last_insert_id', 'identity', 'pseudo_thread_id', 'statement_id', 'error_count', 'warning_count')
                AND VARIABLE_NAME NOT LIKE 'gtid%'"
        }
        "mariadb" => {
            "SET SESSION group_concat_max_len = 1000000;
             SELECT CONCAT(GROUP_CONCAT(VARIABLE_NAME, '=', VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ' '), ' ', connection_id())
               FROM information_schema.SESSION_VARIABLES
              WHERE VARIABLE_NAME NOT IN ('TIMESTAMP', 'RAND_SEED1', 'RAND_SEED2', 'LAST_INSERT_ID', 'IDENTITY', 'PSEUDO_THREAD_ID', 'ERROR_COUNT', 'WARNING_COUNT')
                AND VARIABLE_NAME NOT LIKE 'GTID%'"
        }
        _ => {
            "SELECT group_concat(name || '=' || value, ' ') FROM (
               SELECT 'query_only' AS name, query_only AS value FROM pragma_query_only
               UNION ALL SELECT 'busy_timeout', timeout FROM pragma_busy_timeout
               UNION ALL SELECT 'foreign_keys', foreign_keys FROM pragma_foreign_keys
               UNION ALL SELECT 'synchronous', synchronous FROM pragma_synchronous
               UNION ALL SELECT 'read_uncommitted', read_uncommitted FROM pragma_read_uncommitted
               UNION ALL SELECT 'defer_foreign_keys', defer_foreign_keys FROM pragma_defer_foreign_keys
               UNION ALL SELECT 'recursive_triggers', recursive_triggers FROM pragma_recursive_triggers)"
        }
    }
}

/// The pool's only connection must be the same, where it is not said to be closed.
async fn no_setting_reaches_the_next_user_of_the_connection<D: TestDb>(db: D) {
    db.sql(RUNS).await;
    let pool = db.pool_as("a", 1);
    let builder = Fence::builder(pool.clone()).keeper_options(db.options("keeper")).resolve(Resolve::Receipts);
    let fence = builder.migrate().build().await.unwrap();
    let read = async || {
        let mut conn = pool.acquire().await.unwrap();
        let read = D::run(&mut conn, settings::<D>()).await.unwrap().text().unwrap();
        // No transaction is open: one can be begun.
        D::run(&mut conn, if D::NAME.starts_with("sqlite") { "BEGIN IMMEDIATE" } else { "BEGIN" }).await.unwrap();
        D::run(&mut conn, "ROLLBACK").await.unwrap();
        read
    };
    let mut before = read().await;
    assert!(before.len() > 50, "{before}");
    for way in ["commit", "rollback", "unwritten", "failed", "read", "execute", "nested", "serializable"] {
        let run = fence.run(job(LEASE, move |ctx| {
            Box::pin(async move {
                let isolation = if way == "serializable" { Isolation::Serializable } else { Isolation::ReadCommitted };
                let limits = TxOptions::new()
                    .isolation(isolation)
                    .idle_limit(Duration::from_secs(7))
                    .lock_limit(Duration::from_secs(8))
                    .statement_limit(Duration::from_secs(9));
                if way == "read" {
                    let mut read = ctx.read().await?;
                    on::<D>(read.executor(), "SELECT count(*) FROM runs").await.unwrap();
                    return read.close().await;
                }
                let mut tx = ctx.begin_with(limits).await?;
                match way {
                    "rollback" => {
                        insert::<D>(&mut tx, 2).await.unwrap();
                        tx.rollback().await;
                    }
                    "unwritten" => {
                        let sql = sqlx::query("DELETE FROM runs WHERE run_id = 77");
                        tx.terminal(sql).await.unwrap_err();
                        tx.commit().await.unwrap_err();
                    }
                    "failed" => {
                        on::<D>(tx.executor(), "SELECT nothing FROM nowhere").await.unwrap_err();
                        _ = tx.commit().await;
                    }
                    "nested" => {
                        tx.savepoint(async |tx| {
                            insert::<D>(tx, 3).await.unwrap();
                            Err::<(), _>(Error::from(sqlx::Error::RowNotFound))
                        })
                        .await
                        .unwrap_err();
                        tx.commit().await?;
                    }
                    "execute" => {
                        tx.rollback().await;
                        on::<D>(ctx.begin().await?.executor(), "SELECT 1").await.unwrap();
                        _ = ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await;
                    }
                    _ => tx.commit().await?,
                }
                Ok::<_, Error>(())
            })
        }));
        match (way, run.await) {
            // Something was not committed, and it is said.
            ("unwritten" | "failed" | "execute", _) => {}
            (_, result) => result.unwrap_or_else(|error| panic!("{way}: {error}")),
        }
        let after = read().await;
        // What was dropped is closed on a server, so the connection is another one.
        let same = way != "execute" || D::NAME.starts_with("sqlite");
        let compared = |settings: &str| match same {
            true => settings.to_owned(),
            false => settings.rsplit_once(' ').unwrap().0.to_owned(),
        };
        let (was, is) = (compared(&before), compared(&after));
        before = after;
        let different: Vec<_> = was.split(' ').zip(is.split(' ')).filter(|(was, is)| was != is).collect();
        assert!(different.is_empty() && was.len() == is.len(), "after {way}: {different:?}");
    }
}
