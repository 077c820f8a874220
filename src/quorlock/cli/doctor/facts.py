"""What was found out about the nodes. Data only: what it means is for the checks to say."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quorlock import Node


class Reading(NamedTuple):
    """A node's TIME in seconds, and our own clock just before and after we asked for it."""

    server: float
    before: float
    after: float


class NodeFacts(NamedTuple):
    """One node.

    silent: why nothing could be asked, "" if it could; login: because it did not let us in.
    peer: the IP address at the other end; "" for a unix socket.
    info: INFO's fields; None: we may not ask.  config: the settings that CONFIG GET told.
    refused: the commands that quorlock needs and this node refuses, with its words.
    tracking: it knows CLIENT TRACKING; None: we may not ask.
    open_to_all: it answers who has not logged in.
    other_run_id: who answered on a second connection.
    latencies: seconds that single questions took.
    born_empty, marker: what the side keys of the restart guard hold.
    """

    node: Node
    silent: str = ""
    login: bool = False
    peer: str = ""
    info: Mapping[str, str] | None = None
    config: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}
    tracking: bool | None = None
    open_to_all: bool = False
    other_run_id: str = ""
    readings: Sequence[Reading] = ()
    latencies: Sequence[float] = ()
    born_empty: str = ""
    marker: str = ""

    @property
    def address(self) -> str:
        """Without user and password."""
        return self.node.address

    @property
    def told(self) -> Mapping[str, str]:
        """INFO's fields; none where we may not ask."""
        return self.info or {}

    @property
    def run_id(self) -> str:
        """Of its process; "" if it did not tell."""
        return self.told.get("run_id", "")

    def number(self, field: str) -> int | None:
        """A whole number in INFO; None if it did not tell."""
        text = self.told.get(field, "")
        return int(text) if text.removeprefix("-").isdecimal() else None

    @property
    def here(self) -> bool:
        """It runs on this machine, for all that its address says."""
        return self.peer == "" or ip_address(self.peer.partition("%")[0]).is_loopback


class Facts(NamedTuple):
    """All nodes, and the settings of `Redlock` that they are measured by. Durations in seconds."""

    nodes: Sequence[NodeFacts]
    node_timeout: float = 0.05
    max_ttl: float = 30.0
    drift_factor: float = 0.01
    restart_guard: str | None = "uptime"

    @property
    def n(self) -> int:
        """How many nodes are configured."""
        return len(self.nodes)

    @property
    def quorum(self) -> int:
        """How many of them must agree."""
        return self.n // 2 + 1

    @property
    def reached(self) -> list[NodeFacts]:
        """Those that could be asked."""
        return [node for node in self.nodes if not node.silent]
