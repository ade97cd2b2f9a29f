-- Moving columns from a sequence to a tag, and back: leaf_adopt() and leaf_release().
--
-- Locking. A column is moved under ACCESS EXCLUSIVE locks on its table, the partitions and children,
-- and the sequences that go. Each attempt to get them is a subtransaction that takes the table's
-- first, with an increasing timeout, and holds no other lock before: nothing can deadlock with it,
-- and after its rollback writers continue. The others are waited for only so briefly that a writer
-- which holds one of them and waits for the table never becomes a victim of deadlock detection.
--
-- Everything runs with the caller's rights, and the caller may be a superuser while the owner of
-- the table is not trusted. So no expression of the table is evaluated, and what is called by name
-- is in schema leaf_id_internal, which only a superuser can rename. Tables and sequences are
-- identified by oid. Statements take names, made from oids where they are used; names can change
-- in between, so one check by oid of everything that a call says it has done ends it.

CREATE FUNCTION leaf_id_internal.leaf_raise_changed(relation oid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% was changed concurrently', $1::regclass
        USING ERRCODE = 'object_in_use', HINT = 'Try again.';
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_raise_changed(oid) IS 'An error: a table is not what it was, or what a call has made of it';

CREATE FUNCTION leaf_id_internal.leaf_owned_sequences(relation oid, number smallint, OUT sequence oid, OUT is_identity boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.objid, d.deptype = 'i'
    FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = $2
        AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    ORDER BY d.objid
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_owned_sequences(oid, smallint) IS 'The sequences that a column owns, or is numbered by';

CREATE FUNCTION leaf_id_internal.leaf_obstacle(
    relation oid, number smallint, last_id bigint, tag text, sequence oid, sequences oid[]) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.reason
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = $2
    LEFT JOIN pg_attrdef f ON f.adrelid = c.oid AND f.adnum = a.attnum AND a.attgenerated = ''
    CROSS JOIN LATERAL (VALUES
        (1, c.relkind NOT IN ('r', 'p'), 'It is not a table.'),
        (2, c.relpersistence = 't', 'The table is temporary, and the tag would outlive it.'),
        (3, c.relispartition, 'The table is a partition. Name the column of the partitioned table.'),
        (4, c.oid < 16384 OR EXISTS (
                SELECT FROM pg_depend d
                WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'),
            'The table belongs to PostgreSQL or to an extension.'),
        (5, a.attinhcount > 0, 'The column is inherited. Name the column of the parent.'),
        (6, a.attgenerated <> '', 'The column is generated.'),
        (7, $3 IS NULL, format('Its type is %s: ids are smallint, integer or bigint.', a.atttypid::regtype)),
        (8, EXISTS (
                SELECT FROM leaf_id_internal.leaf_family(c.oid) m JOIN pg_class r ON r.oid = m AND r.relkind = 'f'),
            'Some of its rows are in foreign tables.'),
        (9, $4 IS NULL AND $5 IS NULL AND f.oid IS NOT NULL, format(
            'Its default is %s. Only a column without a default, or with one that is nextval() alone, can be moved: drop the default first.',
            pg_get_expr(f.adbin, 0))),
        (9, f.oid IS NULL AND a.attidentity = '' AND EXISTS (
                SELECT FROM pg_type t WHERE t.oid = a.atttypid AND t.typtype = 'd' AND t.typdefaultbin IS NOT NULL),
            'Its domain has a default, which other columns may take values from: drop that first.'),
        -- Ids that were taken but not inserted yet could be anywhere.
        (10, EXISTS (
                SELECT FROM pg_sequence q WHERE q.seqrelid = ANY ($6) AND (q.seqincrement < 0 OR q.seqcycle)),
            'Its sequence counts down, or cycles.')
    ) o (n, stands, reason)
    WHERE c.oid = $1 AND o.stands
    ORDER BY o.n LIMIT 1
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_obstacle(oid, smallint, bigint, text, oid, oid[]) IS
    'Why a column cannot be moved in either direction; null: it can';

CREATE FUNCTION leaf_id_internal.leaf_refuse_move(column_name name, table_name text, reason text, hint text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF $3 IS NULL THEN
        RETURN true;
    ELSIF $4 IS NULL THEN
        RAISE EXCEPTION 'cannot move column "%" of table %', $1, $2
            USING ERRCODE = 'feature_not_supported', DETAIL = $3;
    END IF;
    RAISE EXCEPTION 'cannot move column "%" of table %', $1, $2
        USING ERRCODE = 'feature_not_supported', DETAIL = $3, HINT = $4;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_refuse_move(name, text, text, text) IS
    'True; an error if there is a reason';

CREATE FUNCTION leaf_id_internal.leaf_column(
    relation oid,
    column_name name,
    OUT number smallint,
    OUT table_name text,
    OUT is_domain boolean,
    OUT base_type regtype,
    OUT last_id bigint,
    OUT not_null boolean,
    OUT identity "char",
    OUT tag text,
    -- The default's sequence; all sequences: the identity's, and others owned by the column.
    OUT sequence oid,
    OUT sequences oid[]
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner oid;
    default_oid oid;
    -- Functions that may refuse are assigned: other SQL would be in the CONTEXT of their errors.
    is_right boolean;
BEGIN
    SELECT c.relowner, format('%I.%I', n.nspname, c.relname) INTO owner, table_name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no table with oid %', $1 USING ERRCODE = 'undefined_table';
    END IF;
    IF NOT pg_has_role(owner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', table_name USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT a.attnum, a.atttypid, a.attnotnull, a.attidentity, f.oid, s.tag, s.sequence
    INTO number, base_type, not_null, identity, default_oid, tag, sequence
    FROM pg_attribute a
    LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum AND a.attgenerated = ''
    LEFT JOIN LATERAL leaf_id_internal.leaf_default_source(f.adbin, leaf_id_internal.leaf_issuer(), 16384) s ON true
    WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table % has no column "%"', table_name, $2 USING ERRCODE = 'undefined_column';
    END IF;
    is_domain := false;
    WHILE (SELECT t.typtype = 'd' FROM pg_type t WHERE t.oid = base_type) LOOP
        is_domain := true;
        base_type := (SELECT t.typbasetype FROM pg_type t WHERE t.oid = base_type);
    END LOOP;
    last_id := CASE base_type
        WHEN 'smallint'::regtype THEN 32767
        WHEN 'integer'::regtype THEN 2147483647
        WHEN 'bigint'::regtype THEN 9223372036854775806
        END;
    SELECT coalesce(array_agg(s.oid ORDER BY s.oid), '{}') INTO sequences
    FROM (
        SELECT d.refobjid AS oid FROM pg_depend d
        WHERE d.classid = 'pg_attrdef'::regclass AND d.objid = default_oid AND d.refclassid = 'pg_class'::regclass
        UNION
        SELECT o.sequence FROM leaf_id_internal.leaf_owned_sequences($1, number) o
    ) s JOIN pg_class c ON c.oid = s.oid AND c.relkind = 'S';

    is_right := leaf_id_internal.leaf_refuse_move(
        $2, table_name, leaf_id_internal.leaf_obstacle($1, number, last_id, tag, sequence, sequences));
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_column(oid, name) IS
    'Where a column takes its values from; an error if it cannot be moved in either direction';

-- Other defaults of theirs are kept. The default of a domain is not one of the column.
CREATE FUNCTION leaf_id_internal.leaf_followers(
    relation oid, column_name name, identity "char", tag text, sequence oid) RETURNS oid[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT $1 || coalesce(array_agg(m ORDER BY m), '{}')
    FROM leaf_id_internal.leaf_family($1) m
    JOIN pg_attribute a ON a.attrelid = m AND a.attname = $2
    LEFT JOIN pg_attrdef d ON d.adrelid = m AND d.adnum = a.attnum
    LEFT JOIN LATERAL leaf_id_internal.leaf_default_source(d.adbin, leaf_id_internal.leaf_issuer(), 16384) s ON true
    -- The identity of a child is its own, and that of a partition before 17.
    WHERE m <> $1 AND CASE WHEN $3 <> '' THEN a.attidentity <> '' AND current_setting('server_version_num')::integer >= 170000
            AND (SELECT c.relispartition FROM pg_class c WHERE c.oid = m)
        ELSE s.tag = $4 OR s.sequence = $5 END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_followers(oid, name, "char", text, oid) IS
    'The table, and the partitions and children whose column has the same source, and moves with its own';

CREATE FUNCTION leaf_id_internal.leaf_alter_defaults(relations oid[], column_name name, action text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation oid;
BEGIN
    FOREACH relation IN ARRAY $1 LOOP
        EXECUTE format('ALTER TABLE ONLY %s ALTER %I %s', relation::regclass, $2, $3);
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_alter_defaults(oid[], name, text) IS
    'Alters the default of a column in tables, of each by itself';

CREATE FUNCTION leaf_id_internal.leaf_default_tag(relation oid, number smallint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tag text;
BEGIN
    SELECT concat_ws('.', nullif(n.nspname, 'public'), c.relname, (
        SELECT this.attname FROM pg_attribute this
        WHERE this.attrelid = c.oid AND this.attnum = $2 AND EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attnum <> $2 AND NOT a.attisdropped
                AND (EXISTS (SELECT FROM leaf_id_internal.leaf_owned_sequences(c.oid, a.attnum))
                    OR EXISTS (
                        SELECT FROM pg_attrdef f JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
                        WHERE f.adrelid = c.oid AND f.adnum = a.attnum
                            AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = leaf_id_internal.leaf_issuer()))))) INTO tag
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1;
    IF octet_length(tag) > 128 THEN
        RAISE EXCEPTION '"%" is too long for the name of a tag', tag
            USING ERRCODE = 'invalid_name', HINT = 'Name a tag as the third argument of leaf_adopt().';
    END IF;
    RETURN tag;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_default_tag(oid, smallint) IS
    'The tag of a column whose tag is not named: the table''s name, with schema and column if needed';

-- Rights. INSERT is enough for an identity; for the sequence of a default, it takes USAGE. A column
-- without either gets its first source of values from the call.

CREATE FUNCTION leaf_id_internal.leaf_is_numbered_by_insert(sequences oid[]) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT $1 = '{}' OR EXISTS (
        SELECT FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY ($1) AND d.deptype = 'i')
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_is_numbered_by_insert(oid[]) IS
    'Whether INSERT on the table is enough to number its rows, with these sequences of the column';

CREATE FUNCTION leaf_id_internal.leaf_roles_with_insert(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT x.grantee
    FROM pg_class c
    CROSS JOIN LATERAL (
        SELECT * FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner)))
        UNION ALL
        SELECT g.* FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) g
        WHERE a.attrelid = c.oid AND NOT a.attisdropped
    ) x
    WHERE c.oid = $1 AND x.privilege_type = 'INSERT'
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_roles_with_insert(oid) IS
    'The roles that were granted INSERT on a table or columns of it, with its owner; 0 for PUBLIC';

CREATE FUNCTION leaf_id_internal.leaf_roles_of_column(relation oid, sequences oid[]) RETURNS name[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(DISTINCT coalesce(r.rolname, 'public')), '{}')
    FROM (
        SELECT c.relowner FROM pg_class c WHERE c.oid = $1 OR c.oid = ANY ($2)
        UNION ALL
        SELECT a.grantee
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
        WHERE c.oid = ANY ($2) AND a.privilege_type IN ('USAGE', 'UPDATE')
        UNION ALL
        SELECT i FROM leaf_id_internal.leaf_roles_with_insert($1) i
        WHERE leaf_id_internal.leaf_is_numbered_by_insert($2)
    ) s (role)
    LEFT JOIN pg_roles r ON r.oid = s.role
    WHERE s.role = 0 OR NOT r.rolsuper
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_roles_of_column(oid, oid[]) IS
    'The roles, except superusers, that could number the rows of a table by these sequences';

-- A view, a rule and the ACL of a partition are statements of their owners: they give nothing. Through
-- them, too, a default is evaluated with the rights of the role that inserts.
CREATE FUNCTION leaf_id_internal.leaf_indirect_grants(relation oid, tag text) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE target AS (
        SELECT m AS oid FROM leaf_id_internal.leaf_family($1) m
        UNION
        SELECT v.oid
        FROM target t
        JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.classid = 'pg_rewrite'::regclass
        JOIN pg_rewrite r ON r.oid = d.objid AND r.ev_class <> t.oid
        JOIN pg_class v ON v.oid = r.ev_class
        -- Whether it can be inserted into is not asked: that would wait for a lock on it.
        WHERE has_any_column_privilege(v.relowner, t.oid, 'INSERT')
    ), inserting AS MATERIALIZED (
        SELECT DISTINCT t.oid, i AS role
        FROM target t CROSS JOIN LATERAL leaf_id_internal.leaf_roles_with_insert(t.oid) i
        WHERE t.oid <> $1
    ), roles AS MATERIALIZED (
        -- Each once: any role makes many views, with a grant on each of many columns, and the table is locked.
        SELECT DISTINCT i.role FROM inserting i
    ), indirect AS (
        SELECT i.oid, coalesce(r.rolname, 'public') AS role
        FROM roles w
        JOIN inserting i ON i.role = w.role
        LEFT JOIN pg_roles r ON r.oid = w.role
        WHERE CASE WHEN w.role = 0 THEN 'public' <> ALL (leaf_id_internal.leaf_grantees($2))
            ELSE NOT leaf_id_internal.leaf_can_issue(w.role, $2) END
        ORDER BY i.oid, 2 LIMIT 10
    )
    SELECT array_agg(format('%s may insert through %s, for which it needs a grant: SELECT %s(%L, %L);',
        CASE WHEN i.role = 'public' THEN 'PUBLIC' ELSE format('role "%s"', i.role) END, i.oid::regclass,
        leaf_id_internal.leaf_function_name('leaf_tag_grant'), $2, i.role) ORDER BY i.oid, i.role)
    FROM indirect i
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_indirect_grants(oid, text) IS
    'The roles that insert through views, rules, partitions or children, with the grants that they lack';

-- Otherwise the INSERTs of others would begin to fail. Roles that may edit tags need no grant.
CREATE FUNCTION leaf_id_internal.leaf_check_rights(tag text, roles name[], column_name name, table_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    others CONSTANT text := (
        SELECT string_agg(quote_ident(r.role), ', ' ORDER BY r.role) FROM unnest($2) r (role)
        WHERE r.role <> 'public'
            AND CASE WHEN r.role <> 'public' THEN NOT has_table_privilege(r.role, 'leaf_id.leaf_alloc', 'UPDATE') END
            AND r.role <> ALL (leaf_id_internal.leaf_grantees($1)));
    without_execute CONSTANT text := (
        SELECT string_agg(CASE r.role WHEN 'public' THEN 'PUBLIC' ELSE quote_ident(r.role) END, ', ' ORDER BY r.role)
        FROM unnest($2) r (role)
        WHERE NOT has_function_privilege(r.role, leaf_id_internal.leaf_issuer(), 'EXECUTE'));
    issuer CONSTANT regprocedure := leaf_id_internal.leaf_issuer();
BEGIN
    IF without_execute IS NOT NULL THEN
        RETURN leaf_id_internal.leaf_refuse_move(
            $3, $4, format('These roles number its rows, and may not execute %s: %s.', issuer, without_execute),
            format('To let them: GRANT EXECUTE ON FUNCTION %s TO %s;', issuer, without_execute));
    ELSIF others IS NOT NULL AND NOT has_schema_privilege('leaf_id', 'USAGE WITH GRANT OPTION') THEN
        RAISE EXCEPTION 'permission denied to grant the tag of column "%" of table %', $3, $4
            USING ERRCODE = 'insufficient_privilege',
                DETAIL = format('These roles number its rows, and could not any more: %s.', others),
                HINT = format('To be allowed to grant it: GRANT USAGE ON SCHEMA leaf_id TO %I WITH GRANT OPTION;', current_user);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_check_rights(text, name[], name, text) IS
    'True; an error if the roles that can number the rows of a column could not any more';

CREATE FUNCTION leaf_id_internal.leaf_carry_rights(tag text, roles name[], OUT granted name[]) RETURNS name[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    may_grant CONSTANT boolean := has_schema_privilege('leaf_id', 'USAGE WITH GRANT OPTION');
    role name;
BEGIN
    granted := '{}';
    FOREACH role IN ARRAY $2 LOOP
        IF (may_grant OR role = 'public') AND role <> ALL (leaf_id_internal.leaf_grantees($1)) THEN
            PERFORM leaf_id_internal.leaf_grant_tag($1, role);
            granted := granted || role;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_carry_rights(text, name[]) IS
    'Grants a tag to the roles that could number the rows of its column; those that had no grant';

-- Includes the table's descendants; NULL if all are empty. Only under the lock.
CREATE FUNCTION leaf_id_internal.leaf_largest_value(relation oid, column_name name) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
    largest bigint;
BEGIN
    FOR member IN
        SELECT c.oid, v.largest, v.unread
        FROM leaf_id_internal.leaf_family($1) m
        JOIN pg_class c ON c.oid = m AND c.relkind <> 'p'
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped
        CROSS JOIN LATERAL leaf_id_internal.leaf_column_max(c.oid, a.attnum) v
    LOOP
        IF member.unread IS NOT NULL THEN
            RAISE EXCEPTION 'cannot read column "%" of table %', $2, member.oid::regclass
                USING ERRCODE = 'insufficient_privilege', DETAIL = member.unread;
        END IF;
        largest := greatest(largest, member.largest);
    END LOOP;
    RETURN largest;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_largest_value(oid, name) IS 'The largest value of a column';

-- Sequences.

-- PostgreSQL asks for no right to name a sequence in a default or a view. Those of roles that may not use
-- it keep it from being dropped, and a column from being moved no more than that.
CREATE FUNCTION leaf_id_internal.leaf_users_of_sequence(
    sequence oid, column_name name, relations oid[], OUT entitled text, OUT are_there boolean) RETURNS record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(pg_describe_object(d.classid, d.objid, d.objsubid), ', ' ORDER BY d.classid, d.objid)
            FILTER (WHERE o.owner IS NULL OR has_sequence_privilege(o.owner, $1, 'USAGE, SELECT')),
        count(*) > 0
    FROM pg_depend d
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT c.relowner FROM pg_attrdef f JOIN pg_class c ON c.oid = f.adrelid
             WHERE d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid),
            (SELECT c.relowner FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
             WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid),
            (SELECT p.proowner FROM pg_proc p WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid),
            (SELECT t.typowner FROM pg_type t WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid),
            (SELECT coalesce(c.relowner, t.typowner)
             FROM pg_constraint o LEFT JOIN pg_class c ON c.oid = o.conrelid LEFT JOIN pg_type t ON t.oid = o.contypid
             WHERE d.classid = 'pg_constraint'::regclass AND o.oid = d.objid),
            (SELECT c.relowner FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
             WHERE d.classid = 'pg_policy'::regclass AND p.oid = d.objid),
            (SELECT c.relowner FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
             WHERE d.classid = 'pg_trigger'::regclass AND t.oid = d.objid)) AS owner) o
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1
        AND NOT (d.classid = 'pg_attrdef'::regclass AND d.objid IN (
            SELECT f.oid FROM pg_attrdef f JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
            WHERE f.adrelid = ANY ($3) AND a.attname = $2))
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_users_of_sequence(oid, name, oid[]) IS
    'What depends on a sequence besides these defaults, of roles that may use it; and whether anything does';

-- Texts are searched, not run, and only those of roles that may use the sequence: those of others
-- could not use it either. (BEGIN ATOMIC makes a dependency.)
CREATE FUNCTION leaf_id_internal.leaf_code_of_sequence(sequence oid) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(pg_describe_object('pg_proc'::regclass, f.oid, 0), ', ' ORDER BY f.oid)
    FROM (
        SELECT p.oid
        FROM pg_class s
        JOIN pg_proc p ON p.oid >= 16384 AND strpos(p.prosrc, s.relname) > 0
        JOIN pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ('c', 'internal')
        WHERE s.oid = $1 AND has_sequence_privilege(p.proowner, s.oid, 'USAGE, SELECT')
            -- In quotes, with its schema or without; what is special in a regular expression is escaped. One
            -- cannot search a very long text.
            AND CASE WHEN octet_length(p.prosrc) > 100000 THEN true
                ELSE p.prosrc ~ concat('["''.]', regexp_replace(s.relname, '[^[:alnum:]_]', E'\\\\\\&', 'g'), '["'']') END
            AND NOT EXISTS (
                SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
        ORDER BY p.oid LIMIT 10
    ) f
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_code_of_sequence(oid) IS
    'The functions, ten at most, that have the name of a sequence in their text; null: none';

CREATE FUNCTION leaf_id_internal.leaf_largest_taken(sequence oid) RETURNS numeric
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Without the privilege PostgreSQL returns NULL, as for a sequence that was never used.
    IF NOT has_sequence_privilege($1, 'USAGE, SELECT') THEN
        RAISE EXCEPTION 'permission denied for sequence %', $1::regclass USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Clients that allocate by the increment (Hibernate's pooled optimizer) also use the values
    -- that follow. If a sequence was set and not called since, its last value is not shown, but the
    -- next value is above all values given.
    RETURN (
        SELECT coalesce(pg_sequence_last_value($1)::numeric + q.seqincrement, nextval($1)) - 1
        FROM pg_sequence q WHERE q.seqrelid = $1);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_largest_taken(oid) IS 'The largest id that a sequence may have given';

-- A new file for the sequence, so that a rollback takes back what leaf_largest_taken() takes from it.
CREATE FUNCTION leaf_id_internal.leaf_close_sequence(sequence oid) RETURNS numeric
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    file CONSTANT oid := pg_relation_filenode($1);
BEGIN
    EXECUTE format('ALTER SEQUENCE %s NO CYCLE', $1::regclass);
    IF pg_relation_filenode($1) = file THEN
        PERFORM leaf_id_internal.leaf_raise_changed($1);
    END IF;
    RETURN leaf_id_internal.leaf_largest_taken($1);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_close_sequence(oid) IS
    'The largest id that a sequence may have given, which this transaction has locked and will drop';

CREATE FUNCTION leaf_id_internal.leaf_small_references(relation oid, number smallint, last_id bigint) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(format('%s.%I (%s)', r.conrelid::regclass, a.attname, a.atttypid::regtype), ', ')
    FROM pg_constraint r
    JOIN pg_attribute a ON a.attrelid = r.conrelid AND a.attnum = r.conkey[array_position(r.confkey, $2)]
    WHERE r.contype = 'f' AND r.confrelid = $1 AND $3 > CASE a.atttypid
        WHEN 'smallint'::regtype THEN 32767
        WHEN 'integer'::regtype THEN 2147483647 END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_small_references(oid, smallint, bigint) IS
    'The columns that reference one, and are too small for its last ids';

-- That of a dropped table, too, stays until its caller says so: programs may take ids of it, and roles
-- that were granted it could use up those of the new table.
CREATE FUNCTION leaf_id_internal.leaf_raise_tag_exists(tag text, column_name name, table_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'tag "%" already exists', $1 USING ERRCODE = 'duplicate_object',
        HINT = format('To give it to this column as well, with the grants that it has: SELECT %s(%L, %L, %L);',
            leaf_id_internal.leaf_function_name('leaf_adopt'), $3, $2, $1);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_raise_tag_exists(text, name, text) IS
    'An error: the default tag of a column is there';

-- An existing tag is used if the caller has named it. Only under the lock.
CREATE FUNCTION leaf_id_internal.leaf_give_tag(
    tag text, column_name name, table_name text, wanted numeric, last_id bigint, step integer,
    is_named boolean, OUT first_id bigint, OUT notices text[]) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored record;
    is_new boolean;
BEGIN
    first_id := wanted;
    notices := '{}';
    IF leaf_id_internal.leaf_has_key($1) THEN
        RAISE EXCEPTION 'cannot give column "%" of table % to opaque tag "%"', $2, $3, $1
            USING ERRCODE = 'feature_not_supported', DETAIL = 'Its ids would repeat those of the column.';
    END IF;
    SELECT a.max_id, a.max_value, a.server INTO stored
    FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1 FOR UPDATE;
    is_new := NOT FOUND;
    IF is_new THEN
        -- Small segments for a small range of ids.
        INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, step, max_step, max_value)
        SELECT $1, first_id, s.step, greatest(s.step, least(1000000, (last_id - first_id) / 100)), last_id
        FROM (SELECT coalesce($6, greatest(1, least(1000, (last_id - first_id) / 1000)))) s (step)
        -- Higher if ids were issued under this name before.
        RETURNING max_id INTO first_id;
    ELSIF NOT is_named THEN
        is_named := leaf_id_internal.leaf_raise_tag_exists($1, $2, $3);
    ELSIF stored.server IS NOT NULL THEN
        RAISE EXCEPTION 'tag "%" is sourced from server "%"', $1, stored.server
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Raise its max_id there and then here, above the ids of the column, and set the default yourself.';
    ELSE
        first_id := least(greatest(first_id, stored.max_id)::numeric + 1, 9223372036854775807);
    END IF;
    IF NOT is_new AND first_id <= least(last_id, stored.max_value) THEN
        -- Raised unconditionally: cached ids, below max_id, may collide with those of rows. Further, if ids
        -- were issued under this name before, or a promotion may have lost claims.
        UPDATE leaf_id.leaf_alloc a
        SET max_id = first_id, step = coalesce($6, a.step), max_step = greatest(a.max_step, $6)
        WHERE a.biz_tag = $1
        RETURNING a.max_id INTO first_id;
    END IF;
    IF first_id > least(last_id, stored.max_value) THEN
        RAISE EXCEPTION 'no ids are left for column "%" of table %', $2, $3
            USING ERRCODE = 'sequence_generator_limit_exceeded', DETAIL = format('Tag "%s" would go on from %s, and the last id is %s.',
                $1, first_id, least(last_id, stored.max_value));
    ELSIF is_new THEN
        RETURN;
    END IF;
    notices := notices || format('tag "%s" existed already, and goes on from %s', $1, first_id);
    IF stored.max_value > last_id THEN
        notices := notices || format(
            'tag "%s" goes up to %s, and column "%s" of table %s to %s', $1, stored.max_value, $2, $3, last_id);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_give_tag(text, name, text, numeric, bigint, integer, boolean) IS
    'Creates the tag of a column, or raises it, so that it goes on above its ids';

CREATE FUNCTION leaf_id_internal.leaf_other_sources(column_name name, followers oid[], tag text) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(
        format('table %1$s keeps its own sequence: rows inserted into it directly may have ids of the tag, too. To change that: '
               'BEGIN; LOCK TABLE %1$s; UPDATE leaf_id.leaf_alloc SET max_id = greatest(max_id, (SELECT last_value FROM %2$s)) + 1 WHERE biz_tag = %6$L; '
               'ALTER TABLE %1$s %3$sALTER %4$I SET DEFAULT %5$s(%6$L); COMMIT; SELECT * FROM %7$s(%6$L);',
            m::regclass, q.sequence::regclass, CASE WHEN a.attidentity <> '' THEN format('ALTER %I DROP IDENTITY, ', $1) END, $1,
            leaf_id_internal.leaf_function_name('leaf_segment_next'), $3, leaf_id_internal.leaf_function_name('leaf_sync')) ORDER BY m)
    FROM leaf_id_internal.leaf_family($2[1]) m
    JOIN pg_attribute a ON a.attrelid = m AND a.attname = $1
    LEFT JOIN pg_attrdef d ON d.adrelid = m AND d.adnum = a.attnum
    LEFT JOIN LATERAL leaf_id_internal.leaf_default_source(d.adbin, leaf_id_internal.leaf_issuer(), 16384) s ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(s.sequence, (
            SELECT o.sequence FROM leaf_id_internal.leaf_owned_sequences(m, a.attnum) o WHERE o.is_identity)) AS sequence) q
    WHERE m <> ALL ($2) AND q.sequence IS NOT NULL
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_other_sources(name, oid[], text) IS
    'The partitions and children that do not move with a table, as they have sequences of their own';

CREATE FUNCTION leaf_id_internal.leaf_tell_unindexed(relation oid, column_name name, table_name text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size CONSTANT numeric := leaf_id_internal.leaf_unindexed_size($1, $2);
BEGIN
    -- Below this, a second or less.
    IF size > 100000000 THEN
        RAISE NOTICE '% of table % will be read while it is locked, as column "%" has no index',
            pg_size_pretty(size), $3, $2 USING HINT = 'With an index on the column, it takes milliseconds.';
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_tell_unindexed(oid, name, text) IS
    'Says that a large table will be read for the largest value of a column';

-- Locks.

-- By oid: LOCK TABLE locks the tables under a view, and a table of that name may be a view by now.
CREATE FUNCTION leaf_id_internal.leaf_lock_relation(relation oid) RETURNS void
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_lock_relation_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_lock_relation(oid) IS
    'Locks a table exclusively, with the privileges of LOCK TABLE, or a sequence, as its owner';

-- Partitions and children cannot be attached to a locked table. The limit applies to the wait for
-- all of them together, regardless of their number.
CREATE FUNCTION leaf_id_internal.leaf_lock_rest(relation oid, sequences oid[], patience float8) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked oid[] := ARRAY[$1];
    missing oid[];
    other oid;
    asked timestamptz;
BEGIN
    LOOP
        SELECT array_agg(m) INTO missing
        FROM (SELECT f FROM leaf_id_internal.leaf_family($1) f UNION ALL SELECT unnest($2)) r (m)
        WHERE m <> ALL (locked);
        EXIT WHEN missing IS NULL;
        FOREACH other IN ARRAY missing LOOP
            PERFORM set_config('lock_timeout', ceil(greatest(1, patience))::text, true);
            asked := clock_timestamp();
            PERFORM leaf_id_internal.leaf_lock_relation(other);
            patience := patience - greatest(0, 1000 * extract(epoch FROM clock_timestamp() - asked) - 1);
            IF patience < 0 THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
        locked := locked || missing;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_lock_rest(oid, oid[], float8) IS
    'Locks the partitions and children of a locked table, and sequences, within so many milliseconds';

CREATE FUNCTION leaf_id_internal.leaf_assert_locked(relation oid, sequences oid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM (SELECT f FROM leaf_id_internal.leaf_family($1) f UNION ALL SELECT unnest($2)) r (m)
        WHERE m NOT IN (
            SELECT l.relation FROM pg_locks l
            WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
                AND l.mode = 'AccessExclusiveLock'
                AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())))
    THEN
        PERFORM leaf_id_internal.leaf_raise_changed($1);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_assert_locked(oid, oid[]) IS
    'An error unless this session has locked a table, its descendants and these sequences exclusively';

CREATE FUNCTION leaf_id_internal.leaf_lock_holders(relation oid, sequences oid[]) RETURNS text
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(DISTINCT coalesce('process ' || l.pid, 'a prepared transaction'), ', ')
    FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
        AND (l.relation = ANY ($2) OR l.relation IN (SELECT m FROM leaf_id_internal.leaf_family($1) m))
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_lock_holders(oid, oid[]) IS
    'The processes that have locked a table, its descendants or these sequences';

-- Repeats attempts until one succeeds. Returns the lock_timeout to be set when the work is done: until
-- then no wait is long.
CREATE FUNCTION leaf_id_internal.leaf_lock_to_move(relation oid, table_name text, sequences oid[]) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- In milliseconds, like the variables below; 0 for none.
    lock_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'lock_timeout');
    statement_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'statement_timeout');
    deadlock_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'deadlock_timeout');
    total_wait CONSTANT integer := CASE WHEN lock_timeout > 0 THEN least(60000, 20 * lock_timeout::bigint) ELSE 60000 END;
    wait float8 := 50;
    started CONSTANT timestamptz := clock_timestamp();
    tries integer := 0;
    holders text;
BEGIN
    LOOP
        tries := tries + 1;
        BEGIN
            PERFORM set_config('lock_timeout', ceil(CASE WHEN lock_timeout > 0 THEN least(wait, lock_timeout) ELSE wait END)::text, true);
            PERFORM leaf_id_internal.leaf_lock_relation($1);
            PERFORM leaf_id_internal.leaf_lock_rest($1, $3, least(deadlock_timeout / 4, 250));
            PERFORM set_config('lock_timeout', greatest(1, least(deadlock_timeout / 4, 250))::text, true);
            RETURN lock_timeout;
        EXCEPTION WHEN lock_not_available THEN
            holders := leaf_id_internal.leaf_lock_holders($1, $3);
        END;
        -- If both have fired, PostgreSQL raises lock_timeout's error, which was caught, and forgets this one.
        IF statement_timeout > 0
            AND clock_timestamp() > statement_timestamp() + make_interval(secs => statement_timeout / 1000.0) THEN
            RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
        ELSIF clock_timestamp() > started + make_interval(secs => total_wait / 1000.0) THEN
            RAISE EXCEPTION 'table % could not be locked', $2 USING ERRCODE = 'lock_not_available',
                DETAIL = format('Tried %s times in %s ms; at the last time it, or its sequence, was in use by %s.',
                    tries, round(1000 * extract(epoch FROM clock_timestamp() - started)), coalesce(holders, 'a transaction that has ended since')),
                HINT = 'Try again when no long transaction uses the table.';
        END IF;
        -- Let other sessions proceed.
        PERFORM pg_sleep(wait * (0.5 + random() / 2) / 1000);
        wait := least(wait * 1.6, 3000);
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_lock_to_move(oid, text, oid[]) IS
    'Locks a table, its partitions and children, and sequences';

CREATE FUNCTION leaf_id_internal.leaf_begin_move(relation oid, column_name name) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The role that may drop the extension waits for this transaction: what is called by name stays
    -- what it is.
    is_kept CONSTANT boolean := leaf_id_internal.leaf_require('');
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION 'table and column must not be null' USING ERRCODE = 'null_value_not_allowed';
    -- An older snapshot would miss rows committed before the lock.
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'columns can be moved only in a READ COMMITTED transaction' USING ERRCODE = 'feature_not_supported';
    END IF;
    RETURN is_kept;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_begin_move(oid, name) IS
    'True; an error if no column can be moved in this transaction';

-- One NOTICE, with the details, since a CALL has no result.
CREATE FUNCTION leaf_id_internal.leaf_end_move(line text, notices text[], lock_timeout text) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    details CONSTANT text := nullif(array_to_string(notices, E'\n'), '');
    whole CONSTANT text := concat_ws(E'\n', line, details);
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout, true);
    RAISE NOTICE '%', whole;
    RAISE LOG 'leaf_id: %', whole;
    RETURN details;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_end_move(text, text[], text) IS
    'Says what leaf_adopt() or leaf_release() has done; returns the details';

-- From a sequence to a tag.

CREATE FUNCTION leaf_id_internal.leaf_refuse_adoption(
    relation oid, number smallint, column_name name, table_name text, followers oid[], sequences oid[],
    OUT reason text, OUT hint text) RETURNS record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH its AS (
        SELECT s.oid, s.oid IN (SELECT o.sequence FROM leaf_id_internal.leaf_owned_sequences($1, $2) o) AS is_owned,
            (SELECT u.entitled FROM leaf_id_internal.leaf_users_of_sequence(s.oid, $3, $5) u) AS users,
            leaf_id_internal.leaf_code_of_sequence(s.oid) AS code
        FROM unnest($6) s (oid)
    )
    SELECT o.reason, o.hint
    FROM (
        SELECT 1 AS n, format('Sequence %s is used by %s, too: ids from there could be equal to those of the tag.',
            i.oid::regclass, i.users) AS reason,
            'Change that first; columns that share a sequence can share a tag, by leaf_adopt() with force for all of them in one transaction.'
                AS hint
        FROM its i WHERE i.users IS NOT NULL
        UNION ALL
        SELECT 2, format('The column does not own its sequence %s.', i.oid::regclass),
            -- PostgreSQL asks for the same schema and owner.
            CASE WHEN s.relnamespace = t.relnamespace AND s.relowner = t.relowner
                THEN format('If nothing else takes values from it: ALTER SEQUENCE %s OWNED BY %s.%I;', i.oid::regclass, $4, $3)
                ELSE 'If nothing else takes values from it, pass force => true to leaf_adopt().' END
        FROM its i JOIN pg_class s ON s.oid = i.oid JOIN pg_class t ON t.oid = $1
        WHERE NOT i.is_owned
        UNION ALL
        SELECT 3, format('Sequence %s is named in %s, which would not find it any more.', i.oid::regclass, i.code),
            'Change that first, or pass force => true to leaf_adopt().'
        FROM its i WHERE i.code IS NOT NULL
    ) o
    ORDER BY o.n LIMIT 1
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_refuse_adoption(oid, smallint, name, text, oid[], oid[]) IS
    'Why leaf_adopt() does not move a column, unless by force; null: it does';

-- Reads and refuses, and changes nothing: before the lock, again under it, and for dry_run.
CREATE FUNCTION leaf_id_internal.leaf_plan_adoption(
    relation oid, column_name name, wanted_tag text, step integer, force boolean,
    OUT number smallint, OUT table_name text, OUT identity "char", OUT last_id bigint,
    -- The tag that the column takes its ids from already; otherwise the one that it gets.
    OUT old_tag text, OUT tag text,
    OUT followers oid[],
    -- The sequences of the column, and those of them that go.
    OUT sequences oid[], OUT dropped oid[],
    OUT roles name[]) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this CONSTANT record := leaf_id_internal.leaf_column($1, $2);
    -- Functions that may refuse are assigned: other SQL would be in the CONTEXT of their errors.
    is_right boolean := leaf_id_internal.leaf_require('SELECT, INSERT, UPDATE');
    wrong record;
    refused record;
BEGIN
    number := this.number;
    table_name := this.table_name;
    identity := this.identity;
    old_tag := this.tag;
    sequences := this.sequences;
    SELECT w.* INTO wrong FROM leaf_id_internal.leaf_wrong_argument($3, NULL, $4, NULL, NULL) w;
    IF wrong.argument IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('"%s" must be %s', wrong.argument, wrong.allowed);
    ELSIF $3 <> old_tag THEN
        RAISE EXCEPTION 'column "%" of table % takes its ids from tag "%"', $2, table_name, old_tag
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call leaf_release() first.';
    ELSIF old_tag IS NOT NULL THEN
        RETURN;
    END IF;
    tag := coalesce($3, leaf_id_internal.leaf_default_tag($1, number));
    followers := leaf_id_internal.leaf_followers($1, $2, identity, NULL, this.sequence);
    IF EXISTS (SELECT FROM pg_constraint r WHERE r.contype = 'f' AND r.conrelid = $1 AND number = ANY (r.conkey)) THEN
        is_right := leaf_id_internal.leaf_refuse_move(
            $2, table_name, 'It references another table, whose column numbers the rows.');
    ELSIF NOT $5 THEN
        SELECT r.* INTO refused
        FROM leaf_id_internal.leaf_refuse_adoption($1, number, $2, table_name, followers, sequences) r;
        is_right := leaf_id_internal.leaf_refuse_move($2, table_name, refused.reason, refused.hint);
    END IF;
    IF this.sequence IS NULL AND identity = '' AND $3 IS NULL THEN
        is_right := leaf_id_internal.leaf_refuse_move(
            $2, table_name, 'It has neither a sequence nor an identity.',
            format('To number its rows all the same, once no program numbers them, name the tag: SELECT %s(%L, %L, %L);',
                leaf_id_internal.leaf_function_name('leaf_adopt'), table_name, $2, tag));
    ELSIF $3 IS NULL AND EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = tag) THEN
        is_right := leaf_id_internal.leaf_raise_tag_exists(tag, $2, table_name);
    END IF;
    -- A limit set explicitly on the sequence counts; the default limit of its type does not.
    SELECT least(this.last_id, min(q.seqmax)) INTO last_id
    FROM pg_sequence q
    WHERE q.seqrelid = ANY (sequences) AND q.seqmax NOT IN (32767, 2147483647, 9223372036854775807);
    -- What others use, or the column does not own, stays.
    SELECT coalesce(array_agg(o.sequence), '{}') INTO dropped
    FROM leaf_id_internal.leaf_owned_sequences($1, number) o
    WHERE o.is_identity OR NOT (SELECT u.are_there FROM leaf_id_internal.leaf_users_of_sequence(o.sequence, $2, followers) u);
    roles := leaf_id_internal.leaf_roles_of_column($1, sequences);
    is_right := leaf_id_internal.leaf_check_rights(tag, roles, $2, table_name);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_plan_adoption(oid, name, text, integer, boolean) IS
    'What leaf_adopt() will do with a column; an error if it cannot be moved';

