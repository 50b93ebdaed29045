//! MySQL and MariaDB: tables that drifted. What is said names the column and the statement that mends it.

use fence_runtime::migrate;
use fence_tests::{
    conformance,
    servers::{InnoDb, TestDb},
};
use sqlx::MySql;

use super::{fixes_of, migrated, refused};
use crate::{builder, works};

conformance! { on mysql, mariadb:
    a_missing_column,
    a_column_of_another_type,
    a_column_of_another_character_set,
    a_column_that_may_be_null,
    a_primary_key_that_is_not_right,
    a_guard_key_that_is_not_right,
    a_guard_key_that_nobody_may_use,
    an_engine_without_row_locks,
    a_missing_procedure,
}

const COLUMNS: [&str; 9] = [
    "lease_name",
    "owner_token",
    "fence_token",
    "leased_until",
    "holder",
    "acquired_at",
    "renewed_at",
    "seals",
    "progress",
];

/// A table without the checks that keep its columns from being changed.
async fn unchecked<const M: bool>(db: &InnoDb<M>) {
    migrated(db).await;
    let checks = db
        .sql(
            "SELECT CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS
              WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'fenced_job_leases' AND CONSTRAINT_TYPE = 'CHECK'",
        )
        .await;
    for check in checks.values {
        db.sql(format!("ALTER TABLE fenced_job_leases DROP CONSTRAINT {}", check[0].as_deref().unwrap())).await;
    }
}

/// Runs what each error says until none is left; the fence then works.
async fn mended<const M: bool>(db: &InnoDb<M>, what: &str) {
    for _ in 0..4 {
        match builder(db).build().await {
            Ok(fence) => return works(&fence, what).await,
            Err(error) => {
                let fixes = fixes_of(&error);
                assert!(fixes.len() == 1 && fixes[0].starts_with("ALTER TABLE"), "{what}: {error}");
                db.sql(&fixes[0]).await;
            }
        }
    }
    panic!("{what}: the fixes lead nowhere");
}

async fn a_missing_column<const M: bool>(db: InnoDb<M>) {
    unchecked(&db).await;
    for column in COLUMNS {
        db.sql("DELETE FROM fenced_job_leases").await;
        // MariaDB takes no column out of a key of several.
        if M && ["lease_name", "owner_token", "fence_token"].contains(&column) {
            db.sql("ALTER TABLE fenced_job_leases DROP INDEX uq_fence").await;
        }
        db.sql(format!("ALTER TABLE fenced_job_leases DROP COLUMN {column}")).await;
        refused(&db, &["fenced_job_leases", &format!("no column {column}"), "ALTER TABLE"]).await;
        mended(&db, column).await;
    }
}

async fn a_column_of_another_type<const M: bool>(db: InnoDb<M>) {
    unchecked(&db).await;
    for (column, other) in [
        ("leased_until", "datetime(6)"),
        ("leased_until", "timestamp(6) NULL"),
        ("leased_until", "bigint unsigned NOT NULL"),
        ("leased_until", "double NOT NULL"),
        ("renewed_at", "datetime NOT NULL"),
        ("acquired_at", "decimal(20) NOT NULL"),
        ("fence_token", "int NOT NULL"),
        ("fence_token", "bigint unsigned NOT NULL"),
        ("seals", "smallint NOT NULL"),
        ("lease_name", "varbinary(50) NOT NULL"),
        ("lease_name", "varchar(190) NOT NULL"),
        ("lease_name", "binary(190) NOT NULL"),
        ("owner_token", "varbinary(8) NOT NULL"),
        ("owner_token", "varchar(64) NOT NULL"),
        ("holder", "varchar(10) NOT NULL"),
        ("holder", "varbinary(255) NOT NULL"),
        ("progress", "varchar(10)"),
        ("progress", "text"),
        ("progress", "blob"),
    ] {
        db.sql("DELETE FROM fenced_job_leases").await;
        db.sql(format!("ALTER TABLE fenced_job_leases MODIFY COLUMN {column} {other}")).await;
        let named = other.split([' ', '(']).next().unwrap();
        refused(&db, &[&format!("column {column}"), named, "fenced_job_leases", "ALTER TABLE"]).await;
        mended(&db, &format!("{column} {other}")).await;
    }
    // More room for notes will do.
    db.sql("ALTER TABLE fenced_job_leases MODIFY COLUMN progress longtext CHARACTER SET utf8mb4").await;
    works(&builder(&db).build().await.unwrap(), "longtext").await;
}

