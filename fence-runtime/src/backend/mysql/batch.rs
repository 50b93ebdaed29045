//! Many leases of one process in one statement, on MySQL and MariaDB.

use sqlx::{MySqlConnection, mysql::MySqlRow};

use super::{
    super::{Tables, hex},
    COLUMNS, short,
};
use crate::lease::{LeaseName, OwnerToken};

/// Whose row it is.
pub(super) const OWNERS: &str = "l.lease_name = w.name AND l.owner_token = w.owner";

/// One entry of what is asked of [`change`]. `more`: the token and the time to live in microseconds, where they matter.
pub(super) fn wanted(name: &LeaseName, owner: OwnerToken, more: &str) -> String {
    format!("[\"{}\",\"{}\"{more}]", hex(name.as_str()), hex(&owner.to_string()))
}

/// Changes the rows of many terms that are `ours`, and says of each in the order of the question whether it was `changed` and how its row
/// is. One that somebody has locked must not delay a thousand others: it is skipped.
pub(super) async fn change(
    conn: &mut MySqlConnection,
    tables: &Tables,
    want: impl Iterator<Item = String>,
    ours: &str,
    only: &str,
    set: &str,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let (t, want) = (tables.leases(), want.collect::<Vec<_>>().join(","));
    let w = "(SELECT place, UNHEX(name) AS name, UNHEX(owner) AS owner, token, ttl_us FROM JSON_TABLE(@fence_want, '$[*]' COLUMNS (\
             place FOR ORDINALITY, name VARCHAR(400) PATH '$[0]', owner VARCHAR(80) PATH '$[1]', token BIGINT PATH '$[2]', \
             ttl_us BIGINT PATH '$[3]')) j) w";
    let body = format!(
        "SET @fence_want = '[{want}]', @fence_held = NULL, SESSION group_concat_max_len = 1000000; \
         SELECT GROUP_CONCAT(place) INTO @fence_held FROM (SELECT w.place FROM {w} STRAIGHT_JOIN {t} l FORCE INDEX (PRIMARY) \
          ON {ours} {only} FOR UPDATE SKIP LOCKED) held; \
         UPDATE {w} STRAIGHT_JOIN {t} l FORCE INDEX (PRIMARY) ON {ours} SET {set} WHERE FIND_IN_SET(w.place, @fence_held); \
         SELECT CAST(COALESCE(FIND_IN_SET(w.place, @fence_held), 0) AS SIGNED) AS changed, {COLUMNS} \
          FROM {w} LEFT JOIN {t} l ON l.lease_name = w.name ORDER BY w.place"
    );
    short(conn, &body).await
}
