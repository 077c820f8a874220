"""`quorlock nodes fresh` and `reset-config`, on servers that were restarted or are in use."""

from __future__ import annotations

import asyncio
import os
import pty
import time
from typing import TYPE_CHECKING, Any

import pytest

import quorlock.asyncio
from quorlock import AcquireTimeout, ConfigError, NodeError, QuorumUnreachable, Redlock
from quorlock._cli.exit_status import EX_NOPERM, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock.testing.servers import Server, Servers
    from tests.servers.cli.command import Shell

CONFIG = "quorlock:config"


def as_started_by_hand(nodes: Sequence[Server]) -> None:
    """Forget that these servers were born empty, as those of docker compose."""
    for node in nodes:
        node.execute("DEL", "quorlock:born-empty")


def can_lock(urls: list[str], **settings: Any) -> bool:
    with Redlock(urls, outage_timeout=0.05, **settings) as redlock:
        try:
            return redlock.lock("x").acquire(timeout=1.0).release()
        except QuorumUnreachable:
            return False


def at(nodes: Sequence[Server]) -> tuple[str, str]:
    return "--nodes", ",".join(node.url for node in nodes)


# --- fresh ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["uptime", "marker"])
def test_new_nodes_vote_at_once(guard: str, bare_shell: Shell, nodes: Servers) -> None:
    """Also if a client has found them too young already, with either guard."""
    as_started_by_hand(nodes)
    # Long enough for servers that started at the beginning of the tests.
    settings: dict[str, Any] = {"max_ttl": 86_400.0, "restart_guard": guard}
    assert not can_lock(nodes.urls, **settings)
    marked = bare_shell.answer("nodes", "fresh", "--yes", *at(nodes))
    assert marked.count(": marked: it votes at once") == 5
    assert can_lock(nodes.urls, **settings)
    again = bare_shell.answer("nodes", "fresh", *at(nodes))
    assert again.count(": is marked as new already") == 5


def test_a_client_that_is_connected_sees_it(bare_shell: Shell, nodes: Servers) -> None:
    as_started_by_hand(nodes)

    async def work() -> bool:
        async with quorlock.asyncio.Redlock(nodes.urls, max_ttl=86_400.0) as redlock:
            lock = redlock.lock("x")
            with pytest.raises(QuorumUnreachable, match="quorlock nodes fresh"):
                await lock.acquire(timeout=0)
            await asyncio.to_thread(bare_shell.answer, "nodes", "fresh", "--yes", *at(nodes))
            return await (await lock.acquire(timeout=5.0)).release()

    assert asyncio.run(work())


def test_a_node_with_a_key_is_refused(bare_shell: Shell, nodes: Servers) -> None:
    as_started_by_hand(nodes)
    nodes[0].execute("SET", "app:x", "token", "PX", 60_000)
    nodes[1].execute("RPUSH", "anything", "1")
    done = bare_shell.run("nodes", "fresh", "--yes", *at(nodes[:3]))
    assert done.returncode == EX_TEMPFAIL
    assert done.stderr.count("refused: it holds 1 key, and a new node has none") == 2
    assert done.stdout == f"{nodes[2].path}: marked: it votes at once\n"
    assert nodes[0].execute("GET", "quorlock:born-empty") is None
    forced = bare_shell.answer("nodes", "fresh", "--yes", "--force", *at(nodes[:3]))
    assert forced.count(": marked: ") == 2


def test_a_node_that_restarted_is_refused(bare_shell: Shell, used_nodes: Servers) -> None:
    """A restarted node is empty like a new one, but its set was in use before."""
    used_nodes[0].restart()
    used_nodes[0].flush()
    done = bare_shell.run("nodes", "fresh", "--yes", *at(used_nodes))
    assert done.returncode == EX_TEMPFAIL
    (refused,) = [line for line in done.stderr.splitlines() if "refused" in line]
    assert refused.startswith(used_nodes[0].path)
    assert "were in use before it started" in refused


def test_each_node_has_its_error(bare_shell: Shell, mortal_nodes: Servers) -> None:
    as_started_by_hand(mortal_nodes)
    mortal_nodes[2].kill()
    done = bare_shell.run("nodes", "fresh", "--yes", *at(mortal_nodes[:3]))
    assert (done.returncode, done.stdout.count(": marked")) == (EX_UNAVAILABLE, 2), done
    assert done.stderr.startswith(f"{mortal_nodes[2].path}: ")


def test_a_node_may_deny_it(bare_shell: Shell, nodes: Servers) -> None:
    urls = ",".join(url.replace("unix://", "unix://me:hush-hush@") for url in nodes.urls[:2])
    for words in (("fresh",), ("reset-config",)):
        done = bare_shell.run("nodes", *words, "--yes", "--nodes", urls)
        assert done.returncode == EX_NOPERM, done
        assert "WRONGPASS" in done.stderr
        assert "hush" not in done.stderr


@pytest.mark.parametrize("words", ["fresh", "reset-config"])
def test_without_a_terminal_it_needs_yes(words: str, bare_shell: Shell, nodes: Servers) -> None:
    as_started_by_hand(nodes)
    complaint = bare_shell.complaint(EX_USAGE, "nodes", words, *at(nodes))
    assert complaint.endswith("yet; give --yes\n")
    assert complaint.count(nodes[0].path) == 1


