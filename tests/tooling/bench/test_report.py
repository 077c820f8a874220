"""Tables, aims and plots of results."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from bench.aims import AIMS, Aim, at_least, at_most, faster, judged, none_of
from bench.contestants import CONTESTANTS
from bench.plan import STANDARD, WORKS, Column, works
from bench.plots import concurrency_plot, peers_plot
from bench.report import HEADINGS, aims_table, case_table, report, write_report
from bench.results import Found, Results, middle, ratio
from bench.works import contended

CASE = "blocking, N = 5, 1 thread"
ABOUT: dict[str, Any] = {
    "quorlock": "0.1.0 (abc)",
    "rounds": 3,
    "quick": False,
    "date": "2026-01-02",
    "Python": "CPython 3.12.1",
    "server": "valkey 9.1.2",
    "machine": "a box, 2 CPUs, Linux",
    "peers": {"redis": "8.1.0"},
    "missing": {"node-redlock": "node"},
    "load before": 0.1,
    "minutes": 1.5,
}


def row(p50: float, **more: Any) -> dict[str, Any]:
    return {
        "cycles": 1000,
        "seconds": p50 / 1000,
        "per_s": 1e6 / p50,
        "p50_us": p50,
        "p99_us": 3 * p50,
        "cpu_us": p50 / 2,
        "errors": 0,
        **more,
    }


def results(*found: Found) -> Results:
    return Results({case.name: case for case in found}, {case.work: ABOUT for case in found})


@pytest.fixture
def one_thread() -> Found:
    """Three rounds in which the machine drifted: the second was twice as slow for all."""
    times = {"limit.all": 100.0, "quorlock": 110.0, "redlock-py": 500.0, "redlock-py.tuned": 330.0}
    rows = {who: [row(time), row(2 * time), row(time)] for who, time in times.items()}
    rows["quorlock"][2] = row(130.0)
    rows["pottery"] = [{"failed": "no result before the deadline"}] * 3
    return Found("uncontended", CASE, 5, {"workers": 1}, rows)


def all_of(work: str) -> Results:
    """Return every case of a work, with some figure for everybody."""
    found = []
    for case in works()[work].PLAN:
        case_found = Found(case.work, case.name, case.nodes, dict(case.params))
        columns = works()[work].columns(case_found) if work != "uncontended" else ()
        figures = {column.key: 1.0 for column in columns}
        for place, who in enumerate(case.contestants):
            case_found.rows[who] = [row(100.0 + 17 * place) | figures for _ in range(3)]
        found.append(case_found)
    return results(*found)


@pytest.fixture
def everything() -> Results:
    return all_of("uncontended")


def test_every_work_has_a_heading() -> None:
    """A run of an hour is not lost at its end."""
    assert tuple(HEADINGS) == WORKS


def test_ratios_are_taken_round_by_round(one_thread: Found) -> None:
    """A drift does not affect them."""
    ours, limit = (one_thread.figure(who, "p50_us") for who in ("quorlock", "limit.all"))
    assert ratio(ours, limit) == pytest.approx([1.1, 1.1, 1.3])


def test_a_round_that_failed_keeps_its_place() -> None:
    """The others are still compared with their own neighbours."""
    rows = {"a": [row(10), {"failed": "why"}, row(40)], "b": [row(10), row(10), row(10)]}
    found = Found("uncontended", CASE, 5, {}, rows)
    figure = ratio(found.figure("a", "p50_us"), found.figure("b", "p50_us"))
    assert [math.isnan(value) for value in figure] == [False, True, False]
    assert middle(figure) == 2.5
    assert found.failure("a") == ""


def test_nothing_measured_is_not_reached_and_not_missed() -> None:
    """Neither a yes nor a no."""
    assert all(judgement.reached is None for judgement in judged(Results()))
    assert "not measured" in aims_table(judged(Results()))


@pytest.mark.parametrize(
    ("aim", "found", "reached"),
    [
        (at_most("", 1.1, "", (CASE, "quorlock"), (CASE, "limit.all"), "p50_us"), 1.1, True),
        (at_most("", 1.09, "", (CASE, "quorlock"), (CASE, "limit.all"), "p50_us"), 1.1, False),
        (at_least("", 1, "", (CASE, "limit.all"), (CASE, "quorlock"), "per_s"), 1.1, True),
        (faster("", 2.9, "", (CASE, "quorlock"), (CASE, "redlock-py"), "p50_us"), 3.0, True),
        (faster("", 3.1, "", (CASE, "quorlock"), (CASE, "redlock-py"), "per_s"), 3.0, False),
        (none_of("", (CASE, "quorlock")), 0.0, True),
    ],
)
def test_an_aim_is_held_against_its_bound(
    one_thread: Found, aim: Aim, found: float, reached: bool
) -> None:
    """The peer is the faster of its settings (330 µs, not 500)."""
    judgement = aim.judge(results(one_thread))
    assert judgement.found == pytest.approx(found)
    assert judgement.reached is reached


def test_one_error_in_one_round_is_not_none(one_thread: Found) -> None:
    """However many rounds had none."""
    one_thread.rows["quorlock"][1]["errors"] = 1
    assert none_of("", (CASE, "quorlock")).judge(results(one_thread)).reached is False


def test_every_aim_finds_its_cases(everything: Results) -> None:
    """A case that was renamed would leave an aim unmeasured for good."""
    assert [aim.what for aim in AIMS if aim.judge(everything).reached is None] == []


@pytest.mark.parametrize("work", ["contended", "handover"])
def test_every_aim_of_a_work_finds_its_cases(work: str) -> None:
    """Also those that a work defines."""
    aims = works()[work].AIMS
    assert [aim.what for aim in aims if aim.judge(all_of(work)).reached is None] == []


def test_one_lost_addition_is_a_missed_aim() -> None:
    """The case and the round do not matter."""
    found = all_of("contended")
    for case in found.cases.values():
        for rows in case.rows.values():
            for one in rows:
                one["lost"] = 0
    aims = [aim for aim in contended.AIMS if "lost" in aim.what]
    assert [aim.judge(found).reached for aim in aims] == [True, True]
    for who in contended.OURS:
        found.cases[contended.HUNG].rows[who][1]["lost"] = 1
    assert [aim.judge(found).reached for aim in aims] == [False, False]


def test_a_peer_that_got_nothing_counts_as_one_acquisition() -> None:
    """Otherwise the better the aim is reached, the less it is measured."""
    found = all_of("contended")
    for one in found.cases[contended.THREADS].rows["pottery.tuned"]:
        one["per_s"] = 0.0
    (aim,) = (aim for aim in contended.AIMS if contended.THREADS in aim.what and "/s" in aim.what)
    assert aim.judge(found).found == contended.SECONDS * 1.0


def test_the_worst_round_can_be_shown(one_thread: Found) -> None:
    one_thread.rows["quorlock"][1]["errors"] = 7
    line = case_table(one_thread, [Column("errors", "errors", worst=True)]).splitlines()[3]
    assert line.startswith("| quorlock | 7 |")


def test_a_report_says_how_busy_the_machine_was() -> None:
    """The figures of a busy machine are not those of a quiet one."""
    found = all_of("contended")
    for case in found.cases.values():
        for rows in case.rows.values():
            rows[0]["foreign"] = None
    assert "Other programs used 1.0 cores" in report(found)


def test_a_report_says_how_a_run_is_repeated_and_how_waiters_wait() -> None:
    found = all_of("handover")
    found.about = {"handover": ABOUT | {"command": "python -m bench --only handover"}}
    text = report(found)
    assert "`python -m bench --only handover`" in text
    assert "Waiters of quorlock queue on every node" in text


def test_what_is_saved_can_be_loaded(one_thread: Found, tmp_path: Path) -> None:
    """The figures are the same, and a work's file stays when another is measured."""
    other = Found("extension", "extended", 5, {}, {"quorlock": [row(123.456)]})
    results(one_thread).save(tmp_path)
    results(other).save(tmp_path)
    loaded = Results.load(tmp_path, WORKS)
    assert list(loaded.cases) == [CASE, "extended"]
    assert loaded.about == {"uncontended": ABOUT, "extension": ABOUT}
    assert loaded.cases[CASE].rows["quorlock"][2]["p50_us"] == 130.0
    assert loaded.cases["extended"].rows["quorlock"][0]["p50_us"] == pytest.approx(123.46)


