"""The formal model: its small table is as it must be, and it notices when Redlock is broken."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from spec import check

pytestmark = pytest.mark.skipif(
    bool(check.missing()), reason=check.INSTALL.format(missing=", ".join(check.missing()))
)

# The whole small table is `make spec`; these few are quick and hold one of each kind.
QUICK = (
    "base",
    "drift, no allowance",
    "elapsed not subtracted",
    "crash, votes at once",
    "extend, continuity",
    "orphan",
    "orphan, in order",
    "durable, but does not sync",
    "marker guard, FLUSHALL",
    "restore",
    "fence, keys honoured",
    "fence, largest, not written back",
    "hints, reservation is a vote",
    "queue, two nodes",
    "queue, no patience",
    "queue, patience without chance",
    "exchange, any token",
    "kept, nothing compared",
)


@cache
def found(name: str) -> check.Finding:
    """Check a case, once for all tests of this process: gcc takes most of the time."""
    return check.check_in_folder(next(case for case in check.CASES if case.name == name))


@pytest.mark.parametrize("name", QUICK)
def test_the_model_answers_as_it_must(name: str) -> None:
    finding = found(name)
    case = finding.case
    assert finding.found == case.must, "\n".join(finding.trace)
    assert finding.states > 0
    assert bool(finding.trace) == (case.must == check.FAILS)


def test_names_are_given_once() -> None:
    names = [case.name for case in check.CASES]
    assert len(names) == len(set(names))


# Each break of the model's text must turn a case that holds into one that fails.
BREAKS = {
    "a quorum of one": ("#define QUORUM (N / 2 + 1)", "#define QUORUM (N / 2)", "base"),
    "a SET that takes a held key": (
        "#define FREE(n, s) (holder[AT(n)] == 0 ||",
        "#define FREE(n, s) (true ||",
        "base",
    ),
    "a release that deletes what is another's": (
        "MAY(RELEASE, GRANTED) && HOLDS(n, s) &&",
        "MAY(RELEASE, GRANTED) && holder[n] != 0 &&",
        "base",
    ),
    "votes that are not forgotten after a lost attempt": ("DROP(voted, i, c);", "skip;", "base"),
    "an extension that sets the key": (
        "HAS(stretched, 0, s) && HOLDS(n, s) ->",
        "HAS(stretched, 0, s) -> holder[n] = (s) + 1;",
        "extend",
    ),
    "a marker that nobody looks at": (
        "FREE(n, s) && !(MARKER && WAITS(n)) ->",
        "FREE(n, s) ->",
        "marker guard, FLUSHALL",
    ),
}
# The same of the fences, where keys may be free at any moment.
FENCE_BREAKS = {
    "a fence that fewer than a quorum issued": ("#define QUORUM (N / 2 + 1)", "#define QUORUM 1"),
    "a counter that stays": ("counter[n] = v;", "counter[n] = (counter[n] > 0 -> counter[n] : v);"),
    "a raise that lowers": ("counter[n] < target[a]))", "true))"),
    "values that are not forgotten with their attempt": (
        "ISSUED(i, c) = 0; DROP(lifted, i, c); i++",
        "i++",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_of_the_model_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, asked = BREAKS[name]
    text = check.MODEL.read_text()
    assert text.count(old) >= 1
    broken = tmp_path / "redlock.pml"
    broken.write_text(text.replace(old, new))
    monkeypatch.setattr(check, "MODEL", broken)
    assert_is_wrong(next(case for case in check.CASES if case.name == asked))


@pytest.mark.parametrize("name", FENCE_BREAKS)
def test_a_break_of_the_fences_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = FENCE_BREAKS[name]
    text = check.FENCE_MODEL.read_text()
    assert text.count(old) == 1
    broken = tmp_path / "fence.pml"
    broken.write_text(text.replace(old, new))
    monkeypatch.setattr(check, "FENCE_MODEL", broken)
    asked = {"ATTEMPTS": 1 + ("attempt" in name), "ANY": 1, "WHILE_OURS": 0}
    assert_is_wrong(check.Case("broken", "", check.HOLDS, asked, is_fence=True))


def assert_is_wrong(case: check.Case) -> None:
    finding = check.check_in_folder(case)
    assert finding.found == check.FAILS, "\n".join(finding.trace)
    assert not finding.is_right
    assert check.row(finding).endswith("WRONG")


def test_a_search_that_left_something_out_is_no_answer() -> None:
    with pytest.raises(check.Broken, match="max search depth too small"):
        check.no_gap("error: max search depth too small\n errors: 0")


def test_a_counterexample_is_described_with_the_names_of_the_nodes() -> None:
    steps = [
        "A: SET on node 1 -> granted",
        "          swap 1",
        "A: SET on node 1 -> granted",
        "   a tick passes",
        "   a tick passes",
        "spin: trail ends after 3 steps",
        "  ! A and B both hold a valid lease",
    ]
    assert list(check.merged(check.named(steps))) == [
        "A: SET on node 1 -> granted",
        "A: SET on node 2 -> granted",
        "   2 ticks pass",
        "  ! A and B both hold a valid lease",
    ]


def test_the_page_is_in_step_with_the_table() -> None:
    """`make spec ARGS=--write` writes it; only the seconds depend on the machine."""
    page = check.README.read_text()
    rows = {
        line[:37].strip(): line
        for line in page.splitlines()
        if re.search(r" (holds|fails) +(holds|fails) ", line)
    }
    small = [case for case in check.CASES if not case.only_full]
    assert [case.name for case in small] == list(rows)
    for name in ("base", "orphan", "drift, no allowance"):
        finding = found(name)
        assert rows[name].split()[:-1] == check.row(finding).split()[:-1]
        if finding.trace:
            assert check.described(finding) in page
