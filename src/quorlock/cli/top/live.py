"""Takes the turns: brings together what the nodes say of themselves and what is seen of the locks,
and has it shown. Leaves asking to `scout` and `turns`, and words to `report`.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock import now
from quorlock.cli.asking import Askers, Report
from quorlock.cli.holders import FREE, verdict
from quorlock.cli.listing import Names, Wanted, merged, prefix_of
from quorlock.cli.terminal import screen
from quorlock.cli.top.facts import DOWN, HUNG, KEPT_OUT, UP, Facts, NodeFacts
from quorlock.cli.top.report import as_facts, as_lines
from quorlock.cli.top.scout import Sample, Scout
from quorlock.cli.top.seen import Seen
from quorlock.cli.top.tries import Tries
from quorlock.cli.turns import look, repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock import Node, NodeStatus
    from quorlock.asyncio import Redlock
    from quorlock.cli.asking import Talk
    from quorlock.cli.config import Settings
    from quorlock.cli.screen import Screen
    from quorlock.cli.top.facts import LockFacts
    from quorlock.cli.top.tries import Sample as Tried
    from quorlock.cli.turns import Show

_LIMIT = 100
# A name that nobody has: asking for it shows whether a node answers, also while nothing is held.
_NOBODYS = "quorlock-top"
# First words of what is said of a node that cannot be reached. One that can, and does not vote, has
# been turned away: it came up lately, is a replica, or has other settings.
_UNREACHED = ("connection", "not connected", "no such file", "closes the connection")


class Wish(NamedTuple):
    """What is to be shown.

    interval: seconds.  waiters: who tries to acquire.  once: one picture, of two looks.
    """

    pattern: str
    interval: float
    waiters: bool
    once: bool
    as_json: bool


def watch(settings: Settings, wish: Wish) -> int:
    """Show it until interrupted, or once."""
    drawn = None if wish.as_json or wish.once else screen()
    once = wish.once or (drawn is None and not wish.as_json)
    with ExitStack() as stack:
        askers = stack.enter_context(_askers(settings, wish))
        tries = stack.enter_context(Tries(settings, wish.interval)) if wish.waiters else None
        askers.wait(settings.seconds("connect_timeout"))
        if drawn is not None:
            stack.enter_context(drawn)
        show = _as_json if wish.as_json else _as_text if drawn is None else _on(drawn)
        watching = Watch(askers, tries, show, first=1 if once else 0)
        repeat(settings, wish.interval, watching.turn, times=2 if once else 0)
    return 0


def _askers(settings: Settings, wish: Wish) -> Askers[Sample]:
    prefix = prefix_of(settings)

    def meet(talk: Talk, node: Node) -> Callable[[], Sample]:
        return Scout(talk, prefix, wish.pattern, node.db)

    return Askers(settings, wish.interval, meet)


class Watch:
    """What is done at every turn; shown from the turn `first` on."""

    def __init__(
        self,
        askers: Askers[Sample],
        tries: Tries | None,
        show: Callable[[Facts], None],
        *,
        first: int,
    ) -> None:
        self._askers = askers
        self._tries = tries
        self._show = show
        self._unshown = first
        self._wanted = Wanted((), _LIMIT)
        self._seen = Seen()

    async def turn(self, redlock: Redlock) -> Show:
        """Look; what shows it."""
        reports, wanted = self._askers.reports, self._wanted
        listing = merged({node: _names(report) for node, report in reports.items()})
        more = wanted.take(listing)
        told = (await look(redlock, [_NOBODYS, *wanted.names]))[1:]
        wanted.keep(one.resource for one in told if verdict(one) != FREE)
        locks = self._seen.note(told, now())
        if self._unshown:
            self._unshown -= 1
            return _nothing
        nodes = [node_facts(status, reports[status.address]) for status in redlock.nodes]
        notes = [listing.trouble] if listing.trouble and not listing.enough else []
        if self._tries is not None:
            sample = self._tries.sample
            notes.append(sample.note or "nothing is known of who tries yet")
            locks = [with_tries(lock, sample) for lock in locks]
        facts = Facts(datetime.now().astimezone(), nodes, locks, more, notes)
        return partial(self._show, facts)


def with_tries(lock: LockFacts, sample: Tried) -> LockFacts:
    """It, with what the sample tells of it."""
    counts = sample.counts
    return lock._replace(tried=None if counts is None else counts.get(lock.told.resource, 0))


def _nothing() -> None:
    pass


def node_facts(status: NodeStatus, report: Report[Sample]) -> NodeFacts:
    """What the node says of itself, and what our locks' connection to it says."""
    why = (status.why or report.silent).partition(";")[0]
    if not why:
        state = UP
    elif why.startswith("no answer"):
        state = HUNG
    elif report.silent or why.lower().startswith(_UNREACHED):
        state = DOWN
    else:
        state = KEPT_OUT
    sample = report.said
    if sample is None or state in (DOWN, HUNG):
        return NodeFacts(status.address, state, why)
    ordered = sorted(sample.latencies)
    return NodeFacts(
        status.address,
        state,
        why,
        latency_p50=ordered[len(ordered) // 2],
        latency_max=ordered[-1],
        connections=sample.connections,
        keys=sample.keys,
        ops=sample.ops,
        lacks=sample.lacks,
    )


def _names(report: Report[Sample]) -> Report[Names]:
    return Report(report.said.names if report.said else None, report.silent)


def _as_json(facts: Facts) -> None:
    click.echo(json.dumps(as_facts(facts)))
    sys.stdout.flush()


def _as_text(facts: Facts) -> None:
    width = shutil.get_terminal_size().columns
    click.echo("\n".join(text for text, _ in as_lines(facts, width, None)))


def _on(drawn: Screen) -> Callable[[Facts], None]:
    from quorlock.cli.screen import Line

    def show(facts: Facts) -> None:
        drawn.draw(Line(*line) for line in as_lines(facts, drawn.width, drawn.height))

    return show
