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

-- As leaf_high_mark.
CREATE TABLE leaf_id.leaf_gapless_mark (
    series text COLLATE "C" PRIMARY KEY
        CONSTRAINT leaf_gapless_mark_series_length CHECK (
            pg_catalog.octet_length(series) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(series) OPERATOR(pg_catalog.<=) 128),
    high bigint NOT NULL
        CONSTRAINT leaf_gapless_mark_high_positive CHECK (high OPERATOR(pg_catalog.>=) 1)
)
WITH (fillfactor = 50);
COMMENT ON TABLE leaf_id.leaf_gapless_mark IS
    'Set by leaf_id: how far numbers of each series were taken in this database';
COMMENT ON COLUMN leaf_id.leaf_gapless_mark.series IS 'Name of a series, or of one that is gone';
COMMENT ON COLUMN leaf_id.leaf_gapless_mark.high IS 'One past the highest number';
SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_gapless_mark',
    'WHERE NOT EXISTS (SELECT FROM leaf_id.leaf_gapless g WHERE g.series OPERATOR(pg_catalog.=) leaf_gapless_mark.series)');
CREATE TRIGGER leaf_gapless_mark_arrives
    BEFORE INSERT ON leaf_id.leaf_gapless_mark
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_mark_arrives();
ALTER TABLE leaf_id.leaf_gapless_mark ENABLE ALWAYS TRIGGER leaf_gapless_mark_arrives;
CREATE TRIGGER leaf_gapless_mark_stays
    BEFORE UPDATE OR DELETE ON leaf_id.leaf_gapless_mark
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_not_replicated();
ALTER TABLE leaf_id.leaf_gapless_mark ENABLE REPLICA TRIGGER leaf_gapless_mark_stays;

CREATE FUNCTION leaf_id_internal.leaf_gapless_restart(series text, last_number bigint) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        'Only if no number from %2$s on is in use anywhere: SELECT leaf_id.leaf_gapless_drop(%1$L, forget => true); SELECT leaf_id.leaf_gapless_create(%1$L, %2$s);',
        $1, greatest($2, 0)::numeric + 1)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_gapless_restart(text, bigint) IS 'A HINT: how to restart a series';

CREATE FUNCTION leaf_id_internal.leaf_gapless_raise(series text, last_number bigint, other text) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_gapless_raise_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_gapless_raise(text, bigint, text) IS
    'Raises the row of a gapless series, and its mark, to this number and the marks of two names; false: there is no such row';

CREATE FUNCTION leaf_id_internal.leaf_gapless_edit() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    replicated CONSTANT boolean := current_setting('session_replication_role') = 'replica';
    wanted CONSTANT bigint := NEW.last_number;
BEGIN
    IF wanted IS NULL THEN
        -- The constraint refuses it.
        RETURN NEW;
    ELSIF TG_OP = 'UPDATE' AND OLD.series = NEW.series THEN
        IF NOT replicated AND wanted < OLD.last_number THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('cannot lower "last_number" of gapless series "%s" from %s to %s',
                    OLD.series, OLD.last_number, wanted),
                HINT = leaf_id_internal.leaf_gapless_restart(OLD.series, wanted);
        END IF;
        NEW.last_number := greatest(OLD.last_number, wanted);
        RETURN NEW;
    END IF;
    IF replicated THEN
        -- An error would stop the apply worker with all its tables.
        IF leaf_id_internal.leaf_gapless_raise(NEW.series, wanted, NEW.series) THEN
            RETURN NULL;
        END IF;
    END IF;
    -- A renamed series also goes on above what a tool took back from its row.
    NEW.last_number := greatest(
        wanted, (SELECT max(m.high) - 1 FROM leaf_id.leaf_gapless_mark m WHERE m.series IN (NEW.series, OLD.series)));
    IF NOT replicated AND NEW.last_number > wanted
        AND NOT EXISTS (SELECT FROM leaf_id.leaf_gapless g WHERE g.series = NEW.series) THEN
        RAISE NOTICE USING
            MESSAGE = format('gapless series "%s" goes on at %s, above the numbers that were taken under this name',
                NEW.series, NEW.last_number::numeric + 1),
            HINT = leaf_id_internal.leaf_gapless_restart(NEW.series, wanted);
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_gapless_edit() IS
    'Trigger: no series goes back, and replicated rows of series that exist are merged';
CREATE TRIGGER leaf_gapless_edit
    BEFORE INSERT OR UPDATE ON leaf_id.leaf_gapless
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_gapless_edit();

