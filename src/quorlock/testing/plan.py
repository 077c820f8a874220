"""What will happen in a simulated world, as data: who works how, what goes wrong, and when.

A plan and a seed make a world, to the byte.  Being data, a plan can be printed, cut down to the
part that matters (`shrink`) and run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorlock._core.policy import policy
from quorlock._core.time import NS_PER_S

if TYPE_CHECKING:
    from quorlock._core.policy import Policy, RestartGuard
    from quorlock.testing.network import Weather


@dataclass(frozen=True, slots=True)
class Job:
    """One turn of a client's work. Durations in ns.

    Attributes:
        after: how long it rests before.
        resource: which one of the world's, by number.
        once: one attempt (`try_acquire`); else it waits for up to `timeout`.
        hold: how long it keeps the lease, if all goes well.
        extensions: (after so long, by this ttl in ms), one after the other.
        ending: "release", "abandon" (let it run out), "by_token" (another process releases it
            by its bare token after an extension by token) or "hand_over" (another adopts it).
        cancel_after: the call for the lock is cancelled after so long; None: it is not.
        renew: the lease extends itself while it is held; `max_hold`: for so long in all.
        fencing: its lease has a fence.
    """

    after: int
    resource: int
    ttl_ms: int
    once: bool
    timeout: int
    hold: int
    extensions: tuple[tuple[int, int], ...] = ()
    ending: str = "release"
    cancel_after: int | None = None
    renew: bool = False
    max_hold: int | None = None
    fencing: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at: when, in true time since the world began (ns).
        kind: what, a name in `faults.KINDS`.
        client, node: to whom; -1: to all, or to nobody in particular.
        lasts: how long (ns), where it lasts.
        amount: how much of it, in the kind's own unit.
    """

    at: int
    kind: str
    client: int = -1
    node: int = -1
    lasts: int = 0
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the clients of a world set. Durations in ns, the ttl in ms."""

    n: int
    max_ttl_ms: int
    node_timeout: int
    retry_delay: tuple[int, int]
    outage_timeout: int
    drift_ppm: int = 10_000
    restart_guard: RestartGuard = "uptime"

    def policy(self) -> Policy:
        """As the library takes it, with all its checks."""
        max_ttl = self.max_ttl_ms / 1000
        shortest, longest = self.retry_delay
        return policy(
            tuple(f"n{index}" for index in range(self.n)),
            ttl=max_ttl,
            max_ttl=max_ttl,
            node_timeout=self.node_timeout / NS_PER_S,
            connect_timeout=1.0,
            drift_factor=self.drift_ppm / 1_000_000,
            retry_delay=(shortest / NS_PER_S, longest / NS_PER_S),
            outage_timeout=self.outage_timeout / NS_PER_S,
            prefix="",
            restart_guard=self.restart_guard,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole world.

    Attributes:
        careers: the jobs of each client, one after the other.
        bundles: connections that each client has to each node.
        client_paces, node_paces: parts per million, 1,000,000 is true time.
        client_offsets, node_offsets: what their clocks read when the world begins (ns).
        lasts: when everything is healed (ns).
    """

    seed: int
    scenario: str
    settings: Settings
    weather: Weather
    careers: tuple[tuple[Job, ...], ...]
    bundles: tuple[int, ...]
    client_paces: tuple[int, ...]
    node_paces: tuple[int, ...]
    client_offsets: tuple[int, ...]
    node_offsets: tuple[int, ...]
    faults: tuple[Fault, ...] = ()
    lasts: int = NS_PER_S
    resources: tuple[str, ...] = field(default=("r0",))

    @property
    def size(self) -> int:
        """How much of a plan there is: jobs, faults and extensions."""
        jobs = [job for career in self.careers for job in career]
        return len(jobs) + len(self.faults) + sum(len(job.extensions) for job in jobs)
