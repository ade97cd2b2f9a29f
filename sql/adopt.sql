-- Columns that move from a sequence to a tag, and back: leaf_adopt(), leaf_release(), and new
-- columns by themselves.
--
-- The lock. A column is moved under one ACCESS EXCLUSIVE lock on its table. Each try is a
-- subtransaction that takes this lock first, with a timeout that grows, and holds nothing before:
-- nothing can deadlock with it, and when it is rolled back, writers go on. What is locked after
-- it, in the same try, waits for so short a time that a writer which holds that and
-- waits for the table is never a victim of deadlock detection.
--
-- All run with the caller's rights, and the caller may be a superuser where the owner of the
-- table is not to be trusted. So no expression of the table is evaluated, what is
-- internal is in schema leaf_id (which only a superuser can rename), functions and sequences are
-- identified by oid, and as statements take names, the result is compared by oid afterwards.
--
-- Long: one algorithm, there and back.

-- By what nobody but a superuser can make: the schema may get another name, another function its.
CREATE FUNCTION leaf_id.leaf_issuer() RETURNS regprocedure
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.oid::regprocedure
    FROM pg_proc p
    JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'c'
    JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        AND d.refclassid = 'pg_extension'::regclass
    JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leaf_id'
    WHERE p.proname = 'leaf_segment_next' AND p.pronargs = 1
$$;
COMMENT ON FUNCTION leaf_id.leaf_issuer() IS 'The function that issues ids of a tag';

CREATE FUNCTION leaf_id.leaf_descendants(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE descendants AS (
        SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = $1
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN descendants d ON i.inhparent = d.inhrelid
    )
    SELECT d.inhrelid FROM descendants d ORDER BY d.inhrelid
$$;
COMMENT ON FUNCTION leaf_id.leaf_descendants(oid) IS 'The partitions and children of a table, theirs too';

CREATE FUNCTION leaf_id.leaf_takes_from_tag(relation oid, column_name name) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pg_attribute a
        JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
            AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = leaf_id.leaf_issuer()::oid
        WHERE a.attrelid = $1 AND a.attname = $2)
$$;
COMMENT ON FUNCTION leaf_id.leaf_takes_from_tag(oid, name) IS 'Whether the default of a column issues ids of a tag';

