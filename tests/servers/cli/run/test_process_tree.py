"""Processes that end while the guard of `quorlock run` looks for the descendants of its command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._cli.run import process_tree
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


@needs_linux
@pytest.mark.parametrize("step", ["iterdir", "read_text"])
def test_a_process_ends_between_two_steps(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception ends the guard: `run` then reported status 137 instead of the lost lease."""
    parent = subprocess.Popen(["sh", "-c", "sleep 60; :"])
    assert until(lambda: list(process_tree._children(parent.pid)))
    (child,) = process_tree._children(parent.pid)

    def after_its_end(call: Callable[..., Any]) -> Callable[..., Any]:
        def end_and_call(*arguments: Any) -> Any:
            parent.kill()
            parent.wait()
            return call(*arguments)

        return end_and_call

    monkeypatch.setattr(Path, step, after_its_end(getattr(Path, step)))
    try:
        assert list(process_tree._children(parent.pid)) == []
    finally:
        os.kill(child, 9)