@pytest.mark.parametrize(
    ("answer", "status"), [(b"y\n", 0), (b"\n", EX_USAGE), (b"\x04", EX_USAGE)]
)
def test_a_terminal_is_asked(answer: bytes, status: int, bare_shell: Shell, nodes: Servers) -> None:
    as_started_by_hand(nodes)
    keys, terminal = pty.openpty()
    try:
        os.write(keys, answer)
        done = bare_shell.run("nodes", "fresh", *at(nodes), stdin=terminal)
    finally:
        os.close(keys)
        os.close(terminal)
    assert done.returncode == status, done
    assert "Have these 5 nodes never held a lock? [y/N] " in done.stderr
    assert done.stdout.count("marked") == (5 if status == 0 else 0)


# --- reset-config --------------------------------------------------------------------------------


def test_one_node_was_tried_first_and_now_there_are_three(
    bare_shell: Shell, nodes: Servers
) -> None:
    """The error names the command, and the command solves it."""
    with Redlock(nodes.urls[:1]) as redlock:
        redlock.lock("x").acquire().release()
    three = nodes.urls[:3]
    with Redlock(three) as redlock, pytest.raises(ConfigError, match="quorlock nodes reset-config"):
        redlock.lock("x").acquire()
    assert until(lambda: b"name=quorlock " not in nodes[0].execute("CLIENT", "LIST"), 10)
    deleted = bare_shell.answer("nodes", "reset-config", "--yes", *at(nodes[:3]))
    assert "deleted 'n=1 " in deleted
    assert not any(node.execute("GET", CONFIG) for node in nodes[:3])
    assert can_lock(three)


def test_it_refuses_while_clients_are_connected(bare_shell: Shell, nodes: Servers) -> None:
    with Redlock(nodes.urls[:1], ttl=0.3, max_ttl=0.3, node_timeout=0.1) as redlock:
        redlock.lock("x").acquire().release()
        complaint = bare_shell.complaint(
            EX_TEMPFAIL, "nodes", "reset-config", "--yes", *at(nodes[:1])
        )
        assert "quorlock clients are connected" in complaint
        assert f"{nodes[0].path}: 1 connection" in complaint
        assert nodes[0].execute("GET", CONFIG)
        # By force the client is disconnected, and so it reads the new settings.
        bare_shell.answer("nodes", "reset-config", "--yes", "--force", *at(nodes[:1]))
        assert can_lock(nodes.urls[:3])
        with pytest.raises(NodeError, match="n=3"):
            redlock.lock("x").acquire(timeout=5.0)


def test_clients_of_another_database_do_not_count(bare_shell: Shell, nodes: Servers) -> None:
    with Redlock([nodes[0].url.replace("db=0", "db=1")]) as redlock:
        redlock.lock("x").acquire().release()
        bare_shell.answer("nodes", "reset-config", "--yes", *at(nodes[:1]))


def test_it_waits_until_leases_without_a_connection_are_over(
    bare_shell: Shell, nodes: Servers
) -> None:
    """Any key that expires may be a lease, of a ticket that another process will adopt."""
    with Redlock(nodes.urls[:1], ttl=1.0, max_ttl=1.0) as redlock:
        redlock.lock("x").acquire().release()
    nodes[0].execute("SET", "app:y", "token", "PX", 60_000)
    began = time.monotonic()
    said = bare_shell.answer("nodes", "reset-config", "--yes", *at(nodes[:1]))
    assert said.startswith("waiting 1.1 s")
    assert time.monotonic() - began > 1.0
    assert nodes[0].execute("GET", CONFIG) is None


def test_a_reset_needs_all_nodes_unless_it_is_forced(
    bare_shell: Shell, used_nodes: Servers
) -> None:
    used_nodes[4].kill()
    complaint = bare_shell.complaint(
        EX_UNAVAILABLE, "nodes", "reset-config", "--yes", *at(used_nodes)
    )
    assert "a reset needs all nodes" in complaint
    done = bare_shell.run("nodes", "reset-config", "--yes", "--force", *at(used_nodes))
    assert (done.returncode, done.stdout.count(": deleted ")) == (EX_UNAVAILABLE, 4)
    assert used_nodes[4].path in done.stderr


def test_connections_that_wait_for_calls_are_closed_too(
    bare_shell: Shell, used_nodes: Servers
) -> None:
    """Subscribed connections are of another type for CLIENT KILL."""
    node = used_nodes[0]

    def subscribed() -> set[bytes]:
        listed: bytes = node.execute("CLIENT", "LIST", "TYPE", "pubsub")
        return {line.split()[0] for line in listed.splitlines() if b"name=quorlock" in line}

    with Redlock(used_nodes.urls) as holder, Redlock(used_nodes.urls) as redlock:
        with holder.lock("x"), pytest.raises(AcquireTimeout):
            redlock.lock("x").acquire(timeout=0.2)
        before = subscribed()
        assert before
        bare_shell.answer("nodes", "reset-config", "--yes", "--force", *at(used_nodes))
        assert until(lambda: not before & subscribed())
