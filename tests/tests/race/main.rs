//! The race matrix: interleaving × isolation level × terminal write, driven step by step through the real fence.
//!
//! *A* is the old owner (token 1), *B* the next one, *C* an unrelated transaction. A's term ends by SQL, as if its TTL
//! had passed; B takes over through a fence of its own. Whether somebody waits is read from the server's lock views,
//! never guessed from time. Each cell shows one of two things, or one after the other:
//!
//! * while A holds its guard, B's takeover is refused, and A may commit *before* it;
//! * once B's takeover is committed, nothing of A appears any more, whatever A still tries.
//!
//! Every cell ends in `After::nothing_of_a_lands`: A tries everything again, and the tables do not change.
//! `control` drives the naive forms through the same interleavings, and they lose.

mod broken;
mod innodb;
mod postgres;
mod server;
mod sqlite;
mod stage;

/// Makes the tests `<db>_<level>_<write>_<interleaving>`: for every interleaving of the module, level and terminal write
/// one call `interleaving(db, level, write)`. `once`: where it does not come to a write, one test a level.
macro_rules! race_matrix {
    ($db:ident = $type:ident on $levels:tt in $module:ident: $($interleaving:ident),+ $(,)?) => {
        $(race_matrix! { @each $db $type $levels $module $interleaving })+
    };
    (once $db:ident = $type:ident on $levels:tt in $module:ident: $($interleaving:ident),+ $(,)?) => {
        $(race_matrix! { @once $db $type $levels $module $interleaving })+
    };
    (@each $db:ident $type:ident [$($name:ident $level:ident),+] $module:ident $interleaving:ident) => {
        $(
            race_matrix! { @cell $type $level Update $module $interleaving [<$db _ $name _update_ $interleaving>] }
            race_matrix! { @cell $type $level Insert $module $interleaving [<$db _ $name _insert_ $interleaving>] }
            race_matrix! { @cell $type $level Delete $module $interleaving [<$db _ $name _delete_ $interleaving>] }
        )+
    };
    (@once $db:ident $type:ident [$($name:ident $level:ident),+] $module:ident $interleaving:ident) => {
        $(race_matrix! { @cell $type $level Update $module $interleaving [<$db _ $name _ $interleaving>] })+
    };
    (@cell $type:ident $level:ident $write:ident $module:ident $interleaving:ident $($test:tt)+) => {
        pastey::paste! {
            #[test]
            fn $($test)+() {
                fence_tests::servers::block_on(fence_tests::servers::on::<fence_tests::servers::$type, _>(|db| {
                    $module::$interleaving(db, fence_runtime::Isolation::$level, stage::Write::$write)
                }));
            }
        }
    };
}

/// What every server does that locks rows.
macro_rules! server_matrix {
    ($($db:ident = $type:ident),+) => {
        $(race_matrix! {
            $db = $type
            on [read_committed ReadCommitted, repeatable_read RepeatableRead, serializable Serializable]
            in server:
            // A's write waits for the target row.
            waits_on_changed_target,
            waits_on_locked_target,
            waits_on_target_of_the_next_owner,
            // The takeover comes between two steps of A.
            takeover_before_guard,
            takeover_between_guard_and_write,
            takeover_between_write_and_commit,
            renewed_between_write_and_commit,
            // An operator ends A's term.
            revoked_before_guard,
            revoked_between_guard_and_write,
            revoked_between_write_and_commit,
            revoked_while_waiting_on_target,
        })+
    };
}

server_matrix! { postgres = PostgresDb, mysql = MySqlDb, mariadb = MariaDb }

race_matrix! {
    postgres = PostgresDb
    on [read_committed ReadCommitted, repeatable_read RepeatableRead, serializable Serializable]
    in postgres:
    waits_on_target_that_changes,
    takeover_while_guard_looks,
    // A's transaction is gone, and A does not know.
    killed_between_guard_and_write,
    killed_between_write_and_commit,
    left_by_commit_between_guard_and_write,
    left_by_rollback_between_guard_and_write,
    left_by_chain_between_guard_and_write,
    left_by_chain_between_write_and_commit,
}

