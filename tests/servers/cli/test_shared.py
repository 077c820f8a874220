"""`--shared`: readers that share a lock, for `run`, `acquire`, `status` and `break`."""

from __future__ import annotations

import json

from quorlock import Redlock
from quorlock._cli.exit_status import EX_TEMPFAIL, EX_USAGE
from quorlock.testing.servers import Servers
from tests.servers.cli import schema
from tests.servers.cli.command import Shell
from tests.servers.cli.test_status import SCHEMA


def test_commands_share_and_exclude(shell: Shell, nodes: Servers) -> None:
    """Two may run at once; one that wants the lock alone is busy, and the other way round."""
    with Redlock(nodes.urls, owner="reader") as redlock:
        lease = redlock.lock("doc", shared=True, ttl=20).acquire()
        assert shell.answer("run", "doc", "--shared", "-n", "-c", "echo read").strip() == "read"
        busy = shell.complaint(EX_TEMPFAIL, "run", "doc", "-n", "-c", "echo write")
        assert "'doc' is held by a reader (reader)" in busy
        lease.release()
        with redlock.lock("doc", ttl=20):
            shell.complaint(EX_TEMPFAIL, "run", "doc", "--shared", "-n", "-c", "echo read")


def test_a_token_is_extended_and_released(shell: Shell, nodes: Servers) -> None:
    with Redlock(nodes.urls) as redlock:
        token = shell.answer("acquire", "doc", "--shared").strip()
        assert redlock.lock("doc").try_acquire() is None
        shell.answer("extend", "doc", "--token", token)
        shell.answer("release", "doc", "--token", token)
        lease = redlock.lock("doc").try_acquire()
        assert lease is not None
        lease.release()


def test_status_and_break_show_readers(shell: Shell, nodes: Servers) -> None:
    """Also without a name, beside a sorted set of another program, which is left alone."""
    with Redlock(nodes.urls, owner="web-1") as redlock:
        leases = [redlock.lock("doc", shared=True, ttl=20).acquire() for _ in range(2)]
        for node in nodes:
            node.execute("ZADD", "board", "7", "ann")
        text = shell.answer("status", "doc")
        assert text.startswith("'doc': held, shared by 2: web-1 (")
        assert "  2 readers, " in text
        facts = json.loads(shell.answer("status", "--json"))
        assert schema.problems(facts, SCHEMA["$defs"]["status"], SCHEMA) == []
        assert [one["resource"] for one in facts["resources"]] == ["doc"]
        assert [reader["owner"] for reader in facts["resources"][0]["readers"]] == ["web-1"] * 2
        shell.complaint(EX_TEMPFAIL, "break", "doc")
        assert "'doc': free" in shell.run("break", "doc", "--yes").stdout
        assert [lease.release() for lease in leases] == [False, False]
        assert redlock.lock("board", shared=True).try_acquire() is None
        assert [node.execute("ZRANGE", "board", "0", "-1") for node in nodes] == [[b"ann"]] * 5
        for node in nodes:
            node.execute("DEL", "board")


def test_wrong_usage(shell: Shell) -> None:
    """Each is refused with the reason."""
    for words, reason in (
        (("acquire", "a", "--shared", "--permits", "2", "--json"), "--shared excludes"),
        (("run", "a", "--shared", "--and", "b", "-c", ":"), "--shared excludes"),
        (("run", "a", "--shared", "--fencing", "-c", ":"), "exclude each other"),
        (("run", "a", "--shared", "--once-per", "1h", "-c", ":"), "exclude each other"),
    ):
        assert reason in shell.complaint(EX_USAGE, *words)
