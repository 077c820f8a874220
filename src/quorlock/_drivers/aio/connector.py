"""The connector of one node in one event loop: connect, reconnect, send pending releases.

A task does this work, and exists only while there is some. `connect` opens and closes the
connections, and `loop_driver` runs the rounds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorlock._drivers.aio.connect import NodeConnections
from quorlock._drivers.aio.loops import background_task
from quorlock._drivers.clock import now, sleep_seconds
from quorlock._drivers.node_state import Reachability
from quorlock._drivers.release_waiters import ReleaseWaiters
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import PendingRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Release
    from quorlock._core.releases_in_doubt import ReleaseCopy
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.batching import SharedPipeline
    from quorlock._drivers.aio.connection import AsyncConnection
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.node_states import NodeStates
    from quorlock._drivers.places import Places
    from quorlock._protocol.pipeline import InvalidationCallback


class AsyncConnector:
    """The connector of one node in one event loop, and its current connection (`connection`)."""

    def __init__(
        self,
        node_state: NodeState,
        node_states: NodeStates,
        on_change: Callable[[], None],
        shared_pipeline: SharedPipeline,
        places: Places,
        on_interrupt: Callable[[BaseException], bool],
    ) -> None:
        self.node_state = node_state
        self.bit = 1 << node_state.index
        self.connection: AsyncConnection | None = None
        self.on_change = on_change
        self.on_interrupt = on_interrupt  # called if an exception interrupted our own code
        self._places = places
        self.expected_calls = places.expected
        self._task: asyncio.Task[None] | None = None
        self._connections = NodeConnections(node_state, node_states, shared_pipeline)
        self._closed = False
        self._awaited = ReleaseWaiters(node_state)
        self._news = asyncio.Event()  # the connection is lost, or a release was added

    @property
    def may_still_connect(self) -> bool:
        """Return whether there is no connection and no attempt has failed yet."""
        return self.connection is None and self.node_state.reachability is not Reachability.DOWN

    def wake(self) -> None:
        """Start a task that connects or sends pending releases, if none is running."""
        self._news.set()
        if not self._closed and (self._task is None or self._task.done()):
            name = f"quorlock connector of {self.node_state.node.address}"
            self._task = background_task(self._work(), name)

    def release_later(self, request: PendingRequest, run_id: str = "") -> bool:
        """Register a pending release; return whether its receiver will get the reply.

        run_id: The process that may still get the acquire; "" if none can.
        """
        return self._awaited.add(request, run_id, closing=self._closed)

    def watch(self, callback: InvalidationCallback) -> None:
        """Report invalidations over its connections, from the next extension on."""
        self._connections.watch(callback)

    def discard(self) -> None:
        """Close all connections now, and reconnect if a release is pending then."""
        self._connections.discard()
        self.connection = None
        if len(self.node_state.pending_releases) and not self._closed:
            self.wake()

    async def close(self, give_up: float) -> None:
        """End the task and close all connections, after sending the written bytes."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.connection is not None:
            self.connection = None
            self.on_change()
        await self._connections.close(give_up)

    # --- the task ----------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            await self._work_on()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            # A request may be in the queue of a connection without its bytes being sent.
            has_caller = self.on_interrupt(error)
            asyncio.get_running_loop().call_soon(self.wake)  # a new task replaces this one
            if not has_caller:
                raise

    async def _work_on(self) -> None:
        while True:
            if self.connection is None:
                await _sleep_until(self.node_state.reconnect.retry_at)
                await self._connect()
                continue
            due = self.node_state.pending_releases.next_due()
            if due is None:
                return
            if await self._wait_for_work(due):
                self._send_due()

    async def _wait_for_work(self, due: Instant) -> bool:
        """Wait until `due`; return false if other work comes earlier.

        A release may be due only in half a max_ttl, and a lost connection must not wait for that.
        """
        self._news.clear()
        try:
            async with asyncio.timeout(sleep_seconds(due)):
                await self._news.wait()
        except TimeoutError:
            return True
        return False

    async def _connect(self) -> None:
        try:
            connection = await self._connections.open(self)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 (after any error this node does not vote)
            self.node_state.on_connect_failed(error, now())
            self._awaited.answer_all(now())
        else:
            self.connection = connection
            self._places.on_connected(connection)  # before a release may call one of them
            self._send_due()  # pending releases come first on a new connection (rule 3)
        self.on_change()

    def on_lost(self, connection: AsyncConnection) -> None:
        """Replace a connection, unless a newer one has; releases and calls need one."""
        if connection is self.connection:
            self.connection = None
            self.on_change()
        if len(self.node_state.pending_releases) or self._places.in_use:
            self.wake()

    def on_call(self, connection: AsyncConnection, place: bytes, key: bytes) -> None:
        """Deliver a call that the node has made."""
        self._places.on_call(connection, place, key)

    def on_end(self, connection: AsyncConnection) -> None:
        """Drop a connection whose transport has ended."""
        self._connections.remove(connection)

    def follow(self, release: Release) -> None:
        """Send this release behind its acquire, if that is unanswered here."""
        if self.connection is not None and self.connection.has_pending_acquire(release.token):
            self.release(release)

    def _send_due(self) -> None:
        connection = self.connection
        if connection is not None:
            for copy in self.node_state.pending_releases.due(now(), connection.run_id):
                self._send(copy, connection)

    def release(self, release: Release) -> None:
        """Send this release if there is a connection; the reply confirms a pending one."""
        if self.connection is not None:
            copy = self.node_state.pending_releases.take_due(release, self.connection.run_id, now())
            self._send(copy, self.connection)

    def _send(self, copy: ReleaseCopy, connection: AsyncConnection) -> None:
        release, at = copy.release, now()
        receiver = _ReleaseRequest(self.node_state, copy, self._awaited)
        if not connection.send(encode(release), PendingRequest(release, receiver, 0, at)):
            self.node_state.pending_releases.on_connection_lost(copy, at)


class _ReleaseRequest:
    """The receiver of the reply to a pending release."""

    over = False
    round = 0

    def __init__(self, node_state: NodeState, copy: ReleaseCopy, awaited: ReleaseWaiters) -> None:
        self._node_state = node_state
        self._copy = copy
        self._awaited = awaited

    def deliver(self, reply: NodeReply) -> None:
        pending_releases, (release, run_id) = self._node_state.pending_releases, self._copy
        pending_releases.on_connection_lost(self._copy, reply.at)
        pending_releases.on_reply(release, run_id, reply.answer)
        self._awaited.answer(release.token, reply.answer, reply.at)


async def _sleep_until(instant: int) -> None:
    while now() < instant:  # noqa: ASYNC110 (our clock is not the loop's)
        await asyncio.sleep(sleep_seconds(instant))
