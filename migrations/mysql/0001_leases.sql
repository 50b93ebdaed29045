-- The lease table, and the procedures that open and end a fenced transaction, for MySQL 8.0.19 and MariaDB 10.6, or later.
-- Times are microseconds since 1970-01-01 UTC by the database's clock.
-- A comment marks the place before every name of ours: run the file as it is (`mysql --delimiter=// <database> < file`), or let
-- `fence_runtime::migrate` put a schema and a table prefix there. Comments that begin with an exclamation mark are for one of the two
-- servers.

CREATE TABLE IF NOT EXISTS /*prefix*/fenced_job_leases (
    -- bytes: no collation can merge two names
    lease_name   VARBINARY(190) NOT NULL,
    owner_token  VARBINARY(64)  NOT NULL DEFAULT '',
    fence_token  BIGINT         NOT NULL DEFAULT 0,
    leased_until BIGINT         NOT NULL DEFAULT 0,
    holder       VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL DEFAULT '',
    acquired_at  BIGINT         NOT NULL DEFAULT 0,
    renewed_at   BIGINT         NOT NULL DEFAULT 0,
    seals        BIGINT         NOT NULL DEFAULT 0,
    progress     MEDIUMTEXT CHARACTER SET utf8mb4,
    PRIMARY KEY (lease_name),
    -- The guard share-locks this index alone, so that a renewal, which changes none of its columns, passes.
    UNIQUE KEY uq_fence (lease_name, fence_token, owner_token),
    CHECK (length(lease_name) > 0),
    CHECK (fence_token >= 0)
) ENGINE = InnoDB;

CREATE OR REPLACE VIEW /*prefix*/fenced_job_leases_readable AS
SELECT CONVERT(lease_name USING utf8mb4) AS lease_name, CONVERT(owner_token USING utf8mb4) AS owner_token, fence_token,
       TIMESTAMPADD(MICROSECOND, leased_until, CAST('1970-01-01' AS DATETIME(6))) AS leased_until, holder,
       TIMESTAMPADD(MICROSECOND, acquired_at, CAST('1970-01-01' AS DATETIME(6))) AS acquired_at,
       TIMESTAMPADD(MICROSECOND, renewed_at, CAST('1970-01-01' AS DATETIME(6))) AS renewed_at, seals, progress
  FROM /*prefix*/fenced_job_leases;

DROP PROCEDURE IF EXISTS /*prefix*/fence_begin_v1;

-- Outside our transaction the session is read-only and does not commit by itself: whatever leaves it cannot write, and TRUNCATE and DDL,
-- which would end it before they run, are refused. The guard shares `uq_fence` with renewals and not with takeovers.
CREATE PROCEDURE /*prefix*/fence_begin_v1(lease VARBINARY(190), token BIGINT, owner VARBINARY(64), isolation VARCHAR(20), idle INT,
    lock_wait INT, statement_ms BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE found BIGINT;
    DECLARE expiry BIGINT;
    -- Called again from inside: what it would put back afterwards is not how the session was. 1568 as outside of here.
    IF @fence_autocommit IS NOT NULL THEN
        SIGNAL SQLSTATE '25001' SET MYSQL_ERRNO = 1568, MESSAGE_TEXT = 'fence: the connection is inside a fenced transaction or a read';
    END IF;
    -- Refused (1568) inside a transaction, which is not ours to end.
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET @fence_autocommit = @@autocommit;
    SET @fence_read_only = /*!80000 @@transaction_read_only*/ /*M!100600 @@tx_read_only*/, @fence_wait_timeout = @@SESSION.wait_timeout;
    SET @fence_lock_wait = @@SESSION.innodb_lock_wait_timeout,
        @fence_statement = @@SESSION./*!80000 max_execution_time*/ /*M!100600 max_statement_time*/;
    BEGIN
        DECLARE EXIT HANDLER FOR SQLEXCEPTION
        BEGIN
            ROLLBACK;
            SET SESSION /*!80000 transaction_read_only*/ /*M!100600 tx_read_only*/ = @fence_read_only,
                SESSION wait_timeout = @fence_wait_timeout, SESSION innodb_lock_wait_timeout = @fence_lock_wait,
                SESSION /*!80000 max_execution_time*/ /*M!100600 max_statement_time*/ = @fence_statement;
            SET autocommit = @fence_autocommit, @fence_autocommit = NULL, @fence_lock_wait = NULL, @fence_statement = NULL;
            RESIGNAL;
        END;
        -- Before the lock, because a refused guard must not hold it; outside the transaction, because at SERIALIZABLE it would lock what
        -- renewals write.
        SET autocommit = 1;
        SELECT leased_until INTO expiry FROM /*prefix*/fenced_job_leases FORCE INDEX (PRIMARY) WHERE lease_name = lease;
        SET autocommit = 0;
        SET SESSION TRANSACTION READ ONLY;
        IF expiry > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN
            CASE isolation
                WHEN 'READ COMMITTED' THEN SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
                WHEN 'REPEATABLE READ' THEN SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
                WHEN 'SERIALIZABLE' THEN SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
            END CASE;
            -- A holder that freezes keeps its successor waiting for no longer than that.
            SET SESSION wait_timeout = idle;
            IF lock_wait IS NOT NULL THEN
                SET SESSION innodb_lock_wait_timeout = lock_wait;
            END IF;
            IF statement_ms IS NOT NULL THEN
                SET SESSION /*!80000 max_execution_time = statement_ms*/ /*M!100600 max_statement_time = statement_ms / 1000*/;
            END IF;
            START TRANSACTION READ WRITE;
            SELECT fence_token INTO found FROM /*prefix*/fenced_job_leases FORCE INDEX (uq_fence)
             WHERE lease_name = lease AND fence_token = token AND owner_token = owner LOCK IN SHARE MODE;
        END IF;
        IF found IS NULL THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'fence: the lease is not held';
        END IF;
    END;
END;

DROP PROCEDURE IF EXISTS /*prefix*/fence_end_v1;

-- The client makes a savepoint behind the first and releases it before the second, each in the same message: it dies with the transaction that
-- was opened, and nobody else knows its name. Without it there is nothing of ours to commit (error 1305), and the message ends there.
CREATE PROCEDURE /*prefix*/fence_end_v1() MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF @fence_autocommit IS NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'fence: no fenced transaction is open';
    END IF;
    COMMIT;
    SET SESSION /*!80000 transaction_read_only*/ /*M!100600 tx_read_only*/ = @fence_read_only,
        SESSION wait_timeout = @fence_wait_timeout, SESSION innodb_lock_wait_timeout = @fence_lock_wait;
    SET autocommit = @fence_autocommit, @fence_autocommit = NULL, @fence_lock_wait = NULL, @fence_statement = NULL;
END;
