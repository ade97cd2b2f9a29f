-- Gapless series: 1 to n for the committed calls, and for whom.
\set SHOW_CONTEXT never
\set next 'SELECT leaf_id.leaf_gapless_next(''s'');'
SELECT leaf_id.leaf_gapless_create('s'), leaf_id.leaf_gapless_create('other', 41);
CREATE TABLE invoices (number bigint DEFAULT leaf_id.leaf_gapless_next('s'), item text);
:next
:next
SELECT leaf_id.leaf_gapless_next('other');
-- Several in one statement, as a default, and in a statement or a transaction that fails.
SELECT leaf_id.leaf_gapless_next('s') FROM generate_series(1, 3);
INSERT INTO invoices (item) VALUES ('a'), ('b') RETURNING number;
SELECT leaf_id.leaf_gapless_next('s'), 1 / (leaf_id.leaf_gapless_next('s') - 9);
BEGIN;
:next
ROLLBACK;
:next
-- A value that is taken and not stored is a hole in the table, as documented.
CREATE UNIQUE INDEX ON invoices (item);
INSERT INTO invoices (item) VALUES ('a') ON CONFLICT DO NOTHING;
SELECT last_number FROM leaf_id.leaf_gapless WHERE series = 's';
:next

-- Savepoints give back what was taken since.
SELECT leaf_id.leaf_gapless_drop('s', forget => true), leaf_id.leaf_gapless_create('s');
BEGIN;
:next
SAVEPOINT a;
:next
SAVEPOINT b;
:next
ROLLBACK TO b;
:next
RELEASE b;
ROLLBACK TO a;
:next
RELEASE a;
COMMIT;
DO $$ BEGIN
    BEGIN PERFORM leaf_id.leaf_gapless_next('s'); RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN NULL; END;
    PERFORM leaf_id.leaf_gapless_next('s');
END $$;
SELECT last_number FROM leaf_id.leaf_gapless WHERE series = 's';
:next

-- Only READ COMMITTED transactions that may write take one.
SELECT leaf_id.leaf_gapless_drop('s', forget => true), leaf_id.leaf_gapless_create('s');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM refusal($$SELECT leaf_id.leaf_gapless_next('s')$$) \gx
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM refusal($$SELECT leaf_id.leaf_gapless_next('s')$$) \gx
ROLLBACK;
BEGIN ISOLATION LEVEL READ UNCOMMITTED;
:next
COMMIT;
BEGIN READ ONLY;
SELECT sqlstate, message FROM refusal($$SELECT leaf_id.leaf_gapless_next('s')$$);
ROLLBACK;
:next

-- Errors.
SELECT replace(call, repeat('x', 129), 'xxx...') AS call, sqlstate, replace(message, repeat('x', 129), 'xxx...') AS message
FROM (VALUES ('leaf_id.leaf_gapless_next(''none'')'),
             ('leaf_id.leaf_gapless_next('''')'),
             ('leaf_id.leaf_gapless_next(repeat(''x'', 129))'),
             ('leaf_id.leaf_gapless_create(''s'')'),
             ('leaf_id.leaf_gapless_create('''')'),
             ('leaf_id.leaf_gapless_create(repeat(''x'', 129))'),
             ('leaf_id.leaf_gapless_create(''t'', 0)'),
             ('leaf_id.leaf_gapless_create(''t'', -9223372036854775808)'),
             ('leaf_id.leaf_gapless_create(NULL)'),
             ('leaf_id.leaf_gapless_create(''t'', NULL)'),
             ('leaf_id.leaf_gapless_drop(''none'')'),
             ('leaf_id.leaf_gapless_drop(NULL)'),
             ('leaf_id.leaf_gapless_drop(''s'', NULL)')) c (call),
     refusal('SELECT ' || call);
