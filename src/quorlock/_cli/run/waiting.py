"""The reports of `run` while it waits for the lock: who holds it, or which nodes cast no vote.

A thread inspects the resource beside the acquire, which is not affected. It exists only where its
reports are shown (`-v`, `--json`); without them no other command is sent.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from quorlock._cli.inspection_view import HELD, holders, named, shown_holder
from quorlock.errors import QuorlockError, VoteCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorlock import Redlock
    from quorlock._cli.run.reporter import Reporter

# Seconds: before the first inspection, which a free lock does not need; between inspections; and
# before a report, since the holder that was seen may be this process, which then ends the reports.
_FIRST, _INTERVAL, _SETTLE = 0.1, 0.5, 0.1


class WaitReports:
    """A thread that reports for whom `run` waits, once, and again when that changes."""

    def __init__(self, redlock: Redlock, resource: str, reporter: Reporter) -> None:
        self._redlock = redlock
        self._resource = resource
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
        pause = _FIRST
        while not self._ended.wait(pause):
            pause = _INTERVAL
            try:
                self._look()
            except QuorlockError:  # the acquire reports it
                return

    def _look(self) -> None:
        inspection = self._redlock.inspect(self._resource)
        silent = {
            status.address: status.why.partition(";")[0]
            for status in self._redlock.nodes
            if not status.up and status.code is not VoteCode.NOT_CONNECTED
        }
        if len(silent) > len(inspection.nodes) // 2:
            whys = dict.fromkeys(silent.values())
            of_all = f"{len(silent)} of {len(inspection.nodes)} nodes cast no vote"
            unknown = {"holder": None, "owner": None, "holder_ttl": None}
            self._report(frozenset(silent), f"{of_all}: {'; '.join(whys)}", unknown)
        elif inspection.verdict == HELD:
            holder, ttl = holders(inspection)[0][0], inspection.ttl_left
            left = "" if ttl is None else f", at most {ttl:.1f} s more"
            facts = {"holder": holder, "owner": named(inspection, holder), "holder_ttl": ttl}
            self._report(holder, f"held by {shown_holder(inspection, holder)}{left}", facts)

    def _report(self, state: object, sentence: str, facts: Mapping[str, object]) -> None:
        if state == self._reported or self._ended.wait(_SETTLE):
            return
        with self._lock:
            if not self._ended.is_set():
                self._reported = state
                self._reporter.info("waiting", f"waiting: {sentence}", **facts)
