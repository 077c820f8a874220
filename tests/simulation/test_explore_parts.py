"""A world taken apart is the same world: its states are those of the whole, its parts do what they
do there, and what is left out of the search changes nothing and hides no break.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from quorlock.testing import explore
from quorlock.testing.choices import ChosenWorld, Small
from quorlock.testing.explore import Search, Survey, numbers, replay
from quorlock.testing.frozen import Naming
from quorlock.testing.parts import Event, suffice
from quorlock.testing.states import Key, State, States, Step
from tests.simulation.test_explore import BREAKS, KEPT, everything

QUARANTINE = Small(nodes=1, jumps=1, timeouts=1, crashes=1, memory="quarantine")
OF_ONE_NODE = {
    "no time": Small(nodes=1, jumps=0),
    "time": Small(nodes=1, jumps=1),
    "timeouts": Small(nodes=1, jumps=0, timeouts=2),
    "two attempts": Small(nodes=1, clients=1, jumps=2, attempts=2),
    "a crash": Small(nodes=1, jumps=0, crashes=1),
    "both": Small(nodes=1, clients=1, jumps=0, timeouts=2, crashes=1),
    "both, lost": Small(nodes=1, clients=1, jumps=0, timeouts=2, crashes=1, memory="lost"),
    "both, quarantine": replace(QUARANTINE, clients=1),
}


def survey(small: Small, *, reduced: bool = True) -> Survey:
    """Every state of it."""
    return Survey(small, reduced=reduced).run()


# --- the same world ----------------------------------------------------------------------------


@pytest.mark.parametrize("small", OF_ONE_NODE.values(), ids=OF_ONE_NODE)
def test_the_parts_have_the_states_of_the_whole(small: Small) -> None:
    """To the state, where nothing is reduced in either: every order is the same order."""
    parts, whole = survey(small, reduced=False), Search(small, sleeping=False, eager=False).run()
    assert (parts.states, parts.transitions) == (whole.states, whole.transitions)
    assert parts.endings == whole.endings
    assert parts.outcomes == whole.outcomes
    assert parts.complete
    assert whole.complete


def test_the_parts_of_two_nodes_have_the_states_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two nodes the whole would merge states that differ by their names: here it does not."""
    small = Small(nodes=2, clients=1, jumps=0, timeouts=1, crashes=1)

    def as_they_are(_: ChosenWorld) -> Naming:
        return Naming([0, 1])

    monkeypatch.setattr(explore, "rename", as_they_are)
    parts, whole = survey(small, reduced=False), Search(small, sleeping=False, eager=False).run()
    assert (parts.states, parts.transitions) == (whole.states, whole.transitions)
    assert parts.outcomes == whole.outcomes


def test_a_way_through_the_parts_is_one_through_the_whole() -> None:
    """Whatever is chosen at random: the world can go that way, and comes to the same."""
    dice = Random(5)
    for small in (Small(jumps=0, timeouts=2, crashes=1), replace(QUARANTINE, nodes=3)):
        states = States(small)
        for _ in range(10):
            state, path = states.first, list[Step]()
            while steps := states.steps(state):
                path.append(dice.choice(steps))
                state = states.after(state, path[-1])
            chosen = numbers(small, states.retold(path), eager=False)
            world, judgement, _ = replay(small, chosen, eager=False)
            assert not judgement.violations
            calls = sorted(
                tuple((call.what, call.outcome) for call in world.history.calls if call.client == c)
                for c in range(small.clients)
            )
            assert states.concluded(state).calls == tuple(calls)


@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize(
    "small",
    [
        Small(nodes=1, jumps=1, timeouts=2, crashes=1, memory="quarantine"),
        Small(nodes=1, attempts=2, jumps=2),
        Small(nodes=3, clients=1, jumps=0, timeouts=1, crashes=1),
        Small(nodes=2, jumps=1),
    ],
    ids=["quarantine", "two attempts", "crash", "time"],
)
def test_a_client_goes_by_its_situation_alone(small: Small, *, reduced: bool) -> None:
    """However it came into it: it sends the same, and comes into the same situation again."""
    states = _explored(small, reduced=reduced)
    clients, tried = states.clients, 0
    events: dict[int, list[Event]] = {}
    for client, event in clients.found_out:
        events.setdefault(client, []).append(event)
    for (client, event), (after, _) in list(clients.found_out.items()):
        other_way = (*clients.paths[client], event)
        if clients.like[client] != client or clients.like[after] != after:
            continue
        if other_way == clients.paths[after]:
            continue
        for then in events.get(after, []):
            alone = clients.alone(other_way)
            assert alone.facts() == clients.facts[after]
            sent = alone.give(then)
            assert (clients.number(alone), sent) == clients.found_out[after, then]
            tried += 1
    assert tried > 20


