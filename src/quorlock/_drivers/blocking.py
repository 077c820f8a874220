"""Runs flows in threads: sockets and poll. Its contract is in `contract`.

The calling thread does all the talking, down a bundle of connections that is its own while it
talks.  `keeper` connects and pays debts, `bundle` sends and hears, this module leads the flow.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from quorlock._core.commands import Acquire, Release
from quorlock._core.effects import Abandoned, Keep, Receive, Send, Sleep
from quorlock._drivers import fork
from quorlock._drivers.bundle import Bundle
from quorlock._drivers.clock import now
from quorlock._drivers.connection import Exchange
from quorlock._drivers.janitor import Janitor
from quorlock._drivers.keeper import Keeper
from quorlock._drivers.members import CLOSED, CLOSED_MEANWHILE, Member, Members
from quorlock._drivers.pool import Owner, Pool
from quorlock._drivers.waiting import Flag, Waiters
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

# So many threads acquire at once, the others queue: beyond it they only take the interpreter
# lock from each other in the middle of their rounds.
BUNDLES_MAX = 8


class Driver:
    """See the module."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        self._nodes = nodes
        self._policy = policy
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self.members = Members(self._nodes, self._policy)
        self._closed = Flag()
        changed = Waiters()
        self._keepers = tuple(
            Keeper(member, self.members, self._policy, changed) for member in self.members.all
        )
        keepers, policy = self._keepers, self._policy
        self._janitor = Janitor(self._closed)
        self._pool = Pool(lambda: Bundle(keepers, policy, changed), BUNDLES_MAX, self._janitor.wake)
        self._janitor.pool = self._pool

    def run(self, flow: Flow[T]) -> T:
        """Lead the flow to its end."""
        return self.win(flow, _itself)

    def win(self, flow: Flow[T], claim: Callable[[T], R]) -> R:
        """Lead the flow to its end and make of its outcome what the caller wants (a lease).

        Interrupted anywhere before that is made, the flow gives the lock back.
        """
        turn = _Turn(self._pool, self.members, self._closed)
        try:
            result = claim(turn.lead(flow))
            turn.leave()
            flow.close()
            return result
        except BaseException:
            try:
                _surely(partial(turn.abandon, flow))
            finally:
                _surely(turn.leave)
            raise

    def close(self) -> None:
        """Pay what is owed, as far as it can be in a bounded time, and close everything."""
        self._closed.set()
        until = now() + 2 * self._policy.node_timeout
        self._janitor.close()
        self._pool.close(lambda bundle: bundle.close(until))
        for keeper in self._keepers:
            keeper.close(until + self._policy.connect_timeout)

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Every node as this process sees it now; asks nobody."""
        at, buffer = now(), bytearray(4096)
        silent_for = [0] * len(self.members.all)
        for bundle in self._pool.every():
            bundle.look_in(buffer)  # what lies unread because nobody waits for it is no silence
            for connection in bundle.connections:
                if connection is not None:
                    index = connection.member.index
                    waiting = at - connection.conversation.oldest(at)
                    silent_for[index] = max(silent_for[index], waiting)
        return tuple(map(Member.status, self.members.all, silent_for))

    @property
    def closed(self) -> bool:
        """Nothing can be asked any more."""
        return self._closed.is_set()

    def forget(self) -> None:
        """In a forked child: drop the parent's connections without a word, start afresh."""
        for bundle in self._pool.every():
            for connection in bundle.connections:
                if connection is not None:
                    connection.sock.close()  # our copy of it; the parent's stays open
        closed = self.closed
        self._start()
        if closed:
            self._closed.set()


class _Turn(Owner):
    """One flow on its way: the bundle it has in hand, and its letter box."""

    def __init__(self, pool: Pool, members: Members, closed: Flag) -> None:
        self._pool = pool
        self._members = members
        self._closed = closed
        self._exchange = Exchange()
        self._bundle: Bundle | None = None
        self.urgent = False

    def lead(self, flow: Flow[T]) -> T:
        """Perform what the flow asks for until it has an outcome."""
        step = flow.send
        value: Any = None
        try:
            while True:
                effect = step(value)
                if isinstance(effect, Keep):
                    return effect.granted  # type: ignore[return-value] # T is Granted then
                value = self._perform(effect)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    def abandon(self, flow: Flow[Any]) -> None:
        """Nobody waits for the outcome: let the flow give back, and end it."""
        with contextlib.suppress(StopIteration, Abandoned):
            self._carry_on(flow, flow.throw(Abandoned()))

    def _carry_on(self, flow: Flow[Any], effect: Effect) -> None:
        # An acquire of which nothing was sent leaves nothing to give back.
        while type(effect) is Send and (self._exchange.round or self.urgent):
            effect = flow.send(self._in_hand(effect).send(effect, self._exchange))
        flow.close()

    def leave(self) -> None:
        """Give back every bundle that is ours; as often as one likes."""
        self._exchange.over = True
        self._put_back()

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Receive):
            assert self._bundle is not None
            return self._bundle.receive(self._exchange, effect.until)
        if isinstance(effect, Send):
            if self._closed.is_set():
                _refuse(CLOSED)
            bundle = self._in_hand(effect)
            bundle.refresh()
            if type(effect.command) is not Release:
                self._members.check()
            return bundle.send(effect, self._exchange)
        assert isinstance(effect, Sleep)
        self._put_back()
        return self._sleep(effect.until)

    def _in_hand(self, effect: Send) -> Bundle:
        if self._bundle is None:
            self.urgent = type(effect.command) is not Acquire
            self._bundle = self._pool.take(self)
        return self._bundle

    def _put_back(self) -> None:
        self._bundle = None
        self._pool.give(self)

    def _sleep(self, until: Instant) -> Instant:
        while (left := until - now()) > 0:
            if self._closed.wait(left / 1e9):
                _refuse(CLOSED_MEANWHILE)
        return now()


def _surely(step: Callable[[], None]) -> None:
    """Do it; and if a Ctrl-C falls into it, once more from the start."""
    try:
        step()
    except BaseException:
        step()
        raise


def interpreter_ends() -> None:
    """From now on a driver that closes wakes nobody with an error."""
    _exiting.set()


_exiting = Flag()


def _refuse(text: str) -> NoReturn:
    while _exiting.is_set():
        time.sleep(3600)  # a daemon thread: frozen in a moment, and not to print a traceback
    raise QuorlockError(text)


def _itself(outcome: T) -> T:
    return outcome
