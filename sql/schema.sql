\echo Use "CREATE EXTENSION leaf_id" to load this file. \quit

-- Never the schema's name within quotes: before 15.4, PostgreSQL puts it there whatever characters it has.
DO $$
BEGIN
    IF pg_catalog.current_schema() OPERATOR(pg_catalog.=) ANY ('{leaf_id,leaf_id_internal}'::pg_catalog.name[]) THEN
        RAISE EXCEPTION 'extension "leaf_id" cannot be created in schema "%"', pg_catalog.current_schema() USING
            ERRCODE = 'duplicate_schema',
            DETAIL = 'It creates that schema itself.',
            HINT = pg_catalog.format('Drop or rename schema "%s", then run CREATE EXTENSION leaf_id without a SCHEMA clause.', pg_catalog.current_schema());
    END IF;
END
$$;

-- Schemas of the extension: what a person reads and calls, and what only its own functions call. An
-- existing one is an error, since objects that others have created in it could take the place of ours.
DO $$
DECLARE
    present pg_catalog.record;
BEGIN
    SELECT n.nspname AS name, pg_catalog.pg_get_userbyid(n.nspowner) AS owner INTO present
    FROM pg_catalog.pg_namespace n
    WHERE n.nspname OPERATOR(pg_catalog.=) ANY ('{leaf_id,leaf_id_internal}'::pg_catalog.name[])
    ORDER BY n.nspname LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema "%" already exists', present.name USING
            ERRCODE = 'duplicate_schema',
            DETAIL = 'CREATE EXTENSION leaf_id creates it.',
            HINT = pg_catalog.format('Role %I, which owns it, or a superuser can rename or drop it.', present.owner);
    END IF;
END
$$;

-- A subscriber stops at the first change of a table that it does not have.
DO $$
DECLARE
    publication pg_catalog.name;
BEGIN
    FOR publication IN SELECT p.pubname FROM pg_catalog.pg_publication p WHERE p.puballtables ORDER BY p.pubname LOOP
        RAISE WARNING 'publication "%" includes the tables of extension "leaf_id"', publication USING
            DETAIL = 'A subscriber without the extension stops at the first tag, whatever else it replicates.',
            HINT = 'To create it on each subscriber: CREATE EXTENSION leaf_id;';
    END LOOP;
END
$$;

CREATE SCHEMA leaf_id;
COMMENT ON SCHEMA leaf_id IS 'Views and tables of extension leaf_id, and functions for its administrators';
CREATE SCHEMA leaf_id_internal;
COMMENT ON SCHEMA leaf_id_internal IS 'What only extension leaf_id itself calls';

-- The table of tags: Leaf's leaf_alloc, plus the state of each row.

CREATE TABLE leaf_id.leaf_alloc (
    biz_tag text COLLATE "C" PRIMARY KEY
        CONSTRAINT leaf_alloc_biz_tag_length CHECK (
            pg_catalog.octet_length(biz_tag) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(biz_tag) OPERATOR(pg_catalog.<=) 128),
    max_id bigint NOT NULL DEFAULT 1
        CONSTRAINT leaf_alloc_max_id_positive CHECK (max_id OPERATOR(pg_catalog.>=) 1),
    step integer NOT NULL DEFAULT 1000
        CONSTRAINT leaf_alloc_step_positive CHECK (step OPERATOR(pg_catalog.>=) 1),
    description text,
    update_time timestamptz NOT NULL DEFAULT pg_catalog.now(),
    max_step integer NOT NULL DEFAULT 1000000,
    max_value bigint NOT NULL DEFAULT 9223372036854775806
        CONSTRAINT leaf_alloc_max_value_range CHECK (
            max_value OPERATOR(pg_catalog.>=) 1 AND max_value OPERATOR(pg_catalog.<=) 9223372036854775806),
    incarnation bigint NOT NULL DEFAULT 0,
    system_identifier bigint NOT NULL DEFAULT 0,
    timeline integer NOT NULL DEFAULT 0,
    largest_claim integer NOT NULL DEFAULT 0,
    -- A name rather than an oid, so that pg_dump preserves it.
    server name,
    server_incarnation bigint NOT NULL DEFAULT 0,
    -- Names rather than oids, as above. A name is valid while its role has a privilege on this
    -- schema or table.
    granted_to name[] NOT NULL
        DEFAULT CASE WHEN pg_catalog.current_setting('leaf_id.public_tags', true) OPERATOR(pg_catalog.=) 'on'
            THEN '{public}'::pg_catalog.name[] ELSE ARRAY[CURRENT_USER]::pg_catalog.name[] END
        CONSTRAINT leaf_alloc_granted_to_length CHECK (pg_catalog.cardinality(granted_to) OPERATOR(pg_catalog.<=) 1000),
    CONSTRAINT leaf_alloc_max_step_not_below_step CHECK (max_step OPERATOR(pg_catalog.>=) step),
    CONSTRAINT leaf_alloc_server_incarnation_of_server CHECK (server IS NOT NULL OR server_incarnation OPERATOR(pg_catalog.=) 0)
)
-- Claims update their row in place (HOT) as long as the page has room.
WITH (fillfactor = 50);

