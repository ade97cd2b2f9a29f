-- What the generators are doing, for pg_monitor.

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
    s.last_error,
    a.max_value,
    CASE WHEN s.ids_per_second > 0 THEN
        -- Far beyond what a timestamp holds is said as infinity.
        CASE WHEN (a.max_value - a.max_id) / s.ids_per_second > 1e10 THEN 'infinity'::timestamptz
             ELSE now() + make_interval(secs => greatest((a.max_value - a.max_id) / s.ids_per_second, 0))
        END
    END AS limit_ends
FROM @extschema@.leaf_alloc a
LEFT JOIN @extschema@.leaf_segment_slots() s ON s.tag = a.biz_tag;
COMMENT ON VIEW @extschema@.leaf_segment_status IS
    'Tags of this database: what is cached, how fast it is used, what went wrong';

CREATE VIEW @extschema@.leaf_snowflake_status AS
SELECT * FROM @extschema@.leaf_snowflake_state();
COMMENT ON VIEW @extschema@.leaf_snowflake_status IS 'The snowflake generator of this server';

REVOKE ALL ON @extschema@.leaf_segment_status, @extschema@.leaf_snowflake_status FROM PUBLIC;
GRANT SELECT ON @extschema@.leaf_segment_status, @extschema@.leaf_snowflake_status TO pg_monitor;
REVOKE ALL ON FUNCTION @extschema@.leaf_segment_slots(), @extschema@.leaf_snowflake_state() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.leaf_segment_slots(), @extschema@.leaf_snowflake_state() TO pg_monitor;
