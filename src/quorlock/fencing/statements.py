"""The SQL by which tables refuse an old fence, as text and parameters for any driver.

For PostgreSQL 9.5 and SQLite 3.35 or newer: both know ON CONFLICT and RETURNING.  Owns the texts,
the names in them, the placeholders, and what the rows that come back mean: the flows ask for
statements to be run, one after the other.  Leaves running them to sql.py and its twin.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock.errors import ConfigError, QuorlockError, StaleFence
from quorlock.fencing.fences import as_fence

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from typing import TypeAlias

    Rows: TypeAlias = Sequence[Sequence[Any]]
    # Asks for a statement to be run, is sent its rows.
    Flow: TypeAlias = Generator["Statement", Rows, bool]

# PostgreSQL cuts longer names off.
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

    Of the fenced ones a row comes back if the fence was accepted, and none if it was not.
    """

    text: str
    parameters: tuple[Any, ...] | dict[str, Any]


class _Parameters:
    """Collects the values of one statement, and has a placeholder for each."""

    def __init__(self, paramstyle: str) -> None:
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

    def __init__(self, table: str, paramstyle: str, *, fence: str = "fence") -> None:
        """Name the table (`invoices`, `accounts.invoices`), its column of fences, and the driver's
        style of parameters, as its `paramstyle` says it.
        """
        if paramstyle not in _PLACEHOLDERS:
            raise ConfigError("paramstyle", paramstyle, f"give one of {', '.join(_PLACEHOLDERS)}")
        self.table = table
        self.paramstyle = paramstyle
        self._quoted = ".".join([_name("table", part) for part in table.split(".", 1)])
        self._fence = _name("fence", fence)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table!r}, {self.paramstyle!r})"

    def update_statement(
        self, key: Mapping[str, Any], values: Mapping[str, Any], fence: int | None
    ) -> Statement:
        """Writes to the row of this key, if it is there and has seen no larger fence."""
        parameters = _Parameters(self.paramstyle)
        fence = as_fence(fence)
        changes = [f"{_name('values', n)} = {parameters.put(v)}" for n, v in values.items()]
        changes.append(f"{self._fence} = {parameters.put(fence)}")
        return parameters.statement(
            f"UPDATE {self._quoted} AS held SET {', '.join(changes)}"
            f" WHERE {_row_of(key, parameters)}"
            f" AND (held.{self._fence} IS NULL OR held.{self._fence} <= {parameters.put(fence)})"
            f" RETURNING {self._fence}"
        )

    def upsert_statement(
        self, key: Mapping[str, Any], values: Mapping[str, Any], fence: int | None
    ) -> Statement:
        """Writes to the row of this key, or inserts it, if it has seen no larger fence.

        The columns of the key need a PRIMARY KEY or UNIQUE of their own.
        """
        parameters = _Parameters(self.paramstyle)
        keys = [_name("key", name) for name in _given(key)]
        changing = [*(_name("values", name) for name in values), self._fence]
        row = [*key.values(), *values.values(), as_fence(fence)]
        return parameters.statement(
            f"INSERT INTO {self._quoted} AS held ({', '.join(keys + changing)})"
            f" VALUES ({', '.join([parameters.put(value) for value in row])})"
            f" ON CONFLICT ({', '.join(keys)}) DO UPDATE"
            f" SET {', '.join([f'{name} = excluded.{name}' for name in changing])}"
            f" WHERE held.{self._fence} IS NULL OR held.{self._fence} <= excluded.{self._fence}"
            f" RETURNING {self._fence}"
        )

    def seen_statement(self, key: Mapping[str, Any]) -> Statement:
        """Reads the fence of the row of this key: one row, or none."""
        parameters = _Parameters(self.paramstyle)
        where = _row_of(key, parameters)
        return parameters.statement(
            f"SELECT held.{self._fence} FROM {self._quoted} AS held WHERE {where}"
        )

    def _updated(
        self, key: Mapping[str, Any], values: Mapping[str, Any], fence: int | None
    ) -> Flow:
        """False: there is no such row."""
        if not (yield self.update_statement(key, values, fence)):
            yield from self._look(key, as_fence(fence))
            return False
        return True

    def _upserted(
        self, key: Mapping[str, Any], values: Mapping[str, Any], fence: int | None
    ) -> Flow:
        if not (yield self.upsert_statement(key, values, fence)):
            yield from self._look(key, as_fence(fence))
            # Deleted by another meanwhile, or a trigger keeps us out.
            raise QuorlockError(f"nothing was written to {self._words(key)!r}; try again")
        return True

    def _look(self, key: Mapping[str, Any], fence: int) -> Generator[Statement, Rows, None]:
        """StaleFence, if that is why no row came back."""
        rows = yield self.seen_statement(key)
        seen = rows[0][0] if rows else None
        if seen is not None and seen > fence:
            raise StaleFence(self._words(key), fence, seen)

    def _words(self, key: Mapping[str, Any]) -> str:
        return f"{self.table} {', '.join([f'{name}={value!r}' for name, value in key.items()])}"


class TableStatements(RowStatements):
    """The statements for a table that holds fences and nothing else, a row for each resource."""

    def __init__(self, paramstyle: str, *, table: str = "quorlock_fences") -> None:
        """Name the driver's style of parameters, as its `paramstyle` says it."""
        super().__init__(table, paramstyle)

    def create_statement(self) -> Statement:
        """Makes the table where there is none."""
        columns = '"resource" TEXT PRIMARY KEY, "fence" BIGINT NOT NULL'
        return Statement(f"CREATE TABLE IF NOT EXISTS {self._quoted} ({columns})", ())

    def claim_statement(self, resource: str, fence: int | None) -> Statement:
        """Records the fence unless it has seen a larger one, and keeps others out until the end of
        the transaction.
        """
        return self.upsert_statement({"resource": resource}, {}, fence)

    def _words(self, key: Mapping[str, Any]) -> str:
        return str(key["resource"])


def _row_of(key: Mapping[str, Any], parameters: _Parameters) -> str:
    tests = [f"held.{_name('key', n)} = {parameters.put(v)}" for n, v in _given(key).items()]
    return " AND ".join(tests)


def _given(key: Mapping[str, Any]) -> Mapping[str, Any]:
    if not key or any(value is None for value in key.values()):
        raise ConfigError("key", dict(key), "name the columns of one row, none of them NULL")
    return key


def _name(argument: str, name: str) -> str:
    """The name of a table or column, quoted. Nothing that would need escaping is let in."""
    if not _NAME.fullmatch(name):
        fix = "letters, digits and _, as the database stores it (PostgreSQL: mostly lower case)"
        raise ConfigError(argument, name, fix)
    return f'"{name}"'
