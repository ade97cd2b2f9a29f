-- Privileges: the last part of the script. All privileges on the extension's objects are granted
-- here and nowhere else. An update script does the same for its additions.

-- No foreign code (I9): the tables, views and functions depend only on objects of
-- PostgreSQL or of the extension. Otherwise a schema renamed while the script runs could substitute
-- its owner's function for one of ours.
DO $$
DECLARE
    stranger pg_catalog.text;
BEGIN
    WITH members AS (
        SELECT d.classid, d.objid
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE e.extname OPERATOR(pg_catalog.=) 'leaf_id'
            AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
            AND d.deptype OPERATOR(pg_catalog.=) 'e'
    ), relations AS (
        SELECT m.objid FROM members m
        WHERE m.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
    ), parts AS (
        SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass AS classid, r.oid AS objid
        FROM pg_catalog.pg_rewrite r JOIN relations m ON m.objid OPERATOR(pg_catalog.=) r.ev_class
        UNION ALL
        SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, t.oid
        FROM pg_catalog.pg_trigger t JOIN relations m ON m.objid OPERATOR(pg_catalog.=) t.tgrelid
        UNION ALL
        SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid
        FROM pg_catalog.pg_constraint c JOIN relations m ON m.objid OPERATOR(pg_catalog.=) c.conrelid
        UNION ALL
        SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, a.oid
        FROM pg_catalog.pg_attrdef a JOIN relations m ON m.objid OPERATOR(pg_catalog.=) a.adrelid
        UNION ALL
        SELECT m.classid, m.objid FROM members m
        WHERE m.classid OPERATOR(pg_catalog.=) ANY (ARRAY[
            'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid,
            'pg_catalog.pg_ts_parser'::pg_catalog.regclass::pg_catalog.oid])
    )
    -- Objects created by initdb have no entry.
    SELECT pg_catalog.pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid) INTO stranger
    FROM pg_catalog.pg_depend d
    JOIN parts p ON p.classid OPERATOR(pg_catalog.=) d.classid AND p.objid OPERATOR(pg_catalog.=) d.objid
    -- PL/pgSQL, the schema and the extension are not code.
    WHERE d.refclassid OPERATOR(pg_catalog.<>) ALL (ARRAY[
        'pg_catalog.pg_language'::pg_catalog.regclass::pg_catalog.oid,
        'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid,
        'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid])
    AND NOT EXISTS (
        SELECT FROM members m
        WHERE m.classid OPERATOR(pg_catalog.=) d.refclassid AND m.objid OPERATOR(pg_catalog.=) d.refobjid)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('extension leaf_id would use %s, which is not its own', stranger);
    END IF;
END
$$;

-- Revokes everything granted by ALTER DEFAULT PRIVILEGES, and by PostgreSQL to PUBLIC: a role with
-- ALL on a table may add a trigger to it.
DO $$
DECLARE
    statement pg_catalog.text;
BEGIN
    FOR statement IN
        WITH members AS (
            SELECT d.classid, d.objid
            FROM pg_catalog.pg_depend d
            JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
            WHERE e.extname OPERATOR(pg_catalog.=) 'leaf_id'
                AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
                AND d.deptype OPERATOR(pg_catalog.=) 'e'
        ), objects AS (
            SELECT 'SCHEMA' AS kind, n.oid::pg_catalog.regnamespace::pg_catalog.text AS name,
                n.nspowner AS owner, n.nspacl AS acl
            FROM pg_catalog.pg_namespace n
            JOIN members m ON m.objid OPERATOR(pg_catalog.=) n.oid
                AND m.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
            UNION ALL
            SELECT 'TABLE', c.oid::pg_catalog.regclass::pg_catalog.text, c.relowner, c.relacl
            FROM pg_catalog.pg_class c
            JOIN members m ON m.objid OPERATOR(pg_catalog.=) c.oid
                AND m.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
            UNION ALL
            SELECT 'ROUTINE', p.oid::pg_catalog.regprocedure::pg_catalog.text, p.proowner,
                -- Without an ACL, PUBLIC may execute it.
                coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
            FROM pg_catalog.pg_proc p
            JOIN members m ON m.objid OPERATOR(pg_catalog.=) p.oid
                AND m.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
        )
        SELECT DISTINCT pg_catalog.format('REVOKE ALL ON %s %s FROM %s', o.kind, o.name,
            CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END)
        FROM objects o CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) a
        WHERE a.grantee OPERATOR(pg_catalog.<>) o.owner
    LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

-- All roles may issue and read ids.
GRANT EXECUTE ON FUNCTION
    @extschema@.leaf_segment_next(text),
    @extschema@.leaf_segment_next_batch(text, integer),
    @extschema@.leaf_segment_next_range(text, integer),
    @extschema@.leaf_opaque_next(text),
    @extschema@.leaf_ordered_next(text),
    @extschema@.leaf_ordered_watermark(text),
    @extschema@.leaf_snowflake_next(),
    @extschema@.leaf_snowflake_next_batch(integer),
    @extschema@.leaf_snowflake_decode(bigint),
    @extschema@.leaf_snowflake_decode(bigint, bigint, text),
    @extschema@.leaf_snowflake_time(bigint),
    @extschema@.leaf_snowflake_time(bigint, bigint, text),
    @extschema@.leaf_snowflake_min(timestamptz),
    @extschema@.leaf_snowflake_min(timestamptz, bigint, text),
    @extschema@.leaf_snowflake_compose(timestamptz, integer, bigint),
    @extschema@.leaf_snowflake_compose(timestamptz, integer, bigint, bigint, text),
    @extschema@.leaf_format(bigint, text),
    @extschema@.leaf_parse(text, text)
TO PUBLIC;
-- The twins of two of these, used by COPY. They check EXECUTE on the original function.
GRANT EXECUTE ON FUNCTION
    leaf_id_internal.leaf_segment_next_stable(text, oid, internal), leaf_id_internal.leaf_snowflake_next_stable(oid, internal)
TO PUBLIC;

-- Functions that move columns: all with the caller's rights on the table and on leaf_alloc.
GRANT EXECUTE ON FUNCTION
    @extschema@.leaf_adopt(regclass, name, text, integer, boolean),
    @extschema@.leaf_release(regclass, name),
    leaf_id_internal.leaf_family(oid),
    leaf_id_internal.leaf_raise_changed(oid),
    leaf_id_internal.leaf_owned_sequences(oid, smallint),
    leaf_id_internal.leaf_obstacle(oid, smallint, bigint, text, oid, oid[]),
    leaf_id_internal.leaf_refuse_move(name, text, text, text),
    leaf_id_internal.leaf_column(oid, name),
    leaf_id_internal.leaf_followers(oid, name, "char", text, oid),
    leaf_id_internal.leaf_alter_defaults(oid[], name, text),
    leaf_id_internal.leaf_default_tag(oid, smallint),
    leaf_id_internal.leaf_is_numbered_by_insert(oid[]),
    leaf_id_internal.leaf_roles_with_insert(oid),
    leaf_id_internal.leaf_roles_of_column(oid, oid[]),
    leaf_id_internal.leaf_indirect_grants(oid, text),
    leaf_id_internal.leaf_check_rights(text, name[], name, text),
    leaf_id_internal.leaf_carry_rights(text, name[]),
    leaf_id_internal.leaf_largest_value(oid, name),
    leaf_id_internal.leaf_users_of_sequence(oid, name, oid[]),
    leaf_id_internal.leaf_code_of_sequence(oid),
    leaf_id_internal.leaf_largest_taken(oid),
    leaf_id_internal.leaf_close_sequence(oid),
    leaf_id_internal.leaf_small_references(oid, smallint, bigint),
    leaf_id_internal.leaf_raise_tag_exists(text, name, text),
    leaf_id_internal.leaf_give_tag(text, name, text, numeric, bigint, integer, boolean),
    leaf_id_internal.leaf_other_sources(name, oid[], text),
    leaf_id_internal.leaf_tell_unindexed(oid, name, text),
    leaf_id_internal.leaf_lock_relation(oid),
    leaf_id_internal.leaf_lock_rest(oid, oid[], float8),
    leaf_id_internal.leaf_assert_locked(oid, oid[]),
    leaf_id_internal.leaf_lock_holders(oid, oid[]),
    leaf_id_internal.leaf_lock_to_move(oid, text, oid[]),
    leaf_id_internal.leaf_begin_move(oid, name),
    leaf_id_internal.leaf_end_move(text, text[], text),
    leaf_id_internal.leaf_refuse_adoption(oid, smallint, name, text, oid[], oid[]),
    leaf_id_internal.leaf_plan_adoption(oid, name, text, integer, boolean),
    leaf_id_internal.leaf_check_adopted(name, oid[], oid[], text, bigint, name[]),
    leaf_id_internal.leaf_adopt_column(regclass, name, text, integer, boolean),
    leaf_id_internal.leaf_create_sequence(oid, smallint, name, regtype, bigint),
    leaf_id_internal.leaf_grant_sequence(oid, name[]),
    leaf_id_internal.leaf_roles_of_tag(oid, text),
    leaf_id_internal.leaf_insert_is_enough(oid, text),
    leaf_id_internal.leaf_last_of_tag(text, name, text),
    leaf_id_internal.leaf_plan_release(oid, name),
    leaf_id_internal.leaf_check_released(smallint, name, oid[], oid, boolean, bigint, name[]),
    leaf_id_internal.leaf_release_column(regclass, name),
    leaf_id_internal.leaf_movable_columns(name, boolean)
TO PUBLIC;
GRANT EXECUTE ON PROCEDURE
    @extschema@.leaf_adopt_all(name, boolean),
    @extschema@.leaf_release_all(name),
    leaf_id_internal.leaf_may_commit(boolean),
    leaf_id_internal.leaf_move_all(name, boolean, boolean)
TO PUBLIC;

-- Functions that manage tags run with the caller's rights: they require privileges on leaf_alloc,
-- so one GRANT on that table makes a role a manager of tags. USAGE on the schemas opens no table,
-- and makes no name in granted_to valid, where only a role's own USAGE counts.
GRANT USAGE ON SCHEMA leaf_id, leaf_id_internal TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.leaf_tag_create(text, bigint, integer, integer, bigint, text, text, boolean, boolean),
    @extschema@.leaf_tag_drop(text, boolean, boolean, boolean),
    @extschema@.leaf_tag_reset(text, bigint, boolean),
    @extschema@.leaf_tag_grant(text, text),
    @extschema@.leaf_tag_revoke(text, text),
    @extschema@.leaf_sync(text),
    @extschema@.leaf_sync(text, regclass, name),
    @extschema@.leaf_check(text),
    leaf_id_internal.leaf_fit_tags(text, boolean),
    leaf_id_internal.leaf_used_up(bigint, bigint, bigint),
    leaf_id_internal.leaf_default_source(pg_node_tree, oid, integer),
    leaf_id_internal.leaf_issuers(),
    leaf_id_internal.leaf_issuer(),
    leaf_id_internal.leaf_issuing_columns(text, boolean),
    leaf_id_internal.leaf_columns_of_tag(text),
    leaf_id_internal.leaf_values_of_tag(text, numeric),
    leaf_id_internal.leaf_obstacle_to_tag(text, bigint),
    leaf_id_internal.leaf_named_tags(pg_node_tree, oid[], integer),
    leaf_id_internal.leaf_read_tables(text),
    leaf_id_internal.leaf_missing_grant(text, oid),
    leaf_id_internal.leaf_missing_grants(text),
    leaf_id_internal.leaf_create_for_columns(text, boolean, bigint, bigint, boolean, boolean, bigint),
    leaf_id_internal.leaf_raise_for_columns(text, boolean, bigint),
    leaf_id_internal.leaf_skip_ids(text, bigint),
    leaf_id_internal.leaf_tags_without_columns(text),
    leaf_id_internal.leaf_column_max(oid, smallint),
    leaf_id_internal.leaf_unsettled(),
    leaf_id_internal.leaf_is_unsettled(bigint, integer),
    leaf_id_internal.leaf_tag_next(text),
    leaf_id_internal.leaf_mark(text),
    leaf_id_internal.leaf_has_key(text),
    leaf_id_internal.leaf_make_key(text, bigint, text),
    leaf_id_internal.leaf_forget(text),
    leaf_id_internal.leaf_function_name(text),
    leaf_id_internal.leaf_wrong_argument(text, bigint, integer, integer, bigint),
    leaf_id_internal.leaf_grantee(text),
    leaf_id_internal.leaf_grantees(text),
    leaf_id_internal.leaf_is_grantee(name),
    leaf_id_internal.leaf_gapless_restart(text, bigint),
    leaf_id_internal.leaf_check_preloaded(boolean),
    leaf_id_internal.leaf_grant_tag(text, text),
    leaf_id_internal.leaf_is_manager(oid),
    leaf_id_internal.leaf_can_issue(oid, text),
    leaf_id_internal.leaf_owner_counts(oid, text),
    leaf_id_internal.leaf_may_have_grant(oid),
    leaf_id_internal.leaf_create_tag(text, bigint, integer, integer, bigint, text, text, boolean, boolean),
    leaf_id_internal.leaf_check_start(text, bigint),
    leaf_id_internal.leaf_unindexed_size(oid, name),
    leaf_id.leaf_left(bigint, integer, integer, bigint, integer, integer, boolean),
    -- The same with leaf_gapless. Not leaf_gapless_next(), whose callers can block each other.
    leaf_id.leaf_gapless_create(text, bigint),
    leaf_id.leaf_gapless_drop(text, boolean)
TO PUBLIC;

-- The views and the functions under them check their readers: roles that may read leaf_alloc see
-- what is of this database, and pg_monitor what is of the server. leaf_registry shows a move;
-- leaf_gapless has no view.
GRANT SELECT ON leaf_id.tags, leaf_id.tags_detail, leaf_id.problems, leaf_id.server, leaf_id.fleet TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    leaf_id_internal.leaf_require(text),
    leaf_id_internal.leaf_shown_tags(),
    leaf_id_internal.leaf_ordered_holders(),
    leaf_id_internal.leaf_leases(),
    leaf_id_internal.leaf_segment_slots(),
    leaf_id_internal.leaf_central_connections(),
    leaf_id_internal.leaf_server_state(),
    leaf_id_internal.leaf_narrowest_columns(),
    leaf_id_internal.leaf_missing_tags(),
    leaf_id_internal.leaf_is_narrow(bigint, bigint),
    leaf_id_internal.leaf_tag_problems(),
    leaf_id_internal.leaf_server_problems()
TO PUBLIC;
GRANT SELECT ON leaf_id.leaf_alloc, leaf_id.leaf_registry, leaf_id.leaf_gapless TO pg_monitor;

-- The installing role need not be a superuser. It manages tags and the worker registry, grants that
-- to others, and dumps and restores the tables (SELECT and INSERT). It owns none of them, and gets
-- no privilege that would run its code in the statements of others (TRIGGER) or block them
-- (REFERENCES, TRUNCATE).
GRANT USAGE ON SCHEMA leaf_id TO @extowner@ WITH GRANT OPTION;
GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO @extowner@ WITH GRANT OPTION;
-- No UPDATE: an existing series is only incremented by leaf_gapless_next().
GRANT SELECT, INSERT, DELETE ON leaf_id.leaf_gapless TO @extowner@ WITH GRANT OPTION;
-- To forget how far a series was counted.
GRANT SELECT, DELETE ON leaf_id.leaf_gapless_mark TO @extowner@ WITH GRANT OPTION;
-- To dump and restore marks.
GRANT INSERT ON leaf_id.leaf_gapless_mark TO @extowner@;
GRANT SELECT, INSERT ON leaf_id.leaf_high_mark TO @extowner@;
GRANT SELECT, INSERT ON leaf_id.leaf_worker, leaf_id.leaf_registry, leaf_id.leaf_opaque_key TO @extowner@;
-- Settings of the registry.
GRANT UPDATE (epoch_ms, layout, max_skew_ms, grant_ahead_ms, max_ids_per_role, moved_at, moved_floor_ms) ON leaf_id.leaf_registry TO @extowner@;
GRANT EXECUTE ON FUNCTION
    @extschema@.leaf_tag_create(text, bigint, integer, integer, bigint, text, text, boolean, boolean),
    @extschema@.leaf_tag_drop(text, boolean, boolean, boolean),
    @extschema@.leaf_tag_reset(text, bigint, boolean),
    @extschema@.leaf_tag_grant(text, text),
    @extschema@.leaf_tag_revoke(text, text),
    @extschema@.leaf_sync(text),
    @extschema@.leaf_sync(text, regclass, name),
    @extschema@.leaf_check(text),
    leaf_id.leaf_gapless_create(text, bigint),
    leaf_id.leaf_gapless_drop(text, boolean),
    leaf_id.leaf_gapless_next(text),
    leaf_id.leaf_opaque_encode(text, bigint),
    leaf_id.leaf_opaque_decode(text, bigint),
    leaf_id.leaf_opaque_key(text),
    leaf_id.leaf_opaque_create(text, bigint, integer, integer, text, text),
    leaf_id.leaf_claim(internal, integer),
    leaf_id.leaf_worker_lease(internal, integer),
    leaf_id.leaf_worker_retire(integer, boolean),
    leaf_id.leaf_worker_set_aside(integer, timestamptz)
TO @extowner@ WITH GRANT OPTION;
