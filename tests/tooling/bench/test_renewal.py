"""bench.renewal with few leases: nothing is lost, and every method is reported."""

from __future__ import annotations

import pytest

from bench import renewal

SMALL = ["--leases", "60", "--ttl", "0.9", "--seconds", "0.8", "--nodes", "3"]


def test_it_reports_all_methods_in_both_apis(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each; nothing is lost."""
    assert renewal.main(SMALL) == 0
    output = capsys.readouterr().out
    print(output)
    assert output.count(renewal.HEAD) == 2
    for ways in renewal.WAYS.values():
        for way in ways:
            assert f"\n{way}  " in output
    assert output.count("times the packets") == 3


def cost(*, extensions: int, packets: float, cpu: float = 1.0) -> renewal.Cost:
    return renewal.Cost(cpu, packets, extensions, 10.0)


def test_the_two_are_compared_by_one_extension() -> None:
    """One way may have made fewer of them than the other in the same time."""
    engine = renewal.Kept(renewal.ENGINE, cost(extensions=1000, packets=10), 0, 0.6)
    alone = renewal.Kept(renewal.ALONE, cost(extensions=500, packets=500), 3, 0.0)
    assert renewal.compared(engine, alone) == (
        "one at a time: 2.0 times the CPU for one extension, 100.0 times the packets"
    )
    assert str(alone).split()[-6:] == ["3", "50", "10.0%", "50", "2,000.0", "0%"]


def test_nothing_to_compare() -> None:
    """No extension was due."""
    nothing = renewal.Kept(renewal.ENGINE, cost(extensions=0, packets=0), 0, 1.0)
    assert renewal.compared(nothing, nothing) == "nothing to compare"
    assert "nan" in str(nothing)
