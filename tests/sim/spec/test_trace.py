"""Traces of the shipped flows are behaviours of the model; altered in one action, they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorlock_sim.runner import run
from quorlock_sim.scenarios import plan_of
from quorlock_sim.trace import Trace
from spec import check, trace

pytestmark = pytest.mark.skipif(
    bool(check.missing()), reason=check.INSTALL.format(missing=", ".join(check.missing()))
)

Line = dict[str, Any]


def world(scenario: str, seed: int) -> list[Line]:
    """A trace of the simulated world, as it is written to a file."""
    written = Trace()
    run(plan_of(scenario, seed), written)
    return [json.loads(line) for line in written.text().splitlines()]


def judged(scenario: str) -> trace.Answer:
    """The model's word about the first world of a scenario that it can judge at all."""
    for seed in range(100):
        try:
            answer = trace.accept(world(scenario, seed))
        except trace.Refused as refused:
            print(f"SEED={seed}: {refused}")
            continue
        print(f"see it: make sim SEED={seed} SCENARIO={scenario}")
        return answer
    pytest.fail(f"the model can judge no world of {scenario!r}")


@pytest.mark.parametrize("scenario", ["calm", "network", "nodes", "clients", "memory", "mixed"])
def test_what_the_flows_do_is_what_the_model_does(scenario: str) -> None:
    answer = judged(scenario)
    assert answer.accepted, str(answer)
    assert answer.steps > 50


# --- one action altered ----------------------------------------------------------------------

# A world of two nodes, as `make sim` wrote it: what is altered below stays where it is.
CALM = Path(__file__).with_name("calm.jsonl")


def calm() -> list[Line]:
    return [json.loads(line) for line in CALM.read_text().splitlines()]


def test_the_stored_trace_is_accepted_as_it_is() -> None:
    assert trace.accept(calm()).accepted


Pick = Callable[[Line], bool]


def the(kind: str, **facts: Any) -> Pick:
    """The lines of this kind with these facts."""
    return lambda line: line["kind"] == kind and all(line.get(k) == v for k, v in facts.items())


GRANTED_SET = the("execute", command="acquire", reply="OK")
REFUSED_SET = the("execute", command="acquire", reply=None)
EXTENDED = the("execute", command="extend", reply=1)
DELETED = the("execute", command="release", reply=-3)
WON = the("outcome", outcome="granted")
LONGER = the("outcome", outcome="extended")


def changed(number: int, **facts: Any) -> Callable[[list[Line]], int]:
    """One line says something else."""

    def alter(lines: list[Line]) -> int:
        lines[number].update(facts)
        return number + 1

    return alter


def first(lines: list[Line], pick: Pick, after: int = 0) -> int:
    return next(n for n, line in enumerate(lines) if n >= after and pick(line))


def refusal_into_grant(lines: list[Line]) -> int:
    return changed(first(lines, REFUSED_SET), reply="OK", vote="granted")(lines)


def grant_into_refusal(lines: list[Line]) -> int:
    """The key was free, so nothing justifies a refusal."""
    return changed(first(lines, GRANTED_SET), reply=None, vote="refused")(lines)


def release_of_anothers_key(lines: list[Line]) -> int:
    mine = the("execute", command="release", vote="refused")
    others = lambda line: mine(line) and line["reply"] >= 0  # noqa: E731
    return changed(first(lines, others), reply=-3, vote="granted")(lines)


def release_of_nothing(lines: list[Line]) -> int:
    """The key was there and is reported as absent: it may not have been lost."""
    return changed(first(lines, DELETED), reply=-2, vote="refused")(lines)


def extension_of_nothing(lines: list[Line]) -> int:
    """A node forgets the key, and extends it all the same."""
    here = first(lines, EXTENDED)
    line = lines[here]
    lines.insert(here, {"at": line["at"], "kind": "fault", "what": "flush", "node": line["node"]})
    return here + 2


def extension_refused_by_its_holder(lines: list[Line]) -> int:
    return changed(first(lines, EXTENDED), reply=0, vote="refused")(lines)


