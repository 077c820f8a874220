"""Fences on real servers: unique, rising, whatever becomes of nodes, clients and counters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

import quorlock.asyncio as aio
from quorlock import ConfigError, NodeError, Ticket
from quorlock.testing.servers import Server, Servers
from tests.harness.support.program import Program
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, raises, wipe

FENCER = Path(__file__).with_name("fencer.py")
COUNTER = "quorlock:fence:"
DAY_US = 86_400_000_000


def counters(nodes: Iterable[Server], resource: str) -> list[int]:
    return [int(node.execute("GET", COUNTER + resource) or 0) for node in nodes]


def clock_us(node: Server) -> int:
    seconds, microseconds = node.execute("TIME")
    return int(seconds) * 1_000_000 + int(microseconds)


async def fence_of(redlock: aio.Redlock, resource: str = "a") -> int:
    async with redlock.lock(resource, fencing=True, timeout=10) as lease:
        assert lease.fence is not None
        return lease.fence


# --- what a user sees ------------------------------------------------------------------------


async def test_every_lease_has_a_larger_fence(face: Face, nodes: Servers) -> None:
    """An int, from a value near the clock in microseconds on; each resource has its own."""
    async with face.redlock(nodes.urls) as redlock:
        fences = [await fence_of(redlock) for _ in range(10)]
        assert all(one < next_ for one, next_ in pairwise(fences))
        assert abs(fences[0] - clock_us(nodes[0])) < 60_000_000
        assert abs(await fence_of(redlock, "b") - fences[0]) < 60_000_000


async def test_without_fencing_there_is_none(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        lock = redlock.lock("a")
        assert lock.fencing is False
        async with lock as lease:
            assert lease.fence is None
    assert all(node.execute("EXISTS", COUNTER + "a") == 0 for node in nodes)


async def test_it_stays_the_same_while_the_lease_lasts(face: Face, nodes: Servers) -> None:
    """Through extensions, and known when the lease is over."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", fencing=True, ttl=5).acquire()
        fence = lease.fence
        await lease.extend(10)
        assert lease.fence == fence
        await lease.release()
        assert lease.fence == fence


