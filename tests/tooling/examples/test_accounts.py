"""examples/accounts.py on a real PostgreSQL, through SQLAlchemy."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType

import pytest

from quorlock import ConfigError, Redlock
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.servers.fencing.postgres import Postgres
from tests.tooling.examples.programs import EXAMPLES, PATIENCE, environment, started

sqlalchemy = pytest.importorskip("sqlalchemy")

Started = AbstractContextManager[subprocess.Popen[str]]


class Bank:
    """An empty database, and the program that withdraws from it."""

    def __init__(self, nodes: Servers, postgres: Postgres) -> None:
        folder = postgres.url.split()[0].removeprefix("host=")
        self.url = f"postgresql+psycopg://quorlock@/postgres?host={folder}"
        self._environment = environment(nodes.urls, DATABASE_URL=self.url)

    def start(self, *words: str) -> Started:
        pipe = subprocess.PIPE
        return started(
            "accounts.py", *words, env=self._environment, stdin=pipe, stdout=pipe, stderr=pipe
        )

    def run(self, *words: str) -> str:
        with self.start(*words) as process:
            output, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, errors) == (0, "")
        return output


@pytest.fixture
def bank(nodes: Servers, postgres: Postgres) -> Iterator[Bank]:
    yield Bank(nodes, postgres)
    with postgres.connect(autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def test_withdrawals_at_once(bank: Bank) -> None:
    """None is lost, and each prints what it left."""
    assert bank.run("ada", "0") == "ada has 100\n"
    with ExitStack() as stack:
        running = [stack.enter_context(bank.start("ada", "10")) for _ in range(3)]
        printed = sorted(one.communicate(timeout=PATIENCE)[0] for one in running)
    assert printed == ["ada has 70\n", "ada has 80\n", "ada has 90\n"]


def test_a_late_writer_is_refused(bank: Bank) -> None:
    """A writer that pauses until its lease has ended withdraws nothing."""
    with bank.start("ada", "30", "--pause") as late:
        assert late.stdout is not None
        prompt = "has the lock; press Enter to write "
        assert late.stdout.read(len(prompt)) == prompt
        assert bank.run("ada", "50") == "ada has 50\n"
        output, errors = late.communicate("\n", timeout=PATIENCE)
    assert (late.returncode, output) == (1, "")
    assert errors.startswith("nothing was withdrawn: 'account:ada' refuses fence ")
    assert bank.run("ada", "0") == "ada has 50\n"


def test_autocommit_is_an_error(bank: Bank, nodes: Servers) -> None:
    """An engine in autocommit would commit the claim before the write; the lock is free again."""
    assert bank.run("ada", "0") == "ada has 100\n"
    program = load("accounts")
    engine = sqlalchemy.create_engine(bank.url, isolation_level="AUTOCOMMIT")
    try:
        with Redlock(nodes.urls, node_timeout=0.25) as redlock:
            with pytest.raises(ConfigError, match="begin a transaction first"):
                program.withdraw(redlock, engine, "ada", 50)
            assert not redlock.lock("account:ada").locked()
    finally:
        engine.dispose()
    assert bank.run("ada", "0") == "ada has 100\n"


def test_no_quorum(bank: Bank, mortal_nodes: Servers) -> None:
    """Nothing is written without the lock."""
    assert bank.run("ada", "0") == "ada has 100\n"
    for node in mortal_nodes[:3]:
        node.stop()
    with bank.start("ada", "50") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert errors.startswith("nothing was withdrawn: 'account:ada': 2 of 5 nodes answered")
    for node in mortal_nodes[:3]:
        node.cont()
    assert until(lambda: bank.run("ada", "0") == "ada has 100\n")


def load(name: str) -> ModuleType:
    """Import a program as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