def test_a_table_has_medians_ratios_and_failures(one_thread: Found) -> None:
    columns = (*STANDARD, Column("time × limit", "p50_us", "{:.2f}", ratio_to="limit.all"))
    lines = case_table(one_thread, columns).splitlines()
    reported = {line.split(" | ")[0].strip("| "): line for line in lines}
    assert len({line.count("|") for line in lines}) == 1
    assert "| 130 |" in reported["quorlock"]
    assert "| 1.10 (1.10 – 1.30) |" in reported["quorlock"]
    assert "failed: no result before the deadline" in reported["pottery"]
    assert CONTESTANTS["redlock-py"].settings in reported["redlock-py"]


def test_a_report_holds_every_case_and_who_was_not_there(everything: Results) -> None:
    text = report(everything)
    assert all(f"### {name}\n" in text for name in everything.cases)
    assert "Missing: node-redlock (node)." in text
    assert text.count("valkey 9.1.2") == 1, "said once for all works of a run"


def test_the_pictures_are_well_formed_and_name_everybody(everything: Results) -> None:
    """SVG that a browser takes, no wider than 800 pixels, nothing drawn outside."""
    for picture in (peers_plot(everything), concurrency_plot(everything)):
        root = ET.fromstring(picture)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        assert width == 800
        for element in root.iter():
            for key in ("x", "x1", "x2", "cx"):
                assert 0 <= float(element.get(key, 0)) <= width
            for key in ("y", "y1", "y2", "cy"):
                assert 0 <= float(element.get(key, 0)) <= height
    drawn = {element.text for element in ET.fromstring(peers_plot(everything)).iter()}
    assert drawn >= set(everything.cases[CASE].rows)


def test_without_figures_there_are_no_pictures(one_thread: Found, tmp_path: Path) -> None:
    """A run of one work writes the tables alone."""
    assert concurrency_plot(results(one_thread)) == ""
    assert peers_plot(results(one_thread)) == ""
    assert write_report(results(one_thread), tmp_path) == [tmp_path / "README.md"]
