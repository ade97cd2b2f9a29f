-- Who may issue the ids of a tag because of a column whose default issues them.
\set SHOW_CONTEXT never

CREATE ROLE leaf_id_owner;
CREATE ROLE leaf_id_app;
CREATE ROLE leaf_id_mallory;
CREATE SCHEMA shop AUTHORIZATION leaf_id_owner;
GRANT USAGE ON SCHEMA shop TO public;
CREATE FUNCTION as_admin(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN EXECUTE statement; END';

-- Who makes a tag may issue its ids, and nobody else.
SELECT leaf_tag_create('orders'), leaf_opaque_create('codes');
SELECT biz_tag, granted_to = ARRAY[current_user]::name[] AS mine FROM leaf_id.leaf_alloc;
SELECT leaf_segment_next('orders');
SET ROLE leaf_id_app;
SELECT * FROM refusal($$SELECT leaf_segment_next('orders')$$) \gx

-- A table of somebody without the grant gives nothing away, also not to its owner.
SET ROLE leaf_id_owner;
CREATE TABLE shop.orders (id bigint DEFAULT leaf_segment_next('orders') PRIMARY KEY, item text);
GRANT INSERT ON shop.orders TO leaf_id_app;
SELECT * FROM refusal($$INSERT INTO shop.orders DEFAULT VALUES$$) \gx
SET ROLE leaf_id_app;
SELECT * FROM refusal($$INSERT INTO shop.orders DEFAULT VALUES$$) \gx
SET ROLE leaf_id_mallory;
SELECT * FROM refusal($$SELECT leaf_segment_next('orders')$$) \gx
RESET ROLE;
SELECT leaf_tag_grant('orders', 'leaf_id_owner');

-- Then whoever may insert may issue, in any way.
SET ROLE leaf_id_app;
INSERT INTO shop.orders (item) VALUES ('tea');
SELECT leaf_segment_next('orders') > 1 AS one, (SELECT count(*) FROM leaf_segment_next_batch('orders', 3)) AS batch,
    (leaf_segment_next_range('orders', 3)).last_id > 1 AS range;
SELECT as_admin('REVOKE INSERT ON shop.orders FROM leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
-- Some columns are enough, as for an identity.
SELECT as_admin('GRANT INSERT (item) ON shop.orders TO leaf_id_app');
INSERT INTO shop.orders (item) VALUES ('tea');
SELECT as_admin('REVOKE INSERT (item) ON shop.orders FROM leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin('GRANT SELECT, UPDATE, DELETE ON shop.orders TO leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
-- By a membership, and not after it.
SELECT as_admin('CREATE ROLE leaf_id_writers; GRANT INSERT ON shop.orders TO leaf_id_writers; GRANT leaf_id_writers TO leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin('REVOKE leaf_id_writers FROM leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin('GRANT leaf_id_writers TO leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
-- The default is changed, or the owner, or the owner's grant is taken away.
SELECT as_admin('ALTER TABLE shop.orders ALTER id DROP DEFAULT');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin($$ALTER TABLE shop.orders ALTER id SET DEFAULT leaf_segment_next(tag => 'orders')$$);
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin('ALTER TABLE shop.orders OWNER TO leaf_id_mallory');
SELECT sqlstate, hint FROM refusal($$SELECT leaf_segment_next('orders')$$) \gx
SELECT as_admin('ALTER TABLE shop.orders OWNER TO leaf_id_owner');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin($$SELECT leaf_tag_revoke('orders', 'leaf_id_owner')$$);
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin($$SELECT leaf_tag_grant('orders', 'leaf_id_owner')$$);
-- An expression around it, a domain, a partition, a view's own default.
SELECT as_admin($$ALTER TABLE shop.orders ALTER id SET DEFAULT leaf_segment_next('orders') + 1000000$$);
INSERT INTO shop.orders (item) VALUES ('tea');
SELECT as_admin($$ALTER TABLE shop.orders ALTER id SET DEFAULT leaf_segment_next('ord' || 'ers')$$);
SELECT sqlstate FROM refusal($$INSERT INTO shop.orders (item) VALUES ('tea')$$);
SELECT as_admin($$CREATE DOMAIN shop.order_id AS bigint DEFAULT leaf_segment_next('orders');
    ALTER DOMAIN shop.order_id OWNER TO leaf_id_owner;
    ALTER TABLE shop.orders ALTER id DROP DEFAULT, ALTER id TYPE shop.order_id$$);
INSERT INTO shop.orders (item) VALUES ('tea');
SELECT as_admin('ALTER DOMAIN shop.order_id DROP DEFAULT');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
SELECT as_admin($$ALTER DOMAIN shop.order_id SET DEFAULT leaf_segment_next('orders')$$);
INSERT INTO shop.orders (item) VALUES ('tea');
-- The domain's owner could let it issue ids of any tag that the table's owner has.
SELECT as_admin('ALTER DOMAIN shop.order_id OWNER TO leaf_id_mallory');
SELECT sqlstate, hint FROM refusal($$SELECT leaf_segment_next('orders')$$) \gx
SELECT as_admin('ALTER DOMAIN shop.order_id OWNER TO leaf_id_owner');
SELECT as_admin('ALTER TABLE shop.orders ALTER id SET DEFAULT 1');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
RESET ROLE;
DROP TABLE shop.orders;
DROP DOMAIN shop.order_id;

-- Somebody's own table, domain or view is no way to a tag.
SET ROLE leaf_id_mallory;
CREATE TEMP TABLE mine (id bigint DEFAULT leaf_segment_next('orders'), code bigint DEFAULT leaf_opaque_next('codes'));
CREATE DOMAIN pg_temp.mine_id AS bigint DEFAULT leaf_segment_next('orders');
CREATE TEMP VIEW v AS SELECT 1::bigint AS id;
ALTER VIEW v ALTER id SET DEFAULT leaf_segment_next('orders');
SELECT statement, sqlstate
FROM (VALUES ('INSERT INTO mine DEFAULT VALUES'), ('SELECT leaf_segment_next(''orders'')'), ('SELECT leaf_opaque_next(''codes'')')) s (statement),
    refusal(statement);
DROP VIEW v;
DROP TABLE mine;
DROP DOMAIN pg_temp.mine_id;
RESET ROLE;

-- Opaque ids follow the same rule.
SELECT leaf_tag_grant('codes', 'leaf_id_owner');
SET ROLE leaf_id_owner;
CREATE TABLE shop.codes (id bigint DEFAULT leaf_opaque_next('codes'));
GRANT INSERT ON shop.codes TO leaf_id_app;
SET ROLE leaf_id_app;
INSERT INTO shop.codes DEFAULT VALUES;
SELECT leaf_opaque_next('codes') > 0 AS one;
SET ROLE leaf_id_mallory;
SELECT sqlstate FROM refusal($$SELECT leaf_opaque_next('codes')$$);

-- Partitions and children, by whatever of them is written.
SET ROLE leaf_id_owner;
CREATE TABLE shop.orders (id bigint DEFAULT leaf_segment_next('orders'), item text) PARTITION BY LIST (item);
CREATE TABLE shop.tea PARTITION OF shop.orders FOR VALUES IN ('tea');
GRANT INSERT ON shop.orders TO leaf_id_app;
GRANT INSERT ON shop.tea TO leaf_id_mallory;
SET ROLE leaf_id_app;
INSERT INTO shop.orders (item) VALUES ('tea');
SET ROLE leaf_id_mallory;
INSERT INTO shop.tea (item) VALUES ('tea');
SET ROLE leaf_id_owner;
DROP TABLE shop.orders;

-- As with an identity, views and rules insert for those who may insert into them, by their owner's right.
CREATE TABLE shop.orders (id bigint DEFAULT leaf_segment_next('orders'), with_identity bigint GENERATED BY DEFAULT AS IDENTITY, item text);
CREATE VIEW shop.items AS SELECT item FROM shop.orders;
CREATE VIEW shop.teas AS SELECT item FROM shop.items WHERE item = 'tea';
CREATE VIEW shop.by_rule AS SELECT 1 AS n;
CREATE RULE by_rule AS ON INSERT TO shop.by_rule DO INSTEAD INSERT INTO shop.orders (item) VALUES (NEW.n::text);
CREATE VIEW shop.by_trigger AS SELECT 1 AS n;
CREATE FUNCTION shop.by_trigger() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
    AS 'BEGIN INSERT INTO shop.orders (item) VALUES (NEW.n::text); RETURN NEW; END';
CREATE TRIGGER by_trigger INSTEAD OF INSERT ON shop.by_trigger FOR EACH ROW EXECUTE FUNCTION shop.by_trigger();
CREATE VIEW shop.invoker WITH (security_invoker = true) AS SELECT item FROM shop.orders;
RESET ROLE;
CREATE VIEW inserts AS
SELECT of, r.sqlstate, r.message
FROM (VALUES ('items (item)'), ('teas (item)'), ('by_rule (n)'), ('by_trigger (n)'), ('invoker (item)')) v (of),
    refusal(format('INSERT INTO shop.%s VALUES (1)', of)) r;
GRANT SELECT ON inserts TO public;
SET ROLE leaf_id_app;
TABLE inserts;
RESET ROLE;
GRANT INSERT ON shop.items TO leaf_id_app;
SET ROLE leaf_id_app;
TABLE inserts;
SELECT as_admin('REVOKE INSERT ON shop.items FROM leaf_id_app; GRANT INSERT ON shop.teas TO leaf_id_app');
INSERT INTO shop.teas VALUES ('tea');
SELECT as_admin('REVOKE INSERT ON shop.teas FROM leaf_id_app; GRANT INSERT ON shop.by_rule, shop.by_trigger, shop.invoker TO leaf_id_app');
TABLE inserts;
SELECT as_admin('REVOKE INSERT ON shop.by_rule, shop.by_trigger, shop.invoker FROM leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
-- A view of one who may not insert gives nothing away.
SELECT as_admin('CREATE VIEW shop.mallorys AS SELECT item FROM shop.orders; ALTER VIEW shop.mallorys OWNER TO leaf_id_mallory;
    GRANT INSERT ON shop.mallorys TO leaf_id_app');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
RESET ROLE;

-- Who manages tags needs no grant.
GRANT UPDATE ON leaf_id.leaf_alloc TO leaf_id_mallory;
SET ROLE leaf_id_mallory;
SELECT leaf_segment_next('orders') > 0 AS one;
SELECT as_admin('REVOKE UPDATE ON leaf_id.leaf_alloc FROM leaf_id_mallory');
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('orders')$$);
RESET ROLE;

-- Triggers, functions and COPY: as the current user.
GRANT INSERT ON shop.orders TO leaf_id_app;
CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.id := leaf_segment_next('orders'); RETURN NEW; END$$;
CREATE TRIGGER number BEFORE INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION number();
SET ROLE leaf_id_app;
INSERT INTO shop.orders (item) VALUES ('tea');
COPY shop.orders (item) FROM STDIN;
tea
tea
\.
-- A tag that is made in the open transaction.
RESET ROLE;
GRANT INSERT ON leaf_id.leaf_alloc TO leaf_id_owner;
SET ROLE leaf_id_owner;
BEGIN;
SELECT leaf_tag_create('here');
CREATE TABLE shop.here (id bigint DEFAULT leaf_segment_next('here'));
GRANT SELECT, INSERT ON shop.here TO leaf_id_app;
INSERT INTO shop.here DEFAULT VALUES RETURNING id;
SET LOCAL ROLE leaf_id_app;
INSERT INTO shop.here DEFAULT VALUES RETURNING id;
SET LOCAL ROLE leaf_id_mallory;
SELECT sqlstate FROM refusal($$SELECT leaf_segment_next('here')$$);
COMMIT;
SET ROLE leaf_id_app;
INSERT INTO shop.here DEFAULT VALUES RETURNING id > 2 AS further;
RESET ROLE;

-- After a restore of the tables alone: a superuser creates the tag, and the application goes on.
CREATE TABLE shop.restored (id bigint DEFAULT leaf_segment_next('restored'), item text);
INSERT INTO shop.restored VALUES (40, 'tea');
ALTER TABLE shop.restored OWNER TO leaf_id_owner;
GRANT INSERT ON shop.restored TO leaf_id_app;
SELECT action, next_after FROM leaf_sync('restored');
SET ROLE leaf_id_app;
INSERT INTO shop.restored (item) VALUES ('tea');
RESET ROLE;

SET client_min_messages = warning;
DROP SCHEMA shop CASCADE;
DROP VIEW inserts;
RESET client_min_messages;
DROP FUNCTION as_admin(text), number();
SELECT leaf_tag_drop(tag, forget => true) FROM unnest('{orders,codes,here,restored}'::text[]) tag;
DELETE FROM leaf_id.leaf_opaque_key;
DROP OWNED BY leaf_id_owner, leaf_id_app, leaf_id_mallory, leaf_id_writers;
DROP ROLE leaf_id_owner, leaf_id_app, leaf_id_mallory, leaf_id_writers;
