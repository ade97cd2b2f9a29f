-- Segment ids: the functions that issue ids of tags.

CREATE FUNCTION leaf_id_internal.leaf_next_support(internal) RETURNS internal
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_next_support_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_next_support(internal) IS
    'Planner support of leaf_segment_next and leaf_snowflake_next: COPY inserts in bulk';

CREATE FUNCTION @extschema@.leaf_segment_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE SUPPORT leaf_id_internal.leaf_next_support
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_segment_next';
COMMENT ON FUNCTION @extschema@.leaf_segment_next(text) IS 'The next id of a tag';

CREATE FUNCTION leaf_id_internal.leaf_segment_next_stable(tag text, function oid, internal) RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_segment_next_stable';
COMMENT ON FUNCTION leaf_id_internal.leaf_segment_next_stable(text, oid, internal) IS
    'What leaf_segment_next becomes in COPY; not to be called from SQL';

-- One row, although there are n: for more, Memoize would be worth its price, and give the ids of one
-- outer row to all others with the same n. The same in snowflake.sql.
CREATE FUNCTION @extschema@.leaf_segment_next_batch(tag text, n integer) RETURNS SETOF bigint
    STRICT VOLATILE PARALLEL SAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_segment_next_batch_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_segment_next_batch(text, integer) IS
    'The next n ids of a tag, in increasing order';

CREATE FUNCTION @extschema@.leaf_segment_next_range(tag text, n integer, OUT first_id bigint, OUT last_id bigint)
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_segment_next_range_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_segment_next_range(text, integer) IS
    'The next n ids of a tag without a gap, as the first and the last; n up to max_step';
