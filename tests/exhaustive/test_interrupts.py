"""Ctrl-C anywhere in a blocking call: it is raised, and no key and no connection is left.

KeyboardInterrupt is raised at the k-th line of the library that the calling thread reaches, for k =
1, 2, 3, … until the call completes. The suite takes a sample from a random start;
QUORLOCK_THOROUGH=1 takes every k, and also every point between two instructions at which CPython
handles signals. Then the same with real signals, at random.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import dis
import faulthandler
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import ConfigError, Lease, LeaseLost, QuorlockError, Redlock, Ticket
from quorlock._core.owner import is_done, mark_of, owner_in
from quorlock._core.places import QUEUE, channel_of
from quorlock._core.results import LossReason
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

    from quorlock._drivers.sync.pool import ConnectionPool
    from quorlock.testing.servers import Server, Servers

SOURCE = str(Path(quorlock.__file__).parent)
THOROUGH = os.environ.get("QUORLOCK_THOROUGH") == "1"
POINTS_MAX = 10_000  # no call takes more
PARSING = threading.RLock()
CLEAN_WITHIN = 1.0  # seconds until a key without a holder must be gone
RESOURCE = "interrupted"


class Interrupter:
    """Raises KeyboardInterrupt at the k-th point of this thread's way through our code.

    granularity "line": where a line begins.  "signal": where CPython 3.11 looks for signals, which
    is when a function begins or a generator resumes, after a call of something written in C, and
    when a loop repeats.  within: in this function alone.
    """

    def __init__(self, k: int, granularity: str, within: str = "") -> None:
        self.k = k
        self.within = within
        self.seen = 0
        self.where = ""
        self._opcodes = granularity == "signal"
        self._last: int | None = None  # the instruction before, if it looked for signals
        self._outside: FrameType | None = None  # the frame of the block: ours are above it

    def __enter__(self) -> Interrupter:
        self._before = sys.gettrace()
        self._outside = sys._getframe(1)
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._outside = None

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        self._last = None
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if in_finalizer(frame, self._outside):
            return None
        if self._opcodes:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            # A `yield from` resumes with RESUME 2.
            if instructions(frame.f_code)[frame.f_lasti].name in {"RESUME 0", "RESUME 1"}:
                self._point(frame)
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and frame.f_lasti not in impossible(frame.f_code):
            self._point(frame)
        elif event == "opcode":
            code = instructions(frame.f_code)
            here = code[frame.f_lasti]
            last = self._last
            if here.called in C_FUNCTIONS or is_class(frame, here.called):
                last = here.before  # also if it called our functions, which reset _last
            # The exception would come from the call itself, so both must be guarded alike.
            if last is not None and code[last].guard == here.guard:
                self._point(frame)
            checks = here.name.startswith("CALL") or here.name == "JUMP_BACKWARD"
            self._last = frame.f_lasti if checks else None
        elif event == "exception":  # a call that raises does not look for signals
            self._last = None
        return self._step

    def _point(self, frame: FrameType) -> None:
        if self.within not in ("", frame.f_code.co_qualname):
            return
        self.seen += 1
        if self.seen == self.k:
            name = frame.f_code.co_filename.removeprefix(SOURCE + "/")
            self.where = f"{name}:{frame.f_lineno} in {frame.f_code.co_qualname}"
            raise KeyboardInterrupt


def in_finalizer(frame: FrameType | None, outside: FrameType | None) -> bool:
    """Python itself swallows what is raised there."""
    while frame is not None and frame is not outside:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


class Instruction(NamedTuple):
    """An instruction, and the only way to it if that is a call."""

    name: str
    guard: int | None  # where it goes when it raises
    before: int | None = None  # the call directly before it, which is the only way to it
    called: str = ""  # what that calls, if it is a plain name


C_FUNCTIONS = frozenset(dir(builtins))


def is_class(frame: FrameType, name: str) -> bool:
    """Return whether a call of this name makes an object, which is done in C."""
    return isinstance(frame.f_globals.get(name), type)


@functools.cache
def instructions(code: CodeType) -> dict[int, Instruction]:
    """Return all instructions by their offsets."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    handlers, called = {entry.target for entry in table}, lines_of(code.co_filename).called
    all_ = list(dis.get_instructions(code))
    result: dict[int, Instruction] = {}
    for i in all_:
        name = f"RESUME {i.arg}" if i.opname == "RESUME" else i.opname
        guard = next((e.target for e in table if e.start <= i.offset < e.end), None)
        result[i.offset] = Instruction(name, guard)
    for before, i in pairwise(all_):
        is_next = not i.is_jump_target and i.offset not in handlers
        if is_next and before.opname.startswith("CALL") and before.positions:
            result[i.offset] = result[i.offset]._replace(
                before=before.offset, called=called.get(before.positions, "")
            )
    return result


