"""A node that plays back what it was sent shows no token in any error, repr or log line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorlock import LeaseLost, NodeError, QuorlockError
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Impostor, answers
from tests.harness.support.resp import bulk
from tests.servers.api.faces import Face, raises
from tests.servers.api.test_bad_input import all_messages

SETTINGS: dict[str, Any] = {"ttl": 2.0, "max_ttl": 2.0, "restart_guard": None}
TOKEN = "canary-0123456789-token"  # another library's
OURS = re.compile("[0-9a-f]{12}")
RUN_ID = b"0123456789" * 4


class PlaysBack:
    """A node that answers as Redis 5 does, but EVALSHA: it quotes what it was sent."""

    def __init__(self, quote: Callable[[list[bytes]], bytes]) -> None:
        self.quote = quote
        self.keys: dict[bytes, bytes] = {}

    def __call__(self, words: list[bytes]) -> bytes:
        name, *rest = [word.upper() for word in words[:1]] + words[1:]
        if name == b"HELLO":
            return b"-ERR unknown command `HELLO`, with args beginning with: `3`\r\n"
        if name == b"INFO":
            return bulk(b"redis_version:5.0.7\r\nrole:master\r\nrun_id:" + RUN_ID + b"\r\n")
        if name == b"GET":
            return bulk(self.keys.get(rest[0]))
        if name == b"SET":
            taken = b"NX" in rest and rest[0] in self.keys
            self.keys.setdefault(rest[0], rest[1])
            return b"$-1\r\n" if taken else b"+OK\r\n"
        if name.startswith(b"EVAL") and not rest[2].startswith(b"quorlock:"):
            return b"-" + self.quote(words) + b"\r\n"
        return b":1\r\n" if name.startswith(b"EVAL") else b"+PONG\r\n"


def as_redis(words: list[bytes]) -> bytes:
    """Redis and Valkey show 128 characters of the arguments, and cut the last."""
    shown = b""
    for word in words[1:]:
        if len(shown) >= 128:
            break
        shown += b"'%b' " % word[: 128 - len(shown)].replace(b"\n", b" ")
    return b"ERR unknown command '%b', with args beginning with: %b" % (words[0], shown)


def as_a_proxy(words: list[bytes]) -> bytes:
    """Echo the input like a proxy: reworded and truncated."""
    return b"ERR no route for " + b" ".join(w.replace(b"\n", b" ") for w in words[2:])[:60]


@pytest.fixture(params=[as_redis, as_a_proxy])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with Impostor(answers(PlaysBack(request.param))) as node:
        yield node.url


def assert_no_token(error: BaseException, log: str, *more: object) -> None:
    for text in (*all_messages(error), log, repr(more)):
        # Traces show lines of this file, and objects' addresses.
        shown = "\n".join(line for line in text.splitlines() if " at 0x" not in line)
        assert "canary" not in shown, shown
        assert not OURS.search(shown.replace(RUN_ID.decode(), "")), shown


async def test_a_lease_that_is_lost(url: str, face: Face, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    async with face.redlock([url], **SETTINGS) as redlock:
        lease = await redlock.lock("x").acquire(timeout=0)
        error = await raises(QuorlockError, lease.extend())
        assert isinstance(error, (LeaseLost, NodeError))
        assert "ERR" in str(error)
        assert_no_token(error, caplog.text, redlock.nodes)


@pytest.mark.parametrize("call", ["release", "extend"])
async def test_a_call_by_bare_token(url: str, face: Face, call: str) -> None:
    """Another library's token, which looks like nothing that we know."""
    async with face.redlock([url], **SETTINGS) as redlock:
        error = await raises(NodeError, getattr(redlock, call)("x", TOKEN))
        assert_no_token(error, "", redlock.nodes)


async def test_an_inspection(url: str, face: Face) -> None:
    async with face.redlock([url], **SETTINGS) as redlock:
        report = await redlock.inspect("x")
        assert_no_token(LookupError(), "", report, redlock.nodes)


async def test_a_real_server_that_quotes_the_acquire(face: Face) -> None:
    with Servers(1, options=("--rename-command", "SET", "")) as (server,):
        async with face.redlock([server.url], **SETTINGS) as redlock:
            error = await raises(NodeError, redlock.lock("x").acquire(timeout=0))
    assert "ERR unknown command 'SET'" in str(error)
    assert "NX" not in str(error)