race_matrix! {
    once postgres = PostgresDb
    on [read_committed ReadCommitted, repeatable_read RepeatableRead, serializable Serializable]
    in postgres:
    guard_waits_past_expiry,
    guard_waits_behind_a_takeover_that_is_rolled_back,
    guard_beside_an_uncommitted_takeover,
    guard_beside_an_uncommitted_renewal,
    guard_looks_while_renewed,
}

/// What InnoDB does on both servers.
macro_rules! innodb_matrix {
    ($($db:ident = $type:ident),+) => {
        $(
            race_matrix! {
                $db = $type
                on [read_committed ReadCommitted, repeatable_read RepeatableRead, serializable Serializable]
                in innodb:
                waits_on_target_that_changes,
                takeover_while_guard_looks,
                // A's transaction is gone, and A does not know.
                killed_between_guard_and_write,
                killed_between_write_and_commit,
                left_by_commit_between_guard_and_write,
                left_by_rollback_between_guard_and_write,
                left_by_start_between_guard_and_write,
                left_by_chain_between_guard_and_write,
                left_by_chain_between_write_and_commit,
                left_by_deadlock_between_guard_and_write,
                left_by_deadlock_between_write_and_commit,
            }
            race_matrix! {
                once $db = $type
                on [read_committed ReadCommitted, repeatable_read RepeatableRead, serializable Serializable]
                in innodb:
                guard_waits_past_expiry,
                guard_waits_behind_a_takeover,
                guard_waits_behind_a_takeover_that_is_rolled_back,
                guard_beside_an_uncommitted_takeover,
                guard_beside_an_uncommitted_renewal,
                guard_looks_while_renewed,
                a_batch_is_renewed_under_its_guards,
            }
        )+
    };
}

innodb_matrix! { mysql = MySqlDb, mariadb = MariaDb }

/// Takes out of InnoDB's fence what must be there.
macro_rules! broken_matrix {
    ($($db:ident = $type:ident),+) => {
        $(
            race_matrix! {
                once $db = $type
                on [broken_read_committed ReadCommitted, broken_repeatable_read RepeatableRead,
                    broken_serializable Serializable]
                in broken:
                without_the_token,
                without_the_read_only_session,
                without_the_index,
            }
            // At SERIALIZABLE the server locks what a transaction only reads.
            race_matrix! {
                once $db = $type
                on [broken_read_committed ReadCommitted, broken_repeatable_read RepeatableRead]
                in broken:
                without_the_lock,
            }
        )+
    };
}

broken_matrix! { mysql = MySqlDb, mariadb = MariaDb }

/// What SQLite does in both journal modes.
macro_rules! sqlite_matrix {
    ($db:ident = $type:ident) => {
        race_matrix! {
            $db = $type on [serializable Serializable] in sqlite:
            guard_waits_for_a_writer,
            guard_waits_for_a_writer_and_the_term_ends,
            takeover_before_guard,
            takeover_between_guard_and_write,
            takeover_between_write_and_commit,
            left_by_commit_between_guard_and_write,
            left_by_rollback_between_guard_and_write,
            left_by_rollback_and_begin_between_guard_and_write,
            left_by_a_statement_between_write_and_commit,
            revoked_before_guard,
            revoked_between_guard_and_write,
            revoked_between_write_and_commit,
        }
        race_matrix! { once $db = $type on [serializable Serializable] in sqlite: open_past_expiry }
    };
}

sqlite_matrix! { sqlite_wal = SqliteDb }
sqlite_matrix! { sqlite_rollback = SqliteRollbackDb }

// Readers do not stop the writer's COMMIT in WAL mode, and do with a rollback journal.
race_matrix! { sqlite_rollback = SqliteRollbackDb on [serializable Serializable] in sqlite: commit_waits_for_a_reader }
race_matrix! { once sqlite_wal = SqliteDb on [serializable Serializable] in sqlite: takeover_after_a_snapshot }
