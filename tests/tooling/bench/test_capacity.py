"""The figures of docs/explanation/performance.md are measured on real servers, and the counts are
reliable."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bench import capacity, guard
from bench.fleet import Fleet
from bench.limit import WrongAnswer
from quorlock import Node, Redlock, Tls

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl to make a certificate"
)


def read(text: str) -> dict[str, dict[str, list[str]]]:
    """The tables by the first word of their heads: rows by name."""
    tables: dict[str, dict[str, list[str]]] = {}
    for block in text.strip().split("\n\n"):
        (name, *_), _, *rows = [
            [cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines()
        ]
        tables[name] = {row[0]: row[1:] for row in rows}
    return tables


@needs_openssl
def test_it_measures_everything_on_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers are tiny. Bytes and system calls are exact; the rest exists and is > 0."""
    monkeypatch.setattr(capacity, "NODES", (1, 3))
    monkeypatch.setattr(capacity, "USUAL", 3)
    monkeypatch.setattr(capacity, "TRACED", 3)
    assert capacity.main(["--rounds", "2", "--cycles", "100", "--keys", "2000"]) == 0
    tables = read(capsys.readouterr().out)
    # SET key token NX PX 10000, and the release script's name, a key of 10 bytes, a token of 32.
    acquire, release = 96, 127
    assert tables["a call"] == {
        "acquire": ["1", str(acquire), "5"],  # +OK
        "acquire, refused": ["2", str(acquire + release), "10"],  # _ and :9999
        "extend": ["1", "143", "4"],  # :1; the first one in full, of 100 and more
        "release": ["1", str(release), "5"],  # :-3
    }
    modules = tables["instructions a cycle"]
    for column in (2, 5):  # in all; each figure is rounded for itself
        parts = [int(cells[column]) for name, cells in modules.items() if name != "all"]
        assert sum(parts) == pytest.approx(int(modules["all"][column]), abs=len(parts))
    # Of each round: a send and a recv for every node, and one poll.
    assert tables["system calls a cycle"]["blocking"] == ["6.00", "14.00"]
    blocking = modules["`_core/redlock.py`"][:3]
    assert int(blocking[0]) > 0
    assert blocking[1] == "0", "the algorithm itself has nothing to do for each node"
    for way in (capacity.LIMIT, *capacity.WAYS, capacity.CROWD, *capacity.PIPELINES):
        assert way in tables["a node's CPU for a command"]
        assert float(tables["a node's CPU for a command"][way][0]) > 0
    assert float(tables["2,000 locks held"]["keys of 256 bytes"][0]) > 256 + 32
    assert set(tables["client's CPU × that of N = 1"]) == {"N = 3"}
    assert set(tables["through a front, N = 3"]) == {*capacity.WAYS, "connecting"}
    assert "nan" not in str(tables)
    assert "inf" not in str(tables)


def test_instructions_are_counted_where_they_are_executed(fleet: Fleet) -> None:
    """The counts are the same every time, also after the guard has counted; an idle module has
    none.
    """
    with Redlock(fleet.urls(1), node_timeout=1.0) as redlock:
        lock = redlock.lock("a")
        cycle: Callable[[], object] = lambda: lock.acquire().release()  # noqa: E731
        for _ in range(2):  # the first sends a script; the second keeps the result of all releases
            cycle()
        first = capacity.by_module(cycle)
        guard.traced(cycle)
        second = capacity.by_module(cycle)
    for counts in (first, second):
        assert counts["_core/redlock.py"] > 0
        assert counts["_sync/lock.py"] > 0
        assert counts["_drivers/aio/loop_driver.py"] == 0
        assert not any(name.startswith("/") for name in counts)
    assert first["_core/redlock.py"] == second["_core/redlock.py"]


def test_many_clients_detect_a_lock_that_was_not_granted(fleet: Fleet) -> None:
    """A key that is held is no granted lock."""
    with closing(capacity.Crowd(fleet.urls(1)[0])) as crowd:
        crowd.work(capacity.CONNECTIONS)
        assert fleet.leftovers() == 0
        fleet.servers[0].execute("SET", "crowd:7", "another's")
        with pytest.raises(WrongAnswer, match=r"\$-1"):
            crowd.work(capacity.CONNECTIONS)


@needs_openssl
def test_the_front_does_tls(fleet: Fleet, tmp_path: Path) -> None:
    """And nothing else: who does not trust its certificate, or speaks plainly, gets nowhere."""
    certificate = capacity.make_certificate(tmp_path)
    with capacity.front([fleet.servers[0].port], certificate) as (port,):
        trusting = Node("127.0.0.1", port, tls=Tls(ca_certs=str(certificate)))
        with Redlock([trusting], node_timeout=1.0) as redlock:
            assert redlock.lock("a", timeout=5.0).acquire().release()
        with Redlock([Node("127.0.0.1", port, tls=True)], node_timeout=1.0) as redlock:
            (view,) = redlock.inspect("a").nodes
            assert "certificate" in view.error
        with Redlock([f"redis://127.0.0.1:{port}"], node_timeout=1.0) as redlock:
            (view,) = redlock.inspect("a").nodes
            assert view.error


def test_too_few_cycles_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        capacity.main(["--cycles", "1"])
    assert re.search("at least 100", capsys.readouterr().err)
