-- leaf_sync() raises tags above the ids in the tables, and leaf_check() shows what it would do.
--
-- Both run with the caller's rights. A superuser may call them where hostile roles own tables: no
-- object of theirs is looked up by name or executed. Columns are found in the catalogs and read by
-- oid, with leaf_column_max(). Functions called by name are in schema leaf_id_internal, in which only a
-- superuser can rename or create objects. The owner's rights limit the effect of a number in a table:
-- see "may_raise" below.

CREATE FUNCTION leaf_id_internal.leaf_column_max(
    relation oid, column_number smallint, OUT largest bigint, OUT unread text, OUT is_hidden boolean)
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_column_max_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_column_max(oid, smallint) IS
    'The largest value in an integer column, or why it was not read; runs no code of the table''s owner';

CREATE FUNCTION leaf_id_internal.leaf_family(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE family AS (
        SELECT $1 AS member
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.member
    )
    SELECT f.member FROM family f ORDER BY f.member <> $1, f.member
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_family(oid) IS 'A table, its partitions and children, and theirs';

CREATE FUNCTION leaf_id_internal.leaf_unindexed_size(relation oid, column_name name) RETURNS numeric
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- As of the last VACUUM or ANALYZE: reading the file size would wait for a lock.
    SELECT sum(c.relpages::bigint * current_setting('block_size')::integer)
    FROM leaf_id_internal.leaf_family($1) m
    JOIN pg_class c ON c.oid = m AND c.relkind = 'r'
    JOIN pg_attribute t ON t.attrelid = c.oid AND t.attname = $2
    WHERE NOT EXISTS (
        SELECT FROM pg_index i
        JOIN pg_class x ON x.oid = i.indexrelid
        JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
        WHERE i.indrelid = c.oid AND i.indkey[0] = t.attnum AND i.indpred IS NULL AND i.indisvalid)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_unindexed_size(oid, name) IS
    'How many bytes are read for the largest value of a column, where it has no index';

CREATE FUNCTION leaf_id_internal.leaf_tag_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_tag_next_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_tag_next(text) IS
    'No id of the tag that is issued from now on is smaller; null where that is not known at the moment';

CREATE FUNCTION leaf_id_internal.leaf_mark(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_mark_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_mark(text) IS
    'One past the highest id that was claimed under a name in this database; 0: none was';

-- Where both end together, a larger max_value alone would not help.
CREATE FUNCTION leaf_id_internal.leaf_is_narrow(max_value bigint, type_end bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS 'SELECT $2 < 9223372036854775806 AND $2 <= $1';
COMMENT ON FUNCTION leaf_id_internal.leaf_is_narrow(bigint, bigint) IS
    'Whether it is the type of a column that ends the ids of a tag';

CREATE FUNCTION leaf_id_internal.leaf_skip_ids(tag text, last_id bigint) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_skip_ids_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_skip_ids(text, bigint) IS
    'Takes the ids of a tag up to this one, or says that it has not; what is cached above stays';

CREATE FUNCTION leaf_id_internal.leaf_used_up(next_id bigint, max_value bigint, type_end bigint) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last_id CONSTANT bigint := least($2, $3);
    what CONSTANT text := CASE WHEN leaf_id_internal.leaf_is_narrow($2, $3) THEN 'the column''s type' ELSE 'max_value' END;
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
COMMENT ON FUNCTION leaf_id_internal.leaf_used_up(bigint, bigint, bigint) IS
    'Says when 80, 90 or 95 % of the ids that a tag may have, or a column can hold, are used';

CREATE FUNCTION leaf_id_internal.leaf_default_source(
    expression pg_node_tree, issuer oid, longest integer, OUT tag text, OUT sequence oid, OUT texts text[])
    STRICT IMMUTABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_default_source_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_default_source(pg_node_tree, oid, integer) IS
    'The tag or sequence of a default that is one call with a constant, and all texts in it';

CREATE FUNCTION leaf_id_internal.leaf_named_tags(expression pg_node_tree, issuers oid[], longest integer) RETURNS text[]
    STRICT IMMUTABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_named_tags_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_named_tags(pg_node_tree, oid[], integer) IS
    'The constant tags that a default gives to these functions, also within an expression';

-- Identified by properties that only a superuser can set, not by names, which may change.
CREATE FUNCTION leaf_id_internal.leaf_issuers(
    OUT issuer oid, OUT is_plain boolean, OUT is_opaque boolean, OUT is_ordered boolean) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.oid, p.prosrc = 'leaf_segment_next', p.prosrc = 'leaf_opaque_next_wrapper', p.prosrc = 'leaf_ordered_next_wrapper'
    FROM pg_proc p
    JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'c'
    JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        AND d.refclassid = 'pg_extension'::regclass
    JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leaf_id'
    WHERE p.prosrc IN (
        'leaf_segment_next', 'leaf_segment_next_batch_wrapper', 'leaf_segment_next_range_wrapper', 'leaf_opaque_next_wrapper',
        'leaf_ordered_next_wrapper')
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_issuers() IS
    'The functions that issue ids of tags; the plain one issues a single id';

CREATE FUNCTION leaf_id_internal.leaf_issuer() RETURNS oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.issuer FROM leaf_id_internal.leaf_issuers() i WHERE i.is_plain
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_issuer() IS 'leaf_segment_next()';

-- EXECUTE is taken by REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC, too. What was taken
-- from PUBLIC and granted to some role was meant. A grant on the schema is missing after a restore by a
-- superuser, or since the role was dropped and there is another of its name (leaf_is_grantee()).
CREATE FUNCTION leaf_id_internal.leaf_missing_grants(
    only_tag text, OUT tag text, OUT role name, OUT what text, OUT remedy text, OUT advice text)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH roles AS MATERIALIZED (
        SELECT DISTINCT g.role
        FROM leaf_id.leaf_alloc a CROSS JOIN LATERAL unnest(a.granted_to) g (role)
        WHERE only_tag IS NULL OR a.biz_tag = only_tag
    ), grantees AS MATERIALIZED (
        SELECT g.role FROM roles g WHERE leaf_id_internal.leaf_is_grantee(g.role)
    ), lacking AS MATERIALIZED (
        SELECT g.role, i.issuer, i.is_opaque
        FROM grantees g
        LEFT JOIN pg_roles r ON r.rolname = g.role
        CROSS JOIN leaf_id_internal.leaf_issuers() i
        JOIN pg_proc p ON p.oid = i.issuer
        WHERE (i.is_plain OR i.is_opaque) AND CASE g.role
            WHEN 'public' THEN p.proacl IS NOT NULL AND NOT EXISTS (
                SELECT FROM aclexplode(p.proacl) x WHERE x.grantee <> p.proowner)
            ELSE NOT has_function_privilege(r.oid, p.oid, 'EXECUTE') END
    )
    SELECT min(a.biz_tag), l.role,
        format('%s may issue ids of tag "%s"%s, but may not execute %s', l.who, min(a.biz_tag),
            CASE WHEN count(*) > 1 THEN format(' and %s more', count(*) - 1) END, l.issuer::regprocedure),
        format('GRANT EXECUTE ON FUNCTION %s TO %s', l.issuer::regprocedure, CASE l.role WHEN 'public' THEN 'PUBLIC' ELSE quote_ident(l.role) END),
        NULL
    FROM (SELECT *, CASE role WHEN 'public' THEN 'PUBLIC' ELSE format('role "%s"', role) END AS who FROM lacking) l
    JOIN leaf_id.leaf_alloc a ON l.role = ANY (a.granted_to) AND leaf_id_internal.leaf_has_key(a.biz_tag) = l.is_opaque
    WHERE only_tag IS NULL OR a.biz_tag = only_tag
    GROUP BY l.role, l.who, l.issuer
    UNION ALL
    SELECT min(a.biz_tag), r.rolname,
        format('role "%s" may not issue ids of tag "%s"%s, though "granted_to" names it: it has no grant on schema leaf_id',
            r.rolname, min(a.biz_tag), CASE WHEN count(*) > 1 THEN format(' and %s more', count(*) - 1) END),
        -- By this statement, a later role of that name would have all that the former was granted.
        NULL,
        format('If it is the role that was meant, as after a restore by a superuser: GRANT USAGE ON SCHEMA leaf_id TO %I. If it is a later role of that name, take the name out of "granted_to".', r.rolname)
    FROM (SELECT g.role FROM roles g EXCEPT SELECT g.role FROM grantees g) l
    JOIN pg_roles r ON r.rolname = l.role AND NOT has_table_privilege(r.oid, 'leaf_id.leaf_alloc', 'UPDATE')
    JOIN leaf_id.leaf_alloc a ON l.role = ANY (a.granted_to)
    -- As leaf_can_issue().
    WHERE NOT EXISTS (
            SELECT FROM grantees g LEFT JOIN pg_roles o ON o.rolname = g.role
            WHERE g.role = ANY (a.granted_to) AND (g.role = 'public' OR pg_has_role(r.oid, o.oid, 'USAGE')))
        AND (only_tag IS NULL OR a.biz_tag = only_tag)
    GROUP BY r.rolname
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_missing_grants(text) IS
    'Grants that roles in granted_to, of all tags or of this one, still lack to issue ids';

-- Locks nothing, since a table may be locked ACCESS EXCLUSIVE. So pg_get_expr() gets no relation; a
-- default has no variables.
--
-- What an owner says of a tag that it may not issue does not count: PostgreSQL asks for no right to
-- name a tag in a default. With only_tag, such columns are left out before their defaults are read, and
-- with counted_only those of roles that have no grant at all.
-- Otherwise only short ones are read of roles that may not edit tags: a call with a constant tag has
-- less than 2,000 bytes. (leaf_columns_of_tag() lists what is in the way of a DROP, a reset or a release;
-- leaf_narrowest_columns() what can sound an alarm.)
CREATE FUNCTION leaf_id_internal.leaf_issuing_columns(
    only_tag text, counted_only boolean,
    OUT relation oid, OUT column_name name, OUT tag text, OUT texts text[], OUT named text[], OUT expression text, OUT is_opaque boolean,
    -- The owner of the table, or of the domain that has the default, if it may not edit tags; and
    -- whether both may issue this one.
    OUT untrusted oid, OUT counts boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH callers AS (
        SELECT d.classid, d.objid, bool_and(i.is_opaque) AS is_opaque,
            -- The function that the tag is a constant of.
            coalesce(min(i.issuer) FILTER (WHERE i.is_ordered), (SELECT leaf_id_internal.leaf_issuer())) AS issuer,
            array_agg(i.issuer) AS issuers
        FROM leaf_id_internal.leaf_issuers() i
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = i.issuer
        GROUP BY d.classid, d.objid
    ), defaults AS MATERIALIZED (
        SELECT f.adrelid, f.adnum, f.adbin AS tree, r.relowner AS owner, r.relowner AS writer, c.is_opaque, c.issuer, c.issuers
        FROM callers c
        JOIN pg_attrdef f ON f.oid = c.objid AND c.classid = 'pg_attrdef'::regclass
        JOIN pg_class r ON r.oid = f.adrelid
        UNION ALL
        SELECT a.attrelid, a.attnum, t.typdefaultbin, r.relowner, t.typowner, c.is_opaque, c.issuer, c.issuers
        FROM callers c
        JOIN pg_type t ON t.oid = c.objid AND c.classid = 'pg_type'::regclass
        JOIN pg_attribute a ON a.atttypid = t.oid AND NOT a.atthasdef
        JOIN pg_class r ON r.oid = a.attrelid AND r.relkind IN ('r', 'p', 'f')
    ), others AS MATERIALIZED (
        SELECT w.role, CASE WHEN only_tag IS NOT NULL THEN NOT leaf_id_internal.leaf_owner_counts(w.role, only_tag)
            ELSE counted_only AND NOT leaf_id_internal.leaf_may_have_grant(w.role) END AS is_out
        -- Once for each role, not for each row.
        FROM (SELECT d.owner AS role FROM defaults d UNION SELECT d.writer FROM defaults d OFFSET 0) w
        WHERE NOT leaf_id_internal.leaf_is_manager(w.role)
    ), read AS MATERIALIZED (
        SELECT d.*, a.attname, o.role AS other_owner, w.role AS other_writer,
            CASE WHEN octet_length(s.tag) BETWEEN 1 AND 128 THEN s.tag END AS tag, s.texts, l.longest
        FROM (
            SELECT * FROM defaults i
            WHERE NOT EXISTS (SELECT FROM others x WHERE x.is_out AND x.role IN (i.owner, i.writer))
            -- First.
            OFFSET 0) d
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = ''
        LEFT JOIN others o ON o.role = d.owner
        LEFT JOIN others w ON w.role = d.writer
        CROSS JOIN LATERAL (
            SELECT CASE WHEN only_tag IS NULL AND coalesce(o.role, w.role) IS NOT NULL THEN 2000 ELSE 16384 END AS longest) l
        CROSS JOIN LATERAL leaf_id_internal.leaf_default_source(d.tree, d.issuer, l.longest) s
    ), barred AS MATERIALIZED (
        SELECT p.role, p.tag
        FROM (SELECT DISTINCT o.role, r.tag FROM read r JOIN others o ON o.role IN (r.owner, r.writer)) p
        WHERE p.tag IS NULL OR NOT leaf_id_internal.leaf_owner_counts(p.role, p.tag)
    )
    SELECT r.adrelid, r.attname, r.tag, r.texts,
        CASE WHEN r.tag IS NULL THEN leaf_id_internal.leaf_named_tags(r.tree, r.issuers, r.longest) END,
        -- Not of others, who could make it fail, or take long.
        CASE WHEN r.tag IS NULL AND u.role IS NULL THEN pg_get_expr(r.tree, 0) END,
        r.is_opaque, u.role, b.role IS NULL
    FROM read r
    -- One that may not issue it, rather than one that may.
    LEFT JOIN LATERAL (
        SELECT min(b.role) AS role FROM barred b WHERE b.role IN (r.owner, r.writer) AND b.tag IS NOT DISTINCT FROM r.tag) b ON true
    CROSS JOIN LATERAL (SELECT coalesce(b.role, r.other_owner, r.other_writer) AS role) u
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_issuing_columns(text, boolean) IS
    'The columns whose defaults, or those of their domains, issue ids, and whose word that is';

-- Temporary tables are not included.
CREATE FUNCTION leaf_id_internal.leaf_columns_of_tag(tag text, OUT relation oid, OUT column_name name, OUT is_plain boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.relation, i.column_name, i.tag IS NOT NULL
    FROM leaf_id_internal.leaf_issuing_columns($1, true) i JOIN pg_class c ON c.oid = i.relation AND c.relpersistence <> 't'
    -- Includes calls inside a larger expression.
    WHERE $1 = ANY (i.texts)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_columns_of_tag(text) IS 'The columns that count whose defaults issue ids of a tag';

CREATE FUNCTION leaf_id_internal.leaf_values_of_tag(
    tag text, max_scan numeric, OUT relation oid, OUT column_name name, OUT is_plain boolean, OUT largest bigint, OUT unread text) RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.relation, c.column_name, c.is_plain, max(v.largest),
        coalesce(max(v.unread), CASE WHEN min(u.size) > $2 THEN 'it has no index, and is large' END)
    FROM leaf_id_internal.leaf_columns_of_tag($1) c
    CROSS JOIN LATERAL (SELECT leaf_id_internal.leaf_unindexed_size(c.relation, c.column_name) AS size) u
    CROSS JOIN LATERAL leaf_id_internal.leaf_family(c.relation) m
    JOIN pg_class r ON r.oid = m AND r.relkind <> 'p'
    JOIN pg_attribute a ON a.attrelid = m AND a.attname = c.column_name AND NOT a.attisdropped
    -- The function is strict: a NULL column number skips the read.
    CROSS JOIN LATERAL leaf_id_internal.leaf_column_max(
        m, CASE WHEN coalesce(u.size, 0) <= $2 THEN a.attnum END) v
    GROUP BY c.relation, c.column_name, c.is_plain
    ORDER BY c.relation, c.column_name
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_values_of_tag(text, numeric) IS
    'The largest value of each column whose default issues ids of a tag, also in an expression, or why it was not read: without an index, of tables up to so many bytes';

CREATE FUNCTION leaf_id_internal.leaf_obstacle_to_tag(tag text, wanted bigint) RETURNS text
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('it does not exist, and column "%s" of table %s, which has it in an expression, %s: create it by hand, above that',
        v.column_name, v.relation::regclass, coalesce('holds ' || v.largest, 'was not read'))
    FROM leaf_id_internal.leaf_values_of_tag($1, 100000000) v
    WHERE NOT v.is_plain AND (v.largest > greatest($2, 0) OR v.unread IS NOT NULL)
        AND NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1)
    ORDER BY v.largest DESC NULLS LAST LIMIT 1
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_obstacle_to_tag(text, bigint) IS
    'Why a missing tag is not created above the values of its plain columns';

CREATE FUNCTION leaf_id_internal.leaf_read_tables(
    only_tag text,
    OUT tag text,
    -- The table that has the default, and the one that was read: itself, a partition or a child.
    OUT root oid, OUT member oid,
    OUT column_name name,
    OUT expression text,
    OUT untrusted oid, OUT counts boolean,
    -- The largest value, or why it was not read; then, whether it may hold ids all the same.
    OUT largest bigint, OUT unread text, OUT is_hidden boolean,
    OUT type_end bigint
) RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE issuing AS MATERIALIZED (
        SELECT i.*, only_tag IS NOT NULL OR i.counts AS is_read
        FROM leaf_id_internal.leaf_issuing_columns(NULL, false) i
        JOIN pg_class c ON c.oid = i.relation AND (c.relpersistence <> 't' OR c.relnamespace = pg_my_temp_schema())
        WHERE NOT i.is_opaque AND (only_tag IS NULL OR i.tag = only_tag)
    ), covered AS (
        -- Once for each tag, not for each table above: any role can make a chain of tables.
        SELECT h.inhrelid AS relation, i.column_name, i.tag
        FROM issuing i JOIN pg_inherits h ON h.inhparent = i.relation
        WHERE i.is_read AND i.tag IS NOT NULL
        UNION
        SELECT h.inhrelid, c.column_name, c.tag FROM covered c JOIN pg_inherits h ON h.inhparent = c.relation
    ), topmost AS MATERIALIZED (
        -- A partition that inherits its default is covered by its parent's row.
        SELECT i.* FROM issuing i
        WHERE NOT EXISTS (
                SELECT FROM covered c WHERE c.relation = i.relation AND c.column_name = i.column_name AND c.tag = i.tag)
            AND (i.is_read OR NOT EXISTS (
                SELECT FROM pg_inherits h JOIN issuing p ON p.relation = h.inhparent
                WHERE h.inhrelid = i.relation AND p.column_name = i.column_name AND p.tag = i.tag))
    ), tree AS (
        SELECT o.relation AS root, o.relation AS member, bool_or(o.is_read) AS is_read FROM topmost o GROUP BY o.relation
        UNION
        SELECT t.root, h.inhrelid, true FROM tree t JOIN pg_inherits h ON h.inhparent = t.member WHERE t.is_read
    ), members AS MATERIALIZED (
        -- First: most tables have a column of the same name, and the planner would join by that.
        SELECT o.*, t.member FROM topmost o JOIN tree t ON t.root = o.relation AND (o.is_read OR t.member = o.relation)
    )
    SELECT o.tag, o.relation, o.member, o.column_name, o.expression,
        coalesce(o.untrusted, w.role), o.counts AND (w.role IS NULL OR leaf_id_internal.leaf_owner_counts(w.role, o.tag)),
        m.largest, m.unread, coalesce(m.is_hidden, false),
        CASE a.attlen WHEN 2 THEN 32767 WHEN 4 THEN 2147483647 ELSE 9223372036854775806 END
    FROM members o
    JOIN pg_class c ON c.oid = o.member
    JOIN pg_attribute a ON a.attrelid = o.member AND a.attname = o.column_name AND NOT a.attisdropped
    -- A partition or child has an owner of its own.
    LEFT JOIN LATERAL (
        SELECT c.relowner AS role WHERE o.member <> o.relation AND NOT leaf_id_internal.leaf_is_manager(c.relowner)) w ON true
    -- The function is strict: a NULL column number skips the read.
    CROSS JOIN LATERAL leaf_id_internal.leaf_column_max(
        o.member, CASE WHEN o.tag IS NOT NULL AND c.relkind <> 'p' THEN a.attnum END) m
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_read_tables(text) IS
    'The tables, with partitions and children, whose columns issue ids, with their largest values';

CREATE FUNCTION leaf_id_internal.leaf_missing_grant(tag text, role oid) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('SELECT %s(%L, %L);', leaf_id_internal.leaf_function_name('leaf_tag_grant'), $1, r.rolname)
    FROM pg_roles r
    WHERE r.oid = $2 AND EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1)
        AND NOT leaf_id_internal.leaf_can_issue($2, $1)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_missing_grant(text, oid) IS
    'The grant that a role needs to issue ids of a tag that exists; null: it needs none';

CREATE FUNCTION leaf_id_internal.leaf_create_for_columns(
    tag text,
    apply boolean,
    wanted bigint,
    left_out bigint,
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
DECLARE
    last_id bigint;
    -- By the name of the tag, columns of strangers count, too: leaf_check() then shows all that leaf_sync() reads.
    if_right CONSTANT text := format(': if all values of %1$s(%2$L) are right, SELECT * FROM %3$s(%2$L);',
        leaf_id_internal.leaf_function_name('leaf_check'), $1, leaf_id_internal.leaf_function_name('leaf_sync'));
BEGIN
    IF leaf_id_internal.leaf_has_key($1) OR EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1) THEN
        RETURN;
    END IF;
    last_id := greatest(wanted, leaf_id_internal.leaf_mark($1) - 1, 0);
    action := 'skip';
    detail := CASE
        -- An untrusted owner must not be able to claim a name either, for a tag that soon ends.
        WHEN NOT may_raise THEN 'it does not exist, and the owners of its tables may not edit tags' || if_right
        WHEN is_incomplete THEN 'it does not exist, and not all of its columns could be read: create it by hand, above all ids in them'
        WHEN left_out > last_id THEN format(
            'it does not exist, and %s does not count, in a partition or child whose owner may not edit tags', left_out) || if_right
        WHEN wanted >= tag_end THEN format('no id above %s is left in the type of the column', wanted)
        WHEN last_id >= tag_end THEN format(
            'ids of this name were issued up to %s, and no id above that is left in the type of the column: give it a wider type or, if none of them is in use any more, SELECT %s(%L, forget => true);',
            last_id, leaf_id_internal.leaf_function_name('leaf_tag_drop'), $1)
    END;
    IF detail IS NOT NULL THEN
        RETURN;
    END IF;
    action := 'create';
    next_after := last_id + 1;
    IF apply THEN
        INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, max_value) VALUES ($1, greatest(wanted, 0) + 1, tag_end)
        ON CONFLICT (biz_tag) DO NOTHING
        -- Higher if ids were issued under this name before.
        RETURNING max_id INTO next_after;
        IF NOT FOUND THEN
            -- Created concurrently.
            action := NULL;
            RETURN;
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_create_for_columns(text, boolean, bigint, bigint, boolean, boolean, bigint) IS
    'Creates a tag that columns name, if that is safe; no action: it exists';

CREATE FUNCTION leaf_id_internal.leaf_raise_for_columns(
    tag text,
    apply boolean,
    wanted bigint,
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
    IF leaf_id_internal.leaf_has_key($1) THEN
        action := 'skip';
        detail := 'its ids are opaque: the default must be leaf_opaque_next()';
        RETURN;
    END IF;
    SELECT a.max_id, a.max_value, a.server INTO stored FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    next_before := leaf_id_internal.leaf_tag_next($1);
    next_after := next_before;
    IF coalesce(wanted < coalesce(next_before, 1), true) THEN
        RETURN;
    END IF;
    detail := CASE
        WHEN greatest(wanted, CASE WHEN next_before IS NULL THEN stored.max_id END) >= stored.max_value THEN format(
            'max_value (%s) leaves no id above %s', stored.max_value, greatest(stored.max_id - 1, wanted))
        WHEN pg_is_in_recovery() AND wanted < stored.max_id THEN 'only the primary knows what is cached'
    END;
    IF detail IS NOT NULL THEN
        action := 'skip';
        RETURN;
    END IF;
    IF stored.server IS NOT NULL THEN
        -- Those that have come from there are this server's.
        IF wanted < stored.max_id AND (next_before IS NULL OR NOT apply OR leaf_id_internal.leaf_skip_ids($1, wanted)) THEN
            IF next_before IS NOT NULL THEN
                action := 'raise';
                next_after := wanted + 1;
            END IF;
            RETURN;
        END IF;
        action := 'skip';
        detail := format('its ids come from server "%s": raise max_id above %s there, then here, and on each other server that takes them',
            stored.server, wanted);
        RETURN;
    END IF;
    action := 'raise';
    -- If the ids from here to the wanted one are cached, those above stay. In a transaction that has
    -- loaded fixtures, more are claimed for that, since it could take none from a changed row.
    IF next_before IS NOT NULL
        AND (wanted < stored.max_id OR statement_timestamp() <> now() AND wanted - next_before < 10000)
    THEN
        next_after := wanted + 1;
        IF NOT apply OR leaf_id_internal.leaf_skip_ids($1, wanted) THEN
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
            detail := 'it was dropped or used up concurrently';
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_raise_for_columns(text, boolean, bigint) IS
    'Raises a tag above what is in its columns, if that is necessary and safe';

CREATE FUNCTION leaf_id_internal.leaf_tags_without_columns(
    only_tag text, OUT tag text, OUT next_id bigint, OUT action text, OUT detail text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.biz_tag, n.id, 'unknown', coalesce(
        leaf_id_internal.leaf_used_up(coalesce(n.id, a.max_id), a.max_value, NULL),
        CASE WHEN leaf_id_internal.leaf_has_key(a.biz_tag) THEN 'its ids are opaque'
            ELSE 'no default of a column that counts issues its ids' END)
    FROM leaf_id.leaf_alloc a
    CROSS JOIN LATERAL (SELECT leaf_id_internal.leaf_tag_next(a.biz_tag) AS id) n
    WHERE NOT EXISTS (
            SELECT FROM leaf_id_internal.leaf_issuing_columns(NULL, false) i
            JOIN pg_class c ON c.oid = i.relation AND (c.relpersistence <> 't' OR c.relnamespace = pg_my_temp_schema())
            WHERE i.tag = a.biz_tag AND (i.counts OR only_tag IS NOT NULL))
        AND (only_tag IS NULL OR a.biz_tag = only_tag)
    ORDER BY a.biz_tag
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_tags_without_columns(text) IS
    'The tags that no default names: what their ids are in is not known';

CREATE FUNCTION leaf_id_internal.leaf_fit_tags(
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
-- JIT compilation would take longer than the query.
SET jit = off
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require(CASE WHEN apply THEN 'SELECT, INSERT, UPDATE' ELSE 'SELECT' END);
    this record;
    fitted record;
    -- The tags that stand in expressions.
    in_expressions CONSTANT text[] := (
        SELECT array_agg(DISTINCT n.tag)
        FROM leaf_id_internal.leaf_issuing_columns(NULL, true) i CROSS JOIN LATERAL unnest(i.named) n (tag)
        WHERE NOT i.is_opaque);
    obstacle text;
    tag_end bigint;
    missing_grant text;
    skipped integer := 0;
BEGIN
    IF apply AND pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot sync tags during recovery'
            USING ERRCODE = 'read_only_sql_transaction', HINT = 'Connect to the primary.';
    END IF;

    -- All columns are read before the first tag is locked, and tags are locked in name order, so
    -- concurrent calls cannot deadlock.
    FOR this IN
        WITH tables AS MATERIALIZED (
            -- The owner of a table can write any number into it, and the owner of its domain any tag
            -- into the default, and so make a superuser use up a tag of others. So a value counts
            -- only if both could do the same harm directly, by editing tags or dropping the
            -- database; if the caller has named the tag; or if both may issue it, and it is below
            -- max_id, where it can cost only the cached ids.
            SELECT t.*, only_tag IS NOT NULL OR t.untrusted IS NULL AS may_raise,
                only_tag IS NOT NULL OR t.counts AS is_counted, l.max_id,
                -- A partition or child is there by the word of the owner above: it keeps a missing tag from being
                -- created below its value.
                bool_or(t.untrusted IS NULL) OVER (PARTITION BY t.root, t.column_name) AS is_placed
            FROM leaf_id_internal.leaf_read_tables(only_tag) t
            LEFT JOIN leaf_id.leaf_alloc l ON l.biz_tag = t.tag
        ), columns AS (
            -- One row per column, including its partitions and children, and one per table that was
            -- not read.
            SELECT t.tag, r.relation, t.column_name, t.expression, t.unread,
                bool_or(bool_or(t.is_hidden)) OVER (PARTITION BY t.root, t.column_name) AS is_hidden,
                min(t.type_end) AS type_end,
                max(t.largest) AS largest,
                -- The largest value that does not count, and the role for whose sake.
                max(t.largest) FILTER (WHERE NOT t.may_raise) AS untrusted_value, min(t.untrusted) AS untrusted,
                bool_or(t.is_counted) AS counts,
                r.relowner AS owner
            FROM tables t
            CROSS JOIN LATERAL (
                SELECT c.oid AS relation, c.relowner FROM pg_class c
                WHERE c.oid = CASE WHEN t.unread IS NULL THEN t.root ELSE t.member END) r
            GROUP BY t.tag, t.root, r.relation, r.relowner, t.column_name, t.expression, t.unread
        ), tags AS (
            -- The largest value that counts, and of partitions and children that do not; any column counts; one that
            -- counts was not read; the smallest end of those that count and were, or the largest of the others.
            SELECT t.tag,
                max(t.largest) FILTER (WHERE t.may_raise OR t.is_counted AND t.largest < t.max_id) AS wanted,
                max(t.largest) FILTER (WHERE t.is_placed AND NOT t.may_raise) AS left_out,
                bool_or(t.may_raise) FILTER (WHERE t.unread IS NULL) AS may_raise,
                -- Also in what is no table, or of another type, are ids.
                bool_or(t.unread IS NOT NULL AND (t.may_raise OR t.is_placed)) AS is_incomplete,
                -- A stranger's narrow column must not end the ids of the others.
                coalesce(
                    min(t.type_end) FILTER (WHERE t.untrusted IS NULL AND t.unread IS NULL),
                    max(t.type_end) FILTER (WHERE t.may_raise AND t.unread IS NULL)) AS tag_end
            FROM tables t GROUP BY t.tag
        )
        SELECT c.*, t.wanted, t.left_out, t.may_raise, t.is_incomplete, t.tag_end
        FROM columns c JOIN tags t ON t.tag IS NOT DISTINCT FROM c.tag
        ORDER BY c.tag COLLATE "C" NULLS FIRST, c.unread NULLS FIRST, c.relation::regclass::text, c.column_name
    LOOP
        IF this.tag IS NULL OR this.unread IS NOT NULL THEN
            SELECT NULL::bigint AS next_before, NULL::bigint AS next_after, 'skip' AS action, coalesce(
                this.unread, concat_ws(': ', 'its default is not just a call with a constant tag, so create or raise its tag by hand',
                    this.expression,
                    this.untrusted::regrole || ', who owns the table or its domain, may not edit tags')) AS detail
            INTO fitted;
        ELSIF this.tag IS DISTINCT FROM tag THEN
            obstacle := CASE WHEN this.tag = ANY (in_expressions) THEN leaf_id_internal.leaf_obstacle_to_tag(this.tag, this.wanted) END;
            IF obstacle IS NOT NULL THEN
                SELECT NULL::bigint AS next_before, NULL::bigint AS next_after, 'skip' AS action, obstacle AS detail INTO fitted;
            ELSE
                SELECT NULL::bigint AS next_before, c.* INTO fitted
                FROM leaf_id_internal.leaf_create_for_columns(
                    this.tag, apply, this.wanted, this.left_out, this.may_raise, this.is_incomplete, this.tag_end) c;
                IF fitted.action IS NULL THEN
                    SELECT r.* INTO fitted FROM leaf_id_internal.leaf_raise_for_columns(this.tag, apply, this.wanted) r;
                END IF;
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
        -- What does not count is listed, and no alarm.
        skipped := skipped + (action = 'skip')::integer;
        missing_grant := CASE
            WHEN NOT this.counts THEN leaf_id_internal.leaf_missing_grant(tag, this.untrusted)
            WHEN NOT has_table_privilege(this.owner, 'leaf_id.leaf_alloc', 'UPDATE')
                THEN leaf_id_internal.leaf_missing_grant(tag, this.owner) END;
        IF NOT this.counts AND missing_grant IS NOT NULL THEN
            action := 'skip';
            detail := format('%s, who owns the table or its domain, may not issue the tag, so the column does not count: if it should, %s',
                this.untrusted::regrole, missing_grant);
        ELSIF this.untrusted_value >= greatest(next_after, 1) AND action <> 'skip' THEN
            action := 'skip';
            -- By the name of the tag alone, columns of strangers would count, too.
            detail := format(
                '%s, who owns the table or its domain, may not edit tags: if this column is right, SELECT * FROM %s(%L, %L, %L);',
                this.untrusted::regrole, leaf_id_internal.leaf_function_name('leaf_sync'), tag, relation, column_name);
            skipped := skipped + 1;
        ELSIF this.is_hidden AND action <> 'skip' THEN
            -- Partitions and children that were not read have rows of their own.
            action := CASE action WHEN 'none' THEN 'skip' ELSE action END;
            detail := 'not all of its tables could be read';
            skipped := skipped + (action = 'skip')::integer;
        ELSIF detail IS NULL THEN
            tag_end := coalesce((SELECT a.max_value FROM leaf_id.leaf_alloc a WHERE a.biz_tag = tag), this.tag_end);
            detail := leaf_id_internal.leaf_used_up(next_after, tag_end, this.type_end);
            IF detail IS NOT NULL AND action = 'none' AND leaf_id_internal.leaf_is_narrow(tag_end, this.type_end) THEN
                action := 'widen';
            END IF;
            detail := coalesce(detail, format('%s, who owns the table, needs a grant: ', this.owner::regrole) || missing_grant);
        END IF;
        RETURN NEXT;
    END LOOP;
    IF apply AND skipped > 0 THEN
        RAISE WARNING 'columns and tables that leaf_sync() skipped: %', skipped
            USING HINT = 'The column "detail" of its result says why.';
    END IF;

    RETURN QUERY SELECT t.tag, NULL::regclass, NULL::name, NULL::bigint, t.next_id, t.next_id, t.action, t.detail
        FROM leaf_id_internal.leaf_tags_without_columns(only_tag) t;
    -- Neither in leaf_alloc nor in a column.
    IF NOT FOUND AND only_tag IS NOT NULL AND tag IS NULL THEN
        RAISE EXCEPTION 'tag "%" does not exist', only_tag
            USING ERRCODE = 'undefined_object', DETAIL = coalesce(
                (SELECT format('The default of column "%s" of table %s has it in an expression, or issues opaque ids: create it by hand, above the ids in use.',
                    c.column_name, c.relation::regclass)
                 FROM leaf_id_internal.leaf_columns_of_tag(only_tag) c LIMIT 1),
                'No default of a column that counts calls leaf_segment_next() with it either.');
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_fit_tags(text, boolean) IS
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
AS 'SELECT f.* FROM leaf_id_internal.leaf_fit_tags($1, true) f';
COMMENT ON FUNCTION @extschema@.leaf_sync(text) IS
    'Creates the tags that column defaults name, or raises them, above the ids in the columns';

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
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require('SELECT, INSERT, UPDATE');
    type_end CONSTANT bigint := (
        SELECT CASE a.attlen WHEN 2 THEN 32767 WHEN 4 THEN 2147483647 ELSE 9223372036854775806 END
        FROM pg_attribute a
        WHERE a.attrelid = $2 AND a.attname = $3 AND a.attnum > 0 AND NOT a.attisdropped);
    is_right boolean;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot sync tags during recovery'
            USING ERRCODE = 'read_only_sql_transaction', HINT = 'Connect to the primary.';
    ELSIF type_end IS NULL THEN
        RAISE EXCEPTION 'table % has no column "%"', $2, $3 USING ERRCODE = 'undefined_column';
    END IF;
    max_in_column := leaf_id_internal.leaf_largest_value($2, $3);
    SELECT c.next_after, c.action, c.detail INTO next_after, action, detail
    FROM leaf_id_internal.leaf_create_for_columns($1, true, coalesce(max_in_column, 0), NULL, true, false, type_end) c;
    IF action IS NULL THEN
        SELECT r.next_before, r.next_after, r.action, r.detail INTO next_before, next_after, action, detail
        FROM leaf_id_internal.leaf_raise_for_columns($1, true, max_in_column) r;
    ELSIF action = 'create' THEN
        -- Not below what others hold that name it.
        is_right := leaf_id_internal.leaf_check_start($1, next_after);
    END IF;
    detail := coalesce(detail, leaf_id_internal.leaf_used_up(
        next_after, coalesce((SELECT a.max_value FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1), type_end), type_end),
        (SELECT format('%s, who owns the table, needs a grant: ', c.relowner::regrole) || leaf_id_internal.leaf_missing_grant($1, c.relowner)
         FROM pg_class c WHERE c.oid = $2));
    IF action = 'skip' THEN
        RAISE WARNING 'tag "%" was not synced: %', $1, detail;
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_sync(text, regclass, name) IS
    'Creates a tag above the ids in a column, or raises it above them';

CREATE FUNCTION leaf_id_internal.leaf_unsettled(OUT tag text, OUT detail text) RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT min(a.biz_tag), concat(
        CASE WHEN count(*) = 1 THEN 'it has' ELSE format('it and %s more have', count(*) - 1) END,
        ' claimed no ids since a promotion',
        CASE current_setting('leaf_id.failover_skip')
            WHEN '0' THEN ', and with "leaf_id.failover_skip" = 0 the next claims skip none of those that it may have lost'
            ELSE '; the next claims skip those that it may have lost, but not after a dump or pg_upgrade' END)
    FROM leaf_id.leaf_alloc a
    -- No claim of a sourced tag is made from its row.
    WHERE NOT pg_is_in_recovery() AND a.server IS NULL
        AND leaf_id_internal.leaf_is_unsettled(a.system_identifier, a.timeline)
    HAVING count(*) > 0
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_unsettled() IS
    'What leaf_check() says of all tags together whose claims a promotion may have lost';

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
    SELECT f.* FROM leaf_id_internal.leaf_fit_tags($1, false) f
    UNION ALL
    SELECT w.tag, NULL, NULL, NULL, NULL, NULL, 'none', w.detail FROM leaf_id_internal.leaf_unsettled() w WHERE $1 IS NULL
    UNION ALL
    SELECT m.tag, NULL, NULL, NULL, NULL, NULL, 'none', concat_ws(' ', concat_ws(': ', m.what, m.remedy) || ';', m.advice)
    FROM leaf_id_internal.leaf_missing_grants($1) m
$$;
COMMENT ON FUNCTION @extschema@.leaf_check(text) IS
    'What leaf_sync() would do, and which tags come to their end';
