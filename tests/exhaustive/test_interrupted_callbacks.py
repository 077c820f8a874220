"""A signal handler raises as a callback of the event loop begins; asyncio logs it and continues.

Python looks for signals when a function begins, before its first `try`. Each callback that the
library registers is interrupted there, in turn. No call may hang, and everything is as before
afterwards.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import operator
import signal
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from quorlock import QuorlockError
from quorlock._drivers.aio import admission
from quorlock.asyncio import Lease, Lock, Redlock
from quorlock.testing.memory import MemoryNodes
from tests.exhaustive.test_interrupts import THOROUGH
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

Act: TypeAlias = "Callable[[Redlock, MemoryNodes], Coroutine[Any, Any, None]]"
SIGNAL = signal.SIGUSR1
CALL: Callable[[Callable[[], object]], object] = operator.call
SETTINGS: dict[str, Any] = {"node_timeout": 0.05, "restart_guard": None}
PER_PLACE = 30 if THOROUGH else 3  # callbacks of each place that are interrupted
# The methods of a loop that register a callback, and its index in their arguments.
ARGUMENTS = {"call_soon": 0, "call_later": 1, "call_soon_threadsafe": 0}


class SoftLimit(Exception):
    """The exception of the signal handler."""


class At:
    """Interrupts one callback that the library registers in the running loop.

    places: How many callbacks of each place in the library were interrupted in earlier runs.
    """

    def __init__(self, places: Counter[str]) -> None:
        self.where = ""  # the place of the chosen callback
        self.ran = False  # it was not cancelled
        self._places = places
        self._seen: Counter[str] = Counter()
        self._loop: Any = asyncio.get_running_loop()

    def __enter__(self) -> At:
        for name, index in ARGUMENTS.items():
            setattr(self._loop, name, partial(self._register, getattr(self._loop, name), index))
        return self

    def __exit__(self, *_: object) -> None:
        for name in ARGUMENTS:
            delattr(self._loop, name)

    def _register(self, register: Callable[..., Any], index: int, *args: Any, **kw: Any) -> Any:
        frame = sys._getframe(1)
        place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        if frame.f_globals["__name__"].startswith("quorlock.") and not self.where:
            self._seen[place] += 1
            if self._places[place] < min(self._seen[place], PER_PLACE):
                self._places[place] += 1
                self.where = place
                return register(*args[:index], self._after_signal(*args[index:]), **kw)
        return register(*args, **kw)

    def _after_signal(self, call: Callable[..., object], *args: Any) -> Callable[[], object]:
        """Return the callback behind a signal, with nothing that looks for signals between them."""
        steps: tuple[Callable[[], object], ...] = (
            partial(setattr, self, "ran", True),
            partial(_thread.interrupt_main, SIGNAL),
            partial(call, *args),
        )
        return partial(list, map(CALL, steps))


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def raises(*_: object) -> None:
        raise SoftLimit

    before = signal.signal(SIGNAL, raises)
    yield
    signal.signal(SIGNAL, before)


# --- what is interrupted ---------------------------------------------------------------------


async def cycle(redlock: Redlock, name: str, seconds: float = 1.0) -> None:
    """Acquire and release, or get an error, in time."""
    with contextlib.suppress(SoftLimit, QuorlockError):
        async with asyncio.timeout(seconds + 1.0), redlock.lock(name, timeout=seconds):
            await asyncio.sleep(0)


async def acquired(lock: Lock) -> Lease:
    """Acquire, again if it is interrupted."""
    try:
        return await lock.acquire()
    except SoftLimit:
        return await lock.acquire()


async def released(lease: Lease) -> None:
    with contextlib.suppress(SoftLimit):
        await lease.release()


async def cycles(redlock: Redlock, nodes: MemoryNodes) -> None:
    """More than there are slots for."""
    del nodes
    await asyncio.gather(*[cycle(redlock, f"r{number}") for number in range(12)])


async def in_line(redlock: Redlock, nodes: MemoryNodes) -> None:
    del nodes
    await asyncio.gather(*[cycle(redlock, "one") for _ in range(3)])


async def hung(redlock: Redlock, nodes: MemoryNodes) -> None:
    """The deadlines of replies, and of the calls."""
    for node in nodes[:2]:
        node.hang()
    await asyncio.gather(*[cycle(redlock, f"r{number}", 0.1) for number in range(6)])


async def connecting(redlock: Redlock, nodes: MemoryNodes) -> None:
    """The wait for a node that does not come up."""
    del redlock
    nodes[0].hang()
    async with Redlock(nodes.urls, **SETTINGS) as other:
        await cycle(other, "r")


async def lost(redlock: Redlock, nodes: MemoryNodes) -> None:
    """A lease that is not renewed is reported as lost."""
    del nodes
    leases = [await acquired(redlock.lock(f"r{number}", ttl=0.25)) for number in range(2)]
    await asyncio.gather(*[lease.lost.wait() for lease in leases])


async def renewed(redlock: Redlock, nodes: MemoryNodes) -> None:
    """Leases are kept for several times their ttl."""
    del nodes
    locks = [redlock.lock(f"r{number}", ttl=0.6, renew=True) for number in range(2)]
    leases = [await acquired(lock) for lock in locks]
    await asyncio.sleep(0.7)
    assert all(lease.held for lease in leases)
    for lease in leases:
        await released(lease)


@pytest.mark.parametrize("act", [cycles, in_line, hung, connecting, lost, renewed])
def test_an_interrupted_callback(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ACQUIRING_MAX", 4)
    places: Counter[str] = Counter()
    ran = 0
    while (at := asyncio.run(interrupted(act, places))).where:
        ran += at.ran
    print(ran, dict(places))
    assert ran > 2


async def interrupted(act: Act, places: Counter[str]) -> At:
    """Run an act with one callback interrupted, and check the Redlock afterwards."""
    logged: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: logged.append(told["exception"]))
    with MemoryNodes(3) as nodes:
        async with Redlock(nodes.urls, **SETTINGS) as redlock:
            await cycle(redlock, "warm")
            with contextlib.suppress(SoftLimit), At(places) as at:
                async with asyncio.timeout(5.0):
                    await act(redlock, nodes)
            for node in nodes:
                node.go_on()
            for name in ("afterwards", "r", "one"):
                await released(await acquired(redlock.lock(name, timeout=3.0)))
            left = await until_async(lambda: not keys(nodes))
            assert left, (at.where, keys(nodes))
            assert all(type(error) is SoftLimit for error in logged), logged
    return at


def keys(nodes: MemoryNodes) -> list[bytes]:
    return [key for node in nodes for key in node.keys()]  # noqa: SIM118
