-- A row of every fenced transaction whose run has not ended: by it the outcome of a commit whose answer was lost can be looked up. Used only
-- where the builder says so.

CREATE TABLE IF NOT EXISTS /*prefix*/fenced_job_receipts (
    lease_name  VARBINARY(190) NOT NULL,
    fence_token BIGINT         NOT NULL,
    receipt     VARBINARY(64)  NOT NULL,
    PRIMARY KEY (lease_name, fence_token, receipt)
) ENGINE = InnoDB;
