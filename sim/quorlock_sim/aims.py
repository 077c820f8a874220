"""A pause or a crash of one client just before one of its steps.

A step is an event that concerns the client: a timer of it, a request of it that a node gets, a
reply or a call that it reads.  The scenario `steps` has a world for each step of a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock_sim.network import Message
from quorlock_sim.plan import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock_sim.world import World


class Aimed:
    """The steps of the client that a plan aims at."""

    def __init__(self, world: World) -> None:
        assert world.plan.aim is not None
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
        world.strike(Fault(world.now, aim.kind, aim.client, lasts=aim.lasts))
