-- leaf_sync() raises tags above the ids in the tables, and leaf_check() shows what it would do.
--
-- Both run with the caller's rights. A superuser may call them where hostile roles own tables: no
-- object of theirs is looked up by name or executed. Columns are found in the catalogs and read by
-- oid, with leaf_column_max(). Functions called by name are in schema leaf_id, which nobody else
-- can rename or create objects in. The owner's rights limit the effect of a number in a table: see
-- "may_raise" below.

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

-- Where both end together, a larger max_value alone would not help.
CREATE FUNCTION leaf_id.leaf_is_narrow(max_value bigint, type_end bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS 'SELECT $2 < 9223372036854775806 AND $2 <= $1';
COMMENT ON FUNCTION leaf_id.leaf_is_narrow(bigint, bigint) IS
    'Whether it is the type of a column that ends the ids of a tag';

CREATE FUNCTION leaf_id.leaf_skip_ids(tag text, last_id bigint) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_skip_ids_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_skip_ids(text, bigint) IS
    'Takes the ids of a tag up to this one, or says that it has not; what is cached above stays';

CREATE FUNCTION leaf_id.leaf_used_up(next_id bigint, max_value bigint, type_end bigint) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last_id CONSTANT bigint := least($2, $3);
    what CONSTANT text := CASE WHEN leaf_id.leaf_is_narrow($2, $3) THEN 'the column''s type' ELSE 'max_value' END;
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

CREATE FUNCTION leaf_id.leaf_default_source(
    expression pg_node_tree, issuer oid, OUT tag text, OUT sequence oid, OUT texts text[])
    STRICT IMMUTABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_default_source_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_default_source(pg_node_tree, oid) IS
    'What a default is, if it is one call with a constant: the tag that the issuing function is given, or the sequence that nextval() is; and all texts in it';

-- Identified by properties that only a superuser can set, not by names, which may change.
CREATE FUNCTION leaf_id.leaf_issuers(OUT issuer oid, OUT is_plain boolean, OUT is_opaque boolean) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.oid, p.prosrc = 'leaf_segment_next', p.prosrc = 'leaf_opaque_next_wrapper'
    FROM pg_proc p
    JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'c'
    JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        AND d.refclassid = 'pg_extension'::regclass
    JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leaf_id'
    WHERE p.prosrc IN (
        'leaf_segment_next', 'leaf_segment_next_batch_wrapper', 'leaf_segment_next_range_wrapper', 'leaf_opaque_next_wrapper')
$$;
COMMENT ON FUNCTION leaf_id.leaf_issuers() IS
    'The functions that issue ids of tags; the plain one issues a single id';

CREATE FUNCTION leaf_id.leaf_issuer() RETURNS oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.issuer FROM leaf_id.leaf_issuers() i WHERE i.is_plain
$$;
COMMENT ON FUNCTION leaf_id.leaf_issuer() IS 'leaf_segment_next()';

-- Locks nothing, since a table may be locked ACCESS EXCLUSIVE. So pg_get_expr() gets no relation; a
-- default has no variables.
CREATE FUNCTION leaf_id.leaf_issuing_columns(
    OUT relation oid, OUT column_name name, OUT tag text, OUT texts text[], OUT expression text, OUT writer oid,
    OUT is_opaque boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH callers AS (
        SELECT d.classid, d.objid, bool_and(i.is_opaque) AS is_opaque
        FROM leaf_id.leaf_issuers() i
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = i.issuer
        GROUP BY d.classid, d.objid
    ), defaults AS (
        SELECT a.attrelid, a.attname, f.adbin AS tree, r.relowner AS writer, c.is_opaque
        FROM callers c
        JOIN pg_attrdef f ON f.oid = c.objid AND c.classid = 'pg_attrdef'::regclass
        JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum AND a.attgenerated = ''
        JOIN pg_class r ON r.oid = f.adrelid
        UNION ALL
        SELECT a.attrelid, a.attname, t.typdefaultbin, t.typowner, c.is_opaque
        FROM callers c
        JOIN pg_type t ON t.oid = c.objid AND c.classid = 'pg_type'::regclass
        JOIN pg_attribute a ON a.atttypid = t.oid AND NOT a.atthasdef
        JOIN pg_class r ON r.oid = a.attrelid AND r.relkind IN ('r', 'p', 'f')
    )
    SELECT d.attrelid, d.attname, t.tag, s.texts,
        -- Not of strangers, who could make it fail, or take long.
        CASE WHEN t.tag IS NULL AND leaf_id.leaf_is_manager(d.writer) THEN pg_get_expr(d.tree, 0) END, d.writer,
        d.is_opaque
    FROM defaults d
    CROSS JOIN LATERAL leaf_id.leaf_default_source(d.tree, (SELECT leaf_id.leaf_issuer())) s
    CROSS JOIN LATERAL (SELECT CASE WHEN octet_length(s.tag) BETWEEN 1 AND 128 THEN s.tag END AS tag) t
$$;
COMMENT ON FUNCTION leaf_id.leaf_issuing_columns() IS
    'The columns whose defaults, or those of their domains, issue ids: of which tag, or, if that is no constant, by which expression; and who wrote that: the owner of the table or domain';

-- One row per column, including its partitions and children, and one per table that was not read.
CREATE FUNCTION leaf_id.leaf_read_columns(
    only_tag text,
    OUT tag text,
    OUT relation oid,
    OUT column_name name,
    OUT expression text,
    -- Reason why it was not read; true if it is a part of the column that may contain ids.
    OUT unread text, OUT is_hidden boolean,
    OUT type_end bigint,
    OUT largest bigint,
    -- Largest value that does not count, and the role for whose sake.
    OUT untrusted bigint, OUT untrusted_role oid,
    -- Over all columns of the tag: the largest value that counts; any column counts; one that
    -- counts was not read.
    OUT wanted bigint,
    OUT may_raise boolean,
    OUT is_incomplete boolean,
    -- Smallest type_end of the columns that count and were read; smallest and largest of all that
    -- count.
    OUT tag_end bigint,
    OUT smallest_end bigint,
    OUT largest_end bigint
) RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
-- JIT compilation would take longer than the query.
SET jit = off
AS $$
    WITH RECURSIVE issuing AS MATERIALIZED (
        SELECT * FROM leaf_id.leaf_issuing_columns() i
        WHERE NOT i.is_opaque AND (only_tag IS NULL OR i.tag = only_tag)
    ), tree AS (
        SELECT i.relation AS root, i.relation AS member FROM issuing i
        UNION
        SELECT t.root, h.inhrelid FROM tree t JOIN pg_inherits h ON h.inhparent = t.member
    ), topmost AS MATERIALIZED (
        -- A partition that inherits its default is covered by its parent's row.
        SELECT i.*,
            min(c.relowner) OVER of_tag = max(c.relowner) OVER of_tag
                AND min(i.writer) OVER of_tag = max(i.writer) OVER of_tag AS has_one_owner
        FROM issuing i
        JOIN pg_class c ON c.oid = i.relation
        WHERE (i.relation, i.column_name) NOT IN (
            SELECT below.relation, below.column_name
            FROM issuing above
            JOIN tree t ON t.root = above.relation AND t.member <> t.root
            JOIN issuing below ON below.relation = t.member AND below.column_name = above.column_name
                AND below.tag = above.tag)
        WINDOW of_tag AS (PARTITION BY i.tag)
    ), members AS MATERIALIZED (
        SELECT o.relation AS root, o.column_name, o.tag, o.expression, t.member, m.largest, m.unread,
            CASE a.attlen WHEN 2 THEN 32767 WHEN 4 THEN 2147483647 ELSE 9223372036854775806 END AS type_end,
            -- It may contain ids. Views and foreign tables have theirs elsewhere.
            coalesce(m.unread IN (
                'it is locked by another session: try again',
                'you may not read it',
                'row-level security may hide rows from you'), false) AS is_hidden,
            -- The owner of a table can write any number into it, and the owner of its domain any tag
            -- into the default, and so make a superuser use up a tag of others. So a value counts
            -- only if both could do the same harm directly, by editing tags or dropping the
            -- database; if the caller has named the tag; or if it is below max_id, where it can
            -- cost only the cached ids.
            d.role AS untrusted_role,
            d.role IS NULL
                -- A database without tags, as after pg_restore: an owner can use up only the tag of
                -- their own columns.
                OR o.has_one_owner
                    AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
                    AND NOT EXISTS (SELECT FROM leaf_id.leaf_alloc) AS may_raise
        FROM topmost o
        JOIN tree t ON t.root = o.relation
        JOIN pg_class c ON c.oid = t.member
        JOIN pg_attribute a ON a.attrelid = t.member AND a.attname = o.column_name AND NOT a.attisdropped
        -- The function is strict: a NULL column number skips the read.
        CROSS JOIN LATERAL leaf_id.leaf_column_max(
            t.member, CASE WHEN o.tag IS NOT NULL AND c.relkind <> 'p' THEN a.attnum END) m
        LEFT JOIN LATERAL (
            SELECT r.role FROM (VALUES (c.relowner), (o.writer)) r (role)
            WHERE only_tag IS NULL AND NOT leaf_id.leaf_is_manager(r.role)
            LIMIT 1) d ON true
    )
    SELECT m.tag, r.relation, m.column_name, m.expression, m.unread,
        bool_or(bool_or(m.is_hidden)) OVER (PARTITION BY m.root, m.column_name),
        min(m.type_end),
        max(m.largest),
        max(m.largest) FILTER (WHERE NOT m.may_raise),
        min(m.untrusted_role),
        max(max(m.largest) FILTER (WHERE m.may_raise OR m.largest < l.max_id)) OVER of_tag,
        bool_or(bool_or(m.may_raise) FILTER (WHERE m.unread IS NULL)) OVER of_tag,
        bool_or(bool_or(m.is_hidden AND m.may_raise)) OVER of_tag,
        min(min(m.type_end) FILTER (WHERE m.may_raise AND m.unread IS NULL)) OVER of_tag,
        min(min(m.type_end) FILTER (WHERE m.may_raise)) OVER of_tag,
        max(max(m.type_end) FILTER (WHERE m.may_raise)) OVER of_tag
    FROM members m
    LEFT JOIN leaf_id.leaf_alloc l ON l.biz_tag = m.tag
    CROSS JOIN LATERAL (SELECT CASE WHEN m.unread IS NULL THEN m.root ELSE m.member END AS relation) r
    GROUP BY m.tag, m.root, r.relation, m.column_name, m.expression, m.unread
    WINDOW of_tag AS (PARTITION BY m.tag)
$$;
COMMENT ON FUNCTION leaf_id.leaf_read_columns(text) IS
    'The columns that issue ids, of one tag or of all, with their largest values';

-- Of tables whose values count.
CREATE FUNCTION leaf_id.leaf_grant_to_owner(tag text, relation oid, is_named boolean, OUT detail text) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Others may issue it already.
    owner CONSTANT name := (
        SELECT r.rolname
        FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
        WHERE c.oid = $2 AND NOT has_table_privilege(r.oid, 'leaf_id.leaf_alloc', 'UPDATE') AND EXISTS (
            SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1 AND 'public' <> ALL (a.granted_to)));
BEGIN
    IF owner IS NULL THEN
        RETURN;
    ELSIF (is_named OR pg_has_role(owner, 'pg_database_owner', 'USAGE'))
        AND has_schema_privilege('leaf_id', 'USAGE WITH GRANT OPTION')
    THEN
        PERFORM leaf_id.leaf_grant_tag($1, owner);
    ELSE
        detail := format('role "%s" owns the table, and needs a grant: SELECT %s(%L, %L);',
            owner, leaf_id.leaf_function_name('leaf_tag_grant'), $1, owner);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_grant_to_owner(text, oid, boolean) IS
    'Grants a tag that leaf_sync() has created to the owner of a table that issues its ids, or says how';

CREATE FUNCTION leaf_id.leaf_create_for_columns(
    tag text,
    apply boolean,
    wanted bigint,
    may_raise boolean,
    is_incomplete boolean,
    tag_end bigint,
    OUT next_after bigint,
    OUT action text,
    OUT detail text
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF leaf_id.leaf_has_key($1) OR EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1) THEN
        RETURN;
    END IF;
    action := 'skip';
    detail := CASE
        -- An untrusted owner must not be able to claim a name either, for a tag that soon ends.
        WHEN NOT may_raise THEN format(
            'it does not exist, and the owners of its tables may not edit tags: if they are right, SELECT * FROM %s(%L);',
            leaf_id.leaf_function_name('leaf_sync'), $1)
        WHEN is_incomplete THEN 'it does not exist, and not all of its columns could be read'
        WHEN wanted >= tag_end THEN format('no id above %s is left in the type of the column', wanted)
    END;
    IF detail IS NOT NULL THEN
        RETURN;
    END IF;
    action := 'create';
    next_after := greatest(wanted, 0) + 1;
    IF apply THEN
        INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, max_value) VALUES ($1, next_after, tag_end)
        ON CONFLICT (biz_tag) DO NOTHING;
        IF NOT FOUND THEN
            -- Created concurrently.
            action := NULL;
            RETURN;
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_create_for_columns(text, boolean, bigint, boolean, boolean, bigint) IS
    'Creates a tag that columns name, if that is safe; no action: it exists';

-- Only where max_value was a type's end, or the tag belongs to its column: nobody has chosen it.
CREATE FUNCTION leaf_id.leaf_fit_end(
    tag text, apply boolean, smallest_end bigint, largest_end bigint, OUT detail text) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    max_value CONSTANT bigint := (
        SELECT a.max_value FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1 AND a.server IS NULL);
    is_the_columns CONSTANT boolean := leaf_id.leaf_belongs_to_column($1);
    new_end CONSTANT bigint := CASE
        WHEN max_value > largest_end AND (is_the_columns OR max_value IN (32767, 2147483647)) THEN largest_end
        WHEN max_value < smallest_end AND is_the_columns AND max_value IN (32767, 2147483647) THEN smallest_end
        END;
BEGIN
    -- A larger expression may need the ids.
    IF new_end IS NULL OR EXISTS (
        SELECT FROM leaf_id.leaf_issuing_columns() i WHERE i.tag IS NULL AND $1 = ANY (i.texts))
    THEN
        RETURN;
    END IF;
    IF apply THEN
        UPDATE leaf_id.leaf_alloc a SET max_value = new_end WHERE a.biz_tag = $1;
    END IF;
    detail := format('max_value follows the column''s type, from %s to %s', max_value, new_end);
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_fit_end(text, boolean, bigint, bigint) IS
    'Lets the end of a tag follow the type of its column';

CREATE FUNCTION leaf_id.leaf_raise_for_columns(
    tag text,
    apply boolean,
    wanted bigint,
    smallest_end bigint,
    largest_end bigint,
    OUT next_before bigint,
    OUT next_after bigint,
    OUT action text,
    OUT detail text
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored record;
BEGIN
    action := 'none';
    IF leaf_id.leaf_has_key($1) THEN
        action := 'skip';
        detail := 'its ids are opaque: the default must be leaf_opaque_next()';
        RETURN;
    END IF;
    SELECT a.max_id, a.max_value, a.server INTO stored FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    detail := leaf_id.leaf_fit_end($1, apply, smallest_end, largest_end);
    IF detail IS NOT NULL THEN
        action := 'limit';
    END IF;
    next_before := leaf_id.leaf_tag_next($1);
    next_after := next_before;
    IF coalesce(wanted < coalesce(next_before, 1), true) THEN
        RETURN;
    END IF;
    detail := CASE
        WHEN greatest(wanted, CASE WHEN next_before IS NULL THEN stored.max_id END) >= stored.max_value THEN format(
            'max_value (%s) leaves no id above %s', stored.max_value, greatest(stored.max_id - 1, wanted))
        WHEN stored.server IS NOT NULL THEN format(
            'its ids come from server "%s": if max_id is less than %s there, raise it to that, and then here', stored.server, wanted + 1)
        WHEN pg_is_in_recovery() AND wanted < stored.max_id THEN 'only the primary knows what is cached'
    END;
    IF detail IS NOT NULL THEN
        action := 'skip';
        RETURN;
    END IF;
    action := 'raise';
    -- If the ids from here to the wanted one are cached, those above stay. In a transaction that has
    -- loaded fixtures, more are claimed for that, since it could take none from a changed row.
    IF next_before IS NOT NULL
        AND (wanted < stored.max_id OR statement_timestamp() <> now() AND wanted - next_before < 10000)
    THEN
        next_after := wanted + 1;
        IF NOT apply OR leaf_id.leaf_skip_ids($1, wanted) THEN
            RETURN;
        END IF;
    END IF;
    -- One above max_id, even if cached ids are above the wanted value: only a change of max_id
    -- invalidates the caches.
    next_after := greatest(stored.max_id, wanted) + 1;
    IF apply THEN
        UPDATE leaf_id.leaf_alloc a SET max_id = greatest(a.max_id, wanted) + 1
        WHERE a.biz_tag = $1 AND greatest(a.max_id, wanted) < a.max_value
        RETURNING a.max_id INTO next_after;
        IF NOT FOUND THEN
            action := 'skip';
            detail := 'it was dropped, or used up, meanwhile';
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_raise_for_columns(text, boolean, bigint, bigint, bigint) IS
    'Raises a tag above what is in its columns, if that is necessary and safe';

CREATE FUNCTION leaf_id.leaf_tags_without_columns(
    only_tag text, OUT tag text, OUT next_id bigint, OUT action text, OUT detail text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.biz_tag, n.id, CASE WHEN leaf_id.leaf_belongs_to_column(a.biz_tag) THEN 'unused' ELSE 'unknown' END, coalesce(
        leaf_id.leaf_used_up(coalesce(n.id, a.max_id), a.max_value, a.max_value),
        CASE WHEN leaf_id.leaf_belongs_to_column(a.biz_tag) THEN 'its column takes its ids from elsewhere now'
            WHEN leaf_id.leaf_has_key(a.biz_tag) THEN 'its ids are opaque'
            ELSE 'no column''s default issues its ids' END)
    FROM leaf_id.leaf_alloc a
    CROSS JOIN LATERAL (SELECT leaf_id.leaf_tag_next(a.biz_tag) AS id) n
    WHERE NOT EXISTS (SELECT FROM leaf_id.leaf_issuing_columns() i WHERE i.tag = a.biz_tag)
        AND (only_tag IS NULL OR a.biz_tag = only_tag)
    ORDER BY a.biz_tag
$$;
COMMENT ON FUNCTION leaf_id.leaf_tags_without_columns(text) IS
    'The tags that no default names: what their ids are in is not known';

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
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id.leaf_require(CASE WHEN apply THEN 'SELECT, INSERT, UPDATE' ELSE 'SELECT' END);
    this record;
    fitted record;
    tag_end bigint;
    skipped integer := 0;
BEGIN
    IF apply AND pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot sync tags during recovery'
            USING ERRCODE = 'read_only_sql_transaction', HINT = 'Connect to the primary.';
    END IF;

    -- All columns are read before the first tag is locked, and tags are locked in name order, so
    -- concurrent calls cannot deadlock.
    FOR this IN
        SELECT c.* FROM leaf_id.leaf_read_columns(only_tag) c
        ORDER BY c.tag COLLATE "C" NULLS FIRST, c.unread NULLS FIRST, c.relation::regclass::text, c.column_name
    LOOP
        IF this.tag IS NULL OR this.unread IS NOT NULL THEN
            SELECT NULL::bigint AS next_before, NULL::bigint AS next_after, 'skip' AS action, coalesce(
                this.unread, concat_ws(': ', 'its default is not just a call with a constant tag', this.expression)) AS detail
            INTO fitted;
        ELSIF this.tag IS DISTINCT FROM tag THEN
            SELECT NULL::bigint AS next_before, c.* INTO fitted
            FROM leaf_id.leaf_create_for_columns(
                this.tag, apply, this.wanted, this.may_raise, this.is_incomplete, this.tag_end) c;
            IF fitted.action IS NULL THEN
                SELECT r.* INTO fitted
                FROM leaf_id.leaf_raise_for_columns(this.tag, apply, this.wanted, this.smallest_end, this.largest_end) r;
            END IF;
        END IF;
        tag := this.tag;
        relation := this.relation;
        column_name := this.column_name;
        max_in_column := this.largest;
        next_before := fitted.next_before;
        next_after := fitted.next_after;
        action := fitted.action;
        detail := fitted.detail;
        IF apply AND action = 'create' THEN
            detail := leaf_id.leaf_grant_to_owner(tag, relation, only_tag IS NOT NULL);
        END IF;
        IF this.untrusted >= greatest(next_after, 1) AND action <> 'skip' THEN
            action := 'skip';
            detail := format(
                '%s, who owns the table or its domain, may not edit tags: if this value is right, SELECT * FROM %s(%L);',
                this.untrusted_role::regrole, leaf_id.leaf_function_name('leaf_sync'), tag);
        ELSIF this.is_hidden AND action <> 'skip' THEN
            -- Partitions and children that were not read have rows of their own.
            action := CASE action WHEN 'none' THEN 'skip' ELSE action END;
            detail := 'not all of its tables could be read';
        ELSIF detail IS NULL THEN
            tag_end := coalesce((SELECT a.max_value FROM leaf_id.leaf_alloc a WHERE a.biz_tag = tag), this.tag_end);
            detail := leaf_id.leaf_used_up(next_after, tag_end, this.type_end);
            IF detail IS NOT NULL AND action = 'none' AND leaf_id.leaf_is_narrow(tag_end, this.type_end) THEN
                action := 'widen';
            END IF;
        END IF;
        skipped := skipped + (action = 'skip')::integer;
        RETURN NEXT;
    END LOOP;
    IF apply AND skipped > 0 THEN
        RAISE WARNING 'columns and tables that leaf_sync() skipped: %', skipped
            USING HINT = 'The column "detail" of its result says why.';
    END IF;

    RETURN QUERY SELECT t.tag, NULL::regclass, NULL::name, NULL::bigint, t.next_id, t.next_id, t.action, t.detail
        FROM leaf_id.leaf_tags_without_columns(only_tag) t;
    -- Neither in leaf_alloc nor in a column.
    IF NOT FOUND AND only_tag IS NOT NULL AND tag IS NULL THEN
        RAISE EXCEPTION 'tag "%" does not exist', only_tag
            USING ERRCODE = 'undefined_object', DETAIL = 'No column''s default calls leaf_segment_next() with it either.';
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
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT f.* FROM leaf_id.leaf_fit_tags($1, true) f';
COMMENT ON FUNCTION @extschema@.leaf_sync(text) IS
    'Creates the tags that column defaults name, and raises those whose ids are in the columns already: after a restore, or rows with ids of their own';

-- For a tag that no default names: the caller does.
CREATE FUNCTION @extschema@.leaf_sync(
    INOUT tag text,
    INOUT relation regclass,
    INOUT column_name name,
    OUT max_in_column bigint,
    OUT next_before bigint,
    OUT next_after bigint,
    OUT action text,
    OUT detail text
) RETURNS record
LANGUAGE plpgsql STRICT VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id.leaf_require('SELECT, INSERT, UPDATE');
    type_end CONSTANT bigint := (
        SELECT CASE a.attlen WHEN 2 THEN 32767 WHEN 4 THEN 2147483647 ELSE 9223372036854775806 END
        FROM pg_attribute a
        WHERE a.attrelid = $2 AND a.attname = $3 AND a.attnum > 0 AND NOT a.attisdropped);
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot sync tags during recovery'
            USING ERRCODE = 'read_only_sql_transaction', HINT = 'Connect to the primary.';
    ELSIF type_end IS NULL THEN
        RAISE EXCEPTION 'table % has no column "%"', $2, $3 USING ERRCODE = 'undefined_column';
    END IF;
    max_in_column := leaf_id.leaf_largest_value($2, $3);
    SELECT c.next_after, c.action, c.detail INTO next_after, action, detail
    FROM leaf_id.leaf_create_for_columns($1, true, coalesce(max_in_column, 0), true, false, type_end) c;
    IF action = 'create' THEN
        detail := leaf_id.leaf_grant_to_owner($1, $2, true);
    ELSIF action IS NULL THEN
        SELECT r.next_before, r.next_after, r.action, r.detail INTO next_before, next_after, action, detail
        -- Another column may need the ids above this one's type.
        FROM leaf_id.leaf_raise_for_columns($1, true, max_in_column, NULL, NULL) r;
    END IF;
    detail := coalesce(detail, leaf_id.leaf_used_up(
        next_after, coalesce((SELECT a.max_value FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1), type_end), type_end));
    IF action = 'skip' THEN
        RAISE WARNING 'tag "%" was not synced: %', $1, detail;
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_sync(text, regclass, name) IS
    'Creates a tag above the ids in a column, or raises it above them';

CREATE FUNCTION leaf_id.leaf_warnings(OUT tag text, OUT detail text, OUT severity text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT min(a.biz_tag), format(
        'of this and %s other tags, claims may be missing since a promotion, which is remembered until the next claim, but not by a dump or pg_upgrade: see docs/fleet-and-failover.md',
        count(*) - 1), 'info', NULL
    FROM leaf_id.leaf_alloc a
    WHERE NOT pg_is_in_recovery() AND leaf_id.leaf_left(
        0, a.step, a.max_step, a.system_identifier, a.timeline, a.largest_claim, a.server IS NOT NULL) > 0
    HAVING count(*) > 0
    UNION ALL
    -- invoices/2026, orders/2026-11-23
    SELECT max(p.biz_tag), 'it is the last of its series: create those of the time to come', 'warning', NULL
    FROM (
        SELECT a.biz_tag, substring(a.biz_tag FROM '^(.*/)[0-9]{4}(?:-?[0-9]{2}){0,2}$') AS series,
            replace(substring(a.biz_tag FROM '[^/]*$'), '-', '') AS period
        FROM leaf_id.leaf_alloc a) p
    WHERE p.series IS NOT NULL
    GROUP BY p.series, length(p.period)
    HAVING count(*) > 1 AND max(p.period) = left(to_char(now(), 'YYYYMMDD'), length(p.period))
$$;
COMMENT ON FUNCTION leaf_id.leaf_warnings() IS
    'What leaf_check() says of all tags together: unsettled promotions, and series that end';

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
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.* FROM leaf_id.leaf_fit_tags($1, false) f
    UNION ALL
    SELECT w.tag, NULL, NULL, NULL, NULL, NULL, 'none', w.detail FROM leaf_id.leaf_warnings() w WHERE $1 IS NULL
$$;
COMMENT ON FUNCTION @extschema@.leaf_check(text) IS
    'What leaf_sync() would do, and which tags come to their end';
