"""Host names to addresses, looked up in daemon threads: a hanging lookup blocks nothing else.

`getaddrinfo` takes no deadline. So there is at most one lookup for each name at a time, shared by
all connections that need it. The addresses of the last successful lookup are kept, and are used if
the next one hangs or fails. The cache belongs to the whole process. Both `connect` modules use it.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, TypeAlias

from quorlock._drivers import fork, threads
from quorlock._drivers.clock import now
from quorlock._drivers.wait import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.time import Duration, Instant

# The form of getaddrinfo: family, type, protocol, name, address.
Addresses: TypeAlias = "list[tuple[Any, ...]]"

# Addresses are kept for this many names, the latest ones.
NAMES_MAX = 1_000


class Lookup:
    """One lookup, under way or done."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.began: Instant = now()
        self.done = False
        self.addresses: Addresses | None = None
        self.error: Exception | None = None
        self.waiters = WaitQueue()
        # Called at the end, by the lookup's thread
        self.listeners: set[Callable[[], object]] = set()

    def result(self, port: int) -> Addresses:
        """Return the addresses found, or the last known addresses, or raise the lookup's error."""
        found = self.addresses or _known.get(self.host)
        if found:
            return [(*info[:4], (info[4][0], port, *info[4][2:])) for info in found]
        raise self.error or OSError(0, "its name was not looked up in time")

    def until(self, give_up: Instant, patience: Duration) -> Instant:
        """Return the instant to wait until: a part of the time if the name has known addresses."""
        return min(give_up, self.began + patience) if self.host in _known else give_up

    def run(self) -> None:
        """Look the name up, in a thread that runs nothing else."""
        try:
            self.addresses = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
            _keep(self.host, self.addresses)
        except Exception as error:  # noqa: BLE001 (raised to each caller of `result`)
            self.error = error
        finally:
            self._end()

    def _end(self) -> None:
        self.done = True
        if _under_way.get(self.host) is self:
            _under_way.pop(self.host, None)
        self.waiters.wake_all()
        for listener in list(self.listeners):
            listener()


_known: dict[str, Addresses] = {}
_under_way: dict[str, Lookup] = {}


def numeric(host: str, port: int) -> Addresses | None:
    """Return the address of an IP literal, without a thread; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return [(family, socket.SOCK_STREAM, 0, "", (host, port))]
    return None


def lookup(host: str) -> Lookup:
    """Return the lookup of this name that is under way; start one if there is none."""
    found = _under_way.get(host)
    if found is not None:
        return found
    begun = Lookup(host)
    try:
        _under_way[host] = begun
        threads.start(begun.run, f"quorlock lookup of {host}")
    except BaseException as error:  # no thread can be started, or the call is interrupted
        _under_way.pop(host, None)
        if not isinstance(error, RuntimeError):
            raise
        begun.error, begun.done = OSError(0, f"its name was not looked up: {error}"), True
    return begun


def addresses(host: str, port: int, give_up: Instant) -> Addresses:
    """Return the addresses of a name or IP literal, waiting until `give_up`. Raises OSError."""
    if (literal := numeric(host, port)) is not None:
        return literal
    wanted = lookup(host)
    until = wanted.until(give_up, (give_up - now()) // 4)
    while not wanted.done and now() < until:
        wanted.waiters.wait(lambda: wanted.done, until)
    return wanted.result(port)


def _keep(host: str, found: Addresses) -> None:
    _known.pop(host, None)  # moved to the end: the latest names are kept
    _known[host] = found
    for oldest in list(_known)[:-NAMES_MAX]:
        _known.pop(oldest, None)


class _Child:
    """A forked child, in which no lookup of its parent continues."""

    def reset_after_fork(self) -> None:
        _under_way.clear()


_child = _Child()
fork.register(_child)
