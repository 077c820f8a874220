"""The findings as text for people and as JSON for programs. Leaves what they say to the checks."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from quorlock.cli.doctor.findings import LEVELS, worst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorlock.cli.doctor.findings import Finding, Level

_TITLES: dict[Level, tuple[str, str]] = {
    "error": ("error", "red"),
    "warning": ("warning", "yellow"),
    "unknown": ("could not look", "cyan"),
    "ok": ("ok", "green"),
}
_WIDEST = 100


def as_facts(found: Sequence[Finding]) -> dict[str, Any]:
    """Them, as docs/doctor.schema.json."""
    return {"verdict": worst(found), "findings": [finding._asdict() for finding in found]}


def as_text(found: Sequence[Finding]) -> str:
    """Them, grouped, the worst first, and a last line for who sees no more than the end of it; with
    colours, which `click.echo` takes out of pipes.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    # Of a node that does not answer nothing else is known.
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
    """The report in a line."""
    level = worst(found)
    counts: Counter[str] = Counter(finding.level for finding in found)
    told = [
        f"{counts[grave]} {grave}{'s' * (counts[grave] > 1)}"
        for grave in ("error", "warning")
        if counts[grave]
    ]
    if counts["unknown"]:
        told.append(f"{counts['unknown']} that could not be looked at")
    seen = ", as far as could be seen" * (level != "error" and counts["unknown"] > 0)
    words = f"{'not ' * (level == 'error')}fit for locks{seen}"
    return click.style(words, fg=_TITLES[level][1], bold=True) + ": " * bool(told) + ", ".join(told)


def _lines(found: Sequence[Finding], width: int) -> Iterator[str]:
    # What is the same of several nodes is said once.
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
    # A path of a socket is not cut in two: it may be copied.
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
