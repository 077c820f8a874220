"""The distribution of connection sets: the pool alone, and threads that share one on real nodes."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from quorlock import QuorlockError, Redlock
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED_MEANWHILE
from quorlock._drivers.sync.pool import (
    FOLLOWERS_MAX,
    Borrower,
    ConnectionPool,
    _frame_of,
    _is_abandoned,
)
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock.testing.servers import Servers

MS = 1_000_000


class Caller(Borrower):
    """A thread that acquires, or that holds a lock and is urgent."""

    def __init__(self, *, urgent: bool = False, shares: bool = False) -> None:
        self.is_urgent = urgent
        self.shares = shares
        self.thread = id(self)  # another one for each
        self.calls = 0

    def call(self) -> None:
        self.calls += 1


class Path:
    """The part of a connection set that a pool uses."""

    has_pending = has_submissions = is_busy = closed = False
    takes_rounds = True
    visit: Any = None

    def __init__(self) -> None:
        self.followers: dict[Borrower, None] = {}

    def remove_follower(self, follower: Borrower) -> None:
        self.followers.pop(follower, None)

    def drain(self) -> None:
        """Nothing is pending."""

    def close(self, until: int) -> None:
        """Nothing is open."""


def a_pool(cap: int) -> ConnectionPool:
    made: Any = Path
    return ConnectionPool(made, cap, lambda _: None)


def take(pool: ConnectionPool, *, urgent: bool = False, path: object = None) -> ConnectionSet:
    connection_set = pool.borrow(Caller(urgent=urgent), path=path)
    assert connection_set is not None
    return connection_set


def in_thread(
    pool: ConnectionPool, order: list[str], name: str, *, urgent: bool, shares: bool = True
) -> threading.Thread:
    """Return a thread that takes a set, notes its name and returns the set; it is in the queue."""
    before = len(pool._queue)

    def work() -> None:
        connection_set = pool.borrow(Caller(urgent=urgent, shares=shares))
        assert connection_set is not None
        order.append(name)
        pool.give_back(connection_set)

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: len(pool._queue) > before or not thread.is_alive())
    return thread


def test_a_release_takes_the_connection_set_that_acquired() -> None:
    """A free set is reused: late replies of the acquire come over the same connections."""
    pool = a_pool(4)
    first, second, third = take(pool), take(pool), take(pool, urgent=True)
    pool.give_back(first)
    pool.give_back(second)
    assert take(pool, urgent=True, path=second) is second
    assert take(pool, urgent=True, path=third) is first, "its own is in hand: any that is free"


def test_a_connection_set_that_is_gone_carries_no_command() -> None:
    """A lease may outlive the bundle that acquired it."""
    pool = a_pool(1)
    connection_set = take(pool)
    other: Any = Path()
    pool.give_back(connection_set)
    held = take(pool, urgent=True)
    assert take(pool, urgent=True, path=other) is not other
    pool.give_back(held)


def test_a_connection_set_whose_call_is_gone_is_taken_back() -> None:
    """An interrupt has cut off the call and the return of its set: the next call of the same thread
    sees that no call uses it any more.
    """
    pool = a_pool(1)
    first, second = Caller(), Caller()
    first.thread = second.thread = threading.get_ident()
    connection_set = pool.borrow(first)
    assert connection_set is not None
    assert pool.borrow(second, by=now()) is connection_set


def lead(pool: ConnectionPool) -> tuple[Caller, ConnectionSet]:
    """Return a borrower that others may follow, and its set."""
    leader = Caller(shares=True)
    connection_set = pool.borrow(leader)
    assert connection_set is not None
    return leader, connection_set


def test_threads_follow_the_borrower_of_a_set() -> None:
    """No further set is made, and the latest leads when it is returned."""
    pool = a_pool(4)
    leader, connection_set = lead(pool)
    followers = [Caller(shares=True), Caller(shares=True, urgent=True), Caller(shares=True)]
    for follower in followers:
        assert pool.borrow(follower) is connection_set
        assert not pool.lead(follower, connection_set)
    pool.give_back(connection_set)
    assert [follower.calls for follower in followers] == [0, 0, 1]
    assert pool.lead(followers[0], connection_set), "who comes first leads"
    assert not pool.lead(followers[2], connection_set)
    assert list(connection_set.followers) == followers[1:]
    del leader


def test_a_follower_that_goes_calls_another_one_to_lead() -> None:
    """A round may be decided by the time that its thread is to lead."""
    pool = a_pool(4)
    _, connection_set = lead(pool)
    first, second = Caller(shares=True), Caller(shares=True)
    assert pool.borrow(first) is pool.borrow(second) is connection_set
    pool.give_back(connection_set)
    assert second.calls == 1
    pool.leave(second, connection_set)
    assert first.calls == 1
    assert pool.lead(first, connection_set)
    assert not connection_set.followers


def test_a_follower_that_is_gone_is_not_called() -> None:
    """An interrupt has cut off its cleanup."""
    pool = a_pool(4)
    _, connection_set = lead(pool)
    first, gone = Caller(shares=True), Caller(shares=True)
    assert pool.borrow(first) is pool.borrow(gone) is connection_set
    gone.over = True
    pool.give_back(connection_set)
    assert (first.calls, gone.calls) == (1, 0)
    assert list(connection_set.followers) == [first]


def test_some_borrowers_have_a_set_of_their_own() -> None:
    """The main thread may be interrupted anywhere, and a waiter keeps its set for long."""
    pool = a_pool(4)
    _, connection_set = lead(pool)
    assert pool.borrow(Caller(shares=True)) is connection_set
    alone = pool.borrow(Caller())
    assert alone is not connection_set
    assert pool.borrow(Caller(urgent=True)) not in (connection_set, alone)
    pool.give_back(connection_set)
    assert pool.borrow(Caller()) is not connection_set, "it has followers"
    assert pool.borrow(Caller(shares=True)) is connection_set


def test_the_main_thread_takes_no_set_whose_followers_wait_for_a_leader() -> None:
    """Between two leaders the set is free."""
    pool = a_pool(4)
    _, connection_set = lead(pool)
    follower = Caller(shares=True)
    assert pool.borrow(follower) is connection_set
    pool._owners.clear()
    assert pool.borrow(Caller()) is not connection_set
    assert follower.calls == 2, "at each look: it may have found the set borrowed"
    assert pool.lead(follower, connection_set)


def test_a_call_does_not_follow_the_call_that_it_has_interrupted() -> None:
    """A finalizer runs in any thread, inside a call. Following that, it would wait for ever."""
    pool = a_pool(4)
    leader, connection_set = lead(pool)
    for nested in Caller(shares=True), Caller(shares=True, urgent=True):
        nested.thread = leader.thread
        alone = pool.borrow(nested, by=now())
        assert alone not in (None, connection_set)
        assert alone is not None
        pool.give_back(alone)
    assert not connection_set.followers


def test_a_release_follows_only_on_its_own_path() -> None:
    """The acquire of its lease may be pending on another set."""
    pool = a_pool(4)
    _, connection_set = lead(pool)
    other = pool.borrow(Caller())
    assert other is not None
    follower = Caller(shares=True, urgent=True)
    assert pool.borrow(follower, path=connection_set) is connection_set
    assert pool.borrow(follower, path=other) not in (connection_set, other)


def test_acquires_queue_while_a_set_is_full(monkeypatch: Any) -> None:
    """Releases do not, and one that queued follows when another one goes."""
    monkeypatch.setattr("quorlock._drivers.sync.pool.LOOK_AGAIN", 60_000 * MS)
    pool = a_pool(4)
    _, connection_set = lead(pool)
    followers = [Caller(shares=True) for _ in range(FOLLOWERS_MAX)]
    assert {pool.borrow(follower) for follower in followers} == {connection_set}
    assert pool.borrow(Caller(shares=True), by=now()) is None
    assert pool.borrow(Caller(shares=True, urgent=True)) is connection_set
    order: list[str] = []
    threads = [in_thread(pool, order, str(number), urgent=False) for number in range(2)]
    assert order == []
    for follower in followers[:3]:
        pool.leave(follower, connection_set)
    for thread in threads:
        thread.join(10)
    assert order == ["0", "1"]
    assert pool.all() == [connection_set]


def test_who_comes_later_does_not_queue_where_all_may_follow(monkeypatch: Any) -> None:
    """Threads in the queue wake one by one: behind them, a crowd would queue at every call."""
    monkeypatch.setattr("quorlock._drivers.sync.pool.LOOK_AGAIN", 60_000 * MS)
    pool = a_pool(4)
    _, connection_set = lead(pool)
    connection_set.takes_rounds = False
    order: list[str] = []
    threads = [in_thread(pool, order, str(number), urgent=False) for number in range(2)]
    connection_set.takes_rounds = True  # and they are not awake yet
    followers = [Caller(shares=True) for _ in range(FOLLOWERS_MAX - 2)]
    for follower in followers:
        assert pool.borrow(follower, by=now()) is connection_set
    assert pool.borrow(Caller(shares=True), by=now()) is None, "these places are for the queue"
    pool.on_change()
    for thread in threads:
        thread.join(10)
    assert order == ["0", "1"]


def test_who_waits_for_a_set_of_its_own_is_not_overtaken(monkeypatch: Any) -> None:
    """A borrower that cannot follow needs a set that is free when all followers have gone."""
    monkeypatch.setattr("quorlock._drivers.sync.pool.LOOK_AGAIN", 60_000 * MS)
    pool = a_pool(1)
    _, connection_set = lead(pool)
    order: list[str] = []
    waits = in_thread(pool, order, "its own", urgent=False, shares=False)
    later = Caller(shares=True)
    has_overtaken = pool.borrow(later, by=now()) is not None
    pool.leave(later, connection_set)
    pool.give_back(connection_set)
    waits.join(10)
    assert order == ["its own"]
    assert not has_overtaken


def test_acquires_wait_for_a_leader_that_connects(monkeypatch: Any) -> None:
    """Acquires neither follow it nor connect. An urgent caller connects if it takes long."""
    monkeypatch.setattr("quorlock._drivers.sync.pool.LOOK_AGAIN", 60_000 * MS)
    pool = a_pool(4)
    _, connection_set = lead(pool)
    connection_set.takes_rounds = False
    assert pool.borrow(Caller(shares=True, urgent=True)) is not connection_set
    order: list[str] = []
    pool._owners[pool.all()[1]] = Caller()  # not free either
    thread = in_thread(pool, order, "acquires", urgent=False)
    connection_set.takes_rounds = True
    pool.on_change()
    thread.join(10)
    assert order == ["acquires"]
    assert len(pool.all()) == 2


def test_a_caller_that_comes_while_a_connection_set_is_returned_is_served(monkeypatch: Any) -> None:
    """A caller that arrives between the giver's check of the queue and its record must not wait for
    the next check after 0.1 s.
    """
    monkeypatch.setattr("quorlock._drivers.sync.pool.LOOK_AGAIN", 60_000 * MS)
    pool = a_pool(1)
    _, connection_set = lead(pool)
    connection_set.takes_rounds = False
    order: list[str] = []
    threads: list[threading.Thread] = []

    class Notes(dict[Any, Any]):
        """The giver's last act before its note goes."""

        def pop(self, *of: Any) -> Any:
            if not threads:
                threads.append(in_thread(pool, order, "came late", urgent=False))
            return super().pop(*of)

    pool._owners = Notes(pool._owners)
    pool.give_back(connection_set)
    threads[0].join(10)
    assert order == ["came late"]


