"""The guard: the process between `run` and its command, with one thread and no connection.

It starts the command, forwards signals, and ends it in time by the local clock: TERM at validity -
kill_after, KILL before the end. It also ends the command when the channel closes because `run` is
gone, for whatever reason. `run` owns the lock and sends the lease's validity
(docs/contributing/decisions/0019-a-guard-beside-run.md).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from quorlock import now
from quorlock._cli.run.channel import readable

if TYPE_CHECKING:
    from quorlock._cli.run.channel import Channel
    from quorlock._cli.run.process_tree import ProcessTree
    from quorlock._cli.run.signals import Signals

OnLost: TypeAlias = Literal["term", "kill", "warn"]

# The share of kill_after that is left at KILL: kernels and busy machines take time.
_KILL_LEFT = 1 / 4
# What a key of the terminal sends to every process of its foreground group. Others come from a
# program, which may signal `run` and the guard, and not the command (`pkill quorlock`).
_KEYS = frozenset({signal.SIGINT, signal.SIGQUIT})
# A wait does not count the time for which the machine sleeps, but a lease does.
_LONGEST_SLEEP = 0.25


class Orders(NamedTuple):
    """The command, and how it is ended."""

    command: tuple[str, ...]
    kill_after: float  # seconds
    on_lost: OnLost
    grouped: bool  # in its own process group


class LeaseGuard:
    """The loop of the guard process."""

    def __init__(self, orders: Orders, channel: Channel, signals: Signals) -> None:
        self._orders = orders
        self._channel = channel
        self._signals = signals
        self._sources: list[Channel | Signals] = [channel, signals]
        self._seen: set[int] = set()
        self._valid_until = 0.0
        self._ending = False  # TERM or KILL was sent
        self._kill_at = 0.0

    def work(self) -> None:
        """Wait for the order to start, and run the command to its end."""
        from quorlock._cli.run.process_tree import ProcessTree  # while `run` acquires the lock

        messages = self._channel.receive()
        while not messages and not self._channel.closed:
            messages = self._channel.receive()
        if not messages:
            return
        (_, environment, self._valid_until), *messages = messages
        for word, *facts in messages:
            if word == "until":
                (self._valid_until,) = facts
        orders = self._orders
        # This process may have been stopped since `run` sent the order.
        if now() >= (self._valid_until if orders.on_lost == "warn" else self._end_at):
            self._channel.send("expired")
            return
        try:
            tree = ProcessTree(orders.command, environment, grouped=orders.grouped)
        except OSError as error:
            self._channel.send("failed", error.errno, error.strerror)
            return
        # Forwarded in full: the terminal's signals of before may not have reached the command.
        self._signals.taken()
        self._channel.send("started", tree.pid)
        for message in messages:
            self._obey(tree, *message)
        self._channel.send("ended", self._see_to_its_end(tree), self._is_late())

    def _see_to_its_end(self, tree: ProcessTree) -> int:
        while (status := tree.status()) is None:
            left = self._look(tree)
            ready = readable(self._sources, left)
            # First of all: the terminal's signals reach this process and the command before `run`
            # forwards them.
            self._seen.update(_KEYS.intersection(self._signals.taken()))
            if self._channel in ready:
                for message in self._channel.receive():
                    self._obey(tree, *message)
                if self._channel.closed:
                    self._sources.remove(self._channel)
                    self._end(tree)
        if self._ending:
            tree.kill()  # descendants that it did not end
        return status

    def _look(self, tree: ProcessTree) -> float:
        """Do what is due; return the seconds until the next check."""
        at = now()
        if not self._ending:
            if self._orders.on_lost == "warn":
                return _LONGEST_SLEEP
            if at >= self._end_at:
                self._end(tree)
        if self._ending and at >= self._kill_at:
            tree.kill()
            return _LONGEST_SLEEP
        due = self._kill_at if self._ending else self._end_at
        return min(max(due - at, 0.0), _LONGEST_SLEEP)

    @property
    def _end_at(self) -> float:
        patience = self._orders.kill_after
        return self._valid_until - patience * (_KILL_LEFT if self._orders.on_lost == "kill" else 1)

    def _end(self, tree: ProcessTree) -> None:
        if self._ending:
            return
        self._ending = True
        patience, self._kill_at = self._orders.kill_after, now()
        if self._orders.on_lost != "kill":
            last = self._valid_until - patience * _KILL_LEFT
            self._kill_at = min(last, self._kill_at + patience * (1 - _KILL_LEFT))
            tree.term()

    def _obey(self, tree: ProcessTree, word: str, *facts: Any) -> None:
        if word == "until":
            (self._valid_until,) = facts
        elif word == "signal":
            (number,) = facts
            # Ctrl-C on a terminal has reached all processes of the group that is this process's.
            tree.pass_on(number, beyond_group=not self._orders.grouped and number in self._seen)
            self._seen.discard(number)
        else:
            self._end(tree)

    def _is_late(self) -> bool:
        """Return whether the lease ended the command, or ended before it."""
        over = self._orders.on_lost != "warn" and now() >= self._valid_until
        return self._ending or over
