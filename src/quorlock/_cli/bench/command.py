"""`quorlock bench`: the options, the progress on stderr, and the exit status."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from quorlock._cli.durations import Seconds
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.stdio import say

if TYPE_CHECKING:
    import threading

    from quorlock._cli.bench.facts import Measured
    from quorlock._cli.bench.measure import Bench

_CALLERS_MAX, _STEPS_MAX = 1000, 8


def _callers(text: str) -> tuple[int, ...]:
    """Parse `1,8,64`, for `click.option(type=...)`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= _CALLERS_MAX for word in words):
        raise click.BadParameter(
            f"{text!r}: give numbers from 1 to {_CALLERS_MAX:,}, as in 1,8,64."
        )
    numbers = tuple(sorted({int(word) for word in words}))
    if len(numbers) > _STEPS_MAX:
        raise click.BadParameter(f"{text!r}: give {_STEPS_MAX} numbers at most.")
    return numbers


@click.command("bench")
@click.option(
    "--seconds",
    type=Seconds(1, 600),
    default=5,
    help="Duration of all parts in seconds.  [default: 5]",
)
@click.option(
    "--tasks",
    type=_callers,
    default="1,4,16,64",
    metavar="N,N,...",
    help="Numbers of concurrent callers, in threads (up to 64) and asyncio tasks."
    "  [default: 1,4,16,64]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: see docs/reference/cli.schema.json."
)
@with_nodes
def command(source: Source, *, seconds: float, tasks: tuple[int, ...], as_json: bool) -> int:
    """Measure how fast locks are on your nodes: latency, rate, and what limits them.

    This loads the nodes. It writes only keys named PREFIXquorlock-bench:..., and removes them, also
    on Ctrl-C.

    Exit status: 1 if leases were lost or two clients held a lock at once; 69 if the nodes grant no
    lock.
    """
    import threading

    from quorlock._cli.bench.measure import Bench, BenchPlan

    settings, stop = source.settings(), threading.Event()
    settings.redlock().close()  # raises if they are invalid
    progress = Progress()
    bench = Bench(settings, BenchPlan(seconds, tasks), stop, progress.show)
    nodes = "one node" if len(settings.nodes) == 1 else f"{len(settings.nodes)} nodes"
    progress.say(
        f"loads {nodes} for about {seconds:g} s, under its own keys:"
        f"\n  {bench.keys}... (ttl {bench.ttl:g} s)"
    )
    try:
        measured = _measured(bench, stop)
    finally:
        progress.show("")
    _answer(measured, as_json=as_json)
    return int(bool(measured.troubles.lost or measured.troubles.overlaps))


def _measured(bench: Bench, stop: threading.Event) -> Measured:
    """Measure in a background thread, so that an interruption here leaves nothing half-done."""
    from quorlock._cli.background import BackgroundCall

    work: BackgroundCall[Measured] | None = None
    try:
        work = BackgroundCall(bench.run)
        return work.result()
    finally:
        stop.set()
        if work is not None:
            work.wait()  # it releases its leases


def _answer(measured: Measured, *, as_json: bool) -> None:
    from quorlock._cli.bench.report import as_facts, as_text

    if as_json:
        import json

        click.echo(json.dumps(as_facts(measured)))
    else:
        click.echo(as_text(measured))


class Progress:
    """Progress on stderr: lines that stay, and on a terminal one line that is overwritten.

    rich is not used: a spinner that is redrawn many times a second would take CPU time.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, sentence: str) -> None:
        """Write a line that stays."""
        say(f"quorlock bench: {sentence}\n")

    def show(self, part: str) -> None:
        """Write the current part over the last one, on a terminal."""
        if self._live:
            say(f"\r\x1b[K{part}")