SELECT sqlstate FROM refusal($$SELECT leaf_id.leaf_gapless_next(repeat('x', 100000))$$);
SELECT leaf_id.leaf_gapless_next(NULL) IS NULL AS null;
SELECT leaf_id.leaf_gapless_create('end', 9223372036854775806);
SELECT leaf_id.leaf_gapless_next('end');
SELECT * FROM refusal($$SELECT leaf_id.leaf_gapless_next('end')$$) \gx
SELECT leaf_id.leaf_gapless_drop('s', true), leaf_id.leaf_gapless_drop('end'), leaf_id.leaf_gapless_create('s', 5);
:next

-- How far a series was counted is remembered twice, whichever table a tool sets back.
ALTER TABLE leaf_id.leaf_gapless DISABLE TRIGGER USER;
UPDATE leaf_id.leaf_gapless SET last_number = 0 WHERE series = 's';
:next
DELETE FROM leaf_id.leaf_gapless_mark;
:next
UPDATE leaf_id.leaf_gapless SET last_number = 0 WHERE series = 's';
ALTER TABLE leaf_id.leaf_gapless ENABLE ALWAYS TRIGGER leaf_gapless_edit, ENABLE ALWAYS TRIGGER leaf_gapless_follow,
    ENABLE ALWAYS TRIGGER leaf_gapless_follow_truncate;
-- Nor if it is renamed before it is used.
BEGIN;
UPDATE leaf_id.leaf_gapless SET series = 'u' WHERE series = 's';
SELECT leaf_id.leaf_gapless_next('u');
ROLLBACK;
BEGIN;
:next
ROLLBACK;
:next
-- Also under a name whose row was dropped, renamed or put back; until it is forgotten.
SELECT * FROM refusal($$UPDATE leaf_id.leaf_gapless SET last_number = 3 WHERE series = 's'$$) \gx
CREATE TABLE aside AS SELECT * FROM leaf_id.leaf_gapless WHERE series = 's';
:next
SELECT leaf_id.leaf_gapless_drop('s'), leaf_id.leaf_gapless_create('s');
:next
DELETE FROM leaf_id.leaf_gapless WHERE series = 's';
INSERT INTO leaf_id.leaf_gapless TABLE aside;
:next
UPDATE leaf_id.leaf_gapless SET series = 't' WHERE series = 's';
SELECT leaf_id.leaf_gapless_create('s');
:next
SELECT leaf_id.leaf_gapless_next('t');
SELECT leaf_id.leaf_gapless_drop('t'), leaf_id.leaf_gapless_create('t', 100), leaf_id.leaf_gapless_next('t');
BEGIN;
SELECT leaf_id.leaf_gapless_drop('t', forget => true);
ROLLBACK;
SELECT leaf_id.leaf_gapless_next('t');
SELECT leaf_id.leaf_gapless_drop('t');
SELECT leaf_id.leaf_gapless_drop('t', forget => true);
SELECT sqlstate, message FROM refusal($$SELECT leaf_id.leaf_gapless_drop('t', forget => true)$$);
SELECT leaf_id.leaf_gapless_drop('s', true), leaf_id.leaf_gapless_create('s', 6);
-- A table that is not of the extension's own shape is left alone.
BEGIN;
ALTER TABLE leaf_id.leaf_gapless ALTER last_number TYPE numeric;
SELECT * FROM refusal($$SELECT leaf_id.leaf_gapless_next('s')$$) \gx
ROLLBACK;
:next

