//! What does it cost to acquire and release a lease, compared with a plain statement?
//!
//! `cargo bench -p fence-tests --bench run`, against the server of the tests: a run of a job that does nothing, a new term
//! each time.

mod runner;

use fence_runtime::{Backend, Error, Fence};
use fence_tests::{
    jobs::job,
    servers::{InnoDb, PostgresDb, SqliteDb, TestDb},
};
use runner::{CREWS, Once, compare, once};
use sqlx::{
    AssertSqlSafe, Executor, Pool,
    mysql::MySqlPoolOptions,
    postgres::PgPoolOptions,
    sqlite::{SqlitePoolOptions, SqliteSynchronous},
};

const ROWS: &str = "CREATE TABLE runs (id bigint PRIMARY KEY, counter bigint NOT NULL);
    INSERT INTO runs VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0)";

fn main() {
    runner::main(async {
        if let Some(db) = PostgresDb::open().await {
            db.sql(ROWS).await;
            let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(db.options("bench"));
            measure("PostgreSQL", pool).await;
        }
        innodb::<false>("MySQL").await;
        innodb::<true>("MariaDB").await;
        if let Some(db) = SqliteDb::open().await {
            db.sql(ROWS).await;
            let options = db.options("bench").synchronous(SqliteSynchronous::Off);
            measure(
                "SQLite (WAL, synchronous off)",
                SqlitePoolOptions::new().max_connections(8).connect_lazy_with(options),
            )
            .await;
        }
    });
}

async fn innodb<const M: bool>(product: &str) {
    let Some(db) = InnoDb::<M>::open().await else { return };
    db.sql(ROWS).await;
    measure(product, MySqlPoolOptions::new().max_connections(8).connect_lazy_with(db.options("bench"))).await;
}

async fn measure<DB: Backend<Connection: sqlx::migrate::Migrate>>(title: &str, pool: Pool<DB>)
where
    for<'e> &'e Pool<DB>: Executor<'e, Database = DB>,
{
    let fence = Fence::builder(pool.clone()).migrate().build().await.expect("a fence");
    let plain: Once<DB> = once(move |_, client| {
        let pool = pool.clone();
        Box::pin(async move {
            let sql = format!("UPDATE runs SET counter = counter + 1 WHERE id = {client}");
            pool.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
            Ok(())
        })
    });
    let inside = fence.clone();
    let run: Once<DB> = once(move |_, client| {
        let empty = job(format!("empty:{client}"), |_| Box::pin(async { Ok::<_, Error>(()) }));
        let run = inside.run(empty);
        Box::pin(async move { run.await.map_err(|error| panic!("{error}")) })
    });
    // The lease that the clients of one job would share is that job's own: what they acquire here is one each.
    for crew in &CREWS[..2] {
        let variants = [("plain: one unprepared UPDATE", plain.clone()), ("acquire, empty job, release", run.clone())];
        compare(title, &fence, *crew, &variants).await;
    }
}
