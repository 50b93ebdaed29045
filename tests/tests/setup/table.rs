//! Tables that are not as they must be.

use fence_runtime::{Error, ErrorKind, Fence, migrate};
use fence_tests::{
    conformance,
    servers::{PostgresDb, SqliteFile, TestDb},
};
use sqlx::Postgres;

use crate::{builder, fixes, nothing_is_left, works};

conformance! {
    a_missing_table,
    a_view_in_its_place,
}

mod on_a_server {
    fence_tests::conformance! { on postgres:
        a_missing_column,
        a_column_of_another_type,
        a_collation_that_does_not_compare_bytes,
        a_missing_primary_key,
        an_unlogged_table,
        a_missing_function,
    }
    use super::{
        a_collation_that_does_not_compare_bytes, a_column_of_another_type, a_missing_column, a_missing_function,
        a_missing_primary_key, an_unlogged_table,
    };
}

mod in_a_file {
    fence_tests::conformance! { on sqlite: a_table_that_was_made_by_hand }
    use super::a_table_that_was_made_by_hand;
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

async fn migrated<D: TestDb>(db: &D) {
    drop(builder(db).migrate().build().await.unwrap());
}

/// Why no fence is built, if it says all of this.
async fn refused<D: TestDb>(db: &D, says: &[&str]) -> Error {
    let error = builder(db).build().await.map(drop).expect_err(says[says.len() - 1]);
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    nothing_is_left(db, says[0]).await;
    error
}

/// Runs what each error says until none is left; the fence then works.
async fn mended(db: &PostgresDb, what: &str) -> Fence<Postgres> {
    for _ in 0..4 {
        match builder(db).build().await {
            Ok(fence) => {
                works(&fence, what).await;
                return fence;
            }
            Err(error) => {
                let fixes = fixes(&error);
                assert!(fixes.len() == 1 && fixes[0].starts_with("ALTER TABLE"), "{what}: {error}");
                db.sql(&fixes[0]).await;
            }
        }
    }
    panic!("{what}: the fixes lead nowhere");
}

async fn a_missing_table<D: TestDb>(db: D) {
    let error = refused(&db, &["no table", "fenced_job_leases", "run the migrations"]).await;
    assert!(fixes(&error).iter().any(|fix| fix == ".migrate()"), "{error}");
    works(&builder(&db).migrate().build().await.unwrap(), "after the fix").await;
}

async fn a_view_in_its_place<D: TestDb>(db: D) {
    migrated(&db).await;
    db.sql("ALTER TABLE fenced_job_leases RENAME TO leases; CREATE VIEW fenced_job_leases AS SELECT * FROM leases")
        .await;
    refused(&db, &["fenced_job_leases", "table"]).await;
}

async fn a_missing_column(db: PostgresDb) {
    migrated(&db).await;
    for column in COLUMNS {
        db.sql("DELETE FROM fenced_job_leases").await;
        db.sql(format!("ALTER TABLE fenced_job_leases DROP COLUMN {column}")).await;
        refused(&db, &["fenced_job_leases", &format!("no column {column}"), "ALTER TABLE"]).await;
        mended(&db, column).await;
    }
}

async fn a_column_of_another_type(db: PostgresDb) {
    migrated(&db).await;
    let default =
        "ALTER TABLE fenced_job_leases ALTER COLUMN acquired_at DROP DEFAULT, ALTER COLUMN renewed_at DROP DEFAULT";
    db.sql(default).await;
    for (column, other, named) in [
        ("leased_until", "timestamp without time zone", "timestamp without time zone"),
        ("leased_until", "timestamptz(0)", "timestamp(0) with time zone"),
        ("leased_until", "timestamptz(2)", "timestamp(2) with time zone"),
        ("renewed_at", "timestamp(3)", "timestamp(3) without time zone"),
        ("acquired_at", "timestamptz(1)", "timestamp(1) with time zone"),
        ("fence_token", "integer", "integer"),
        ("fence_token", "numeric", "numeric"),
        ("seals", "smallint", "smallint"),
        ("lease_name", "varchar(50)", "character varying(50)"),
        ("lease_name", "character(190)", "character(190)"),
        ("owner_token", "varchar(8)", "character varying(8)"),
        ("holder", "varchar(10)", "character varying(10)"),
        ("progress", "varchar(10)", "character varying(10)"),
    ] {
        let what = format!("{column} {other}");
        db.sql("DELETE FROM fenced_job_leases").await;
        db.sql(format!("ALTER TABLE fenced_job_leases ALTER COLUMN {column} TYPE {other}")).await;
        refused(&db, &[&format!("column {column}"), named, "fenced_job_leases", "ALTER TABLE"]).await;
        mended(&db, &what).await;
    }
    // A finer one, and one that is text by another name, will do.
    for (column, other) in [("leased_until", "timestamptz(3)"), ("lease_name", "varchar(190)"), ("holder", "varchar")] {
        db.sql(format!("ALTER TABLE fenced_job_leases ALTER COLUMN {column} TYPE {other}")).await;
        works(&builder(&db).build().await.unwrap(), other).await;
    }
}

async fn a_collation_that_does_not_compare_bytes(db: PostgresDb) {
    let made = "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
    if let Err(refused) = db.try_sql(made).await {
        // A server that was built without ICU has no such collations.
        assert!(refused.message.contains("ICU"), "{refused}");
        return;
    }
    migrated(&db).await;
    for column in ["lease_name", "owner_token"] {
        db.sql(format!("ALTER TABLE fenced_job_leases ALTER COLUMN {column} TYPE text COLLATE any_case")).await;
        refused(&db, &[&format!("column {column}"), "nondeterministic", "bytes", "COLLATE \"C\""]).await;
        mended(&db, column).await;
    }
}

async fn a_missing_primary_key(db: PostgresDb) {
    migrated(&db).await;
    let drop_key = "ALTER TABLE fenced_job_leases DROP CONSTRAINT fenced_job_leases_pkey";
    db.sql(drop_key).await;
    refused(&db, &["primary key", "(lease_name)", "found ()", "ADD PRIMARY KEY"]).await;
    mended(&db, "no key").await;
    // A unique index that is there only for a while, or for others, is none.
    for key in ["(lease_name, owner_token)", "(lease_name) DEFERRABLE INITIALLY DEFERRED"] {
        db.sql(drop_key).await;
        db.sql(format!("ALTER TABLE fenced_job_leases ADD PRIMARY KEY {key}")).await;
        refused(&db, &["primary key", "(lease_name)"]).await;
    }
}

async fn an_unlogged_table(db: PostgresDb) {
    migrated(&db).await;
    db.sql("ALTER TABLE fenced_job_leases SET UNLOGGED").await;
    refused(&db, &["unlogged", "SET LOGGED"]).await;
    mended(&db, "unlogged").await;
}

async fn a_missing_function(db: PostgresDb) {
    migrated(&db).await;
    db.sql("DROP FUNCTION fence_begin_v1").await;
    refused(
        &db,
        &["no function", "fence_begin_v1(text,text,bigint,text,text,text)", "`fence_runtime::migrate::steps`"],
    )
    .await;
    for step in migrate::steps::<Postgres>(Some("public"), "").unwrap() {
        db.sql(step.sql).await;
    }
    works(&builder(&db).build().await.unwrap(), "after the fix").await;
}

/// What SQLite's `ALTER TABLE` cannot mend is built anew, as the text says.
async fn a_table_that_was_made_by_hand<const WAL: bool>(_: SqliteFile<WAL>) {
    let good = "lease_name TEXT NOT NULL PRIMARY KEY, owner_token TEXT NOT NULL, fence_token INTEGER NOT NULL,
                leased_until INTEGER NOT NULL, holder TEXT NOT NULL DEFAULT '', acquired_at INTEGER NOT NULL DEFAULT 0,
                renewed_at INTEGER NOT NULL DEFAULT 0, seals INTEGER NOT NULL DEFAULT 0, progress TEXT";
    let mut cases = vec![
        (good.to_owned(), "", "STRICT".to_owned()),
        (good.replace(" PRIMARY KEY", " UNIQUE"), "STRICT", "primary key".into()),
        (good.replace(" PRIMARY KEY", "") + ", PRIMARY KEY (lease_name, owner_token)", "STRICT", "primary key".into()),
        (good.replace("fence_token INTEGER", "fence_token TEXT"), "STRICT", "column fence_token".into()),
        (good.replace("leased_until INTEGER", "leased_until REAL"), "STRICT", "column leased_until".into()),
        (good.replace("leased_until INTEGER", "leased_until DATETIME"), "", "column leased_until".into()),
        (good.replace("lease_name TEXT", "lease_name BLOB"), "STRICT", "column lease_name".into()),
        (good.replace("lease_name TEXT NOT NULL", "lease_name TEXT NOT NULL COLLATE NOCASE"), "STRICT", "bytes".into()),
    ];
    for column in COLUMNS {
        let others: Vec<_> = good.split(',').filter(|other| !other.trim().starts_with(column)).collect();
        cases.push((others.join(","), "STRICT", format!("no column {column}")));
    }
    for (columns, strict, says) in cases {
        let db = SqliteFile::<WAL>::open().await.unwrap();
        db.sql(format!("CREATE TABLE fenced_job_leases ({columns}) {strict}")).await;
        let error = refused(&db, &["fenced_job_leases", &says]).await;
        let fixes = fixes(&error);
        assert_eq!(fixes.len(), 1, "{error}");
        match fixes[0].strip_prefix("ALTER TABLE fenced_job_leases ADD COLUMN") {
            Some(_) => {
                db.sql(&fixes[0]).await;
                // A key cannot be added; whatever else is missing can.
                match builder(&db).build().await {
                    Ok(fence) => works(&fence, &says).await,
                    Err(error) => assert!(error.to_string().contains("primary key"), "{says}: {error}"),
                }
            }
            None => {
                assert!(fixes[0].contains("RENAME TO") && fixes[0].contains("copy the rows"), "{error}");
                db.sql("ALTER TABLE fenced_job_leases RENAME TO fenced_job_leases_old").await;
                works(&builder(&db).migrate().build().await.unwrap(), &says).await;
            }
        }
    }
}
