"""Small worlds by hand: a plan in a few lines, a network without chance, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorlock._core.time import NS_PER_MS
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import Fault, Job, Plan, Settings
from quorlock_sim.runner import run
from quorlock_sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock_sim.oracle import Judgement
    from quorlock_sim.world import World

MS = NS_PER_MS
TRIP = MS // 10  # every message takes as long, there and back
IDEAL = 1_000_000


def job(**facts: Any) -> Job:
    """Return a turn of work that acquires at once, does not wait, and releases at once."""
    usual = {"after": 0, "resource": 0, "ttl_ms": 1000, "once": False, "timeout": 0, "hold": 0}
    return Job(**(usual | facts))


def fault(kind: str, at: int = 0, **facts: Any) -> Fault:
    """One thing that goes wrong, with instants and durations in ns."""
    return Fault(at, kind, **facts)


def plan(
    *workloads: Sequence[Job],
    n: int = 3,
    faults: Sequence[Fault] = (),
    lasts: int = 100 * MS,
    connection_sets: int = 1,
    network_profile: NetworkProfile = NetworkProfile(TRIP, 0, 0, 0),  # noqa: B008 (frozen)
    client_paces: Sequence[int] = (),
    node_paces: Sequence[int] = (),
    resources: int = 1,
    max_ttl_ms: int = 1000,
) -> Plan:
    """A world of so many clients as there are careers, with clocks that start at 0."""
    clients = len(workloads)
    return Plan(
        seed=1,
        scenario="by hand",
        settings=Settings(n, max_ttl_ms, 20 * MS, (10 * MS, 20 * MS), 500 * MS),
        network_profile=network_profile,
        workloads=tuple(map(tuple, workloads)),
        connection_sets=(connection_sets,) * clients,
        client_paces=tuple(client_paces) or (IDEAL,) * clients,
        node_paces=tuple(node_paces) or (IDEAL,) * n,
        client_offsets=(0,) * clients,
        node_offsets=(0,) * n,
        faults=tuple(sorted(faults, key=lambda one: one.at)),
        lasts=lasts,
        resources=tuple(f"r{number}" for number in range(resources)),
    )


@dataclass(frozen=True)
class Seen:
    """A world that has come to its end, and its trace."""

    world: World
    judgement: Judgement
    lines: list[dict[str, Any]]

    def all(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """The lines of that kind that say these things."""
        wanted = {"kind": kind, **facts}.items()
        return [line for line in self.lines if wanted <= _hashable(line).items()]

    def one(self, kind: str, **facts: Any) -> dict[str, Any]:
        """The only such line."""
        (line,) = self.all(kind, **facts)
        return line

    def before(self, heal: int, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """The lines of that kind from before everything was healed."""
        return [line for line in self.all(kind, **facts) if line["at"] < heal]

    @property
    def rules(self) -> set[str]:
        """The promises that were not kept."""
        return {violation.rule for violation in self.judgement.violations}


def _hashable(line: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in line.items() if not isinstance(fact, list)}


def see(plan_: Plan) -> Seen:
    """Run it, with a trace."""
    trace = Trace()
    world, judgement = run(plan_, trace)
    return Seen(world, judgement, trace.lines)
