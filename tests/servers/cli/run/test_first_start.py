"""`quorlock run` on servers that have just started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quorlock.testing.servers import Servers
from tests.servers.cli.command import Shell


@pytest.mark.parametrize("words", [("--wait", "60s"), ()], ids=["wait", "no limit"])
def test_it_waits_until_they_vote(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A file with max_ttl alone is enough, whatever the default ttl is."""
    with Servers(3) as servers:
        for server in servers:
            server.execute("DEL", "quorlock:born-empty")
        shell = Shell(tmp_path)
        (tmp_path / "quorlock.toml").write_text(
            f"nodes = {servers.urls}\nmax_ttl = 1.5\nnode_timeout = 0.15\noutage_timeout = 0.5\n"
        )
        done = shell.run("acquire", "x", "-w", "200ms")
        assert (done.returncode, done.stdout) == (69, "")
        sentence = (
            r"quorlock acquire: 'x': 3 of 3 nodes cast no vote for \d( to \d)? s more and may have"
            r" forgotten locks \(restart guard: started \d( to \d)? s ago\), after \d+ attempts? in"
            r" [\d.]+ m?s; wait, or mark nodes that are new: quorlock nodes fresh\n"
        )
        assert re.fullmatch(sentence, done.stderr), done.stderr
        assert shell.answer("run", "x", *words, "--", "echo", "hi") == "hi"
        assert shell.answer("run", "x", "--", "sh", "-c", "echo $QUORLOCK_TTL") == "1.5"


def test_nodes_that_are_marked_as_new_vote_at_once(tmp_path: Path) -> None:
    with Servers(3) as servers:
        shell = Shell(tmp_path, servers.urls)
        assert shell.answer("run", "x", "--nonblock", "--", "echo", "hi") == "hi"
