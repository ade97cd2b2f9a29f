"""Would catch: a statement that Citus takes apart and that fails, or issues an id twice: a coordinator and its
workers issue ids of the same tags.

The page's statements, as they stand, set up a coordinator and two workers. Then every kind of statement runs
through each node, also beside each other, with a worker down, after a restart of the coordinator, and with a
third worker."""

import collections
import contextlib
import re
import threading

import common
from common import RUN, Server, assert_issued_once, cleanup, fail, free_port, say, wait_until

PAGE = (RUN / "fleet-and-failover.md").read_text()
BULK = 4000
PLAIN, SECRET, SNOWFLAKE = "leaf_segment_next('orders')", "leaf_opaque_next('secret')", "leaf_snowflake_next()"
# Table, its default, and how Citus spreads it; of a local table, each node has its own.
TABLES = {
    "distributed_plain": (PLAIN, "SELECT create_distributed_table('{}', 'id')"),
    "distributed_secret": (SECRET, "SELECT create_distributed_table('{}', 'id')"),
    "distributed_snowflake": (SNOWFLAKE, "SELECT create_distributed_table('{}', 'id')"),
    "reference_plain": (PLAIN, "SELECT create_reference_table('{}')"),
    "reference_snowflake": (SNOWFLAKE, "SELECT create_reference_table('{}')"),
    "local_plain": (PLAIN, None),
    "local_snowflake": (SNOWFLAKE, None),
}
STATEMENTS = {
    "VALUES": "INSERT INTO {t} (item) VALUES ('a')",
    "several rows": "INSERT INTO {t} (item) VALUES ('a'), ('b'), ('c')",
    "a call": "INSERT INTO {t} (id, item) VALUES ({d}, 'a')",
    "RETURNING": "INSERT INTO {t} (item) VALUES ('a') RETURNING id",
    "ON CONFLICT": "INSERT INTO {t} (item) VALUES ('a'), ('b') ON CONFLICT (id) DO UPDATE SET item = 'twice'",
    "SELECT": "INSERT INTO {t} (item) SELECT 'a' FROM generate_series(1, {n})",
    "PL/pgSQL": "DO $$ BEGIN FOR i IN 1..20 LOOP INSERT INTO {t} (item) VALUES ('a'); END LOOP; END $$",
    "a prepared statement": "PREPARE p AS INSERT INTO {t} (item) VALUES ($1); "
        + "EXECUTE p('a'); " * 7 + "DEALLOCATE p",
    "COPY": "COPY {t} (item) FROM PROGRAM 'seq {n}'",
}
# Citus takes no volatile function there, whichever it is.
REFUSED = {
    "MERGE": "MERGE INTO {t} USING (SELECT 1) s ON {t}.id = 0 WHEN NOT MATCHED THEN INSERT (item) VALUES ('a')",
    "UPDATE": "UPDATE {t} SET id = {d} WHERE id = 1",
}


def statements(heading):
    """The SQL of a section of the page, with the names of this test's servers."""
    section = re.search(rf"^## {heading}$(.*?)^## ", PAGE, re.M | re.S)[1]
    return re.findall(r"```sql\n(.*?)```", section, re.S)


class Node(Server):
    database = "postgres"

    def __init__(self, name, worker_id):
        self.port = free_port()
        # libpq looks for certificates in the home directory.
        super().__init__(name, {
            "listen_addresses": "127.0.0.1", "port": self.port, "shared_preload_libraries": "citus, leaf_id",
            "leaf_id.worker_id": worker_id, "max_connections": 300, "max_prepared_transactions": 300}, {"HOME": str(RUN)})
        self.start().ask("CREATE DATABASE app")
        self.database = "app"
        self.ask("CREATE EXTENSION citus")

    def connect(self):
        session = common.psycopg2.connect(host=str(self.socket), port=self.port, user="postgres", dbname=self.database,
                                          connect_timeout=5)
        session.autocommit = True
        return session


def each(session, sql):
    with session.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


def run_page(session, coordinator, block, only=""):
    """Runs a block of the page, whose statements for the workers must succeed on each."""
    block = (block.replace("host 'coordinator.example.com'", f"host '127.0.0.1', port '{coordinator.port}'"))
    for statement in re.split(r";\n(?=\w|\Z)", block):
        if statement.strip() and only in statement:
            for row in each(session, statement) or []:
                if len(row) == 4 and not row[2]:
                    fail(f"{statement}: {row}")


def ids_of(nodes, table):
    nodes = nodes if table.startswith("local") else nodes[:1]
    return [row[0] for node in nodes for row in each(node.connect(), f"SELECT id FROM {table}")]


def run_statements(node, tables=TABLES, count=BULK):
    with contextlib.closing(node.connect()) as session:
        for table in tables:
            for what, statement in STATEMENTS.items():
                try:
                    each(session, statement.format(t=table, d=TABLES[table][0], n=count))
                except common.psycopg2.Error as error:
                    fail(f"{what} of {table} on {node.name}: {error}")