@functools.cache
def impossible(code: CodeType) -> frozenset[int]:
    """Return whether a line begins at a point at which no signal can be noticed.

    A line of a `with` begins again when its block is left, before `__exit__` is called. Some
    instructions in such a block (the word `try`, the beginning of a comprehension) cannot fail and
    are outside of the code that the compiler guards; an exception there would leave the mutex
    locked. A `yield from` line begins again at every resumption, and an exception there would not
    reach the inner generator. A handler that is only `pass` is one POP_EXCEPT, not guarded either:
    after an exception there, the handled one would be the context of all later ones in this thread.
    """
    known, (heads, blocks, _) = instructions(code), lines_of(code.co_filename)
    all_ = list(dis.get_instructions(code))
    entries = {
        i.positions.lineno: i.offset
        for i in reversed(all_)
        if i.opname in ("BEFORE_WITH", "LOAD_SPECIAL") and i.positions
    }
    return frozenset(
        i.offset
        for i in all_
        if i.opname in ("NOP", "SEND", "POP_EXCEPT")
        or (i.positions and i.positions.lineno in heads)
        or (i.positions and i.offset > entries.get(i.positions.lineno, i.offset))
        or (i.positions and i.positions.lineno in blocks and known[i.offset].guard is None)
    )


class Lines(NamedTuple):
    """Lines of a file, and the calls in it."""

    # `except …:`, and a bare `raise` first in it: no call and no jump back, so no look for signals.
    heads: frozenset[int]
    blocks: frozenset[int]  # the bodies of all `with`
    called: dict[dis.Positions, str]  # the calls of plain names, by their places


