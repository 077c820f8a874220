"""Performance aims as data: what each is computed from, and its bound.

An aim's figure is one number per round. Its median is compared with the bound; the report also
shows the smallest and the largest. Of a peer's settings the fastest count. Every module of
`bench.works` may add AIMS; those of `uncontended` are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.plan import works
from bench.results import Figure, Results, middle, present, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

At = tuple[str, str]  # (case, contestant)


@dataclass(frozen=True)
class Aim:
    """One performance aim; `at_most` says whether the bound is an upper or a lower one."""

    what: str
    aim: str
    bound: float
    figure: Callable[[Results], Figure]
    at_most: bool = True

    def judge(self, results: Results) -> Judgement:
        """Compare the results with the bound."""
        figure = self.figure(results)
        found = middle(figure)
        return Judgement(self, found, present(figure))


@dataclass(frozen=True)
class Judgement:
    """An aim with its measured median and the figures of all rounds."""

    aim: Aim
    found: float | None
    rounds: Figure

    @property
    def reached(self) -> bool | None:
        """True if the aim is reached, None if it was not measured."""
        if self.found is None:
            return None
        return self.found <= self.aim.bound if self.aim.at_most else self.found >= self.aim.bound


def at_most(what: str, times: float, of: str, ours: At, theirs: At, key: str) -> Aim:
    """Return the aim that our figure is at most `times` theirs (durations, costs)."""
    return Aim(what, f"≤ {times:g} × {of}", times, lambda r: r.ratio(ours, theirs, key))


def at_least(what: str, times: float, of: str, ours: At, theirs: At, key: str) -> Aim:
    """Return the aim that our figure is at least `times` theirs (throughput)."""
    return Aim(
        what, f"≥ {times:g} × {of}", times, lambda r: r.ratio(ours, theirs, key), at_most=False
    )


def faster(what: str, times: float, than: str, ours: At, kin: At, key: str) -> Aim:
    """Return the aim to be at least `times` faster than the fastest settings of a peer."""

    def figure(results: Results) -> Figure:
        theirs = results.best(*kin, key)
        more_is_better = key == "per_s"
        return (
            results.ratio(ours, theirs, key) if more_is_better else results.ratio(theirs, ours, key)
        )

    return Aim(what, f"≥ {times:g} × {than}", times, figure, at_most=False)


def none_of(what: str, at: At, key: str = "errors") -> Aim:
    """Return the aim that the figure is 0 in every round."""

    def figure(results: Results) -> Figure:
        return [max(found)] if (found := present(results.figure(*at, key))) else []

    return Aim(what, "none", 0, figure)


ONE = "blocking, N = 5, 1 thread"
SLOW = f"{ONE}, 1 ms added to every reply"
SOME = "blocking, N = 5, 16 threads"
MANY = "blocking, N = 5, 64 threads"
SINGLE = "blocking, N = 1, 1 thread"


def _blocking() -> list[Aim]:
    def limit(case: str, times: float, key: str, which: str, of: str, name: str) -> Aim:
        return at_most(f"{case}: {name}", times, of, (case, "quorlock"), (case, which), key)

    def peer(case: str, times: float, kin: str) -> Aim:
        return faster(f"{case}: p50", times, kin, (case, "quorlock"), (case, kin), "p50_us")

    def threads(case: str, times: float) -> Aim:
        one, several = (ONE, "quorlock"), (case, "quorlock")
        return at_least(f"{case}: cycles/s", times, "those of one thread", several, one, "per_s")

    waits, stops = "the limit that waits for all", "the limit that stops at three"
    many = (MANY, "quorlock")
    return [
        limit(ONE, 0.95, "p50_us", "limit.all", waits, "p50"),
        limit(ONE, 1.2, "p50_us", "limit.quorum", stops, "p50"),
        peer(ONE, 2.3, "redlock-py"),
        peer(ONE, 10, "pottery"),
        limit(SLOW, 1.05, "p50_us", "limit.all", waits, "p50"),
        peer(SLOW, 4, "redlock-py"),
        limit(SINGLE, 1.3, "p50_us", "limit.all", "the limit", "p50"),
        peer(SINGLE, 2, "redis-py.Lock"),
        threads(SOME, 1.8),
        threads(MANY, 2.2),
        Aim(
            f"{MANY}: p99",
            "≤ 4 × p50",
            4,
            lambda r: ratio(r.figure(*many, "p99_us"), r.figure(*many, "p50_us")),
        ),
        none_of(f"{MANY}, 64,000 cycles: errors", (f"{MANY}, 64,000 cycles", "quorlock")),
        limit(ONE, 1.3, "cpu_us", "limit.all", waits, "CPU per cycle"),
    ]


def _asyncio() -> list[Aim]:
    def at(tasks: str, n: int = 5, who: str = "quorlock.asyncio") -> At:
        return f"asyncio, N = {n}, {tasks}", who

    def times(ours: At, count: float, kin: str, than: str) -> Aim:
        return faster(f"{_named(ours)}: cycles/s", count, than, ours, (ours[0], kin), "per_s")

    def as_shown(ours: At, count: float) -> Aim:
        theirs = ours[0], gather
        return at_least(f"{_named(ours)}: cycles/s", count, f"{gather}'s", ours, theirs, "per_s")

    gather, node = "redis.asyncio+gather", "node-redlock"
    fewer, few, many = at("40 tasks"), at("100 tasks"), at("1,000 tasks")
    in_blocks = at("100 tasks", who="quorlock.asyncio+with")
    cpu = "CPU per cycle"
    return [
        times(at("1 task"), 2, gather, gather),
        times(at("1 task"), 1.5, node, node),
        times(at("10 tasks"), 10, gather, gather),
        as_shown(in_blocks, 25),
        as_shown(few, 30),
        Aim(
            f"{_named(in_blocks)}: {cpu}",
            f"≤ 1/35 of {gather}'s",
            1 / 35,
            lambda r: r.ratio(in_blocks, (in_blocks[0], gather), "cpu_us"),
        ),
        times(few, 40, "pottery.asyncio", "pottery"),
        times(few, 10, "valkey-glide+gather", "valkey-glide+gather"),
        times(few, 3, node, node),
        times(at("100 tasks", n=1), 1.3, node, node),
        times(few, 0.5, "limit.saturated", "what the five servers can do at all"),
        at_least(f"{fewer[0]}: cycles/s", 0.7, "those at 100 tasks", fewer, few, "per_s"),
        at_least(f"{many[0]}: cycles/s", 0.9, "those at 100 tasks", many, few, "per_s"),
        none_of(f"{many[0]}: errors", many),
    ]


def _named(at: At) -> str:
    case, who = at
    return f"{case}, `async with`" if who.endswith("+with") else case


AIMS = [*_blocking(), *_asyncio()]


def judged(results: Results) -> list[Judgement]:
    """Judge all aims, including those of the works."""
    others = [aim for module in works().values() for aim in getattr(module, "AIMS", ())]
    return [aim.judge(results) for aim in (*AIMS, *others)]
