-- A row of every fenced transaction whose run has not ended: by it the outcome of a commit whose answer was lost can be looked up. Used only
-- where the builder says so.

CREATE TABLE IF NOT EXISTS /*prefix*/fenced_job_receipts (
    lease_name  TEXT    NOT NULL,
    fence_token INTEGER NOT NULL,
    receipt     TEXT    NOT NULL,
    PRIMARY KEY (lease_name, fence_token, receipt)
) STRICT, WITHOUT ROWID;
