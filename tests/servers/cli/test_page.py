"""docs/reference/cli.md is true: its scripts run, its tables name what there is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from quorlock._cli import exit_status
from quorlock._cli.main import COMMANDS
from quorlock.testing.servers import Servers
from tests.servers.cli.command import Shell, at_last
from tools.snippets import Block, read_blocks

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
SCRIPTS = [block for block in read_blocks(PAGE) if block.language == "sh"]


def run(script: str, shell: Shell) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script],
        env=shell.environment(),
        cwd=shell.home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: f"line {block.line}")
def test_its_scripts_run(block: Block, installed: Shell, nodes: Servers) -> None:
    """The scripts succeed without output on stderr, and leave no key behind."""
    done = run(block.source, installed)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert at_last(nodes, "deploy:web", None)


def test_its_round_trip_ends_when_the_lock_is_broken(installed: Shell, nodes: Servers) -> None:
    """The second half is not begun by a script whose lease was taken from it."""
    (script,) = [block.source for block in SCRIPTS if "second half" in block.source]
    broken = script.replace('first half"', 'first half"; quorlock break deploy:web --yes')
    assert broken != script
    done = run(broken, installed)
    assert done.returncode == exit_status.EX_LOST
    assert "first half" in done.stdout
    assert "second half" not in done.stdout
    assert "was not held by this token any more" in done.stderr


def test_a_script_that_does_not_get_the_lock_does_nothing(installed: Shell) -> None:
    """Another client has it: status 75, and no output of the work."""
    (script,) = [block.source for block in SCRIPTS if "second half" in block.source]
    installed.answer("acquire", "deploy:web", "--ttl", "30s")
    done = run(script.replace("--wait 10s", "--wait 0"), installed)
    assert (done.returncode, done.stdout) == (exit_status.EX_TEMPFAIL, "")


def test_its_tables_are_whole() -> None:
    """Every command and every exit status is there."""
    page = PAGE.read_text()
    assert [name for name in COMMANDS if f"quorlock {name}" not in page] == []
    ours = {value for name, value in vars(exit_status).items() if name.startswith("EX_")}
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    shells = {exit_status.EX_CANNOT_RUN, exit_status.EX_NOT_FOUND, exit_status.EX_SIGNAL}
    assert ours - shells <= listed
