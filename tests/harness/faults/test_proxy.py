"""The proxy is transparent by default, and otherwise does exactly what its mode says."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quorlock.testing.servers import Server, Servers
from tests.harness.faults import Proxy, Site, sites
from tests.harness.faults.fault import await_that, revive
from tests.harness.faults.network import ENDS
from tests.harness.faults.relay import Relay
from tests.harness.support.resp import Talk, is_silent, pack, what_happens

QUIET = 0.05  # seconds without a byte that count as silence


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Servers(1) as (started,):
        yield started


@pytest.fixture
def site(server: Server) -> Iterator[Site]:
    """The module's server, with a proxy and a relay of the test's own."""
    revive(server)
    server.flush()
    with Relay() as relay, Proxy(relay, server.path, f"{server.path}.proxy") as proxy:
        yield Site(server, proxy, home=Path(server.path).parent, spare=server)


@pytest.fixture
def proxy(site: Site) -> Proxy:
    return site.proxy


def has(site: Site, key: str) -> bool:
    return bool(site.server.execute("EXISTS", key))


def receives_nothing(talk: Talk) -> bool:
    """Return whether nothing arrives, not even the end of the connection."""
    patience, talk.timeout = talk.timeout, QUIET
    with suppress(TimeoutError):
        talk.read()
        return False
    talk.timeout = patience
    return True


def is_over(talk: Talk) -> bool:
    """Return whether the connection ends without another byte."""
    try:
        talk.read()
    except (ConnectionAbortedError, ConnectionResetError):
        return True
    return False


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_bytes_pass_both_ways(proxy: Proxy, tcp: bool) -> None:
    """Small ones, many at once, and more than any buffer on the way holds."""
    big = b"x" * 5_000_000
    with Talk(("127.0.0.1", proxy.port) if tcp else proxy.path, timeout=20) as talk:
        assert talk.ask("PING") == b"PONG"
        for number in range(1000):
            talk.send("ECHO", number)
        assert [talk.read() for _ in range(1000)] == [b"%d" % n for n in range(1000)]
        assert talk.ask("ECHO", big) == big
        assert talk.ask("HELLO", 3)[b"proto"] == 3
    await_that(lambda: proxy.open_links == 0, "the caller that left is forgotten")
    assert proxy.counts == {"accepted": 1}


def test_a_caller_that_closes_its_half_gets_its_replies(proxy: Proxy) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        caller.connect(proxy.path)
        caller.sendall(pack("CONFIG", "GET", "dir"))
        assert caller.recv(1) == b"*"  # the server may forget replies to one who has left
        caller.shutdown(socket.SHUT_WR)
        rest = b""
        while data := caller.recv(4096):
            rest += data
    assert rest.startswith(b"2\r\n$3\r\ndir")


def test_push_messages_pass(proxy: Proxy, site: Site) -> None:
    with Talk(proxy.path) as talk:
        assert talk.ask("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
        site.server.execute("PUBLISH", "news", "x" * 200_000)
        assert talk.read() == [b"message", b"news", b"x" * 200_000]


def test_where_the_server_is_dead_callers_see_the_end(proxy: Proxy, site: Site) -> None:
    with Talk(proxy.path) as talk:
        assert talk.ask("PING") == b"PONG"
        site.server.kill()
        assert is_over(talk)
    assert what_happens(proxy.path) in ENDS
    site.server.restart()
    assert what_happens(proxy.path) == "b'PONG'"


def test_a_stopped_server_is_silent_and_then_answers(proxy: Proxy, site: Site) -> None:
    with Talk(proxy.path) as talk:
        site.server.stop()
        talk.send("ECHO", "late")
        assert receives_nothing(talk)
        site.server.cont()
        assert talk.read() == b"late"


def test_delay_keeps_the_order(proxy: Proxy) -> None:
    proxy.delay(0.02, jitter=0.03)
    with Talk(proxy.path) as talk:
        began = time.monotonic()
        for number in range(20):
            talk.send("ECHO", number)
            time.sleep(0.001)
        assert [talk.read() for _ in range(20)] == [b"%d" % n for n in range(20)]
        assert time.monotonic() - began >= 0.04
        # What is on its way when the delay ends is not overtaken by what comes after.
        talk.send("ECHO", "first")
        proxy.transparent()
        talk.send("ECHO", "second")
        assert [talk.read(), talk.read()] == [b"first", b"second"]
    assert proxy.counts["delayed"] >= 2, "both ways; on a busy machine several are read at once"


def test_delay_is_of_each_byte_not_of_the_line(proxy: Proxy) -> None:
    """Twenty requests at once come back together after one round trip."""
    proxy.delay(0.2)
    with Talk(proxy.path) as talk:
        began = time.monotonic()
        for number in range(20):
            talk.send("ECHO", number)
        assert [talk.read() for _ in range(20)] == [b"%d" % n for n in range(20)]
        assert 0.4 <= time.monotonic() - began < 20 * 0.4


def test_throttle_lets_a_stream_trickle(proxy: Proxy) -> None:
    proxy.throttle(50_000)
    with Talk(proxy.path) as talk:
        began = time.monotonic()
        talk.send("ECHO", "x" * 5000)
        first = talk.receive()
        assert time.monotonic() - began >= 0.1  # all of the request had to get there
        assert len(first) < 5000
        size = len(first)
        while size < 5000 + len("$5000\r\n\r\n"):
            size += len(talk.receive())
        assert time.monotonic() - began >= 0.2


def test_what_waits_on_a_thin_line_comes_at_once_when_it_is_healed(
    proxy: Proxy, site: Site
) -> None:
    """Also for a caller that has left."""
    proxy.throttle(1000)
    with Talk(proxy.path, timeout=100) as talk, Talk(proxy.path, timeout=100) as leaver:
        leaver.send("SET", "a", "x" * 500_000)
        leaver.close()
        talk.send("ECHO", "x" * 500_000)
        assert receives_nothing(talk)
        began = time.monotonic()
        proxy.transparent()
        assert talk.read() == b"x" * 500_000
        await_that(lambda: has(site, "a"), "the SET has arrived")
        assert time.monotonic() - began < 100, "it would have taken 500 s and more"
    await_that(lambda: proxy.open_links == 0, "callers that left are forgotten")


def test_a_dropped_reply_ends_its_connection_and_no_other(proxy: Proxy, site: Site) -> None:
    with Talk(proxy.path) as lucky, Talk(proxy.path) as unlucky:
        assert lucky.ask("PING") == unlucky.ask("PING") == b"PONG"
        proxy.drop_replies(1)
        unlucky.send("SET", "a", "b")
        assert is_over(unlucky)
        assert has(site, "a")
        assert lucky.ask("PING") == b"PONG"
    assert proxy.counts["replies dropped"] == 1


def test_of_several_dropped_replies_each_connection_is_cut_with_the_last(
    proxy: Proxy, site: Site
) -> None:
    proxy.drop_replies(3)
    with Talk(proxy.path) as first, Talk(proxy.path) as second:
        first.send("SET", "a", 1)
        assert receives_nothing(first)
        second.send("SET", "b", 1)
        assert receives_nothing(second)
        first.send("SET", "c", 1)
        assert is_over(first)
        assert is_over(second)
    assert site.server.keys() == [b"a", b"b", b"c"]
    assert proxy.counts["replies dropped"] == 3
    assert what_happens(proxy.path) == "b'PONG'"


def test_a_stream_that_lost_a_reply_is_cut_when_the_mode_ends(proxy: Proxy) -> None:
    proxy.drop_replies(2)
    with Talk(proxy.path) as talk:
        talk.send("PING")
        assert receives_nothing(talk)
        proxy.transparent()
        assert is_over(talk)


def test_a_stalled_reply_continues_when_the_mode_ends(proxy: Proxy) -> None:
    with Talk(proxy.path) as talk, Talk(proxy.path) as other:
        assert talk.ask("PING") == other.ask("PING") == b"PONG"
        proxy.stall_reply(3)
        talk.send("ECHO", "hello")
        assert talk.receive() == b"$5\r"
        talk.send("ECHO", "again")
        assert receives_nothing(talk)
        proxy.transparent()
        rest = b""
        while len(rest) < len(b"\nhello\r\n$5\r\nagain\r\n"):
            rest += talk.receive()
        assert rest == b"\nhello\r\n$5\r\nagain\r\n"
        assert other.ask("PING") == b"PONG"


def test_a_stall_never_gives_the_whole_reply(proxy: Proxy) -> None:
    proxy.stall_reply(1_000)
    with Talk(proxy.path) as talk:
        talk.send("PING")
        assert talk.receive() == b"+PONG\r"


def test_half_close(proxy: Proxy, site: Site) -> None:
    with Talk(proxy.path) as talk:
        assert talk.ask("PING") == b"PONG"
        proxy.half_close()
        talk.send("SET", "a", 1)
        assert is_over(talk)
        for key in ("b", "c"):
            talk.send("SET", key, 1)
        await_that(lambda: has(site, "c"), "what is sent after it reaches the server")
    assert proxy.counts["half-closed"] == 1
    await_that(lambda: proxy.open_links == 0, "the caller that left is forgotten")


def test_reset(proxy: Proxy, site: Site) -> None:
    """RST by TCP, the end of the connection by the unix socket; served both."""
    with Talk(("127.0.0.1", proxy.port)) as by_tcp, Talk(proxy.path) as by_unix:
        assert by_tcp.ask("PING") == by_unix.ask("PING") == b"PONG"
        proxy.reset()
        by_tcp.send("SET", "a", 1)
        with pytest.raises(ConnectionResetError):
            by_tcp.read()
        by_unix.send("SET", "b", 1)
        assert is_over(by_unix)
    await_that(lambda: has(site, "a") and has(site, "b"), "both were served")
    assert proxy.counts["reset"] == 2


def test_a_cut_request_is_not_served(proxy: Proxy, site: Site) -> None:
    proxy.cut_requests(20)
    with Talk(proxy.path) as talk:
        talk.send("SET", "a", 1)
        assert is_over(talk)
    assert not has(site, "a")
    assert proxy.counts["requests cut"] == 1


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_a_black_hole_delivers_late_what_a_closed_connection_sent(
    proxy: Proxy, site: Site, tcp: bool
) -> None:
    """faults.md 3(d): the SET of a caller that gave up arrives after the release that it sent over
    its next connection.
    """
    address = ("127.0.0.1", proxy.port) if tcp else proxy.path
    proxy.black_hole()
    with Talk(address) as talk:
        talk.send("SET", "lock", "token")
    with Talk(address) as talk:
        talk.send("DEL", "lock")
        assert receives_nothing(talk)
        assert not has(site, "lock")
        proxy.transparent()
        assert talk.read() == 0  # the release came first, and found nothing
        await_that(lambda: has(site, "lock"), "the SET has arrived")
        assert talk.ask("PING") == b"PONG"
    assert proxy.counts["bytes delivered late"] == proxy.counts["request bytes swallowed"] > 0
    await_that(lambda: proxy.open_links == 0, "callers that left are forgotten")


def test_a_black_hole_takes_open_connections_too_and_keeps_their_order(
    proxy: Proxy, site: Site
) -> None:
    with Talk(proxy.path) as talk:
        assert talk.ask("PING") == b"PONG"
        proxy.black_hole()
        talk.send("SET", "lock", "token")
        talk.send("DEL", "lock")
        assert receives_nothing(talk)
        proxy.transparent()
        assert [talk.read(), talk.read()] == [b"OK", 1]


def test_a_black_hole_may_forget(proxy: Proxy, site: Site) -> None:
    proxy.black_hole(deliver=False)
    with Talk(proxy.path) as talk:
        talk.send("SET", "lock", "token")
        assert receives_nothing(talk)
        proxy.transparent()
        assert is_over(talk)
    assert what_happens(proxy.path) == "b'PONG'"
    assert not has(site, "lock")


def test_a_black_hole_one_way(proxy: Proxy, site: Site) -> None:
    proxy.black_hole(requests=False)
    with Talk(proxy.path) as talk:
        talk.send("SET", "lock", "token")
        await_that(lambda: has(site, "lock"), "the SET was served")
        assert receives_nothing(talk)
        proxy.transparent()
        assert talk.read() == b"OK"


def test_a_black_hole_does_not_grow_without_bound(proxy: Proxy) -> None:
    """A caller that sends more than the hole keeps is not read, as with a real one."""
    proxy.black_hole()
    with Talk(proxy.path, timeout=0.3) as talk, pytest.raises(TimeoutError):
        talk.send("ECHO", "x" * 10_000_000)
    assert proxy.counts["request bytes swallowed"] < 2_000_000


def test_refusing(proxy: Proxy, site: Site) -> None:
    """Open connections are cut, new ones refused; the addresses stay ours; no mode lifts it."""
    with Talk(proxy.path) as talk:
        assert talk.ask("PING") == b"PONG"
        proxy.refuse()
        assert is_over(talk)
    addresses = (proxy.path, ("127.0.0.1", proxy.port))
    proxy.delay(0.01)
    proxy.transparent()
    proxy.refuse()
    assert [what_happens(address) for address in addresses] == ["ConnectionRefusedError"] * 2
    was_refusing = proxy.refusing
    proxy.accept()
    proxy.accept()
    assert (was_refusing, proxy.refusing) == (True, False)
    assert [what_happens(address) for address in addresses] == ["b'PONG'"] * 2


def test_cutting(proxy: Proxy) -> None:
    with Talk(proxy.path) as talk:
        assert talk.ask("PING") == b"PONG"
        proxy.cut()
        assert is_over(talk)
        assert proxy.open_links == 0
    assert what_happens(proxy.path) == "b'PONG'"


def test_each_order_replaces_the_one_before(proxy: Proxy) -> None:
    proxy.black_hole()
    assert is_silent(proxy.path)
    proxy.delay(0.001)
    assert what_happens(proxy.path) == "b'PONG'"
    proxy.stall_reply()
    assert is_silent(proxy.path, "ECHO", "x")
    proxy.reset()
    assert what_happens(("127.0.0.1", proxy.port)) == "ConnectionResetError"
    proxy.transparent()
    assert what_happens(proxy.path) == "b'PONG'"


def test_one_relay_serves_all(site: Site) -> None:
    """A slow proxy does not slow another."""
    with sites(2) as (one, two):
        one.proxy.delay(1.0)
        with Talk(one.proxy.path) as slow, Talk(two.proxy.path) as fast:
            slow.send("ECHO", "slow")
            for number in range(100):
                assert fast.ask("ECHO", number) == b"%d" % number
            assert receives_nothing(slow)


def test_errors_of_the_relay_are_raised_in_the_caller() -> None:
    def wrong() -> None:
        raise KeyError("wrong")

    with Relay() as relay:
        with pytest.raises(KeyError, match="wrong"):
            relay.call(wrong)
        assert relay.call(lambda: 7) == 7


def test_a_proxy_that_cannot_listen_leaves_nothing(site: Site) -> None:
    with (
        Relay() as relay,
        pytest.raises(FileNotFoundError),
        Proxy(relay, site.server.path, "/nonexistent/x.sock"),
    ):
        raise AssertionError("it listens")
