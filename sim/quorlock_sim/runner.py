"""Runs of simulated worlds: one, many in sequence, or many in several processes.

The command line and its output are in `__main__`.
"""

from __future__ import annotations

import gc
import os
import signal
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as await_any
from threading import Thread
from typing import TYPE_CHECKING

from quorlock_sim.oracle import judge
from quorlock_sim.report import Report
from quorlock_sim.scenarios import plan_of
from quorlock_sim.shrink import shrink
from quorlock_sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorlock_sim.oracle import Judgement
    from quorlock_sim.plan import Plan
    from quorlock_sim.trace import Trace

CHUNK = 250  # worlds that a process runs for one report
_LOOK = 0.2  # seconds between two checks for a Ctrl-C


def run(plan: Plan, trace: Trace | None = None) -> tuple[World, Judgement]:
    """Run one world to its end and judge it."""
    world = World(plan, trace)
    world.run()
    judgement = judge(world)
    if trace is not None:
        trace.finish(judgement)
    return world, judgement


def run_seeds(scenario: str, first: int, count: int) -> Report:
    """Run many worlds in sequence."""
    # Worlds are full of reference cycles; Python's default thresholds cost a tenth of the time.
    gc.set_threshold(50_000, 20, 100)
    report = Report()
    for seed in range(first, first + count):
        report.add(*run(plan_of(scenario, seed)))
    return report


def smallest(plan: Plan, rule: str) -> Plan:
    """Return the plan minimised to what still breaks the same promise."""

    def fails(candidate: Plan) -> bool:
        return any(violation.rule == rule for violation in run(candidate)[1].violations)

    return shrink(plan, fails)


# --- in several processes -------------------------------------------------------------------------


def reports(scenario: str, first: int, count: int, jobs: int) -> Iterator[Report]:
    """Yield the reports of chunks of seeds, computed in several processes."""
    chunks = [
        (scenario, seed, min(CHUNK, first + count - seed))
        for seed in range(first, first + count, CHUNK)
    ]
    if jobs == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield run_seeds(*chunk)
        return
    with _ctrl_c() as look, ProcessPoolExecutor(jobs, get_context("spawn"), _end_quietly) as pool:
        waiting: set[Future[Report]] = set()
        try:
            while chunks or waiting:
                while chunks and len(waiting) <= 2 * jobs:
                    waiting.add(_submit(pool, chunks.pop(0)))
                done, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                look()
                yield from (part.result() for part in done)
        except BrokenProcessPool:
            look()  # Ctrl-C has ended a worker, and came before the next look
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _ctrl_c() -> Generator[Callable[[], None]]:
    """Defer Ctrl-C within the block: the yielded function raises it.

    If it were raised inside concurrent.futures, a lock would stay taken. The pool's thread would
    wait for that lock forever, and this process for that thread.
    """
    came: list[int] = []

    def look() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)


def _submit(pool: ProcessPoolExecutor, chunk: tuple[str, int, int]) -> Future[Report]:
    """Submit a chunk; a worker that this starts has SIGINT blocked until `_end_quietly`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(run_seeds, *chunk)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_quietly() -> None:
    """Let Ctrl-C end this worker silently; the parent prints the message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """End this worker with its parent; if that is killed, the worker would wait forever."""
    parent = parent_process()
    assert parent is not None
    await_any([parent.sentinel])
    os._exit(1)
