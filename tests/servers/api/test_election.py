"""The election in both APIs: one leader at a time, terms that rise, and the end of a term."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import (
    AcquireStopped,
    AcquireTimeout,
    ConfigError,
    Leader,
    LeaseLost,
    NodeError,
    QuorumUnreachable,
)
from quorlock._api.lease import state_of
from quorlock._core.time import FOR_EVER
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Servers
from tests.harness.support.program import Program
from tests.harness.support.stats import scripts_asked
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Awaited, Face, keys_on, left_over, raises, real, steal, wipe

TTL = 0.9
SETTINGS: dict[str, Any] = {"node_timeout": 0.1, "retry_delay": (0.01, 0.03), "ttl": TTL}
ENDED = "ended"
LEADER = Path(__file__).with_name("leader.py")


async def run(face: Face, election: aio.Election, lead: Callable[[Any], Any]) -> Any:
    """Call `run` with a function that leads without waiting, in either face."""
    if face.name == "blocking":
        return real(election).run(lead)

    async def lead_here(lease: aio.Lease) -> Any:
        return lead(lease)

    return await election.run(lead_here)


async def in_background(face: Face, election: aio.Election, lead: Callable[[Any], Any]) -> Any:
    """Run the election beside the test, in a thread or a task; return what can be awaited."""
    if face.name == "blocking":
        return asyncio.create_task(asyncio.to_thread(real(election).run, lead))
    return asyncio.create_task(run(face, election, lead))


async def observed(face: Face, election: aio.Election) -> AsyncIterator[Leader | None]:
    """Observe in either face, beside the test."""
    if face.name == "asyncio":
        async for leader in election.observe():
            yield leader
        return
    seen = real(election).observe()

    def advance() -> list[Leader | None]:
        return list(islice(seen, 1))

    while leaders := await asyncio.to_thread(advance):
        yield leaders[0]


async def test_the_leader_has_a_lease_with_a_term(face: Face, nodes: Servers) -> None:
    """`run` returns what the leader returned, and the lock is free; the next term is larger."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        election = redlock.election("job")
        terms: list[int] = []

        def lead(lease: Any) -> str:
            assert lease.held
            assert lease.resource == "job"
            terms.append(lease.fence)
            return "done"

        assert await run(face, election, lead) == "done"
        assert await run(face, election, lead) == "done"
        assert terms[0] < terms[1]
        assert {key for keys in keys_on(nodes).values() for key in keys} <= {b"quorlock:fence:job"}


async def test_a_campaign_is_a_block(face: Face, nodes: Servers) -> None:
    """Another candidate waits, for its timeout at most; the end of the block resigns."""
    async with face.redlock(nodes.urls, **SETTINGS) as one, face.redlock(nodes.urls) as two:
        async with one.election("job").campaign(timeout=None) as lease:
            rival = two.election("job")
            await raises(AcquireTimeout, rival.campaign(timeout=0.02).acquire())
            assert await rival.campaign().try_acquire() is None
            first = lease.fence
        async with rival.campaign(timeout=1.0) as lease:
            assert first is not None
            assert lease.fence is not None
            assert lease.fence > first


async def test_a_term_outlives_its_ttl(face: Face, nodes: Servers) -> None:
    """The lease is renewed without a limit of the whole time."""
    async with (
        face.redlock(nodes.urls, **SETTINGS) as redlock,
        redlock.election("job").campaign() as lease,
    ):
        first = lease.valid_until
        assert await until_async(lambda: quorlock.now() > first)
        assert lease.held
        assert state_of(real(lease)).options.max_hold == FOR_EVER


async def test_after_a_loss_it_campaigns_again(face: Face, nodes: Servers) -> None:
    """A leader whose keys are gone ends its term, and leads again in a later one."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        election = redlock.election("job")
        terms: list[int] = []

        def lead(lease: quorlock.Lease) -> str:
            terms.append(lease.fence or 0)
            if len(terms) == 1:
                wipe(nodes, "job")
                assert lease.lost.wait(5)
            return "done"

        async def lead_there(lease: aio.Lease) -> str:
            terms.append(lease.fence or 0)
            if len(terms) == 1:
                wipe(nodes, "job")
                await asyncio.sleep(30)
            return "done"

        if face.name == "blocking":
            assert real(election).run(lead) == "done"
        else:
            assert await election.run(lead_there) == "done"
        assert len(terms) == 2
        assert terms[0] < terms[1]


@pytest.mark.parametrize("how", ["ensure", "group", "clean"])
async def test_what_a_lost_leader_does(face: Face, nodes: Servers, how: str) -> None:
    """LeaseLost, alone or in a group, and a return do not end `run`."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        terms: list[int] = []

        def lead(lease: Any) -> str:
            terms.append(lease.fence)
            if len(terms) == 2:
                return "done"
            # As if the machine had been suspended.
            state_of(lease)._valid_for = 0
            try:
                lease.ensure()
            except LeaseLost as error:
                if how == "group":
                    raise ExceptionGroup("of a TaskGroup", [error]) from None
                if how == "ensure":
                    raise
            return "not the leader's"

        assert await run(face, redlock.election("job"), lead) == "done"


