"""Asks every node plain questions, again and again, each in a thread of its own, over one
connection: for `status --match` and `top`, by the doctor's door (decision 0020).

Nobody waits for a node that hangs but its own thread, which is a daemon. Leaves what to ask to its
callers, and what votes or tells of locks to `Redlock`.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from quorlock._drivers.ask import Refused, Silent, Talk

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock import Node
    from quorlock.cli.config import Settings

__all__ = ["Asker", "Askers", "Refused", "Report", "Silent", "Talk"]

T = TypeVar("T")


class Report(NamedTuple, Generic[T]):
    """What a node said last.

    said: None if it could not be asked, or not yet.  silent: why; "" if it could, or not yet.
    """

    said: T | None = None
    silent: str = ""


class Asker(Generic[T]):
    """One node's. `meet` is called with every new connection, and its node, and gives what asks by
    it: a function that is called at every look, and may raise Silent.
    """

    def __init__(
        self,
        node: Node,
        seconds: float,
        pause: float,
        meet: Callable[[Talk, Node], Callable[[], T]],
    ) -> None:
        self.address = node.address
        self.report: Report[T] = Report()
        self.reported = threading.Event()  # at least once
        self._node = node
        self._seconds = seconds
        self._pause = pause
        self._meet = meet
        self._over = threading.Event()

    def start(self) -> None:
        """Begin."""
        name = f"quorlock asks {self.address}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def stop(self) -> None:
        """End after what is being asked just now; waits for nothing."""
        self._over.set()

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                with Talk(self._node, self._seconds) as talk:
                    self._ask(talk)
            except Silent as error:
                self._tell(Report(silent=str(error)))
                self._over.wait(self._pause)

    def _ask(self, talk: Talk) -> None:
        if self._node.db and isinstance(no := talk.ask(b"SELECT", b"%d" % self._node.db), Refused):
            raise Silent(no)
        look = self._meet(talk, self._node)
        while not self._over.is_set():
            self._tell(Report(look()))
            self._over.wait(self._pause)

    def _tell(self, report: Report[T]) -> None:
        self.report = report
        self.reported.set()


class Askers(Generic[T]):
    """All nodes'. A context manager."""

    def __init__(
        self, settings: Settings, pause: float, meet: Callable[[Talk, Node], Callable[[], T]]
    ) -> None:
        seconds = settings.seconds("connect_timeout")
        self.all = [Asker(node, seconds, pause, meet) for node in settings.nodes]

    def __enter__(self) -> Self:
        for asker in self.all:
            asker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for asker in self.all:
            asker.stop()

    @property
    def reports(self) -> dict[str, Report[T]]:
        """By address."""
        return {asker.address: asker.report for asker in self.all}

    def wait(self, seconds: float) -> None:
        """Until each has told something, or so long."""
        until = time.monotonic() + seconds
        for asker in self.all:
            asker.reported.wait(max(0.0, until - time.monotonic()))