async fn a_column_of_another_character_set<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    for (column, other, set) in [
        ("holder", "varchar(255) CHARACTER SET latin1 NOT NULL", "latin1"),
        ("holder", "varchar(255) CHARACTER SET utf8mb3 NOT NULL", "utf8"),
        ("progress", "mediumtext CHARACTER SET latin1", "latin1"),
        ("progress", "mediumtext CHARACTER SET ucs2", "ucs2"),
    ] {
        db.sql(format!("ALTER TABLE fenced_job_leases MODIFY COLUMN {column} {other}")).await;
        refused(&db, &[&format!("column {column}"), set, "utf8mb4", "ALTER TABLE"]).await;
        mended(&db, &format!("{column} {other}")).await;
    }
    // Its collation is the application's business: no statement of ours compares these.
    db.sql("ALTER TABLE fenced_job_leases MODIFY holder varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ''")
        .await;
    works(&builder(&db).build().await.unwrap(), "another collation").await;
}

async fn a_column_that_may_be_null<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    for (column, kind) in
        [("owner_token", "varbinary(64)"), ("fence_token", "bigint"), ("leased_until", "bigint"), ("seals", "bigint")]
    {
        db.sql(format!("ALTER TABLE fenced_job_leases MODIFY COLUMN {column} {kind} NULL")).await;
        refused(&db, &[&format!("column {column}"), "nullable", "NOT NULL", "ALTER TABLE"]).await;
        mended(&db, column).await;
    }
}

async fn a_primary_key_that_is_not_right<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    db.sql("ALTER TABLE fenced_job_leases DROP PRIMARY KEY").await;
    refused(&db, &["no key PRIMARY", "(lease_name)", "ADD PRIMARY KEY"]).await;
    mended(&db, "no key").await;
    for key in ["(lease_name, owner_token)", "(fence_token)", "(lease_name(50))"] {
        db.sql("DELETE FROM fenced_job_leases").await;
        db.sql(format!("ALTER TABLE fenced_job_leases DROP PRIMARY KEY, ADD PRIMARY KEY {key}")).await;
        refused(&db, &["key PRIMARY", "(lease_name)", "DROP PRIMARY KEY, ADD PRIMARY KEY"]).await;
        mended(&db, key).await;
    }
}

async fn a_guard_key_that_is_not_right<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    db.sql("ALTER TABLE fenced_job_leases DROP INDEX uq_fence").await;
    refused(&db, &["no key uq_fence", "(lease_name,fence_token,owner_token)", "ADD UNIQUE KEY uq_fence"]).await;
    mended(&db, "no key").await;
    for key in [
        "UNIQUE KEY uq_fence (lease_name, fence_token)",
        "UNIQUE KEY uq_fence (fence_token, lease_name, owner_token)",
        "UNIQUE KEY uq_fence (lease_name, fence_token, owner_token, leased_until)",
        "UNIQUE KEY uq_fence (lease_name(50), fence_token, owner_token)",
        "KEY uq_fence (lease_name, fence_token, owner_token)",
    ] {
        db.sql(format!("ALTER TABLE fenced_job_leases DROP INDEX uq_fence, ADD {key}")).await;
        refused(&db, &["key uq_fence", "(lease_name,fence_token,owner_token)", "DROP INDEX uq_fence, ADD UNIQUE"])
            .await;
        mended(&db, key).await;
    }
}

/// It is there, and every guard would be refused.
async fn a_guard_key_that_nobody_may_use<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    let (hide, show) = if M { ("IGNORED", "NOT IGNORED") } else { ("INVISIBLE", "VISIBLE") };
    db.sql(format!("ALTER TABLE fenced_job_leases ALTER INDEX uq_fence {hide}")).await;
    refused(&db, &["uq_fence", "hidden", "ALTER INDEX uq_fence", show]).await;
    mended(&db, hide).await;
    db.sql(format!("ALTER TABLE fenced_job_leases ALTER INDEX uq_fence {show}")).await;
    works(&builder(&db).build().await.unwrap(), show).await;
}

async fn an_engine_without_row_locks<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    for engine in ["MyISAM", "MEMORY"] {
        // A table in memory has no texts.
        let progress = if engine == "MEMORY" { "DROP COLUMN progress, " } else { "" };
        db.sql(format!("ALTER TABLE fenced_job_leases {progress}ENGINE = {engine}")).await;
        refused(&db, &["engine", engine, "ENGINE = InnoDB"]).await;
        mended(&db, engine).await;
    }
}

async fn a_missing_procedure<const M: bool>(db: InnoDb<M>) {
    migrated(&db).await;
    for procedure in ["fence_begin_v1", "fence_end_v1"] {
        db.sql(format!("DROP PROCEDURE {procedure}")).await;
        refused(&db, &["no procedure", procedure, "`fence_runtime::migrate::steps`"]).await;
        for step in migrate::steps::<MySql>(None, "").unwrap() {
            db.sql(step.sql).await;
        }
        works(&builder(&db).build().await.unwrap(), procedure).await;
    }
}
