"""quorlock.fencing for asyncio: the same names, with `await`.

Connections are those whose `execute` is awaited and gives a cursor: psycopg's AsyncConnection,
aiosqlite. For others (asyncpg) take text and parameters from the methods named `…_statement`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from quorlock.fencing import FENCED_CLAIM, FENCED_SET, Statement, fenced
from quorlock.fencing.files import FencedFile as _FencedFile
from quorlock.fencing.redis import FenceKey
from quorlock.fencing.sql import require_transaction
from quorlock.fencing.statements import RowStatements, TableStatements

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from quorlock.fencing.redis import Datum, Text
    from quorlock.fencing.statements import Flow, Rows

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


class Connection(Protocol):
    """What psycopg's AsyncConnection and aiosqlite's have in common: all that is used of it."""

    async def execute(self, text: Any, parameters: Any, /) -> Any:
        """Run a statement on a new cursor, and give that."""


class FencedRows(RowStatements):
    """Rows that hold the fence of their last writer, in a column of theirs.

    For a write that is one statement. Rows written before there were fences (NULL) accept any.
    """

    async def update(
        self,
        connection: Connection,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        fence: int | None,
    ) -> bool:
        """Write these values to the row of this key, or raise StaleFence.

        False if there is no such row.
        """
        return await _lead(connection, self._updated(key, values, fence))

    async def upsert(
        self,
        connection: Connection,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        fence: int | None,
    ) -> None:
        """Write these values to the row of this key, inserted if need be, or raise StaleFence.

        The columns of the key need a PRIMARY KEY or UNIQUE of their own.
        """
        await _lead(connection, self._upserted(key, values, fence))


class FenceTable(TableStatements):
    """A table of fences, a row for each resource: it fences whole transactions.

    Claim first thing in every transaction that the lock protects, before reading what its writes
    depend on. Whoever claims a larger fence waits for the end of yours; whoever has a smaller one
    is refused from then on.
    """

    async def create(self, connection: Connection) -> None:
        """Make the table where there is none."""
        await _run(connection, self.create_statement())

    async def claim(self, connection: Connection, resource: str, fence: int | None) -> None:
        """Accept the fence for what this transaction does, or raise StaleFence.

        ConfigError on a connection that is in no transaction (autocommit), where the driver tells:
        there the claim is over before the writes begin.
        """
        await _lead(connection, self._upserted({"resource": resource}, {}, fence))
        require_transaction(connection)


class FencedRedis(FenceKey):
    """A Redis or Valkey server whose data is written under one fence."""

    async def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence: before reading what later writes depend on."""
        await self._ask(FENCED_CLAIM, (), (), fence)

    async def set(self, key: Text, value: Datum, fence: int | None) -> None:
        """SET the key, or raise StaleFence."""
        await self._ask(FENCED_SET, (key,), (value,), fence)

    async def eval(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        """Run a script of yours and return its reply, or raise StaleFence."""
        return await self._ask(fenced(script), keys, args, fence)

    async def _ask(
        self, script: str, keys: Sequence[Text], args: Sequence[Datum], fence: int | None
    ) -> Any:
        arguments = self._arguments(script, keys, args, fence)
        try:
            return await self._client.eval(*arguments)
        except Exception as error:
            if refusal := self._refusal(error, fence):
                raise refusal from None
            raise


class FencedFile:
    """A file that is written under one fence, which is kept beside it in `NAME.fence`.

    `NAME.lock` beside both is locked (flock) for each call: from accepting the fence until the
    data is on the disk nobody else gets in. A writer that is stopped in between keeps the others
    waiting until it goes on or ends. Reading needs none of this: `open` shows the old data or the
    new. Runs in a thread: a call that is cancelled may still be carried out.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = _FencedFile(path)
        self.path = self._file.path

    def __repr__(self) -> str:
        return repr(self._file)

    async def claim(self, fence: int | None) -> None:
        """Accept the fence, or raise StaleFence: before reading what later writes depend on."""
        await asyncio.to_thread(self._file.claim, fence)

    async def write(self, data: bytes, fence: int | None) -> None:
        """Replace what the file holds, or raise StaleFence. On the disk when this returns."""
        await asyncio.to_thread(self._file.write, data, fence)


async def _lead(connection: Connection, flow: Flow) -> bool:
    statement = next(flow)
    while True:
        try:
            statement = flow.send(await _run(connection, statement))
        except StopIteration as ended:
            return bool(ended.value)


async def _run(connection: Connection, statement: Statement) -> Rows:
    cursor = await connection.execute(*statement)
    try:
        # None: a statement that has no rows to give, such as CREATE TABLE.
        return list(await cursor.fetchall()) if cursor.description is not None else []
    finally:
        await cursor.close()
