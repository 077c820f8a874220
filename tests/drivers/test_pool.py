"""Who gets which bundle: the pool alone, and many threads on real nodes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from quorlock import QuorlockError, Redlock
from quorlock._core.effects import Receipt
from quorlock._drivers.blocking import BUNDLES_MAX
from quorlock._drivers.clock import now
from quorlock._drivers.members import CLOSED_MEANWHILE
from quorlock._drivers.pool import Owner, Pool

if TYPE_CHECKING:
    from quorlock._drivers.bundle import Bundle
    from quorlock.testing.servers import Servers

MS = 1_000_000


class Caller(Owner):
    """Somebody who acquires, or who holds and is urgent."""

    def __init__(self, *, urgent: bool = False) -> None:
        self.urgent = urgent


class Path:
    """What a pool is told to make, as far as it looks at it."""

    owes = False

    def close(self) -> None:
        """Nothing is open."""


def a_pool(cap: int) -> Pool:
    made: Any = Path
    return Pool(made, cap, lambda _: None)


def take(pool: Pool, *, urgent: bool = False, path: object = None) -> Bundle:
    bundle = pool.take(Caller(urgent=urgent), path=path)
    assert bundle is not None
    return bundle


def in_thread(pool: Pool, order: list[str], name: str, *, urgent: bool) -> threading.Thread:
    """Takes a bundle, says so, gives it back; started, and in the queue."""
    queue = pool._urgent if urgent else pool._queue
    before = len(queue)

    def work() -> None:
        bundle = pool.take(Caller(urgent=urgent))
        assert bundle is not None
        order.append(name)
        pool.give(bundle)

    thread = threading.Thread(target=work)
    thread.start()
    while len(queue) == before and thread.is_alive():
        time.sleep(0.0001)
    return thread


def a_round(*, sending_us: int, waiting_us: int) -> Receipt:
    """One that is over now."""
    at = now()
    started = at - (sending_us + waiting_us) * 1000
    return Receipt(1, started, started + sending_us * 1000, 1)


def test_a_release_takes_the_bundle_that_acquired() -> None:
    """If it is free: the answers of the acquire that nobody waited for come down the same one."""
    pool = a_pool(4)
    first, second, third = take(pool), take(pool), take(pool, urgent=True)
    pool.give(first)
    pool.give(second)
    assert take(pool, urgent=True, path=second) is second
    assert take(pool, urgent=True, path=third) is first, "its own is in hand: any that is free"


def test_a_bundle_that_is_gone_is_nobodys_path() -> None:
    """A lease may outlive the bundle that acquired it."""
    pool = a_pool(1)
    bundle = take(pool)
    other: Any = Path()
    pool.give(bundle)
    held = take(pool, urgent=True)
    assert take(pool, urgent=True, path=other) is not other
    pool.give(held)


def test_who_is_urgent_gets_the_next_bundle_before_all_who_queue(monkeypatch: Any) -> None:
    """It does not queue behind them, and makes no connections while one is about to come back."""
    monkeypatch.setattr("quorlock._drivers.pool._URGENT_WAITS", 60_000 * MS)
    pool = a_pool(1)
    bundles = [take(pool), take(pool, urgent=True)]
    order: list[str] = []
    threads = [in_thread(pool, order, f"acquires {n}", urgent=False) for n in range(3)]
    threads.append(in_thread(pool, order, "releases", urgent=True))
    pool.give(bundles[1])
    threads[-1].join(10)
    assert order == ["releases"], "an urgent one's return frees no place"
    pool.give(bundles[0])
    for thread in threads:
        thread.join(10)
    assert order == ["releases", "acquires 0", "acquires 1", "acquires 2"]
    assert len(pool.every()) == 2
    assert not pool._owners


def test_who_is_urgent_does_not_wait_long() -> None:
    """Bundles on nodes that hang may not come back for a while: a new one then."""
    pool = a_pool(1)
    in_hand = [take(pool), take(pool, urgent=True)]
    assert take(pool, urgent=True) not in in_hand


def test_places_follow_what_a_round_waits_for() -> None:
    """Few where answers come at once, more where the network is slow, never above the cap."""
    pool = a_pool(8)
    waiting = in_queue(pool)
    for _ in range(100):
        pool._learn(a_round(sending_us=60, waiting_us=150))
    assert pool._places == 2
    for _ in range(100):
        pool._learn(a_round(sending_us=60, waiting_us=1000))
    assert 4 <= pool._places <= 6
    for _ in range(100):
        pool._learn(a_round(sending_us=60, waiting_us=20_000))
    assert pool._places == 8
    # A round that fights for the interpreter takes longer in all its parts.
    for _ in range(100):
        pool._learn(a_round(sending_us=6000, waiting_us=15_000))
    assert pool._places == 2
    assert not waiting


def in_queue(pool: Pool) -> list[object]:
    """Those that wait."""
    return [*pool._queue, *pool._urgent]


def test_a_new_place_is_taken_at_once() -> None:
    """Who queues does not wait for one of the others to come back."""
    pool = a_pool(8)
    in_hand = [take(pool) for _ in range(pool._places)]
    order: list[str] = []
    thread = in_thread(pool, order, "queued", urgent=False)
    for _ in range(100):
        pool._learn(a_round(sending_us=60, waiting_us=20_000))
    thread.join(10)
    assert order == ["queued"]
    assert len(pool._owners) == len(in_hand)


def test_who_comes_while_a_bundle_is_given_back_is_served(monkeypatch: Any) -> None:
    """Between the giver's look at the queue and its note: nobody would look before 0.1 s."""
    monkeypatch.setattr("quorlock._drivers.pool._LOOK_AGAIN", 60.0)
    pool = a_pool(1)
    bundle = take(pool)
    order: list[str] = []
    threads: list[threading.Thread] = []

    class Notes(dict[Any, Any]):
        """The giver's last act before its note goes."""

        def pop(self, *of: Any) -> Any:
            if not threads:
                threads.append(in_thread(pool, order, "came late", urgent=False))
            return super().pop(*of)

    pool._owners = Notes(pool._owners)
    pool.give(bundle)
    threads[0].join(10)
    assert order == ["came late"]


