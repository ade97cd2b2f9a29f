-- The views, all in schema leaf_id. Roles that may read leaf_id.leaf_alloc see what is of this
-- database, and pg_monitor also what is of the server: the functions check their callers.
--
-- No view reads a table. EXPLAIN would tell any role what its statistics tell the owner, and LOCK TABLE
-- would lock the table.

CREATE FUNCTION leaf_id_internal.leaf_require(privileges text) RETURNS boolean
    STRICT STABLE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_require_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_require(text) IS
    'True; an error with the GRANT as its hint if the caller lacks one of these privileges on leaf_alloc';

-- With the caller's rights. With its SET clause it is never inlined.
CREATE FUNCTION leaf_id_internal.leaf_shown_tags(
    OUT tag text, OUT max_id bigint, OUT step integer, OUT max_value bigint, OUT timeline integer, OUT server name)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS 'SELECT a.biz_tag, a.max_id, a.step, a.max_value, a.timeline, a.server FROM leaf_id.leaf_alloc a';
COMMENT ON FUNCTION leaf_id_internal.leaf_shown_tags() IS
    'What the views show of leaf_alloc';

-- With the caller's rights on pg_stat_activity. The locks are those of src/core/src/ordered.rs, the hash that of
-- src/segment/ordered.rs.
CREATE FUNCTION leaf_id_internal.leaf_ordered_holders(OUT tag text, OUT who text, OUT since timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.tag, coalesce('process ' || a.pid, format('prepared transaction "%s"', p.gid)), coalesce(a.xact_start, p.prepared)
    FROM leaf_id_internal.leaf_shown_tags() t
    JOIN pg_locks l ON l.classid = (hashtextextended(t.tag, 0) & 4294967295)::oid
        AND l.locktype = 'userlock' AND l.objsubid < 0
    JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN LATERAL (
        -- By the lock of its xid.
        SELECT x.gid, x.prepared
        FROM pg_locks o JOIN pg_prepared_xacts x ON x.transaction = o.transactionid
        WHERE l.pid IS NULL AND o.pid IS NULL AND o.virtualtransaction = l.virtualtransaction) p ON true
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_ordered_holders() IS
    'The open transactions with ordered ids of a tag, and when they began, where the caller may see that';

CREATE FUNCTION leaf_id_internal.leaf_leases(
    OUT node_name text, OUT state text, OUT leased_at timestamptz, OUT renewed_at timestamptz,
    OUT worker_id integer, OUT lease_until timestamptz, OUT clock_offset_ms bigint, OUT max_skew_ms bigint,
    OUT system_identifier bigint, OUT address text, OUT role_name text)
    RETURNS SETOF record STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_leases_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_leases() IS
    'What the registry has leased, for pg_monitor and roles that may read leaf_worker; see leaf_id.fleet';

CREATE FUNCTION leaf_id_internal.leaf_segment_slots(
    OUT tag text, OUT current_first bigint, OUT current_last bigint, OUT current_next bigint,
    OUT current_remaining bigint, OUT fill_percent double precision,
    OUT spare_first bigint, OUT spare_last bigint, OUT spare_remaining bigint, OUT spare_state text,
    OUT step integer, OUT ids_issued bigint, OUT ids_per_second double precision,
    OUT refills bigint, OUT last_refill timestamptz, OUT last_refill_ms double precision,
    OUT waits bigint, OUT waited_ms double precision, OUT ids_lost bigint,
    OUT ids_skipped bigint, OUT last_error text, OUT failing_since timestamptz, OUT blocked_by integer)
    RETURNS SETOF record STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_segment_slots_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_segment_slots() IS
    'What shared memory holds of the tags of this database; see leaf_id.tags_detail';

CREATE FUNCTION leaf_id_internal.leaf_central_connections(
    OUT server name, OUT state text, OUT since timestamptz, OUT last_error text,
    OUT attempts integer, OUT last_claim timestamptz)
    RETURNS SETOF record STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_central_connections_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_central_connections() IS
    'How the servers that tags of this database are sourced from are getting on; see leaf_id.fleet';

CREATE FUNCTION leaf_id_internal.leaf_server_state(
    OUT slots bigint, OUT slots_used bigint, OUT evictions bigint, OUT evicted_ids bigint,
    OUT launcher_missing_since timestamptz, OUT reserve_worker_missing_since timestamptz,
    OUT snowflake_state text, OUT snowflake_since timestamptz, OUT snowflake_hint text,
    OUT worker_id integer, OUT worker_id_source text, OUT worker_id_invalid boolean,
    OUT last_timestamp timestamptz, OUT reserved_until timestamptz,
    OUT floor timestamptz, OUT floor_reason text,
    OUT clock_lead_ms bigint, OUT clock_lead_reason text, OUT snowflake_ids bigint, OUT snowflake_waits bigint,
    OUT rollbacks_seen bigint, OUT layout text, OUT exhausted_at timestamptz,
    OUT registry text, OUT lease_until timestamptz, OUT not_renewed_since timestamptz,
    OUT clock_offset_ms bigint, OUT peers_offset_ms bigint, OUT registry_error text)
    STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_server_state_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_server_state() IS
    'The slots, workers and snowflake generator of this server; see leaf_id.server';

-- A column of a smaller type ends before the tag does.
CREATE FUNCTION leaf_id_internal.leaf_narrowest_columns(
    OUT tag text, OUT relation regclass, OUT column_name name, OUT last_id bigint) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT ON (i.tag) i.tag, i.relation, i.column_name, e.last_id
    FROM leaf_id_internal.leaf_issuing_columns(NULL, true) i
    JOIN pg_class c ON c.oid = i.relation AND c.relpersistence <> 't'
    JOIN pg_attribute a ON a.attrelid = i.relation AND a.attname = i.column_name
    CROSS JOIN LATERAL (SELECT CASE a.attlen WHEN 2 THEN 32767 WHEN 4 THEN 2147483647 END::bigint AS last_id) e
    WHERE i.counts AND e.last_id IS NOT NULL
    -- The type of an inherited column is its parent's.
    ORDER BY i.tag, e.last_id, a.attinhcount, i.relation, i.column_name
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_narrowest_columns() IS
    'Of each tag whose ids go into smallint or integer columns, the narrowest of these';

CREATE FUNCTION leaf_id_internal.leaf_missing_tags(
    OUT tag text, OUT is_opaque boolean, OUT is_in_expression boolean,
    OUT relation oid, OUT column_name name, OUT number bigint) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT ON (t.tag) t.tag, bool_or(i.is_opaque) OVER (PARTITION BY t.tag),
        bool_or(i.tag IS NULL AND NOT i.is_opaque) OVER (PARTITION BY t.tag), i.relation, i.column_name, count(*) OVER (PARTITION BY t.tag)
    FROM leaf_id_internal.leaf_issuing_columns(NULL, true) i
    JOIN pg_class c ON c.oid = i.relation AND c.relpersistence <> 't' AND NOT c.relispartition
    CROSS JOIN LATERAL (SELECT DISTINCT n.tag FROM unnest(CASE WHEN i.tag IS NULL THEN i.named ELSE ARRAY[i.tag] END) n (tag)) t
    WHERE i.counts AND NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag = t.tag)
    ORDER BY t.tag, i.relation, i.column_name
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_missing_tags() IS
    'The tags that do not exist and columns that count take ids from, with one of these and their number';

