"""docs/contributing/peers-defects.md keeps its word: every row has an address and
tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "contributing" / "peers-defects.md"
COLUMNS = ["project and version", "defect", "where reported or seen", "what it costs a user"]
COLUMNS += ["our test"]


class Row(NamedTuple):
    """One defect of a peer."""

    project: str
    defect: str
    where: str
    cost: str
    test: str

    def __str__(self) -> str:
        return f"{self.project}: {self.defect}"

    @property
    def addresses(self) -> list[str]:
        return re.findall(r"\]\((https://[^\s()]+)\)", self.where)

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.test)


def rows() -> list[Row]:
    """Every line of every table, its header and rule aside."""
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == len(COLUMNS) for row in cells), "a row with more or less than 5 cells"
    return [Row(*row) for row in cells if row != COLUMNS and set("".join(row)) != {"-"}]


ROWS = rows()


def test_the_table_is_not_empty() -> None:
    """The table has as many rows as were found."""
    assert len(ROWS) >= 70
    assert len({(row.project, row.defect) for row in ROWS}) == len(ROWS), "the same row twice"


@pytest.mark.parametrize("row", ROWS, ids=map(str, range(len(ROWS))))
def test_a_row_is_whole(row: Row) -> None:
    """No cell is empty, every source has a link, and every named test can be collected."""
    assert all(row), row
    assert row.addresses, f"no address: {row}"
    assert row.tests, f"no test: {row}"
    assert row.test == ", ".join(f"`{test}`" for test in row.tests), "and nothing but tests"
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in names_in(path), f"{test} does not exist: {row}"


def test_no_test_is_here_for_nothing() -> None:
    """Every test in this folder is in the table: other cases belong to the tests of their part."""
    named = {test for row in ROWS for test in row.tests}
    here = {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for name in names_in(path.relative_to(ROOT).as_posix())
    }
    assert sorted(here - named) == []


@cache
def names_in(path: str) -> frozenset[str]:
    """The functions that pytest collects from a file: test functions at its top level."""
    file = ROOT / path
    if not (file.is_file() and path.startswith("tests/") and file.name.startswith("test_")):
        return frozenset()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    top = [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, functions)]
    return frozenset(node.name for node in top if node.name.startswith("test_"))
