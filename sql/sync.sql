-- leaf_sync() fits tags to the ids that are in the tables, and leaf_check() says what it would do.
--
-- Both run with the caller's rights. A superuser may call them where hostile roles own tables:
-- nothing of theirs is looked up by name or run. Columns are found in the catalogs, and read by
-- leaf_column_max(), by oid; what is called by name is in schema leaf_id, which nobody else can
-- rename or fill. A number in somebody's table has the weight that his rights give it: see
-- "counts" below.

CREATE FUNCTION leaf_id.leaf_column_max(
    relation oid, column_number smallint, OUT largest bigint, OUT unread text)
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_column_max_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_column_max(oid, smallint) IS
    'The largest value in an integer column of one table, or why it was not read; runs no code of the table''s owner';

CREATE FUNCTION leaf_id.leaf_tag_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_tag_next_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_tag_next(text) IS
    'No id of the tag that is issued from now on is smaller; null where that is not known at the moment';

CREATE FUNCTION leaf_id.leaf_used_up(next_id bigint, max_value bigint, type_end bigint) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last_id CONSTANT bigint := least($2, $3);
    what CONSTANT text := CASE WHEN $2 <= $3 THEN 'max_value' ELSE 'the column''s type' END;
    ratio CONSTANT float8 := $1::float8 / last_id;
BEGIN
    RETURN CASE
        WHEN $1 > last_id THEN format('the end of %s is reached', what)
        WHEN ratio >= 0.95 THEN format('95 %% of %s is used', what)
        WHEN ratio >= 0.9 THEN format('90 %% of %s is used', what)
        WHEN ratio >= 0.8 THEN format('80 %% of %s is used', what)
    END;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_used_up(bigint, bigint, bigint) IS
    'Says when 80, 90 or 95 % of the ids that a tag may have, or a column can hold, are used';

