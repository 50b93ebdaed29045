//! What sqlx does to the transaction behind our back, and connections that change places.

use std::mem;

use fence_runtime::{Error, ErrorKind};
use fence_tests::{
    app::{count, on},
    conformance,
    cut::cut,
    jobs::job,
    servers::{InnoDb, TestDb},
};
use sqlx::{Connection, Executor, MySql};

use super::READ_ONLY;
use crate::stage::{LEASE, Stage, insert};

conformance! { on mysql, mariadb:
    a_nested_begin_that_is_dropped_half_way,
    a_nested_begin_that_is_never_ended,
    a_statement_that_is_dropped_while_it_is_prepared,
    connections_that_are_swapped,
    a_connection_that_is_taken_out,
}

async fn a_nested_begin_that_is_dropped_half_way<const M: bool>(db: InnoDb<M>) {
    let stage = std::sync::Arc::new(Stage::new(db).await);
    let (mut at, mut ended) = (0, false);
    while !ended {
        let inside = stage.clone();
        let result = stage
            .fence
            .run(job::<MySql, _, _, _>(LEASE, move |ctx| {
                Box::pin(async move {
                    let mut tx = ctx.begin().await?;
                    on::<InnoDb<M>>(tx.executor(), insert(2)).await.unwrap();
                    let whole = cut(at, tx.connection().begin()).await.is_some();
                    let write = on::<InnoDb<M>>(tx.executor(), insert(3)).await;
                    assert_eq!(count(&inside.db, 3).await, 0, "dropped at poll {at}: {write:?}");
                    Ok::<_, Error>((whole, write.is_ok(), tx.commit().await.map_err(|error| error.kind())))
                })
            }))
            .await;
        let there = count(&stage.db, 3).await == 1;
        match result {
            Ok((whole, true, Ok(()))) => {
                assert!(there);
                ended = whole;
            }
            Ok(other) => panic!("dropped at poll {at}: run says Ok, the transaction {other:?}"),
            Err(error) => {
                assert!(!there && (error.is_unknown() || error.is_uncommitted()), "dropped at poll {at}: {error}");
            }
        }
        stage.is_clean(&format!("poll {at}")).await;
        at += 1;
    }
}

async fn a_nested_begin_that_is_never_ended<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let result = stage
        .fence
        .run(job::<MySql, _, _, _>(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                let mut nested = tx.connection().begin().await?;
                nested.execute("INSERT INTO runs VALUES (3, 'new', 0)").await?;
                // Leaked: its destructor would have rolled it back.
                mem::forget(nested);
                let error = tx.commit().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::RolledBack);
                assert!(error.to_string().contains("nested"), "{error}");
                Ok::<_, Error>(())
            })
        }))
        .await;
    assert!(result.unwrap_err().is_uncommitted());
    assert_eq!(count(&stage.db, 3).await, 0);
    stage.is_clean("a nested transaction").await;
}

/// sqlx is then one answer behind: what it takes for the answer to COMMIT is another one, and it may panic over it.
async fn a_statement_that_is_dropped_while_it_is_prepared<const M: bool>(db: InnoDb<M>) {
    let stage = std::sync::Arc::new(Stage::new(db).await);
    for leave in [None, Some("ROLLBACK"), Some("COMMIT")] {
        let (mut at, mut whole) = (0, false);
        while !whole {
            let result = stage
                .fence
                .run(job::<MySql, _, Error, _>(LEASE, move |ctx| {
                    Box::pin(async move {
                        let mut tx = ctx.begin().await?;
                        on::<InnoDb<M>>(tx.executor(), insert(2)).await.unwrap();
                        if let Some(leave) = leave {
                            on::<InnoDb<M>>(tx.executor(), leave).await.unwrap();
                        }
                        // Another text each time: what is prepared already is not prepared again.
                        let sql =
                            sqlx::AssertSqlSafe(format!("SELECT run_id, status, {at} FROM runs WHERE run_id = ?"));
                        let whole = cut(at, sqlx::query(sql).bind(1).fetch_all(tx.executor())).await.is_some();
                        Ok((whole, tx.commit().await.map_err(|error| error.kind())))
                    })
                }))
                .await;
            let what = format!("{leave:?}, dropped at poll {at}: {result:?}");
            match result {
                Ok((done, Ok(()))) => {
                    assert!(leave.is_none() && count(&stage.db, 2).await == 1, "{what}");
                    whole = done;
                }
                Ok((_, Err(_))) => panic!("{what}"),
                Err(error) => {
                    assert!(error.is_unknown() || error.is_uncommitted(), "{what}");
                    // Without a drop it cannot be told from the outside: there the whole statement has been seen.
                    whole = leave.is_some() && at > 8;
                }
            }
            stage.is_clean(&what).await;
            at += 1;
        }
    }
}

async fn connections_that_are_swapped<const M: bool>(db: InnoDb<M>) {
    let fence = db.fence().await;
    db.sql(fence_tests::app::RUNS).await;
    let result = fence
        .run(job(LEASE, |ctx| {
            Box::pin(async move {
                let (mut one, mut two) = (ctx.begin().await?, ctx.begin().await?);
                mem::swap(one.connection(), two.connection());
                on::<InnoDb<M>>(one.executor(), insert(3)).await.unwrap();
                on::<InnoDb<M>>(two.executor(), insert(4)).await.unwrap();
                // Both are of the same lease, and each knows its own.
                for tx in [one, two] {
                    assert_eq!(tx.commit().await.unwrap_err().kind(), ErrorKind::Unknown);
                }
                Ok::<_, Error>(())
            })
        }))
        .await;
    assert!(result.unwrap_err().is_unknown());
    assert_eq!(db.int("SELECT count(*) FROM runs").await, 1);
    let mut all = Vec::new();
    for _ in 0..4 {
        let mut conn = db.pool().acquire().await.unwrap();
        let on = on::<InnoDb<M>>(&mut *conn, "SELECT @@autocommit").await.unwrap().text();
        assert_eq!(on.as_deref(), Some("1"));
        all.push(conn);
    }
}

async fn a_connection_that_is_taken_out<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut other = stage.db.connect("other").await;
    let result = stage
        .fence
        .run(job::<MySql, (), Error, _>(LEASE, |ctx| {
            Box::pin(async move {
                let mut tx = ctx.begin().await?;
                mem::swap(tx.connection(), &mut other);
                on::<InnoDb<M>>(&mut other, insert(2)).await.unwrap();
                on::<InnoDb<M>>(&mut other, "COMMIT").await.unwrap();
                assert_eq!(on::<InnoDb<M>>(&mut other, insert(3)).await.unwrap_err().code, READ_ONLY);
                tx.commit().await
            })
        }))
        .await;
    assert!(result.is_err());
    assert_eq!(count(&stage.db, 3).await, 0);
    stage.is_clean("a swap").await;
}
