"""Scenarios: families of worlds, as weights on their faults.

Every world of a scenario draws its profile from its seed: some of the faults, none of the others
("swarm testing": a world with all faults hides defects that two faults alone would show).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.time import NS_PER_MS
from quorlock_sim import (
    scenarios_handover,
    scenarios_keeping,
    scenarios_queues,
    scenarios_restart,
    scenarios_several,
)
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import Fault, Job, Plan, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

Weights = Mapping[str, int]

# These faults leave Redlock's assumptions intact: it must be safe through all of them.
CLIENT_TROUBLE: Weights = {
    "pause": 4,
    "stall": 3,
    "client_crash": 1,
    "cancel": 4,
    "vanish": 1,
    "client_wall_step": 2,
}
NODE_TROUBLE: Weights = {
    "hang": 4,
    "slow": 3,
    "crash_kept": 2,
    "read_only": 1,
    "full": 1,
    "script_flush": 1,
}
NETWORK_TROUBLE: Weights = {
    "break": 6,
    "lose_requests": 3,
    "lose_replies": 4,
    "duplicate": 2,
    "partition": 3,
    "one_way_to": 2,
    "one_way_from": 3,
    "flap": 1,
}
# These can break the assumptions: an overlap after that is excused, other violations are not.
MEMORY_TROUBLE: Weights = {"crash_lost": 3, "crash_saved": 2, "save": 2, "flush": 1, "evict": 1}
# The faults that the restart guard is for, with others that can interfere.
RESTARTS: Weights = {
    "crash_lost": 8,
    "crash_saved": 4,
    "crash_kept": 1,
    "save": 2,
    "hang": 2,
    "break": 2,
    "partition": 1,
    "pause": 2,
}
# The faults that leave releases pending and in flight.
HAND_OVER_TROUBLE: Weights = {
    "break": 6,
    "lose_requests": 3,
    "lose_replies": 5,
    "one_way_to": 3,
    "one_way_from": 4,
    "partition": 2,
    "duplicate": 1,
    "hang": 4,
    "slow": 2,
    "pause": 2,
    "stall": 1,
    "client_crash": 1,
    "crash_kept": 1,
}
# The faults in the plans of `scenarios_restart`.
COMEBACKS: Weights = {"break": 2, "save": 1, "crash_saved": 1, "one_way_to": 2, "failover": 1}
# The faults that lose calls and places, or strand a waiter.
QUEUE_TROUBLE: Weights = {
    "mute": 3,
    "echo": 3,
    "lose_calls": 3,
    "delay_calls": 3,
    "foreign": 3,
    "crash_lost": 2,
    "save": 2,
    "crash_saved": 2,
    "crash_kept": 2,
    "client_crash": 3,
    "pause": 5,
    "cancel": 6,
    "break": 4,
}
# Losses of keys on a minority, which renewal repairs, or on a majority, which it cannot.
RENEWAL_TROUBLE: Weights = {"crash_lost": 1, "evict": 1, "flush": 1}
# Faults that break mutual exclusion, but not fences; also nodes that forget, and are quarantined.
FENCE_TROUBLE: Weights = {
    "client_step": 6,
    "client_drift": 3,
    "unlock": 12,
    "crash_lost": 3,
    "crash_saved": 2,
    "save": 2,
}
CLOCK_TROUBLE: Weights = {"client_step": 2, "wall_step": 2, "client_drift": 1, "wall_drift": 1}


class Floors(NamedTuple):
    """Minimal shares, per mille; a run with fewer is inconclusive."""

    intact: int  # the assumptions held
    disturbed: int  # a fault occurred during an attempt
    contested: int  # several clients were granted a lock
    judged: int = 0  # of the waiting in worlds with faults


FLOORS = Floors(400, 200, 850)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A family of worlds.

    Attributes:
        summary: one line for `--list`.
        weights: the kinds of faults, with their relative frequency.
        nodes, clients: the numbers to choose from.
        faults: the largest number in a world.
        calm: per mille of the worlds that have no fault.
        drifting: per mille of the worlds whose clocks drift by exactly the bound.
        once: per mille of the jobs that make a single attempt.
        extending: per mille of the jobs that extend.
        renewing: per mille of the jobs whose leases are renewed.
        jobs: the largest number for each client.
        resources: the largest number; most worlds have one.
        late_tail: per mille of the messages that are late, in one world of four.
        fenced: per mille of the worlds whose leases have fences.
        handing: per mille of the jobs whose leases are handed over.
        floors: the shares that make a run conclusive.
        shaped: a function that changes the drawn plan, for directed scenarios.
        steps: so many seeds in a row have the same plan, but for the step that it aims at.
    """

    name: str
    summary: str
    weights: Weights
    nodes: tuple[int, ...] = (1, 2, 3, 3, 3, 4, 5, 5)
    clients: tuple[int, ...] = (2, 2, 3, 3, 4, 5)
    faults: int = 9
    calm: int = 60
    drifting: int = 250
    once: int = 200
    extending: int = 350
    renewing: int = 0
    jobs: int = 4
    resources: int = 2
    late_tail: int = 200
    fenced: int = 0
    handing: int = 0
    floors: Floors = FLOORS
    shaped: Callable[[Plan, Random], Plan] | None = field(default=None, compare=False)
    steps: int = 1

    def plan(self, seed: int) -> Plan:
        """Return the plan of that seed."""
        return _Planner(self, seed).plan()


