"""The states of all nodes, and the decision whether a connection to one of them may vote.

The nodes must be different servers, with the settings that this client has.
"""

from __future__ import annotations

import contextlib
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, NoReturn

from quorlock._core.agreement import (
    ADMIT,
    Agreement,
    Decision,
    Reading,
    Step,
    decide,
    name_of_quorum,
    of_another_set,
    own_agreement,
    parse,
    ttl_ms_max,
)
from quorlock._core.releases_in_doubt import merged
from quorlock._core.time import NS_PER_MS
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import NodeState, Reachability
from quorlock._protocol.handshake import NodeRejected
from quorlock._protocol.replies import printable
from quorlock.errors import ConfigError, VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorlock._core.config import Policy
    from quorlock._core.time import Duration, Instant
    from quorlock._drivers.node_state import ServerConnection
    from quorlock._nodes.node import Node
    from quorlock._protocol.handshake import ServerInfo

_MISCONFIGURED: Callable[[NodeState], ConfigError | None] = attrgetter("misconfigured")
_LOCKED_MAX = 0.1  # seconds; no code under the lock waits
# A connection that waits to be admitted looks every millisecond; a later look counts for this much.
_LOOK_COUNTS_MAX: Duration = 10 * NS_PER_MS


class NodeStates:
    """The states of all nodes, and the check that they are different servers."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        self.all = tuple(NodeState(index, node, policy) for index, node in enumerate(nodes))
        # The settings that all clients of these nodes share; None: no comparison.
        self.own_agreement: Agreement | None = own_agreement(policy)
        self.uses_markers = policy.restart_guard == "marker"
        self.policy = policy
        self._lock = threading.Lock()  # the blocking driver connects nodes in parallel
        self._had_name = False  # a quorum has stored the same name before

    def in_child(self) -> NodeStates:
        """Return the states for a forked child, which knows of restarts what its parent knew."""
        states = NodeStates(tuple([each.node for each in self.all]), self.policy)
        for mine, parents in zip(states.all, self.all, strict=True):
            mine.guard = parents.guard
        return states

    def admission(self, node_state: NodeState) -> NodeAdmission:
        """Return the object that decides whether a connection to that node may vote."""
        return NodeAdmission(self, node_state)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Keep other threads from admitting nodes during the block."""
        # An event loop's thread uses this lock too, and an interrupt may leave it taken (see
        # `wait`): then a new lock replaces it.
        lock = self._lock
        taken = lock.acquire(timeout=_LOCKED_MAX)
        try:
            yield
        finally:
            if taken:
                lock.release()
            else:
                self._lock = threading.Lock()

    def decide(self, node_state: NodeState, server_info: ServerInfo, *, patient: bool) -> Decision:
        """Decide about a node by its stored settings. The caller has the lock."""
        if self.own_agreement is None:
            return ADMIT
        text = server_info.agreed.decode(errors="replace")
        own = Reading(server_info.run_id, parse(text), printable(text))
        at = now()
        node_state.settings.consider(own, at)
        others = [other for other in self.all if other is not node_state]
        readings = [other.known(at) for other in others]
        pending = patient and any(
            reading is None and other.reachability is Reachability.UNTRIED
            for other, reading in zip(others, readings, strict=True)
        )
        admitted = [
            stored.agreed.name
            for other in others
            if other.is_connected() and (stored := other.settings.reading) and stored.agreed
        ]
        return decide(self.own_agreement, own, readings, pending=pending, admitted=admitted)

    def close_foreign_nodes(self, at: Instant) -> None:
        """Close connections to nodes whose set is not the quorum's. The caller has the lock.

        At the first quorum the list of nodes is wrong. Later, restarts of most nodes are the cause.
        """
        readings = [node_state.known(at) for node_state in self.all]
        name = "" if self.own_agreement is None else name_of_quorum(self.own_agreement, readings)
        if not name:
            return
        for node_state, reading in zip(self.all, readings, strict=True):
            agreed = None if reading is None else reading.agreed
            if agreed is not None and agreed.name not in ("", name) and node_state.is_connected():
                if not self._had_name:
                    node_state.misconfigured = _misconfigured(
                        node_state, *of_another_set(agreed.name)
                    )
                node_state.close_connections(
                    "connection given up: the node belongs to another set of nodes"
                )
        self._had_name = True

    def suppress_releases(self, token: bytes, now: Instant) -> dict[str, Instant]:
        """Stop releasing this token in this process; return doubtful releases, by run_id."""
        in_doubt: dict[str, Instant] = {}
        with self.locked():  # connections are added under it
            for node_state in self.all:
                in_doubt = merged(
                    in_doubt,
                    node_state.pending_releases.suppress(token, now, node_state.has_in_flight),
                )
        return in_doubt

    def allow_releases(self, token: bytes) -> None:
        """Allow releases of a lease that has come back to this process."""
        with self.locked():
            for node_state in self.all:
                node_state.pending_releases.unsuppress(token, node_state.has_in_flight)

    @property
    def config_error(self) -> ConfigError | None:
        """The first configuration error that connecting has found."""
        # Before every acquire: a loop in Python takes three times as long.
        return next(filter(None, map(_MISCONFIGURED, self.all)), None)

    def raise_config_errors(self) -> None:
        """Raise configuration errors that connecting has found."""
        error = self.config_error
        if error is not None:
            raise error

    def find_duplicate(self, node_state: NodeState, run_id: str) -> NodeState | None:
        """Return the other node that is the same server, if there is one."""
        others = (other for other in self.all if other is not node_state)
        # Two nodes may swap their addresses: then neither is where it was.
        there = (other for other in others if not other.reconnect.has_moved)
        return next((other for other in there if other.run_id == run_id), None)


