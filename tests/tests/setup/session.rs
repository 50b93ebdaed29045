//! Sessions with settings of their own: a service may have any of them for its own reasons.

use std::time::Duration;

use fence_runtime::{Error, ErrorKind, Fence, LeaseName};
use fence_tests::{
    app::{RUNS, complete, status},
    jobs::job,
    servers::{PostgresDb, SqliteFile, TestDb},
};
use sqlx::{
    postgres::PgPoolOptions,
    sqlite::{SqliteLockingMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::works;

mod on_a_server {
    fence_tests::conformance! { on postgres: whatever_the_session_has_set }
    use super::whatever_the_session_has_set;
}

mod of_a_file {
    fence_tests::conformance! { on sqlite, sqlite_rollback: whatever_the_connection_has_set, a_file_for_one_connection_alone }
    use super::{a_file_for_one_connection_alone, whatever_the_connection_has_set};
}

async fn whatever_the_session_has_set(db: PostgresDb) {
    db.sql(RUNS).await;
    // With ordinary settings: who only reads by default cannot create a table.
    drop(crate::builder(&db).migrate().build().await.unwrap());
    for settings in [
        // Fourteen hours east, twelve west, and dates that are written in other ways.
        &[("TimeZone", "Pacific/Kiritimati"), ("DateStyle", "SQL, DMY"), ("IntervalStyle", "sql_standard")][..],
        &[
            ("TimeZone", "Etc/GMT+12"),
            ("DateStyle", "German"),
            ("extra_float_digits", "-15"),
            ("bytea_output", "escape"),
        ],
        &[
            ("default_transaction_isolation", "serializable"),
            ("default_transaction_deferrable", "on"),
            ("default_transaction_read_only", "on"),
        ],
        &[("default_transaction_isolation", "repeatable read"), ("synchronous_commit", "off")],
        &[
            ("client_min_messages", "error"),
            ("quote_all_identifiers", "on"),
            ("array_nulls", "off"),
            ("transform_null_equals", "on"),
        ],
        &[("plpgsql.variable_conflict", "error"), ("plpgsql.extra_errors", "all"), ("check_function_bodies", "off")],
        &[("enable_indexscan", "off"), ("enable_bitmapscan", "off"), ("enable_nestloop", "off")],
        &[("statement_timeout", "5s"), ("lock_timeout", "1s"), ("idle_in_transaction_session_timeout", "2s")],
    ] {
        let options = db.options("odd").options(settings.iter().copied());
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
        let fence = Fence::builder(pool).build().await.unwrap_or_else(|error| panic!("{settings:?}: {error}"));
        works(&fence, &format!("{settings:?}")).await;
        writes(&db, &fence, &format!("{settings:?}")).await;
        let unknown = fence.revoke(&LeaseName::new("nobody's").unwrap(), Duration::ZERO).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Config, "{settings:?}: {unknown}");
    }
}

/// A fenced write, and a read of what was written.
async fn writes<D: TestDb>(db: &D, fence: &Fence<D::Db>, what: &str) {
    db.sql("UPDATE runs SET status = 'new', fence_token = 0").await;
    let run = fence.run(job("writes", |ctx| {
        Box::pin(async move {
            let written = ctx.execute(sqlx::query(complete::<D>()).bind(ctx.fence_token())).await?;
            let mut read = ctx.read().await?;
            let seen = fence_tests::app::on::<D>(read.executor(), "SELECT status FROM runs").await.unwrap();
            read.close().await?;
            Ok::<_, Error>((written.rows(), seen.text()))
        })
    }));
    let (rows, seen) = run.await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((rows, seen.as_deref(), status(db).await.as_str()), (1, Some("done"), "done"), "{what}");
}

async fn whatever_the_connection_has_set<const WAL: bool>(db: SqliteFile<WAL>) {
    db.sql(RUNS).await;
    let plain = || db.options("odd");
    for (options, what) in [
        // Whoever is in the way is met at once and not waited for.
        (plain().busy_timeout(Duration::ZERO), "no patience"),
        (plain().foreign_keys(false).pragma("ignore_check_constraints", "1").pragma("recursive_triggers", "1"), "lax"),
        (plain().synchronous(SqliteSynchronous::Off).pragma("temp_store", "memory").pragma("cache_size", "1"), "small"),
        (plain().statement_cache_capacity(0).command_buffer_size(1).row_buffer_size(1), "no buffers"),
        (plain().pragma("read_uncommitted", "1").pragma("case_sensitive_like", "1"), "uncommitted"),
        (plain().pragma("full_column_names", "1").pragma("short_column_names", "0"), "long names"),
        (plain().pragma("reverse_unordered_selects", "1").pragma("automatic_index", "0"), "backwards"),
    ] {
        let pool = SqlitePoolOptions::new().max_connections(2).connect_lazy_with(options);
        let fence = Fence::builder(pool).migrate().build().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        works(&fence, what).await;
        writes(&db, &fence, what).await;
    }
}

/// The keeper could not renew: said at once, or by the first job, but never a job that runs and is lost for it.
async fn a_file_for_one_connection_alone<const WAL: bool>(db: SqliteFile<WAL>) {
    drop(crate::builder(&db).migrate().build().await.unwrap());
    let options = db.options("odd").locking_mode(SqliteLockingMode::Exclusive).busy_timeout(Duration::from_millis(50));
    let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
    let error = match Fence::builder(pool).build().await {
        Err(error) => error,
        Ok(_) => panic!("a fence over a file that only one connection can use"),
    };
    assert!(error.to_string().contains("exclusive"), "{error}");
}
