"""One Redlock in several event loops: rule 3 holds across them, and they may come and go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from quorlock._core.commands import Acquire
from quorlock._drivers.aio.loop_driver import LoopDriver
from quorlock.asyncio import Redlock
from tests.harness.support.impostors import Proxy
from tests.harness.support.stats import scripts_asked
from tests.harness.support.wait import until, until_async

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from quorlock._core.effects import SendBatch
    from quorlock.testing.servers import Server, Servers

T = TypeVar("T")


class Loop:
    """An event loop in a thread, which can be paused and resumed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_debug(True)  # it refuses calls from other threads
        self.thread = threading.Thread()
        self.go_on()

    def go_on(self) -> None:
        self.thread = threading.Thread(target=self.loop.run_forever, name="a loop of the test")
        self.thread.start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


class SlowPath(Proxy):
    """A proxy, of whose connections any one can be held."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.paths: list[asyncio.Event] = []

    async def _carry_requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter
    ) -> None:
        flows = asyncio.Event()
        flows.set()
        self.paths.append(flows)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await flows.wait()
                server.write(data)
            server.write_eof()

    def hold_path(self, path: asyncio.Event) -> None:
        self._call(self._set(path, flows=False))

    def resume_path(self, path: asyncio.Event) -> None:
        self._call(self._set(path, flows=True))

    async def _set(self, path: asyncio.Event, *, flows: bool) -> None:
        if flows:
            path.set()
        else:
            path.clear()


class Scene:
    """Two loops, three nodes; the first loop's connection to the last node can be held."""

    def __init__(self, nodes: Servers, proxy: SlowPath) -> None:
        self.first, self.second = Loop(), Loop()
        self.proxy = proxy
        self.slow: Server = nodes[2]
        self.redlock = Redlock([*nodes.urls[:2], proxy.url], ttl=20.0, node_timeout=0.15)
        self.first.run(self.connect())
        self.path = proxy.paths[-1]
        self.second.run(self.connect())

    async def connect(self) -> None:
        await self.redlock.lock("warm").locked()
        assert await until_async(self.is_up)

    def is_up(self) -> bool:
        loop = asyncio.get_running_loop()
        loop_driver = self.redlock._session.driver._loop_drivers[loop]
        return all(way.connection is not None for way in loop_driver.connectors)

    def hold(self) -> None:
        self.proxy.hold_path(self.path)

    def resume(self) -> None:
        self.proxy.resume_path(self.path)

    def pending_count(self) -> int:
        return len(self.redlock._session.driver.node_states.all[2].pending_releases)

    def settled(self) -> None:
        """Wait until the slow node has carried the pending release out."""
        assert until(lambda: not self.pending_count()), "the release stays pending"

    def close(self) -> None:
        for loop in (self.second, self.first):
            if not loop.thread.is_alive():
                loop.go_on()
            loop.run(self.redlock.close())
            loop.stop()
            loop.loop.close()


@pytest.fixture
def scene(nodes: Servers) -> Iterator[Scene]:
    with SlowPath(nodes.urls[2]) as proxy:
        made = Scene(nodes, proxy)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("how", ["release", "garbage"])
@pytest.mark.parametrize("first", ["runs", "is stopped"])
def test_a_release_in_another_loop_waits_for_its_acquire(
    scene: Scene, how: str, first: str
) -> None:
    """The node reads the SET after all else that it is sent, and keeps no key of it."""
    scene.hold()
    lease = scene.first.run(scene.redlock.lock("x").acquire())
    if first == "is stopped":
        scene.first.stop()
    if how == "release":
        assert scene.second.run(lease.release())
    del lease
    gc.collect()
    scene.second.run(scene.redlock.inspect("x"))  # behind all that was sent there by now
    if (how, first) != ("garbage", "runs"):  # a loop that runs releases garbage leases itself
        assert scene.pending_count() == 1
    scene.resume()
    scene.settled()
    if first == "runs":
        scene.first.run(scene.redlock.inspect("x"))
    assert scene.slow.execute("GET", "x") is None


def test_an_extension_in_another_loop_waits_for_its_acquire(scene: Scene) -> None:
    """The extension is won without that node, which is asked once it has answered."""
    scene.hold()
    lease = scene.first.run(scene.redlock.lock("x").acquire())
    sent = scripts_asked(scene.slow)
    scene.second.run(lease.extend())
    assert scripts_asked(scene.slow) == sent
    assert lease.held
    scene.resume()
    scene.first.run(scene.redlock.inspect("x"))
    assert scene.slow.execute("GET", "x") == lease.token.encode()
    scene.second.run(lease.extend(25.0))
    assert scene.second.run(lease.release())
    scene.second.run(scene.redlock.inspect("x"))  # behind the release, which may be in the proxy
    scene.settled()
    assert scene.slow.execute("GET", "x") is None


