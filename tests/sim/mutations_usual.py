"""Breaks of a call that runs without a flow; see `mutations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.acquiring import acquire
from quorlock._core.effects import Send
from quorlock._core.results import Acquired
from quorlock._core.usual import UsualAcquire
from tests.sim.mutation import Mutation

if TYPE_CHECKING:
    from quorlock._core.effects import Flow
    from quorlock._core.rounds import SentRound


def releases_nothing(self: UsualAcquire, sent_round: SentRound | None) -> Send:
    """Release another token when the caller is cancelled."""
    target = None if sent_round is None else sent_round.target
    return Send(self._request.claim.release(b"another"), target)


def begins_again(self: UsualAcquire, sent_round: SentRound | None) -> Flow[Acquired]:
    """Forget the round that was sent, which is then not released."""
    del sent_round
    return acquire(self._request, self._policy, self._entropy, self._lines)


MUTATIONS = (
    Mutation(
        "without a flow: cancelled and not released",
        "leftover",
        ((UsualAcquire, "cancelled", releases_nothing),),
    ),
    Mutation(
        "without a flow: the flow begins again",
        "leftover",
        ((UsualAcquire, "flow", begins_again),),
    ),
)
