-- Rights per tag. Both functions run with the caller's rights. The caller needs SELECT and UPDATE
-- on leaf_alloc and, to grant to a role, USAGE on the schema WITH GRANT OPTION. PUBLIC's USAGE
-- makes no name valid; only a grant to the role itself does, on the schema or on leaf_alloc.

CREATE FUNCTION leaf_id_internal.leaf_is_manager(role oid) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT has_table_privilege($1, 'leaf_id.leaf_alloc'::regclass, 'UPDATE') OR pg_has_role($1, 'pg_database_owner', 'USAGE')
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_is_manager(oid) IS
    'Whether a role may edit tags, or drop the database';

CREATE FUNCTION leaf_id_internal.leaf_grantee(role text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- PUBLIC in any case, as in GRANT, unless a role has that name.
    SELECT CASE WHEN lower($1) = 'public' AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1)
        THEN 'public' ELSE $1 END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_grantee(text) IS 'The name of a role, or public, as in granted_to';

-- Otherwise its entries in rows belong to a dropped role of the same name; as caller_is_one_of() in
-- src/pg/roles.rs.
CREATE FUNCTION leaf_id_internal.leaf_is_grantee(role name) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT $1 = 'public' OR EXISTS (
        SELECT FROM pg_namespace n, pg_class c, aclexplode(n.nspacl || c.relacl) a, pg_roles r
        WHERE n.nspname = 'leaf_id' AND c.oid = 'leaf_id.leaf_alloc'::regclass
            AND r.rolname = $1 AND a.grantee = r.oid)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_is_grantee(name) IS
    'Whether a name in granted_to counts: its role has a grant on the schema or on leaf_alloc, directly';

CREATE FUNCTION leaf_id_internal.leaf_grantees(tag text) RETURNS name[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(g.name), '{}')
    FROM leaf_id.leaf_alloc a CROSS JOIN LATERAL unnest(a.granted_to) g (name)
    WHERE a.biz_tag = $1 AND leaf_id_internal.leaf_is_grantee(g.name)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_grantees(text) IS
    'The roles that may issue ids of a tag because of a grant';

-- As the library decides when an id is taken. The owner of the database has no right by that alone.
CREATE FUNCTION leaf_id_internal.leaf_can_issue(role oid, tag text) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT has_table_privilege($1, 'leaf_id.leaf_alloc', 'UPDATE') OR EXISTS (
        SELECT FROM unnest(leaf_id_internal.leaf_grantees($2)) g (name) LEFT JOIN pg_roles r ON r.rolname = g.name
        WHERE g.name = 'public' OR pg_has_role($1, r.oid, 'USAGE'))
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_can_issue(oid, text) IS 'Whether a role may issue ids of this tag';

-- Whose object counts: one predicate for the statements that a table's or a domain's owner makes about
-- a tag. One that may not issue it could do nothing to it directly. Who opens a tag to PUBLIC has opened
-- it to all.
CREATE FUNCTION leaf_id_internal.leaf_owner_counts(owner oid, tag text) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_has_role($1, 'pg_database_owner', 'USAGE') OR leaf_id_internal.leaf_can_issue($1, $2)
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_owner_counts(oid, text) IS
    'Whether an object of this owner counts: who may edit tags, drop the database, or issue ids of this tag';

-- A name in granted_to counts only with a grant on the schema or on leaf_alloc.
CREATE FUNCTION leaf_id_internal.leaf_may_have_grant(role oid) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
            SELECT FROM pg_namespace n, pg_class c, aclexplode(n.nspacl || c.relacl) a
            WHERE n.nspname = 'leaf_id' AND c.oid = 'leaf_id.leaf_alloc'::regclass
                AND a.grantee <> 0 AND pg_has_role($1, a.grantee, 'USAGE'))
        OR EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE 'public' = ANY (a.granted_to))
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_may_have_grant(oid) IS
    'False if a role may issue ids of no tag';

