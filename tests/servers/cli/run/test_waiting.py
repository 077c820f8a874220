"""`quorlock run` on a terminal says once for what it waits, and nothing elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock.testing.servers import Servers
from tests.servers.api.faces import steal
from tests.servers.cli.command import Shell
from tests.servers.cli.live import Terminal

if TYPE_CHECKING:
    from pathlib import Path

WAITING = "quorlock run: waiting: "


def test_a_terminal_shows_the_holder_once(shell: Shell, nodes: Servers) -> None:
    """The sentence names the holder and its longest time."""
    steal(nodes, "a", "0123456789abcdef0123456789abcdef@web-3:4711")
    with Terminal(shell, "run", "a", "--wait", "2s", "--", "true") as terminal:
        shown = terminal.until(f"{WAITING}held by web-3:4711", "s more")
        shown += terminal.ended(75)
        assert shown.count(WAITING) == 1


def test_a_terminal_shows_who_did_the_work(shell: Shell, nodes: Servers) -> None:
    """A command that waits for a lock whose work counts as done says so."""
    steal(nodes, "a", "0123456789abcdef0123456789abcdef@~web-3:4711")
    with Terminal(shell, "run", "a", "--wait", "2s", "--", "true") as terminal:
        terminal.until(f"{WAITING}done by web-3:4711", "; it counts as done for at most ")
        terminal.ended(75)


def test_a_terminal_shows_that_nodes_cast_no_vote(tmp_path: Path) -> None:
    """The report has the time until they vote, and what to do with nodes that are new."""
    with Servers(3) as servers:
        for server in servers:
            server.execute("DEL", "quorlock:born-empty")
        shell = Shell(tmp_path, servers.urls)
        with Terminal(shell, "run", "a", "--wait", "2s", "--", "true", COLUMNS="500") as terminal:
            terminal.until(
                f"{WAITING}3 of 3 nodes cast no vote: ", "votes in", "quorlock nodes fresh\r\n"
            )
            terminal.ended(69)


def test_a_quiet_command_says_nothing(shell: Shell, nodes: Servers) -> None:
    steal(nodes, "a")
    with Terminal(shell, "run", "a", "--quiet", "--wait", "1.5s", "--", "true") as terminal:
        assert terminal.ended(75) == ""


def test_a_short_wait_is_not_reported(shell: Shell, nodes: Servers) -> None:
    steal(nodes, "a")
    with Terminal(shell, "run", "a", "--wait", "100ms", "--", "true") as terminal:
        assert WAITING not in terminal.ended(75)


def test_a_pipe_gets_no_report(shell: Shell, nodes: Servers) -> None:
    steal(nodes, "a")
    said = shell.complaint(75, "run", "a", "--wait", "1.5s", "--", "true")
    assert WAITING not in said
