"""Runs flows in threads: sockets and poll. Its contract is in `contract`.

The calling thread does all the talking, down a bundle of connections that is its own while it
talks.  `keeper` connects and pays debts, `bundle` sends and hears, this module leads the flow.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from collections import deque
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from quorlock._core.commands import ACQUIRES, Release
from quorlock._core.effects import (
    Abandoned,
    Receipt,
    Receive,
    Replied,
    Send,
    SendAll,
    Sleep,
)
from quorlock._core.outcomes import ABSENT
from quorlock._core.time import FOR_EVER
from quorlock._drivers import fork
from quorlock._drivers.bundle import Bundle
from quorlock._drivers.clock import now
from quorlock._drivers.connection import Exchange
from quorlock._drivers.janitor import Janitor
from quorlock._drivers.keeper import Keeper
from quorlock._drivers.members import CLOSED, CLOSED_MEANWHILE, CROWDED, Member, Members
from quorlock._drivers.pool import Owner, Pool
from quorlock._drivers.waiting import Flag, Waiters
from quorlock._drivers.watch import Watch
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Effect, Flow
    from quorlock._core.outcomes import Answer, NodeStatus
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._wire.nodes import Node

T = TypeVar("T")
R = TypeVar("R")

# At the most so many threads acquire at once, the others queue; fewer where nodes answer fast, see
# `pool`.
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
        self._pool = Pool(
            lambda: Bundle(keepers, policy, changed), BUNDLES_MAX, self._janitor.look_after
        )
        self._janitor.pool = self._pool
        self._watches: list[Watch] = []
        self._new_bundle = partial(Bundle, keepers, policy, changed)
        self._later: deque[Flow[None]] = deque()
        self._runs_later = False

    def run(self, flow: Flow[T], over: Watch | None = None) -> T:
        """Lead the flow to its end."""
        return self.win(flow, _itself, over)

    def win(self, flow: Flow[T], claim: Callable[[T], R], over: Watch | None = None) -> R:
        """Lead the flow to its end and make of its outcome what the caller wants (a lease).

        Interrupted anywhere before that is made, the flow gives the lock back.
        """
        turn = _Turn(over or self._pool, self.members, self._closed)
        try:
            result = claim(turn.lead(flow))
            turn.over = True
            turn.put_back()
            flow.close()
            return result
        except BaseException:
            # Each twice, and not by a function that does so: a Ctrl-C may fall into the doing, and
            # also into the beginning of that function.
            try:
                try:
                    turn.abandon(flow)
                finally:
                    turn.abandon(flow)
            finally:
                try:
                    turn.leave()
                finally:
                    turn.leave()
            if self._closed.up:
                _freeze_at_exit()
            raise

    def watch(self) -> Watch:
        """Connections of the caller's own, which give hints; to be closed by the caller."""
        watch = Watch(self._new_bundle, self._unwatch)
        self._watches.append(watch)
        return watch

    @property
    def watched(self) -> bool:
        """Somebody has not closed such connections yet."""
        return bool(self._watches)

    def _unwatch(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    def run_later(self, flow: Flow[None]) -> None:
        """Lead it in another thread, soon: we may be anywhere, also inside our own locks.

        One thread for all that is to be done; a raw one, since threading takes locks to start one.
        """
        self._later.append(flow)
        if not self._runs_later:
            self._runs_later = True
            try:
                _thread.start_new_thread(self._run_all, ())
            except BaseException:
                self._runs_later = False
                raise

    def _run_all(self) -> None:
        while self._later:
            while self._later:
                with contextlib.suppress(Exception):
                    self.run(self._later.popleft())
            self._runs_later = False  # and look again: who came before that has started nobody

    def stop(self) -> None:
        """Give no lock from now on; who is in the middle of a round ends it, or gives it back.

        Waits for that a bounded time: when the interpreter ends, threads are frozen where they
        are, and a key of theirs would stay.  Releases still go.
        """
        self._closed.set()
        self._pool.settle(now() + 2 * self._policy.node_timeout)

    def close(self) -> None:
        """Pay what is owed, as far as it can be in a bounded time, and close everything."""
        self.stop()
        until = now() + 2 * self._policy.node_timeout
        self._janitor.close()
        self._pool.close(lambda bundle: bundle.close(until))
        for keeper in self._keepers:
            keeper.close(until + self._policy.connect_timeout)

    def statuses(self) -> tuple[NodeStatus, ...]:
        """Every node as this process sees it now; asks nobody."""
        self._pool.tidy()  # what lies unread because nobody waits for it is no silence
        at = now()
        silent_for = [0] * len(self.members.all)
        for bundle in [*self._pool.every(), *[watch.bundle for watch in list(self._watches)]]:
            for connection in bundle.connections:
                if connection is not None:
                    index = connection.member.index
                    waiting = at - connection.conversation.oldest(at)
                    silent_for[index] = max(silent_for[index], waiting)
        return tuple(map(Member.status, self.members.all, silent_for, repeat(at)))

    @property
    def closed(self) -> bool:
        """Nothing can be asked any more."""
        return self._closed.up

    def forget(self) -> None:
        """In a forked child: drop the parent's connections without a word, start afresh."""
        for bundle in self._pool.every():
            for connection in bundle.connections:
                if connection is not None:
                    connection.sock.close()  # our copy of it; the parent's stays open
        for watch in self._watches:
            watch.forget()
        closed = self.closed
        self._start()
        if closed:
            self._closed.set()


class _Turn(Exchange, Owner):
    """One flow on its way: its letter box, and the bundle it has in hand."""

    __slots__ = ("_bundle", "_closed", "_members", "_pool", "_receipt", "urgent")

    def __init__(self, pool: Pool | Watch, members: Members, closed: Flag) -> None:
        self._pool = pool
        self._members = members
        self._closed = closed
        self._bundle: Bundle | None = None
        self._receipt: Receipt | None = None
        self.urgent = False
        self.mail = deque()  # what Exchange begins with, without another call
        self.over = False
        self.round = 0

    def lead(self, flow: Flow[T]) -> T:
        """Perform what the flow asks for until it has an outcome."""
        step = flow.send
        value: Any = None
        try:
            while True:
                effect = step(value)
                if isinstance(effect, Receive):
                    bundle = self._bundle
                    value = bundle.receive(self, effect) if bundle else self.mail.popleft()
                elif isinstance(effect, Send):
                    value = self._send(effect)
                elif isinstance(effect, Sleep):
                    value = self._sleep(effect.until)
                elif isinstance(effect, SendAll):
                    value = self._send_all(effect)
                else:
                    if self._closed.up:
                        raise QuorlockError(CLOSED_MEANWHILE)
                    return effect.granted  # type: ignore[return-value] # T is Granted then
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    def abandon(self, flow: Flow[Any]) -> None:
        """Nobody waits for the outcome: let the flow give back, and end it."""
        with contextlib.suppress(StopIteration, Abandoned):
            self._carry_on(flow, flow.throw(Abandoned()))

    def _carry_on(self, flow: Flow[Any], effect: Effect) -> None:
        # An acquire of which nothing was sent leaves nothing to give back.
        while type(effect) is Send and (self.round or self.urgent):
            bundle = self._bundle or self._in_hand(effect)
            effect = flow.send(bundle.send(effect, self) if bundle else self._not_asked(ABSENT))
        flow.close()

    def leave(self) -> None:
        """Give back every bundle that is ours; as often as one likes."""
        self.over = True
        self._bundle = None
        self._pool.give_all(self)

    def _send(self, effect: Send) -> Receipt:
        if self._closed.up and (self._pool.closing or type(effect.command) is not Release):
            raise QuorlockError(CLOSED)
        bundle = self._bundle or self._in_hand(effect)
        if bundle is None:
            return self._not_asked(ABSENT if effect.behind else CROWDED)
        # An acquire's `by` is for its place in the queue; to connect it has its own time.
        bundle.refresh(FOR_EVER if type(effect.command) in ACQUIRES else effect.by)
        if bundle.missing and type(effect.command) is not Release:
            self._members.check()
        self._receipt = receipt = bundle.send(effect, self)
        return receipt

    def _send_all(self, effect: SendAll) -> tuple[Receipt, ...]:
        """What renewal sends: it never queues behind those who acquire."""
        if self._closed.up:
            raise QuorlockError(CLOSED)
        self.urgent = True
        bundle = self._bundle = self._bundle or self._pool.take(self)
        assert bundle is not None, "who is urgent gets one"
        bundle.refresh(min([send.by for send in effect.sends]))
        return bundle.send_all(effect, self)

    def _in_hand(self, effect: Send) -> Bundle | None:
        """A bundle; None: nothing can be sent, or nothing is to be."""
        behind, path = effect.behind, None
        if behind is not None:
            if not behind.asked:
                return None
            path = behind.path
        self.urgent = type(effect.command) not in ACQUIRES
        self._bundle = self._pool.take(self, effect.by, path)
        if self._closed.up and not self.urgent:
            raise QuorlockError(CLOSED_MEANWHILE)  # while it queued
        return self._bundle

    def _not_asked(self, answer: Answer) -> Receipt:
        self.round += 1
        at = now()
        for member in self._members.all:
            self.mail.append(Replied(self.round, member.index, answer, at))
        return Receipt(self.round, at, at, 0)

    def put_back(self) -> None:
        """Give back the bundle in hand, if there is one."""
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            self._pool.give(bundle, self._receipt)

    def _sleep(self, until: Instant) -> Instant:
        self.put_back()
        while (left := until - now()) > 0:
            if self._closed.wait(left / 1e9):
                raise QuorlockError(CLOSED_MEANWHILE)
        return now()


def interpreter_ends() -> None:
    """From now on a driver that closes tells no daemon thread of it."""
    _exiting.set()


_exiting = Flag()


def _freeze_at_exit() -> None:
    """A daemon thread while the interpreter ends: frozen in a moment, it prints no traceback."""
    while _exiting.up and threading.get_ident() != threading.main_thread().ident:
        time.sleep(3600)


def _itself(outcome: T) -> T:
    return outcome
