-- The lease table. Times are microseconds since 1970-01-01 UTC by the database's clock.
-- A comment marks the place before every name of ours: run the file as it is, or let `fence_runtime::migrate` put a table prefix
-- there.

CREATE TABLE IF NOT EXISTS /*prefix*/fenced_job_leases (
    lease_name   TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(lease_name AS BLOB)) BETWEEN 1 AND 190),
    owner_token  TEXT    NOT NULL,
    fence_token  INTEGER NOT NULL CHECK (fence_token > 0),
    leased_until INTEGER NOT NULL,
    holder       TEXT    NOT NULL DEFAULT '',
    acquired_at  INTEGER NOT NULL DEFAULT 0,
    renewed_at   INTEGER NOT NULL DEFAULT 0,
    seals        INTEGER NOT NULL DEFAULT 0,
    progress     TEXT
) STRICT, WITHOUT ROWID;

CREATE VIEW IF NOT EXISTS /*prefix*/fenced_job_leases_readable AS
SELECT lease_name, owner_token, fence_token,
       strftime('%Y-%m-%d %H:%M:%f', leased_until / 1000000.0, 'unixepoch') AS leased_until,
       holder,
       strftime('%Y-%m-%d %H:%M:%f', acquired_at / 1000000.0, 'unixepoch') AS acquired_at,
       strftime('%Y-%m-%d %H:%M:%f', renewed_at / 1000000.0, 'unixepoch') AS renewed_at,
       seals, progress
  FROM /*prefix*/fenced_job_leases;