CREATE VIEW leaf_id.tags_detail WITH (security_invoker) AS
SELECT
    a.tag COLLATE pg_catalog."C" AS tag,
    s.current_first, s.current_last, s.current_next, s.current_remaining,
    s.fill_percent,
    s.spare_first, s.spare_last, s.spare_remaining,
    s.spare_state,
    a.max_id,
    coalesce(s.step, a.step) AS step,
    s.ids_issued,
    s.ids_per_second,
    s.refills, s.last_refill, s.last_refill_ms,
    s.waits, s.waited_ms,
    s.ids_lost,
    s.ids_skipped,
    a.timeline,
    s.last_error,
    s.failing_since,
    s.blocked_by,
    a.max_value,
    ends.last_id,
    CASE WHEN ends.is_narrow THEN c.relation END AS narrow_relation,
    CASE WHEN ends.is_narrow THEN c.column_name END AS narrow_column,
    100::pg_catalog.float8 OPERATOR(pg_catalog.*) least(
        (a.max_id OPERATOR(pg_catalog.-) 1::pg_catalog.int8)::pg_catalog.float8
            OPERATOR(pg_catalog./) ends.last_id::pg_catalog.float8,
        1::pg_catalog.float8) AS used_percent,
    -- Within the range of timestamps.
    CASE WHEN lasts.tag OPERATOR(pg_catalog.<=) 1e10::pg_catalog.float8 THEN
        pg_catalog.now() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => lasts.tag)
    END AS exhausted_at,
    a.server,
    CASE WHEN l.state OPERATOR(pg_catalog.=) 'away' THEN l.since END AS server_away_since,
    -- Cap at 100 years to avoid interval overflow.
    CASE WHEN lasts.cached IS NOT NULL THEN
        pg_catalog.make_interval(secs => least(lasts.cached, 3e9::pg_catalog.float8))
    END AS cached_for