def test_a_visit_leaves_a_borrowed_set_to_its_borrower() -> None:
    """Also in a call of the borrower itself, which still uses the set."""
    pool = a_pool(4)
    borrower = Caller()
    connection_set = pool.borrow(borrower)
    assert connection_set is not None
    connection_set.visit()
    assert pool._owners == {connection_set: borrower}
    pool.give_back(connection_set)
    connection_set.visit()
    assert pool._owners == {}


def test_many_threads_share_one_connection_set(nodes: Servers) -> None:
    """64 threads acquire and release over one connection to each node."""
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        assert redlock.lock("first").acquire().release()
        pool = redlock._session.driver._pool
        failed: list[Exception] = []

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    assert redlock.lock(f"{number}:{turn}").acquire(timeout=30).release()
            except Exception as error:  # noqa: BLE001 (raised below)
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        assert len(pool.all()) == 1
        assert until(lambda: not pool._owners), "late replies are read by a thread, for a moment"
        assert not pool.all()[0].followers


def test_nothing_is_sent_for_who_queued_when_it_was_closed(nodes: Servers) -> None:
    """Closing waits for rounds in flight; those that have not begun do not begin then."""
    for node in nodes:
        node.execute("CONFIG", "RESETSTAT")
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        driver = redlock._session.driver
        pool = driver._pool
        _, connection_set = lead(pool)  # it has no quorum yet, so no thread follows it
        errors: list[str] = []

        def work() -> None:
            try:
                redlock.lock("queued").acquire()
            except QuorlockError as error:
                errors.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        assert until(lambda: pool._queue)
        driver._closed.set()
        pool.give_back(connection_set)
        thread.join(10)
        assert errors == [CLOSED_MEANWHILE]
        assert not any(b"cmdstat_set:" in node.execute("INFO", "commandstats") for node in nodes)
        assert until(lambda: not pool._owners)


