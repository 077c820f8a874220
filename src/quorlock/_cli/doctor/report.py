"""The findings as text for people and as JSON for programs."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from quorlock._cli.doctor.facts import Facts
from quorlock._cli.doctor.findings import LEVELS, Finding, Level, worst

_TITLES: dict[Level, tuple[str, str]] = {
    "error": ("error", "red"),
    "warning": ("warning", "yellow"),
    "unknown": ("could not look", "cyan"),
    "ok": ("ok", "green"),
}
_WIDEST = 100


def as_facts(found: Sequence[Finding], facts: Facts) -> dict[str, Any]:
    """Return the findings as docs/reference/doctor.schema.json."""
    rates = [(node.address, node.rate) for node in facts.reached]
    return {
        "verdict": worst(found),
        "findings": [finding._asdict() for finding in found],
        "clocks": [
            {"node": address, "off": rate.off, "error": rate.error}
            for address, rate in rates
            if rate
        ],
    }


def as_text(found: Sequence[Finding]) -> str:
    """Return the findings in groups, the worst first, and the verdict as the last line.

    The text is coloured; `click.echo` removes the colours in pipes.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    # Nothing else is known about a node that does not reply.
    notes: dict[Level, str] = {"ok": ", of those that answer"} if _silent(found) else {}
    groups = [
        "\n".join((_title(level, notes.get(level, "")), *_lines(those, width)))
        for level in LEVELS
        if (those := [finding for finding in found if finding.level == level])
    ]
    return "\n\n".join([*groups, _verdict(found)])


def _silent(found: Sequence[Finding]) -> bool:
    return any(finding.check == "reach" and finding.level == "error" for finding in found)


def _title(level: Level, note: str = "") -> str:
    words, colour = _TITLES[level]
    return click.style(words, fg=colour, bold=True) + note


def _verdict(found: Sequence[Finding]) -> str:
    """Return the report in a line."""
    level = worst(found)
    counts: Counter[str] = Counter(finding.level for finding in found)
    counted = [
        f"{counts[grave]} {grave}{'s' * (counts[grave] > 1)}"
        for grave in ("error", "warning")
        if counts[grave]
    ]
    if counts["unknown"]:
        counted.append(f"{counts['unknown']} that could not be looked at")
    seen = ", as far as could be seen" * (level != "error" and counts["unknown"] > 0)
    words = f"{'not ' * (level == 'error')}fit for locks{seen}"
    return (
        click.style(words, fg=_TITLES[level][1], bold=True)
        + ": " * bool(counted)
        + ", ".join(counted)
    )


def _lines(found: Sequence[Finding], width: int) -> Iterator[str]:
    # A finding that several nodes share is printed once.
    nodes: dict[Finding, list[str]] = {}
    for finding in found:
        nodes.setdefault(finding._replace(node=""), []).append(finding.node)
    for finding, where in nodes.items():
        head = f"  {finding.check:12}"
        if finding.level == "ok":
            yield _wrapped(head, finding.found, width)
            continue
        yield _wrapped(head, ", ".join(filter(None, where)) or "all nodes together", width)
        yield _wrapped("    found   ", finding.found, width)
        yield _wrapped("    why     ", finding.why, width)
        yield _wrapped("    fix     ", finding.fix, width)


def _wrapped(head: str, text: str, width: int) -> str:
    # The path of a socket is not split: users may copy it.
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
