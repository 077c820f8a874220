"""A user's program that names everything public, for test_types.py: checked, never run."""

# pyright: strict

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, assert_type

import quorlock
import quorlock.asyncio as aio
import quorlock.asyncio.fencing as aio_fencing
from quorlock import (
    AcquireError,
    AcquireStopped,
    AcquireTimeout,
    ConfigError,
    Health,
    HoldLimitReached,
    Inspection,
    LeaseLost,
    Node,
    NodeError,
    NodeQuarantine,
    NodeStatus,
    NodeView,
    NodeVote,
    QuorlockError,
    QuorumUnreachable,
    Reader,
    StaleFence,
    Ticket,
    Tls,
    VoteCode,
    errors,
    now,
)
from quorlock.fencing import (
    FENCED_CLAIM,
    FENCED_SET,
    FencedFile,
    FencedRedis,
    FencedRows,
    FenceTable,
    Statement,
    fenced,
)
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.plugin import Held
from quorlock.testing.servers import Servers

URLS = ["redis://a:6379", "redis://b:6379", "redis://c:6379"]


# --- blocking ---------------------------------------------------------------------------------


def warn(lease: quorlock.Lease) -> None:
    print(lease.validity)


def use_blocking() -> None:
    nodes = [Node("a", 6379, tls=Tls(verify="none")), Node.from_url("redis://b")]
    with quorlock.Redlock(nodes, ttl=timedelta(seconds=10), restart_guard=None) as redlock:
        lock = redlock.lock(
            "a",
            ttl=5,
            timeout=None,
            renew=True,
            fencing=True,
            on_warning=warn,
            stop=threading.Event(),
        )
        assert_type(lock, quorlock.Lock)
        with lock as lease:
            assert_type(lease, quorlock.Lease)
            lease.ensure(margin=timedelta(seconds=1))
            lease.extend(20.0)
        assert_type(lease.lost, threading.Event)
        assert_type(lease.fence, int | None)
        assert_type(lease.votes, tuple[NodeVote, ...])
        found = lock.try_acquire()
        assert_type(found, quorlock.Lease | None)
        if found:
            with found as entered:
                assert_type(entered, quorlock.Lease)
            assert_type(found.release(), bool)
        ticket = lock.acquire(timeout=0, stop=None).hand_over()
        assert_type(ticket, Ticket)
        assert_type(redlock.adopt(Ticket.from_json(ticket.to_json())), quorlock.Lease)
        report = redlock.inspect("a")
        assert_type(report, Inspection)
        assert_type(report.verdict, Literal["held", "free", "passing", "split", "unreachable"])
        views: tuple[NodeView, ...] = report.nodes
        readers: tuple[Reader, ...] = report.readers
        assert_type(redlock.lock("a", shared=True).shared, bool)
        statuses: tuple[NodeStatus, ...] = redlock.nodes
        health: Health = redlock.check()
        assert_type(health.ready and redlock.ready, bool)
        assert_type(redlock.quorum, int)
        print(views, readers, statuses, now(), lock.locked(), redlock.release("a", lease.token))


class Service(quorlock.Redlock):
    pass


class AioService(aio.Redlock):
    pass


def use_subclass() -> None:
    with Service(URLS) as service:
        assert_type(service, Service)


async def use_aio_subclass() -> None:
    async with AioService(URLS) as service:
        assert_type(service, AioService)


def use_lists(redlock: quorlock.Redlock, names: list[str], token: str) -> None:
    def both(source: str, target: str) -> list[str]:
        return [source, target]

    print(redlock.extend(names, token), redlock.release(names, token), redlock.lock(both))


def use_election(redlock: quorlock.Redlock) -> None:
    election = redlock.election("a", ttl=5, on_warning=warn, stop=threading.Event())
    assert_type(election, quorlock.Election)

    def lead(lease: quorlock.Lease) -> int | None:
        return lease.fence

    assert_type(election.run(lead), int | None)
    assert_type(election.campaign(timeout=5), quorlock.Lock)
    assert_type(election.leader(), quorlock.Leader | None)
    for leader in election.observe():
        assert_type(leader, quorlock.Leader | None)


def use_once(redlock: quorlock.Redlock) -> None:
    once = redlock.once("a", every=timedelta(hours=1), ttl=5, renew=True, on_warning=warn)
    assert_type(once, quorlock.Once)

    def work(lease: quorlock.Lease) -> str:
        lease.keep(3600)
        return "done"

    assert_type(once.run(work), str | None)
    if lease := once.try_acquire():
        assert_type(lease, quorlock.Lease)

    @once
    def send(number: int) -> int:
        return number

    assert_type(send(5), int | None)


