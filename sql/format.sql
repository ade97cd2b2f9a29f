-- Formatted ids.

CREATE FUNCTION @extschema@.leaf_format(id bigint, pattern text) RETURNS text
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_format_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_format(bigint, text) IS
    'An id by a pattern like INV-{YYYY}-{N:6} or ord_{BASE32}{CHECK}';

CREATE FUNCTION @extschema@.leaf_parse(formatted text, pattern text) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_parse_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_parse(text, text) IS
    'The id shown in a text formatted by leaf_format()';
