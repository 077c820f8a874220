"""Runs flows in tasks. Its contract is in `contract`.

All tasks of a loop share one ordered connection to each node.  A flow is led by the callbacks
that bring its answers: one future for a flow, none for a node or a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core.commands import ACQUIRES, Release
from quorlock._core.effects import (
    Abandoned,
    Elapsed,
    Keep,
    Receive,
    Send,
    SendAll,
    Sleep,
    replied,
)
from quorlock._core.outcomes import GRANTED
from quorlock._core.quorum import PENDING
from quorlock._core.time import FOR_EVER
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.engine import Engine
from quorlock._drivers.link import Hears
from quorlock._drivers.members import CLOSED, CLOSED_MEANWHILE, CROWDED, Member, Members
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quorlock._core.effects import Effect, Flow, Receipt, Replied
    from quorlock._core.outcomes import NodeStatus
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._wire.conversation import Hint
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
        self._latest: Engine | None = None

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Lead the flow to its end."""
        return self.win(flow, _itself)

    async def win(self, flow: Flow[T], claim: Callable[[T], R]) -> R:
        """Lead the flow to its end and make of its outcome what the caller wants (a lease).

        Cancelled anywhere before that is made, the flow gives the lock back.
        """
        turn = Turn(self._engine(), flow)
        try:
            turn.begin()
            result = claim(await turn.future)
            turn.leave()
            flow.close()
            return result
        except BaseException:
            turn.abandon()
            raise

    def watch(self, on_hint: Hint) -> None:
        """Have the nodes give hints in this loop, from its next extension on."""
        self._engine().watch(on_hint)

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Every node as this process sees it now; asks nobody."""
        at = now()
        silent_for = [0] * len(self.members.all)
        for engine in list(self._engines.values()):
            for index, way in enumerate(engine.ways):
                if way.link is not None:
                    waiting = at - way.link.oldest(at)
                    silent_for[index] = max(silent_for[index], waiting)
        return tuple(map(Member.status, self.members.all, silent_for, repeat(at)))

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
        Turn(engine, flow).carry_out(flow)

    def send_later(self, flow: Flow[None], path: object = None) -> None:
        """The same in a loop that is in use, soon; safe from any thread.

        Over that path (default: this loop's), if it is there still: its loop gives back what this
        has not sent when the loop ends before, and no other loop would.
        """
        if path is None:
            with contextlib.suppress(RuntimeError):  # no loop runs in this thread
                path = self._engines.get(asyncio.get_running_loop())
        engines = [e for e in list(self._engines.values()) if not e.closing]
        engines.sort(key=lambda engine: engine is not path)
        for engine in engines:
            if not engine.loop.is_closed():
                engine.loop.call_soon_threadsafe(self.send_only, flow, engine)
                return

    def _engine(self) -> Engine:
        loop = asyncio.get_running_loop()
        engine = self._latest
        if engine is not None and engine.loop is loop and not engine.closing:
            return engine
        self._latest = self._engine_of(loop)
        return self._latest

    def _engine_of(self, loop: asyncio.AbstractEventLoop) -> Engine:
        engine = self._engines.get(loop)
        if engine is None or engine.closing:
            if self.closed:
                raise QuorlockError(CLOSED)
            engine = self._engines[loop] = Engine(
                loop, self.members, self._policy, self.on_loop_end
            )
        return engine


class Turn(Hears, Generic[T]):
    """One flow on its way, its letter box and its caller's future."""

    __slots__ = (
        "_connecting",
        "_engine",
        "_flow",
        "_place",
        "_queued",
        "_sleeping",
        "_tally",
        "_timer",
        "_timer_until",
        "_until",
        "_wants",
        "due",
        "future",
        "mail",
        "number",
        "over",
        "round",
        "sent",
    )

    def __init__(self, engine: Engine, flow: Flow[T]) -> None:
        self.over = False
        self.round = 0
        self.sent: Instant = 0  # when its last round was, as far as the flow knows
        self.due: Instant = FOR_EVER  # when its nodes' time to answer is over
        self.number = -1  # of its last round in the convoy
        self.mail: list[Replied] = []
        self.future: asyncio.Future[T] = engine.loop.create_future()
        self._engine = engine
        self._flow = flow
        self._wants = False  # a lock or an answer; it is no mere release
        self._sleeping = False
        self._place = False  # it is one of those that may acquire at once
        self._queued: Send | None = None  # what it will send when it is
        self._connecting: Callable[[], None] | None = None  # and when connections are there
        self._until: Instant | None = None  # set while the flow waits for a reply
        self._tally: Any = (
            None  # a Tally, or (renewal) several: what counts those that do not decide
        )
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
        elif self._tally is None or self._tally.count(reply) is not PENDING:
            self._until = None
            self._go_on(reply)

    def won(self, nodes: int, last: int, at: Instant) -> None:
        """The convoy brings a quorum: these nodes have said yes in its last round."""
        tally = self._tally
        if self._until is not None and tally is not None:
            self._until = None
            tally.grant(self.round, nodes)
            self._go_on(replied((self.round, last, GRANTED, at)))

    def turn_out(self) -> None:
        """The engine ends: whoever waits for a lock is told; a release goes on."""
        if self._wants and not self.future.done():
            self.abandon()
            self.future.set_exception(QuorlockError(CLOSED_MEANWHILE))

    def abandon(self) -> None:
        """The caller is gone (or was told of an error): let the flow give back.

        Also when the outcome has come already: the caller did not get it.
        """
        self._finish()
        self.leave()
        with contextlib.suppress(StopIteration, Abandoned):
            self._carry_on(self._flow, self._flow.throw(Abandoned()))

    def leave(self) -> None:
        """The caller has its outcome: whoever closes need not wait for it any more."""
        self._engine.turns.discard(self)

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
                        self._listen(effect)
                        return
                    value = self.mail.pop(0)
                elif isinstance(effect, Send):
                    value = self._ask(effect)
                    if value is None:
                        return
                elif not isinstance(effect, SendAll) or not (value := self._ask_all(effect)):
                    self._stay(effect)
                    return
        except StopIteration as stop:
            self._succeed(stop.value)
        except BaseException as error:  # noqa: BLE001 (the caller gets it)
            self._fail(error)

    def _stay(self, effect: Effect) -> None:
        """It sleeps, or has won, or what it sends has to wait and goes on by itself."""
        if isinstance(effect, Sleep):
            self._leave_place()
            self._sleeping = True
            self.set_timer(effect.until)
        elif isinstance(effect, Keep):
            self._succeed(effect.granted)

    def _ask(self, effect: Send) -> Receipt | None:
        """Send it; None: it has to wait, and goes on by itself."""
        engine, kind = self._engine, type(effect.command)
        if kind is not Release:
            if engine.ending:
                raise QuorlockError(CLOSED)
            self._wants = True
            if kind in ACQUIRES and not self._place:
                self._place = engine.has_place()
                if not self._place:
                    self._queue(effect)
                    return None
        if not engine.ready():
            # An acquire's `by` is for its place in the queue; to connect it has its own time.
            by = FOR_EVER if kind in ACQUIRES else effect.by
            self._when_ready(partial(self._send, effect), by)
            return None
        if kind is not Release:
            engine.members.check()
        return engine.send(effect, self)

    def _ask_all(self, effect: SendAll) -> tuple[Receipt, ...] | None:
        """What renewal sends: it never queues behind those who acquire."""
        if self._engine.ending:
            raise QuorlockError(CLOSED)
        self._wants = True
        if self._engine.ready():
            return self._engine.send_all(effect, self)
        by = min([send.by for send in effect.sends])
        self._when_ready(lambda: self._go_on(self._engine.send_all(effect, self)), by)
        return None

    def _when_ready(self, send: Callable[[], None], by: Instant) -> None:
        """Send when connections are there, or will not be, or the time is up; once."""
        self._connecting = send
        self._engine.when_ready(partial(self._connected, send))
        if by < FOR_EVER and self._connecting is send:
            self.set_timer(by)

    def _connected(self, send: Callable[[], None]) -> None:
        if self._connecting is send and not self.over:
            self._connecting = None
            send()

    def _send(self, effect: Send) -> None:
        """Connections are there now, or will not be."""
        if self.over:
            return
        try:
            if type(effect.command) is not Release:
                self._engine.members.check()
        except QuorlockError as error:
            self._fail(error)
        else:
            self._go_on(self._engine.send(effect, self))

    def _queue(self, effect: Send) -> None:
        self._queued = effect
        self._engine.queue.append(self)
        if effect.by < FOR_EVER:
            self.set_timer(effect.by)

    def called(self) -> bool:
        """There is a place for it now; False: it does not want one any more."""
        effect, self._queued = self._queued, None
        if effect is None or self.over:
            return False
        self._place = True
        if self._engine.ready():
            self._send(effect)
        else:
            self._engine.when_ready(partial(self._send, effect))
        return True

    def _crowded_out(self) -> None:
        self._queued = None
        self._go_on(self._engine.not_asked(self, CROWDED))

    def _leave_place(self) -> None:
        if self._place:
            self._place = False
            self._engine.free_place()

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
        self._leave_place()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _listen(self, wish: Receive) -> None:
        self._until, self._tally = wish
        if self._tally is None:
            self._engine.convoy.spell_out(self.number)
        if self._timer_until != wish.until:
            self._timer_until = wish.until
            self._engine.wait_until(wish.until, self)

    def elapsed(self, until: Instant) -> None:
        """It is so late: if nothing has come that it waits for, nothing more will be waited for."""
        if self._until is not None and self.due <= until and not self.over:
            self._engine.convoy.spell_out(self.number)
            self._until = None
            self._go_on(Elapsed(now()))

    def set_timer(self, until: Instant) -> None:
        """Go on then, by a timer of its own."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_until = until
        self._timer = self._engine.loop.call_later(max(0, until - now()) / 1e9, self._ring)

    def _ring(self) -> None:
        self._timer = None
        at = now()
        if at < self._timer_until:  # the loop's clock is another one than ours
            self.set_timer(self._timer_until)
        elif self._connecting is not None:
            self._connected(self._connecting)
        elif self._queued is not None:
            self._crowded_out()
        elif self._sleeping:
            self._sleeping = False
            self._go_on(at)
        else:
            self.due = at
            self._engine.look_once_more([self], at)


def _nothing(engine: Engine) -> None:
    del engine


def _itself(outcome: T) -> T:
    return outcome
