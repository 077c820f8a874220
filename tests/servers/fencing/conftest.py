"""A real PostgreSQL for the tests that ask, and databases through each face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.fencing.databases import Database, open_database
from tests.servers.fencing.postgres import NoPostgres, Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return one server for the session; tests use separate table names, or drop their tables."""
    try:
        server = Postgres()
    except NoPostgres as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture(scope="session", params=["sqlite", "postgresql", "postgresql, asyncio"])
def face(request: pytest.FixtureRequest) -> tuple[str, Postgres | None]:
    """Return the database and the API. Session scope, like the server that it starts."""
    name = request.param
    return name, None if name == "sqlite" else request.getfixturevalue("postgres")


@pytest.fixture
def database(face: tuple[str, Postgres | None], tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    name, server = face
    yield open_database(name, tmp_path / "data.sqlite", server)
    if server is None:
        return
    with server.connect(autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
