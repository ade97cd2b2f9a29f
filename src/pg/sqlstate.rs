//! SQLSTATEs by which answers of other servers are distinguished, named as in PostgreSQL's
//! errcodes.txt.

/// Five characters: a class of two, and a subclass of three.
pub type SqlState = [u8; 5];

/// `warning`.
pub const WARNING: SqlState = *b"01000";
/// `protocol_violation`.
pub const PROTOCOL_VIOLATION: SqlState = *b"08P01";
/// `sequence_generator_limit_exceeded`.
pub const SEQUENCE_GENERATOR_LIMIT_EXCEEDED: SqlState = *b"2200H";
/// `read_only_sql_transaction`.
pub const READ_ONLY_SQL_TRANSACTION: SqlState = *b"25006";
/// `serialization_failure`.
pub const SERIALIZATION_FAILURE: SqlState = *b"40001";
/// `deadlock_detected`.
pub const DEADLOCK_DETECTED: SqlState = *b"40P01";
/// `insufficient_privilege`.
pub const INSUFFICIENT_PRIVILEGE: SqlState = *b"42501";
/// `undefined_object`.
pub const UNDEFINED_OBJECT: SqlState = *b"42704";
/// `lock_not_available`.
pub const LOCK_NOT_AVAILABLE: SqlState = *b"55P03";
/// `query_canceled`.
pub const QUERY_CANCELED: SqlState = *b"57014";
/// `internal_error`.
pub const INTERNAL_ERROR: SqlState = *b"XX000";

/// Class `connection_exception`.
pub const CONNECTION_EXCEPTION: &[u8] = b"08";
/// Class `insufficient_resources`.
pub const INSUFFICIENT_RESOURCES: &[u8] = b"53";
/// Prefix of class `operator_intervention` for a server that is starting up or shutting down.
pub const SHUTDOWN: &[u8] = b"57P";
/// Class `system_error`.
pub const SYSTEM_ERROR: &[u8] = b"58";
