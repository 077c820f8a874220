"""Tables that refuse an old fence, over any DB-API connection: `sqlite3`, psycopg, pg8000 …

Owns running the statements of its neighbour.  Leaves transactions to the caller: it begins,
commits and rolls back nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from quorlock.errors import ConfigError
from quorlock.fencing.statements import RowStatements, TableStatements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorlock.fencing.statements import Flow, Rows, Statement


class Connection(Protocol):
    """What DB-API (PEP 249) calls one: all that is used of it."""

    def cursor(self) -> Any:
        """A new cursor."""


class FencedRows(RowStatements):
    """Rows that hold the fence of their last writer, in a column of theirs.

    For a write that is one statement. Rows written before there were fences (NULL) accept any.
    """

    def update(
        self,
        connection: Connection,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        fence: int | None,
    ) -> bool:
        """Write these values to the row of this key, or raise StaleFence.

        False if there is no such row.
        """
        return _lead(connection, self._updated(key, values, fence))

    def upsert(
        self,
        connection: Connection,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        fence: int | None,
    ) -> None:
        """Write these values to the row of this key, inserted if need be, or raise StaleFence.

        The columns of the key need a PRIMARY KEY or UNIQUE of their own.
        """
        _lead(connection, self._upserted(key, values, fence))


class FenceTable(TableStatements):
    """A table of fences, a row for each resource: it fences whole transactions.

    Claim first thing in every transaction that the lock protects, before reading what its writes
    depend on. Whoever claims a larger fence waits for the end of yours; whoever has a smaller one
    is refused from then on.
    """

    def create(self, connection: Connection) -> None:
        """Make the table where there is none."""
        _run(connection, self.create_statement())

    def claim(self, connection: Connection, resource: str, fence: int | None) -> None:
        """Accept the fence for what this transaction does, or raise StaleFence.

        ConfigError on a connection that is in no transaction (autocommit), where the driver tells:
        there the claim is over before the writes begin.
        """
        _lead(connection, self._upserted({"resource": resource}, {}, fence))
        require_transaction(connection)


def require_transaction(connection: object) -> None:
    """ConfigError if the driver says that the statement which just ran was committed by itself."""
    within = getattr(connection, "in_transaction", None)  # sqlite3, aiosqlite
    info = getattr(connection, "info", None)  # psycopg, psycopg2; 0 is IDLE
    if within is False or getattr(info, "transaction_status", None) == 0:
        fix = "begin a transaction first: in autocommit a claim protects nothing that follows"
        raise ConfigError("connection", type(connection), fix)


def _lead(connection: Connection, flow: Flow) -> bool:
    statement = next(flow)
    while True:
        try:
            statement = flow.send(_run(connection, statement))
        except StopIteration as ended:
            return bool(ended.value)


def _run(connection: Connection, statement: Statement) -> Rows:
    cursor = connection.cursor()
    try:
        cursor.execute(*statement)
        # None: a statement that has no rows to give, such as CREATE TABLE.
        return cursor.fetchall() if cursor.description is not None else []
    finally:
        cursor.close()
