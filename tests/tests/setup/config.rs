//! What can be known without asking a database.

use std::time::Duration;

use fence_runtime::{Error, ErrorKind, Fence, LeaseName, MAX_TTL, MIN_TTL, RunError, migrate};
use fence_tests::{conformance, jobs::token_of, servers::TestDb};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::{builder, nothing_is_left};

conformance! {
    a_name_that_breaks_a_rule_is_refused_and_nothing_is_sent,
    a_ttl_or_a_pace_that_breaks_a_rule_is_refused,
    a_schema_or_a_prefix_that_is_no_plain_name_is_refused,
    a_holder_that_breaks_a_rule_is_refused,
}

mod on_sqlite {
    fence_tests::conformance! { on sqlite: a_schema_is_refused, a_shared_cache_is_refused }
    use super::{a_schema_is_refused, a_shared_cache_is_refused};
}

/// Names that are none, and a word of what is said about them.
fn no_names() -> Vec<(String, &'static str)> {
    let mut names: Vec<(String, &str)> = [
        ("", "is empty"),
        (" ", "white space"),
        (" a", "white space"),
        ("a ", "white space"),
        ("\u{a0}a", "white space"),
        ("a\u{3000}", "white space"),
        ("a\nb", "control character '\\n'"),
        ("a\tb", "control character '\\t'"),
        ("a\0b", "control character '\\0'"),
        ("\u{7f}", "control character"),
        ("a\u{85}b", "control character"),
    ]
    .map(|(name, said)| (name.to_owned(), said))
    .into();
    names.extend([
        ("x".repeat(191), "191 bytes"),
        ("ü".repeat(96), "192 bytes"),
        ("x".repeat(100_000), "100000 bytes"),
    ]);
    names
}

async fn a_shared_cache_is_refused(db: fence_tests::servers::SqliteDb) {
    drop(builder(&db).migrate().build().await.unwrap());
    let shared = || db.options("a").shared_cache(true);
    let pool = SqlitePoolOptions::new().connect_lazy_with(shared());
    for builder in [Fence::builder(pool), builder(&db).keeper_options(shared())] {
        let error = builder.build().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("cache=shared"), "{error}");
    }
}

async fn a_name_that_breaks_a_rule_is_refused_and_nothing_is_sent<D: TestDb>(db: D) {
    let fence = builder(&db).migrate().build().await.unwrap();
    for (name, said) in no_names() {
        let error = LeaseName::new(name.clone()).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(said), "{name:?}: {error}");
        let RunError::Fence(error) = fence.run(token_of(name.clone())).await.unwrap_err() else { panic!("{name:?}") };
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(said), "{name:?}: {error}");
    }
    assert!(fence.leases().await.unwrap().is_empty());
    // The table says the same to whoever does not ask us.
    for name in ["", &"ü".repeat(96)] {
        let sql = format!(
            "INSERT INTO fenced_job_leases (lease_name, owner_token, fence_token, leased_until)
               VALUES ('{name}', '', 1, {})",
            if D::NAME == "postgres" { "'epoch'" } else { "0" }
        );
        assert!(db.try_sql(sql).await.is_err());
    }
}

async fn a_ttl_or_a_pace_that_breaks_a_rule_is_refused<D: TestDb>(db: D) {
    for ttl in [Duration::ZERO, MIN_TTL - Duration::from_nanos(1), MAX_TTL + Duration::from_nanos(1), Duration::MAX] {
        let error = builder(&db).migrate().default_ttl(ttl).build().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("`ttl`"), "{ttl:?}: {error}");
        nothing_is_left(&db, "a bad ttl").await;
    }
    let fence = builder(&db).migrate().default_ttl(MIN_TTL).build().await.unwrap();
    let second = Duration::from_secs(1);
    let jobs = [
        (token_of(" ").ttl(Duration::ZERO), "lease name"),
        (token_of("a").ttl(Duration::ZERO), "`ttl` (0ns) must be between 100ms and 86400s"),
        (token_of("a").ttl(Duration::from_micros(99_999)), "`ttl`"),
        (token_of("a").ttl(MAX_TTL + second), "`ttl`"),
        (token_of("a").ttl(Duration::MAX), "`ttl`"),
        (
            token_of("a").ttl(3 * second).renew(Duration::from_millis(1001)),
            "`renew` (1.001s) must be more than zero and at most a third",
        ),
        (token_of("a").ttl(3 * second).renew(Duration::ZERO), "`renew`"),
        (token_of("a").renew(MIN_TTL), "`renew`"),
    ];
    for (job, said) in jobs {
        let RunError::Fence(error) = fence.run(job).await.unwrap_err() else { panic!("{said}") };
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(said), "{said}: {error}");
    }
    assert!(fence.leases().await.unwrap().is_empty());
    // The edges themselves.
    for job in [token_of("a").ttl(MIN_TTL), token_of("a").ttl(MAX_TTL), token_of("a").ttl(3 * second).renew(second)] {
        fence.run(job).await.unwrap();
    }
}

