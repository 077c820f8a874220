"""Background threads: no work is ever forgotten, whatever starting, running and ending comes to."""

from __future__ import annotations

import _thread
import gc
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock._drivers import threads
from quorlock._drivers.clock import now
from quorlock._drivers.sync.pool import ConnectionPool
from quorlock._drivers.threads import BackgroundThread
from quorlock._drivers.wait import WaitQueue
from tests.exhaustive.test_interrupts import Interrupter
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock._core.time import Duration, Instant


class Worker:
    """Work that is left in a queue, and the thread that does it."""

    def __init__(self, name: str = "worker", linger: Duration = 0) -> None:
        self.queue: deque[Callable[[], object]] = deque()
        self.finishing: deque[Callable[[], object]] = deque()
        self.done = 0
        self.thread = BackgroundThread(name, self.step, finish=self.finish, linger=linger)

    def step(self) -> Instant | None:
        while self.queue:
            self.queue.popleft()()
            self.done += 1
        return None

    def finish(self) -> None:
        while self.finishing:
            self.finishing.popleft()()

    def leave(self, work: Callable[[], object] = lambda: None) -> None:
        self.queue.append(work)
        self.thread.wake()

    def has_done(self, count: int) -> bool:
        return until(lambda: self.done >= count)


def refuse(*_: object) -> None:
    message = "can't start new thread"
    raise RuntimeError(message)


@pytest.fixture(autouse=True)
def nothing_is_refused_for_ever() -> Iterator[None]:
    """Start pending threads, so that tests do not affect each other."""
    yield
    threads._refused.clear()


def test_it_lives_only_while_there_is_work() -> None:
    """The thread has a name while it works, and ends soon after; the next work starts another."""
    worker = Worker("its name")
    names: list[str] = []
    for count in (1, 2):
        worker.leave(lambda: names.append(threading.current_thread().name))
        assert worker.has_done(count)
        assert until(lambda: not worker.thread.runner)
    assert names == ["its name"] * 2


