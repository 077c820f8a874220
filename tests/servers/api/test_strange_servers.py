"""Servers on which a lock could be set but not released, or would not be one, cast no vote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorlock import ConfigError, NodeError, Redlock
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Impostor, answers
from tests.harness.support.resp import bulk
from tests.servers.api.faces import Face, raises

SETTINGS: dict[str, Any] = {"restart_guard": None, "outage_timeout": 0.5, "connect_timeout": 5.0}
NO_SCRIPTS = "cannot run the scripts that release a lock: "


async def refusal(face: Face, url: str) -> str:
    async with face.redlock([url], **SETTINGS) as redlock:
        error = await raises(NodeError, redlock.lock("x").acquire())
        assert error.attempts == 1, "it lasts, and is not tried again"
        return str(error)


@pytest.mark.parametrize("name", ["EVAL", "EVALSHA"])
async def test_a_command_that_was_renamed(face: Face, name: str) -> None:
    """No key is left that could not be deleted."""
    with Servers(1, options=("--rename-command", name, "")) as (server,):
        said = await refusal(face, server.url)
        assert f"{NO_SCRIPTS}ERR unknown command '{name}' (give the command its name back)" in said
        assert server.keys() == []


@pytest.mark.parametrize("name", ["PEXPIRE", "DEL", "PTTL"])
async def test_a_command_that_scripts_need(face: Face, name: str) -> None:
    with Servers(1, options=("--rename-command", name, "")) as (server,):
        said = await refusal(face, server.url)
    assert NO_SCRIPTS in said
    assert "(give the command its name back)" in said


@pytest.mark.parametrize("slots", [(), ("0", "16383")], ids=["no slots", "all slots"])
async def test_a_member_of_a_cluster(face: Face, slots: tuple[str, ...]) -> None:
    """Also the only one, which would serve every key: its replica may be promoted."""
    with Servers(1, options=("--cluster-enabled", "yes")) as (server,):
        if slots:
            server.execute("CLUSTER", "ADDSLOTSRANGE", *slots)
        assert "is a member of a Redis Cluster" in await refusal(face, server.url)


def test_what_was_tried_leaves_nothing(nodes: Servers, face: Face) -> None:
    assert nodes[0].execute("EXISTS", "quorlock:probe") == 0


class Says:
    """A server by its INFO, and by what it says to scripts."""

    def __init__(self, info: bytes, script: bytes = b":1\r\n") -> None:
        self.info = b"run_id:%040d\r\nrole:master\r\n" % 1 + info
        self.script = script

    def __call__(self, words: list[bytes]) -> bytes:
        if words[0] == b"INFO":
            return bulk(self.info)
        if words[0].startswith(b"EVAL"):
            return self.script
        return b"%0\r\n" if words[0] == b"HELLO" else b"_\r\n"


def no_run_id(words: list[bytes]) -> bytes:
    """Reply without a run_id, like Dragonfly (its issue 2400 has the mode)."""
    info = b"redis_version:7.4.0\r\ndragonfly_version:df-v1.34.2\r\nrole:master\r\n"
    return bulk(info) if words[0] == b"INFO" else Says(b"")(words)


STRANGE: list[tuple[str, Callable[[list[bytes]], bytes], str]] = [
    ("sentinel", Says(b"redis_mode:sentinel\r\n"), "is a Sentinel, not a data node"),
    ("cluster of Valkey", Says(b"server_mode:cluster\r\n"), "is a member of a Redis Cluster"),
    ("no run_id", no_run_id, "does not report its run_id in INFO (it is Dragonfly df-v1.34.2)"),
    (
        "Redis 5 that copies scripts",
        Says(
            b"",
            b"-ERR Error running script: Write commands not allowed after non deterministic\r\n",
        ),
        "(set lua-replicate-commands yes)",
    ),
    (
        "Lua off",
        Says(b"", b"-ERR This instance has Lua scripting support disabled\r\n"),
        "(turn Lua scripts on)",
    ),
    ("no number", Says(b"", b"+OK\r\n"), "EVAL is not a number"),
]


@pytest.fixture(params=STRANGE, ids=[name for name, *_ in STRANGE])
def strange(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    _, behaviour, words = request.param
    with Impostor(answers(behaviour)) as impostor:
        yield impostor.url, words


async def test_what_it_is_called(face: Face, strange: tuple[str, str]) -> None:
    url, words = strange
    assert words in await refusal(face, url)


def test_an_interpreter_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error after eventlet.monkey_patch() is raised at once, with our message."""
    monkeypatch.delattr("select.poll")
    with pytest.raises(ConfigError, match=r"eventlet.*quorlock\.asyncio"):
        Redlock(["redis://a:6379"])
