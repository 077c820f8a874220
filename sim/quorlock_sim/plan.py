"""The plan of a simulated world as data: the clients' jobs, and the faults with their instants.

A plan with its seed determines a world, to the byte.  As data, a plan can be printed, minimised
(`shrink`) and run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorlock._core.config import policy
from quorlock._core.time import NS_PER_S

if TYPE_CHECKING:
    from quorlock._core.config import Policy, RestartGuard
    from quorlock_sim.network import NetworkProfile


# The queues of places, PUBLISH and SUBSCRIBE; without one of them a node calls no waiter.
RIGHTS = ("queue", "publish", "subscribe")
# The resource of a call for any one of all resources; it polls.
ANY = "any"


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a client. Durations in ns.

    Attributes:
        after: the idle time before it.
        resource: the index of the resource.
        also: the indexes of further resources, which it takes at once.
        once: one attempt (`try_acquire`); otherwise the client waits for up to `timeout`.
        hold: the time for which it keeps the lease, if nothing goes wrong.
        extensions: (time after the previous one, ttl in ms), in sequence.
        ending: "release", "abandon" (let it expire), "by_token" (another process extends and
            releases it by its bare token), "hand_over" (another client adopts it) or "keep" (as
            done, for max_ttl).
        cancel_after: the time after which the call for the lock is cancelled; None: never.
        renew: the lease is renewed while it is held.
        max_hold: the longest time for which it is renewed.
        fencing: the lease has a fence.
        hops: the number of hand-overs at the end.
        heir_holds: the time for which each adopting client keeps it.
        heir_renews: each adopting client renews it.
        any_of: any one of the world's resources will do: they are the permits of a semaphore.
        shared: it shares the lock with others that do so too.
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
    hops: int = 1
    successor_holds: int = 0
    successor_renews: bool = False
    also: tuple[int, ...] = ()
    any_of: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: the instant, in true time since the start of the world (ns).
        kind: a name in `faults.KINDS`.
        client, node: the target; -1: all, or none in particular.
        lasts: the duration (ns), for a kind that lasts.
        amount: the size, in the unit of the kind.
    """

    at: int
    kind: str
    client: int = -1
    node: int = -1
    lasts: int = 0
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Aim:
    """A pause or a crash of a client just before one of its steps.

    Attributes:
        client: the client.
        step: how many events concern it before: its timers, requests and replies that arrive.
        kind: "pause" or "client_crash".
        lasts: the duration of the pause (ns).
        seed: the seed of the world, which is the same for all steps.
    """

    client: int
    step: int
    kind: str
    lasts: int
    seed: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The clients' settings. Durations in ns, the ttl in ms."""

    n: int
    max_ttl_ms: int
    node_timeout: int
    retry_delay: tuple[int, int]
    outage_timeout: int
    drift_ppm: int = 10_000
    restart_guard: RestartGuard = "uptime"

    def policy(self) -> Policy:
        """Return the settings as the library's policy, which checks them."""
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
        workloads: the jobs of each caller, in sequence; the first caller of each client first.
        connection_sets: the number of connections from each client to each node.
        client_paces, node_paces: parts per million; 1,000,000 is true time.
        client_offsets, node_offsets: the clocks' readings at the start of the world (ns).
        lasts: the instant at which all faults are healed (ns).
        hosts: the clients of further callers, whose jobs are the last of `workloads`.
        pollers: the clients whose callers poll.
        deaf: the nodes that cannot call, as a server without RESP3.
        denied: nodes, each with what its users have no right to: a name in `RIGHTS`.
        old: the pollers whose releases delete the key, and call no waiter, as in older versions.
        aim: a pause or a crash at one step of a client; None: faults come by time only.
        tick: the duration of one turn of each client's event loop. At its end the client reads what
            has arrived, in that order, and what it sends to a node then arrives at one instant;
            0: each event has a separate turn.
    """

    seed: int
    scenario: str
    settings: Settings
    network_profile: NetworkProfile
    workloads: tuple[tuple[Job, ...], ...]
    connection_sets: tuple[int, ...]
    client_paces: tuple[int, ...]
    node_paces: tuple[int, ...]
    client_offsets: tuple[int, ...]
    node_offsets: tuple[int, ...]
    faults: tuple[Fault, ...] = ()
    lasts: int = NS_PER_S
    resources: tuple[str, ...] = field(default=("r0",))
    hosts: tuple[int, ...] = ()
    pollers: tuple[int, ...] = ()
    deaf: tuple[int, ...] = ()
    denied: tuple[tuple[int, str], ...] = ()
    old: tuple[int, ...] = ()
    aim: Aim | None = None
    tick: int = 0

    @property
    def dice(self) -> int:
        """The seed of the random delays."""
        return self.seed if self.aim is None else self.aim.seed

    @property
    def clients(self) -> int:
        """The number of client processes."""
        return len(self.client_paces)

    def host(self, caller: int) -> int:
        """Return the client process of a caller."""
        return caller if caller < self.clients else self.hosts[caller - self.clients]

    @property
    def size(self) -> int:
        """The number of jobs, faults and extensions."""
        jobs = [job for workload in self.workloads for job in workload]
        return len(jobs) + len(self.faults) + sum(len(job.extensions) for job in jobs)
