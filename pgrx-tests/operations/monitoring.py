"""Would catch: a metric that the exporter does not give, a panel of the dashboard that shows
nothing, an alert that does not fire in its case, and one that fires without it.

Prometheus scrapes Debian's postgres_exporter, and that three servers: one that issues ids, the
source of a tag of it, and its worker registry. In the copy of the alerts that Prometheus reads,
each duration is shorter (see SHORTER); nothing else is changed."""

import collections
import contextlib
import json
import re
import threading
import time
import urllib.parse

import common
import yaml
from common import RUN, Process, Server, fail, free_port, get, say, wait_until

# As `for:`, and what the expressions look back on. Longer than a promoted server's snowflake ids
# are far ahead of the clock. What looks back on a day is to last for longer than `for:`.
SHORTER = {r"for: \w+": "for: 12s", r"\[\d+[mh]\]": "[12s]", r"\[1d\]": "[60s]", r"offset \w+": "offset 12s"}
# What Grafana puts in place of its variables.
VARIABLES = {"$__rate_interval": "12s", "$instance": ".*", "$datname": ".*", "$tag": ".*"}
SCRAPE = 1


class Clock:
    """That of one server; see pgrx-tests/clock.c."""

    def __init__(self):
        self.file = RUN / "clock"
        self.set(0)
        self.env = {"LD_PRELOAD": RUN / "clock.so", "LEAF_ID_CLOCK": self.file}

    def set(self, ahead_ms):
        pair = b"".join(number.to_bytes(8, "little", signed=True) for number in (ahead_ms, ~ahead_ms))
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(pair)