async def test_another_error_of_the_leader_comes_out(face: Face, nodes: Servers) -> None:
    """Also LeaseLost of another lease, and that of a lease which the leader released."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        election = redlock.election("job")

        def fail(_: Any) -> None:
            raise ZeroDivisionError

        def lose_another(_: Any) -> None:
            raise LeaseLost("other", "expired")

        def lose_two(lease: Any) -> None:
            lost = LeaseLost("job", "expired", lease=lease)
            raise ExceptionGroup("both", [lost, ZeroDivisionError()])

        await raises(ZeroDivisionError, run(face, election, fail))
        await raises(LeaseLost, run(face, election, lose_another))
        await raises(ExceptionGroup, run(face, election, lose_two))
        assert await election.leader() is None


async def test_resigning_and_handing_over(face: Face, nodes: Servers) -> None:
    """The lease does both: the lead is free at once, or continues elsewhere in the same term."""
    async with face.redlock(nodes.urls, **SETTINGS) as here, face.redlock(nodes.urls) as there:
        async with here.election("job").campaign() as lease:
            assert await lease.release()
            assert await there.election("job").leader() is None
        async with here.election("job").campaign() as lease:
            term, ticket = lease.fence, await lease.hand_over()
        async with await there.adopt(ticket, renew=True, max_hold=math.inf) as adopted:
            assert adopted.fence == term
            assert await here.election("job").campaign().try_acquire() is None
            assert await here.election("job").leader() is not None


async def test_the_leader_is_named(face: Face, nodes: Servers) -> None:
    """The owner of its Redlock is its name; the digest changes with the term; no secret shows."""
    async with face.redlock(nodes.urls, **SETTINGS, owner="web-3") as redlock:
        election = redlock.election("job")
        assert await election.leader() is None
        holders: set[str] = set()
        for _ in range(2):
            async with election.campaign() as lease:
                async with face.redlock(nodes.urls, owner=None) as other:
                    leader = await other.election("job").leader()
                    campaign = other.election("job").campaign(timeout=0)
                    refused = await raises(AcquireTimeout, campaign.acquire())
                assert refused.holder == "web-3"
                assert lease.token[:12] not in str(refused)
                assert leader is not None
                assert leader.name == "web-3"
                assert 0 < (leader.ttl_left or 0) <= TTL
                assert lease.token[:12] not in repr(leader)
                holders.add(leader.holder)
        assert len(holders) == 2
        async with (
            face.redlock(nodes.urls, owner=None) as nameless,
            nameless.election("job").campaign(),
        ):
            leader = await election.leader()
            assert leader is not None
            assert leader.name is None


async def test_those_that_share_a_lock_of_the_name_do_not_lead(face: Face, nodes: Servers) -> None:
    """Readers keep candidates out, as a lock on the resource does, and are no leader."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        election = redlock.election("job")
        async with redlock.lock("job", shared=True):
            assert await election.leader() is None
            assert await election.campaign().try_acquire() is None


