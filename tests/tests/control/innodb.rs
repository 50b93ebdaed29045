//! MySQL and MariaDB. Here it depends on the form, the level and the server whether a statement locks what it only reads.

use fence_tests::{
    servers::{InnoDb, MariaDb, MySqlDb, TestDb, block_on, on},
    stepper::{Answer, Session, Step},
};

const TABLES: &str = "
    CREATE TABLE leases (lease_name varbinary(190) PRIMARY KEY, owner_token varbinary(64), fence_token bigint,
      leased_until bigint, UNIQUE KEY uq_fence (lease_name, fence_token, owner_token));
    INSERT INTO leases VALUES ('job', 'a', 1, 4102444800000000);
    CREATE TABLE runs (run_id bigint PRIMARY KEY, status text, fence_token bigint, note text);
    INSERT INTO runs VALUES (1, 'running', 1, '');
    CREATE TABLE results (run_id bigint, fence_token bigint);
    CREATE TABLE drafts (run_id bigint PRIMARY KEY);
    INSERT INTO drafts VALUES (1);";

/// Whether A's term has ended makes no difference to any lock: B takes over as if it had.
const TAKE_OVER: &str = "UPDATE leases FORCE INDEX (PRIMARY) SET owner_token = 'b', fence_token = 2
                          WHERE lease_name = 'job' AND fence_token = 1";
const HEARTBEAT: &str = "UPDATE leases FORCE INDEX (PRIMARY) SET leased_until = leased_until + 1
                          WHERE lease_name = 'job' AND owner_token = 'a' AND fence_token = 1";

/// How A's write is fenced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Form {
    /// A statement of its own, before the write, that says 1.
    check: &'static str,
    write: &'static str,
    happened: &'static str,
}

const STATUS: &str = "SELECT count(*) FROM runs WHERE status = 'done by a' AND fence_token = 1";

macro_rules! live {
    () => {
        "lease_name = 'job' AND owner_token = 'a' AND fence_token = 1
           AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    };
}

const fn update(write: &'static str) -> Form {
    Form { check: "SELECT 1", write, happened: STATUS }
}

const fn after(check: &'static str) -> Form {
    Form { check, ..update("UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1") }
}

