"""The impostors do what they are named for, and leave nothing behind."""

from __future__ import annotations

import gc
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from quorlock.testing.servers import Server, Servers
from tests.harness.guards import Present
from tests.harness.support.impostors import (
    Behaviour,
    Impostor,
    Listener,
    Proxy,
    TlsFront,
    answers,
    closes_at_once,
    deaf,
    echo,
    endless_bulk,
    garbage,
    half_reply,
    http_400,
    sends_banner,
    silent,
)
from tests.harness.support.resp import take_frames
from tests.harness.support.wait import until

PING = b"*1\r\n$4\r\nPING\r\n"
SET = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"


@pytest.fixture
def server() -> Iterator[Server]:
    with Servers(1, tcp=True) as servers:
        yield servers[0]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.url) as proxy:
        yield proxy


def dial(listener: Listener, *, tcp: bool = False) -> socket.socket:
    caller = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    caller.settimeout(5)
    try:
        caller.connect(("127.0.0.1", listener.port) if tcp else listener.path)
    except OSError:
        caller.close()
        raise
    return caller


def ask(caller: socket.socket, request: bytes) -> bytes:
    caller.sendall(request)
    return caller.recv(65536)


def receives_nothing(caller: socket.socket, seconds: float = 0.03) -> bool:
    """Return whether nothing arrives, not even the end of the connection."""
    caller.settimeout(seconds)
    try:
        return caller.recv(1) is None
    except TimeoutError:
        return True
    finally:
        caller.settimeout(5)


def is_over(caller: socket.socket) -> bool:
    """Return whether the other side has ended the connection, cleanly or not."""
    try:
        return caller.recv(65536) == b""
    except (ConnectionResetError, ssl.SSLError):
        return True


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "beginning"),
    [
        (http_400, b"HTTP/1.1 400 Bad Request\r\n"),
        (garbage, b"\x16\x03\x01"),
        (echo, PING),
        (half_reply(), b"$5\r\nhel"),
        (half_reply(b"*2\r\n+OK\r\n", then_closes=True), b"*2\r\n+OK\r\n"),
        (endless_bulk, b"$8589934592\r\n"),
        (answers(b"-DENIED Redis is running in protected mode\r\n"), b"-DENIED Redis"),
        (answers(lambda command: b"+%b\r\n" % command[0].lower()), b"+ping\r\n"),
    ],
)
def test_what_impostors_answer(behaviour: Behaviour, beginning: bytes, tcp: bool) -> None:
    """Each answers a command in its own wrong way, on a socket path and on TCP."""
    with Impostor(behaviour, tcp=tcp) as node, dial(node, tcp=tcp) as caller:
        assert ask(caller, PING).startswith(beginning)
        assert node.received == [PING]


@pytest.mark.parametrize("behaviour", [closes_at_once, http_400, half_reply(then_closes=True)])
def test_impostors_that_hang_up(behaviour: Behaviour) -> None:
    """Impostors that hang up close the connection at once."""
    with Impostor(behaviour) as node, dial(node) as caller:
        if behaviour is not closes_at_once:
            ask(caller, PING)
        assert is_over(caller)
        assert node.accepted == 1


@pytest.mark.parametrize("behaviour", [silent, deaf])
def test_impostors_that_never_answer(behaviour: Behaviour) -> None:
    """The silent keep the connection open and say nothing."""
    with Impostor(behaviour) as node, dial(node) as caller:
        caller.sendall(PING)
        assert receives_nothing(caller)
        assert node.open_connections == 1


def test_half_a_reply_and_then_nothing() -> None:
    """The connection stays open after half a reply, without another byte."""
    with Impostor(half_reply(b"$5\r\nhe")) as node, dial(node) as caller:
        assert ask(caller, PING) == b"$5\r\nhe"
        caller.sendall(PING)
        assert receives_nothing(caller)


def test_the_deaf_fill_the_callers_buffers() -> None:
    """A node that does not read makes the sender wait in the end."""
    with Impostor(deaf) as node, dial(node) as caller:
        caller.settimeout(0.05)
        with pytest.raises(TimeoutError):
            caller.sendall(b"x" * 20_000_000)


def test_greeters_speak_first() -> None:
    """Servers of other protocols send their banner before the first request."""
    with Impostor(sends_banner(b"SSH-2.0-OpenSSH_9.6\r\n")) as node, dial(node) as caller:
        assert caller.recv(100) == b"SSH-2.0-OpenSSH_9.6\r\n"


def test_an_endless_string_does_not_end() -> None:
    """The endless bulk string continues as long as it is read."""
    with Impostor(endless_bulk) as node, dial(node) as caller:
        caller.sendall(PING)
        read = 0
        while read < 5_000_000:
            read += len(caller.recv(1 << 20))