FROM leaf_id_internal.leaf_shown_tags() a
LEFT JOIN leaf_id_internal.leaf_segment_slots() s ON s.tag OPERATOR(pg_catalog.=) a.tag
LEFT JOIN leaf_id_internal.leaf_central_connections() l ON l.server OPERATOR(pg_catalog.=) a.server
LEFT JOIN leaf_id_internal.leaf_narrowest_columns() c ON c.tag OPERATOR(pg_catalog.=) a.tag
CROSS JOIN LATERAL (
    SELECT least(a.max_value, c.last_id) AS last_id,
        coalesce(c.last_id OPERATOR(pg_catalog.<=) a.max_value, false) AS is_narrow
) ends
-- In seconds, at the current rate.
CROSS JOIN LATERAL (
    SELECT
        -- greatest() ignores NULL.
        CASE WHEN rate.ids_per_second IS NOT NULL THEN greatest(
            (ends.last_id OPERATOR(pg_catalog.-) a.max_id)::pg_catalog.float8
                OPERATOR(pg_catalog./) rate.ids_per_second,
            0::pg_catalog.float8)
        END AS tag,
        (s.current_remaining OPERATOR(pg_catalog.+) s.spare_remaining)::pg_catalog.float8
            OPERATOR(pg_catalog./) rate.ids_per_second AS cached
    FROM (
        SELECT CASE WHEN s.ids_per_second OPERATOR(pg_catalog.>) 0::pg_catalog.float8 THEN s.ids_per_second END
            AS ids_per_second
    ) rate
) lasts
-- Before anything else, with the GRANT as its hint.
WHERE leaf_id_internal.leaf_require('SELECT');
COMMENT ON VIEW leaf_id.tags_detail IS
    'Tags of this database: what is cached, how fast it is used, where they end, what went wrong';

CREATE VIEW leaf_id.tags WITH (security_invoker) AS
SELECT
    d.tag,
    coalesce(d.current_next, d.spare_first, d.max_id) AS next_id,
    pg_catalog.rpad(
        pg_catalog.repeat('#', pg_catalog.ceil(d.fill_percent OPERATOR(pg_catalog./) 10::pg_catalog.float8)::pg_catalog.int4),
        10, '.') AS segment,
    CASE
        WHEN d.spare_state OPERATOR(pg_catalog.=) 'ready' THEN 'yes'
        WHEN d.spare_state OPERATOR(pg_catalog.=) 'in flight' THEN 'asked'
        WHEN d.spare_state OPERATOR(pg_catalog.=) 'none' THEN 'no'
    END AS spare,
    CASE WHEN d.ids_per_second OPERATOR(pg_catalog.<) 10::pg_catalog.float8
        THEN pg_catalog.round(d.ids_per_second::pg_catalog.numeric, 1)
        ELSE pg_catalog.round(d.ids_per_second::pg_catalog.numeric)
    END AS ids_per_s,
    CASE WHEN lasts.seconds OPERATOR(pg_catalog.<) 86400::pg_catalog.float8
        THEN pg_catalog.make_interval(secs => pg_catalog.floor(lasts.seconds))
        ELSE pg_catalog.make_interval(days => pg_catalog.floor(lasts.seconds OPERATOR(pg_catalog./) 86400::pg_catalog.float8)::pg_catalog.int4)
    END AS lasts,
    pg_catalog.trunc(d.used_percent::pg_catalog.numeric, 1) AS used_percent,
    d.waits,
    d.blocked_by AS pid,
    CASE
        WHEN coalesce(d.current_next, d.spare_first, d.max_id) OPERATOR(pg_catalog.>) d.last_id THEN 'ended'
        WHEN d.server_away_since IS NOT NULL THEN 'away'
        WHEN d.blocked_by IS NOT NULL THEN 'locked'
        WHEN d.last_error IS NOT NULL THEN 'fails'
        WHEN d.used_percent OPERATOR(pg_catalog.>=) 80::pg_catalog.float8 AND d.narrow_column IS NOT NULL THEN 'widen'
        WHEN d.used_percent OPERATOR(pg_catalog.>=) 80::pg_catalog.float8 THEN 'ending'
        ELSE 'ok'
    END AS health
FROM leaf_id.tags_detail d
CROSS JOIN LATERAL (
    -- EXTRACT returns numeric, which has no limit.
    SELECT pg_catalog.date_part('epoch', d.cached_for) AS seconds
) lasts;
COMMENT ON VIEW leaf_id.tags IS
    'Tags of this database at a glance; leaf_id.tags_detail has the rest';

CREATE VIEW leaf_id.server WITH (security_invoker) AS
SELECT s.* FROM leaf_id_internal.leaf_server_state() s;
COMMENT ON VIEW leaf_id.server IS
    'This server, all databases together: its slots, its workers and its snowflake generator';

CREATE VIEW leaf_id.fleet WITH (security_invoker) AS
SELECT
    'source' AS kind,
    a.server AS name,
    coalesce(l.state, 'closed') AS state,
    l.since,
    l.last_claim AS last_seen,
    l.last_error,
    coalesce(l.attempts, 0) AS attempts,
    NULL::pg_catalog.int4 AS worker_id,
    NULL::pg_catalog.timestamptz AS lease_until,
    NULL::pg_catalog.int8 AS clock_offset_ms,
    NULL::pg_catalog.int8 AS system_identifier,
    NULL::pg_catalog.text AS address,
    NULL::pg_catalog.text AS role_name
