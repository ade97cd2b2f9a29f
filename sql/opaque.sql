-- Opaque ids: what an opaque tag makes of a number, and back.

CREATE FUNCTION @extschema@.leaf_opaque_encode(tag text, n bigint) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_encode_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_opaque_encode(text, bigint) IS
    'The id that an opaque tag makes of its n';

CREATE FUNCTION @extschema@.leaf_opaque_decode(tag text, id bigint) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_decode_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_opaque_decode(text, bigint) IS
    'The n that an opaque tag has made this id of';

CREATE FUNCTION leaf_id.leaf_key_of(tag text) RETURNS text
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_key_of_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_key_of(text) IS
    'The key of an opaque tag, in hexadecimal; who may execute it may also claim opaque tags with leaf_claim()';
