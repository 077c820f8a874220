"""The replays on the first page: each run is what its captions say, or it is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from quorlock.errors import StaleFence
from quorlock.fencing import FencedFile
from quorlock_sim import replays
from quorlock_sim.replays import Caption, Lived, ReplayError

if TYPE_CHECKING:
    from pathlib import Path

NAMES = tuple(replay.__name__ for replay in replays.ALL)


@cache
def lived(name: str) -> Lived:
    return replays.live(getattr(replays, name)())


def data(name: str) -> dict[str, Any]:
    return replays.data(lived(name))


def votes(name: str, client: int) -> set[int]:
    """The nodes that granted the attempt with which this client got the lock first."""
    won = replays.find(
        lived(name), Caption("outcome", {"client": client, "outcome": "granted"}, "")
    )
    facts = {"client": client, "token": won["token"], "command": "acquire", "vote": "granted"}
    return {
        event["node"]
        for event in lived(name).events
        if event["kind"] == "execute" and facts.items() <= event.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_caption_has_its_event_within_the_run(name: str) -> None:
    run = data(name)
    instants = [at for at, _ in run["captions"]]
    assert instants == sorted(instants)
    assert instants[0] == 0
    assert instants[-1] < run["end"]
    assert len(instants) == len(getattr(replays, name)().captions) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_captions_are_short_sentences(name: str) -> None:
    for _, text in data(name)["captions"]:
        assert text.endswith(".")
        assert "{" not in text
        for sentence in re.split(r"[.:] ", text):
            assert len(sentence.split()) <= 25, sentence


@pytest.mark.parametrize("name", NAMES)
def test_the_same_run_gives_the_same_data(name: str) -> None:
    again = replays.data(replays.live(getattr(replays, name)()))
    assert json.dumps(again) == json.dumps(data(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_its_faults_is_refused(name: str) -> None:
    replay = getattr(replays, name)()
    calm = replace(replay, plan=replace(replay.plan, faults=()))
    with pytest.raises(ReplayError, match="in the run"):
        replays.data(replays.live(calm))


def test_captions_in_another_order_are_refused() -> None:
    replay = replays.minority()
    turned = replace(replay, captions=replay.captions[::-1])
    with pytest.raises(ReplayError, match="too early in the run"):
        replays.data(replays.live(turned))


def test_two_holders_under_the_captions_of_the_guard_are_refused() -> None:
    replay = replace(replays.forgets(), plan=replays.two_holders().plan)
    with pytest.raises(ReplayError, match="no quarantine"):
        replays.data(replays.live(replay))


def test_a_verdict_of_no_overlap_needs_intact_assumptions() -> None:
    one = lived("two_holders")
    overlaps, one.story.overlaps = one.story.overlaps, []
    try:
        with pytest.raises(ReplayError, match="node 1 lost keys"):
            replays.verdict(one)
    finally:
        one.story.overlaps = overlaps


# --- what each shows ---------------------------------------------------------------------------


def test_a_minority_dies_and_the_lock_is_given_on() -> None:
    run = data("minority")
    assert [state[:3] for state in run["states"]] == [["n3", "down", 400], ["n4", "down", 1_000]]
    assert votes("minority", 0) == {0, 1, 2, 3, 4}
    assert votes("minority", 1) == {0, 1, 2}
    (_, _, a_ends), (_, b_begins, _) = run["leases"]
    assert a_ends < b_begins
    assert run["verdict"].startswith("Oracle: at no instant two holders.")


def test_a_paused_holder_is_fenced_off() -> None:
    run = data("paused")
    assert run["states"] == [["c0", "paused", 500, 2_800]]
    (_, _, a_ends), (_, b_begins, b_ends) = run["leases"]
    assert 500 < a_ends < b_begins < 2_800 < b_ends
    assert [(write[0], write[4]) for write in run["writes"]] == [(0, True), (1, True), (0, False)]
    first, second, late = (int(write[3].replace(",", "")) for write in run["writes"])
    assert first == late < second
    refusal = f"The storage has seen {second:,} and refuses {first:,}."
    assert run["captions"][-2][1].startswith(refusal)
    assert run["overlaps"] == []


def test_the_storage_accepts_and_refuses_as_a_real_one_does(tmp_path: Path) -> None:
    storage = FencedFile(tmp_path / "storage")
    for _, _, _, words, ok in data("paused")["writes"]:
        fence = int(words.replace(",", ""))
        if ok:
            storage.write(b"", fence)
        else:
            with pytest.raises(StaleFence):
                storage.write(b"", fence)


def test_a_node_that_forgets_gets_no_vote() -> None:
    run = data("forgets")
    (quarantine,) = (state for state in run["states"] if state[1] == "no vote")
    assert quarantine[0] == "n0"
    assert quarantine[3] >= 700 + replays.TTL_MS
    asked = [m for m in run["messages"] if m[1] == 0 and m[2] == "acquire" and m[3] > 700]
    assert asked == []
    assert votes("forgets", 0) == {0, 1}
    assert votes("forgets", 1) == {1, 2}
    first = [m for m in run["messages"] if (m[0], m[2], m[3]) == (1, "acquire", 900)]
    assert [(m[1], m[5]) for m in first] == [(1, False), (2, True)]
    (_, _, a_ends), (_, b_begins, _) = run["leases"]
    assert a_ends < b_begins
    assert run["overlaps"] == []


def test_without_the_guard_two_clients_hold_the_lock() -> None:
    guarded, alone = replays.forgets().plan, replays.two_holders().plan
    assert guarded.settings.restart_guard == "uptime"
    assert alone == replace(guarded, settings=replace(guarded.settings, restart_guard=None))
    run = data("two_holders")
    assert votes("two_holders", 0) == {0, 1}
    assert votes("two_holders", 1) == {0, 2}
    assert [state[1] for state in run["states"]] == ["cut", "down"]
    ((begin, end),) = run["overlaps"]
    assert [lease[0] for lease in run["leases"]] == [0, 1]
    assert all(lease[1] <= begin < end <= lease[2] for lease in run["leases"])
    assert run["verdict"] == (
        f"Oracle: two holders, A and B, from {begin:,} ms to {end:,} ms."
        " Broken assumption: node 1 lost keys by restart."
    )
