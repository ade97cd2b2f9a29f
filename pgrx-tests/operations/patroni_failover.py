"""Would catch: an id that comes twice, or does not come, when Patroni fails over.

Three nodes under packaging/patroni/patroni.yml, with other addresses; eight sessions take ids
of both kinds. The primary and its Patroni are killed; later the node comes back, and a
switchover is asked for."""

import json
import pathlib
import signal
import time
import urllib.request

import common
import psycopg2
import yaml
from common import BIN, RUN, Load, Process, ask, assert_issued_once, fail, free_port, get, say, wait_until

NODES = 3
FILE = pathlib.Path(__file__).parent / "patroni.yml"
STATEMENTS = {
    "segment": "INSERT INTO orders DEFAULT VALUES RETURNING id, inet_server_port()",
    "snowflake": "INSERT INTO events DEFAULT VALUES RETURNING id, inet_server_port()",
}


class Node:
    def __init__(self, number, etcd):
        self.name = f"node{number}"
        self.port, self.api = free_port(), free_port()
        self.data = RUN / self.name
        conf = yaml.safe_load(FILE.read_text())
        # What differs from the page: addresses, directories, and how soon Patroni gives up.
        conf["name"] = self.name
        conf["restapi"] = {side: f"127.0.0.1:{self.api}" for side in ("listen", "connect_address")}
        conf["etcd3"] = {"hosts": f"127.0.0.1:{etcd}"}
        conf["bootstrap"]["dcs"] |= {"ttl": 20, "loop_wait": 2, "retry_timeout": 5}
        postgresql = conf["postgresql"]
        postgresql |= {"listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.port}",
                       "bin_dir": str(BIN), "data_dir": str(self.data), "pgpass": str(RUN / f"{self.name}.pgpass"),
                       "parameters": {"unix_socket_directories": str(RUN), "shared_buffers": "32MB"}}
        postgresql["pg_hba"] = ["local all all trust", "host all all 127.0.0.1/32 scram-sha-256",
                                "host replication replicator 127.0.0.1/32 scram-sha-256"]
        self.conf = RUN / f"{self.name}.yml"
        self.conf.write_text(yaml.safe_dump(conf))
        # Any process of Patroni that is left when this ends is stopped first.
        common.cleanup.callback(common.stop_postmaster, self.data)

    def start(self):
        self.process = Process(self.name, "/usr/bin/patroni", self.conf)

    def kill(self):
        """The server and its Patroni, as if the machine were gone."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        self.process.child.send_signal(signal.SIGKILL)
        children = [int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/stat")
                    if parent(path) == pid]
        for victim in [pid, *children]:
            try:
                common.os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.child.wait()

    def state(self):
        try:
            return json.loads(get(f"http://127.0.0.1:{self.api}/patroni"))
        except urllib.error.HTTPError as error:
            return json.loads(error.read())


def parent(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test():
    etcd, peer = free_port(), free_port()
    Process("etcd", "/usr/bin/etcd", "--data-dir", RUN / "etcd", "--name", "etcd",
            "--listen-client-urls", f"http://127.0.0.1:{etcd}", "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"etcd=http://127.0.0.1:{peer}", env={"ETCD_UNSUPPORTED_ARCH": "arm64"})
    wait_until("etcd", 60, lambda: "true" in get(f"http://127.0.0.1:{etcd}/health"))
    nodes = [Node(number, etcd) for number in range(1, NODES + 1)]
    for node in nodes:
        node.start()
    hosts = {"host": ",".join("127.0.0.1" for _ in nodes), "port": ",".join(str(node.port) for node in nodes),
             "user": "postgres", "password": "secret", "connect_timeout": 3}

    def connect(database="app"):
        session = psycopg2.connect(**hosts, dbname=database, target_session_attrs="read-write",
                                   options="-c statement_timeout=30s")
        session.autocommit = True
        return session

    def leader():
        return next((node for node in nodes if node.process.child.poll() is None and node.state().get("role") in ("master", "primary")),
                    None)

    def streaming():
        # A base backup that is being made streams, too.
        standbys = "application_name LIKE 'node%' AND state = 'streaming'"
        return ask(connect("postgres"), f"SELECT count(*) FROM pg_stat_replication WHERE {standbys}") == NODES - 1

    wait_until("the cluster", 180, lambda: leader() and streaming())
    ask(connect("postgres"), "CREATE DATABASE app")

    def is_everywhere():
        # A host without it ends the search for the primary.
        try:
            connect().close()
            return True
        except psycopg2.OperationalError:
            return False

    wait_until("the database on the standbys", 60, is_everywhere)
    ask(connect(), """
        CREATE EXTENSION leaf_id;
        SELECT leaf_tag_create('orders');
        CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
        CREATE TABLE events (id bigint PRIMARY KEY DEFAULT leaf_snowflake_next())""")

    def happens(what, load, act):
        """Does something to the leader; prints how long until another one, and ids of it."""
        old = wait_until("a leader", 60, leader)
        began = time.monotonic()
        act(old)
        new = lambda taken: taken.server not in (None, old.port)
        # In threads of its own, beside the load: the first session of any kind.
        with Load(connect, {"session": "SELECT 1, inet_server_port()"}, 1) as probe:
            first = probe.wait_for(120, began, new)["session"]
        firsts = load.wait_for(120, began, new)
        gaps = {}
        for kind in STATEMENTS:
            times = sorted(taken.at for taken in load.taken[kind])
            last = max(at for at in times if at < firsts[kind].at)
            gaps[kind] = firsts[kind].at - last
        say(f"{what}: Patroni had another primary that takes sessions after {first.at - began:.2f} s; "
            + ", ".join(f"first {kind} id after {taken.at - began:.2f} s (pause of {gaps[kind]:.2f} s)"
                        for kind, taken in firsts.items()))
        for kind, taken in firsts.items():
            if taken.at - first.at > 2:
                fail(f"{kind} ids came {taken.at - first.at:.1f} s after the new primary")
        return old

    with Load(connect, STATEMENTS) as load:
        load.wait_for(30)
        old = happens("failover (kill -9)", load, Node.kill)
        load.wait_for(30)
        (old.data / "postmaster.pid").unlink(missing_ok=True)
        old.start()
        wait_until("the old primary as a standby", 180, streaming)
        load.wait_for(30)

        def switch(old):
            candidate = next(node for node in nodes if node is not old and node.state().get("state") == "running")
            request = urllib.request.Request(
                f"http://127.0.0.1:{old.api}/switchover", method="POST", headers={"Content-Type": "application/json"},
                data=json.dumps({"leader": old.name, "candidate": candidate.name}).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status in (200, 202), answer.read()

        happens("switchover", load, switch)
        load.wait_for(30)
        wait_until("the old primary as a standby", 180, streaming)
    for kind, taken in load.taken.items():
        ids = [each.id for each in taken]
        assert_issued_once(kind, ids)
        servers = {each.server for each in taken}
        say(f"{len(ids)} {kind} ids of {len(servers)} primaries, none twice")
        if len(ids) < 1000 or len(servers) < 2:
            fail("that is no load")
    leased = ask(connect(), "SELECT count(*) FROM leaf_id.fleet WHERE kind = 'member'")
    say(f"worker ids that the cluster's own registry has leased: {leased}")
    return 2


common.main(test)
