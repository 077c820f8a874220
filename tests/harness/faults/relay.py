"""One thread that waits for sockets and timers, for all proxies of a run.

This module has the thread, the selector and the timers; `proxy` handles the bytes. All of its
objects belong to this thread: other threads use `call()`.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, Self, TypeVar

_CALL_TIMEOUT = 10.0  # seconds until the thread must have executed a call

T = TypeVar("T")
Handler = Callable[[int], None]  # takes the events that its socket is ready for


class Relay:
    """The thread. A context manager; what is watched must be forgotten before it ends."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()  # timers of one instant fire in the order in which they were set
        self._orders: deque[Callable[[], None]] = deque()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="faults-relay", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._ear, selectors.EVENT_READ, self._listen)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._end)
        self._thread.join(_CALL_TIMEOUT)
        assert not self._thread.is_alive(), "the relay's thread did not end"
        self._selector.close()
        self._ear.close()
        self._mouth.close()

    def call(self, work: Callable[[], T]) -> T:
        """Have the thread do this, and return what came of it. From other threads only."""
        outcome: Future[T] = Future()

        def order() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised in the caller, not in the thread
                outcome.set_exception(error)

        self._orders.append(order)
        self._mouth.send(b"o")
        return outcome.result(_CALL_TIMEOUT)

    def watch(self, sock: socket.socket, events: int, handler: Handler) -> None:
        """Call `handler` whenever the socket is ready for one of the events; with none, never."""
        now = self._selector.get_map().get(sock)
        if now is None and events:
            self._selector.register(sock, events, handler)
        elif now is not None and not events:
            self._selector.unregister(sock)
        elif now is not None and (now.events, now.data) != (events, handler):
            self._selector.modify(sock, events, handler)

    def forget(self, sock: socket.socket) -> None:
        """Watch it no more. To be done before it is closed."""
        self.watch(sock, 0, lambda _: None)

    def at(self, due: float, work: Callable[[], None]) -> None:
        """Call `work` at this instant of `time.monotonic()`."""
        heapq.heappush(self._timers, (due, next(self._numbers), work))

    def _run(self) -> None:
        while not self._over:
            for key, events in self._selector.select(self._patience()):
                # One handler may have closed the socket of the next.
                if self._selector.get_map().get(key.fd) == key:
                    handler: Any = key.data
                    handler(events)
            self._fire()

    def _patience(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _listen(self, _: int) -> None:
        self._ear.recv(4096)
        while self._orders:
            self._orders.popleft()()

    def _end(self) -> None:
        self._over = True
