"""The blocking driver: flows in threads, over sockets and poll. The contract is in `abc`.

The calling thread sends and receives, over a connection set that it borrows. A `Connector` opens
connections and sends pending releases, a `ConnectionSet` runs the rounds, and this module runs the
flow.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from quorlock._core.commands import ACQUIRES, Release
from quorlock._core.effects import FlowCancelled, Receive, Send, SendBatch, Sleep
from quorlock._core.rounds import NodeReply, SentRound
from quorlock._core.votes import NOT_SET
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED, CLOSED_MEANWHILE, CROWDED, NodeState
from quorlock._drivers.node_states import NodeStates
from quorlock._drivers.sync.connection import Inbox
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._drivers.sync.connector import Connectors
from quorlock._drivers.sync.drainer import IdleDrainer
from quorlock._drivers.sync.pool import Borrower, ConnectionPool
from quorlock._drivers.sync.tracking import TrackedConnections
from quorlock._drivers.threads import BackgroundThread
from quorlock._drivers.wait import OneShotEvent, is_stopped, next_look
from quorlock.errors import ConfigError, QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.config import Policy
    from quorlock._core.effects import Effect, Flow, StopEvent
    from quorlock._core.results import NodeStatus
    from quorlock._core.time import Instant
    from quorlock._core.votes import Answer
    from quorlock._nodes.node import Node

T = TypeVar("T")
R = TypeVar("R")

# This many threads acquire together at most, and the others queue. The pool admits fewer if nodes
# reply fast (see `pool`).
CONNECTION_SETS_MAX = 8
_NO_POLL = (
    "the blocking API waits for nodes by it, and it is missing (eventlet.monkey_patch() removes"
    " it): use quorlock.asyncio, threads or gevent"
)


class Driver:
    """The blocking driver of one set of nodes, shared by all threads of the process."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        if not hasattr(select, "poll"):
            raise ConfigError("select.poll", None, _NO_POLL)
        self._nodes = nodes
        self._policy = policy
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self.node_states = NodeStates(self._nodes, self._policy)
        self._closed = OneShotEvent()
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

    def run(self, flow: Flow[T], over: TrackedConnections | None = None) -> T:
        """Run the flow to its end."""
        return self.run_and_claim(flow, _itself, over)

    def run_and_claim(
        self, flow: Flow[T], claim: Callable[[T], R], over: TrackedConnections | None = None
    ) -> R:
        """Run the flow to its end, and make the caller's result (a lease) from its outcome.

        If the caller is interrupted before that, the flow releases the lock.
        """
        runner = _FlowRunner(over or self._pool, self.node_states, self._closed, flow)
        try:
            result = claim(runner.run(flow))
            if self._closed.up and runner.has_won:
                # Closed by a signal handler, after the flow has won.
                raise QuorlockError(CLOSED_MEANWHILE)
            runner.over = True
            runner.return_connections()
            flow.close()
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
        self._closed.set()
        self._pool.wait_until_idle(now() + 2 * self._policy.node_timeout)

    def close(self) -> None:
        """Send pending releases for a bounded time, and close everything."""
        self.stop()
        until = now() + 2 * self._policy.node_timeout
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
        self._start()
        if closed:
            self._closed.set()


