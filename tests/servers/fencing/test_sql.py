"""Tables refuse an old fence: in SQLite and in a real PostgreSQL, blocking and asyncio."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import quorlock.asyncio.fencing as aio
from quorlock import ConfigError, QuorlockError, StaleFence, fencing
from quorlock.fencing import FencedRows, FenceTable
from quorlock.fencing.fences import FENCE_MAX
from tests.servers.fencing.databases import Database, column
from tests.servers.fencing.postgres import Postgres

INVOICES = "CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, fence BIGINT)"


def run(database: Database, scenario: Callable[[Any], Awaitable[None]]) -> None:
    """The scenario with one connection, which is closed whatever becomes of it."""

    async def led() -> None:
        connection = await database.connect()
        try:
            await scenario(connection)
        finally:
            await database.close(connection)

    asyncio.run(led())


# --- a table of fences -----------------------------------------------------------------------


def test_equal_and_larger_fences_are_accepted_and_smaller_refused(database: Database) -> None:
    """One holder claims in many transactions; after a later holder's claim it cannot."""
    fences = database.fences()

    async def scenario(connection: Any) -> None:
        for _ in range(2):
            await fences.create(connection)
        for fence in (33, 33, 34, FENCE_MAX):
            await fences.claim(connection, "invoice:42", fence)
            await fences.claim(connection, "another", 7)
            await database.commit(connection)
        with pytest.raises(StaleFence) as refused:
            await fences.claim(connection, "invoice:42", FENCE_MAX - 1)
        error = refused.value
        assert (error.resource, error.fence) == ("invoice:42", FENCE_MAX - 1)
        assert error.seen == FENCE_MAX, "to the last digit"

    run(database, scenario)


def test_what_a_late_writer_did_is_rolled_back(database: Database) -> None:
    """The claim belongs to the transaction: wherever it stands, all of it is refused."""
    fences = database.fences()

    async def scenario(connection: Any) -> None:
        await fences.create(connection)
        await database.execute(connection, INVOICES)
        await fences.claim(connection, "invoice:42", 34)
        await database.execute(connection, "INSERT INTO invoices VALUES (42, 34, NULL)")
        await database.commit(connection)
        await database.execute(connection, "UPDATE invoices SET total = 33")
        with pytest.raises(StaleFence):
            await fences.claim(connection, "invoice:42", 33)
        await database.rollback(connection)
        assert column(await database.execute(connection, "SELECT total FROM invoices")) == [34]

    run(database, scenario)


def test_a_claim_keeps_others_out_until_its_transaction_ends(database: Database) -> None:
    """No other claim falls between a claim and the writes that depend on it."""
    fences = database.fences()

    async def scenario(first: Any) -> None:
        await fences.create(first)
        await database.commit(first)
        await fences.claim(first, "invoice:42", 33)
        second = await database.connect(patience=0.05)
        with pytest.raises(database.conflict):
            await fences.claim(second, "invoice:42", 34)
        await database.rollback(second)
        await database.commit(first)
        await fences.claim(second, "invoice:42", 34)
        await database.commit(second)
        with pytest.raises(StaleFence):
            await fences.claim(first, "invoice:42", 33)
        await database.close(second)

    run(database, scenario)


def test_who_claims_before_reading_shuts_out_late_writers(database: Database) -> None:
    """A late write between the read and the write of the later holder would be lost."""
    fences = database.fences()

    async def scenario(connection: Any) -> None:
        await fences.create(connection)
        await database.execute(connection, INVOICES)
        await database.execute(connection, "INSERT INTO invoices VALUES (42, 100, NULL)")
        await fences.claim(connection, "invoice:42", 34)
        (total,) = column(await database.execute(connection, "SELECT total FROM invoices"))
        await database.commit(connection)
        # The holder of 33 wakes up here, with what it read long ago.
        with pytest.raises(StaleFence):
            await fences.claim(connection, "invoice:42", 33)
        await database.rollback(connection)
        await fences.claim(connection, "invoice:42", 34)
        await database.execute(connection, f"UPDATE invoices SET total = {total + 1}")
        await database.commit(connection)

    run(database, scenario)


