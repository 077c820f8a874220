"""A claim over the connections of SQLAlchemy and Django: a forgotten transaction is an error."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import quorlock.asyncio.fencing as aio
from quorlock import ConfigError, StaleFence
from quorlock.fencing import FencedRows, FenceTable

sqlalchemy = pytest.importorskip("sqlalchemy")
django = pytest.importorskip("django")

from django.db import connection as django_default  # noqa: E402 (they may be missing)
from django.db import connections, transaction  # noqa: E402
from sqlalchemy import orm  # noqa: E402
from sqlalchemy.ext import asyncio as sa  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.servers.fencing.postgres import Postgres

AUTOCOMMIT = "begin a transaction first"


class Place:
    """The place of a database: a file for SQLite, or a real PostgreSQL."""

    def __init__(self, path: Path, server: Postgres | None) -> None:
        self._path = path
        self._server = server
        self.style = sqlite3.paramstyle if server is None else psycopg.paramstyle

    def url(self, driver: str = "") -> Any:
        if self._server is None:
            return sqlalchemy.URL.create(f"sqlite{driver}", database=str(self._path))
        user, host = "quorlock", self.folder
        return sqlalchemy.URL.create(
            "postgresql+psycopg", user, database="postgres", query={"host": host}
        )

    @property
    def folder(self) -> str:
        assert self._server is not None
        return self._server.url.split()[0].removeprefix("host=")

    def for_django(self) -> dict[str, Any]:
        if self._server is None:
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self._path)}
        return {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": self.folder,
            "USER": "quorlock",
            "NAME": "postgres",
        }


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Postgres | None:
    """Return the server, in session scope, like the PostgreSQL that it starts."""
    found: Postgres | None = None
    if request.param == "postgresql":
        found = request.getfixturevalue("postgres")
    return found


@pytest.fixture
def place(server: Postgres | None, tmp_path: Path) -> Iterator[Place]:
    """An empty database."""
    yield Place(tmp_path / "data.sqlite", server)
    if server is not None:
        with server.connect(autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


# --- SQLAlchemy ------------------------------------------------------------------------------


@pytest.fixture
def engine(place: Place) -> Iterator[Any]:
    made = sqlalchemy.create_engine(place.url())
    with made.begin() as connection:
        FenceTable().create(connection)
    yield made
    made.dispose()


def scoped(engine: Any) -> Any:
    return orm.scoped_session(orm.sessionmaker(engine))


@pytest.mark.parametrize("kind", [orm.Session, scoped, "connection"], ids=name)
def test_sqlalchemy_in_a_transaction(engine: Any, kind: Any) -> None:
    """The claim is a part of it, and rolled back with it; a smaller fence is refused."""
    fences = FenceTable()  # SQLAlchemy knows the paramstyle
    with engine.connect() as connection:
        target = connection if kind == "connection" else kind(connection)
        fences.claim(target, "r", 33)
        target.commit()
        fences.claim(target, "r", 44)
        target.rollback()
        fences.claim(target, "r", 34)
        with pytest.raises(StaleFence, match="it has seen 34"):
            fences.claim(target, "r", 33)
        if target is not connection:
            target.close()


@pytest.mark.parametrize("kind", [orm.Session, scoped, "connection", "pool"], ids=name)
def test_sqlalchemy_in_autocommit(place: Place, engine: Any, kind: Any) -> None:
    """SQLAlchemy hides the driver's state; the driver's connection behind it shows it."""
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        if kind == "pool":
            target = connection.connection
        else:
            target = connection if kind == "connection" else kind(connection)
        fences = FenceTable(place.style if kind == "pool" else None)
        with pytest.raises(ConfigError, match=AUTOCOMMIT):
            fences.claim(target, "r", 33)


def test_sqlalchemy_fenced_rows(engine: Any) -> None:
    """A row with its own fence is written through a Session."""
    rows = FencedRows("invoices")
    with orm.Session(engine) as session:
        session.execute(
            sqlalchemy.text(
                "CREATE TABLE invoices (id INTEGER PRIMARY KEY, n INTEGER, fence BIGINT)"
            )
        )
        rows.upsert(session, {"id": 1}, {"n": 1}, 33)
        assert rows.update(session, {"id": 1}, {"n": 2}, 34)
        assert not rows.update(session, {"id": 2}, {"n": 2}, 34)
        with pytest.raises(StaleFence):
            rows.update(session, {"id": 1}, {"n": 3}, 33)


def test_an_engine_is_no_connection(engine: Any) -> None:
    """The error names the alternative."""
    with pytest.raises(ConfigError, match="a Session or Connection of SQLAlchemy"):
        FenceTable().claim(engine, "r", 33)


def with_async_engine(place: Place, work: Callable[[Any], Awaitable[None]]) -> None:
    async def led() -> None:
        engine = sa.create_async_engine(place.url("+aiosqlite"))
        try:
            async with engine.begin() as connection:
                await aio.FenceTable().create(connection)
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(led())


@pytest.mark.parametrize("kind", [sa.AsyncSession, "connection"], ids=name)
def test_sqlalchemy_asyncio_in_a_transaction(place: Place, kind: Any) -> None:
    """AsyncSession and AsyncConnection, as their twins."""
    fences = aio.FenceTable()

    async def work(engine: Any) -> None:
        async with engine.connect() as connection:
            target = connection if kind == "connection" else kind(connection)
            await fences.claim(target, "r", 33)
            await target.commit()
            await fences.claim(target, "r", 44)
            await target.rollback()
            await fences.claim(target, "r", 34)
            with pytest.raises(StaleFence, match="it has seen 34"):
                await fences.claim(target, "r", 33)
            if target is not connection:
                await target.close()

    with_async_engine(place, work)


@pytest.mark.parametrize("kind", [sa.AsyncSession, "connection"], ids=name)
def test_sqlalchemy_asyncio_in_autocommit(place: Place, kind: Any) -> None:
    """Noticed there as well."""

    async def work(engine: Any) -> None:
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            target = connection if kind == "connection" else kind(connection)
            with pytest.raises(ConfigError, match=AUTOCOMMIT):
                await aio.FenceTable().claim(target, "r", 33)
            if target is not connection:
                await target.close()

    with_async_engine(place, work)


def test_the_other_face_is_named(place: Place, engine: Any) -> None:
    """The error names the right API: no coroutine is left without an await."""

    async def work(awaited: Any) -> None:
        async with awaited.connect() as connection, sa.AsyncSession(awaited) as session:
            for theirs in (connection, session):
                with pytest.raises(ConfigError, match="of another kind"):
                    FenceTable().claim(theirs, "r", 33)
        with engine.connect() as connection, orm.Session(engine) as session:
            for ours in (connection, session):
                with pytest.raises(ConfigError, match="of another kind"):
                    await aio.FenceTable().claim(ours, "r", 33)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_async_engine(place, work)


# --- Django ----------------------------------------------------------------------------------


@pytest.fixture
def alias(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Django's database `default`; in DEBUG it formats every statement."""
    from django.conf import settings

    if not settings.configured:
        settings.configure(DEBUG=True, LOGGING_CONFIG=None)
        django.setup()
    databases = connections.configure_settings({"default": place.for_django()})
    monkeypatch.setattr(connections, "settings", databases, raising=False)
    FenceTable().create("default")
    yield "default"
    connections["default"].close()
    del connections["default"]


