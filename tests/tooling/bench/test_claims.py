"""bench.claims with few cycles: every row is reported, and is relative to the plain lock."""

from __future__ import annotations

import pytest

from bench import claims


def test_it_reports_all_rows_in_both_apis(capsys: pytest.CaptureFixture[str]) -> None:
    assert claims.main(["--rounds", "1", "--cycles", "2", "--nodes", "3"]) == 0
    output = capsys.readouterr().out
    print(output)
    assert output.count(claims.HEAD) == 2
    for row in claims.ROWS:
        assert output.count(f"\n{row.name}  ") == 2


def test_ratios_are_taken_within_a_round() -> None:
    """A round on a slow machine counts like any other."""
    plain = [claims.Cycle(100, 50), claims.Cycle(1000, 500), claims.Cycle(100, 50)]
    other = [claims.Cycle(200, 100), claims.Cycle(2000, 1000), claims.Cycle(200, 100)]
    assert claims.shown(claims.ROWS[1], other, plain).split()[-4:] == ["200", "2.00", "100", "2.00"]
