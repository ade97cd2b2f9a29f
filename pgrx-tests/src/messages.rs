//! SQL for the messages between servers, which are described in docs/reference.md.

/// Builds a message to the registry. `fields` are expressions: system identifier, node name, token
/// and next token; worker id held and the end of its reservation; clock, requested end of the
/// reservation, duration of the lease, skew, lead, epoch and layout.
#[must_use]
pub fn lease_message(kind: &str, fields: &str) -> String {
    format!(
        "(SELECT pg_catalog.json_build_object('version', 1, 'question', pg_catalog.json_build_object(
             'kind', '{kind}', 'token', coalesce(token::bigint, 0), 'next_token', next_token,
             'held', CASE WHEN worker_id IS NOT NULL THEN pg_catalog.json_build_object(
                 'worker_id', worker_id, 'reserved_until_ms', coalesce(held_until_ms::bigint, 0)) END,
             'lease_ms', lease_ms),
             'system_identifier', system_identifier, 'node_name', node_name, 'now_ms', now_ms,
             'reserve_until_ms', reserve_until_ms, 'max_skew_ms', max_skew_ms, 'max_lead_ms', max_lead_ms,
             'epoch_ms', epoch_ms, 'layout', layout)
          FROM (VALUES ({fields})) v (system_identifier, node_name, token, next_token, worker_id, held_until_ms,
              now_ms, reserve_until_ms, lease_ms, max_skew_ms, max_lead_ms, epoch_ms, layout))"
    )
}

/// Builds a query for the registry's answer to such a message, with one column per field.
#[must_use]
pub fn lease_query(function: &str, message: &str) -> String {
    format!(
        "SELECT coalesce(a #>> '{{outcome,Err,status}}', 'granted') AS status,
             coalesce(a #>> '{{outcome,Err,detail}}', '') AS detail,
             (a #>> '{{outcome,Ok,worker_id}}')::integer AS worker_id,
             (a #>> '{{outcome,Ok,floor_ms}}')::bigint AS floor_ms,
             (a #>> '{{outcome,Ok,reserved_until_ms}}')::bigint AS reserved_until_ms,
             (a ->> 'registry_ms')::bigint AS registry_ms,
             (a #>> '{{peers,votes}}')::integer AS peers,
             (a #>> '{{peers,offset_ms}}')::bigint AS peers_offset_ms
         FROM {function}({message}) a"
    )
}