def use_rlock(redlock: quorlock.Redlock) -> None:
    lock = redlock.rlock("a", ttl=5, renew=True, on_warning=warn, stop=threading.Event())
    assert_type(lock, quorlock.RLock)
    with lock as lease:
        assert_type(lease, quorlock.Lease)
    assert_type(lock.try_acquire(), quorlock.Lease | None)
    assert_type(lock.release(), bool)

    @lock
    def twice(number: int) -> int:
        return 2 * number

    assert_type(twice(1), int)


def use_semaphores(redlock: quorlock.Redlock) -> None:
    semaphore = redlock.semaphore("pool", 3, ttl=5, timeout=0)
    assert_type(semaphore, quorlock.Semaphore)
    assert_type(semaphore.permits, int)
    with semaphore as lease, redlock.any_of("gpu0", "gpu1") as other:
        assert_type(lease.permit, int | None)
        assert_type(other, quorlock.Lease)
    assert_type(semaphore.try_acquire(), quorlock.Lease | None)

    @semaphore
    def work(tons: int) -> str:
        return f"{tons}"

    assert_type(work(3), str)


def by_number(number: int, **_: object) -> str:
    return f"invoice:{number}"


def use_decorator(redlock: quorlock.Redlock) -> None:
    @redlock.lock("nightly")
    def nightly(tons: int, *, fast: bool = False) -> str:
        return f"{tons} {fast}"

    assert_type(nightly(3, fast=True), str)
    as_written: Callable[[int], str] = nightly
    decorator = redlock.lock(by_number, ttl=5)
    assert_type(decorator, quorlock.LockDecorator)

    @decorator
    def charge(number: int, *, euros: float) -> bool:
        return number > euros

    @redlock.lock(lambda text: f"{text}")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    def shout(text: str) -> str:
        return text.upper()

    assert_type(charge(42, euros=1.0), bool)
    assert_type(shout("a"), str)
    charge("42")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    print(as_written)


# --- asyncio ----------------------------------------------------------------------------------


async def use_asyncio_election(redlock: aio.Redlock) -> None:
    election = redlock.election("a", on_lost="flag")
    assert_type(election, aio.Election)

    async def lead(lease: aio.Lease) -> int | None:
        return lease.fence

    assert_type(await election.run(lead), int | None)
    assert_type(election.campaign(timeout=5), aio.Lock)
    assert_type(await election.leader(), quorlock.Leader | None)
    async for leader in election.observe():
        assert_type(leader, aio.Leader | None)


async def use_asyncio_once(redlock: aio.Redlock) -> None:
    once = redlock.once("a", every=3600, on_lost="flag")
    assert_type(once, aio.Once)

    async def work(lease: aio.Lease) -> str:
        await lease.keep(timedelta(hours=1))
        return "done"

    assert_type(await once.run(work), str | None)
    assert_type(await once.try_acquire(), aio.Lease | None)

    @once
    async def send(number: int) -> int:
        return number

    assert_type(await send(5), int | None)


async def use_asyncio_rlock(redlock: aio.Redlock) -> None:
    lock = redlock.rlock("a", timeout=0, on_lost="flag")
    assert_type(lock, aio.RLock)
    async with lock as lease:
        assert_type(lease, aio.Lease)
    assert_type(await lock.try_acquire(), aio.Lease | None)
    assert_type(await lock.release(), bool)

    @lock
    async def twice(number: int) -> int:
        return 2 * number

    assert_type(await twice(1), int)


async def use_asyncio() -> None:
    async with aio.Redlock(URLS) as redlock:
        lock = redlock.lock("a", on_lost="flag")
        assert_type(lock, aio.Lock)
        async with lock as lease:
            assert_type(lease, aio.Lease)
            await lease.extend(20.0)
        assert_type(lease.lost, asyncio.Event)
        if found := await lock.try_acquire():
            async with found as entered:
                assert_type(entered, aio.Lease)
            assert_type(found, aio.Lease)
            assert_type(await found.release(), bool)
        assert_type(await redlock.adopt(Ticket("a", "token", 10.0)), aio.Lease)
        assert_type(await redlock.inspect("a"), Inspection)
        assert_type(await lock.locked(), bool)
        assert_type(await redlock.check(), Health)
        semaphore = redlock.semaphore("pool", 3, on_lost="flag")
        assert_type(semaphore, aio.Semaphore)
        async with semaphore as permit, redlock.any_of("gpu0", "gpu1"):
            assert_type(permit.permit, int | None)
        print(redlock.nodes)


