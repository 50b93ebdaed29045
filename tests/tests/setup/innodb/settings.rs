//! MySQL and MariaDB: sessions and servers with settings of their own.

use fence_runtime::{Error, Fence, migrate};
use fence_tests::{
    app::{RUNS, complete, on, status},
    conformance,
    jobs::job,
    servers::{InnoDb, TestDb},
};
use sqlx::{AssertSqlSafe, Executor, MySql, mysql::MySqlPoolOptions};

use super::{migrated, refused};
use crate::{builder, works};

conformance! { on mysql, mariadb:
    whatever_the_session_has_set,
    whatever_the_server_has_set,
    a_server_with_statement_based_replication,
    a_server_that_only_reads_is_refused,
    a_server_that_is_one_of_several_writers_is_refused,
}

mod on_mariadb {
    fence_tests::conformance! { on mariadb: names_of_tables_in_lower_case }
    use super::names_of_tables_in_lower_case;
}

/// A pool whose connections begin with this SQL.
fn pool_with<const M: bool>(db: &InnoDb<M>, sql: &'static str, charset: &str) -> sqlx::MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(2)
        .after_connect(move |conn, _| Box::pin(async move { conn.execute(sqlx::raw_sql(sql)).await.map(drop) }))
        .connect_lazy_with(db.options("odd").charset(charset))
}

/// A fenced write, and a read of what was written; before and after it the session is the same.
async fn writes<const M: bool>(db: &InnoDb<M>, fence: &Fence<MySql>, what: &str) {
    const SESSION: &str = "SELECT CONCAT_WS('|', @@autocommit, /*!80000 @@transaction_read_only, @@transaction_isolation*/
        /*M!100600 @@tx_read_only, @@tx_isolation*/, @@sql_mode, @@character_set_client, @@completion_type, @@time_zone, @@SESSION.wait_timeout)";
    db.sql("UPDATE runs SET status = 'new', fence_token = 0").await;
    let pool = fence.unfenced("its settings");
    let session = async || {
        let mut all = Vec::new();
        for _ in 0..2 {
            all.push(pool.acquire().await.unwrap());
        }
        let mut said = Vec::new();
        for conn in &mut all {
            said.push(on::<InnoDb<M>>(&mut **conn, SESSION).await.unwrap().text().unwrap());
            // Where nothing commits by itself, this has begun a transaction.
            on::<InnoDb<M>>(&mut **conn, "ROLLBACK").await.unwrap();
        }
        said.sort();
        said
    };
    let before = session().await;
    let run = fence.run(job("writes", |ctx| {
        Box::pin(async move {
            let written = ctx.execute(sqlx::query(complete::<InnoDb<M>>()).bind(ctx.fence_token())).await?;
            let mut tx = ctx.begin().await?;
            on::<InnoDb<M>>(tx.executor(), "UPDATE runs SET status = 'nobody sees this'").await.unwrap();
            tx.rollback().await;
            let mut read = ctx.read().await?;
            let seen = on::<InnoDb<M>>(read.executor(), "SELECT status FROM runs").await.unwrap();
            read.close().await?;
            Ok::<_, Error>((written.rows(), seen.text()))
        })
    }));
    let (rows, seen) = run.await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((rows, seen.as_deref(), status(db).await.as_str()), (1, Some("done"), "done"), "{what}");
    assert_eq!(session().await, before, "{what}");
}

async fn whatever_the_session_has_set<const M: bool>(db: InnoDb<M>) {
    db.sql(RUNS).await;
    migrated(&db).await;
    let levels = [
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET autocommit = 0",
    ];
    let settings = [
        "SET autocommit = 0",
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION TRANSACTION READ ONLY; SET autocommit = 0",
        "SET sql_mode = ''",
        "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'",
        "SET sql_mode = 'ANSI'",
        "SET sql_mode = 'TRADITIONAL,NO_BACKSLASH_ESCAPES'",
        "SET sql_mode = 'ONLY_FULL_GROUP_BY,STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE'",
        "SET sql_mode = 'IGNORE_SPACE,REAL_AS_FLOAT,NO_UNSIGNED_SUBTRACTION,NO_AUTO_VALUE_ON_ZERO'",
        "SET time_zone = '+13:00'",
        "SET time_zone = '-12:00'",
        "SET sql_auto_is_null = 1, div_precision_increment = 0, group_concat_max_len = 4",
        "SET lc_messages = 'de_DE'",
        "SET foreign_key_checks = 0, unique_checks = 0",
        "SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
        "SET SESSION max_join_size = 1000, sql_big_selects = 1",
        "SET default_storage_engine = MyISAM, collation_connection = utf8mb4_bin",
        "SET character_set_results = latin1",
        "SET wait_timeout = 77",
    ];
    let only_here: &[&'static str] = if M {
        &[
            "SET innodb_snapshot_isolation = ON",
            "SET innodb_snapshot_isolation = OFF",
            "SET innodb_snapshot_isolation = ON; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SET innodb_snapshot_isolation = OFF; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET sql_mode = 'MSSQL'",
        ]
    } else {
        &["SET sql_require_primary_key = 1", "SET optimizer_switch = 'derived_merge=off,subquery_to_derived=on'"]
    };
    for sql in levels.iter().chain(&settings).chain(only_here) {
        let fence = Fence::builder(pool_with(&db, sql, "utf8mb4")).build().await;
        let fence = fence.unwrap_or_else(|error| panic!("{sql}: {error}"));
        works(&fence, sql).await;
        writes(&db, &fence, sql).await;
    }
    for charset in ["latin1", "utf8mb3", "cp1251"] {
        let fence = Fence::builder(pool_with(&db, "SELECT 1", charset)).holder("Jörg 👩").build().await.unwrap();
        works(&fence, charset).await;
        writes(&db, &fence, charset).await;
        let seen = db.fence().await.leases().await.unwrap();
        assert!(seen.iter().all(|lease| lease.holder == "Jörg 👩"), "{charset}: {seen:?}");
        drop(db.sql("DELETE FROM fenced_job_leases").await);
    }
}

