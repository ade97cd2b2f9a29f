-- Ordered ids: ids of a tag whose rows can be read in the order in which they become visible.

CREATE FUNCTION @extschema@.leaf_ordered_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_ordered_next_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_ordered_next(text) IS
    'The next id of a tag, for rows that are read up to leaf_ordered_watermark()';

CREATE FUNCTION leaf_id_internal.leaf_watermark_support(internal) RETURNS internal
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_watermark_support_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_watermark_support(internal) IS
    'Planner support of leaf_ordered_watermark: refuses it in a statement with a table';

CREATE FUNCTION @extschema@.leaf_ordered_watermark(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL RESTRICTED SUPPORT leaf_id_internal.leaf_watermark_support
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_ordered_watermark_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_ordered_watermark(text) IS
    'Every transaction with an ordered id of the tag below this one has ended';