FROM (SELECT DISTINCT t.server::pg_catalog.text AS server FROM leaf_id_internal.leaf_shown_tags() t WHERE t.server IS NOT NULL) a
LEFT JOIN leaf_id_internal.leaf_central_connections() l ON l.server::pg_catalog.text OPERATOR(pg_catalog.=) a.server
WHERE leaf_id_internal.leaf_require('SELECT')
UNION ALL
SELECT 'member', w.node_name, w.state, w.leased_at, w.renewed_at, NULL, NULL, w.worker_id, w.lease_until, w.clock_offset_ms,
    w.system_identifier, w.address, w.role_name
FROM leaf_id_internal.leaf_leases() w;
COMMENT ON VIEW leaf_id.fleet IS
    'Other servers: those that tags are sourced from, and those with a worker id from the registry here';

-- With the caller's rights, and one look at each tag.
CREATE FUNCTION leaf_id_internal.leaf_tag_problems(
    OUT severity text, OUT what text, OUT since timestamptz, OUT remedy text, OUT advice text) RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.severity, p.what, p.since, CASE WHEN NOT pg_is_in_recovery() THEN p.remedy END, p.advice
    FROM leaf_id.tags_detail d
    CROSS JOIN LATERAL (
        SELECT coalesce(d.current_next, d.spare_first, d.max_id) > d.last_id AS is_over,
            -- A column's end hides no other error.
            coalesce(d.current_next, d.spare_first, d.max_id) > d.max_value AS is_the_tag_over,
            coalesce(d.exhausted_at < now() + interval '30 days', false) AS is_soon,
            trunc(d.used_percent) AS percent
    ) e
    CROSS JOIN LATERAL (
        -- Where others own the table, it would check their constraints with the rights of the role that
        -- runs it; of a domain, it would lose the default. What else PostgreSQL refuses: a column that
        -- views, generated columns and the like are made of, a partition key, a typed table.
        SELECT (e.percent >= 80 OR e.is_soon) AND coalesce((
            SELECT a.attinhcount = 0 AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype) AND NOT EXISTS (
                SELECT FROM leaf_id_internal.leaf_family(d.narrow_relation) m
                JOIN pg_class c ON c.oid = m
                JOIN pg_roles o ON o.oid = c.relowner
                JOIN pg_attribute b ON b.attrelid = m AND b.attname = d.narrow_column
                WHERE NOT o.rolsuper AND o.rolname <> current_user OR c.reloftype <> 0
                    OR EXISTS (
                        SELECT FROM pg_depend k
                        WHERE k.classid = 'pg_class'::regclass AND k.objid = m AND k.objsubid = b.attnum
                            AND k.refclassid = 'pg_class'::regclass AND k.refobjid = m AND k.refobjsubid = 0 AND k.deptype = 'i')
                    OR EXISTS (
                        SELECT FROM pg_depend u
                        LEFT JOIN pg_attrdef f ON u.classid = 'pg_attrdef'::regclass AND f.oid = u.objid
                        WHERE u.refclassid = 'pg_class'::regclass AND u.refobjid = m AND u.refobjsubid = b.attnum
                            AND (f.adnum <> b.attnum OR u.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass,
                                'pg_policy'::regclass, 'pg_publication_rel'::regclass, 'pg_proc'::regclass))))
            FROM pg_attribute a
            WHERE a.attrelid = d.narrow_relation AND a.attname = d.narrow_column), false) AS can_widen
    ) w
    CROSS JOIN LATERAL (VALUES
        (d.last_error IS NOT NULL AND d.server_away_since IS NULL AND NOT e.is_the_tag_over, 'critical',
            format('tag "%s" gets no ids: %s', d.tag, d.last_error),
            d.failing_since, NULL,
            CASE WHEN d.blocked_by IS NOT NULL
                THEN format('Process %s holds the lock until its transaction ends: pg_stat_activity shows what it does.', d.blocked_by) END),
        (e.percent >= 80 OR e.is_soon,
            CASE WHEN e.is_over OR e.percent >= 95 THEN 'critical'
                WHEN e.is_soon OR e.percent >= 90 THEN 'warning'
                ELSE 'info' END,
            concat(
                CASE WHEN e.is_over THEN format('tag "%s" has issued its last id, %s', d.tag, d.last_id)
                    ELSE format('tag "%s" has used %s %% of its ids, which end at %s', d.tag, e.percent, d.last_id) END,
                CASE WHEN e.is_soon AND NOT e.is_over
                    THEN format(', at this rate on %s', to_char(d.exhausted_at, 'YYYY-MM-DD')) END,
                CASE WHEN d.narrow_column IS NOT NULL
                    THEN format(', as column %I of %s does', d.narrow_column, d.narrow_relation) END),
            NULL,
            nullif(concat_ws('; ',
                CASE WHEN w.can_widen
                    THEN format('ALTER TABLE %s ALTER %I TYPE bigint', d.narrow_relation, d.narrow_column) END,
                -- Any other end was chosen, and may keep numbers apart that are made of it.
                CASE WHEN d.max_value IN (32767, 2147483647) AND NOT leaf_id_internal.leaf_has_key(d.tag)
                        AND (d.narrow_column IS NULL OR w.can_widen)
                        AND NOT EXISTS (SELECT FROM leaf_id_internal.leaf_issuing_columns(NULL, true) i WHERE d.tag = ANY (i.named))
                    THEN format('UPDATE leaf_id.leaf_alloc SET max_value = 9223372036854775806 WHERE biz_tag = %L', d.tag) END),
                ''),
            nullif(concat_ws(' ',
                CASE WHEN d.server IS NOT NULL THEN format('First raise it on server "%s".', d.server) END,
                CASE WHEN d.narrow_column IS NOT NULL
                    THEN 'ALTER TABLE rewrites the table under a lock, and columns that reference it must follow.' END),
                ''))
    ) p (stands, severity, what, since, remedy, advice)
    WHERE p.stands
    UNION ALL
    SELECT 'critical', format('server "%s", which tags are sourced from, is away: %s', f.name, f.last_error), f.since, NULL, NULL
    FROM leaf_id.fleet f
    WHERE f.kind = 'source' AND f.state = 'away'
    UNION ALL
    SELECT 'warning', format('the clock of node "%s" is %s ms off', l.node_name, l.clock_offset_ms), NULL, NULL, NULL
    FROM leaf_id_internal.leaf_leases() l
    WHERE l.state = 'leased' AND abs(l.clock_offset_ms) > l.max_skew_ms
    UNION ALL
    SELECT 'info', format('node "%s" has %s worker ids', f.name, count(*)), max(f.since), NULL,
        'A server without its lease file gets another one, as after a reboot of the machine. Copies need a "leaf_id.node_name" each.'
    FROM leaf_id.fleet f
    WHERE f.kind = 'member' AND f.state = 'leased'
    GROUP BY f.name, f.system_identifier, f.role_name
    HAVING count(*) > 1
    UNION ALL
    SELECT 'critical', m.what, NULL, m.remedy, m.advice FROM leaf_id_internal.leaf_missing_grants(NULL) m
    UNION ALL
    SELECT 'critical', format('tag "%s" does not exist, and INSERTs fail into the columns that take ids from it (%s, first %I of %s)',
            n.tag, n.number, n.column_name, n.relation::regclass),
        NULL,
        CASE WHEN NOT n.is_opaque AND NOT n.is_in_expression AND NOT pg_is_in_recovery()
            -- By name, columns of strangers would count, too.
            THEN format('SELECT * FROM %s()', leaf_id_internal.leaf_function_name('leaf_sync')) END,
        CASE WHEN n.is_opaque THEN 'Its ids are opaque. Create it from its server, if it was sourced, with the key that it had, and above the numbers that it has used: otherwise ids are issued again.'
            WHEN n.is_in_expression THEN 'A default has it in an expression: create it with leaf_tag_create(), above the numbers that it has used.'
            ELSE 'All tags are raised above the ids in the columns that count, and missing ones are created. Before that, create those that came from another server with that server, and those that other servers take from here above "max_id" on each of them: otherwise their ids are issued twice.' END
    FROM leaf_id_internal.leaf_missing_tags() n
    UNION ALL
    SELECT 'warning', format('%s holds back readers of tag "%s"', h.who, h.tag), h.since, NULL,
        'Its transaction has ordered ids of the tag. Until it ends, the watermark is not above them.'
    FROM leaf_id_internal.leaf_ordered_holders() h
    WHERE h.since < clock_timestamp() - interval '1 minute'
    UNION ALL
    SELECT 'info', format('tag "%s": %s', w.tag, w.detail), NULL,
        CASE WHEN NOT s.skips_none THEN
            'UPDATE leaf_id.leaf_alloc SET step = step '
            'WHERE leaf_id.leaf_left(max_id, step, max_step, system_identifier, timeline, largest_claim, server IS NOT NULL) '
            'BETWEEN least(max_id, 9223372036854775806) + 1 AND max_value' END,
        CASE WHEN s.skips_none
            THEN 'No action is needed where the promoted standby was synchronous. Elsewhere ids may come twice: set "leaf_id.failover_skip" as it was, before these tags are used.'
            ELSE 'No action is needed, unless a dump, pg_upgrade or a smaller "leaf_id.failover_skip" comes before these claims: then the remedy skips now.' END
    FROM leaf_id_internal.leaf_unsettled() w
    CROSS JOIN LATERAL (SELECT current_setting('leaf_id.failover_skip') = '0' AS skips_none) s
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_tag_problems() IS
    'What is wrong with the tags of this database; see leaf_id.problems';

