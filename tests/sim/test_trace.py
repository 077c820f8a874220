"""The trace: JSON lines, sorted keys, whole numbers, and the kinds that the docs describe."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quorlock._core.votes import Vote
from quorlock_sim.oracle import RULES
from quorlock_sim.runner import run
from quorlock_sim.scenarios import ALL, plan_of
from quorlock_sim.trace import Trace
from tests.sim.corpus import SEEDS
from tests.sim.mutations import MUTATIONS
from tests.sim.small import MS, job, plan, see

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "simulation.md"
SEEDS_TRACED = 25
# Violations of several rules have different facts: a leftover, a deadline, an overlap.
BROKEN = ("give-back only on nodes that said yes", "even-N tie waits for ever", "SET without NX")

Line = dict[str, Any]


@cache
def texts() -> tuple[str, ...]:
    """Traces of many worlds, and of some in which a promise is broken, each another one."""
    found = [_text(ALL, seed) for seed in range(SEEDS_TRACED)]
    for broken in MUTATIONS:
        if broken.name in BROKEN:
            with broken.applied():
                found.append(_text(broken.scenario, SEEDS[broken.name]))
    return tuple(found)


def _text(scenario: str, seed: int) -> str:
    trace = Trace()
    run(plan_of(scenario, seed), trace)
    return trace.text()


@cache
def lines() -> tuple[Line, ...]:
    return tuple(json.loads(line) for text in texts() for line in text.splitlines())


def of_kind(kind: str) -> list[Line]:
    return [line for line in lines() if line["kind"] == kind]


# --- form -------------------------------------------------------------------------------------


def test_every_line_is_json_with_sorted_keys_and_no_spaces() -> None:
    for text in texts():
        assert text.endswith("\n")
        for line in text.splitlines():
            parsed = json.loads(line)
            assert json.dumps(parsed, sort_keys=True, separators=(",", ":")) == line
            assert line.isascii()


def plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or type(value) in (int, str, bool)


def test_numbers_are_whole() -> None:
    assert all(plain(value) for line in lines() for value in line.values())


def test_time_never_goes_back() -> None:
    for text in texts():
        instants = [json.loads(line)["at"] for line in text.splitlines()]
        assert instants == sorted(instants)


def test_a_trace_begins_with_its_world_and_ends_with_the_judgement() -> None:
    for text in texts():
        kinds = [json.loads(line)["kind"] for line in text.splitlines()]
        assert kinds[0] == "world"
        assert kinds[-1] == "end_of_world"
        assert kinds.count("world") == kinds.count("end_of_world") == 1


# --- sense ------------------------------------------------------------------------------------


def test_what_is_executed_was_sent_and_what_is_received_was_executed() -> None:
    for text in texts():
        sent: dict[int, Line] = {}
        executed: set[int] = set()
        for line in map(json.loads, text.splitlines()):
            if line["kind"] == "send":
                sent[line["message"]] = line
            elif line["kind"] == "execute":
                about = sent[line["message"]]
                same = ("client", "node", "command", "key", "token", "ttl_ms")
                assert [line[name] for name in same] == [about[name] for name in same]
                executed.add(line["message"])
            elif line["kind"] == "reply":
                assert line["message"] in executed
            elif line["kind"] == "lose":
                assert line["message"] in sent
                assert line["what"] in ("request", "reply")


def test_every_call_has_one_outcome_at_the_most() -> None:
    for text in texts():
        parsed = [json.loads(line) for line in text.splitlines()]
        called = [line["call"] for line in parsed if line["kind"] == "call"]
        ended = [line["call"] for line in parsed if line["kind"] == "outcome"]
        assert called == list(range(len(called)))
        assert len(set(ended)) == len(ended)
        assert set(ended) <= set(called)


def test_votes_are_words_of_the_core() -> None:
    votes = {vote.value for vote in Vote}
    assert {line["vote"] for line in of_kind("reply")} <= votes
    assert {vote for line in of_kind("outcome") for vote in line.get("votes", ())} <= votes
    assert {line["vote"] for line in of_kind("execute")} == {"granted", "refused"}


def test_a_lease_has_its_interval_in_true_time() -> None:
    seen = see(plan([job(hold=5 * MS)]))
    line = seen.all("lease")[0]
    granted = seen.all("outcome", outcome="granted")[0]
    assert line["since"] == granted["at"]
    assert line["until"] == seen.all("end")[0]["at"] == granted["at"] + 5 * MS
    assert (line["token"], line["client"], line["resource"]) == ("c0.1", 0, "r0")
    # started + ttl - 1 % - 2 ms, as the Redlock page has it (the core rounds up by a ns).
    assert 988 * MS - 1 <= granted["valid_until"] <= 988 * MS


def test_a_lease_that_ran_out_says_so() -> None:
    seen = see(plan([job(hold=5 * MS, ending="abandon")], lasts=3_000 * MS))
    line = seen.all("lease")[0]
    assert line["why"] == "abandoned"
    assert line["until"] == seen.all("outcome", outcome="granted")[0]["valid_until"]


def test_valid_until_is_shown_in_true_time() -> None:
    """A client whose clock is 1 % slow trusts its lease for 1 % longer."""
    seen = see(plan([job()], client_paces=(990_000,)))
    valid_until = seen.all("outcome", outcome="granted")[0]["valid_until"]
    assert valid_until == pytest.approx(988 * MS / 0.99, abs=10)


def test_violations_are_the_last_lines() -> None:
    (violation, *_) = of_kind("violation")
    assert violation["rule"] in RULES
    assert isinstance(violation["text"], str)
    kinds = [json.loads(line)["kind"] for line in texts()[-1].splitlines()]
    last = kinds[kinds.index("violation") :]
    assert set(last) == {"violation", "end_of_world"}


def test_without_the_oracle_there_is_no_end() -> None:
    assert Trace().text() == ""


# --- the page in the docs ---------------------------------------------------------------------


def described() -> dict[str, set[str]]:
    """Kinds of lines, and the facts of each, as the table in simulation.md has them."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("## The trace")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    return {kind: set(re.findall(r"`(\w+)`", facts)) for kind, facts, _ in rows}


@cache
def written() -> dict[str, set[str]]:
    """Return the kinds of lines, and the facts of each, in the traces of the worlds above."""
    found: dict[str, set[str]] = {}
    for line in lines():
        found.setdefault(line["kind"], set()).update(set(line) - {"kind", "at"})
    return found


def test_the_docs_describe_every_kind_of_line() -> None:
    assert set(described()) == set(written())


@pytest.mark.parametrize(
    "kind",
    [
        *("world", "connect", "disconnect", "call", "send", "execute", "reply", "lose"),
        *("elapsed", "outcome", "end", "fault", "lease", "violation", "end_of_world"),
    ],
)
def test_the_docs_describe_every_fact(kind: str) -> None:
    """All that a line has is in the table, and nothing is in the table that no line has."""
    assert described()[kind] == written()[kind]


def test_the_docs_name_every_fault_of_the_trace() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {line["what"] for line in of_kind("fault")} - set(re.findall(r"`(\w+)`", text)) == set()
