"""The work of a worker with a lock: one method for each kind of turn.

Documented errors of the library (held by another, nodes unavailable, lease lost) are recorded and
work continues; all others are recorded as defects.
"""

from __future__ import annotations

import asyncio
import os
import random
import traceback
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from quorlock import (
    AcquireError,
    AcquireTimeout,
    LeaseLost,
    NodeError,
    QuorlockError,
    Ticket,
    VoteCode,
)
from tests.harness.traffic import child
from tests.harness.traffic.faces import Face, call, drive
from tests.harness.traffic.records import Record, instant
from tests.harness.traffic.settings import Settings
from tests.harness.traffic.stay import Stalls, Stay
from tests.harness.traffic.strikes import NO_THREAD, Struck, is_in_the_library

EXPECTED = (AcquireError, NodeError, LeaseLost)


class Worker:
    """One thread or task: its choices, its turns."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        face: Face,
        redlock: Any,
        record: Record,
        stalls: Stalls,
    ) -> None:
        self._settings = settings
        self._face = face
        self._redlock = redlock
        self._record = record
        self._stalls = stalls
        self._who = f"{face.name} {number}"
        self._entropy = random.Random(f"{settings.seed}/{number}")
        self._tickets = Path(settings.folder, "tickets")
        self._kind = ""
        self._own: Any = None  # a separate Redlock, while it has one
        self._latest: weakref.ref[Stay] | None = None  # its lease must be garbage after its turn
        self._kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "hold": self._hold,
            "block": self._block,
            "try": self._try,
            "long": self._long,
            "expire": self._expire,
            "renew": self._renew,
            "forget": self._forget,
            "hand over": self._hand_over,
            "adopt": self._adopt,
            "cancel": self._cancel,
            "token": self._by_token,
            "look": self._inspect,
            "fork": self._fork,
            "close": self._close,
        }

    async def work(self, over: Callable[[], bool]) -> None:
        """Turn after turn, until it is over."""
        kinds, weights = zip(*self._settings.kinds.items(), strict=True)
        while not over():
            kind = self._entropy.choices(kinds, weights)[0]
            self._kind = kind
            try:
                await self._kinds[kind]()
            except (*EXPECTED, Struck):
                self._drop()  # the error was noted where it came out
            except BaseException as error:
                self._drop()
                if not _is_for_want_of_threads(error):
                    self.defect(f"{kind}: {''.join(traceback.format_exception(error))}")
                if not isinstance(error, (Exception, asyncio.CancelledError)):
                    raise
            self._check_cancellations(kind)
            await self._face.sleep(self._entropy.uniform(0, self._settings.pause))

    def _drop(self) -> None:
        """An error has ended a turn: with it goes the lease."""
        stay = self._latest() if self._latest is not None else None
        if stay is not None:
            stay.end("dropped")

    # --- a signal handler --------------------------------------------------------------------

    def struck(self, frame: FrameType | None) -> None:
        """Raise, or call the library from the handler, in the middle of a worker's call."""
        if self._face.cancels or not is_in_the_library(frame):
            return
        act = self._entropy.choice(("raise", "release", "another", "close"))
        if act == "raise":
            raise Struck
        with suppress(*EXPECTED):
            stay = self._latest() if self._latest is not None else None
            if act == "close" and self._own is not None:
                if stay is not None:
                    stay.end("closed")
                own, self._own = self._own, None
                drive(self.ask("close", self._settings.closing(), own.close))
            elif act == "release" and stay is not None:
                drive(self._release(stay))
            else:
                drive(self._another())

    async def _another(self) -> None:
        """Acquire a lock without competition, while another call of this thread is pending."""
        lock = self._redlock.lock(f"{os.getpid()} alone")
        lease = await self.ask("try", self._round(2), lock.try_acquire)
        if lease is not None:
            await self.ask("release", self._round(), lease.release)

    def defect(self, text: str) -> None:
        """Something that never should be."""
        self._record.note("defect", who=self._who, text=text)

    async def ask(
        self, verb: str, allowed: float | None, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """One call into the library; noted before and after. allowed: seconds, None: for ever."""
        number, stalled = self._record.number(), self._stalls.total
        due = None if allowed is None else instant() + round(allowed * 1e9)
        slack = round(self._settings.slack * 1e9)
        self._record.note("asks", call=number, who=self._who, verb=verb, due=due, slack=slack)
        outcome: dict[str, Any] = {"outcome": "interrupted"}
        try:
            result = await call(function, *arguments)
            outcome = {"outcome": _word(result)}
            return result
        except EXPECTED as error:
            outcome = _facts_of(error)
            raise
        except BaseException as error:
            outcome = {"outcome": type(error).__name__}
            raise
        finally:
            self._record.note(
                "returned", call=number, stalled=self._stalls.total - stalled, **outcome
            )

    # --- kinds of turns ----------------------------------------------------------------------

    async def _hold(self) -> None:
        stay = await self._acquire()
        await self._section(stay)
        await self._release(stay)

    async def _block(self) -> None:
        """`with` and `async with`: of the latter the body is cancelled when the lease is lost."""
        timeout = self._timeout()
        block = self._face.entered(self._lock(timeout))
        lease = await self.ask("acquire", self._allowed(timeout), block.__aenter__)
        stay = self._stay(lease)
        raised: tuple[Any, ...] = (None, None, None)
        try:
            await self._section(stay)
        except BaseException as error:
            raised = (type(error), error, error.__traceback__)
            raise
        finally:
            stay.end("lost" if any(raised) else "released")
            stay.give_up()
            await self.ask("leave", self._round(), block.__aexit__, *raised)

    async def _try(self) -> None:
        lease = await self.ask("try", self._round(2), self._lock(None).try_acquire)
        if lease is not None:
            stay = self._stay(lease)
            await self._section(stay)
            await self._release(stay)

    async def _long(self) -> None:
        """Longer than its ttl, by extending."""
        stay = await self._acquire()
        lease = stay.lease
        end = instant() + round(1.2 * lease.ttl * 1e9)
        while instant() < end and stay.look():
            await self._face.sleep(lease.ttl / 4)
            ttl = self._entropy.choice((None, *self._settings.ttls))
            try:
                await self.ask("extend", max(0.0, lease.validity), lease.extend, ttl)
            except (LeaseLost, NodeError) as error:
                stay.end("lost" if isinstance(error, LeaseLost) else "refused")
                if lease.held and isinstance(error, LeaseLost):
                    self.defect("held after its extend raised LeaseLost")
                break
            stay.extended()
        await self._release(stay)

    async def _expire(self) -> None:
        """Let it run out."""
        stay = await self._acquire(min(self._settings.ttls))
        lease = stay.lease
        lost = lease.lost
        while stay.look():
            await self._face.sleep(max(0.0, lease.validity) + 0.001)
        stay.end("expired")
        stalled = self._stalls.total
        if stay.given_up:
            return  # by a signal handler
        if not await self._face.is_set_within(lost, self._settings.slack + 1.0):
            stood = (self._stalls.total - stalled) / 1e9
            self.defect(f"`lost` is not set after its end (the process stood still {stood:.3f} s)")
        with suppress(LeaseLost):
            lease.ensure()
            self.defect("ensure() raised nothing after the end")
        await self._release(stay)

    async def _renew(self) -> None:
        """Hold it until renewal loses it, and rely on the last `valid_until` to the end."""
        timeout = self._timeout()
        ttl = self._entropy.choice(self._settings.ttls)
        max_hold = ttl * self._entropy.choice((1, 1, 1.5, 3))
        options = {"ttl": ttl, "timeout": timeout, "renew": True, "max_hold": max_hold}
        lock = self._redlock.lock(self._resource(), **options)
        stay = self._stay(await self.ask("acquire", self._allowed(timeout), lock.acquire))
        lost = stay.lease.lost
        while stay.look():
            await self._face.is_set_within(lost, 0.02)
        stay.end("lost")
        await self._face.sleep(0.15)  # longer than the notice of a loss
        await self._release(stay)

    async def _forget(self) -> None:
        """Drop the lease: it is released when it is garbage."""
        stay = await self._acquire()
        await self._section(stay)
        stay.end("forgotten")

    async def _hand_over(self) -> None:
        stay = await self._acquire()
        await self._section(stay)
        stay.end("handed over")
        ticket = await self.ask("hand over", self._round(0), stay.lease.hand_over)
        if stay.lease.held:
            self.defect("held after it was handed over")
        # Whole or not at all: under its final name when it is written.
        path = self._tickets / f"{os.getpid()}-{self._record.number()}"
        path.with_suffix(".new").write_text(ticket.to_json())
        path.with_suffix(".new").rename(path.with_suffix(".ticket"))

    async def _adopt(self) -> None:
        ticket = self._claim_ticket()
        if ticket is None:
            await self._hold()
            return
        patience = self._settings.max_ttl + self._round(2)
        lease = await self.ask("adopt", patience, self._redlock.adopt, ticket)
        stay = self._stay(lease)
        await self._section(stay)
        await self._release(stay)

    def _claim_ticket(self) -> Ticket | None:
        """Take a ticket of any process, exclusively."""
        tickets = list(self._tickets.glob("*.ticket"))
        if not tickets:
            return None
        path = self._entropy.choice(tickets)
        mine = path.with_suffix(f".{os.getpid()}")
        try:
            path.rename(mine)
        except FileNotFoundError:
            return None  # another process was faster
        text = mine.read_text()
        mine.unlink()
        return Ticket.from_json(text)

    async def _cancel(self) -> None:
        """A caller who changes its mind, in the middle of any of the three verbs."""
        if not self._face.cancels:
            await self._hold()
            return
        if self._entropy.random() < 0.3:
            await self._cut_short(self._block())
            return
        timeout = self._timeout()
        first = self.ask("acquire", self._allowed(timeout), self._lock(timeout).acquire)
        lease = await self._cut_short(first)
        if lease is None:
            return
        stay = self._stay(lease)
        await self._section(stay)
        if self._entropy.random() < 0.5:
            with suppress(LeaseLost, NodeError):
                await self._cut_short(self.ask("extend", lease.ttl, lease.extend))
            if lease.held:
                stay.extended()
        stay.end("released")
        await self._cut_short(self.ask("release", self._round(), lease.release))

    async def _cut_short(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.create_task(work)
        # Some rounds take a fraction of a millisecond, some the whole timeout.
        await asyncio.sleep(self._entropy.choice((0.0, 0.0005, 0.002, 0.02, 0.2)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    async def _by_token(self) -> None:
        stay = await self._acquire()
        await self._section(stay)
        lease = stay.lease
        arguments = (lease.resource, lease.token)
        try:
            await self.ask("extend by token", self._round(), self._redlock.extend, *arguments)
        finally:
            stay.end("released")
            await self.ask("release by token", self._round(), self._redlock.release, *arguments)
        if lease.held:
            self.defect("held after it was released by token")

    async def _inspect(self) -> None:
        resource = self._resource()
        await self.ask("inspect", self._round(), self._redlock.inspect, resource)
        await self.ask("locked", self._round(), self._redlock.lock(resource).locked)
        if len(self._redlock.nodes) != len(self._settings.urls):
            self.defect(f"nodes: {self._redlock.nodes}")

    async def _fork(self) -> None:
        """A child is born while the lock is held: it holds nothing, and gives nothing back."""
        stay = await self._acquire()
        bear = partial(child.bear, blocks=not self._face.cancels)
        code = await self.ask("fork", child.SECONDS, bear, stay.lease, self._redlock)
        # A child may find the lock free if the parent's lease has expired.
        if code and (code != child.ACQUIRED or stay.lease.held):
            self.defect(f"forked child: {child.CRIMES.get(code, f'ended with {code}')}")
        await self._section(stay)
        await self._release(stay)

    async def _close(self) -> None:
        """Close a separate Redlock while it holds a lock, which is released."""
        redlock = self._own = self._face.redlock(self._settings.urls, **self._settings.policy())
        try:
            lock = redlock.lock(self._resource(), timeout=0.3)
            lease = await self.ask("acquire", self._allowed(0.3), lock.acquire)
            stay = self._stay(lease)
            await self._section(stay)
            stay.end("closed")
        except QuorlockError as error:
            if isinstance(error, EXPECTED) or self._own is not None:
                raise
            return  # a signal handler has closed it
        finally:
            self._own = None
            await self.ask("close", self._settings.closing(), redlock.close)
        if lease.held:
            self.defect("held after its Redlock was closed")

    # --- what they share ---------------------------------------------------------------------

    def _stay(self, lease: Any) -> Stay:
        stay = Stay(self._record, self._settings.folder, lease, self._kind)
        self._latest = weakref.ref(stay)
        return stay

    async def _acquire(self, ttl: float | None = None) -> Stay:
        timeout = self._timeout()
        lock = self._lock(timeout, ttl)
        lease = await self.ask("acquire", self._allowed(timeout), lock.acquire)
        return self._stay(lease)

    async def _section(self, stay: Stay) -> None:
        """The critical section: a few looks with pauses between."""
        try:
            for _ in range(2):
                if not stay.look():
                    stay.end("lost")
                    return
                await self._face.sleep(self._entropy.uniform(0, self._settings.section / 2))
            if not stay.look():
                stay.end("lost")
        except BaseException:
            stay.end("lost")
            raise

    async def _release(self, stay: Stay) -> None:
        stay.end("released")
        await self.ask("release", self._round(), stay.lease.release)
        if stay.lease.held:
            self.defect("held after it was released")

    def _lock(self, timeout: float | None, ttl: float | None = None) -> Any:
        ttl = ttl or self._entropy.choice(self._settings.ttls)
        return self._redlock.lock(self._resource(), ttl=ttl, timeout=timeout)

    def _resource(self) -> str:
        return self._entropy.choice(self._settings.resources)

    def _timeout(self) -> float | None:
        return self._entropy.choice(self._settings.timeouts)

    def _allowed(self, timeout: float | None) -> float | None:
        """An acquire ends then: its time, and one last attempt of two rounds."""
        return None if timeout is None else timeout + self._round(2)

    def _round(self, rounds: int = 1) -> float:
        """Return the duration of this many rounds, the first of which may have to connect."""
        settings = self._settings
        return settings.connect_timeout + (rounds + 1) * settings.node_timeout

    def _check_cancellations(self, kind: str) -> None:
        if self._face.cancels:
            task = asyncio.current_task()
            if task is not None and (left := task.cancelling()):
                self.defect(f"{kind}: {left} cancellations are left on its task")
                while task.uncancel():
                    pass


def _is_for_want_of_threads(error: BaseException) -> bool:
    """A lease that cannot be renewed is refused, with the reason."""
    return type(error) is QuorlockError and NO_THREAD in str(error.__cause__)


def _word(result: object) -> str:
    if result is None or isinstance(result, (bool, int)):
        return str(result)
    return type(result).__name__


def _facts_of(error: Exception) -> dict[str, Any]:
    """Return what an error says about the nodes, for the validator to compare."""
    votes = getattr(error, "votes", ())
    kind = type(error).__name__
    return {
        "outcome": kind,
        "nodes": len(votes),
        "answered": sum(vote.answered for vote in votes),
        "unfit": sum(vote.code.is_error for vote in votes),
        "quarantined": sum(vote.code is VoteCode.QUARANTINED for vote in votes),
        "granted": sum(vote.vote == "granted" for vote in votes),
        "text": str(error) if not isinstance(error, AcquireTimeout) else "",
    }
