"""What the checks share. A file of checks is a list of functions marked `@check`; the Rust side runs one at a time,
each in a Python of its own against a server of its own, so a check never looks over its shoulder.

The client is a black box: only its public names are used."""

import http.client
import json
import os
import sys
import threading
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import withruntime as w
from withruntime import Runtime

URL, KEY = os.environ["RUNTIME_API_URL"], os.environ["RUNTIME_API_KEY"]
DATA = Path(os.environ["RUNTIME_TEST_DATA"])
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def runtime(**options):
    return Runtime(**{"wait_for_capacity": 0, **options})


rt = runtime()


def patience(ms):
    """How long a command may take that keeps a processor or a disk busy: an emulated machine's is a program."""
    return ms * (5 if rt.request("GET", "/health")["emulated"] else 1)


def unique(prefix="n"):
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def box(**fields):
    return rt.sandboxes.create(**{"vcpu": 1, "memory_mib": 512, **fields})


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def refused(self, status, code):
        assert self.status == status, (self.status, self.body[:500])
        error = self.json["error"]
        assert set(self.json) == {"error"} and error["code"] == code and error["status"] == status, error
        assert error["message"] and error["requestId"] == self.headers["x-request-id"], error
        return error

    def ok(self):
        assert 200 <= self.status < 300 and self.status != 204, (self.status, self.body[:500])
        return self.json


def raw(method, path, body=None, key=KEY, **headers):
    """One request over a connection of its own; `Idempotency_Key=...` is a header."""
    url = urlsplit(URL)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=125)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        sent["Authorization"] = "Bearer " + key
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    try:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        got = {name.lower(): value for name, value in answer.getheaders()}
        assert "content-length" in got or got.get("transfer-encoding") == "chunked", got
        assert "content-encoding" not in got, got
        return Answer(answer.status, got, answer.read())
    finally:
        connection.close()


def events(path, body=None, method="POST"):
    """The lines of a stream, parsed, until the body ends."""
    answer = raw(method, path, body, Accept="application/x-ndjson")
    assert answer.status == 200, (answer.status, answer.body[:500])
    assert answer.headers["content-type"].startswith("application/x-ndjson"), answer.headers
    return [json.loads(line) for line in answer.body.split(b"\n") if line.strip()]


def fails(kind, code, function, status=None):
    try:
        result = function()
    except kind as error:
        assert error.code == code, (error.code, code, str(error))
        assert status is None or error.status == status, (error.status, status)
        return error
    raise AssertionError(f"expected {code}, got {result!r}")


def fails_with(kind, function):
    """What an adapter raises: an error of the service that it stands for."""
    try:
        result = function()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {result!r}")


# No wait ends sooner: a machine that has other things to do is no hang.
PATIENCE = 120


def eventually(look, what, seconds=PATIENCE):
    seconds, waited = max(seconds, PATIENCE), 0
    while True:
        began = time.monotonic()
        value = look()
        if value:
            return value
        assert waited < seconds, f"waited {seconds} s for: {what}"
        time.sleep(0.05)
        # In a longer gap the machine stood still, and with it what is waited for.
        waited += min(time.monotonic() - began, 10)


def in_enough_time(attempt):
    """What a command has done before its time was up depends on the machine: twice the time, until it was enough."""
    for time_ms in (1000 << n for n in range(8)):
        if attempt(time_ms):
            return
    raise AssertionError("no time is enough")


def saved(s):
    """Waits until the host holds nothing of it but files: its memory is given back."""
    name = s.id.replace("-", "")
    eventually(lambda: list(DATA.glob(f"pool/save/{name}/gen-*")) and not (DATA / "sandboxes" / name).exists(),
               "its memory is on the disk and nowhere else", 60)


def together(count, function):
    """Calls `function(number)` in `count` threads that start at once; the results in order."""
    results, gate = [None] * count, threading.Barrier(count)

    def one(number):
        gate.wait()
        try:
            results[number] = function(number)
        except BaseException as error:  # noqa: BLE001 - told to the check
            results[number] = error

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def host(word):
    """Asks the test for `kill9`, `stop`, `start` or `kill-helpers`, and waits until it is done."""
    print("@" + word, flush=True)
    assert sys.stdin.readline().strip() == "done"


def main():
    CHECKS[sys.argv[1]]()
