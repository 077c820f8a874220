"""No sleep of the library outlasts a suspended machine unseen: held by reading the source.

The timers of locks, of poll and of event loops do not count the time for which the machine sleeps,
and our clock does (docs/contributing/decisions/0003-clock.md).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorlock._core.time import NS_PER_S
from quorlock._drivers.clock import SLEEP_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

SRC = Path(__file__).parents[3] / "src" / "quorlock"
FOLDERS = ("_core", "_protocol", "_nodes", "_drivers", "_api", "_sync", "asyncio")
# What sleeps, and which argument says how long.
SLEEPERS = {"call_later": 0, "call_at": 0, "sleep": 0, "timeout": 0, "poll": 0, "wait_for": 1}
KEYWORDS = {"acquire": "timeout", "wait": "timeout"}
# By the lease clock, or without a deadline on it.
FROM_OUR_CLOCK = ("sleep_seconds", "sleep_ms")
EXCEPTIONS = {
    (
        "connection_set.py",
        "timeout_ms",
    ): "see ConnectionSet._await_some and TrackedConnections.wait, which cap it",
    ("polling.py", "timeout_ms"): "see TrackedConnections.wait, which caps it",
    ("connect.py", "self._connect_timeout"): "the time of one attempt to connect",
    ("connect.py", "max(0.0, give_up - now() / 1000000000.0)"): "closing",
    ("connect.py", "1.0"): "closing",
    ("deadlines.py", "extra / 1000000000.0"): "a node_timeout at most, for replies",
    ("connect.py", "(give_up - now()) / left / 1000000000.0"): "the same, for one of its addresses",
    ("connect.py", "max(0, until - now()) / 1000000000.0"): "and for its name",
    ("driver.py", "3600"): "the interpreter ends meanwhile",
}


def sleeps(source: str) -> Iterator[tuple[int, ast.expr]]:
    """The line and the duration of every call that sleeps."""
    names = {
        node.targets[0].id: node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            place, keyword = SLEEPERS.get(node.func.attr), KEYWORDS.get(node.func.attr)
            given = [node.args[place]] if place is not None and len(node.args) > place else []
            given += [k.value for k in node.keywords if k.arg == keyword and keyword]
            for duration in given:
                named = names.get(duration.id) if isinstance(duration, ast.Name) else None
                yield node.lineno, named if named and is_capped(named) else duration


def is_capped(duration: ast.expr) -> bool:
    if isinstance(duration, ast.Constant):
        return isinstance(duration.value, (int, float)) and duration.value <= SLEEP_MAX / NS_PER_S
    called = isinstance(duration, ast.Call) and ast.unparse(duration.func)
    return called in FROM_OUR_CLOCK


def test_every_sleep_looks_at_our_clock_soon() -> None:
    found: list[str] = []
    used: set[tuple[str, str]] = set()
    for path in (path for folder in FOLDERS for path in (SRC / folder).rglob("*.py")):
        for line, duration in sleeps(path.read_text()):
            text = ast.unparse(duration)
            if not is_capped(duration):
                used.add((path.name, text))
                if (path.name, text) not in EXCEPTIONS:
                    found.append(f"{path.name}:{line} {text}")
    assert found == []
    assert used == EXCEPTIONS.keys(), "an exception that is none any more"


@pytest.mark.parametrize(
    "source",
    [
        "loop.call_later(left / 1e9, f)",
        "await asyncio.sleep(1)",
        "asyncio.timeout(due - now())",
        "lock.acquire(timeout=left)",
        "left = 3\nlock.acquire(timeout=left)",
    ],
)
def test_the_check_sees_one(source: str) -> None:
    """The check can fail."""
    assert not any(is_capped(duration) for _, duration in sleeps(source))


def test_a_sleep_is_at_most_half_a_second() -> None:
    """The guarantees promise this."""
    assert SLEEP_MAX * 2 <= NS_PER_S
