//! What the server's error codes mean here.

use sqlx::{
    error::DatabaseError,
    postgres::{PgDatabaseError, PgSeverity},
};

/// Raised by `fence_begin_v1` when the lease is not ours.
pub(super) const REFUSED: &str = "FENCE";
const ABORTED: &str = "25P02";
/// What `BEGIN … NOT DEFERRABLE` says inside a transaction.
pub(super) const IN_TRANSACTION: [&str; 2] = ["25001", ABORTED];
/// A serialisation failure, a deadlock, a lock that was not available.
pub(super) const PASSING: [&str; 3] = ["40001", "40P01", "55P03"];
pub(super) const CANCELED: &str = "57014";
pub(super) const NO_SUCH_CURSOR: &str = "34000";
pub(super) const ENDED_EARLY: &str =
    "a COMMIT or ROLLBACK that was not fence's had ended the transaction; what came after it was refused";

pub(super) fn code_of(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(DatabaseError::code).map(|code| code.into_owned())
}

pub(super) fn why_refused(error: &sqlx::Error) -> &'static str {
    match code_of(error).as_deref() {
        Some(NO_SUCH_CURSOR) => ENDED_EARLY,
        Some(ABORTED) => "a statement in it had failed",
        _ => "PostgreSQL refused it",
    }
}

/// The severity, if the server is still there to talk to.
pub(super) fn severity_of(error: &sqlx::Error) -> Option<PgSeverity> {
    let severity = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?.severity();
    (!matches!(severity, PgSeverity::Fatal | PgSeverity::Panic)).then_some(severity)
}
