"""Kinds of connections: a driver's, SQLAlchemy's, Django's; and whether a transaction is open.

Imports none of those libraries: an object is recognised by its attributes.  `sql.py` and its
asyncio twin run the statements.
"""

from __future__ import annotations

import inspect
from typing import Any

from quorlock.errors import ConfigError

_OTHER_FACE = "it is of another kind: quorlock.fencing blocks, quorlock.asyncio.fencing is awaited"
_GIVE = (
    "give a DB-API connection, a Session or Connection of SQLAlchemy, or the alias of a"
    " database in Django"
)


def _unfit(connection: object, fix: str) -> ConfigError:
    return ConfigError("connection", type(connection), fix)


def named(connection: Any) -> Any:
    """Return Django's connection of this alias, or the object itself if it is no alias."""
    if not isinstance(connection, str):
        return connection
    from importlib import import_module  # Django is installed where an alias is given

    return import_module("django.db").connections[connection]


def is_session(connection: Any) -> bool:
    """Return whether it is a Session of SQLAlchemy, also a scoped or an async one."""
    return hasattr(connection, "get_bind") and hasattr(connection, "connection")


def is_sqlalchemy(connection: Any) -> bool:
    """Return whether it is a Connection or AsyncConnection of SQLAlchemy."""
    return hasattr(connection, "exec_driver_sql")


def is_django(connection: Any) -> bool:
    """Return whether it is a database of Django."""
    return hasattr(connection, "in_atomic_block")


def checked(connection: Any, verb: str, *, is_awaited: bool) -> Any:
    """Return the connection if it can run statements for this API. `verb`: by this method."""
    if is_django(connection) and is_awaited:
        fix = "Django's connections block: use quorlock.fencing, inside sync_to_async"
        raise _unfit(connection, fix)
    if not is_sqlalchemy(connection) and not hasattr(connection, verb):
        raise _unfit(connection, _GIVE)
    if is_sqlalchemy(connection) and hasattr(connection, "get_raw_connection") != is_awaited:
        raise _unfit(connection, _OTHER_FACE)
    if not is_awaited and inspect.iscoroutinefunction(getattr(connection, "commit", None)):
        raise _unfit(connection, _OTHER_FACE)
    return connection


def of_this_api(connection: Any, found: Any, *, is_awaited: bool) -> Any:
    """Return what a method of the connection returned if this API can use it (awaited or not)."""
    if inspect.isawaitable(found) == is_awaited:
        return found
    if inspect.iscoroutine(found):
        found.close()
    raise _unfit(connection, _OTHER_FACE)


def paramstyle(connection: Any) -> str | None:
    """Return the style of parameters that a framework's connection takes; None for a driver's."""
    if is_sqlalchemy(connection):
        style: str = connection.dialect.paramstyle
        return style
    return "format" if is_django(connection) else None


def driver_connection(connection: Any) -> Any:
    """Return the driver's own connection behind one of SQLAlchemy's pool."""
    # The pool's connections have a separate `info`, without the driver's state.
    return getattr(connection, "driver_connection", connection)


def in_transaction(connection: Any) -> bool | None:
    """Return whether a transaction is open on a driver's or Django's connection; None: unknown."""
    if is_django(connection):
        return bool(connection.in_atomic_block or not connection.get_autocommit())
    for name in ("in_transaction", "is_in_transaction"):  # sqlite3, aiosqlite; asyncpg
        within = getattr(connection, name, None)
        if within is not None:
            return bool(within() if callable(within) else within)
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if status is not None:  # psycopg, psycopg2; 0 is IDLE
        return bool(status != 0)
    # PEP 249: without autocommit, the first statement begins a transaction.
    autocommit = getattr(connection, "autocommit", None)  # pg8000, pyodbc
    return None if not isinstance(autocommit, bool) else not autocommit


def require_transaction(connection: Any, *, believed: bool) -> None:
    """Raise ConfigError if the statement that just ran was, or may have been, committed alone.

    believed: the caller states that a transaction is open; used where the driver cannot report it.
    """
    within = in_transaction(connection)
    if within is False:
        fix = "begin a transaction first: in autocommit a claim protects nothing that follows"
        raise _unfit(connection, fix)
    if within is None and not believed:
        fix = (
            "it does not show whether a transaction is open: begin one, and confirm it by"
            " in_transaction=True"
        )
        raise _unfit(connection, fix)
