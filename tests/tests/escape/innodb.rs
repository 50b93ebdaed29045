//! MySQL and MariaDB: outside the fenced transaction the session is read-only and does not commit by itself, and the savepoint that
//! proves the transaction dies with it.

mod ddl;
mod driver;
mod ended;
mod forged;
mod leave;

/// "Cannot execute statement in a READ ONLY transaction"
const READ_ONLY: &str = "1792";