def grant_with_too_few_votes(lines: list[Line]) -> int:
    """All replies but one are lost, and the client says that it has won."""
    won = first(lines, WON)
    is_vote = the("reply", client=lines[won]["client"], vote="granted")
    votes = [n for n, line in enumerate(lines) if n < won and is_vote(line)]
    for n in reversed(votes[1:]):
        del lines[n]
    return won - len(votes) + 2


def grant_of_a_vote_that_was_not_cast(lines: list[Line]) -> int:
    """A node's reply arrives before the node has got the request."""
    here = first(lines, the("reply", vote="granted"))
    asked = first(lines, the("execute", message=lines[here]["message"]))
    lines.insert(asked, {**lines.pop(here), "at": lines[asked]["at"]})
    return asked + 1


def grant_for_longer(lines: list[Line]) -> int:
    """Validity counted from the reply, and no drift taken off."""
    won = first(lines, WON)
    return changed(won, valid_until=lines[won]["at"] + lines[0]["ttl_ms"] * 1_000_000)(lines)


def extension_for_longer(lines: list[Line]) -> int:
    here = first(lines, LONGER)
    return changed(here, valid_until=lines[here]["at"] + lines[0]["ttl_ms"] * 1_000_000)(lines)


def release_before_the_end(lines: list[Line]) -> int:
    """A node deletes the key of a valid lease."""
    won = first(lines, WON)
    key = first(lines, the("execute", command="acquire", token=lines[won]["token"], reply="OK"))
    gone = {**lines[key], "command": "release", "reply": -3, "at": lines[won]["at"], "ttl_ms": 0}
    lines.insert(won + 1, gone)
    return won + 2


def grant_a_moment_too_early(lines: list[Line]) -> int:
    """The holder's key is still there, and another's SET is carried out."""
    won = first(lines, WON)
    key = first(lines, the("execute", command="acquire", token=lines[won]["token"], reply="OK"))
    other = the("execute", command="acquire", node=lines[key]["node"], reply=None)
    return changed(first(lines, other, after=won), reply="OK", vote="granted")(lines)


ALTERATIONS = [
    refusal_into_grant,
    grant_into_refusal,
    release_of_anothers_key,
    release_of_nothing,
    extension_of_nothing,
    extension_refused_by_its_holder,
    grant_with_too_few_votes,
    grant_of_a_vote_that_was_not_cast,
    grant_for_longer,
    extension_for_longer,
    release_before_the_end,
    grant_a_moment_too_early,
]


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_one_altered_action_is_rejected_at_its_line(alter: Callable[[list[Line]], int]) -> None:
    lines = calm()
    expected = alter(lines)
    answer = trace.accept(lines)
    assert not answer.accepted
    assert (answer.line, str(answer)) == (expected, str(answer))


def test_two_valid_leases_are_seen_where_the_assumptions_held() -> None:
    """A node loses its memory inside a ttl and another client gets in: excused only if the trace
    says so.
    """
    lines = known_overlap()
    assert "two leases would be valid" in str(trace.accept(lines))
    lines[-1]["assumptions_intact"] = False
    assert trace.accept(lines).accepted


def known_overlap() -> list[Line]:
    """One node, forgetful; two clients."""
    first_line = {
        "kind": "world", "version": 1, "at": 0, "n": 1, "resources": ["r"], "ttl_ms": 100,
        "max_ttl_ms": 100, "drift_ppm": 10_000, "expiry_resolution": 2_000_000,
    }  # fmt: skip
    lines: list[Line] = [first_line]
    for client in (0, 1):
        at, token = 1_000_000 * (1 + 10 * client), f"c{client}.1"
        about = {"client": client, "message": client, "command": "acquire", "key": "r", "node": 0}
        about |= {"token": token, "ttl_ms": 100, "at": at}
        lines += [
            {"kind": "send", "round": 1, **about},
            {"kind": "execute", "reply": "OK", "vote": "granted", **about},
            {"kind": "reply", "round": 1, "vote": "granted", **about},
            {"kind": "outcome", "outcome": "granted", "valid_until": at + 97_000_000, **about},
            {"kind": "fault", "what": "flush", "node": 0, "at": at},
        ]
    return [*lines, {"kind": "end_of_world", "at": 50_000_000, "assumptions_intact": True}]


