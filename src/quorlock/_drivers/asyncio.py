"""Runs flows in tasks. Its contract is in `contract`.

All tasks of a loop share one ordered connection to each node.  A flow is led by the callbacks
that bring its answers: one future for a flow, none for a node or a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core.commands import Release
from quorlock._core.effects import Abandoned, Elapsed, Receive, Replied, Send, Sleep
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.engine import Engine
from quorlock._drivers.link import Hears
from quorlock._drivers.members import CLOSED, CLOSED_MEANWHILE, Member, Members
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Effect, Flow
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._drivers.members import NodeStatus
    from quorlock._wire.nodes import Node

T = TypeVar("T")
R = TypeVar("R")


class Driver:
    """See the module. May be used from several event loops, one after the other or at once."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        self._nodes = nodes
        self._policy = policy
        self.on_loop_end: Callable[[Engine], None] = _nothing
        self.closed = False
        self.forget()
        fork.register(self)

    def forget(self) -> None:
        """In a forked child: start afresh; the parent's transports are not to be touched."""
        self.members = Members(self._nodes, self._policy)
        self._engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, flow: Flow[T]) -> T:
        """Lead the flow to its end."""
        return await self.win(flow, _itself)

    async def win(self, flow: Flow[T], claim: Callable[[T], R]) -> R:
        """Lead the flow to its end and make of its outcome what the caller wants (a lease).

        Cancelled anywhere before that is made, the flow gives the lock back.
        """
        if self.closed:
            flow.close()
            raise QuorlockError(CLOSED)
        turn = Turn(self._engine(), self.members, flow)
        try:
            turn.begin()
            result = claim(await turn.future)
            flow.close()
            return result
        except BaseException:
            turn.abandon()
            raise

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Every node as this process sees it now; asks nobody."""
        at = now()
        silent_for = [0] * len(self.members.all)
        for engine in list(self._engines.values()):
            for index, way in enumerate(engine.ways):
                if way.link is not None:
                    waiting = at - way.link.conversation.oldest(at)
                    silent_for[index] = max(silent_for[index], waiting)
        return tuple(map(Member.status, self.members.all, silent_for))

    async def close(self) -> None:
        """Pay what is owed, as far as it can be in a bounded time, and close everything."""
        self.closed = True
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is not None:
            await engine.close()
            self._engines.pop(loop, None)
        self.end_soon()

    def end_soon(self) -> None:
        """End the engines of all loops, each in its own; safe from any thread."""
        for engine in list(self._engines.values()):
            engine.end_soon()

    def send_only(self, flow: Flow[None], engine: Engine) -> None:
        """Send what the flow asks for, over that engine, waiting for nothing."""
        Turn(engine, self.members, flow).carry_out(flow)

    def send_later(self, flow: Flow[None]) -> None:
        """The same in every loop that is in use, soon; safe from any thread."""
        for engine in list(self._engines.values()):
            if not engine.loop.is_closed():
                engine.loop.call_soon_threadsafe(self.send_only, flow, engine)
                return

    def _engine(self) -> Engine:
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None or engine.closing:
            engine = self._engines[loop] = Engine(
                loop, self.members, self._policy, self.on_loop_end
            )
        return engine


class Turn(Hears, Generic[T]):
    """One flow on its way, its letter box and its caller's future."""

    def __init__(self, engine: Engine, members: Members, flow: Flow[T]) -> None:
        self.over = False
        self.round = 0
        self.mail: deque[Replied] = deque()
        self.future: asyncio.Future[T] = engine.loop.create_future()
        self._engine = engine
        self._members = members
        self._flow = flow
        self._wants: bool | None = None  # a lock or an answer; it is no mere release
        self._sleeping = False
        self._until: Instant | None = None  # set while the flow waits for a reply
        self._timer: asyncio.TimerHandle | None = None
        self._timer_until: Instant = 0

    def begin(self) -> None:
        """Lead the flow as far as it goes."""
        self._engine.turns.add(self)
        self._go_on(None)

    def hear(self, reply: Replied) -> None:
        """A link brings an answer."""
        if self._until is None:
            self.mail.append(reply)
        else:
            self._until = None
            self._go_on(reply)

    def turn_out(self) -> None:
        """The engine ends: whoever waits for a lock is told; a release goes on."""
        if self._wants:
            self.abandon()
            if not self.future.done():
                self.future.set_exception(QuorlockError(CLOSED_MEANWHILE))

    def abandon(self) -> None:
        """The caller is gone (or was told of an error): let the flow give back.

        Also when the outcome has come already: the caller did not get it.
        """
        self._finish()
        with contextlib.suppress(StopIteration, Abandoned):
            self._carry_on(self._flow, self._flow.throw(Abandoned()))

    def carry_out(self, flow: Flow[None]) -> None:
        """Send what the flow asks for, wait for nothing."""
        self.over = True
        with contextlib.suppress(StopIteration):
            self._carry_on(flow, next(flow))

    def _carry_on(self, flow: Flow[Any], effect: Effect) -> None:
        # An acquire of which nothing was sent leaves nothing to give back.
        while type(effect) is Send and (self.round or not self._wants):
            effect = flow.send(self._engine.send(effect, self))
        flow.close()

    def _go_on(self, value: Any) -> None:
        """Give the flow what it asked for, until it has to wait or ends."""
        try:
            while True:
                effect = self._flow.send(value)
                if isinstance(effect, Receive):
                    if not self.mail:
                        self._listen(effect.until)
                        return
                    value = self.mail.popleft()
                elif isinstance(effect, Send):
                    self._wants = self._wants or type(effect.command) is not Release
                    if not self._engine.ready():
                        self._engine.when_ready(partial(self._send, effect))
                        return
                    self._check(effect)
                    value = self._engine.send(effect, self)
                elif isinstance(effect, Sleep):
                    self._sleeping = True
                    self._set_timer(effect.until)
                    return
                else:
                    self._succeed(effect.granted)
                    return
        except StopIteration as stop:
            self._succeed(stop.value)
        except BaseException as error:  # noqa: BLE001 (the caller gets it)
            self._fail(error)

    def _send(self, effect: Send) -> None:
        """Connections are there now, or will not be."""
        if self.over:
            return
        try:
            self._check(effect)
        except QuorlockError as error:
            self._fail(error)
        else:
            self._go_on(self._engine.send(effect, self))

    def _check(self, effect: Send) -> None:
        if type(effect.command) is not Release:
            self._members.check()

    def _succeed(self, outcome: Any) -> None:
        self._finish()
        if not self.future.done():
            self.future.set_result(outcome)

    def _fail(self, error: BaseException) -> None:
        self._finish()
        self._flow.close()
        if not self.future.done():
            self.future.set_exception(error)

    def _finish(self) -> None:
        self.over = True
        self._engine.turns.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _listen(self, until: Instant) -> None:
        self._until = until
        if self._timer is None or self._timer_until != until:
            self._set_timer(until)

    def _set_timer(self, until: Instant) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_until = until
        self._timer = self._engine.loop.call_later(max(0, until - now()) / 1e9, self._ring)

    def _ring(self) -> None:
        self._timer = None
        at = now()
        if at < self._timer_until:  # the loop's clock is another one than ours
            self._set_timer(self._timer_until)
        elif self._sleeping:
            self._sleeping = False
            self._go_on(at)
        elif self._until is not None:
            self._until = None
            self._go_on(Elapsed(at))


def _nothing(engine: Engine) -> None:
    del engine


def _itself(outcome: T) -> T:
    return outcome
