//! The numbered migrations, as the builder runs them and as people who run their own can print them.
//!
//! They are tracked in a table of their own (`fenced_job_migrations`), apart from the application's.

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};

use crate::{
    Backend,
    backend::{Protocol, Tables},
    error::{Error, ErrorKind},
};

/// What stands in the files where a schema and a table prefix go.
const PLACEHOLDER: &str = "/*prefix*/";
/// SQLite has no lock for migrations: two processes that start together meet here.
const TRIES: usize = 10;

/// One migration, as it will run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// Its SQL, with schema and prefix in place.
    pub sql: String,
}

/// The migrations of a database, with schema and table prefix in place, for whoever runs them by hand.
///
/// # Errors
/// [`ErrorKind::Config`] when the schema or the prefix is not a plain name.
pub fn steps<DB: Backend>(schema: Option<&str>, table_prefix: &str) -> Result<Vec<Step>, Error> {
    Ok(steps_for::<DB>(&Tables::new(DB::Protocol::QUOTE, schema, table_prefix)?))
}

fn steps_for<DB: Backend>(tables: &Tables) -> Vec<Step> {
    DB::Protocol::MIGRATIONS
        .iter()
        .map(|&(version, name, sql)| Step { version, name, sql: sql.replace(PLACEHOLDER, tables.prefix()) })
        .collect()
}

pub(crate) async fn run<DB: Backend>(
    conn: &mut DB::Connection,
    tables: &Tables,
    create_schema: bool,
) -> Result<(), Error>
where
    DB::Connection: sqlx::migrate::Migrate,
{
    let migrations: Vec<_> = steps_for::<DB>(tables)
        .into_iter()
        .map(|step| {
            let sql = AssertSqlSafe(step.sql).into_sql_str();
            Migration::new(step.version, step.name.into(), MigrationType::Simple, sql, false)
        })
        .collect();
    let record = tables.name("fenced_job_migrations");
    if is_done::<DB>(conn, &record, &migrations).await {
        return Ok(());
    }
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name(record.clone());
    // A newer release may have been here: its migrations must leave ours working.
    migrator.set_ignore_missing(true);
    if create_schema && let Some((schema, _)) = tables.prefix().split_once('.') {
        migrator.create_schema(schema.to_owned());
    }
    let lock = DB::Protocol::migration_lock(tables);
    if let Some((take, _)) = &lock {
        turn::<DB>(conn, take).await?;
    }
    // After an error the connection is closed, and the lock with it.
    migrated::<DB>(conn, &migrator, &record).await?;
    match &lock {
        Some((_, give_back)) => turn::<DB>(conn, give_back).await,
        None => Ok(()),
    }
}

/// One migrates after the other.
async fn turn<DB: Backend>(conn: &mut DB::Connection, sql: &str) -> Result<(), Error> {
    let done = DB::Protocol::executor(conn).execute(AssertSqlSafe(sql.to_owned())).await;
    done.map(drop).map_err(|error| Error::database("could not take turns with others who migrate", error))
}

async fn migrated<DB: Backend>(conn: &mut DB::Connection, migrator: &Migrator, record: &str) -> Result<(), Error>
where
    DB::Connection: sqlx::migrate::Migrate,
{
    let mut tries = 0;
    loop {
        tries += 1;
        match migrator.run_direct(None, &mut *conn, false).await {
            Ok(()) => return Ok(()),
            Err(_) if tries < TRIES && DB::Protocol::GUARD_RENEWS => {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            Err(error) => {
                let what_to_do = match &error {
                    MigrateError::VersionMismatch(_) => {
                        format!("another release of fence wrote {record}; if the tables are as `migrate::steps` prints them, delete its row there")
                    }
                    _ => "the role must be able to create tables and functions; or have what `migrate::steps` prints run, and \
                          build without `.migrate()`"
                        .to_owned(),
                };
                let message = format!("the migrations of {} failed ({what_to_do})", DB::Protocol::NAME);
                return Err(Error::new(ErrorKind::Schema, message).because(sqlx::Error::Migrate(Box::new(error))));
            }
        }
    }
}

/// Asked first, because everything else about a migration needs the right to create tables, even where nothing is left to do.
async fn is_done<DB: Backend>(conn: &mut DB::Connection, record: &str, migrations: &[Migration]) -> bool
where
    DB::Connection: sqlx::migrate::Migrate,
{
    let Ok(applied) = conn.list_applied_migrations(record).await else { return false };
    matches!(conn.dirty_version(record).await, Ok(None))
        && migrations
            .iter()
            .all(|ours| applied.iter().any(|found| found.version == ours.version && found.checksum == ours.checksum))
}