def test():
    coordinator, *workers = [Node(name, number) for number, name in enumerate(("coordinator", "worker1", "worker2"))]
    nodes = [coordinator, *workers]
    session = coordinator.connect()
    each(session, f"SELECT citus_set_coordinator_host('127.0.0.1', {coordinator.port})")
    for worker in workers:
        each(session, f"SELECT citus_add_node('127.0.0.1', {worker.port})")
    first, added, raised = statements("Shards: Citus")
    run_page(session, coordinator, first)
    # All nodes have the key, and a server outside has the numbers.
    outside = Server("outside", {}).start()
    outside.ask("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('secret')")
    secret = f"""SET citus.enable_ddl_propagation = off;
        CREATE SERVER outside FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '{outside.socket}', dbname 'postgres');
        CREATE USER MAPPING FOR CURRENT_USER SERVER outside OPTIONS (user 'postgres');
        SELECT leaf_id.leaf_opaque_create('secret', server => 'outside', key => '{"5ec2e7" * 10 + "0000"}')"""
    for node in nodes:
        node.ask(secret)

    for table, (default, spread) in TABLES.items():
        create = f"CREATE TABLE {table} (id bigint PRIMARY KEY DEFAULT {default}, item text)"
        each(session, create)
        if spread:
            each(session, spread.format(table))
        else:
            for worker in workers:
                worker.ask(f"SET citus.enable_ddl_propagation = off; {create}")

    # A table that is moved first, and then distributed.
    each(session, "CREATE TABLE moved (id bigserial PRIMARY KEY, item text); INSERT INTO moved (item) VALUES ('a'), ('b')")
    each(session, "SELECT leaf_adopt('moved', 'id', 'moved')")
    each(session, "SELECT leaf_tag_grant('moved', 'leaf_member')")
    each(session, "SELECT create_distributed_table('moved', 'id')")
    run_page(session, coordinator, "SELECT * FROM run_command_on_workers($$SELECT leaf_tag_create('moved', server => 'leaf_central')$$);\n")

    for node in nodes:
        run_statements(node)
        node.ask("INSERT INTO moved (item) SELECT 'a' FROM generate_series(1, 100)")
        node.ask("INSERT INTO moved (item) VALUES ('a')")
        for what, statement in REFUSED.items():
            try:
                node.ask(statement.format(t="distributed_plain", d=PLAIN))
                fail(f"{what} is not refused any more: the page and this test say so")
            except common.psycopg2.Error as error:
                if "IMMUTABLE" not in str(error) and "VOLATILE" not in str(error):
                    raise
    say(f"{len(STATEMENTS)} kinds of statements, {len(TABLES)} tables, {len(nodes)} nodes")

    # The table on this node is empty: its largest value says nothing.
    for table in ("distributed_plain", "reference_plain"):
        rows = each(session, f"SELECT action, detail FROM leaf_check() WHERE relation = '{table}'::regclass")
        if not rows or any(row[0] != "skip" or "a table of Citus" not in row[1] for row in rows):
            fail(f"{table}: {rows}")

    # Rows with ids of their own, above what any node has cached.
    each(session, "INSERT INTO distributed_plain (id, item) SELECT i, 'a' FROM generate_series(900001, 1000000) i")
    run_page(session, coordinator, raised.replace("FROM orders", "FROM distributed_plain"))
    for node in nodes:
        if node.ask(f"SELECT {PLAIN}") <= 1000000:
            fail(f"{node.name} goes on below the rows")

    # All nodes at once.
    errors = []
    def work(node):
        try:
            run_statements(node)
        except AssertionError as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(node,)) for node in nodes for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

    # A worker is down: the others go on with what is local, and it goes on once it is back.
    workers[1].stop()
    for node in (coordinator, workers[0]):
        run_statements(node, ["local_plain", "local_snowflake"])
    workers[1].start()
    wait_until("worker2 to issue ids", 60, lambda: workers[1].ask("INSERT INTO distributed_plain (item) VALUES ('a') RETURNING id"))
    coordinator.stop()
    coordinator.start()
    for node in nodes:
        wait_until(f"{node.name} to issue ids", 60, lambda: node.ask("INSERT INTO distributed_plain (item) VALUES ('a') RETURNING id"))
        run_statements(node)

    # A new worker.
    new = Node("worker3", 3)
    session = coordinator.connect()
    each(session, f"SELECT citus_add_node('127.0.0.1', {new.port})")
    with contextlib.closing(new.connect()) as there:
        run_page(there, coordinator, added)
    new.ask(secret)
    new.ask("SELECT leaf_tag_create('moved', server => 'leaf_central')")
    each(session, "SELECT citus_rebalance_start()")
    shared = [table for table in TABLES if not table.startswith("local")]
    for node in (new, *nodes):
        run_statements(node, shared)
    nodes.append(new)

    issued = collections.defaultdict(list)
    for table, (default, _) in TABLES.items():
        members = nodes[:-1] if table.startswith("local") else nodes
        issued[default] += ids_of(members, table)
    for kind, ids in issued.items():
        assert_issued_once(kind, ids)
        say(f"{len(ids)} ids of {kind}, none twice")
    moved = ids_of(nodes, "moved")
    assert_issued_once("moved", moved)
    if len(moved) != 2 + 3 * 101 or min(moved) != 1:
        fail(f"{len(moved)} ids of the table that was moved")
    if sum(map(len, issued.values())) < 100_000:
        fail("too few ids")
    return 1


common.main(test)
