"""Only the borrower of a connection set is inside it: a check while a test runs.

What follows when two threads use one set depends on the instant, and mostly nothing does. The rule
itself is broken each time.
"""

from __future__ import annotations

import threading
import traceback
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._drivers.sync.connection import Connection
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._drivers.sync.driver import Driver
from quorlock._drivers.sync.flow_runner import FlowRunner
from quorlock._drivers.sync.pool import Borrower, ConnectionPool

if TYPE_CHECKING:
    from collections.abc import Iterator

# What only the borrower of a set may call, and what it calls of a connection of the set.
OF_SET = (
    "prepare",
    "send",
    "receive",
    "await_replies",
    "await_grants",
    "enlist",
    "wait",
    "drain",
    "close",
    "discard",
    "_send_submissions",
    "_poll_replies",
)
OF_CONNECTION = ("send", "send_batch", "receive_grant", "listen", "flush", "close", "discard")


class Owners(dict[ConnectionSet, Borrower]):
    """The table of borrowers of one pool. An entry is removed by its borrower alone."""

    def __init__(self, check: Check) -> None:
        super().__init__()
        self._check = check

    def pop(self, connection_set: ConnectionSet, *default: Any) -> Any:
        borrower = self.get(connection_set)
        if borrower is not None and not connection_set.closed:
            if not self._check.is_ours(borrower):
                self._check.broken("another thread returns its set", borrower)
            elif connection_set.is_busy:
                self._check.broken("a set is returned with its borrower inside", borrower)
        return super().pop(connection_set, *default)


class Check:
    """The rules that were broken, each with the stack."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.looks = 0
        self._tables: dict[ConnectionSet, Owners] = {}
        self._recovering: set[tuple[int, Borrower]] = set()

    def broken(self, what: str, borrower: object) -> None:
        stack = "".join(traceback.format_stack(limit=12)[:-2])
        self.found.append(f"{what} ({borrower!r}, {threading.current_thread().name})\n{stack}")

    def is_ours(self, borrower: Borrower) -> bool:
        """Return whether this thread may act for it."""
        me = threading.get_ident()
        return borrower.thread in (0, me) or (me, borrower) in self._recovering

    def enter(self, connection_set: object, what: str) -> None:
        """Check the borrower of a set that this thread enters; a closed set may have none."""
        table = self._tables.get(connection_set)  # type: ignore[call-overload]
        if table is not None:
            self.looks += 1
            borrower = table.get(connection_set)
            if not getattr(connection_set, "closed", False) and (
                borrower is None or not self.is_ours(borrower)
            ):
                self.broken(f"{what} without the set", borrower)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Check all pools that are made from now on."""
        make_pool, make_set, complete = (
            ConnectionPool.__init__,
            ConnectionPool._new,
            Driver._complete,
        )

        def made_pool(pool: ConnectionPool, *args: Any) -> None:
            make_pool(pool, *args)
            pool._owners = Owners(self)

        def made_set(pool: ConnectionPool, owner: Borrower) -> ConnectionSet:
            connection_set = make_set(pool, owner)
            if isinstance(pool._owners, Owners):
                self._tables[connection_set] = pool._owners
            return connection_set

        def completed(driver: Driver, runner: FlowRunner[Any], claim: Any) -> Any:
            result = complete(driver, runner, claim)
            pool = driver._pool
            if runner in pool._owners.copy().values() or any(
                runner in one.followers for one in pool.all()
            ):
                self.broken("a call has ended, and has a set", runner)
            return result

        patch.setattr(ConnectionPool, "__init__", made_pool)
        patch.setattr(ConnectionPool, "_new", made_set)
        patch.setattr(Driver, "_complete", completed)
        for kind in (Borrower, FlowRunner):
            patch.setattr(kind, "recover", self._recovered(kind.recover))
        for name in OF_SET:
            patch.setattr(ConnectionSet, name, self._entered(ConnectionSet, name))
        for name in OF_CONNECTION:
            patch.setattr(Connection, name, self._entered(Connection, name))

    def _recovered(self, recover: Any) -> Any:
        def recovered(borrower: Borrower, pool: ConnectionPool) -> None:
            note = threading.get_ident(), borrower
            self._recovering.add(note)
            try:
                recover(borrower, pool)
            finally:
                self._recovering.discard(note)

        return recovered

    def _entered(self, kind: type, name: str) -> Any:
        method = getattr(kind, name)

        @wraps(method)
        def entered(one: Any, *args: Any, **options: Any) -> Any:
            self.enter(getattr(one, "owner", one), f"{kind.__name__}.{name}")
            return method(one, *args, **options)

        return entered


@pytest.fixture
def owned_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Fail a test in which a thread uses connections that another one has borrowed."""
    check = Check()
    check.install(monkeypatch)
    yield check
    if check.found:
        pytest.fail("\n".join([f"{len(check.found)} times", *check.found[:3]]), pytrace=False)
