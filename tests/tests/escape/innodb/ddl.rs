//! TRUNCATE, DDL and locks on tables would end the transaction before they run: the server refuses them.

use fence_tests::{
    app::count,
    conformance,
    owner::Act::{Begin, Commit, Sql},
    servers::{InnoDb, TestDb},
};

use super::READ_ONLY;
use crate::stage::Stage;

conformance! { on mysql, mariadb:
    truncate,
    data_definition,
    lock_tables,
    a_table_that_is_locked_afterwards,
}

async fn truncate<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    let mut a = stage.owner().await;
    a.ok(Begin(Default::default())).await;
    let refused = a.run(Sql("TRUNCATE TABLE runs".into())).await.unwrap_err();
    assert_eq!(refused.code, READ_ONLY);
    assert_eq!(count(&stage.db, 1).await, 1, "truncated");
    let refused = a.run(Commit).await.unwrap_err();
    assert!(refused.message.contains("TRUNCATE") && refused.message.contains("use DELETE"), "{refused}");
    let error = a.end().await.unwrap_err();
    assert!(error.to_string().contains("DELETE"), "{error}");
    stage.is_clean("TRUNCATE").await;
}

/// None of them runs, and none is a way out.
async fn data_definition<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    stage
        .db
        .sql(
            "CREATE TABLE other (n bigint PRIMARY KEY, m bigint, KEY by_m (m)); CREATE VIEW seen AS SELECT * FROM other; \
             CREATE PROCEDURE nothing() BEGIN END; CREATE TRIGGER fires BEFORE INSERT ON other FOR EACH ROW SET @n = 1",
        )
        .await;
    let objects = format!(
        "SELECT GROUP_CONCAT(x ORDER BY x) FROM
           (SELECT CONCAT(TABLE_NAME, TABLE_TYPE, COALESCE(TABLE_COMMENT, '')) x FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{0}'
            UNION ALL SELECT CONCAT(TABLE_NAME, '.', COLUMN_NAME) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{0}'
            UNION ALL SELECT CONCAT(TABLE_NAME, '/', INDEX_NAME) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = '{0}'
            UNION ALL SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = '{0}'
            UNION ALL SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{0}'
            UNION ALL SELECT EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA = '{0}') objects",
        stage.db.name()
    );
    stage.db.sql("SET SESSION group_concat_max_len = 100000").await;
    let before = stage.db.text(&objects).await;
    for way in [
        "TRUNCATE runs",
        "CREATE TABLE more (n int)",
        "CREATE TABLE more AS SELECT * FROM runs",
        "DROP TABLE runs",
        "ALTER TABLE runs ADD COLUMN more int",
        "ALTER TABLE runs COMMENT = 'x'",
        "RENAME TABLE other TO another",
        "CREATE INDEX more ON runs (fence_token)",
        "DROP INDEX by_m ON other",
        "CREATE OR REPLACE VIEW seen AS SELECT n FROM other",
        "DROP VIEW seen",
        "CREATE PROCEDURE more() BEGIN END",
        "DROP PROCEDURE nothing",
        "CREATE TRIGGER more BEFORE UPDATE ON other FOR EACH ROW SET @n = 2",
        "DROP TRIGGER fires",
        "CREATE EVENT more ON SCHEDULE EVERY 1 DAY DO SET @n = 3",
        "CREATE DATABASE fence_test_more",
        "CREATE USER 'ft_more'@'%'",
        "GRANT SELECT ON runs TO CURRENT_USER()",
        "OPTIMIZE TABLE runs",
    ] {
        let (write, refused) = stage.leaves_by(&[way]).await;
        assert_eq!(write.unwrap_err().code, READ_ONLY, "{way}");
        assert!(refused.message.contains("DELETE"), "{way}: {refused}");
        assert_eq!(stage.db.text(&objects).await, before, "{way}");
    }
}

async fn lock_tables<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for way in ["LOCK TABLES runs WRITE", "LOCK TABLES runs READ", "FLUSH TABLES runs WITH READ LOCK"] {
        let (write, _) = stage.leaves_by(&[way]).await;
        assert!(["1792", "1099", "1223"].contains(&&*write.unwrap_err().code), "{way}");
        // Nobody is kept out.
        stage.db.sql("UPDATE runs SET status = 'free'").await;
    }
}

async fn a_table_that_is_locked_afterwards<const M: bool>(db: InnoDb<M>) {
    let stage = Stage::new(db).await;
    for way in
        [&["COMMIT", "LOCK TABLES runs WRITE"][..], &["ROLLBACK", "TRUNCATE runs"], &["COMMIT", "DROP TABLE runs"]]
    {
        let (write, _) = stage.leaves_by(way).await;
        assert!(write.is_err(), "{way:?}");
        assert_eq!(count(&stage.db, 1).await, 1, "{way:?}");
    }
}
