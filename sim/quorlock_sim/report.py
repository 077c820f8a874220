"""The sum of the results of many worlds, with a check that the run is conclusive.

"No violation" means little in worlds without faults.  So the report counts the worlds whose
assumptions were intact, those with a fault during an attempt and those in which several clients
won, and how much of the waiting `idle` has judged where there were faults. The run fails if one of
these shares is below its floor.  `runner` runs the worlds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorlock_sim import queues
from quorlock_sim.oracle import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock_sim.history import Violation
    from quorlock_sim.oracle import Judgement
    from quorlock_sim.scenarios import Floors
    from quorlock_sim.world import World

# With fewer worlds than this, shares are not significant.
FLOORS_FROM = 500
# All violations are counted; this many are kept with their texts.
_KEPT = 20

PHASES = (
    *("idle", "acquiring", "waiting", "cleaning up", "holding", "extending", "releasing"),
    *("pending", "gone"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A violation, with the scenario and seed that replay it."""

    scenario: str
    seed: int
    violation: Violation


@dataclass(slots=True)
class Report:
    """The sum over many worlds.

    Attributes:
        waited, judged: `IdleWatch`, in worlds with faults or a network that is late.
    """

    worlds: int = 0
    intact: int = 0
    disturbed: int = 0
    contested: int = 0
    excused: int = 0
    waited: int = 0
    judged: int = 0
    leases: int = 0
    messages: int = 0
    events: int = 0
    broken: Counter[str] = field(default_factory=Counter[str])  # violations, by rule
    sizes: Counter[str] = field(default_factory=Counter[str])  # worlds, by nodes
    # Of calls, and of faults by phase:
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    phases: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    found: list[Found] = field(default_factory=list[Found])

    def add(self, world: World, judgement: Judgement) -> None:
        """Add one world."""
        history = world.history
        self.worlds += 1
        self.intact += judgement.assumptions.intact
        self.disturbed += judgement.disturbed
        self.contested += judgement.winners > 1
        self.excused += judgement.excused > 0
        if not queues.is_calm(world.plan):
            self.waited += world.idle_watch.waited
            self.judged += 0 if judgement.assumptions.clocks else world.idle_watch.judged
        self.leases += len(history.leases)
        self.messages += history.messages
        self.events += history.events
        self.sizes[f"N = {world.policy.n}"] += 1
        self.phases.update(history.phases)
        self.outcomes.update((call.what, call.outcome) for call in history.calls)
        for violation in judgement.violations:
            self.broken[violation.rule] += 1
            if len(self.found) < _KEPT:
                self.found.append(Found(world.plan.scenario, world.plan.seed, violation))

    def merge(self, other: Report) -> None:
        """Add the report of another process."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        self.found = (self.found + other.found)[:_KEPT]

    # --- is the run conclusive? --------------------------------------------------------------

    def shares(self) -> dict[str, float]:
        """Return the shares that have a floor, per mille of the worlds."""
        worlds = max(1, self.worlds)
        return {
            "assumptions intact": 1000 * self.intact / worlds,
            "a fault during an attempt": 1000 * self.disturbed / worlds,
            "grants to two clients or more": 1000 * self.contested / worlds,
        }

    @property
    def judged_share(self) -> float:
        """The waiting that was judged in worlds with faults, per mille; all if there was none."""
        return 1000 * self.judged / self.waited if self.waited else 1000.0

    def too_kind(self, floors: Floors) -> list[str]:
        """Return the missed floors in words; none for fewer than `FLOORS_FROM` worlds."""
        if self.worlds < FLOORS_FROM:
            return []
        *of_worlds, judged = floors
        wanted = zip(self.shares().items(), of_worlds, strict=True)
        missed = [
            f"only {share / 10:.1f} % of the worlds had {what}, the floor is {floor / 10:.1f} %"
            for (what, share), floor in wanted
            if share < floor
        ]
        if self.judged_share < judged:
            share = f"{self.judged_share / 10:.1f} % of the waiting with faults"
            missed.append(f"only {share} was judged, the floor is {judged / 10:.1f} %")
        return missed

    # --- text --------------------------------------------------------------------------------

    def lines(self, seconds: float) -> Iterable[str]:
        """Yield the lines of the report."""
        rate = self.worlds / seconds if seconds else 0.0
        yield f"worlds               {self.worlds:>12,}   {rate:,.0f} a second"
        for what, share in self.shares().items():
            yield f"  {what:<31} {share / 10:>6.1f} %"
        yield f"  {'judged of waiting with faults':<31} {self.judged_share / 10:>6.1f} %"
        sizes = ", ".join(f"{size}: {count:,}" for size, count in sorted(self.sizes.items()))
        yield f"  {sizes}"
        yield f"leases granted       {self.leases:>12,}"
        yield f"messages             {self.messages:>12,}"
        yield f"overlaps excused     {self.excused:>12,}   worlds whose assumptions were broken"
        yield "violations"
        for rule, meaning in RULES.items():
            yield f"  {rule:<12} {self.broken[rule]:>9,}   {meaning}"

    def coverage(self) -> Iterable[str]:
        """Yield the table of faults by kind and by phase of the client's work."""
        kinds = sorted({kind for kind, _ in self.phases})
        if not kinds:
            return
        yield "fault x phase".ljust(15) + "".join(f"{phase:>12}" for phase in PHASES)
        for kind in kinds:
            counts = "".join(f"{self.phases[kind, phase]:>12,}" for phase in PHASES)
            yield f"{kind:<15}{counts}"

    def calls(self) -> Iterable[str]:
        """Yield the numbers of outcomes, a line for each kind of call."""
        by_call: dict[str, list[str]] = {}
        for (what, outcome), count in sorted(self.outcomes.items()):
            by_call.setdefault(what, []).append(f"{outcome or 'no end'} {count:,}")
        for what, outcomes in by_call.items():
            yield f"{what:<17} {', '.join(outcomes)}"


_NUMBERS = (
    *("worlds", "intact", "disturbed", "contested", "excused", "leases", "messages", "events"),
    *("waited", "judged"),
)
_COUNTERS = ("broken", "sizes", "outcomes", "phases")
