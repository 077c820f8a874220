"""Hand-written orders of events: sound as shipped, and each shows the break that it is aimed at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorlock._core.commands import Release
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.votes import Answer
from quorlock._core.waiter import Waiter
from quorlock_sim.choices import KINDS, ChosenWorld, SmallWorld
from quorlock_sim.directed import ALL, BEYOND, Directed, NoSuchChoice, play
from quorlock_sim.trace import Trace
from quorlock_sim.view.diagram import diagram
from tests.sim.mutation import Mutation
from tests.sim.mutations import MUTATIONS


def settled_at_once(self: PendingReleases, release: Release, run_id: str, answer: Answer) -> None:
    """Send a pending release only once, regardless of old bytes."""
    if answer.is_done:
        self._by_token.pop(release.token, None)


def drops_calls(self: Waiter) -> None:
    """Calls that come during an attempt count for nothing."""
    self.on_attempt()
    _on_attempt_lost(self)


_on_attempt_lost = Waiter.on_attempt_lost
OURS = (
    Mutation(
        "calls dropped while a round is decided",
        "idle",
        ((Waiter, "on_attempt_lost", drops_calls),),
    ),
    Mutation(
        "sent once is confirmed", "leftover", ((PendingReleases, "on_reply", settled_at_once),)
    ),
)
BREAKS = {mutation.name: mutation for mutation in (*MUTATIONS, *OURS)}


def test_every_kind_of_choice_is_made() -> None:
    small = SmallWorld(nodes=2, clients=1, jumps=1, slips=1, crashes=1, breaks=1, pauses=1)
    seen: set[str] = set()
    kinds = [*KINDS]
    for first in range(len(kinds)):
        world = ChosenWorld(small)
        wanted = kinds[first:] + kinds[:first]
        while choices := world.choices():
            choice = min(choices, key=lambda choice: wanted.index(choice.kind))
            seen.add(choice.kind)
            world.perform(choice)
    assert seen == set(KINDS)


@pytest.mark.parametrize("directed", ALL, ids=lambda directed: directed.name)
def test_a_directed_order_is_sound_as_shipped(directed: Directed) -> None:
    _, judgement = play(directed)
    assert judgement.violations == ()


@pytest.mark.parametrize(
    "directed",
    # Those of restarts keep their memory, or keep out: what a guard makes of `BEYOND`.
    [d for d in ALL if BREAKS[d.aimed_at].pieces and not d.name.startswith("restart_")],
    ids=lambda directed: directed.name,
)
def test_a_directed_order_shows_what_it_is_aimed_at(directed: Directed) -> None:
    with BREAKS[directed.aimed_at].applied():
        _, judgement = play(directed)
    assert directed.rule in {violation.rule for violation in judgement.violations}


@pytest.mark.parametrize("directed", BEYOND, ids=lambda directed: directed.name)
def test_what_redlock_rules_out_breaks_it(directed: Directed) -> None:
    """A node that forgot and votes at once: these small worlds have no guard."""
    _, judgement = play(directed)
    assert "overlap" in {violation.rule for violation in judgement.violations}
    assert judgement.assumptions.memory


def test_a_directed_order_that_cannot_happen_says_so() -> None:
    directed = replace(ALL[0], steps=("begin c0", "request c0 n7"))
    with pytest.raises(NoSuchChoice, match="request c0 n7"):
        play(directed)


def test_an_order_can_be_drawn() -> None:
    directed = next(one for one in ALL if one.name == "foreign_give_back")
    trace = Trace()
    with BREAKS[directed.aimed_at].applied():
        play(directed, trace)
    assert "VIOLATION (overlap)" in diagram(trace.lines)
