-- State of the generators, for pg_monitor.

CREATE FUNCTION @extschema@.leaf_segment_slots(
    OUT tag text, OUT current_first bigint, OUT current_last bigint, OUT current_next bigint,
    OUT current_remaining bigint, OUT fill_percent double precision,
    OUT spare_first bigint, OUT spare_last bigint, OUT spare_remaining bigint, OUT spare_state text,
    OUT step integer, OUT ids_issued bigint, OUT ids_per_second double precision,
    OUT refills bigint, OUT last_refill timestamptz, OUT last_refill_ms double precision,
    OUT waits bigint, OUT waited_ms double precision, OUT ids_lost bigint,
    OUT ids_skipped bigint, OUT last_error text)
    RETURNS SETOF record STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_segment_slots_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_segment_slots() IS
    'What shared memory holds of the tags of this database; see leaf_segment_status';

CREATE FUNCTION @extschema@.leaf_slot_counts(
    OUT slots bigint, OUT used bigint, OUT evictions bigint, OUT ids_lost bigint)
    STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_slot_counts_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_slot_counts() IS
    'What the slots of this server are used for; see leaf_slot_status';

CREATE FUNCTION @extschema@.leaf_central_connections(
    OUT server name, OUT state text, OUT since timestamptz, OUT last_error text,
    OUT attempts integer, OUT last_claim timestamptz)
    RETURNS SETOF record STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_central_connections_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_central_connections() IS
    'How the servers that tags of this database are sourced from are getting on; see leaf_central_status';

CREATE FUNCTION @extschema@.leaf_snowflake_state(
    OUT state text, OUT worker_id integer, OUT worker_id_source text,
    OUT last_timestamp timestamptz, OUT reserved_until timestamptz,
    OUT floor timestamptz, OUT floor_reason text,
    OUT clock_lead_ms bigint, OUT clock_lead_reason text, OUT ids_issued bigint, OUT waits bigint,
    OUT rollbacks_seen bigint, OUT layout text, OUT exhausted_at timestamptz,
    OUT registry text, OUT lease_until timestamptz, OUT registry_away_since timestamptz,
    OUT clock_offset_ms bigint, OUT peers_offset_ms bigint, OUT last_error text)
    STRICT VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_state_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_state() IS
    'What the snowflake generator is doing; see leaf_snowflake_status';

CREATE VIEW @extschema@.leaf_segment_status AS
SELECT
    a.biz_tag AS tag,
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
    a.max_value,
    a.max_id::pg_catalog.float8 OPERATOR(pg_catalog./) a.max_value::pg_catalog.float8 AS used_ratio,
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
FROM leaf_id.leaf_alloc a
LEFT JOIN @extschema@.leaf_segment_slots() s ON s.tag OPERATOR(pg_catalog.=) a.biz_tag
LEFT JOIN @extschema@.leaf_central_connections() l ON l.server OPERATOR(pg_catalog.=) a.server
-- In seconds, at the current rate.
CROSS JOIN LATERAL (
    SELECT
        -- greatest() ignores NULL.
        CASE WHEN rate.ids_per_second IS NOT NULL THEN greatest(
            (a.max_value OPERATOR(pg_catalog.-) a.max_id)::pg_catalog.float8
                OPERATOR(pg_catalog./) rate.ids_per_second,
            0::pg_catalog.float8)
        END AS tag,
        (s.current_remaining OPERATOR(pg_catalog.+) s.spare_remaining)::pg_catalog.float8
            OPERATOR(pg_catalog./) rate.ids_per_second AS cached
    FROM (
        SELECT CASE WHEN s.ids_per_second OPERATOR(pg_catalog.>) 0::pg_catalog.float8 THEN s.ids_per_second END
            AS ids_per_second
    ) rate
) lasts;
COMMENT ON VIEW @extschema@.leaf_segment_status IS
    'Tags of this database: what is cached, how fast it is used, what went wrong';

CREATE VIEW @extschema@.leaf_slot_status AS
SELECT * FROM @extschema@.leaf_slot_counts();
COMMENT ON VIEW @extschema@.leaf_slot_status IS
    'The slots of this server, all databases together: how many are used, and what evictions have cost';

CREATE VIEW @extschema@.leaf_central_status AS
SELECT
    a.server,
    coalesce(l.state, 'closed') AS state,
    l.since, l.last_error,
    coalesce(l.attempts, 0) AS attempts,
    l.last_claim
FROM (SELECT DISTINCT server FROM leaf_id.leaf_alloc WHERE server IS NOT NULL) a
LEFT JOIN @extschema@.leaf_central_connections() l ON l.server OPERATOR(pg_catalog.=) a.server;
COMMENT ON VIEW @extschema@.leaf_central_status IS
    'Servers that source tags of this database: whether they answer, and why not';

CREATE VIEW @extschema@.leaf_snowflake_status AS
SELECT * FROM @extschema@.leaf_snowflake_state();
COMMENT ON VIEW @extschema@.leaf_snowflake_status IS 'The snowflake generator of this server';

