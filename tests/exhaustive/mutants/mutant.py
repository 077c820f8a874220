"""Definition of a mutant; `run` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]


class Mutant(NamedTuple):
    """One defect.

    file: below src/quorlock. old, new: the exact text that is replaced; it occurs once.
    tests: arguments for pytest, by which it is found.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """The file, from the root of the repository."""
        return f"src/quorlock/{self.file}"

    def occurrences(self, root: Path = ROOT) -> int:
        """Return how often the old text occurs."""
        return (root / self.path).read_text().count(self.old)
