-- The worker registry: which server issues snowflake ids with which worker id.
--
-- Why no id comes twice. Let R be reserved_until_ms of a worker id.
-- 1. A holder issues ids with times up to an R that was committed here while it was the
--    recorded holder, and that it was told.
-- 2. R never goes down. A change of the holder is one transaction: it returns a floor of at
--    least R to the new holder, whose ids all carry later times, and from then on the old
--    one cannot raise R any more.
-- 3. Whoever asks again, because the answer was lost, is told that floor again.
-- So the ids of two holders are apart, whatever their clocks do and whenever they stop. The
-- lease decides only when the id may be given to somebody else.
--
-- What a promotion, or a restore from a dump, has forgotten is not here to be compared. So
-- on another timeline, or in another place, nothing is given away before one lease has
-- passed; until then holders renew, or enter again what they hold, and afterwards new
-- holders start above this server's clock.

CREATE TABLE leaf_id.leaf_worker (
    worker_id integer CONSTRAINT leaf_worker_pkey PRIMARY KEY
        CONSTRAINT leaf_worker_id_range CHECK (worker_id OPERATOR(pg_catalog.>=) 0 AND worker_id OPERATOR(pg_catalog.<=) 1023),
    system_identifier bigint,
    node_name text COLLATE "C"
        CONSTRAINT leaf_worker_node_name_length CHECK (pg_catalog.octet_length(node_name) OPERATOR(pg_catalog.<=) 63),
    token bigint NOT NULL DEFAULT 0,
    leased_at timestamptz,
    renewed_at timestamptz,
    lease_until timestamptz,
    lease_ms integer NOT NULL DEFAULT 0
        CONSTRAINT leaf_worker_lease_range CHECK (lease_ms OPERATOR(pg_catalog.>=) 0 AND lease_ms OPERATOR(pg_catalog.<=) 86400000),
    reserved_until_ms bigint NOT NULL DEFAULT 0
        CONSTRAINT leaf_worker_reserved_range CHECK (
            reserved_until_ms OPERATOR(pg_catalog.>=) 0 AND reserved_until_ms OPERATOR(pg_catalog.<=) 253402300799999),
    floor_ms bigint NOT NULL DEFAULT 0
        CONSTRAINT leaf_worker_floor_range CHECK (
            floor_ms OPERATOR(pg_catalog.>=) 0 AND floor_ms OPERATOR(pg_catalog.<=) 253402304399999),
    clock_offset_ms bigint,
    retired boolean NOT NULL DEFAULT false,
    address text,
    CONSTRAINT leaf_worker_holder CHECK (
        (system_identifier IS NULL) OPERATOR(pg_catalog.=) (node_name IS NULL)),
    CONSTRAINT leaf_worker_node UNIQUE (system_identifier, node_name)
)
-- A renewal updates its row in place (HOT) as long as pages have room.
WITH (fillfactor = 50);

COMMENT ON TABLE leaf_id.leaf_worker IS
    'Worker ids that servers have leased; see leaf_worker_status, leaf_worker_release() and leaf_worker_retire()';
COMMENT ON COLUMN leaf_id.leaf_worker.worker_id IS 'Worker id in snowflake ids, 0 to 1023';
COMMENT ON COLUMN leaf_id.leaf_worker.system_identifier IS
    'Database cluster of the holder, also when its lease has ended; null: nobody';
COMMENT ON COLUMN leaf_id.leaf_worker.node_name IS 'leaf_id.node_name of the holder';
COMMENT ON COLUMN leaf_id.leaf_worker.token IS
    'What the holder must show; changes with each renewal; 0: nobody can';
COMMENT ON COLUMN leaf_id.leaf_worker.leased_at IS 'When the holder got it';
COMMENT ON COLUMN leaf_id.leaf_worker.renewed_at IS 'When it was last renewed';
COMMENT ON COLUMN leaf_id.leaf_worker.lease_until IS
    'Nobody else gets it before, by the clock of this server';
COMMENT ON COLUMN leaf_id.leaf_worker.lease_ms IS 'How long a lease of the holder lasts, in milliseconds';
COMMENT ON COLUMN leaf_id.leaf_worker.reserved_until_ms IS
    'No id of any holder so far carries a later time, in Unix milliseconds; never goes down';
COMMENT ON COLUMN leaf_id.leaf_worker.floor_ms IS
    'Ids of this holder carry later times, in Unix milliseconds';
COMMENT ON COLUMN leaf_id.leaf_worker.clock_offset_ms IS
    'The clock of the holder minus that of this server when it was last renewed, in milliseconds';
