//! Would catch: an expression whose result changes because COPY inserts in bulk: one id for several
//! rows, an extra id, another error, or none.
//!
//! Everything runs in two databases. In one, the functions have no support function, so calls are
//! never replaced. Results and ids must be the same. There is a case for each place in SQL that
//! allows an expression.

use leaf_id_tests::{Server, Session};

use super::file_of_rows;

const ROWS: u32 = 1000;

struct Case {
    what: &'static str,
    /// First major version that supports it.
    since: i32,
    /// Each may fail. `:file` is a file with the numbers from 1 to 1000.
    statements: &'static [&'static str],
    /// Query of the result, as rows of text.
    look: &'static str,
}

impl Case {
    const fn new(
        what: &'static str,
        statements: &'static [&'static str],
        look: &'static str,
    ) -> Self {
        Self {
            what,
            since: 15,
            statements,
            look,
        }
    }

    const fn since(mut self, version: i32) -> Self {
        self.since = version;
        self
    }
}

const TABLE: &str = "CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int)";
const ALL: &str = "SELECT t::text FROM t";

const COPIES: [Case; 25] = [
    Case::new("COPY", &[TABLE, "COPY t (i) FROM :file"], ALL),
    Case::new(
        "a column with ids in the file",
        &[TABLE, "COPY t (id) FROM :file"],
        ALL,
    ),
    Case::new(
        "defaults with a CASE, an array, a row and a cast",
        &[
            "CREATE DOMAIN d AS int CHECK (CASE VALUE WHEN leaf_segment_next('a') - 1000000 THEN false ELSE true END);
             CREATE TABLE t (i int,
                 a bigint DEFAULT CASE 1 WHEN leaf_segment_next('a') THEN 5 ELSE leaf_segment_next('a') END,
                 b bigint DEFAULT CASE leaf_segment_next('a') % 2 WHEN 1 THEN leaf_segment_next('a') END,
                 c int[] DEFAULT ARRAY[leaf_segment_next('a'), 7, leaf_segment_next('a')]::int[],
                 e text DEFAULT ROW(leaf_segment_next('a'), 'x'),
                 f d DEFAULT leaf_segment_next('a') + 1,
                 g bigint DEFAULT nullif(greatest(leaf_segment_next('a'), 7), 7))",
            "COPY t (i) FROM :file",
            "ALTER TABLE t ADD h bigint DEFAULT CASE 1 WHEN leaf_segment_next('a') THEN 5 ELSE leaf_segment_next('a') END",
        ],
        ALL,
    ),
    Case::new(
        "snowflake ids, mixed and in a domain",
        &[
            "CREATE DOMAIN d AS bigint DEFAULT leaf_snowflake_next() CHECK (VALUE > 0);
             CREATE TABLE t (a bigint DEFAULT leaf_snowflake_next(), i int,
                 b bigint DEFAULT leaf_snowflake_next() / 2, c d)",
            "COPY t (i) FROM :file",
            "COPY t (i) FROM :file",
        ],
        "SELECT concat_ws(' ', count(DISTINCT a), count(DISTINCT c), bool_and(a < c AND a / 2 <= b)) FROM t",
    ),
    Case::new(
        "WHERE",
        &[TABLE, "COPY t (i) FROM :file WHERE i % 3 = 0"],
        ALL,
    ),
    Case::new(
        "WHERE that issues ids itself",
        &[
            TABLE,
            "COPY t (i) FROM :file WHERE leaf_segment_next('a') % 3 = 0",
        ],
        ALL,
    ),
    Case::new(
        "FREEZE",
        &["BEGIN; CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int);
           COPY t (i) FROM :file WITH (FREEZE); COMMIT"],
        ALL,
    ),
    Case::new(
        "the marker for a default",
        &[
            TABLE,
            "COPY t (id, i) FROM PROGRAM 'seq -f \"D,%g\" 1 500; seq -f \"%g,7\" 501 1000'
             WITH (FORMAT csv, DEFAULT 'D')",
        ],
        ALL,
    )
    .since(16),
    Case::new(
        "ON_ERROR",
        &[
            TABLE,
            "COPY t (i) FROM PROGRAM 'seq 1 500; echo none; seq 502 1000' WITH (ON_ERROR ignore)",
        ],
        ALL,
    )
    .since(17),
    Case::new(
        "an error in the last row, then again",
        &[
            TABLE,
            "COPY t (i) FROM PROGRAM 'seq 1 999; echo none'",
            "COPY t (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "a constraint that fails in the midst",
        &[
            TABLE,
            "ALTER TABLE t ADD CHECK (i <> 700)",
            "COPY t (i) FROM :file",
            "COPY t (i) FROM :file WHERE i <> 700",
        ],
        ALL,
    ),
    // In the last row: COPY in bulk buffers up to a thousand rows before it checks keys.
    Case::new(
        "a primary key that is taken",
        &[
            TABLE,
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "INSERT INTO t SELECT leaf_segment_next('a') + 1000, 0",
            "COPY t (i) FROM :file",
            "COPY t (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "triggers before and after each row, that look at the table",
        &[
            "CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int, seen bigint);
             CREATE TABLE noted (id bigint, i int, seen bigint);
             CREATE FUNCTION before() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN NEW.seen := NEW.id * 10000 + (SELECT count(*) FROM t); RETURN NEW; END $$;
             CREATE FUNCTION after() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN INSERT INTO noted VALUES (NEW.id, NEW.i, (SELECT count(*) FROM t)); RETURN NULL; END $$;
             CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION after()",
            "COPY t (i) FROM :file",
            "CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION before()",
            "COPY t (i) FROM :file",
        ],
        "SELECT t::text FROM t UNION ALL SELECT n::text FROM noted n",
    ),
    Case::new(
        "a trigger with the rows of the statement",
        &[
            TABLE,
            "CREATE TABLE noted (n bigint, least bigint, most bigint);
             CREATE FUNCTION after() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN INSERT INTO noted SELECT count(DISTINCT id), min(id), max(id) FROM fresh; RETURN NULL; END $$;
             CREATE TRIGGER a AFTER INSERT ON t REFERENCING NEW TABLE AS fresh
                 FOR EACH STATEMENT EXECUTE FUNCTION after()",
            "COPY t (i) FROM :file",
        ],
        "SELECT t::text FROM t UNION ALL SELECT n::text FROM noted n",
    ),
    Case::new(
        "a view with a trigger instead",
        &[
            TABLE,
            "CREATE VIEW v AS SELECT * FROM t;
             ALTER VIEW v ALTER id SET DEFAULT leaf_segment_next('a');
             CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN INSERT INTO t VALUES (NEW.id, NEW.i); RETURN NEW; END $$;
             CREATE TRIGGER i INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION instead()",
            "COPY v (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "partitions, by the id and by another column",
        &[
            "CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int, x int GENERATED ALWAYS AS (i * 2) STORED)
                 PARTITION BY HASH (id);
             CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);
             CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1) PARTITION BY LIST (i);
             CREATE TABLE t1a PARTITION OF t1 FOR VALUES IN (1, 2, 3);
             CREATE TABLE t1b PARTITION OF t1 DEFAULT;
             ALTER TABLE t1b ALTER id SET DEFAULT -1",
            "COPY t (i) FROM :file",
            "COPY t1a (i) FROM :file",
            "COPY t1b (id) FROM :file WHERE id < 20",
        ],
        "SELECT tableoid::regclass || t::text FROM t",
    ),
    Case::new(
        "a table that inherits",
        &[
            TABLE,
            "CREATE TABLE child (j int) INHERITS (t)",
            "COPY child (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "LIKE INCLUDING ALL, unlogged",
        &[
            TABLE,
            "CREATE UNLOGGED TABLE alike (LIKE t INCLUDING ALL)",
            "COPY alike (i) FROM :file",
        ],
        "SELECT a::text FROM alike a",
    ),
    Case::new(
        "a generated column of the id, and a domain over it",
        &[
            "CREATE DOMAIN d AS bigint DEFAULT leaf_segment_next('a') NOT NULL CHECK (VALUE % 2000 <> 1999);
             CREATE TABLE t (id d, i int, x bigint GENERATED ALWAYS AS (id * 2) STORED)",
            "COPY t (i) FROM :file",
            "COPY t (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "a foreign table, in batches",
        &[
            "CREATE TABLE there (id bigint, i int);
             CREATE FOREIGN TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int) SERVER loop
                 OPTIONS (schema_name 's', table_name 'there', batch_size '100')",
            "COPY t (i) FROM :file",
            "INSERT INTO t (i) SELECT i FROM generate_series(1, 250) i",
        ],
        "SELECT there::text FROM there",
    ),
    Case::new(
        "a tag that was made in the transaction",
        &[
            "BEGIN; SELECT leaf_tag_create('new', step => 10);
             CREATE TABLE t (id bigint DEFAULT leaf_segment_next('new'), i int);
             COPY t (i) FROM :file",
            "SAVEPOINT p; COPY t (i) FROM :file; ROLLBACK TO p",
            "COPY t (i) FROM :file",
            "COMMIT",
            "COPY t (i) FROM :file",
        ],
        "SELECT t::text FROM t UNION ALL SELECT leaf_tag_drop('new', force => true)::text",
    ),
    Case::new(
        "a tag that was edited in the transaction, or is not there",
        &[
            TABLE,
            "BEGIN; UPDATE leaf_id.leaf_alloc SET max_id = max_id + 10",
            "COPY t (i) FROM :file",
            "ROLLBACK",
            "COPY t (i) FROM :file",
            "ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next('none')",
            "COPY t (i) FROM :file",
            "ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next('')",
            "COPY t (i) FROM :file",
            "ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next(NULL)",
            "COPY t (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "a tag whose numbers run out",
        &[
            "SELECT leaf_tag_create('year', step => 100, max_step => 100, max_value => 999);
             CREATE TABLE t (id bigint DEFAULT leaf_segment_next('year'), i int)",
            "COPY t (i) FROM PROGRAM 'seq 1 600'",
            "COPY t (i) FROM :file",
            "COPY t (i) FROM PROGRAM 'seq 1 7'",
        ],
        "SELECT concat_ws(' ', id, i) FROM t UNION ALL SELECT leaf_tag_drop('year', force => true)::text",
    ),
    // Ids differ between the databases, as do the keys.
    Case::new(
        "an opaque tag",
        &[
            "SELECT leaf_id.leaf_opaque_create('opaque');
             CREATE TABLE t (id bigint PRIMARY KEY DEFAULT leaf_opaque_next('opaque'), i int)",
            "COPY t (i) FROM :file",
        ],
        "SELECT concat_ws(' ', leaf_id.leaf_opaque_decode('opaque', id), i) FROM t
         UNION ALL SELECT leaf_tag_drop('opaque', force => true)::text",
    ),
    Case::new(
        "COPY TO of a query",
        &[
            TABLE,
            "COPY (SELECT leaf_segment_next('a') FROM generate_series(1, 10)) TO PROGRAM 'cat >/dev/null'",
        ],
        "SELECT ''",
    ),
];

const OTHERS: [Case; 23] = [
    Case::new(
        "columns that are added",
        &[
            "CREATE DOMAIN d AS bigint DEFAULT leaf_segment_next('a');
             CREATE FUNCTION next_key() RETURNS bigint LANGUAGE sql AS $$SELECT leaf_segment_next('a')$$;
             CREATE TABLE t AS SELECT i FROM generate_series(1, 300) i",
            "ALTER TABLE t ADD a bigint DEFAULT leaf_segment_next('a')",
            "ALTER TABLE t ADD b text DEFAULT 'n' || leaf_segment_next('a') * 2 + 1",
            "ALTER TABLE t ADD c d",
            "ALTER TABLE t ADD e bigint DEFAULT next_key()",
            "ALTER TABLE t ADD f bigint DEFAULT leaf_segment_next('a') PRIMARY KEY,
                 ADD g bigint DEFAULT coalesce(NULL, leaf_segment_next('a'))",
            "INSERT INTO t (i) VALUES (301)",
        ],
        ALL,
    ),
    Case::new(
        "snowflake columns that are added",
        &[
            "CREATE TABLE t AS SELECT i FROM generate_series(1, 300) i",
            "ALTER TABLE t ADD a bigint DEFAULT leaf_snowflake_next()",
            "ALTER TABLE t ADD b bigint DEFAULT leaf_snowflake_next() + 0",
        ],
        "SELECT concat_ws(' ', count(DISTINCT a), count(DISTINCT b)) FROM t",
    ),
    Case::new(
        "a type that is altered",
        &[
            "CREATE TABLE t AS SELECT i FROM generate_series(1, 300) i",
            "ALTER TABLE t ALTER i TYPE bigint USING leaf_segment_next('a')",
            "ALTER TABLE t ALTER i TYPE bigint USING i * 1000 + leaf_segment_next('a')",
        ],
        ALL,
    ),
    Case::new(
        "where only what is immutable may stand",
        &[
            TABLE,
            "CREATE INDEX ON t (leaf_segment_next('a'))",
            "CREATE INDEX ON t ((id + leaf_snowflake_next()))",
            "CREATE INDEX ON t (id) WHERE id < leaf_segment_next('a')",
            "CREATE TABLE g (i int, id bigint GENERATED ALWAYS AS (leaf_segment_next('a')) STORED)",
            "CREATE TABLE g (i int, id bigint GENERATED ALWAYS AS (i + leaf_snowflake_next()) STORED)",
            "CREATE TABLE p (i int) PARTITION BY RANGE ((i + leaf_segment_next('a')))",
            "CREATE PUBLICATION p FOR TABLE t WHERE (i < leaf_segment_next('a'))",
        ],
        ALL,
    ),
    Case::new(
        "a virtual column",
        &[
            "CREATE TABLE t (i int, id bigint GENERATED ALWAYS AS (i + leaf_segment_next('a')) VIRTUAL)",
        ],
        "SELECT ''",
    )
    .since(18),
    Case::new(
        "CHECK constraints",
        &[
            "CREATE TABLE t (i int CHECK (i + leaf_segment_next('a') > 0))",
            "COPY t (i) FROM :file",
            "INSERT INTO t VALUES (1), (2)",
            "UPDATE t SET i = 7 WHERE i < 10",
            "ALTER TABLE t ADD CHECK (i < leaf_segment_next('a') * 1000)",
        ],
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass",
    ),
    Case::new(
        "CHECK constraints of a domain, also compiled",
        &[
            "CREATE DOMAIN d AS int CHECK (VALUE + leaf_segment_next('a') > 0)",
            "SELECT i::d FROM generate_series(1, 500) i",
            "SET jit_above_cost = 0; SET jit_inline_above_cost = 0; SET jit_optimize_above_cost = 0",
            "SELECT i::d FROM generate_series(1, 500) i",
            "RESET ALL; SET search_path = s, public",
            "DO $$ DECLARE x d; BEGIN FOR i IN 1..100 LOOP x := i; END LOOP; END $$",
            "CREATE TABLE t (i d)",
            "COPY t (i) FROM :file",
            "ALTER DOMAIN d ADD CHECK (leaf_snowflake_next() > 0)",
            "COPY t (i) FROM :file",
        ],
        "SELECT count(*)::text FROM t",
    ),
    Case::new(
        "bounds of partitions",
        &[
            "CREATE TABLE t (i bigint) PARTITION BY RANGE (i);
             CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (leaf_segment_next('a')) TO (10 * leaf_segment_next('a'))",
        ],
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = 't1'::regclass",
    ),
    Case::new(
        "a condition of a trigger",
        &[
            "CREATE TABLE t (i int); CREATE TABLE noted (i int);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN INSERT INTO noted VALUES (NEW.i); RETURN NULL; END $$;
             CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW
                 WHEN (NEW.i % 3 = leaf_segment_next('a') % 3) EXECUTE FUNCTION note()",
            "COPY t (i) FROM :file",
            "INSERT INTO t SELECT generate_series(1, 100)",
        ],
        "SELECT n::text FROM noted n",
    ),
    Case::new(
        "EXECUTE and prepared statements",
        &[
            "CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), other bigint);
             PREPARE p (bigint) AS INSERT INTO t (other) VALUES ($1);
             PREPARE q AS INSERT INTO t (other) VALUES (leaf_segment_next('a'))",
            "EXECUTE p (leaf_segment_next('a'))",
            "EXECUTE p (leaf_segment_next('a') * 2)",
            "EXECUTE q; EXECUTE q; EXECUTE q; EXECUTE q; EXECUTE q; EXECUTE q; EXECUTE q",
            "SET plan_cache_mode = force_generic_plan; EXECUTE p (leaf_segment_next('a')); EXECUTE q; RESET plan_cache_mode",
            "DEALLOCATE ALL",
        ],
        ALL,
    ),
    Case::new(
        "CALL and arguments with defaults",
        &[
            "CREATE TABLE t (id bigint);
             CREATE PROCEDURE p(id bigint DEFAULT leaf_segment_next('a')) LANGUAGE sql AS 'INSERT INTO t VALUES (id)';
             CREATE FUNCTION f(id bigint DEFAULT leaf_segment_next('a')) RETURNS bigint LANGUAGE sql AS 'SELECT id'",
            "CALL p(leaf_segment_next('a'))",
            "CALL p()",
            "CALL p(f())",
            "INSERT INTO t SELECT f() FROM generate_series(1, 100)",
        ],
        ALL,
    ),
    Case::new(
        "PL/pgSQL",
        &[
            "CREATE TABLE t (id bigint, other bigint)",
            "DO $$ DECLARE x bigint := leaf_segment_next('a'); y bigint;
             BEGIN
                 FOR i IN 1..50 LOOP
                     x := leaf_segment_next('a');
                     y := x + leaf_segment_next('a');
                     INSERT INTO t VALUES (x, y);
                     IF leaf_segment_next('a') % 5 = 0 THEN CONTINUE; END IF;
                     PERFORM leaf_segment_next('a');
                     EXECUTE 'INSERT INTO t VALUES ($1, leaf_segment_next(''a''))' USING leaf_segment_next('a');
                 END LOOP;
             END $$",
        ],
        ALL,
    ),
    Case::new(
        "functions that are inlined, or not",
        &[
            "CREATE FUNCTION inlined(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT leaf_segment_next(tag)';
             CREATE FUNCTION atomic() RETURNS bigint BEGIN ATOMIC SELECT leaf_segment_next('a'); END;
             CREATE FUNCTION stable() RETURNS bigint STABLE LANGUAGE sql AS $$SELECT leaf_segment_next('a')$$;
             CREATE FUNCTION immutable() RETURNS bigint IMMUTABLE LANGUAGE sql AS $$SELECT leaf_segment_next('a')$$;
             CREATE FUNCTION doubled(x bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 2 * x';
             CREATE FUNCTION repeated(x bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT x || ' ' || x$$;
             CREATE TABLE t (a bigint DEFAULT inlined('a'), b bigint DEFAULT atomic(), c bigint DEFAULT stable(),
                 d bigint DEFAULT immutable(), g bigint DEFAULT doubled(leaf_segment_next('a')),
                 h text DEFAULT repeated(leaf_segment_next('a')), i int)",
            "COPY t (i) FROM :file",
            "INSERT INTO t (i) SELECT generate_series(1, 20)",
            "ALTER TABLE t ADD e bigint DEFAULT atomic(), ADD f bigint DEFAULT stable()",
        ],
        ALL,
    ),
    Case::new(
        "MERGE",
        &[
            TABLE,
            "INSERT INTO t SELECT -i, i FROM generate_series(1, 50) i",
            "MERGE INTO t USING generate_series(1, 100) n ON t.i = n
             WHEN MATCHED AND n < 10 THEN UPDATE SET id = leaf_segment_next('a')
             WHEN MATCHED THEN UPDATE SET id = DEFAULT
             WHEN NOT MATCHED THEN INSERT (i) VALUES (n)",
        ],
        ALL,
    ),
    Case::new(
        "INSERT of every kind",
        &[
            TABLE,
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "INSERT INTO t (i) SELECT i FROM generate_series(1, 100) i",
            "INSERT INTO t (i) VALUES (1), (2), (3)",
            "INSERT INTO t DEFAULT VALUES",
            "INSERT INTO t VALUES (1, 0), (DEFAULT, 1) ON CONFLICT (id) DO UPDATE SET id = DEFAULT",
            "UPDATE t SET id = DEFAULT WHERE i > 50",
        ],
        ALL,
    ),
    Case::new(
        "statistics of an expression",
        &[
            "CREATE TABLE t AS SELECT i FROM generate_series(1, 300) i",
            "CREATE STATISTICS x ON (i + leaf_segment_next('a')), i FROM t",
            "ANALYZE t",
            "SELECT count(*) FROM t GROUP BY i + leaf_segment_next('a')",
            "SELECT FROM t WHERE i + leaf_segment_next('a') < 7",
        ],
        "SELECT ''",
    ),
    Case::new(
        "conditions, limits and samples",
        &[
            "CREATE TABLE t AS SELECT i FROM generate_series(1, 300) i; CREATE INDEX ON t (i); ANALYZE t",
            "SELECT FROM t WHERE i < leaf_segment_next('a')",
            "SELECT FROM t WHERE i = ANY (ARRAY[leaf_segment_next('a'), 7])",
            "SELECT FROM t ORDER BY i LIMIT leaf_segment_next('a') OFFSET leaf_segment_next('a')",
            "SELECT FROM t TABLESAMPLE system (leaf_segment_next('a') % 100)",
            "SELECT sum(leaf_segment_next('a')) OVER (ROWS leaf_segment_next('a') PRECEDING) FROM t",
        ],
        "SELECT ''",
    ),
    Case::new(
        "rules and policies",
        &[
            TABLE,
            "CREATE TABLE log (id bigint, i int);
             CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO log VALUES (leaf_segment_next('a'), NEW.i)",
            "INSERT INTO t (i) SELECT generate_series(1, 30)",
            "COPY t (i) FROM :file",
        ],
        "SELECT t::text FROM t UNION ALL SELECT l::text FROM log l",
    ),
    Case::new(
        "plans",
        &["CREATE TABLE t AS SELECT i FROM generate_series(1, 20000) i; ANALYZE t;
           CREATE TABLE u (id bigint DEFAULT leaf_segment_next('a'), i int);
           SET parallel_tuple_cost = 0; SET parallel_setup_cost = 0; SET min_parallel_table_scan_size = 0;
           CREATE FUNCTION plan(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
               BEGIN RETURN QUERY EXECUTE 'EXPLAIN (VERBOSE, COSTS off) ' || query; END $$"],
        "SELECT plan(query) FROM (VALUES
             ('INSERT INTO u (i) SELECT i FROM t'),
             ('INSERT INTO u DEFAULT VALUES'),
             ('CREATE TABLE v AS SELECT leaf_segment_next(''a''), leaf_snowflake_next() FROM t'),
             ('SELECT FROM t WHERE i < leaf_segment_next(''a'')'),
             ('SELECT leaf_segment_next(''a'') + 1')) AS queries(query)",
    ),
    Case::new(
        "parallel plans",
        &[
            "CREATE TABLE t AS SELECT i FROM generate_series(1, 20000) i; ANALYZE t;
             SET parallel_tuple_cost = 0; SET parallel_setup_cost = 0; SET min_parallel_table_scan_size = 0",
            "CREATE TABLE u AS SELECT leaf_segment_next('a') AS id FROM t",
            "RESET ALL; SET search_path = s, public",
        ],
        "SELECT count(DISTINCT id)::text FROM u",
    ),
    Case::new(
        "what the catalogs show",
        &[
            TABLE,
            "ALTER TABLE t ADD s bigint DEFAULT leaf_snowflake_next(), ADD CHECK (i < leaf_segment_next('a'))",
            "COPY t (i) FROM :file WHERE i < 10",
        ],
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 't'::regclass
         UNION ALL SELECT coalesce(column_default, 'none') FROM information_schema.columns WHERE table_name = 't'
         UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass
         UNION ALL SELECT concat_ws(' ', pg_describe_object(classid, objid, objsubid), deptype,
             pg_describe_object(refclassid, refobjid, refobjsubid))
         FROM pg_depend WHERE refclassid = 'pg_proc'::regclass
             AND objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = 't'::regclass
                 UNION SELECT oid FROM pg_constraint WHERE conrelid = 't'::regclass)",
    ),
    Case::new(
        "what depends on the functions",
        &[
            TABLE,
            "DROP FUNCTION leaf_segment_next(text)",
            "DROP FUNCTION leaf_segment_next(text) CASCADE",
            "DROP EXTENSION leaf_id",
            "BEGIN; DROP EXTENSION leaf_id CASCADE",
            "COPY t (i) FROM :file",
            "ROLLBACK",
            "COPY t (i) FROM :file",
        ],
        ALL,
    ),
    Case::new(
        "names that another role has planted",
        &[
            TABLE,
            "CREATE FUNCTION leaf_segment_next_stable(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
             CREATE FUNCTION leaf_segment_next(text) RETURNS bigint LANGUAGE sql AS 'SELECT 2::bigint';
             SET search_path = s, public, pg_catalog",
            "COPY t (i) FROM :file",
            "RESET ALL; SET search_path = s, public",
        ],
        ALL,
    ),
];

/// Outcome of a case: each result, the final contents, and the next id.
fn outcome(session: &mut Session, case: &Case, file: &str) -> Vec<String> {
    session.run("CREATE SCHEMA s; SET search_path = s, public");
    let mut outcome = Vec::new();
    for statement in case.statements {
        let statement = statement.replace(":file", file);
        outcome.push(match session.try_run(&statement) {
            Ok(()) => format!("{statement}: done"),
            Err(failure) => format!("{statement}: {failure}"),
        });
    }
    outcome.extend(session.column::<String>(case.look));
    outcome.push(format!("next: {}", session.next("a")));
    session.run("RESET ALL; DROP SCHEMA s CASCADE");
    outcome
}

/// A database with both generators, tag a, and a foreign server that points to itself.
fn database(server: &Server, name: &str) -> Session {
    server.session().run(&format!("CREATE DATABASE {name}"));
    let mut session = server.session_in(name);
    session.run(&format!(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('a', step => 1000000);
         CREATE EXTENSION postgres_fdw;
         CREATE SERVER loop FOREIGN DATA WRAPPER postgres_fdw
             OPTIONS (host '{}', port '{}', dbname '{name}');
         CREATE USER MAPPING FOR postgres SERVER loop OPTIONS (user 'postgres')",
        server.dir().display(),
        server.port()
    ));
    session
}

fn same_with_and_without(cases: &[Case]) {
    let server = Server::start(&[("leaf_id.worker_id", "1"), ("autovacuum", "off")]);
    let file = format!("'{}'", file_of_rows(&server, ROWS).display());
    let mut with = database(&server, "supported");
    let mut without = database(&server, "plain");
    without.run(
        "UPDATE pg_proc SET prosupport = 0 WHERE prosupport = 'leaf_id_internal.leaf_next_support'::regproc",
    );
    let major = with.major();
    for case in cases.iter().filter(|case| case.since <= major) {
        println!("{}", case.what);
        let expected = outcome(&mut without, case, &file);
        let real = outcome(&mut with, case, &file);
        let first = expected
            .iter()
            .zip(&real)
            .find(|(expected, real)| expected != real);
        if let Some((expected, real)) = first {
            panic!("{}\nwithout: {expected}\nwith: {real}", case.what);
        }
        assert_eq!(expected.len(), real.len(), "{}", case.what);
        for answer in real.iter().take(case.statements.len()) {
            println!("    {}", answer.replace('\n', " "));
        }
    }
}

#[test]
fn every_copy_does_what_it_did() {
    same_with_and_without(&COPIES);
}

#[test]
fn expressions_elsewhere_do_what_they_did() {
    same_with_and_without(&OTHERS);
}