-- A role takes EXECUTE, and nothing else.
SELECT leaf_id.leaf_gapless_drop('s', forget => true), leaf_id.leaf_gapless_create('s');
CREATE ROLE leaf_id_clerk;
CREATE ROLE leaf_id_stranger;
GRANT EXECUTE ON FUNCTION leaf_id.leaf_gapless_next TO leaf_id_clerk;
GRANT INSERT, SELECT ON invoices TO leaf_id_clerk, leaf_id_stranger;
SET ROLE leaf_id_clerk;
:next
INSERT INTO invoices DEFAULT VALUES RETURNING number;
SET ROLE leaf_id_stranger;
SELECT sqlstate, message FROM refusal($$SELECT leaf_id.leaf_gapless_next('s')$$);
SELECT sqlstate, message FROM refusal('INSERT INTO invoices DEFAULT VALUES');
RESET ROLE;
CREATE VIEW edits AS
SELECT statement, sqlstate, message
FROM (VALUES ('SELECT * FROM leaf_id.leaf_gapless'),
             ('SELECT * FROM leaf_id.leaf_gapless FOR UPDATE'),
             ('UPDATE leaf_id.leaf_gapless SET last_number = 0'),
             ('DELETE FROM leaf_id.leaf_gapless'),
             ('SELECT leaf_id.leaf_gapless_create(''mine'')'),
             ('SELECT leaf_id.leaf_gapless_drop(''s'')')) s (statement), refusal(statement);
GRANT SELECT ON edits TO PUBLIC;
SET ROLE leaf_id_clerk;
TABLE edits;
SET ROLE leaf_id_stranger;
TABLE edits;
RESET ROLE;
-- One series and no other: a function of the manager's own, as documented.
CREATE FUNCTION next_of_s() RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp BEGIN ATOMIC SELECT leaf_id.leaf_gapless_next('s'); END;
SET ROLE leaf_id_stranger;
SELECT next_of_s();
SELECT sqlstate FROM refusal($$SELECT leaf_id.leaf_gapless_next('other')$$);
RESET ROLE;

-- No role's trigger, rule or policy takes part.
CREATE ROLE leaf_id_mallory;
CREATE SCHEMA hers AUTHORIZATION leaf_id_mallory;
GRANT ALL ON leaf_id.leaf_gapless TO leaf_id_mallory;
GRANT USAGE ON SCHEMA leaf_id TO leaf_id_mallory;
SET ROLE leaf_id_mallory;
CREATE FUNCTION hers.f() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'run as %', current_user; END $$;
CREATE TRIGGER t BEFORE UPDATE ON leaf_id.leaf_gapless FOR EACH ROW EXECUTE FUNCTION hers.f();
CREATE TRIGGER t2 AFTER UPDATE ON leaf_id.leaf_gapless EXECUTE FUNCTION hers.f();
RESET ROLE;
:next
ALTER TABLE leaf_id.leaf_gapless ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE RULE r AS ON UPDATE TO leaf_id.leaf_gapless DO INSTEAD NOTHING;
:next
SELECT last_number FROM leaf_id.leaf_gapless WHERE series = 's';
DROP RULE r ON leaf_id.leaf_gapless;
ALTER TABLE leaf_id.leaf_gapless DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
DROP TRIGGER t ON leaf_id.leaf_gapless;
DROP TRIGGER t2 ON leaf_id.leaf_gapless;

-- TRUNCATE leaves marks, as DELETE does.
SELECT leaf_id.leaf_gapless_create('emptied', start => 501);
DELETE FROM leaf_id.leaf_gapless_mark WHERE series = 'emptied';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM refusal('TRUNCATE leaf_id.leaf_gapless');
ROLLBACK;
BEGIN;
TRUNCATE leaf_id.leaf_gapless;
SELECT leaf_id.leaf_gapless_create('emptied');
SELECT leaf_id.leaf_gapless_next('emptied');
ROLLBACK;
SELECT leaf_id.leaf_gapless_drop('emptied', forget => true);

SELECT leaf_id.leaf_gapless_drop('s'), leaf_id.leaf_gapless_drop('other');
DROP VIEW edits;
DROP FUNCTION next_of_s();
DROP TABLE invoices;
DROP OWNED BY leaf_id_clerk, leaf_id_stranger, leaf_id_mallory;
DROP ROLE leaf_id_clerk, leaf_id_stranger, leaf_id_mallory;
