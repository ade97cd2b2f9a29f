//! SQL for the messages between servers, which are described in src/remote/README.md.

/// An item for FROM that sends a message to a function for other servers. `message` is an
/// expression without a query.
#[must_use]
pub fn call(function: &str, message: &str) -> String {
    format!("pg_catalog.ts_parse('leaf_id.{function}', ({message})::text)")
}

/// Builds a message to the registry. `fields` are expressions: system identifier, node name, token
/// and next token; the segment held, or nulls: worker id, floor and end; clock, epoch and layout.
#[must_use]
pub fn lease_message(fields: &str) -> String {
    let field = |number: usize| format!("(json_build_array({fields}) -> {number})");
    let text = |number: usize| format!("(json_build_array({fields}) ->> {number})");
    format!(
        "json_build_object('version', 1, 'question', json_build_object(
             'token', coalesce({}::bigint, 0), 'next_token', {},
             'held', CASE WHEN {} IS NOT NULL THEN json_build_object(
                 'worker_id', {}, 'floor_ms', coalesce({}::bigint, 0),
                 'reserved_until_ms', coalesce({}::bigint, 0)) END),
             'system_identifier', {}, 'node_name', {}, 'now_ms', {}, 'epoch_ms', {}, 'layout', {})",
        text(2),
        field(3),
        text(4),
        field(4),
        text(5),
        text(6),
        field(0),
        field(1),
        field(7),
        field(8),
        field(9),
    )
}

/// Builds a query for the registry's answer to such a message, with one column per field.
#[must_use]
pub fn lease_query(message: &str) -> String {
    let call = call("leaf_worker_lease", message);
    format!(
        "SELECT coalesce(token::json #>> '{{answer,outcome,Err}}', 'granted') AS status,
             coalesce(token::json ->> 'detail', '') AS detail,
             (token::json #>> '{{answer,outcome,Ok,worker_id}}')::integer AS worker_id,
             (token::json #>> '{{answer,outcome,Ok,floor_ms}}')::bigint AS floor_ms,
             (token::json #>> '{{answer,outcome,Ok,reserved_until_ms}}')::bigint AS reserved_until_ms,
             (token::json #>> '{{answer,registry_ms}}')::bigint AS registry_ms,
             (token::json #>> '{{answer,peers,votes}}')::integer AS peers,
             (token::json #>> '{{answer,peers,offset_ms}}')::bigint AS peers_offset_ms
         FROM {call}"
    )
}

/// Makes the superuser of a server answer all messages with the value of this expression, in which
/// `txt` is the message.
#[must_use]
pub fn impersonate(answer: &str) -> String {
    // The function itself is built in. Only one that is inlined takes its place.
    format!(
        "CREATE OR REPLACE FUNCTION pg_catalog.ts_parse(parser_oid oid, txt text, OUT tokid integer, OUT token text)
         RETURNS SETOF record LANGUAGE sql STABLE AS $impostor$ SELECT 1, ({answer})::text $impostor$"
    )
}
