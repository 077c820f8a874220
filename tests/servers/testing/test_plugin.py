"""The pytest plugin, as a user's project has it: a sample project is run by pytest in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

from tools.snippets import read_blocks

ROOT = Path(__file__).parents[3]
PLUGIN = "quorlock.testing.plugin"


GUARDED = ("-p", "tests.harness.guards")


def run_pytest(
    folder: Path, source: str, *options: str, guards: tuple[str, ...] = GUARDED
) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with the plugin and no other; warnings are errors, leaks too."""
    (folder / "test_it.py").write_text(dedent(source))
    command = [sys.executable, "-X", "dev", "-m", "pytest", "-p", PLUGIN, *guards]
    command += ["-p", "no:cacheprovider", "-W", "error", "-rs", *options, "test_it.py"]
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def passes(folder: Path, source: str, count: int, guards: tuple[str, ...] = GUARDED) -> str:
    """Check that this many tests pass and leave nothing behind; return the output."""
    run = run_pytest(folder, source, guards=guards)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} passed" in run.stdout
    assert run.stderr == ""
    return run.stdout


# A user's code: it is given its Redlock, or makes it from its settings.
SHOP = '''
    import asyncio
    import pytest
    import quorlock
    import quorlock.asyncio

    def charge(redlock, number):
        """A user's code."""
        try:
            with redlock.lock(f"invoice:{number}", timeout=0.1):
                return "charged"
        except quorlock.AcquireTimeout:
            return "somebody else is at it"
        except quorlock.QuorumUnreachable:
            return "try later"

    async def charge_soon(redlock, number):
        try:
            async with redlock.lock(f"invoice:{number}", timeout=0.1):
                return "charged"
        except quorlock.AcquireTimeout:
            return "somebody else is at it"
'''


def test_a_blocking_redlock(tmp_path: Path) -> None:
    tests = """
    def test_charge(quorlock_redlock):
        assert charge(quorlock_redlock, 42) == "charged"

    def test_it_is_held_by_another(quorlock_redlock, quorlock_held):
        with quorlock_held("invoice:42") as lease:
            assert charge(quorlock_redlock, 42) == "somebody else is at it"
            assert charge(quorlock_redlock, 43) == "charged"
            lease.release()
            assert charge(quorlock_redlock, 42) == "charged"
        with quorlock_held("invoice:42"):
            pass
        assert charge(quorlock_redlock, 42) == "charged"

    def test_it_is_held_already(quorlock_redlock, quorlock_held):
        with quorlock_redlock.lock("a"):
            with pytest.raises(quorlock.AcquireTimeout):
                with quorlock_held("a"):
                    pass

    def test_the_body_of_held_raises(quorlock_redlock, quorlock_held):
        with pytest.raises(ZeroDivisionError):
            with quorlock_held("a"):
                1 / 0
        assert quorlock_redlock.lock("a").try_acquire()

    def test_held_for_less_than_the_block(quorlock_redlock, quorlock_held):
        with quorlock_held("a", ttl=0.3):
            assert quorlock_redlock.lock("a").acquire(timeout=20)

    def test_held_under_a_prefix(quorlock_nodes, quorlock_held):
        with quorlock.Redlock(quorlock_nodes.urls, prefix="shop:") as redlock:
            with quorlock_held("invoice:42"):
                assert charge(redlock, 42) == "charged"
            with quorlock_held("invoice:42", prefix="shop:"):
                assert charge(redlock, 42) == "somebody else is at it"

    def test_held_on_other_nodes(quorlock_held):
        urls = ["memory://a", "memory://b", "memory://c"]
        with quorlock.Redlock(urls) as redlock, quorlock_held("invoice:42", nodes=urls):
            assert charge(redlock, 42) == "somebody else is at it"
    """
    passes(tmp_path, SHOP + tests, 7)


