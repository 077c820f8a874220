"""The routing rule: may a command go to a node, over which connection, and what replies if not.

Some commands rely on a key that a pending release may delete; a node in quarantine must not vote;
no command may overtake its acquire (rule 3).  Both drivers and the simulator supply the facts, and
send only what the rule lets through.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from quorlock._core.commands import LEAVE, SPARED, Command, Extend, Release, replaced_token
from quorlock._core.pending_releases import relies_on_key
from quorlock._core.restart_guard import VOTES, over_limit, quarantine_answer
from quorlock._core.time import NS_PER_MS
from quorlock._core.votes import BACKLOG, NOT_SET, RELEASING, TIMED_OUT, Answer

if TYPE_CHECKING:
    from quorlock._core.effects import Send
    from quorlock._core.pending_releases import PendingReleases
    from quorlock._core.restart_guard import Quarantine
    from quorlock._core.rounds import Target
    from quorlock._core.time import Duration, Instant


class Over(NamedTuple):
    """Send it over this path, or (`None`) over the caller's own."""

    paths: object = None


class Unsent(NamedTuple):
    """Nothing can be sent now. A release becomes pending; for the rest, the node is absent.

    is_release: whether it becomes pending, for the process `run_id` ("": none has the acquire).
    """

    is_release: bool
    run_id: str = ""


HERE = Over()
# An `Answer` is the reply in the name of a node that gets nothing.
Route: TypeAlias = Over | Unsent | Answer


class RoutedConnection(Protocol):
    """A connection to one node."""

    @property
    def quarantine(self) -> "Quarantine | None":
        """The quarantine of its server."""
        ...

    @property
    def ttl_ms_max(self) -> int:
        """The longest ttl that its node's clients agreed on; 0: only the client's limit."""
        ...

    def has_pending_acquire(self, token: bytes) -> bool:
        """Return whether the acquire with this token has no reply yet. Safe from any thread."""
        ...

    def is_backlogged(self, at: "Instant") -> bool:
        """Return whether a new acquire could be cut off from its release."""
        ...

    def silence(self, at: "Instant") -> "Duration":
        """Return for how long requests have been pending without any reply."""
        ...


class RoutedNode(Protocol):
    """The state of one node in this process."""

    @property
    def pending_releases(self) -> "PendingReleases":
        """The pending releases."""
        ...

    @property
    def run_id(self) -> str:
        """The process of the latest handshake; "" before the first."""
        ...


class Paths(Protocol):
    """The facts of a driver.

    posts: whether a path's owner can be given requests to send.  Another event loop may never run
    again, so it cannot.
    """

    @property
    def may_send_later(self) -> bool: ...

    def node(self, index: int) -> RoutedNode:
        """Return the state of this node."""
        ...

    def connection(self, path: object, index: int) -> RoutedConnection | None:
        """Return the connection that the path has to this node."""
        ...


def route(send: "Send", index: int, path: object, at: "Instant", paths: Paths) -> Route:
    """Decide how the command of a caller with this path gets to one node."""
    command, behind, _, _, _, _ = send
    node = paths.node(index)
    if is_forbidden(send, node, at):
        return RELEASING
    if behind is not None:
        if not behind.nodes >> index & 1:
            return NOT_SET
        if behind.path != path:
            carrier = _carrier(command, behind, index, path, paths)
            if carrier != path:
                return _carried(command, index, carrier, at, paths)
    connection = paths.connection(path, index)
    if connection is None:
        return unsent(command)
    return _held_back(command, connection, at) or HERE


def is_forbidden(send: "Send", node: RoutedNode, at: "Instant") -> bool:
    """Return whether it relies on a key that a release may still delete on this node."""
    return node.pending_releases.forbid(send, node.run_id, at)


def unsent(command: Command) -> Unsent:
    """Decide about a command for a node without a connection, or whose connection is lost."""
    return Unsent(_frees_key(command))


def is_spared(command: Command) -> bool:
    """Return whether it is not sent to a node with a backlog.

    Neither is a request that only queues a place: it is a hint, and many of them would cut off the
    releases behind them.
    """
    if type(command) is Release:
        return not command.token and command.ticket != LEAVE
    return type(command) in SPARED


def _frees_key(command: Command) -> bool:
    return type(command) is Release and bool(command.token)


def reaches_all(behind: "Target | None", nodes: int, path: object) -> bool:
    """Return whether what follows this goes to all these nodes (as bits) over the caller's path.

    Then only commands that rely on the key need `route`, and connections that are missing, in
    quarantine, limited or backlogged.
    """
    return behind is None or (behind.path == path and not nodes & ~behind.nodes)


def plain_nodes(send: "Send", nodes: int, path: object) -> int:
    """Return those of these nodes (as bits) for which the same holds, and no key is relied on.

    Called in every round.
    """
    command, behind, _, _, _, _ = send
    if behind is None:
        return 0 if type(command) is Extend else nodes
    return 0 if behind.path != path or relies_on_key(send) else nodes & behind.nodes


def _carrier(command: Command, behind: "Target", index: int, path: object, paths: Paths) -> object:
    """Return the path on which the acquire has no reply yet; the caller's own if there is none."""
    # An exchange must follow the acquire of the old token.
    token: bytes = replaced_token(command) or getattr(command, "token", b"")
    for other in behind.paths:
        connection = paths.connection(other, index)
        if connection is not None and connection.has_pending_acquire(token):
            return other
    return path


def _carried(command: Command, index: int, carrier: object, at: "Instant", paths: Paths) -> Route:
    """Decide about a command whose acquire is on another path, and has no reply yet."""
    if _is_in_vain(command, paths.connection(carrier, index), at):
        return BACKLOG
    # An exchange is sent over the caller's own path or not at all: the commands for its token
    # follow that path, and would overtake it if another path sent it later.
    if paths.may_send_later and not replaced_token(command):
        return Over(carrier)
    is_release = _frees_key(command)
    return Unsent(is_release, paths.node(index).run_id) if is_release else TIMED_OUT


def _held_back(command: Command, connection: RoutedConnection, at: "Instant") -> Answer | None:
    """Return the reply in the name of a node that must not vote, or has a backlog."""
    if isinstance(command, VOTES):
        kept = connection.quarantine
        refusal = None if kept is None else quarantine_answer(kept, at)
        refusal = refusal or over_limit(command, connection.ttl_ms_max)
        if refusal is not None:
            return refusal
    if _is_in_vain(command, connection, at):
        return BACKLOG
    return BACKLOG if is_spared(command) and connection.is_backlogged(at) else None


def _is_in_vain(command: Command, connection: RoutedConnection | None, at: "Instant") -> bool:
    """Return whether this is an extension for a node that has been silent for as long as its ttl.

    Its key has expired there. Renewal would send more and more of them, and fill the memory.
    """
    return (
        type(command) is Extend
        and connection is not None
        and connection.silence(at) > command.ttl_ms * NS_PER_MS
    )
