-- Triggers for edits of tags, and functions to manage tags.

CREATE FUNCTION leaf_id_internal.leaf_alloc_stamp() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_alloc_stamp_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_alloc_stamp() IS
    'Trigger: stamps rows, refuses to lower max_id, and merges replicated rows of tags that exist';

CREATE FUNCTION leaf_id_internal.leaf_alloc_edit() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_alloc_edit_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_alloc_edit() IS
    'Trigger: makes edits of leaf_id.leaf_alloc known to every session when they commit';

CREATE FUNCTION leaf_id_internal.leaf_alloc_truncate() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_alloc_truncate_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_alloc_truncate() IS
    'Trigger: refuses TRUNCATE without leaf_id.allow_truncate, or drops what this database has cached';

CREATE TRIGGER leaf_alloc_stamp
    BEFORE INSERT OR UPDATE ON leaf_id.leaf_alloc
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_alloc_stamp();
-- AFTER: only rows actually written are edits (ON CONFLICT DO NOTHING writes none).
CREATE TRIGGER leaf_alloc_edit
    AFTER INSERT OR UPDATE OR DELETE ON leaf_id.leaf_alloc
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_alloc_edit();
CREATE TRIGGER leaf_alloc_truncate
    BEFORE TRUNCATE ON leaf_id.leaf_alloc
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_alloc_truncate();

-- Marks left by edits. Written by SQL, not by oid like those of claims, since tools that copy the
-- table of marks follow it with row triggers.
CREATE FUNCTION leaf_id.leaf_left(
    max_id bigint, step integer, max_step integer, system_identifier bigint, timeline integer, largest_claim integer,
    is_sourced boolean) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_left_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_left(bigint, integer, integer, bigint, integer, integer, boolean) IS
    'What a row leaves to the mark of its name: max_id, and ids that promotions may have lost';

CREATE FUNCTION leaf_id_internal.leaf_is_unsettled(system_identifier bigint, timeline integer) RETURNS boolean
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_is_unsettled_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_is_unsettled(bigint, integer) IS
    'Whether promotions may have lost claims since the one that a row of leaf_alloc has';

CREATE FUNCTION leaf_id_internal.leaf_next_here(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_next_here_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_next_here(text) IS
    'The next id of a tag that this transaction has created or issued; 0 of any other';

CREATE FUNCTION leaf_id_internal.leaf_alloc_mark() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone record;
    before bigint;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.biz_tag = NEW.biz_tag THEN
        IF OLD.incarnation <> NEW.incarnation THEN
            -- leaf_tag_reset().
            UPDATE leaf_id.leaf_high_mark SET high = NEW.max_id WHERE tag = NEW.biz_tag;
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'TRUNCATE' AND current_setting('transaction_isolation') <> 'read committed'
        AND current_setting('session_replication_role') <> 'replica'
    THEN
        -- Its snapshot may be older than rows that go.
        RAISE EXCEPTION 'leaf_id.leaf_alloc can be truncated only in a READ COMMITTED transaction'
            USING ERRCODE = 'feature_not_supported';
    END IF;
    FOR gone IN
        SELECT (OLD).* WHERE TG_OP <> 'TRUNCATE'
        UNION ALL
        SELECT * FROM leaf_id.leaf_alloc WHERE TG_OP = 'TRUNCATE'
    LOOP
        -- Not by UPDATE: claims write past triggers, so a tool that follows the table with row triggers
        -- may have no such row to update in its copy. The DELETE waits for a mark that is being raised.
        DELETE FROM leaf_id.leaf_high_mark m WHERE m.tag = gone.biz_tag RETURNING m.high INTO before;
        INSERT INTO leaf_id.leaf_high_mark AS m (tag, high)
        VALUES (gone.biz_tag, leaf_id.leaf_left(
            greatest(gone.max_id, before, leaf_id_internal.leaf_next_here(gone.biz_tag)),
            gone.step, gone.max_step, gone.system_identifier, gone.timeline, gone.largest_claim, gone.server IS NOT NULL))
        ON CONFLICT (tag) DO UPDATE SET high = greatest(m.high, excluded.high);
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_alloc_mark() IS
    'Trigger: leaves the max_id of a row that goes, or is renamed, to the mark of its name';
CREATE TRIGGER leaf_alloc_mark
    AFTER UPDATE OR DELETE ON leaf_id.leaf_alloc
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_alloc_mark();
-- Of a row that goes or is renamed by hand: with the rights of the role that edits it, and not where the
-- function that does it has looked already.
CREATE FUNCTION leaf_id_internal.leaf_alloc_tell() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    names text;
    columns text;
BEGIN
    IF current_setting('leaf_id_internal.has_looked', true) = 'on' OR NOT has_table_privilege('leaf_id.leaf_alloc', 'SELECT') THEN
        RETURN NULL;
    ELSIF NOT EXISTS (SELECT FROM gone g WHERE NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = g.biz_tag)) THEN
        RETURN NULL;
    END IF;
    -- Whom the row was granted to counts, too.
    SELECT string_agg(DISTINCT format('"%s"', g.biz_tag), ', '), string_agg(
        format('The default of column "%s" of table %s issues ids of tag "%s".', i.column_name, i.relation::regclass, g.biz_tag), E'\n'
        ORDER BY g.biz_tag, i.relation, i.column_name)
    INTO names, columns
    FROM leaf_id_internal.leaf_issuing_columns(NULL, true) i
    JOIN pg_class c ON c.oid = i.relation AND c.relpersistence <> 't'
    JOIN gone g ON g.biz_tag = ANY (i.texts)
    WHERE NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = g.biz_tag)
        AND (i.counts OR EXISTS (
            SELECT FROM unnest(g.granted_to) o (name) LEFT JOIN pg_roles r ON r.rolname = o.name
            WHERE o.name = 'public' OR pg_has_role(i.untrusted, r.oid, 'USAGE')));
    IF columns IS NOT NULL THEN
        RAISE WARNING 'columns still take their ids from tags that are gone: %', names
            USING DETAIL = columns, HINT = 'Their INSERTs fail until the tags are there again: leaf_sync() creates them above the ids in the columns, or says what to do.';
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_alloc_tell() IS
    'Trigger: a warning with the columns that still name tags that are gone';
