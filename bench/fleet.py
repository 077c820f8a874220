"""Real servers on TCP loopback, and the site of a case: which urls it talks to, and what happens to
the servers when the child says a word. Leaves faults to the works that need them.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from quorlock.testing.servers import Server, Servers

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

FULL = 5


class Fleet:
    """`count` servers, empty, without persistence. A context manager."""

    def __init__(self, count: int = FULL) -> None:
        self._servers = Servers(count, tcp=True)

    @property
    def servers(self) -> Sequence[Server]:
        """To kill, stop, continue, ask."""
        return self._servers

    def urls(self, count: int | None = None) -> list[str]:
        """`redis://127.0.0.1:PORT` of the first `count`, default all."""
        return self._servers.tcp_urls[:count]

    def clear(self) -> None:
        """Forget all keys: what a contestant left is no business of the next one."""
        for server in self._servers:
            with suppress(OSError):
                server.flush()

    def leftovers(self) -> int:
        """How many keys there are on all live servers together."""
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
    """Where one slice takes place."""

    def __init__(self, fleet: Fleet, urls: list[str]) -> None:
        self.fleet = fleet
        self.urls = urls

    def heard(self, word: str) -> None:
        """The child said a word (`bench.one.tell`) and waits until this returns."""
        raise ValueError(f"nothing is arranged for {word!r} here")

    def after(self) -> dict[str, Any]:
        """What is to be added to the result once the child has ended."""
        return {}


@contextmanager
def shared_site(fleet: Fleet, nodes: int) -> Generator[Site, None, None]:
    """The run's own servers, all well."""
    fleet.clear()
    yield Site(fleet, fleet.urls(nodes))
