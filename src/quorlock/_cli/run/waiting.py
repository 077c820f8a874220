"""The reports of `run` while it waits for the lock: who holds it, or which nodes cast no vote.

A thread inspects the resource beside the acquire, which is not affected. It exists only where its
reports are shown: all of them with `-v` or `--json`, and one on a terminal, where a user would see
nothing else. Without them no other command is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Self

from quorlock import Inspection, Redlock
from quorlock._cli.inspection_view import HELD, holders, named, shown_holder, waiting
from quorlock._cli.run.reporter import Reporter
from quorlock.errors import QuorlockError, VoteCode

# Seconds: before the first inspection, which a free lock does not need; between inspections; and
# before a report, since the holder that was seen may be this process, which then ends the reports.
_FIRST, _INTERVAL, _SETTLE = 0.1, 0.5, 0.1
# Seconds before the one report on a terminal: a user wonders about a longer wait only.
_UNASKED = 1.0
_FRESH = "; if these nodes are new: quorlock nodes fresh"


class WaitReports:
    """A thread that reports for whom `run` waits, once, and again when that changes."""

    def __init__(self, redlock: Redlock, resources: tuple[str, ...], reporter: Reporter) -> None:
        self._redlock = redlock
        self._resources = resources
        self._reporter = reporter
        self._reported: object = None
        self._ended = threading.Event()
        self._lock = threading.Lock()  # no report after `end`
        self._thread = threading.Thread(target=self._run, name="quorlock-waiting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Report nothing more. Does not wait for an inspection."""
        with self._lock:
            self._ended.set()

    def _run(self) -> None:
        once = not self._reporter.is_verbose
        pause = _UNASKED if once else _FIRST
        while not (self._ended.wait(pause) or (once and self._reported)):
            pause = _INTERVAL
            try:
                self._look()
            except QuorlockError:  # the acquire reports it
                return

    def _look(self) -> None:
        inspection = self._inspected()
        down = [
            status
            for status in self._redlock.nodes
            if not status.up and status.code is not VoteCode.NOT_CONNECTED
        ]
        silent = {status.address: status.why.partition(";")[0] for status in down}
        if len(silent) > len(inspection.nodes) // 2:
            whys = dict.fromkeys(silent.values())
            of_all = f"{len(silent)} of {len(inspection.nodes)} nodes cast no vote"
            unknown = {"holder": None, "owner": None, "holder_ttl": None, "waiters": 0}
            is_new = all(status.code is VoteCode.QUARANTINED for status in down)
            sentence = f"{of_all}: {'; '.join(whys)}{_FRESH if is_new else ''}"
            self._report(frozenset(silent), sentence, unknown)
        elif inspection.verdict == HELD:
            holder, ttl = holders(inspection)[0][0], inspection.ttl_left
            verb, until = ("done", "; it counts as done for") if inspection.done else ("held", ",")
            left = "" if ttl is None else f"{until} at most {ttl:.1f} s more"
            facts = {"holder": holder, "owner": named(inspection, holder), "holder_ttl": ttl}
            # This process waits too, and is among them once it has a place in the queues.
            queue = waiting(inspection) if inspection.waiters > 1 else ""
            is_ = "was" if inspection.done else "is"
            which = f"{inspection.resource!r} {is_} " if self._resources[1:] else ""
            sentence = f"{which}{verb} by {shown_holder(inspection, holder)}{left}{queue}"
            self._report(holder, sentence, facts | {"waiters": inspection.waiters})

    def _inspected(self) -> Inspection:
        """Return the state of the first resource that is held; of the last if none is."""
        for resource in self._resources[:-1]:
            inspection = self._redlock.inspect(resource)
            if inspection.verdict == HELD:
                return inspection
        return self._redlock.inspect(self._resources[-1])

    def _report(self, state: object, sentence: str, facts: Mapping[str, object]) -> None:
        if state == self._reported or self._ended.wait(_SETTLE):
            return
        with self._lock:
            if not self._ended.is_set():
                self._reported = state
                report = self._reporter.info if self._reporter.is_verbose else self._reporter.warn
                report("waiting", f"waiting: {sentence}", **facts)
