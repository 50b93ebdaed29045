//! PostgreSQL: what a statement only reads is locked at no level. The term of A ends by an UPDATE of `leased_until` from a
//! session of its own.

use fence_tests::{
    servers::{PostgresDb, TestDb, postgres},
    stepper::{Session, Step},
};

const LEASES: &str = "
    CREATE TABLE leases (lease_name text PRIMARY KEY, owner_token text, fence_token bigint, leased_until timestamptz);
    INSERT INTO leases VALUES ('job', 'a', 1, clock_timestamp() + interval '1 hour');";
const RUNS: &str = "
    CREATE TABLE runs (run_id bigint PRIMARY KEY, status text, fence_token bigint, note text);
    INSERT INTO runs VALUES (1, 'running', 1, '');
    CREATE TABLE results (run_id bigint, fence_token bigint);
    CREATE TABLE drafts (run_id bigint PRIMARY KEY);
    INSERT INTO drafts VALUES (1);";

const EXPIRE: &str = "UPDATE leases SET leased_until = 'epoch' WHERE lease_name = 'job'";
/// As fence does it. What loses is the check, not the takeover.
const TAKE_OVER: &str = "
    WITH expired AS MATERIALIZED (
      SELECT lease_name FROM leases WHERE lease_name = 'job' AND leased_until <= clock_timestamp() FOR UPDATE SKIP LOCKED)
    UPDATE leases l SET owner_token = 'b', fence_token = l.fence_token + 1,
           leased_until = clock_timestamp() + interval '1 hour'
      FROM expired WHERE l.lease_name = expired.lease_name";

const READ_COMMITTED: &str = "READ COMMITTED";
const REPEATABLE_READ: &str = "REPEATABLE READ";
const SERIALIZABLE: &str = "SERIALIZABLE";

/// A write of the old owner: its SQL, and a query that is true once it has happened.
#[derive(Clone, Copy)]
struct Write {
    sql: &'static str,
    happened: &'static str,
}

const STATUS: &str = "SELECT count(*) FROM runs WHERE status = 'done by a' AND fence_token = 1";

const UPDATE_FROM_NOW: Write = Write {
    sql: "UPDATE runs r SET status = 'done by a', fence_token = 1 FROM leases l
           WHERE r.run_id = 1 AND l.lease_name = 'job' AND l.owner_token = 'a' AND l.fence_token = 1
             AND l.leased_until > now()",
    happened: STATUS,
};
const UPDATE_FROM_STATEMENT_TIMESTAMP: Write = Write {
    sql: "UPDATE runs r SET status = 'done by a', fence_token = 1 FROM leases l
           WHERE r.run_id = 1 AND l.lease_name = 'job' AND l.owner_token = 'a' AND l.fence_token = 1
             AND l.leased_until > statement_timestamp()",
    happened: STATUS,
};
const UPDATE_FROM_CLOCK_TIMESTAMP: Write = Write {
    sql: "UPDATE runs r SET status = 'done by a', fence_token = 1 FROM leases l
           WHERE r.run_id = 1 AND l.lease_name = 'job' AND l.owner_token = 'a' AND l.fence_token = 1
             AND l.leased_until > clock_timestamp()",
    happened: STATUS,
};
const UPDATE_EXISTS: Write = Write {
    sql: "UPDATE runs SET status = 'done by a', fence_token = 1
           WHERE run_id = 1 AND EXISTS (SELECT 1 FROM leases WHERE lease_name = 'job' AND owner_token = 'a'
             AND fence_token = 1 AND leased_until > clock_timestamp())",
    happened: STATUS,
};
const UPDATE_SCALAR: Write = Write {
    sql: "UPDATE runs SET status = 'done by a', fence_token = 1
           WHERE run_id = 1 AND 1 = (SELECT fence_token FROM leases WHERE lease_name = 'job' AND owner_token = 'a'
             AND leased_until > clock_timestamp())",
    happened: STATUS,
};
/// With the token of the target row compared as well: B has not touched that row yet.
const UPDATE_EXISTS_AND_TOKEN: Write = Write {
    sql: "UPDATE runs SET status = 'done by a', fence_token = 1
           WHERE run_id = 1 AND fence_token = 1 AND EXISTS (SELECT 1 FROM leases WHERE lease_name = 'job'
             AND owner_token = 'a' AND fence_token = 1 AND leased_until > clock_timestamp())",
    happened: STATUS,
};
const INSERT_EXISTS: Write = Write {
    sql: "INSERT INTO results SELECT 1, 1 WHERE EXISTS (SELECT 1 FROM leases WHERE lease_name = 'job'
             AND owner_token = 'a' AND fence_token = 1 AND leased_until > clock_timestamp())",
    happened: "SELECT count(*) FROM results WHERE fence_token = 1",
};
const DELETE_EXISTS: Write = Write {
    sql: "DELETE FROM drafts WHERE run_id = 1 AND EXISTS (SELECT 1 FROM leases WHERE lease_name = 'job'
             AND owner_token = 'a' AND fence_token = 1 AND leased_until > clock_timestamp())",
    happened: "SELECT 1 - count(*) FROM drafts",
};
/// For `i4`: the check is a statement of its own.
const UPDATE_UNCHECKED: Write =
    Write { sql: "UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1", happened: STATUS };
