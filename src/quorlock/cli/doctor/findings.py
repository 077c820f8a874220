"""What a check says of the facts, and how its answers about all nodes become findings.

Facts in, findings out: nothing here asks anybody. Leaves what to look at to `each` and `together`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from quorlock.cli.doctor.facts import Facts, NodeFacts

# The worst first, which is the order of the report. "unknown": we could not look.
Level: TypeAlias = Literal["error", "warning", "unknown", "ok"]
LEVELS: tuple[Level, ...] = ("error", "warning", "unknown", "ok")


class Result(NamedTuple):
    """What one check found, about one node or about all ("")."""

    level: Level
    found: str
    fix: str = ""
    node: str = ""


class Check(NamedTuple):
    """Something to look at, and why it matters."""

    name: str
    why: str
    look: Callable[[Facts], Iterable[Result]]


class Finding(NamedTuple):
    """`#/$defs/finding` of docs/doctor.schema.json: a result, and the check that has it."""

    check: str
    level: Level
    node: str
    found: str
    why: str
    fix: str


def ok(found: str) -> Result:
    """Nothing to mend."""
    return Result("ok", found)


def error(found: str, fix: str) -> Result:
    """These nodes are not fit."""
    return Result("error", found, fix)


def warning(found: str, fix: str) -> Result:
    """They are fit, and something will go wrong some day."""
    return Result("warning", found, fix)


def unknown(found: str, fix: str) -> Result:
    """We could not look; the fix is how to let us."""
    return Result("unknown", found, fix)


def each(look: Callable[[NodeFacts, Facts], Result]) -> Callable[[Facts], Iterable[Result]]:
    """A look at every node that could be asked."""

    def look_at_all(facts: Facts) -> Iterable[Result]:
        return [look(node, facts)._replace(node=node.address) for node in facts.reached]

    return look_at_all


def findings(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """All of them, the worst first; that all is well is said once for all nodes."""
    found = [finding for check in checks for finding in _of(check, facts)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def worst(found: Sequence[Finding]) -> Level:
    """Of the whole report; what could not be looked at does not count."""
    levels = {finding.level for finding in found}
    if "error" in levels:
        return "error"
    return "warning" if "warning" in levels else "ok"


def _of(check: Check, facts: Facts) -> list[Finding]:
    results = list(check.look(facts))
    told = [
        Finding(check.name, r.level, r.node, r.found, check.why, r.fix)
        for r in results
        if r.level != "ok"
    ]
    well = dict.fromkeys(r.found for r in results if r.level == "ok")
    if well and not told:
        told.append(Finding(check.name, "ok", "", "; ".join(well), check.why, ""))
    return told
