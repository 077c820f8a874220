"""The effects of waiters in the asyncio driver: places and their calls, news, and their end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._core.claims import Keys
from quorlock._core.commands import Inspect
from quorlock._core.effects import CALL, Enlist, Receive, Send, Sleep, Timeout, Wait
from quorlock._core.member import Member, Promoted
from quorlock._core.places import channel_of
from quorlock._core.request import AcquireRequest
from quorlock._core.rounds import NodeReply
from quorlock._core.tally import Tally
from quorlock._core.time import FOR_EVER, NS_PER_MS, NS_PER_S
from quorlock._drivers.aio.flow_state import WAITING
from quorlock._drivers.clock import now
from quorlock.asyncio import Redlock
from quorlock.errors import QuorlockError
from tests.harness.support.every_reply import EVERY
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Flow
    from quorlock._core.request import StopEvent
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.driver import Driver
    from quorlock.testing.servers import Server, Servers

pytestmark = pytest.mark.usefixtures("checked_transitions")


class Waiter:
    """A flow that has a place and waits; it records every event until its end is requested."""

    def __init__(self, until: Instant = FOR_EVER, stop: StopEvent | None = None) -> None:
        self.member = Member(AcquireRequest("x", Keys(b"x"), 1000, now(), None))
        self.until = until
        self.stop = stop
        self.places: list[bytes] = []
        self.events: list[Any] = []

    def flow(self, is_last: Callable[[Any], bool] = lambda _: True) -> Flow[Any]:
        """Enlist, and wait until the last event."""
        place = yield Enlist()
        self.places.append(place)
        while True:
            self.events.append((yield Wait(self.until, self.stop, self.member, EVERY)))
            if is_last(self.events[-1]):
                return self.events[-1]

    async def has_place(self) -> bytes:
        """Return the place once the flow has it."""
        await until_async(lambda: bool(self.places))
        return self.places[0]


def call(node: Server, place: bytes) -> int:
    """Have a node call a place, as its scripts do; return how many connections get it."""
    heard = node.execute("PUBLISH", channel_of(place[:16]), place + b" x")
    assert isinstance(heard, int)
    return heard


async def waits(driver: Driver) -> None:
    """Return when all flows wait."""
    tasks = driver.loop_driver().tasks
    await until_async(lambda: tasks and all(task.state is WAITING for task in tasks))


def run_with(nodes: Servers, scene: Callable[[Driver], Any], **options: Any) -> None:
    """Run the scene with a Redlock on the nodes."""

    async def main() -> None:
        async with Redlock(nodes.urls, **options) as redlock:
            await scene(redlock._session.driver)

    asyncio.run(main())


def test_a_call_reaches_the_flow_that_has_the_place(nodes: Servers) -> None:
    """A call is a reply to the round CALL of the node that called; other flows get nothing."""

    async def scene(driver: Driver) -> None:
        waiters = [Waiter(), Waiter()]
        tasks = [asyncio.create_task(driver.run(waiter.flow())) for waiter in waiters]
        first, second = [await waiter.has_place() for waiter in waiters]
        assert first[:16] == second[:16]
        assert first != second
        await waits(driver)
        assert call(nodes[3], second) == 1
        reply = await tasks[1]
        assert isinstance(reply, NodeReply)
        assert (reply.round, reply.node) == (CALL, 3)
        assert not tasks[0].done()
        call(nodes[0], first)
        assert (await tasks[0]).node == 0

    run_with(nodes, scene)


def test_calls_while_it_does_not_wait_are_kept(nodes: Servers) -> None:
    """A tally counts those that come with the replies to a round; `Wait` returns the others."""
    seen: list[NodeReply] = []

    class CallTally(Tally):
        def count(self, reply: NodeReply) -> Any:
            seen.append(reply)
            return super().count(reply)

    def flow() -> Flow[list[Any]]:
        place = yield Enlist()
        for node in nodes[:2]:
            call(node, place)
        sent = yield Send(Inspect(b"x"))
        event = yield Receive(sent.sent_at + NS_PER_S, CallTally(5, sent.round))
        return [event, (yield Wait(FOR_EVER, None, Waiter().member, EVERY))]

    async def scene(driver: Driver) -> None:
        await driver.run(flow())
        assert {reply.node for reply in seen if reply.round == CALL} <= {0, 1}

    run_with(nodes, scene)


def test_replies_from_before_the_wait_are_kept(nodes: Servers) -> None:
    """The flow slept when they came."""
    member = Waiter().member

    def flow() -> Flow[Any]:
        yield Send(Inspect(b"x"))
        yield Sleep(now() + 20 * NS_PER_MS)
        return (yield Wait(FOR_EVER, None, member, EVERY))

    async def scene(driver: Driver) -> None:
        async with asyncio.timeout(5):
            reply = await driver.run(flow())
        assert isinstance(reply, NodeReply)

    run_with(nodes, scene)


def test_two_places_of_one_flow(nodes: Servers) -> None:
    """The second one replaces the first, whose calls get no reply from the flow any more."""

    def flow(places: list[bytes]) -> Flow[list[Any]]:
        places += [(yield Enlist()), (yield Enlist())]
        replies: list[Any] = []
        while len(replies) < 2:
            replies.append((yield Wait(FOR_EVER, None, Waiter().member, EVERY)))
        return replies

    async def scene(driver: Driver) -> None:
        places: list[bytes] = []
        task = asyncio.create_task(driver.run(flow(places)))
        await waits(driver)
        for node, place in zip(nodes, (places[0], places[1], places[1]), strict=False):
            call(node, place)
        assert {reply.node for reply in await task} == {1, 2}
        assert not driver.loop_driver().places._receivers

    run_with(nodes, scene)


def test_news_end_the_wait_in_a_step_of_its_own(nodes: Servers) -> None:
    """A flow that gives news never runs the other one; several news are all read, in order."""

    async def scene(driver: Driver) -> None:
        waiter = Waiter()
        flow = waiter.flow(lambda _: len(waiter.events) == 3)
        task = asyncio.create_task(driver.run(flow))
        await waits(driver)
        for _ in range(2):
            waiter.member.promote()
        assert waiter.events == []
        await until_async(lambda: len(waiter.events) == 2)
        assert all(isinstance(event, Promoted) for event in waiter.events)
        waiter.member.promote()
        await task
        waiter.member.promote()  # too late: nothing happens
        await asyncio.sleep(0)

    run_with(nodes, scene)


def test_the_wait_ends_at_its_deadline_and_by_stop(nodes: Servers) -> None:
    """The result is a Timeout; with `stop` after its next look at it."""

    async def scene(driver: Driver) -> None:
        until = now() + 20 * NS_PER_MS
        event = await driver.run(Waiter(until).flow())
        assert isinstance(event, Timeout)
        assert event.at >= until
        stop = asyncio.Event()
        task = asyncio.create_task(driver.run(Waiter(FOR_EVER, stop).flow()))
        await waits(driver)
        stop.set()
        assert isinstance(await task, Timeout)

    run_with(nodes, scene)


def test_a_stray_call_is_answered_at_once(nodes: Servers) -> None:
    """The flow is over: the node frees what it has reserved for the place."""

    async def scene(driver: Driver) -> None:
        waiter = Waiter()
        task = asyncio.create_task(driver.run(waiter.flow()))
        place = await waiter.has_place()
        task.cancel()
        nodes[1].execute("SET", "x", b"quorlock:next:" + place, "PX", 60_000)
        await until_async(task.done)
        call(nodes[1], place)
        assert await until_async(lambda: not nodes[1].execute("EXISTS", "x"))

    run_with(nodes, scene)


def test_connections_that_come_later_hear_calls(nodes: Servers) -> None:
    """A node closes its connections: the next one subscribes as long as a flow waits."""

    async def scene(driver: Driver) -> None:
        waiter = Waiter()
        task = asyncio.create_task(driver.run(waiter.flow()))
        place = await waiter.has_place()
        await waits(driver)
        nodes[2].execute("CLIENT", "KILL", "TYPE", "pubsub")
        assert await until_async(lambda: call(nodes[2], place) == 1)
        assert (await task).node == 2

    run_with(nodes, scene)


def test_too_few_nodes_that_can_call(nodes: Servers) -> None:
    """Three of five cannot be reached: there is no place. With three of five there is one."""

    async def scene(driver: Driver) -> None:
        waiter = Waiter()
        task = asyncio.create_task(driver.run(waiter.flow()))
        assert await waiter.has_place() == b""
        waiter.member.promote()
        await task

    for node in nodes[:3]:
        node.kill()
    try:
        run_with(nodes, scene, connect_timeout=0.1)
    finally:
        nodes[0].restart()

    async def enough(driver: Driver) -> None:
        waiter = Waiter(now())
        await driver.run(waiter.flow())
        assert waiter.places != [b""]

    run_with(nodes, enough)


def test_close_ends_the_wait(nodes: Servers) -> None:
    """The caller gets an error, also one that waits in no queue of a node."""

    def bare(member: Member) -> Flow[Any]:
        return (yield Wait(FOR_EVER, None, member))

    async def scene(driver: Driver) -> None:
        waiter = Waiter()
        tasks = [asyncio.create_task(driver.run(waiter.flow()))]
        tasks.append(asyncio.create_task(driver.run(bare(Waiter().member))))
        await waiter.has_place()
        await waits(driver)
        await driver.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, QuorlockError)
        assert not driver._loop_drivers

    run_with(nodes, scene)


def test_the_next_receive_has_its_own_deadline(nodes: Servers) -> None:
    """Also if it is at the instant at which the wait would have ended."""

    async def scene(driver: Driver) -> None:
        until = now() + 30 * NS_PER_MS
        member = Waiter().member
        member.promote()

        def flow() -> Flow[Any]:
            yield Wait(until, None, member)
            yield Wait(until - 10 * NS_PER_MS, None, member)
            return (yield Receive(until))

        async with asyncio.timeout(5):
            assert isinstance(await driver.run(flow()), Timeout)

    run_with(nodes, scene)
