"""examples/fastapi_app.py under a real uvicorn."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest

from quorlock import Redlock
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until
from tests.tooling.examples.programs import PATIENCE, environment, started

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


class Reply(NamedTuple):
    status: int
    retry_after: str | None
    body: dict[str, Any]


class App:
    """The running app, at a port that listens before it does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._threads = ThreadPoolExecutor(8)

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def charge(self, number: int) -> Reply:
        return self.send("POST", f"/invoices/{number}/charge")

    def charging(self, number: int) -> Future[Reply]:
        return self._threads.submit(self.charge, number)

    def send(self, method: str, path: str) -> Reply:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = json.loads(response.read())
            return Reply(response.status, response.getheader("Retry-After"), body)
        finally:
            connection.close()

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def urls(mortal_nodes: Servers) -> list[str]:
    """Three of the nodes."""
    return mortal_nodes.urls[:3]


@pytest.fixture
def app(urls: list[str]) -> Iterator[App]:
    """The app, which ends cleanly at TERM."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        command = ["-m", "uvicorn", "fastapi_app:app", "--fd", str(fd), "--log-level", "warning"]
        with started(*command, env=environment(urls), pass_fds=[fd]) as process:
            app = App(port)
            yield app
            app.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) in {0, -signal.SIGTERM}


def test_it_is_ready_before_the_first_lock(app: App, urls: list[str]) -> None:
    """A check connects. On a busy machine a node may reply late once."""
    expected = {"ready": True, "quorum": 2}
    assert until(lambda: app.get("/ready").body.items() >= expected.items(), PATIENCE)
    assert until(lambda: list(app.get("/ready").body["nodes"].values()) == ["up"] * 3, PATIENCE)


def test_one_request_charges_an_invoice(app: App) -> None:
    """The others wait, and find it done; another invoice does not wait for them."""
    same = [app.charging(42) for _ in range(4)]
    other = app.charging(43)
    replies = [one.result(PATIENCE) for one in same]
    assert {reply.status for reply in replies} == {200}
    said = sorted(reply.body["status"] for reply in replies)
    assert said == ["already charged"] * 3 + ["charged"]
    assert other.result(PATIENCE).body == {"status": "charged"}


def test_a_busy_invoice_is_a_conflict(app: App, urls: list[str]) -> None:
    """Retry-After is what is left of the holder's lease, and never 0."""
    with Redlock(urls, node_timeout=0.25) as redlock, redlock.lock("invoice:42", ttl=20.0):
        reply = app.charge(42)
    assert reply.status == 409
    assert reply.body == {"detail": "invoice:42 is busy"}
    assert 1 <= int(reply.retry_after or 0) <= 20
    assert app.charge(42).status == 200


def test_a_node_is_down(app: App, mortal_nodes: Servers) -> None:
    """A minority changes nothing but the report."""
    mortal_nodes[0].stop()
    assert app.charge(42).status == 200
    assert until(lambda: app.get("/ready").status == 200, PATIENCE)
    first, *_ = app.get("/ready").body["nodes"].values()
    assert first != "up"


def test_a_majority_is_down(app: App, mortal_nodes: Servers) -> None:
    """Charging and readiness end with 503, liveness does not; all recover."""
    for node in mortal_nodes[:2]:
        node.stop()
    reply = app.charge(42)
    assert (reply.status, reply.body) == (503, {"detail": "invoice:42 cannot be locked"})
    reply = app.get("/ready")
    assert (reply.status, reply.body["ready"]) == (503, False)
    assert app.get("/live").status == 200
    for node in mortal_nodes[:2]:
        node.cont()
    assert until(lambda: app.get("/ready").status == 200, PATIENCE)
    assert app.charge(42).body == {"status": "charged"}


def test_the_lock_is_lost_while_it_charges(app: App, mortal_nodes: Servers) -> None:
    """The nodes forget the key: the reply says that the outcome is unknown."""
    servers = mortal_nodes[:3]
    for number in range(20):  # a key that is deleted after the charge comes too late
        key = b"invoice:%d" % number
        charging = app.charging(number)
        until(partial(all_have, servers, key))
        for node in servers:
            node.execute("DEL", key)
        reply = charging.result(PATIENCE)
        if reply.status == 503:
            assert reply.body == {"detail": "interrupted: check the invoice before you retry"}
            return
    pytest.fail("no charge was slow enough")


def all_have(servers: list[Server], key: bytes) -> bool:
    return all(key in server.keys() for server in servers)  # noqa: SIM118 (not a dict)