COMMENT ON COLUMN leaf_id.leaf_worker.retired IS 'Neither leased nor renewed any more';
COMMENT ON COLUMN leaf_id.leaf_worker.address IS 'Where the holder connected from; null: by a Unix socket';

CREATE TABLE leaf_id.leaf_registry (
    one boolean PRIMARY KEY DEFAULT true CONSTRAINT leaf_registry_one_row CHECK (one),
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    database oid NOT NULL,
    relation oid NOT NULL,
    epoch_ms bigint,
    moved_at timestamptz,
    grace_since_ms bigint,
    grace_server_start timestamptz
);
COMMENT ON TABLE leaf_id.leaf_registry IS
    'The worker registry itself, in one row from its first use on';
COMMENT ON COLUMN leaf_id.leaf_registry.one IS 'There is one row';
COMMENT ON COLUMN leaf_id.leaf_registry.system_identifier IS
    'Where the registry was last used: the database cluster ...';
COMMENT ON COLUMN leaf_id.leaf_registry.timeline IS '... its WAL timeline ...';
COMMENT ON COLUMN leaf_id.leaf_registry.database IS '... the database ...';
COMMENT ON COLUMN leaf_id.leaf_registry.relation IS '... and this table';
COMMENT ON COLUMN leaf_id.leaf_registry.epoch_ms IS
    'leaf_id.epoch of all its servers; null before the first of them';
COMMENT ON COLUMN leaf_id.leaf_registry.moved_at IS
    'When it was first used after a promotion or a restore, the last time; null: never';
COMMENT ON COLUMN leaf_id.leaf_registry.grace_since_ms IS
    'That moment on a clock that nobody sets, as long as no worker id is given away because of it; null: they are';
COMMENT ON COLUMN leaf_id.leaf_registry.grace_server_start IS
    'The start of the server whose clock grace_since_ms is of: after another one it begins anew';

-- A registry that finds no row of its own may have lost it in a failover. So the table
-- itself remembers where it was created. Not a row: a dump could not be restored over it.
DO $$
BEGIN
    EXECUTE pg_catalog.format(
        'ALTER TABLE %s ALTER system_identifier SET DEFAULT %s, ALTER timeline SET DEFAULT %s, '
        'ALTER database SET DEFAULT %s, ALTER relation SET DEFAULT %s',
        'leaf_id.leaf_registry'::pg_catalog.regclass,
        (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c),
        -- The timeline that is written on: pg_control shows an older one after a promotion.
        pg_catalog.textcat('x', pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))
            ::pg_catalog.bit(32)::pg_catalog.int4,
        (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()),
        'leaf_id.leaf_registry'::pg_catalog.regclass::pg_catalog.oid);
END
$$;

SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_worker', '');
SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_registry', '');