CREATE FUNCTION leaf_id_internal.leaf_grant_tag(tag text, role text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require('SELECT, UPDATE');
    grantee_name CONSTANT text := leaf_id_internal.leaf_grantee($2);
    missing record;
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = format('argument "%s" of leaf_tag_grant() must not be null', 'tag');
    END IF;
    -- The cast below would truncate it, perhaps to the name of another role.
    IF grantee_name IS NULL OR octet_length(grantee_name) > 63 THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_name', MESSAGE = 'a role has a name of at most 63 bytes';
    END IF;
    IF grantee_name <> 'public' THEN
        IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = grantee_name) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = format('role "%s" does not exist', grantee_name);
        END IF;
        IF NOT leaf_id_internal.leaf_is_grantee(grantee_name::name) THEN
            UPDATE leaf_id.leaf_alloc a SET granted_to = array_remove(a.granted_to, grantee_name::name)
            WHERE grantee_name::name = ANY (a.granted_to);
        END IF;
        -- With this grant the role cannot be dropped, and its name is valid only while it has the
        -- grant: a later role of the same name does not get the rights.
        EXECUTE format('GRANT USAGE ON SCHEMA leaf_id TO %I', grantee_name);
        IF NOT EXISTS (
            SELECT FROM pg_namespace n, aclexplode(n.nspacl) a, pg_roles r
            WHERE n.nspname = 'leaf_id' AND r.rolname = grantee_name AND a.grantee = r.oid
                AND a.privilege_type = 'USAGE')
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format('permission denied to grant tag "%s"', $1),
                DETAIL = 'Granting a tag to a role requires USAGE on schema leaf_id WITH GRANT OPTION.';
        END IF;
    END IF;
    UPDATE leaf_id.leaf_alloc a
    SET granted_to = array_append(array_remove(a.granted_to, grantee_name::name), grantee_name::name)
    WHERE a.biz_tag = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('tag "%s" does not exist', $1);
    END IF;
    FOR missing IN SELECT m.what, m.remedy FROM leaf_id_internal.leaf_missing_grants($1) m WHERE m.role = grantee_name LOOP
        RAISE NOTICE USING MESSAGE = missing.what, HINT = format('To let it: %s;', missing.remedy);
    END LOOP;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_grant_tag(text, text) IS 'What leaf_tag_grant() does';

CREATE FUNCTION @extschema@.leaf_tag_grant(tag text, role text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'SELECT leaf_id_internal.leaf_grant_tag($1, $2)';
COMMENT ON FUNCTION @extschema@.leaf_tag_grant(text, text) IS
    'Lets a role issue ids of a tag, or every role: public';

CREATE FUNCTION @extschema@.leaf_tag_revoke(tag text, role text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_permitted CONSTANT boolean := leaf_id_internal.leaf_require('SELECT, UPDATE');
    left_over name[];
    was_granted boolean;
    grantee_name CONSTANT text := leaf_id_internal.leaf_grantee($2);
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = format('argument "%s" of leaf_tag_revoke() must not be null', 'tag');
    END IF;
    IF grantee_name IS NULL OR octet_length(grantee_name) > 63 THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_name', MESSAGE = 'a role has a name of at most 63 bytes';
    END IF;
    SELECT grantee_name::name = ANY (a.granted_to) INTO was_granted
    FROM leaf_id.leaf_alloc a WHERE a.biz_tag = $1;
    UPDATE leaf_id.leaf_alloc a
    SET granted_to = array_remove(a.granted_to, grantee_name::name)
    WHERE a.biz_tag = $1
    RETURNING a.granted_to INTO left_over;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('tag "%s" does not exist', $1);
    END IF;
    IF NOT was_granted THEN
        RAISE NOTICE USING
            MESSAGE = format('tag "%s" was not granted to role "%s"', $1, grantee_name);
    END IF;
    IF 'public' = ANY (left_over) THEN
        RAISE NOTICE USING
            MESSAGE = format('every role may still issue ids of tag "%s"', $1),
            HINT = format('To take that away: SELECT %s(%L, ''public'');', leaf_id_internal.leaf_function_name('leaf_tag_revoke'), $1);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.leaf_tag_revoke(text, text) IS
    'Revokes a role''s right to issue ids of a tag, or public''s';
