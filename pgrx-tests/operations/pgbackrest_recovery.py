"""Would catch: an id that comes twice, or does not come, after pgBackRest has restored a server to
an earlier moment; and a page that promises more of that than is true.

A full backup and archived WAL; sessions take ids of both kinds before, during and after the
target. Then the server is killed, restored in its place, and takes ids again."""

import signal
import time

import common
from common import RUN, Load, Server, assert_issued_once, fail, run, say, wait_until

CONF = f"""
[global]
repo1-path={RUN}/repository
repo1-retention-full=1
log-path={RUN}
lock-path={RUN}/lock
spool-path={RUN}/spool
log-level-console=warn
start-fast=y
compress-type=none

[app]
pg1-path={RUN}/data
pg1-socket-path={RUN}/data.socket
pg1-user=postgres
"""
STATEMENTS = {
    "segment": "INSERT INTO orders DEFAULT VALUES RETURNING id, 0",
    "snowflake": "INSERT INTO events DEFAULT VALUES RETURNING id, 0",
}


def pgbackrest(*arguments):
    return run("pgbackrest", f"--config={RUN}/pgbackrest.conf", "--stanza=app", *arguments)


def test():
    (RUN / "pgbackrest.conf").write_text(CONF)
    archive = f"pgbackrest --config={RUN}/pgbackrest.conf --stanza=app archive-push %p"
    server = Server("data", {"leaf_id.worker_id": "1", "archive_mode": "on", "archive_command": archive,
                             "wal_level": "replica"}).start()
    # A tag whose claims are minutes apart, as those of a tag that has grown are; and one of
    # which more claims are lost than leaf_id.failover_skip allows for.
    server.ask("""
        CREATE EXTENSION leaf_id;
        SELECT leaf_tag_create('orders', step => 200000, max_step => 200000),
            leaf_tag_create('busy', step => 10, max_step => 10);
        CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
        CREATE TABLE events (id bigint PRIMARY KEY DEFAULT leaf_snowflake_next());
        CREATE TABLE target (at text)""")

    def busy(count):
        session = server.connect()
        with session.cursor() as cursor:
            cursor.execute(f"SELECT leaf_segment_next('busy') FROM generate_series(1, {count})")
            ids = [row[0] for row in cursor.fetchall()]
        session.close()
        return ids

    def take_range():
        """Most of a segment of orders, and waits for the next one."""
        found = server.ask("SELECT ARRAY[first_id, last_id] FROM leaf_segment_next_range('orders', 150000)")
        wait_until("the next segment", 30, lambda: server.ask(
            "SELECT spare_state = 'ready' FROM leaf_id.tags_detail WHERE tag = 'orders'"))
        return found

    pgbackrest("stanza-create")
    pgbackrest("--type=full", "backup")
    ended = time.time()
    with Load(server.connect, STATEMENTS) as load:
        load.wait_for(30)
        take_range()
        busy_ids = busy(500)
        load.wait_for(30)
        # It counts in seconds: the target has to be in a later one than the backup's end.
        wait_until("the next second", 5, lambda: time.time() > int(ended) + 1)
        target = server.ask("SELECT clock_timestamp()::text")
        at = time.monotonic()
        known = server.ask("SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 'orders'")
        # What comes now is to be lost: two claims of orders, and hundreds of the other tag.
        load.wait_for(30)
        lost_range = [take_range(), take_range()][-1]
        if lost_range[0] < known:
            fail("no id of a claim that is lost")
        lost_busy = busy(3000)
        load.wait_for(30)
        wal = server.ask("SELECT pg_walfile_name(pg_switch_wal())")
        wait_until("the archiver", 60, lambda: server.ask(
            f"SELECT last_archived_wal >= '{wal}' FROM pg_stat_archiver"))
        server.stop(signal.SIGQUIT)
    before = {kind: list(taken) for kind, taken in load.taken.items()}
    lost = {kind: [each for each in taken if each.at > at] for kind, taken in before.items()}
    for kind, taken in lost.items():
        if not taken:
            fail(f"no {kind} id was lost")

    began = time.monotonic()
    pgbackrest("--delta", "--type=time", f"--target={target}", "--target-action=promote", "restore")
    restored = time.monotonic()
    with Load(server.connect, STATEMENTS) as load:
        server.start()
        wait_until("the end of recovery", 60, lambda: server.ask("SELECT NOT pg_is_in_recovery()"))
        open_for_writes = time.monotonic()
        firsts = load.wait_for(60, restored)
        load.wait_for(60)
    say(f"restored in {restored - began:.2f} s, recovered {open_for_writes - restored:.2f} s after that; "
        + ", ".join(f"first {kind} id {taken.at - restored:.2f} s after it" for kind, taken in firsts.items()))
    for kind, taken in firsts.items():
        if taken.at - open_for_writes > 2:
            fail(f"{kind} ids came {taken.at - open_for_writes:.1f} s after recovery")
    rows = server.ask("SELECT count(*) FROM orders")
    if not 0 < rows < len(before["segment"]) + len(load.taken["segment"]):
        fail("nothing was lost: this has recovered to no earlier moment")
    if not server.ask("SELECT timeline > 1 FROM leaf_id.tags_detail WHERE tag = 'orders'"):
        fail("the same timeline as before")
    for kind in STATEMENTS:
        ids = [each.id for each in before[kind] + load.taken[kind]]
        assert_issued_once(kind, ids)
        if kind == "segment" and any(lost_range[0] <= each.id <= lost_range[1] for each in load.taken[kind]):
            fail(f"ids of the range {lost_range} come again")
        say(f"{len(ids)} {kind} ids, {len(lost[kind])} of them lost with their transactions, none twice")

    # What docs/ha.md says of a tag that has lost more claims than leaf_id.failover_skip.
    again = busy(100)
    assert_issued_once("busy, before the target", busy_ids + again)
    repeated = set(again) & set(lost_busy)
    if not repeated:
        fail("no id of the busy tag comes again: the page warns of nothing")
    server.ask(f"UPDATE leaf_id.leaf_alloc SET max_id = {max(lost_busy) + 1} WHERE biz_tag = 'busy'")
    assert_issued_once("busy, once max_id was raised", busy_ids + lost_busy + busy(100))
    say(f"a tag that lost {len(lost_busy) // 10} claims: {len(repeated)} ids came again, none once max_id was raised")
    return 1


common.main(test)
