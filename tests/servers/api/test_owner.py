"""The owner of a lock travels with its token, and every client may see it."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from quorlock import AcquireTimeout, ConfigError, LeaseLost
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, left_over, raises, steal

OWNER = "web-3:4711 (nightly)"
HERE = f"{socket.gethostname()}:{os.getpid()}"
DIGITS = "0123456789abcdef" * 2
# Values that another client may have written at the key.
HOSTILE = {
    "escape": f"{DIGITS}@\x1b[2J\x1b]0;gone\x07".encode(),
    "not UTF-8": DIGITS.encode() + b"@\xff\xfe\x00",
    "lines": f"{DIGITS}@a\r\n-ERR b\r\n".encode(),
    "encoded": f"{DIGITS}@%1B%5B2J%0a".encode(),
    "right to left": f"{DIGITS}@%E2%80%AEabc".encode(),
}


async def refusal(redlock: Any, resource: str = "a", **options: Any) -> AcquireTimeout:
    return await raises(AcquireTimeout, redlock.lock(resource, **options).acquire(timeout=0))


@pytest.mark.parametrize("guard", ["uptime", "marker"])
@pytest.mark.parametrize("fencing", [False, True])
async def test_the_owner_is_told_to_those_who_ask(
    face: Face, nodes: Servers, guard: Any, fencing: bool
) -> None:
    """An inspection has it, and so has the error of a refused acquire."""
    settings: dict[str, Any] = {"restart_guard": guard}
    async with (
        face.redlock(nodes.urls, owner=OWNER, **settings) as ours,
        face.redlock(nodes.urls, **settings) as theirs,
        ours.lock("a", fencing=fencing) as lease,
    ):
        assert await until_async(lambda: None not in holders(nodes, "a"))
        error = await refusal(theirs, fencing=fencing)
        assert error.holder == OWNER
        assert str(error).startswith(f"'a' is held by {OWNER}: ")
        report = await theirs.inspect("a")
        assert report.owner == OWNER
        assert [view.owner for view in report.nodes] == [OWNER] * 5
        for text in (str(error), repr(error.args), repr(report)):
            assert lease.token[:7] not in text
    assert left_over(nodes) == {}


async def test_the_default_is_host_and_pid(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock, redlock.lock("a"):
        assert (await refusal(redlock)).holder == HERE
        assert (await redlock.inspect("a")).owner == HERE


async def test_host_and_pid_may_be_part_of_an_owner(face: Face, nodes: Servers) -> None:
    async with (
        face.redlock(nodes.urls, owner="{host}:{pid} import {x}") as redlock,
        redlock.lock("a"),
    ):
        assert (await refusal(redlock)).holder == f"{HERE} import {{x}}"


@pytest.mark.parametrize("nothing", [None, ""])
async def test_no_owner(face: Face, nodes: Servers, nothing: str | None) -> None:
    """The token is 32 digits, and nothing is said of the holder but a digest."""
    async with face.redlock(nodes.urls, owner=nothing) as redlock, redlock.lock("a") as lease:
        assert len(lease.token) == 32
        error = await refusal(redlock)
        assert error.holder is None
        assert "'a' is held by another: " in str(error)
        report = await redlock.inspect("a")
        assert (report.verdict, report.owner) == ("held", None)
        assert {view.owner for view in report.nodes} == {None}


@pytest.mark.parametrize(
    "token", ["theirs", "7f0c9a0e-6a3b-4a57-9d3c-0d5e8a3c2b11:42", f"host:1@{DIGITS}", "x" * 5_000]
)
async def test_another_librarys_token_has_no_owner(face: Face, nodes: Servers, token: str) -> None:
    async with face.redlock(nodes.urls) as redlock:
        steal(nodes, "a", token)
        error = await refusal(redlock)
        assert (error.holder, error.holder_ttl is None) == (None, False)
        report = await redlock.inspect("a")
        assert (report.verdict, report.owner) == ("held", None)


async def test_several_holders(face: Face, nodes: Servers) -> None:
    """The one that has a quorum is named, and none if no one has."""
    async with face.redlock(nodes.urls) as redlock:
        steal(nodes[:3], "a", f"{DIGITS}@most")
        steal(nodes[3:], "a", f"{DIGITS}@few")
        report = await redlock.inspect("a")
        assert (report.verdict, report.owner) == ("held", "most")
        assert [view.owner for view in report.nodes] == ["most"] * 3 + ["few"] * 2
        steal(nodes[2:3], "a", f"{DIGITS}@one")
        report = await redlock.inspect("a")
        assert (report.verdict, report.owner) == ("split", None)
        error = await refusal(redlock)
        assert error.holder is None
        assert "is held by another" in str(error)


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_owner_is_shown_on_one_line(
    face: Face, nodes: Servers, value: bytes
) -> None:
    """No control character reaches a terminal or a log."""
    async with face.redlock(nodes.urls) as redlock:
        for node in nodes:
            node.execute("SET", "a", value, "PX", 60_000)
        error = await refusal(redlock)
        report = await redlock.inspect("a")
        assert error.holder == report.owner
        assert error.holder is not None
        assert error.holder.isprintable()
        assert str(error).isprintable()
        assert all(node.up for node in redlock.nodes)


async def test_a_huge_value_harms_nothing(face: Face, nodes: Servers) -> None:
    """10 MB at the key: it is held by another, and no connection is lost."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        for node in nodes:
            node.execute("SET", "a", f"{DIGITS}@".encode() + b"x" * 10_000_000, "PX", 60_000)
        async with redlock.lock("b") as lease:
            error = await refusal(redlock)
            assert (error.holder, error.holder_ttl is None) == (None, False)
            report = await redlock.inspect("a")
            assert (report.verdict, report.owner) == ("held", None)
            assert all(node.up for node in redlock.nodes)
            await lease.extend()


async def test_a_lease_keeps_its_owner_when_it_moves(face: Face, nodes: Servers) -> None:
    """Extension, hand-over and release compare whole tokens; the owner is who acquired it."""
    async with (
        face.redlock(nodes.urls, owner=OWNER) as first,
        face.redlock(nodes.urls, owner="second") as second,
    ):
        lease = await first.lock("a").acquire()
        await lease.extend()
        ticket = await lease.hand_over()
        adopted = await second.adopt(ticket)
        await adopted.extend()
        assert (await second.inspect("a")).owner == OWNER
        token = adopted.token
        digits = token.partition("@")[0]
        assert await first.extend("a", digits) is False
        assert await first.release("a", digits) is False
        assert await second.extend("a", token) is True
        assert await second.release("a", token) is True
        await raises(LeaseLost, adopted.extend())
    assert left_over(nodes) == {}


async def test_breaking_takes_the_whole_token(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, owner=OWNER) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        digest = (await redlock.inspect("a")).nodes[0].holder
        assert digest is not None
        assert await redlock.break_lease("a", digest) is True
        assert await lease.release() is False
    assert left_over(nodes) == {}


@pytest.mark.parametrize("wrong", [7, b"web", "two\nlines", "\x1b[2J", "x" * 200])
def test_a_wrong_owner_is_refused(face: Face, wrong: Any) -> None:
    """A ConfigError names the argument and the fix."""
    with pytest.raises(ConfigError) as caught:
        face.redlock(["redis://127.0.0.1:1"], owner=wrong)
    assert caught.value.argument == "owner"
    assert "\n" not in str(caught.value)