@functools.cache
def lines_of(file: str) -> Lines:
    """Parse a file."""
    # Python 3.11 parses one file at a time (SystemError otherwise, CPython's issue 106905), so two
    # traced threads take turns. And a collection in between may close one of our generators, whose
    # lines are traced as well, and need another file.
    with PARSING:
        gc.disable()
        try:
            nodes = list(ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))))
        finally:
            gc.enable()
    bodies = [
        range(n.body[0].lineno, (n.end_lineno or 0) + 1) for n in nodes if isinstance(n, ast.With)
    ]
    return Lines(
        frozenset(
            line
            for n in nodes
            if isinstance(n, ast.ExceptHandler)
            for line in (n.lineno, *([n.body[0].lineno] if _raises_again(n) else []))
        ),
        frozenset(line for body in bodies for line in body),
        {
            dis.Positions(n.lineno, n.end_lineno, n.col_offset, n.end_col_offset): n.func.id
            for n in nodes
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        },
    )


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler is no more than `raise`."""
    first = handler.body[0]
    return isinstance(first, ast.Raise) and first.exc is None


class Stuck(BaseException):
    """A call waits for something that never comes."""


@contextlib.contextmanager
def watchdog(seconds: float = 15.0) -> Iterator[None]:
    """Raise Stuck in the main thread, whose waiting for a lock can be interrupted."""

    def bark(*_: object) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- what is interrupted ---------------------------------------------------------------------


@dataclass
class Scene:
    """A Redlock, its nodes, and what was found out about them."""

    nodes: Servers
    live: list[Server]
    make: Callable[[], Redlock]
    held_by_another: bool = False
    redlock: Redlock = field(init=False)
    faults: list[str] = field(default_factory=list)

    def begin(self, *, warm: bool) -> None:
        self.redlock = self.make()
        if warm:
            self.warm_up()

    def warm_up(self) -> None:
        lease = self.redlock.lock("warm", timeout=2.0).acquire()
        lease.release()

    def values(self) -> list[bytes | None]:
        return [server.execute("GET", RESOURCE) for server in self.live]

    def clean(self) -> bool:
        """Check that no live node has a key, within a bounded time."""
        allowed = b"another" if self.held_by_another else None
        return until(lambda: set(self.values()) <= {allowed} and not self.others(), CLEAN_WITHIN)

    def others(self) -> list[bytes]:
        """Return the keys of permits, and of other resources of a call."""
        return [key for node in self.live for key in node.execute("KEYS", RESOURCE + "?*")]

    def live_places(self) -> list[bytes]:
        """Return the places in the queues that nodes can call.

        The connections of a set that was discarded are closed, so that a release skips its places.
        """
        return [
            place
            for server in self.live
            for place in server.execute("ZRANGE", QUEUE + RESOURCE.encode(), "0", "-1")
            if server.execute("PUBSUB", "NUMSUB", channel_of(place.partition(b":")[0]))[1]
        ]

    def scrub(self) -> None:
        for server in self.live:
            if self.held_by_another:
                server.execute("SET", RESOURCE, "another")
            else:
                server.execute("DEL", RESOURCE)
            for key in server.execute("KEYS", RESOURCE + "?*"):
                server.execute("DEL", key)

    def check(self, interrupter: Interrupter, outcome: str) -> None:
        """Nothing is left, and the Redlock is as good as new."""
        found = []
        if interrupter.where and outcome != "interrupted":
            found.append(f"the interrupt was swallowed: {outcome}")
        if self.redlock._session.live:
            gc.collect()  # a lease in a cycle with the exception that reports it
        if not self.clean():
            found.append(f"keys left: {self.values()} {self.others()}")
            self.scrub()
        found += self.unusable()
        if not until(lambda: not self.live_places(), CLEAN_WITHIN):
            found.append(f"places left: {self.live_places()}")
        if found:
            self.faults += [f"{interrupter.k}: {interrupter.where}: {what}" for what in found]
            self.redlock.close()
            self.begin(warm=True)

    def unusable(self) -> Iterator[str]:
        session, pool = self.redlock._session, self.redlock._session.driver._pool
        if not until(lambda: not session.live, CLEAN_WITHIN):  # a thread releases what was dropped
            yield f"an account of {len(session.live)} leases is left"
            session.live.clear()
        waiting = session.driver._waiting_flows
        if waiting.enlisted or waiting._wakes:
            yield f"waiting flows are left: {waiting.enlisted} {waiting._wakes}"
        try:
            lease = self.redlock.lock("afterwards", timeout=2.0).acquire()
            if not lease.release():
                yield "a later release says False"
        except QuorlockError as error:
            yield f"a later acquire fails: {error}"
        if not until(lambda: not in_use(pool), CLEAN_WITHIN):
            yield f"{in_use(pool)} bundles are lost"


def in_use(pool: ConnectionPool) -> int:
    """Return the borrowed connection sets; there should be none."""
    return len(pool._owners)


def acquire(scene: Scene, interrupter: Interrupter) -> None:
    lock = scene.redlock.lock(RESOURCE, timeout=0.04)
    with interrupter:
        lock.acquire()


def try_acquire(scene: Scene, interrupter: Interrupter) -> None:
    lock = scene.redlock.lock(RESOURCE)
    with interrupter:
        lock.try_acquire()


def block(scene: Scene, interrupter: Interrupter) -> None:
    lock = scene.redlock.lock(RESOURCE, timeout=0.04)
    with interrupter, lock:
        pass


def nested(scene: Scene, interrupter: Interrupter) -> None:
    """A re-entrant lock, in blocks and by calls; afterwards this thread holds nothing."""
    lock = scene.redlock.rlock(RESOURCE, timeout=0.04)
    try:
        with interrupter, lock, lock:
            lock.acquire()
            lock.release()
            lock.try_acquire()
            lock.release()
    finally:
        assert not lock._count(), f"{lock._count()} levels are left: {interrupter.where}"
        assert not lock._holds.by_key


def nested_inside(scene: Scene, interrupter: Interrupter) -> None:
    """The inner blocks are interrupted: the outer one still holds the lock, once."""
    lock = scene.redlock.rlock(RESOURCE, timeout=2.0)
    with lock as lease:
        try:
            with interrupter, lock:
                pass
        finally:
            assert lock._count() == 1, f"{lock._count()} levels: {interrupter.where}"
            assert lease.held


def keep(scene: Scene, interrupter: Interrupter) -> None:
    """The lease is over, and each node has the mark or nothing; the token never stays."""
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    mark = mark_of(lease.token.encode())
    try:
        with interrupter:
            lease.keep(60.0)
    finally:
        if lease.held:  # interrupted before it began
            lease.release()
        assert until(lambda: set(scene.values()) <= {mark, None}, CLEAN_WITHIN), scene.values()
        if not interrupter.where:
            assert scene.values().count(mark) >= len(scene.live) // 2 + 1
        scene.scrub()


def permit(scene: Scene, interrupter: Interrupter) -> None:
    semaphore = scene.redlock.semaphore(RESOURCE, 3, timeout=0.04)
    with interrupter, semaphore:
        pass


def last_permit(scene: Scene, interrupter: Interrupter) -> None:
    """All others are held: it gets the last one, and then none."""
    semaphore = scene.redlock.semaphore(RESOURCE, 2, timeout=0.04)
    first = semaphore.acquire(timeout=2.0)
    try:
        with interrupter:
            second = semaphore.acquire(timeout=2.0)
            assert semaphore.try_acquire() is None
            second.release()
    finally:
        assert first.release(), f"the permit of another call is gone: {interrupter.where}"


def several(scene: Scene, interrupter: Interrupter) -> None:
    lock = scene.redlock.lock(RESOURCE, RESOURCE + "2", RESOURCE + "3", timeout=0.04)
    with interrupter, lock:
        pass


def once(scene: Scene, interrupter: Interrupter) -> None:
    """The work is done, or may be done again: no token stays."""
    scene.scrub()
    interrupted = False
    try:
        with interrupter:
            scene.redlock.once(RESOURCE, every=60.0).run(lambda _: None)
    except KeyboardInterrupt:
        interrupted = True

    # Not inside of `except`: the traceback would keep alive what has to go.
    def no_token() -> bool:
        return all(is_done(owner_in(value)) for value in scene.values() if value)

    assert until(no_token, CLEAN_WITHIN), f"{interrupter.where}: {scene.values()}"
    scene.scrub()
    if interrupted:
        raise KeyboardInterrupt


def campaign(scene: Scene, interrupter: Interrupter) -> None:
    """Elected, and out of office."""
    election = scene.redlock.election(RESOURCE)
    with interrupter, election.campaign(timeout=0.5):
        pass


def wait_for_release(scene: Scene, interrupter: Interrupter) -> None:
    lock = scene.redlock.lock(RESOURCE, timeout=5.0)
    with interrupter:
        lock.acquire().release()


def extend(scene: Scene, interrupter: Interrupter) -> None:
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    try:
        with interrupter:
            lease.extend()
    finally:
        assert lease.held, "an interrupted extend does not end the lease"
        assert lease.release()


def extend_and_drop(scene: Scene, interrupter: Interrupter) -> None:
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    with interrupter:
        lease.extend()


def release(scene: Scene, interrupter: Interrupter) -> None:
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    with interrupter:
        lease.release()


def release_by_token(scene: Scene, interrupter: Interrupter) -> None:
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    with interrupter:
        scene.redlock.release(RESOURCE, lease.token)


def lost_extend(scene: Scene, interrupter: Interrupter) -> None:
    """Two nodes have lost the key, one has another's: LeaseLost, and a release on the rest."""
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    for server in scene.live[:3]:
        server.execute("DEL", RESOURCE)
    with interrupter:
        lease.extend()


