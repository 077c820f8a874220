"""The proxy: passes everything on in its order, answers not before their time, and ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from bench.fleet import Fleet
from bench.proxy import Proxy
from tests.harness.support.wait import until

HELD_BACK = 0.05


@pytest.fixture
def proxy(fleet: Fleet) -> Iterator[Proxy]:
    with Proxy(fleet.urls(2)) as started:
        yield started


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), 10.0)


def ask(sock: socket.socket, line: bytes, answer: bytes) -> float:
    """Seconds until the whole answer was there."""
    began = time.monotonic()
    sock.sendall(line + b"\r\n")
    heard = b""
    while len(heard) < len(answer):
        data = sock.recv(65536)
        assert data, f"the proxy hung up after {heard!r}"
        heard += data
    assert heard == answer
    return time.monotonic() - began


def test_it_passes_on_what_is_said(proxy: Proxy, fleet: Fleet) -> None:
    """Bytes reach the right node, over any number of connections."""
    for number, url in enumerate(proxy.urls):
        with connected(url) as one, connected(url) as other:
            ask(one, b"SET where %d" % number, b"+OK\r\n")
            ask(other, b"GET where", b"$1\r\n%d\r\n" % number)
    assert [server.execute("GET", "where") for server in fleet.servers[:2]] == [b"0", b"1"]


def test_replies_come_no_sooner_than_configured(proxy: Proxy) -> None:
    with connected(proxy.urls[0]) as sock:
        ask(sock, b"PING", b"+PONG\r\n")
        proxy.delay(HELD_BACK)
        assert ask(sock, b"PING", b"+PONG\r\n") >= HELD_BACK
        assert ask(sock, b"PING", b"+PONG\r\n") >= HELD_BACK


def test_commands_are_not_held_back(proxy: Proxy, fleet: Fleet) -> None:
    """Only what comes back is: the node has the key while its answer is still under way."""
    proxy.delay(3600.0)
    with connected(proxy.urls[0]) as sock:
        sock.sendall(b"SET early 1\r\n")
        assert until(lambda: fleet.servers[0].execute("GET", "early") == b"1", 10)


def test_answers_keep_their_order_when_the_delay_shrinks(proxy: Proxy) -> None:
    with connected(proxy.urls[0]) as sock:
        proxy.delay(HELD_BACK)
        sock.sendall(b"ECHO first\r\n")
        # Until the node has answered, which is held back from then on.
        time.sleep(HELD_BACK / 2)
        proxy.delay(0.0)
        ask(sock, b"ECHO second", b"$5\r\nfirst\r\n$6\r\nsecond\r\n")


def test_the_end_of_a_node_is_passed_on() -> None:
    """The end follows its last replies."""
    with Fleet(1) as fleet, Proxy(fleet.urls()) as proxy, connected(proxy.urls[0]) as sock:
        ask(sock, b"PING", b"+PONG\r\n")
        fleet.servers[0].kill()
        assert sock.recv(1) == b""
        with connected(proxy.urls[0]) as later:
            assert later.recv(1) == b""  # the server is gone


def test_the_end_of_a_client_is_passed_on(proxy: Proxy, fleet: Fleet) -> None:
    server = fleet.servers[0]
    before = server.execute("CLIENT", "LIST").count(b"\n")
    with connected(proxy.urls[0]) as sock:
        ask(sock, b"PING", b"+PONG\r\n")
        assert server.execute("CLIENT", "LIST").count(b"\n") == before + 1
    assert until(lambda: server.execute("CLIENT", "LIST").count(b"\n") <= before, 10)


def test_it_ends_when_its_owner_is_gone(fleet: Fleet) -> None:
    """However that ended: its stdin does."""
    proxy = Proxy(fleet.urls(1))
    with proxy:
        process = proxy._process
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert process.wait(10.0) == 0
