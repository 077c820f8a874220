"""The work of one process of the traffic, sent to it as JSON; `turns` does it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

BLOCKING, ASYNCIO = "blocking", "asyncio"

# How often each kind of turn comes up; `turns.KINDS` says what they are.
MIXED = {
    "hold": 30,
    "block": 20,
    "try": 10,
    "long": 2,
    "expire": 1,
    "renew": 4,
    "forget": 4,
    "hand over": 5,
    "adopt": 25,
    "cancel": 10,
    "token": 4,
    "look": 3,
    "fork": 1,
    "close": 2,
}


@dataclass(frozen=True)
class Settings:
    """One process: its face, its workers, its resources, its patience. Durations in seconds.

    Attributes:
        urls: the nodes, through their proxies.
        folder: where records and tickets go; the same for all processes of a run.
        face: BLOCKING (workers are threads) or ASYNCIO (tasks).
        workers: how many.
        seed: of this process; every worker's choices follow from it and its number.
        kinds: weights of the kinds of turns.
        pause: the longest time that a worker does something else between two turns.
        slack: what a call may be late on a busy machine before it counts as stuck.
    """

    urls: tuple[str, ...]
    folder: str
    face: str
    workers: int
    seed: int
    resources: tuple[str, ...] = tuple(f"r{number}" for number in range(8))
    ttls: tuple[float, ...] = (0.4, 0.7, 1.0)
    max_ttl: float = 1.0
    timeouts: tuple[float | None, ...] = (0.0, 0.05, 0.3, 1.0, None)
    node_timeout: float = 0.1
    connect_timeout: float = 0.5
    outage_timeout: float = 1.0
    retry_delay: tuple[float, float] = (0.004, 0.03)
    pause: float = 0.02
    section: float = 0.02
    slack: float = 2.0
    kinds: dict[str, int] = field(default_factory=lambda: dict(MIXED))

    def policy(self) -> dict[str, Any]:
        """Return the arguments of a Redlock."""
        return {
            "ttl": self.ttls[0],
            "max_ttl": self.max_ttl,
            "node_timeout": self.node_timeout,
            "connect_timeout": self.connect_timeout,
            "outage_timeout": self.outage_timeout,
            "retry_delay": self.retry_delay,
        }

    def closing(self) -> float:
        """Return how long `close` may take: two rounds, connecting once for pending releases, in
        asyncio one round more.
        """
        return 3 * self.node_timeout + self.connect_timeout + 1.0

    def to_json(self) -> str:
        """Return the settings as text, for an argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The reverse of `to_json`."""
        facts = json.loads(text)
        tuples = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
        return cls(**{**facts, **tuples})