COMMENT ON TABLE leaf_id.leaf_alloc IS
    'Tags of leaf_id, as leaf_tag_create() makes them: one row each';
COMMENT ON COLUMN leaf_id.leaf_alloc.biz_tag IS 'Name of the tag, 1 to 128 bytes';
COMMENT ON COLUMN leaf_id.leaf_alloc.max_id IS
    'The next id that is not claimed; it can only be raised, except by leaf_tag_reset()';
COMMENT ON COLUMN leaf_id.leaf_alloc.step IS
    'First and smallest number of ids claimed at once; it grows with use up to max_step';
COMMENT ON COLUMN leaf_id.leaf_alloc.description IS 'Free text';
COMMENT ON COLUMN leaf_id.leaf_alloc.update_time IS 'Last claim or edit';
COMMENT ON COLUMN leaf_id.leaf_alloc.max_step IS 'Largest number of ids claimed at once';
COMMENT ON COLUMN leaf_id.leaf_alloc.max_value IS 'The last id of this tag; then it is an error (2200H)';
COMMENT ON COLUMN leaf_id.leaf_alloc.incarnation IS
    'Set by leaf_id: tells this row from another one of the same tag, before or after it';
COMMENT ON COLUMN leaf_id.leaf_alloc.system_identifier IS
    'Set by leaf_id: the database cluster of the last claim';
COMMENT ON COLUMN leaf_id.leaf_alloc.timeline IS 'Set by leaf_id: the WAL timeline of the last claim';
COMMENT ON COLUMN leaf_id.leaf_alloc.largest_claim IS 'Set by leaf_id: the largest of the recent claims, in ids';
COMMENT ON COLUMN leaf_id.leaf_alloc.server IS
    'Foreign server that this tag is sourced from; null: this table';
COMMENT ON COLUMN leaf_id.leaf_alloc.server_incarnation IS
    'Set by leaf_id: incarnation of the row there that the last segment came from';
COMMENT ON COLUMN leaf_id.leaf_alloc.granted_to IS
    'Roles that may issue its ids; public for all. See leaf_tag_grant() and leaf_tag_revoke()';
SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_alloc', '');

-- High-water marks: how far ids of a name were claimed, whatever became of the row.
CREATE TABLE leaf_id.leaf_high_mark (
    tag text COLLATE "C" PRIMARY KEY
        CONSTRAINT leaf_high_mark_tag_length CHECK (
            pg_catalog.octet_length(tag) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(tag) OPERATOR(pg_catalog.<=) 128),
    high bigint NOT NULL
        CONSTRAINT leaf_high_mark_high_positive CHECK (high OPERATOR(pg_catalog.>=) 1)
)
-- As for leaf_alloc.
WITH (fillfactor = 50);
COMMENT ON TABLE leaf_id.leaf_high_mark IS
    'Set by leaf_id: how far ids of each name were claimed in this database';
-- Of a name with a row, the row is dumped.
SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_high_mark',
    'WHERE NOT EXISTS (SELECT FROM leaf_id.leaf_alloc a WHERE a.biz_tag OPERATOR(pg_catalog.=) tag)');
COMMENT ON COLUMN leaf_id.leaf_high_mark.tag IS 'Name of a tag, or of one that is gone';
COMMENT ON COLUMN leaf_id.leaf_high_mark.high IS 'One past the highest id that was ever claimed';

-- For rows that are this database's own: a publication FOR ALL TABLES includes the publisher's.
CREATE FUNCTION leaf_id_internal.leaf_not_replicated() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- After pg_restore --disable-triggers, this fires in all sessions except subscribers. What the
    -- trigger of a replicated edit of a tag writes is this database's own.
    IF current_setting('session_replication_role') = 'replica' AND pg_trigger_depth() = 1 THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_not_replicated() IS
    'Trigger: leaves out replicated rows';
