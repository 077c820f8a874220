"""A pause or a crash of one client just before one of its steps.

A step is an event that concerns the client: a timer of it, a request of it that a node gets, a
reply or a call that it reads.  The scenario `steps` has a world for each step of a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core.commands import ACQUIRES, Release
from quorlock._core.time import NS_PER_MS
from quorlock_sim.network import Message
from quorlock_sim.plan import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock_sim.client import Process
    from quorlock_sim.world import World


class Aimed:
    """The steps of the client that a plan aims at.

    Attributes:
        quiet_at: the instant from which on no key of the client explains a wait; None: no step was
            the one, so nothing has happened.
    """

    def __init__(self, world: World) -> None:
        assert world.plan.aim is not None
        self.quiet_at: int | None = None
        self._aim = world.plan.aim
        self._world = world
        self._process = world.processes[self._aim.client]
        self._left = self._aim.step

    def before(self, act: Callable[[Any], None], what: Any) -> None:
        """Strike, if this event is the one."""
        if self._left < 0 or not self._is_step(act, what):
            return
        self._left -= 1
        if self._left < 0:
            self._strike()

    def _is_step(self, act: Callable[[Any], None], what: Any) -> bool:
        if isinstance(what, Message):
            return what.link.process is self._process
        return getattr(act, "__self__", None) is self._process

    def _strike(self) -> None:
        aim, world = self._aim, self._world
        may_leave_keys = _may_leave_keys(self._process)
        if not world.strike(Fault(world.now, aim.kind, aim.client, lasts=aim.lasts)):
            return
        self.quiet_at = world.now
        if may_leave_keys:
            max_ttl = world.policy.max_ttl
            self.quiet_at += max_ttl + max_ttl // 50 + NS_PER_MS


def _may_leave_keys(process: Process) -> bool:
    """Return whether keys of attempts, or of leases that are being released, may be on nodes."""
    links = [link for ways in process.links for link in ways if link is not None]
    commands = [turn.command for turn in process.turns]
    commands += [request.command for link in links for request in link.pipeline.pending]
    return any(isinstance(command, (*ACQUIRES, Release)) and command.token for command in commands)
