"""One hash for the traces of many worlds. For any Python that has hiredis, and nothing else.

PYTHONPATH=src:sim:. python3.13 -m tests.sim.hashes 0 1000
"""

from __future__ import annotations

import hashlib
import sys

from quorlock_sim.runner import run
from quorlock_sim.scenarios import ALL, plan_of
from quorlock_sim.trace import Trace


def trace_of(scenario: str, seed: int) -> str:
    trace = Trace()
    run(plan_of(scenario, seed), trace)
    return trace.text()


def hash_of(first: int, count: int, scenario: str = ALL) -> str:
    """Return the hash of this many worlds in sequence."""
    total = hashlib.sha256()
    for seed in range(first, first + count):
        total.update(trace_of(scenario, seed).encode())
    return total.hexdigest()


if __name__ == "__main__":
    print(hash_of(int(sys.argv[1]), int(sys.argv[2])))
