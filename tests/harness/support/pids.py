"""Processes as seen from outside, by their pids."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path


def states(pid: int) -> list[str]:
    """One letter for every thread (`T` is stopped, `Z` has ended); nothing once it was reaped."""
    letters: list[str] = []
    tasks = Path(f"/proc/{pid}/task")
    if not Path("/proc/self").exists():
        return [letter[:1] for letter in ps("-o", "state=", "-p", str(pid))]
    with suppress(FileNotFoundError):
        for task in tasks.iterdir():
            with suppress(OSError):  # a thread may end while we look
                letters.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return letters


def is_paused(pid: int) -> bool:
    """Return whether all of its threads are stopped."""
    return set(states(pid)) == {"T"}


def is_gone(pid: int) -> bool:
    """Return whether it has ended, including a zombie."""
    return set(states(pid)) <= {"Z", "X"}


def children(pid: int) -> set[int]:
    """The pids of its children, zombies too, without the `ps` that looks for them."""
    command = ["ps", "-A", "-o", "pid=,ppid="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as looking:
        pairs = [line.split() for line in looking.communicate()[0].splitlines()]
    return {int(child) for child, parent in pairs if int(parent) == pid} - {looking.pid}


def ps(*args: str) -> list[str]:
    """The lines that `ps` prints."""
    shown = subprocess.run(["ps", *args], capture_output=True, text=True, check=False)
    return shown.stdout.splitlines()
