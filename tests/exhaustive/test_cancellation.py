"""An asyncio call is cancelled at every await point: it raises CancelledError and leaves no key.

The loop counts the callbacks that it runs during the call, and the call's task is cancelled just
before the k-th of them, for k = 1, 2, 3, … until the call completes. A loop does nothing between
two callbacks, so these are all points, including the one between the arrival of the result and the
wake-up of the task. If there are many, the suite takes a sample from a random start;
QUORLOCK_THOROUGH=1 takes them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import AcquireTimeout, QuorlockError
from quorlock._core.owner import is_done, owner_in
from quorlock._drivers.aio.admission import Admission
from quorlock.asyncio import Lease, Redlock
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import keys_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from quorlock.testing.servers import Server, Servers

pytestmark = pytest.mark.usefixtures("checked_transitions")

THOROUGH = os.environ.get("QUORLOCK_THOROUGH") == "1"
POINTS_MAX = 5_000  # no call takes more
CLEAN_WITHIN = 1.0  # seconds until a key without a holder must be gone
RESOURCE = "cancelled"


class CountingLoop(asyncio.SelectorEventLoop):
    """Calls a hook before every callback that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.before_each: Callable[[], None] | None = None
        self.noise: list[str] = []
        self.set_exception_handler(lambda _, context: self.noise.append(str(context)))


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every callback of a loop is run by this method of its handle."""
    run = asyncio.Handle._run

    def counted(handle: asyncio.Handle) -> None:
        loop = handle._loop  # type: ignore[attr-defined]
        if isinstance(loop, CountingLoop) and loop.before_each is not None:
            loop.before_each()
        run(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", counted)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run it in an instrumented loop; afterwards nothing is pending, and nothing was logged."""
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        runner.run(main)
        gc.collect()
        left = [task.get_name() for task in asyncio.all_tasks(loop)]
        assert not left, left
    assert not loop.noise, loop.noise


