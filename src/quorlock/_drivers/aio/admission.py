"""The waits before a send in an event loop: for a slot, and for connections."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorlock._drivers.clock import now, sleep_seconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from quorlock._core.config import Policy
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.abc import RunningFlow
    from quorlock._drivers.aio.batching import SharedPipeline
    from quorlock._drivers.aio.connector import AsyncConnector
    from quorlock._drivers.aio.loops import Guard

# This many acquires and inspections run together; the others queue before their time begins to run.
# Beyond it every round takes longer, until no reply comes within node_timeout. At 128 the nodes are
# always busy.
ACQUIRING_MAX = 128


class Admission:
    """The slots of the acquires and inspections that run, and the queue of the others."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guarded: Guard) -> None:
        self.queue: deque[RunningFlow] = deque()
        self.acquiring = 0
        self._loop = loop
        self._guarded = guarded

    def try_enter(self) -> bool:
        """Take a slot; return false if all are taken."""
        if self.acquiring >= ACQUIRING_MAX:
            return False
        self.acquiring += 1
        return True

    def leave(self) -> None:
        """Return a slot; the next flow in the queue, if there is one, gets it soon."""
        self.acquiring -= 1
        if self.queue and self.acquiring == ACQUIRING_MAX - 1:  # the first in this tick
            self._loop.call_soon(self._guarded(self._admit))

    def _admit(self) -> None:
        while self.queue and self.try_enter():
            if not self.queue.popleft().admitted():
                self.acquiring -= 1

    def reset(self) -> None:
        """Forget all flows, which are cancelled."""
        self.queue.clear()
        self.acquiring = 0


class Readiness:
    """The wait for connections: until a quorum is connected, or none is to be expected soon."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guarded: Guard,
        connectors: Sequence[AsyncConnector],
        shared_pipeline: SharedPipeline,
        policy: Policy,
    ) -> None:
        self._loop = loop
        self._guarded = guarded
        self._connectors = connectors
        self._shared_pipeline = shared_pipeline
        self._policy = policy
        self._waiting: list[Callable[[], None]] = []
        self._recheck: asyncio.TimerHandle | None = None
        self._fresh = True
        self._grace: Instant | None = None
        self._give_up: Instant | None = None

    def is_ready(self) -> bool:
        """Return whether the wait is over, and wake the connectors without a connection."""
        if self._shared_pipeline.is_complete:
            return True
        missing = False
        for connector in self._connectors:
            if connector.connection is None:
                missing = True
                connector.wake()
        return not missing or self._done_connecting()

    def when_ready(self, go_on: Callable[[], None]) -> None:
        """Call back when `is_ready` would return true."""
        self._waiting.append(go_on)
        self._look_again()

    def on_change(self) -> None:
        """Look again: a connection was made or lost, or an attempt has failed."""
        if self._waiting:
            self._look_again()

    def _done_connecting(self) -> bool:
        if not any(connector.may_still_connect for connector in self._connectors):
            return True
        at = now()
        connected = sum(connector.connection is not None for connector in self._connectors)
        if connected < self._policy.quorum:
            self._grace = None  # it begins again with the next quorum
            # A little longer than the connect timeout, so that the reason of a failure is known.
            patience = self._policy.connect_timeout + self._policy.node_timeout
            self._give_up = self._give_up or at + patience
            return at >= self._give_up
        if not self._fresh:
            return True
        # A short wait for the remaining nodes, once.
        self._grace = self._grace or at + self._policy.node_timeout
        return at >= self._grace

    def _look_again(self) -> None:
        self.stop()
        if not self.is_ready():  # also replaces a connection that was lost
            left = sleep_seconds(self._grace or self._give_up or 0)
            self._recheck = self._loop.call_later(left, self._guarded(self._look_again))
            return
        self._fresh, self._grace, self._give_up = False, None, None
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None

    def reset(self) -> None:
        """Forget all flows, which are cancelled. All nodes are to be connected again."""
        self._waiting.clear()
        self._fresh, self._grace, self._give_up = True, None, None
        self.stop()
