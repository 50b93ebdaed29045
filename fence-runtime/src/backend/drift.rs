//! How every database says that a table is not as it must be.

use crate::error::{Error, ErrorKind};

/// A column as it must be: its name, the types that will do, and the type to name in the statement that mends it.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) types: &'static [&'static str],
}

pub(super) const fn column(name: &'static str, types: &'static [&'static str]) -> Column {
    Column { name, types }
}

pub(super) fn missing_table(table: &str, how: &str) -> Error {
    Error::new(ErrorKind::Schema, format!("there is no table {table}: {how}"))
}

pub(super) fn missing_column(table: &str, column: &str, mend: &str) -> Error {
    Error::new(ErrorKind::Schema, format!("table {table} has no column {column}: run `{mend}`"))
}

pub(super) fn wrong_column(table: &str, column: &str, found: &str, wants: &str, mend: &str) -> Error {
    Error::new(
        ErrorKind::Schema,
        format!("column {column} of table {table} is {found} and must be {wants}: run `{mend}`"),
    )
}

pub(super) fn no_status(server: &str) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("{server} cannot be asked for the status of a transaction: use `Resolve::Receipts`"),
    )
}

pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Schema, what)
}

/// What to do when something of ours is not there. The builder does not run twice what somebody has dropped since.
pub(super) const MIGRATE: &str = "run the migrations (`.migrate()` on the builder; where they have run before, the SQL of \
                                  `fence_runtime::migrate::steps`)";
