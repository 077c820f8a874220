"""What `run` has to say, on stderr, for stdout is the command's: sentences, or lines of JSON."""

from __future__ import annotations

import json

from quorlock.cli.streams import say

NEWS, WARNING, FAILURE = range(3)


class Voice:
    """Says what is at least as grave as was asked for. Never a token."""

    def __init__(self, resource: str, *, quiet: bool, verbose: bool, as_json: bool) -> None:
        self._resource = resource
        self._least = FAILURE if quiet else NEWS if verbose or as_json else WARNING
        self._as_json = as_json

    def news(self, event: str, sentence: str, **facts: object) -> None:
        """What goes as it should."""
        self._tell(NEWS, event, sentence, facts)

    def warn(self, event: str, sentence: str, **facts: object) -> None:
        """What one ought to know."""
        self._tell(WARNING, event, sentence, facts)

    def fail(self, sentence: str, **facts: object) -> None:
        """Why we end before the command began."""
        self._tell(FAILURE, "failed", sentence, facts)

    def _tell(self, gravity: int, event: str, sentence: str, facts: dict[str, object]) -> None:
        if gravity < self._least:
            return
        told = {"event": event, "resource": self._resource, **facts, "message": sentence}
        line = json.dumps(told) if self._as_json else f"quorlock run: {sentence}"
        say(f"{line}\n")