def test_a_claim_outside_of_a_transaction_is_refused(database: Database) -> None:
    """A claim in autocommit would be over before the writes begin; after BEGIN it is not."""
    fences = database.fences()

    async def scenario(_connection: Any) -> None:
        connection = await database.connect(autocommit=True)
        await fences.create(connection)
        with pytest.raises(ConfigError, match="begin a transaction first"):
            await fences.claim(connection, "invoice:42", 33)
        await database.execute(connection, "BEGIN")
        await fences.claim(connection, "invoice:42", 33)
        await database.execute(connection, "COMMIT")
        await database.close(connection)

    run(database, scenario)


def test_writers_that_race_leave_fences_in_order(database: Database) -> None:
    """Accepted fences rise in any order of the threads, at each level of isolation."""
    for level in database.levels:
        race(database, level)


def race(database: Database, level: str) -> None:
    fences = database.fences()

    async def prepare(connection: Any) -> None:
        await database.execute(connection, "DROP TABLE IF EXISTS log")
        await database.execute(connection, "DROP TABLE IF EXISTS quorlock_fences")
        await database.execute(connection, "CREATE TABLE log (id INTEGER, fence BIGINT)")
        await fences.create(connection)
        await database.commit(connection)

    refused: tuple[type[Exception], ...] = (StaleFence, *database.conflict)

    async def work(connection: Any, order: list[int]) -> None:
        for fence in order:
            try:
                if level:
                    await database.execute(connection, level)
                await fences.claim(connection, "invoice:42", fence)
                number = "SELECT COALESCE(MAX(id), 0) + 1"
                await database.execute(connection, f"INSERT INTO log {number}, {fence} FROM log")
                await database.commit(connection)
            except refused:
                await database.rollback(connection)

    def thread(seed: int) -> None:
        order = random.Random(seed).sample(range(1, 25), 24)
        run(database, lambda connection: work(connection, order))

    async def check(connection: Any) -> None:
        written = column(await database.execute(connection, "SELECT fence FROM log ORDER BY id"))
        assert written == sorted(written)
        assert len(written) > 1
        seen = column(await database.execute(connection, "SELECT fence FROM quorlock_fences"))
        assert seen == written[-1:]

    run(database, prepare)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(thread, range(4)))
    run(database, check)


# --- rows with separate fences ---------------------------------------------------------------


def test_a_row_remembers_the_fence_of_its_last_writer(database: Database) -> None:
    """Inserted, updated by the same and by a later holder, refused to an earlier one."""
    rows = database.rows("invoices")

    async def scenario(connection: Any) -> None:
        await database.execute(connection, INVOICES)
        for total, fence in ((10, 33), (11, 33), (12, 35)):
            await rows.upsert(connection, {"id": 42}, {"total": total}, fence)
        assert await rows.update(connection, {"id": 42}, {"total": 13}, 36)
        for verb in (rows.upsert, rows.update):
            with pytest.raises(StaleFence) as refused:
                await verb(connection, {"id": 42}, {"total": 99}, 35)
            assert refused.value.resource == "invoices id=42"
            assert (refused.value.fence, refused.value.seen) == (35, 36)
        assert not await rows.update(connection, {"id": 43}, {"total": 1}, 35), "no such row"
        await rows.upsert(connection, {"id": 43}, {"total": None}, 1)
        found = await database.execute(connection, "SELECT * FROM invoices ORDER BY id")
        assert [tuple(row) for row in found] == [(42, 13, 36), (43, None, 1)]

    run(database, scenario)


def test_rows_from_before_there_were_fences_accept_any(database: Database) -> None:
    """The fence of old rows is NULL until the first fenced write."""
    rows = database.rows("invoices")

    async def scenario(connection: Any) -> None:
        await database.execute(connection, INVOICES)
        await database.execute(connection, "INSERT INTO invoices VALUES (1, 0, NULL), (2, 0, NULL)")
        assert await rows.update(connection, {"id": 1}, {"total": 5}, 1)
        await rows.upsert(connection, {"id": 2}, {"total": 5}, 1)
        found = await database.execute(connection, "SELECT total, fence FROM invoices")
        assert [tuple(row) for row in found] == [(5, 1), (5, 1)]

    run(database, scenario)