CREATE TRIGGER leaf_alloc_tell_delete
    AFTER DELETE ON leaf_id.leaf_alloc REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_alloc_tell();
CREATE TRIGGER leaf_alloc_tell_rename
    AFTER UPDATE ON leaf_id.leaf_alloc REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_alloc_tell();
CREATE TRIGGER leaf_alloc_mark_truncate
    BEFORE TRUNCATE ON leaf_id.leaf_alloc
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_alloc_mark();

-- ALWAYS: a logical replication subscriber must invalidate its caches, too.
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_stamp;
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_edit;
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_truncate;
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_mark;
ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_mark_truncate;

-- For HINTs.
CREATE FUNCTION leaf_id_internal.leaf_function_name(function text) RETURNS text
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_function_name_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_function_name(text) IS
    'A function of the extension as a statement names it: with its schema, unless that is searched';

CREATE FUNCTION leaf_id_internal.leaf_check_preloaded(is_error boolean) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_check_preloaded_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_check_preloaded(boolean) IS
    'True; an error, or a warning in each session, if the library is not preloaded';
-- CREATE EXTENSION is the first to say so.
SELECT leaf_id_internal.leaf_check_preloaded(false);

-- Checked before a row is written: the table's constraints would say the same with all its values.
CREATE FUNCTION leaf_id_internal.leaf_wrong_argument(
    tag text, start bigint, step integer, max_step integer, max_value bigint, OUT argument text, OUT allowed text)
RETURNS record
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT w.argument, w.allowed
    FROM (VALUES
        (1, 'tag', '1 to 128 bytes long', octet_length($1) NOT BETWEEN 1 AND 128),
        (2, 'start', 'at least 1', $2 < 1),
        (3, 'step', 'at least 1', $3 < 1),
        (4, 'max_step', format('at least "step" (%s)', $3), $4 < $3),
        (5, 'max_value', '1 to 9223372036854775806', $5 NOT BETWEEN 1 AND 9223372036854775806),
        (6, 'start', format('at most "max_value" (%s)', $5), $2 > $5)
    ) w (number, argument, allowed, is_wrong)
    WHERE w.is_wrong
    ORDER BY w.number LIMIT 1
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_wrong_argument(text, bigint, integer, integer, bigint) IS
    'Which of these arguments is out of range, and what is allowed; null: none';

