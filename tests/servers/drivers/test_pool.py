"""The distribution of connection sets: the pool alone, and many threads on real nodes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from quorlock import QuorlockError, Redlock
from quorlock._core.rounds import SentRound
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED_MEANWHILE
from quorlock._drivers.sync.pool import Borrower, ConnectionPool, _Slots
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock.testing.servers import Servers

MS = 1_000_000


class Caller(Borrower):
    """A thread that acquires, or that holds a lock and is urgent."""

    def __init__(self, *, urgent: bool = False) -> None:
        self.is_urgent = urgent


class Path:
    """The part of a driver that a pool uses."""

    has_pending = is_busy = closed = False
    visit: Any = None

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
    pool: ConnectionPool, order: list[str], name: str, *, urgent: bool
) -> threading.Thread:
    """Takes a bundle, says so, gives it back; started, and in the queue."""
    queue = pool._urgent if urgent else pool._queue
    before = len(queue)

    def work() -> None:
        connection_set = pool.borrow(Caller(urgent=urgent))
        assert connection_set is not None
        order.append(name)
        pool.give_back(connection_set)

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: len(queue) > before or not thread.is_alive())
    return thread


def a_round(*, sending_us: int, waiting_us: int) -> SentRound:
    """One that is over now."""
    at = now()
    started = at - (sending_us + waiting_us) * 1000
    return SentRound(1, started, started + sending_us * 1000, 1)


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


def test_who_is_urgent_gets_the_next_connection_set_before_all_who_queue(monkeypatch: Any) -> None:
    """An urgent caller does not queue behind them, and makes no connections while one is about to
    be returned.
    """
    monkeypatch.setattr("quorlock._drivers.sync.pool._URGENT_WAITS", 60_000 * MS)
    pool = a_pool(1)
    connection_sets = [take(pool), take(pool, urgent=True)]
    order: list[str] = []
    threads = [in_thread(pool, order, f"acquires {n}", urgent=False) for n in range(3)]
    threads.append(in_thread(pool, order, "releases", urgent=True))
    pool.give_back(connection_sets[1])
    threads[-1].join(10)
    assert order == ["releases"], "an urgent one's return frees no place"
    pool.give_back(connection_sets[0])
    for thread in threads:
        thread.join(10)
    assert order == ["releases", "acquires 0", "acquires 1", "acquires 2"]
    assert len(pool.all()) == 2
    assert not pool._owners


def test_who_is_urgent_does_not_wait_long() -> None:
    """Bundles on nodes that hang may not come back for a while: a new one then."""
    pool = a_pool(1)
    in_hand = [take(pool), take(pool, urgent=True)]
    assert take(pool, urgent=True) not in in_hand


def test_places_follow_what_a_round_waits_for() -> None:
    """Few where answers come at once, more where the network is slow, never above the cap."""
    slots = _Slots(8)
    for _ in range(100):
        slots.adapt(a_round(sending_us=60, waiting_us=150))
    assert slots.count == 2
    for _ in range(100):
        slots.adapt(a_round(sending_us=60, waiting_us=1000))
    assert 4 <= slots.count <= 6
    for _ in range(100):
        slots.adapt(a_round(sending_us=60, waiting_us=20_000))
    assert slots.count == 8
    # A round that fights for the interpreter takes longer in all its parts.
    for _ in range(100):
        slots.adapt(a_round(sending_us=6000, waiting_us=15_000))
    assert slots.count == 2


def test_a_new_place_is_taken_at_once() -> None:
    """A queued caller does not wait for another one to return its set."""
    pool = a_pool(8)
    in_hand = [take(pool) for _ in range(pool._slots.count)]
    urgent = take(pool, urgent=True)
    order: list[str] = []
    thread = in_thread(pool, order, "queued", urgent=False)
    pool.give_back(urgent, a_round(sending_us=60, waiting_us=20_000))
    thread.join(10)
    assert order == ["queued"]
    assert len(pool._owners) == len(in_hand)


def test_a_caller_that_comes_while_a_connection_set_is_returned_is_served(monkeypatch: Any) -> None:
    """A caller that arrives between the giver's check of the queue and its record must not wait for
    the next check after 0.1 s.
    """
    monkeypatch.setattr("quorlock._drivers.sync.pool._LOOK_AGAIN", 60.0)
    pool = a_pool(1)
    connection_set = take(pool)
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


def test_many_threads_share_few_connections(nodes: Servers, monkeypatch: Any) -> None:
    """64 threads acquire and release: none connects for one round."""
    monkeypatch.setattr("quorlock._drivers.sync.pool._URGENT_WAITS", 60_000 * MS)
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        pool = redlock._session.driver._pool
        made: list[ConnectionSet] = []
        make = pool._make

        def noting() -> ConnectionSet:
            made.append(make())
            return made[-1]

        pool._make = noting
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
        # Two for each place. Threads that look at the same moment may each make one more: at worst
        # one for each thread, of 640 rounds.
        assert len(made) <= len(threads)


def test_nothing_is_sent_for_who_queued_when_it_was_closed(nodes: Servers) -> None:
    """Closing waits for rounds under way; those that have not begun do not begin then."""
    for node in nodes:
        node.execute("CONFIG", "RESETSTAT")
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        driver = redlock._session.driver
        pool = driver._pool
        in_hand = [take(pool) for _ in range(pool._slots.count)]
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
        for connection_set in in_hand:
            pool.give_back(connection_set)
        thread.join(10)
        assert errors == [CLOSED_MEANWHILE]
        assert not any(b"cmdstat_set:" in node.execute("INFO", "commandstats") for node in nodes)
        assert not pool._owners
