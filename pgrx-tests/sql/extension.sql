-- Not into the schema of its tables.
\set SHOW_CONTEXT never
CREATE EXTENSION leaf_id SCHEMA leaf_id;
CREATE SCHEMA leaf_id;
CREATE EXTENSION leaf_id SCHEMA leaf_id;
DROP SCHEMA leaf_id;

-- What CREATE EXTENSION installs.
CREATE EXTENSION leaf_id;

-- An object without a comment: there must be none. (A table's row type is a member from 17 on.)
SELECT pg_describe_object(d.classid, d.objid, d.objsubid) AS object
FROM pg_depend d
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')
  AND d.classid <> 'pg_type'::regclass
  AND obj_description(d.objid, d.classid::regclass::name) IS NULL
UNION ALL
SELECT 'column ' || attname FROM pg_attribute
WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'leaf_id'::regnamespace AND relkind IN ('r', 'v'))
  AND attnum > 0 AND NOT attisdropped AND col_description(attrelid, attnum) IS NULL
ORDER BY 1;

\d leaf_id.leaf_alloc
\d leaf_id.leaf_worker
\d leaf_id.leaf_registry

-- What \df+ shows, and what it does not: strictness, settings. Without what differs between
-- versions of PostgreSQL.
SELECT p.proname AS name, pg_get_function_arguments(p.oid) AS arguments,
       pg_get_function_result(p.oid) AS result
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')
ORDER BY 1, 2;
SELECT p.proname AS name, p.provolatile AS volatile, p.proparallel AS parallel,
       p.proisstrict AS strict, p.prosecdef AS definer, p.proconfig AS settings,
       has_function_privilege('public', p.oid, 'EXECUTE') AS public
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')
ORDER BY 1, pg_get_function_arguments(p.oid);

-- Who may do what with the table and the views.
SELECT c.relname, c.relkind, CASE acl.grantee WHEN 0 THEN 'public' ELSE acl.grantee::regrole::text END AS grantee, acl.privilege_type
FROM pg_class c CROSS JOIN aclexplode(c.relacl) acl
WHERE c.relnamespace = 'leaf_id'::regnamespace AND acl.grantee <> acl.grantor
ORDER BY 1, 3, 4;
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'leaf_id'::regnamespace AND c.relkind = 'v'
ORDER BY 1, a.attnum;

-- Settings, with their descriptions.
SELECT name, setting, unit, context, vartype, min_val, max_val, short_desc, extra_desc
FROM pg_settings WHERE name LIKE 'leaf\_id.%' ORDER BY 1 \gx