CREATE FUNCTION leaf_id.leaf_column(
    relation oid,
    column_name name,
    OUT number smallint,
    OUT table_name text,
    OUT type_name regtype,
    OUT base_type regtype,
    OUT last_id bigint,
    OUT not_null boolean,
    OUT identity "char",
    OUT expression text,
    OUT tag text,
    OUT sequences oid[]
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- So that in an expression, nothing but quotes is doubled.
SET standard_conforming_strings = on
AS $$
DECLARE
    found_table record;
    found_column record;
    reason text;
    hint text;
    prefix text;
    literal text;
BEGIN
    SELECT c.relkind, c.relpersistence, c.relispartition, c.relowner,
        format('%I.%I', n.nspname, c.relname) AS name INTO found_table
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_table',
            MESSAGE = format('there is no table with oid %s', $1);
    END IF;
    table_name := found_table.name;
    IF NOT pg_has_role(found_table.relowner, 'USAGE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('must be owner of table %s', table_name);
    END IF;
    SELECT a.attnum, a.atttypid, a.attidentity, a.attgenerated, a.attinhcount, a.attnotnull,
        f.oid AS default_oid, pg_get_expr(f.adbin, 0) AS default_text INTO found_column
    FROM pg_attribute a
    LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum AND a.attgenerated = ''
    WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_column',
            MESSAGE = format('table %s has no column "%s"', table_name, $2);
    END IF;
    number := found_column.attnum;
    type_name := found_column.atttypid;
    not_null := found_column.attnotnull;
    identity := found_column.attidentity;
    expression := found_column.default_text;

    base_type := type_name;
    LOOP
        SELECT t.typbasetype INTO literal FROM pg_type t WHERE t.oid = base_type AND t.typtype = 'd';
        EXIT WHEN NOT FOUND;
        base_type := literal::oid;
    END LOOP;
    last_id := CASE base_type
        WHEN 'smallint'::regtype THEN 32767
        WHEN 'integer'::regtype THEN 2147483647
        WHEN 'bigint'::regtype THEN 9223372036854775806
        END;

    -- Those of its default, of its identity, and others that it owns.
    SELECT coalesce(array_agg(s.oid ORDER BY s.oid), '{}') INTO sequences
    FROM (
        SELECT d.refobjid AS oid FROM pg_depend d
        WHERE d.classid = 'pg_attrdef'::regclass AND d.objid = found_column.default_oid
            AND d.refclassid = 'pg_class'::regclass
        UNION
        SELECT d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = found_column.attnum
            AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    ) s JOIN pg_class c ON c.oid = s.oid AND c.relkind = 'S';

    prefix := format('%s(', leaf_id.leaf_issuer()::oid::regproc);
    IF starts_with(expression, prefix) AND leaf_id.leaf_takes_from_tag($1, $2) THEN
        -- Null if it is not a constant.
        literal := substring(substr(expression, length(prefix) + 1) FROM '^''((?:[^'']|'''')*)''::text[)]$');
        tag := replace(literal, '''''', '''');
    END IF;

    CASE
        WHEN found_table.relkind NOT IN ('r', 'p') THEN
            reason := 'It is not a table.';
        WHEN found_table.relpersistence = 't' THEN
            reason := 'The table is temporary, and the tag would outlive it.';
        WHEN found_table.relispartition THEN
            reason := 'The table is a partition.';
            hint := 'Name the column of the partitioned table.';
        WHEN $1 < 16384 OR EXISTS (
            SELECT FROM pg_depend d
            WHERE d.classid = 'pg_class'::regclass AND d.objid = $1 AND d.deptype = 'e') THEN
            reason := 'The table belongs to PostgreSQL or to an extension.';
        WHEN found_column.attinhcount > 0 THEN
            reason := 'The column is inherited.';
            hint := 'Name the column of the parent.';
        WHEN found_column.attgenerated <> '' THEN
            reason := 'The column is generated.';
        WHEN last_id IS NULL THEN
            reason := format('Its type is %s: ids are smallint, integer or bigint.', type_name);
        WHEN EXISTS (
            SELECT FROM leaf_id.leaf_descendants($1) d JOIN pg_class c ON c.oid = d WHERE c.relkind = 'f') THEN
            reason := 'Some of its rows are in foreign tables.';
        WHEN tag IS NULL AND expression IS NOT NULL AND NOT EXISTS (
            SELECT FROM unnest(sequences) s
            WHERE expression = format('nextval(''%s''::regclass)', replace(s::regclass::text, '''', ''''''))) THEN
            reason := format('Its default is %s.', expression);
            hint := 'Only a column without a default, or with one that is nextval() alone, can be moved: drop the default first.';
        WHEN tag IS NULL AND EXISTS (
            SELECT FROM pg_sequence q
            WHERE q.seqrelid = ANY (sequences) AND (q.seqincrement < 0 OR q.seqcycle)) THEN
            -- Ids that somebody has taken and not yet inserted may be anywhere.
            reason := 'Its sequence counts down, or cycles.';
        ELSE
            RETURN;
    END CASE;
    RAISE EXCEPTION USING
        ERRCODE = 'feature_not_supported',
        MESSAGE = format('cannot move column "%s" of table %s', $2, table_name),
        DETAIL = reason,
        HINT = coalesce(hint, '');
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_column(oid, name) IS
    'Where a column takes its values from; an error if leaf_adopt() and leaf_release() cannot move it';

CREATE FUNCTION leaf_id.leaf_default_tag(relation oid, number smallint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tag text;
BEGIN
    SELECT concat_ws('.', nullif(n.nspname, 'public'), c.relname, others.name) INTO tag
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (
        SELECT this.attname AS name FROM pg_attribute this
        WHERE this.attrelid = c.oid AND this.attnum = $2 AND EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attnum <> $2 AND NOT a.attisdropped
                AND (a.attidentity <> '' OR leaf_id.leaf_takes_from_tag(c.oid, a.attname) OR EXISTS (
                    SELECT FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
                    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
                        AND d.classid = 'pg_class'::regclass)))
    ) others ON true
    WHERE c.oid = $1;
    IF octet_length(tag) > 128 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_name',
            MESSAGE = format('"%s" is too long for the name of a tag', tag),
            HINT = 'Name the tag: leaf_adopt(relation, column_name, tag).';
    END IF;
    RETURN tag;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_default_tag(oid, smallint) IS
    'The tag of a column whose tag is not named: the table, with its schema if that is not public, and with the column if others of the table number rows too';

-- In the table and its descendants; null if they are empty. Only under the lock.
CREATE FUNCTION leaf_id.leaf_largest_value(relation oid, column_name name) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
    largest bigint;
BEGIN
    FOR member IN
        SELECT c.oid, found.largest, found.unread
        FROM (SELECT $1 AS oid UNION ALL SELECT d FROM leaf_id.leaf_descendants($1) d) m
        JOIN pg_class c ON c.oid = m.oid AND c.relkind = 'r'
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped
        CROSS JOIN LATERAL leaf_id.leaf_column_max(c.oid, a.attnum) found
    LOOP
        IF member.unread IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format('cannot read column "%s" of table %s', $2, member.oid::regclass),
                DETAIL = member.unread;
        END IF;
        largest := greatest(largest, member.largest);
    END LOOP;
    RETURN largest;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_largest_value(oid, name) IS 'The largest value of a column';

-- Without this a name that was given to another table meanwhile could be the one that was locked.
CREATE FUNCTION leaf_id.leaf_assert_locked(relation oid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM (SELECT $1 AS oid UNION ALL SELECT d FROM leaf_id.leaf_descendants($1) d) m
        WHERE m.oid NOT IN (
            SELECT l.relation FROM pg_locks l
            WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
                AND l.mode = 'AccessExclusiveLock'
                AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('%s was changed by somebody else meanwhile', $1::regclass),
            HINT = 'Try again.';
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_assert_locked(oid) IS
    'An error unless this session has locked a table and its descendants exclusively';

-- What would break, or go on using it, without a sequence; null: nothing.
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
    -- Without the privilege PostgreSQL says null, as of a sequence that was never used.
    IF NOT has_sequence_privilege($1, 'USAGE, SELECT') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('permission denied for sequence %s', $1::regclass);
    END IF;
    -- Whoever allocates by the increment (Hibernate's pooled) uses the values that follow too. Of
    -- a sequence that was set and not called since, the last value is not shown: the next one is
    -- above all that it gave.
    RETURN (
        SELECT coalesce(pg_sequence_last_value($1)::numeric + q.seqincrement, nextval($1)) - 1
        FROM pg_sequence q WHERE q.seqrelid = $1);
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_largest_taken(oid) IS 'The largest id that somebody may have got by a sequence';

-- The text of a default is asked for without its table, which would be locked: somebody may hold
-- it ACCESS EXCLUSIVE. Temporary tables do not count.
CREATE FUNCTION leaf_id.leaf_columns_of_tag(tag text, OUT relation oid, OUT column_name name) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
    SELECT a.attrelid, a.attname
    FROM pg_depend d
    LEFT JOIN pg_attrdef f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
    LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
    JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum AND a.attgenerated = ''
        OR a.atttypid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.atthasdef
    JOIN pg_class c ON c.oid = a.attrelid AND c.relpersistence <> 't'
    WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = leaf_id.leaf_issuer()::oid
        -- Within a larger expression, too.
        AND strpos(pg_get_expr(coalesce(f.adbin, t.typdefaultbin), 0), format('''%s''::', replace($1, '''', ''''''))) > 0
$$;
COMMENT ON FUNCTION leaf_id.leaf_columns_of_tag(text) IS 'The columns whose defaults issue ids of a tag';

-- Whoever may have found a sequence under its name, it is this one that is dropped, or none.
CREATE FUNCTION leaf_id.leaf_drop_sequence(sequence oid, OUT largest_taken numeric) RETURNS numeric
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Keeps nextval() away, so that nothing is taken after the look at it.
    EXECUTE format('ALTER SEQUENCE %s NO CYCLE', $1::regclass);
    largest_taken := leaf_id.leaf_largest_taken($1);
    EXECUTE format('DROP SEQUENCE %s', $1::regclass);
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = $1) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('%s was changed by somebody else meanwhile', $1::regclass),
            HINT = 'Try again.';
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_drop_sequence(oid) IS 'Drops a sequence, and says which ids it may have given';

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
-- As for leaf_column(), whose expression is compared with those of partitions and children.
SET standard_conforming_strings = on
AS $$
DECLARE
    this record;
    heirs oid[];
    heir oid;
    sequence oid;
    is_own boolean;
    users text;
    -- Somebody may have ids up to this one. Numeric, as it may be beyond the last one.
    taken numeric := 0;
    -- Ids above it that are left to a sequence that stays.
    gap numeric := 0;
    last_id bigint;
    tag_row record;
    small text;
BEGIN
    PERFORM leaf_id.leaf_assert_locked($1);
    SELECT * INTO this FROM leaf_id.leaf_column($1, $2);
    -- Somebody else was first.
    IF this.tag IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('column "%s" of table %s takes its ids from tag "%s"', $2, this.table_name, this.tag);
    END IF;
    used_tag := coalesce($3, leaf_id.leaf_default_tag($1, this.number));
    notices := '{}';
    -- A limit that somebody has set counts, and not that of the sequence's type.
    SELECT least(this.last_id, min(q.seqmax)) INTO last_id
    FROM pg_sequence q
    WHERE q.seqrelid = ANY (this.sequences) AND q.seqmax NOT IN (32767, 2147483647, 9223372036854775807);

    -- Partitions and children that take their values from where this column does, follow it.
    -- Any other default of theirs stays.
    SELECT coalesce(array_agg(d), '{}') INTO heirs
    FROM leaf_id.leaf_descendants($1) d
    JOIN pg_attribute a ON a.attrelid = d AND a.attname = $2
    LEFT JOIN pg_attrdef f ON f.adrelid = d AND f.adnum = a.attnum
    WHERE CASE WHEN this.identity <> '' THEN a.attidentity <> ''
        ELSE pg_get_expr(f.adbin, 0) = this.expression END;

    IF this.identity <> '' THEN
        SELECT d.objid INTO sequence
        FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'i'
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = this.number;
        EXECUTE format('ALTER SEQUENCE %s NO CYCLE', sequence::regclass);
        taken := leaf_id.leaf_largest_taken(sequence);
        this.sequences := array_remove(this.sequences, sequence);
        EXECUTE format('ALTER TABLE %s ALTER %I DROP IDENTITY', this.table_name, $2);
        IF this.identity = 'a' THEN
            notices := notices || format(
                'column "%s" of table %s was GENERATED ALWAYS: from now on, explicit ids are not refused, and OVERRIDING USER VALUE keeps them',
                $2, this.table_name);
        END IF;
    END IF;
    FOREACH heir IN ARRAY $1 || heirs LOOP
        EXECUTE format('ALTER TABLE ONLY %s ALTER %I SET DEFAULT %s(%L::pg_catalog.text)',
            heir::regclass, $2, leaf_id.leaf_issuer()::oid::regproc, used_tag);
        IF NOT leaf_id.leaf_takes_from_tag(heir, $2) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_in_use',
                MESSAGE = format('%s was changed by somebody else meanwhile', heir::regclass),
                HINT = 'Try again.';
        END IF;
    END LOOP;

    FOREACH sequence IN ARRAY this.sequences LOOP
        users := leaf_id.leaf_users_of_sequence(sequence);
        is_own := EXISTS (
            SELECT FROM pg_depend d
            WHERE d.classid = 'pg_class'::regclass AND d.objid = sequence AND d.deptype = 'a'
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = this.number);
        IF is_own AND users IS NULL THEN
            BEGIN
                taken := greatest(taken, leaf_id.leaf_drop_sequence(sequence));
                CONTINUE;
            EXCEPTION WHEN lock_not_available THEN
                notices := notices || format(
                    'sequence %s is being used, and stays for now: the same call of leaf_adopt() once more drops it',
                    sequence::regclass);
            END;
        ELSIF is_own THEN
            notices := notices || format(
                'sequence %s stays, as something else depends on it: %s', sequence::regclass, users);
        ELSE
            notices := notices || format(
                'sequence %s is not owned by the column, and stays: ids that are taken from it for this column will collide',
                sequence::regclass);
        END IF;
        taken := greatest(taken, leaf_id.leaf_largest_taken(sequence));
        gap := greatest(gap, 1000000 * (
            SELECT least(q.seqincrement, 1000) FROM pg_sequence q WHERE q.seqrelid = sequence));
    END LOOP;
    -- The values of a new column are all from its sequence.
    IF NOT $5 THEN
        taken := greatest(taken, leaf_id.leaf_largest_value($1, $2));
    END IF;
    IF taken >= last_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'sequence_generator_limit_exceeded',
            MESSAGE = format('no ids are left for column "%s" of table %s', $2, this.table_name),
            DETAIL = format('Ids up to %s are taken, and the last one is %s.', taken, last_id);
    END IF;
    first_id := taken + 1 + least(gap, trunc((last_id - taken) / 8));

    IF leaf_id.leaf_has_key(used_tag) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('cannot give column "%s" of table %s to opaque tag "%s"', $2, this.table_name, used_tag),
            DETAIL = 'Its ids would repeat those of the column.';
    END IF;
    SELECT a.max_id, a.max_value, a.server INTO tag_row
    FROM leaf_id.leaf_alloc a WHERE a.biz_tag = used_tag FOR UPDATE;
    IF NOT FOUND THEN
        -- Segments are small where there are few ids.
        INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, step, max_step, max_value)
        SELECT used_tag, first_id, s.step, greatest(s.step, least(1000000, (last_id - first_id) / 100)), last_id
        FROM (SELECT coalesce($4, greatest(1, least(1000, (last_id - first_id) / 1000)))) s (step);
    ELSE
        -- What is left over by a table that was dropped goes on for the next one of that name.
        IF $3 IS NULL AND (NOT $5 OR EXISTS (
            SELECT FROM leaf_id.leaf_columns_of_tag(used_tag) u
            JOIN pg_class c ON c.oid = u.relation
            WHERE u.relation <> ALL ($1 || heirs)
                -- A stranger's default keeps nobody from creating a table.
                AND (c.relowner = (SELECT o.relowner FROM pg_class o WHERE o.oid = $1)
                    OR has_table_privilege(c.relowner, 'leaf_id.leaf_alloc', 'UPDATE'))))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'duplicate_object',
                MESSAGE = format('tag "%s" exists already', used_tag),
                HINT = 'Name it to use it all the same, or name another one: leaf_adopt(relation, column_name, tag).';
        END IF;
        IF tag_row.server IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('tag "%s" is sourced from server "%s"', used_tag, tag_row.server),
                HINT = 'Raise its max_id there, above the ids of the column, and set the default yourself.';
        END IF;
        first_id := greatest(first_id, tag_row.max_id) + 1;
        -- The column of before may have been a smaller one.
        IF $5 THEN
            tag_row.max_value := greatest(tag_row.max_value, last_id);
        END IF;
        IF first_id > least(last_id, tag_row.max_value) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'sequence_generator_limit_exceeded',
                MESSAGE = format('no ids are left for column "%s" of table %s', $2, this.table_name),
                DETAIL = format('Tag "%s" would go on from %s, and the last id is %s.',
                    used_tag, first_id, least(last_id, tag_row.max_value));
        END IF;
        -- Raised in any case: ids that are cached, below max_id, may be those of rows.
        UPDATE leaf_id.leaf_alloc a
        SET max_id = first_id, max_value = tag_row.max_value,
            step = coalesce($4, a.step), max_step = greatest(a.max_step, $4)
        WHERE a.biz_tag = used_tag;
        notices := notices || format('tag "%s" existed already, and goes on from %s', used_tag, first_id);
        IF tag_row.max_value > last_id THEN
            notices := notices || format(
                'tag "%s" goes up to %s, and column "%s" of table %s to %s',
                used_tag, tag_row.max_value, $2, this.table_name, last_id);
        END IF;
    END IF;

    SELECT string_agg(format('%s.%I (%s)', r.conrelid::regclass, a.attname, a.atttypid::regtype), ', ') INTO small
    FROM pg_constraint r
    JOIN pg_attribute a ON a.attrelid = r.conrelid AND a.attnum = r.conkey[array_position(r.confkey, this.number)]
    WHERE r.contype = 'f' AND r.confrelid = $1 AND last_id > CASE a.atttypid
        WHEN 'smallint'::regtype THEN 32767
        WHEN 'integer'::regtype THEN 2147483647 END;
    IF small IS NOT NULL THEN
        notices := notices || format(
            'columns that reference "%s" of table %s are too small for its last ids: %s', $2, this.table_name, small);
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_adopt_locked(oid, name, text, integer, boolean) IS
    'The work of leaf_adopt(), on a table that is locked';

-- What a serial is. The owner of the table owns it, whoever has called.
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
        -- In characters, so that it has at most 63 bytes.
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

CREATE FUNCTION leaf_id.leaf_release_locked(
    relation oid,
    column_name name,
    OUT source text,
    OUT first_id bigint,
    OUT notices text[]
) RETURNS record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- As for leaf_column(), whose expression is compared with those of partitions and children.
SET standard_conforming_strings = on
AS $$
DECLARE
    this record;
    heirs oid[];
    -- Descendants with another default keep PostgreSQL from making the column an identity.
    others_have_defaults boolean;
    heir oid;
    sequence oid;
    tag_row record;
    users text;
    taken numeric;
    grantee record;
BEGIN
    PERFORM leaf_id.leaf_assert_locked($1);
    SELECT * INTO this FROM leaf_id.leaf_column($1, $2);
    -- Somebody else was first.
    IF this.tag IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('column "%s" of table %s takes its ids from no tag', $2, this.table_name);
    END IF;
    notices := '{}';
    SELECT coalesce(array_agg(d) FILTER (WHERE f.same), '{}'), coalesce(bool_or(NOT f.same), false)
    INTO heirs, others_have_defaults
    FROM leaf_id.leaf_descendants($1) d
    JOIN pg_attribute a ON a.attrelid = d AND a.attname = $2
    JOIN LATERAL (
        SELECT pg_get_expr(f.adbin, 0) = this.expression AS same
        FROM pg_attrdef f WHERE f.adrelid = d AND f.adnum = a.attnum) f ON true;

    -- Written, and not only locked: on a new timeline that leaves out what may have been lost. What
    -- this transaction has issued of a tag that it has made is not in the row yet.
    UPDATE leaf_id.leaf_alloc a SET max_id = a.max_id WHERE a.biz_tag = this.tag
    RETURNING a.max_id, a.server INTO tag_row;
    IF FOUND THEN
        IF tag_row.server IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('cannot release column "%s" of table %s from tag "%s", which is sourced from server "%s"',
                    $2, this.table_name, this.tag, tag_row.server),
                DETAIL = 'Other servers have ids of it, and nobody here knows which.',
                HINT = 'Set a default yourself that repeats no id of theirs.';
        END IF;
        taken := greatest(tag_row.max_id, leaf_id.leaf_tag_next(this.tag)) - 1;
    END IF;
    taken := greatest(0, taken, leaf_id.leaf_largest_value($1, $2));
    -- One that leaf_adopt() had to leave.
    SELECT d.objid INTO sequence
    FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY (this.sequences) AND d.deptype = 'a'
        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = this.number
    ORDER BY d.objid LIMIT 1;
    IF sequence IS NOT NULL THEN
        EXECUTE format('ALTER SEQUENCE %s NO CYCLE', sequence::regclass);
        taken := greatest(taken, leaf_id.leaf_largest_taken(sequence));
    END IF;
    IF taken >= this.last_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'sequence_generator_limit_exceeded',
            MESSAGE = format('no ids are left for column "%s" of table %s', $2, this.table_name),
            DETAIL = format('Ids up to %s are taken, and the last one is %s.', taken, this.last_id);
    END IF;
    first_id := taken + 1;

    IF sequence IS NOT NULL THEN
        EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', sequence::regclass, first_id);
    ELSIF this.not_null AND this.type_name = this.base_type AND (heirs = '{}' AND NOT (others_have_defaults AND
            EXISTS (SELECT FROM pg_class c WHERE c.oid = $1 AND c.relkind = 'p'))
        -- From 17 on, partitions share the identity of their table.
        OR NOT others_have_defaults AND current_setting('server_version_num')::integer >= 170000 AND
            EXISTS (SELECT FROM pg_class c WHERE c.oid = $1 AND c.relkind = 'p'))
    THEN
        source := 'identity';
        FOREACH heir IN ARRAY $1 || heirs LOOP
            EXECUTE format('ALTER TABLE ONLY %s ALTER %I DROP DEFAULT', heir::regclass, $2);
        END LOOP;
        EXECUTE format('ALTER TABLE %s ALTER %I ADD GENERATED BY DEFAULT AS IDENTITY (START WITH %s)',
            this.table_name, $2, first_id);
    ELSE
        sequence := leaf_id.leaf_create_sequence($1, $2, this.base_type, first_id);
    END IF;
    IF source IS NULL THEN
        FOR grantee IN
            SELECT DISTINCT CASE WHEN x.grantee = 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END AS name
            FROM pg_class c
            CROSS JOIN LATERAL (
                SELECT * FROM aclexplode(c.relacl)
                UNION ALL
                SELECT g.* FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) g
                WHERE a.attrelid = c.oid AND NOT a.attisdropped
            ) x
            WHERE c.oid IN (SELECT $1 UNION ALL SELECT d FROM leaf_id.leaf_descendants($1) d)
                AND x.privilege_type = 'INSERT' AND x.grantee <> c.relowner
        LOOP
            EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %s', sequence::regclass, grantee.name);
        END LOOP;
        notices := notices || format('roles that may insert into table %s may use sequence %s',
            this.table_name, sequence::regclass);
        source := sequence::regclass::text;
        FOREACH heir IN ARRAY $1 || heirs LOOP
            EXECUTE format('ALTER TABLE ONLY %s ALTER %I SET DEFAULT pg_catalog.nextval(%L::pg_catalog.regclass)',
                heir::regclass, $2, sequence::regclass);
        END LOOP;
    END IF;
    FOREACH heir IN ARRAY $1 || heirs LOOP
        IF leaf_id.leaf_takes_from_tag(heir, $2) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_in_use',
                MESSAGE = format('%s was changed by somebody else meanwhile', heir::regclass),
                HINT = 'Try again.';
        END IF;
    END LOOP;

    SELECT string_agg(format('%s.%I', u.relation::regclass, u.column_name), ', ') INTO users
    FROM leaf_id.leaf_columns_of_tag(this.tag) u;
    IF users IS NOT NULL THEN
        notices := notices || format('tag "%s" stays, as other columns use it: %s', this.tag, users);
    ELSE
        -- Whoever still asks for its ids gets an error, and not an id that collides.
        DELETE FROM leaf_id.leaf_alloc a WHERE a.biz_tag = this.tag;
    END IF;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_release_locked(oid, name) IS 'The work of leaf_release(), on a table that is locked';

-- The tries, of which one does the work.
CREATE FUNCTION leaf_id.leaf_move(
    relation regclass, column_name name, tag text, step integer, is_release boolean
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- All in milliseconds.
    deadlock_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'deadlock_timeout');
    -- The caller's own, 0 for none.
    lock_timeout CONSTANT integer := (SELECT s.setting FROM pg_settings s WHERE s.name = 'lock_timeout');
    -- Everything after the first lock.
    short_wait CONSTANT integer := greatest(1, least(20, deadlock_timeout / 4));
    total_wait CONSTANT integer := CASE WHEN lock_timeout > 0 THEN least(60000, 20 * lock_timeout::bigint) ELSE 60000 END;
    wait float8 := 50;

    this record;
    moved record;
    started timestamptz := clock_timestamp();
    locked timestamptz;
    asked timestamptz;
    patience float8;
    tries integer := 0;
    descendant oid;
    descendants oid[];
    missing oid[];
    leftover oid[] := '{}';
    sequence oid;
    users text;
    unindexed bigint;
    holders text;
    result text;
    line text;
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'a table and a column are needed';
    END IF;
    -- An older snapshot would not show the rows that were committed before the lock.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = 'columns can be moved only in a READ COMMITTED transaction';
    END IF;
    -- What is to be refused is, before anybody has waited for it.
    SELECT * INTO this FROM leaf_id.leaf_column($1, $2);
    IF $5 AND this.tag IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('column "%s" of table %s takes its ids from no tag', $2, this.table_name);
    ELSIF NOT $5 AND $3 <> this.tag THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('column "%s" of table %s takes its ids from tag "%s"', $2, this.table_name, this.tag),
            HINT = 'leaf_release() takes it back first.';
    ELSIF NOT $5 AND this.tag IS NULL AND $3 IS NULL THEN
        result := leaf_id.leaf_default_tag($1, this.number);
        IF EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = result) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'duplicate_object',
                MESSAGE = format('tag "%s" exists already', result),
                HINT = 'Name it to use it all the same, or name another one: leaf_adopt(relation, column_name, tag).';
        END IF;
    END IF;
    IF NOT has_table_privilege('leaf_id.leaf_alloc', CASE WHEN $5 THEN 'DELETE' ELSE 'INSERT' END) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'permission denied for table leaf_alloc';
    END IF;

    IF NOT $5 AND this.tag IS NOT NULL THEN
        -- The call before had to leave its sequence.
        FOREACH sequence IN ARRAY this.sequences LOOP
            users := leaf_id.leaf_users_of_sequence(sequence);
            IF users IS NULL THEN
                leftover := leftover || sequence;
            ELSE
                RAISE NOTICE USING
                    MESSAGE = format('sequence %s stays, as something else depends on it: %s', sequence::regclass, users);
            END IF;
        END LOOP;
        IF leftover = '{}' THEN
            RAISE NOTICE USING
                MESSAGE = format('column "%s" of table %s takes its ids from tag "%s" already', $2, this.table_name, this.tag);
            RETURN this.tag;
        END IF;
    ELSE
        -- As of its last VACUUM or ANALYZE: to look at the file is to wait for who has locked it.
        SELECT sum(c.relpages::bigint * current_setting('block_size')::integer) INTO unindexed
        FROM (SELECT $1::oid AS oid UNION ALL SELECT d FROM leaf_id.leaf_descendants($1) d) m
        JOIN pg_class c ON c.oid = m.oid AND c.relkind = 'r'
        JOIN pg_attribute t ON t.attrelid = c.oid AND t.attname = $2
        WHERE NOT EXISTS (
            SELECT FROM pg_index i
            JOIN pg_class x ON x.oid = i.indexrelid
            JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
            WHERE i.indrelid = c.oid AND i.indkey[0] = t.attnum AND i.indpred IS NULL AND i.indisvalid);
        -- A second or less.
        IF unindexed > 100000000 THEN
            RAISE NOTICE USING
                MESSAGE = format('%s of table %s will be read while it is locked, as column "%s" has no index',
                    pg_size_pretty(unindexed), this.table_name, $2),
                HINT = 'With an index on the column, it takes milliseconds.';
        END IF;
    END IF;

    LOOP
        tries := tries + 1;
        BEGIN
            PERFORM set_config('lock_timeout', ceil(CASE WHEN lock_timeout > 0 THEN least(wait, lock_timeout) ELSE wait END)::text, true);
            IF leftover <> '{}' THEN
                FOREACH sequence IN ARRAY leftover LOOP
                    PERFORM leaf_id.leaf_drop_sequence(sequence);
                END LOOP;
                SELECT ARRAY[]::text[] AS notices INTO moved;
            ELSE
                EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', this.table_name);
                locked := clock_timestamp();
                -- No partition or child can be attached to what is locked. All of them together
                -- may wait for so long; how many there are does not count.
                patience := least(deadlock_timeout / 4, 250);
                descendants := '{}';
                LOOP
                    SELECT array_agg(d) INTO missing FROM leaf_id.leaf_descendants($1) d WHERE d <> ALL (descendants);
                    EXIT WHEN missing IS NULL;
                    FOREACH descendant IN ARRAY missing LOOP
                        PERFORM set_config('lock_timeout', ceil(greatest(1, patience))::text, true);
                        asked := clock_timestamp();
                        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', descendant::regclass);
                        patience := patience - greatest(0, 1000 * extract(epoch FROM clock_timestamp() - asked) - 1);
                        IF patience < 0 THEN
                            RAISE lock_not_available;
                        END IF;
                    END LOOP;
                    descendants := descendants || missing;
                END LOOP;
                PERFORM set_config('lock_timeout', short_wait::text, true);
                IF $5 THEN
                    SELECT * INTO moved FROM leaf_id.leaf_release_locked($1, $2);
                ELSE
                    SELECT * INTO moved FROM leaf_id.leaf_adopt_locked($1, $2, $3, $4, false);
                END IF;
            END IF;
            PERFORM set_config('lock_timeout', lock_timeout::text, true);
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            SELECT string_agg(DISTINCT coalesce('process ' || l.pid, 'a prepared transaction'), ', ') INTO holders
            FROM pg_locks l
            WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
                AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
                AND (l.relation = $1 OR l.relation = ANY (this.sequences)
                    OR l.relation IN (SELECT d FROM leaf_id.leaf_descendants($1) d));
        END;
        IF clock_timestamp() > started + make_interval(secs => total_wait / 1000.0) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = format('table %s could not be locked', this.table_name),
                DETAIL = format('Tried %s times in %s ms; at the last time it, or its sequence, was in use by %s.',
                    tries, round(1000 * extract(epoch FROM clock_timestamp() - started)), coalesce(holders, 'a transaction that has ended since')),
                HINT = 'Try again when no long transaction uses the table.';
        END IF;
        -- The others' turn.
        PERFORM pg_sleep(wait * (0.5 + random() / 2) / 1000);
        wait := least(wait * 1.6, 3000);
    END LOOP;

    FOREACH line IN ARRAY moved.notices LOOP
        RAISE NOTICE USING MESSAGE = line;
    END LOOP;
    IF leftover <> '{}' THEN
        result := this.tag;
        line := format('the former sequence of column "%s" of table %s was dropped', $2, this.table_name);
    ELSIF $5 THEN
        result := moved.source;
        line := format('column "%s" of table %s takes its ids from %s, from %s on',
            $2, this.table_name,
            CASE moved.source WHEN 'identity' THEN 'an identity' ELSE format('sequence %s', moved.source) END,
            moved.first_id);
    ELSE
        result := moved.used_tag;
        line := format('column "%s" of table %s takes its ids from tag "%s", from %s on',
            $2, this.table_name, moved.used_tag, moved.first_id);
    END IF;
    users := format('Locked by try %s, after %s ms; the work took %s ms. The lock stays until the transaction ends.',
        tries,
        round(1000 * extract(epoch FROM coalesce(locked, clock_timestamp()) - started)),
        round(1000 * extract(epoch FROM clock_timestamp() - locked), 1));
    RAISE NOTICE USING MESSAGE = line, DETAIL = users;
    RAISE LOG USING MESSAGE = 'leaf_id: ' || line, DETAIL = users;
    RETURN result;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_move(regclass, name, text, integer, boolean) IS
    'What leaf_adopt() and leaf_release() do';

CREATE FUNCTION @extschema@.leaf_adopt(
    relation regclass, column_name name, tag text DEFAULT NULL, step integer DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN leaf_id.leaf_move($1, $2, $3, $4, false);
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_adopt(regclass, name, text, integer) IS
    'Moves a column from its sequence to a tag, above all ids so far; returns the tag';

CREATE FUNCTION @extschema@.leaf_release(relation regclass, column_name name) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN leaf_id.leaf_move($1, $2, NULL, NULL, true);
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_release(regclass, name) IS
    'Moves a column from its tag back to an identity or a sequence, above all ids so far; returns the sequence, or the word identity';

-- Called at the end of CREATE TABLE (with none: all columns are new) and of ALTER TABLE, with the
-- columns that it has added. The table is locked.
CREATE FUNCTION leaf_id.leaf_adopt_new(added text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_column record;
    moved record;
    line text;
    state text;
    message text;
    detail text;
BEGIN
    FOR new_column IN
        -- One ALTER TABLE may be several.
        SELECT DISTINCT t.objid AS relation, t.object_identity AS table_name, a.attnum, a.attname AS name
        FROM pg_event_trigger_ddl_commands() t
        JOIN pg_class c ON c.oid = t.objid
        JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE t.classid = 'pg_class'::regclass AND t.command_tag IN ('CREATE TABLE', 'ALTER TABLE') AND NOT t.in_extension
            AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
            AND a.attnum > 0 AND a.attinhcount = 0 AND (added = '{}' OR a.attname = ANY (added))
            -- Its own sequence, and not one that was there before (LIKE, ADD COLUMN IF NOT EXISTS).
            AND EXISTS (
                SELECT FROM pg_event_trigger_ddl_commands() s
                JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.objid
                WHERE s.classid = 'pg_class'::regclass AND s.command_tag = 'CREATE SEQUENCE'
                    AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
                    AND d.deptype IN ('a', 'i'))
        ORDER BY a.attnum
    LOOP
        BEGIN
            SELECT * INTO moved FROM leaf_id.leaf_adopt_locked(new_column.relation, new_column.name, NULL, NULL, true);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS
                state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
            RAISE EXCEPTION USING
                ERRCODE = state,
                MESSAGE = format('no tag for the new column "%s" of table %s: %s',
                    new_column.name, new_column.table_name, message),
                DETAIL = detail,
                HINT = 'To create it with its sequence: SET leaf_id.adopt_new_columns = off. A tag can be had later, by leaf_adopt().';
        END;
        FOREACH line IN ARRAY moved.notices LOOP
            RAISE NOTICE USING MESSAGE = line;
        END LOOP;
        RAISE LOG USING
            MESSAGE = format('leaf_id: new column "%s" of table %s takes its ids from tag "%s", from %s on',
                new_column.name, new_column.table_name, moved.used_tag, moved.first_id);
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_adopt_new(text[]) IS
    'Gives new serial and identity columns a tag, where leaf_id.adopt_new_columns is on';

CREATE FUNCTION @extschema@.leaf_adopt_new_columns() RETURNS event_trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_adopt_new_columns_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_adopt_new_columns() IS
    'Event trigger: gives new serial and identity columns a tag, where leaf_id.adopt_new_columns is on';

-- Not fired where session_replication_role is replica.
CREATE EVENT TRIGGER leaf_adopt_new_columns ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE')
    EXECUTE FUNCTION @extschema@.leaf_adopt_new_columns();
COMMENT ON EVENT TRIGGER leaf_adopt_new_columns IS 'Acts where leaf_id.adopt_new_columns is on';
