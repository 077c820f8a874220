"""Many processes of `quorlock run` on one resource: never two commands at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.cli.run.conftest import Runner

WORK = 'echo start >> book; sleep 0.02; echo stop >> book; exit "$1"'


def book(run: Runner) -> list[str]:
    path = run.folder / "book"
    return path.read_text().split() if path.exists() else []


def test_twenty_take_turns_and_all_finish(run: Runner) -> None:
    workers = [run.start("x", "--", "/bin/sh", "-c", WORK, "sh", f"{n}") for n in range(20)]
    assert [worker.end().returncode for worker in workers] == list(range(20))
    assert book(run) == ["start", "stop"] * 20


@pytest.mark.parametrize(("options", "busy"), [(["--nonblock"], 75), (["--on-busy", "skip"], 0)])
def test_without_waiting_one_runs_and_the_others_do_not(
    options: list[str], busy: int, run: Runner
) -> None:
    first = run.patient("x", does="obey")
    others = [run.start("x", *options, "--", "/bin/sh", "-c", WORK, "sh", "5") for _ in range(8)]
    done = [other.end() for other in others]
    first.process.terminate()
    assert first.end().returncode == 0
    assert {other.returncode for other in done} == {busy}, [other.stderr for other in done]
    assert [bool(other.stderr) for other in done] == [busy != 0] * 8
    assert book(run) == []


def test_of_many_at_once_those_that_run_take_turns(run: Runner) -> None:
    work = "echo start >> book; sleep 1; echo stop >> book"
    workers = [run.start("x", "--nonblock", "-c", work) for _ in range(8)]
    statuses = [worker.end().returncode for worker in workers]
    assert set(statuses) <= {0, 75}
    # Split votes may refuse all that came at the same instant: then no command ran, silently.
    assert book(run) == ["start", "stop"] * statuses.count(0)