const CHECK: &str = "SELECT count(*) FROM leases WHERE lease_name = 'job' AND owner_token = 'a' AND fence_token = 1
                        AND leased_until > clock_timestamp()";

/// The database and its actors.
struct Stage {
    db: PostgresDb,
    write: Write,
    a: Session,
    b: Session,
    c: Session,
    expirer: Session,
}

impl Stage {
    /// A's transaction is open.
    async fn set(isolation: &str, write: Write) -> Option<Self> {
        let db = postgres().await?;
        db.sql(format!("{LEASES} {RUNS}")).await;
        let (mut a, b, c) = (db.session("a").await, db.session("b").await, db.session("c").await);
        a.ok(format!("BEGIN ISOLATION LEVEL {isolation}")).await;
        let expirer = db.session("expirer").await;
        Some(Self { db, write, a, b, c, expirer })
    }

    /// A's term ends and B takes over. Both are committed when this returns: nothing of A keeps them waiting.
    async fn take_over(&mut self) {
        assert_eq!(self.expirer.ok(EXPIRE).await.rows, 1);
        assert_eq!(self.b.ok(TAKE_OVER).await.rows, 1);
        assert_eq!(self.db.int("SELECT fence_token FROM leases").await, 2);
    }

    /// A commits now: after the takeover. Its write is there.
    async fn a_commits_and_the_fence_has_lost(mut self) {
        assert_eq!(self.db.int(self.write.happened).await, 0, "the write is not committed before");
        self.a.ok("COMMIT").await;
        assert_eq!(self.db.int(self.write.happened).await, 1, "the stale write has landed");
        assert_eq!(self.db.int("SELECT fence_token FROM leases").await, 2);
    }

    /// A's write waits for C, who has the target row by this statement; B takes over meanwhile; C commits.
    async fn behind_c(&mut self, holds: &str) -> Step {
        self.c.ok(format!("BEGIN; {holds}")).await;
        let mut write = self.a.start(self.write.sql);
        write.blocked_by(&self.c).await;
        self.take_over().await;
        write.blocked_by(&self.c).await;
        self.c.ok("COMMIT").await;
        write
    }
}

async fn i1upd(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    let write = stage.behind_c("UPDATE runs SET note = 'c' WHERE run_id = 1").await;
    assert_eq!(write.ok().await.rows, 1);
    stage.a_commits_and_the_fence_has_lost().await;
}

async fn i1lck(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    let holds = "SELECT 1 FROM runs WHERE run_id = 1 FOR UPDATE; SELECT 1 FROM drafts WHERE run_id = 1 FOR UPDATE";
    let write = stage.behind_c(holds).await;
    assert_eq!(write.ok().await.rows, 1);
    stage.a_commits_and_the_fence_has_lost().await;
}

async fn i2(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    stage.b.ok("BEGIN; SELECT 1 FROM runs WHERE run_id = 1 FOR UPDATE").await;
    let mut write = stage.a.start(stage.write.sql);
    write.blocked_by(&stage.b).await;
    assert_eq!(stage.expirer.ok(EXPIRE).await.rows, 1);
    assert_eq!(stage.b.ok(TAKE_OVER).await.rows, 1);
    stage.b.ok("UPDATE runs SET status = 'done by b', fence_token = 2 WHERE run_id = 1").await;
    write.blocked_by(&stage.b).await;
    stage.b.ok("COMMIT").await;
    assert_eq!(write.ok().await.rows, 1, "A has overwritten what B wrote");
    stage.a_commits_and_the_fence_has_lost().await;
}

async fn i3(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    assert_eq!(stage.a.ok(stage.write.sql).await.rows, 1);
    stage.take_over().await;
    stage.a_commits_and_the_fence_has_lost().await;
}

