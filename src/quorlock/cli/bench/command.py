"""`quorlock bench`: the options, what is said on stderr, and how it ends."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from quorlock.cli.durations import Seconds
from quorlock.cli.nodes import Source, with_nodes

if TYPE_CHECKING:
    import threading

    from quorlock.cli.bench.facts import Measured
    from quorlock.cli.bench.measure import Bench

_CALLERS_MAX, _STEPS_MAX = 1000, 8


def _callers(text: str) -> tuple[int, ...]:
    """`1,8,64`, for `click.option(type=...)`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= _CALLERS_MAX for word in words):
        raise click.BadParameter(
            f"{text!r}: give numbers from 1 to {_CALLERS_MAX:,}, as in 1,8,64."
        )
    numbers = tuple(sorted({int(word) for word in words}))
    if len(numbers) > _STEPS_MAX:
        raise click.BadParameter(f"{text!r}: give {_STEPS_MAX} numbers at the most.")
    return numbers


@click.command("bench")
@click.option("--seconds", type=Seconds(1, 600), default=5, help="How long it takes in all (5).")
@click.option(
    "--tasks",
    type=_callers,
    default="1,4,16,64",
    metavar="N,N,...",
    help="How many callers at once, in threads (up to 64) and asyncio tasks (1,4,16,64).",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON: docs/cli.schema.json.")
@with_nodes
def command(source: Source, *, seconds: float, tasks: tuple[int, ...], as_json: bool) -> int:
    """See how fast locks are on your nodes: latency, rate, and what bounds them.

    This loads the nodes. It writes to keys of its own, PREFIXquorlock-bench:..., and removes them,
    also on Ctrl-C.

    Exit status: 1 if leases were lost, or two held the same at once; 69 if the nodes give no lock.
    """
    import threading

    from quorlock.cli.bench.measure import Bench, Plan

    settings, stop = source.settings(), threading.Event()
    settings.redlock().close()  # says what is wrong with them
    progress = Progress()
    bench = Bench(settings, Plan(seconds, tasks), stop, progress.tell)
    nodes = "one node" if len(settings.nodes) == 1 else f"{len(settings.nodes)} nodes"
    progress.say(
        f"loads {nodes} for about {seconds:g} s, under keys of its own:"
        f"\n  {bench.keys}... (ttl {bench.ttl:g} s)"
    )
    try:
        measured = _measured(bench, stop)
    finally:
        progress.tell("")
    _answer(measured, as_json=as_json)
    return int(bool(measured.troubles.lost or measured.troubles.overlaps))


def _measured(bench: Bench, stop: threading.Event) -> Measured:
    """In a thread of its own: an interruption that arrives here finds nothing half-done."""
    from quorlock.cli.aside import Work

    work: Work[Measured] | None = None
    try:
        work = Work(bench.run)
        return work.result()
    finally:
        stop.set()
        if work is not None:
            work.wait()  # it gives back what it has


def _answer(measured: Measured, *, as_json: bool) -> None:
    from quorlock.cli.bench.report import as_facts, as_text

    if as_json:
        import json

        click.echo(json.dumps(as_facts(measured)))
    else:
        click.echo(as_text(measured))


class Progress:
    """What is done, on stderr: a line that stays, and on a terminal one that is written over.

    Not by rich: what turns there many times a second would take CPU from what is measured.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, sentence: str) -> None:
        """For good."""
        sys.stderr.write(f"quorlock bench: {sentence}\n")
        sys.stderr.flush()

    def tell(self, part: str) -> None:
        """For as long as it takes."""
        if self._live:
            sys.stderr.write(f"\r\x1b[K{part}")
            sys.stderr.flush()
