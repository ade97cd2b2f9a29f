-- The edit triggers and the functions that manage tags.

CREATE FUNCTION @extschema@.leaf_alloc_stamp() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_alloc_stamp_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_alloc_stamp() IS
    'Trigger: stamps rows of leaf_id.leaf_alloc, refuses to lower max_id, and merges replicated rows of tags that exist';

CREATE FUNCTION @extschema@.leaf_alloc_edit() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_alloc_edit_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_alloc_edit() IS
    'Trigger: makes edits of leaf_id.leaf_alloc known to every session when they commit';

CREATE FUNCTION @extschema@.leaf_alloc_truncate() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_alloc_truncate_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_alloc_truncate() IS
    'Trigger: refuses TRUNCATE without leaf_id.allow_truncate, and drops every cached segment of this database when it commits';

CREATE TRIGGER leaf_alloc_stamp
    BEFORE INSERT OR UPDATE ON leaf_id.leaf_alloc
    FOR EACH ROW EXECUTE FUNCTION @extschema@.leaf_alloc_stamp();
-- AFTER: only rows that were really written are edits (ON CONFLICT DO NOTHING writes none).
CREATE TRIGGER leaf_alloc_edit
    AFTER INSERT OR UPDATE OR DELETE ON leaf_id.leaf_alloc
    FOR EACH ROW EXECUTE FUNCTION @extschema@.leaf_alloc_edit();
CREATE TRIGGER leaf_alloc_truncate
    BEFORE TRUNCATE ON leaf_id.leaf_alloc
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.leaf_alloc_truncate();
-- ALWAYS: a logical replication subscriber must drop its caches too.
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_stamp;
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_edit;
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_truncate;

CREATE FUNCTION @extschema@.leaf_tag_create(
    tag text,
    step integer DEFAULT 1000,
    start bigint DEFAULT 1,
    max_step integer DEFAULT NULL,
    max_value bigint DEFAULT NULL,
    description text DEFAULT NULL,
    server text DEFAULT NULL,
    if_not_exists boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing CONSTANT text := CASE
        WHEN $1 IS NULL THEN 'tag'
        WHEN $2 IS NULL THEN 'step'
        WHEN $3 IS NULL THEN 'start'
        WHEN $8 IS NULL THEN 'if_not_exists'
    END;
    last_id CONSTANT bigint := coalesce($5, 9223372036854775806);
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('leaf_tag_create() takes no null for "%s"', missing);
    END IF;
    -- Otherwise the cast would cut it, perhaps to the name of another server.
    IF pg_catalog.octet_length($7) > 63 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_name',
            MESSAGE = pg_catalog.format('server name "%s" is too long', $7),
            DETAIL = 'Names have at most 63 bytes.';
    END IF;
    IF $8 THEN
        INSERT INTO leaf_id.leaf_alloc (
            biz_tag, step, max_id, max_step, max_value, description, server)
        VALUES ($1, $2, $3, coalesce($4, greatest($2, 1000000)), last_id, $6, $7)
        ON CONFLICT (biz_tag) DO NOTHING;
        IF NOT FOUND THEN
            RAISE NOTICE USING
                ERRCODE = 'duplicate_object',
                MESSAGE = pg_catalog.format('tag "%s" already exists, skipping', $1);
        END IF;
    ELSE
        INSERT INTO leaf_id.leaf_alloc (
            biz_tag, step, max_id, max_step, max_value, description, server)
        VALUES ($1, $2, $3, coalesce($4, greatest($2, 1000000)), last_id, $6, $7);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_tag_create(text, integer, bigint, integer, bigint, text, text, boolean) IS
    'Creates a tag whose first id is start; max_step defaults to 1000000, or step where that is larger; max_value to the end of bigint. With a server, the ids come from its tag of this name. With if_not_exists, a tag that there is stays as it is.';

CREATE FUNCTION @extschema@.leaf_tag_drop(tag text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('leaf_tag_drop() takes no null for "%s"', 'tag');
    END IF;
    DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('tag "%s" does not exist', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_tag_drop(text) IS 'Drops a tag';

CREATE FUNCTION @extschema@.leaf_tag_reset(tag text, next_id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tag_row leaf_id.leaf_alloc;
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format(
                'leaf_tag_reset() takes no null for "%s"', CASE WHEN $1 IS NULL THEN 'tag' ELSE 'next_id' END);
    END IF;
    DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = $1 RETURNING * INTO tag_row;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('tag "%s" does not exist', $1);
    END IF;
    IF tag_row.server IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('tag "%s" is sourced from server "%s"', $1, tag_row.server),
            HINT = 'Reset it there: this server then begins a new incarnation of it with its next segment.';
    END IF;
    -- Other columns stay as they are. Its incarnation is a new one, and not that of the row that is gone.
    INSERT INTO leaf_id.leaf_alloc
    SELECT r.* FROM pg_catalog.jsonb_populate_record(
        tag_row, pg_catalog.jsonb_build_object('max_id', $2, 'incarnation', 0)) r;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_tag_reset(text, bigint) IS
    'Gives a tag a new incarnation that starts at next_id, also below ids that were issued';
