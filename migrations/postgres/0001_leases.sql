-- The lease table, and the function that opens a fenced transaction.
-- A comment marks the place before every name of ours: run the file as it is for tables in the current schema, or let
-- `fence_runtime::migrate` put a schema and a table prefix there.

CREATE TABLE IF NOT EXISTS /*prefix*/fenced_job_leases (
    -- compared as bytes, like on every other database
    lease_name   text COLLATE "C" PRIMARY KEY CHECK (octet_length(lease_name) BETWEEN 1 AND 190),
    owner_token  text COLLATE "C" NOT NULL,
    fence_token  bigint      NOT NULL CHECK (fence_token > 0),
    leased_until timestamptz NOT NULL CHECK (isfinite(leased_until)),
    holder       text        NOT NULL DEFAULT '',
    acquired_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seals        bigint      NOT NULL DEFAULT 0,
    progress     text
) WITH (fillfactor = 50); -- renewals stay on their page (HOT): never index a column that they write

COMMENT ON TABLE /*prefix*/fenced_job_leases IS
    'fence: one row a lease; rows are never deleted and fence_token never goes back';

-- Locks the lease row against a takeover (FOR UPDATE) but not against a renewal, and leaves a cursor named `nonce`
-- behind: it dies with this very transaction, so that COMMIT can prove which transaction it ends. The expiry is tested before the
-- lock, because a refused guard must not hold it, and after it, because the wait may have been long.
CREATE OR REPLACE FUNCTION /*prefix*/fence_begin_v1(lease text, owner text, token bigint, nonce text, idle text, alive text)
RETURNS void LANGUAGE plpgsql AS $fence$
#variable_conflict use_variable
DECLARE
    expiry timestamptz;
    proof  refcursor := nonce;
    is_set text;
BEGIN
    -- assigned and not PERFORMed, which would run a query each time
    is_set := set_config('idle_in_transaction_session_timeout', idle, true);
    IF alive <> '' THEN
        is_set := set_config('client_connection_check_interval', alive, true);
    END IF;
    SELECT l.leased_until INTO expiry
      FROM /*prefix*/fenced_job_leases l
     WHERE l.lease_name = lease COLLATE "C" AND l.owner_token = owner COLLATE "C" AND l.fence_token = token
       AND l.leased_until > clock_timestamp()
       FOR KEY SHARE;
    IF expiry > clock_timestamp() THEN
        OPEN proof FOR SELECT nonce;
        RETURN;
    END IF;
    RAISE EXCEPTION 'fence: lease % with token % is not held', quote_literal(lease), token USING ERRCODE = 'FENCE';
END
$fence$;
