-- Opaque ids: numbers of a tag, encrypted with the key of its name; and decryption.

CREATE FUNCTION @extschema@.leaf_opaque_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_next_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_opaque_next(text) IS
    'The next id of a tag whose ids are opaque';

CREATE FUNCTION leaf_id.leaf_opaque_encode(tag text, n bigint) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_encode_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_opaque_encode(text, bigint) IS
    'The opaque id of a number';

CREATE FUNCTION leaf_id.leaf_opaque_decode(tag text, id bigint) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_decode_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_opaque_decode(text, bigint) IS
    'The number of an opaque id';

CREATE FUNCTION leaf_id.leaf_opaque_key(tag text) RETURNS text
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_key_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_opaque_key(text) IS
    'The key of the opaque ids of a tag, in hexadecimal: for leaf_opaque_create() on another server';

CREATE FUNCTION leaf_id_internal.leaf_has_key(tag text) RETURNS boolean
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_has_key_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_has_key(text) IS
    'Whether the ids of a tag are opaque';

CREATE FUNCTION leaf_id_internal.leaf_make_key(tag text, last bigint, key text) RETURNS void
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_make_key_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_make_key(text, bigint, text) IS
    'The part of leaf_opaque_create() that writes the key: a new one where it is empty';

CREATE FUNCTION leaf_id.leaf_opaque_create(
    tag text,
    max_value bigint DEFAULT 9007199254740991,
    step integer DEFAULT 1000,
    max_step integer DEFAULT NULL,
    server text DEFAULT NULL,
    key text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing CONSTANT text := CASE WHEN $1 IS NULL THEN 'tag' WHEN $2 IS NULL THEN 'max_value' WHEN $3 IS NULL THEN 'step' END;
    wrong record;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('argument "%s" of leaf_opaque_create() must not be null', missing);
    END IF;
    -- leaf_make_key() has more to say of max_value.
    SELECT w.* INTO wrong FROM leaf_id_internal.leaf_wrong_argument($1, NULL, $3, $4, NULL) w;
    IF wrong.argument IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('"%s" must be %s', wrong.argument, wrong.allowed);
    END IF;
    -- The key first, with the mark of the name: a tag created concurrently then causes an error.
    PERFORM leaf_id_internal.leaf_make_key($1, $2, coalesce($6, ''));
    PERFORM leaf_id_internal.leaf_create_tag($1, 1, $3, $4, $2, NULL, $5, false, true);
END
$$;
COMMENT ON FUNCTION leaf_id.leaf_opaque_create(text, bigint, integer, integer, text, text) IS
    'Creates a tag with opaque ids, and the key of its name, or with the key of another server';
