-- The worker registry: which server issues snowflake ids with which worker id. The decisions, and
-- the uniqueness argument, are in src/core/src/registry.rs.

CREATE TABLE leaf_id.leaf_worker (
    worker_id integer CONSTRAINT leaf_worker_pkey PRIMARY KEY
        CONSTRAINT leaf_worker_id_range CHECK (worker_id OPERATOR(pg_catalog.>=) 0 AND worker_id OPERATOR(pg_catalog.<=) 32767),
    system_identifier bigint,
    node_name text COLLATE "C"
        CONSTRAINT leaf_worker_node_name_length CHECK (pg_catalog.octet_length(node_name) OPERATOR(pg_catalog.<=) 63),
    -- A name rather than an oid, so that pg_dump preserves it.
    role_name text COLLATE "C"
        CONSTRAINT leaf_worker_role_name_length CHECK (pg_catalog.octet_length(role_name) OPERATOR(pg_catalog.<=) 63),
    token bigint NOT NULL DEFAULT 0,
    leased_at timestamptz,
    renewed_at timestamptz,
    reserved_until_ms bigint NOT NULL DEFAULT 0
        CONSTRAINT leaf_worker_reserved_range CHECK (
            reserved_until_ms OPERATOR(pg_catalog.>=) 0 AND reserved_until_ms OPERATOR(pg_catalog.<=) 253402300799999),
    floor_ms bigint NOT NULL DEFAULT 0
        CONSTRAINT leaf_worker_floor_range CHECK (
            floor_ms OPERATOR(pg_catalog.>=) 0 AND floor_ms OPERATOR(pg_catalog.<=) 253402311599999),
    clock_offset_ms bigint,
    retired boolean NOT NULL DEFAULT false,
    address text,
    host boolean NOT NULL DEFAULT false,
    CONSTRAINT leaf_worker_holder CHECK (
        (system_identifier IS NULL) OPERATOR(pg_catalog.=) (node_name IS NULL))
)
-- Renewals update their row in place (HOT) as long as the page has room.
WITH (fillfactor = 50);

COMMENT ON TABLE leaf_id.leaf_worker IS
    'Worker ids that servers have leased; leaf_id.fleet shows them';
COMMENT ON COLUMN leaf_id.leaf_worker.worker_id IS 'Worker id in snowflake ids: as many as the layout in leaf_registry has';
COMMENT ON COLUMN leaf_id.leaf_worker.system_identifier IS
    'Database cluster of the current or last holder; null: none';
COMMENT ON COLUMN leaf_id.leaf_worker.node_name IS 'leaf_id.node_name of the holder';
COMMENT ON COLUMN leaf_id.leaf_worker.role_name IS
    'Role that leased it; only it can renew the lease; null: any role';
COMMENT ON COLUMN leaf_id.leaf_worker.token IS
    'What the holder must show; changes with each renewal; 0: no server can';
COMMENT ON COLUMN leaf_id.leaf_worker.leased_at IS 'When the holder got it';
COMMENT ON COLUMN leaf_id.leaf_worker.renewed_at IS 'When it was last renewed';
COMMENT ON COLUMN leaf_id.leaf_worker.reserved_until_ms IS
    'No id of any holder carries a later time (Unix ms); free max_skew_ms after it; never goes down';
COMMENT ON COLUMN leaf_id.leaf_worker.floor_ms IS
    'Ids of this holder carry later times, in Unix milliseconds';
COMMENT ON COLUMN leaf_id.leaf_worker.clock_offset_ms IS
    'The clock of the holder minus that of this server when it was last renewed, in milliseconds';
COMMENT ON COLUMN leaf_id.leaf_worker.retired IS 'Not leased any more';
COMMENT ON COLUMN leaf_id.leaf_worker.address IS 'Where the holder connected from; null: by a Unix socket';
COMMENT ON COLUMN leaf_id.leaf_worker.host IS
    'Kept for the server that this registry is on, whichever that is after a promotion';