-- Both claim (asked_id is what the asker holds, or null) and renew (asked_id). A refusal is
-- an answer, not an error: the asker is to see the clocks. What an error undoes was not told
-- to anybody.
--
-- Locks, in this order: the row of leaf_registry for a claim, and for a renewal as long as
-- nothing is given away; then rows of leaf_worker.
CREATE FUNCTION @extschema@.leaf_worker_exchange(
    renewing boolean, asked_id integer, asker_system bigint, asker text,
    shown_token bigint, next_token bigint, held_until bigint, asker_ms bigint,
    reserve_until bigint, lease integer, max_skew integer, epoch bigint,
    OUT status text, OUT worker_id integer, OUT floor_ms bigint, OUT reserved_until_ms bigint,
    OUT registry_ms bigint, OUT peers integer, OUT peers_offset_ms bigint, OUT detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    here record;
    registry leaf_id.leaf_registry;
    -- The asker's row, or the one that it is to get.
    chosen leaf_id.leaf_worker;
    arrived timestamptz := clock_timestamp();
    locked timestamptz;
    locked_ms bigint;
    clock_offset bigint;
    -- Until worker ids are given away; null: they are.
    grace_ms bigint;
    -- What was recorded and acknowledged before a move may be missing: above this.
    moved_floor bigint := 0;
    own boolean;
    -- The asker shows that it is the holder, and no copy of it.
    known boolean;
    live boolean;
    -- It is the holder by what it was told, and that is forgotten here.
    enters boolean := false;
    free_id integer;
BEGIN
    SELECT b.* INTO here FROM @extschema@.leaf_registry_begin(renewing) b;

    IF num_nulls(asker_system, asker, next_token, asker_ms, reserve_until, lease, max_skew, epoch) > 0
        OR renewing AND asked_id IS NULL
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'a worker id cannot be leased to an unknown server',
            DETAIL = 'Only token, held and held_until_ms of leaf_worker_claim() may be null.';
    END IF;
    IF asked_id NOT BETWEEN 0 AND 1023
        OR octet_length(asker) > 63 OR asker ~ '[[:cntrl:]]'
        OR next_token IN (0, shown_token)
        OR asker_ms NOT BETWEEN 0 AND 253402300799999
        OR lease NOT BETWEEN 1 AND 86400000
        OR max_skew NOT BETWEEN 0 AND 3600000
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'a worker id cannot be leased on these terms',
            DETAIL = 'Expected are a worker id of 0 to 1023, a node name of at most 63 printable bytes, a next_token '
                'that is neither 0 nor token, a clock between 1970 and 9999, a lease of at most a day, and a clock '
                'skew of at most an hour.';
    END IF;

    SELECT r.* INTO registry FROM leaf_id.leaf_registry r;
    SELECT here.system_identifier, here.timeline, d.oid AS database,
        'leaf_id.leaf_registry'::regclass::oid AS relation, here.boot_ms
    INTO here
    FROM pg_database d WHERE d.datname = current_database();

    -- The clocks, before anything is waited for. What peers were off by was measured with the
    -- clock of the server that the registry was on then.
    registry_ms := floor(extract(epoch FROM arrived) * 1000);
    clock_offset := asker_ms - registry_ms;
    SELECT count(*), round(avg(w.clock_offset_ms)) INTO peers, peers_offset_ms
    FROM leaf_id.leaf_worker w
    WHERE w.lease_until > arrived AND w.clock_offset_ms IS NOT NULL
        AND (w.system_identifier, w.node_name) IS DISTINCT FROM (asker_system, asker)
        AND (registry.system_identifier, registry.timeline, registry.database, registry.relation)
            = (here.system_identifier, here.timeline, here.database, here.relation)
        AND (w.renewed_at >= registry.moved_at) IS NOT FALSE;
    IF abs(clock_offset) > max_skew THEN
        status := 'clock';
        detail := format('the clock is %s ms %s the registry''s',
            abs(clock_offset), CASE WHEN clock_offset > 0 THEN 'ahead of' ELSE 'behind' END);
        RETURN;
    END IF;
    IF peers >= 2 AND abs(clock_offset - peers_offset_ms) > max_skew THEN
        status := 'clock';
        detail := format('the clock is %s ms %s the average of %s other servers',
            abs(clock_offset - peers_offset_ms),
            CASE WHEN clock_offset > peers_offset_ms THEN 'ahead of' ELSE 'behind' END, peers);
        -- If it is this server's clock that was set, all holders are off from what they were:
        -- once each has said so, they agree again.
        UPDATE leaf_id.leaf_worker w SET clock_offset_ms = clock_offset
        WHERE w.system_identifier = asker_system AND w.node_name = asker
            AND w.token <> 0 AND w.token IN (shown_token, next_token);
        RETURN;
    END IF;

    IF NOT renewing OR registry.grace_since_ms IS NOT NULL
        OR (registry.system_identifier, registry.timeline, registry.database, registry.relation)
            IS DISTINCT FROM (here.system_identifier, here.timeline, here.database, here.relation)
    THEN
        INSERT INTO leaf_id.leaf_registry DEFAULT VALUES ON CONFLICT DO NOTHING;
        -- One claim at a time, until it is committed and acknowledged.
        SELECT r.* INTO STRICT registry FROM leaf_id.leaf_registry r FOR UPDATE;
        IF (registry.system_identifier, registry.timeline, registry.database, registry.relation)
            IS DISTINCT FROM (here.system_identifier, here.timeline, here.database, here.relation)
        THEN
            UPDATE leaf_id.leaf_registry r
            SET system_identifier = here.system_identifier, timeline = here.timeline,
                database = here.database, relation = here.relation, moved_at = clock_timestamp(),
                grace_since_ms = here.boot_ms, grace_server_start = pg_postmaster_start_time()
            RETURNING r.* INTO STRICT registry;
            RAISE LOG 'leaf_id: the worker registry was promoted or restored, and may have forgotten leases: for the time of one lease it gives no worker ids away';
        ELSIF registry.grace_server_start <> pg_postmaster_start_time() THEN
            UPDATE leaf_id.leaf_registry r
            SET grace_since_ms = here.boot_ms, grace_server_start = pg_postmaster_start_time()
            RETURNING r.* INTO STRICT registry;
        END IF;
        grace_ms := greatest(lease, (SELECT max(w.lease_ms) FROM leaf_id.leaf_worker w))
            - (here.boot_ms - registry.grace_since_ms);
        IF grace_ms <= 0 THEN
            grace_ms := NULL;
            UPDATE leaf_id.leaf_registry r
            SET grace_since_ms = NULL, grace_server_start = NULL
            RETURNING r.* INTO STRICT registry;
        END IF;
    END IF;

    IF registry.epoch_ms <> epoch THEN
        status := 'epoch';
        detail := format('the epoch of this registry is %s, not %s', registry.epoch_ms, epoch);
        RETURN;
    END IF;

    IF renewing THEN
        SELECT w.* INTO chosen FROM leaf_id.leaf_worker w
        WHERE w.worker_id = asked_id FOR UPDATE;
    ELSE
        SELECT w.* INTO chosen FROM leaf_id.leaf_worker w
        WHERE w.system_identifier = asker_system AND w.node_name = asker FOR UPDATE;
    END IF;
    locked := clock_timestamp();
    locked_ms := floor(extract(epoch FROM locked) * 1000);
    own := chosen.worker_id IS NOT NULL;
    known := coalesce(
        chosen.system_identifier = asker_system AND chosen.node_name = asker
            AND chosen.token <> 0 AND chosen.token IN (shown_token, next_token), false);
    live := coalesce(chosen.lease_until > locked, false);
    IF registry.moved_at IS NOT NULL THEN
        moved_floor := locked_ms + max_skew;
    END IF;
    IF grace_ms IS NOT NULL AND NOT renewing THEN
        IF NOT own THEN
            SELECT w.* INTO chosen FROM leaf_id.leaf_worker w
            WHERE w.worker_id = asked_id FOR UPDATE;
        END IF;
        -- A copy of the holder that was left behind was told an earlier time than is recorded,
        -- and nobody was told one later than the longest lease, and clocks, allow.
        enters := coalesce(
            asked_id = coalesce(chosen.worker_id, asked_id)
                AND held_until BETWEEN
                    -- Who was released was told no more than is recorded.
                    coalesce(chosen.reserved_until_ms, 0) + CASE WHEN own THEN 0 ELSE 1 END
                    AND locked_ms + 86400000 + 2 * 3600000
                AND chosen.retired IS NOT TRUE
                AND (own OR (chosen.lease_until > locked) IS NOT TRUE), false);
    END IF;

    IF renewing THEN
        IF NOT known THEN
            status := 'lost';
            detail := CASE
                WHEN chosen.system_identifier IS NULL THEN
                    format('worker id %s is leased to nobody', asked_id)
                WHEN (chosen.system_identifier, chosen.node_name) <> (asker_system, asker) THEN
                    format('worker id %s is leased to node "%s" of system %s',
                        asked_id, chosen.node_name, chosen.system_identifier)
                ELSE
                    format('worker id %s was renewed by a copy of node "%s"', asked_id, asker)
                END;
        ELSIF chosen.retired THEN
            status := 'retired';
            detail := format('worker id %s is retired', asked_id);
        ELSIF grace_ms IS NOT NULL AND NOT live THEN
            -- It may have been given away since, and that be forgotten.
            status := 'grace';
        ELSE
            status := 'granted';
            floor_ms := CASE WHEN live THEN 0 ELSE moved_floor END;
        END IF;
    ELSIF enters THEN
        status := 'granted';
        chosen.worker_id := asked_id;
        floor_ms := 0;
    ELSIF own AND live AND NOT known THEN
        status := 'held';
        detail := format('worker id %s is leased until %s to node "%s", which this server is not, or is a copy of',
            chosen.worker_id, chosen.lease_until, asker);
    ELSIF grace_ms IS NOT NULL AND NOT (own AND live AND NOT chosen.retired) THEN
        status := 'grace';
    ELSIF own AND NOT chosen.retired THEN
        status := 'granted';
        floor_ms := CASE
            WHEN known AND live THEN 0
            -- The asker itself knows which ids it has issued.
            WHEN known THEN moved_floor
            ELSE greatest(chosen.reserved_until_ms, locked_ms + max_skew)
            END;
    ELSE
        SELECT n INTO free_id FROM generate_series(0, 1023) n
        WHERE NOT EXISTS (SELECT FROM leaf_id.leaf_worker w WHERE w.worker_id = n)
        ORDER BY n LIMIT 1;
        IF FOUND THEN
            status := 'granted';
            chosen := NULL;
            chosen.worker_id := free_id;
            floor_ms := moved_floor;
        ELSE
            -- Not one that is being renewed just now.
            SELECT w.* INTO chosen FROM leaf_id.leaf_worker w
            WHERE NOT w.retired AND (w.lease_until > locked) IS NOT TRUE
            ORDER BY w.lease_until NULLS FIRST, w.worker_id
            LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                status := 'granted';
                floor_ms := greatest(chosen.reserved_until_ms, locked_ms + max_skew);
            ELSE
                status := 'full';
                detail := 'all 1024 worker ids are leased or retired';
            END IF;
        END IF;
    END IF;

    IF status = 'grace' THEN
        detail := format('the registry was promoted or restored, and may have forgotten leases: it gives worker ids away in %s ms',
            grace_ms);
    END IF;
    IF status <> 'granted' THEN
        RETURN;
    END IF;
    IF known OR enters THEN
        -- It may not have heard of it: an answer can be lost.
        floor_ms := greatest(floor_ms, chosen.floor_ms);
    END IF;

    -- A node has one worker id: the one it had was retired.
    UPDATE leaf_id.leaf_worker w
    SET system_identifier = NULL, node_name = NULL, token = 0, lease_ms = 0, clock_offset_ms = NULL
    WHERE w.system_identifier = asker_system AND w.node_name = asker
        AND w.worker_id <> chosen.worker_id;
    INSERT INTO leaf_id.leaf_worker AS w (
        worker_id, system_identifier, node_name, token, leased_at, renewed_at, lease_until, lease_ms,
        reserved_until_ms, floor_ms, clock_offset_ms, address)
    VALUES (
        chosen.worker_id, asker_system, asker, next_token, locked, locked,
        locked + make_interval(secs => lease / 1000.0), lease,
        greatest(
            CASE WHEN enters THEN held_until END,
            least(reserve_until, locked_ms + lease + max_skew),
            0),
        floor_ms, clock_offset, host(inet_client_addr()))
    ON CONFLICT ON CONSTRAINT leaf_worker_pkey DO UPDATE
    SET system_identifier = excluded.system_identifier, node_name = excluded.node_name,
        token = excluded.token,
        leased_at = CASE
            WHEN (w.system_identifier, w.node_name) = (asker_system, asker) THEN w.leased_at
            ELSE excluded.leased_at
            END,
        renewed_at = excluded.renewed_at, lease_until = excluded.lease_until,
        lease_ms = excluded.lease_ms,
        reserved_until_ms = greatest(w.reserved_until_ms, excluded.reserved_until_ms),
        floor_ms = excluded.floor_ms, clock_offset_ms = excluded.clock_offset_ms, address = excluded.address
    RETURNING w.worker_id, w.reserved_until_ms INTO STRICT worker_id, reserved_until_ms;
    IF (chosen.system_identifier, chosen.node_name) IS DISTINCT FROM (asker_system, asker) THEN
        RAISE LOG 'leaf_id: worker id % is leased to node "%" of system %', worker_id, asker, asker_system;
    END IF;
    IF registry.epoch_ms IS NULL AND NOT renewing THEN
        UPDATE leaf_id.leaf_registry r SET epoch_ms = epoch;
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_worker_exchange(
    boolean, integer, bigint, text, bigint, bigint, bigint, bigint, bigint, integer, integer, bigint) IS
    'What leaf_worker_claim() and leaf_worker_renew() do';

CREATE FUNCTION @extschema@.leaf_worker_claim(
    system_identifier bigint, node_name text, token bigint, next_token bigint,
    held integer, held_until_ms bigint, now_ms bigint, reserve_until_ms bigint,
    lease_ms integer, max_skew_ms integer, epoch_ms bigint,
    OUT status text, OUT worker_id integer, OUT floor_ms bigint, OUT reserved_until_ms bigint,
    OUT registry_ms bigint, OUT peers integer, OUT peers_offset_ms bigint, OUT detail text)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM @extschema@.leaf_worker_exchange(false, $5, $1, $2, $3, $4, $6, $7, $8, $9, $10, $11)
$$;
COMMENT ON FUNCTION @extschema@.leaf_worker_claim(
    bigint, text, bigint, bigint, integer, bigint, bigint, bigint, integer, integer, bigint) IS
    'Leases a worker id to a server: the one it had, or another. The answer''s status is granted, held, full, grace, clock or epoch';

CREATE FUNCTION @extschema@.leaf_worker_renew(
    worker_id integer, system_identifier bigint, node_name text, token bigint, next_token bigint,
    now_ms bigint, reserve_until_ms bigint, lease_ms integer, max_skew_ms integer, epoch_ms bigint,
    OUT status text, OUT worker_id integer, OUT floor_ms bigint, OUT reserved_until_ms bigint,
    OUT registry_ms bigint, OUT peers integer, OUT peers_offset_ms bigint, OUT detail text)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM @extschema@.leaf_worker_exchange(true, $1, $2, $3, $4, $5, NULL, $6, $7, $8, $9, $10)
$$;
COMMENT ON FUNCTION @extschema@.leaf_worker_renew(
    integer, bigint, text, bigint, bigint, bigint, bigint, integer, integer, bigint) IS
    'Renews the lease of a worker id, and raises what is reserved. The answer''s status is granted, lost, retired, grace, clock or epoch';

CREATE FUNCTION @extschema@.leaf_worker_release(worker_id integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- What was reserved stays: the next holder begins above it.
    UPDATE leaf_id.leaf_worker w
    SET system_identifier = NULL, node_name = NULL, token = 0, lease_ms = 0, clock_offset_ms = NULL,
        lease_until = least(w.lease_until, clock_timestamp())
    WHERE w.worker_id = $1 AND w.system_identifier IS NOT NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('worker id %s is not leased', coalesce($1::text, 'null'));
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_worker_release(integer) IS
    'Takes a worker id from its holder; whoever gets it next begins above all that was reserved';

CREATE FUNCTION @extschema@.leaf_worker_retire(worker_id integer, retired boolean DEFAULT true)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Not while a claim looks for an id without a row.
    INSERT INTO leaf_id.leaf_registry DEFAULT VALUES ON CONFLICT DO NOTHING;
    PERFORM FROM leaf_id.leaf_registry FOR UPDATE;
    INSERT INTO leaf_id.leaf_worker (worker_id, retired) VALUES ($1, $2)
    ON CONFLICT ON CONSTRAINT leaf_worker_pkey DO UPDATE SET retired = excluded.retired;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_worker_retire(integer, boolean) IS
    'Says that a worker id is neither leased nor renewed any more, or that it is again';

CREATE VIEW @extschema@.leaf_worker_status AS
SELECT
    w.worker_id, w.system_identifier, w.node_name,
    coalesce(w.lease_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS live,
    w.leased_at, w.renewed_at,
    w.lease_until AS lease_ends,
    w.clock_offset_ms,
    CASE WHEN w.reserved_until_ms OPERATOR(pg_catalog.>) 0 THEN
        pg_catalog.to_timestamp(w.reserved_until_ms::pg_catalog.float8 OPERATOR(pg_catalog./) 1000::pg_catalog.float8)
    END AS reserved_until,
    w.retired, w.address
FROM leaf_id.leaf_worker w;
COMMENT ON VIEW @extschema@.leaf_worker_status IS
    'The worker ids of this registry: who has them, until when';
COMMENT ON COLUMN @extschema@.leaf_worker_status.worker_id IS 'Worker id in snowflake ids';
COMMENT ON COLUMN @extschema@.leaf_worker_status.system_identifier IS
    'Database cluster of the holder, also when its lease has ended; null: nobody';
COMMENT ON COLUMN @extschema@.leaf_worker_status.node_name IS 'leaf_id.node_name of the holder';
COMMENT ON COLUMN @extschema@.leaf_worker_status.live IS 'The lease has not ended: nobody else gets the id';
COMMENT ON COLUMN @extschema@.leaf_worker_status.leased_at IS 'When the holder got it';
COMMENT ON COLUMN @extschema@.leaf_worker_status.renewed_at IS 'When it was last renewed';
COMMENT ON COLUMN @extschema@.leaf_worker_status.lease_ends IS 'When the lease ends, or has ended';
COMMENT ON COLUMN @extschema@.leaf_worker_status.clock_offset_ms IS
    'The clock of the holder minus that of this server when it was last renewed, in milliseconds';
COMMENT ON COLUMN @extschema@.leaf_worker_status.reserved_until IS
    'No id of any holder so far carries a later time: the next holder begins above it';
COMMENT ON COLUMN @extschema@.leaf_worker_status.retired IS 'Neither leased nor renewed any more';
COMMENT ON COLUMN @extschema@.leaf_worker_status.address IS
    'Where the holder connected from; null: by a Unix socket';