async fn i4(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    assert_eq!(stage.a.ok(CHECK).await.int(), 1);
    stage.take_over().await;
    assert_eq!(stage.a.ok(stage.write.sql).await.rows, 1);
    stage.a_commits_and_the_fence_has_lost().await;
}

async fn i5(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    stage.a.ok("SELECT * FROM runs").await;
    stage.take_over().await;
    assert_eq!(stage.a.ok(stage.write.sql).await.rows, 1);
    stage.a_commits_and_the_fence_has_lost().await;
}

macro_rules! cells {
    ($($name:ident: $interleaving:ident($isolation:expr, $write:expr);)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                $interleaving($isolation, $write).await;
            }
        )+
    };
}

cells! {
    control_loses_postgres_read_committed_update_from_now_i1upd: i1upd(READ_COMMITTED, UPDATE_FROM_NOW);
    control_loses_postgres_read_committed_update_from_now_i1lck: i1lck(READ_COMMITTED, UPDATE_FROM_NOW);
    control_loses_postgres_read_committed_update_from_now_i3: i3(READ_COMMITTED, UPDATE_FROM_NOW);
    control_loses_postgres_repeatable_read_update_from_now_i1lck: i1lck(REPEATABLE_READ, UPDATE_FROM_NOW);
    control_loses_postgres_repeatable_read_update_from_now_i3: i3(REPEATABLE_READ, UPDATE_FROM_NOW);
    control_loses_postgres_repeatable_read_update_from_now_i5: i5(REPEATABLE_READ, UPDATE_FROM_NOW);
    control_loses_postgres_serializable_update_from_now_i1lck: i1lck(SERIALIZABLE, UPDATE_FROM_NOW);
    control_loses_postgres_serializable_update_from_now_i3: i3(SERIALIZABLE, UPDATE_FROM_NOW);

    control_loses_postgres_read_committed_update_from_statement_timestamp_i1upd:
        i1upd(READ_COMMITTED, UPDATE_FROM_STATEMENT_TIMESTAMP);
    control_loses_postgres_read_committed_update_from_statement_timestamp_i1lck:
        i1lck(READ_COMMITTED, UPDATE_FROM_STATEMENT_TIMESTAMP);
    control_loses_postgres_read_committed_update_from_statement_timestamp_i3:
        i3(READ_COMMITTED, UPDATE_FROM_STATEMENT_TIMESTAMP);

    control_loses_postgres_read_committed_update_from_clock_timestamp_i1lck:
        i1lck(READ_COMMITTED, UPDATE_FROM_CLOCK_TIMESTAMP);
    control_loses_postgres_read_committed_update_from_clock_timestamp_i3:
        i3(READ_COMMITTED, UPDATE_FROM_CLOCK_TIMESTAMP);
    control_loses_postgres_repeatable_read_update_from_clock_timestamp_i1lck:
        i1lck(REPEATABLE_READ, UPDATE_FROM_CLOCK_TIMESTAMP);
    control_loses_postgres_repeatable_read_update_from_clock_timestamp_i3:
        i3(REPEATABLE_READ, UPDATE_FROM_CLOCK_TIMESTAMP);
    control_loses_postgres_serializable_update_from_clock_timestamp_i1lck:
        i1lck(SERIALIZABLE, UPDATE_FROM_CLOCK_TIMESTAMP);
    control_loses_postgres_serializable_update_from_clock_timestamp_i3:
        i3(SERIALIZABLE, UPDATE_FROM_CLOCK_TIMESTAMP);

    control_loses_postgres_read_committed_exists_i1upd: i1upd(READ_COMMITTED, UPDATE_EXISTS);
    control_loses_postgres_read_committed_exists_i1lck: i1lck(READ_COMMITTED, UPDATE_EXISTS);
    control_loses_postgres_read_committed_exists_i2: i2(READ_COMMITTED, UPDATE_EXISTS);
    control_loses_postgres_read_committed_exists_i3: i3(READ_COMMITTED, UPDATE_EXISTS);
    control_loses_postgres_repeatable_read_exists_i1lck: i1lck(REPEATABLE_READ, UPDATE_EXISTS);
    control_loses_postgres_repeatable_read_exists_i3: i3(REPEATABLE_READ, UPDATE_EXISTS);
    control_loses_postgres_serializable_exists_i1lck: i1lck(SERIALIZABLE, UPDATE_EXISTS);
    control_loses_postgres_serializable_exists_i3: i3(SERIALIZABLE, UPDATE_EXISTS);

    control_loses_postgres_read_committed_scalar_i1upd: i1upd(READ_COMMITTED, UPDATE_SCALAR);
    control_loses_postgres_read_committed_scalar_i1lck: i1lck(READ_COMMITTED, UPDATE_SCALAR);
    control_loses_postgres_read_committed_scalar_i2: i2(READ_COMMITTED, UPDATE_SCALAR);
    control_loses_postgres_read_committed_scalar_i3: i3(READ_COMMITTED, UPDATE_SCALAR);
    control_loses_postgres_repeatable_read_scalar_i1lck: i1lck(REPEATABLE_READ, UPDATE_SCALAR);
    control_loses_postgres_repeatable_read_scalar_i3: i3(REPEATABLE_READ, UPDATE_SCALAR);
    control_loses_postgres_serializable_scalar_i1lck: i1lck(SERIALIZABLE, UPDATE_SCALAR);
    control_loses_postgres_serializable_scalar_i3: i3(SERIALIZABLE, UPDATE_SCALAR);

    control_loses_postgres_read_committed_exists_and_token_i1upd: i1upd(READ_COMMITTED, UPDATE_EXISTS_AND_TOKEN);
    control_loses_postgres_read_committed_exists_and_token_i1lck: i1lck(READ_COMMITTED, UPDATE_EXISTS_AND_TOKEN);
    control_loses_postgres_read_committed_exists_and_token_i3: i3(READ_COMMITTED, UPDATE_EXISTS_AND_TOKEN);
    control_loses_postgres_repeatable_read_exists_and_token_i1lck: i1lck(REPEATABLE_READ, UPDATE_EXISTS_AND_TOKEN);
    control_loses_postgres_repeatable_read_exists_and_token_i3: i3(REPEATABLE_READ, UPDATE_EXISTS_AND_TOKEN);
    control_loses_postgres_serializable_exists_and_token_i1lck: i1lck(SERIALIZABLE, UPDATE_EXISTS_AND_TOKEN);
    control_loses_postgres_serializable_exists_and_token_i3: i3(SERIALIZABLE, UPDATE_EXISTS_AND_TOKEN);

    control_loses_postgres_read_committed_insert_i3: i3(READ_COMMITTED, INSERT_EXISTS);
    control_loses_postgres_repeatable_read_insert_i3: i3(REPEATABLE_READ, INSERT_EXISTS);
    control_loses_postgres_serializable_insert_i3: i3(SERIALIZABLE, INSERT_EXISTS);
    control_loses_postgres_read_committed_delete_i1lck: i1lck(READ_COMMITTED, DELETE_EXISTS);
    control_loses_postgres_repeatable_read_delete_i1lck: i1lck(REPEATABLE_READ, DELETE_EXISTS);
    control_loses_postgres_serializable_delete_i1lck: i1lck(SERIALIZABLE, DELETE_EXISTS);
    control_loses_postgres_read_committed_delete_i3: i3(READ_COMMITTED, DELETE_EXISTS);
    control_loses_postgres_repeatable_read_delete_i3: i3(REPEATABLE_READ, DELETE_EXISTS);
    control_loses_postgres_serializable_delete_i3: i3(SERIALIZABLE, DELETE_EXISTS);

    control_loses_postgres_read_committed_check_then_write_i4: i4(READ_COMMITTED, UPDATE_UNCHECKED);
    control_loses_postgres_repeatable_read_check_then_write_i4: i4(REPEATABLE_READ, UPDATE_UNCHECKED);
    control_loses_postgres_serializable_check_then_write_i4: i4(SERIALIZABLE, UPDATE_UNCHECKED);
}

/// The stepper does not simply say "lost" to everything: here the database saves the naive form, by an error.
async fn is_saved_i1upd(isolation: &str, write: Write) {
    let Some(mut stage) = Stage::set(isolation, write).await else { return };
    let write = stage.behind_c("UPDATE runs SET note = 'c' WHERE run_id = 1").await;
    assert_eq!(write.answer().await.unwrap_err().code, "40001");
    stage.a.ok("ROLLBACK").await;
    assert_eq!(stage.db.int(STATUS).await, 0);
}

cells! {
    control_is_saved_postgres_repeatable_read_update_from_now_i1upd: is_saved_i1upd(REPEATABLE_READ, UPDATE_FROM_NOW);
    control_is_saved_postgres_serializable_update_from_now_i1upd: is_saved_i1upd(SERIALIZABLE, UPDATE_FROM_NOW);
}
