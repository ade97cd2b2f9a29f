-- Gapless numbers. Only leaf_gapless_next() increments a series, and it requires only EXECUTE. A
-- series must be created explicitly, since any role that may call the function can block the
-- others.

CREATE TABLE leaf_id.leaf_gapless (
    series text COLLATE "C" PRIMARY KEY
        CONSTRAINT leaf_gapless_series_length CHECK (
            pg_catalog.octet_length(series) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(series) OPERATOR(pg_catalog.<=) 128),
    last_number bigint NOT NULL
        CONSTRAINT leaf_gapless_range CHECK (
            last_number OPERATOR(pg_catalog.>=) 0 AND last_number OPERATOR(pg_catalog.<=) 9223372036854775806)
)
-- As for leaf_alloc: an increment updates its row in place (HOT) as long as the page has room.
WITH (fillfactor = 50);

COMMENT ON TABLE leaf_id.leaf_gapless IS
    'Series of leaf_gapless_next(): manage them with leaf_gapless_create() and leaf_gapless_drop()';
COMMENT ON COLUMN leaf_id.leaf_gapless.series IS 'Name of the series, 1 to 128 bytes';
COMMENT ON COLUMN leaf_id.leaf_gapless.last_number IS 'The last number of a committed call';

SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_gapless', '');

-- A subscriber that has a series already keeps the greater number. An error would stop the apply
-- worker with all its tables.
CREATE FUNCTION leaf_id.leaf_gapless_merge() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- After pg_restore --disable-triggers, this fires in all sessions except subscribers.
    IF current_setting('session_replication_role') <> 'replica' THEN
        RETURN NEW;
    ELSIF TG_OP = 'UPDATE' AND OLD.series = NEW.series THEN
        NEW.last_number := greatest(OLD.last_number, NEW.last_number);
    ELSE
        UPDATE leaf_id.leaf_gapless g SET last_number = NEW.last_number WHERE g.series = NEW.series;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_gapless_merge() IS
    'Trigger: merges replicated rows of series that exist';
CREATE TRIGGER leaf_gapless_merge
    BEFORE INSERT OR UPDATE ON leaf_id.leaf_gapless
    FOR EACH ROW EXECUTE FUNCTION leaf_id.leaf_gapless_merge();
ALTER TABLE leaf_id.leaf_gapless ENABLE REPLICA TRIGGER leaf_gapless_merge;

CREATE FUNCTION @extschema@.leaf_gapless_create(series text, start bigint DEFAULT 1) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('leaf_gapless_create() takes no null for "%s"',
                CASE WHEN $1 IS NULL THEN 'series' ELSE 'start' END);
    END IF;
    INSERT INTO leaf_id.leaf_gapless (series, last_number)
    -- A value below the range is rejected by the constraint.
    VALUES ($1, greatest($2, 0) - 1);
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_gapless_create(text, bigint) IS
    'Creates a gapless series whose first number is start';

CREATE FUNCTION @extschema@.leaf_gapless_drop(series text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('leaf_gapless_drop() takes no null for "%s"', 'series');
    END IF;
    DELETE FROM leaf_id.leaf_gapless g WHERE g.series = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('gapless series "%s" does not exist', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_gapless_drop(text) IS 'Drops a gapless series';

CREATE FUNCTION @extschema@.leaf_gapless_next(series text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_gapless_next_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_gapless_next(text) IS
    'The next number of a gapless series, which is locked until the transaction ends';
