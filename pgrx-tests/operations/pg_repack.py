"""Would catch: an id or a gapless number that comes twice because pg_repack has put its copy of one of the
extension's tables in its place. It follows a table by a row trigger, which neither claims nor leases fire.

Every table is repacked in turn while sessions take ids; then the server is restarted, and killed."""

import signal

import common
from common import BIN, Load, Server, assert_issued_once, fail, run, say

# leaf_claim() is what the members of a fleet call.
STATEMENTS = {
    "segment": "INSERT INTO orders DEFAULT VALUES RETURNING id, 0",
    "gapless": "SELECT leaf_id.leaf_gapless_next('invoices'), 0",
    "claim": """SELECT (token::json ->> 'first')::bigint, 0 FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "fleet", "n": 1}')""",
    "snowflake": "SELECT leaf_snowflake_next(), 0",
}
ROUNDS = 5
# The only rows that are written past triggers with nothing beside them.
REFUSED = ("leaf_worker", "leaf_registry")


def test():
    server = Server("data", {"leaf_id.worker_id": "auto", "leaf_id.worker_registry": "postgres"}).start()
    server.ask("""
        CREATE EXTENSION leaf_id; CREATE EXTENSION pg_repack;
        INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (60000);
        SELECT leaf_tag_create('orders', step => 10, max_step => 10), leaf_tag_create('fleet', step => 1, max_step => 1),
            leaf_id.leaf_gapless_create('invoices');
        CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'))""")
    tables = server.ask("""SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
        WHERE relnamespace = 'leaf_id'::regnamespace AND relkind = 'r'""")

    with Load(server.connect, STATEMENTS, sessions=2) as load:
        load.wait_for(60)
        for _ in range(ROUNDS):
            for table in tables:
                run(BIN / "pg_repack", "--host", server.socket, "--username=postgres", "--dbname=postgres",
                    "--no-kill-backend", "--wait-timeout=60", f"--table=leaf_id.{table}")
            load.wait_for(60)
        counts = {kind: len(taken) for kind, taken in load.taken.items()}
        server.stop()
        server.start()
        load.wait_for(60)
        server.stop(signal.SIGQUIT)
        server.start()
        load.wait_for(60)
    for kind, count in counts.items():
        assert_issued_once(kind, [each.id for each in load.taken[kind]])
        say(f"{len(load.taken[kind])} {kind} ids, {count} of them while {len(tables)} tables were repacked {ROUNDS} times")
    # The number of a commit that was cut off is not known.
    numbers = sorted(each.id for each in load.taken["gapless"])
    if len(numbers) < numbers[-1] - 8:
        fail(f"{numbers[-1] - len(numbers)} numbers are missing")

    server.ask("""CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'""")
    for table in REFUSED:
        server.ask(f"CREATE TRIGGER follow AFTER UPDATE ON leaf_id.{table} FOR EACH ROW EXECUTE FUNCTION follow()")
        try:
            server.ask("SELECT leaf_id.leaf_worker_retire(1000)")
            fail(f"{table} was written to past a trigger")
        except common.psycopg2.Error as error:
            if error.pgcode != "42804":
                raise
        server.ask(f"DROP TRIGGER follow ON leaf_id.{table}")
    return 1


common.main(test)
