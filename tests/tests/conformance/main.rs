//! What `fence` promises, test by test, on every database: `lease::postgres::…`, `lease::sqlite::…` (WAL),
//! `lease::sqlite_rollback::…` (rollback journal).

mod context;
mod errors;
mod functions;
mod lease;
mod operator;
mod overrun;
mod run;
mod savepoint;
mod set_back;
mod templates;
mod terminal;
