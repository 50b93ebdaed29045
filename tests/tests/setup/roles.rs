//! Roles with less than everything: what is documented is enough, and what is missing is named.

use fence_runtime::{ErrorKind, Fence};
use fence_tests::servers::{PostgresDb, TestDb};
use sqlx::{Postgres, postgres::PgPoolOptions};

use crate::{KEEPER, POOL, builder, fixes, nothing_is_left, works};

fence_tests::conformance! { on postgres:
    the_documented_privileges_are_enough,
    each_missing_privilege_is_named,
    a_keeper_of_another_role,
    who_may_not_create_cannot_migrate,
    a_role_that_only_reads_by_default,
}

/// All that a role needs besides reaching the database.
const GRANTS: [&str; 3] = [
    "GRANT USAGE ON SCHEMA jobs TO {role}",
    "GRANT SELECT, INSERT, UPDATE ON jobs.fenced_job_leases TO {role}",
    "GRANT EXECUTE ON FUNCTION jobs.fence_begin_v1(text,text,bigint,text,text,text) TO {role}",
];

/// A role of this test alone: roles belong to the server, so it goes with the value, after what it owns.
struct Role {
    name: String,
}

impl Role {
    /// One that may do nothing, in a database where nobody but the owner may.
    async fn new(db: &PostgresDb) -> Self {
        let database = db.text("SELECT current_database()").await.unwrap();
        let name = format!("role_{database}");
        let drop = format!(
            "DO $$ BEGIN IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{name}') THEN
                            EXECUTE 'DROP OWNED BY {name}'; EXECUTE 'DROP ROLE {name}'; END IF; END $$"
        );
        db.sql(drop).await;
        db.sql(format!("CREATE ROLE {name} LOGIN PASSWORD 'secret'")).await;
        std::mem::drop(Fence::builder(db.pool_as("owner", 1)).schema("jobs").migrate().build().await.unwrap());
        db.sql("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA jobs FROM PUBLIC").await;
        Self { name }
    }

    async fn grant(&self, db: &PostgresDb, grant: &str) {
        db.sql(grant.replace("{role}", &self.name)).await;
    }

    fn fence(&self, db: &PostgresDb) -> fence_runtime::FenceBuilder<Postgres> {
        let options = |who: &str| db.options(who).username(&self.name).password("secret");
        Fence::builder(PgPoolOptions::new().max_connections(2).connect_lazy_with(options(POOL)))
            .keeper_options(options(KEEPER))
            .schema("jobs")
    }

    /// The server keeps roles; this one's database is about to go.
    async fn gone(self, db: &PostgresDb) {
        nothing_is_left(db, "the role goes").await;
        db.sql(format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name)).await;
    }
}

async fn the_documented_privileges_are_enough(db: PostgresDb) {
    let role = Role::new(&db).await;
    for grant in GRANTS {
        role.grant(&db, grant).await;
    }
    let fence = role.fence(&db).build().await.unwrap();
    works(&fence, "a plain role").await;
    drop(fence);
    // The migrations have run already: there is nothing to do, and nothing that it may not.
    role.grant(&db, "GRANT SELECT ON jobs.fenced_job_migrations TO {role}").await;
    works(&role.fence(&db).migrate().build().await.unwrap(), "a plain role that would migrate").await;
    role.gone(&db).await;
}

async fn each_missing_privilege_is_named(db: PostgresDb) {
    let role = Role::new(&db).await;
    for grant in GRANTS {
        role.grant(&db, grant).await;
    }
    for (revoke, says) in [
        ("REVOKE SELECT ON jobs.fenced_job_leases FROM {role}", "fenced_job_leases"),
        ("REVOKE INSERT ON jobs.fenced_job_leases FROM {role}", "fenced_job_leases"),
        ("REVOKE UPDATE ON jobs.fenced_job_leases FROM {role}", "fenced_job_leases"),
        ("REVOKE ALL ON jobs.fenced_job_leases FROM {role}", "fenced_job_leases"),
        ("REVOKE ALL ON FUNCTION jobs.fence_begin_v1(text,text,bigint,text,text,text) FROM {role}", "fence_begin_v1"),
        ("REVOKE USAGE ON SCHEMA jobs FROM {role}", "jobs"),
    ] {
        role.grant(&db, revoke).await;
        let error = role.fence(&db).build().await.map(drop).expect_err(revoke);
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains(says), "{revoke}: {error}");
        nothing_is_left(&db, revoke).await;
        let fixes = fixes(&error);
        assert!(fixes.len() == 1 && fixes[0].starts_with("GRANT") && fixes[0].ends_with("TO …"), "{revoke}: {error}");
        role.grant(&db, &fixes[0].replace('…', "{role}")).await;
        let fence = role.fence(&db).build().await.unwrap_or_else(|error| panic!("{revoke}: {error}"));
        works(&fence, revoke).await;
    }
    role.gone(&db).await;
}

async fn a_keeper_of_another_role(db: PostgresDb) {
    let role = Role::new(&db).await;
    role.grant(&db, GRANTS[0]).await;
    let keeper = db.options(KEEPER).username(&role.name).password("secret");
    let error = builder(&db).schema("jobs").keeper_options(keeper.clone()).build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("GRANT"), "{error}");
    for grant in GRANTS {
        role.grant(&db, grant).await;
    }
    let fence = builder(&db).schema("jobs").keeper_options(keeper).build().await.unwrap();
    works(&fence, "a keeper of another role").await;
    drop(fence);
    role.gone(&db).await;
}

async fn who_may_not_create_cannot_migrate(db: PostgresDb) {
    let role = Role::new(&db).await;
    let error = role.fence(&db).schema("others").migrate().build().await.unwrap_err();
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::Schema && text.contains("permission denied"), "{error}");
    assert!(text.contains("`migrate::steps`") && text.contains("without `.migrate()`"), "{error}");
    nothing_is_left(&db, "no migration").await;
    role.gone(&db).await;
}

/// Read-only by default is no obstacle: every statement of fence says what it does.
async fn a_role_that_only_reads_by_default(db: PostgresDb) {
    let role = Role::new(&db).await;
    for grant in GRANTS {
        role.grant(&db, grant).await;
    }
    role.grant(&db, "ALTER ROLE {role} SET default_transaction_read_only = on").await;
    let fence = role.fence(&db).build().await.unwrap();
    works(&fence, "read-only by default").await;
    // And it stays so for whoever gets the connection next.
    let pool = fence.unfenced("its settings");
    let on =
        fence_tests::app::on::<PostgresDb>(&mut *pool.acquire().await.unwrap(), "SHOW default_transaction_read_only")
            .await;
    assert_eq!(on.unwrap().text().as_deref(), Some("on"));
    drop((pool, fence));
    role.gone(&db).await;
}
