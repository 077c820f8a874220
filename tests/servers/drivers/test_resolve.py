"""Host names: a lookup that hangs is not felt, and the last addresses of a name are kept."""

from __future__ import annotations

import _thread
import asyncio
import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import Node, QuorumUnreachable, Tls
from quorlock._core.time import NS_PER_S
from quorlock._drivers import resolve
from quorlock._drivers.aio import connect as dial_async
from quorlock._drivers.clock import now
from tests.harness.support.impostors import Proxy, TlsFront
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import FACES, Face

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock.testing.servers import Servers

both_faces = pytest.mark.parametrize("face", FACES, ids=str)


class Dns:
    """A fake getaddrinfo for names below `.test`, which counts its calls."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}  # [] hangs; none at all is an error
        self.may_continue = threading.Event()
        self.asked: list[str] = []
        self._real = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(host, str) or not host.endswith(".test"):
            return self._real(host, port, *args, **kwargs)
        self.asked.append(host)
        found = self.names.get(host)
        if found == []:
            self.may_continue.wait(30)
        if not found:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [info for ip in found for info in self._real(ip, port, *args, **kwargs)]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    made = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    monkeypatch.setattr(resolve, "_known", {})
    yield made
    made.may_continue.set()
    until(lambda: not lookups(), 10)  # one that is just being started cannot be joined


def lookups() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("quorlock lookup")]


# --- a minority ------------------------------------------------------------------------------


async def _a_hung_minority(face: Face, nodes: Servers) -> None:
    loop = asyncio.get_running_loop()
    urls = [*nodes.urls[:3], "redis://d.test", "redis://d.test:6380"]
    wanted_again = now() + 3 * NS_PER_S // 5  # after two attempts to connect
    async with face.redlock(urls, connect_timeout=0.2) as redlock:
        while now() < wanted_again:
            async with redlock.lock("r", timeout=5.0):
                await asyncio.sleep(0.005)
        assert len(lookups()) <= 1, "one lookup for a name, however often it is wanted"
        assert getattr(loop, "_default_executor", None) is None, "the application's own threads"
        began = now()
    assert now() - began < 5 * NS_PER_S, "closing waits for no lookup"


@both_faces
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_hung_minority_is_not_felt(face: Face, nodes: Servers, dns: Dns, debug: bool) -> None:
    """Locks are had, the application's threads stay free, and closing is quick."""
    dns.names["d.test"] = []
    asyncio.run(_a_hung_minority(face, nodes), debug=debug)
    assert set(dns.asked) == {"d.test"}


PROGRAM = """
    import asyncio, quorlock, quorlock.asyncio, socket, time
    real = socket.getaddrinfo
    def hangs(host, *args, **kwargs):
        if host == "d.test":
            time.sleep(600)
        return real(host, *args, **kwargs)
    socket.getaddrinfo = hangs
    urls = ["memory://a", "memory://b", "redis://d.test"]
    {work}
    print("done")
"""
WORK = {
    "blocking": """
    redlock = quorlock.Redlock(urls)
    with redlock.lock("x"):
        pass""",
    "asyncio": """
    async def main():
        redlock = quorlock.asyncio.Redlock(urls)
        async with redlock.lock("x"):
            pass
    asyncio.run(main())""",
}


@pytest.mark.parametrize("face", list(WORK))
def test_the_interpreter_exits(face: str) -> None:
    """The interpreter exits with a hung lookup and without close()."""
    program = textwrap.dedent(PROGRAM.format(work=WORK[face]))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


# --- the last addresses ----------------------------------------------------------------------


@both_faces
@pytest.mark.parametrize("later", [[], None], ids=["hangs", "fails"])
def test_the_last_addresses_are_used(
    face: Face, nodes: Servers, dns: Dns, later: list[str] | None
) -> None:
    """A name that was looked up once stays good enough to connect again."""
    dns.names["a.test"] = ["127.0.0.1"]
    with Proxy(nodes.urls[0], tcp=True) as proxy:

        async def work() -> None:
            async with face.redlock([f"redis://a.test:{proxy.port}"]) as redlock:
                async with redlock.lock("x"):
                    pass
                if later is None:
                    del dns.names["a.test"]
                else:
                    dns.names["a.test"] = later
                asked = len(dns.asked)
                proxy.cut()
                async with redlock.lock("x", timeout=5.0):
                    pass
                assert len(dns.asked) > asked, "it is looked up at every connection"

        asyncio.run(work())


@both_faces
def test_an_address_that_refuses_leaves_the_next(face: Face, nodes: Servers, dns: Dns) -> None:
    """A name with several addresses: the first that accepts is taken."""
    dns.names["a.test"] = ["127.0.0.2", "127.0.0.1"]
    with Proxy(nodes.urls[0], tcp=True) as proxy:

        async def work() -> None:
            redlock = face.redlock([f"redis://a.test:{proxy.port}"])
            async with redlock, redlock.lock("x"):
                pass

        asyncio.run(work())


@both_faces
def test_an_address_that_is_silent_leaves_time_for_the_next(
    face: Face, nodes: Servers, dns: Dns
) -> None:
    """Each gets its share of connect_timeout."""
    dns.names["a.test"] = ["127.0.0.2", "127.0.0.1"]
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(nodes.urls[0], tcp=True))
        for taken in silent("127.0.0.2", proxy.port):
            stack.callback(taken.close)

        async def work() -> None:
            settings = {"connect_timeout": 0.4, "outage_timeout": 0.1}
            redlock = face.redlock([f"redis://a.test:{proxy.port}"], **settings)
            async with redlock, redlock.lock("x"):
                pass

        asyncio.run(work())