CREATE TRIGGER leaf_high_mark_stays
    BEFORE UPDATE OR DELETE ON leaf_id.leaf_high_mark
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_not_replicated();
ALTER TABLE leaf_id.leaf_high_mark ENABLE REPLICA TRIGGER leaf_high_mark_stays;
-- From a dump or a publisher: the mark of a name that may have no row.
CREATE FUNCTION leaf_id_internal.leaf_mark_arrives() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_mark_arrives_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_mark_arrives() IS
    'Trigger: a mark that is inserted raises the one that is here';
CREATE TRIGGER leaf_high_mark_arrives
    BEFORE INSERT ON leaf_id.leaf_high_mark
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_mark_arrives();
ALTER TABLE leaf_id.leaf_high_mark ENABLE ALWAYS TRIGGER leaf_high_mark_arrives;

-- A separate table: a GRANT on leaf_alloc makes a role a manager of tags, but must not disclose
-- keys.
CREATE TABLE leaf_id.leaf_opaque_key (
    tag text COLLATE "C" PRIMARY KEY
        CONSTRAINT leaf_opaque_key_tag_length CHECK (
            pg_catalog.octet_length(tag) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(tag) OPERATOR(pg_catalog.<=) 128),
    last bigint NOT NULL
        CONSTRAINT leaf_opaque_key_last_range CHECK (
            last OPERATOR(pg_catalog.>=) 1000000 AND last OPERATOR(pg_catalog.<=) 9223372036854775806),
    key bytea NOT NULL
        CONSTRAINT leaf_opaque_key_length CHECK (pg_catalog.octet_length(key) OPERATOR(pg_catalog.=) 32)
);
COMMENT ON TABLE leaf_id.leaf_opaque_key IS
    'Keys of opaque ids, by the names of tags: secret, and never changed';
COMMENT ON COLUMN leaf_id.leaf_opaque_key.tag IS 'Name of the tag';
COMMENT ON COLUMN leaf_id.leaf_opaque_key.last IS 'Numbers and ids are 1 to this';
COMMENT ON COLUMN leaf_id.leaf_opaque_key.key IS 'The key, of 256 bits';

SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_opaque_key', '');

-- A subscriber keeps its existing key. An error would stop the apply worker with all its tables.
CREATE FUNCTION leaf_id_internal.leaf_opaque_key_merge() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here leaf_id.leaf_opaque_key;
BEGIN
    -- After pg_restore --disable-triggers, this fires in all sessions except subscribers.
    IF current_setting('session_replication_role') <> 'replica' THEN
        RETURN NEW;
    END IF;
    SELECT k.* INTO here FROM leaf_id.leaf_opaque_key k WHERE k.tag = NEW.tag;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    IF (here.last, here.key) <> (NEW.last, NEW.key) THEN
        RAISE WARNING 'leaf_id: tag "%" has another key of opaque ids on the publisher', NEW.tag
            USING DETAIL = 'With the key here, its numbers are other ids, which may be equal to ids of the publisher.',
                HINT = 'If this server is to take over, drop the subscription, empty leaf_id.leaf_opaque_key and leaf_id.leaf_alloc with the tables of the application, and subscribe again.';
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION leaf_id_internal.leaf_opaque_key_merge() IS
    'Trigger: leaves out replicated keys that exist';
CREATE TRIGGER leaf_opaque_key_merge
    BEFORE INSERT ON leaf_id.leaf_opaque_key
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_opaque_key_merge();
ALTER TABLE leaf_id.leaf_opaque_key ENABLE REPLICA TRIGGER leaf_opaque_key_merge;

CREATE FUNCTION leaf_id_internal.leaf_opaque_key_changed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'leaf_opaque_key_changed_wrapper';
COMMENT ON FUNCTION leaf_id_internal.leaf_opaque_key_changed() IS
    'Trigger: ends what sessions have cached of keys that are changed or deleted by hand';
CREATE TRIGGER leaf_opaque_key_changed
    AFTER UPDATE OR DELETE ON leaf_id.leaf_opaque_key
    FOR EACH ROW EXECUTE FUNCTION leaf_id_internal.leaf_opaque_key_changed();
CREATE TRIGGER leaf_opaque_key_truncated
    AFTER TRUNCATE ON leaf_id.leaf_opaque_key
    FOR EACH STATEMENT EXECUTE FUNCTION leaf_id_internal.leaf_opaque_key_changed();
ALTER TABLE leaf_id.leaf_opaque_key ENABLE ALWAYS TRIGGER leaf_opaque_key_changed;
ALTER TABLE leaf_id.leaf_opaque_key ENABLE ALWAYS TRIGGER leaf_opaque_key_truncated;