-- What is not read gets a NOTICE, so that a role may create tags of tables that it may not read.
CREATE FUNCTION leaf_id_internal.leaf_check_start(tag text, first_id bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this record;
    larger text;
BEGIN
    -- Opaque ids are not in the order of the numbers. To read the defaults of 10,000 tables for each of
    -- their tags would take longer than to create it.
    IF leaf_id_internal.leaf_has_key($1) OR (
        SELECT count(*) > 1000
        FROM (
            SELECT FROM leaf_id_internal.leaf_issuers() i
            JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = i.issuer
            LIMIT 1001) l)
    THEN
        RETURN true;
    END IF;
    FOR this IN
        SELECT v.* FROM leaf_id_internal.leaf_values_of_tag($1, 100000000) v
    LOOP
        IF this.largest >= $2 THEN
            larger := concat_ws(E'\n', larger, format(
                'Column "%s" of table %s holds %s.', this.column_name, this.relation::regclass, this.largest));
        ELSIF this.unread IS NOT NULL THEN
            RAISE NOTICE 'column "%" of table %, which takes ids from tag "%", was not read', this.column_name, this.relation::regclass, $1
                USING DETAIL = this.unread;
        END IF;
    END LOOP;
    IF larger IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('cannot create tag "%s" with first id %s because columns hold that or larger ids', $1, $2),
            DETAIL = larger,
            -- By the name of the tag alone, columns of strangers would count.
            HINT = format('To see which missing tags leaf_sync() would create, and above which ids: SELECT * FROM %s();',
                leaf_id_internal.leaf_function_name('leaf_check'));
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_check_start(text, bigint) IS
    'True; an error if a column that takes ids from a new tag holds its first id, or a larger one';

CREATE FUNCTION leaf_id_internal.leaf_create_tag(
    tag text, start bigint, step integer, max_step integer, max_value bigint, description text, server text,
    if_not_exists boolean, force boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Here and not by PERFORM, whose SQL would be in the CONTEXT of the error.
    is_right boolean := leaf_id_internal.leaf_require('INSERT');
    missing CONSTANT text := CASE
        WHEN $1 IS NULL THEN 'tag'
        WHEN $2 IS NULL THEN 'start'
        WHEN $3 IS NULL THEN 'step'
        WHEN $8 IS NULL THEN 'if_not_exists'
        WHEN $9 IS NULL THEN 'force'
    END;
    last_id CONSTANT bigint := coalesce($5, 9223372036854775806);
    wrong record;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('argument "%s" of leaf_tag_create() must not be null', missing);
    END IF;
    -- The cast would truncate it, perhaps to the name of another server.
    IF pg_catalog.octet_length($7) > 63 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_name',
            MESSAGE = pg_catalog.format('server name "%s" is too long', $7),
            DETAIL = 'Names have at most 63 bytes.';
    END IF;
    PERFORM leaf_id_internal.leaf_check_preloaded(false);
    SELECT w.* INTO wrong FROM leaf_id_internal.leaf_wrong_argument($1, $2, $3, $4, last_id) w;
    IF wrong.argument IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('"%s" must be %s', wrong.argument, wrong.allowed);
    END IF;
    IF $7 IS NOT NULL AND NOT EXISTS (SELECT FROM pg_foreign_server s WHERE s.srvname = $7) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('server "%s" does not exist', $7),
            HINT = 'Create the foreign server first, with CREATE SERVER.';
    END IF;
    -- Without a conflict target, which takes the right to read the column.
    INSERT INTO leaf_id.leaf_alloc (
        biz_tag, step, max_id, max_step, max_value, description, server)
    VALUES ($1, $3, $2, coalesce($4, greatest($3, 1000000)), last_id, $6, $7)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        -- Ids of a source server are above its own. To know whose columns count, one has to read tags.
        IF NOT $9 AND $7 IS NULL AND has_table_privilege('leaf_id.leaf_alloc', 'SELECT') THEN
            is_right := leaf_id_internal.leaf_check_start($1, $2);
        END IF;
    ELSIF NOT $8 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = pg_catalog.format('tag "%s" already exists', $1);
    ELSE
        RAISE NOTICE USING
            ERRCODE = 'duplicate_object',
            MESSAGE = pg_catalog.format('tag "%s" already exists, skipping', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_create_tag(text, bigint, integer, integer, bigint, text, text, boolean, boolean) IS
    'What leaf_tag_create() does';

CREATE FUNCTION @extschema@.leaf_tag_create(
    tag text,
    start bigint DEFAULT 1,
    step integer DEFAULT 1000,
    max_step integer DEFAULT NULL,
    max_value bigint DEFAULT NULL,
    description text DEFAULT NULL,
    server text DEFAULT NULL,
    if_not_exists boolean DEFAULT false,
    force boolean DEFAULT false
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT leaf_id_internal.leaf_create_tag($1, $2, $3, $4, $5, $6, $7, $8, $9)';
COMMENT ON FUNCTION @extschema@.leaf_tag_create(text, bigint, integer, integer, bigint, text, text, boolean, boolean) IS
    'Creates a tag whose first id is start; see docs/reference.md for max_step, max_value and server';

CREATE FUNCTION leaf_id_internal.leaf_forget(tag text) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_forget_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_forget(text) IS
    'Forgets how far ids of a name were claimed that no tag has; true if that was known';

CREATE FUNCTION @extschema@.leaf_tag_drop(
    tag text, forget boolean DEFAULT false, force boolean DEFAULT false, if_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET leaf_id_internal.has_looked = on
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require('SELECT, DELETE');
    missing CONSTANT text := CASE WHEN $1 IS NULL THEN 'tag' WHEN $2 IS NULL THEN 'forget' WHEN $3 IS NULL THEN 'force'
        WHEN $4 IS NULL THEN 'if_exists' END;
    columns text;
    done boolean;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('argument "%s" of leaf_tag_drop() must not be null', missing);
    END IF;
    IF NOT $3 AND NOT pg_catalog.pg_is_in_recovery() THEN
        SELECT pg_catalog.string_agg(pg_catalog.format(
            'The default of column "%s" of table %s issues its ids.', c.column_name, c.relation::pg_catalog.regclass), E'\n')
        INTO columns FROM leaf_id_internal.leaf_columns_of_tag($1) c
        WHERE EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag OPERATOR(pg_catalog.=) $1);
        IF columns IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'dependent_objects_still_exist',
                MESSAGE = pg_catalog.format('cannot drop tag "%s" because columns take their ids from it', $1),
                DETAIL = columns,
                HINT = pg_catalog.format('To drop it all the same: SELECT %s(%L, %sforce => true);',
                    leaf_id_internal.leaf_function_name('leaf_tag_drop'), $1, CASE WHEN $2 THEN 'forget => true, ' END);
        END IF;
    END IF;
    DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = $1;
    done := FOUND;
    IF $2 THEN
        done := leaf_id_internal.leaf_forget($1) OR done;
    END IF;
    IF NOT done AND $4 THEN
        RAISE NOTICE USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('tag "%s" does not exist, skipping', $1);
    ELSIF NOT done THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('tag "%s" does not exist', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_tag_drop(text, boolean, boolean, boolean) IS
    'Drops a tag. One created later under this name continues above its ids, unless forget is true';

CREATE FUNCTION @extschema@.leaf_tag_reset(tag text, next_id bigint, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require('SELECT, UPDATE');
    missing CONSTANT text := CASE WHEN $1 IS NULL THEN 'tag' WHEN $2 IS NULL THEN 'next_id' WHEN $3 IS NULL THEN 'force' END;
    columns text;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('argument "%s" of leaf_tag_reset() must not be null', missing);
    END IF;
    IF $2 < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('"%s" must be %s', 'next_id', 'at least 1');
    END IF;
    -- As far as the caller may read them.
    IF NOT $3 AND NOT pg_catalog.pg_is_in_recovery() THEN
        SELECT pg_catalog.string_agg(pg_catalog.format(
            'Column "%s" of table %s holds %s.', c.column_name, c.relation::pg_catalog.regclass, c.largest), E'\n')
        INTO columns
        FROM (
            SELECT t.root AS relation, t.column_name, max(t.largest) AS largest
            FROM leaf_id_internal.leaf_read_tables($1) t
            WHERE t.tag OPERATOR(pg_catalog.=) $1 AND t.counts AND t.largest OPERATOR(pg_catalog.>=) $2
            GROUP BY t.root, t.column_name
            UNION
            -- Of expressions, too. Opaque ids are not in the order of the numbers.
            SELECT v.relation, v.column_name, v.largest
            FROM leaf_id_internal.leaf_values_of_tag($1, 'infinity') v
            WHERE NOT v.is_plain AND v.largest OPERATOR(pg_catalog.>=) $2 AND NOT leaf_id_internal.leaf_has_key($1)) c;
        IF columns IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = pg_catalog.format('cannot reset tag "%s" to %s because columns hold larger ids', $1, $2),
                DETAIL = columns,
                HINT = pg_catalog.format('To issue them once more: SELECT %s(%L, %s, force => true);',
                    leaf_id_internal.leaf_function_name('leaf_tag_reset'), $1, $2);
        END IF;
    END IF;
    -- 0 requests a new incarnation, with which max_id may be lowered.
    UPDATE leaf_id.leaf_alloc SET max_id = $2, incarnation = 0 WHERE biz_tag = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('tag "%s" does not exist', $1);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_tag_reset(text, bigint, boolean) IS
    'Restarts a tag at next_id, also below ids that were issued; below those in columns only by force';
