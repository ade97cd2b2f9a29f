-- Ordered ids: what sees and moves columns that take ids from a tag sees those that take ordered ones.
\set SHOW_CONTEXT never
CREATE TABLE events (id bigint PRIMARY KEY DEFAULT leaf_ordered_next('events'));
INSERT INTO events VALUES (41);
SELECT severity, what, remedy FROM leaf_id.problems WHERE what LIKE '%"events"%';
SELECT sqlstate, message, hint FROM refusal('INSERT INTO events DEFAULT VALUES') \gx
SELECT tag, relation, column_name, max_in_column, next_after, action, detail FROM leaf_check('events');
SELECT tag, relation, column_name, max_in_column, next_after, action, detail FROM leaf_sync('events');
INSERT INTO events DEFAULT VALUES RETURNING id > 41 AS above;
SELECT sqlstate, message, detail FROM refusal($$SELECT leaf_tag_drop('events')$$) \gx
SELECT sqlstate, message, detail FROM refusal($$SELECT leaf_release('events', 'id')$$) \gx
SELECT sqlstate, message, detail FROM refusal($$SELECT leaf_adopt('events', 'id')$$) \gx
INSERT INTO events VALUES (5000);
SELECT max_in_column, next_after, action FROM leaf_sync('events');
SELECT leaf_ordered_watermark('events') > 5000 AS above;
-- A rewrite of the table, and rows in bulk.
ALTER TABLE events ADD number bigint DEFAULT leaf_ordered_next('events');
COPY events (number) FROM PROGRAM 'seq 3';
SELECT count(*), count(DISTINCT id), bool_and(id < leaf) FROM events, LATERAL (SELECT max(id) + 1 AS leaf FROM events) l;
DROP TABLE events;
SELECT leaf_tag_drop('events');
