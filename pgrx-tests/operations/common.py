"""What the programs beside this file share: processes that end with them, sessions that take
ids and note them, and waits with a deadline.

They run as the servers' user, in a directory of their own, by scripts/test-operations.sh."""

import collections
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import psycopg2

BIN = pathlib.Path(os.environ["LEAF_ID_PG_BIN"])
RUN = pathlib.Path.cwd()
# A moment between two looks.
PAUSE = 0.05


def say(text):
    print(f"    {text}", flush=True)


def fail(text):
    raise AssertionError(text)


def wait_until(what, seconds, condition):
    """The first result of the condition that is true; what it raises counts as false."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if result := condition():
                return result
            last = None
        except (psycopg2.Error, OSError, subprocess.CalledProcessError) as error:
            last = error
        if time.monotonic() > deadline:
            fail(f"not within {seconds} s: {what() if callable(what) else what}" + (f" ({last})" if last else ""))
        time.sleep(PAUSE)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def run(*command, **options):
    """What a command, which must succeed, wrote; all of it is in its log as well."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300, **options)
    with open(RUN / "commands.log", "a") as log:
        log.write(f"{command}\n{done.stdout}{done.stderr}\n")
    if done.returncode != 0:
        fail(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


class Process:
    """A program in the background; its output is in NAME.log."""

    def __init__(self, name, *command, env=None, stop=signal.SIGTERM):
        self.how = stop
        self.log = RUN / f"{name}.log"
        with open(self.log, "a") as log:
            self.child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=log, env={**os.environ, **(env or {})})
        cleanup.callback(self.stop)

    def stop(self, how=None):
        if self.child.poll() is not None:
            return
        self.child.send_signal(how or self.how)
        try:
            self.child.wait(60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            # A test of a shutdown must not become one of a crash.
            fail(f"{self.log.stem} has not stopped within 60 s")


def stop_postmaster(data, how=signal.SIGQUIT):
    """The server in that directory, whichever program started it."""
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        if os.readlink(f"/proc/{pid}/cwd") != str(data):
            return
        os.kill(pid, how)
    except (OSError, IndexError):
        return
    with contextlib.suppress(AssertionError):
        wait_until("the server to stop", 60, lambda: not os.path.exists(f"/proc/{pid}"))


def ask(session, sql):
    """The first column of the first row, if there is one; the session is closed."""
    with contextlib.closing(session), session.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0] if cursor.description and cursor.rowcount > 0 else None


class Server:
    """A server in a directory of its own, reached by a socket there."""

    def __init__(self, name, conf, env=None):
        self.name, self.env = name, env
        self.data, self.socket = RUN / name, RUN / f"{name}.socket"
        self.socket.mkdir()
        run(BIN / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        settings = {"listen_addresses": "", "unix_socket_directories": self.socket, "shared_preload_libraries": "leaf_id",
                    "shared_buffers": "32MB", **conf}
        with open(self.data / "postgresql.conf", "a") as file:
            for key, value in settings.items():
                file.write(f"{key} = '{value}'\n")

    def start(self):
        self.process = Process(self.name, BIN / "postgres", "-D", self.data, env=self.env, stop=signal.SIGINT)
        wait_until(f"server {self.name} to start", 60, self.connect)
        return self

    def stop(self, how=None):
        self.process.stop(how)

    def connect(self, database="postgres"):
        session = psycopg2.connect(host=str(self.socket), user="postgres", dbname=database, connect_timeout=5)
        session.autocommit = True
        return session

    def ask(self, sql):
        return ask(self.connect(), sql)


Taken = collections.namedtuple("Taken", "at id server")


class Load:
    """Sessions that take ids of each kind, one by one, and note when they came and from which
    server; they connect again when they are cut off. `statements` gives each kind's: it
    returns an id, and what tells the servers apart."""

    def __init__(self, connect, statements, sessions=4):
        self.connect, self.statements = connect, statements
        self.done = threading.Event()
        self.taken = {kind: [] for kind in statements}
        self.errors = collections.Counter()
        # One kind that waits does not hold up another.
        self.threads = [threading.Thread(target=self.work, args=(kind,), daemon=True)
                        for kind in statements for _ in range(sessions)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join(60)
        if any(thread.is_alive() for thread in self.threads):
            fail("a session hangs")

    def work(self, kind):
        session = None
        while not self.done.is_set():
            try:
                if session is None:
                    session = self.connect()
                    session.autocommit = True
                with session.cursor() as cursor:
                    cursor.execute(self.statements[kind])
                    number, server = cursor.fetchone()
                self.taken[kind].append(Taken(time.monotonic(), number, server))
            except psycopg2.Error as error:
                self.errors[f"{kind}: {error.pgcode} {str(error).splitlines()[0] if str(error) else ''}"] += 1
                if session is not None and session.closed:
                    session = None
                self.done.wait(PAUSE)

    def wait_for(self, seconds, since=None, which=lambda taken: True):
        """The first id of each kind that has come since then (by default, from now on)."""
        since = since or time.monotonic()

        def firsts():
            found = {kind: [each for each in taken if each.at > since and which(each)]
                     for kind, taken in self.taken.items()}
            return all(found.values()) and {kind: min(taken) for kind, taken in found.items()}
        return wait_until(lambda: f"ids of each kind ({dict(self.errors)})", seconds, firsts)


def assert_issued_once(kind, ids):
    twice = [number for number, count in collections.Counter(ids).items() if count > 1]
    if twice:
        fail(f"{len(twice)} {kind} ids were issued twice, {sorted(twice)[:5]} among them")
    if any(number <= 0 for number in ids):
        fail(f"a {kind} id is not positive")


cleanup = contextlib.ExitStack()


def main(test):
    """Runs a test, ends all that it started, and says how it went as `cargo test` does."""
    # An interrupted run cleans up, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    began = time.monotonic()
    with cleanup:
        count = test()
    print(f"test result: ok. {count} passed; 0 failed; 0 ignored; in {time.monotonic() - began:.0f} s")
