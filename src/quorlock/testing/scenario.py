"""Scenarios: which worlds there are, as weights on what may go wrong in them.

Every world of a scenario draws its own profile from its seed: some of the faults, none of the
others ("swarm testing": a world with everything at once hides what two faults alone would show).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.time import NS_PER_MS
from quorlock.testing import comebacks
from quorlock.testing.network import Weather
from quorlock.testing.plan import Fault, Job, Plan, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

Weights = Mapping[str, int]

# What leaves Redlock's assumptions as they are: it must be safe through all of these.
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
# What breaks them, at times: an overlap after that is excused, everything else is not.
MEMORY_TROUBLE: Weights = {"crash_lost": 3, "crash_saved": 2, "save": 2, "flush": 1, "evict": 1}
# What the restart guard is there for, and what gets in its way.
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
# The steps of `comebacks`.
COMEBACKS: Weights = {"break": 2, "save": 1, "crash_saved": 1, "one_way_to": 2}
# Keys of a minority at times, of a majority at others: what renewal repairs, and what it cannot.
RENEWAL_TROUBLE: Weights = {"crash_lost": 1, "evict": 1, "flush": 1}
# What breaks mutual exclusion and must not break fences: besides, nodes that forget and keep out.
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
    """Per mille of the worlds that must be so, or a run of them proves nothing."""

    intact: int  # the assumptions held
    disturbed: int  # a fault came during an attempt
    contested: int  # several clients were granted a lock


FLOORS = Floors(400, 200, 850)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A family of worlds.

    Attributes:
        summary: one line for who has to choose.
        weights: kinds of faults, and how often each is drawn compared with the others.
        nodes, clients: how many there may be.
        faults: at most so many in a world.
        calm: per mille of the worlds that have no fault at all.
        drifting: per mille of the worlds whose clocks go at the very bound of the drift.
        once: per mille of the jobs that make one attempt only.
        extending: per mille of the jobs that extend.
        renewing: per mille of the jobs whose leases extend themselves.
        jobs: at most so many for each client.
        resources: at most so many, mostly one.
        late_tail: per mille of the messages that are late, in one world of four.
        fenced: per mille of the worlds whose leases have fences.
        shaped: a last word on the plan, for directed scenarios.
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
    floors: Floors = FLOORS
    shaped: Callable[[Plan, Random], Plan] | None = field(default=None, compare=False)

    def plan(self, seed: int) -> Plan:
        """The world of that seed."""
        return _Planner(self, seed).plan()


class _Planner:
    """Draws one plan. Only `random()` of the generator is used: it is the same in every Python.

    beat: how quickly work goes (ns), mostly the ttl. Some ttls are far longer: only then is what a
    client leaves behind still there when all has settled.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.dice = Random(seed)
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
        weather = self._weather()
        # Some beats long: work is done well before a lease runs out, and crosses it at times.
        lasts = min(self.between(1, 4) * self.beat, 6_000 * NS_PER_MS)
        client_paces, node_paces = self._paces(clients, n)
        resources = 1 if self.happens(700) else scenario.resources
        plan = Plan(
            seed=self.seed,
            scenario=scenario.name,
            settings=settings,
            weather=weather,
            careers=tuple(self._career(settings, resources, lasts) for _ in range(clients)),
            bundles=tuple(self.between(1, 2) for _ in range(clients)),
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
        """The same work with fences: on nodes whose clocks agree, or one of them does not."""
        max_ttl = plan.settings.max_ttl_ms * NS_PER_MS
        apart = self.one_of((0, NS_PER_MS // 10, 5 * NS_PER_MS, max_ttl // 4))
        clock = plan.node_offsets[0] + 3_600_000 * NS_PER_MS
        offsets = [clock + self.between(0, apart) for _ in plan.node_offsets]
        if self.happens(200):
            offsets[self.between(0, len(offsets) - 1)] += self.between(-3, 3) * max_ttl
        careers = tuple(
            tuple(replace(job, fencing=True) for job in career) for career in plan.careers
        )
        return replace(plan, careers=careers, node_offsets=tuple(offsets))

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

    def _weather(self) -> Weather:
        timeout = self.node_timeout
        return Weather(
            shortest=self.one_of((1, timeout // 200, timeout // 20)),
            spread=self.one_of((timeout // 50, timeout // 10, timeout // 3, timeout)),
            tail=self.one_of((0, 0, 20, self.scenario.late_tail)),
            tail_until=self.one_of((2 * timeout, self.beat)),
        )

    def _paces(self, clients: int, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.happens(self.scenario.drifting):
            # At the very bound: clients 1 % slow against the nodes, or some of them.
            slow = tuple(self.one_of((990_000, 990_000, 1_000_000)) for _ in range(clients))
            return slow, (1_000_000,) * n
        if self.happens(500):
            return (1_000_000,) * clients, (1_000_000,) * n
        client_paces = tuple(self.between(995_000, 1_004_900) for _ in range(clients))
        return client_paces, tuple(self.between(995_100, 1_004_900) for _ in range(n))

    # --- work --------------------------------------------------------------------------------

    def _career(self, settings: Settings, resources: int, lasts: int) -> tuple[Job, ...]:
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
        return self._renewed(job) if scenario.renewing else job

    def _renewed(self, job: Job) -> Job:
        """Held for several ttls, or one that is not renewed."""
        if not self.happens(self.scenario.renewing):
            return job
        ttl = job.ttl_ms * NS_PER_MS
        # By token or by nobody: not while it renews itself.
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

    # --- trouble -----------------------------------------------------------------------------

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
        if kind == "crash_lost":  # some stay out for max_ttl, as the Redlock page asks
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
    """In every third world the guard goes by the marker, and nodes are flushed as well."""
    if dice.random() * 3 >= 1:
        return plan
    faults = tuple(
        replace(fault, kind="flush") if fault.kind == "crash_saved" and fault.at % 2 else fault
        for fault in plan.faults
    )
    # Nodes that are older than their markers: clocks that began long ago.
    offsets = tuple(offset + _LONG_AGO for offset in plan.node_offsets)
    settings = replace(plan.settings, restart_guard="marker")
    return replace(plan, settings=settings, node_offsets=offsets, faults=faults)


_LONG_AGO = 10**15
_OF_NODE = frozenset({*NODE_TROUBLE, *MEMORY_TROUBLE, "unlock", "wall_step", "wall_drift"})

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "calm",
            "nothing goes wrong but contention",
            {},
            extending=500,
            floors=Floors(1000, 0, 850),
        ),
        Scenario("network", "connections break, stall, lose, repeat and part", NETWORK_TROUBLE),
        Scenario("nodes", "nodes hang, crash with their memory, refuse", NODE_TROUBLE),
        Scenario("clients", "clients pause, crash, cancel and vanish", CLIENT_TROUBLE),
        Scenario(
            "mixed",
            "everything that Redlock must survive, and at times what it cannot",
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
            "everything that leaves the assumptions as they are",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE},
        ),
        Scenario(
            "renewal",
            "leases that extend themselves, through all that Redlock must survive and lost keys",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **RENEWAL_TROUBLE},
            renewing=700,
            jobs=3,
            floors=Floors(400, 200, 700),
        ),
        Scenario(
            "memory",
            "nodes forget: restarts, flushes, evictions",
            MEMORY_TROUBLE,
            floors=Floors(150, 200, 850),
        ),
        Scenario(
            "restarts",
            "nodes restart empty, or with old keys, or are flushed: the guard keeps them out",
            RESTARTS,
            nodes=(1, 2, 3, 3, 3, 3, 4, 5),
            faults=12,
            floors=Floors(990, 250, 650),
            renewing=400,
            shaped=_guarded,
        ),
        Scenario(
            "comebacks",
            "a node comes back with what it had on disk, at the one moment that matters",
            COMEBACKS,
            floors=Floors(1000, 990, 990),
            shaped=comebacks.shaped,
        ),
        Scenario(
            "fences",
            "fences, whatever breaks the lock: clients' clocks that jump, locks that are deleted",
            {**CLIENT_TROUBLE, **NODE_TROUBLE, **NETWORK_TROUBLE, **FENCE_TROUBLE},
            nodes=(1, 2, 3, 3, 3, 3, 4, 5),
            fenced=1000,
            floors=Floors(150, 200, 800),
        ),
        Scenario(
            "clocks",
            "clocks drift beyond the bound and jump",
            CLOCK_TROUBLE,
            floors=Floors(100, 200, 850),
        ),
    )
}

# All of them, by turns: what `make sim` runs if nothing is said.
ALL = "all"
_TURNS = (
    *("sound", "mixed", "sound", "network", "sound", "mixed", "nodes", "clients", "sound"),
    *("mixed", "calm", "sound", "memory", "sound", "mixed", "clocks", "network", "sound"),
    *("restarts", "renewal", "fences", "comebacks"),
)


def plan_of(scenario: str, seed: int) -> Plan:
    """The world of a seed; of "all", the scenario whose turn it is."""
    name = _TURNS[seed % len(_TURNS)] if scenario == ALL else scenario
    return SCENARIOS[name].plan(seed)


def floors_of(scenario: str) -> Floors:
    """What a run of many worlds must have had to mean anything."""
    return Floors(600, 250, 850) if scenario == ALL else SCENARIOS[scenario].floors