CREATE FUNCTION leaf_id_internal.leaf_server_problems(
    OUT severity text, OUT what text, OUT since timestamptz, OUT remedy text, OUT advice text) RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.severity, p.what, p.since, p.remedy, p.advice
    FROM leaf_id_internal.leaf_server_state() s
    CROSS JOIN LATERAL (VALUES
        (s.snowflake_state NOT IN ('starting', 'open', 'no worker id', 'standby')
            OR s.snowflake_state = 'starting' AND s.not_renewed_since IS NOT NULL, 'critical',
            concat_ws(': ', 'no snowflake ids are issued', s.snowflake_state, s.registry_error),
            s.snowflake_since, NULL, s.snowflake_hint),
        (s.worker_id_invalid AND s.snowflake_state <> 'worker id is not valid', 'warning',
            format('what the configuration file sets as "leaf_id.worker_id" is not valid: %s stays in force, but only until a restart',
                current_setting('leaf_id.worker_id')),
            NULL,
            format('ALTER SYSTEM SET leaf_id.worker_id = %L', current_setting('leaf_id.worker_id')),
            'The remedy takes a reload: SELECT pg_reload_conf().'),
        (s.snowflake_state = 'open' AND s.not_renewed_since IS NOT NULL, 'warning',
            format('worker registry "%s" does not renew the lease; snowflake ids stop at %s: %s',
                s.registry, s.lease_until, s.registry_error),
            s.not_renewed_since, NULL, NULL),
        (s.clock_lead_reason = 'clock set back' AND s.clock_lead_ms > 1000, 'warning',
            format('the clock was set back, and times in snowflake ids are %s ms ahead of it', s.clock_lead_ms),
            NULL, NULL, NULL),
        (abs(s.clock_offset_ms - coalesce(s.peers_offset_ms, 0)) > 500, 'warning',
            format('the clock is %s ms off those of the other servers', s.clock_offset_ms - coalesce(s.peers_offset_ms, 0)),
            NULL, NULL, NULL),
        (s.evictions > 0 AND s.slots_used = s.slots, 'warning',
            format('all %s slots are in use, and %s tags were evicted with %s cached ids', s.slots, s.evictions, s.evicted_ids),
            NULL,
            CASE WHEN s.slots < 1000000 THEN
                format('ALTER SYSTEM SET leaf_id.max_tags = %s', least(2 * s.slots, 1000000)) END,
            'The remedy takes a restart.')
    ) p (stands, severity, what, since, remedy, advice)
    WHERE p.stands AND pg_has_role('pg_monitor', 'USAGE')
    UNION ALL
    SELECT 'critical', format('the server runs without the %s of leaf_id', w.name), w.missing_since,
        format('ALTER SYSTEM SET max_worker_processes = %s', current_setting('max_worker_processes')::integer + 4),
        'If the server had too few worker slots when it started (its log says so), the remedy helps, with a restart, of standbys first: with less than the primary they do not start.'
    FROM leaf_id_internal.leaf_server_state() s
    CROSS JOIN LATERAL (VALUES
        ('launcher', s.launcher_missing_since),
        ('reserve worker', s.reserve_worker_missing_since)
    ) w (name, missing_since)
    WHERE w.missing_since IS NOT NULL AND pg_has_role('pg_monitor', 'USAGE')
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_server_problems() IS
    'What is wrong with the server, for pg_monitor; see leaf_id.problems';