@pytest.mark.parametrize("target", ["default", django_default], ids=["alias", "connection"])
def test_django_in_a_transaction(alias: str, target: Any) -> None:
    """The argument is the alias or the connection, without a paramstyle, which is Django's."""
    fences = FenceTable()
    with transaction.atomic():
        fences.claim(target, "r", 33)
    with pytest.raises(StaleFence, match="it has seen 33"), transaction.atomic():
        fences.claim(target, "r", 32)
    with transaction.atomic():
        fences.claim(target, "r", 44)
        transaction.set_rollback(True)
    connections[alias].set_autocommit(False)  # another way to have one
    fences.claim(target, "r", 34)
    connections[alias].rollback()
    connections[alias].set_autocommit(True)


@pytest.mark.parametrize("target", ["default", django_default], ids=["alias", "connection"])
def test_django_without_atomic(alias: str, target: Any) -> None:
    """Django is in autocommit by default."""
    with pytest.raises(ConfigError, match=AUTOCOMMIT):
        FenceTable().claim(target, "r", 33)


def test_django_in_asyncio(alias: str) -> None:
    """Django's connections block, so they are for the blocking API."""
    for target in (alias, django_default):
        with pytest.raises(ConfigError, match="sync_to_async"):
            asyncio.run(aio.FenceTable().claim(target, "r", 33))


# --- others ----------------------------------------------------------------------------------


class Hiding:
    """A connection of a driver that hides its state."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real

    def cursor(self) -> sqlite3.Cursor:
        return self._real.cursor()


class Autocommitting(Hiding):
    """A connection that reports autocommit like pg8000 and pyodbc."""

    autocommit = True


class Beginning(Hiding):
    autocommit = False


class Knowing(Hiding):
    """A connection that reports its transaction by a method, like asyncpg."""

    def is_in_transaction(self) -> bool:
        return self._real.in_transaction


def test_a_driver_that_does_not_show_its_transaction() -> None:
    """The claim is an error, unless the caller declares an open transaction."""
    fences = FenceTable(sqlite3.paramstyle)
    real = sqlite3.connect(":memory:")
    fences.create(real)
    with pytest.raises(ConfigError, match="in_transaction=True"):
        fences.claim(Hiding(real), "r", 33)
    fences.claim(Hiding(real), "r", 33, in_transaction=True)
    fences.claim(Beginning(real), "r", 33)
    fences.claim(Knowing(real), "r", 33)
    with pytest.raises(ConfigError, match=AUTOCOMMIT):
        fences.claim(Autocommitting(real), "r", 33, in_transaction=True)
    real.close()


def test_a_style_is_needed_where_the_driver_declares_none() -> None:
    """A driver's connection is not asked for its module: wrappers hide it."""
    real = sqlite3.connect(":memory:")
    FenceTable().create(real)
    with pytest.raises(ConfigError, match="paramstyle"):
        FenceTable().claim(real, "r", 33)
    real.close()


def test_no_fcntl_is_needed() -> None:
    """Tables and keys work without it; files report that they need it."""
    program = """
import sqlite3, sys
sys.modules["fcntl"] = None
import quorlock.asyncio.fencing
from quorlock import QuorlockError
from quorlock.fencing import FencedFile, FenceTable
connection = sqlite3.connect(":memory:")
fences = FenceTable("qmark")
fences.create(connection)
fences.claim(connection, "r", 33)
try:
    FencedFile("never").claim(33)
except QuorlockError as error:
    print(error)
"""
    asked = [sys.executable, "-c", program]
    ended = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert ended.stdout == "this platform has no flock, which FencedFile needs\n"
