"""Shared settings: which clients may use a node, and which may write on one that has none."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock._core.agreement import (
    ADMIT,
    Agreement,
    Reading,
    Step,
    decide,
    name_of,
    parse,
    ttl_ms_max,
)
from quorlock._core.tally import quorum

GOOD = Agreement((3,), 30_000, 30_000, ("uptime",))
BAD = GOOD._replace(max_ttl_ms=60_000, guard_ms=60_000)
NAMED = GOOD._replace(name="a-b-c")
EMPTY = Reading("e", None)
# What each node keeps.
State: TypeAlias = tuple[Agreement | None, ...]


def kept(agreed: Agreement, run_id: str = "k") -> Reading:
    return Reading(run_id, agreed, agreed.text)


# --- the text --------------------------------------------------------------------------------


@given(
    st.builds(
        Agreement,
        st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True).map(tuple),
        st.integers(1, 10**9),
        st.integers(1, 10**9),
        st.sampled_from([("uptime",), ("marker",), ("None",), ("uptime", "marker")]),
        st.integers(1, 99),
        st.sampled_from(["", "1a2b-3c4d"]),
    )
)
def test_what_is_written_is_read(agreed: Agreement) -> None:
    assert parse(agreed.text) == agreed


def test_what_the_version_before_wrote_is_read_and_stays_as_it_is() -> None:
    text = "n=3 max_ttl_ms=30000 restart_guard=uptime"
    assert parse(text) == GOOD
    assert GOOD.text == text


@pytest.mark.parametrize(
    "text",
    ["", "n=3", "n=x max_ttl_ms=1 restart_guard=None", f"{GOOD.text} of=later", "n=1 of others"],
)
def test_unreadable_settings_admit_no_client(text: str) -> None:
    assert parse(text) is None
    if text:
        assert decide(GOOD, Reading("r", None, text), [], pending=False).step is Step.REFUSE


# --- who may use a node --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "fits"),
    [
        (GOOD, True),
        (GOOD._replace(max_ttl_ms=40_000, guard_ms=40_000), True),
        (GOOD._replace(max_ttl_ms=29_999, guard_ms=29_999), False),
        (GOOD._replace(sizes=(5,)), False),
        (GOOD._replace(guards=("marker",)), False),
    ],
    ids=range(5),
)
def test_a_client_fits(own: Agreement, fits: bool) -> None:
    """A client that quarantines nodes for longer is safe; its leases may not be longer."""
    decision = decide(own, kept(NAMED), [kept(NAMED)] * 2, pending=False)
    assert (decision.step is Step.ADMIT) is fits
    assert ttl_ms_max(NAMED, own) == (30_000 if own.max_ttl_ms == 40_000 else 0)


def test_two_sizes_while_a_node_is_added() -> None:
    agreed = NAMED._replace(sizes=(3, 4))
    for size in (3, 4):
        own = GOOD._replace(sizes=(size,))
        assert decide(own, kept(agreed), [kept(agreed)] * 2, pending=False) == ADMIT


def test_nodes_of_two_sets_do_not_vote_together() -> None:
    other = GOOD._replace(name="x-y-z")
    for admitted in ([], [""], ["a-b-c"]):
        assert decide(GOOD, kept(NAMED), [], pending=False, admitted=admitted) == ADMIT
    refused = decide(GOOD, kept(other), [kept(NAMED)], pending=False, admitted=["a-b-c"])
    assert refused.step is Step.REFUSE
    assert "another set of nodes (x-y-z)" in refused.text


def test_a_node_that_missed_a_change_does_not_vote() -> None:
    newer = kept(NAMED._replace(version=2))
    assert decide(GOOD, kept(NAMED), [newer, None], pending=False) == ADMIT
    refused = decide(GOOD, kept(NAMED), [newer, newer], pending=False)
    assert "missed a change" in refused.text
    assert decide(GOOD, newer, [kept(NAMED)] * 2, pending=False) == ADMIT


# --- nodes that keep nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "step"),
    [
        ([EMPTY, EMPTY], Step.WRITE),  # a fresh set
        ([EMPTY, None], Step.WRITE),
        ([None, None], Step.REFUSE),
        ([kept(GOOD), None], Step.WRITE),
        ([kept(GOOD), kept(GOOD)], Step.WRITE),
        ([kept(BAD), None], Step.WRITE),
        ([kept(BAD), kept(BAD)], Step.WRITE),
        ([kept(BAD), EMPTY], Step.WRITE),
        ([kept(BAD._replace(sizes=(3, 4))), EMPTY], Step.REFUSE),
        ([kept(BAD), kept(GOOD)], Step.WRITE),
        ([kept(BAD._replace(version=2)), kept(GOOD)], Step.WRITE),
        ([kept(GOOD._replace(sizes=(3, 4), version=2)), kept(GOOD)], Step.REFUSE),
        ([Reading("r", None, "strange"), None], Step.REFUSE),
    ],
    ids=range(13),
)
def test_a_node_that_keeps_nothing(others: list[Reading | None], step: Step) -> None:
    own = GOOD
    assert decide(own, EMPTY, others, pending=False).step is step


def test_a_client_writes_what_the_other_nodes_keep() -> None:
    """Also one that is refused by it: their own clients may be idle while the nodes restart."""
    for others in ([kept(BAD), kept(BAD)], [kept(BAD), None], [kept(BAD), EMPTY]):
        assert decide(GOOD, EMPTY, others, pending=False).text == BAD.text
    five = GOOD._replace(sizes=(5,))
    assert decide(five, EMPTY, [kept(BAD), EMPTY, None, None], pending=False).step is Step.REFUSE


def test_alone_it_writes_at_once() -> None:
    own = GOOD._replace(sizes=(1,))
    decision = decide(own, EMPTY, [], pending=False)
    assert (decision.step, decision.text) == (Step.WRITE, own._replace(name="e").text)


def test_it_waits_for_those_that_may_soon_be_known() -> None:
    assert decide(GOOD, EMPTY, [None, None], pending=True).step is Step.WAIT
    assert decide(GOOD, EMPTY, [EMPTY, None], pending=True).step is Step.WAIT, "for the name"


def test_what_is_written_is_what_the_others_keep() -> None:
    newer = NAMED._replace(version=4, max_ttl_ms=20_000)
    assert decide(GOOD, EMPTY, [kept(newer), kept(NAMED)], pending=False).text == newer.text


def test_the_set_gets_its_name_when_all_are_known() -> None:
    """Every client makes the same of them, in whatever order it lists them."""
    texts = set[str]()
    for ids in itertools.permutations(["one", "two", "three"]):
        here, *others = (Reading(run_id, None) for run_id in ids)
        texts.add(decide(GOOD, here, others, pending=False).text)
    assert texts == {GOOD._replace(name="one-three-two").text}
    named = decide(GOOD, kept(GOOD), [kept(NAMED), None], pending=False)
    assert named.text == NAMED.text
    assert decide(GOOD, kept(GOOD), [kept(GOOD), None], pending=False) == ADMIT
    assert name_of(["a b=c"]) == "a_b_c"


def test_a_node_is_not_named_where_the_others_do_not_agree() -> None:
    """Any of the names may be right; the client may use the node."""
    other = GOOD._replace(name="x-y-z")
    for disagreeing in ([kept(NAMED), kept(other)], [kept(NAMED), kept(BAD)]):
        assert decide(GOOD, kept(GOOD), disagreeing, pending=False) == ADMIT


# --- all orders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_client_with_other_settings_never_takes_over(n: int) -> None:
    """Every order of: a node restarts empty, the good client connects, the bad one does.

    As long as one node of a quorum remembers, no node keeps what the bad client wants.
    """
    good, bad = (a._replace(sizes=(n,)) for a in (GOOD, BAD))
    seen: set[State] = set()
    todo: list[State] = [(good,) * n]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        assert bad not in state
        for index in range(n):
            if sum(agreed is not None for agreed in state) > n - quorum(n) + 1:
                todo.append((*state[:index], None, *state[index + 1 :]))
            for own in (good, bad):
                todo += connected(own, state, index)
    assert len(seen) > n


def connected(own: Agreement, state: State, index: int) -> list[State]:
    """Return the state of the nodes when such a client connects to one, with any others known."""
    after: list[State] = []
    readings = [
        Reading(str(i), agreed, agreed.text if agreed else "") for i, agreed in enumerate(state)
    ]
    rest = [reading for i, reading in enumerate(readings) if i != index]
    for known in itertools.product([True, False], repeat=len(rest)):
        others = [r if is_known else None for r, is_known in zip(rest, known, strict=True)]
        decision = decide(own, readings[index], others, pending=False)
        if decision.step is Step.WRITE:
            written = parse(decision.text)
            assert written is not None
            after.append((*state[:index], written._replace(name=""), *state[index + 1 :]))
    return after


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 8))
def test_majorities_of_sets_that_differ_by_one_node_meet(n: int) -> None:
    """Ongaro, Consensus: Bridging Theory and Practice (2014), section 4.1. Those of two sets of
    equal size that differ by one do not.
    """
    smaller, larger = range(n), range(n + 1)
    for one in itertools.combinations(smaller, quorum(n)):
        for other in itertools.combinations(larger, quorum(n + 1)):
            assert set(one) & set(other)
    if n > 2 and n % 2:
        replaced = [*range(n - 1), n]
        pairs = itertools.product(
            itertools.combinations(smaller, quorum(n)), itertools.combinations(replaced, quorum(n))
        )
        # An odd number has a majority without the middle one.
        assert all(set(one) & set(other) for one, other in pairs) is (n == 1)


# --- two names in one list -----------------------------------------------------------------------


def named(name: str, *, is_current: bool = True) -> Reading:
    return Reading(f"run-{name}", OWN._replace(name=name), is_current=is_current)


OWN = Agreement((3,), 2_000, 2_000, ("uptime",))


def test_the_name_of_a_quorum_counts() -> None:
    """Whichever node was read first: the one with the other name is refused, not the two."""
    ours, foreign = named("x-y-z"), named("a-b-c")
    one = decide(OWN, ours, [foreign, None], pending=True, admitted=["a-b-c"])
    assert one.step is Step.WAIT
    alone = decide(OWN, ours, [foreign, None], pending=False, admitted=["a-b-c"])
    assert alone.step is Step.REFUSE
    two = decide(OWN, ours, [foreign, ours], pending=False, admitted=["a-b-c"])
    assert two.step is Step.ADMIT
    late = decide(OWN, foreign, [ours, ours], pending=False, admitted=["x-y-z"])
    assert late.step is Step.REFUSE


def test_a_name_that_may_be_forgotten_is_not_written() -> None:
    """All nodes restart empty at once: what one of them kept before names no other."""
    empty = Reading("new", None)
    old = named("x-y-z", is_current=False)
    decision = decide(OWN, empty, [old, Reading("newer", None)], pending=False)
    assert (decision.step, "x-y-z" in decision.text) == (Step.WRITE, False)
