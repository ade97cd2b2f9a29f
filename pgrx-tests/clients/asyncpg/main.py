"""asyncpg: a row, many rows, COPY, a pool that resets its connections."""

import asyncio
import os

import asyncpg
from checks import Ids

INSERT = "INSERT INTO orders (item) VALUES ($1) RETURNING id"
orders = Ids()


async def main():
    db = await asyncpg.connect(os.environ["DATABASE_URL"])
    ids = [await db.fetchval(INSERT, "tea")]
    rows = await db.fetchmany(INSERT, [(f"cake {i}",) for i in range(500)])
    ids += [row["id"] for row in rows]
    rows = await db.fetch(
        "INSERT INTO orders (item) SELECT * FROM unnest($1::text[]) RETURNING id", ["many"] * 500
    )
    ids += [row["id"] for row in rows]
    orders.of_session(ids)

    assert await db.executemany("INSERT INTO orders (item) VALUES ($1)", [("quiet",)] * 10) is None
    await db.copy_records_to_table("orders", records=[(f"copied {i}",) for i in range(1000)], columns=["item"])
    copied = await db.fetch("SELECT id FROM orders WHERE item ~ 'copied|quiet' ORDER BY id")
    assert len(copied) == 1010
    orders.of_session(row["id"] for row in copied)

    event = await db.fetchval("INSERT INTO events (what) VALUES ('started') RETURNING id")
    assert event > 2**53 and await db.fetchval("SELECT id FROM events WHERE id = $1", event) == event
    await db.close()

    # Each connection is reset (RESET ALL and the like) when it goes back.
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1, max_size=4) as pool:

        async def session(number):
            return [await pool.fetchval(INSERT, f"of {number}") for _ in range(100)]

        for ids in await asyncio.gather(*map(session, range(8))):
            orders.of_session(ids)


asyncio.run(main())
orders.report()
