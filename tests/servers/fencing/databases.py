"""The databases and faces that each test of tables runs with, behind one set of verbs.

Tests are written with `await`; what blocks goes behind coroutine functions that never suspend.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg

import quorlock.asyncio.fencing as aio
from quorlock import fencing
from tests.servers.fencing.awaited import Awaited
from tests.servers.fencing.postgres import Postgres


class Database(Protocol):
    """One database through one API, with its own connections."""

    paramstyle: str
    # For transactions that must not run concurrently with another.
    conflict: tuple[type[Exception], ...]
    # What chooses a level of isolation, one after the other.
    levels: tuple[str, ...]
    # The default transaction of `invoices`.
    schema: str
    # What makes a `dict` of each row, or the `value` of its first column.
    row_factories: ClassVar[dict[str, Any]]

    def fences(self, **settings: Any) -> Any:
        """A FenceTable."""

    def rows(self, table: str, **settings: Any) -> Any:
        """FencedRows."""

    async def connect(self, *, autocommit: bool = False, patience: float = 30) -> Any:
        """A connection that waits at most `patience` seconds for the locks of others."""

    async def execute(self, connection: Any, text: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, if it has any."""

    async def commit(self, connection: Any) -> None: ...

    async def rollback(self, connection: Any) -> None: ...

    async def close(self, connection: Any) -> None: ...


class Blocking:
    """The common part of SQLite and PostgreSQL in the blocking API."""

    paramstyle: str

    def fences(self, **settings: Any) -> Any:
        return Awaited(fencing.FenceTable(self.paramstyle, **settings), aio.FenceTable)

    def rows(self, table: str, **settings: Any) -> Any:
        real = fencing.FencedRows(table, self.paramstyle, **settings)
        return Awaited(real, aio.FencedRows)

    async def execute(self, connection: Any, text: str) -> list[tuple[Any, ...]]:
        cursor = connection.execute(text)
        rows = cursor.fetchall() if cursor.description else []
        cursor.close()
        return rows

    async def commit(self, connection: Any) -> None:
        connection.commit()

    async def rollback(self, connection: Any) -> None:
        connection.rollback()

    async def close(self, connection: Any) -> None:
        connection.close()


class Sqlite(Blocking):
    paramstyle = sqlite3.paramstyle
    conflict: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
    levels: tuple[str, ...] = ("",)  # it has one, SERIALIZABLE
    schema = "main"
    row_factories: ClassVar[dict[str, Any]] = {
        "dict": lambda cursor, row: {
            name: value for (name, *_), value in zip(cursor.description, row, strict=True)
        },
        "value": lambda _, row: row[0],
    }

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self, *, autocommit: bool = False, patience: float = 30) -> Any:
        if autocommit:
            return sqlite3.connect(self._path, timeout=patience, isolation_level=None)
        return sqlite3.connect(self._path, timeout=patience)


class _Postgres:
    paramstyle = psycopg.paramstyle
    conflict: tuple[type[Exception], ...] = (
        psycopg.errors.LockNotAvailable,
        psycopg.errors.SerializationFailure,
    )
    levels: tuple[str, ...] = tuple(
        f"SET TRANSACTION ISOLATION LEVEL {level}"
        for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
    )
    schema = "public"
    row_factories: ClassVar[dict[str, Any]] = {
        "dict": psycopg.rows.dict_row,
        "value": psycopg.rows.scalar_row,
    }

    def __init__(self, server: Postgres) -> None:
        self._server = server

    def settings(self, *, autocommit: bool, patience: float) -> dict[str, Any]:
        options = f"-c lock_timeout={int(patience * 1000)}"
        return {"conninfo": self._server.url, "autocommit": autocommit, "options": options}


class PostgresBlocking(_Postgres, Blocking):
    async def connect(self, *, autocommit: bool = False, patience: float = 30) -> Any:
        return psycopg.connect(**self.settings(autocommit=autocommit, patience=patience))


class PostgresAsyncio(_Postgres):
    def fences(self, **settings: Any) -> Any:
        return aio.FenceTable(self.paramstyle, **settings)

    def rows(self, table: str, **settings: Any) -> Any:
        return aio.FencedRows(table, self.paramstyle, **settings)

    async def connect(self, *, autocommit: bool = False, patience: float = 30) -> Any:
        settings = self.settings(autocommit=autocommit, patience=patience)
        return await psycopg.AsyncConnection.connect(**settings)

    async def execute(self, connection: Any, text: str) -> list[tuple[Any, ...]]:
        cursor = await connection.execute(text)
        return list(await cursor.fetchall()) if cursor.description else []

    async def commit(self, connection: Any) -> None:
        await connection.commit()

    async def rollback(self, connection: Any) -> None:
        await connection.rollback()

    async def close(self, connection: Any) -> None:
        await connection.close()


def open_database(name: str, path: Path, server: Postgres | None) -> Database:
    """`sqlite` at the path; `postgresql` or `postgresql, asyncio` on the server."""
    if server is None:
        return Sqlite(path)
    return PostgresBlocking(server) if name == "postgresql" else PostgresAsyncio(server)


def column(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The only column of these rows."""
    return [value for (value,) in rows]
