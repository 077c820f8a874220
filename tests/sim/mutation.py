"""A break of the lock, planted while a world runs, and the search for a world that shows it.

`mutations`, `mutations_waiting` and `mutations_several` have the breaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quorlock_sim.history import Violation
from quorlock_sim.oracle import judge
from quorlock_sim.scenarios import plan_of
from quorlock_sim.world import World

WORLDS_MAX = 20_000


@contextlib.contextmanager
def applied(pieces: tuple[tuple[Any, str, Any], ...]) -> Iterator[None]:
    """Put something in place of something, and the old back in the end."""
    before = [getattr(where, name) for where, name, _ in pieces]
    try:
        for where, name, variant in pieces:
            setattr(where, name, variant)
        yield
    finally:
        for (where, name, _), old in zip(pieces, before, strict=True):
            setattr(where, name, old)


@dataclass(frozen=True)
class Mutation:
    """One break.

    rule: the promise that is seen to be broken by it. scenario: where to look. pieces: what is
    put in place of what.
    """

    name: str
    rule: str
    pieces: tuple[tuple[Any, str, Any], ...]
    scenario: str = "sound"

    def applied(self) -> contextlib.AbstractContextManager[None]:
        """Plant the defect in the `with` block."""
        return applied(self.pieces)

    def violations(self, seed: int) -> tuple[Violation, ...]:
        """Return the violations of that world with this defect."""
        with self.applied():
            world = World(plan_of(self.scenario, seed))
            world.run()
            return judge(world).violations


def search(mutation: Mutation, first: int = 0, most: int = WORLDS_MAX) -> int | None:
    """The first seed whose world breaks the mutation's promise."""
    for seed in range(first, first + most):
        if any(found.rule == mutation.rule for found in mutation.violations(seed)):
            return seed
    return None
