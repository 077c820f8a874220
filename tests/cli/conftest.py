"""Shells for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorlock.testing.servers import Servers
from tests.cli.command import Shell


@pytest.fixture
def shell(nodes: Servers, tmp_path: Path) -> Shell:
    """One in whose environment five real servers are named."""
    return Shell(tmp_path, nodes.urls)


@pytest.fixture
def bare_shell(tmp_path: Path) -> Shell:
    """One that knows of no nodes."""
    return Shell(tmp_path)