CREATE TABLE leaf_id.leaf_registry (
    one boolean PRIMARY KEY DEFAULT true CONSTRAINT leaf_registry_one_row CHECK (one),
    system_identifier bigint,
    timeline integer,
    database oid,
    relation oid,
    epoch_ms bigint,
    -- The range of Layout in src/core.
    layout text COLLATE "C"
        CONSTRAINT leaf_registry_layout_valid CHECK (
            layout OPERATOR(pg_catalog.~) '^(3[89]|4[0-6])/([0-9]|1[0-5])/([1-9]|1[0-6])$'
            AND pg_catalog.split_part(layout, '/', 1)::pg_catalog.int4
                OPERATOR(pg_catalog.+) pg_catalog.split_part(layout, '/', 2)::pg_catalog.int4
                OPERATOR(pg_catalog.+) pg_catalog.split_part(layout, '/', 3)::pg_catalog.int4
                OPERATOR(pg_catalog.<=) 63),
    moved_at timestamptz,
    moved_floor_ms bigint
        CONSTRAINT leaf_registry_moved_floor_range CHECK (
            moved_floor_ms OPERATOR(pg_catalog.>=) 0 AND moved_floor_ms OPERATOR(pg_catalog.<=) 253402311599999),
    max_skew_ms integer NOT NULL DEFAULT 1000
        CONSTRAINT leaf_registry_max_skew_range CHECK (
            max_skew_ms OPERATOR(pg_catalog.>=) 0 AND max_skew_ms OPERATOR(pg_catalog.<=) 3600000),
    grant_ahead_ms integer NOT NULL DEFAULT 300000
        CONSTRAINT leaf_registry_grant_ahead_range CHECK (
            grant_ahead_ms OPERATOR(pg_catalog.>=) 1000 AND grant_ahead_ms OPERATOR(pg_catalog.<=) 86400000),
    max_ids_per_role integer DEFAULT 256
        CONSTRAINT leaf_registry_max_ids_range CHECK (
            max_ids_per_role OPERATOR(pg_catalog.>=) 0 AND max_ids_per_role OPERATOR(pg_catalog.<=) 32768)
);
COMMENT ON TABLE leaf_id.leaf_registry IS
    'The worker registry itself: one row, from its first use on, or from when its owner inserts it';
COMMENT ON COLUMN leaf_id.leaf_registry.one IS 'There is one row';
COMMENT ON COLUMN leaf_id.leaf_registry.system_identifier IS
    'Where the registry was last used: the database cluster ...';
COMMENT ON COLUMN leaf_id.leaf_registry.timeline IS '... its WAL timeline ...';
COMMENT ON COLUMN leaf_id.leaf_registry.database IS '... the database ...';
COMMENT ON COLUMN leaf_id.leaf_registry.relation IS '... and this table';
COMMENT ON COLUMN leaf_id.leaf_registry.epoch_ms IS
    'leaf_id.epoch of all its servers: by default that of the registry''s own server at first use';
COMMENT ON COLUMN leaf_id.leaf_registry.layout IS
    'leaf_id.snowflake_layout of all its servers: by default that of the registry''s own at first use';
COMMENT ON COLUMN leaf_id.leaf_registry.moved_at IS
    'When it was first used after a promotion or a restore, the last time; null: never';
COMMENT ON COLUMN leaf_id.leaf_registry.moved_floor_ms IS
    'No id of a lease forgotten then carries a later time, in Unix milliseconds; null: never moved';
COMMENT ON COLUMN leaf_id.leaf_registry.max_skew_ms IS
    'How far the clock of a server may be off when it asks for a worker id, in milliseconds';
COMMENT ON COLUMN leaf_id.leaf_registry.grant_ahead_ms IS
    'How far ahead of the clock leases last, in milliseconds; they are renewed after a third of it';
