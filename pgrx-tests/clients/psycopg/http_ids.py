"""packaging/http/leaf_http.py, run as it stands: ids for eight clients at once, and its errors."""

import http.client
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from checks import Ids


def get(connection, path):
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def session(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    answers = [get(connection, "/api/segment/get/orders") for _ in range(49)]
    answers.append(get(connection, "/api/segment/get/%6Frders?key=value"))
    answers.append(get(connection, "/api/snowflake/get/any"))
    assert {status for status, _ in answers} == {200}, answers
    for missing in "missing", "a%0d%0aSet-Cookie:%20x=1%0d%0a%0d%0a<b>", "%E6%97%A5":
        connection.request("GET", f"/api/segment/get/{missing}")
        response = connection.getresponse()
        body = response.read().decode()
        assert response.status == 404 and "Set-Cookie" not in response.headers, response.headers
        assert "does not exist" in body and "<b>" not in body, body
    connection.close()
    return [int(id) for _, id in answers]


program = subprocess.Popen([sys.executable, "leaf_http.py", "0"], stdout=subprocess.PIPE, text=True)
try:
    port = int(program.stdout.readline().removeprefix("listening on port "))
    ids = Ids()
    with ThreadPoolExecutor(8) as threads:
        for answered in threads.map(session, [port] * 8):
            ids.of_session(answered)
    ids.report()
finally:
    program.terminate()
    program.wait()
