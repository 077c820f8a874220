"""The guard: the process between `run` and its command, with one thread and no connection.

It starts the command, passes signals on, and ends it in time: TERM at validity - kill_after, KILL
before the end, by the local clock alone. It hangs by a channel, and ends the command too when `run`
is gone, however it went. Leaves the lock to `run`, which tells it how long the lease is valid
(docs/decisions/0019-a-guard-beside-run.md).
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from quorlock import now

if TYPE_CHECKING:
    from quorlock.cli.run.channel import Channel
    from quorlock.cli.run.family import Family
    from quorlock.cli.run.signals import Signals

OnLost: TypeAlias = Literal["term", "kill", "warn"]

# What is left of kill_after when KILL is sent: the kernel takes its time, and so do busy machines.
_KILL_LEFT = 1 / 4
# `select` does not count the time for which the machine sleeps, and a lease does.
_LONGEST_SLEEP = 0.25


class Orders(NamedTuple):
    """What is to be run, and how it is ended. kill_after: seconds.

    grouped: in a process group of its own.
    """

    command: tuple[str, ...]
    kill_after: float
    on_lost: OnLost
    grouped: bool


class Guard:
    """See the module."""

    def __init__(self, orders: Orders, channel: Channel, signals: Signals) -> None:
        self._orders = orders
        self._channel = channel
        self._signals = signals
        self._sources: list[Channel | Signals] = [channel, signals]
        self._seen: set[int] = set()
        self._valid_until = 0.0
        self._ending = False  # it was told to end, or killed
        self._kill_at = 0.0

    def work(self) -> None:
        """Wait for the word to start, and see the command to its end."""
        from quorlock.cli.run.family import Family  # while `run` acquires the lock

        messages = self._channel.hear()
        while not messages and not self._channel.closed:
            messages = self._channel.hear()
        if not messages:
            return
        (_, environment, self._valid_until), *messages = messages
        orders = self._orders
        try:
            family = Family(orders.command, environment, grouped=orders.grouped)
        except OSError as error:
            self._channel.say("failed", error.errno, error.strerror)
            return
        self._channel.say("started", family.pid)
        for message in messages:
            self._obey(family, *message)
        self._channel.say("ended", self._see_to_its_end(family), self._is_late())

    def _see_to_its_end(self, family: Family) -> int:
        while (status := family.status()) is None:
            left = self._look(family)
            ready, _, _ = select.select(self._sources, [], [], left)
            # First: what came from a terminal came to us and the command before `run` could speak.
            self._seen.update(self._signals.taken())
            if self._channel in ready:
                for message in self._channel.hear():
                    self._obey(family, *message)
                if self._channel.closed:
                    self._sources.remove(self._channel)
                    self._end(family)
        if self._ending:
            family.kill()  # what it has started and did not end itself
        return status

    def _look(self, family: Family) -> float:
        """Do what is due; seconds to the next look."""
        at = now()
        if not self._ending and self._orders.on_lost != "warn" and at >= self._end_at:
            self._end(family)
        if self._ending and at >= self._kill_at:
            family.kill()
            return _LONGEST_SLEEP
        due = self._kill_at if self._ending else self._end_at
        return min(max(due - at, 0.0), _LONGEST_SLEEP)

    @property
    def _end_at(self) -> float:
        patience = self._orders.kill_after
        return self._valid_until - patience * (_KILL_LEFT if self._orders.on_lost == "kill" else 1)

    def _end(self, family: Family) -> None:
        if self._ending:
            return
        self._ending = True
        patience, self._kill_at = self._orders.kill_after, now()
        if self._orders.on_lost != "kill":
            last = self._valid_until - patience * _KILL_LEFT
            self._kill_at = min(last, self._kill_at + patience * (1 - _KILL_LEFT))
            family.term()

    def _obey(self, family: Family, word: str, *facts: Any) -> None:
        if word == "until":
            (self._valid_until,) = facts
        elif word == "signal":
            (number,) = facts
            # On a terminal Ctrl-C is sent to every process of the group, and so to the command.
            if self._orders.grouped or number not in self._seen:
                family.pass_on(number)
            self._seen.discard(number)
        else:
            self._end(family)

    def _is_late(self) -> bool:
        """It was ended because of the lease, or may have run on when that was over."""
        over = self._orders.on_lost != "warn" and now() >= self._valid_until
        return self._ending or over