async def test_a_minority_decides_nothing(face: Face, mortal_nodes: Servers) -> None:
    """A quorum shows who leads: two nodes may show anything, and two that reply no leader."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        election = redlock.election("job")
        steal(nodes[:2], "job")
        assert await election.leader() is None
        for node in nodes[2:]:
            node.stop()
        await raises(QuorumUnreachable, election.leader())


class CutOff:
    """A leader that stops all nodes in its first term; `margin`: how early its loss is reported."""

    def __init__(self, nodes: Servers) -> None:
        self.nodes = nodes
        self.margin: float | None = None
        self.last = 0.0

    def begin(self) -> None:
        for node in self.nodes:
            node.stop()

    def look(self, lease: Any) -> None:
        self.last = max(self.last, lease.valid_until)  # an extension was perhaps under way

    def end(self) -> None:
        self.margin = self.last - quorlock.now()
        for node in self.nodes:
            node.cont()

    def lead(self, lease: quorlock.Lease) -> str:
        if self.margin is not None:
            return "led again"
        self.begin()
        while not lease.lost.wait(0.005):
            self.look(lease)
        self.end()
        return "too late"

    async def lead_there(self, lease: aio.Lease) -> str:
        if self.margin is not None:
            return "led again"
        self.begin()
        try:
            while True:
                self.look(lease)
                await asyncio.sleep(0.005)
        finally:  # cancelled
            self.end()


async def test_it_steps_down_while_all_nodes_hang(face: Face, mortal_nodes: Servers) -> None:
    """A loss is reported before the last `valid_until`, by the clock; then it leads again."""
    leader = CutOff(mortal_nodes)
    async with face.redlock(mortal_nodes.urls, **SETTINGS | {"outage_timeout": 0.5}) as redlock:
        election = redlock.election("job", ttl=1.2)
        if face.name == "blocking":
            assert real(election).run(leader.lead) == "led again"
        else:
            assert await election.run(leader.lead_there) == "led again"
    assert leader.margin is not None
    assert 0 < leader.margin <= 1.2


async def test_a_killed_leader_is_followed_after_its_ttl(face: Face, nodes: Servers) -> None:
    """And not before: its lease may still be trusted until then."""
    async with face.redlock(nodes.urls, node_timeout=0.25) as redlock:
        election = redlock.election("job", ttl=1.5)
        with Program(str(LEADER), json.dumps(nodes.urls)) as first:
            leader = await election.leader()
            assert leader is not None
            assert leader.name == "first"
            first.begin()
            assert first.process.stdout is not None
            term = int(first.process.stdout.readline())
            os.kill(first.process.pid, signal.SIGKILL)
            assert await election.campaign().try_acquire() is None
            killed = quorlock.now()
            async with election.campaign(timeout=20.0) as lease:
                assert quorlock.now() - killed < 1.5 + 5.0
                assert lease.fence is not None
                assert lease.fence > term


async def test_many_candidates(face: Face, nodes: Servers) -> None:
    """Never two leaders at once, and the terms rise in the order of leading."""
    async with face.redlock(nodes.urls, ttl=8.0) as redlock:
        election = redlock.election("job")
        terms: list[int] = []
        inside: list[int] = []

        async def candidate(number: int) -> None:
            for _ in range(4):
                async with election.campaign(timeout=30.0) as lease:
                    inside.append(number)
                    assert lease.fence is not None
                    terms.append(lease.fence)
                    await asyncio.sleep(0)
                    assert inside == [number]
                    inside.clear()

        assert await face.crowd(6, candidate) == [None] * 6
        assert terms == sorted(set(terms))
        assert len(terms) == 24


async def test_it_campaigns_through_an_outage(
    face: Face, mortal_nodes: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """No quorum: it is logged, and tried again until the nodes are back."""
    nodes = mortal_nodes
    settings = SETTINGS | {"outage_timeout": 0.1, "node_timeout": 0.05}
    async with face.redlock(nodes.urls, **settings) as redlock:
        assert await redlock.election("job").leader() is None  # connected
        for node in nodes[:3]:
            node.stop()
        running = await in_background(face, redlock.election("job"), lambda lease: lease.fence)
        assert await until_async(lambda: "no campaign for 'job'" in caplog.text, 10)
        assert not running.done()
        for node in nodes[:3]:
            node.cont()
        assert await asyncio.wait_for(running, 20) > 0
        assert {record.levelno for record in caplog.records} == {logging.ERROR}


async def test_an_outage_that_the_leader_meets_is_its_own(face: Face, nodes: Servers) -> None:
    """All that `lead` raises comes out."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:

        def lead(_: Any) -> None:
            raise QuorumUnreachable("another", (), 1, 0.0)

        error = await raises(QuorumUnreachable, run(face, redlock.election("job"), lead))
        assert error.resource == "another"


async def test_faulty_nodes_end_it(face: Face, nodes: Servers) -> None:
    """An error that needs an operator is raised, not repeated for ever."""
    for node in nodes:
        node.execute("RPUSH", "job", "x")
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        await raises(NodeError, run(face, redlock.election("job"), lambda _: None))


@pytest.mark.parametrize("unreachable", [False, True])
async def test_an_event_ends_a_campaign(
    face: Face, mortal_nodes: Servers, *, unreachable: bool
) -> None:
    """Also one that is repeated while the nodes hang; the campaign's own event as well."""
    stop = threading.Event()
    async with (
        face.redlock(mortal_nodes.urls, **SETTINGS | {"outage_timeout": 0.1}) as redlock,
        face.redlock(mortal_nodes.urls) as other,
    ):
        election = redlock.election("job", stop=stop)
        async with other.lock("job"):
            running = await in_background(face, election, lambda _: "led")
            if unreachable:
                for node in mortal_nodes:
                    node.stop()
            await asyncio.sleep(0.3)
            stop.set()
            await raises(AcquireStopped, asyncio.wait_for(running, 10))
            for node in mortal_nodes:
                if unreachable:
                    node.cont()
            own = threading.Event()
            own.set()
            await raises(AcquireStopped, redlock.election("job").campaign(stop=own).acquire())
        assert [leader async for leader in observed(face, election)] == []


