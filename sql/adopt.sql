-- Moving columns from a sequence to a tag, and back: leaf_adopt(), leaf_release(), and
-- automatically for new columns.
--
-- Locking. A column is moved under one ACCESS EXCLUSIVE lock on its table. Each attempt is a
-- subtransaction that takes this lock first, with an increasing timeout, and holds no other lock
-- before: nothing can deadlock with it, and after its rollback writers continue. Locks taken later
-- in the same attempt wait only so briefly that a writer which holds one of them and waits for the
-- table never becomes a victim of deadlock detection.
--
-- Everything runs with the caller's rights, and the caller may be a superuser while the owner of
-- the table is not trusted. So no expression of the table is evaluated, internal functions are in
-- schema leaf_id (which only a superuser can rename), and functions and sequences are identified by
-- oid. Since statements take names, their result is verified by oid afterwards.

CREATE FUNCTION leaf_id.leaf_family(relation oid) RETURNS SETOF oid
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
COMMENT ON FUNCTION leaf_id.leaf_family(oid) IS 'A table, its partitions and children, and theirs';

CREATE FUNCTION leaf_id.leaf_raise_changed(relation oid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% was changed by somebody else meanwhile', $1::regclass
        USING ERRCODE = 'object_in_use', HINT = 'Try again.';
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_raise_changed(oid) IS 'An error: a name did not stand for what it should';

CREATE FUNCTION leaf_id.leaf_owned_sequences(relation oid, number smallint, OUT sequence oid, OUT is_identity boolean)
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
COMMENT ON FUNCTION leaf_id.leaf_owned_sequences(oid, smallint) IS 'The sequences that a column owns, or is numbered by';

CREATE FUNCTION leaf_id.leaf_obstacle(
    relation oid, number smallint, last_id bigint, tag text, sequence oid, sequences oid[],
    OUT reason text, OUT hint text) RETURNS record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.reason, o.hint
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = $2
    LEFT JOIN pg_attrdef f ON f.adrelid = c.oid AND f.adnum = a.attnum AND a.attgenerated = ''
    CROSS JOIN LATERAL (VALUES
        (1, c.relkind NOT IN ('r', 'p'), 'It is not a table.', NULL),
        (2, c.relpersistence = 't', 'The table is temporary, and the tag would outlive it.', NULL),
        (3, c.relispartition, 'The table is a partition.', 'Name the column of the partitioned table.'),
        (4, c.oid < 16384 OR EXISTS (
                SELECT FROM pg_depend d
                WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'),
            'The table belongs to PostgreSQL or to an extension.', NULL),
        (5, a.attinhcount > 0, 'The column is inherited.', 'Name the column of the parent.'),
        (6, a.attgenerated <> '', 'The column is generated.', NULL),
        (7, $3 IS NULL, format('Its type is %s: ids are smallint, integer or bigint.', a.atttypid::regtype), NULL),
        (8, EXISTS (
                SELECT FROM leaf_id.leaf_family(c.oid) m JOIN pg_class r ON r.oid = m AND r.relkind = 'f'),
            'Some of its rows are in foreign tables.', NULL),
        (9, $4 IS NULL AND $5 IS NULL AND f.oid IS NOT NULL, format('Its default is %s.', pg_get_expr(f.adbin, 0)),
            'Only a column without a default, or with one that is nextval() alone, can be moved: drop the default first.'),
        -- Ids that were taken but not inserted yet could be anywhere.
        (10, EXISTS (
                SELECT FROM pg_sequence q WHERE q.seqrelid = ANY ($6) AND (q.seqincrement < 0 OR q.seqcycle)),
            'Its sequence counts down, or cycles.', NULL)
    ) o (n, stands, reason, hint)
    WHERE c.oid = $1 AND o.stands
    ORDER BY o.n LIMIT 1
$$;
COMMENT ON FUNCTION leaf_id.leaf_obstacle(oid, smallint, bigint, text, oid, oid[]) IS
    'Why leaf_adopt() and leaf_release() cannot move a column; null: they can';

CREATE FUNCTION leaf_id.leaf_column(
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
    obstacle record;
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
    LEFT JOIN LATERAL leaf_id.leaf_default_source(f.adbin, leaf_id.leaf_issuer()) s ON true
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
        SELECT o.sequence FROM leaf_id.leaf_owned_sequences($1, number) o
    ) s JOIN pg_class c ON c.oid = s.oid AND c.relkind = 'S';

    SELECT o.* INTO obstacle FROM leaf_id.leaf_obstacle($1, number, last_id, tag, sequence, sequences) o;
    IF obstacle.reason IS NOT NULL THEN
        RAISE EXCEPTION 'cannot move column "%" of table %', $2, table_name
            USING ERRCODE = 'feature_not_supported', DETAIL = concat_ws(' ', obstacle.reason, obstacle.hint);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_column(oid, name) IS
    'Where a column takes its values from; an error if leaf_adopt() and leaf_release() cannot move it';

-- Partitions and children whose values come from the same source as the table's column; they move
-- with it. Other defaults are kept.
CREATE FUNCTION leaf_id.leaf_followers(
    relation oid, column_name name, identity "char", tag text, sequence oid,
    OUT followers oid[], OUT others_have_defaults boolean) RETURNS record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT $1 || coalesce(array_agg(m ORDER BY m) FILTER (WHERE f.follows), '{}'),
        coalesce(bool_or(d.oid IS NOT NULL AND f.follows IS NOT TRUE), false)
    FROM leaf_id.leaf_family($1) m
    JOIN pg_attribute a ON a.attrelid = m AND a.attname = $2
    LEFT JOIN pg_attrdef d ON d.adrelid = m AND d.adnum = a.attnum
    LEFT JOIN LATERAL leaf_id.leaf_default_source(d.adbin, (SELECT leaf_id.leaf_issuer())) s ON true
    CROSS JOIN LATERAL (SELECT CASE WHEN $3 <> '' THEN a.attidentity <> '' ELSE s.tag = $4 OR s.sequence = $5 END AS follows) f
    WHERE m <> $1
$$;
COMMENT ON FUNCTION leaf_id.leaf_followers(oid, name, "char", text, oid) IS
    'The table, and the partitions and children whose column moves with its own';

-- Without a tag, the column must not have a default afterwards.
CREATE FUNCTION leaf_id.leaf_alter_defaults(relations oid[], column_name name, action text, tag text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    issuer CONSTANT oid := leaf_id.leaf_issuer();
    relation oid;
BEGIN
    FOREACH relation IN ARRAY $1 LOOP
        EXECUTE format('ALTER TABLE ONLY %s ALTER %I %s', relation::regclass, $2, $3);
        IF (SELECT s.tag
            FROM pg_attribute a
            JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
            CROSS JOIN LATERAL leaf_id.leaf_default_source(f.adbin, issuer) s
            WHERE a.attrelid = relation AND a.attname = $2) IS DISTINCT FROM $4
        THEN
            PERFORM leaf_id.leaf_raise_changed(relation);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_alter_defaults(oid[], name, text, text) IS
    'Alters the default of a column in tables, of each by itself';

CREATE FUNCTION leaf_id.leaf_name_was_used(tag text) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_name_was_used_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_name_was_used(text) IS
    'Whether a tag or a key has this name, or had it and was not forgotten';

CREATE FUNCTION leaf_id.leaf_default_tag(relation oid, number smallint, is_new boolean) RETURNS text
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
                AND (EXISTS (SELECT FROM leaf_id.leaf_owned_sequences(c.oid, a.attnum))
                    OR EXISTS (
                        SELECT FROM pg_attrdef f JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
                        WHERE f.adrelid = c.oid AND f.adnum = a.attnum
                            AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = leaf_id.leaf_issuer()))))) INTO tag
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1;
    -- The ids of a new column begin at 1, as with a sequence.
    IF is_new AND leaf_id.leaf_name_was_used(tag) THEN
        tag := format('%s_%s', tag, $1);
        IF leaf_id.leaf_name_was_used(tag) THEN
            tag := format('%s_%s', tag, $2);
        END IF;
    END IF;
    IF octet_length(tag) > 128 THEN
        RAISE EXCEPTION '"%" is too long for the name of a tag', tag
            USING ERRCODE = 'invalid_name', HINT = 'Name a tag as the third argument of leaf_adopt().';
    END IF;
    RETURN tag;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_default_tag(oid, smallint, boolean) IS
    'The tag of a column whose tag is not named: the table, with its schema if that is not public, and with the column if others of the table number rows too; for a new column, with the oid of the table if a tag had that name';

