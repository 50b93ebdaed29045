//! Migrating: twice, at once, side by side, by hand, and over what is there.

use fence_runtime::{ErrorKind, Fence, migrate};
use fence_tests::{
    conformance,
    jobs::{job, token_of},
    servers::{PostgresDb, TestDb},
    stepper::Gate,
};
use futures_util::future::join_all;

use crate::{builder, nothing_is_left, works};

conformance! {
    sixteen_builders_migrate_at_once,
    a_fence_is_built_twice,
    prefixes_are_kept_apart,
    the_printed_migrations_are_what_the_builder_runs,
    a_table_with_more_columns_is_fine,
    the_application_may_migrate_too,
    what_was_dropped_is_said_to_be_missing_and_comes_back_by_the_printed_migrations,
}

mod schemas {
    fence_tests::conformance! { on postgres:
        schemas_are_kept_apart,
        a_session_without_a_schema,
        a_schema_that_is_no_plain_name,
    }
    use super::{a_schema_that_is_no_plain_name, a_session_without_a_schema, schemas_are_kept_apart};
}

async fn sixteen_builders_migrate_at_once<D: TestDb>(db: D) {
    let built = join_all((0..16).map(|_| tokio::spawn(builder(&db).migrate().build()))).await;
    let mut fences = Vec::new();
    for fence in built {
        fences.push(fence.unwrap().unwrap());
    }
    let tokens =
        join_all(fences.iter().map(|fence| fence.run(token_of("a").wait(std::time::Duration::from_secs(60))))).await;
    let mut tokens: Vec<_> = tokens.into_iter().map(Result::unwrap).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=16).collect::<Vec<_>>());
    drop(fences);
    nothing_is_left(&db, "sixteen builders").await;
}

async fn a_fence_is_built_twice<D: TestDb>(db: D) {
    let first = builder(&db).migrate().build().await.unwrap();
    works(&first, "the first").await;
    for again in [builder(&db).migrate(), builder(&db)] {
        // What is there stays.
        let fence = again.build().await.unwrap();
        let token = db.fence_token("works").await;
        works(&fence, "again").await;
        assert!(db.fence_token("works").await > token);
    }
}

/// Both hold a lease of one name at the same time.
async fn are_apart<D: TestDb>(a: &Fence<D::Db>, b: &Fence<D::Db>) {
    let (inside, gate) = (b.clone(), Gate::new("both hold it"));
    gate.open();
    let both = a.run(job("same", move |_| {
        Box::pin(async move {
            gate.stop().await;
            Ok::<_, fence_runtime::Error>(inside.run(token_of("same")).await.map_err(|e| e.to_string()))
        })
    }));
    assert_eq!(both.await.unwrap(), Ok(1));
    works(a, "one").await;
    works(b, "the other").await;
}

async fn prefixes_are_kept_apart<D: TestDb>(db: D) {
    let long = "p".repeat(32);
    let one = builder(&db).table_prefix("billing_").migrate().build().await.unwrap();
    let two = builder(&db).table_prefix(long.as_str()).migrate().build().await.unwrap();
    are_apart::<D>(&one, &two).await;
    for table in ["billing_fenced_job_leases".to_owned(), format!("{long}fenced_job_leases")] {
        assert_eq!(db.int(format!("SELECT count(*) FROM {table} WHERE lease_name = 'same'")).await, 1);
    }
    // Each must be migrated.
    let error = builder(&db).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
}

async fn schemas_are_kept_apart(db: PostgresDb) {
    let one = builder(&db).schema("one").migrate().build().await.unwrap();
    let two = builder(&db).schema("two").table_prefix("x_").migrate().build().await.unwrap();
    let three = builder(&db).migrate().build().await.unwrap();
    are_apart::<PostgresDb>(&one, &two).await;
    works(&three, "the current schema").await;
    let tables = "SELECT string_agg(table_schema || '.' || table_name, ' ' ORDER BY table_schema)
                    FROM information_schema.tables WHERE table_name LIKE '%fenced_job_leases'";
    let found = db.text(tables).await.unwrap();
    assert_eq!(found, "one.fenced_job_leases public.fenced_job_leases two.x_fenced_job_leases");
    // The schema is part of every statement: a search path does not lead elsewhere.
    let elsewhere =
        sqlx::postgres::PgPoolOptions::new().connect_lazy_with(db.options("a").options([("search_path", "two")]));
    let fence = Fence::builder(elsewhere).schema("one").build().await.unwrap();
    works(&fence, "another search path").await;
}