CREATE FUNCTION leaf_id_internal.leaf_gapless_follow() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone record;
    before bigint;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.series = NEW.series THEN
        RETURN NULL;
    ELSIF TG_OP = 'TRUNCATE' AND current_setting('transaction_isolation') <> 'read committed'
        AND current_setting('session_replication_role') <> 'replica'
    THEN
        -- Its snapshot may be older than rows that go.
        RAISE EXCEPTION 'leaf_id.leaf_gapless can be truncated only in a READ COMMITTED transaction'
            USING ERRCODE = 'feature_not_supported';
    END IF;
    FOR gone IN
        SELECT (OLD).* WHERE TG_OP IN ('UPDATE', 'DELETE')
        UNION ALL
        SELECT * FROM leaf_id.leaf_gapless WHERE TG_OP = 'TRUNCATE'
    LOOP
        -- See leaf_alloc_mark().
        DELETE FROM leaf_id.leaf_gapless_mark m WHERE m.series = gone.series RETURNING m.high INTO before;
        INSERT INTO leaf_id.leaf_gapless_mark AS m (series, high)
        VALUES (gone.series, greatest(gone.last_number + 1, before))
        ON CONFLICT (series) DO UPDATE SET high = greatest(m.high, excluded.high);
    END LOOP;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        -- It may have waited for another row of its name to go after leaf_gapless_edit() read the mark, or
        -- for the mark of the name that it leaves to be raised. With a new snapshot, whatever the
        -- transaction's isolation.
        PERFORM leaf_id_internal.leaf_gapless_raise(NEW.series, 0, coalesce(OLD.series, NEW.series));
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_gapless_follow() IS
    'Trigger: a new row begins at the mark of its name, and a row that goes leaves its number there';
CREATE TRIGGER leaf_gapless_follow
    AFTER INSERT OR UPDATE OR DELETE ON leaf_id.leaf_gapless
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_gapless_follow();
CREATE TRIGGER leaf_gapless_follow_truncate
    BEFORE TRUNCATE ON leaf_id.leaf_gapless
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_gapless_follow();

CREATE FUNCTION leaf_id_internal.leaf_gapless_edited() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_gapless_edited_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_gapless_edited() IS
    'Trigger: a transaction that has edited a gapless series cannot be prepared';
CREATE TRIGGER leaf_gapless_edited
    AFTER INSERT OR UPDATE OR DELETE ON leaf_id.leaf_gapless
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_gapless_edited();
CREATE TRIGGER leaf_gapless_edited_truncate
    AFTER TRUNCATE ON leaf_id.leaf_gapless
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_gapless_edited();
-- leaf_gapless_drop(forget => true).
CREATE TRIGGER leaf_gapless_forgotten
    AFTER DELETE ON leaf_id.leaf_gapless_mark
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_gapless_edited();

ALTER TABLE leaf_id.leaf_gapless ENABLE ALWAYS TRIGGER leaf_gapless_edit;
ALTER TABLE leaf_id.leaf_gapless ENABLE ALWAYS TRIGGER leaf_gapless_follow;
ALTER TABLE leaf_id.leaf_gapless ENABLE ALWAYS TRIGGER leaf_gapless_follow_truncate;

CREATE FUNCTION leaf_id.leaf_gapless_create(series text, start bigint DEFAULT 1) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_there CONSTANT boolean := leaf_id_internal.leaf_require('');
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('argument "%s" of leaf_gapless_create() must not be null',
                CASE WHEN $1 IS NULL THEN 'series' ELSE 'start' END);
    END IF;
    IF octet_length($1) NOT BETWEEN 1 AND 128 OR $2 < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = CASE WHEN $2 < 1 THEN pg_catalog.format('"%s" must be %s', 'start', 'at least 1')
                ELSE pg_catalog.format('"%s" must be %s', 'series', '1 to 128 bytes long') END;
    END IF;
    INSERT INTO leaf_id.leaf_gapless (series, last_number) VALUES ($1, $2 - 1)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = pg_catalog.format('gapless series "%s" already exists', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_gapless_create(text, bigint) IS
    'Creates a gapless series whose first number is start';

CREATE FUNCTION leaf_id.leaf_gapless_drop(series text, forget boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_there CONSTANT boolean := leaf_id_internal.leaf_require('');
    done boolean;
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format(
                'argument "%s" of leaf_gapless_drop() must not be null', CASE WHEN $1 IS NULL THEN 'series' ELSE 'forget' END);
    END IF;
    DELETE FROM leaf_id.leaf_gapless g WHERE g.series = $1;
    done := FOUND;
    IF $2 THEN
        DELETE FROM leaf_id.leaf_gapless_mark m WHERE m.series = $1;
        done := FOUND OR done;
    END IF;
    IF NOT done THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('gapless series "%s" does not exist', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_gapless_drop(text, boolean) IS
    'Drops a gapless series; a later one of this name goes on above its numbers, unless forget is true';

CREATE FUNCTION leaf_id.leaf_gapless_next(series text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_gapless_next_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_gapless_next(text) IS
    'The next number of a gapless series, which is locked until the transaction ends';