# --- what is refused, and what is skipped ----------------------------------------------------

STRANGE = [
    ({"what": "step", "client": 0, "by": 5}, "a clock steps"),
    ({"what": "drift", "node": 0, "pace": 1_100_000}, "drifts by more than the bound"),
    ({"what": "restart", "node": 0, "memory": "stale"}, "an older memory"),
]


@pytest.mark.parametrize(("fault", "word"), STRANGE)
def test_what_the_model_lacks_is_refused_with_a_word(fault: Line, word: str) -> None:
    lines = known_overlap()
    lines.insert(1, {"kind": "fault", "at": 0, **fault})
    with pytest.raises(trace.Refused, match=word):
        trace.accept(lines)


def test_a_trace_of_another_kind_is_refused() -> None:
    with pytest.raises(trace.Refused, match="no trace of version 1"):
        trace.accept([{"kind": "wool", "at": 0}])


def test_unknown_lines_and_errors_of_nodes_are_skipped() -> None:
    lines = known_overlap()[:4]
    lines.insert(2, {"kind": "weather", "at": 0, "text": "rain"})
    lines.insert(3, {**lines[3], "reply": "READONLY You can't write", "vote": "refused"})
    lines.append({"kind": "end_of_world", "at": 2_000_000, "assumptions_intact": True})
    assert trace.accept(lines).accepted


def restored(*, won: bool) -> list[Line]:
    """A lease on one node that is extended, and then its key restored."""
    lines = known_overlap()[:5]
    about = {"client": 0, "key": "r", "node": 0, "token": "c0.1", "ttl_ms": 100, "at": 2_000_000}
    extend = {"command": "extend", "message": 7, **about}
    lines += [
        {"kind": "send", "round": 2, **extend},
        {"kind": "execute", "reply": 1, "vote": "granted", **extend},
        {"kind": "reply", "round": 2, "vote": "granted", **extend},
    ]
    if won:
        lines.append(
            {"kind": "outcome", "outcome": "extended", "valid_until": 99_000_000, **extend}
        )
    again = {"command": "acquire", "message": 8, **about}
    lines += [
        {"kind": "send", "round": 3, **again},
        {"kind": "execute", "reply": None, "vote": "refused", **again},
    ]
    return [*lines, {"kind": "end_of_world", "at": 3_000_000, "assumptions_intact": True}]


def test_a_restored_key_follows_an_extension_that_was_won() -> None:
    answer = trace.accept(restored(won=True))
    assert answer.accepted, str(answer)
    answer = trace.accept(restored(won=False))
    assert str(answer) == "rejected at line 9: the model cannot do this: RESTORED (attempt 0)"


def test_scripts_that_issue_fences_are_known() -> None:
    """Granted with a fence, kept out by a marker, and a raise, which is about no key."""
    lines = known_overlap()
    lines[2]["reply"] = [1, 1_000, 7]
    out = {**lines[2], "node": 0, "reply": [-1, 1_000, 50], "vote": "unknown"}
    lines.insert(3, out)
    about = {**lines[1], "command": "raise", "ttl_ms": 0, "message": 9}
    lines[5:5] = [about, {**about, "kind": "execute", "reply": [1, 1_000, 8], "vote": "granted"}]
    lines[-1]["assumptions_intact"] = False
    answer = trace.accept(lines)
    assert answer.accepted, str(answer)


def test_an_unknown_command_is_an_error(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines = known_overlap()
    lines[2]["command"] = "steal"
    with pytest.raises(trace.Unknown, match="line 3: the command 'steal'"):
        trace.accept(lines)
    path = tmp_path / "world.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    assert trace.main([str(path)]) == 1
    assert "unknown: line 3" in capsys.readouterr().out


def test_the_command_names_the_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "world.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in known_overlap()))
    assert trace.main([str(path)]) == 1
    assert f"{path}: rejected at line 10: two leases" in capsys.readouterr().out