def test_keys_of_several_columns_and_names_that_sql_has_taken(database: Database) -> None:
    """Names are quoted; a column of fences may have another name."""
    rows = database.rows("order", fence="limit")
    table = (
        'CREATE TABLE "order" ("user" TEXT, "table" INTEGER, "group" TEXT, "limit" BIGINT,'
        ' PRIMARY KEY ("user", "table"))'
    )

    async def scenario(connection: Any) -> None:
        await database.execute(connection, table)
        key = {"user": "it's %s", "table": 1}
        await rows.upsert(connection, key, {"group": "a"}, 5)
        assert await rows.update(connection, key, {"group": 'b"; DROP'}, 6)
        with pytest.raises(StaleFence, match="table=1"):
            await rows.update(connection, key, {"group": "c"}, 5)
        found = await database.execute(connection, 'SELECT * FROM "order"')
        assert [tuple(row) for row in found] == [("it's %s", 1, 'b"; DROP', 6)]

    run(database, scenario)


def test_a_table_may_be_in_a_schema(database: Database) -> None:
    """SQLite calls its first one `main`, PostgreSQL `public`."""
    fences = database.fences(table=f"{database.schema}.fences")
    rows = database.rows(f"{database.schema}.invoices")

    async def scenario(connection: Any) -> None:
        await fences.create(connection)
        await database.execute(connection, INVOICES)
        for verb in (rows.upsert, rows.update):
            await verb(connection, {"id": 1}, {"total": 1}, 4)
        await fences.claim(connection, "r", 2)
        with pytest.raises(StaleFence):
            await fences.claim(connection, "r", 1)

    run(database, scenario)


def test_a_write_that_did_not_happen_is_never_silent(database: Database) -> None:
    """A trigger that swallows it, say: neither accepted nor refused."""
    rows = database.rows("invoices")
    if database.schema == "main":
        swallow = "CREATE TRIGGER t BEFORE INSERT ON invoices BEGIN SELECT RAISE(IGNORE); END"
    else:
        swallow = (
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER t BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION f()"
        )

    async def scenario(connection: Any) -> None:
        await database.execute(connection, INVOICES)
        await database.execute(connection, swallow)
        with pytest.raises(QuorlockError, match="nothing was written to 'invoices id=1'"):
            await rows.upsert(connection, {"id": 1}, {"total": 1}, 4)

    run(database, scenario)


@pytest.mark.parametrize("shape", ["dict", "value"])
def test_rows_may_be_of_another_shape(database: Database, shape: str) -> None:
    """The connection may make dicts of rows, or take the value of their first column."""
    fences, invoices = database.fences(), database.rows("invoices")

    async def scenario(connection: Any) -> None:
        await fences.create(connection)
        await database.execute(connection, INVOICES)
        connection.row_factory = database.row_factories[shape]
        await invoices.upsert(connection, {"id": 42}, {"total": 1}, 34)
        await fences.claim(connection, "invoice:42", 34)
        for late in (
            fences.claim(connection, "invoice:42", 33),
            invoices.update(connection, {"id": 42}, {"total": 2}, 33),
            invoices.upsert(connection, {"id": 42}, {"total": 2}, 33),
        ):
            with pytest.raises(StaleFence) as refused:
                await late
            assert refused.value.seen == 34

    run(database, scenario)


def test_in_a_pipeline(postgres: Postgres) -> None:
    """A statement has no result before its rows are asked for."""
    fences = FenceTable(psycopg.paramstyle, table="in_pipeline")
    with postgres.connect() as connection, connection.pipeline():
        fences.create(connection)
        fences.claim(connection, "r", 34)
        with pytest.raises(StaleFence):
            fences.claim(connection, "r", 33)
        connection.rollback()
    with postgres.connect(autocommit=True) as connection, connection.pipeline():
        fences.create(connection)
        with pytest.raises(ConfigError, match="in autocommit a claim protects nothing"):
            fences.claim(connection, "r", 34)


