"""The facts about the nodes. The checks interpret them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import combinations
from typing import NamedTuple

from quorlock import Node

# In seconds: a server may reply to TIME with its clock's value at the last wake-up.
_CLOCK_SLACK = 1e-4


class ClockReading(NamedTuple):
    """A node's TIME in seconds, and the local clock just before and after the request."""

    server: float
    before: float
    after: float


class Rate(NamedTuple):
    """The rate of a node's clock against the local clock: 1.01 is 1 % fast.

    It lies between `least` and `most`. If `least` is above `most`, it has changed during the
    measurement.
    """

    least: float
    most: float

    @property
    def off(self) -> float:
        """Return the midpoint of the deviation: positive if the clock is fast, negative if slow."""
        return (self.least + self.most) / 2 - 1

    @property
    def error(self) -> float:
        """Return the maximal error of the midpoint."""
        return abs(self.most - self.least) / 2

    @property
    def surely_off(self) -> float:
        """Return the least possible deviation; 0 if there may be none."""
        return max(self.least - 1, 1 - self.most, 0.0)


def clock_rate(readings: Sequence[ClockReading]) -> Rate | None:
    """Return the rate of a node's clock against the local clock; None if it cannot be measured.

    A node read its clock between a request and its reply. So each pair of readings bounds the rate,
    and all of them together bound it best.
    """
    bounds: list[tuple[float, float]] = []
    for one, two in combinations(readings, 2):
        spans = (two.before - one.after, two.after - one.before)
        if spans[0] > 0:
            theirs = two.server - one.server
            slow, fast = theirs - _CLOCK_SLACK, theirs + _CLOCK_SLACK
            bounds.append((min(slow / span for span in spans), max(fast / span for span in spans)))
    if not bounds:
        return None
    return Rate(max(least for least, _ in bounds), min(most for _, most in bounds))


class NodeFacts(NamedTuple):
    """The facts about one node."""

    node: Node
    silent: str = ""  # the reason why nothing could be asked, "" if it could
    login: bool = False  # the reason is a refused login
    peer: str = ""  # the IP address at the other end; "" for a unix socket
    info: Mapping[str, str] | None = None  # INFO's fields; None: not permitted
    config: Mapping[str, str] = {}  # the settings that CONFIG GET returned
    refused: Mapping[str, str] = {}  # the commands that quorlock needs, with the node's errors
    unqueued: Mapping[str, str] = {}  # the commands that queues need, with the node's errors
    unshared: Mapping[str, str] = {}  # the commands that shared locks need, with the node's errors
    tracking: bool | None = None  # it knows CLIENT TRACKING; None: not permitted
    open_to_all: bool = False  # it replies to clients without a login
    other_run_id: str = ""  # the run_id on a second connection
    readings: Sequence[ClockReading] = ()
    latencies: Sequence[float] = ()  # durations of single requests, in seconds
    born_empty: str = ""  # the values of the restart guard's side keys
    marker: str = ""
    settings: str = ""  # those that clients of this node share, as it stores them

    @property
    def address(self) -> str:
        """Return the address without user and password."""
        return self.node.address

    @property
    def rate(self) -> Rate | None:
        """Return the rate of its clock against the local clock; None if unknown."""
        return clock_rate(self.readings)

    @property
    def info_fields(self) -> Mapping[str, str]:
        return self.info or {}

    @property
    def run_id(self) -> str:
        return self.info_fields.get("run_id", "")

    def number(self, field: str) -> int | None:
        """Return a whole number of INFO; None if unknown."""
        text = self.info_fields.get(field, "")
        return int(text) if text.removeprefix("-").isdecimal() else None

    @property
    def here(self) -> bool:
        """Return whether its address is on this machine."""
        return self.peer == "" or ip_address(self.peer.partition("%")[0]).is_loopback


class Facts(NamedTuple):
    """All nodes, and the settings of `Redlock` that the checks use. Durations in seconds."""

    nodes: Sequence[NodeFacts]
    node_timeout: float = 0.05
    max_ttl: float = 30.0
    drift_factor: float = 0.01
    restart_guard: str | None = "uptime"
    waiting: str = "auto"
    refusal: tuple[str, str] | None = None  # why no client with these settings is let in, the fix

    @property
    def n(self) -> int:
        return len(self.nodes)

    @property
    def quorum(self) -> int:
        return self.n // 2 + 1

    @property
    def reached(self) -> list[NodeFacts]:
        return [node for node in self.nodes if not node.silent]
