"""docs/how-to/change-the-nodes.md is true: its scripts change real nodes while clients lock."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import ConfigError, QuorlockError, Redlock
from quorlock._cli.exit_status import EX_TEMPFAIL
from tests.harness.support.pages import titled
from tests.harness.support.wait import until
from tests.servers.api.busy_clients import BRIEF, Clients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorlock.testing.servers import Server, Servers
    from tests.servers.cli.command import Shell

CONFIG = "quorlock:config"
SCRIPTS = titled("how-to/change-the-nodes.md")
# The durations of the page are too long for a test.
SHORTER = {"60s": "800ms", "30s": "400ms", "max_ttl=60": "max_ttl=0.8", "max_ttl=30": "max_ttl=0.4"}
GUARDED = {"restart_guard": "uptime"}


class Operator:
    """A person with the page. The servers are `a` to `e`, and the clients run all the time."""

    def __init__(self, shell: Shell, nodes: Servers) -> None:
        self.clients = Clients()
        self.done: list[str] = []
        self._shell = shell
        self._servers = dict(zip("abcde", nodes, strict=True))
        self._urls: list[str] = []
        self._settings: dict[str, Any] = dict(GUARDED)

    def at(self, names: str) -> list[Server]:
        return [self._servers[name] for name in names]

    def deploy(self, names: str = "", **settings: Any) -> None:
        """Deploy all clients, with other nodes or settings than before. All must lock.

        A change needs nodes that all have the name of their set.
        """
        self._urls = [server.url for server in self.at(names)] or self._urls
        self._settings |= settings
        self.clients.deploy(self._urls, **self._settings)
        listed = [it for it in self._servers.values() if it.url in self._urls and it.alive]
        assert until(lambda: all(b" set=" in it.execute("GET", CONFIG) for it in listed), 10)

    def follow(self, title: str) -> str:
        """Carry out a script of the page line by line; return the output of its last command."""
        output = ""
        for line in SCRIPTS[title].splitlines():
            command, _, comment = line.partition("#")
            self.done.append(line)
            if command.startswith("export "):
                name, value = command.removeprefix("export ").strip().split("=", 1)
                self._shell.variables[name] = self._placed(value)
            elif command:
                output = self._shell.answer(*shlex.split(self._placed(command))[1:])
            else:
                self._instruct(comment.strip().rstrip("."))
        return output

    def _instruct(self, text: str) -> None:
        if text == "Stop all clients":
            return self.clients.join()
        what = self._placed(text.removeprefix("Deploy all clients with "))
        name, is_setting, value = what.partition("=")
        if is_setting:
            setting: Any = float(value) if name == "max_ttl" else value
            return self.deploy(**{name: setting})
        return self.deploy(what.replace(", ", ""))

    def _placed(self, text: str) -> str:
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        return re.sub(r"redis://([a-e])\b", lambda it: self._servers[it[1]].url, text)


@pytest.fixture
def operator(bare_shell: Shell, mortal_nodes: Servers) -> Iterator[Operator]:
    """One whose clients never held the lock at the same time."""
    found = Operator(bare_shell, mortal_nodes)
    yield found
    found.clients.join()
    assert found.clients.overlaps == 0


def texts(servers: Sequence[Server]) -> set[str]:
    """Return the different settings that these servers store, without the name of the set."""
    stored = [(server.execute("GET", CONFIG) or b"").decode() for server in servers]
    return {re.sub(r" (version|set)=\S+", "", text) for text in stored}


def test_each_script_is_followed() -> None:
    tests = Path(__file__).read_text()
    assert SCRIPTS
    assert [title for title in SCRIPTS if f'follow("{title}")' not in tests] == []


def test_from_one_node_to_three(operator: Operator) -> None:
    for server in operator.at("bc"):
        server.execute("DEL", "quorlock:born-empty")  # as started by hand
    operator.deploy("a")
    shown = operator.follow("from-one-to-three")
    assert shown.count("  n=3 max_ttl_ms=400 ") == 3
    assert texts(operator.at("abc")) == {"n=3 max_ttl_ms=400 restart_guard=uptime"}


def test_three_nodes_in_one_step_are_refused(operator: Operator) -> None:
    """The table of the page: a majority of one and a majority of three may share no node."""
    operator.deploy("a")
    urls = [server.url for server in operator.at("abc")]
    with Redlock(urls, **BRIEF | GUARDED) as redlock, pytest.raises(ConfigError, match="n=1"):
        redlock.lock("x").acquire(timeout=1.0)


def test_a_dead_node_is_replaced_by_another(operator: Operator) -> None:
    operator.deploy("abc")
    operator.at("c")[0].kill()
    shown = operator.follow("replace-a-node")
    assert shown.count("  n=3 ") == 3
    assert texts(operator.at("abd")) == {"n=3 max_ttl_ms=400 restart_guard=uptime"}


def test_a_new_server_at_the_same_name_is_a_restarted_node(operator: Operator) -> None:
    """Nothing else changes: clients continue, and the others give it the settings."""
    operator.deploy("abc")
    (replaced,) = operator.at("c")
    replaced.kill()
    operator.clients.go_on()
    replaced.restart()
    operator.clients.go_on()
    operator.deploy()  # a client that finds all three connects to the new one too
    assert texts([replaced]) == texts(operator.at("ab"))


def test_max_ttl_becomes_longer_and_shorter(operator: Operator) -> None:
    operator.deploy("abc", max_ttl=0.4)
    operator.follow("longer-max-ttl")
    assert texts(operator.at("abc")) == {"n=3 max_ttl_ms=800 restart_guard=uptime"}
    urls = [server.url for server in operator.at("abc")]
    with (
        Redlock(urls, **BRIEF | GUARDED) as late,
        pytest.raises(QuorlockError, match=r"give max_ttl=0\.8"),
    ):
        late.lock("y").acquire(timeout=0)
    operator.follow("shorter-max-ttl")
    assert texts(operator.at("abc")) == {"n=3 max_ttl_ms=400 restart_guard=uptime"}


def test_the_restart_guard_is_changed(operator: Operator) -> None:
    operator.deploy("abc")
    operator.follow("restart-guard")
    assert texts(operator.at("abc")) == {"n=3 max_ttl_ms=400 restart_guard=marker"}


def test_nodes_of_other_clients_start_over(operator: Operator, bare_shell: Shell) -> None:
    operator.deploy("a")
    refused = bare_shell.run("nodes", "reset-config", "--yes", "--nodes", operator.at("a")[0].url)
    assert refused.returncode == EX_TEMPFAIL
    shown = operator.follow("start-over")
    assert shown.count("  n=3 ") == 3
