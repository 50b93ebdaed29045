//! Which database the reconciliation runs on.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use sqlx::{mysql::MySqlConnectOptions, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};

/// What the user asked for. It travels to the workers on their standard input: arguments can be read by everybody.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Address {
    /// A file of our own.
    File(PathBuf),
    /// `--database-url`.
    Url(String),
}

/// The address, understood.
pub(crate) enum Target {
    /// MariaDB too.
    MySql(MySqlConnectOptions),
    Postgres(PgConnectOptions),
    Sqlite(SqliteConnectOptions),
}

impl Address {
    /// # Errors
    /// Says what is wrong with the URL and what would be right.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        match self {
            Self::File(path) => Ok(Target::Sqlite(SqliteConnectOptions::new().filename(path).create_if_missing(true))),
            Self::Url(url) => parse(url),
        }
    }
}

fn parse(url: &str) -> anyhow::Result<Target> {
    const USAGE: &str = "use sqlite://FILE, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE";
    let Some((scheme, rest)) = url.split_once(':') else {
        // The whole URL is not repeated: it may be a password in the wrong place.
        bail!("the database URL has no scheme: {USAGE}");
    };
    match scheme {
        "sqlite" => {
            let options: SqliteConnectOptions = url.parse().context("the SQLite URL cannot be read")?;
            let file = rest.trim_start_matches("//").split('?').next().unwrap_or_default();
            if file.is_empty() || file == ":memory:" || rest.contains("mode=memory") {
                bail!("the demo is two processes and needs a SQLite file: sqlite://FILE");
            }
            Ok(Target::Sqlite(options.create_if_missing(true)))
        }
        "postgres" | "postgresql" => Ok(Target::Postgres(url.parse().context("the PostgreSQL URL cannot be read")?)),
        "mysql" | "mariadb" => Ok(Target::MySql(url.parse().context("the MySQL URL cannot be read")?)),
        other => bail!("the database URL has the unknown scheme {other:?}: {USAGE}"),
    }
}

impl Target {
    /// The place, for a person: never with a password.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Sqlite(options) => options.get_filename().display().to_string(),
            Self::MySql(options) => {
                let database = options.get_database().unwrap_or_default();
                format!("{}:{}/{database}", options.get_host(), options.get_port())
            }
            Self::Postgres(options) => {
                let database = options.get_database().unwrap_or(options.get_username());
                format!("{}:{}/{database}", options.get_host(), options.get_port())
            }
        }
    }
}
