//! MySQL and MariaDB: users who may too little, and where the tables are.

use fence_runtime::{Error, ErrorKind, Fence};
use fence_tests::{
    conformance,
    servers::{InnoDb, TestDb},
};
use sqlx::{MySql, mysql::MySqlPoolOptions};

use super::{fixes_of, migrated};
use crate::{KEEPER, POOL, builder, works};

conformance! { on mysql, mariadb:
    the_documented_privileges_are_enough,
    each_missing_privilege_is_named,
    a_session_without_a_database,
    the_documented_privileges_to_migrate_are_enough,
    a_schema_by_name,
}

/// All that a user needs besides reaching the server.
const GRANTS: [&str; 3] = [
    "GRANT SELECT, INSERT, UPDATE ON fenced_job_leases TO {user}",
    "GRANT EXECUTE ON PROCEDURE fence_begin_v1 TO {user}",
    "GRANT EXECUTE ON PROCEDURE fence_end_v1 TO {user}",
];

/// A user of this test alone, who may do nothing; and options by which it connects.
struct User(String);

impl User {
    async fn new<const M: bool>(db: &InnoDb<M>) -> Self {
        migrated(db).await;
        let name = format!("u{}", db.name());
        db.sql(format!("CREATE USER '{name}'@'%' IDENTIFIED BY 'Secret-1'")).await;
        let user = Self(format!("'{name}'@'%'"));
        for grant in GRANTS {
            user.grant(db, grant).await;
        }
        user
    }

    async fn grant<const M: bool>(&self, db: &InnoDb<M>, grant: &str) {
        db.sql(grant.replace("{user}", &self.0)).await;
    }

    async fn build<const M: bool>(&self, db: &InnoDb<M>) -> Result<Fence<MySql>, Error> {
        let options = |who| db.options(who).username(self.0.split('\'').nth(1).unwrap()).password("Secret-1");
        let pool = MySqlPoolOptions::new().max_connections(2).connect_lazy_with(options(POOL));
        Fence::builder(pool).keeper_options(options(KEEPER)).build().await
    }
}

async fn the_documented_privileges_are_enough<const M: bool>(db: InnoDb<M>) {
    let user = User::new(&db).await;
    works(&user.build(&db).await.unwrap(), "a plain user").await;
    user.grant(&db, "DROP USER {user}").await;
}

async fn each_missing_privilege_is_named<const M: bool>(db: InnoDb<M>) {
    let user = User::new(&db).await;
    for (revoke, says) in [
        ("REVOKE SELECT ON fenced_job_leases FROM {user}", "fenced_job_leases"),
        ("REVOKE INSERT ON fenced_job_leases FROM {user}", "fenced_job_leases"),
        ("REVOKE UPDATE ON fenced_job_leases FROM {user}", "fenced_job_leases"),
        ("REVOKE EXECUTE ON PROCEDURE fence_begin_v1 FROM {user}", "fence_begin_v1"),
        ("REVOKE EXECUTE ON PROCEDURE fence_end_v1 FROM {user}", "fence_end_v1"),
    ] {
        user.grant(&db, revoke).await;
        let error = user.build(&db).await.map(drop).expect_err(revoke);
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains(says), "{revoke}: {error}");
        let fix = fixes_of(&error).remove(0);
        let fix = fix.split('…').next().unwrap();
        assert!(fix.starts_with("GRANT ") && fix.ends_with(" TO "), "{revoke}: {error}");
        user.grant(&db, &format!("{fix}{{user}}")).await;
        let fence = user.build(&db).await.unwrap_or_else(|error| panic!("{revoke}: {error}"));
        works(&fence, revoke).await;
    }
    user.grant(&db, "DROP USER {user}").await;
}

async fn a_session_without_a_database<const M: bool>(db: InnoDb<M>) {
    // As the administrator, whose URL we have.
    let (host, _) = db.url().rsplit_once('/').unwrap();
    let pool = || MySqlPoolOptions::new().max_connections(2).connect_lazy_with(host.parse().unwrap());
    migrated(&db).await;
    let error = Fence::builder(pool()).build().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("no current database"), "{error}");
    // Nor is it enough to name one: MySQL would refuse every renewal.
    for builder in [Fence::builder(pool()).schema(db.name()), Fence::builder(pool()).schema(db.name()).migrate()] {
        let error = builder.build().await.unwrap_err();
        assert!(error.to_string().contains("no current database"), "{error}");
    }
    let error = builder(&db).keeper_options(host.parse().unwrap()).build().await.unwrap_err();
    assert!(error.to_string().contains("no current database"), "{error}");
}

async fn a_schema_by_name<const M: bool>(db: InnoDb<M>) {
    // Hyphens and spaces are in many names of databases there.
    let other = format!("{} my-Jobs", db.name());
    db.sql(format!("CREATE DATABASE IF NOT EXISTS `{other}`")).await;
    let here = builder(&db).migrate().build().await.unwrap();
    let there = builder(&db).schema(&*other).table_prefix("x_").migrate().build().await.unwrap();
    works(&here, "the current database").await;
    works(&there, "another one").await;
    assert_eq!(db.int(format!("SELECT count(*) FROM `{other}`.x_fenced_job_leases")).await, 1);
    assert_eq!(db.int("SELECT count(*) FROM fenced_job_leases").await, 1);
    // Where it is the current one, it is named all the same.
    let current = db.options("a").database(&other);
    let fence = Fence::builder(MySqlPoolOptions::new().connect_lazy_with(current)).table_prefix("x_").build().await;
    works(&fence.unwrap(), "as the current one").await;
    db.sql(format!("DROP DATABASE `{other}`")).await;
}

/// Of who runs `.migrate()`, in its database only.
async fn the_documented_privileges_to_migrate_are_enough<const M: bool>(db: InnoDb<M>) {
    let name = format!("m{}", db.name());
    db.sql(format!(
        "CREATE USER '{name}'@'%' IDENTIFIED BY 'Secret-1'; \
         GRANT SELECT, INSERT, UPDATE, EXECUTE, CREATE, DROP, CREATE VIEW, CREATE ROUTINE, ALTER ROUTINE ON `{}`.* TO '{name}'@'%'",
        db.name()
    ))
    .await;
    let options = |who| db.options(who).username(&name).password("Secret-1");
    for _ in 0..2 {
        let pool = MySqlPoolOptions::new().max_connections(2).connect_lazy_with(options(POOL));
        let fence = Fence::builder(pool).keeper_options(options(KEEPER)).migrate().build().await;
        works(&fence.unwrap_or_else(|error| panic!("{error}")), "a user who migrates").await;
    }
    db.sql(format!("DROP USER '{name}'@'%'")).await;
}
