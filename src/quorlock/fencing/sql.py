"""Tables that refuse an old fence, over any DB-API connection (`sqlite3`, psycopg, pg8000).

Also over a Session or Connection of SQLAlchemy, and the databases of Django.  This module runs the
statements of `statements.py`.  Transactions belong to the caller: it begins, commits and rolls back
none.
"""

from __future__ import annotations

from typing import Any

from quorlock.fencing.connections import (
    checked,
    driver_connection,
    is_session,
    is_sqlalchemy,
    named,
    of_this_api,
    paramstyle,
    require_transaction,
)
from quorlock.fencing.statements import (
    Columns,
    Flow,
    Rows,
    RowStatements,
    Statement,
    TableStatements,
    row_of_resource,
)


class FencedRows(RowStatements):
    """Rows that hold the fence of their last writer, in an extra column.

    For a write that is one statement. Rows from before fences were used (NULL) accept any fence.
    """

    def update(self, connection: object, key: Columns, values: Columns, fence: int | None) -> bool:
        """Write these values to the row of this key, or raise StaleFence.

        Args:
            connection: of a DB-API driver, SQLAlchemy or Django.
            key: the columns that identify the row, with their values.
            values: the columns to write, with their values.
            fence: the lease's fence.

        Returns:
            False if there is no such row.

        Raises:
            StaleFence: the row has a larger fence.
            ConfigError: an argument cannot work.
        """
        reached = _reached(connection)
        return _lead(reached, self._updated(paramstyle(reached), key, values, fence))

    def upsert(self, connection: object, key: Columns, values: Columns, fence: int | None) -> None:
        """Write these values to the row of this key, inserted if need be, or raise StaleFence.

        The columns of the key need a PRIMARY KEY or UNIQUE constraint.  Arguments as for `update`.
        """
        reached = _reached(connection)
        _lead(reached, self._upserted(paramstyle(reached), key, values, fence))


class FenceTable(TableStatements):
    """A table of fences, a row for each resource: it fences whole transactions.

    Make the claim the first statement in every transaction that the lock protects, before reading
    what its writes depend on.  A claim with a larger fence waits for the end of your transaction; a
    smaller fence is refused from then on.
    """

    def create(self, connection: object) -> None:
        """Create the table if it does not exist."""
        _run(_reached(connection), self.create_statement())

    def claim(
        self,
        connection: object,
        resource: str,
        fence: int | None,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Accept the fence for what this transaction does, or raise StaleFence.

        Args:
            connection: of a DB-API driver, a Session or Connection of SQLAlchemy, or Django's, also
                by the alias of its database.
            resource: the name of the resource.
            fence: the lease's fence.
            in_transaction: a transaction is open; used only if the driver cannot report it.

        Raises:
            StaleFence: a larger fence was accepted before.
            ConfigError: the connection is in no transaction (autocommit), or may be in none: there
                the claim is over before the writes begin.
        """
        reached = _reached(connection)
        style = paramstyle(reached)
        _lead(reached, self._upserted(style, row_of_resource(resource), {}, fence))
        require_transaction(_drivers(reached), believed=in_transaction)


def _reached(connection: Any) -> Any:
    """Return the connection to run statements over: of a session, of an alias, or as it is."""
    if is_session(connection):
        connection = of_this_api(connection, connection.connection(), is_awaited=False)
    return checked(named(connection), "cursor", is_awaited=False)


def _drivers(connection: Any) -> Any:
    """Return the connection that knows whether a transaction is open."""
    return driver_connection(connection.connection if is_sqlalchemy(connection) else connection)


def _lead(connection: Any, flow: Flow) -> bool:
    statement = next(flow)
    while True:
        try:
            statement = flow.send(_run(connection, statement))
        except StopIteration as ended:
            return bool(ended.value)


def _run(connection: Any, statement: Statement) -> Rows:
    if is_sqlalchemy(connection):
        text, parameters = statement
        result = connection.exec_driver_sql(text, parameters or None)
        rows: Rows = result.fetchall() if result.returns_rows else []
        return rows
    cursor = connection.cursor()
    try:
        cursor.execute(*statement)
        # CREATE TABLE alone has no parameters, and no rows.  `cursor.description` is None also in a
        # pipeline of psycopg, which sends the statement when its rows are asked for.
        return cursor.fetchall() if statement.parameters else []
    finally:
        cursor.close()
