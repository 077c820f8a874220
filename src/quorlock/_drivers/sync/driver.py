"""The blocking driver: flows in threads, over sockets and poll. The contract is in `abc`.

The calling thread sends and receives, over a connection set that it borrows, or follows another
thread that does so for it (`pool`). A `Connector` opens connections and sends pending releases, a
`ConnectionSet` runs the rounds, and a `FlowRunner` runs the flow.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

from quorlock._core.line import Lines
from quorlock._core.usual import itself
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED_MEANWHILE, NodeState
from quorlock._drivers.node_states import NodeStates
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._drivers.sync.connector import Connectors
from quorlock._drivers.sync.direct_runner import DirectRunner
from quorlock._drivers.sync.drainer import IdleDrainer
from quorlock._drivers.sync.flow_runner import FlowRunner, WaitingFlows
from quorlock._drivers.sync.pool import ConnectionPool
from quorlock._drivers.sync.tracking import TrackedConnections
from quorlock._drivers.threads import BackgroundThread
from quorlock._drivers.wait import OneShotEvent
from quorlock.errors import ConfigError, QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.claims import Claim
    from quorlock._core.config import Policy
    from quorlock._core.effects import Flow
    from quorlock._core.results import NodeStatus
    from quorlock._core.usual import UsualCase
    from quorlock._nodes.node import Node

T = TypeVar("T")
R = TypeVar("R")

# Threads share one set, but for those that cannot (see `pool`). If there are so many sets, these
# wait for one, and a surplus one is closed.
CONNECTION_SETS_MAX = 16
_NO_POLL = (
    "the blocking API waits for nodes by it, and it is missing (eventlet.monkey_patch() removes"
    " it): use quorlock.asyncio, threads or gevent"
)


class Driver:
    """The blocking driver of one set of nodes, shared by all threads of the process."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        if not hasattr(select, "poll"):
            raise ConfigError("select.poll", None, _NO_POLL)
        self._policy = policy
        self.node_states = NodeStates(nodes, policy)
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self._waiting_flows = WaitingFlows()
        self._closed = self._waiting_flows.closed
        self.lines = Lines() if self._policy.waiting == "auto" else None
        self._connectors = Connectors(self.node_states, self._policy)
        self._drainer = IdleDrainer()
        self._new_connection_set = partial(ConnectionSet, self._connectors)
        self._pool = ConnectionPool(
            self._new_connection_set, CONNECTION_SETS_MAX, self._drainer.look_after
        )
        self._drainer.pool = self._pool
        self._watches: list[TrackedConnections] = []
        self._background_flows: deque[Flow[None]] = deque()
        self._background_thread = BackgroundThread("quorlock releases", self._run_background_flows)

    def on_lease_over(self, claim: Claim) -> None:
        """Record that a lease is over which was not handed on: the next in line asks."""
        if self.lines is not None:
            self.lines.on_released(claim, now())

    def run(self, flow: Flow[T], over: TrackedConnections | None = None) -> T:
        """Run the flow to its end."""
        return self.run_and_claim(flow, itself, over)

    def run_and_claim(
        self, flow: Flow[T], claim: Callable[[T], R], over: TrackedConnections | None = None
    ) -> R:
        """Run the flow to its end, and make the caller's result (a lease) from its outcome."""
        pool = over or self._pool
        return self._complete(FlowRunner(pool, self.node_states, self._waiting_flows, flow), claim)

    def run_usual(self, usual: UsualCase[T], claim: Callable[[T], R]) -> R:
        """Do the same without a flow, unless one is needed."""
        states, waiting_flows = self.node_states, self._waiting_flows
        return self._complete(DirectRunner(self._pool, states, waiting_flows, usual), claim)

    def _complete(self, runner: FlowRunner[T], claim: Callable[[T], R]) -> R:
        """Run to the end, and make the caller's result.

        If the caller is interrupted before that, the lock is released.
        """
        try:
            result = claim(runner.run())
            if self._closed.up and runner.has_won:
                # Closed by a signal handler, after the flow has won.
                raise QuorlockError(CLOSED_MEANWHILE)
            runner.over = True
            runner.return_connections()
            runner.end()
            return result
        except BaseException:
            # Twice: an interrupt may cut the first call short.
            try:
                runner.cancel()
            finally:
                runner.cancel()
            if self._closed.up:
                _freeze_at_exit()
            raise

    def watch(self) -> TrackedConnections:
        """Return tracked connections for the caller, which closes them."""
        watch = TrackedConnections(self._new_connection_set, self._unwatch)
        self._watches.append(watch)
        return watch

    @property
    def watched(self) -> bool:
        """Return whether some tracked connections are still open."""
        return bool(self._watches)

    def _unwatch(self, watch: TrackedConnections) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    def run_in_background(self, flow: Flow[None]) -> None:
        """Run the flow in another thread: the caller may be anywhere, even inside our locks."""
        self._background_flows.append(flow)
        with contextlib.suppress(RuntimeError):  # no thread: retried, see `threads`
            self._background_thread.wake()

    def _run_background_flows(self) -> None:
        while self._background_flows:
            with contextlib.suppress(Exception):
                self.run(self._background_flows.popleft())

    def stop(self) -> None:
        """Grant no lock from now on; calls in a round complete it, or release the lock.

        Waits for these a bounded time: at interpreter exit threads are frozen in place, and their
        keys would stay. Releases are still sent.
        """
        self._waiting_flows.close()
        self._pool.wait_until_idle(now() + 2 * self._policy.node_timeout)

    def close(self) -> None:
        """Send pending releases for a bounded time, and close everything."""
        self.stop()
        until = now() + 2 * self._policy.node_timeout
        self._run_background_flows()  # the thread may not have begun: then nothing waits for it
        self._background_thread.close(until)
        self._drainer.close(until)
        self._pool.close(until)
        for connector in self._connectors.all:
            connector.close(until + self._policy.connect_timeout)

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Return the state of every node as this process knows it; nothing is sent."""
        self._pool.drain_idle()  # unread replies of idle sets are no silence of the node
        at = now()
        tracked = [watch.connection_set for watch in list(self._watches)]
        silent_for = [0] * len(self.node_states.all)
        for connection_set in [*self._pool.all(), *tracked]:
            for index, connection in enumerate(connection_set.connections):
                if connection is not None:
                    waiting = at - connection.pipeline.oldest_asked_at(at)
                    silent_for[index] = max(silent_for[index], waiting)
        return tuple(map(NodeState.status, self.node_states.all, silent_for, repeat(at)))

    @property
    def closed(self) -> bool:
        """Return whether the driver is closed."""
        return self._closed.up

    def reset_after_fork(self) -> None:
        """Drop the parent's connections silently and start again, in a forked child."""
        for connection_set in self._pool.all():
            connection_set.reset_after_fork()
        for watch in self._watches:
            watch.reset_after_fork()
        closed = self.closed
        self.node_states = self.node_states.in_child()
        self._start()
        if closed:
            self._closed.set()


def interpreter_ends() -> None:
    """Stop raising in daemon threads when a driver is closed, from now on."""
    _exiting.set()


_exiting = OneShotEvent()


def _freeze_at_exit() -> None:
    """Stop a daemon thread at interpreter exit, before it prints a traceback."""
    while _exiting.up and threading.get_ident() != threading.main_thread().ident:
        time.sleep(3600)