class Prometheus:
    def __init__(self, exporters):
        self.url = f"http://127.0.0.1:{free_port()}"
        text = (RUN / "alerts.yaml").read_text()
        self.rules = {(rule["alert"], rule["labels"]["severity"]) for rule in yaml.safe_load(text)["groups"][0]["rules"]}
        for pattern, shorter in SHORTER.items():
            text = re.sub(pattern, shorter, text)
        (RUN / "alerts-shorter.yaml").write_text(text)
        (RUN / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": f"{SCRAPE}s", "evaluation_interval": f"{SCRAPE}s"},
            "rule_files": [str(RUN / "alerts-shorter.yaml")],
            "scrape_configs": [{"job_name": "postgresql", "static_configs": [{"targets": exporters}]}]}))
        common.run("promtool", "check", "config", RUN / "prometheus.yml")
        Process("prometheus", "prometheus", f"--config.file={RUN}/prometheus.yml", f"--storage.tsdb.path={RUN}/tsdb",
                f"--web.listen-address={self.url[7:]}")
        wait_until("Prometheus", 60, lambda: get(f"{self.url}/-/ready"))

    def api(self, path, **parameters):
        return json.loads(get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def alerts(self):
        """Each that fires or is about to: name and severity, and the alert."""
        # A server that stops while it is scraped may be up once more, and without metrics.
        return [((alert["labels"]["alertname"], alert["labels"]["severity"]), alert)
                for alert in self.api("alerts")["alerts"]
                if alert["labels"]["alertname"] != "LeafIdNoMetrics" or alert["state"] == "firing"]

    def evaluated(self):
        groups = self.api("rules")["groups"]
        for rule in groups[0]["rules"]:
            if rule["health"] == "err":
                fail(f"{rule['name']}: {rule['lastError']}")
        return groups[0]["lastEvaluation"]


class Watch:
    """What each case makes of the alerts."""

    def __init__(self, prometheus):
        self.prometheus, self.fired = prometheus, set()

    def silent(self, evaluations):
        """No alert fires or is about to, so many times in a row."""
        last = None
        for _ in range(evaluations):
            last = wait_until("the next evaluation", 30, lambda: (now := self.prometheus.evaluated()) != last and now)
            if alerts := self.prometheus.alerts():
                fail(f"without a reason: {alerts}")

    @contextlib.contextmanager
    def case(self, name, severity, labels=None, also=()):
        """The alert fires within, and no other one but those; afterwards all are silent again."""
        wanted = (name, severity)
        began = time.monotonic()
        others = collections.Counter()

        def fires():
            found = None
            for key, alert in self.prometheus.alerts():
                if key[0] not in (name, *also):
                    fail(f"{key} in the case of {wanted}: {alert}")
                if key != wanted:
                    others[key[0]] += 1
                elif alert["state"] == "firing" and (labels or {}).items() <= alert["labels"].items():
                    found = alert
            return found

        alert = None

        def wait():
            nonlocal alert
            alert = wait_until(f"{wanted} to fire", 120, fires)

        yield wait
        if alert is None:
            fail(f"{wanted}: the test has not waited for it")
        took = time.monotonic() - began
        for text in alert["annotations"].values():
            if "<error" in text or "%!" in text or "<no value>" in text:
                fail(f"{wanted}: {text}")
        wait_until(f"silence after {wanted}", 120, lambda: not self.prometheus.alerts())
        self.fired.add(wanted)
        say(f"{name} ({severity}) fires: \"{alert['annotations']['summary']}\" ({took:.0f} s)"
            + (f"; with it {', '.join(sorted(others))}" if others else ""))


@contextlib.contextmanager
def repeating(server, *statements):
    """Each statement by a session of its own, again and again."""
    done = threading.Event()

    def work(sql):
        session = None
        while not done.wait(0.02):
            try:
                session = session or server.connect()
                with session.cursor() as cursor:
                    cursor.execute(sql)
            except common.psycopg2.Error:
                if session is not None and session.closed:
                    session = None

    threads = [threading.Thread(target=work, args=(sql,), daemon=True) for sql in statements]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(60)


def check_metrics(prometheus):
    """All that the file names is there; for pg_exporter, nothing that it does not know."""
    count = 0
    for name, query in yaml.safe_load((RUN / "postgres_exporter.yaml").read_text()).items():
        if not set(query) <= {"query", "metrics", "tags"}:
            fail(f"{name} has {set(query)}")
        for metric in query["metrics"]:
            (column, how), = metric.items()
            if how["usage"] == "LABEL":
                continue
            if how["usage"] not in ("GAUGE", "COUNTER"):
                fail(f"{name}_{column} is a {how['usage']}")
            wait_until(f"{name}_{column}", 30, lambda: prometheus.query(f"{name}_{column}"))
            count += 1
    failed = prometheus.query("pg_exporter_user_queries_load_error > 0 or pg_exporter_last_scrape_error > 0")
    if failed:
        fail(f"the exporter has errors: {failed}")
    return count


def check_dashboard(prometheus):
    """Each query of the dashboard parses, and gives something."""
    board = json.loads((RUN / "dashboard.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    if len({panel["id"] for panel in board["panels"]}) != len(board["panels"]):
        fail("two panels of one id")
    count = 0
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            if "$" in expression:
                fail(f"{panel['title']}: a variable that there is not: {expression}")
            wait_until(f"{panel['title']}: {expression}", 30, lambda: prometheus.query(expression))
            count += 1
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            selector = re.sub(r"\$\w+", ".*", match[1])
            if not prometheus.query(f"count by ({match[2]}) ({selector})"):
                fail(f"the variable {variable['name']} has no value")
    return len(panels), count


def test():
    clock = Clock()
    source = Server("source", {}).start()
    registry = Server("registry", {"leaf_id.worker_id": "900"}).start()
    issuer_conf = {"leaf_id.max_tags": "16", "leaf_id.worker_id": "auto",
                   "leaf_id.worker_registry": "postgres/registry", "leaf_id.node_name": "issuer"}
    issuer = Server("issuer", issuer_conf, clock.env).start()
    for server in (source, registry):
        server.ask("""
            CREATE EXTENSION leaf_id; CREATE ROLE leaf_member LOGIN;
            GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO leaf_member""")
    registry.ask("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (60000)")
    source.ask("SELECT leaf_tag_create('sourced'), leaf_tag_grant('sourced', 'leaf_member')")
    issuer.ask("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink")
    for server in (source, registry):
        issuer.ask(f"""
            CREATE SERVER {server.name} FOREIGN DATA WRAPPER dblink_fdw
                OPTIONS (host '{server.socket}', dbname 'postgres', connect_timeout '3');
            CREATE USER MAPPING FOR CURRENT_USER SERVER {server.name} OPTIONS (user 'leaf_member')""")
    issuer.ask("SELECT leaf_tag_create('orders', max_value => 100000000000), leaf_tag_create('sourced', server => 'source', max_step => 1000)")
    ports = {}
    # The source issues no snowflake ids, and is not meant to.
    for server in (issuer, registry, source):
        server.ask("""
            CREATE ROLE exporter LOGIN; GRANT pg_monitor TO exporter;
            ALTER ROLE exporter SET lock_timeout = '100ms'; ALTER ROLE exporter SET search_path = pg_catalog""")
        ports[server] = free_port()
        dsn = f"host={server.socket} user=exporter dbname=postgres sslmode=disable"
        Process(f"exporter-{server.name}", "prometheus-postgres-exporter", "--extend.query-path", RUN / "postgres_exporter.yaml",
                f"--web.listen-address=127.0.0.1:{ports[server]}", "--disable-default-metrics", "--disable-settings-metrics",
                env={"DATA_SOURCE_NAME": dsn})
    instance = f"127.0.0.1:{ports[issuer]}"
    prometheus = Prometheus([f"127.0.0.1:{port}" for port in ports.values()])
    watch = Watch(prometheus)
    # An ordinary day: it goes on through all cases.
    ordinary = ("SELECT leaf_segment_next('orders')", "SELECT leaf_snowflake_next()", "SELECT leaf_segment_next('sourced')")
    with repeating(issuer, *ordinary):
        # New servers lead the clock at first.
        caught_up = "count(leaf_id_snowflake_clock_lead_seconds) == 3 and max(leaf_id_snowflake_clock_lead_seconds) < 4"
        wait_until("the clock to catch up", 90, lambda: prometheus.query(caught_up) and not prometheus.alerts())
        watch.silent(20)
        metrics = check_metrics(prometheus)
        panels, queries = check_dashboard(prometheus)
        say(f"{metrics} metrics; {panels} panels with {queries} queries, each with a result; no alert in 20 evaluations")
        cases(watch, clock, issuer, source, registry, instance)
        watch.silent(10)
    never = prometheus.rules - watch.fired
    if never:
        fail(f"alerts without a case: {never}")
    return len(watch.fired)


def cases(watch, clock, issuer, source, registry, instance):
    # A tag comes to its end.
    issuer.ask("SELECT leaf_tag_create('near', max_value => 1000000)")
    for severity, used in (("info", 850000), ("warning", 920000), ("critical", 970000)):
        with watch.case("LeafIdTagNearEnd", severity, {"tag": "near"}) as wait:
            issuer.ask(f"UPDATE leaf_id.leaf_alloc SET max_id = {used} WHERE biz_tag = 'near'")
            wait()
            issuer.ask("SELECT leaf_tag_reset('near', 1)")
    issuer.ask("SELECT leaf_tag_drop('near')")
    # Its column does, and the tag itself is far from it.
    issuer.ask("SELECT leaf_tag_create('narrow')")
    issuer.ask("CREATE TABLE narrow (id integer DEFAULT leaf_segment_next('narrow'))")
    with watch.case("LeafIdTagNearEnd", "critical", {"tag": "narrow"}) as wait:
        issuer.ask("UPDATE leaf_id.leaf_alloc SET max_id = 2100000000 WHERE biz_tag = 'narrow'")
        wait()
        issuer.ask("ALTER TABLE narrow ALTER id TYPE bigint")
    issuer.ask("DROP TABLE narrow")
    issuer.ask("SELECT leaf_tag_drop('narrow')")
    with watch.case("LeafIdTagEndsSoon", "warning", {"tag": "fast"}) as wait:
        issuer.ask("SELECT leaf_tag_create('fast', step => 100000, max_step => 100000, max_value => 5000000000)")
        with repeating(issuer, "SELECT count(leaf_segment_next('fast')) FROM generate_series(1, 1000)"):
            wait()
        issuer.ask("SELECT leaf_tag_drop('fast')")
    # Its row is locked, with enough cached for now.
    issuer.ask("SELECT leaf_tag_create('locked', step => 100000, max_step => 100000)")
    issuer.ask("SELECT leaf_segment_next('locked')")
    with watch.case("LeafIdRefillFails", "critical", {"tag": "locked"}) as wait:
        with contextlib.closing(issuer.connect()) as session, session.cursor() as cursor:
            session.autocommit = False
            cursor.execute("SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'locked' FOR UPDATE")
            issuer.ask("SELECT count(leaf_segment_next('locked')) FROM generate_series(1, 20000)")
            wait()
    issuer.ask("SELECT leaf_tag_drop('locked')")
    # It is used up, until its end is raised: no id has to be taken for the alert to end.
    issuer.ask("SELECT leaf_tag_create('ended', max_value => 1000)")
    with watch.case("LeafIdRefillFails", "critical", {"tag": "ended"}, also=["LeafIdTagNearEnd", "LeafIdTagEndsSoon"]) as wait:
        with contextlib.suppress(common.psycopg2.DataError):
            issuer.ask("SELECT count(leaf_segment_next('ended')) FROM generate_series(1, 1001)")
        wait()
        # So far that the tag does not end soon at the rate at which it was used up.
        issuer.ask("UPDATE leaf_id.leaf_alloc SET max_value = 9223372036854775806 WHERE biz_tag = 'ended'")
    issuer.ask("SELECT leaf_tag_drop('ended')")
    with watch.case("LeafIdWaits", "warning", {"tag": "slow"}) as wait:
        issuer.ask("SELECT leaf_tag_create('slow', step => 1, max_step => 1)")
        with repeating(issuer, *["SELECT leaf_segment_next_batch('slow', 100)"] * 4):
            wait()
        issuer.ask("SELECT leaf_tag_drop('slow')")
    issuer.ask("SELECT leaf_tag_create('reset', step => 10000)")
    issuer.ask("SELECT leaf_segment_next('reset')")
    with watch.case("LeafIdIdsLost", "warning", {"tag": "reset"}) as wait:
        wait_until("a scrape", 30, lambda: watch.prometheus.query("leaf_id_tag_refills_total{tag='reset'} > 0"))
        issuer.ask("SELECT leaf_tag_reset('reset', 1), leaf_segment_next('orders')")
        wait()
    issuer.ask("SELECT leaf_tag_drop('reset')")

    # Other servers.
    with watch.case("LeafIdSourceAway", "critical", {"source": "source"}, also=["LeafIdRefillFails", "LeafIdWaits"]) as wait:
        source.stop()
        wait()
        source.start()
    with watch.case("LeafIdLeaseNotRenewed", "critical", {"instance": instance}) as wait:
        registry.stop()
        wait()
        registry.start()
    with watch.case("LeafIdSnowflakeDown", "critical", {"instance": instance}) as wait:
        issuer.ask("ALTER SYSTEM SET leaf_id.worker_registry = ''")
        issuer.ask("SELECT pg_reload_conf()")
        wait()
        issuer.ask("ALTER SYSTEM RESET leaf_id.worker_registry")
        issuer.ask("SELECT pg_reload_conf()")

    # Its clock.
    with watch.case("LeafIdClockSetBack", "warning", {"instance": instance}) as wait:
        clock.set(-300)
        wait()
        clock.set(0)
    with watch.case("LeafIdClockOffset", "warning", {"instance": instance}, also=["LeafIdClockSetBack"]) as wait:
        clock.set(700)
        wait()
        clock.set(0)
    with watch.case("LeafIdClockLead", "critical", {"instance": instance},
                    also=["LeafIdClockSetBack", "LeafIdClockOffset"]) as wait:
        clock.set(-60000)
        wait()
        clock.set(0)

    # Its exporter may not read the views.
    with watch.case("LeafIdNoMetrics", "critical", {"instance": instance}) as wait:
        issuer.ask("REVOKE pg_monitor FROM exporter")
        wait()
        issuer.ask("GRANT pg_monitor TO exporter")

    # Or the table of tags is locked, for as long as what is cached lasts.
    with watch.case("LeafIdNoMetrics", "critical", {"instance": instance}, also=["LeafIdRefillFails", "LeafIdWaits"]) as wait:
        with contextlib.closing(issuer.connect()) as session, session.cursor() as cursor:
            session.autocommit = False
            cursor.execute("LOCK TABLE leaf_id.leaf_alloc")
            wait()

    # It is promoted: the first claims on the new timeline skip.
    with watch.case("LeafIdIdsSkipped", "info", {"tag": "orders"}, also=["LeafIdClockLead"]) as wait:
        issuer.stop()
        (issuer.data / "standby.signal").touch()
        issuer.start()
        wait_until("a scrape of the standby", 30, lambda: watch.prometheus.query("leaf_id_tag_ids_skipped_total{tag='orders'} == 0"))
        issuer.ask("SELECT pg_promote()")
        wait()

    # More tags than slots.
    tags = [f"tag{number}" for number in range(20)]
    with watch.case("LeafIdEvictions", "warning", {"instance": instance}) as wait:
        for tag in tags:
            issuer.ask(f"SELECT leaf_tag_create('{tag}')")
            issuer.ask(f"SELECT leaf_segment_next('{tag}')")
        wait()


common.main(test)
