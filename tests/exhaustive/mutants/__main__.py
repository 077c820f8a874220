"""`python -m tests.exhaustive.mutants [names]`: which mutants the tests find."""

from __future__ import annotations

import sys
import time

from tests.exhaustive.mutants import MUTANTS
from tests.exhaustive.mutants.run import run


def main(names: list[str]) -> int:
    """Run these, or all; 1 if any survives or cannot be run."""
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(MUTANTS)}")
        return 2
    bad = 0
    for name in names or MUTANTS:
        mutant, began = MUTANTS[name], time.monotonic()
        try:
            outcome = run(mutant)
        except ValueError as error:
            outcome = f"not run: {error}"
        bad += outcome != "killed"
        seconds = time.monotonic() - began
        print(f"{outcome:9} {name:36} {seconds:5.1f} s  {' '.join(mutant.tests)}", flush=True)
    print(f"{len(names or MUTANTS)} mutants, {bad} not killed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