COMMENT ON COLUMN @extschema@.leaf_segment_status.tag IS 'Name of the tag';
COMMENT ON COLUMN @extschema@.leaf_segment_status.current_first IS 'First id of the segment in use';
COMMENT ON COLUMN @extschema@.leaf_segment_status.current_last IS 'Last id of the segment in use';
COMMENT ON COLUMN @extschema@.leaf_segment_status.current_next IS 'The next id; null when the segment is used up';
COMMENT ON COLUMN @extschema@.leaf_segment_status.current_remaining IS 'Ids left in the segment in use';
COMMENT ON COLUMN @extschema@.leaf_segment_status.fill_percent IS 'How much of the segment in use is left';
COMMENT ON COLUMN @extschema@.leaf_segment_status.spare_first IS 'First id of the spare segment';
COMMENT ON COLUMN @extschema@.leaf_segment_status.spare_last IS 'Last id of the spare segment';
COMMENT ON COLUMN @extschema@.leaf_segment_status.spare_remaining IS 'Ids in the spare segment';
COMMENT ON COLUMN @extschema@.leaf_segment_status.spare_state IS 'ready, in flight, or none';
COMMENT ON COLUMN @extschema@.leaf_segment_status.max_id IS 'The next id that is not claimed';
COMMENT ON COLUMN @extschema@.leaf_segment_status.step IS 'How many ids are claimed at once at present';
COMMENT ON COLUMN @extschema@.leaf_segment_status.ids_issued IS 'Ids issued since the tag came into shared memory';
COMMENT ON COLUMN @extschema@.leaf_segment_status.ids_per_second IS 'How fast ids are used: over the last two refills and the time since';
COMMENT ON COLUMN @extschema@.leaf_segment_status.refills IS 'Segments published';
COMMENT ON COLUMN @extschema@.leaf_segment_status.last_refill IS 'When the last segment was published';
COMMENT ON COLUMN @extschema@.leaf_segment_status.last_refill_ms IS 'How long it took from the request, in milliseconds';
COMMENT ON COLUMN @extschema@.leaf_segment_status.waits IS 'Calls that had to wait for a segment';
COMMENT ON COLUMN @extschema@.leaf_segment_status.waited_ms IS 'How long they waited together, in milliseconds';
COMMENT ON COLUMN @extschema@.leaf_segment_status.ids_lost IS 'Ids that were claimed and dropped: a gap';
COMMENT ON COLUMN @extschema@.leaf_segment_status.ids_skipped IS 'Ids that claims have left out because of a failover: a gap';
COMMENT ON COLUMN @extschema@.leaf_segment_status.timeline IS 'WAL timeline of the last claim; the first one on another skips, see leaf_id.failover_skip';
COMMENT ON COLUMN @extschema@.leaf_segment_status.last_error IS 'Why the last refill has failed; null if it has not, or the row was edited since';
COMMENT ON COLUMN @extschema@.leaf_segment_status.max_value IS 'The last id of the tag';
COMMENT ON COLUMN @extschema@.leaf_segment_status.used_ratio IS 'How much is claimed, up to 1';
COMMENT ON COLUMN @extschema@.leaf_segment_status.exhausted_at IS 'When max_value is reached at this rate; null when no ids are used, or it is centuries away';
COMMENT ON COLUMN @extschema@.leaf_segment_status.server IS 'Foreign source server of the tag; null: this server''s own leaf_alloc does';
COMMENT ON COLUMN @extschema@.leaf_segment_status.server_away_since IS 'Since when that server has claimed nothing; null if it is not away';
COMMENT ON COLUMN @extschema@.leaf_segment_status.cached_for IS 'How long what is cached lasts at this rate; null when no ids are used';
COMMENT ON COLUMN @extschema@.leaf_slot_status.slots IS 'Tags that can be cached at once: leaf_id.max_tags';
COMMENT ON COLUMN @extschema@.leaf_slot_status.used IS 'Tags that are';
COMMENT ON COLUMN @extschema@.leaf_slot_status.evictions IS 'Tags that had to make room for another one since the server started';
COMMENT ON COLUMN @extschema@.leaf_slot_status.ids_lost IS 'Ids that were cached for them: a gap';
COMMENT ON COLUMN @extschema@.leaf_central_status.server IS 'Foreign server that tags are sourced from';
COMMENT ON COLUMN @extschema@.leaf_central_status.state IS 'connected, connecting, away, or closed: nothing to ask at present';
COMMENT ON COLUMN @extschema@.leaf_central_status.since IS 'Since when it is in this state';
COMMENT ON COLUMN @extschema@.leaf_central_status.last_error IS 'Why it is away; null if it is not';
COMMENT ON COLUMN @extschema@.leaf_central_status.attempts IS 'How often it was tried in vain since then';
COMMENT ON COLUMN @extschema@.leaf_central_status.last_claim IS 'When it has last answered a claim';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.state IS 'What the generator is doing';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.worker_id IS 'Worker id in force';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.worker_id_source IS 'Where it came from';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.last_timestamp IS 'Time in the last id';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.reserved_until IS 'No id carries a later time before this is renewed on disk';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.floor IS 'Ids of this run of the launcher carry later times';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.floor_reason IS 'What that comes from';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.clock_lead_ms IS 'How far the time in the last id is ahead of the clock, in milliseconds';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.clock_lead_reason IS 'What that comes from; null where it is not ahead, or by no more than a burst';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.ids_issued IS 'Ids issued since the server started';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.waits IS 'Calls that had to wait, other than for the next millisecond';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.rollbacks_seen IS 'How often the clock was found to have been set back behind the last id';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.layout IS 'Bits of milliseconds, worker id and sequence in an id';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.exhausted_at IS 'When the time of this layout is used up';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.registry IS 'Where the worker id is leased from; null where it is not';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.lease_until IS 'When the lease of the worker id ends, if it is not renewed';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.registry_away_since IS 'Since when the registry has not answered; null if it has';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.clock_offset_ms IS 'The clock minus that of the registry when it was asked last, in milliseconds';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.peers_offset_ms IS 'The median of the other servers'' clocks minus that of the registry, in milliseconds';
COMMENT ON COLUMN @extschema@.leaf_snowflake_status.last_error IS 'Why the registry leased no worker id the last time; null if it leased one';
