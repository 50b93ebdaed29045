//! The settings of a lent session on MySQL and MariaDB, and how they are put back.

use sqlx::{Row, mysql::MySqlRow};

/// The session's access mode: it has another name on each server.
pub(super) const READ_ONLY: &str = "/*!80000 transaction_read_only*//*M!100600 tx_read_only*/";

/// How long a statement may take, as it was before: milliseconds on MySQL, seconds with a fraction on MariaDB.
pub(super) const STATEMENT_LIMIT_BACK: &str = "SESSION \
    /*!80000 max_execution_time = CAST(COALESCE(@fence_statement, @@SESSION.max_execution_time) AS UNSIGNED)*/\
    /*M!100600 max_statement_time = CAST(COALESCE(@fence_statement, @@SESSION.max_statement_time) AS DOUBLE)*/";

/// Rolls back, puts the session back as it was, and says so with the mark.
pub(super) fn put_back(mark: &str) -> String {
    format!(
        "ROLLBACK; UNLOCK TABLES; SET SESSION {READ_ONLY} = COALESCE(@fence_read_only, @@SESSION.{READ_ONLY}), \
          SESSION wait_timeout = CAST(COALESCE(@fence_wait_timeout, @@SESSION.wait_timeout) AS UNSIGNED), \
          SESSION innodb_lock_wait_timeout = CAST(COALESCE(@fence_lock_wait, @@SESSION.innodb_lock_wait_timeout) AS UNSIGNED), \
          {STATEMENT_LIMIT_BACK}; \
         SET autocommit = COALESCE(@fence_autocommit, @@autocommit), @fence_autocommit = NULL, @fence_read_only = NULL, \
          @fence_wait_timeout = NULL, @fence_lock_wait = NULL, @fence_statement = NULL; SELECT '{mark}'"
    )
}

pub(super) fn is_mark(rows: &[MySqlRow], mark: &str) -> bool {
    rows.last().is_some_and(|row| row.try_get::<String, _>(0).is_ok_and(|found| found == mark))
}
