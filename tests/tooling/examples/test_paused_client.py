"""The paused client of "How to do distributed locking": real processes, a real SIGSTOP."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from quorlock.testing.servers import Servers

EXAMPLE = Path(__file__).parents[3] / "examples" / "paused_client.py"


def story(nodes: Servers, *arguments: str) -> list[str]:
    """Return the output in order; fences are shown as `…`."""
    command = [sys.executable, str(EXAMPLE), *arguments, "--nodes", *nodes.urls[:3]]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    lines = [re.sub(r":\s+", ": ", line, count=1) for line in run.stdout.splitlines()]
    return [re.sub(r"\d{10,}", "…", line) for line in lines]


def test_without_fencing_the_late_write_lands(nodes: Servers) -> None:
    """Client 1 checked its lease and was then paused: the line of client 2 is lost."""
    *printed, late, end = story(nodes, "--no-fencing")
    assert printed == [
        "client 1: has the lock, reads ''",
        "the world: client 1 is paused; its lease expires",
        "client 2: has the lock, reads ''",
        "client 2: has written",
        "the world: client 1 resumes",
        "client 1: writes without checking again (held is False)",
        "client 1: has written",
    ]
    assert late.startswith("client 1: LeaseLost, but it has written: lease on 'document' is lost")
    assert end == "the document: 'client 1\\n': the line of client 2 is lost"


def test_with_fencing_it_is_refused(nodes: Servers) -> None:
    """Client 1 starts again after the refusal: both lines are there."""
    assert story(nodes) == [
        "client 1: has the lock, reads ''",
        "the world: client 1 is paused; its lease expires",
        "client 2: has the lock, reads ''",
        "client 2: has written",
        "the world: client 1 resumes",
        "client 1: writes without checking again (held is False)",
        (
            "client 1: StaleFence: 'document' refuses fence …: it has seen …, of a later holder;"
            " stop the protected work, then acquire the lock again"
        ),
        "client 1: has the lock, reads 'client 2\\n'",
        "client 1: has written",
        "the document: 'client 2\\nclient 1\\n': both lines are there",
    ]