def hand_over_and_adopt(scene: Scene, interrupter: Interrupter) -> None:
    """An interrupted adopt can be repeated, unless it had won: then the lease was released."""
    ticket = scene.redlock.lock(RESOURCE, timeout=2.0).acquire().hand_over()
    lease: Lease | None = None
    interrupted = False
    try:
        with interrupter:
            lease = scene.redlock.adopt(ticket)
    except KeyboardInterrupt:
        interrupted = True
    # Not inside of `except`: the traceback would keep alive what has to go.
    with contextlib.suppress(LeaseLost, ConfigError):
        if lease is None:
            lease = scene.redlock.adopt(ticket)
    if lease is not None:
        lease.release()
    if interrupted:
        raise KeyboardInterrupt


def hand_over(scene: Scene, interrupter: Interrupter) -> None:
    """A lease whose ticket is lost is released."""
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    with interrupter:
        ticket = lease.hand_over()
    assert scene.redlock.adopt(ticket).release()


def leave_block_after_hand_over(scene: Scene, interrupter: Interrupter) -> None:
    """The lease that another owner has adopted stays, whatever the end of the block sends."""
    lock = scene.redlock.lock(RESOURCE, timeout=2.0)
    giver = lock.__enter__()
    adopted = scene.redlock.adopt(giver.hand_over())
    interrupted = False
    try:
        with interrupter:
            lock.__exit__(None, None, None)
    except KeyboardInterrupt:
        interrupted = True
    assert not list(giver._state.release_flow()), "nothing is sent for the giver"
    assert adopted.release(), interrupter.where
    if interrupted:
        raise KeyboardInterrupt


def acquire_renewed(scene: Scene, interrupter: Interrupter) -> None:
    """Whatever becomes of this one, the next lease is renewed."""
    lock = scene.redlock.lock(RESOURCE, ttl=1.0, timeout=2.0, renew=True)
    interrupted = False
    try:
        with interrupter:
            lock.acquire().release()
    except KeyboardInterrupt:
        interrupted = True
    with scene.redlock.lock("next", ttl=1.0, timeout=2.0, renew=True) as lease:
        first = lease.valid_until
        renewed = until(lambda: lease.valid_until != first, 0.8)
        assert renewed, f"nothing renews: {interrupter.where}"
    if interrupted:
        raise KeyboardInterrupt


def ask_for_the_loss(scene: Scene, interrupter: Interrupter) -> None:
    """Check the event and wait for it; renewal's report of a loss still arrives, and nothing
    hangs.
    """
    lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()
    try:
        with interrupter:
            lease.lost.is_set()
            lease.lost.wait(0.01)
    finally:
        lost = lease.lost
        lease._state.end(LossReason.TAKEN)  # as renewal says it
        assert lost.is_set()
        assert lost.wait(0)


ACTS: list[Callable[[Scene, Interrupter], None]] = [
    acquire,
    try_acquire,
    block,
    extend,
    extend_and_drop,
    release,
    release_by_token,
    lost_extend,
    hand_over_and_adopt,
    hand_over,
    leave_block_after_hand_over,
]
# Every line of `acquire` is one of `block`; `extend_and_drop` differs from `extend` in what becomes
# of the lease. So the states of the nodes below do without them: test_warm has all of them.
SOME_ACTS = ACTS if THOROUGH else [block, extend, release, lost_extend, hand_over_and_adopt]
WANTING = [acquire, try_acquire, block] if THOROUGH else [try_acquire, block]