def test_in_a_pipeline_of_asyncio(postgres: Postgres) -> None:
    """An AsyncConnection does the same."""
    fences = aio.FenceTable(psycopg.paramstyle, table="in_a_pipeline_of_asyncio")

    async def scenario() -> None:
        connecting = psycopg.AsyncConnection.connect(postgres.url)
        async with await connecting as connection, connection.pipeline():
            await fences.create(connection)
            await fences.claim(connection, "r", 34)
            with pytest.raises(StaleFence):
                await fences.claim(connection, "r", 33)
            await connection.rollback()

    asyncio.run(scenario())


def test_a_connection_of_the_other_api_is_refused(postgres: Postgres) -> None:
    """A coroutine that is not awaited would accept an older fence, also in a transaction."""
    awaited, blocking = aio.FenceTable(psycopg.paramstyle), FenceTable(psycopg.paramstyle)

    async def scenario() -> None:
        connecting = psycopg.AsyncConnection.connect(postgres.url)
        async with await connecting as theirs:
            await awaited.create(theirs)
            await awaited.claim(theirs, "r", 34)
            with pytest.raises(ConfigError, match="of another kind"):
                blocking.claim(theirs, "r", 33)
            await theirs.rollback()
        with postgres.connect() as ours:
            with pytest.raises(ConfigError, match="of another kind"):
                await awaited.create(ours)
            ours.rollback()

    asyncio.run(scenario())


# --- texts and parameters for other drivers --------------------------------------------------


@pytest.mark.parametrize("style", ["qmark", "named"])
def test_sqlite_takes_its_styles_of_parameters(style: str, tmp_path: Path) -> None:
    """sqlite3 runs the generated statements."""
    connection = sqlite3.connect(tmp_path / "x.sqlite")
    accepted_and_refused(FenceTable(style), connection.execute)
    connection.close()


@pytest.mark.parametrize("style", ["format", "pyformat", "numeric_dollar"])
def test_postgresql_takes_its_styles_of_parameters(style: str, postgres: Postgres) -> None:
    """`$1` is asyncpg's style, which psycopg's RawCursor has too."""
    factory = psycopg.RawCursor if style == "numeric_dollar" else psycopg.Cursor
    with postgres.connect(cursor_factory=factory) as connection:
        accepted_and_refused(FenceTable(style), connection.execute)
        connection.rollback()


def accepted_and_refused(fences: FenceTable, execute: Callable[[Any, Any], Any]) -> None:
    """A row comes back if the fence was accepted, and none if not."""
    execute(*fences.create_statement())
    for fence, accepted in ((33, True), (34, True), (33, False)):
        rows = execute(*fences.claim_statement("r", fence)).fetchall()
        assert [tuple(row) for row in rows] == ([(fence,)] if accepted else [])
    assert tuple(execute(*fences.seen_statement({"resource": "r"})).fetchone()) == (34,)
    rows = FencedRows(fences.table, fences.paramstyle)
    update = rows.update_statement({"resource": "r"}, {"resource": "s"}, 35)
    assert len(execute(*update).fetchall()) == 1


def test_numeric_parameters_count() -> None:
    """No driver here has this style: the text shows it."""
    statement = FencedRows("t", "numeric").update_statement({"id": 1}, {"a": 2}, 3)
    assert statement.parameters == (2, 3, 1, 3)
    assert statement.text == (
        'UPDATE "t" AS held SET "a" = :1, "fence" = :2 WHERE held."id" = :3'
        ' AND (held."fence" IS NULL OR held."fence" <= :4) RETURNING "fence"'
    )


# --- what is refused before anything is sent -------------------------------------------------


@pytest.mark.parametrize("fence", [None, 0, -1, True, 2**53, "7", 7.0])
def test_what_is_no_fence_is_refused(fence: Any) -> None:
    """None above all: the fence of a lease that was acquired without fencing."""
    rows, fences = FencedRows("t", "qmark"), FenceTable("qmark")
    words = "fencing=True" if fence is None else "give lease.fence"
    with pytest.raises(ConfigError, match=words):
        rows.update_statement({"id": 1}, {}, fence)
    with pytest.raises(ConfigError, match=words):
        rows.upsert_statement({"id": 1}, {}, fence)
    with pytest.raises(ConfigError, match=words):
        fences.claim_statement("r", fence)


