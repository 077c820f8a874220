"""Real servers for every test that asks, and the guards that watch over all of them."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorlock._drivers.aio.flow_state import FlowState
    from quorlock._drivers.aio.flow_task import FlowTask
    from quorlock.testing.servers import Servers

pytest_plugins = ["tests.harness.guards", "tests.harness.tiers", "tests.harness.failures"]

# A machine that stands still for a moment makes no property wrong; how fast they are is no test's
# business. The blob repeats what failed elsewhere. Hypothesis' own profile for CI is not the
# parent: it tries the same examples every time, and on Python 3.14 its generator of them warns of
# itself.
settings.register_profile(
    "quorlock",
    parent=settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("quorlock")


def pytest_configure() -> None:
    """Prepare for the children of the tests, the workers of pytest-xdist among them.

    Ctrl-C must reach those that we interrupt: a shell's `make test &` ignores it. And there are a
    thousand, so none compiles the library again: where bytecode must not be written beside the
    sources, it goes into the virtual environment.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(Path(sys.prefix, "pycache"))
        sys.dont_write_bytecode = False


def pytest_unconfigure() -> None:
    """Remove what was compiled of temporary files: no later run has them.

    A checkout may be among them, as in CI. What was compiled of it stays.
    """
    if sys.pycache_prefix is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        temporary = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])
        for compiled in Path(sys.pycache_prefix + str(temporary)).glob("*"):
            if temporary / compiled.name not in Path(__file__).parents:
                shutil.rmtree(compiled, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Freeze the tests themselves: they are most of all objects, and many tests collect garbage,
    some once for each interrupted line of the library.
    """
    freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Freeze what stays of the tests of a file, too: of thousands it is 100,000 objects, and each
    collection in a later test would take a tenth of a second instead of a millisecond.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        freeze()
    return result


def freeze() -> None:
    """Let later collections pass over all that is alive now."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Five real servers that live as long as the session. Tests ask for `nodes`."""
    # Imported here, so that tests of the core run where no server can.
    from quorlock.testing.servers import Servers

    with Servers(5) as started:
        yield started


@pytest.fixture
def nodes(servers: Servers) -> Servers:
    """Return five real servers, running and empty, whatever the previous test did to them.

    A test that changes a server's configuration must start other servers.
    """
    for server in servers:
        if not server.alive:
            server.restart()
        elif server.stopped:
            server.cont()
    for server in servers:
        server.left_alone(10.0)
    for server in servers:  # a client that one of them waits for may write to another until then
        server.execute("FLUSHALL")
        server.born_empty()  # also one that a test restarted, which `flush` would not mark
    return servers


@pytest.fixture
def mortal_nodes(nodes: Servers) -> Iterator[Servers]:
    """Return the five servers for tests that stop or kill: all run again afterwards."""
    yield nodes
    for node in nodes:
        if node.stopped:
            node.cont()


@pytest.fixture
def seed() -> int:
    """Return the printed seed of this run. QUORLOCK_SEED repeats its choices, not its timing."""
    chosen = int(os.environ.get("QUORLOCK_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"QUORLOCK_SEED={chosen}")
    return chosen


@pytest.fixture
def checked_transitions(monkeypatch: pytest.MonkeyPatch) -> set[tuple[FlowState, FlowState]]:
    """Assert that the table has every transition of a flow task; return those that happen."""
    from quorlock._drivers.aio.flow_end import EndingFlow
    from quorlock._drivers.aio.flow_state import TRANSITIONS
    from quorlock._drivers.aio.flow_task import FlowTask

    slot: Any = EndingFlow.__dict__["state"]
    made: set[tuple[FlowState, FlowState]] = set()

    def enter(task: FlowTask[Any], state: FlowState) -> None:
        with contextlib.suppress(AttributeError):  # it has no state yet
            before = slot.__get__(task)
            assert state in TRANSITIONS[before], f"{before} to {state}"
            made.add((before, state))
        slot.__set__(task, state)

    monkeypatch.setattr(FlowTask, "state", property(slot.__get__, enter))
    return made