async fn a_session_without_a_schema(db: PostgresDb) {
    let nowhere = db.options("setup pool").options([("search_path", "nowhere")]);
    let pool = || sqlx::postgres::PgPoolOptions::new().connect_lazy_with(nowhere.clone());
    let error = Fence::builder(pool()).keeper_options(nowhere.clone()).migrate().build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("`.schema("), "{error}");
    nothing_is_left(&db, "no schema").await;
    let fence = Fence::builder(pool()).keeper_options(nowhere.clone()).schema("jobs").migrate().build().await.unwrap();
    works(&fence, "a schema by name").await;
}

async fn a_schema_that_is_no_plain_name(db: PostgresDb) {
    db.sql("CREATE SCHEMA \"Mixed; Case\"").await;
    let mixed = db.options("setup pool").options([("search_path", "\"Mixed; Case\"")]);
    let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy_with(mixed.clone());
    let error = Fence::builder(pool).keeper_options(mixed).migrate().build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("Mixed; Case"), "{error}");
    nothing_is_left(&db, "a mixed schema").await;
}

async fn the_printed_migrations_are_what_the_builder_runs<D: TestDb>(db: D) {
    for prefix in ["", "hand_"] {
        // By hand, twice.
        for _ in 0..2 {
            for step in migrate::steps::<D::Db>(None, prefix).unwrap() {
                assert!(step.version > 0 && !step.name.is_empty() && !step.sql.contains("/*prefix*/"));
                db.sql(step.sql).await;
            }
        }
        let fence = builder(&db).table_prefix(prefix).build().await.unwrap();
        works(&fence, "by hand").await;
        // Who begins to let the builder do it later loses nothing.
        let fence = builder(&db).table_prefix(prefix).migrate().build().await.unwrap();
        works(&fence, "by the builder").await;
        assert!(db.int(format!("SELECT fence_token FROM {prefix}fenced_job_leases")).await > 4);
    }
}

async fn a_table_with_more_columns_is_fine<D: TestDb>(db: D) {
    drop(builder(&db).migrate().build().await.unwrap());
    // Of a later release, or of the operator's own.
    db.sql("ALTER TABLE fenced_job_leases ADD COLUMN region text").await;
    db.sql("ALTER TABLE fenced_job_leases ADD COLUMN weight int NOT NULL DEFAULT 1").await;
    let fence = builder(&db).build().await.unwrap();
    works(&fence, "more columns").await;
}

async fn the_application_may_migrate_too<D: TestDb>(db: D) {
    // Its own migrations have the number of one of ours, and a table of sqlx's own name.
    let table = "CREATE TABLE _sqlx_migrations (version bigint PRIMARY KEY, description text NOT NULL,
                   installed_on timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, success boolean NOT NULL,
                   checksum text NOT NULL, execution_time bigint NOT NULL)";
    db.sql(table).await;
    let row = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (1, 'theirs', true, 'x', 0)";
    db.sql(row).await;
    let fence = builder(&db).migrate().build().await.unwrap();
    works(&fence, "beside others").await;
    assert_eq!(db.text("SELECT description FROM _sqlx_migrations").await.as_deref(), Some("theirs"));
    let ours = migrate::steps::<D::Db>(None, "").unwrap().len();
    assert_eq!(db.int("SELECT count(*) FROM fenced_job_migrations").await, ours as i64);
}

async fn what_was_dropped_is_said_to_be_missing_and_comes_back_by_the_printed_migrations<D: TestDb>(db: D) {
    drop(builder(&db).migrate().build().await.unwrap());
    db.sql("DROP TABLE fenced_job_leases").await;
    for builder in [builder(&db), builder(&db).migrate()] {
        let error = builder.build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        let text = error.to_string();
        assert!(text.contains("fenced_job_leases") && text.contains("`fence_runtime::migrate::steps`"), "{text}");
        nothing_is_left(&db, "a dropped table").await;
    }
    for step in migrate::steps::<D::Db>(None, "").unwrap() {
        db.sql(step.sql).await;
    }
    works(&builder(&db).build().await.unwrap(), "after the fix").await;
}