async def test_observers_see_every_change(face: Face, nodes: Servers) -> None:
    """None, a leader, the next term of another; the same leader is reported once."""
    stop = threading.Event()
    async with (
        face.redlock(nodes.urls, **SETTINGS, owner="one") as one,
        face.redlock(nodes.urls, **SETTINGS, owner="two") as two,
        face.redlock(nodes.urls, **SETTINGS) as third,
    ):
        seen = observed(face, third.election("job", ttl=0.7, stop=stop))
        assert await anext(seen) is None
        lease = await one.election("job").campaign().acquire()
        leader = await anext(seen)
        assert leader is not None
        assert leader.name == "one"
        waiting: Any = asyncio.ensure_future(anext(seen))
        first = lease.valid_until
        assert await until_async(lambda: quorlock.now() > first)
        assert not waiting.done()
        async with two.lock("other"):  # another resource is no change
            await lease.release()
            next_lease = await two.election("job").campaign().acquire()
        leader = await asyncio.wait_for(waiting, 10)
        while leader is None:  # it looked between the two terms
            leader = await anext(seen)
        assert leader.name == "two"
        stop.set()
        assert [later async for later in seen] == []
        await next_lease.release()


async def test_an_observer_does_not_hurry(face: Face, nodes: Servers) -> None:
    """Nodes are asked when the lease could end, and a few times per ttl without a leader."""
    stop = threading.Event()
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        election = redlock.election("job", stop=stop)
        before = sum(map(scripts_asked, nodes))
        seen = observed(face, election)
        assert await anext(seen) is None
        waiting: Any = asyncio.ensure_future(anext(seen, ENDED))
        await asyncio.sleep(0.8)
        stop.set()
        assert await waiting == ENDED
        looks = (sum(map(scripts_asked, nodes)) - before) / len(nodes)
        assert 2 <= looks <= 0.8 / 0.05 + 3


async def test_observers_raise_what_they_cannot_see(face: Face, mortal_nodes: Servers) -> None:
    """A missing quorum is an error, which differs from "there is no leader"."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        seen = observed(face, redlock.election("job"))
        assert await anext(seen) is None
        for node in mortal_nodes[:3]:
            node.stop()
        await raises(QuorumUnreachable, anext(seen))


async def test_on_memory_nodes(face: Face) -> None:
    """Fake nodes are enough, also if a minority hangs."""
    with MemoryNodes(3) as memory:
        async with face.redlock(memory.urls, node_timeout=0.25) as redlock:
            memory[0].hang()
            async with redlock.election("job").campaign() as lease:
                assert lease.fence
                assert await redlock.election("job").leader() is not None
            assert await redlock.election("job").leader() is None
            memory.start()


async def test_what_cannot_work_is_refused(face: Face, nodes: Servers) -> None:
    """Each argument with its value and what to do, before anything is sent."""
    async with face.redlock(nodes.urls, restart_guard=None) as redlock:
        with pytest.raises(ConfigError) as refused:
            redlock.election("job")
        assert str(refused.value) == (
            "restart_guard=None: an election needs 'uptime' or 'marker': its terms are fences"
        )
    async with face.redlock(nodes.urls) as redlock:
        wrong: Any
        for wrong in ({"ttl": 0}, {"ttl": 60}, {"on_warning": 5}, {"stop": 5}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                redlock.election("job", **wrong)
        with pytest.raises(ConfigError, match="resource=5: give the resource's name"):
            redlock.election(5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout=-1"):
            redlock.election("job").campaign(timeout=-1)
        if face.name == "asyncio":
            with pytest.raises(ConfigError, match="on_lost='no'"):
                redlock.election("job", on_lost="no")  # type: ignore[arg-type]


async def test_what_leads_is_a_function_of_its_face(nodes: Servers) -> None:
    """A coroutine function would be called in vain by the blocking API."""

    async def lead_there(_: object) -> None: ...

    def lead(_: object) -> None: ...

    wrong: Any
    with quorlock.Redlock(nodes.urls) as redlock:
        for wrong in (lead_there, 5):
            with pytest.raises(ConfigError, match=r"lead=.*: give a function(;|$)"):
                redlock.election("job").run(wrong)
    async with aio.Redlock(nodes.urls) as there:
        for wrong in (lead, 5):
            with pytest.raises(ConfigError, match=r"lead=.*: give a coroutine function(;|$)"):
                await there.election("job").run(wrong)
    assert left_over(nodes) == {}


async def test_it_says_what_it_is(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        election: Any = real(redlock.election("job", ttl=5))
        assert repr(election) == "<Election 'job', ttl 5 s>"
        assert (election.resource, election.ttl) == ("job", 5.0)
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copy.copy(election)
        with pytest.raises(AttributeError, match="use `release` of the lease"):
            _ = election.resign
        assert isinstance(redlock.election("job"), Awaited) == (face.name == "blocking")