async def test_one_attempt_and_the_decorator_have_fences_too(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", fencing=True).try_acquire()
        assert lease is not None
        assert lease.fence is not None
        assert await redlock.lock("a", fencing=True).try_acquire() is None
        assert await redlock.lock("a").try_acquire() is None, "they exclude each other"
        await lease.release()


async def test_fencing_is_a_bool(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        for wrong in (1, 0, "yes", None):
            with pytest.raises(ConfigError, match="fencing="):
                redlock.lock("a", fencing=cast(Any, wrong))


async def test_it_needs_a_guard_against_nodes_that_forgot(face: Face, nodes: Servers) -> None:
    """A node that restarts at once, without a guard, would repeat its numbers."""
    async with face.redlock(nodes.urls, restart_guard=None) as redlock:
        assert redlock.lock("a").fencing is False
        with pytest.raises(ConfigError, match="needs restart_guard='uptime' or 'marker'"):
            redlock.lock("a", fencing=True)


async def test_it_goes_with_the_lease_to_another_process(face: Face, nodes: Servers) -> None:
    """The ticket contains it, also as JSON; no other client got a larger one in between."""
    async with face.redlock(nodes.urls) as giver, face.redlock(nodes.urls) as taker:
        lease = await giver.lock("a", fencing=True).acquire()
        ticket = await lease.hand_over()
        assert ticket.fence == lease.fence
        adopted = await taker.adopt(Ticket.from_json(ticket.to_json()))
        assert adopted.fence == lease.fence
        await adopted.release()
        plain = await (await giver.lock("b").acquire()).hand_over()
        assert plain.fence is None
        assert (await taker.adopt(plain)).fence is None


def test_tickets_of_before_there_were_fences_are_read() -> None:
    text = '{"resource": "a", "token": "t", "ttl": 1.0}'
    assert Ticket.from_json(text) == Ticket("a", "t", 1.0)
    assert json.loads(Ticket("a", "t", 1.0, 7).to_json())["fence"] == 7
    for wrong in ('"7"', "7.5", "true", "[7]", "Infinity"):
        with pytest.raises(ConfigError):
            Ticket.from_json(text[:-1] + f', "fence": {wrong}}}')


# --- one round trip --------------------------------------------------------------------------


NAMES = ("first", "second")


async def test_a_fence_costs_no_second_round_trip(face: Face, nodes: Servers) -> None:
    """Neither the first of a resource nor those after it: no node is asked to raise anything."""
    async with face.redlock(nodes.urls) as redlock:
        # At the border of two seconds new counters begin differently; not twice within 50 ms.
        await redlock.inspect("a")
        for node in nodes:
            node.execute("SCRIPT", "FLUSH")
            node.execute("CONFIG", "RESETSTAT")
        ran = []
        for attempt in range(2):
            before = [scripts_run(node) for node in nodes]
            await fence_of(redlock, NAMES[attempt])
            await fence_of(redlock, NAMES[attempt])
            await until_quiet(nodes)
            ran.append(max(scripts_run(n) - b for n, b in zip(nodes, before, strict=True)))
        assert 4 in ran, "two acquires and two releases"


def scripts_run(node: Server) -> int:
    """Return how many scripts the node has executed by EVAL and EVALSHA."""
    stats = node.execute("INFO", "commandstats").decode().splitlines()
    calls = (line.split("calls=")[1].split(",")[0] for line in stats if "_eval" in line)
    return sum(map(int, calls))


async def until_quiet(nodes: Iterable[Server]) -> None:
    """Wait until the releases have reached the nodes that were not awaited."""
    assert await until_async(lambda: not any(h for name in NAMES for h in holders(nodes, name)))


async def test_a_server_that_forgot_the_scripts_is_no_trouble(face: Face, nodes: Servers) -> None:
    """SCRIPT FLUSH between two: asked again in full, within the same round."""
    async with face.redlock(nodes.urls) as redlock:
        first = await fence_of(redlock)
        for node in nodes:
            node.execute("SCRIPT", "FLUSH")
        lease = await redlock.lock("a", fencing=True).try_acquire()
        assert lease is not None
        assert lease.fence is not None
        assert lease.fence > first


# --- nodes that disagree ---------------------------------------------------------------------


async def test_nodes_that_were_left_behind_catch_up(face: Face, nodes: Servers) -> None:
    """Nodes that a quorum needs are raised, and then all issue the same number again."""
    async with face.redlock(nodes.urls) as redlock:
        ahead = await fence_of(redlock) + 10_000_000
        for node in nodes[:2]:
            node.execute("SET", COUNTER + "a", ahead)
        fences = [0]
        # Whose three answers come first is chance; as soon as one of them is ahead, all are raised.
        while fences[-1] <= ahead:
            fences.append(await fence_of(redlock))
            assert fences[-1] > fences[-2]
            assert len(fences) < 50
        assert await until_async(lambda: counters(nodes, "a") == [fences[-1]] * 5)
        assert await fence_of(redlock) == fences[-1] + 1


@pytest.mark.parametrize("lost", [1, 2])
async def test_counters_that_a_minority_lost(face: Face, nodes: Servers, lost: int) -> None:
    """Lost counters start again at the clock, and every quorum has a node that knows more: fences
    rise.
    """
    async with face.redlock(nodes.urls) as redlock:
        for turn in range(6):
            resource = f"a{turn}"
            fence = await fence_that_all_issued(redlock, nodes, resource)
            for index in range(lost):
                nodes[(turn + index) % 5].execute("DEL", COUNTER + resource)
            assert await fence_of(redlock, resource) > fence


async def fence_that_all_issued(redlock: aio.Redlock, nodes: Servers, resource: str) -> int:
    """A late node has it a moment later; one whose clock shows another second, with the next."""
    for _ in range(20):
        fence = await fence_of(redlock, resource)
        if await until_async(lambda: len(set(counters(nodes, resource))) == 1, 0.2):
            return fence
    raise AssertionError(f"{counters(nodes, resource)}: they never agree")


async def test_fences_rise_though_the_lock_is_broken(face: Face, nodes: Servers) -> None:
    """Keys vanish while they are held, so that all hold at once: no two have the same fence."""
    async with face.redlock(nodes.urls) as redlock:
        fences: list[int] = []
        leases = []
        for _ in range(10):
            lease = await redlock.lock("a", fencing=True).acquire()
            assert lease.fence is not None
            fences.append(lease.fence)
            leases.append(lease)
            wipe(nodes, "a")
        assert all(lease.held for lease in leases)
        assert all(one < next_ for one, next_ in pairwise(fences))


async def test_counters_live_for_a_day_after_their_last_use(face: Face, nodes: Servers) -> None:
    """Names that are used once do not stay for ever."""
    async with face.redlock(nodes.urls) as redlock:
        await fence_of(redlock)
        day_ms = 86_400_000
        lives = [node.execute("PTTL", COUNTER + "a") for node in nodes]
        assert sum(day_ms - 60_000 < left <= day_ms for left in lives) >= 3


# --- numbers ---------------------------------------------------------------------------------


async def test_no_digit_is_lost(face: Face, nodes: Servers) -> None:
    """The 16 digits exceed what Lua prints of a number by default."""
    start = clock_us(nodes[0]) + DAY_US // 2
    for node in nodes:
        node.execute("SET", COUNTER + "a", start)
    async with face.redlock(nodes.urls) as redlock:
        assert await fence_of(redlock) == start + 1
        assert max(counters(nodes, "a")) == start + 1


@pytest.mark.parametrize("poison", ["9007199254740991", "9" * 40, "x", "-5", "1e3", ""])
async def test_one_poisoned_counter_does_not_spread(
    face: Face, nodes: Servers, poison: str
) -> None:
    """A node with a counter that is more than a day ahead, or no number, does not vote; the others
    do.
    """
    async with face.redlock(nodes.urls) as redlock:
        first = await fence_of(redlock)
        nodes[0].execute("SET", COUNTER + "a", poison)
        fences = [first] + [await fence_of(redlock) for _ in range(3)]
        assert all(one < next_ for one, next_ in pairwise(fences))
        assert nodes[0].execute("GET", COUNTER + "a") == poison.encode()
        for node in nodes[1:3]:
            node.execute("SET", COUNTER + "a", poison)
        error = await raises(NodeError, redlock.lock("a", fencing=True).try_acquire())
        assert "its fence counter is no number, or more than a day ahead" in str(error)
    assert holders(nodes, "a") == [None] * 5


async def test_another_type_of_data_at_the_counter_is_reported(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        for node in nodes[:3]:
            node.execute("RPUSH", COUNTER + "a", "x")
        error = await raises(NodeError, redlock.lock("a", fencing=True).try_acquire())
        assert "holds another type of data" in str(error)
        assert holders(nodes, "a") == [None] * 5, "nothing was set there"


# --- many at once ----------------------------------------------------------------------------


async def test_a_crowd_gets_a_fence_each(face: Face, nodes: Servers) -> None:
    """Unique, and in the order of holding."""
    async with face.redlock(nodes.urls, retry_delay=(0.001, 0.01)) as redlock:
        turns: list[tuple[float, int]] = []

        async def work(index: int) -> None:
            del index
            async with redlock.lock("a", fencing=True, timeout=30) as lease:
                assert lease.fence is not None
                turns.append((time.monotonic(), lease.fence))

        assert await face.crowd(8, work) == [None] * 8
        assert all(one[1] < next_[1] for one, next_ in pairwise(sorted(turns)))


def test_two_processes_get_rising_fences(nodes: Servers) -> None:
    """A process that starts to acquire after another has its lease gets a larger fence."""
    command = (str(FENCER), json.dumps(nodes.urls), "40")
    with Program(*command) as one, Program(*command) as other:
        one.begin()
        lines = [program.output for program in (other.go_on(), one.end())]
    turns = sorted((tuple(turn) for text in lines for turn in json.loads(text)), key=lambda t: t[1])
    assert len({fence for _, _, fence in turns}) == len(turns) == 80
    for number, (_, granted_at, fence) in enumerate(turns):
        later = [other for asked_at, _, other in turns[number + 1 :] if asked_at > granted_at]
        assert all(other > fence for other in later)
