"""`top --waiters` counts who tries to acquire, whichever way, and looks at no token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread

import pytest

from quorlock import QuorlockError, Redlock
from quorlock._cli.top.monitor import Try, tried
from quorlock.testing.servers import Servers
from tests.servers.cli.command import Shell
from tests.servers.cli.live import going_on
from tests.servers.cli.test_scan import enter
from tests.servers.cli.test_top import checked, until

OFTEN = ("--interval", "0.4s")


@pytest.fixture(scope="module")
def remote() -> Iterator[Servers]:
    """Yield three nodes over TCP, on which clients can be distinguished."""
    with Servers(3, tcp=True) as servers:
        yield servers


def wait(redlock: Redlock, *, fencing: bool) -> None:
    """Wait for it until this is closed."""
    with pytest.raises(QuorlockError, match="closed"):
        redlock.lock("a", timeout=60, fencing=fencing).acquire()


@pytest.mark.parametrize("fencing", [False, True])
def test_who_polls_is_counted(fencing: bool, bare_shell: Shell, remote: Servers) -> None:
    """Three that poll, by SET or by the script; none once they are gone, and never a token."""
    urls = [server.tcp_url for server in remote]
    (bare_shell.home / "quorlock.toml").write_text(f"nodes = {urls}\nprefix = 'app:'\n")
    with ExitStack() as stack:
        holder = stack.enter_context(Redlock(urls, ttl=30, prefix="app:"))
        lease = holder.lock("a").acquire()
        process = stack.enter_context(going_on(bare_shell, "top", "--waiters", "--json", *OFTEN))
        with ExitStack() as waiting:
            for _ in range(3):
                redlock = Redlock(urls, ttl=30, prefix="app:", waiting="poll")
                thread = Thread(target=wait, args=(redlock,), kwargs={"fencing": fencing})
                waiting.callback(thread.join)
                waiting.enter_context(redlock)
                thread.start()
            facts = until(process, lambda f: bool(f["locks"]) and f["locks"][0]["tried"] == 3)
            (note,) = facts["notes"]
            assert note == f"tried: connections that tried in 0.2 s at 127.0.0.1:{remote[0].port}"
            assert lease.token not in str(facts)
        until(process, lambda facts: facts["locks"][0]["tried"] == 0)
        lease.release()


def test_another_node_is_asked_when_one_is_dead(bare_shell: Shell, remote: Servers) -> None:
    """The output names the node."""
    urls = [server.tcp_url for server in remote]
    at = ("--nodes", ",".join(urls))
    remote[0].stop()
    try:
        with going_on(bare_shell, "top", "--waiters", "--json", *OFTEN, *at) as process:
            until(
                process, lambda f: f"{remote[1].port}" in f["notes"][0] and "tried" in f["notes"][0]
            )
    finally:
        remote[0].cont()


def test_refused_rights_are_reported(bare_shell: Shell, remote: Servers) -> None:
    """Once: each refusal leaves a line in ACL LOG. The rest is shown."""
    at = ("--nodes", ",".join(enter(remote, "poor", "+scan")))
    remote[0].execute("ACL", "LOG", "RESET")
    with going_on(bare_shell, "top", "--waiters", "--json", *OFTEN, *at) as process:
        for _ in range(3):
            until(process, lambda facts: "grant +monitor" in facts["notes"][0])
        facts = until(process, lambda facts: bool(facts["notes"]))
        assert [node["state"] for node in facts["nodes"]] == ["up"] * 3
    objects = [e[e.index(b"object") + 1] for e in remote[0].execute("ACL", "LOG")]
    assert objects.count(b"monitor") == 1


def test_over_a_unix_socket_it_says_what_it_cannot_see(shell: Shell, nodes: Servers) -> None:
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("a"):
        picture = shell.answer("top", "--waiters", "--interval", "1s")
        assert " tried" in picture
        assert "over a unix socket all count as one" in " ".join(picture.split())
        assert max(map(len, picture.splitlines())) <= 80


def test_it_costs_nothing_unless_it_is_asked_for(shell: Shell, nodes: Servers) -> None:
    for node in nodes:
        node.execute("CONFIG", "RESETSTAT")
    facts = checked(shell.answer("top", "--once", "--json", *OFTEN))
    assert all(lock["tried"] is None for lock in facts["locks"])
    time.sleep(0.1)
    for node in nodes:
        assert b"cmdstat_monitor" not in node.execute("INFO", "commandstats")


AT = b"1700000000.123456 [0 10.0.0.1:5555] "
SIX = b"1700000000.123456 [0 [::1]:5555] "


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (AT + b'"SET" "a" "t" "NX" "PX" "100"', Try(b"a", b"10.0.0.1:5555")),
        (SIX + b'"set" "a" "t" "px" "100" "nx"', Try(b"a", b"[::1]:5555")),
        (AT + b'"SET" "a" "t" "EX" "1" "NX"', Try(b"a", b"10.0.0.1:5555")),
        (
            AT + rb'"SET" "a \"b\" \\ \xff\n" "t" "NX" "PX" "1"',
            Try(b'a "b" \\ \xff\n', b"10.0.0.1:5555"),
        ),
        (
            AT + b'"EVALSHA" "5ha" "3" "a" "quorlock:fence:a" "quorlock:guard" "t" "1" "0" "0"',
            Try(b"a", b"10.0.0.1:5555"),
        ),
        (
            AT
            + rb'"EVAL" "text \"3\"\n" "3" "a" "quorlock:fence:a" "quorlock:guard" "t" "1" "0" "0"',
            Try(b"a", b"10.0.0.1:5555"),
        ),
        (b'1.2 [3 10.0.0.1:5555] "SET" "a" "t" "NX" "PX" "100"', None),
        (b'1.2 [0 lua] "SET" "a" "t" "NX" "PX" "100"', None),
        (AT + b'"SET" "a" "t" "PX" "100"', None),
        (AT + b'"SET" "quorlock:config" "n=3" "NX"', None),
        (AT + b'"SET" "NX" "PX" "1"', None),
        (AT + b'"EVALSHA" "5ha" "1" "a" "t"', None),
        (AT + b'"EVALSHA" "5ha" "3" "a" "b" "c" "t" "1" "0" "0"', None),
        (AT + b'"GET', None),
        (AT, None),
        (b"OK", None),
        (b"", None),
    ],
)
def test_what_a_try_is(line: bytes, found: Try | None) -> None:
    assert tried(line, 0) == found