CREATE VIEW leaf_id.problems WITH (security_invoker) AS
SELECT p.severity, p.what, p.since, p.remedy, p.advice
FROM (
    SELECT t.* FROM leaf_id_internal.leaf_tag_problems() t
    UNION ALL
    SELECT s.* FROM leaf_id_internal.leaf_server_problems() s
) p
-- What ends by itself, as after a restart of a worker or a promotion, is no problem. A later time is of a
-- clock that was set back since then.
WHERE (p.since OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '00:00:02'::pg_catalog.interval)
    AND p.since OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()) IS NOT TRUE
ORDER BY pg_catalog.array_position(ARRAY['critical', 'warning', 'info'], p.severity), p.what;
COMMENT ON VIEW leaf_id.problems IS
    'What has been wrong for two seconds, and what helps. Of the server only for pg_monitor';

COMMENT ON COLUMN leaf_id.tags.tag IS 'Name of the tag';
COMMENT ON COLUMN leaf_id.tags.next_id IS 'The next id';
COMMENT ON COLUMN leaf_id.tags.segment IS 'What is left of the segment in use, a # for each tenth';
COMMENT ON COLUMN leaf_id.tags.spare IS 'Whether the next segment is there: yes, asked, or no: not needed yet';
COMMENT ON COLUMN leaf_id.tags.ids_per_s IS 'How fast ids are used: over the last two refills and the time since; null: not known yet';
COMMENT ON COLUMN leaf_id.tags.lasts IS 'How long the cached ids last at this rate';
COMMENT ON COLUMN leaf_id.tags.used_percent IS 'How much of all ids up to the last one is claimed';
COMMENT ON COLUMN leaf_id.tags.waits IS 'Calls that had to wait for a segment';
COMMENT ON COLUMN leaf_id.tags.pid IS 'Process that has locked the row of the tag while a segment is needed';
COMMENT ON COLUMN leaf_id.tags.health IS 'ok, or what is wrong: ended, away, locked, fails, widen, ending';
COMMENT ON COLUMN leaf_id.tags_detail.tag IS 'Name of the tag';
COMMENT ON COLUMN leaf_id.tags_detail.current_first IS 'First id of the segment in use';
COMMENT ON COLUMN leaf_id.tags_detail.current_last IS 'Last id of the segment in use';
COMMENT ON COLUMN leaf_id.tags_detail.current_next IS 'The next id; null when the segment is used up';
COMMENT ON COLUMN leaf_id.tags_detail.current_remaining IS 'Ids left in the segment in use';
COMMENT ON COLUMN leaf_id.tags_detail.fill_percent IS 'How much of the segment in use is left';
COMMENT ON COLUMN leaf_id.tags_detail.spare_first IS 'First id of the spare segment';
COMMENT ON COLUMN leaf_id.tags_detail.spare_last IS 'Last id of the spare segment';
COMMENT ON COLUMN leaf_id.tags_detail.spare_remaining IS 'Ids in the spare segment';
COMMENT ON COLUMN leaf_id.tags_detail.spare_state IS 'ready, in flight, or none';
COMMENT ON COLUMN leaf_id.tags_detail.max_id IS 'The next id that is not claimed';
COMMENT ON COLUMN leaf_id.tags_detail.step IS 'How many ids are claimed at once at present';
COMMENT ON COLUMN leaf_id.tags_detail.ids_issued IS 'Ids issued since the tag came into shared memory';
COMMENT ON COLUMN leaf_id.tags_detail.ids_per_second IS 'How fast ids are used: over the last two refills and the time since; null: not known yet';
COMMENT ON COLUMN leaf_id.tags_detail.refills IS 'Segments published';
COMMENT ON COLUMN leaf_id.tags_detail.last_refill IS 'When the last segment was published';
COMMENT ON COLUMN leaf_id.tags_detail.last_refill_ms IS 'How long it took from the request, in milliseconds';
COMMENT ON COLUMN leaf_id.tags_detail.waits IS 'Calls that had to wait for a segment';
COMMENT ON COLUMN leaf_id.tags_detail.waited_ms IS 'How long they waited together, in milliseconds';
COMMENT ON COLUMN leaf_id.tags_detail.ids_lost IS 'Ids that were claimed and dropped: a gap';
COMMENT ON COLUMN leaf_id.tags_detail.ids_skipped IS 'Ids that claims have left out because of a failover: a gap';
COMMENT ON COLUMN leaf_id.tags_detail.timeline IS 'WAL timeline of the last claim; the first one on another skips, see leaf_id.failover_skip';
COMMENT ON COLUMN leaf_id.tags_detail.last_error IS 'Why the last refill has failed; null if it has not, or the row was edited since';
COMMENT ON COLUMN leaf_id.tags_detail.failing_since IS 'When requests for a segment began to fail';
COMMENT ON COLUMN leaf_id.tags_detail.blocked_by IS 'Process that has locked the row, or the table';
COMMENT ON COLUMN leaf_id.tags_detail.max_value IS 'The last id of the tag';
COMMENT ON COLUMN leaf_id.tags_detail.last_id IS 'The last id that the tag can have, and all columns whose defaults issue its ids can hold';
COMMENT ON COLUMN leaf_id.tags_detail.narrow_relation IS 'Table of the column that ends first; null if only the tag ends';
COMMENT ON COLUMN leaf_id.tags_detail.narrow_column IS 'That column: a smallint or an integer';
COMMENT ON COLUMN leaf_id.tags_detail.used_percent IS 'How much of all ids up to last_id is claimed';
COMMENT ON COLUMN leaf_id.tags_detail.exhausted_at IS 'When last_id is reached at this rate; null when no ids are used, or it is centuries away';
COMMENT ON COLUMN leaf_id.tags_detail.server IS 'Foreign source server of the tag; null: this server''s own leaf_alloc does';
COMMENT ON COLUMN leaf_id.tags_detail.server_away_since IS 'Since when that server has claimed nothing; null if it is not away';
COMMENT ON COLUMN leaf_id.tags_detail.cached_for IS 'How long what is cached lasts at this rate; null when no ids are used';
COMMENT ON COLUMN leaf_id.server.slots IS 'Tags that can be cached at once: leaf_id.max_tags';
COMMENT ON COLUMN leaf_id.server.slots_used IS 'Tags that are';
COMMENT ON COLUMN leaf_id.server.evictions IS 'Tags that had to make room for another one since the server started';
COMMENT ON COLUMN leaf_id.server.evicted_ids IS 'Ids that were cached for them: a gap';
COMMENT ON COLUMN leaf_id.server.launcher_missing_since IS 'Since when the launcher does not run; null: it does';
COMMENT ON COLUMN leaf_id.server.reserve_worker_missing_since IS 'Since when the reserve worker does not run; null: it does';
COMMENT ON COLUMN leaf_id.server.snowflake_state IS 'What the snowflake generator is doing';
COMMENT ON COLUMN leaf_id.server.snowflake_since IS 'Since when it is doing that';
COMMENT ON COLUMN leaf_id.server.snowflake_hint IS 'What helps where it is refused; null where it is not';
COMMENT ON COLUMN leaf_id.server.worker_id IS 'Worker id in force';
COMMENT ON COLUMN leaf_id.server.worker_id_source IS 'Where it came from';
COMMENT ON COLUMN leaf_id.server.worker_id_invalid IS 'Whether what the configuration file sets as leaf_id.worker_id is not valid';
COMMENT ON COLUMN leaf_id.server.last_timestamp IS 'Time in the last id';
COMMENT ON COLUMN leaf_id.server.reserved_until IS 'No id carries a later time before this is renewed on disk';
COMMENT ON COLUMN leaf_id.server.floor IS 'Ids of this run of the launcher carry later times';
COMMENT ON COLUMN leaf_id.server.floor_reason IS 'What that comes from';
COMMENT ON COLUMN leaf_id.server.clock_lead_ms IS 'How far the time in the last id is ahead of the clock, in milliseconds';
COMMENT ON COLUMN leaf_id.server.clock_lead_reason IS 'What that comes from; null where it is not ahead, or by no more than a burst';
COMMENT ON COLUMN leaf_id.server.snowflake_ids IS 'Snowflake ids issued since the server started';
COMMENT ON COLUMN leaf_id.server.snowflake_waits IS 'Calls that had to wait, other than for the next millisecond';
COMMENT ON COLUMN leaf_id.server.rollbacks_seen IS 'How often the clock was found to have been set back behind the last id';
COMMENT ON COLUMN leaf_id.server.layout IS 'Bits of milliseconds, worker id and sequence in an id';
COMMENT ON COLUMN leaf_id.server.exhausted_at IS 'When the time of this layout is used up';
COMMENT ON COLUMN leaf_id.server.registry IS 'Where the worker id is leased from; null where it is not';
COMMENT ON COLUMN leaf_id.server.lease_until IS 'Until when ids are issued if the registry does not renew the lease';
COMMENT ON COLUMN leaf_id.server.not_renewed_since IS 'Since when the registry has not renewed or leased; null if it has';
COMMENT ON COLUMN leaf_id.server.clock_offset_ms IS 'The clock minus that of the registry when it was asked last, in milliseconds';
COMMENT ON COLUMN leaf_id.server.peers_offset_ms IS 'The median of the other servers'' clocks minus that of the registry, in milliseconds';
COMMENT ON COLUMN leaf_id.server.registry_error IS 'Why the registry did not renew or lease the last time; null if it did';
COMMENT ON COLUMN leaf_id.fleet.kind IS 'source: tags are sourced from it; member: it has, or had, a worker id from the registry here';
COMMENT ON COLUMN leaf_id.fleet.name IS 'The foreign server, or leaf_id.node_name of the member; null: no server has the worker id';
COMMENT ON COLUMN leaf_id.fleet.state IS 'Source: connected, connecting, away, closed; member: leased, expired, free, retired';
COMMENT ON COLUMN leaf_id.fleet.since IS 'Since when a source is in this state; since when a member has the worker id';
COMMENT ON COLUMN leaf_id.fleet.last_seen IS 'When a source last answered a claim; when a member last renewed its lease';
COMMENT ON COLUMN leaf_id.fleet.last_error IS 'Why a source is away; null if it is not';
COMMENT ON COLUMN leaf_id.fleet.attempts IS 'Failed attempts since then';
COMMENT ON COLUMN leaf_id.fleet.worker_id IS 'Worker id of a member';
COMMENT ON COLUMN leaf_id.fleet.lease_until IS 'No id of any holder carries a later time: the next holder starts above it';
COMMENT ON COLUMN leaf_id.fleet.clock_offset_ms IS 'The clock of a member minus that of this server when it was last renewed, in milliseconds';
COMMENT ON COLUMN leaf_id.fleet.system_identifier IS 'Database cluster of a member';
COMMENT ON COLUMN leaf_id.fleet.address IS 'Where a member connected from; null: by a Unix socket';
COMMENT ON COLUMN leaf_id.fleet.role_name IS 'Role that leased the worker id; only it can renew the lease; null: any role';
COMMENT ON COLUMN leaf_id.problems.severity IS 'critical, warning, or info';
COMMENT ON COLUMN leaf_id.problems.what IS 'What is wrong';
COMMENT ON COLUMN leaf_id.problems.since IS 'Since when; null where that is not known';
COMMENT ON COLUMN leaf_id.problems.remedy IS 'SQL that helps when it is run; null: none does';
COMMENT ON COLUMN leaf_id.problems.advice IS 'What else helps, or what the remedy takes; null: nothing else';