def test_a_call_that_goes_on_while_it_is_looked_at_is_not_abandoned() -> None:
    """A generator that has yielded since then names no caller: the call above it seemed gone."""
    owners, over = list[Caller](), threading.Event()

    def flow() -> Iterator[None]:
        while True:
            yield

    def _complete(runner: Caller) -> None:
        owners.append(runner)
        step = flow()
        while not over.is_set():
            next(step)

    def call() -> None:
        owner = Caller()
        owner.thread = threading.get_ident()
        _complete(owner)

    thread, interval = threading.Thread(target=call), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        assert until(lambda: owners)
        assert not any(_is_abandoned(owners[0]) for _ in range(100_000))
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


def test_one_of_many_waiting_threads_looks_for_abandoned_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 500 looked at the frames of all, ten times a second, and they did little else."""
    looks = list[Borrower]()

    def looked_at(owner: Borrower) -> bool:
        looks.append(owner)
        return False

    monkeypatch.setattr("quorlock._drivers.sync.pool._is_abandoned", looked_at)
    pool, by = a_pool(1), now() + 350 * MS
    take(pool)
    waiting = [Caller() for _ in range(20)]
    threads = [threading.Thread(target=pool.borrow, args=(caller, by)) for caller in waiting]
    for caller, thread in zip(waiting, threads, strict=True):
        caller.thread = 1  # any but that of the call that has the set
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(looks) <= 4


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_frames_are_read(*, collects: bool) -> None:
    """CPython 3.11 stopped for ever, all threads, if there was a `threading.local` among it.

    The threads need a frame object each, one of which would begin the collection.
    """
    program = f"""
        import faulthandler, gc, threading
        from quorlock._drivers.sync.pool import _frame_of

        faulthandler.dump_traceback_later(10, exit=True)
        over = threading.Event()
        threads = [threading.Thread(target=over.wait) for _ in range(60)]
        for thread in threads:
            thread.start()
        gc.disable()
        for _ in range(5):
            local = threading.local()
            local.itself = local
        del local
        gc.set_threshold(gc.get_count()[0] + 20)
        if {collects}:
            gc.enable()
        assert all([_frame_of(thread.ident) for thread in threads])
        assert gc.isenabled() is {collects}
        over.set()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_garbage_is_collected_again_if_frames_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An audit hook may refuse it, or there is no memory left."""

    def refuse() -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(sys, "_current_frames", refuse)
    with pytest.raises(MemoryError):
        _frame_of(threading.get_ident())
    assert gc.isenabled()