/// The keeper's connections too.
async fn whatever_the_server_has_set<const M: bool>(_: InnoDb<M>) {
    let Some(db) =
        InnoDb::<M>::started_with(&["--innodb-rollback-on-timeout=ON", "--character-set-server=latin1"]).await
    else {
        return;
    };
    db.sql(RUNS).await;
    migrated(&db).await;
    let isolation = if M { "tx_isolation" } else { "transaction_isolation" };
    let mut settings: Vec<String> = [
        "autocommit = 0",
        "sql_mode = ''",
        "sql_mode = 'ANSI_QUOTES'",
        "sql_mode = 'NO_BACKSLASH_ESCAPES'",
        "time_zone = '+13:00'",
        "sql_auto_is_null = 1",
        "group_concat_max_len = 4",
        "default_storage_engine = MyISAM",
        "innodb_lock_wait_timeout = 1",
    ]
    .map(String::from)
    .into();
    for level in ["READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"] {
        settings.push(format!("{isolation} = '{level}'"));
    }
    if M {
        settings.extend(["innodb_snapshot_isolation = OFF", "innodb_snapshot_isolation = ON"].map(String::from));
    }
    for setting in settings {
        // One after the other, and each stays: the last ones meet them all.
        db.sql(format!("SET GLOBAL {setting}")).await;
        let fence = builder(&db).migrate().build().await.unwrap_or_else(|error| panic!("{setting}: {error}"));
        works(&fence, &setting).await;
        writes(&db, &fence, &setting).await;
    }
    // COMMIT AND CHAIN is not what we mean by COMMIT.
    for kind in ["CHAIN", "RELEASE"] {
        db.sql(format!("SET GLOBAL completion_type = '{kind}'")).await;
        refused(&db, &[&format!("completion_type = {kind}"), "SET GLOBAL completion_type = 'NO_CHAIN'"]).await;
    }
    db.sql("SET GLOBAL completion_type = 'NO_CHAIN'").await;
    // Tables made under all of them.
    let fence = builder(&db).table_prefix("late_").migrate().build().await.unwrap();
    works(&fence, "tables made late").await;
}

async fn a_server_with_statement_based_replication<const M: bool>(_: InnoDb<M>) {
    const OPTIONS: &[&str] = &["--log-bin=bin", "--server-id=1", "--binlog-format=STATEMENT"];
    let Some(db) = InnoDb::<M>::started_with(OPTIONS).await else { return };
    // Without a fence: the migrations themselves pass.
    for step in migrate::steps::<MySql>(None, "").unwrap() {
        db.sql(step.sql).await;
    }
    refused(&db, &["binlog_format = STATEMENT", "1665", "SET GLOBAL binlog_format = 'ROW'"]).await;
    for format in ["ROW", "MIXED"] {
        db.sql(format!("SET GLOBAL binlog_format = '{format}'")).await;
        let fence = builder(&db).build().await.unwrap_or_else(|error| panic!("{format}: {error}"));
        works(&fence, format).await;
    }
}

async fn a_server_that_only_reads_is_refused<const M: bool>(_: InnoDb<M>) {
    let Some(db) = InnoDb::<M>::started_with(&[]).await else { return };
    migrated(&db).await;
    db.sql("SET GLOBAL read_only = 1").await;
    refused(&db, &["read-only", "primary"]).await;
    db.sql("SET GLOBAL read_only = 0").await;
    works(&builder(&db).build().await.unwrap(), "writable again").await;
}

async fn a_server_that_is_one_of_several_writers_is_refused<const M: bool>(_: InnoDb<M>) {
    let options: &[&str] = match M {
        true => &["--wsrep-on=ON", "--binlog-format=ROW"],
        false => &["--plugin-load-add=group_replication.so", "--loose-group-replication-single-primary-mode=OFF"],
    };
    let Some(db) = InnoDb::<M>::started_with(options).await else { return };
    for step in migrate::steps::<MySql>(None, "").unwrap() {
        db.sql(step.sql).await;
    }
    let setting = if M { "wsrep_on = ON" } else { "group_replication_single_primary_mode = OFF" };
    refused(&db, &[setting, "the only one to write"]).await;
    if !M {
        db.sql("SET GLOBAL group_replication_single_primary_mode = ON").await;
        works(&builder(&db).build().await.unwrap(), "a single primary").await;
    }
}

/// MySQL takes this only when its data directory is made.
async fn names_of_tables_in_lower_case<const M: bool>(_: InnoDb<M>) {
    let Some(db) = InnoDb::<M>::started_with(&["--lower-case-table-names=1"]).await else { return };
    let fence = builder(&db).migrate().build().await.unwrap();
    works(&fence, "lower case").await;
    db.sql("CREATE DATABASE MyJobs").await;
    let fence = builder(&db).schema("MyJobs").migrate().build().await.unwrap();
    works(&fence, "a database with capitals").await;
    let sql = AssertSqlSafe("SELECT count(*) FROM myjobs.fenced_job_leases".to_owned());
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(db.pool()).await.unwrap(), 1);
}