def test_nodes_that_fail(tmp_path: Path) -> None:
    """Faults in one test do not affect the next one, nor the closing."""
    tests = """
    names = set()

    def test_nodes_go(quorlock_redlock, quorlock_nodes):
        names.update(quorlock_nodes.urls)
        assert charge(quorlock_redlock, 1) == "charged"
        quorlock_nodes[0].stop()
        assert charge(quorlock_redlock, 1) == "charged"
        quorlock_nodes[1].hang()
        assert charge(quorlock_redlock, 1) == "try later"
        quorlock_redlock.close()

    @pytest.mark.parametrize("turn", range(5))
    def test_they_are_left_so(quorlock_redlock, quorlock_nodes, turn):
        lease = quorlock_redlock.lock("a").acquire()
        quorlock_nodes[0].hang()
        quorlock_nodes[1].stop()
        quorlock_nodes[2].restart()

    def test_others_are_fresh(quorlock_nodes, quorlock_redlock):
        assert not names & set(quorlock_nodes.urls)
        assert len(quorlock_nodes) == 3
        assert charge(quorlock_redlock, 1) == "charged"

    def test_nodes_alone(quorlock_nodes):
        assert [node.keys() for node in quorlock_nodes] == [[], [], []]
    """
    printed = passes(tmp_path, SHOP + tests, 8)
    seconds = float(printed.rpartition(" in ")[2].partition("s")[0])
    assert seconds < 30, "nobody waited for nodes that the tests left hung"


def test_an_asyncio_redlock(tmp_path: Path) -> None:
    """The event loop is the caller's: here asyncio.run, repeatedly; closed or not."""
    tests = """
    def test_it_is_entered(quorlock_async_redlock):
        async def main():
            async with quorlock_async_redlock as redlock:
                assert await charge_soon(redlock, 42) == "charged"
        asyncio.run(main())

    def test_it_is_left_open(quorlock_async_redlock, quorlock_nodes):
        async def main():
            assert await charge_soon(quorlock_async_redlock, 42) == "charged"
            await quorlock_async_redlock.lock("a").acquire()
        for _ in range(3):
            asyncio.run(main())
        assert [node.keys() for node in quorlock_nodes] == [[], [], []]

    def test_other_settings_of_a_project(quorlock_nodes, quorlock_held):
        with quorlock_held("invoice:42"):
            settings = {"max_ttl": 20.0, "restart_guard": None}
            with quorlock.Redlock(quorlock_nodes.urls, **settings) as redlock:
                assert charge(redlock, 42) == "somebody else is at it"
                with quorlock_held("invoice:43"):
                    assert charge(redlock, 43) == "somebody else is at it"

    def test_it_is_held_by_another(quorlock_async_redlock, quorlock_held):
        async def main():
            with quorlock_held("invoice:42"):
                assert await charge_soon(quorlock_async_redlock, 42) == "somebody else is at it"
            assert await charge_soon(quorlock_async_redlock, 42) == "charged"
        asyncio.run(main())

    def test_its_nodes_fail(quorlock_async_redlock, quorlock_nodes):
        async def main():
            async with quorlock_async_redlock.lock("a") as lease:
                quorlock_nodes[0].flush()
                quorlock_nodes[1].flush()
                with pytest.raises(quorlock.LeaseLost):
                    await lease.extend()
        with pytest.raises(quorlock.LeaseLost):
            asyncio.run(main())
    """
    passes(tmp_path, SHOP + tests, 5)


def test_an_event_loop_that_tests_share(tmp_path: Path) -> None:
    """Some plugins make one per session: it does not run while fixtures end, and connections that a
    test left open there are closed when the next one runs it.
    """
    tests = """
    import gc, os, threading

    @pytest.fixture(scope="module")
    def loop():
        loop = asyncio.new_event_loop()
        yield loop
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    @pytest.mark.parametrize("turn", range(4))
    def test_it(loop, quorlock_async_redlock, quorlock_nodes, turn):
        async def ended():
            while any("quorlock" in task.get_name() for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
            while [thread.name for thread in threading.enumerate()] != ["MainThread"]:
                await asyncio.sleep(0.01)

        async def main():
            await asyncio.wait_for(ended(), 10)
            await quorlock_async_redlock.lock("a").acquire()
        loop.run_until_complete(main())
        gc.collect()
    """
    # Not under our guards, which would see the connections that wait for the loop to run.
    passes(tmp_path, SHOP + tests, 4, guards=())


