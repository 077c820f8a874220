"""The deadlines of an event loop's waits for replies and for slots, and their one timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._drivers.clock import now, sleep_seconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from quorlock._core.time import Duration, Instant
    from quorlock._drivers.aio.abc import RunningFlow
    from quorlock._drivers.aio.batching import SharedPipeline
    from quorlock._drivers.aio.loops import Guard

# So many times `node_timeout` replies that have come are read before a wait ends.
_READ_LATE_MAX = 20


class Deadlines:
    """The deadlines of all flows that wait for a reply or for a slot.

    One timer serves all flows. Most rounds have the same time to reply, and when the timer fires,
    mostly none of the flows that it was set for is left. A timer for each costs a tenth of a cycle.
    A queue of them would keep ended flows alive for the garbage collector to scan.

    unsent: Flows whose bytes are not sent yet: their nodes' time to reply begins with `on_sent`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guarded: Guard,
        tasks: Collection[RunningFlow],
        shared_pipeline: SharedPipeline,
        node_timeout: Duration,
        has_unread: Callable[[], bool],
    ) -> None:
        self.node_timeout = node_timeout
        self._has_unread = has_unread
        self._loop = loop
        self._guarded = guarded
        self._tasks = tasks
        self._shared_pipeline = shared_pipeline
        self.unsent: list[RunningFlow] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant = 0

    def wait_until(self, until: Instant, task: RunningFlow) -> None:
        """Have `task.on_deadline` called at `until`, if the flow still waits then."""
        if until < task.last_sent_at + self.node_timeout:
            task.reply_deadline = FOR_EVER
            task.set_timer(until)  # a round that may not outlive a lease
        elif self._shared_pipeline.outgoing.rounds:
            # A node's time begins when its bytes are sent, even if that is late in this tick.
            task.reply_deadline = FOR_EVER
            self.unsent.append(task)
        else:
            task.reply_deadline = until
            self.check_at(until)

    def on_sent(self) -> None:
        """Begin the nodes' time to reply: the bytes of all flows are sent now."""
        if self.unsent:
            due = now() + self.node_timeout
            for task in self.unsent:
                until = task.replies_until
                task.reply_deadline = max(due, until)
            self.unsent.clear()
            self.check_at(due)

    def check_at(self, until: Instant) -> None:
        """Have the deadlines checked at `until`, if not earlier."""
        if self._timer is not None:
            if self._timer_at <= until:
                return
            self._timer.cancel()
        self._timer_at = until
        self._timer = self._loop.call_later(sleep_seconds(until), self._guarded(self._on_timer))

    def _on_timer(self) -> None:
        self._timer = None
        at = now()
        late: list[RunningFlow] = []
        next_due = FOR_EVER
        for task in self._tasks:
            if task.reply_deadline <= at:
                late.append(task)
            elif task.reply_deadline < next_due:
                next_due = task.reply_deadline
        if late:
            self.final_read_then_timeout(late, at)
        if next_due < FOR_EVER:
            self.check_at(next_due)

    def final_read_then_timeout(self, tasks: list[RunningFlow], at: Instant) -> None:
        """Call `on_deadline` of these flows after one last read of the sockets.

        Bytes that arrived while this tick was busy are read in the next ones. If the loop is late,
        nodes on this machine may have been stalled as well. So they get that time again, by
        `node_timeout` at most (as in `ConnectionSet.receive`).
        """
        lateness = at - min([task.reply_deadline for task in tasks])
        extra = min(lateness, self.node_timeout) // NS_PER_MS * NS_PER_MS
        self._loop.call_later(extra / 1e9, self._guarded(self._end_waits, tasks, at))

    def _end_waits(self, tasks: list[RunningFlow], until: Instant) -> None:
        """End these waits when all that has come is read: a tick reads one buffer of each node."""
        if self._has_unread() and now() < until + _READ_LATE_MAX * self.node_timeout:
            self._loop.call_soon(self._guarded(self._end_waits, tasks, until))
            return
        for task in tasks:
            task.on_deadline(until)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reset(self) -> None:
        """Forget all flows, which are cancelled."""
        self.unsent.clear()
        self.stop()