def test_a_pending_release_survives_the_connection(scene: Scene) -> None:
    """The connection that carries the acquire is lost; its bytes arrive all the same."""
    scene.hold()
    lease = scene.first.run(scene.redlock.lock("x").acquire())
    assert scene.second.run(lease.release())
    scene.first.run(_cut(scene.redlock))
    scene.slow.execute("CONFIG", "RESETSTAT")
    scene.resume()
    assert until(lambda: b"cmdstat_set:" in scene.slow.execute("INFO", "commandstats"))
    assert until(lambda: scene.slow.execute("GET", "x") is None), "the key stays"


async def _cut(redlock: Redlock) -> None:
    loop_driver = redlock._session.driver._loop_drivers[asyncio.get_running_loop()]
    link = loop_driver.connectors[2].connection
    assert link is not None
    link.abort()


def test_renewal_ends_from_another_loop(scene: Scene) -> None:
    """The first loop notifies its own task; nothing more is sent for the lease."""
    lease = scene.first.run(scene.redlock.lock("x", renew=True).acquire())
    assert scene.second.run(lease.release())
    loop = scene.first.loop
    assert until(lambda: not any("renewal" in it.get_name() for it in asyncio.all_tasks(loop)))


def test_a_loss_is_reported_in_its_own_loop(scene: Scene) -> None:
    """Released elsewhere it is no loss; the alarm's loop is called as asyncio wants it."""
    lease = scene.first.run(scene.redlock.lock("x").acquire())
    scene.first.run(_loss_timer(lease))
    assert scene.second.run(lease.release())
    assert not lease.lost.is_set()


async def _loss_timer(lease: Any) -> None:
    _ = lease.lost


# --- they come and go ------------------------------------------------------------------------


def test_nodes_may_be_looked_at_while_loops_come_and_go(nodes: Servers) -> None:
    """The status is read from another thread, at any instant."""
    redlock = Redlock(nodes.urls[:3], node_timeout=0.15)
    errors: list[Exception] = []
    over = threading.Event()

    async def once() -> None:
        await redlock.lock("x").locked()

    def loops() -> None:
        for _ in range(8):
            asyncio.run(once())

    def looks() -> None:
        while not over.is_set():
            try:
                assert len(redlock.nodes) == 3
            except Exception as error:  # noqa: BLE001 (raised below)
                errors.append(error)

    threads = [threading.Thread(target=work) for work in (loops, loops, looks, looks)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
    finally:
        over.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_loop_that_has_ended_is_forgotten(nodes: Servers) -> None:
    """A Redlock that lives through many loops keeps none of them."""
    redlock = Redlock(nodes.urls[:3], node_timeout=0.15)

    async def work() -> None:
        async with redlock.lock("x", renew=True):
            pass

    for _ in range(3):
        asyncio.run(work())
    driver = redlock._session.driver
    assert driver._loop_drivers == {}
    assert len(redlock._session.renewers[0]._tasks) <= 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["release", "by token"])
def test_a_key_that_is_restored_as_another_loop_releases(
    nodes: Servers, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acquire did not reach that node, so the release does not ask it."""
    loops = [Loop(), Loop()]
    redlock = Redlock(nodes.urls, ttl=8.0, restart_guard=None)
    restores, goes_on = threading.Event(), threading.Event()
    send_all = LoopDriver.send_all

    def send_late(self: LoopDriver, effect: SendBatch, task: Any) -> Any:
        if any(isinstance(send.command, Acquire) for send in effect.sends):
            restores.set()
            assert goes_on.wait(10)
        return send_all(self, effect, task)

    async def acquire() -> Any:
        return await redlock.lock("x", renew=True).acquire(timeout=5.0)

    monkeypatch.setattr(LoopDriver, "send_all", send_late)
    try:
        nodes[2].kill()
        lease = loops[0].run(acquire())
        nodes[2].restart()
        assert restores.wait(10)  # renewal has found the lease valid, and sends the key next
        work = lease.release() if how == "release" else redlock.release("x", lease.token)
        assert loops[1].run(work)
        goes_on.set()
        loops[0].run(redlock.inspect("x"))  # behind all that was sent there by now
        assert until(lambda: not any(node.execute("EXISTS", "x") for node in nodes))
    finally:
        goes_on.set()
        for loop in loops:
            loop.run(redlock.close())
            loop.stop()
            loop.loop.close()
