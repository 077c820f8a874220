"""Renews leases: one task for all of a Redlock's in an event loop, alive while there are any.

Its commands go down the same ordered connections as those of all other tasks, so what is sent to
give a lease back comes after whatever was sent to keep it: nobody waits for the task to stop.  The
loss of a lease is told by the alarm, whatever becomes of this task.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING

from quorlock._core.renewal import Agenda, renew
from quorlock._drivers import fork
from quorlock._drivers.asyncio import Driver
from quorlock._drivers.clock import now
from quorlock._drivers.way import silence
from quorlock._face.renewing import Kept, Renewer, log_trouble
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.effects import Chance
    from quorlock._core.renewal import Renewal
    from quorlock._core.time import Instant
    from quorlock._face.lease import LeaseBase
    from quorlock._face.session import Session
    from quorlock._face.terms import Warns


class _Kept(Kept):
    """Belongs to the loop in which it was acquired."""

    __slots__ = ("_task",)

    def __init__(
        self,
        task: _Task,
        lease: LeaseBase[Driver],
        on_warning: Warns | None,
        at: Instant,
        chance: Chance,
    ) -> None:
        super().__init__(lease, on_warning, at, chance)
        self._task = task

    def stop(self) -> None:
        self._task.drop(self)


class Tasks(Renewer[Driver]):
    """The tasks of all loops."""

    def __init__(self, session: Session[Driver]) -> None:
        super().__init__(session)
        self.forget()
        fork.register(self)

    def forget(self) -> None:
        """In a forked child: the leases are the parent's."""
        self._tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Task] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, lease: LeaseBase[Driver], on_warning: Warns | None) -> None:
        """Renew it from now on, until it is over."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is None:
            task = self._tasks[loop] = _Task(self)
        task.add(_Kept(task, lease, on_warning, now(), self.chance))

    async def close(self) -> None:
        """End the task of this loop. Its leases are not given back by it."""
        task = self._tasks.pop(asyncio.get_running_loop(), None)
        if task is not None:
            await task.close()


class _Task:
    """One loop's."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._agenda = Agenda()
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._until: Instant = 0  # it sleeps until then
        self._hints: list[Sequence[bytes] | None] = []

    def add(self, renewal: _Kept) -> None:
        renewal.kept.renewal = renewal
        self._agenda.add(renewal)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._work(), name="quorlock renewal"
            )
            silence(self._task)
        elif renewal.due < self._until:
            self._news.set()

    def drop(self, renewal: Renewal) -> None:
        """Its lease is over."""
        self._agenda.drop(renewal)
        if not self._agenda:
            self._news.set()

    async def close(self) -> None:
        """Not by cancelling: whoever closes may be in here, by on_warning."""
        task, self._agenda = self._task, Agenda()
        self._news.set()
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])

    def _hinted(self, keys: Sequence[bytes] | None) -> None:
        # All commands of the loop go down these connections: most keys are not of renewed leases.
        if self._agenda.knows(keys):
            self._hints.append(keys)
            self._news.set()

    async def _work(self) -> None:
        with contextlib.suppress(QuorlockError):  # closed meanwhile
            self._tasks.driver.watch(self._hinted)
        while self._agenda:
            hints, self._hints = self._hints, []
            for keys in hints:
                self._agenda.hint(keys, now())
            due = self._agenda.take(now())
            if due:
                await self._renew(due)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        """Until something is due, or there is news."""
        next_due = self._agenda.next_due()
        if next_due is None or self._hints:
            return
        self._news.clear()
        self._until = next_due
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(0, next_due - now()) / 1e9, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    async def _renew(self, due: Sequence[Renewal]) -> None:
        tasks, agenda = self._tasks, self._agenda
        try:
            await tasks.driver.run(renew(due, now(), tasks.policy, tasks.chance))
        except Exception as error:  # noqa: BLE001 (whatever it is: those that can go on go on)
            if tasks.driver.closed or agenda is not self._agenda:
                return
            log_trouble("renewal failed, and will be tried again", error)
        over, warned = agenda.settle(due, now())
        for flow in tasks.lost(over):
            tasks.driver.send_later(flow)
        tasks.warn(warned)


def renewer(session: Session[Driver]) -> Tasks:
    """The session's one, made when it is first needed."""
    if not session.renewers:
        session.renewers.append(Tasks(session))
    first = session.renewers[0]
    assert isinstance(first, Tasks)
    return first