class _FlowRunner(Inbox, Borrower):
    """One running flow: its inbox, and the connection set that it has borrowed."""

    __slots__ = (
        "_closed",
        "_connection_set",
        "_flow",
        "_node_states",
        "_pool",
        "_sent_round",
        "has_won",
        "is_urgent",
        "stop",
        "thread",
    )

    def __init__(
        self,
        pool: ConnectionPool | TrackedConnections,
        node_states: NodeStates,
        closed: OneShotEvent,
        flow: Flow[Any],
    ) -> None:
        self._pool = pool
        self._node_states = node_states
        self._closed = closed
        self._connection_set: ConnectionSet | None = None
        self._sent_round: SentRound | None = None
        self._flow = flow
        self.thread = threading.get_ident()
        self.has_won = False
        self.is_urgent = False
        self.stop = None
        self.inbox = deque()  # as `Inbox` begins, without another call
        self.deliver = self.inbox.append
        self.over = False
        self.round = 0

    def run(self, flow: Flow[T]) -> T:
        """Perform the flow's effects until it has an outcome."""
        step = flow.send
        value: Any = None
        try:
            while True:
                effect = step(value)
                if isinstance(effect, Receive):
                    connection_set = self._connection_set
                    value = (
                        connection_set.receive(self, effect)
                        if connection_set
                        else self.inbox.popleft()
                    )
                elif isinstance(effect, Send):
                    value = self._send(effect)
                elif isinstance(effect, Sleep):
                    value = self._sleep(*effect)
                elif isinstance(effect, SendBatch):
                    value = self._send_all(effect)
                else:
                    if self._closed.up:
                        raise QuorlockError(CLOSED_MEANWHILE)
                    self.has_won = True
                    return effect.granted  # type: ignore[return-value] # T is Granted then
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    def cancel(self) -> None:
        """Cancel the flow, so that it releases the lock, and return its connection set.

        A set whose owner was interrupted inside is discarded. The releases that the flow would send
        over it become pending releases on every node of the round.
        """
        self.over = True
        connection_set = self._connection_set
        if connection_set is not None and connection_set.is_busy:
            connection_set.discard()
        try:
            with contextlib.suppress(StopIteration, FlowCancelled):
                self._finish_sends(self._flow, self._flow.throw(FlowCancelled()))
        finally:
            self._connection_set = None
            self._pool.give_back_all(self)

    def recover(self, pool: ConnectionPool) -> None:
        """Cancel the flow."""
        del pool
        self.cancel()

    def _finish_sends(self, flow: Flow[Any], effect: Effect) -> None:
        # If no byte of an acquire was sent, there is no key to release.
        while type(effect) is Send and (self.round or self.is_urgent):
            connection_set = self._connection_set or self._borrow(effect)
            effect = flow.send(
                connection_set.send(effect, self) if connection_set else self._skip_round(NOT_SET)
            )
        flow.close()

    def _send(self, effect: Send) -> SentRound:
        if self._closed.up and (self._pool.closing or type(effect.command) is not Release):
            raise QuorlockError(CLOSED)
        connection_set = self._connection_set or self._borrow(effect)
        if connection_set is None:
            return self._skip_round(NOT_SET if effect.behind else CROWDED)
        connection_set.prepare(effect.connect_until, effect.stop)
        if connection_set.is_incomplete and type(effect.command) is not Release:
            self._node_states.raise_config_errors()
        self._sent_round = sent_round = connection_set.send(effect, self)
        return sent_round

    def _send_all(self, effect: SendBatch) -> tuple[SentRound, ...]:
        """Send a batch of renewal, which never queues behind acquires."""
        if self._closed.up:
            raise QuorlockError(CLOSED)
        self.is_urgent = True
        connection_set = self._connection_set = self._connection_set or self._pool.borrow(self)
        assert connection_set is not None, "who is urgent gets one"
        connection_set.prepare(min([send.connect_until for send in effect.sends]))
        return connection_set.send_all(effect, self)

    def _borrow(self, effect: Send) -> ConnectionSet | None:
        """Borrow a connection set; None if nothing can or should be sent."""
        behind, path = effect.behind, None
        if behind is not None:
            if not behind.nodes:
                return None
            path = behind.path
        self.is_urgent = type(effect.command) not in ACQUIRES
        self.stop = effect.stop
        self._connection_set = self._pool.borrow(self, effect.queue_until, path)
        if self._closed.up and not self.is_urgent:
            raise QuorlockError(CLOSED_MEANWHILE)  # closed while it queued
        return self._connection_set

    def _skip_round(self, answer: Answer) -> SentRound:
        self.round += 1
        at = now()
        for node_state in self._node_states.all:
            self.inbox.append(NodeReply(self.round, node_state.index, answer, at))
        return SentRound(self.round, at, at, 0)

    def return_connections(self) -> None:
        """Return the borrowed connection set, if there is one."""
        connection_set, self._connection_set = self._connection_set, None
        if connection_set is not None:
            self._pool.give_back(connection_set, self._sent_round)

    def _sleep(self, until: Instant, stop: StopEvent | None) -> Instant:
        self.return_connections()
        while now() < until and not is_stopped(stop):
            if self._closed.wait(next_look(until, stop)):
                raise QuorlockError(CLOSED_MEANWHILE)
        return now()


def interpreter_ends() -> None:
    """Stop raising in daemon threads when a driver is closed, from now on."""
    _exiting.set()


_exiting = OneShotEvent()


def _freeze_at_exit() -> None:
    """Stop a daemon thread at interpreter exit, before it prints a traceback."""
    while _exiting.up and threading.get_ident() != threading.main_thread().ident:
        time.sleep(3600)


def _itself(outcome: T) -> T:
    return outcome
