"""Shells for the tests of the command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorlock
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.servers.cli.command import Shell


@pytest.fixture
def shell(nodes: Servers, tmp_path: Path) -> Shell:
    """One in whose environment five real servers are named."""
    return Shell(tmp_path, nodes.urls)


@pytest.fixture
def bare_shell(tmp_path: Path) -> Shell:
    """One that knows of no nodes."""
    return Shell(tmp_path)


@pytest.fixture
def installed(shell: Shell) -> Shell:
    """The first one, with the script `quorlock` on its PATH as an installation puts it there."""
    script = shell.home / "bin" / "quorlock"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom quorlock.__main__ import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    shell.variables["PATH"] = f"{script.parent}:{os.environ['PATH']}"
    return shell


@pytest.fixture(autouse=True)
def _signals_as_from_a_terminal() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Commands inherit what is ignored, and rightly ignore it too: under nohup, or in a script's
    background, that would be SIGHUP or SIGINT.
    """
    ignored = [
        number
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def used_nodes(mortal_nodes: Servers) -> Servers:
    """The five of a set that is in use: of a fresh one, two may not agree on anything."""
    with quorlock.Redlock(mortal_nodes.urls) as redlock:
        redlock.lock("used").acquire().release()
        config = "quorlock:config"
        assert until(lambda: all(node.execute("EXISTS", config) for node in mortal_nodes), 10)
    return mortal_nodes
