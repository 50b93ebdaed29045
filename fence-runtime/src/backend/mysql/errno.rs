//! What the server's error numbers mean here.

use sqlx::mysql::MySqlDatabaseError;

/// Signalled by `fence_begin_v1` when the lease is not ours.
pub(super) const REFUSED: u16 = 1644;
/// What `SET TRANSACTION` says inside a transaction.
pub(super) const IN_TRANSACTION: u16 = 1568;
/// What a session says of a table that its `LOCK TABLES` does not name, or names for reading only.
pub(super) const TABLES_LOCKED: u16 = 1100;
pub(super) const TABLE_LOCKED: u16 = 1099;
/// A deadlock, a lock wait that took too long, a lock that was not available (MySQL), a snapshot that is out of date (MariaDB).
pub(super) const PASSING: [u16; 4] = [1213, 1205, 3572, 1020];
/// `RELEASE SAVEPOINT` of one that died with its transaction.
pub(super) const NO_SUCH_SAVEPOINT: u16 = 1305;
/// Errors by which a server says that a COMMIT came to nothing: a deadlock, a lock wait, an error during it, group replication.
pub(super) const NOT_COMMITTED: [u16; 5] = [1213, 1205, 1180, 3100, 3101];
pub(super) const ENDED_EARLY: &str = "something had ended the transaction: a deadlock rolls it back; a COMMIT of your own, a SET autocommit = 1, or a \
    TRUNCATE or other DDL (refused as it is: use DELETE), commits what came before it; what came after it was refused or rolled back";

pub(super) fn number_of(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// 1305 also says that a procedure is not there.
pub(super) fn is_about(error: &sqlx::Error, mark: &str) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains(mark))
}