-- Also through views and rules, whose owner needs the right to insert: defaults are evaluated with the
-- rights of the role that inserts.
CREATE FUNCTION leaf_id.leaf_roles_that_insert(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE target AS (
        SELECT m AS oid FROM leaf_id.leaf_family($1) m
        UNION
        SELECT v.oid
        FROM target t
        JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.classid = 'pg_rewrite'::regclass
        JOIN pg_rewrite r ON r.oid = d.objid AND r.ev_class <> t.oid
        JOIN pg_class v ON v.oid = r.ev_class
        WHERE has_any_column_privilege(v.relowner, t.oid, 'INSERT')
            -- The bit of INSERT.
            AND pg_relation_is_updatable(v.oid, false) & 8 <> 0
    )
    SELECT x.grantee
    FROM target t
    JOIN pg_class c ON c.oid = t.oid
    CROSS JOIN LATERAL (
        SELECT * FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner)))
        UNION ALL
        SELECT g.* FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) g
        WHERE a.attrelid = c.oid AND NOT a.attisdropped
    ) x
    WHERE x.privilege_type = 'INSERT'
$$;
COMMENT ON FUNCTION leaf_id.leaf_roles_that_insert(oid) IS
    'The roles that own a table, its partitions and children, or views of these, or were granted INSERT on them';

-- INSERT is enough for an identity; for the sequence of a default, it takes USAGE. A column with an
-- identity has no default, but may own a sequence from before.
CREATE FUNCTION leaf_id.leaf_roles_of_sequences(relation oid, sequences oid[]) RETURNS name[]
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
        SELECT i FROM leaf_id.leaf_roles_that_insert($1) i
        WHERE $2 = '{}' OR EXISTS (
            SELECT FROM pg_depend d
            WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY ($2) AND d.deptype = 'i')
    ) s (role)
    LEFT JOIN pg_roles r ON r.oid = s.role
    WHERE s.role = 0 OR NOT r.rolsuper
$$;
COMMENT ON FUNCTION leaf_id.leaf_roles_of_sequences(oid, oid[]) IS
    'The roles, except superusers, that own a table or sequences, or may number rows by these';

-- Otherwise the INSERTs of others would begin to fail. Who may edit tags needs no grant.
CREATE FUNCTION leaf_id.leaf_check_rights(tag text, roles name[], column_name name, table_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    others CONSTANT text := (
        SELECT string_agg(quote_ident(r.role), ', ' ORDER BY r.role) FROM unnest($2) r (role)
        WHERE r.role <> 'public'
            AND CASE WHEN r.role <> 'public' THEN NOT has_table_privilege(r.role, 'leaf_id.leaf_alloc', 'UPDATE') END
            AND r.role <> ALL (leaf_id.leaf_grantees($1)));
BEGIN
    IF others IS NOT NULL AND NOT has_schema_privilege('leaf_id', 'USAGE WITH GRANT OPTION') THEN
        RAISE EXCEPTION 'permission denied to grant the tag of column "%" of table %', $3, $4
            USING ERRCODE = 'insufficient_privilege',
                DETAIL = format('These roles number its rows, and could not any more: %s.', others),
                HINT = format('To be allowed to grant it: GRANT USAGE ON SCHEMA leaf_id TO %I WITH GRANT OPTION;', current_user);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_check_rights(text, name[], name, text) IS
    'True; an error if the caller may not grant the tag of a column to the roles that can number its rows';

CREATE FUNCTION leaf_id.leaf_carry_rights(tag text, roles name[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    may_grant CONSTANT boolean := has_schema_privilege('leaf_id', 'USAGE WITH GRANT OPTION');
    role name;
BEGIN
    FOREACH role IN ARRAY $2 LOOP
        IF (may_grant OR role = 'public') AND role <> ALL (leaf_id.leaf_grantees($1)) THEN
            PERFORM leaf_id.leaf_grant_tag($1, role);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_carry_rights(text, name[]) IS
    'Grants a tag to the roles that could number the rows of its column';

-- Includes the table's descendants; NULL if all are empty. Only under the lock.
CREATE FUNCTION leaf_id.leaf_largest_value(relation oid, column_name name) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
    largest bigint;
BEGIN
    FOR member IN
        SELECT c.oid, v.largest, v.unread
        FROM leaf_id.leaf_family($1) m
        JOIN pg_class c ON c.oid = m AND c.relkind <> 'p'
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped
        CROSS JOIN LATERAL leaf_id.leaf_column_max(c.oid, a.attnum) v
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
COMMENT ON FUNCTION leaf_id.leaf_largest_value(oid, name) IS 'The largest value of a column';

-- Guards against a rename: the name could have been another table's when the lock was taken.
CREATE FUNCTION leaf_id.leaf_assert_locked(relation oid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM leaf_id.leaf_family($1) m
        WHERE m NOT IN (
            SELECT l.relation FROM pg_locks l
            WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
                AND l.mode = 'AccessExclusiveLock'
                AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())))
    THEN
        PERFORM leaf_id.leaf_raise_changed($1);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_assert_locked(oid) IS
    'An error unless this session has locked a table and its descendants exclusively';

-- Objects that would break or keep using the sequence if it were dropped; NULL if there are none.
CREATE FUNCTION leaf_id.leaf_users_of_sequence(sequence oid) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(pg_describe_object(d.classid, d.objid, d.objsubid), ', ')
    FROM pg_depend d
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1
$$;
COMMENT ON FUNCTION leaf_id.leaf_users_of_sequence(oid) IS 'What depends on a sequence';

CREATE FUNCTION leaf_id.leaf_largest_taken(sequence oid) RETURNS numeric
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
COMMENT ON FUNCTION leaf_id.leaf_largest_taken(oid) IS 'The largest id that somebody may have got by a sequence';

CREATE FUNCTION leaf_id.leaf_close_sequence(sequence oid) RETURNS numeric
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER SEQUENCE %s NO CYCLE', $1::regclass);
    RETURN leaf_id.leaf_largest_taken($1);
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_close_sequence(oid) IS
    'Keeps nextval() away until the transaction ends, and says which ids a sequence may have given';

-- Drops exactly this sequence or none, although the statement uses its name.
CREATE FUNCTION leaf_id.leaf_drop_sequence(sequence oid) RETURNS numeric
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    largest_taken CONSTANT numeric := leaf_id.leaf_close_sequence($1);
BEGIN
    EXECUTE format('DROP SEQUENCE %s', $1::regclass);
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = $1) THEN
        PERFORM leaf_id.leaf_raise_changed($1);
    END IF;
    RETURN largest_taken;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_drop_sequence(oid) IS 'Drops a sequence, and says which ids it may have given';

-- Temporary tables are not included.
CREATE FUNCTION leaf_id.leaf_columns_of_tag(tag text, OUT relation oid, OUT column_name name) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.relation, i.column_name
    FROM leaf_id.leaf_issuing_columns() i JOIN pg_class c ON c.oid = i.relation AND c.relpersistence <> 't'
    -- Includes calls inside a larger expression.
    WHERE $1 = ANY (i.texts)
$$;
COMMENT ON FUNCTION leaf_id.leaf_columns_of_tag(text) IS 'The columns whose defaults issue ids of a tag';

CREATE FUNCTION leaf_id.leaf_leave_sequences(
    relation oid, number smallint, sequences oid[],
    -- The largest id that any of them may have given, and how many above it are reserved for the
    -- remaining ones.
    OUT taken numeric, OUT gap numeric, OUT notices text[]) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this oid;
    users text;
    notice text;
BEGIN
    taken := 0;
    gap := 0;
    notices := '{}';
    FOREACH this IN ARRAY $3 LOOP
        users := leaf_id.leaf_users_of_sequence(this);
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_owned_sequences($1, $2) o WHERE o.sequence = this) THEN
            notice := 'sequence %s is not owned by the column, and stays: ids that are taken from it may equal those of the tag';
        ELSIF users IS NOT NULL THEN
            notice := 'sequence %s stays, as something else depends on it, whose ids may equal those of the tag: %s';
        ELSE
            BEGIN
                taken := greatest(taken, leaf_id.leaf_drop_sequence(this));
                CONTINUE;
            EXCEPTION WHEN lock_not_available THEN
                notice := 'sequence %s is being used, and stays for now: the same call of leaf_adopt() once more drops it';
            END;
        END IF;
        notices := notices || format(notice, this::regclass, users);
        taken := greatest(taken, leaf_id.leaf_largest_taken(this));
        gap := greatest(gap, 1000000 * (
            SELECT least(q.seqincrement, 1000) FROM pg_sequence q WHERE q.seqrelid = this));
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_leave_sequences(oid, smallint, oid[]) IS
    'Drops the sequences that a column owns, and says which ids all of them may have given, and what becomes of those that stay';

