"""Poll every node at an interval, each from a daemon thread over one connection.

`status --match` and `top` use it. It is one of the modules that may import `_drivers.diagnostics`
(decision 0020). A node that hangs delays only its own thread. Callers supply the commands; votes
and locks are left to `Redlock`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Self, TypeVar

from quorlock import Node
from quorlock._cli.config import FileSettings
from quorlock._drivers.diagnostics import (
    DiagnosticConnection,
    ErrorReply,
    NoAnswer,
    info_fields,
)
from quorlock.errors import VoteCode

__all__ = [
    "DiagnosticConnection",
    "ErrorReply",
    "NoAnswer",
    "NodePoller",
    "NodePollers",
    "PollReport",
    "info_fields",
]

T = TypeVar("T")


class PollReport(NamedTuple, Generic[T]):
    """The last result of one node."""

    said: T | None = None  # None if the node could not be asked, or not yet
    silent: str = ""  # the reason; "" if it replied or was not asked yet
    code: VoteCode | None = None  # of the error that it replied with instead, or TIMED_OUT


class NodePoller(Generic[T]):
    """A thread that polls one node.

    on_connect: called with each new connection and its node; returns the function that is called at
        every poll. Both may raise NoAnswer.
    """

    def __init__(
        self,
        node: Node,
        seconds: float,
        pause: float,
        on_connect: Callable[[DiagnosticConnection, Node], Callable[[], T]],
    ) -> None:
        self.address: str = node.address
        self.report: PollReport[T] = PollReport()
        self.reported: threading.Event = threading.Event()  # set once there is a report
        self._node = node
        self._seconds = seconds
        self._pause = pause
        self._on_connect = on_connect
        self._over = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        name = f"quorlock asks {self.address}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current request, without waiting for it."""
        self._over.set()

    def _work(self) -> None:
        # For the main thread, whose write to a full pipe only its own signal ends: of a stopped
        # process the kernel gives a signal to any thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        while not self._over.is_set():
            try:
                with DiagnosticConnection(self._node, self._seconds) as connection:
                    self._ask(connection)
            except NoAnswer as error:
                self._report(PollReport(silent=str(error), code=error.code))
                self._over.wait(self._pause)

    def _ask(self, connection: DiagnosticConnection) -> None:
        if self._node.db and isinstance(
            no := connection.ask(b"SELECT", b"%d" % self._node.db), ErrorReply
        ):
            raise NoAnswer(no)
        poll = self._on_connect(connection, self._node)
        while not self._over.is_set():
            self._report(PollReport(poll()))
            self._over.wait(self._pause)

    def _report(self, report: PollReport[T]) -> None:
        self.report = report
        self.reported.set()


class NodePollers(Generic[T]):
    """One poller for each node, as a context manager."""

    def __init__(
        self,
        settings: FileSettings,
        pause: float,
        on_connect: Callable[[DiagnosticConnection, Node], Callable[[], T]],
    ) -> None:
        seconds = settings.seconds("connect_timeout")
        self.all: list[NodePoller[T]] = [
            NodePoller(node, seconds, pause, on_connect) for node in settings.nodes
        ]

    def __enter__(self) -> Self:
        for poller in self.all:
            poller.start()
        return self

    def __exit__(self, *_: object) -> None:
        for poller in self.all:
            poller.stop()

    @property
    def reports(self) -> dict[str, PollReport[T]]:
        """The last report of each node, by address."""
        return {poller.address: poller.report for poller in self.all}

    def wait(self, seconds: float) -> None:
        """Wait until each node has a report, for at most this many seconds."""
        until = time.monotonic() + seconds
        for poller in self.all:
            poller.reported.wait(max(0.0, until - time.monotonic()))
