"""Leaf's HTTP interface over leaf_id: GET /api/segment/get/orders, GET /api/snowflake/get/any."""

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from checks import Ids


class Leaf(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.db = psycopg.connect(autocommit=True)

    def finish(self):
        self.db.close()
        super().finish()

    def do_GET(self):
        match self.path.split("/"):
            case ["", "api", "segment", "get", tag]:
                self.answer("SELECT leaf_segment_next(%s)", [tag])
            case ["", "api", "snowflake", "get", _]:
                self.answer("SELECT leaf_snowflake_next()")
            case _:
                self.send_error(404)

    def answer(self, query, arguments=()):
        try:
            body = str(self.db.execute(query, arguments).fetchone()[0]).encode()
        except psycopg.Error as error:
            self.send_error(404 if error.sqlstate == "42704" else 503, error.diag.message_primary)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def get(connection, path):
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def session(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    answers = [get(connection, "/api/segment/get/orders") for _ in range(50)]
    answers.append(get(connection, "/api/snowflake/get/any"))
    assert {status for status, _ in answers} == {200}, answers
    assert get(connection, "/api/segment/get/missing")[0] == 404
    connection.close()
    return [int(id) for _, id in answers]


server = ThreadingHTTPServer(("127.0.0.1", 0), Leaf)
threading.Thread(target=server.serve_forever).start()
ids = Ids()
with ThreadPoolExecutor(8) as threads:
    for answered in threads.map(session, [server.server_port] * 8):
        ids.of_session(answered)
server.shutdown()
ids.report()