CREATE FUNCTION leaf_id_internal.leaf_check_adopted(
    column_name name, followers oid[], dropped oid[], tag text, first_id bigint, roles name[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leaf_id_internal.leaf_assert_locked($2[1], '{}');
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY ($3))
        OR EXISTS (
            SELECT FROM unnest($2) f (oid)
            LEFT JOIN pg_attribute a ON a.attrelid = f.oid AND a.attname = $1 AND a.attidentity = ''
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            LEFT JOIN LATERAL leaf_id_internal.leaf_default_source(d.adbin, leaf_id_internal.leaf_issuer(), 16384) s ON true
            WHERE s.tag IS DISTINCT FROM $4)
        OR NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $4 AND a.max_id >= $5)
        OR EXISTS (
            SELECT FROM unnest($6) r (role) WHERE r.role <> ALL (leaf_id_internal.leaf_grantees($4))
                AND CASE WHEN r.role <> 'public' THEN NOT has_table_privilege(r.role, 'leaf_id.leaf_alloc', 'UPDATE') ELSE true END)
    THEN
        PERFORM leaf_id_internal.leaf_raise_changed($2[1]);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_check_adopted(name, oid[], oid[], text, bigint, name[]) IS
    'An error unless all that leaf_adopt() says it has done is so';

