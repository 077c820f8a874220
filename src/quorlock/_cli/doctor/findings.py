"""The results of checks, and how the results of all nodes become findings.

Nothing here does I/O. `node_checks` and `fleet_checks` define the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from quorlock._cli.doctor.facts import Facts, NodeFacts

# The worst first, which is the order of the report. "unknown": the check was not possible.
Level: TypeAlias = Literal["error", "warning", "unknown", "ok"]
LEVELS: tuple[Level, ...] = ("error", "warning", "unknown", "ok")


class Result(NamedTuple):
    """The result of one check, for one node or for all ("")."""

    level: Level
    found: str
    fix: str = ""
    node: str = ""


class Check(NamedTuple):
    """A check, and the reason why it matters."""

    name: str
    why: str
    look: Callable[[Facts], Iterable[Result]]


class Finding(NamedTuple):
    """A result with its check, as `#/$defs/finding` of docs/reference/doctor.schema.json."""

    check: str
    level: Level
    node: str
    found: str
    why: str
    fix: str


def ok(found: str) -> Result:
    """Return a result that needs no action."""
    return Result("ok", found)


def error(found: str, fix: str) -> Result:
    """Return a result that makes the nodes unfit."""
    return Result("error", found, fix)


def warning(found: str, fix: str) -> Result:
    """Return a result of nodes that are fit, but at risk."""
    return Result("warning", found, fix)


def unknown(found: str, fix: str) -> Result:
    """Return a result of a check that was not possible; the fix makes it possible."""
    return Result("unknown", found, fix)


def each(look: Callable[[NodeFacts, Facts], Result]) -> Callable[[Facts], Iterable[Result]]:
    """Return a check of every node that could be asked."""

    def look_at_all(facts: Facts) -> Iterable[Result]:
        return [look(node, facts)._replace(node=node.address) for node in facts.reached]

    return look_at_all


def findings(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """Return all findings, the worst first. An "ok" is reported once for all nodes."""
    found = [finding for check in checks for finding in _of(check, facts)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def worst(found: Sequence[Finding]) -> Level:
    """Return the level of the whole report; "unknown" does not count."""
    levels = {finding.level for finding in found}
    if "error" in levels:
        return "error"
    return "warning" if "warning" in levels else "ok"


def _of(check: Check, facts: Facts) -> list[Finding]:
    results = list(check.look(facts))
    reported = [
        Finding(check.name, r.level, r.node, r.found, check.why, r.fix)
        for r in results
        if r.level != "ok"
    ]
    well = dict.fromkeys(r.found for r in results if r.level == "ok")
    if well and not reported:
        reported.append(Finding(check.name, "ok", "", "; ".join(well), check.why, ""))
    return reported
