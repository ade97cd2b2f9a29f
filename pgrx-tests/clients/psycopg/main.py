"""psycopg 3: a row, many rows, a pipeline, COPY, a prepared statement, threads."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
from checks import Ids

INSERT = "INSERT INTO orders (item) VALUES (%s) RETURNING id"
orders = Ids()
# Connection parameters come from the environment.
with psycopg.connect() as db:
    ids = [db.execute(INSERT, ["tea"]).fetchone()[0]]

    with db.cursor() as cursor:
        cursor.executemany(INSERT, [(f"cake {i}",) for i in range(500)], returning=True)
        ids += [result.fetchone()[0] for result in cursor.results()]

    with db.pipeline():
        cursors = [db.execute(INSERT, ["in a pipeline"]) for _ in range(100)]
        ids += [cursor.fetchone()[0] for cursor in cursors]

    ids += [db.execute(INSERT, ["prepared"], prepare=True).fetchone()[0] for _ in range(10)]
    orders.of_session(ids)

    with db.cursor().copy("COPY orders (item) FROM STDIN") as copy:
        for i in range(1000):
            copy.write_row([f"copied {i}"])
    copied = db.execute("SELECT id FROM orders WHERE item LIKE 'copied%' ORDER BY split_part(item, ' ', 2)::int")
    orders.of_session(id for (id,) in copied)

    # A block of ids before the rows: no gap in it.
    first, last = db.execute("SELECT * FROM leaf_segment_next_range('orders', 50)").fetchone()
    assert last - first == 49, (first, last)
    orders.of_session(range(first, last + 1))

    # COPY in binary, with a snowflake id as the program has it.
    event = db.execute("INSERT INTO events (what) VALUES ('started') RETURNING id").fetchone()[0]
    assert event > 2**53, event
    assert db.execute("SELECT id FROM events WHERE id = %s", [event], binary=True).fetchone() == (event,)
    assert db.execute("SELECT id FROM events WHERE id = %b", [event]).fetchone() == (event,)


def session(number):
    with psycopg.connect() as db:
        return [db.execute(INSERT, [f"of {number}"]).fetchone()[0] for _ in range(100)]


with ThreadPoolExecutor(8) as threads:
    for ids in threads.map(session, range(8)):
        orders.of_session(ids)
orders.report()
