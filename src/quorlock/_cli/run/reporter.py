"""Messages of `run` on stderr, as sentences or JSON lines; stdout belongs to the command."""

from __future__ import annotations

import json
import os
import select
from datetime import UTC, datetime

from quorlock._cli.stdio import say
from quorlock._cli.timestamps import timestamp

INFO, WARNING, FAILURE = range(3)
_STDERR = 2
# Seconds for stderr to take a message: no signal is forwarded until then, and the lock is held.
_PATIENCE = 1.0


class Reporter:
    """A writer of messages at or above a level. Messages contain no token."""

    def __init__(self, resource: str, *, quiet: bool, verbose: bool, as_json: bool) -> None:
        self._resource = resource
        self._level = FAILURE if quiet else INFO if verbose or as_json else WARNING
        self._as_json = as_json

    @property
    def is_verbose(self) -> bool:
        """Return whether `info` writes."""
        return self._level <= INFO

    @property
    def is_watched(self) -> bool:
        """Return whether a terminal shows the messages, and not every step is one."""
        return self._level == WARNING and os.isatty(_STDERR)

    def info(self, event: str, sentence: str, **facts: object) -> None:
        self._write(INFO, event, sentence, facts)

    def warn(self, event: str, sentence: str, **facts: object) -> None:
        self._write(WARNING, event, sentence, facts)

    def fail(self, sentence: str, **facts: object) -> None:
        """Write the reason why the command was not started."""
        self._write(FAILURE, "failed", sentence, facts)

    def _write(self, level: int, event: str, sentence: str, facts: dict[str, object]) -> None:
        if level < self._level:
            return
        time = timestamp(datetime.now(UTC))
        fields = {"event": event, "time": time, "resource": self._resource, **facts}
        fields["message"] = sentence
        line = json.dumps(fields) if self._as_json else f"quorlock run: {sentence}"
        if _takes_more():
            say(f"{line}\n")


def _takes_more() -> bool:
    """Wait until stderr takes a message; False if it does not, as a full pipe that is not read."""
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    return bool(poll.poll(_PATIENCE * 1000))