const CHECK_THEN_WRITE: Form = after(concat!("SELECT count(*) FROM leases WHERE ", live!()));
const EXISTS: Form = update(concat!(
    "UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1
        AND EXISTS (SELECT 1 FROM leases WHERE ",
    live!(),
    ")"
));
const IN: Form = update(concat!(
    "UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1
        AND fence_token IN (SELECT fence_token FROM leases WHERE ",
    live!(),
    ")"
));
const SCALAR: Form = update(concat!(
    "UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1
        AND 1 = (SELECT fence_token FROM leases WHERE ",
    live!(),
    ")"
));
const EXISTS_LOCKED: Form = update(concat!(
    "UPDATE runs SET status = 'done by a', fence_token = 1 WHERE run_id = 1
        AND EXISTS (SELECT 1 FROM leases WHERE ",
    live!(),
    " LOCK IN SHARE MODE)"
));
const INSERT_EXISTS: Form = Form {
    check: "SELECT 1",
    write: concat!("INSERT INTO results SELECT 1, 1 FROM DUAL WHERE EXISTS (SELECT 1 FROM leases WHERE ", live!(), ")"),
    happened: "SELECT count(*) FROM results WHERE fence_token = 1",
};
const DELETE_EXISTS: Form = Form {
    check: "SELECT 1",
    write: concat!("DELETE FROM drafts WHERE run_id = 1 AND EXISTS (SELECT 1 FROM leases WHERE ", live!(), ")"),
    happened: "SELECT 1 - count(*) FROM drafts",
};
/// The article's own.
const JOIN: Form = update(
    "UPDATE runs r JOIN leases l ON l.lease_name = 'job' SET r.status = 'done by a', r.fence_token = 1
      WHERE r.run_id = 1 AND l.owner_token = 'a' AND l.fence_token = 1
        AND l.leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
);
const ROW_LOCK: Form = after(concat!("SELECT count(*) FROM leases WHERE ", live!(), " LOCK IN SHARE MODE"));
const TOUCH: Form = after(
    "UPDATE leases FORCE INDEX (PRIMARY) SET leased_until = leased_until + 1 WHERE lease_name = 'job'; SELECT ROW_COUNT()",
);
/// What fence does.
const FENCE: Form = after(
    "SELECT count(fence_token) FROM leases FORCE INDEX (uq_fence)
      WHERE lease_name = 'job' AND fence_token = 1 AND owner_token = 'a' LOCK IN SHARE MODE",
);

/// What has become of A's write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was committed after the takeover was.
    Lost,
    /// The takeover waits for A's transaction.
    TakeoverWaits,
    /// It finds another token, and changes nothing.
    NothingWritten,
    /// It is an error: of MariaDB, whose snapshot is older than the row, or the victim of a deadlock.
    Refused(&'static str),
}
use Outcome::{Lost, NothingWritten, Refused, TakeoverWaits};

/// Where the takeover comes, see above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    I1upd,
    I1lck,
    I2,
    I3,
    I4,
    I5,
}
use At::{I1lck, I1upd, I2, I3, I4, I5};

struct Stage<const M: bool> {
    db: InnoDb<M>,
    form: Form,
    a: Session,
    b: Session,
    c: Session,
}

impl<const M: bool> Stage<M> {
    /// A's transaction is open.
    async fn set(db: InnoDb<M>, level: &str, form: Form) -> Self {
        db.sql(TABLES).await;
        let (mut a, b, c) = (db.session("a").await, db.session("b").await, db.session("c").await);
        a.ok(format!("SET TRANSACTION ISOLATION LEVEL {level}; START TRANSACTION")).await;
        Self { db, form, a, b, c }
    }

    async fn play(mut self, at: At) -> Outcome {
        const LOCK: &str = "BEGIN; SELECT 1 FROM runs FOR UPDATE; SELECT 1 FROM drafts FOR UPDATE";
        match at {
            I1upd => self.behind_c("BEGIN; UPDATE runs SET note = 'c' WHERE run_id = 1").await,
            I1lck => self.behind_c(LOCK).await,
            I2 => {
                self.b.ok(LOCK).await;
                self.check().await;
                let mut write = self.a.start(self.form.write);
                write.blocked_by(&self.b).await;
                let takeover = self.b.run(TAKE_OVER).await;
                assert_eq!(takeover.map(|done| done.rows), Ok(1));
                self.b.ok("UPDATE runs SET status = 'done by b', fence_token = 2 WHERE run_id = 1; COMMIT").await;
                let written = write.answer().await;
                self.ends(written).await
            }
            I3 => {
                self.check().await;
                let written = self.a.run(self.form.write).await;
                match self.takeover().await {
                    None => self.ends(written).await,
                    Some(waits) => self.comes_first(waits).await,
                }
            }
            I4 | I5 => {
                match at {
                    I4 => self.check().await,
                    // A's snapshot is older than the takeover.
                    _ => _ = self.a.ok("SELECT * FROM runs").await,
                }
                match self.takeover().await {
                    None => {
                        let written = self.a.run(self.form.write).await;
                        self.ends(written).await
                    }
                    Some(waits) => {
                        assert_eq!(self.a.ok(self.form.write).await.rows, 1);
                        self.comes_first(waits).await
                    }
                }
            }
        }
    }

    /// A's write waits for C, who has the target row by this statement.
    async fn behind_c(mut self, holds: &str) -> Outcome {
        self.c.ok(holds).await;
        self.check().await;
        let mut write = self.a.start(self.form.write);
        write.blocked_by(&self.c).await;
        let takeover = self.takeover().await;
        self.c.ok("COMMIT").await;
        let written = write.answer().await;
        match takeover {
            None => self.ends(written).await,
            Some(waits) => self.comes_first(waits).await,
        }
    }

    async fn check(&mut self) {
        assert_eq!(self.a.ok(self.form.check).await.int(), 1);
    }

    /// B takes over, or waits for A.
    async fn takeover(&mut self) -> Option<Step> {
        let mut takeover = self.b.start(TAKE_OVER);
        if goes_through(&mut takeover, &self.b, &self.db).await {
            assert_eq!(takeover.ok().await.rows, 1);
            return None;
        }
        takeover.blocked_by(&self.a).await;
        Some(takeover)
    }

    /// A has written and commits, and only then B takes over.
    async fn comes_first(mut self, takeover: Step) -> Outcome {
        assert_eq!(self.db.int("SELECT fence_token FROM leases").await, 1);
        self.a.ok("COMMIT").await;
        assert_eq!(takeover.ok().await.rows, 1);
        TakeoverWaits
    }

    /// B has taken over; then A commits what it has written.
    async fn ends(mut self, written: Answer) -> Outcome {
        assert_eq!(self.db.int("SELECT fence_token FROM leases").await, 2);
        assert_eq!(self.db.int(self.form.happened).await, 0, "the write is not committed before");
        let outcome = match written {
            Err(refused) if refused.code == "1020" => Refused("1020"),
            Err(refused) if refused.code == "1213" => Refused("1213"),
            Err(refused) => panic!("{refused}"),
            Ok(done) if done.rows == 0 => NothingWritten,
            Ok(_) => Lost,
        };
        self.a.ok("COMMIT").await;
        assert_eq!(self.db.int(self.form.happened).await == 1, outcome == Lost, "{outcome:?}");
        outcome
    }
}

async fn goes_through<const M: bool>(step: &mut Step, who: &Session, db: &InnoDb<M>) -> bool {
    loop {
        if step.is_finished() {
            return true;
        }
        if db.view().is_blocked(who.pid()).await {
            return false;
        }
    }
}

const READ_COMMITTED: &str = "READ COMMITTED";
const REPEATABLE_READ: &str = "REPEATABLE READ";
const SERIALIZABLE: &str = "SERIALIZABLE";

macro_rules! cells {
    ($($on:ident $form:ident [$($level:ident),+] [$($at:ident),+] => $outcome:expr;)+) => {
        $(cells! { @levels $on $form [$($level),+] [$($at),+] $outcome })+
    };
    (@levels both $form:ident $levels:tt $ats:tt $outcome:expr) => {
        cells! { @levels mysql $form $levels $ats $outcome }
        cells! { @levels mariadb $form $levels $ats $outcome }
    };
    (@levels $on:ident $form:ident [$($level:ident),+] $ats:tt $outcome:expr) => {
        $(cells! { @ats $on $form $level $ats $outcome })+
    };
    (@ats mysql $form:ident $level:ident [$($at:ident),+] $outcome:expr) => {
        $(cells! { @cell mysql MySqlDb $form $level $at $outcome })+
    };
    (@ats mariadb $form:ident $level:ident [$($at:ident),+] $outcome:expr) => {
        $(cells! { @cell mariadb MariaDb $form $level $at $outcome })+
    };
    (@cell $on:ident $db:ident $form:ident $level:ident $at:ident $outcome:expr) => {
        pastey::paste! {
            #[test]
            fn [<$on _ $level:lower _ $form:lower _ $at:lower>]() {
                block_on(on::<$db, _>(async |db| {
                    assert_eq!(Stage::set(db, $level, $form).await.play($at).await, $outcome);
                }));
            }
        }
    };
}

mod control_loses {
    use super::*;

    cells! {
        both CHECK_THEN_WRITE [READ_COMMITTED] [I1upd, I1lck, I2, I3, I4] => Lost;
        both CHECK_THEN_WRITE [REPEATABLE_READ] [I1lck, I3, I4] => Lost;
        mysql CHECK_THEN_WRITE [REPEATABLE_READ] [I1upd, I2] => Lost;
        both EXISTS [READ_COMMITTED] [I3] => Lost;
        mariadb EXISTS [READ_COMMITTED] [I1lck] => Lost;
        both IN [READ_COMMITTED] [I3] => Lost;
        both SCALAR [READ_COMMITTED] [I1lck, I3] => Lost;
        mysql SCALAR [READ_COMMITTED] [I1upd, I2] => Lost;
        both INSERT_EXISTS [READ_COMMITTED] [I3] => Lost;
    }
}

/// The same forms where a server locks what they read, reads it again, or will not write on an old snapshot. It takes one
/// other level, or the other server, and they lose.
mod control_is_saved {
    use super::*;

    cells! {
        mariadb CHECK_THEN_WRITE [REPEATABLE_READ] [I1upd, I2] => Refused("1020");
        both CHECK_THEN_WRITE [SERIALIZABLE] [I1lck, I3, I4] => TakeoverWaits;
        mysql EXISTS [READ_COMMITTED] [I1upd, I1lck, I2] => NothingWritten;
        mariadb EXISTS [READ_COMMITTED] [I1upd, I2] => Refused("1020");
        both EXISTS [REPEATABLE_READ, SERIALIZABLE] [I3] => TakeoverWaits;
        both IN [REPEATABLE_READ, SERIALIZABLE] [I3] => TakeoverWaits;
        mariadb SCALAR [READ_COMMITTED] [I1upd, I2] => Refused("1020");
        both SCALAR [REPEATABLE_READ, SERIALIZABLE] [I3] => TakeoverWaits;
        both DELETE_EXISTS [READ_COMMITTED] [I3] => TakeoverWaits;
        both EXISTS_LOCKED [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] [I3] => TakeoverWaits;
        mysql EXISTS [REPEATABLE_READ] [I5] => NothingWritten;
        mariadb EXISTS [REPEATABLE_READ] [I5] => Refused("1020");
    }
}

/// The article's statement is safe on InnoDB, at every level: it locks both rows, whatever it only reads.
mod article {
    use super::*;

    cells! {
        mysql JOIN [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] [I1upd, I1lck, I2, I4, I5] => NothingWritten;
        mariadb JOIN [READ_COMMITTED] [I1upd, I1lck, I2, I4, I5] => NothingWritten;
        mariadb JOIN [REPEATABLE_READ] [I1lck, I4] => NothingWritten;
        mariadb JOIN [SERIALIZABLE] [I4] => NothingWritten;
        mariadb JOIN [SERIALIZABLE] [I1lck] => Refused("1020");
        mariadb JOIN [REPEATABLE_READ, SERIALIZABLE] [I5] => Refused("1020");
        both JOIN [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] [I3] => TakeoverWaits;
    }
}

/// And so is a guard that locks, ours among them.
mod guard {
    use super::*;

    cells! {
        both ROW_LOCK [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] [I3, I4] => TakeoverWaits;
        both TOUCH [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] [I3, I4] => TakeoverWaits;
        both FENCE [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] [I1lck, I3, I4] => TakeoverWaits;
        both FENCE [READ_COMMITTED, REPEATABLE_READ] [I1upd] => TakeoverWaits;
    }
}

mod heartbeat {
    use super::*;

    fence_tests::conformance! { on mysql, mariadb:
        waits_for_the_article_s_statement,
        waits_for_a_lock_on_the_row,
        waits_for_a_guard_that_touches_the_row,
        passes_the_lock_on_the_token,
    }

    async fn waits_for_the_article_s_statement<const M: bool>(db: InnoDb<M>) {
        waits(db, JOIN).await;
    }

    async fn waits_for_a_lock_on_the_row<const M: bool>(db: InnoDb<M>) {
        waits(db, ROW_LOCK).await;
    }

    async fn waits_for_a_guard_that_touches_the_row<const M: bool>(db: InnoDb<M>) {
        waits(db, TOUCH).await;
    }

    async fn waits<const M: bool>(db: InnoDb<M>, form: Form) {
        let mut stage = Some(db);
        for level in [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] {
            let db = match stage.take() {
                Some(db) => db,
                None => InnoDb::open().await.expect("the first one was there"),
            };
            let mut stage = Stage::set(db, level, form).await;
            stage.check().await;
            assert_eq!(stage.a.ok(stage.form.write).await.rows, 1);
            let mut heartbeat = stage.c.start(HEARTBEAT);
            heartbeat.blocked_by(&stage.a).await;
            stage.a.ok("COMMIT").await;
            assert_eq!(heartbeat.ok().await.rows, 1);
        }
    }

    async fn passes_the_lock_on_the_token<const M: bool>(db: InnoDb<M>) {
        let mut stage = Some(db);
        for level in [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE] {
            let db = match stage.take() {
                Some(db) => db,
                None => InnoDb::open().await.expect("the first one was there"),
            };
            let mut stage = Stage::set(db, level, FENCE).await;
            stage.check().await;
            assert_eq!(stage.a.ok(stage.form.write).await.rows, 1);
            assert_eq!(stage.c.ok(HEARTBEAT).await.rows, 1);
            assert!(stage.takeover().await.is_some(), "and the takeover still waits");
            stage.a.ok("COMMIT").await;
        }
    }
}

mod deadlock {
    use super::*;

    fence_tests::conformance! { on mysql, mariadb:
        of_the_article_s_statement_with_a_takeover_that_claims,
    }

    /// It locks the run first and the lease then; a takeover that claims the run in its own transaction, the other way round.
    async fn of_the_article_s_statement_with_a_takeover_that_claims<const M: bool>(db: InnoDb<M>) {
        let mut stage = Stage::set(db, READ_COMMITTED, JOIN).await;
        assert_eq!(stage.b.ok(format!("BEGIN; {TAKE_OVER}")).await.rows, 1);
        let mut write = stage.a.start(stage.form.write);
        write.blocked_by(&stage.b).await;
        let claimed = stage.b.run("UPDATE runs SET status = 'claimed by b', fence_token = 2 WHERE run_id = 1").await;
        let one = match claimed {
            Ok(_) => write.answer().await.unwrap_err(),
            Err(refused) => refused,
        };
        assert_eq!(one.code, "1213");
    }
}