def test_many_threads_share_few_connections(nodes: Servers, monkeypatch: Any) -> None:
    """64 threads that acquire and release: nobody connects for one round."""
    monkeypatch.setattr("quorlock._drivers.pool._URGENT_WAITS", 60_000 * MS)
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        pool = redlock._session.driver._pool
        made: list[Bundle] = []
        make = pool._make

        def noting() -> Bundle:
            made.append(make())
            return made[-1]

        pool._make = noting
        failed: list[Exception] = []

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    assert redlock.lock(f"{number}:{turn}").acquire(timeout=30).release()
            except Exception as error:  # noqa: BLE001 (told below)
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        # Two for each place; and those that acquire find all of them in hand by releases at worst.
        assert len(made) <= 3 * BUNDLES_MAX


def test_nothing_is_sent_for_who_queued_when_it_was_closed(nodes: Servers) -> None:
    """Closing waits for rounds under way; those that have not begun do not begin then."""
    for node in nodes:
        node.execute("CONFIG", "RESETSTAT")
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        driver = redlock._session.driver
        pool = driver._pool
        in_hand = [take(pool) for _ in range(pool._places)]
        told: list[str] = []

        def work() -> None:
            try:
                redlock.lock("queued").acquire()
            except QuorlockError as error:
                told.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        while not pool._queue:
            time.sleep(0.0001)
        driver._closed.set()
        for bundle in in_hand:
            pool.give(bundle)
        thread.join(10)
        assert told == [CLOSED_MEANWHILE]
        assert not any(b"cmdstat_set:" in node.execute("INFO", "commandstats") for node in nodes)
        assert not pool._owners