def _explored(small: Small, *, reduced: bool) -> States:
    states = States(small, reduced=reduced)
    known, todo = {states.key(states.first)}, [states.first]
    while todo:
        state = todo.pop()
        for step in states.steps(state):
            after = states.after(state, step)
            if (key := states.key(after)) not in known:
                known.add(key)
                todo.append(after)
    return states


# --- what is left out --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "small",
    [
        *OF_ONE_NODE.values(),
        QUARANTINE,
        Small(nodes=1, jumps=0, timeouts=2, crashes=1),
        Small(nodes=1, clients=3, jumps=0),
        Small(nodes=2, jumps=0, timeouts=1),
        Small(nodes=2, clients=1, jumps=0, timeouts=2, crashes=1),
        Small(nodes=1, jumps=2),
        Small(nodes=3, clients=1, jumps=0, timeouts=2),
    ],
    ids=str,
)
def test_reduced_and_unreduced_survey_come_to_the_same(small: Small) -> None:
    reduced, unreduced = survey(small), survey(small, reduced=False)
    assert reduced.complete
    assert unreduced.complete
    assert reduced.outcomes == unreduced.outcomes
    assert reduced.states < unreduced.states


@pytest.mark.parametrize(
    "small",
    [
        Small(nodes=1, jumps=0),
        Small(nodes=2, clients=1, jumps=0, timeouts=1),
        OF_ONE_NODE["both"],
        OF_ONE_NODE["both, quarantine"],
    ],
    ids=["two clients", "timeouts", "both", "both, quarantine"],
)
def test_a_survey_comes_to_the_same_as_every_single_order(small: Small) -> None:
    reduced, unreduced = survey(small), everything(small)
    assert reduced.outcomes == unreduced.outcomes
    assert reduced.states < unreduced.executions


def test_nodes_and_clients_by_other_names_behave_alike() -> None:
    """States that differ by names have one key, and so have those that come after."""
    states = States(Small(jumps=0, timeouts=1, crashes=1))
    dice, tried = Random(1), 0
    for _ in range(10):
        state = states.first
        while steps := states.steps(state):
            keys = [_key_and_next_keys(states, one) for one in (state, *_renamed(states, state))]
            assert keys[0] == keys[1] == keys[2]
            tried += 1
            state = states.after(state, dice.choice(steps))
    assert tried > 100


def _renamed(states: States, state: State) -> tuple[State, State]:
    """With the nodes in another order, and with the clients."""
    turned = states.clients.number_of[2, 1, 0]
    clients = tuple(states.clients.renamed[client][turned] for client in state.clients)
    swapped = tuple(states.columns.swapped(column, (1, 0)) for column in state.columns)
    return (
        state._replace(columns=state.columns[::-1], clients=clients),
        state._replace(columns=swapped, clients=state.clients[::-1]),
    )


def _key_and_next_keys(states: States, state: State) -> tuple[Key, set[Key]]:
    after = {states.key(states.after(state, step)) for step in states.steps(state)}
    return states.key(state), after


def test_what_is_taken_at_once_disturbs_nobody() -> None:
    """It may be taken before or after whatever else may happen, and the same state follows."""
    small = Small(nodes=2, jumps=1, timeouts=2, crashes=1, memory="quarantine")
    dice, tried = Random(3), set[tuple[str, str]]()
    states = States(small, reduced=False)
    for _ in range(40):
        state = states.first
        while steps := states.steps(state):
            quiet = states.undisturbing(state)
            if quiet is not None:
                after = states.after(state, quiet)
                for other in steps:
                    if other == quiet:
                        continue
                    both = states.after(states.after(state, other), quiet)
                    assert states.after(after, other) == both, (quiet, other)
                    tried.add((quiet[0], other[0]))
            state = states.after(state, dice.choice(steps))
    assert {kind for kind, _ in tried} == {"reply", "request", "restart"}
    assert len(tried) > 10


# --- as shipped --------------------------------------------------------------------------------