class _Planner:
    """The random choices of one plan; `random()` is the same in every version of Python.

    Attributes:
        beat: the time scale of the work (ns), mostly the ttl. Some ttls are far longer, so that
            keys which a client leaves behind still exist at the end.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.dice = Random(seed // scenario.steps)
        self.node_timeout = self.one_of((5, 10, 20, 50)) * NS_PER_MS
        self.beat = self.node_timeout * self.one_of((4, 6, 10, 30, 100))

    # --- dice --------------------------------------------------------------------------------

    def between(self, low: int, high: int) -> int:
        return low + int(self.dice.random() * (high - low + 1))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self.dice.random() * len(choices))]

    def happens(self, per_mille: int) -> bool:
        return self.dice.random() * 1000 < per_mille

    # --- the plan ----------------------------------------------------------------------------

    def plan(self) -> Plan:
        scenario = self.scenario
        n, clients = self.one_of(scenario.nodes), self.one_of(scenario.clients)
        settings = self._settings(n)
        network_profile = self._network_profile()
        # A few beats: most work ends well before a lease expires, and some continues beyond.
        lasts = min(self.between(1, 4) * self.beat, 6_000 * NS_PER_MS)
        client_paces, node_paces = self._paces(clients, n)
        resources = 1 if self.happens(700) else scenario.resources
        plan = Plan(
            seed=self.seed,
            scenario=scenario.name,
            settings=settings,
            network_profile=network_profile,
            workloads=tuple(self._workload(settings, resources, lasts) for _ in range(clients)),
            connection_sets=tuple(self.between(1, 2) for _ in range(clients)),
            client_paces=client_paces,
            node_paces=node_paces,
            client_offsets=tuple(self.between(1, 1_000_000) * 1_000_003 for _ in range(clients)),
            node_offsets=tuple(self.between(1, 1_000_000) * 1_000_033 for _ in range(n)),
            faults=self._faults(settings, n, clients, lasts),
            lasts=lasts,
            resources=tuple(f"r{number}" for number in range(resources)),
        )
        if self.happens(scenario.fenced):
            plan = self._fenced(plan)
        return scenario.shaped(plan, self.dice) if scenario.shaped is not None else plan

    def _fenced(self, plan: Plan) -> Plan:
        """Return the same plan with fences; the nodes' clocks agree, or one of them does not."""
        max_ttl = plan.settings.max_ttl_ms * NS_PER_MS
        apart = self.one_of((0, NS_PER_MS // 10, 5 * NS_PER_MS, max_ttl // 4))
        clock = plan.node_offsets[0] + 3_600_000 * NS_PER_MS
        offsets = [clock + self.between(0, apart) for _ in plan.node_offsets]
        if self.happens(200):
            offsets[self.between(0, len(offsets) - 1)] += self.between(-3, 3) * max_ttl
        workloads = tuple(
            tuple(replace(job, fencing=True) for job in workload) for workload in plan.workloads
        )
        return replace(plan, workloads=workloads, node_offsets=tuple(offsets))

    def _settings(self, n: int) -> Settings:
        beat_ms = self.beat // NS_PER_MS
        shortest = max(1, beat_ms // self.one_of((8, 15, 30)))
        return Settings(
            n=n,
            max_ttl_ms=beat_ms * self.one_of((1, 1, 1, 1, 10)),
            node_timeout=self.node_timeout,
            retry_delay=(shortest * NS_PER_MS, shortest * self.between(2, 5) * NS_PER_MS),
            outage_timeout=self.one_of((100, 500, 2_000)) * NS_PER_MS,
        )

    def _network_profile(self) -> NetworkProfile:
        timeout = self.node_timeout
        return NetworkProfile(
            shortest=self.one_of((1, timeout // 200, timeout // 20)),
            spread=self.one_of((timeout // 50, timeout // 10, timeout // 3, timeout)),
            tail=self.one_of((0, 0, 20, self.scenario.late_tail)),
            tail_until=self.one_of((2 * timeout, self.beat)),
        )

    def _paces(self, clients: int, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.happens(self.scenario.drifting):
            # Exactly at the bound: all clients, or some, are 1 % slow against the nodes.
            slow = tuple(self.one_of((990_000, 990_000, 1_000_000)) for _ in range(clients))
            return slow, (1_000_000,) * n
        if self.happens(500):
            return (1_000_000,) * clients, (1_000_000,) * n
        client_paces = tuple(self.between(995_000, 1_004_900) for _ in range(clients))
        return client_paces, tuple(self.between(995_100, 1_004_900) for _ in range(n))

    # --- work --------------------------------------------------------------------------------

    def _workload(self, settings: Settings, resources: int, lasts: int) -> tuple[Job, ...]:
        jobs: list[Job] = []
        begins = 0
        while begins < lasts and len(jobs) < self.scenario.jobs:
            job = self._job(settings, resources)
            begins += job.after + job.hold + NS_PER_MS
            jobs.append(job)
        return tuple(jobs)

    def _job(self, settings: Settings, resources: int) -> Job:
        scenario = self.scenario
        ttl_ms = settings.max_ttl_ms
        if self.happens(300):
            ttl_ms = max(ttl_ms // 2, 4 * settings.node_timeout // NS_PER_MS)
        beat = min(ttl_ms * NS_PER_MS, self.beat)
        extensions = self._extensions(settings, ttl_ms) if self.happens(scenario.extending) else ()
        hold = self.one_of((0, beat // 20, beat // 5, beat // 2, beat))
        job = Job(
            after=int(self.dice.random() ** 2 * beat),
            resource=self.between(0, resources - 1),
            ttl_ms=ttl_ms,
            once=self.happens(scenario.once),
            timeout=self.one_of((0, beat // 4, beat, 3 * beat)),
            hold=hold + sum(after for after, _ in extensions),
            extensions=extensions,
            ending=self.one_of(("release",) * 6 + ("abandon", "by_token", "hand_over")),
            cancel_after=int(self.dice.random() * beat / 4) if self.happens(100) else None,
        )
        job = self._renewed(job) if scenario.renewing else job
        return self._handed(job) if scenario.handing else job

    def _handed(self, job: Job) -> Job:
        """Return the job, at random with a hand-over to one client or more, or back."""
        if not self.happens(self.scenario.handing):
            return job
        ttl = job.ttl_ms * NS_PER_MS
        return replace(
            job,
            ending="hand_over",
            hops=self.one_of((1, 1, 2, 3)),
            successor_holds=int(self.dice.random() * 3 * ttl),
            successor_renews=self.happens(800),
        )

    def _renewed(self, job: Job) -> Job:
        """Return the job, at random with renewal over several ttls."""
        if not self.happens(self.scenario.renewing):
            return job
        ttl = job.ttl_ms * NS_PER_MS
        # A renewed lease cannot be extended by token as well.
        ending = "release" if job.ending == "by_token" else job.ending
        return replace(
            job,
            hold=int(self.dice.random() * 4 * ttl),
            extensions=job.extensions if self.happens(300) else (),
            ending=ending,
            renew=True,
            max_hold=self.one_of((None, None, ttl, ttl * 3 // 2, 3 * ttl)),
        )

    def _extensions(self, settings: Settings, ttl_ms: int) -> tuple[tuple[int, int], ...]:
        beat = min(ttl_ms * NS_PER_MS, self.beat)
        shorter = max(ttl_ms // 2, 4 * settings.node_timeout // NS_PER_MS)
        return tuple(
            (int(self.dice.random() * beat * 0.9), self.one_of((ttl_ms, ttl_ms, shorter)))
            for _ in range(self.between(1, 4))
        )

    # --- faults ------------------------------------------------------------------------------

    def _faults(self, settings: Settings, n: int, clients: int, lasts: int) -> tuple[Fault, ...]:
        if not self.scenario.weights or self.happens(self.scenario.calm):
            return ()
        kinds = [kind for kind in self.scenario.weights if self.happens(500)]
        deck = [kind for kind in kinds for _ in range(self.scenario.weights[kind])]
        if not deck:
            return ()
        count = self.between(1, self.scenario.faults)
        drawn = [self._fault(self.one_of(deck), settings, n, clients, lasts) for _ in range(count)]
        return tuple(sorted(drawn, key=lambda fault: fault.at))

    def _fault(self, kind: str, settings: Settings, n: int, clients: int, lasts: int) -> Fault:
        max_ttl = settings.max_ttl_ms * NS_PER_MS
        of_client = kind in CLIENT_TROUBLE or kind.startswith("client_")
        to_all = not of_client and self.happens(400)
        at = int(self.dice.random() * lasts * 0.95)
        return Fault(
            at=at,
            kind=kind,
            client=-1 if to_all or kind in _OF_NODE else self.between(0, clients - 1),
            node=self.between(0, n - 1),
            lasts=min(self._length(kind, max_ttl), lasts - at),
            amount=self._amount(kind, max_ttl),
        )

    def _length(self, kind: str, max_ttl: int) -> int:
        timeout, beat = self.node_timeout, self.beat
        if kind == "crash_lost":  # some stay down for max_ttl, as the Redlock page asks
            return self.one_of((timeout, max_ttl // 3, max_ttl + 2 * NS_PER_MS))
        long = self.one_of((timeout // 2, 2 * timeout, beat // 2, beat, 2 * beat))
        return 1 + int(self.dice.random() * long)

    def _amount(self, kind: str, max_ttl: int) -> int:
        if kind.endswith("step"):
            return self.one_of((-1, 1)) * int(self.dice.random() * 2 * max_ttl)
        if kind in ("client_drift", "wall_drift"):
            return self.one_of((0, 900_000, 980_000, 1_000_000, 1_020_000, 1_100_000))
        if kind == "slow":
            return int(self.dice.random() * 2 * self.node_timeout)
        if kind == "flap":
            return self.between(2, 6)
        return self.one_of((0, 500, 1000, self.between(0, 1000)))


def _guarded(plan: Plan, dice: Random) -> Plan:
    """Use the marker as restart guard in every third world, and flush nodes there."""
    if dice.random() * 3 >= 1:
        return plan
    faults = tuple(
        replace(fault, kind="flush") if fault.kind == "crash_saved" and fault.at % 2 else fault
        for fault in plan.faults
    )
    # The nodes are older than their markers: their clocks start at a late reading.
    offsets = tuple(offset + _LONG_AGO for offset in plan.node_offsets)
    settings = replace(plan.settings, restart_guard="marker")
    return replace(plan, settings=settings, node_offsets=offsets, faults=faults)


def _pooled(plan: Plan, dice: Random) -> Plan:
    """Let most jobs take any one of two to four resources; the marker guards some worlds.

    In a third of them the names are so long that a node is asked for two at a time.
    """
    permits = 2 + int(dice.random() * 2)
    workloads = tuple(
        tuple(
            replace(job, any_of=dice.random() * 7 >= 1, resource=int(dice.random() * permits))
            for job in workload
        )
        for workload in plan.workloads
    )
    name = "pool"
    if dice.random() * 3 < 1:
        name, permits = "p" * 500, permits + 1
    resources = tuple(f"{name}#{permit}" for permit in range(permits))
    return _guarded(replace(plan, workloads=workloads, resources=resources), dice)


def _shared(plan: Plan, dice: Random) -> Plan:
    """Let two thirds of the jobs share the lock; the marker guards some worlds."""
    workloads = tuple(
        tuple(replace(job, shared=not job.fencing and dice.random() * 3 >= 1) for job in workload)
        for workload in plan.workloads
    )
    return _guarded(replace(plan, workloads=workloads), dice)


_LONG_AGO = 10**15
_OF_NODE = frozenset(
    {*NODE_TROUBLE, *MEMORY_TROUBLE, "unlock", "wall_step", "wall_drift"}
    | {"mute", "echo", "lose_calls", "delay_calls", "foreign"}
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "calm",
            "contention without faults",
            {},
            extending=500,
            floors=Floors(1000, 0, 850),
        ),
        Scenario("network", "broken connections, loss, duplicates, partitions", NETWORK_TROUBLE),
        Scenario("nodes", "nodes that hang, are slow, restart with their keys", NODE_TROUBLE),
        Scenario("clients", "clients that pause, crash, cancel and vanish", CLIENT_TROUBLE),
        Scenario(
            "mixed",
            "all faults that Redlock must survive, and some that it cannot",
            {
                **CLIENT_TROUBLE,
                **NODE_TROUBLE,
                **NETWORK_TROUBLE,
                **MEMORY_TROUBLE,
                **CLOCK_TROUBLE,
            },
        ),
        Scenario(
            "sound",
            "all faults that leave the assumptions intact",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE},
        ),
        Scenario(
            "renewal",
            "renewed leases, through all faults that Redlock must survive, and lost keys",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **RENEWAL_TROUBLE},
            renewing=700,
            jobs=3,
            floors=Floors(400, 200, 700),
        ),
        Scenario(
            "handovers",
            "leases that are handed over while releases of them are pending or in flight",
            HAND_OVER_TROUBLE,
            nodes=(1, 2, 3, 3, 3, 3, 3, 4, 5),
            renewing=300,
            handing=700,
            jobs=3,
            faults=12,
            floors=Floors(1000, 200, 700),
            shaped=scenarios_handover.shaped,
        ),
        Scenario(
            "memory",
            "nodes that forget: restarts, flushes, evictions",
            MEMORY_TROUBLE,
            floors=Floors(150, 200, 850),
        ),
        Scenario(
            "restarts",
            "nodes that restart empty or with old keys, or are flushed, against the restart guard",
            RESTARTS,
            nodes=(1, 2, 3, 3, 3, 3, 4, 5),
            faults=12,
            floors=Floors(990, 250, 650),
            renewing=400,
            shaped=_guarded,
        ),
        Scenario(
            "comebacks",
            "a node that comes back with old keys from disk, or without keys, at the one critical"
            " moment",
            COMEBACKS,
            floors=Floors(1000, 990, 990),
            shaped=scenarios_restart.shaped,
        ),
        Scenario(
            "fences",
            "fences, while the lock is broken: clients' clocks that jump, locks that are deleted",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **FENCE_TROUBLE},
            nodes=(1, 2, 3, 3, 3, 3, 4, 5),
            fenced=1000,
            floors=Floors(150, 200, 800),
        ),
        Scenario(
            "queues",
            "many callers that wait for one lock, in processes and in lines inside them",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **QUEUE_TROUBLE},
            calm=250,
            once=50,
            extending=100,
            renewing=100,
            resources=1,
            faults=12,
            floors=Floors(700, 200, 850, judged=500),
            shaped=scenarios_queues.shaped,
        ),
        Scenario(
            "steps",
            "a caller among waiters that is paused or killed before each of its steps in turn",
            {},
            nodes=(1, 2, 3, 3, 3, 5),
            clients=(2, 3, 3),
            once=0,
            extending=50,
            renewing=100,
            resources=1,
            jobs=2,
            floors=Floors(1000, 20, 500, judged=600),
            shaped=scenarios_queues.aimed,
            steps=scenarios_queues.STEPS,
        ),
        Scenario(
            "keeping",
            "work that is kept as done, through all faults that a mark must survive, and restarts",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, "crash_lost": 4},
            renewing=300,
            once=600,
            jobs=4,
            floors=Floors(400, 200, 600),
            shaped=scenarios_keeping.shaped,
        ),
        Scenario(
            "several",
            "sets of resources, taken all at once or not at all, through all faults",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **RESTARTS},
            renewing=250,
            handing=100,
            fenced=250,
            floors=Floors(400, 200, 700),
            shaped=scenarios_several.shaped,
        ),
        Scenario(
            "loops",
            "callers of one event loop that want sets of resources, and act in its turns",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE},
            calm=500,
            clients=(2, 2, 3),
            once=50,
            floors=Floors(1000, 100, 850, judged=500),
            shaped=scenarios_several.in_step,
        ),
        Scenario(
            "permits",
            "semaphores: any one of two to four resources, beside plain locks on them",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE},
            nodes=(1, 2, 3, 3, 3, 4, 5, 5),
            clients=(3, 4, 5, 5),
            once=100,
            renewing=200,
            handing=100,
            floors=Floors(400, 200, 850),
            shaped=_pooled,
        ),
        Scenario(
            "shared",
            "readers that share a lock, and writers, through all faults",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **RESTARTS},
            clients=(3, 4, 5, 5),
            renewing=250,
            handing=100,
            floors=Floors(400, 200, 700),
            shaped=_shared,
        ),
        Scenario(
            "clocks",
            "clocks that drift beyond the bound, and jump",
            CLOCK_TROUBLE,
            floors=Floors(100, 200, 850),
        ),
    )
}

# All scenarios in rotation: the default of `make sim`.
ALL = "all"
_TURNS = (
    *("sound", "mixed", "sound", "network", "sound", "mixed", "nodes", "clients", "sound"),
    *("mixed", "calm", "sound", "memory", "sound", "mixed", "clocks", "network", "sound"),
    *("restarts", "renewal", "fences", "comebacks", "handovers"),
    *("queues", "queues", "steps", "keeping", "several", "permits", "shared", "loops"),
)


def plan_of(scenario: str, seed: int) -> Plan:
    """Return the plan of a seed; "all" rotates through the scenarios."""
    name = _TURNS[seed % len(_TURNS)] if scenario == ALL else scenario
    return SCENARIOS[name].plan(seed)


def floors_of(scenario: str) -> Floors:
    """Return the shares that make a run of many worlds conclusive."""
    return Floors(600, 250, 850, judged=400) if scenario == ALL else SCENARIOS[scenario].floors
