"""`quorlock nodes` shows and changes what clients agree on; under load: api/test_changes."""

from __future__ import annotations

import pytest

from quorlock import Redlock
from quorlock._cli.exit_status import EX_CONFIG, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE
from quorlock.testing.servers import Servers
from tests.servers.cli.command import Shell


def use(nodes: Servers, count: int) -> None:
    urls = [server.url for server in nodes[:count]]
    with Redlock(urls, ttl=0.3, max_ttl=0.3, node_timeout=0.1) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()


def at(nodes: Servers, count: int) -> tuple[str, str]:
    return "--nodes", ",".join(server.url for server in nodes[:count])


def test_it_is_shown_and_changed(bare_shell: Shell, nodes: Servers) -> None:
    three = at(nodes, 3)
    use(nodes, 3)
    assert bare_shell.answer("nodes", "config", *three).count("n=3 max_ttl_ms=300 ") == 3
    assert bare_shell.answer("nodes", "max-ttl", "2s", *three).count("max_ttl_ms=2000 ") == 3
    bare_shell.answer("nodes", "guard", "uptime,marker", *three)
    shown = bare_shell.answer("nodes", "config", *three)
    assert shown.count("n=3 max_ttl_ms=2000 restart_guard=uptime,marker version=4 set=") == 3
    assert "give uptime" in bare_shell.complaint(EX_USAGE, "nodes", "guard", "both", *three)


@pytest.mark.parametrize("longest", ["0s", "100ms", "99999999h"])
def test_a_max_ttl_that_no_client_could_have_is_refused(
    bare_shell: Shell, nodes: Servers, longest: str
) -> None:
    """Every client would be refused then; lowering a very long one would take as long."""
    use(nodes, 3)
    complaint = bare_shell.complaint(EX_USAGE, "nodes", "max-ttl", longest, *at(nodes, 3))
    assert "DURATION" in complaint
    assert bare_shell.answer("nodes", "config", *at(nodes, 3)).count(" max_ttl_ms=300 ") == 3


def test_a_node_is_added_and_removed(bare_shell: Shell, nodes: Servers) -> None:
    two, url = at(nodes, 2), nodes[2].url
    use(nodes, 2)
    bare_shell.answer("nodes", "add", url, *two)
    use(nodes, 2)
    use(nodes, 3)
    bare_shell.answer("nodes", "add", url, "--finish", *at(nodes, 3))
    assert bare_shell.answer("nodes", "config", *at(nodes, 3)).count("  n=3 ") == 3
    bare_shell.answer("nodes", "remove", url, *at(nodes, 3))
    bare_shell.answer("nodes", "remove", url, "--finish", *two)
    assert bare_shell.answer("nodes", "config", *two).count("  n=2 ") == 2
    assert b"n=0 " in nodes[2].execute("GET", "quorlock:config")
    assert "--nodes" in bare_shell.complaint(
        EX_USAGE, "nodes", "remove", url, *at(nodes, 3)[:1], url
    )


def test_what_cannot_be_changed_is_said(bare_shell: Shell, nodes: Servers) -> None:
    use(nodes, 3)
    nodes[2].kill()
    complaint = bare_shell.complaint(EX_TEMPFAIL, "nodes", "max-ttl", "2s", *at(nodes, 3))
    assert "a change needs all nodes" in complaint
    done = bare_shell.run("nodes", "config", *at(nodes, 3))
    assert done.returncode == EX_UNAVAILABLE
    assert done.stdout.count("  n=3 ") == 2


def test_what_another_program_stored_is_shown_without_control_characters(
    bare_shell: Shell, nodes: Servers
) -> None:
    """Control characters could clear the terminal, or add lines."""
    for server in nodes[:3]:
        server.execute("SET", "quorlock:config", "n=3 \x1b[2J\r\nall is well")
    three = at(nodes, 3)
    shown = bare_shell.answer("nodes", "config", *three)
    complaints = [bare_shell.complaint(EX_TEMPFAIL, "nodes", "max-ttl", "2s", *three)]
    complaints.append(bare_shell.complaint(EX_USAGE, "nodes", "reset-config", *three))
    for text in (shown, *complaints):
        assert text.count("n=3 ?[2J??all is well") == 3
        assert "\x1b" not in text


ACTIONS = [
    ("config",),
    ("max-ttl", "2s"),
    ("guard", "uptime"),
    ("add", "redis://b"),
    ("fresh", "--yes"),
    ("reset-config", "--yes"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=" ".join)
def test_a_list_that_no_client_could_have_is_refused(
    bare_shell: Shell, action: tuple[str, ...]
) -> None:
    """An empty variable in a deployment file, or a server that is listed twice."""
    complaint = bare_shell.complaint(EX_CONFIG, "nodes", *action, "--nodes", ",")
    assert "give at least one node" in complaint
    twice = "redis://127.0.0.1:1,redis://127.0.0.1:1/2"
    complaint = bare_shell.complaint(EX_CONFIG, "nodes", *action, "--nodes", twice)
    assert "this is the same server as nodes[0]" in complaint