def perform(act: Callable[[Scene, Interrupter], None], scene: Scene, at: Interrupter) -> str:
    try:
        act(scene, at)
    except KeyboardInterrupt:
        return "interrupted"
    except QuorlockError as error:
        return type(error).__name__
    return "completed"


def every_point(
    act: Callable[[Scene, Interrupter], None],
    scene: Scene,
    granularity: str,
    *,
    stride: int,
    cold: bool = False,
    within: str = "",
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Interrupt at every (some-th) point until the call completes; fail with all that was found."""
    stride = 1 if THOROUGH else stride
    scene.begin(warm=not cold)
    tried: Counter[str] = Counter()
    try:
        for k in range(random.randint(1, stride), POINTS_MAX, stride):
            at = Interrupter(k, granularity, within)
            try:
                with watchdog():
                    before()
                    outcome = perform(act, scene, at)
                    after()
                    scene.check(at, outcome)
            except Stuck:
                scene.faults.append(f"{k}: {at.where}: stuck for good: {traceback.format_exc()}")
                after()
                break
            tried[outcome] += 1
            if not at.where:
                break
            if cold:
                scene.redlock.close()
                scene.begin(warm=False)
        else:
            scene.faults.append("it never completes")
        scene.faults += scene_after(scene)
    finally:
        with contextlib.suppress(Stuck), watchdog(5.0):
            scene.redlock.close()
    print(f"{act.__name__} {granularity} every {stride}: {dict(tried)}")
    assert not scene.faults, "\n" + "\n".join(scene.faults)
    assert tried["interrupted"] > 0


def scene_after(scene: Scene) -> Iterator[str]:
    """20 threads can still acquire, all at once, and release."""
    won: list[bool] = []

    def work(number: int) -> None:
        lock = scene.redlock.lock(f"after-{number}", timeout=5.0)
        won.extend([lock.acquire().release() for _ in range(5)])

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(20)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 15
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    if stuck:
        faulthandler.dump_traceback()
        yield f"{stuck} of 20 threads are stuck"
    elif len(won) != 100 or not all(won):
        yield f"afterwards {won.count(True)} of 100 cycles went well"


def maker(nodes: Servers, **settings: Any) -> Callable[[], Redlock]:
    # With one node hung and one connection cut by the interrupt, each of the other three has to
    # answer in time, on a machine that may be busy and in a thread that is traced.
    patient: dict[str, Any] = {"retry_delay": (0.01, 0.03), "node_timeout": 0.25}
    return lambda: Redlock(nodes.urls, **patient | settings)


GRANULARITIES = ["line", "signal"] if THOROUGH else ["line"]


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", ACTS)
def test_warm(nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str) -> None:
    every_point(act, Scene(nodes, list(nodes), maker(nodes)), granularity, stride=17)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_keeping(nodes: Servers, granularity: str) -> None:
    """Neither the token nor a lease is left, whatever was interrupted."""
    every_point(keep, Scene(nodes, list(nodes), maker(nodes)), granularity, stride=7)


@pytest.mark.parametrize("act", [nested, nested_inside])
def test_reentrant(nodes: Servers, act: Callable[[Scene, Interrupter], None]) -> None:
    """Every level is left, except where a signal comes at the first instruction of `__exit__`."""
    every_point(act, Scene(nodes, list(nodes), maker(nodes)), "line", stride=7)


@pytest.mark.parametrize("act", [permit, last_permit, several, once, campaign])
def test_the_family(nodes: Servers, act: Callable[[Scene, Interrupter], None]) -> None:
    """No permit, key, token or lease is left, whatever was interrupted."""
    every_point(act, Scene(nodes, list(nodes), maker(nodes)), "line", stride=23)


STARTS = [
    "LockBase._lease",
    "RenewalThread.add",
    "BackgroundThread.wake",
    "BackgroundThread._start",
]


@pytest.mark.parametrize("within", [*STARTS, "RenewalThread.stop"])
def test_what_starts_renewal(nodes: Servers, within: str) -> None:
    """Interrupted at every line without a thread: the next lease is renewed."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    settings: dict[str, Any] = {"within": within, "before": renewal_has_ended}
    every_point(acquire_renewed, scene, "line", stride=1, **settings)


def renewal_has_ended() -> None:
    def is_so() -> bool:
        return not any(thread.name == "quorlock renewal" for thread in threading.enumerate())

    assert until(is_so, 60)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_what_reports_a_loss(nodes: Servers, granularity: str) -> None:
    """The event that renewal sets, and that looks at the clock."""
    every_point(ask_for_the_loss, Scene(nodes, list(nodes), maker(nodes)), granularity, stride=37)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", WANTING)
def test_cold(nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str) -> None:
    """The first call of a Redlock also starts the connectors and waits for connections."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    every_point(act, scene, granularity, stride=37, cold=True, after=lambda: all_up(scene))


def all_up(scene: Scene) -> None:
    """Connectors connect every node, whatever was interrupted."""
    end = time.monotonic() + 2.0
    while not all(node.up for node in scene.redlock.nodes):
        if time.monotonic() > end:
            scene.faults.append(f"the next fault: nodes never up: {scene.redlock.nodes}")
            return
        scene.warm_up()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", WANTING)
def test_contended(
    nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str
) -> None:
    """Another client holds the lock throughout."""
    scene = Scene(nodes, list(nodes), maker(nodes), held_by_another=True)
    scene.live = list(nodes)
    scene.scrub()
    every_point(act, scene, granularity, stride=41)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("waits_in", ["line", "queues"])
def test_waiting(nodes: Servers, waits_in: str, granularity: str) -> None:
    """A lease of this process, or of another, is released while the interrupted call waits for it.

    Whatever is interrupted, the caller behind it gets the lock.
    """
    scene = Scene(nodes, list(nodes), maker(nodes))
    threads: list[threading.Thread] = []
    other = maker(nodes)()

    def hold() -> None:
        holder = scene.redlock if waits_in == "line" else other
        lease = holder.lock(RESOURCE, timeout=5.0).acquire()

        def work() -> None:
            time.sleep(0.01)
            lease.release()

        def wait_behind() -> None:
            try:
                time.sleep(0.005)
                scene.redlock.lock(RESOURCE, timeout=5.0).acquire().release()
            except QuorlockError as error:
                scene.faults.append(f"the caller behind it: {error}")

        threads[:] = [threading.Thread(target=each, daemon=True) for each in (work, wait_behind)]
        for thread in threads:
            thread.start()

    def join() -> None:
        for thread in threads:
            thread.join(10)
            if thread.is_alive():
                scene.faults.append("a thread is stuck")

    with other:
        every_point(wait_for_release, scene, granularity, stride=73, before=hold, after=join)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("within", ["ConnectionSet.wait", "Peer.deliver_call"])
def test_while_calls_are_read(nodes: Servers, within: str, *, hangs: bool) -> None:
    """Nodes that have called reserve the lock, here for 10 s: it is free much earlier.

    hangs: one node hangs from before the call until after the interrupt. It may call the place when
    its connection is gone, and keeps the reservation for its usual time, here 0.5 s.
    """
    scene = Scene(nodes, list(nodes), maker(nodes, node_timeout=0.25 if hangs else 5.0))
    interrupted = threading.Event()
    threads: list[threading.Thread] = []

    def hold() -> None:
        lease = other.lock(RESOURCE, timeout=5.0).acquire()
        interrupted.clear()

        def release() -> None:
            until(lambda: scene.live_places() or interrupted.is_set(), 5.0)
            lease.release()

        if hangs:
            nodes[4].stop()
            scene.live = list(nodes)[:4]
        threads[:] = [threading.Thread(target=release, daemon=True)]
        threads[0].start()

    def join() -> None:
        interrupted.set()
        threads[0].join(10)
        nodes[4].cont()
        scene.live = list(nodes)

    with maker(nodes)() as other:
        settings: dict[str, Any] = {"within": within, "before": hold, "after": join}
        stride = 3 if hangs else 1
        every_point(wait_for_release, scene, "line", stride=stride, **settings)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_handing_on(nodes: Servers, granularity: str) -> None:
    """The interrupted release gives the lock to a thread that waits: what that has, it keeps."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    held: list[Lease] = []
    thread: threading.Thread
    is_over = threading.Event()

    def wait_for_it() -> None:
        try:
            lease = scene.redlock.lock(RESOURCE, timeout=5.0).acquire()
            is_over.wait(10)
            if not lease.release():
                scene.faults.append("what the waiter held was released")
        except QuorlockError as error:
            scene.faults.append(f"the waiter: {error}")

    def hold() -> None:
        nonlocal thread
        is_over.clear()
        held.append(scene.redlock.lock(RESOURCE, timeout=5.0).acquire())
        thread = threading.Thread(target=wait_for_it, daemon=True)
        thread.start()
        lines = scene.redlock._session.driver.lines
        assert lines is not None
        assert until(
            lambda: (line := lines.get(RESOURCE.encode())) and (line._first or line._members)
        )

    def hand_on(scene: Scene, interrupter: Interrupter) -> None:
        del scene
        # Interrupted before the release begins, the lease goes when this frame does.
        lease = held.pop()
        with interrupter:
            lease.release()

    def join() -> None:
        is_over.set()
        thread.join(10)
        if thread.is_alive():
            scene.faults.append("the waiter is stuck")

    every_point(hand_on, scene, granularity, stride=37, before=hold, after=join)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", SOME_ACTS)
def test_one_node_hung(
    nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str
) -> None:
    """Stopped before the interrupted call, continued after it: nothing is on that node either."""
    # All that still answer are needed where the interrupt cuts one off.
    scene = Scene(nodes, list(nodes), maker(nodes, node_timeout=0.5))
    hung = nodes[4]
    every_point(act, scene, granularity, stride=37, before=hung.stop, after=hung.cont)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", SOME_ACTS)
def test_one_node_dead(
    nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str
) -> None:
    nodes[4].kill()
    every_point(act, Scene(nodes, list(nodes)[:4], maker(nodes)), granularity, stride=37)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", [extend, release, block])
def test_two_nodes_hung(
    nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str
) -> None:
    """A bare majority, one of which the interrupt cuts off: its release counts nevertheless."""
    scene = Scene(nodes, list(nodes), maker(nodes, node_timeout=0.5))
    every_point(act, scene, granularity, stride=47, **deferring(nodes[3:]))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", WANTING)
def test_quorum_hung(
    nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str
) -> None:
    """Acquires end after the outage timeout; on all five nothing is left."""
    scene = Scene(nodes, list(nodes), maker(nodes, outage_timeout=0.1))
    every_point(act, scene, granularity, stride=97, **deferring(nodes[2:]))


class Beside(Interrupter):
    """Calls a function in another thread at the k-th line, and interrupts so many lines later."""

    def __init__(self, k: int, later: int, call: Callable[[], object]) -> None:
        super().__init__(k + later, "line")
        self.calls_at = k
        self._call = call

    def _point(self, frame: FrameType) -> None:
        if self.seen + 1 == self.calls_at:
            other = threading.Thread(target=self._call)
            other.start()
            other.join()
        super()._point(frame)


def beside_points() -> range:
    return range(1 if THOROUGH else random.randint(1, 3), POINTS_MAX, 1 if THOROUGH else 3)


@pytest.mark.parametrize("later", [0, 1, 7])
def test_two_threads_hand_over(nodes: Servers, later: int) -> None:
    """The lease is not released for an interrupted call if the other one has handed it over."""
    outcomes = set[str]()
    with Redlock(nodes.urls) as taker:
        for k in beside_points():
            tickets: list[Ticket] = []

            def hand_over() -> None:
                with contextlib.suppress(LeaseLost):
                    tickets.append(lease.hand_over())  # noqa: B023

            with Redlock(nodes.urls) as redlock:
                lease = redlock.lock(RESOURCE, timeout=2.0).acquire()
                at = Beside(k, later, hand_over)
                with contextlib.suppress(KeyboardInterrupt), at:
                    hand_over()
            # What its clean-up sends is sent by now.
            if tickets:
                (ticket,) = tickets
                assert taker.adopt(ticket).release(), f"{k}: {at.where}"
            outcomes.add("handed over" if tickets else "released")
            assert not taker.lock(RESOURCE).locked(), f"{k}: {at.where}"
            if at.seen < at.calls_at:
                break
    assert outcomes == {"handed over", "released"}


def test_two_threads_hand_over_in_asyncio(nodes: Servers) -> None:
    """A thread without a loop may call it too, since `hand_over` waits for nothing."""

    async def main() -> None:
        outcomes = set[str]()
        async with aio.Redlock(nodes.urls) as taker:
            for k in beside_points():
                tickets: list[Ticket] = []

                def hand_over() -> None:
                    with contextlib.suppress(LeaseLost):
                        try:
                            lease.hand_over().send(None)  # noqa: B023
                        except StopIteration as stop:
                            tickets.append(stop.value)  # noqa: B023

                async with aio.Redlock(nodes.urls) as redlock:
                    lease = await redlock.lock(RESOURCE, timeout=2.0).acquire()
                    at = Beside(k, 0, hand_over)
                    with contextlib.suppress(KeyboardInterrupt), at:
                        hand_over()
                if tickets:
                    (ticket,) = tickets
                    assert await (await taker.adopt(ticket)).release(), f"{k}: {at.where}"
                outcomes.add("handed over" if tickets else "released")
                assert not await taker.lock(RESOURCE).locked(), f"{k}: {at.where}"
                if at.seen < at.calls_at:
                    break
        assert outcomes == {"handed over", "released"}

    asyncio.run(main())


def test_while_an_error_comes_out(nodes: Servers) -> None:
    """Interrupted at every line that ends a failed call: the connection set is available again.

    It calls nothing written in C, so CPython handles signals at the beginning of each call.
    """
    scene = Scene(nodes, list(nodes), maker(nodes, outage_timeout=0.1))
    hung = deferring(nodes[2:])
    every_point(try_acquire, scene, "line", stride=1, within="Driver._complete", **hung)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_where_a_flow_begins(nodes: Servers, granularity: str) -> None:
    """Interrupted at every point between a call without a flow and the flow that it needs."""
    scene = Scene(nodes, list(nodes), maker(nodes), held_by_another=True)
    scene.live = list(nodes)
    scene.scrub()
    every_point(acquire, scene, granularity, stride=1, within="DirectRunner.run")


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("act", [try_acquire, release])
def test_crowded(
    nodes: Servers, act: Callable[[Scene, Interrupter], None], granularity: str
) -> None:
    """Other callers have all the places, so it queues, and they hand connection sets over."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    over = threading.Event()

    def crowd(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(QuorlockError):
                scene.redlock.lock(f"crowd-{number}", timeout=0.1).acquire().release()

    crowd_: list[threading.Thread] = []

    def gather() -> None:
        over.clear()
        crowd_[:] = [threading.Thread(target=crowd, args=(n,), daemon=True) for n in range(6)]
        for thread in crowd_:
            thread.start()

    def disperse() -> None:
        over.set()
        for thread in crowd_:
            thread.join()

    every_point(act, scene, granularity, stride=29, before=gather, after=disperse)


def deferring(hung: Sequence[Server]) -> dict[str, Any]:
    """Stop them while the interrupted call runs."""

    def stop() -> None:
        for server in hung:
            server.stop()

    def cont() -> None:
        for server in hung:
            server.cont()

    return {"before": stop, "after": cont}


# --- real signals ----------------------------------------------------------------------------

REAL = """
    import _thread, os, random, signal, sys, threading, time
    from quorlock import QuorlockError, Redlock
    from quorlock.testing.servers import Servers

    kind, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print("seed", seed)
    chance = random.Random(seed)
    interrupted, swallowed, faults = 0, 0, []

    def fire(after):
        if kind == "timer":
            signal.setitimer(signal.ITIMER_REAL, after)
            return None
        def work():
            end = time.perf_counter() + after
            while time.perf_counter() < end:
                pass
            if kind == "main":
                _thread.interrupt_main()
            else:
                os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def alarmed(*_):
        raise KeyboardInterrupt

    def left(servers, name):
        keys = [key for server in servers for key in server.keys()]
        return [key for key in keys if name in ('', key.decode())]

    signal.signal(signal.SIGALRM, alarmed)
    with Servers(5) as servers:
        redlock = Redlock(servers.urls)
        redlock.lock("warm").acquire().release()
        for number in range(rounds):
            act = chance.choice(["acquire", "with", "extend", "release"])
            name = f"r{number}"
            lock, lease, thread, lost = redlock.lock(name, timeout=1.0), None, None, False
            try:
                if act in ("extend", "release"):
                    lease = lock.acquire()
                try:
                    thread = fire(chance.uniform(20e-6, 3e-3))
                    for _ in range(100):
                        if act == "acquire":
                            lease = lock.acquire()
                            lease.release()
                        elif act == "with":
                            with lock:
                                pass
                        elif act == "extend":
                            lease.extend()
                        else:
                            lease.release()
                            lease = lock.acquire()
                    time.sleep(0.5)
                    swallowed += 1  # Python does so in __del__
                    lost = True
                except KeyboardInterrupt:
                    interrupted += 1
            except QuorlockError as error:
                faults.append(f"{number} {act}: {error}")
            if thread is not None:
                thread.join()
            # The lock too: interrupted as __exit__ begins (python/cpython#74174) it has the
            # lease still, and gives it back when it is garbage itself.
            lock = lease = None
            end = time.monotonic() + 2.0
            while not lost and left(servers, name) and time.monotonic() < end:
                time.sleep(0.001)
            # What Python swallowed as __del__ began is given back by close(), see below.
            if not lost and left(servers, name):
                faults.append(f"{number} {act}: keys left {left(servers, name)}")
                for server in servers:
                    server.flush()
        won = []
        threads = [
            threading.Thread(
                target=lambda n=n: won.append(redlock.lock(f"a{n}", timeout=5).acquire().release()),
                daemon=True,
            )
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        if won != [True] * 20:
            faults.append(f"afterwards {won} of 20 threads")
        began = time.monotonic()
        redlock.close()
        if time.monotonic() - began > 2:
            faults.append("close takes long")
        if left(servers, ""):
            faults.append(f"keys left after close {left(servers, '')}")
    print("interrupted", interrupted, "swallowed", swallowed)
    for fault in faults:
        print("FAULT", fault)
    sys.exit(bool(faults) or interrupted + swallowed < rounds or swallowed > rounds // 10)
"""


@pytest.mark.parametrize("kind", ["timer", "main", "kill"])
def test_real_signals(kind: str) -> None:
    """Signals at random microseconds, in a separate process, so that pytest is not hit."""
    rounds, seed = (500 if THOROUGH else 100), random.getrandbits(32)
    command = [sys.executable, "-c", textwrap.dedent(REAL), kind, str(rounds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    ignored = [
        line
        for line in done.stderr.splitlines()
        if line and not line.startswith((" ", "Traceback"))
    ]
    # Python itself swallows what comes out of a finalizer, or of the callback of a weak reference
    # (threading keeps its threads in a WeakSet). Since 3.14 it says so in other words.
    allowed = (
        "Exception ignored in: <function LeaseBase.__del__",
        "Exception ignored while calling deallocator <function LeaseBase.__del__",
        "Exception ignored in: <function WeakSet.__init__.<locals>._remove",
        "Exception ignored on calling weakref callback <function WeakSet.__init__.<locals>._remove",
        "KeyboardInterrupt",
    )
    assert all(line.startswith(allowed) for line in ignored), done.stderr
