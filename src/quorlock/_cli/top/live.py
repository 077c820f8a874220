"""The turns: combine the nodes' reports with the inspections, and show the result.

`node_probe` and `poll_loop` do the requests; `report` makes the text.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from quorlock import Node, NodeStatus, now
from quorlock._cli.config import FileSettings
from quorlock._cli.exit_status import EX_NOPERM, EX_UNAVAILABLE
from quorlock._cli.inspection_view import FREE, verdict
from quorlock._cli.node_pollers import DiagnosticConnection, NodePollers, PollReport
from quorlock._cli.poll_loop import Show, inspect_all, poll
from quorlock._cli.scan import Names, WatchedNames, merged
from quorlock._cli.text_layout import is_drawable
from quorlock._cli.top.facts import (
    DOWN,
    HUNG,
    KEPT_OUT,
    UP,
    LockFacts,
    LockHistory,
    NodeColumns,
    TopNodeFacts,
)
from quorlock._cli.top.monitor import AttemptMonitor
from quorlock._cli.top.monitor import Sample as Tried
from quorlock._cli.top.node_probe import NodeProbe, NodeSample
from quorlock._cli.top.report import as_facts, as_lines
from quorlock.asyncio import Redlock
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._cli.full_screen import FullScreen

_LIMIT = 100
# An unused name: its inspection shows whether a node replies, even if no lock is held.
_UNUSED_NAME = "quorlock-top"
_HUNG = (VoteCode.TIMED_OUT, VoteCode.CONNECT_TIMED_OUT)


class TopOptions(NamedTuple):
    """The options."""

    pattern: str
    interval: float  # seconds
    waiters: bool  # sample acquire attempts
    once: bool  # one snapshot, of two samples
    as_json: bool


def watch(settings: FileSettings, options: TopOptions) -> int:
    """Show the nodes and locks until interrupted, or once."""
    drawn = _full_screen() if not (options.as_json or options.once) and is_drawable() else None
    once = options.once or (drawn is None and not options.as_json)
    with ExitStack() as stack:
        pollers = stack.enter_context(_pollers(settings, options))
        monitor = (
            stack.enter_context(AttemptMonitor(settings, options.interval))
            if options.waiters
            else None
        )
        pollers.wait(settings.seconds("connect_timeout"))
        if drawn is not None:
            stack.enter_context(drawn)
        show = _as_json if options.as_json else _as_text if drawn is None else _on(drawn)
        watcher = NodeWatcher(pollers, monitor, show, first=1 if once else 0)
        poll(settings, options.interval, watcher.turn, 2 if once else 0, drawn)
    return watcher.status if once else 0


def _pollers(settings: FileSettings, options: TopOptions) -> NodePollers[NodeSample]:
    prefix = settings.prefix

    def connected(connection: DiagnosticConnection, node: Node) -> Callable[[], NodeSample]:
        return NodeProbe(connection, prefix, options.pattern, node.db)

    return NodePollers(settings, options.interval, connected)


class NodeWatcher:
    """The work of every turn. Turns before `first` are not shown.

    status: The exit status that the last turn stands for.
    """

    def __init__(
        self,
        pollers: NodePollers[NodeSample],
        monitor: AttemptMonitor | None,
        show: Callable[[NodeColumns], None],
        *,
        first: int,
    ) -> None:
        self._pollers = pollers
        self._monitor = monitor
        self._show = show
        self.status: int = 0
        self._unshown = first
        self._wanted = WatchedNames((), _LIMIT)
        self._history = LockHistory()

    async def turn(self, redlock: Redlock) -> Show:
        """Collect the facts, and return the function that shows them."""
        reports, wanted = self._pollers.reports, self._wanted
        listing = merged({node: _names(report) for node, report in reports.items()})
        more = wanted.take(listing)
        names = [_UNUSED_NAME, *wanted.names]
        inspections = (await inspect_all(redlock, names, are_listed=True))[1:]
        wanted.keep(one.resource for one in inspections if verdict(one) != FREE)
        locks = self._history.note(inspections, now())
        if self._unshown:
            self._unshown -= 1
            return lambda: None
        statuses = redlock.nodes
        nodes = [node_facts(status, reports[status.address]) for status in statuses]
        self.status = _exit_status(nodes, statuses)
        notes = [listing.trouble] if listing.trouble and not listing.enough else []
        if self._monitor is not None:
            sample = self._monitor.sample
            notes.append(sample.note or "there is no sample of attempts yet")
            locks = [with_attempts(lock, sample) for lock in locks]
        facts = NodeColumns(datetime.now().astimezone(), nodes, locks, more, notes)
        return partial(self._show, facts)


def _exit_status(nodes: Sequence[TopNodeFacts], statuses: Sequence[NodeStatus]) -> int:
    if sum(node.state == UP for node in nodes) > len(nodes) // 2:
        return 0
    denied = any(status.code is VoteCode.ACCESS_DENIED for status in statuses)
    return EX_NOPERM if denied else EX_UNAVAILABLE


def with_attempts(lock: LockFacts, sample: Tried) -> LockFacts:
    """Return the lock with the number of attempts in the sample."""
    counts = sample.counts
    return lock._replace(tried=None if counts is None else counts.get(lock.inspection.resource, 0))


def node_facts(status: NodeStatus, report: PollReport[NodeSample]) -> TopNodeFacts:
    """Combine a node's own report with the status of the locks' connection to it."""
    why = (status.why or report.silent).partition(";")[0]
    if not why:
        state = UP
    elif (report.code if status.code is None else status.code) in _HUNG:
        state = HUNG
    elif report.silent or status.code is VoteCode.NOT_CONNECTED:
        state = DOWN
    else:
        state = KEPT_OUT
    sample = report.said
    if sample is None or state in (DOWN, HUNG):
        return TopNodeFacts(status.address, state, why)
    ordered = sorted(sample.latencies)
    return TopNodeFacts(
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


def _names(report: PollReport[NodeSample]) -> PollReport[Names]:
    return PollReport(report.said.names if report.said else None, report.silent, report.code)


def _as_json(facts: NodeColumns) -> None:
    click.echo(json.dumps(as_facts(facts)))
    sys.stdout.flush()


def _as_text(facts: NodeColumns) -> None:
    width = shutil.get_terminal_size().columns
    click.echo("\n".join(text for text, _ in as_lines(facts, width, None)))


def _full_screen() -> FullScreen:
    from quorlock._cli.full_screen import FullScreen  # it imports rich

    return FullScreen()


def _on(drawn: FullScreen) -> Callable[[NodeColumns], None]:
    return lambda facts: drawn.draw(partial(as_lines, facts))