def test_one_thread_does_what_many_leave() -> None:
    """However many call at once, one at a time works, and every piece of work is done."""
    worker = Worker()
    working: list[int] = []
    most: list[int] = []

    def work() -> None:
        working.append(1)
        most.append(len(working))
        working.pop()

    def leave() -> None:
        for _ in range(50):
            worker.leave(work)

    callers = [threading.Thread(target=leave) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert worker.has_done(400)
    assert max(most) == 1


def test_work_that_comes_while_it_ends_is_done() -> None:
    """Left after its last look and before it has said that it is gone; many times in a row."""
    worker = Worker()
    for count in range(1, 200):
        worker.finishing.append(worker.leave)
        worker.leave()
        assert worker.has_done(2 * count)


def test_work_that_comes_without_a_call_is_looked_for() -> None:
    """`is_overlooked` is asked after the thread took itself out."""
    seen: list[bool] = []

    def is_overlooked() -> bool:
        seen.append(len(seen) < 2)
        return seen[-1]

    thread = BackgroundThread("worker", lambda: None, is_overlooked=is_overlooked, linger=0)
    thread.wake()
    assert until(lambda: len(seen) == 3)
    assert until(lambda: not thread.runner)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_whatever_its_work_raises_is_logged_and_it_continues(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception is no end of the work of others."""
    worker = Worker("its name")

    def fails() -> None:
        raise error

    worker.leave(fails)
    worker.leave()
    assert worker.has_done(1)
    assert "its name failed, and continues" in caplog.text
    assert repr(error).partition("(")[0] in caplog.text


def test_an_exception_while_it_waits_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Other code may raise in any thread. The work that comes then is done without another call."""

    class Interrupted(WaitQueue):
        def wait(self, is_so: Callable[[], object], until: Instant) -> None:
            if worker.done == 1:
                worker.queue.append(lambda: None)
                raise KeyboardInterrupt
            super().wait(is_so, until)

    worker = Worker("its name")
    worker.thread.wakeup = Interrupted()
    worker.thread._linger = 60 * NS_PER_S
    worker.leave()
    assert worker.has_done(2)
    assert "its name was interrupted, and continues" in caplog.text
    worker.thread.close(now() + 10 * NS_PER_S)
    assert not worker.thread.runner


def test_a_failed_start_is_raised_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the error; the next call of anybody starts it, for all that was left."""
    worker = Worker()
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                worker.leave()
    worker.thread.wake()
    assert worker.has_done(3)


def test_another_thread_of_ours_starts_what_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread does the work without another call, within one check of the clock, even if it
    sleeps.
    """
    refused, other, sleeper = Worker("refused"), Worker(), Worker("sleeper", linger=60 * NS_PER_S)
    sleeper.leave()
    assert sleeper.has_done(1)
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(RuntimeError):
            refused.leave()
    other.leave()
    assert refused.has_done(1)
    sleeper.thread.close(now() + 10 * NS_PER_S)


def test_without_a_second_thread_the_first_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was to start the named one does it, without a name."""
    worker = Worker()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        worker.leave()
        assert worker.has_done(1)
        assert until(lambda: not worker.thread.runner)


def test_an_interrupted_call_loses_no_work() -> None:
    """Ctrl-C at every line of `wake`: the next call finds all that was left before, and does it."""
    points = 0
    for k in range(1, 100):
        worker = Worker()
        at = Interrupter(k, "line")
        worker.queue.append(lambda: None)
        try:
            with at:
                worker.thread.wake()
        except KeyboardInterrupt:
            points += 1
        worker.leave()
        assert worker.has_done(2), at.where
        if not at.where:
            break
    assert points > 5
    assert until(lambda: not worker.thread.runner)


def test_called_by_a_finalizer_while_threading_starts_a_thread() -> None:
    """A collection may run in the middle of Thread.start, with threading's lock taken."""
    worker = Worker()

    class Garbage:
        def __del__(self) -> None:
            worker.leave()

    class Limbo(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            if not worker.done and not worker.queue:
                cycle = [Garbage()]
                cycle.append(cycle)  # type: ignore[arg-type]
                del cycle
                gc.collect()
            super().__setitem__(key, value)

    limbo = threading._limbo  # type: ignore[attr-defined]
    threading._limbo = Limbo()  # type: ignore[attr-defined]
    try:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        assert worker.has_done(1)
        assert until(lambda: not worker.thread.runner)
    finally:
        threading._limbo = limbo  # type: ignore[attr-defined]


def test_closing_waits_until_the_work_is_done() -> None:
    """Closing does not wait for a lingering thread, nor for itself, nor longer than the limit."""
    idle = Worker(linger=60 * NS_PER_S)
    idle.leave()
    assert idle.has_done(1)
    idle.thread.close(now() + 60 * NS_PER_S)
    assert not idle.thread.runner

    may_end = threading.Event()
    busy = Worker()
    busy.leave(lambda: may_end.wait(30))
    assert until(lambda: busy.thread.runner)
    began = now()
    busy.thread.close(began + 20 * NS_PER_MS)
    assert now() >= began + 20 * NS_PER_MS
    assert busy.thread.runner
    may_end.set()
    assert until(lambda: not busy.thread.runner)

    own = Worker()
    own.leave(lambda: own.thread.close(now() + 60 * NS_PER_S))
    assert own.has_done(1)
    assert until(lambda: not own.thread.runner)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="collections come between instructions")
def test_a_collection_while_sleepers_are_woken() -> None:
    """CPython 3.11 collects garbage during copying; finalizers may then change what is copied."""
    waiters, pool, collections = WaitQueue(), ConnectionPool(Mock(), 1, Mock()), [0]
    owners: dict[Any, Any] = pool._owners
    owners.update({object(): None for _ in range(50)})

    def change(phase: str, _: object) -> None:
        collections[0] += phase == "start"
        lock = threading.Lock()
        lock.acquire()
        waiters.waiting.append(lock)
        owners[lock] = None
        owners.pop(next(iter(owners)))

    gc.callbacks.append(change)
    try:
        for _ in range(50):
            gc.set_threshold(1)
            waiters.wake_all()
            pool._borrowed()
            gc.set_threshold(700)
            waiters.waiting.clear()
    finally:
        gc.set_threshold(700)
        gc.callbacks.remove(change)
    assert collections[0] > 50