async def cancelled_at(k: int, call: Coroutine[Any, Any, None]) -> tuple[str, bool]:
    """Cancel the call before its k-th callback; how it ended, and whether it came so far."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    seen, reached = 0, False

    def hook() -> None:
        nonlocal seen, reached
        seen += 1
        if seen == k and not task.done():
            reached = task.cancel()

    task = loop.create_task(call, name="the call")
    loop.before_each = hook
    try:
        await asyncio.wait([task])
    finally:
        loop.before_each = None
    if task.cancelled():
        return "cancelled", reached
    error = task.exception()
    if error is not None and not isinstance(error, QuorlockError):
        raise error
    return type(error).__name__ if error else "completed", reached


# --- what is cancelled -----------------------------------------------------------------------


@dataclass
class Scene:
    """A Redlock, its nodes, and what was found out about them."""

    live: list[Server]
    make: Callable[[], Redlock]
    held_by_another: bool = False
    redlock: Redlock = field(init=False)
    other: Redlock | None = None  # a client with its separate connections
    faults: list[str] = field(default_factory=list)

    async def begin(self, *, warm: bool) -> None:
        self.redlock = self.make()
        if warm:
            await (await self.redlock.lock("warm", timeout=2.0).acquire()).release()

    def values(self) -> list[bytes | None]:
        """Return the key on every node; a mark of work that is done may stay."""
        values = [server.execute("GET", RESOURCE) for server in self.live]
        return [None if is_done(owner_in(value or b"")) else value for value in values]

    async def clean(self) -> bool:
        """Check that no live node has a key, within a bounded time."""
        allowed = b"another" if self.held_by_another else None
        return await until_async(
            lambda: set(self.values()) <= {allowed} and not self.others(), CLEAN_WITHIN
        )

    def others(self) -> list[bytes]:
        """Return the keys of permits, and of other resources of a call."""
        return [key for node in self.live for key in node.execute("KEYS", RESOURCE + "?*")]

    async def without_leases(self) -> bool:
        """No lease is noted any more, within a bounded time: a loop drops callbacks later."""

        def is_so() -> bool:
            gc.collect()
            return not self.redlock._session.live

        return await until_async(is_so, CLEAN_WITHIN)

    def scrub(self) -> None:
        for server in self.live:
            if self.held_by_another:
                server.execute("SET", RESOURCE, "another")
            else:
                server.execute("DEL", RESOURCE)
            for key in server.execute("KEYS", RESOURCE + "?*"):
                server.execute("DEL", key)

    async def check(self, k: int, outcome: str, *, reached: bool, usable: bool) -> None:
        found = []
        if reached and outcome != "cancelled":
            found.append(f"the cancellation was swallowed: {outcome}")
        if self.redlock._session.live:
            gc.collect()  # a lease in a cycle with the exception that reports it
        if not await self.clean():
            found.append(f"keys left: {self.values()} {self.others()}")
            self.scrub()
        if not await self.without_leases():
            found.append("an account of a lease is left")
            self.redlock._session.live.clear()
        if usable:
            try:
                lease = await self.redlock.lock("afterwards", timeout=2.0).acquire()
                if not await lease.release():
                    found.append("a later release says False")
            except QuorlockError as error:
                found.append(f"a later acquire fails: {error}")
        self.faults += [f"{k}: {what}" for what in found]


async def acquire(scene: Scene) -> None:
    await scene.redlock.lock(RESOURCE, timeout=0.12).acquire()


async def acquire_and_release(scene: Scene) -> None:
    lease = await scene.redlock.lock(RESOURCE, timeout=0.12).acquire()
    await lease.release()


async def try_acquire(scene: Scene) -> None:
    await scene.redlock.lock(RESOURCE).try_acquire()


async def block(scene: Scene) -> None:
    async with scene.redlock.lock(RESOURCE, timeout=0.12):
        await asyncio.sleep(0)


async def nested(scene: Scene) -> None:
    """A re-entrant lock, in blocks and by calls, extended inside; no level is left."""
    lock = scene.redlock.rlock(RESOURCE, timeout=0.12)
    longer = scene.redlock.rlock(RESOURCE, ttl=30.0)
    try:
        async with lock, lock:
            await asyncio.sleep(0)
            async with longer:
                pass
    finally:
        assert not lock._count()


async def nested_inside(scene: Scene) -> None:
    """The inner block is cancelled: the outer one still holds the lock, once."""
    lock = scene.redlock.rlock(RESOURCE, timeout=0.12)
    async with lock as lease:
        try:
            async with scene.redlock.rlock(RESOURCE, ttl=30.0):
                await asyncio.sleep(0)
        finally:
            assert lock._count() == 1
            assert lease.held


async def keep(scene: Scene) -> None:
    """A node has the mark or nothing, however far it came."""
    for server in scene.live:
        server.execute("DEL", RESOURCE)  # the mark of the time before
    lease = await scene.redlock.lock(RESOURCE, timeout=0.12).acquire()
    await lease.keep(60.0)


async def permit(scene: Scene) -> None:
    async with scene.redlock.semaphore(RESOURCE, 3, timeout=0.12):
        await asyncio.sleep(0)


async def last_permit(scene: Scene) -> None:
    """All others are held, so it asks again, and for every permit."""
    semaphore = scene.redlock.semaphore(RESOURCE, 2, timeout=0.12)
    first = await semaphore.acquire()
    async with first:
        await (await semaphore.acquire()).release()
        with contextlib.suppress(AcquireTimeout):
            async with semaphore:
                await semaphore.acquire(timeout=0.03)


async def several(scene: Scene) -> None:
    async with scene.redlock.lock(RESOURCE, RESOURCE + "2", RESOURCE + "3", timeout=0.12):
        await asyncio.sleep(0)


async def once(scene: Scene) -> None:
    """Done or not: a node has the mark or nothing."""
    scene.scrub()  # the mark of the time before

    async def work(_: Lease) -> None:
        await asyncio.sleep(0)

    await scene.redlock.once(RESOURCE, every=60.0).run(work)


async def failing_once(scene: Scene) -> None:
    scene.scrub()

    async def work(_: Lease) -> None:
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        await scene.redlock.once(RESOURCE, every=60.0).run(work)


async def campaign(scene: Scene) -> None:
    """Elected, and out of office."""
    async with scene.redlock.election(RESOURCE).campaign(timeout=0.5):
        await asyncio.sleep(0)


async def flagged_block(scene: Scene) -> None:
    async with scene.redlock.lock(RESOURCE, timeout=0.12, on_lost="flag"):
        pass


async def expiring_block(scene: Scene) -> None:
    """The lease expires while the body waits: its cancellation must not hide another's."""
    async with scene.redlock.lock(RESOURCE, timeout=0.12, ttl=0.2):
        await asyncio.sleep(5)


