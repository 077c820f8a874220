"""The SQL by which tables refuse an old fence, as text and parameters for any driver.

For PostgreSQL 9.5 and SQLite 3.35 or newer: both know ON CONFLICT and RETURNING.  This module has
the texts, the names in them, the placeholders, and the meaning of the returned rows.  Its flows
yield statements, one after the other; `sql.py` and its asyncio twin run them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Self, TypeAlias, cast

from quorlock.errors import ConfigError, QuorlockError, StaleFence
from quorlock.fencing.fences import as_fence

# Names of columns, with their values.
# A generator that yields a statement to run, and is sent its rows.

Columns: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Any]
Flow: TypeAlias = Generator["Statement", Rows, bool]


# PostgreSQL truncates longer names.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)

# The placeholders of DB-API (PEP 249), and asyncpg's.
_PLACEHOLDERS = {
    "qmark": "?",
    "format": "%s",
    "pyformat": "%(p{})s",
    "named": ":p{}",
    "numeric": ":{}",
    "numeric_dollar": "${}",
}
_BY_NAME = ("pyformat", "named")


class Statement(NamedTuple):
    """A text and its parameters: `cursor.execute(*statement)`.

    A fenced statement returns a row if the fence was accepted, and none if it was not.
    """

    text: str
    parameters: tuple[Any, ...] | dict[str, Any]


class _Parameters:
    """The values of one statement, with a placeholder for each."""

    def __init__(self, paramstyle: str | None) -> None:
        if paramstyle is None:
            raise _unknown_style(None)
        self._style = paramstyle
        self._values: list[Any] = []

    def put(self, value: object) -> str:
        self._values.append(value)
        return _PLACEHOLDERS[self._style].format(len(self._values))

    def statement(self, text: str) -> Statement:
        if self._style in _BY_NAME:
            named = {f"p{number}": value for number, value in enumerate(self._values, 1)}
            return Statement(text, named)
        return Statement(text, tuple(self._values))


class RowStatements:
    """The statements for rows that hold the fence of their last writer."""

    def __init__(self, table: str, paramstyle: str | None = None, *, fence: str = "fence") -> None:
        """Set the table, the driver's style of parameters and the column of fences.

        Args:
            table: the table's name (`invoices`, `accounts.invoices`).
            paramstyle: the style of parameters, as the driver's `paramstyle` states it; not needed
                for SQLAlchemy and Django, whose connections report it.
            fence: the name of the column that holds the fence.
        """
        if paramstyle is not None and paramstyle not in tuple(_PLACEHOLDERS):
            raise _unknown_style(paramstyle)
        _check_text("table", table)
        self.table = table
        self.paramstyle = paramstyle
        self._quoted = ".".join([_name("table", part) for part in table.split(".", 1)])
        self._fence = _name("fence", fence)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table!r}, {self.paramstyle!r})"

    def update_statement(self, key: Columns, values: Columns, fence: int | None) -> Statement:
        """Return an UPDATE of the row of this key, if it exists and has no larger fence."""
        parameters = _Parameters(self.paramstyle)
        fence = as_fence(fence)
        names = self._columns("values", values)
        pairs = zip(names, values.values(), strict=True)
        changes = [f"{name} = {parameters.put(value)}" for name, value in pairs]
        changes.append(f"{self._fence} = {parameters.put(fence)}")
        return parameters.statement(
            f"UPDATE {self._quoted} AS held SET {', '.join(changes)}"
            f" WHERE {_row_of(key, parameters)}"
            f" AND (held.{self._fence} IS NULL OR held.{self._fence} <= {parameters.put(fence)})"
            f" RETURNING {self._fence}"
        )

    def upsert_statement(self, key: Columns, values: Columns, fence: int | None) -> Statement:
        """Return an INSERT or UPDATE of the row of this key, if it has no larger fence.

        The columns of the key need a PRIMARY KEY or UNIQUE constraint.
        """
        parameters = _Parameters(self.paramstyle)
        keys = self._columns("key", _given(key))
        changing = [*self._columns("values", values), self._fence]
        row = [*key.values(), *values.values(), as_fence(fence)]
        return parameters.statement(
            f"INSERT INTO {self._quoted} AS held ({', '.join(keys + changing)})"
            f" VALUES ({', '.join([parameters.put(value) for value in row])})"
            f" ON CONFLICT ({', '.join(keys)}) DO UPDATE"
            f" SET {', '.join([f'{name} = excluded.{name}' for name in changing])}"
            f" WHERE held.{self._fence} IS NULL OR held.{self._fence} <= excluded.{self._fence}"
            f" RETURNING {self._fence}"
        )

    def seen_statement(self, key: Columns) -> Statement:
        """Return a SELECT of the fence of the row of this key: one row, or none."""
        parameters = _Parameters(self.paramstyle)
        where = _row_of(key, parameters)
        return parameters.statement(
            f"SELECT held.{self._fence} FROM {self._quoted} AS held WHERE {where}"
        )

    def _columns(self, argument: str, columns: Columns) -> list[str]:
        """Return the quoted names of these columns. Raises ConfigError.

        The column of the fence has the fence alone: with any other value older ones could pass.
        """
        names = [_name(argument, name) for name in _checked_columns(argument, columns)]
        if self._fence.lower() in [name.lower() for name in names]:
            raise ConfigError(argument, list(columns), f"without {self._fence}: `fence` goes there")
        return names

    def _over(self, paramstyle: str | None) -> Self:
        """Return the same table for a connection with this style; None: it does not report one."""
        if paramstyle in (None, self.paramstyle):
            return self
        twin = copy(self)
        twin.paramstyle = paramstyle
        return twin

    def _updated(
        self, paramstyle: str | None, key: Columns, values: Columns, fence: int | None
    ) -> Flow:
        """Update the row of this key, as a flow; return False if there is no such row."""
        table = self._over(paramstyle)
        if not (yield table.update_statement(key, values, fence)):
            yield from self._look(table.seen_statement(key), key, as_fence(fence))
            return False
        return True

    def _upserted(
        self, paramstyle: str | None, key: Columns, values: Columns, fence: int | None
    ) -> Flow:
        table = self._over(paramstyle)
        if not (yield table.upsert_statement(key, values, fence)):
            yield from self._look(table.seen_statement(key), key, as_fence(fence))
            # Deleted by another client in between, or a trigger prevents the write.
            raise QuorlockError(f"nothing was written to {self._words(key)!r}; try again")
        return True

    def _look(
        self, seeing: Statement, key: Columns, fence: int
    ) -> Generator[Statement, Rows, None]:
        """Raise StaleFence if that is why no row came back."""
        rows = yield seeing
        seen = _value_in(rows[0]) if rows else None
        if seen is not None and seen > fence:
            raise StaleFence(self._words(key), fence, seen)

    def _words(self, key: Columns) -> str:
        return f"{self.table} {', '.join([f'{name}={value!r}' for name, value in key.items()])}"


class TableStatements(RowStatements):
    """The statements for a table that holds fences and nothing else, a row for each resource."""

    def __init__(self, paramstyle: str | None = None, *, table: str = "quorlock_fences") -> None:
        """Set the driver's style of parameters and the table.

        Args:
            paramstyle: the style of parameters, as the driver's `paramstyle` states it; not needed
                for SQLAlchemy and Django, whose connections report it.
            table: the table's name.
        """
        super().__init__(table, paramstyle)

    def create_statement(self) -> Statement:
        """Return the statement that creates the table if it does not exist."""
        columns = '"resource" TEXT PRIMARY KEY, "fence" BIGINT NOT NULL'
        return Statement(f"CREATE TABLE IF NOT EXISTS {self._quoted} ({columns})", ())

    def claim_statement(self, resource: str, fence: int | None) -> Statement:
        """Return an upsert that records the fence unless a larger one is there.

        It blocks other claims of the resource until the end of the transaction.
        """
        return self.upsert_statement(row_of_resource(resource), {}, fence)

    def _words(self, key: Columns) -> str:
        return str(key["resource"])


def _value_in(row: Any) -> Any:
    """Return the only value of a row, which may be a dict or the value itself (`row_factory`)."""
    values: Any = cast("Columns", row).values() if isinstance(row, Mapping) else row
    return next(iter(values)) if hasattr(values, "__iter__") else values


def row_of_resource(resource: object) -> Columns:
    """Return the columns that identify the row of this resource. Raises ConfigError."""
    if not isinstance(resource, str):
        fix = "give the name as str: SQLite would keep a second row for bytes"
        raise ConfigError("resource", resource, fix)
    return {"resource": resource}


def _unknown_style(paramstyle: str | None) -> ConfigError:
    fix = f"give the driver's own, one of {', '.join(_PLACEHOLDERS)}"
    return ConfigError("paramstyle", paramstyle, fix)


def _row_of(key: Columns, parameters: _Parameters) -> str:
    tests = [f"held.{_name('key', n)} = {parameters.put(v)}" for n, v in _given(key).items()]
    return " AND ".join(tests)


def _checked_columns(argument: str, columns: Columns) -> Columns:
    given: object = columns
    if not isinstance(given, Mapping):
        fix = "give a dict: the names of columns, with their values"
        raise ConfigError(argument, type(columns).__name__, fix)
    return columns


def _given(key: Columns) -> Columns:
    key = _checked_columns("key", key)
    if not key or any(value is None for value in key.values()):
        raise ConfigError("key", dict(key), "name the columns of one row, none of them NULL")
    return key


def _check_text(argument: str, name: object) -> None:
    if not isinstance(name, str):
        raise ConfigError(argument, name, "give the name as str")


def _name(argument: str, name: str) -> str:
    """Return the quoted name of a table or column; names that need escaping are refused."""
    _check_text(argument, name)
    if not _NAME.fullmatch(name):
        fix = "letters, digits and _, as the database stores it (PostgreSQL: mostly lower case)"
        raise ConfigError(argument, name, fix)
    return f'"{name}"'
