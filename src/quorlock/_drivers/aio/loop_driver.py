"""One event loop's part of the asyncio driver: a connector for every node, and rounds over them.

`flow_task` runs the flows, and `shutdown` ends the loop driver.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import Acquire, Inspect, Release
from quorlock._core.line import Lines
from quorlock._core.pending_releases import relies_on_key
from quorlock._core.rounds import SentRound, Target, replied, round_sent
from quorlock._core.routing import HERE, Unsent, is_forbidden, reaches_all, route, unsent
from quorlock._core.votes import Answer
from quorlock._drivers.aio.admission import Admission, Readiness
from quorlock._drivers.aio.batching import SharedPipeline
from quorlock._drivers.aio.connector import AsyncConnector
from quorlock._drivers.aio.deadlines import Deadlines
from quorlock._drivers.aio.flow_state import DONE
from quorlock._drivers.aio.loops import call_in, guarded
from quorlock._drivers.aio.shutdown import Shutdown
from quorlock._drivers.clock import now
from quorlock._drivers.places import Places
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import requested

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from quorlock._core.config import Policy
    from quorlock._core.effects import Send, SendBatch
    from quorlock._core.time import Instant
    from quorlock._core.usual import UsualCase
    from quorlock._drivers.aio.abc import RunningFlow
    from quorlock._drivers.aio.connection import AsyncConnection
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.node_states import NodeStates
    from quorlock._protocol.pipeline import InvalidationCallback, PendingRequest

# This many rounds are sent without waiting for more. With 16, 100 tasks took a fifth more CPU time,
# for system calls.
_SENT_AT_ONCE = 64


class LoopDriver:
    """The part of the asyncio driver that belongs to one event loop."""

    may_send_later = False  # see `routing.Paths`

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_states: NodeStates,
        policy: Policy,
        on_end: Callable[[LoopDriver], None],
    ) -> None:
        self.loop = loop
        self.guarded = partial(guarded, self.interrupted)
        self.tasks: set[RunningFlow] = set()  # flows whose callers have no outcome yet
        self.shared_pipeline = SharedPipeline(policy.quorum, self._flush)
        self.places = Places(policy)
        self.lines = Lines() if policy.waiting == "auto" else None
        self.connectors = tuple(
            AsyncConnector(
                node_state,
                node_states,
                self._changed,
                self.shared_pipeline,
                self.places,
                self.interrupted,
            )
            for node_state in node_states.all
        )
        self._everywhere = Target((1 << len(self.connectors)) - 1, self)
        self.node_states = node_states
        self.admission = Admission(loop, self.guarded)
        self.readiness = Readiness(
            loop, self.guarded, self.connectors, self.shared_pipeline, policy
        )
        self.deadlines = Deadlines(
            loop,
            self.guarded,
            self.tasks,
            self.shared_pipeline,
            policy.node_timeout,
            self._has_unread,
        )
        self._holds_back = False
        self._private = True  # the last send was a single round
        self.shutdown = Shutdown(
            self.tasks, self.connectors, self.readiness, self.deadlines, partial(on_end, self)
        )

    def _has_unread(self) -> bool:
        """Return whether replies may have come that are not read, since the last time it asked."""
        found = False
        for connector in self.connectors:
            connection = connector.connection
            if connection is not None and connection.may_have_more:
                connection.may_have_more, found = False, True
        return found

    # --- a round -----------------------------------------------------------------------------

    def send_first(self, usual: UsualCase[Any], task: RunningFlow) -> SentRound | None:
        """Send the first round of a call to all nodes, as `send` would; None: that takes more."""
        shared_pipeline, command = self.shared_pipeline, usual.command
        is_release = type(command) is Release
        if not shared_pipeline.is_complete or (
            is_release and not self._may_share(command, usual.behind)
        ):
            return None
        task.round = 1
        started = now()
        request = requested((command, task, 1, started, False))
        if type(command) is Release and usual.is_plain:
            shared_pipeline.append_release(command, request, task)
        else:
            shared_pipeline.append(request, task, encode(command))
        return round_sent((1, started, self._sent(started), self._everywhere))

    def send(self, effect: Send, task: RunningFlow) -> SentRound:
        """Send to all nodes without waiting for any of them."""
        command = effect.command
        shared_pipeline = self.shared_pipeline
        if task.round:
            shared_pipeline.fall_back(task.shared_number)
        data = encode(command)
        task.round = round_ = task.round + 1
        started = now()
        request = requested((command, task, round_, started, False))
        asked = 0
        if shared_pipeline.node_mask and self._is_for_all(effect, started):
            asked = shared_pipeline.node_mask
            shared_pipeline.append(request, task, data)
        if not (asked and shared_pipeline.is_complete):
            is_shared = bool(asked)
            for connector in self.connectors:
                if not asked & connector.bit:
                    index = connector.node_state.index
                    refusal = self._ask(index, data, request, effect)
                    if refusal is None:
                        asked |= connector.bit
                    else:
                        task.inbox += (replied((round_, index, refusal, started)),)
            if not is_shared:
                shared_pipeline.refresh_scripts()
        task.last_sent_at = sent = self._sent(started)
        everywhere = self._everywhere
        target = everywhere if asked == everywhere.nodes else Target(asked, self)
        return round_sent((round_, started, sent, target))

    def _sent(self, started: Instant) -> Instant:
        """Send the collected rounds now, or soon; return the time after it, or that of the last.

        With other flows, rounds are sent together at the end of the tick. Without that, a thousand
        tasks spend their time in send() and miss their deadlines. With many, the nodes begin before
        the tick ends.
        """
        if self._holds_back:
            if self.shared_pipeline.outgoing.rounds < _SENT_AT_ONCE:
                return started
        elif not self._private or len(self.tasks) > 1:
            self._holds_back = True
            self.loop.call_soon(self.guarded(self._flush))
            return started
        self._flush()
        return now()

    def _may_share(self, command: Acquire | Release, behind: Target | None) -> bool:
        """Return whether the shared pipeline can take this command, as it does nearly always."""
        if type(command) is Acquire:
            return behind is None  # else it repairs nodes that lack the key
        shared_pipeline = self.shared_pipeline
        return Release in shared_pipeline.has_scripts_of and (
            behind is self._everywhere or reaches_all(behind, shared_pipeline.node_mask, self)
        )

    def _is_for_all(self, effect: Send, at: Instant) -> bool:
        """Return whether the shared pipeline can take the round."""
        command = effect.command
        # By its type: a look is a Release too.
        if type(command) is Acquire or type(command) is Release:
            return self._may_share(command, effect.behind)
        if not reaches_all(effect.behind, self.shared_pipeline.node_mask, self):
            return False
        if relies_on_key(effect) and any(
            is_forbidden(effect, x.node_state, at) for x in self.connectors
        ):
            return False
        # Never a look: each connection knows what has to precede it.
        kind = type(command)
        return kind in self.shared_pipeline.has_scripts_of or kind is Inspect

    def send_all(self, effect: SendBatch, task: RunningFlow) -> tuple[SentRound, ...]:
        """Send several rounds, in one packet to each node, at the end of this tick."""
        self._private = False
        return tuple([self.send(send, task) for send in effect.sends])

    def _ask(self, index: int, data: bytes, request: PendingRequest, effect: Send) -> Answer | None:
        """Send to one node, or return the reply in its name."""
        connector, at = self.connectors[index], request.asked_at
        connection = connector.connection
        if (
            connection is not None
            and connection.quarantine is not None
            and at >= connection.quarantine.until
        ):
            connection.quarantine = None
            self.loop.call_soon(self.guarded(self._regroup))
        found = route(effect, index, self, at, self)
        if isinstance(found, Answer):
            return found
        if type(effect.command) is Release and effect.behind is not None:
            self._follow(index, effect.command, effect.behind)
        if found is HERE and connection is not None:
            if connection.send(data, request):
                return None
            found = unsent(effect.command)
        assert isinstance(found, Unsent)
        promised = found.is_release and connector.release_later(request, found.run_id)
        connector.wake()
        return None if promised else connector.node_state.unavailable_answer

    def _follow(self, index: int, release: Release, behind: Target) -> None:
        """Send a release also over the other loops' connections that its acquire may be on.

        Each loop checks again: a key may be about to be restored there.  That loop may never run
        again, so this alone is not enough.  The pending release is retried until the node has
        deleted the key, or for `max_ttl`.
        """
        for other in behind.paths:
            if isinstance(other, LoopDriver) and other is not self:
                follow = other.connectors[index].follow
                call_in(other.loop, other.guarded(follow, release))

    def node(self, index: int) -> NodeState:
        """Return the state of a node, for `route`."""
        return self.node_states.all[index]

    def connection(self, path: object, index: int) -> AsyncConnection | None:
        """Return the connection of this loop to a node, for `route`."""
        return path.connectors[index].connection if isinstance(path, LoopDriver) else None

    def _flush(self) -> None:
        """Send the collected rounds; their nodes' time to reply begins now."""
        self._holds_back = False
        unsent = self.shared_pipeline.outgoing.rounds
        if not unsent:
            return
        self._private = unsent == 1
        at = now()
        if self.shared_pipeline.send(at):
            self.loop.call_soon(self.guarded(self._regroup))
        self.deadlines.on_sent()

    def _changed(self) -> None:
        self._regroup()
        self.readiness.on_change()

    def _regroup(self) -> None:
        """Put all connections without restrictions into the shared pipeline."""
        self._flush()
        connections = [x.connection for x in self.connectors if x.connection is not None]
        members = [x for x in connections if not (x.is_private or x.lost or x.is_limited)]
        is_complete = len(members) == len(self.connectors)
        self.shared_pipeline.set_members(members, is_complete=is_complete)

    def watch(self, callback: InvalidationCallback) -> None:
        """Report invalidations, from the next extension on."""
        for connector in self.connectors:
            connector.watch(callback)
        self.shared_pipeline.refresh_scripts()

    def skip_round(self, task: RunningFlow, answer: Answer) -> SentRound:
        """Return a round that was sent to no node, with this reply in the name of each."""
        task.round += 1
        at = now()
        for connector in self.connectors:
            task.inbox += (replied((task.round, connector.node_state.index, answer, at)),)
        return SentRound(task.round, at, at)

    def enlist(self, task: RunningFlow, key: bytes) -> bytes:
        """Return a place in the queues of the nodes; b"" if too few of them can call."""
        connections = [x.connection for x in self.connectors if x.connection is not None]
        return self.places.enlist(task, key, connections)

    # --- interrupts --------------------------------------------------------------------------

    def interrupted(self, error: BaseException) -> bool:
        """Discard all connections of this loop and end all calls, after an interrupt in our code.

        A signal handler raised it somewhere, so only each node's count of replies is trusted.
        Requests without a reply become pending releases, and every flow is cancelled. The callers
        get the exception, which asyncio would only log. Return false if there was no caller, or if
        the exception ends the loop.
        """
        tasks = list(self.tasks)
        is_told = is_passed_on(error) and not all(task.future.done() for task in tasks)
        for task in tasks:
            task.state = DONE
        self.shared_pipeline.disband()
        for connector in self.connectors:
            connector.discard()
        for task in tasks:
            task.interrupt(error)
        self._holds_back, self._private = False, True
        self.deadlines.reset()
        self.readiness.reset()
        self.admission.reset()
        return is_told


def is_passed_on(error: BaseException) -> bool:
    """Return whether the callers get the exception; the others end the loop, as in asyncio."""
    return not isinstance(error, (KeyboardInterrupt, SystemExit))