class NodeAdmission:
    """The admission of one connection: its node's stored settings and its identity are compared."""

    def __init__(self, node_states: NodeStates, node_state: NodeState) -> None:
        self._node_states = node_states
        self._node_state = node_state
        self._began: Instant | None = None  # when the node's settings arrived
        self._looked_at: Instant = 0
        self._waited: Duration = 0  # since then

    def consider(self, server_info: ServerInfo) -> Decision:
        """Decide about a node by its handshake. Raises NodeRejected."""
        at, policy, node_states = now(), self._node_states.policy, self._node_states
        if self._began is None:
            self._began = self._looked_at = at
        # The other nodes' replies cannot be read while this process stands still.
        self._waited += min(at - self._looked_at, _LOOK_COUNTS_MAX)
        self._looked_at, waited = at, self._waited
        # Connecting has its own deadline, which does not wait.
        is_late = at - self._began > 2 * policy.connect_timeout // 3
        with node_states.locked():
            decision = node_states.decide(self._node_state, server_info, patient=True)
            # A short wait for the remaining nodes; a longer one for a quorum.
            short = min(policy.node_timeout, policy.connect_timeout // 4)
            if decision.step is Step.WAIT and (waited > short or is_late):
                pressed = node_states.decide(self._node_state, server_info, patient=False)
                patience_ends = is_late or waited > policy.connect_timeout // 2
                if pressed.step is not Step.REFUSE or patience_ends:
                    decision = pressed
        if decision.step is Step.REFUSE:
            self._refuse(decision)
        return decision

    def admit(self, server_info: ServerInfo, at: Instant, connection: ServerConnection) -> None:
        """Let a new connection vote if its server is not another node's (rule 14).

        Every connection is compared, since an address can move to another server at any time. `at`
        is the end of the handshake. The connection gets its quarantine here. Raises NodeRejected.
        """
        node_states, node_state = self._node_states, self._node_state
        with node_states.locked():
            # Compared again: nodes are connected in parallel, and the settings may have changed
            # since.
            decision = node_states.decide(node_state, server_info, patient=False)
            if decision.step is Step.REFUSE:
                # Another node may have been admitted since, and the rest may be of this one's set:
                # until they are known, it is no error of the configuration.
                later = node_states.decide(node_state, server_info, patient=True)
                lasting = decision.lasting and later.step is Step.REFUSE
                self._refuse(decision._replace(lasting=lasting))
            twin = node_states.find_duplicate(node_state, server_info.run_id)
            if twin is None:
                reading = node_state.settings.reading
                if node_states.own_agreement is not None and reading is not None:
                    connection.ttl_ms_max = ttl_ms_max(reading.agreed, node_states.own_agreement)
                before = node_state.server_info
                node_state.on_connected(server_info, at, connection)
                # Again: a thread that is delayed in here loses the lock to others (`locked`).  Each
                # of them shows its server before it looks, so one of two sees the other.
                twin = node_states.find_duplicate(node_state, server_info.run_id)
                if twin is None:
                    node_states.close_foreign_nodes(at)
                    return
                node_state.server_info = before
                connection.supersede("connection given up: its server is another node's")
            elif node_state.run_id != server_info.run_id:
                node_state.on_moved(server_info.run_id)
        text = f"is the same server as {twin.node.address} (run_id {server_info.run_id[:8]}…)"
        raise _refusal(node_state, text, "one crash would cost two votes; list every server once")

    def _refuse(self, decision: Decision) -> NoReturn:
        if decision.lasting:
            raise _refusal(self._node_state, decision.text, decision.fix)
        raise NodeRejected(decision.text, VoteCode.NOT_ADMITTED)


def _refusal(node_state: NodeState, text: str, fix: str) -> NodeRejected:
    if node_state.server_info is None:
        # This node was never another server: a wrong configuration, not a moved address.
        node_state.misconfigured = _misconfigured(node_state, text, fix)
    return NodeRejected(text, VoteCode.PERMANENT_ERROR)


def _misconfigured(node_state: NodeState, text: str, fix: str) -> ConfigError:
    return ConfigError(f"nodes[{node_state.index}]", node_state.node.address, f"it {text}: {fix}")
