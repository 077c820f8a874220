"""Real servers on TCP loopback, and the site of a case.

A site has the URLs of a slice and acts on the words of its child. Works that inject faults define
their own sites.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from quorlock.testing.servers import Server, Servers

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import TracebackType

FULL = 5


class Fleet:
    """`count` servers, empty, without persistence. A context manager."""

    def __init__(self, count: int = FULL) -> None:
        self._servers = Servers(count, tcp=True)

    @property
    def servers(self) -> Sequence[Server]:
        """The servers, to kill, stop, continue or query."""
        return self._servers

    def urls(self, count: int | None = None) -> list[str]:
        """Return `redis://127.0.0.1:PORT` of the first `count` servers, by default of all."""
        return self._servers.tcp_urls[:count]

    def clear(self) -> None:
        """Delete all keys, so that contestants do not affect each other."""
        for server in self._servers:
            with suppress(OSError):
                server.flush()

    def leftovers(self) -> int:
        """Return the number of keys on all live servers together."""
        return sum(
            len(server.keys()) for server in self._servers if server.alive and not server.stopped
        )

    def __enter__(self) -> Self:
        self._servers.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._servers.close()


class Site:
    """The servers of one slice."""

    def __init__(self, fleet: Fleet, urls: list[str]) -> None:
        self.fleet = fleet
        self.urls = urls

    def on_word(self, word: str) -> None:
        """Handle a word of the child (`bench.one.notify_parent`); it waits until this returns."""
        raise ValueError(f"this site does not handle {word!r}")

    def after(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return additions to the result `row`; called after the child has ended."""
        del row
        return {}


@contextmanager
def shared_site(fleet: Fleet, nodes: int) -> Generator[Site, None, None]:
    """Yield the servers of the whole run, without faults."""
    fleet.clear()
    yield Site(fleet, fleet.urls(nodes))