CREATE FUNCTION leaf_id.leaf_small_references(relation oid, number smallint, last_id bigint) RETURNS text
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
COMMENT ON FUNCTION leaf_id.leaf_small_references(oid, smallint, bigint) IS
    'The columns that reference one, and are too small for its last ids';

-- An existing tag is used if the caller has named it.
CREATE FUNCTION leaf_id.leaf_give_tag(
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
    IF leaf_id.leaf_has_key($1) THEN
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
        RAISE EXCEPTION 'tag "%" already exists', $1 USING ERRCODE = 'duplicate_object',
            HINT = 'Pass this tag to share it, or another name, as the third argument of leaf_adopt().';
    ELSIF stored.server IS NOT NULL THEN
        RAISE EXCEPTION 'tag "%" is sourced from server "%"', $1, stored.server
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Raise its max_id there and then here, above the ids of the column, and set the default yourself.';
    ELSE
        first_id := greatest(first_id, stored.max_id) + 1;
    END IF;
    IF first_id > least(last_id, stored.max_value) THEN
        RAISE EXCEPTION 'no ids are left for column "%" of table %', $2, $3
            USING ERRCODE = 'sequence_generator_limit_exceeded', DETAIL = format('Tag "%s" would go on from %s, and the last id is %s.',
                $1, first_id, least(last_id, stored.max_value));
    ELSIF is_new THEN
        RETURN;
    END IF;
    -- Raised unconditionally: cached ids, below max_id, may collide with those of rows.
    UPDATE leaf_id.leaf_alloc a
    SET max_id = first_id, step = coalesce($6, a.step), max_step = greatest(a.max_step, $6)
    WHERE a.biz_tag = $1;
    notices := notices || format('tag "%s" existed already, and goes on from %s', $1, first_id);
    IF stored.max_value > last_id THEN
        notices := notices || format(
            'tag "%s" goes up to %s, and column "%s" of table %s to %s', $1, stored.max_value, $2, $3, last_id);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_give_tag(text, name, text, numeric, bigint, integer, boolean) IS
    'Creates the tag of a column, or raises it, so that it goes on above its ids';

CREATE FUNCTION leaf_id.leaf_adopt_locked(
    relation oid,
    column_name name,
    tag text,
    step integer,
    is_new boolean,
    OUT used_tag text,
    OUT first_id bigint,
    OUT notices text[]
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this record;
    followers oid[];
    sequence oid;
    left_over record;
    given record;
    -- Ids up to this one may have been taken. Numeric, as it may exceed the last id.
    taken numeric := 0;
    last_id bigint;
    small text;
    roles name[];
BEGIN
    PERFORM leaf_id.leaf_assert_locked($1);
    SELECT c.* INTO this FROM leaf_id.leaf_column($1, $2) c;
    -- Adopted concurrently.
    IF this.tag IS NOT NULL THEN
        RAISE EXCEPTION 'column "%" of table % takes its ids from tag "%"', $2, this.table_name, this.tag
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    used_tag := coalesce($3, leaf_id.leaf_default_tag($1, this.number, $5));
    notices := '{}';
    roles := leaf_id.leaf_roles_of_sequences($1, this.sequences);
    -- Of a new column, and of roles that were granted something meanwhile.
    PERFORM leaf_id.leaf_check_rights(used_tag, roles, $2, this.table_name);
    -- A limit set explicitly on the sequence counts; the default limit of its type does not.
    SELECT least(this.last_id, min(q.seqmax)) INTO last_id
    FROM pg_sequence q
    WHERE q.seqrelid = ANY (this.sequences) AND q.seqmax NOT IN (32767, 2147483647, 9223372036854775807);
    SELECT f.followers INTO followers FROM leaf_id.leaf_followers($1, $2, this.identity, NULL, this.sequence) f;

    IF this.identity <> '' THEN
        SELECT o.sequence INTO sequence FROM leaf_id.leaf_owned_sequences($1, this.number) o WHERE o.is_identity;
        taken := leaf_id.leaf_close_sequence(sequence);
        this.sequences := array_remove(this.sequences, sequence);
        EXECUTE format('ALTER TABLE %s ALTER %I DROP IDENTITY', this.table_name, $2);
        IF this.identity = 'a' THEN
            notices := notices || format(
                'column "%s" of table %s was GENERATED ALWAYS: from now on, explicit ids are not refused, and OVERRIDING USER VALUE keeps them',
                $2, this.table_name);
        END IF;
    END IF;
    PERFORM leaf_id.leaf_alter_defaults(
        followers, $2,
        format('SET DEFAULT %s(%L::pg_catalog.text)', leaf_id.leaf_issuer()::regproc, used_tag), used_tag);
    SELECT l.* INTO left_over FROM leaf_id.leaf_leave_sequences($1, this.number, this.sequences) l;
    notices := notices || left_over.notices;
    -- All values of a new column are from its sequence.
    taken := greatest(taken, left_over.taken, CASE WHEN NOT $5 THEN leaf_id.leaf_largest_value($1, $2) END);
    IF taken >= last_id THEN
        RAISE EXCEPTION 'no ids are left for column "%" of table %', $2, this.table_name
            USING ERRCODE = 'sequence_generator_limit_exceeded', DETAIL = format('Ids up to %s are taken, and the last one is %s.', taken, last_id);
    END IF;

    SELECT g.* INTO given
    FROM leaf_id.leaf_give_tag(
        used_tag, $2, this.table_name, taken + 1 + least(left_over.gap, trunc((last_id - taken) / 8)),
        last_id, $4, $3 IS NOT NULL) g;
    first_id := given.first_id;
    notices := notices || given.notices;
    PERFORM leaf_id.leaf_carry_rights(used_tag, roles);
    small := leaf_id.leaf_small_references($1, this.number, last_id);
    IF small IS NOT NULL THEN
        notices := notices || format(
            'columns that reference "%s" of table %s are too small for its last ids: %s', $2, this.table_name, small);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_adopt_locked(oid, name, text, integer, boolean) IS
    'The work of leaf_adopt(), on a table that is locked';

-- Same as for a serial column. Owned by the owner of the table, not by the caller.
CREATE FUNCTION leaf_id.leaf_create_sequence(
    relation oid, column_name name, base_type regtype, first_id bigint
) RETURNS oid
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    its_table record;
    candidate name;
    sequence text;
BEGIN
    SELECT n.nspname, c.relname, c.relnamespace, c.relowner::regrole AS owner, c.oid::regclass AS name INTO its_table
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1;
    FOR i IN 0 .. 1000 LOOP
        -- Counted in characters, so that the name has at most 63 bytes.
        candidate := concat(
            left(its_table.relname, 28 * length(its_table.relname) / octet_length(its_table.relname)), '_',
            left($2::text, 28 * length($2::text) / octet_length($2::text)), '_seq', nullif(i, 0))::name;
        EXIT WHEN NOT EXISTS (
            SELECT FROM pg_class c WHERE c.relnamespace = its_table.relnamespace AND c.relname = candidate);
    END LOOP;
    sequence := format('%I.%I', its_table.nspname, candidate);
    EXECUTE format('CREATE SEQUENCE %s AS %s START WITH %s', sequence, $3, $4);
    IF its_table.owner::text <> quote_ident(current_user) THEN
        EXECUTE format('ALTER SEQUENCE %s OWNER TO %s', sequence, its_table.owner);
    END IF;
    EXECUTE format('ALTER SEQUENCE %s OWNED BY %s.%I', sequence, its_table.name, $2);
    RETURN sequence::regclass;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_create_sequence(oid, name, regtype, bigint) IS
    'Creates a sequence that a column owns';

CREATE FUNCTION leaf_id.leaf_grant_sequence(relation oid, sequence oid, tag text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT CASE WHEN r.role = 'public' THEN 'PUBLIC' ELSE quote_ident(r.role) END
        FROM unnest(leaf_id.leaf_grantees($3)) r (role)
        WHERE r.role = 'public' OR EXISTS (
            SELECT FROM pg_roles p
            WHERE p.rolname = r.role AND NOT p.rolsuper
                AND p.oid <> (SELECT c.relowner FROM pg_class c WHERE c.oid = $1))
    LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %s', $2::regclass, grantee);
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_grant_sequence(oid, oid, text) IS
    'Lets roles use a sequence that have a grant for a tag';

CREATE FUNCTION leaf_id.leaf_insert_is_enough(relation oid, tag text) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (
        SELECT FROM leaf_id.leaf_grantees($2) g (names)
        JOIN pg_class c ON c.oid = $1
        CROSS JOIN leaf_id.leaf_roles_that_insert($1) i
        LEFT JOIN pg_roles r ON r.oid = i
        WHERE 'public' <> ALL (g.names) AND i <> c.relowner AND r.rolsuper IS NOT TRUE
            AND NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = ANY (g.names) AND pg_has_role(i, p.oid, 'USAGE')))
$$;
COMMENT ON FUNCTION leaf_id.leaf_insert_is_enough(oid, text) IS
    'Whether all roles that may insert into a table may issue ids of a tag';

-- Updates the row instead of only locking it: on a new timeline, that applies the skip for lost
-- claims. Ids issued by this transaction from a tag it created are not in the row yet.
CREATE FUNCTION leaf_id.leaf_last_of_tag(tag text, column_name name, table_name text) RETURNS bigint
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
            HINT = format('To create it, above those that are known, unless other servers issue them, too: SELECT * FROM %s(%L);', leaf_id.leaf_function_name('leaf_sync'), $1);
    ELSIF stored.server IS NOT NULL THEN
        RAISE EXCEPTION 'cannot release column "%" of table % from tag "%", which is sourced from server "%"',
            $2, $3, $1, stored.server
            USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'Other servers have ids of it, and nobody here knows which.',
            HINT = 'Set a default yourself that repeats no id of theirs.';
    END IF;
    RETURN greatest(stored.max_id, leaf_id.leaf_tag_next($1)) - 1;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_last_of_tag(text, name, text) IS
    'The largest id that somebody may have of a tag; an error if its columns cannot be released';

CREATE FUNCTION leaf_id.leaf_release_locked(
    relation oid,
    column_name name,
    OUT source text,
    OUT first_id bigint,
    OUT notices text[]
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this record;
    family record;
    sequence oid;
    taken numeric;
    users text;
BEGIN
    PERFORM leaf_id.leaf_assert_locked($1);
    SELECT c.* INTO this FROM leaf_id.leaf_column($1, $2) c;
    -- Released concurrently.
    IF this.tag IS NULL THEN
        RAISE EXCEPTION 'column "%" of table % takes its ids from no tag', $2, this.table_name
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    notices := '{}';
    SELECT f.followers, f.others_have_defaults, cardinality(f.followers) = 1 AS is_alone,
        (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = $1) AS is_partitioned INTO family
    FROM leaf_id.leaf_followers($1, $2, '', this.tag, NULL) f;
    taken := greatest(0, leaf_id.leaf_last_of_tag(this.tag, $2, this.table_name), leaf_id.leaf_largest_value($1, $2));
    -- A sequence that leaf_adopt() could not drop.
    SELECT min(o.sequence) INTO sequence FROM leaf_id.leaf_owned_sequences($1, this.number) o WHERE NOT o.is_identity;
    IF sequence IS NOT NULL THEN
        taken := greatest(taken, leaf_id.leaf_close_sequence(sequence));
    END IF;
    IF taken >= this.last_id THEN
        RAISE EXCEPTION 'no ids are left for column "%" of table %', $2, this.table_name
            USING ERRCODE = 'sequence_generator_limit_exceeded', DETAIL = format('Ids up to %s are taken, and the last one is %s.', taken, this.last_id);
    END IF;
    first_id := taken + 1;

    -- PostgreSQL cannot make the column an identity if partitions have another default; from
    -- version 17 on, partitions share the table's identity. Nor is it one for roles that could not
    -- number rows so far.
    IF sequence IS NULL AND this.not_null AND NOT this.is_domain AND leaf_id.leaf_insert_is_enough($1, this.tag) AND (
        CASE WHEN family.is_partitioned
            THEN NOT family.others_have_defaults
                AND (family.is_alone OR current_setting('server_version_num')::integer >= 170000)
            ELSE family.is_alone
        END)
    THEN
        source := 'identity';
        PERFORM leaf_id.leaf_alter_defaults(family.followers, $2, 'DROP DEFAULT', NULL);
        EXECUTE format('ALTER TABLE %s ALTER %I ADD GENERATED BY DEFAULT AS IDENTITY (START WITH %s)',
            this.table_name, $2, first_id);
        PERFORM leaf_id.leaf_grant_sequence($1, o.sequence, this.tag)
        FROM leaf_id.leaf_owned_sequences($1, this.number) o WHERE o.is_identity;
    ELSE
        IF sequence IS NULL THEN
            sequence := leaf_id.leaf_create_sequence($1, $2, this.base_type, first_id);
        ELSE
            EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', sequence::regclass, first_id);
        END IF;
        source := sequence::regclass::text;
        PERFORM leaf_id.leaf_grant_sequence($1, sequence, this.tag);
        notices := notices || format('roles that have a grant for tag "%s" may use sequence %s', this.tag, source);
        PERFORM leaf_id.leaf_alter_defaults(
            family.followers, $2, format('SET DEFAULT pg_catalog.nextval(%L::pg_catalog.regclass)', source), NULL);
    END IF;

    SELECT string_agg(format('%s.%I', u.relation::regclass, u.column_name), ', ') INTO users
    FROM leaf_id.leaf_columns_of_tag(this.tag) u;
    IF users IS NOT NULL THEN
        notices := notices || format('tag "%s" stays, as other columns use it, whose ids may now equal those of this one: %s', this.tag, users);
    ELSE
        -- Callers still using the tag get an error rather than colliding ids.
        DELETE FROM leaf_id.leaf_alloc a WHERE a.biz_tag = this.tag;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_release_locked(oid, name) IS 'The work of leaf_release(), on a table that is locked';

-- Checks that can refuse the move run before any wait for a lock.
CREATE FUNCTION leaf_id.leaf_check_move(
    relation oid, column_name name, table_name text, number smallint, tag text, is_plain boolean, wanted_tag text,
    step integer, is_release boolean)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Here and not by PERFORM, whose SQL would be in the CONTEXT of the error.
    is_permitted CONSTANT boolean := leaf_id.leaf_require(
        CASE WHEN is_release THEN 'SELECT, UPDATE, DELETE' ELSE 'SELECT, INSERT, UPDATE' END);
    new_tag text;
    wrong record;
BEGIN
    SELECT w.* INTO wrong FROM leaf_id.leaf_wrong_argument(wanted_tag, step, NULL, NULL, NULL) w;
    IF wrong.argument IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('"%s" must be %s', wrong.argument, wrong.allowed);
    ELSIF is_release AND tag IS NULL THEN
        RAISE EXCEPTION 'column "%" of table % takes its ids from no tag', $2, $3
            USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF NOT is_release AND wanted_tag <> tag THEN
        RAISE EXCEPTION 'column "%" of table % takes its ids from tag "%"', $2, $3, tag
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call leaf_release() first.';
    ELSIF NOT is_release AND tag IS NULL AND EXISTS (
        SELECT FROM pg_constraint r WHERE r.contype = 'f' AND r.conrelid = $1 AND $4 = ANY (r.conkey))
    THEN
        RAISE EXCEPTION 'cannot move column "%" of table %', $2, $3
            USING ERRCODE = 'feature_not_supported', DETAIL = 'It references another table, whose column numbers the rows.';
    ELSIF NOT is_release AND tag IS NULL AND is_plain AND wanted_tag IS NULL THEN
        RAISE EXCEPTION 'cannot move column "%" of table %', $2, $3
            USING ERRCODE = 'feature_not_supported', DETAIL = 'It has neither a sequence nor an identity.',
            HINT = format('To number its rows all the same, name the tag: SELECT %s(%L, %L, %L);',
                leaf_id.leaf_function_name('leaf_adopt'), $3, $2, leaf_id.leaf_default_tag($1, number, false));
    ELSIF NOT is_release AND tag IS NULL AND wanted_tag IS NULL THEN
        new_tag := leaf_id.leaf_default_tag($1, number, false);
        IF EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = new_tag) THEN
            RAISE EXCEPTION 'tag "%" already exists', new_tag USING ERRCODE = 'duplicate_object',
                HINT = 'Pass this tag to share it, or another name, as the third argument of leaf_adopt().';
        END IF;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_check_move(oid, name, text, smallint, text, boolean, text, integer, boolean) IS
    'True; an error if a column cannot be moved as is wanted';

CREATE FUNCTION leaf_id.leaf_tell_unindexed(relation oid, column_name name, table_name text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- As of the last VACUUM or ANALYZE: reading the file size would wait for a lock.
    size CONSTANT numeric := (
        SELECT sum(c.relpages::bigint * current_setting('block_size')::integer)
        FROM leaf_id.leaf_family($1) m
        JOIN pg_class c ON c.oid = m AND c.relkind = 'r'
        JOIN pg_attribute t ON t.attrelid = c.oid AND t.attname = $2
        WHERE NOT EXISTS (
            SELECT FROM pg_index i
            JOIN pg_class x ON x.oid = i.indexrelid
            JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
            WHERE i.indrelid = c.oid AND i.indkey[0] = t.attnum AND i.indpred IS NULL AND i.indisvalid));
BEGIN
    -- Below this, a second or less.
    IF size > 100000000 THEN
        RAISE NOTICE '% of table % will be read while it is locked, as column "%" has no index',
            pg_size_pretty(size), $3, $2 USING HINT = 'With an index on the column, it takes milliseconds.';
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_tell_unindexed(oid, name, text) IS
    'Says that a large table will be read for the largest value of a column';

-- Texts are searched, not run. What depends on the sequence itself keeps it.
CREATE FUNCTION leaf_id.leaf_tell_code(sequences oid[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- As whole words; what is special in a regular expression is escaped.
    names CONSTANT text[] := ARRAY(
        SELECT E'\\m' || regexp_replace(n.name, '[^[:alnum:]_]', E'\\\\\\&', 'g') || E'\\M'
        FROM (SELECT c.relname FROM pg_class c WHERE c.oid = ANY ($1) UNION ALL VALUES ('lastval'), ('currval')) n (name));
    calls CONSTANT text[] := ARRAY(SELECT format(':funcid %s ', f::oid) FROM unnest('{lastval,currval}'::regproc[]) f);
    code text;
BEGIN
    SELECT string_agg(o.name, ', ' ORDER BY o.name) INTO code
    FROM (
        SELECT pg_describe_object('pg_proc'::regclass, p.oid, 0) AS name
        FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE p.oid >= 16384 AND l.lanname NOT IN ('c', 'internal')
            AND EXISTS (
                -- A regular expression cannot search a very long text.
                SELECT FROM unnest(names) n (name)
                WHERE CASE WHEN octet_length(p.prosrc) <= 100000 THEN p.prosrc ~ n.name END
                UNION ALL
                SELECT FROM unnest(calls) n (name)
                WHERE CASE WHEN octet_length(p.prosqlbody::text) <= 1000000 THEN strpos(p.prosqlbody::text, n.name) > 0 END)
            AND NOT EXISTS (
                SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
        UNION ALL
        SELECT DISTINCT pg_describe_object('pg_class'::regclass, r.ev_class, 0)
        FROM pg_rewrite r
        WHERE r.ev_class >= 16384 AND EXISTS (
            SELECT FROM unnest(calls) n (name)
            WHERE CASE WHEN octet_length(r.ev_action::text) <= 1000000 THEN strpos(r.ev_action::text, n.name) > 0 END)
        LIMIT 10
    ) o;
    IF code IS NOT NULL THEN
        RAISE NOTICE 'the sequence, lastval() or currval() is named in %', code
            USING HINT = 'They do not know the ids of a tag; INSERT with RETURNING gives them.';
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_tell_code(oid[]) IS
    'Says which functions and views name sequences, lastval() or currval()';

-- By oid: LOCK TABLE locks the tables under a view, and a table of that name may be a view by now.
CREATE FUNCTION leaf_id.leaf_lock_table(relation oid) RETURNS void
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_lock_table_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_lock_table(oid) IS
    'Locks a table exclusively, with the privileges of LOCK TABLE; leaf_assert_locked() says whether it was there';

-- Partitions and children cannot be attached to a locked table. The limit applies to the wait for
-- all of them together, regardless of their number.
CREATE FUNCTION leaf_id.leaf_lock_descendants(relation oid, patience float8) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked oid[] := ARRAY[$1];
    missing oid[];
    descendant oid;
    asked timestamptz;
BEGIN
    LOOP
        SELECT array_agg(m) INTO missing FROM leaf_id.leaf_family($1) m WHERE m <> ALL (locked);
        EXIT WHEN missing IS NULL;
        FOREACH descendant IN ARRAY missing LOOP
            PERFORM set_config('lock_timeout', ceil(greatest(1, patience))::text, true);
            asked := clock_timestamp();
            PERFORM leaf_id.leaf_lock_table(descendant);
            patience := patience - greatest(0, 1000 * extract(epoch FROM clock_timestamp() - asked) - 1);
            IF patience < 0 THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
        locked := locked || missing;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_lock_descendants(oid, float8) IS
    'Locks the partitions and children of a table that is locked, within so many milliseconds';

CREATE FUNCTION leaf_id.leaf_lock_holders(relation oid, sequences oid[]) RETURNS text
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(DISTINCT coalesce('process ' || l.pid, 'a prepared transaction'), ', ')
    FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
        AND (l.relation = ANY ($2) OR l.relation IN (SELECT m FROM leaf_id.leaf_family($1) m))
$$;
COMMENT ON FUNCTION leaf_id.leaf_lock_holders(oid, oid[]) IS 'Who else has locked a table, its descendants or its sequences';

-- Sequences that a previous call could not drop.
CREATE FUNCTION leaf_id.leaf_left_sequences(sequences oid[], OUT free oid[], OUT notices text[]) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this oid;
    users text;
BEGIN
    free := '{}';
    notices := '{}';
    FOREACH this IN ARRAY $1 LOOP
        users := leaf_id.leaf_users_of_sequence(this);
        IF users IS NULL THEN
            free := free || this;
        ELSE
            notices := notices || format('sequence %s stays, as something else depends on it: %s', this::regclass, users);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_left_sequences(oid[]) IS
    'The sequences that can be dropped now, and why the others cannot';

CREATE FUNCTION leaf_id.leaf_movable_columns(
    schema name, is_release boolean, OUT relation oid, OUT column_name name, OUT shares boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.oid, a.attname, s.sequence IS NOT NULL AND count(*) OVER (PARTITION BY s.sequence) > 1
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $1
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef f ON f.adrelid = c.oid AND f.adnum = a.attnum AND a.attgenerated = ''
    LEFT JOIN LATERAL leaf_id.leaf_default_source(f.adbin, leaf_id.leaf_issuer()) s ON true
    -- Partitions and children go with theirs.
    WHERE c.relkind IN ('r', 'p') AND a.attinhcount = 0 AND NOT c.relispartition
        AND CASE WHEN $2 THEN s.tag IS NOT NULL
            -- Or it was moved before, and a sequence could not be dropped then.
            ELSE a.attidentity <> '' OR s.sequence IS NOT NULL
                OR s.tag IS NOT NULL AND EXISTS (SELECT FROM leaf_id.leaf_owned_sequences(c.oid, a.attnum))
        END
    ORDER BY c.relname, a.attnum
$$;
COMMENT ON FUNCTION leaf_id.leaf_movable_columns(name, boolean) IS
    'The columns that leaf_adopt_all() and leaf_release_all() are to move, and whether others have the same sequence';

-- After the first lock, no wait is as long as deadlock_timeout.
CREATE FUNCTION leaf_id.leaf_try_to_move(
    relation oid, column_name name, tag text, step integer, is_release boolean, left_over oid[],
    OUT source text, OUT first_id bigint, OUT notices text[]) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    deadlock_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'deadlock_timeout');
    sequence oid;
BEGIN
    notices := '{}';
    IF left_over <> '{}' THEN
        FOREACH sequence IN ARRAY left_over LOOP
            PERFORM leaf_id.leaf_drop_sequence(sequence);
        END LOOP;
        RETURN;
    END IF;
    PERFORM leaf_id.leaf_lock_table($1);
    PERFORM leaf_id.leaf_lock_descendants($1, least(deadlock_timeout / 4, 250));
    PERFORM set_config('lock_timeout', greatest(1, least(20, deadlock_timeout / 4))::text, true);
    IF is_release THEN
        SELECT r.source, r.first_id, r.notices INTO source, first_id, notices
        FROM leaf_id.leaf_release_locked($1, $2) r;
    ELSE
        SELECT a.used_tag, a.first_id, a.notices INTO source, first_id, notices
        FROM leaf_id.leaf_adopt_locked($1, $2, $3, $4, false) a;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_try_to_move(oid, name, text, integer, boolean, oid[]) IS
    'Locks a table, and moves its column; or drops sequences that were left over';

CREATE FUNCTION leaf_id.leaf_moved_line(
    column_text text, is_left_over boolean, is_release boolean, source text, first_id bigint) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN $2 THEN format('the former sequence of %s was dropped', $1)
        ELSE format('%s takes its ids from %s, from %s on', $1,
            CASE WHEN NOT $3 THEN format('tag "%s"', $4)
                WHEN $4 = 'identity' THEN 'an identity'
                ELSE format('sequence %s', $4) END,
            $5)
    END
$$;
COMMENT ON FUNCTION leaf_id.leaf_moved_line(text, boolean, boolean, text, bigint) IS
    'What leaf_move() has done, in one line';

-- Repeats attempts until one succeeds. One NOTICE tells what was done, with the details, since a CALL has
-- no result.
CREATE FUNCTION leaf_id.leaf_move(
    relation regclass, column_name name, tag text, step integer, is_release boolean,
    OUT source text, OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- In milliseconds, like the variables below; 0 for none.
    lock_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'lock_timeout');
    statement_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'statement_timeout');
    total_wait CONSTANT integer := CASE WHEN lock_timeout > 0 THEN least(60000, 20 * lock_timeout::bigint) ELSE 60000 END;
    wait float8 := 50;
    started CONSTANT timestamptz := clock_timestamp();
    tries integer := 0;
    left_over oid[] := '{}';
    left_sequences record;
    notices text[] := '{}';
    this record;
    what text;
    moved record;
    holders text;
    line text;
    -- Of checks. Functions that may refuse are assigned: other SQL would be in the CONTEXT of their errors.
    is_right boolean;
BEGIN
    -- Whoever may drop the extension waits for this transaction: what is called below by name stays
    -- what it is.
    is_right := leaf_id.leaf_require('');
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION 'table and column must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- The column's default would fail.
    IF NOT $5 THEN
        is_right := leaf_id.leaf_check_preloaded(true);
    END IF;
    -- An older snapshot would miss rows committed before the lock.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'columns can be moved only in a READ COMMITTED transaction' USING ERRCODE = 'feature_not_supported';
    END IF;
    this := leaf_id.leaf_column($1, $2);
    what := format('column "%s" of table %s', $2, this.table_name);
    is_right := leaf_id.leaf_check_move(
        $1, $2, this.table_name, this.number, this.tag, this.sequence IS NULL AND this.identity = '', $3, $4, $5);
    -- Views are opened, too. Without a limit, one that is locked would be waited for without end.
    PERFORM set_config('lock_timeout', coalesce(nullif(lock_timeout, 0), total_wait)::text, true);
    IF NOT $5 AND this.tag IS NOT NULL THEN
        source := this.tag;
        SELECT l.* INTO left_sequences FROM leaf_id.leaf_left_sequences(this.sequences) l;
        left_over := left_sequences.free;
        notices := left_sequences.notices;
        details := nullif(array_to_string(notices, E'\n'), '');
        IF left_over = '{}' THEN
            PERFORM set_config('lock_timeout', lock_timeout::text, true);
            RAISE NOTICE '%', concat_ws(E'\n', format('%s takes its ids from tag "%s" already', what, this.tag), details);
            RETURN;
        END IF;
    ELSE
        IF NOT $5 THEN
            is_right := leaf_id.leaf_check_rights(
                $3, leaf_id.leaf_roles_of_sequences($1, this.sequences), $2, this.table_name);
            PERFORM leaf_id.leaf_tell_code(this.sequences);
        END IF;
        PERFORM leaf_id.leaf_tell_unindexed($1, $2, this.table_name);
    END IF;

    LOOP
        tries := tries + 1;
        BEGIN
            PERFORM set_config('lock_timeout', ceil(CASE WHEN lock_timeout > 0 THEN least(wait, lock_timeout) ELSE wait END)::text, true);
            SELECT t.* INTO moved
            FROM leaf_id.leaf_try_to_move($1, $2, $3, $4, $5, left_over) t;
            PERFORM set_config('lock_timeout', lock_timeout::text, true);
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            holders := leaf_id.leaf_lock_holders($1, this.sequences);
        END;
        -- If both have fired, PostgreSQL raises lock_timeout's error, which was caught, and forgets this one.
        IF statement_timeout > 0
            AND clock_timestamp() > statement_timestamp() + make_interval(secs => statement_timeout / 1000.0) THEN
            RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
        ELSIF clock_timestamp() > started + make_interval(secs => total_wait / 1000.0) THEN
            RAISE EXCEPTION 'table % could not be locked', this.table_name USING ERRCODE = 'lock_not_available',
                DETAIL = format('Tried %s times in %s ms; at the last time it, or its sequence, was in use by %s.',
                    tries, round(1000 * extract(epoch FROM clock_timestamp() - started)), coalesce(holders, 'a transaction that has ended since')),
                HINT = 'Try again when no long transaction uses the table.';
        END IF;
        -- Let other sessions proceed.
        PERFORM pg_sleep(wait * (0.5 + random() / 2) / 1000);
        wait := least(wait * 1.6, 3000);
    END LOOP;

    source := coalesce(moved.source, source);
    first_id := moved.first_id;
    details := nullif(array_to_string(notices || moved.notices, E'\n'), '');
    line := leaf_id.leaf_moved_line(what, left_over <> '{}', $5, source, first_id);
    line := concat_ws(E'\n', line, details);
    RAISE NOTICE '%', line;
    RAISE LOG 'leaf_id: %', line;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_move(regclass, name, text, integer, boolean) IS
    'What leaf_adopt() and leaf_release() do';

CREATE FUNCTION @extschema@.leaf_adopt(
    relation regclass, column_name name, INOUT tag text DEFAULT NULL, step integer DEFAULT NULL,
    OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT m.* FROM leaf_id.leaf_move($1, $2, $3, $4, false) m';
COMMENT ON FUNCTION @extschema@.leaf_adopt(regclass, name, text, integer) IS
    'Moves a column from its sequence to a tag, above all ids so far; returns the tag, the first id, and what else there is to know';

CREATE FUNCTION @extschema@.leaf_release(
    relation regclass, column_name name, OUT source text, OUT first_id bigint, OUT details text) RETURNS record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT m.* FROM leaf_id.leaf_move($1, $2, NULL, NULL, true) m';
COMMENT ON FUNCTION @extschema@.leaf_release(regclass, name) IS
    'Makes a column that takes its ids from a tag an identity, or gives it a sequence, above all ids so far, whatever it was before; returns the sequence, or the word identity, the first id, and what else there is to know';

-- Ends each column's transaction, so without a SET clause. All columns that can be moved are looked
-- for at the beginning: those that were moved before are not among them.
CREATE PROCEDURE leaf_id.leaf_move_all(schema name, is_release boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    found pg_catalog.record;
    message pg_catalog.text;
    detail pg_catalog.text;
    hint pg_catalog.text;
    is_kept CONSTANT pg_catalog.bool := leaf_id.leaf_require('');
    kept CONSTANT pg_catalog.oid := pg_catalog.to_regclass('leaf_id.server');
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) $1) THEN
        RAISE EXCEPTION 'schema "%" does not exist', $1 USING ERRCODE = 'invalid_schema_name';
    END IF;
    IF NOT $2 THEN
        PERFORM leaf_id.leaf_check_preloaded(true);
    END IF;
    FOR found IN SELECT c.relation, c.column_name, c.shares FROM leaf_id.leaf_movable_columns($1, $2) c LOOP
        IF found.shares THEN
            RAISE NOTICE 'column "%" of table % stays as it is', found.column_name, found.relation::pg_catalog.regclass
                USING DETAIL = 'Other columns have its sequence, too, and ids of two tags may be equal.',
                    HINT = 'Name one tag for all of them, as the third argument of leaf_adopt().';
            CONTINUE;
        END IF;
        -- As leaf_require(), whose lock the last COMMIT has released, but by no name that somebody else
        -- can have taken meanwhile, to run something with the caller's rights. Everybody may lock this
        -- view.
        LOCK TABLE leaf_id.server IN ACCESS SHARE MODE;
        IF (pg_catalog.to_regclass('leaf_id.server')::pg_catalog.oid OPERATOR(pg_catalog.=) kept) IS NOT TRUE THEN
            RAISE EXCEPTION 'extension "leaf_id" was dropped' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        BEGIN
            PERFORM leaf_id.leaf_move(found.relation::pg_catalog.regclass, found.column_name, NULL, NULL, $2);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            detail := pg_catalog.concat_ws('. ', message, CASE WHEN detail OPERATOR(pg_catalog.<>) '' THEN detail END);
            -- RAISE takes no null, and prints an empty HINT.
            IF hint OPERATOR(pg_catalog.=) '' THEN
                RAISE NOTICE 'column "%" of table % stays as it is', found.column_name, found.relation::pg_catalog.regclass
                    USING DETAIL = detail;
            ELSE
                RAISE NOTICE 'column "%" of table % stays as it is', found.column_name, found.relation::pg_catalog.regclass
                    USING DETAIL = detail, HINT = hint;
            END IF;
        END;
        COMMIT;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE leaf_id.leaf_move_all(name, boolean) IS
    'What leaf_adopt_all() and leaf_release_all() do';

CREATE PROCEDURE @extschema@.leaf_adopt_all(schema name)
LANGUAGE plpgsql
AS 'BEGIN CALL leaf_id.leaf_move_all($1, false); END';
COMMENT ON PROCEDURE @extschema@.leaf_adopt_all(name) IS
    'Moves each serial and identity column of a schema to a tag, in a transaction of its own; says what it did, and what it left and why';

CREATE PROCEDURE @extschema@.leaf_release_all(schema name)
LANGUAGE plpgsql
AS 'BEGIN CALL leaf_id.leaf_move_all($1, true); END';
COMMENT ON PROCEDURE @extschema@.leaf_release_all(name) IS
    'Moves each column of a schema that takes its ids from a tag back to an identity or a sequence, as leaf_adopt_all() moves them';

-- With the extension's rights, as the caller has none on the table. Only src/api/adopt.rs calls these
-- two: once the extension is kept, and the first one for the event trigger alone.
CREATE FUNCTION leaf_id.leaf_write_adopted(relation oid, column_number smallint, tag text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO leaf_id.leaf_adopted AS a (relation, column_number, tag) VALUES ($1, $2, $3)
    -- Of a table that was dropped where no event trigger fired.
    ON CONFLICT ON CONSTRAINT leaf_adopted_pkey DO UPDATE SET tag = excluded.tag;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_write_adopted(oid, smallint, text) IS 'What leaf_note_adopted() does';

CREATE FUNCTION leaf_id.leaf_read_adopted(tag text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT EXISTS (SELECT FROM leaf_id.leaf_adopted a WHERE a.tag = $1)';
COMMENT ON FUNCTION leaf_id.leaf_read_adopted(text) IS 'What leaf_belongs_to_column() does';

CREATE FUNCTION leaf_id.leaf_note_adopted(relation oid, column_number smallint, tag text) RETURNS void
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_note_adopted_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_note_adopted(oid, smallint, text) IS
    'Remembers that leaf_id.adopt_new_columns gave a column its tag';

CREATE FUNCTION leaf_id.leaf_belongs_to_column(tag text) RETURNS boolean
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_belongs_to_column_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_belongs_to_column(text) IS
    'Whether leaf_id.adopt_new_columns gave a tag to a column, with which it is dropped';

-- Called at the end of CREATE TABLE (with an empty array: all columns are new) and of ALTER TABLE
-- (with the added columns). The table is locked.
CREATE FUNCTION leaf_id.leaf_adopt_new(added text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Who can have set leaf_id.adopt_new_columns; null: a superuser. A setting of one role does not
    -- act on another's table.
    setter CONSTANT name := (
        SELECT CASE
            WHEN s.source = 'database' THEN (
                SELECT pg_get_userbyid(d.datdba) FROM pg_database d WHERE d.datname = current_database())
            WHEN s.source IN ('user', 'database user', 'client', 'session') THEN session_user
        END
        FROM pg_settings s WHERE s.name = 'leaf_id.adopt_new_columns');
    new_column record;
    moved record;
    line text;
    state text;
    message text;
    detail text;
    hint text;
BEGIN
    FOR new_column IN
        -- One ALTER TABLE may appear as several commands.
        SELECT DISTINCT t.objid AS relation, t.object_identity AS table_name, a.attnum, a.attname AS name
        FROM pg_event_trigger_ddl_commands() t
        JOIN pg_class c ON c.oid = t.objid
        JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE t.classid = 'pg_class'::regclass AND t.command_tag IN ('CREATE TABLE', 'ALTER TABLE') AND NOT t.in_extension
            AND (setter IS NULL OR pg_has_role(setter, c.relowner, 'MEMBER'))
            AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
            AND a.attnum > 0 AND a.attinhcount = 0 AND (added = '{}' OR a.attname = ANY (added))
            -- Its own new sequence, not an existing one (LIKE, ADD COLUMN IF NOT EXISTS).
            AND EXISTS (
                SELECT FROM pg_event_trigger_ddl_commands() s
                JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.objid
                WHERE s.classid = 'pg_class'::regclass AND s.command_tag = 'CREATE SEQUENCE'
                    AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
                    AND d.deptype IN ('a', 'i'))
        ORDER BY a.attnum
    LOOP
        BEGIN
            PERFORM leaf_id.leaf_require('SELECT, INSERT, UPDATE');
            SELECT * INTO moved FROM leaf_id.leaf_adopt_locked(new_column.relation, new_column.name, NULL, NULL, true);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS
                state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                hint = PG_EXCEPTION_HINT;
            -- RAISE takes no null, and prints an empty HINT.
            IF state = '42501' AND hint = '' THEN
                RAISE NOTICE 'the new column "%" of table % keeps its sequence: %',
                    new_column.name, new_column.table_name, message;
                CONTINUE;
            ELSIF state = '42501' THEN
                RAISE NOTICE 'the new column "%" of table % keeps its sequence: %',
                    new_column.name, new_column.table_name, message USING HINT = hint;
                CONTINUE;
            END IF;
            RAISE EXCEPTION 'no tag for the new column "%" of table %: %', new_column.name, new_column.table_name, message
                USING ERRCODE = state, DETAIL = coalesce(nullif(detail, ''), '"leaf_id.adopt_new_columns" is on.'),
                HINT = 'To create it with a sequence: SET leaf_id.adopt_new_columns = off;';
        END;
        FOREACH line IN ARRAY moved.notices LOOP
            RAISE NOTICE '%', line;
        END LOOP;
        PERFORM leaf_id.leaf_note_adopted(new_column.relation, new_column.attnum, moved.used_tag);
        RAISE LOG 'leaf_id: new column "%" of table % takes its ids from tag "%", from % on',
            new_column.name, new_column.table_name, moved.used_tag, moved.first_id;
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_adopt_new(text[]) IS
    'Gives new serial and identity columns a tag, where leaf_id.adopt_new_columns is on';

CREATE FUNCTION leaf_id.leaf_adopt_new_columns() RETURNS event_trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_adopt_new_columns_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_adopt_new_columns() IS
    'Event trigger: gives new serial and identity columns a tag, where leaf_id.adopt_new_columns is on';

-- Not fired if session_replication_role is replica.
CREATE EVENT TRIGGER leaf_adopt_new_columns ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE')
    EXECUTE FUNCTION leaf_id.leaf_adopt_new_columns();
COMMENT ON EVENT TRIGGER leaf_adopt_new_columns IS 'Acts where leaf_id.adopt_new_columns is on';

-- With more rights than the caller: the tag belongs to the column, as a sequence would. Sessions drop
-- it as any other tag, and its mark stays. Only the event trigger calls it.
CREATE FUNCTION leaf_id.leaf_drop_tags_of_columns() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone record;
BEGIN
    IF NOT EXISTS (SELECT FROM leaf_id.leaf_adopted) THEN
        RETURN;
    END IF;
    FOR gone IN
        DELETE FROM leaf_id.leaf_adopted a
        USING pg_event_trigger_dropped_objects() d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = a.relation AND d.objsubid IN (0, a.column_number)
        RETURNING a.tag
    LOOP
        DELETE FROM leaf_id.leaf_alloc a
        WHERE a.biz_tag = gone.tag
            -- Others may have been given it since.
            AND NOT EXISTS (SELECT FROM leaf_id.leaf_columns_of_tag(gone.tag));
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_drop_tags_of_columns() IS
    'What leaf_drop_adopted() does';

CREATE FUNCTION leaf_id.leaf_drop_adopted() RETURNS event_trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_drop_adopted_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_drop_adopted() IS
    'Event trigger: drops the tags of dropped columns that leaf_id.adopt_new_columns gave them';
CREATE EVENT TRIGGER leaf_drop_adopted ON sql_drop
    EXECUTE FUNCTION leaf_id.leaf_drop_adopted();
COMMENT ON EVENT TRIGGER leaf_drop_adopted IS 'Drops tags with the columns that leaf_id.adopt_new_columns gave them';