def test_three_nodes_and_two_clients_in_every_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of it, without timeouts; with them, and with a crash: `make explore`."""
    search = survey(Small(jumps=0))
    with capsys.disabled():
        print("", *explore.table(search), sep="\n")
    assert search.complete
    assert len(search.outcomes) > 1


def test_two_nodes_with_timeouts_and_a_crash_are_sound_in_every_order() -> None:
    search = Survey(Small(nodes=2, jumps=0, timeouts=1, crashes=1)).run()
    assert search.complete
    assert search.endings > 0


# --- broken ------------------------------------------------------------------------------------

# Worlds in which a break is found by its timeouts or by its crash.
BY_TIMEOUTS: dict[str, Small] = {
    "give-back only on nodes that said yes": Small(nodes=2, clients=1, jumps=0, timeouts=1),
    "replies not tied to rounds": Small(nodes=1, attempts=2, jumps=0, timeouts=3),
    "debt not paid after a reconnect": Small(nodes=1, clients=1, jumps=0, crashes=1),
    "no debt for a lost connection": Small(nodes=1, clients=1, jumps=0, crashes=1),
    "restarted empty inside the ttl, votes at once": Small(
        nodes=1, jumps=0, timeouts=1, crashes=1, memory="lost"
    ),
    "release by plain DEL": Small(nodes=1, clients=3, jumps=0),
    "SET without NX": Small(nodes=2, jumps=0, timeouts=1, crashes=1),
    "quorum of N/2": Small(jumps=0, timeouts=2, crashes=1),
}
_IN_PARTS = {
    f"{name}, {number}": (name, small)
    for number, worlds in enumerate(({n: s for n, (s, _) in KEPT.items()}, BY_TIMEOUTS))
    for name, small in worlds.items()
    # Three clients at three nodes: what `Search` happens to meet soon is far from here.
    if suffice(small) and (small.nodes, small.clients) != (3, 3)
}


@pytest.mark.parametrize(("name", "small"), _IN_PARTS.values(), ids=_IN_PARTS)
def test_a_break_is_found_in_the_parts(name: str, small: Small) -> None:
    """And is confirmed by the whole, which the survey sees to."""
    with BREAKS[name].applied():
        reduced = Survey(small, stop_after=1).run()
        assert reduced.found
        assert not reduced.complete
        assert Survey(small, reduced=False, stop_after=1).run().found
        found = reduced.found[0]
        chosen = numbers(small, found.path, eager=False)
        _, judgement, _ = replay(small, chosen, eager=False)
    assert found.violation.rule in {violation.rule for violation in judgement.violations}


def test_a_late_call_is_seen_though_its_clock_stepped() -> None:
    """A deadline too many, in a round that waits for a tie to be decided."""
    with BREAKS["even-N tie waits for ever"].applied():
        found = Survey(Small(nodes=2, jumps=0, timeouts=3), stop_after=1).run().found
    assert found[0].violation.rule in ("deadline", "endless")


# --- the command line --------------------------------------------------------------------------


def test_the_command_replays_what_a_survey_found(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = ["--nodes", "1", "--crashes", "1", "--memory", "lost"]
    assert explore.main(bounds) == 1
    way = capsys.readouterr().out.split("--replay ")[1].split()[0]
    assert explore.main([*bounds, "--replay", way]) == 1
    assert "VIOLATION (overlap)" in capsys.readouterr().out


def test_the_command_can_run_the_whole_in_place_of_its_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bounds = ["--nodes", "1", "--clients", "1"]
    assert explore.main(bounds) == 0
    parts = capsys.readouterr().out
    assert explore.main([*bounds, "--whole"]) == 0
    whole = capsys.readouterr().out
    assert "all of it" in parts
    assert "all of it" in whole
    assert parts.splitlines()[0] == whole.splitlines()[0]


def test_some_worlds_cannot_be_taken_apart() -> None:
    assert suffice(Small(jumps=0, timeouts=2, crashes=1))
    whole = (Small(breaks=1), Small(pauses=1), Small(slips=1), Small(extension_ms=1))
    assert not any(map(suffice, (*whole, Small(bundles=2))))


def test_a_search_that_is_cut_is_not_whole() -> None:
    search = Survey(Small(jumps=0, timeouts=2, crashes=1), most=500).run()
    assert search.states == 500
    assert not search.complete
    assert not search.found
    assert ChosenWorld(search.small).choices()
