//! What does a fenced transaction cost, compared with the same statements unfenced?
//!
//! `cargo bench -p fence-tests --bench fenced_transaction`, against the server of the tests. Durable or not is as that
//! server has it; SQLite is measured both ways.

mod runner;

use fence_runtime::{Backend, Fence};
use fence_tests::servers::{InnoDb, PostgresDb, SqliteDb, TestDb};
use runner::{CREWS, Once, compare, once};
use sqlx::{
    Database, MySql, Pool, Postgres, Sqlite,
    mysql::MySqlPoolOptions,
    postgres::PgPoolOptions,
    sqlite::{SqlitePoolOptions, SqliteSynchronous},
};

const ROWS: &str = "CREATE TABLE runs (id bigint PRIMARY KEY, counter bigint NOT NULL);
    INSERT INTO runs VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0)";
const UPDATE: &str = "UPDATE runs SET counter = counter + 1 WHERE id = $1";

fn main() {
    runner::main(async {
        if let Some(db) = PostgresDb::open().await {
            db.sql(ROWS).await;
            let settings = db
                .text("SELECT 'fsync ' || current_setting('fsync') || ', synchronous_commit ' || current_setting('synchronous_commit')")
                .await
                .unwrap_or_default();
            let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(db.options("bench"));
            let fence = Fence::builder(pool.clone()).migrate().build().await.expect("a fence");
            measure(&format!("PostgreSQL ({settings})"), &fence, &plain_postgres(&pool)).await;
        }
        innodb::<false>("MySQL").await;
        innodb::<true>("MariaDB").await;
        for (how, synchronous) in
            [("synchronous full", SqliteSynchronous::Full), ("synchronous off", SqliteSynchronous::Off)]
        {
            let Some(db) = SqliteDb::open().await else { continue };
            db.sql(ROWS).await;
            let options = db.options("bench").synchronous(synchronous);
            let pool = SqlitePoolOptions::new().max_connections(8).connect_lazy_with(options);
            let fence = Fence::builder(pool.clone()).migrate().build().await.expect("a fence");
            measure(&format!("SQLite (WAL, {how})"), &fence, &plain_sqlite(&pool)).await;
        }
    });
}

async fn innodb<const M: bool>(product: &str) {
    let Some(db) = InnoDb::<M>::open().await else { return };
    db.sql(ROWS).await;
    let settings = db
        .text("SELECT CONCAT('innodb_flush_log_at_trx_commit ', @@innodb_flush_log_at_trx_commit, ', log_bin ', @@log_bin)")
        .await
        .unwrap_or_default();
    let pool = MySqlPoolOptions::new().max_connections(8).connect_lazy_with(db.options("bench"));
    let fence = Fence::builder(pool.clone()).migrate().build().await.expect("a fence");
    measure(&format!("{product} ({settings})"), &fence, &plain_mysql(&pool)).await;
}

async fn measure<DB: Bound>(title: &str, fence: &Fence<DB>, plain: &Once<DB>) {
    let fenced = once::<DB>(|ctx, client| {
        Box::pin(ctx.transaction(async move |tx| tx.terminal(DB::update(client as i64)).await.map(drop)))
    });
    let execute =
        once::<DB>(|ctx, client| Box::pin(async move { ctx.execute(DB::update(client as i64)).await.map(drop) }));
    for crew in CREWS {
        let variants = [
            ("plain: begin, UPDATE, commit", plain.clone()),
            ("fenced: ctx.transaction", fenced.clone()),
            ("fenced: ctx.execute", execute.clone()),
        ];
        compare(title, fence, crew, &variants).await;
    }
}

/// The statement, with a number bound.
trait Bound: Backend {
    fn update(client: i64) -> sqlx::query::Query<'static, Self, <Self as Database>::Arguments>;
}

impl Bound for Postgres {
    fn update(client: i64) -> sqlx::query::Query<'static, Self, <Self as Database>::Arguments> {
        sqlx::query(UPDATE).bind(client)
    }
}

impl Bound for MySql {
    fn update(client: i64) -> sqlx::query::Query<'static, Self, <Self as Database>::Arguments> {
        sqlx::query("UPDATE runs SET counter = counter + 1 WHERE id = ?").bind(client)
    }
}

impl Bound for Sqlite {
    fn update(client: i64) -> sqlx::query::Query<'static, Self, <Self as Database>::Arguments> {
        sqlx::query(UPDATE).bind(client)
    }
}

fn plain_postgres(pool: &Pool<Postgres>) -> Once<Postgres> {
    let pool = pool.clone();
    once(move |_, client| {
        let pool = pool.clone();
        Box::pin(async move {
            let mut tx = pool.begin().await?;
            Postgres::update(client as i64).execute(&mut *tx).await?;
            Ok(tx.commit().await?)
        })
    })
}

fn plain_mysql(pool: &Pool<MySql>) -> Once<MySql> {
    let pool = pool.clone();
    once(move |_, client| {
        let pool = pool.clone();
        Box::pin(async move {
            let mut tx = pool.begin().await?;
            MySql::update(client as i64).execute(&mut *tx).await?;
            Ok(tx.commit().await?)
        })
    })
}

fn plain_sqlite(pool: &Pool<Sqlite>) -> Once<Sqlite> {
    let pool = pool.clone();
    once(move |_, client| {
        let pool = pool.clone();
        Box::pin(async move {
            // As whoever wants to write must begin on SQLite, or else a concurrent writer makes it fail.
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
            Sqlite::update(client as i64).execute(&mut *tx).await?;
            Ok(tx.commit().await?)
        })
    })
}
