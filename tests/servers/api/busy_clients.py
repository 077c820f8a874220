"""Clients that lock all the time, for tests that change nodes or settings under them."""

from __future__ import annotations

import threading
from typing import Any

import quorlock
from quorlock import QuorlockError
from tests.harness.support.wait import until

BRIEF: dict[str, Any] = {"ttl": 0.4, "max_ttl": 0.4, "node_timeout": 0.1, "restart_guard": None}


class Clients:
    """Threads that acquire and release one resource. The holder notes it, outside of the lock."""

    def __init__(self) -> None:
        self.inside = 0
        self.overlaps = 0
        self.leases = 0
        self.refused: list[str] = []
        self._lock = threading.Lock()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def start(self, urls: list[str], **settings: Any) -> None:
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(urls, settings, over))
        self._threads.append((thread, over))
        thread.start()

    def deploy(self, urls: list[str], **settings: Any) -> None:
        """Start one with these settings, then end the earlier ones: a rolling deployment."""
        earlier, self._threads = self._threads, []
        self.start(urls, **settings)
        self.go_on()
        self._end(earlier)
        self.go_on()

    def _work(self, urls: list[str], settings: dict[str, Any], over: threading.Event) -> None:
        with quorlock.Redlock(urls, **BRIEF | settings) as redlock:
            while not over.is_set():
                try:
                    lease = redlock.lock("x").acquire(timeout=1.0)
                    self._hold(lease, over)
                    lease.release()  # may be refused, if an agreement was written in between
                except QuorlockError as error:
                    self.refused.append(str(error))
                    over.wait(0.02)

    def _hold(self, lease: quorlock.Lease, over: threading.Event) -> None:
        with self._lock:
            self.inside += 1
            self.leases += 1
            self.overlaps += self.inside > 1 and lease.held
        over.wait(0.001)
        with self._lock:
            self.inside -= 1

    def go_on(self, count: int = 20) -> None:
        """Wait until so many more leases were had."""
        goal = self.leases + count
        enough = until(lambda: self.leases >= goal, 10)
        assert enough, (self.leases, goal, self.refused[-3:])

    def await_refusal(self, *texts: str) -> None:
        """Wait until a client was refused with one of these texts."""
        refused = until(lambda: any(t in said for said in list(self.refused) for t in texts), 10)
        assert refused, self.refused[-3:]

    def join(self) -> None:
        earlier, self._threads = self._threads, []
        self._end(earlier)

    @staticmethod
    def _end(threads: list[tuple[threading.Thread, threading.Event]]) -> None:
        for _, over in threads:
            over.set()
        for thread, _ in threads:
            thread.join()
