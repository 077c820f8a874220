"""Modes of a proxy: one class for each way to disturb the bytes of its links.

A mode decides piece by piece. `links` has the sockets and timers, and `proxy` the current mode. A
mode gets every piece of a request as it arrives, and every whole reply, and counts its actions in
the proxy's counter. All of this runs in the relay's thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

from tests.harness.faults.links import Link

_THROTTLE_PAUSE = 0.01  # seconds between the pieces of a throttled stream


class Mode:
    """Transparent: everything passes, in order, at once."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def request(self, link: Link, data: bytes) -> None:
        """Some bytes came from the caller."""
        link.to_server.push(data)

    def reply(self, link: Link, frame: bytes) -> None:
        """One whole reply, or push message, came from the server."""
        link.to_caller.push(frame)

    def enter(self, links: Collection[Link]) -> None:
        """The mode begins, with these links open."""

    def leave(self, links: Collection[Link]) -> None:
        """The mode ends, with these links open."""


class Late(Mode):
    """A mode that delays everything. When it ends, delayed bytes are sent at once: otherwise a slow
    link with a long queue would stay slow long after the fault.
    """

    def leave(self, links: Collection[Link]) -> None:
        for link in links:
            link.to_server.hurry()
            link.to_caller.hurry()


class Delay(Late):
    """Later by `seconds` and a random part of `jitter`, either way."""

    def __init__(self, counts: Counter[str], seconds: float, jitter: float) -> None:
        super().__init__(counts)
        self._seconds = seconds
        self._jitter = jitter

    def request(self, link: Link, data: bytes) -> None:
        link.to_server.push(data, later=self._later())

    def reply(self, link: Link, frame: bytes) -> None:
        link.to_caller.push(frame, later=self._later())

    def _later(self) -> float:
        self.counts["delayed"] += 1
        return self._seconds + random.uniform(0.0, self._jitter)


class Throttle(Late):
    """A thin line: so many bytes a second, either way, in small pieces."""

    def __init__(self, counts: Counter[str], bytes_per_second: float) -> None:
        super().__init__(counts)
        self._piece = max(1, round(bytes_per_second * _THROTTLE_PAUSE))
        self._pause = self._piece / bytes_per_second

    def request(self, link: Link, data: bytes) -> None:
        self.counts["throttled"] += 1
        link.to_server.trickle(data, self._piece, self._pause)

    def reply(self, link: Link, frame: bytes) -> None:
        self.counts["throttled"] += 1
        link.to_caller.trickle(frame, self._piece, self._pause)


class DropReplies(Mode):
    """A mode that loses the next replies, each with its connection: a byte stream cannot lose a
    part and continue. Such a connection carries nothing more to its caller and is cut with the last
    reply to be lost, or when the mode ends. Requests still pass.
    """

    def __init__(self, counts: Counter[str], replies: int) -> None:
        super().__init__(counts)
        self._left = replies
        self._doomed: set[Link] = set()

    def reply(self, link: Link, frame: bytes) -> None:
        is_push = frame[:1] == b">"
        if link not in self._doomed and (is_push or self._left == 0):
            link.to_caller.push(frame)
            return
        self._doomed.add(link)
        if is_push:
            return
        self.counts["replies dropped"] += 1
        self._left -= 1
        if self._left == 0:
            self._cut()

    def leave(self, links: Collection[Link]) -> None:
        self._cut()

    def _cut(self) -> None:
        for link in self._doomed:
            link.close()
        self._doomed.clear()


class Stall(Mode):
    """A mode that stops every link in the middle of its next reply; the rest follows when the mode
    ends.
    """

    def __init__(self, counts: Counter[str], after_bytes: int) -> None:
        super().__init__(counts)
        self._after_bytes = after_bytes
        self._stalled: set[Link] = set()

    def reply(self, link: Link, frame: bytes) -> None:
        if link in self._stalled:
            link.to_caller.push(frame)
            return
        self._stalled.add(link)
        self.counts["replies stalled"] += 1
        cut = min(self._after_bytes, len(frame) - 1)  # never the whole of it
        link.to_caller.push(frame[:cut])
        link.to_caller.hold()
        link.to_caller.push(frame[cut:])

    def leave(self, links: Collection[Link]) -> None:
        for link in self._stalled & set(links):
            link.to_caller.release()


class HalfClose(Mode):
    """Every caller sees the end of its connection in place of its next reply; what it sends still
    reaches the server.
    """

    def reply(self, link: Link, frame: bytes) -> None:
        if not link.to_caller.ended:
            self.counts["half-closed"] += 1
        link.to_caller.end()


class Reset(Mode):
    """Every request reaches the server, and its connection is then reset before the reply."""

    def request(self, link: Link, data: bytes) -> None:
        link.to_server.push(data)
        self.counts["reset"] += 1
        link.close(reset=True)


class CutRequests(Mode):
    """The server gets the first bytes of a request and then the end of the connection."""

    def __init__(self, counts: Counter[str], after_bytes: int) -> None:
        super().__init__(counts)
        self._after_bytes = after_bytes

    def request(self, link: Link, data: bytes) -> None:
        link.to_server.push(data[: min(self._after_bytes, len(data) - 1)])
        self.counts["requests cut"] += 1
        link.close()


class BlackHole(Mode):
    """Accepts and never answers. What it swallowed is delivered when the mode ends, also for
    callers that have left since, or never.

    With `requests` false the server still acts, and only its replies are swallowed.
    """

    def __init__(self, counts: Counter[str], *, deliver: bool, requests: bool) -> None:
        super().__init__(counts)
        self._deliver = deliver
        self._requests = requests
        self._swallowing: list[Link] = []  # in the order in which they were first used

    def request(self, link: Link, data: bytes) -> None:
        self._swallow(link)
        if self._requests:
            self.counts["request bytes swallowed"] += len(data)
        link.to_server.push(data)

    def reply(self, link: Link, frame: bytes) -> None:
        self._swallow(link)
        self.counts["reply bytes swallowed"] += len(frame)
        link.to_caller.push(frame)

    def enter(self, links: Collection[Link]) -> None:
        for link in links:
            self._swallow(link)

    def leave(self, links: Collection[Link]) -> None:
        # Newest first: between connections a network keeps no order, and what was asked last is the
        # release of what was asked first.
        for link in reversed(self._swallowing):
            if link.closed:
                continue
            if not self._deliver:
                link.close()
                continue
            self.counts["bytes delivered late"] += link.to_server.size + link.to_caller.size
            link.to_server.release()
            link.to_caller.release()

    def _swallow(self, link: Link) -> None:
        if link in self._swallowing:
            return
        self._swallowing.append(link)
        link.to_caller.hold()
        if self._requests:
            link.to_server.hold()
