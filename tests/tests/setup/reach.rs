//! Databases that cannot be reached, or not in the way that was asked for.

use std::time::{Duration, Instant};

use fence_runtime::{ErrorKind, Fence};
use fence_tests::{
    conformance,
    servers::{PostgresDb, SqliteFile, TestDb},
};
use sqlx::{
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::net::TcpListener;

use crate::{builder, nothing_is_left, works};

conformance! { on postgres:
    a_keeper_that_cannot_connect,
    a_keeper_in_a_database_without_the_table,
    a_role_that_does_not_exist,
    a_database_that_does_not_exist,
}

mod of_a_file {
    fence_tests::conformance! { on sqlite, sqlite_rollback:
        a_file_that_is_not_there,
        a_file_that_is_no_database,
        a_file_that_may_only_be_read,
        a_file_that_somebody_writes_to_meanwhile,
    }
    use super::{
        a_file_that_is_no_database, a_file_that_is_not_there, a_file_that_may_only_be_read,
        a_file_that_somebody_writes_to_meanwhile,
    };
}

const SOON: Duration = Duration::from_millis(300);

fn at(port: u16) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).username("nobody").database("nothing")
}

#[tokio::test]
async fn postgres_a_port_that_refuses() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let pool = PgPoolOptions::new().connect_lazy_with(at(free));
    let error = Fence::builder(pool).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Database);
    let text = error.to_string().to_lowercase();
    // The cause, and not only that the pool has waited.
    assert!(text.contains("could not connect") && text.contains("postgresql") && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn postgres_a_port_that_never_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let taken = tokio::spawn(async move {
        let mut taken = Vec::new();
        loop {
            taken.push(silent.accept().await);
        }
    });
    let pool = PgPoolOptions::new().acquire_timeout(SOON).connect_lazy_with(at(port));
    let started = Instant::now();
    let error = Fence::builder(pool).build().await.unwrap_err();
    assert!(started.elapsed() >= SOON && started.elapsed() < 20 * SOON, "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Database);
    assert!(error.to_string().contains("no answer within 300ms"), "{error}");
    taken.abort();
}

async fn a_keeper_that_cannot_connect(db: PostgresDb) {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = builder(&db).keeper_options(at(free)).migrate().build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Database && error.to_string().contains("as the keeper does"), "{error}");
    nothing_is_left(&db, "a keeper that cannot connect").await;
}

async fn a_keeper_in_a_database_without_the_table(db: PostgresDb) {
    let other = PostgresDb::open().await.unwrap();
    let error = builder(&db).keeper_options(other.options("setup keeper")).migrate().build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("no table"), "{error}");
    nothing_is_left(&db, "a keeper elsewhere").await;
    nothing_is_left(&other, "a keeper elsewhere").await;
}

async fn a_role_that_does_not_exist(db: PostgresDb) {
    let pool = PgPoolOptions::new().connect_lazy_with(db.options("setup pool").username("fence_nobody"));
    let error = Fence::builder(pool).build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Database && error.to_string().contains("fence_nobody"), "{error}");
    nothing_is_left(&db, "nobody").await;
}

async fn a_database_that_does_not_exist(db: PostgresDb) {
    let pool = PgPoolOptions::new().connect_lazy_with(db.options("setup pool").database("fence_nothing"));
    let error = Fence::builder(pool).build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Database && error.to_string().contains("fence_nothing"), "{error}");
}

async fn a_file_that_is_not_there<const WAL: bool>(db: SqliteFile<WAL>) {
    for file in ["nothing.db", "no/such/folder/nothing.db", "."] {
        let file = db.folder().join(file);
        let pool = SqlitePoolOptions::new().connect_lazy_with(SqliteConnectOptions::new().filename(&file));
        let error = Fence::builder(pool).migrate().build().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Database && error.to_string().contains("could not connect"), "{error}");
        assert!(file.is_dir() || !file.exists(), "it was not asked to make one");
    }
    // Asked to make one, it does, and the keeper finds it.
    let made = SqliteConnectOptions::new().filename(db.folder().join("made.db")).create_if_missing(true);
    works(&Fence::builder(SqlitePoolOptions::new().connect_lazy_with(made)).migrate().build().await.unwrap(), "made")
        .await;
}

async fn a_file_that_is_no_database<const WAL: bool>(db: SqliteFile<WAL>) {
    let file = db.folder().join("letter.txt");
    std::fs::write(&file, "Dear Sir or Madam, ".repeat(1000)).unwrap();
    let pool = SqlitePoolOptions::new().connect_lazy_with(SqliteConnectOptions::new().filename(&file));
    let error = Fence::builder(pool).migrate().build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Database && error.to_string().contains("not a database"), "{error}");
}

async fn a_file_that_may_only_be_read<const WAL: bool>(db: SqliteFile<WAL>) {
    builder(&db).migrate().build().await.unwrap();
    let options = db.options("setup pool");
    for (options, what) in [
        (options.clone().read_only(true), "read only"),
        (options.clone().pragma("query_only", "1"), "query_only"),
        (options.immutable(true), "immutable"),
    ] {
        let pool = SqlitePoolOptions::new().connect_lazy_with(options);
        let error = Fence::builder(pool).build().await.map(drop).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Schema, "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("write") || text.contains("read-only"), "{what}: {text}");
        nothing_is_left(&db, what).await;
    }
}

async fn a_file_that_somebody_writes_to_meanwhile<const WAL: bool>(db: SqliteFile<WAL>) {
    let mut writer = db.session("writer").await;
    writer.ok("BEGIN IMMEDIATE; CREATE TABLE t (n int)").await;
    let build = tokio::spawn(builder(&db).migrate().build());
    tokio::time::sleep(Duration::from_millis(100)).await;
    writer.ok("COMMIT").await;
    let fence = fence_tests::stepper::within("build", build).await.unwrap().unwrap();
    works(&fence, "after a writer").await;
}
