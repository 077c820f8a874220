"""`quorlock run` step by step: acquire, start the command, watch it, release.

It decides about messages and their time. `child` owns the command's process. The library's threads
renew the lock, independently of this one.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import NamedTuple

from quorlock import AcquireTimeout, Lease, LeaseLost, Lock, NodeError, Redlock, now
from quorlock._cli.config import secret_variables
from quorlock._cli.exit_status import EX_LOST
from quorlock._cli.run.channel import readable
from quorlock._cli.run.child import Child, ChildEnded
from quorlock._cli.run.guard import Orders
from quorlock._cli.run.reporter import Reporter
from quorlock._cli.run.signals import Signals, means_an_end
from quorlock._cli.run.waiting import WaitReports

# How often per ttl the lease is checked for renewal or loss, and the longest time between checks.
_LOOKS, _LONGEST_LOOK = 20, 0.25
# An enclosing `run` may have set them: they would be mistaken for this lock's.
_FENCE, _PERMIT = "QUORLOCK_FENCE", "QUORLOCK_PERMIT"


class RunPlan(NamedTuple):
    """The validated options. Durations in seconds."""

    redlock: Redlock
    lock: Lock
    orders: Orders
    min_hold: float
    busy: int | None  # the status if another holds the lock; None: 0, without a message
    renew: bool
    max_hold: float
    once_per: float | None = None  # for how long a command that succeeded counts as done


class RunSession:
    """One execution of `quorlock run`."""

    def __init__(self, plan: RunPlan, child: Child, signals: Signals, reporter: Reporter) -> None:
        self._plan = plan
        self._child = child
        self._signals = signals
        self._reporter = reporter
        self._began = 0.0
        self._is_ending = False  # by a signal
        self._look = min(plan.lock.ttl / _LOOKS, _LONGEST_LOOK)

    def take(self) -> int:
        """Return the exit status. Raise Failed, Interrupted, or the error of the acquire."""
        with ExitStack() as stack:
            lease = self._acquire(stack)
            if lease is None:
                return self._plan.busy or 0
            try:
                ended = self._under(lease)
            except BaseException:
                self._child.close()  # before the lock is released
                raise
            is_held_on = self._hold_on(lease)
            unkept = self._keep(lease, ended)
            return self._status(ended, self._release(stack) or unkept, is_held_on=is_held_on)

    def _acquire(self, stack: ExitStack) -> Lease | None:
        plan, waiting = self._plan, None
        is_shown = self._reporter.is_verbose or self._reporter.is_watched
        if is_shown and plan.lock.timeout != 0:
            # Below the lock on the stack: released first, the thread may still be inspecting.
            reports = WaitReports(plan.redlock, plan.lock.resources, self._reporter)
            waiting = stack.enter_context(reports)
        try:
            with self._signals.raising():
                return stack.enter_context(plan.lock)
        except AcquireTimeout as error:
            if plan.busy is not None:
                self._reporter.warn("busy", str(error), holder_ttl=error.holder_ttl)
            return None
        finally:
            if waiting is not None:
                waiting.end()

    def _keep(self, lease: Lease, ended: ChildEnded) -> str | None:
        """Keep the lock as done if the command succeeded; return the reason if that failed."""
        seconds = self._plan.once_per
        # A command that a signal ends may still end with status 0.
        if seconds is None or ended.status or not ended.in_time or self._is_ending:
            return None
        try:
            lease.keep(seconds)
        except (LeaseLost, NodeError) as error:
            return f"the command succeeded, and may be run again: {error}"
        self._reporter.info("kept", f"counts as done for {seconds:g} s", seconds=seconds)
        return None

    def _release(self, stack: ExitStack) -> str | None:
        """Release the lock; return the reason if the lease was lost."""
        try:
            stack.close()
        except LeaseLost as error:
            return str(error)
        except NodeError as error:
            self._reporter.warn("unreleased", str(error))
        return None

    def _status(self, ended: ChildEnded, lost: str | None, *, is_held_on: bool) -> int:
        if ended.in_time and lost is None:
            return ended.status
        self._reporter.warn("lost", lost if ended.in_time and lost else self._ending(lost))
        # The lease was lost after the command had ended well, or --on-lost=warn allows it.
        is_minor = is_held_on or self._plan.orders.on_lost == "warn"
        return ended.status if is_minor else EX_LOST

    def _ending(self, lost: str | None) -> str:
        """Return the reason why the command was ended.

        A planned end comes first: on a busy machine the lease may be over before its release, but
        that is not the reason.
        """
        plan = self._plan
        if not plan.renew:
            return f"the ttl of {plan.lock.ttl:g} s is over, and with --no-renew so is the command"
        # TERM is sent when an extension by a whole ttl would exceed the limit.
        if now() + plan.lock.ttl > self._began + plan.max_hold:
            return f"the command was ended: --max-hold of {plan.max_hold:g} s is spent"
        return lost or "the command was ended: no quorum of nodes renewed the lease in time"

    def _under(self, lease: Lease) -> ChildEnded:
        self._began = now()
        child, valid_until = self._child, lease.valid_until
        facts = {"ttl": lease.ttl, "fence": lease.fence, "valid_until": valid_until}
        self._reporter.info("acquired", "acquired", **facts)
        child.start(_environment(lease), valid_until)
        ended = self._watch(lease)
        facts = {"status": ended.status, "valid_until": child.valid_until}
        self._reporter.info("ended", f"the command ended with status {ended.status}", **facts)
        return ended

    def _watch(self, lease: Lease) -> ChildEnded:
        child, signals, is_reported = self._child, self._signals, False
        while True:
            sources: list[Child | Signals] = [child, signals]
            ready = readable(sources, self._look)
            child.wake()
            for number in self._signalled():
                child.signal(number)
            if child in ready and (ended := child.receive()) is not None:
                return ended
            valid_until = lease.valid_until
            if now() < valid_until:
                child.until(valid_until)
            elif child.pid and not is_reported:
                is_reported = True
                self._lose()

    def _signalled(self) -> list[int]:
        """Return the signals that have arrived; those that mean an end also end --min-hold."""
        numbers = self._signals.taken()
        self._is_ending |= any(means_an_end(number) for number in numbers)
        return numbers

    def _lose(self) -> None:
        if self._plan.orders.on_lost == "warn":
            self._reporter.warn("lost", "the lease is lost; the command runs on without it")
        else:
            self._reporter.warn("lost", "the lease is lost; the command is being ended")
            self._child.end()

    def _hold_on(self, lease: Lease) -> bool:
        """Hold the lock for min_hold, and return whether that was necessary.

        A signal that means an end also ends this, even if it was forwarded to the command. If the
        operator stops this process, others need not be kept from starting.
        """
        until = self._began + self._plan.min_hold
        is_needed = now() < until and lease.held and not self._is_ending
        if is_needed:
            left = until - now()
            sentence = f"holding the lock for {left:.1f} s more, because of --min-hold"
            self._reporter.info("holding", sentence, seconds=left)
        while (left := until - now()) > 0 and lease.held and not self._is_ending:
            readable([self._signals], min(left, self._look))
            self._signalled()
        return is_needed


def _environment(lease: Lease) -> dict[str, str]:
    """Return the command's environment: the inherited one with the lease, without passwords."""
    left_out = {_FENCE, _PERMIT, *secret_variables()}
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    values = {
        "QUORLOCK_RESOURCE": lease.resource,
        "QUORLOCK_TOKEN": lease.token,
        "QUORLOCK_TTL": f"{lease.ttl:g}",
        "QUORLOCK_VALID_UNTIL": f"{lease.valid_until:.3f}",
        "QUORLOCK_VALID_FOR": f"{lease.validity:.3f}",
    }
    numbers = {_FENCE: lease.fence, _PERMIT: lease.permit}
    given = {name: str(number) for name, number in numbers.items() if number is not None}
    return inherited | values | given