@both_faces
def test_the_first_address_says_why(face: Face, dns: Dns) -> None:
    """Resolvers put addresses that this machine cannot reach at the end: they are not the cause."""
    dns.names["a.test"] = ["127.0.0.1", "255.255.255.255"]

    async def work() -> None:
        async with face.redlock(["redis://a.test:1"], outage_timeout=0.0) as redlock:
            with pytest.raises(QuorumUnreachable, match=r"a\.test:1: connection refused"):
                await redlock.lock("x").acquire()

    asyncio.run(work())


def silent(host: str, port: int) -> list[socket.socket]:
    """A listener whose queue is full: Linux answers no further SYN."""
    listener = socket.socket()
    listener.bind((host, port))
    listener.listen(0)
    taken = [listener]
    for _ in range(3):
        caller = socket.socket()
        caller.setblocking(False)
        caller.connect_ex((host, port))
        taken.append(caller)
    return taken


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is of Linux alone")
@both_faces
def test_a_lost_network_is_not_waited_for_until_max_ttl(face: Face, nodes: Servers) -> None:
    """Bytes without acknowledgement end a connection: TCP repeats them at ever longer pauses."""
    with Proxy(nodes.urls[0], tcp=True) as proxy:

        async def work() -> set[int]:
            redlock = face.redlock([proxy.url], max_ttl=3600.0)
            async with redlock, redlock.lock("x"):
                return user_timeouts(proxy.port)

        assert asyncio.run(work()) == {10_000}


def user_timeouts(port: int) -> set[int]:
    """Return the TCP_USER_TIMEOUT, in ms, of our connections to this port."""
    found: set[int] = set()
    for path in Path("/proc/self/fd").iterdir():
        fd = int(path.name)
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as sock, suppress(OSError):
                if sock.family == socket.AF_INET and sock.getpeername()[1] == port:
                    found.add(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


@both_faces
def test_the_certificate_is_that_of_the_name(face: Face, nodes: Servers, dns: Dns) -> None:
    """The certificate is checked against the name, not against its address."""
    dns.names["a.test"] = ["127.0.0.1"]
    with TlsFront(nodes.urls[0], names=("a.test",)) as front:

        async def work() -> None:
            node = Node("a.test", front.port, tls=Tls(ca_certs=str(front.ca_file)))
            async with face.redlock([node]) as redlock, redlock.lock("x"):
                pass

        asyncio.run(work())


# --- one lookup ------------------------------------------------------------------------------


def test_an_ip_literal_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor any lookup: a resolver that hangs hangs none of them."""
    monkeypatch.setattr(resolve, "lookup", None)
    give_up = now() + NS_PER_S
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        assert resolve.addresses(host, 1, give_up)[0][::4] == (family, (host, 1))
        (only,) = asyncio.run(dial_async._addresses(host, 1, give_up))
        assert only[::4] == (family, (host, 1))


def test_a_cancelled_wait_leaves_nothing_behind(dns: Dns) -> None:
    """A cancelled waiter of a hung lookup is not notified any more."""
    dns.names["a.test"] = []

    async def work() -> None:
        task = asyncio.create_task(dial_async._addresses("a.test", 1, now() + 60 * NS_PER_S))
        assert await until_async(lambda: bool(resolve.lookup("a.test").listeners))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(work())
    assert resolve.lookup("a.test").listeners == set()


def test_a_hung_lookup_is_waited_for_once(dns: Dns) -> None:
    """The second call for a known name does not wait again for what hangs already."""
    dns.names["a.test"] = ["127.0.0.1"]
    found = resolve.addresses("a.test", 1, now() + NS_PER_S)
    dns.names["a.test"] = []
    began = now()
    assert resolve.addresses("a.test", 1, now() + NS_PER_S // 10) == found
    first = now() - began
    assert first >= NS_PER_S // 40, "a lookup has its time first"
    asyncio.run(dial_async._addresses("a.test", 2, now() + NS_PER_S // 10))
    assert len(dns.asked) == 2, "one for both"
    dns.may_continue.set()


def test_no_thread_to_be_had(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is not found this time, in words; the next time it is looked up."""
    dns.names["a.test"] = ["127.0.0.1"]
    with monkeypatch.context() as limited:
        limited.setattr(_thread, "start_new_thread", no_thread)
        with pytest.raises(OSError, match="can't start new thread"):
            resolve.addresses("a.test", 1, now() + NS_PER_S)
    assert resolve.addresses("a.test", 1, now() + NS_PER_S)


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupted_start(dns: Dns, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A Ctrl-C while the thread starts leaves no lookup that never ends."""
    dns.names["a.test"] = ["127.0.0.1"]
    start = _thread.start_new_thread

    def interrupted(*given: Any) -> None:
        if where == "after":
            start(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as limited:
        limited.setattr(_thread, "start_new_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resolve.addresses("a.test", 1, now() + NS_PER_S)
    assert resolve.addresses("a.test", 1, now() + NS_PER_S)


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_forked_child_looks_up_again(dns: Dns) -> None:
    """The parent's lookup does not continue in the child."""
    dns.names["a.test"] = []
    resolve.lookup("a.test")
    assert resolve._under_way
    pid = os.fork()
    if pid == 0:
        os._exit(1 if resolve._under_way else 0)
    assert os.waitpid(pid, 0)[1] == 0


def test_names_are_kept_up_to_a_limit(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most recently resolved names are kept."""
    monkeypatch.setattr(resolve, "NAMES_MAX", 2)
    for host in ("a.test", "b.test", "a.test", "c.test"):
        dns.names[host] = ["127.0.0.1"]
        resolve.addresses(host, 1, now() + NS_PER_S)
    assert list(resolve._known) == ["a.test", "c.test"]
