"""Every order in small worlds: what the search leaves out changes nothing, and what is broken is
found. Hand-written orders are sound as shipped, and each shows the break that it is aimed at.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorlock._core.debts import Debts
from quorlock.testing import explore
from quorlock.testing.choices import KINDS, Choice, ChosenWorld, Small
from quorlock.testing.diagram import diagram
from quorlock.testing.directed import ALL, BEYOND, Directed, NoSuchChoice, play
from quorlock.testing.explore import Search, independent, numbers, replay
from quorlock.testing.trace import Trace
from tests.simulation.mutations import MUTATIONS, Mutation


def settled_at_once(self: Debts, token: bytes, run_id: str, *, deleted: bool) -> None:
    """A debt is paid once, whatever old bytes may still come."""
    self._by_token.pop(token, None)


OURS = (Mutation("paid once is settled", "leftover", ((Debts, "answered", settled_at_once),)),)
BREAKS = {mutation.name: mutation for mutation in (*MUTATIONS, *OURS)}


def everything(small: Small) -> Search:
    """Every single order, without any reduction."""
    return Search(small, sleeping=False, merging=False, eager=False).run()


def every_state(small: Small) -> Search:
    """Known states are left, and nothing else."""
    return Search(small, sleeping=False, eager=False).run()


# --- what is left out --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "small",
    [
        Small(nodes=1, jumps=1),
        Small(nodes=2, clients=1, jumps=1),
        Small(nodes=1, clients=1, jumps=1, crashes=1),
        Small(nodes=1, clients=1, jumps=1, breaks=1),
        Small(nodes=1, clients=1, jumps=1, pauses=1),
        Small(nodes=2, clients=1, jumps=0, timeouts=1),
        Small(nodes=1, clients=1, jumps=0, timeouts=2, crashes=1),
    ],
    ids=["two clients", "two nodes", "a crash", "a break", "a pause", "timeouts", "both"],
)
def test_reduced_and_unreduced_search_come_to_the_same(small: Small) -> None:
    reduced, unreduced = Search(small).run(), everything(small)
    assert reduced.complete
    assert unreduced.complete
    assert reduced.outcomes == unreduced.outcomes
    assert len(reduced.outcomes) > 1
    assert reduced.executions < unreduced.executions / 1.5


@pytest.mark.parametrize(
    "small",
    [
        Small(nodes=2, jumps=0),
        Small(nodes=1, jumps=0, crashes=1, memory="quarantine"),
        Small(nodes=1, jumps=0, breaks=1),
    ],
    ids=["two nodes", "a crash", "a break"],
)
def test_sleep_sets_lose_no_outcome(small: Small) -> None:
    reduced, states = Search(small).run(), every_state(small)
    assert reduced.outcomes == states.outcomes
    assert reduced.transitions < states.transitions


@pytest.mark.parametrize("name", ["SET without NX", "quorum of N/2", "drift left out"])
def test_reduction_hides_no_violation(name: str) -> None:
    small = Small(nodes=2 if name == "quorum of N/2" else 1, jumps=2)
    with BREAKS[name].applied():
        reduced = Search(small, stop_after=1).run()
        states = Search(small, sleeping=False, eager=False, stop_after=1).run()
    assert reduced.found
    assert states.found


@pytest.mark.parametrize(
    "small",
    [
        Small(nodes=2, jumps=1, crashes=1, breaks=1),
        Small(nodes=2, jumps=1, timeouts=2, crashes=1, memory="quarantine"),
    ],
    ids=["time", "timeouts"],
)
def test_what_commutes_commutes(small: Small) -> None:
    """In every state on one way through a small world, both orders of each such pair agree."""
    from quorlock.testing.frozen import Naming, digest

    path: list[Choice] = []
    tried = 0
    while choices := _at(small, path).choices():
        for one in choices:
            for other in choices:
                if one < other and independent(one, other):
                    states = [
                        digest(_at(small, [*path, *order]), Naming([0, 1]))
                        for order in ((one, other), (other, one))
                    ]
                    assert states[0] == states[1], (path, one, other)
                    tried += 1
        path.append(choices[len(path) * 7 % len(choices)])
    assert tried > 50


def _at(small: Small, path: list[Choice]) -> ChosenWorld:
    world = ChosenWorld(small, eager=False)
    for choice in path:
        world.perform(choice)
    return world


# --- as shipped --------------------------------------------------------------------------------


def test_two_nodes_and_two_clients_in_every_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of it; three nodes: `make explore`."""
    search = Search(Small(nodes=2, clients=2, jumps=0)).run()
    with capsys.disabled():
        print("", *explore.table(search), sep="\n")
    assert search.complete
    assert len(search.outcomes) > 1


def test_a_part_of_three_nodes_with_a_crash_and_time() -> None:
    search = Search(Small(nodes=3, clients=2, jumps=2, crashes=1), most=1_000).run()
    assert not search.found
    assert search.executions == 1_000


@pytest.mark.parametrize(
    "small",
    [
        Small(nodes=1, jumps=0, crashes=1),
        Small(nodes=1, jumps=0, breaks=1),
        Small(nodes=1, jumps=1, crashes=1, memory="quarantine"),
    ],
    ids=["crash", "break", "quarantine"],
)
def test_a_world_of_one_node_is_sound_in_every_order(small: Small) -> None:
    search = Search(small).run()
    assert search.complete
    assert search.endings > 0


