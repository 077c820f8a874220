"""Helpers that let a protected resource refuse a late writer, for asyncio.

The names are those of quorlock.fencing, with `await`.  A connection's `execute` is awaited and
returns a cursor: psycopg's AsyncConnection, aiosqlite; and SQLAlchemy's AsyncSession and
AsyncConnection.  For others (asyncpg) take text and parameters from the methods named
`…_statement`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quorlock.fencing import FENCED_CLAIM, FENCED_SET, Statement, fenced
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
from quorlock.fencing.files import FencedFile as _FencedFile
from quorlock.fencing.redis import Datum, FenceKey, Text
from quorlock.fencing.statements import (
    Columns,
    Flow,
    Rows,
    RowStatements,
    TableStatements,
    row_of_resource,
)

__all__ = [
    "FENCED_CLAIM",
    "FENCED_SET",
    "FenceTable",
    "FencedFile",
    "FencedRedis",
    "FencedRows",
    "Statement",
    "fenced",
]


class FencedRows(RowStatements):
    """Rows that hold the fence of their last writer, in an extra column.

    For a write that is one statement. Rows from before fences were used (NULL) accept any fence.
    """

    async def update(
        self, connection: object, key: Columns, values: Columns, fence: int | None
    ) -> bool:
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
        reached = await _reached(connection)
        return await _lead(reached, self._updated(paramstyle(reached), key, values, fence))

    async def upsert(
        self, connection: object, key: Columns, values: Columns, fence: int | None
    ) -> None:
        """Write these values to the row of this key, inserted if need be, or raise StaleFence.

        The columns of the key need a PRIMARY KEY or UNIQUE constraint.  Arguments as for `update`.
        """
        reached = await _reached(connection)
        await _lead(reached, self._upserted(paramstyle(reached), key, values, fence))


class FenceTable(TableStatements):
    """A table of fences, a row for each resource: it fences whole transactions.

    Make the claim the first statement in every transaction that the lock protects, before reading
    what its writes depend on.  A claim with a larger fence waits for the end of your transaction; a
    smaller fence is refused from then on.
    """

    async def create(self, connection: object) -> None:
        """Create the table if it does not exist."""
        await _run(await _reached(connection), self.create_statement())

    async def claim(
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
        reached = await _reached(connection)
        style = paramstyle(reached)
        await _lead(reached, self._upserted(style, row_of_resource(resource), {}, fence))
        require_transaction(await _drivers(reached), believed=in_transaction)


class FencedRedis(FenceKey):
    """A Redis or Valkey server whose data is written under one fence."""

    async def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence; call it before reading what later writes need."""
        await self._ask(FENCED_CLAIM, (), (), fence)

    async def set(self, key: Text, value: Datum, fence: int | None) -> None:
        """SET the key, or raise StaleFence."""
        await self._ask(FENCED_SET, (key,), (value,), fence)

    async def eval(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        """Run your script and return its reply, or raise StaleFence."""
        return await self._ask(fenced(script), keys, args, fence)

    async def _ask(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        arguments = self._arguments(script, keys, args, fence)
        try:
            return await self._reply(self._client.eval(*arguments), is_awaited=True)
        except Exception as error:
            if refusal := self._refusal(error, fence):
                raise refusal from None
            raise


class FencedFile:
    """A file that is written under one fence, which is kept beside it in `NAME.fence`.

    Each call locks `NAME.lock` beside both (flock), from accepting the fence until the data is on
    the disk.  A writer that is stopped in between keeps the others waiting until it continues or
    ends. Reading needs no lock: `open` shows the old data or the new.  Every call runs in a thread;
    a cancelled call may still be carried out.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = _FencedFile(path)
        self.path: Path = self._file.path

    def __repr__(self) -> str:
        return repr(self._file)

    async def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence; call it before reading what later writes need."""
        await asyncio.to_thread(self._file.claim, fence)

    async def write(self, data: bytes, fence: int | None) -> None:
        """Replace the file's content, or raise StaleFence. On the disk when this returns."""
        await asyncio.to_thread(self._file.write, data, fence)


async def _reached(connection: Any) -> Any:
    """Return the connection to run statements over: of a session, or as it is."""
    if is_session(connection):
        connection = await of_this_api(connection, connection.connection(), is_awaited=True)
    return checked(named(connection), "execute", is_awaited=True)


async def _drivers(connection: Any) -> Any:
    """Return the connection that knows whether a transaction is open."""
    if is_sqlalchemy(connection):
        connection = await connection.get_raw_connection()
    return driver_connection(connection)


async def _lead(connection: Any, flow: Flow) -> bool:
    statement = next(flow)
    while True:
        try:
            statement = flow.send(await _run(connection, statement))
        except StopIteration as ended:
            return bool(ended.value)


async def _run(connection: Any, statement: Statement) -> Rows:
    if is_sqlalchemy(connection):
        text, parameters = statement
        result = await connection.exec_driver_sql(text, parameters or None)
        rows: Rows = result.fetchall() if result.returns_rows else []
        return rows
    cursor = await of_this_api(connection, connection.execute(*statement), is_awaited=True)
    try:
        # As in `quorlock.fencing`: CREATE TABLE alone has no parameters, and no rows.
        return list(await cursor.fetchall()) if statement.parameters else []
    finally:
        await cursor.close()