def test_a_transparent_proxy(server: Server, proxy: Proxy) -> None:
    """Untouched, a proxy passes commands and replies, and records the commands."""
    with dial(proxy) as caller:
        assert ask(caller, SET) == b"+OK\r\n"
        caller.sendall(GET + PING)
        assert read_frames(caller, 2) == [b"$1\r\nv\r\n", b"+PONG\r\n"]
    assert proxy.requests == [[b"SET", b"k", b"v"], [b"GET", b"k"], [b"PING"]]
    assert server.keys() == [b"k"]


def test_large_values_pass(server: Server, proxy: Proxy) -> None:
    """A reply of many packets arrives whole."""
    value = b"x" * 3_000_000
    server.execute("SET", "k", value)
    with dial(proxy) as caller:
        caller.sendall(GET)
        assert read_frames(caller, 1) == [b"$3000000\r\n" + value + b"\r\n"]


def test_half_closed_callers_still_get_the_reply(proxy: Proxy) -> None:
    """A caller that has said its last word still gets the replies that are due."""
    proxy.delay = 0.02
    with dial(proxy) as caller:
        caller.sendall(PING)
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(100) == b"+PONG\r\n"
        assert is_over(caller)


@pytest.mark.parametrize("tcp", [False, True])
def test_addresses_of_a_proxy(server: Server, tcp: bool) -> None:
    """Either side of a proxy may be a path or a port."""
    target = server.tcp_url if tcp else server.url
    with Proxy(target, tcp=not tcp) as proxy, dial(proxy, tcp=not tcp) as caller:
        assert ask(caller, PING) == b"+PONG\r\n"
        assert proxy.url == (
            f"unix://{proxy.path}?db=0" if tcp else f"redis://127.0.0.1:{proxy.port}"
        )


def test_a_proxy_passes_the_password_on() -> None:
    """The URL of a proxy has the credentials of its target."""
    with Servers(1, password="p@ss") as servers, Proxy(servers[0].url) as proxy:
        assert proxy.url.startswith("unix://:p%40ss@/")


def test_delay_is_latency_not_rate(proxy: Proxy) -> None:
    """Every reply comes later by `delay`, and many in flight wait for it together."""
    proxy.delay = 0.2
    with dial(proxy) as caller:
        started = time.monotonic()
        for _ in range(20):
            caller.sendall(PING)
            time.sleep(0.002)
        assert read_frames(caller, 20) == [b"+PONG\r\n"] * 20
        assert proxy.delay <= time.monotonic() - started < 20 * proxy.delay
        proxy.delay = 0.0
        assert ask(caller, PING) == b"+PONG\r\n"


def test_hold_keeps_all_back(server: Server, proxy: Proxy) -> None:
    """Commands do not reach the server before `resume()`, which delivers them all."""
    with dial(proxy) as caller:
        assert ask(caller, PING) == b"+PONG\r\n"
        proxy.hold()
        caller.sendall(SET)
        assert receives_nothing(caller)
        assert server.keys() == []
        proxy.resume()
        assert caller.recv(100) == b"+OK\r\n"


def test_hold_of_replies_lets_the_server_act(server: Server, proxy: Proxy) -> None:
    """The server grants and the caller gets no reply."""
    with dial(proxy) as caller:
        proxy.hold(requests=False)
        caller.sendall(SET)
        assert receives_nothing(caller)
        assert server.keys() == [b"k"]
        proxy.resume()
        assert caller.recv(100) == b"+OK\r\n"


def test_late_requests_of_a_caller_that_left(server: Server, proxy: Proxy) -> None:
    """The late SET: what a caller sent before it closed still arrives after the stall."""
    with dial(proxy) as caller:
        proxy.hold()
        caller.sendall(SET)
    assert until(lambda: proxy.requests == [[b"SET", b"k", b"v"]])
    assert server.keys() == []
    proxy.resume()
    assert appears(server, b"k")


def appears(server: Server, key: bytes) -> bool:
    return until(lambda: key in server.keys())  # noqa: SIM118


def test_cut_ends_what_is_open_only(server: Server, proxy: Proxy) -> None:
    """`cut()` ends all connections, held bytes are lost, new callers are served."""
    with dial(proxy) as first, dial(proxy) as second:
        assert ask(first, PING) == ask(second, PING) == b"+PONG\r\n"
        proxy.hold()
        first.sendall(SET)
        proxy.cut()
        proxy.resume()
        assert is_over(first)
        assert is_over(second)
    assert proxy.open_connections == 0
    with dial(proxy) as third:
        assert ask(third, PING) == b"+PONG\r\n"
    assert server.keys() == []


