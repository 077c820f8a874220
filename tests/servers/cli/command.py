"""Run `quorlock` like a shell: in a separate process, with no nodes in its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import quorlock
from quorlock.testing.servers import Server
from tests.harness.support.wait import until
from tests.servers.api.faces import holders

SRC = Path(quorlock.__file__).parents[1]
COMMAND = (sys.executable, "-m", "quorlock")
PATIENT = Path(__file__).with_name("patient.toml")
PATIENCE = 30.0  # a bound for what must happen at once; nothing is measured by it


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a command: a separate home without a file that names nodes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QUORLOCK_", "XDG_", "_QUORLOCK_"))
    }
    return kept | {"PYTHONPATH": str(SRC), "HOME": str(home), "COLUMNS": "80"} | variables


def named(urls: list[str]) -> dict[str, str]:
    """Return the variables that name nodes, and settings with patience for these."""
    return {"QUORLOCK_NODES": ",".join(urls), "QUORLOCK_CONFIG": str(PATIENT)}


class Shell:
    """A place to run commands: the environment names these nodes, a folder is home and working
    directory.
    """

    def __init__(self, home: Path, urls: list[str] | None = None) -> None:
        self.home = home
        self.variables = named(urls) if urls else {}

    def be_patient(self) -> None:
        """Let its commands wait longer for nodes: a busy test machine is slower than a network."""
        file = self.home / "patient.toml"
        file.write_text("node_timeout = 1.0\nconnect_timeout = 10.0\n")
        self.variables["QUORLOCK_CONFIG"] = str(file)

    def run(
        self, *words: str, given: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [*COMMAND, *words],
            env=self.environment(given),
            cwd=self.home,
            **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options},
            timeout=60,
            check=False,
        )

    def start(
        self, *words: str, given: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Begin it."""
        return subprocess.Popen(
            [*COMMAND, *words],
            env=self.environment(given),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of its commands."""
        return environment(self.home, **self.variables) | dict(given or {})

    def answer(self, *words: str, given: Mapping[str, str] | None = None) -> str:
        """Return the output of a command that succeeds, without output on stderr."""
        done = self.run(*words, given=given)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.removesuffix("\n")

    def complaint(self, status: int, *words: str, given: Mapping[str, str] | None = None) -> str:
        """Return the stderr of a command that fails with this status, without output on stdout."""
        done = self.run(*words, given=given)
        assert (done.returncode, done.stdout) == (status, ""), done
        assert "Traceback" not in done.stderr
        return done.stderr


def keys_stay(nodes: Iterable[Server]) -> bool:
    """Return whether a node keeps a key: a release is over when a quorum has replied, and the
    other nodes follow.
    """
    nodes = [node for node in nodes if not node.stopped]
    return not until(lambda: not any(node.keys() for node in nodes))


def at_a_quorum(nodes: Sequence[Server], resource: str, token: str) -> bool:
    """Return whether a quorum of nodes has this token.

    A waiter that a quorum has called may ask the others before the release gets there.
    """
    return holders(nodes, resource).count(token.encode()) > len(nodes) // 2


def at_last(nodes: Iterable[Server], resource: str, *tokens: str | None) -> bool:
    """The nodes come to have these at the key, each one of them: a verb answers when a quorum
    has, and the others follow.
    """
    wanted = {None if token is None else token.encode() for token in tokens}
    return until(lambda: set(holders(nodes, resource)) == wanted, 10)