CREATE FUNCTION leaf_id_internal.leaf_adopt_column(
    relation regclass, column_name name, wanted_tag text, step integer, force boolean,
    OUT tag text, OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The column's default would fail without the library.
    is_right CONSTANT boolean := leaf_id_internal.leaf_begin_move($1, $2) AND leaf_id_internal.leaf_check_preloaded(true);
    plan record := leaf_id_internal.leaf_plan_adoption($1, $2, $3, $4, $5);
    lock_timeout text;
    by_insert boolean;
    may_begin boolean;
    -- Ids up to this one may have been taken. Numeric, as it may exceed the last id.
    taken numeric;
    given record;
    granted name[];
    small text;
    sequence oid;
    notices text[] := '{}';
BEGIN
    tag := plan.old_tag;
    IF tag IS NULL THEN
        PERFORM leaf_id_internal.leaf_tell_unindexed($1, $2, plan.table_name);
        lock_timeout := leaf_id_internal.leaf_lock_to_move($1, plan.table_name, plan.dropped);
        plan := leaf_id_internal.leaf_plan_adoption($1, $2, $3, $4, $5);
        tag := plan.old_tag;
    END IF;
    IF tag IS NOT NULL THEN
        RAISE NOTICE 'column "%" of table % takes its ids from tag "%" already', $2, plan.table_name, tag;
        PERFORM set_config('lock_timeout', coalesce(lock_timeout, current_setting('lock_timeout')), true);
        RETURN;
    END IF;
    tag := plan.tag;
    by_insert := leaf_id_internal.leaf_is_numbered_by_insert(plan.sequences);
    PERFORM leaf_id_internal.leaf_assert_locked($1, plan.dropped);
    SELECT greatest(0, leaf_id_internal.leaf_largest_value($1, $2), max(CASE WHEN s = ANY (plan.dropped)
        THEN leaf_id_internal.leaf_close_sequence(s) ELSE leaf_id_internal.leaf_largest_taken(s) END)) INTO taken
    FROM unnest(plan.sequences) s;
    IF taken >= plan.last_id THEN
        RAISE EXCEPTION 'no ids are left for column "%" of table %', $2, plan.table_name
            USING ERRCODE = 'sequence_generator_limit_exceeded',
                DETAIL = format('Ids up to %s are taken, and the last one is %s.', taken, plan.last_id);
    END IF;

    -- As leaf_tag_create(): other columns may name the tag, and wait for it.
    IF NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = plan.tag) THEN
        may_begin := leaf_id_internal.leaf_check_start(tag, taken::bigint + 1);
    END IF;

    IF plan.identity <> '' THEN
        EXECUTE format('ALTER TABLE %s ALTER %I DROP IDENTITY', $1, $2);
        IF plan.identity = 'a' THEN
            notices := notices || format(
                'column "%s" of table %s was GENERATED ALWAYS: from now on, explicit ids are not refused, and OVERRIDING USER VALUE keeps them',
                $2, plan.table_name);
        END IF;
    END IF;
    PERFORM leaf_id_internal.leaf_alter_defaults(
        plan.followers, $2, format('SET DEFAULT %s(%L::pg_catalog.text)', leaf_id_internal.leaf_issuer()::regproc, tag));
    FOREACH sequence IN ARRAY plan.sequences LOOP
        IF sequence <> ALL (plan.dropped) THEN
            notices := notices || format(
                'sequence %s stays: ids that are taken from it may be equal to those of the tag', sequence::regclass);
        -- An identity's is gone.
        ELSIF EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence) THEN
            EXECUTE format('DROP SEQUENCE %s', sequence::regclass);
        END IF;
    END LOOP;

    given := leaf_id_internal.leaf_give_tag(tag, $2, plan.table_name, taken + 1, plan.last_id, $4, $3 IS NOT NULL);
    first_id := given.first_id;
    granted := leaf_id_internal.leaf_carry_rights(tag, plan.roles);
    small := leaf_id_internal.leaf_small_references($1, plan.number, plan.last_id);
    notices := notices || given.notices
        || CASE WHEN granted <> '{}' THEN format('the tag was granted to %s', array_to_string(granted, ', ')) END
        || CASE WHEN small IS NOT NULL THEN format(
            'columns that reference "%s" of table %s are too small for its last ids: %s', $2, plan.table_name, small) END
        || leaf_id_internal.leaf_other_sources($2, plan.followers, tag)
        || CASE WHEN by_insert THEN leaf_id_internal.leaf_indirect_grants($1, tag) END;
    PERFORM leaf_id_internal.leaf_check_adopted($2, plan.followers, plan.dropped, tag, first_id, plan.roles);
    details := leaf_id_internal.leaf_end_move(
        format('column "%s" of table %s takes its ids from tag "%s", from %s on', $2, plan.table_name, tag, first_id),
        array_remove(notices, NULL), lock_timeout);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_adopt_column(regclass, name, text, integer, boolean) IS
    'What leaf_adopt() does';

