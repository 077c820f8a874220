"""One turn of `quorlock run`: acquire, start the command, watch over it, release.

Owns what is told to whom, and when. Leaves the command's process to `child`, and the lock to the
library, whose threads renew it: nothing here waits for them, nor they for the command.
"""

from __future__ import annotations

import os
import select
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from quorlock import AcquireTimeout, LeaseLost, NodeError, now
from quorlock.cli.config import SECRET
from quorlock.cli.exits import EX_LOST
from quorlock.cli.run.signals import means_an_end

if TYPE_CHECKING:
    from quorlock import Lease, Lock
    from quorlock.cli.run.child import Child, Ended
    from quorlock.cli.run.guard import Orders
    from quorlock.cli.run.signals import Signals
    from quorlock.cli.run.voice import Voice

# So often in a ttl, and never less than so often, we look whether it was renewed or lost.
_LOOKS, _LONGEST_LOOK = 20, 0.25
# That of a lock around ours would be taken for ours.
_NOT_INHERITED = (*SECRET, "QUORLOCK_FENCE")


class Plan(NamedTuple):
    """What the options come to. Durations in seconds.

    busy: the status if another holds it, None for 0 without a word.
    """

    lock: Lock
    orders: Orders
    min_hold: float
    busy: int | None
    renew: bool
    max_hold: float


class Turn:
    """See the module."""

    def __init__(self, plan: Plan, child: Child, signals: Signals, voice: Voice) -> None:
        self._plan = plan
        self._child = child
        self._signals = signals
        self._voice = voice
        self._began = 0.0
        self._is_ending = False  # a signal said so
        self._look = min(plan.lock.ttl / _LOOKS, _LONGEST_LOOK)

    def take(self) -> int:
        """The exit status. Raises Failed, Interrupted and why the lock was not acquired."""
        with ExitStack() as stack:
            lease = self._acquire(stack)
            if lease is None:
                return self._plan.busy or 0
            try:
                ended = self._under(lease)
            except BaseException:
                self._child.close()  # before the lock is given back
                raise
            is_held_on = self._hold_on(lease)
            return self._status(ended, self._release(stack), is_held_on=is_held_on)

    def _acquire(self, stack: ExitStack) -> Lease | None:
        try:
            with self._signals.raising():
                return stack.enter_context(self._plan.lock)
        except AcquireTimeout as error:
            if self._plan.busy is not None:
                self._voice.warn("busy", str(error))
            return None

    def _release(self, stack: ExitStack) -> str | None:
        """Give it back; why the lease was lost, if it was."""
        try:
            stack.close()
        except LeaseLost as error:
            return str(error)
        except NodeError as error:
            self._voice.warn("unreleased", str(error))
        return None

    def _status(self, ended: Ended, lost: str | None, *, is_held_on: bool) -> int:
        if ended.in_time and lost is None:
            return ended.status
        self._voice.warn("lost", self._ending(lost))
        # Lost after the command had ended well, or not to be minded.
        is_minor = is_held_on or self._plan.orders.on_lost == "warn"
        return ended.status if is_minor else EX_LOST

    def _ending(self, lost: str | None) -> str:
        """Why the command was ended. An end that was to be comes first: on a busy machine the lease
        may be over by the time that it is given back, but that is not why.
        """
        plan = self._plan
        if not plan.renew:
            return f"the ttl of {plan.lock.ttl:g} s is over, and with --no-renew so is the command"
        # TERM comes when an extension by a whole ttl would have passed the limit.
        if now() + plan.lock.ttl > self._began + plan.max_hold:
            return f"the command was ended: --max-hold of {plan.max_hold:g} s is spent"
        return lost or "the command was ended: no quorum of nodes renewed the lease in time"

    def _under(self, lease: Lease) -> Ended:
        self._began = now()
        child, valid_until = self._child, lease.valid_until
        facts = {"ttl": lease.ttl, "fence": lease.fence, "valid_until": valid_until}
        self._voice.news("acquired", "acquired", **facts)
        child.start(_environment(lease), valid_until)
        ended = self._watch(lease)
        facts = {"status": ended.status, "valid_until": child.valid_until}
        self._voice.news("ended", f"the command ended with status {ended.status}", **facts)
        return ended

    def _watch(self, lease: Lease) -> Ended:
        child, signals, is_told = self._child, self._signals, False
        while True:
            sources: list[Child | Signals] = [child, signals]
            ready, _, _ = select.select(sources, [], [], self._look)
            child.wake()
            for number in self._signalled():
                child.signal(number)
            if child in ready and (ended := child.hear()) is not None:
                return ended
            valid_until = lease.valid_until
            if now() < valid_until:
                child.until(valid_until)
            elif not is_told:
                is_told = True
                self._lose()

    def _signalled(self) -> list[int]:
        """The signals that have come; those that mean an end also end --min-hold."""
        numbers = self._signals.taken()
        self._is_ending |= any(means_an_end(number) for number in numbers)
        return numbers

    def _lose(self) -> None:
        if self._plan.orders.on_lost == "warn":
            self._voice.warn("lost", "the lease is lost; the command runs on without it")
        else:
            self._voice.warn("lost", "the lease is lost; the command is told to end")
            self._child.end()

    def _hold_on(self, lease: Lease) -> bool:
        """Hold it for min_hold; a signal that means an end is one, also one that the command was
        told of: who stops us has no need of those who would start it too. Whether it was held on.
        """
        until = self._began + self._plan.min_hold
        is_needed = now() < until and lease.held and not self._is_ending
        while (left := until - now()) > 0 and lease.held and not self._is_ending:
            select.select([self._signals], [], [], min(left, self._look))
            self._signalled()
        return is_needed


def _environment(lease: Lease) -> dict[str, str]:
    """The command's: ours, what it may know of the lease, and nothing that may hold a password."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    told = {
        "QUORLOCK_RESOURCE": lease.resource,
        "QUORLOCK_TOKEN": lease.token,
        "QUORLOCK_TTL": f"{lease.ttl:g}",
        "QUORLOCK_VALID_UNTIL": f"{lease.valid_until:.3f}",
    }
    fence = {} if lease.fence is None else {"QUORLOCK_FENCE": str(lease.fence)}
    return inherited | told | fence