async fn a_schema_or_a_prefix_that_is_no_plain_name_is_refused<D: TestDb>(db: D) {
    let hostile =
        ["a;b", "a b", "A", "1a", "ä", "a\"b", "a'b", "a.b", "a-b", "\0", "$a", "/*prefix*/", "a\\", &"a".repeat(33)];
    for word in hostile {
        let named = format!("{word:?}");
        let said = |error: &Error| error.kind() == ErrorKind::Config && error.to_string().contains(&named);
        let error = builder(&db).table_prefix(word).migrate().build().await.unwrap_err();
        assert!(said(&error), "{error}");
        assert!(said(&migrate::steps::<D::Db>(None, word).unwrap_err()));
        // A schema is always quoted, and may be called what others have called it.
        if ["a b", "A", "1a", "ä", "a-b", &"a".repeat(33)].contains(&word) {
            continue;
        }
        let error = builder(&db).schema(word).migrate().build().await.unwrap_err();
        assert!(said(&error), "{error}");
        assert!(said(&migrate::steps::<D::Db>(Some(word), "").unwrap_err()));
    }
    assert_eq!(builder(&db).schema("").build().await.unwrap_err().kind(), ErrorKind::Config);
    nothing_is_left(&db, "bad words").await;
}

async fn a_holder_that_breaks_a_rule_is_refused<D: TestDb>(db: D) {
    for holder in ["".to_owned(), "a\nb".into(), "\0".into(), "x".repeat(256), "ü".repeat(128)] {
        let error = builder(&db).holder(holder).migrate().build().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("holder"), "{error}");
    }
    nothing_is_left(&db, "a bad holder").await;
    for holder in [" ".to_owned(), "ü".repeat(127), "x".repeat(255)] {
        let fence = builder(&db).holder(holder.clone()).migrate().build().await.unwrap();
        fence.run(token_of("a")).await.unwrap();
        assert_eq!(fence.leases().await.unwrap()[0].holder, holder);
    }
    // Without one: who we are.
    let fence = builder(&db).build().await.unwrap();
    fence.run(token_of("a")).await.unwrap();
    assert!(fence.leases().await.unwrap()[0].holder.contains(&format!("/{}", std::process::id())));
}

async fn a_schema_is_refused<D: TestDb>(db: D) {
    let error = builder(&db).schema("jobs").migrate().build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("no schema \"jobs\": use `.table_prefix"), "{error}");
    nothing_is_left(&db, "a schema").await;
}

#[tokio::test]
async fn sqlite_in_memory_is_refused_however_it_is_spelt() {
    let mut ways: Vec<SqliteConnectOptions> = Vec::new();
    for url in [
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite:",
        "sqlite://",
        "sqlite://?mode=memory",
        "sqlite://x.db?mode=memory",
        "sqlite://x.db?mode=memory&cache=shared",
    ] {
        // What sqlx does not take is refused by sqlx.
        ways.extend(url.parse::<SqliteConnectOptions>());
    }
    for file in [":memory:", "", "file::memory:", "file::memory:?cache=shared", "file:x?mode=memory&cache=shared"] {
        ways.push(SqliteConnectOptions::new().filename(file));
    }
    ways.push(SqliteConnectOptions::new().in_memory(true));
    ways.push(SqliteConnectOptions::new().in_memory(true).shared_cache(true));
    assert!(ways.len() > 8);
    for options in ways {
        let what = format!("{:?}", options.get_filename());
        let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
        let error = Fence::builder(pool).migrate().build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
        for part in ["in-memory", "keeper", "use a file"] {
            assert!(error.to_string().contains(part), "{what}: {error}");
        }
    }
}
