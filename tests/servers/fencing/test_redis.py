"""Keys of a real server refuse an old fence, through clients of redis-py and valkey-py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

import quorlock.asyncio.fencing as aio
from quorlock import ConfigError, StaleFence
from quorlock.fencing import FENCED_CLAIM, FENCED_SET, FencedRedis, fenced
from quorlock.fencing.fences import FENCE_MAX
from quorlock.testing.servers import Server, Servers
from tests.servers.fencing.awaited import Awaited

CLIENTS: dict[str, tuple[Any, bool]] = {
    "redis": (redis.Redis, False),
    "redis.asyncio": (redis.asyncio.Redis, True),
    "valkey": (valkey.Valkey, False),
    "valkey.asyncio": (valkey.asyncio.Valkey, True),
}


@pytest.fixture
def server(nodes: Servers) -> Server:
    return nodes[0]


@pytest.fixture(params=CLIENTS)
def run(request: pytest.FixtureRequest, server: Server) -> Callable[..., None]:
    """Runs a scenario with FencedRedis and a client, through each face."""
    kind, awaits = CLIENTS[request.param]

    def runs(scenario: Callable[[Any], Awaitable[None]], fence_key: Any = "fence") -> None:
        async def led() -> None:
            client = kind(unix_socket_path=server.path)
            try:
                made = aio.FencedRedis if awaits else FencedRedis
                found = made(client, fence_key)
                await scenario(found if awaits else Awaited(found, aio.FencedRedis))
            finally:
                await client.aclose() if awaits else client.close()

        asyncio.run(led())

    return runs


def test_a_late_set_is_refused(run: Callable[..., None], server: Server) -> None:
    """Equal and larger fences write; a smaller one changes nothing."""

    async def scenario(keys: Any) -> None:
        for value, fence in ((b"a", 33), ("b", 33), (3, FENCE_MAX)):
            await keys.set("data", value, fence)
        with pytest.raises(StaleFence) as refused:
            await keys.set("data", "late", FENCE_MAX - 1)
        error = refused.value
        assert (error.resource, error.fence, error.seen) == ("fence", FENCE_MAX - 1, FENCE_MAX)

    run(scenario)
    assert server.execute("GET", "data") == b"3"
    assert server.execute("GET", "fence") == str(FENCE_MAX).encode()
    assert server.execute("PTTL", "fence") == -1


def test_a_claim_before_reading_shuts_out_late_writers(run: Callable[..., None]) -> None:
    """Although nothing has been written with the larger fence yet."""

    async def scenario(keys: Any) -> None:
        await keys.set("data", "a", 33)
        await keys.claim(34)
        with pytest.raises(StaleFence):
            await keys.set("data", "late", 33)
        with pytest.raises(StaleFence):
            await keys.claim(33)

    run(scenario, b"fence\xff")


def test_a_script_of_the_users_own(run: Callable[..., None], server: Server) -> None:
    """The script has its own KEYS and ARGV first, and its reply is returned."""
    script = "return redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])"

    async def scenario(keys: Any) -> None:
        assert await keys.eval(script, ["hash"], ["field", 5], 33) == 5
        assert await keys.eval(script, ["hash"], ["field", 5], 34) == 10
        with pytest.raises(StaleFence):
            await keys.eval(script, ["hash"], ["field", 5], 33)
        assert await keys.eval("return #KEYS + #ARGV", [], [], 34) == 2

    run(scenario)
    assert server.execute("HGET", "hash", "field") == b"10"


def test_errors_of_the_server_stay_what_they_are(run: Callable[..., None], server: Server) -> None:
    """A fence key with any other value refuses all writers."""
    errors = (redis.ResponseError, valkey.ResponseError)

    async def scenario(keys: Any) -> None:
        with pytest.raises(errors, match="no_such_thing"):
            await keys.eval("return no_such_thing()", [], [], 33)
        for spoil, words in (
            (("SET", "fence", "x"), "nil"),
            (("SET", "fence", "nan"), "STALEFENCE nan"),
            (("SET", "fence", "inf"), "STALEFENCE inf"),
            (("LPUSH", "fence", "1"), "WRONGTYPE"),
        ):
            server.execute("DEL", "fence")
            server.execute(*spoil)
            with pytest.raises(errors, match=words):
                await keys.set("data", "a", 33)

    run(scenario)
    assert server.execute("EXISTS", "data") == 0


def test_writers_that_race_leave_fences_in_order(server: Server) -> None:
    """Threads with separate clients and shuffled fences: accepted fences only rise."""

    def work(seed: int) -> None:
        with redis.Redis(unix_socket_path=server.path) as client:
            keys = FencedRedis(client, "fence")
            for fence in random.Random(seed).sample(range(1, 200), 199):
                try:
                    keys.eval("redis.call('RPUSH', KEYS[1], ARGV[1])", ["log"], [fence], fence)
                except StaleFence:
                    continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    log = [int(entry) for entry in server.execute("LRANGE", "log", "0", "-1")]
    assert log == sorted(log)
    assert log[-1] == 199


def test_the_texts_stand_on_their_own(server: Server) -> None:
    """Other clients can use the texts: EVAL text, keys, arguments."""
    assert server.execute("EVAL", FENCED_CLAIM, "1", "fence", "34") == b"OK"
    assert server.execute("EVAL", FENCED_SET, "2", "data", "fence", "value", "34") == b"OK"
    for text in (FENCED_CLAIM, fenced("return 1")):
        with pytest.raises(RuntimeError, match=r"^STALEFENCE 34$"):
            server.execute("EVAL", text, "1", "fence", "33")


def test_what_cannot_work_is_refused_before_anything_is_sent(server: Server) -> None:
    with redis.Redis(unix_socket_path=server.path, password="canary") as client:
        with pytest.raises(ConfigError):
            FencedRedis(client, "")
        keys = FencedRedis(client, "fence")
        assert repr(keys) == "FencedRedis(fence_key='fence')"
        for fence in (None, 0, True, 2**53, "7"):
            with pytest.raises(ConfigError, match="fence"):
                keys.set("data", "a", fence)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="#!lua"):
            fenced("#!lua flags=no-writes\nreturn 1")
    assert server.keys() == []


ODD_CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("script=b'return 1'", (b"return 1", ["data"], [], 5)),
    ("script=", (None, ["data"], [], 5)),
    ("keys='str': give a list", ("return 1", "data", [], 5)),
    ("keys='bytes': give a list", ("return 1", b"data", [], 5)),
    ("keys='NoneType': give a list", ("return 1", None, [], 5)),
    ("keys=", ("return 1", [7], [], 5)),
    ("keys=", ("return 1", [None], [], 5)),
    ("args='str': give a list", ("return 1", ["data"], "value", 5)),
    ("args='int': give a list", ("return 1", ["data"], 1, 5)),
]


def test_a_client_that_sends_nothing_yet_is_refused(server: Server) -> None:
    """A coroutine that is not awaited, or a pipeline, would let an older fence pass."""

    async def scenario() -> None:
        blocking: Any = redis.Redis(unix_socket_path=server.path)
        awaited: Any = redis.asyncio.Redis(unix_socket_path=server.path)
        await aio.FencedRedis(awaited, "fence").claim(34)
        for client in (awaited, blocking.pipeline()):
            with pytest.raises(ConfigError, match="give a client, and no pipeline"):
                FencedRedis(client, "fence").claim(33)
        for client in (blocking, awaited.pipeline()):
            with pytest.raises(ConfigError, match="give a client, and no pipeline"):
                await aio.FencedRedis(client, "fence").claim(34)
        blocking.close()
        await awaited.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize(("said", "call"), ODD_CALLS)
def test_odd_arguments_of_a_script_are_refused(
    run: Callable[..., None], server: Server, said: str, call: tuple[Any, ...]
) -> None:
    """Each letter of a name would be a key: the script would write to other keys than it says."""

    async def scenario(keys: Any) -> None:
        with pytest.raises(ConfigError, match=f"^{said}"):
            await keys.eval(*call)

    run(scenario)
    assert server.keys() == []


@pytest.mark.parametrize("name", [7, None, True, ["fence"]])
def test_the_key_of_the_fence_is_a_name(name: Any) -> None:
    with redis.Redis() as client, pytest.raises(ConfigError, match="fence_key"):
        FencedRedis(client, name)


@pytest.mark.parametrize("name", ["fence", b"fence"], ids=["str", "bytes"])
def test_data_is_never_written_to_the_key_of_the_fence(
    run: Callable[..., None], server: Server, name: str | bytes
) -> None:
    """Data would replace the largest fence there, and an older one would pass. Nothing is sent."""

    async def scenario(keys: Any) -> None:
        await keys.claim(50)
        with pytest.raises(ConfigError, match="other than that of the fence"):
            await keys.set(name, 1, 50)
        with pytest.raises(ConfigError, match="other than that of the fence"):
            await keys.eval("return redis.call('SET', KEYS[2], 1)", ["data", name], [], 50)

    run(scenario)
    assert server.execute("GET", "fence") == b"50"