COMMENT ON COLUMN leaf_id.leaf_registry.max_ids_per_role IS
    'How many worker ids one role may have, except for superusers and the extension''s owner; null: any';

-- A registry without a row of its own, or with one never used, may have lost leases in a failover.
-- So its place of creation is recorded: in the catalog, which no dump has, and no publication.
DO $$
DECLARE
    place pg_catalog.text;
BEGIN
    SELECT pg_catalog.format('{%s, %s, %s, %s}', c.system_identifier,
        -- Timeline that WAL is written on; pg_control has an older one right after a promotion.
        pg_catalog.textcat('x', pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))
            ::pg_catalog.bit(32)::pg_catalog.int4,
        d.oid,
        'leaf_id.leaf_registry'::pg_catalog.regclass::pg_catalog.oid) INTO place
    FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
    WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();
    EXECUTE pg_catalog.format(
        'CREATE FUNCTION leaf_id_internal.leaf_registry_origin() RETURNS pg_catalog.int8[]
             LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L',
        pg_catalog.format('SELECT %L::pg_catalog.int8[]', place));
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_registry_origin() IS
    'Where leaf_registry was created: system identifier, WAL timeline, database, table';

-- A renewal that still reads the old value would commit a later time after a lower value, and a
-- standby could have the value without it: what it has forgotten would be later than it assumes. And
-- without the row, a registry that was restored would not know that it waits for forgotten leases.
CREATE FUNCTION leaf_id_internal.leaf_await_renewals() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'the row of leaf_registry cannot be deleted'
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'It says until when leases count that a promotion or a restore has forgotten.',
                HINT = 'To go back to the defaults: UPDATE leaf_id.leaf_registry SET max_skew_ms = DEFAULT, grant_ahead_ms = DEFAULT, max_ids_per_role = DEFAULT;';
    END IF;
    LOCK TABLE leaf_id.leaf_worker IN SHARE MODE;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_await_renewals() IS
    'Trigger: waits until renewals under the old terms have ended, and keeps the row';
CREATE TRIGGER leaf_registry_awaits_renewals
    BEFORE INSERT OR UPDATE OF grant_ahead_ms OR DELETE OR TRUNCATE ON leaf_id.leaf_registry
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_await_renewals();

-- Without its row, a worker id would be leased while its holder goes on with it.
CREATE FUNCTION leaf_id_internal.leaf_keep_workers() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'rows of leaf_worker cannot be deleted'
        USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'They say until when their holders may issue ids.',
            HINT = 'A worker id is free when its lease is over; leaf_id.leaf_worker_retire() has it leased no more.';
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_keep_workers() IS 'Trigger: keeps the rows of worker ids';
CREATE TRIGGER leaf_worker_keep
    BEFORE DELETE OR TRUNCATE ON leaf_id.leaf_worker
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_keep_workers();

-- Prepared, it would keep its locks over restarts, and no lease would be renewed.
CREATE FUNCTION leaf_id_internal.leaf_registry_edited() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_registry_edited_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_registry_edited() IS
    'Trigger: a transaction that has edited the worker registry cannot be prepared';
CREATE TRIGGER leaf_registry_edited
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON leaf_id.leaf_registry
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_registry_edited();
CREATE TRIGGER leaf_worker_edited
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON leaf_id.leaf_worker
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_registry_edited();

SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_worker', '');
SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_registry', '');

-- Functions for operators.

CREATE FUNCTION leaf_id.leaf_worker_retire(worker_id integer, retired boolean DEFAULT true) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_worker_retire_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_worker_retire(integer, boolean) IS
    'Says that a worker id is not leased any more, or that it is again: to a new holder, a little later';

CREATE FUNCTION leaf_id.leaf_worker_set_aside(worker_id integer, until timestamptz) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_worker_set_aside_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_worker_set_aside(integer, timestamptz) IS
    'Sets a worker id aside that was never used, for ids with times up to until';
