-- Functions for other servers: parsers of text search, since these are called by oid, and only
-- a superuser makes one (src/api/servers.rs).

CREATE FUNCTION leaf_id.leaf_claim(internal, integer) RETURNS internal
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_claim_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_claim(internal, integer) IS
    'Claims ids of a tag for another server, which needs EXECUTE; not to be called from SQL';

CREATE FUNCTION leaf_id.leaf_worker_lease(internal, integer) RETURNS internal
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_worker_lease_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_worker_lease(internal, integer) IS
    'Leases a worker id to another server, which needs EXECUTE; not to be called from SQL';

CREATE FUNCTION leaf_id_internal.leaf_next_token(internal, internal, internal) RETURNS internal
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_next_token_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_next_token(internal, internal, internal) IS
    'Part of the parsers for other servers: the answer; not to be called from SQL';
CREATE FUNCTION leaf_id_internal.leaf_end_parse(internal) RETURNS void
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_end_parse_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_end_parse(internal) IS
    'Part of the parsers for other servers: the end; not to be called from SQL';
CREATE FUNCTION leaf_id_internal.leaf_token_types(internal) RETURNS internal
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_token_types_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_token_types(internal) IS
    'Part of the parsers for other servers: no types of tokens; not to be called from SQL';

CREATE TEXT SEARCH PARSER leaf_id.leaf_claim (
    START = leaf_id.leaf_claim, GETTOKEN = leaf_id_internal.leaf_next_token,
    END = leaf_id_internal.leaf_end_parse, LEXTYPES = leaf_id_internal.leaf_token_types);
COMMENT ON TEXT SEARCH PARSER leaf_id.leaf_claim IS 'Claims ids of a tag for another server';
CREATE TEXT SEARCH PARSER leaf_id.leaf_worker_lease (
    START = leaf_id.leaf_worker_lease, GETTOKEN = leaf_id_internal.leaf_next_token,
    END = leaf_id_internal.leaf_end_parse, LEXTYPES = leaf_id_internal.leaf_token_types);
COMMENT ON TEXT SEARCH PARSER leaf_id.leaf_worker_lease IS 'Leases a worker id to another server';
