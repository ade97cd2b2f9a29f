-- Snowflake ids: functions that issue them, decode them, and compute bounds for a time.

CREATE FUNCTION @extschema@.leaf_snowflake_next() RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE SUPPORT leaf_id_internal.leaf_next_support
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_next';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_next() IS
    'The next snowflake id of this server: milliseconds, worker id, sequence';

CREATE FUNCTION leaf_id_internal.leaf_snowflake_next_stable(function oid, internal) RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_next_stable';
COMMENT ON FUNCTION leaf_id_internal.leaf_snowflake_next_stable(oid, internal) IS
    'What leaf_snowflake_next becomes in COPY; not to be called from SQL';

CREATE FUNCTION @extschema@.leaf_snowflake_next_batch(n integer) RETURNS SETOF bigint
    STRICT VOLATILE PARALLEL SAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_next_batch_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_next_batch(integer) IS
    'The next n snowflake ids, in increasing order';

CREATE FUNCTION @extschema@.leaf_snowflake_decode(
    id bigint, OUT ts timestamptz, OUT worker_id integer, OUT sequence integer)
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_decode_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_decode(bigint) IS
    'The parts of a snowflake id, with leaf_id.epoch and leaf_id.snowflake_layout';

CREATE FUNCTION @extschema@.leaf_snowflake_decode(
    id bigint, epoch bigint, layout text DEFAULT '41/10/12',
    OUT ts timestamptz, OUT worker_id integer, OUT sequence integer)
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_decode_in_format_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_decode(bigint, bigint, text) IS
    'The parts of a snowflake id, with an epoch in Unix milliseconds and a layout';

CREATE FUNCTION @extschema@.leaf_snowflake_time(id bigint) RETURNS timestamptz
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_time_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_time(bigint) IS
    'The time in a snowflake id, with leaf_id.epoch and leaf_id.snowflake_layout';

CREATE FUNCTION @extschema@.leaf_snowflake_time(id bigint, epoch bigint, layout text DEFAULT '41/10/12')
    RETURNS timestamptz
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_time_in_format_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_time(bigint, bigint, text) IS
    'The same with an epoch in Unix milliseconds and a layout, for generated columns and indexes';

CREATE FUNCTION @extschema@.leaf_snowflake_min(ts timestamptz) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_min_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_min(timestamptz) IS
    'The smallest snowflake id of the millisecond of ts, for ranges of time';

CREATE FUNCTION @extschema@.leaf_snowflake_min(ts timestamptz, epoch bigint, layout text DEFAULT '41/10/12')
    RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_min_in_format_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_min(timestamptz, bigint, text) IS
    'The same with an epoch in Unix milliseconds and a layout, for indexes and CHECK constraints';

CREATE FUNCTION @extschema@.leaf_snowflake_compose(ts timestamptz, worker_id integer, sequence bigint)
    RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_compose_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_compose(timestamptz, integer, bigint) IS
    'The snowflake id with these parts, for rows of past times';

CREATE FUNCTION @extschema@.leaf_snowflake_compose(
    ts timestamptz, worker_id integer, sequence bigint,
    epoch bigint, layout text DEFAULT '41/10/12')
    RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_compose_in_format_wrapper';
COMMENT ON FUNCTION @extschema@.leaf_snowflake_compose(timestamptz, integer, bigint, bigint, text) IS
    'The same with an epoch in Unix milliseconds and a layout';

CREATE FUNCTION leaf_id.leaf_snowflake_reset(until timestamptz) RETURNS void
    STRICT VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_snowflake_reset_wrapper';
COMMENT ON FUNCTION leaf_id.leaf_snowflake_reset(timestamptz) IS
    'Lets ids carry any time later than until: for a worker id that was never used, by superusers';