async def use_async_decorator(redlock: aio.Redlock) -> None:
    @redlock.lock("nightly")
    async def nightly(tons: int, *, fast: bool = False) -> str:
        return f"{tons} {fast}"

    assert_type(await nightly(3, fast=True), str)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(nightly(1))
        print(asyncio.create_task(nightly(2)))
    assert_type(task.result(), str)
    as_written: Callable[[int], Coroutine[Any, Any, str]] = nightly
    decorator = redlock.lock(by_number, on_lost="flag")
    assert_type(decorator, aio.LockDecorator)

    @decorator
    async def charge(number: int, *, euros: float) -> bool:
        return number > euros

    assert_type(await charge(42, euros=1.0), bool)
    print(as_written)


def run_decorated(redlock: aio.Redlock) -> None:
    @redlock.lock("nightly")
    async def nightly() -> int:
        return 1

    assert_type(asyncio.run(nightly()), int)


async def mix_up(blocking: quorlock.Lock, asynchronous: aio.Lock) -> None:
    """Use each as the other; checkers see it before the program runs."""
    async with blocking:  # type: ignore[attr-defined]
        pass
    with asynchronous:  # type: ignore[attr-defined]
        pass
    blocking.release()  # type: ignore[attr-defined]


# --- errors -----------------------------------------------------------------------------------


def explain(error: QuorlockError) -> str:  # noqa: PLR0911
    match error:
        case AcquireTimeout():
            return f"retry after {error.holder_ttl}"
        case QuorumUnreachable() | AcquireStopped() | NodeError():
            return voted(error.votes)
        case AcquireError():
            return error.resource
        case LeaseLost():
            return error.reason
        case HoldLimitReached():
            return f"{error.max_hold:g}"
        case StaleFence():
            return f"{error.fence} after {error.seen}"
        case ConfigError():
            return error.fix
        case _:
            assert isinstance(error, errors.QuorlockError)
            return str(error)


def voted(votes: Sequence[NodeVote]) -> str:
    words: list[Literal["granted", "refused", "unknown"]] = [vote.vote for vote in votes]
    return ", ".join(words) if all(vote.code is VoteCode.HELD for vote in votes) else ""


def votes_in(votes: Sequence[NodeVote]) -> float:
    kept_out: list[NodeQuarantine] = [vote.quarantine for vote in votes if vote.quarantine]
    return max((quarantine.votes_in for quarantine in kept_out), default=0.0)


def misspell(error: LeaseLost, report: Inspection, vote: NodeVote) -> bool:
    """Compare with words that do not exist; an ignored error that is none would be reported."""
    wrong = [error.reason == "expird"]  # type: ignore[comparison-overlap]
    wrong += [report.verdict == "hold"]  # type: ignore[comparison-overlap]
    wrong += [vote.vote == "grant"]  # type: ignore[comparison-overlap]
    return any(wrong)


# --- fencing, testing -------------------------------------------------------------------------


class Client:
    def eval(self, script: str, numkeys: int, *keys_and_args: object) -> object:
        raise NotImplementedError


def fence_blocking(connection: object, lease: quorlock.Lease) -> None:
    table, rows = FenceTable("fences"), FencedRows("invoices")
    table.claim(connection, lease.resource, lease.fence)
    rows.upsert(connection, {"id": 1}, {"paid": True}, lease.fence)
    assert_type(rows.update(connection, {"id": 1}, {"paid": True}, lease.fence), bool)
    statement: Statement = rows.update_statement({"id": 1}, {"paid": True}, 7)
    FencedFile(Path("report")).write(b"done", lease.fence)
    redis = FencedRedis(Client(), "fence")
    redis.set("key", "value", lease.fence)
    print(statement, FENCED_CLAIM, FENCED_SET, fenced("return 1"))


async def fence_asyncio(connection: object, client: Any, fence: int | None) -> None:
    await aio_fencing.FenceTable("fences").claim(connection, "a", fence)
    await aio_fencing.FencedRows("invoices").upsert(connection, {"id": 1}, {"paid": True}, fence)
    await aio_fencing.FencedFile("report").write(b"done", fence)
    await aio_fencing.FencedRedis(client, "fence").set("key", "value", fence)


def test_code(quorlock_nodes: MemoryNodes, quorlock_held: Held, quorlock_servers: Servers) -> None:
    with quorlock_held("a", ttl=1.0) as lease:
        assert_type(lease, quorlock.Lease)
    quorlock_nodes[0].stop()
    print(quorlock_servers.urls)
