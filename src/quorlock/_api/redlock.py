"""The settings and the state that the Redlock classes of both APIs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, NoReturn, Self, TypedDict, TypeVar, Unpack

from quorlock._api.session import Session
from quorlock._core.config import Policy, RestartGuard, Seconds, Waiting, policy
from quorlock._core.owner import DEFAULT_OWNER
from quorlock._core.results import NodeStatus
from quorlock._drivers.entropy import SystemEntropy
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._drivers.abc import AnyDriver
    from quorlock._nodes.node import Node

D = TypeVar("D", bound="AnyDriver")


class RedlockSettings(TypedDict, total=False):
    """The keyword arguments of a Redlock."""

    ttl: Seconds | None
    max_ttl: Seconds
    node_timeout: Seconds
    connect_timeout: Seconds
    drift_factor: float
    retry_delay: tuple[Seconds, Seconds]
    outage_timeout: Seconds
    restart_guard: RestartGuard
    waiting: Waiting
    prefix: str | bytes
    owner: str | None


class RedlockBase(ABC, Generic[D]):
    """Distributed locks over N independent Redis or Valkey masters.

    Args:
        nodes: URLs (redis, rediss, valkey, valkeys, unix; memory for tests), `Node` objects, or
            redis-py and valkey-py client objects, whose address and credentials are read.  Give
            every process the same list, in any order.
        ttl: the default lease time, in seconds as all durations here (or a timedelta); if None,
            10, or max_ttl if that is shorter.
        max_ttl: the longest ttl that any client of these nodes uses.
        node_timeout: how long one node may take to reply in one round.
        connect_timeout: how long connecting to one node may take.
        drift_factor: how much the clocks of client and nodes may differ in speed, as a share of the
            ttl.
        retry_delay: the shortest and the longest random pause between two attempts.
        outage_timeout: how long acquire keeps trying while no quorum can be reached.  The time in
            which the restart guard keeps nodes from voting does not count.
        restart_guard: how a restarted node, which may have lost locks, is kept from voting: by its
            "uptime", by a "marker" among its keys (which FLUSHALL and old snapshots lose too), or
            None: not at all, where nodes are born empty (tests, CI).
        waiting: how acquire waits for a lock that is held.  "auto": in the queues of the nodes,
            which call the waiters in order of arrival; by polling where too few nodes can.
            "poll": by trying again after random pauses, which does not keep the order.
        prefix: the start of the Redis key, before the resource's name.
        owner: who holds its locks, for other clients to see: `inspect`, `AcquireTimeout.holder`
            and `quorlock status` show it.  "{host}" and "{pid}" stand for the name of the machine
            and the id of the process.  It is stored on the nodes and no secret; None for no owner.

    Raises:
        ConfigError: an argument cannot work; nothing has been sent.
    """

    def __init__(
        self,
        nodes: Iterable[object],
        *,
        ttl: Seconds | None = None,
        max_ttl: Seconds = 30.0,
        node_timeout: Seconds = 0.05,
        connect_timeout: Seconds = 1.0,
        drift_factor: float = 0.01,
        retry_delay: tuple[Seconds, Seconds] = (0.05, 0.2),
        outage_timeout: Seconds = 5.0,
        restart_guard: RestartGuard = "uptime",
        waiting: Waiting = "auto",
        prefix: str | bytes = "",
        owner: str | None = DEFAULT_OWNER,
    ) -> None:
        from quorlock._nodes.resolve import as_nodes  # here, as the driver

        node_states: tuple[Node, ...] = as_nodes(nodes)
        checked = policy(
            tuple(node.address for node in node_states),
            ttl=ttl,
            max_ttl=max_ttl,
            node_timeout=node_timeout,
            connect_timeout=connect_timeout,
            drift_factor=drift_factor,
            retry_delay=retry_delay,
            outage_timeout=outage_timeout,
            restart_guard=restart_guard,
            waiting=waiting,
            prefix=prefix,
        )
        entropy = SystemEntropy(owner)
        self._session: Session[D] = Session(checked, self._driver(node_states, checked), entropy)
        self._begin(self._session)

    @classmethod
    def from_env(cls, **settings: Unpack[RedlockSettings]) -> Self:
        """Return a Redlock with the nodes and settings that the command line would use.

        They come from QUORLOCK_NODES, QUORLOCK_MAX_TTL, QUORLOCK_OWNER, QUORLOCK_WAITING and
        QUORLOCK_PASSWORD, and from a TOML file: that of QUORLOCK_CONFIG, else ./quorlock.toml or
        ~/.config/quorlock/quorlock.toml.  A file that is only found is not read if QUORLOCK_NODES
        names the nodes.  "local" stands for the nodes that `quorlock local up` starts.

        Args:
            settings: keyword arguments of Redlock, which replace those of the environment.

        Raises:
            ConfigError: no nodes are named, a file or variable has a mistake, or an argument cannot
                work; nothing has been sent.
        """
        from quorlock._settings.environment import made  # here: most programs name the nodes

        return made(cls, RedlockSettings.__annotations__, settings)

    @abstractmethod
    def _driver(self, nodes: tuple[Node, ...], policy: Policy) -> D:
        """Return the driver of this API."""

    @abstractmethod
    def _begin(self, session: Session[D]) -> None:
        """Arrange for the session's end."""

    @property
    def nodes(self) -> tuple[NodeStatus, ...]:
        """Every node as this process sees it now: address, up or down and why, latency.

        No node is asked: all are down until the first lock, or `check`, and once it is closed.
        """
        driver = self._session.driver
        statuses = driver.statuses()
        if not driver.closed:
            return statuses
        from quorlock._drivers.node_state import CLOSED  # loaded by the driver

        code = VoteCode.NOT_CONNECTED
        return tuple([status._replace(up=False, why=CLOSED, code=code) for status in statuses])

    @property
    def quorum(self) -> int:
        """The votes that an acquire needs: `N // 2 + 1` of the nodes."""
        return self._session.policy.quorum

    @property
    def ready(self) -> bool:
        """True if a quorum would vote, as this process sees the nodes; no node is asked."""
        return sum(node.up for node in self.nodes) >= self.quorum

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {', '.join(self._session.policy.addresses)}>"

    def __reduce__(self) -> NoReturn:
        message = "a Redlock cannot be copied or pickled: make one in each process"
        raise TypeError(message)