# --- broken ------------------------------------------------------------------------------------

# In which world it is found, and by which choices: the numbers that `--replay` takes.
KEPT: dict[str, tuple[Small, str]] = {
    "quorum of N/2": (Small(jumps=0), "0,0,0"),
    "replies not tied to rounds": (
        Small(nodes=1, attempts=2, jumps=2),
        "0,0,0,0,0,1,0,0,1,0,0,0,0,0,0",
    ),
    "token reused between attempts": (
        Small(nodes=1, clients=1, attempts=2, jumps=2, breaks=1),
        "1,0,2,0,2,1,1,1,0,0,0",
    ),
    "release by plain DEL": (
        Small(clients=3, jumps=0),
        "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
    ),
    "give-back only on nodes that said yes": (
        Small(jumps=1),
        "0,0,0,0,0,0,0,0,0,0,0,1,0,0,0,0,2,0,0",
    ),
    "restarted empty inside the ttl, votes at once": (
        Small(nodes=1, jumps=0, crashes=1, memory="lost"),
        "1,0,0,0,0,0,0,0,0,0,0,0",
    ),
    "drift left out": (Small(nodes=1, jumps=3), "0,0,0,2,0,0,0"),
    "release overtaking acquire": (
        Small(clients=1, bundles=2, jumps=0),
        "0,0,0,0,0,1,0,0,0,0,1,0,0,0",
    ),
    "debt not paid after a reconnect": (
        Small(nodes=1, clients=1, breaks=1, jumps=0),
        "1,0,0,0,1,0",
    ),
    "no debt for a lost connection": (
        Small(nodes=1, clients=1, breaks=1, jumps=0),
        "1,0,0,0,1,0",
    ),
    "extend counted after the old validity": (
        Small(nodes=1, clients=1, extension_ms=200, jumps=2, slips=1, pauses=1),
        "0,0,0,3,0,0,1,0,1,1,0",
    ),
    "extension that may shorten": (
        Small(nodes=1, extension_ms=150, jumps=1),
        "0,0,0,1,0,0,2,0,0,0",
    ),
    "even-N tie waits for ever": (
        Small(nodes=2, jumps=0),
        "0,0,0,0,0,0,0,2,0,0,0,0,1,1,0",
    ),
    "SET without NX": (Small(jumps=0), "0,0,0,0,0,0,0,0,0,0,0"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_break_is_found_and_its_choices_are_kept(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small, kept = KEPT[name]
    with BREAKS[name].applied():
        search = Search(small, stop_after=1).run()
        found = search.found[0]
        chosen = numbers(small, found.path)
        _, judgement, _ = replay(small, chosen)
    with capsys.disabled():
        text = ",".join(map(str, chosen))
        print(f"\n{name}: {found.violation.rule} after {found.executions:,} executions: {text}")
    assert found.violation.rule in {violation.rule for violation in judgement.violations}
    assert chosen == [int(number) for number in kept.split(",")]


def test_what_is_found_can_be_replayed_and_drawn() -> None:
    small = Small(nodes=1, clients=3, jumps=0)
    with BREAKS["release by plain DEL"].applied():
        found = Search(small, stop_after=1).run().found[0]
        chosen = numbers(small, found.path)
        trace = Trace()
        _, judgement, path = replay(small, chosen, trace=trace)
    assert path == found.path
    assert "overlap" in {violation.rule for violation in judgement.violations}
    assert "VIOLATION (overlap)" in diagram(trace.lines)
    _, judgement, _ = replay(small, chosen[:3])
    assert not judgement.violations


def test_every_kind_of_choice_is_made() -> None:
    small = Small(nodes=2, clients=1, jumps=1, slips=1, crashes=1, breaks=1, pauses=1)
    seen: set[str] = set()
    kinds = [*KINDS]
    for first in range(len(kinds)):
        world = ChosenWorld(replace(small, timeouts=first % 2))
        wanted = kinds[first:] + kinds[:first]
        while choices := world.choices():
            choice = min(choices, key=lambda choice: wanted.index(choice.kind))
            seen.add(choice.kind)
            world.perform(choice)
    assert seen == set(KINDS)


# --- directed ----------------------------------------------------------------------------------


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


# --- the command line --------------------------------------------------------------------------


def test_the_command_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore.main(["--nodes", "1", "--crashes", "0", "--jumps", "1"]) == 0
    printed = capsys.readouterr().out
    assert "distinct outcomes" in printed
    assert "all of it" in printed


def test_the_command_fails_on_a_violation_and_replays_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bounds = ["--nodes", "1", "--crashes", "1", "--jumps", "0", "--memory", "lost"]
    assert explore.main(bounds) == 1
    printed = capsys.readouterr().out
    way = printed.split("--replay ")[1].split()[0]
    assert explore.main([*bounds, "--replay", way]) == 1
    assert "VIOLATION (overlap)" in capsys.readouterr().out


def test_the_command_refuses_what_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--nodes", "0"], ["--jumps", "-1"], ["--attempts", "3"], ["--replay", "x"]):
        with pytest.raises(SystemExit):
            explore.main(wrong)
    assert explore.main(["--replay", "99"]) == 2
    assert "no such choice" in capsys.readouterr().err
