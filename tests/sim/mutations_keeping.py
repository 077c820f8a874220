"""Breaks of keeping a lock as done; see `mutations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core import keeping
from quorlock._core.commands import Keep
from quorlock._core.keeping import KeepResult
from quorlock._core.votes import Vote
from quorlock.testing.fake_node import FakeNode, Reply
from tests.sim.mutation import Mutation

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Flow
    from quorlock._core.redlock import LeaseFacts
    from quorlock._core.time import Instant

_keep = FakeNode.keep
_round = keeping._round


def keeps_anothers(self: FakeNode, command: Keep, at: int) -> Reply:
    """Set the mark whatever token is there."""
    entry = self.alive(command.key, at)
    token = entry.value if entry is not None and entry.value else command.token
    return _keep(self, command._replace(token=token), at)


def one_is_enough(
    command: Keep, facts: LeaseFacts, policy: Policy
) -> Flow[tuple[KeepResult, Instant]]:
    """Count a single mark as kept."""
    result, ended = yield from _round(command, facts, policy)
    if any(answer.vote is Vote.GRANTED for answer in result.answers):
        result = result._replace(loss=None)
    return result, ended


def shorter_than_promised(*arguments: Any) -> Any:
    """Ask for half of the time."""
    facts, mark, kept_ms, *rest = arguments
    return _kept(facts, mark, kept_ms // 2, *rest)


_kept = keeping.keep

MUTATIONS = (
    Mutation(
        "kept without comparing", "deletion", ((FakeNode, "keep", keeps_anothers),), "keeping"
    ),
    Mutation("kept without a quorum", "overlap", ((keeping, "_round", one_is_enough),), "keeping"),
    Mutation(
        "mark expires early",
        "overlap",
        ((keeping, "keep", shorter_than_promised),),
        "keeping",
    ),
)