async def wait_in_line(scene: Scene) -> None:
    """Another task of the same Redlock holds the lock, and hands it on."""
    await wait_for_release_by(scene.redlock, scene)


async def wait_in_queues(scene: Scene) -> None:
    """A client with other connections holds the lock, and the nodes pass it on."""
    assert scene.other is not None
    await wait_for_release_by(scene.other, scene)


async def wait_for_release_by(holder: Redlock, scene: Scene) -> None:
    """Acquire while another caller holds the lock for a moment."""
    first = await holder.lock(RESOURCE, timeout=2.0).acquire()

    async def hold() -> None:
        await asyncio.sleep(0.004)
        await first.release()

    holding = asyncio.create_task(hold())
    try:
        second = await scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
        await second.release()
    finally:
        await holding


# All await points of `acquire` are in `block` and `acquire_and_release`, too. test_warm cancels it
# without them.
WANTING = [acquire, try_acquire, block] if THOROUGH else [try_acquire, block]


async def every_point(
    act: Callable[[Scene], Coroutine[Any, Any, None]],
    scene: Scene,
    *,
    stride: int = 1,
    cold: bool = False,
    usable: bool = True,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Cancel at every (some-th) point until the call completes; fail with all that was found."""
    stride = 1 if THOROUGH else stride
    await scene.begin(warm=not cold)
    tried: Counter[str] = Counter()
    completed = 0
    for k in range(random.randint(1, stride), POINTS_MAX, stride):
        before()
        outcome, reached = await cancelled_at(k, act(scene))
        after()
        await scene.check(k, outcome, reached=reached, usable=usable)
        tried[outcome] += 1
        completed += not reached
        if completed == 2:
            break
        if cold:
            await scene.redlock.close()
            await scene.begin(warm=False)
    await scene.redlock.close()
    print(f"{act.__name__} every {stride}: {dict(tried)}")
    assert not scene.faults, "\n" + "\n".join(scene.faults)
    assert tried["cancelled"] > 0


# A healthy node may take this long to answer: releases that are not answered in time say False.
SETTINGS: dict[str, Any] = {"retry_delay": (0.01, 0.03), "node_timeout": 0.25}


def maker(urls: Iterable[str], **settings: Any) -> Callable[[], Redlock]:
    kept = list(urls)
    return lambda: Redlock(kept, **SETTINGS | settings)


@pytest.mark.parametrize(
    "act",
    [
        *(acquire, try_acquire, block, acquire_and_release, flagged_block, expiring_block),
        *(nested, nested_inside, keep),
        *(permit, last_permit, several, once, failing_once, campaign),
    ],
)
def test_warm(nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    # Well below its ttl.
    short = {"node_timeout": 0.05} if act is expiring_block else {}
    run(every_point(act, Scene(list(nodes), maker(nodes.urls, **short))))


@pytest.mark.parametrize("act", [wait_in_line, wait_in_queues])
def test_waiting(nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Neither a key nor a place in a queue is left, and the next one gets the lock."""

    async def main() -> None:
        scene = Scene(list(nodes), maker(nodes.urls))
        async with maker(nodes.urls)() as scene.other:
            await every_point(act, scene)

    run(main())
    assert not [key for node in nodes for key in node.execute("KEYS", "quorlock:queue:*")]


@pytest.mark.parametrize("act", [*WANTING, acquire_and_release])
def test_cold(nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """The first call of a Redlock is cancelled while it connects."""
    run(every_point(act, Scene(list(nodes), maker(nodes.urls)), stride=11, cold=True))


@pytest.mark.parametrize("act", WANTING)
def test_contended(nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Another client holds the lock throughout: several attempts and their releases."""
    scene = Scene(list(nodes), maker(nodes.urls), held_by_another=True)
    scene.scrub()
    run(every_point(act, scene, stride=7))


@pytest.mark.parametrize("act", [*WANTING, acquire_and_release, wait_in_line])
@pytest.mark.parametrize("state", ["hung", "hung and cold"])
def test_one_node_hung(
    nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]], state: str
) -> None:
    """Stopped before the call, continued after it: nothing is left on that node either."""
    cold = state == "hung and cold"
    run(
        every_point(
            act,
            Scene(list(nodes), maker(nodes.urls)),
            stride=13 if cold else 3,
            cold=cold,
            before=nodes[4].stop,
            after=nodes[4].cont,
        )
    )


@pytest.mark.parametrize("act", WANTING)
def test_quorum_hung(nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    def stop() -> None:
        for server in nodes[2:]:
            server.stop()

    def cont() -> None:
        for server in nodes[2:]:
            server.cont()

    scene = Scene(list(nodes), maker(nodes.urls, node_timeout=0.1, outage_timeout=0.1))
    run(every_point(act, scene, stride=3, before=stop, after=cont))


@pytest.mark.parametrize("act", WANTING)
@pytest.mark.parametrize("state", ["warm", "cold"])
def test_quorum_dead(
    nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]], state: str
) -> None:
    """Three nodes refuse connections; the other two are left clean."""
    make = maker(nodes.urls, node_timeout=0.02, outage_timeout=0.1)

    async def main() -> None:
        scene = Scene(nodes[:2], make)
        if state == "warm":  # connections that then break
            await scene.begin(warm=True)
            await scene.redlock.close()
        for server in nodes[2:]:
            server.kill()
        await every_point(act, scene, stride=5, cold=True, usable=False)

    run(main())


@pytest.mark.parametrize("act", [*WANTING, acquire_and_release, wait_in_line])
def test_slow_replies(nodes: Servers, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Every node's answers come at another time: the cancellation falls between them."""

    async def main() -> None:
        with ExitStack() as stack:
            proxies = [stack.enter_context(Proxy(url)) for url in nodes.urls]
            scene = Scene(list(nodes), maker(proxy.url for proxy in proxies))

            def spread() -> None:
                for proxy in proxies:
                    proxy.delay = random.uniform(0.0, 0.012)

            await every_point(act, scene, before=spread)

    run(main())


# --- extend, release, adopt, close -----------------------------------------------------------


async def verb_at_every_point(
    scene: Scene,
    verb: Callable[[Redlock, Lease], Awaitable[object]],
    *,
    held_after: bool | None,
    stride: int = 1,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Cancel it at every point; a lease that it did not end is held, and can be released.

    held_after: whether it is held; None if that depends.
    """
    await scene.begin(warm=True)
    tried: Counter[str] = Counter()
    completed = 0
    for k in range(1, POINTS_MAX, 1 if THOROUGH else stride):
        lease = await scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
        before()

        began: list[bool] = []

        async def call(held: Lease = lease, began: list[bool] = began) -> None:
            began.append(True)
            await verb(scene.redlock, held)

        outcome, reached = await cancelled_at(k, call())
        after()
        # A call that was cancelled before its first step has done nothing.
        if held_after is not None and lease.held != held_after and began:
            scene.faults.append(f"{k}: the lease is {'held' if lease.held else 'over'}")
        if held_after is not False and lease.held and not await lease.release() and held_after:
            scene.faults.append(f"{k}: the lease was lost")
        del lease, call
        await scene.check(k, outcome, reached=reached, usable=True)
        tried[outcome] += 1
        completed += not reached
        if completed == 2:
            break
    await scene.redlock.close()
    print(f"{verb.__name__}: {dict(tried)}")
    assert not scene.faults, "\n" + "\n".join(scene.faults)
    assert tried["cancelled"] > 0


async def extend(_: Redlock, lease: Lease) -> None:
    await lease.extend()


async def extend_by_token(redlock: Redlock, lease: Lease) -> None:
    assert await redlock.extend(RESOURCE, lease.token)


async def release(_: Redlock, lease: Lease) -> None:
    await lease.release()


@pytest.mark.parametrize("state", ["healthy", "slow", "one hung", "quorum hung"])
@pytest.mark.parametrize("verb", [extend, extend_by_token, release])
def test_verbs(
    nodes: Servers, verb: Callable[[Redlock, Lease], Coroutine[Any, Any, None]], state: str
) -> None:
    hung = {"one hung": nodes[4:], "quorum hung": nodes[2:]}.get(state, [])

    async def main() -> None:
        with ExitStack() as stack:
            urls = nodes.urls
            proxies: list[Proxy] = []
            if state == "slow":
                proxies = [stack.enter_context(Proxy(url)) for url in urls]
                urls = [proxy.url for proxy in proxies]

            def before() -> None:
                for server in hung:
                    server.stop()
                for proxy in proxies:
                    proxy.delay = random.uniform(0.0, 0.012)

            def after() -> None:
                for server in hung:
                    server.cont()

            # An extension tries again while validity remains: short here, where it cannot win.
            ttl = 0.5 if state == "quorum hung" and verb is extend else 10.0
            # Waited for only if no node answers.
            node_timeout = 0.05 if state == "quorum hung" else 0.25
            scene = Scene(list(nodes), maker(urls, node_timeout=node_timeout, ttl=ttl))
            held_after: bool | None = verb is not release
            if state == "quorum hung" and verb is extend:
                held_after = None
            stride = 7 if held_after is None else 1
            await verb_at_every_point(
                scene, verb, held_after=held_after, stride=stride, before=before, after=after
            )

    run(main())


def test_lost_extend(nodes: Servers) -> None:
    """A quorum has another's key: LeaseLost, or the cancellation; the rest is released."""

    async def main() -> None:
        scene = Scene(nodes[3:], maker(nodes.urls))

        def steal() -> None:
            for server in nodes[:3]:
                server.execute("SET", RESOURCE, "thief")

        def give_up() -> None:
            assert [s.execute("GETDEL", RESOURCE) for s in nodes[:3]] == [b"thief"] * 3

        await verb_at_every_point(scene, extend, held_after=None, before=steal, after=give_up)

    run(main())


def test_adopt(nodes: Servers) -> None:
    """A ticket whose adoption was cancelled is as good as before."""

    async def main() -> None:
        scene = Scene(list(nodes), maker(nodes.urls))
        await scene.begin(warm=True)
        cancelled = completed = 0
        for k in range(1, POINTS_MAX):
            ticket = await (await scene.redlock.lock(RESOURCE, timeout=1).acquire()).hand_over()
            box: list[Lease] = []

            async def call() -> None:
                box.append(await scene.redlock.adopt(ticket))  # noqa: B023

            outcome, reached = await cancelled_at(k, call())
            lease = box.pop() if box else await scene.redlock.adopt(ticket)
            if not (lease.held and await lease.release()):
                scene.faults.append(f"{k}: not adopted")
            await scene.check(k, outcome, reached=reached, usable=True)
            cancelled += reached
            completed += not reached
            if completed == 2:
                break
        await scene.redlock.close()
        print(f"adopt: {cancelled} points")
        assert not scene.faults, "\n" + "\n".join(scene.faults)
        assert cancelled > 0

    run(main())


def test_close(nodes: Servers) -> None:
    """A cancelled close of a Redlock can be repeated; what was held is gone then."""

    async def main() -> None:
        scene = Scene(list(nodes), maker(nodes.urls))
        cancelled = 0
        for k in range(1, POINTS_MAX):
            await scene.begin(warm=True)
            lease = await scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
            outcome, reached = await cancelled_at(k, scene.redlock.close())
            await scene.redlock.close()
            assert not lease.held
            await scene.check(k, outcome, reached=reached, usable=False)
            cancelled += reached
            if not reached:
                break
        print(f"close: {cancelled} points")
        assert not scene.faults, "\n" + "\n".join(scene.faults)
        assert cancelled > 0

    run(main())


# --- the standard library's own ways ---------------------------------------------------------


@pytest.mark.parametrize("way", ["wait_for", "timeout"])
def test_timeouts_of_asyncio(nodes: Servers, way: str) -> None:
    """Cancelled at any microsecond: without a lease in hand, nothing is left."""

    async def attempt(redlock: Redlock, limit: float) -> Lease:
        if way == "wait_for":
            return await asyncio.wait_for(redlock.lock(RESOURCE).acquire(), limit)
        async with asyncio.timeout(limit):
            return await redlock.lock(RESOURCE).acquire()

    async def busy() -> None:
        while True:
            until = time.perf_counter() + 1e-3
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    async def main() -> None:
        scene = Scene(list(nodes), maker(nodes.urls))
        await scene.begin(warm=True)
        tried: Counter[str] = Counter()
        hog = asyncio.create_task(busy())  # else a quick machine has always won by then
        for number in range(2_000 if THOROUGH else 200):
            try:
                lease = await attempt(scene.redlock, random.uniform(1e-6, 1.5e-3))
            except TimeoutError:
                tried["timed out"] += 1
            else:
                tried["won"] += 1
                assert await lease.release()
            await scene.check(number, "", reached=False, usable=False)
        hog.cancel()
        await scene.redlock.close()
        print(dict(tried))
        assert not scene.faults, scene.faults
        assert len(tried) == 2, tried

    run(main())


def test_wait_for_cancelled_from_outside(nodes: Servers) -> None:
    """`asyncio.wait_for` of 3.11 may swallow a cancellation: it gives out the lease then."""

    async def main() -> None:
        scene = Scene(list(nodes), maker(nodes.urls))
        await scene.begin(warm=True)
        tried: Counter[str] = Counter()
        completed = 0
        for k in range(1, POINTS_MAX):
            box: list[Lease] = []

            async def call() -> None:
                box.append(await asyncio.wait_for(scene.redlock.lock(RESOURCE).acquire(), 5))  # noqa: B023

            outcome, reached = await cancelled_at(k, call())
            if box:
                assert box[0].held
                assert await box.pop().release()
            allowed = reached and outcome == "completed" and sys.version_info < (3, 12)
            await scene.check(k, outcome, reached=reached and not allowed, usable=True)
            tried[outcome] += 1
            completed += not reached
            if completed == 2:
                break
        await scene.redlock.close()
        print(dict(tried))
        assert not scene.faults, scene.faults

    run(main())


def test_task_group_that_fails(nodes: Servers) -> None:
    """Ten acquires and one that raises in their middle: all ten leave nothing."""

    async def fail(after: float) -> None:
        await asyncio.sleep(after)
        raise ZeroDivisionError

    async def hold(redlock: Redlock, number: int) -> None:
        async with redlock.lock(f"{RESOURCE}-{number % 3}"):
            await asyncio.sleep(0.001)

    async def group_of(redlock: Redlock) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(hold(redlock, number))
            group.create_task(fail(random.uniform(0.0, 0.01)))

    async def main() -> None:
        redlock = Redlock(nodes.urls, retry_delay=(0.001, 0.003))
        for _ in range(200 if THOROUGH else 30):
            with pytest.raises(ExceptionGroup) as caught:
                await group_of(redlock)
            assert len(caught.value.exceptions) == 1
            await gone(nodes)
        await redlock.close()

    run(main())


async def gone(nodes: Iterable[Server]) -> None:
    clean = await until_async(lambda: not keys_on(nodes), CLEAN_WITHIN)
    assert clean, keys_on(nodes)


def test_a_hundred_at_once(nodes: Servers) -> None:
    """All cancelled in one tick, at a random moment; half of them want the same resource."""

    async def main() -> None:
        redlock = Redlock(nodes.urls, retry_delay=(0.001, 0.003))
        for number in range(100 if THOROUGH else 20):
            cold = number % 5 == 0
            if cold:
                await redlock.close()
                redlock = Redlock(nodes.urls, retry_delay=(0.001, 0.003))
            tasks = [
                asyncio.create_task(redlock.lock(f"{RESOURCE}-{n % 50}").acquire())
                for n in range(100)
            ]
            await asyncio.sleep(random.uniform(0.0, 0.02))
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(o, (Lease, asyncio.CancelledError)) for o in outcomes), outcomes
            won = [outcome.resource for outcome in outcomes if isinstance(outcome, Lease)]
            assert len(set(won)) == len(won)
            del outcomes, tasks, task
            await gone(nodes)
            assert not redlock._session.live
        await redlock.close()

    run(main())


def test_cancelled_twice(nodes: Servers) -> None:
    """The second cancellation, in the tick of the first or the next, changes nothing."""

    async def main() -> None:
        scene = Scene(list(nodes), maker(nodes.urls))
        await scene.begin(warm=True)
        for k in range(1, POINTS_MAX):
            task = asyncio.create_task(acquire_and_release(scene))
            for _ in range(k):
                await asyncio.sleep(0)
            reached = task.cancel()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await scene.check(k, "cancelled", reached=reached, usable=True)
            if not reached:
                break
        await scene.redlock.close()
        assert not scene.faults, scene.faults

    run(main())


def test_main_task_cancelled_with_everything_under_way(nodes: Servers) -> None:
    """`asyncio.run` ends by cancelling all tasks: those that acquire, and our own."""

    async def main(redlock: Redlock, after: float) -> None:
        async with AsyncExitStack() as stack:
            for number in range(3):
                await stack.enter_async_context(redlock.lock(f"{RESOURCE}-block-{number}"))
            kept = [await redlock.lock(f"{RESOURCE}-kept-{n}").acquire() for n in range(3)]
            tasks = [
                asyncio.create_task(redlock.lock(f"{RESOURCE}-{n % 5}").acquire())
                for n in range(20)
            ]
            await asyncio.sleep(after)
            raise ZeroDivisionError(len(kept), len(tasks))

    for _ in range(100 if THOROUGH else 15):
        redlock = Redlock(nodes.urls, retry_delay=(0.001, 0.003))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(main(redlock, random.uniform(0.0, 0.01)))
        assert [server.keys() for server in nodes] == [[]] * 5


class Interrupt(Exception):
    """An exception that a signal handler raises anywhere."""


def connections(server: Server) -> set[bytes]:
    """The ids of our connections to it."""
    clients: bytes = server.execute("CLIENT", "LIST")
    return {line.split()[0] for line in clients.splitlines() if b"name=quorlock" in line}


def test_an_interrupt_that_cuts_our_own_code(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt hits the line that takes a place: the place is free again, and no connection in
    an unknown state is used again.
    """
    has_place = Admission.try_enter

    def cut(admission: Admission) -> bool:
        monkeypatch.setattr(Admission, "try_enter", has_place)
        has_place(admission)
        raise Interrupt

    async def main() -> None:
        async with Redlock(nodes.urls) as redlock:
            await (await redlock.lock(RESOURCE).acquire()).release()
            before = connections(nodes[0])
            monkeypatch.setattr(Admission, "try_enter", cut)
            with pytest.raises(Interrupt):
                await redlock.lock(RESOURCE).acquire()
            lease = await redlock.lock(RESOURCE).acquire(timeout=5.0)
            # It may come a moment later than a quorum.
            assert await until_async(lambda: connections(nodes[0]) - before, 10)
            assert before
            assert not before & connections(nodes[0])
            assert await lease.release()

    monkeypatch.setattr("quorlock._drivers.aio.admission.ACQUIRING_MAX", 1)
    asyncio.run(main())
