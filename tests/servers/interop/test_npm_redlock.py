"""The npm package node-redlock itself, with several resources, against ours: key by key.

Skipped where `node` is absent or the package is not installed: `npm ci` in bench/node does it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorlock import AcquireTimeout, LeaseLost
from quorlock.testing.servers import Servers
from tests.servers.api.faces import Face, emptied, holders, left_over, raises

PROGRAM = Path(__file__).with_name("npm_redlock.js")
MODULES = Path(__file__).parents[3] / "bench" / "node" / "node_modules"
NAMES = ("one", "two", "three")


class NpmRedlock:
    """A process that runs the package."""

    def __init__(self, nodes: Servers) -> None:
        urls = [f"{server.path}" for server in nodes]
        command = ["node", str(PROGRAM), str(MODULES), ",".join(urls)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def acquire(self, *resources: str, ttl_ms: int = 10_000) -> str | None:
        value: str | None = self.ask("acquire", resources, ttl_ms)
        return value

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def theirs(nodes: Servers) -> Iterator[NpmRedlock]:
    if shutil.which("node") is None or not (MODULES / "redlock").is_dir():
        pytest.skip("node, or the package in bench/node (npm ci), is absent")
    package = NpmRedlock(nodes)
    yield package
    package.close()


async def test_each_keeps_the_other_out(face: Face, nodes: Servers, theirs: NpmRedlock) -> None:
    """Sets that share one resource exclude each other, in both directions, all or nothing."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        for _ in range(20):
            lease = await redlock.lock("two", "zero").acquire()
            assert theirs.acquire(*NAMES) is None
            assert holders(nodes, "one") == [None] * 5, "not even in part"
            assert await lease.release() is True
            assert await emptied(nodes)
            value = theirs.acquire(*NAMES)
            assert value is not None
            assert all(holders(nodes, name).count(value.encode()) >= 3 for name in NAMES)
            error = await raises(AcquireTimeout, redlock.lock("zero", "two").acquire(timeout=0))
            assert error.in_the_way == "two"
            assert holders(nodes, "zero") == [None] * 5
            assert theirs.ask("release") is True
            assert await emptied(nodes)


async def test_each_extends_and_releases_its_own_only(
    face: Face, nodes: Servers, theirs: NpmRedlock
) -> None:
    """Our token at a key stops their extension, and theirs stops ours."""
    async with face.redlock(nodes.urls, node_timeout=1.0) as redlock:
        assert theirs.acquire(*NAMES, ttl_ms=5_000)
        assert theirs.ask("extend", 20_000) is True
        error = await raises(AcquireTimeout, redlock.lock(*NAMES).acquire(timeout=0))
        assert error.holder_ttl is not None
        assert 15 < error.holder_ttl <= 20
        assert theirs.ask("release") is True
        lease = await redlock.lock(*NAMES, ttl=9).acquire()
        await lease.extend(20)
        assert theirs.acquire("three", "four") is None
        token = lease.token
        for node in nodes:
            node.execute("DEL", "two")
        assert theirs.acquire("two", "four"), "a single key of a set is an ordinary key"
        await raises(LeaseLost, lease.extend())
        assert await redlock.release(NAMES, token) is False
        assert theirs.ask("release") is True
    assert left_over(nodes) == {}