@pytest.mark.parametrize(
    "name", ["", "a b", 'a"b', "a;b", "1a", "a.b.c", ".a", "a.", "a-b", "é", "x" * 64, "a\n"]
)
def test_names_that_would_need_escaping_are_refused(name: str) -> None:
    """Tables and columns are no place for what users typed."""
    with pytest.raises(ConfigError):
        FencedRows(name, "qmark")
    rows = FencedRows("t", "qmark")
    for key, values in (({name: 1}, {}), ({"id": 1}, {name: 1})):
        for make in (rows.update_statement, rows.upsert_statement):
            with pytest.raises(ConfigError):
                make(key, values, 1)


@pytest.mark.parametrize("name", [None, 7, b"a", ["a"]])
def test_names_are_text(name: Any) -> None:
    """A ConfigError names the argument, in both APIs."""
    for api in (fencing, aio):
        with pytest.raises(ConfigError, match=r"^table=.*: give the name as str"):
            api.FencedRows(name, "qmark")
        with pytest.raises(ConfigError, match=r"^table=.*: give the name as str"):
            api.FenceTable("qmark", table=name)
        with pytest.raises(ConfigError, match=r"^fence=.*: give the name as str"):
            api.FencedRows("t", "qmark", fence=name)
        if name is not None:
            with pytest.raises(ConfigError, match=r"^paramstyle="):
                api.FenceTable(name)
        rows = api.FencedRows("t", "qmark")
        for make in (rows.update_statement, rows.upsert_statement):
            with pytest.raises(ConfigError, match=r"^key="):
                make(name, {}, 1)
            with pytest.raises(ConfigError, match=r"^values='.*': give a dict"):
                make({"id": 1}, name, 1)
            with pytest.raises(ConfigError, match=r"^key=7: give the name as str"):
                make({7: 1}, {}, 1)


@pytest.mark.parametrize("name", ["fence", "FENCE"])
def test_the_column_of_the_fence_has_nothing_else(name: str) -> None:
    """Older fences could pass after another value there. SQLite takes `FENCE` for `fence`."""
    rows = FencedRows("t", "qmark")
    for make in (rows.update_statement, rows.upsert_statement):
        with pytest.raises(ConfigError, match=r'without "fence": `fence` goes there'):
            make({"id": 1}, {"amount": 1, name: 7}, 1)
    with pytest.raises(ConfigError, match=r'without "fence"'):
        rows.upsert_statement({name: 1}, {"amount": 1}, 1)
    rows = FencedRows("t", "qmark", fence="token")
    assert f'"{name}"' in rows.update_statement({"id": 1}, {name: 7}, 1).text


@pytest.mark.parametrize("key", [{}, {"id": None}, {"id": 1, "part": None}])
def test_a_key_names_one_row(key: dict[str, Any]) -> None:
    """A statement without a key would write all rows; NULL equals nothing."""
    rows = FencedRows("t", "qmark")
    for make in (rows.update_statement, rows.upsert_statement):
        with pytest.raises(ConfigError):
            make(key, {}, 1)
    with pytest.raises(ConfigError):
        rows.seen_statement(key)


def test_an_unknown_style_is_refused() -> None:
    """The drivers say theirs: `sqlite3.paramstyle`."""
    with pytest.raises(ConfigError, match="qmark"):
        FenceTable("dollar")


def test_a_resource_has_one_row_and_its_name_is_text() -> None:
    """SQLite would make a second row for the name as bytes, and an older fence would pass there."""

    async def awaited(connection: Any) -> None:
        await aio.FenceTable("qmark").claim(connection, name, 45)

    class Connection:
        def execute(self, *_: object) -> None:
            raise AssertionError("something was sent")

        cursor = execute

    name: Any = b"a"
    with pytest.raises(ConfigError, match="give the name as str"):
        FenceTable("qmark").claim(Connection(), name, 45)
    with pytest.raises(ConfigError, match="give the name as str"):
        asyncio.run(awaited(Connection()))
    with pytest.raises(ConfigError, match="give the name as str"):
        FenceTable("qmark").claim_statement(name, 45)