def test_real_servers(tmp_path: Path) -> None:
    """Three, empty and running for each test, whatever the one before did."""
    tests = """
    @pytest.mark.parametrize("turn", range(2))
    def test_it(quorlock_servers, quorlock_held, turn):
        assert [server.keys() for server in quorlock_servers] == [[], [], []]
        with quorlock.Redlock(quorlock_servers.urls, node_timeout=1.0) as redlock:
            assert charge(redlock, 42) == "charged"
            with quorlock_held("invoice:42", nodes=quorlock_servers.urls):
                assert charge(redlock, 42) == "somebody else is at it"
        for server in quorlock_servers:
            server.execute("SET", "left", "over")
        quorlock_servers[0].kill()
        quorlock_servers[1].stop()
    """
    passes(tmp_path, SHOP + tests, 2)


def test_no_real_servers(tmp_path: Path) -> None:
    """The test is skipped without a server program, and the reason says what to install."""
    tests = """
    import quorlock.testing.servers

    @pytest.fixture(autouse=True, scope="session")
    def no_binary():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quorlock.testing.servers, "_wheel_binary", lambda: None)
            patch.setenv("PATH", "")
            yield

    def test_one(quorlock_servers):
        assert False

    def test_two(quorlock_servers):
        assert False
    """
    printed = run_pytest(tmp_path, SHOP + tests).stdout
    assert "2 skipped" in printed
    assert "pip install 'quorlock[demo]'" in printed


def test_the_documentations_tests_pass(tmp_path: Path) -> None:
    """docs/how-to/testing.md shows tests: here pytest runs them (tools/snippets.py does not)."""
    blocks = read_blocks(ROOT / "docs" / "how-to" / "testing.md")
    shown = [block.source for block in blocks if "def test_" in block.source]
    assert len(shown) == 4
    count = sum(source.count("def test_") for source in shown)
    assert count == 9
    passes(tmp_path, "\n\n".join(shown), count)


FIXTURES = (
    "quorlock_nodes",
    "quorlock_redlock",
    "quorlock_async_redlock",
    "quorlock_held",
    "quorlock_servers",
)


def test_its_fixtures_are_listed(tmp_path: Path) -> None:
    """`pytest --fixtures` lists each with a sentence."""
    printed = run_pytest(tmp_path, "", "--fixtures").stdout
    for name in FIXTURES:
        _, found, listed = printed.partition(f"\n{name} ")
        assert found, printed
        assert "no docstring" not in listed.splitlines()[1]


HEAVY = {"asyncio", "concurrent.futures", "logging", "multiprocessing", "select", "ssl"}


def test_loading_it_brings_nothing_more_than_quorlock(tmp_path: Path) -> None:
    """Every run of a user's pytest loads it: beside the package itself it costs nothing."""
    code = f"""
        import sys
        import pytest, quorlock.testing
        before = set(sys.modules)
        import {PLUGIN}
        print(*(set(sys.modules) - before))
        """
    run = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [PLUGIN]


def test_a_run_that_asks_for_nothing_loads_nothing(tmp_path: Path) -> None:
    tests = """
    import sys
    def test_it():
        ours = {name for name in sys.modules if name.startswith("quorlock.")}
        assert "quorlock.testing.plugin" in ours
        later = ("asyncio", "testing.memory", "testing.servers")
        assert not {f"quorlock.{name}" for name in later} & ours
    """
    passes(tmp_path, tests, 1)


def test_pytest_finds_it() -> None:
    """The distribution names it as one of pytest's plugins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"quorlock": PLUGIN}
