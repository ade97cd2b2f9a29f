"""Leaf's HTTP interface: GET /api/segment/get/orders, GET /api/snowflake/get/any.

Run it as `python3 leaf_http.py 8080`, with psycopg 3, and the server's address in PGHOST, PGDATABASE and PGUSER. It
listens on 127.0.0.1, for a proxy that knows who may ask. Each connection of a client is one of the database.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import psycopg


class Leaf(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    db = None

    def finish(self):
        if self.db:
            self.db.close()
        super().finish()

    def do_GET(self):
        match urlsplit(self.path).path.split("/"):
            case ["", "api", "segment", "get", tag]:
                self.answer("SELECT leaf_segment_next(%s)", [unquote(tag)])
            case ["", "api", "snowflake", "get", _]:
                self.answer("SELECT leaf_snowflake_next()")
            case _:
                self.send_error(404)

    def answer(self, query, arguments=()):
        try:
            # Also after a failover.
            if self.db is None or self.db.closed:
                self.db = psycopg.connect(autocommit=True)
            body = str(self.db.execute(query, arguments).fetchone()[0]).encode()
        except psycopg.Error as error:
            # In the body, escaped: the message has the tag, and a header must not.
            self.send_error(404 if error.sqlstate == "42704" else 503, explain=error.diag.message_primary)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Leaf)
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