CREATE FUNCTION @extschema@.leaf_adopt(
    relation regclass, column_name name, INOUT tag text DEFAULT NULL, step integer DEFAULT NULL, force boolean DEFAULT false,
    OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT a.* FROM leaf_id_internal.leaf_adopt_column($1, $2, $3, $4, coalesce($5, false)) a';
COMMENT ON FUNCTION @extschema@.leaf_adopt(regclass, name, text, integer, boolean) IS
    'Moves a column from its sequence to a tag, above all ids so far';

-- From a tag to an identity or a sequence.

CREATE FUNCTION leaf_id_internal.leaf_create_sequence(
    relation oid, number smallint, column_name name, base_type regtype, first_id bigint
) RETURNS oid
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    its_table record;
    candidate name;
    others oid[];
    sequence oid;
BEGIN
    SELECT n.nspname, c.relname, c.relnamespace, c.relowner::regrole AS owner INTO its_table
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1;
    FOR i IN 0 .. 1000 LOOP
        -- Counted in characters, so that the name has at most 63 bytes.
        candidate := concat(
            left(its_table.relname, 28 * length(its_table.relname) / octet_length(its_table.relname)), '_',
            left($3::text, 28 * length($3::text) / octet_length($3::text)), '_seq', nullif(i, 0))::name;
        EXIT WHEN NOT EXISTS (
            SELECT FROM pg_class c WHERE c.relnamespace = its_table.relnamespace AND c.relname = candidate);
    END LOOP;
    others := ARRAY(SELECT c.oid FROM pg_class c WHERE c.relname = candidate);
    EXECUTE format('CREATE SEQUENCE %I.%I AS %s START WITH %s', its_table.nspname, candidate, $4, $5);
    -- Not by its name, which may stand for another by now.
    SELECT c.oid INTO STRICT sequence FROM pg_class c
    WHERE c.relname = candidate AND c.relkind = 'S' AND c.oid <> ALL (others) AND c.relowner = current_user::regrole;
    IF its_table.owner <> current_user::regrole THEN
        EXECUTE format('ALTER SEQUENCE %s OWNER TO %s', sequence::regclass, its_table.owner);
    END IF;
    EXECUTE format('ALTER SEQUENCE %s OWNED BY %s.%I', sequence::regclass, $1::regclass, $3);
    RETURN sequence;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_create_sequence(oid, smallint, name, regtype, bigint) IS
    'Creates a sequence that a column owns, as serial does, for the owner of the table';

CREATE FUNCTION leaf_id_internal.leaf_grant_sequence(sequence oid, roles name[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    role text;
BEGIN
    -- What default privileges have given.
    FOR role IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
        WHERE c.oid = $1 AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %s', $1::regclass, role);
    END LOOP;
    FOR role IN SELECT CASE WHEN r.name = 'public' THEN 'PUBLIC' ELSE quote_ident(r.name) END FROM unnest($2) r (name) LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %s', $1::regclass, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_grant_sequence(oid, name[]) IS
    'Lets these roles use a sequence, besides its owner, and no other role';

-- Those that own the table or are superusers need no grant on its sequence.
CREATE FUNCTION leaf_id_internal.leaf_roles_of_tag(relation oid, tag text) RETURNS name[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(DISTINCT r.name), '{}')
    FROM unnest(leaf_id_internal.leaf_grantees($2)) r (name)
    WHERE r.name = 'public' OR EXISTS (
        SELECT FROM pg_roles p
        WHERE p.rolname = r.name AND NOT p.rolsuper
            AND p.oid <> (SELECT c.relowner FROM pg_class c WHERE c.oid = $1))
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_roles_of_tag(oid, text) IS
    'The roles that may number the rows of a table because of a grant of its tag';

CREATE FUNCTION leaf_id_internal.leaf_insert_is_enough(relation oid, tag text) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (
        SELECT FROM leaf_id_internal.leaf_grantees($2) g (names)
        JOIN pg_class c ON c.oid = $1
        CROSS JOIN leaf_id_internal.leaf_roles_with_insert($1) i
        LEFT JOIN pg_roles r ON r.oid = i
        WHERE 'public' <> ALL (g.names) AND i <> c.relowner AND r.rolsuper IS NOT TRUE
            AND NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = ANY (g.names) AND pg_has_role(i, p.oid, 'USAGE')))
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_insert_is_enough(oid, text) IS
    'Whether all roles that may insert into a table may issue ids of a tag';

-- Updates the row instead of only locking it: on a new timeline, that applies the skip for lost
-- claims. Ids issued by this transaction from a tag it created are not in the row yet.
CREATE FUNCTION leaf_id_internal.leaf_last_of_tag(tag text, column_name name, table_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored record;
BEGIN
    UPDATE leaf_id.leaf_alloc a SET max_id = a.max_id WHERE a.biz_tag = $1
    RETURNING a.max_id, a.server INTO stored;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tag "%" does not exist', $1
            USING ERRCODE = 'undefined_object', DETAIL = 'Which of its ids are in use is not known without it.',
            HINT = format('Create it, from its server if it was sourced; to see which missing tags leaf_sync() would create, and above which ids: SELECT * FROM %s();',
                leaf_id_internal.leaf_function_name('leaf_check'));
    ELSIF stored.server IS NOT NULL THEN
        RAISE EXCEPTION 'cannot release column "%" of table % from tag "%", which is sourced from server "%"',
            $2, $3, $1, stored.server
            USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'Other servers have ids of it, and which they are is not known here.',
            HINT = 'Set a default yourself that repeats no id of theirs.';
    END IF;
    RETURN greatest(stored.max_id, leaf_id_internal.leaf_tag_next($1)) - 1;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_last_of_tag(text, name, text) IS
    'The largest id of a tag that may have been issued; an error if its columns cannot be released';

-- A stranger's default would end another role's tag, and show where that is.
CREATE FUNCTION leaf_id_internal.leaf_plan_release(relation oid, column_name name) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this CONSTANT record := leaf_id_internal.leaf_column($1, $2);
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require('SELECT, UPDATE, DELETE');
    owner CONSTANT oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = $1);
    missing_grant CONSTANT text := leaf_id_internal.leaf_missing_grant(this.tag, owner);
BEGIN
    IF this.tag IS NULL THEN
        RAISE EXCEPTION 'column "%" of table % takes its ids from no tag', $2, this.table_name
            USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF NOT leaf_id_internal.leaf_owner_counts(owner, this.tag) AND missing_grant IS NOT NULL THEN
        RAISE EXCEPTION 'cannot release column "%" of table % from tag "%"', $2, this.table_name, this.tag
            USING ERRCODE = 'object_not_in_prerequisite_state',
                DETAIL = format('Role %s owns the table, and may not issue ids of that tag.', owner::regrole),
                HINT = format('If the column does take its ids from it: %s', missing_grant);
    END IF;
    RETURN this;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_plan_release(oid, name) IS
    'The column that leaf_release() will move, as leaf_column() does; an error if it cannot be moved';

CREATE FUNCTION leaf_id_internal.leaf_check_released(
    number smallint, column_name name, followers oid[], sequence oid, is_identity boolean, first_id bigint, roles name[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leaf_id_internal.leaf_assert_locked($3[1], '{}');
    IF NOT EXISTS (
            SELECT FROM leaf_id_internal.leaf_owned_sequences($3[1], $1) o
            JOIN pg_class s ON s.oid = o.sequence
            JOIN pg_class c ON c.oid = $3[1] AND c.relowner = s.relowner
            JOIN pg_sequence q ON q.seqrelid = s.oid AND q.seqstart = $6
            WHERE o.sequence = $4 AND o.is_identity = $5 AND pg_sequence_last_value(s.oid) IS NULL
                AND $7 = ARRAY(
                    SELECT coalesce(r.rolname, 'public')
                    FROM aclexplode(s.relacl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
                    WHERE x.grantee <> s.relowner ORDER BY 1))
        OR EXISTS (
            SELECT FROM unnest($3) f (oid)
            LEFT JOIN pg_attribute a ON a.attrelid = f.oid AND a.attname = $2
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            LEFT JOIN LATERAL leaf_id_internal.leaf_default_source(d.adbin, leaf_id_internal.leaf_issuer(), 16384) s ON true
            WHERE CASE WHEN $5 THEN a.attidentity::text ELSE s.sequence::text END IS DISTINCT FROM CASE WHEN $5 THEN 'd' ELSE $4::text END)
    THEN
        PERFORM leaf_id_internal.leaf_raise_changed($3[1]);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_check_released(smallint, name, oid[], oid, boolean, bigint, name[]) IS
    'An error unless all that leaf_release() says it has done is so';

CREATE FUNCTION leaf_id_internal.leaf_release_column(
    relation regclass, column_name name, OUT source text, OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET leaf_id_internal.has_looked = on
AS $$
DECLARE
    is_right CONSTANT boolean := leaf_id_internal.leaf_begin_move($1, $2);
    this record := leaf_id_internal.leaf_plan_release($1, $2);
    lock_timeout text;
    followers oid[];
    roles name[];
    taken bigint;
    is_identity boolean;
    sequence oid;
    users text;
    notices text[] := '{}';
BEGIN
    PERFORM leaf_id_internal.leaf_tell_unindexed($1, $2, this.table_name);
    lock_timeout := leaf_id_internal.leaf_lock_to_move($1, this.table_name, '{}');
    this := leaf_id_internal.leaf_plan_release($1, $2);
    followers := leaf_id_internal.leaf_followers($1, $2, '', this.tag, NULL);
    roles := leaf_id_internal.leaf_roles_of_tag($1, this.tag);
    taken := greatest(
        0, leaf_id_internal.leaf_last_of_tag(this.tag, $2, this.table_name), leaf_id_internal.leaf_largest_value($1, $2));
    IF taken >= this.last_id THEN
        RAISE EXCEPTION 'no ids are left for column "%" of table %', $2, this.table_name
            USING ERRCODE = 'sequence_generator_limit_exceeded',
                DETAIL = format('Ids up to %s are taken, and the last one is %s.', taken, this.last_id);
    END IF;
    first_id := taken + 1;

    -- An identity is one of a table by itself, and for all roles that may insert.
    is_identity := this.not_null AND NOT this.is_domain AND this.sequences = '{}'
        AND (SELECT count(*) = 1 FROM leaf_id_internal.leaf_family($1))
        AND leaf_id_internal.leaf_insert_is_enough($1, this.tag);
    IF is_identity THEN
        PERFORM leaf_id_internal.leaf_alter_defaults(followers, $2, 'DROP DEFAULT');
        EXECUTE format('ALTER TABLE %s ALTER %I ADD GENERATED BY DEFAULT AS IDENTITY (START WITH %s)', $1, $2, first_id);
        sequence := (SELECT o.sequence FROM leaf_id_internal.leaf_owned_sequences($1, this.number) o WHERE o.is_identity);
        source := 'identity';
    ELSE
        sequence := leaf_id_internal.leaf_create_sequence($1, this.number, $2, this.base_type, first_id);
        PERFORM leaf_id_internal.leaf_alter_defaults(
            followers, $2, format('SET DEFAULT pg_catalog.nextval(%L::pg_catalog.regclass)', sequence::regclass));
        source := sequence::regclass;
    END IF;
    PERFORM leaf_id_internal.leaf_grant_sequence(sequence, roles);
    IF roles <> '{}' THEN
        notices := notices || format('sequence %s was granted to %s', sequence::regclass, array_to_string(roles, ', '));
    END IF;

    SELECT string_agg(format('%s.%I', u.relation::regclass, u.column_name), ', ') INTO users
    FROM leaf_id_internal.leaf_columns_of_tag(this.tag) u;
    IF users IS NOT NULL THEN
        notices := notices || format(
            'tag "%s" stays, as other columns use it, whose ids may now be equal to those of this one: %s', this.tag, users);
    ELSE
        -- Callers still using the tag get an error rather than colliding ids.
        DELETE FROM leaf_id.leaf_alloc a WHERE a.biz_tag = this.tag;
    END IF;
    PERFORM leaf_id_internal.leaf_check_released(this.number, $2, followers, sequence, is_identity, first_id, roles);
    details := leaf_id_internal.leaf_end_move(
        format('column "%s" of table %s takes its ids from %s, from %s on', $2, this.table_name,
            CASE WHEN is_identity THEN 'an identity' ELSE format('sequence %s', source) END, first_id),
        notices, lock_timeout);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_release_column(regclass, name) IS 'What leaf_release() does';

CREATE FUNCTION @extschema@.leaf_release(
    relation regclass, column_name name, OUT source text, OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT r.* FROM leaf_id_internal.leaf_release_column($1, $2) r';
COMMENT ON FUNCTION @extschema@.leaf_release(regclass, name) IS
    'Makes a column with a tag an identity, or gives it a sequence, above all ids so far';

-- All columns of a schema.

CREATE FUNCTION leaf_id_internal.leaf_movable_columns(schema name, is_release boolean, OUT relation regclass, OUT column_name name)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.oid, a.attname
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $1
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef f ON f.adrelid = c.oid AND f.adnum = a.attnum AND a.attgenerated = ''
    LEFT JOIN LATERAL leaf_id_internal.leaf_default_source(f.adbin, leaf_id_internal.leaf_issuer(), 16384) s ON true
    -- Partitions and children go with theirs.
    WHERE c.relkind IN ('r', 'p') AND a.attinhcount = 0 AND NOT c.relispartition
        AND CASE WHEN $2 THEN s.tag IS NOT NULL ELSE a.attidentity <> '' OR s.sequence IS NOT NULL END
    ORDER BY c.relname, a.attnum
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_movable_columns(name, boolean) IS
    'The columns that leaf_adopt_all() and leaf_release_all() are to move';

CREATE PROCEDURE leaf_id_internal.leaf_may_commit(INOUT is_so boolean)
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_may_commit_wrapper';
COMMENT ON PROCEDURE leaf_id_internal.leaf_may_commit(boolean) IS
    'Whether the procedure that calls this may end the transaction';

-- Ends each column's transaction, where there is no other around it, so without a SET clause. All
-- columns that can be moved are looked for at the beginning: those that were moved before are not
-- among them.
CREATE PROCEDURE leaf_id_internal.leaf_move_all(schema name, is_release boolean, dry_run boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    found pg_catalog.record;
    plan pg_catalog.record;
    may_commit pg_catalog.bool;
    message pg_catalog.text;
    detail pg_catalog.text;
    hint pg_catalog.text;
    is_kept CONSTANT pg_catalog.bool := leaf_id_internal.leaf_require('');
    kept CONSTANT pg_catalog.oid := pg_catalog.to_regclass('leaf_id.server');
BEGIN
    CALL leaf_id_internal.leaf_may_commit(may_commit);
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) $1) THEN
        RAISE EXCEPTION 'schema "%" does not exist', $1 USING ERRCODE = 'invalid_schema_name';
    END IF;
    IF NOT $2 THEN
        PERFORM leaf_id_internal.leaf_check_preloaded(true);
    END IF;
    FOR found IN SELECT c.relation, c.column_name FROM leaf_id_internal.leaf_movable_columns($1, $2) c LOOP
        -- As leaf_require(), whose lock the last COMMIT has released, but by no name that another role
        -- can have taken since then, to run something with the caller's rights. All roles may lock this
        -- view.
        LOCK TABLE leaf_id.server IN ACCESS SHARE MODE;
        IF (pg_catalog.to_regclass('leaf_id.server')::pg_catalog.oid OPERATOR(pg_catalog.=) kept) IS NOT TRUE THEN
            RAISE EXCEPTION 'extension "leaf_id" was dropped' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        BEGIN
            IF $2 THEN
                PERFORM leaf_id_internal.leaf_release_column(found.relation, found.column_name);
            ELSIF $3 THEN
                SELECT p.* INTO plan
                FROM leaf_id_internal.leaf_plan_adoption(found.relation, found.column_name, NULL, NULL, false) p;
                RAISE NOTICE 'column "%" of table % would take its ids from tag "%"', found.column_name, plan.table_name, plan.tag;
            ELSE
                PERFORM leaf_id_internal.leaf_adopt_column(found.relation, found.column_name, NULL, NULL, false);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            detail := pg_catalog.concat_ws('. ', message, CASE WHEN detail OPERATOR(pg_catalog.<>) '' THEN detail END);
            -- RAISE takes no null, and prints an empty HINT.
            IF hint OPERATOR(pg_catalog.=) '' THEN
                RAISE NOTICE 'column "%" of table % stays as it is', found.column_name, found.relation
                    USING DETAIL = detail;
            ELSE
                RAISE NOTICE 'column "%" of table % stays as it is', found.column_name, found.relation
                    USING DETAIL = detail, HINT = hint;
            END IF;
        END;
        IF may_commit THEN
            COMMIT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE leaf_id_internal.leaf_move_all(name, boolean, boolean) IS
    'What leaf_adopt_all() and leaf_release_all() do';

CREATE PROCEDURE @extschema@.leaf_adopt_all(schema name, dry_run boolean DEFAULT false)
LANGUAGE plpgsql
AS 'BEGIN CALL leaf_id_internal.leaf_move_all($1, false, $2); END';
COMMENT ON PROCEDURE @extschema@.leaf_adopt_all(name, boolean) IS
    'Moves the serial and identity columns of a schema to tags; with dry_run, says what it would do';

CREATE PROCEDURE @extschema@.leaf_release_all(schema name)
LANGUAGE plpgsql
AS 'BEGIN CALL leaf_id_internal.leaf_move_all($1, true, false); END';
COMMENT ON PROCEDURE @extschema@.leaf_release_all(name) IS
    'Moves the columns of a schema that take their ids from tags back to identities or sequences';