@pytest.mark.parametrize("tcp", [False, True])
def test_refuse_and_accept_again(server: Server, tcp: bool) -> None:
    """A refusing proxy refuses new callers, serves old ones, and can be reached again at the same
    address."""
    with Proxy(server.url, tcp=tcp) as proxy, dial(proxy, tcp=tcp) as old:
        assert ask(old, PING) == b"+PONG\r\n"
        url = proxy.url
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy, tcp=tcp)
        assert ask(old, PING) == b"+PONG\r\n"
        proxy.accept_again()
        assert proxy.url == url
        with dial(proxy, tcp=tcp) as new:
            assert ask(new, PING) == b"+PONG\r\n"


def test_a_dead_server_behind_a_proxy(server: Server, proxy: Proxy) -> None:
    """The caller's connection ends when the server dies; without a server no connection is kept."""
    with dial(proxy) as caller:
        assert ask(caller, PING) == b"+PONG\r\n"
        server.kill()
        assert is_over(caller)
    with dial(proxy) as caller:
        assert is_over(caller)
    server.restart()
    with dial(proxy) as caller:
        assert ask(caller, PING) == b"+PONG\r\n"


def test_tls_front(server: Server) -> None:
    """The front speaks TLS with a certificate that its own authority signed, for its names."""
    with TlsFront(server.url) as front:
        assert front.url == f"rediss://127.0.0.1:{front.port}"
        context = front.client_context()
        for name in ("127.0.0.1", "localhost"):
            with context.wrap_socket(dial(front, tcp=True), server_hostname=name) as caller:
                assert ask(caller, SET) == b"+OK\r\n"
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            context.wrap_socket(dial(front, tcp=True), server_hostname="elsewhere.test")
        strict = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
            strict.wrap_socket(dial(front, tcp=True), server_hostname="localhost")
    assert server.keys() == [b"k"]


def test_tls_front_with_client_certificates(server: Server) -> None:
    """Asked for, a client certificate is needed and `client_file` is a good one."""
    with TlsFront(server.url, client_certificates=True) as front:
        context = front.client_context()
        with context.wrap_socket(dial(front, tcp=True), server_hostname="localhost") as caller:
            # TLS 1.3: the client has finished its handshake before the server sees no certificate.
            assert is_over(caller)
        context.load_cert_chain(front.client_file)
        with context.wrap_socket(dial(front, tcp=True), server_hostname="localhost") as caller:
            assert ask(caller, PING) == b"+PONG\r\n"


def test_frames_are_separated() -> None:
    """Replies of RESP2 and RESP3 are cut at their ends; what is not complete stays."""
    frames = [
        b"+OK\r\n", b"-ERR no\r\n", b":1\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"$4\r\n\r\n\r\n\r\n",
        b"*-1\r\n", b"*0\r\n", b"*2\r\n*1\r\n:1\r\n$2\r\nab\r\n", b"_\r\n", b"#t\r\n",
        b",1.5\r\n", b"(123\r\n", b"=7\r\ntxt:abc\r\n", b"!5\r\nERR x\r\n", b"~1\r\n:1\r\n",
        b"%1\r\n+k\r\n:1\r\n", b">2\r\n+a\r\n_\r\n", b"|1\r\n+ttl\r\n:9\r\n",
    ]  # fmt: skip
    whole = b"".join(frames)
    assert take_frames(bytearray(whole)) == frames
    buffer, taken = bytearray(), list[bytes]()
    for byte in whole[:-1]:
        buffer.append(byte)
        taken += take_frames(buffer)
    assert taken == frames[:-1]
    assert bytes(buffer) == frames[-1][:-1]


@pytest.mark.parametrize("kind", ["silent", "deaf", "endless_bulk", "proxy", "tls"])
def test_nothing_is_left(kind: str, server: Server) -> None:
    """Callers are connected and bytes in flight: closing leaves no thread, descriptor or file."""
    gc.collect()
    before = Present.now()
    listeners: dict[str, AbstractContextManager[Listener]] = {
        "silent": Impostor(silent),
        "deaf": Impostor(deaf),
        "endless_bulk": Impostor(endless_bulk),
        "proxy": Proxy(server.url),
        "tls": TlsFront(server.url),
    }
    with listeners[kind] as listener:
        folder = listener._folder
        callers = [dial(listener, tcp=kind == "tls") for _ in range(5)]
        for caller in callers[1:]:
            caller.sendall(PING)
        if isinstance(listener, Proxy):
            listener.hold()
            server.stop()
    server.cont() if server.stopped else None
    for caller in callers:
        caller.close()
    listener.close()  # twice does no harm
    assert Present.now().beyond(before) == []
    assert not Path(folder).exists()


def read_frames(caller: socket.socket, count: int) -> list[bytes]:
    buffer, frames = bytearray(), list[bytes]()
    while len(frames) < count:
        buffer += caller.recv(1 << 20)
        frames += take_frames(buffer)
    return frames