CREATE FUNCTION leaf_id.leaf_fit_tags(
    only_tag text,
    apply boolean,
    OUT tag text,
    OUT relation regclass,
    OUT column_name name,
    OUT max_in_column bigint,
    OUT next_before bigint,
    OUT next_after bigint,
    OUT action text,
    OUT detail text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- pg_get_expr() quotes by it.
SET standard_conforming_strings = on
AS $$
DECLARE
    the_end CONSTANT bigint := 9223372036854775806;
    found_tag record;
    stored record;
    exists_already boolean;
    -- The largest id that counts, and what the tag may go up to.
    wanted bigint;
    last_id bigint;
    tag_action text;
    tag_detail text;
    seen text[] := '{}';
BEGIN
    IF apply AND pg_is_in_recovery() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'read_only_sql_transaction',
            MESSAGE = 'cannot sync tags during recovery',
            HINT = 'Call leaf_sync() on the primary.';
    END IF;

    -- Every column is read before the first tag is locked, and tags are locked in their order:
    -- two calls at once do not wait for each other in a circle.
    FOR found_tag IN
        WITH RECURSIVE issuing AS MATERIALIZED (
            SELECT p.oid AS function_id, p.proname,
                quote_ident(p.proname) || '(' AS bare,
                quote_ident(n.nspname) || '.' || quote_ident(p.proname) || '(' AS qualified
            FROM pg_extension e
            JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
            JOIN pg_proc p ON p.oid = d.objid
            JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE e.extname = 'leaf_id'
                AND p.proname IN ('leaf_segment_next', 'leaf_segment_next_batch', 'leaf_segment_next_range')
        ), defaults AS MATERIALIZED (
            SELECT DISTINCT a.attrelid, a.attname, f.proname, f.bare, f.qualified,
                -- Of no relation, which it would lock: somebody may hold it ACCESS EXCLUSIVE. A
                -- default has no variables.
                pg_get_expr(v.adbin, 0) AS expression
            FROM issuing f
            JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = f.function_id
                AND d.classid = 'pg_attrdef'::regclass
            JOIN pg_attrdef v ON v.oid = d.objid
            JOIN pg_attribute a ON a.attrelid = v.adrelid AND a.attnum = v.adnum
            WHERE NOT a.attisdropped AND a.attgenerated = ''
            UNION
            SELECT a.attrelid, a.attname, f.proname, f.bare, f.qualified, pg_get_expr(t.typdefaultbin, 0)
            FROM issuing f
            JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = f.function_id
                AND d.classid = 'pg_type'::regclass
            JOIN pg_type t ON t.oid = d.objid AND t.typtype = 'd' AND t.typdefaultbin IS NOT NULL
            JOIN pg_attribute a ON a.atttypid = t.oid AND a.attnum > 0
            JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'f')
            WHERE NOT a.attisdropped AND NOT a.atthasdef
        ), calls AS (
            -- Without a cast that stands around it, as far as the tag.
            SELECT d.*,
                CASE
                    WHEN d.proname <> 'leaf_segment_next' THEN NULL
                    WHEN starts_with(u.call, d.qualified) THEN substr(u.call, length(d.qualified) + 1)
                    WHEN starts_with(u.call, d.bare) THEN substr(u.call, length(d.bare) + 1)
                END AS arguments
            FROM defaults d
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN d.expression LIKE '(%)::smallint' THEN substr(d.expression, 2, length(d.expression) - 12)
                    WHEN d.expression LIKE '(%)::integer' THEN substr(d.expression, 2, length(d.expression) - 11)
                    WHEN d.expression LIKE '(%)::bigint' THEN substr(d.expression, 2, length(d.expression) - 10)
                    ELSE d.expression
                END AS call
            ) u
        ), named AS MATERIALIZED (
            -- A constant and nothing else: what it is written back as is what was read.
            SELECT c.attrelid, c.attname, c.expression,
                CASE WHEN l.literal = '''' || replace(t.name, '''', '''''') || ''''
                    AND octet_length(t.name) BETWEEN 1 AND 128 THEN t.name END AS name
            FROM calls c
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN c.arguments LIKE '(%::character varying)::text)'
                        THEN substr(c.arguments, 2, length(c.arguments) - 28)
                    WHEN c.arguments LIKE '(%::name)::text)' THEN substr(c.arguments, 2, length(c.arguments) - 15)
                    WHEN c.arguments LIKE '%::text)' THEN left(c.arguments, -7)
                END AS literal
            ) l
            CROSS JOIN LATERAL (
                SELECT replace(substr(l.literal, 2, length(l.literal) - 2), '''''', '''') AS name
                WHERE length(l.literal) >= 2
                UNION ALL
                SELECT NULL WHERE l.literal IS NULL OR length(l.literal) < 2
            ) t
        ), tree AS (
            SELECT n.attrelid AS root, n.attrelid AS member FROM named n
            UNION
            SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.member
        ), topmost AS MATERIALIZED (
            -- A partition whose default came from its parent is its parent's row.
            SELECT n.* FROM named n
            WHERE (only_tag IS NULL OR n.name = only_tag)
                AND NOT EXISTS (
                    SELECT FROM named above
                    JOIN tree t ON t.root = above.attrelid AND t.member = n.attrelid
                    WHERE above.attrelid <> n.attrelid AND above.attname = n.attname AND above.name = n.name)
        ), members AS MATERIALIZED (
            SELECT o.attrelid, o.attname, o.name, o.expression, t.member, c.relkind, c.relowner,
                CASE a.attlen WHEN 2 THEN 32767 WHEN 4 THEN 2147483647 ELSE the_end END AS type_end,
                m.largest, m.unread
            FROM topmost o
            JOIN tree t ON t.root = o.attrelid
            JOIN pg_class c ON c.oid = t.member
            JOIN pg_attribute a ON a.attrelid = t.member AND a.attname = o.attname AND NOT a.attisdropped
            -- It is strict: a null column is not read.
            CROSS JOIN LATERAL leaf_id.leaf_column_max(
                t.member, CASE WHEN o.name IS NOT NULL AND c.relkind <> 'p' THEN a.attnum END) m
        ), counted AS (
            -- Whoever owns a table can write any number into it, and so have a superuser use up
            -- the tag of others. So an id counts where its owner could do as much harm himself, as he
            -- may edit tags, or drop the database; where the caller has named the tag; and where it
            -- is below max_id, as then all that it can cost is what is cached.
            SELECT m.*,
                -- There may be ids in it. Views and foreign tables keep theirs somewhere else.
                coalesce(m.unread IN (
                    'it is locked by another session: try again',
                    'you may not read it',
                    'row-level security may hide rows from you'), false) AS hidden,
                only_tag IS NOT NULL
                OR has_table_privilege(m.relowner, 'leaf_id.leaf_alloc'::regclass, 'UPDATE')
                OR pg_has_role(m.relowner, 'pg_database_owner', 'USAGE') AS may_raise
            FROM members m
        ), columns AS (
            SELECT c.attrelid, c.attname, c.name, c.expression,
                max(c.largest) AS largest,
                max(c.largest) FILTER (WHERE c.may_raise) AS trusted,
                max(c.largest) FILTER (WHERE NOT c.may_raise) AS untrusted,
                bool_or(c.may_raise) FILTER (WHERE c.unread IS NULL) AS may_raise,
                min(c.type_end) FILTER (WHERE c.unread IS NULL) AS type_end,
                bool_or(c.hidden) AS hidden
            FROM counted c
            GROUP BY c.attrelid, c.attname, c.name, c.expression
            HAVING bool_or(c.unread IS NULL)
        )
        SELECT c.name COLLATE "C" AS name,
            max(c.trusted) AS trusted,
            max(c.untrusted) AS untrusted,
            bool_or(c.may_raise) AS may_raise,
            min(c.type_end) FILTER (WHERE c.may_raise) AS type_end,
            array_agg(c.attrelid::oid ORDER BY c.attrelid::regclass::text, c.attname) AS relations,
            array_agg(c.attname ORDER BY c.attrelid::regclass::text, c.attname) AS names,
            array_agg(c.largest ORDER BY c.attrelid::regclass::text, c.attname) AS largest,
            array_agg(c.untrusted ORDER BY c.attrelid::regclass::text, c.attname) AS untrusted_largest,
            array_agg(c.type_end ORDER BY c.attrelid::regclass::text, c.attname) AS type_ends,
            array_agg(c.expression ORDER BY c.attrelid::regclass::text, c.attname) AS expressions,
            NULL::text AS unread,
            array_agg(c.hidden ORDER BY c.attrelid::regclass::text, c.attname) AS hidden,
            -- In a column of any table; but what would not count is not missed.
            c.name IN (SELECT o.name FROM counted o WHERE o.hidden AND o.may_raise) AS incomplete
        FROM columns c
        GROUP BY c.name
        UNION ALL
        SELECT c.name COLLATE "C", NULL, NULL, NULL, NULL, ARRAY[c.member::oid], ARRAY[c.attname],
            NULL, NULL, NULL, NULL, c.unread, NULL, NULL
        FROM counted c
        WHERE c.unread IS NOT NULL
        ORDER BY 1 NULLS FIRST, 12 NULLS FIRST, 6
    LOOP
        tag := found_tag.name;
        relation := NULL;
        column_name := NULL;
        max_in_column := NULL;
        next_before := NULL;
        next_after := NULL;
        action := 'skip';
        IF found_tag.unread IS NOT NULL THEN
            relation := found_tag.relations[1]::regclass;
            column_name := found_tag.names[1];
            detail := found_tag.unread;
            seen := seen || tag;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF tag IS NULL THEN
            FOR i IN 1 .. cardinality(found_tag.relations) LOOP
                relation := found_tag.relations[i]::regclass;
                column_name := found_tag.names[i];
                detail := format('its default is not just a call with a constant tag: %s', found_tag.expressions[i]);
                RETURN NEXT;
            END LOOP;
            CONTINUE;
        END IF;
        seen := seen || tag;

        tag_action := 'none';
        tag_detail := NULL;
        SELECT a.max_id, a.max_value, a.server
        INTO stored FROM leaf_id.leaf_alloc a WHERE a.biz_tag = found_tag.name;
        exists_already := FOUND;
        IF leaf_id.leaf_has_key(found_tag.name) THEN
            exists_already := false;
            tag_action := 'skip';
            tag_detail := 'its ids are opaque: the default must be leaf_opaque_next()';
        ELSIF NOT exists_already THEN
            wanted := found_tag.trusted;
            last_id := found_tag.type_end;
            -- Nor does a stranger have a name taken, for a tag that ends soon.
            IF NOT found_tag.may_raise THEN
                tag_action := 'skip';
                tag_detail := format(
                    'it does not exist, and the owners of its tables may not edit tags: if they are right, SELECT * FROM leaf_sync(%L)', tag);
            ELSIF found_tag.incomplete THEN
                tag_action := 'skip';
                tag_detail := 'it does not exist, and not all of its columns could be read';
            ELSIF wanted >= last_id THEN
                tag_action := 'skip';
                tag_detail := format('no id above %s is left in the type of the column', wanted);
            ELSE
                tag_action := 'create';
                next_after := greatest(wanted, 0) + 1;
                IF apply THEN
                    INSERT INTO leaf_id.leaf_alloc AS a (biz_tag, max_id, max_value)
                    VALUES (found_tag.name, next_after, last_id)
                    ON CONFLICT (biz_tag) DO NOTHING
                    RETURNING a.max_id, a.max_value, a.server INTO stored;
                    IF NOT FOUND THEN
                        -- Somebody else has made it meanwhile.
                        next_after := NULL;
                        tag_action := 'none';
                        SELECT a.max_id, a.max_value, a.server INTO stored
                        FROM leaf_id.leaf_alloc a WHERE a.biz_tag = found_tag.name;
                        exists_already := FOUND;
                    END IF;
                END IF;
            END IF;
        END IF;

        IF exists_already THEN
            last_id := stored.max_value;
            wanted := greatest(
                found_tag.trusted,
                (SELECT max(u) FROM unnest(found_tag.untrusted_largest) u WHERE u < stored.max_id));
            next_before := leaf_id.leaf_tag_next(tag);
            next_after := next_before;
            IF wanted >= next_before OR (next_before IS NULL AND wanted >= 1) THEN
                IF stored.server IS NOT NULL THEN
                    tag_action := 'skip';
                    tag_detail := format(
                        'its ids come from server "%s": raise max_id to %s there, and then here', stored.server, wanted + 1);
                ELSIF pg_is_in_recovery() AND wanted < stored.max_id THEN
                    tag_action := 'skip';
                    tag_detail := 'only the primary knows what is cached';
                ELSIF greatest(stored.max_id, wanted) >= stored.max_value THEN
                    tag_action := 'skip';
                    tag_detail := format(
                        'max_value (%s) leaves no id above %s', stored.max_value, greatest(stored.max_id - 1, wanted));
                ELSE
                    tag_action := 'raise';
                    -- One more than max_id, although ids of the cache may be above what is wanted:
                    -- only a max_id that changes has everybody drop what is cached.
                    next_after := greatest(stored.max_id, wanted) + 1;
                    IF apply THEN
                        UPDATE leaf_id.leaf_alloc a SET max_id = greatest(a.max_id, wanted) + 1
                        WHERE a.biz_tag = found_tag.name AND greatest(a.max_id, wanted) < a.max_value
                        RETURNING a.max_id INTO next_after;
                        IF NOT FOUND THEN
                            next_after := NULL;
                            tag_action := 'skip';
                            tag_detail := 'it was dropped, or used up, meanwhile';
                        END IF;
                    END IF;
                END IF;
            END IF;
        END IF;

        FOR i IN 1 .. cardinality(found_tag.relations) LOOP
            relation := found_tag.relations[i]::regclass;
            column_name := found_tag.names[i];
            max_in_column := found_tag.largest[i];
            action := tag_action;
            detail := tag_detail;
            IF found_tag.untrusted_largest[i] >= greatest(next_after, 1) AND tag_action <> 'skip' THEN
                action := 'skip';
                detail := format(
                    'its owner %s may not edit tags: if this value is right, SELECT * FROM leaf_sync(%L)',
                    (SELECT c.relowner::regrole FROM pg_class c WHERE c.oid = found_tag.relations[i]), tag);
            ELSIF found_tag.hidden[i] AND tag_action <> 'skip' THEN
                -- Of partitions and children, of which each has a row of its own.
                action := CASE tag_action WHEN 'none' THEN 'skip' ELSE tag_action END;
                detail := 'not all of its tables could be read';
            ELSIF tag_detail IS NULL THEN
                detail := leaf_id.leaf_used_up(next_after, last_id, found_tag.type_ends[i]);
            END IF;
            RETURN NEXT;
        END LOOP;
    END LOOP;

    -- Tags that no default names: whether they come to their end.
    relation := NULL;
    column_name := NULL;
    max_in_column := NULL;
    FOR stored IN
        SELECT a.biz_tag, a.max_id, a.max_value FROM leaf_id.leaf_alloc a
        WHERE a.biz_tag <> ALL (seen)
            AND (a.biz_tag = only_tag OR only_tag IS NULL AND a.max_id::float8 / a.max_value >= 0.8)
        ORDER BY a.biz_tag
    LOOP
        tag := stored.biz_tag;
        next_before := leaf_id.leaf_tag_next(tag);
        next_after := next_before;
        detail := coalesce(
            leaf_id.leaf_used_up(coalesce(next_before, stored.max_id), stored.max_value, the_end),
            CASE WHEN only_tag IS NOT NULL THEN 'no column''s default issues its ids' END);
        seen := seen || tag;
        CONTINUE WHEN detail IS NULL;
        action := 'none';
        RETURN NEXT;
    END LOOP;
    IF only_tag IS NOT NULL AND only_tag <> ALL (seen) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('tag "%s" does not exist', only_tag),
            DETAIL = 'No column''s default issues its ids either.';
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_fit_tags(text, boolean) IS
    'What leaf_sync() does, or, without apply, what it would do';

CREATE FUNCTION @extschema@.leaf_sync(
    INOUT tag text DEFAULT NULL,
    OUT relation regclass,
    OUT column_name name,
    OUT max_in_column bigint,
    OUT next_before bigint,
    OUT next_after bigint,
    OUT action text,
    OUT detail text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT f.* FROM leaf_id.leaf_fit_tags($1, true) f;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_sync(text) IS
    'Creates the tags that column defaults name, and raises those whose ids are in the columns already: after a restore, or rows with ids of their own';

CREATE FUNCTION @extschema@.leaf_check(
    INOUT tag text DEFAULT NULL,
    OUT relation regclass,
    OUT column_name name,
    OUT max_in_column bigint,
    OUT next_before bigint,
    OUT next_after bigint,
    OUT action text,
    OUT detail text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT f.* FROM leaf_id.leaf_fit_tags($1, false) f;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_check(text) IS
    'What leaf_sync() would do, and which tags come to their end';
