"""A node's wall clock jumps, and its keys with it; elapsed time and other nodes' clocks
continue.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.faults import Site, shim, sites
from tests.harness.faults.clock import TOLERANCE, ClockJump, clock_error
from tests.harness.faults.fault import await_that

needs_compiler = pytest.mark.skipif(
    not shim.available(), reason="clocks can be moved on Linux with a C compiler: install gcc"
)


@needs_compiler
def test_forward_keys_expire_early(site: Site) -> None:
    fault = ClockJump(+5)
    site.server.execute("SET", "soon", 1, "PX", 4000)
    site.server.execute("SET", "later", 1, "PX", 60_000)
    try:
        fault.begin(site)
        print(f"\n{fault.proof(site)}")
        assert site.server.execute("PTTL", "soon") == -2
        assert site.server.execute("SET", "soon", 1, "NX", "PX", 4000) == b"OK"
        assert site.server.execute("PTTL", "later") <= 55_000
    finally:
        fault.end(site)
    assert 4000 < site.server.execute("PTTL", "soon") <= 9000, "lives on for as long"


@needs_compiler
def test_backward_keys_live_longer(site: Site) -> None:
    fault = ClockJump(-3600)
    site.server.execute("SET", "soon", 1, "PX", 60_000)
    try:
        fault.begin(site)
        print(f"\n{fault.proof(site)}")
        assert site.server.execute("PTTL", "soon") + 1000 > 3_600_000
        site.server.execute("SET", "meanwhile", 1, "PX", 60_000)
    finally:
        fault.end(site)
    assert site.server.execute("PTTL", "meanwhile") == -2


@needs_compiler
def test_elapsed_time_continues_as_before(site: Site) -> None:
    """A key that was set after the jump lives for its ttl, by any clock."""
    fault = ClockJump(+1000)
    try:
        fault.begin(site)
        began = time.monotonic()
        site.server.execute("SET", "a", 1, "PX", 300)
        await_that(lambda: not site.server.execute("EXISTS", "a"), "it has expired")
        assert time.monotonic() - began >= 0.295
    finally:
        fault.end(site)


@needs_compiler
def test_one_clock_jumps_alone_and_stays_wrong_over_a_restart() -> None:
    fault = ClockJump(+100)
    with sites(2) as (wrong, right):
        fault.begin(wrong)
        assert abs(clock_error(right)) < TOLERANCE
        wrong.server.restart()
        assert abs(clock_error(wrong) - 100) < TOLERANCE
        fault.end(wrong)
        assert abs(clock_error(wrong)) < TOLERANCE


@needs_compiler
def test_it_leaves_no_file_where_the_tests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Servers` asks the program for its version in the current directory."""
    monkeypatch.chdir(tmp_path)
    with sites(1) as (site,):
        assert site.clock.exists()
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_an_error_of_the_compiler_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int broken(")
    monkeypatch.setattr(shim, "_SOURCE", source)
    with pytest.raises(RuntimeError, match=r"(?s)does not compile .*error"):
        shim.wrapper(tmp_path, "/bin/true")


def test_without_a_compiler_everything_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "compiler", lambda: None)
    with sites(1) as (site,):
        assert site.server.execute("PING") == b"PONG"
        with pytest.raises(RuntimeError, match="no C compiler"):
            ClockJump(+5).begin(site)
