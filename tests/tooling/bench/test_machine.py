"""The costs of a slice: the counts of processes and servers, and the figures from them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import machine

if TYPE_CHECKING:
    from bench.fleet import Fleet


def test_commands_are_those_that_clients_send(fleet: Fleet) -> None:
    """A script is one command, whatever it calls."""
    monitor = machine.Monitor(fleet.servers[:2])
    fleet.servers[0].execute("EVAL", "return redis.call('DBSIZE')", 0)
    fleet.servers[1].execute("SET", "lua]", '] "quit"\n+1.0 [0 x] "get"')
    fleet.servers[2].execute("PING")
    assert monitor.count() == 2


def test_a_stopped_server_is_not_asked(fleet: Fleet) -> None:
    """The others are counted."""
    with machine.metered_site(fleet, 2, hung=1) as site:
        site.on_word("start")
        assert [server.stopped for server in site.fleet.servers] == [True, False]
        site.on_word("begin")
        site.on_word("end")
        site.on_word("count")
        site.fleet.servers[1].execute("PING")
        site.on_word("counted")
        assert site.after({"cycles": 4, "counted_cycles": 4})["commands"] == 0.25


def test_a_child_that_failed_has_no_costs(fleet: Fleet) -> None:
    with machine.metered_site(fleet, 5) as site:
        site.on_word("begin")
        assert site.after({"failed": "why"}) == {}
        with pytest.raises(ValueError, match="does not handle 'wake'"):
            site.on_word("wake")


def test_descendants_are_found_over_generations() -> None:
    """The child of a child, but not this process."""
    inner = "import sys; print(1, flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"1"
        found = machine.descendants(os.getpid())
        of_child = machine.descendants(process.pid)
        process.communicate()
    assert len(of_child) == 1
    assert {process.pid, *of_child} <= set(found)
    assert os.getpid() not in found


def test_cpu_time_of_a_process() -> None:
    """Our own is that of time.process_time; a process that has ended has none."""
    before = time.process_time_ns()
    found = machine.cpu_ns(os.getpid())
    assert before <= found <= time.process_time_ns()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert machine.cpu_ns(process.pid) == 0


def test_costs_are_per_cycle_and_the_rest_is_foreign() -> None:
    """One of four CPU seconds in two seconds was not ours: half a core."""
    own, client, server = os.getpid(), -1, -2
    second = 10**9
    before = machine.Look(10.0, 100.0, {own: 0, client: second})
    cpu = {own: second, client: 2 * second + second // 2, server: second // 2}
    after = machine.Look(12.0, 104.0, cpu)
    found = machine.costs(before, after, {server}, 10)
    assert found == {"cpu_us": 150_000.0, "server_cpu_us": 50_000.0, "foreign": 0.5}
    assert machine.costs(before, after, {server}, 0)["cpu_us"] is None


def test_without_proc_there_are_no_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A dash in the table, and no wrong figure."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "none")
    assert math.isnan(machine.busy())
    found = machine.costs(machine.look(), machine.look(), set(), 10)
    assert set(found.values()) == {None}
