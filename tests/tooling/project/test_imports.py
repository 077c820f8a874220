"""The modules that an import loads: only those that every program needs.

docs/contributing/decisions/0011-named-tuples-for-facts.md has the figures.
No time is asserted here: loaded
modules are the same on every machine, their cost is not.
"""

import subprocess
import sys

import pytest

import quorlock

# All that `from quorlock import Redlock` may load of the standard library, with what these load
# themselves. Not among them, and dear: asyncio, ssl, socket, dataclasses, inspect, json, secrets,
# hashlib, random, urllib, difflib, ipaddress, datetime.
ALWAYS = (
    *("__future__", "abc", "atexit", "binascii", "collections.abc", "contextlib", "enum"),
    *("functools", "math", "os", "re", "threading", "time", "types", "typing", "weakref"),
)
# What talking to nodes takes on top, by sockets or by asyncio.
BLOCKING = (*ALWAYS, "gc", "hiredis", "select", "socket")
ASYNCIO = (*ALWAYS, "asyncio", "hiredis", "socket")


def brought(program: str, *, beyond: tuple[str, ...] = ()) -> set[str]:
    """The modules that a program loads in a fresh interpreter, beyond these and what they load."""
    lines = [
        f"import sys; sys.path[:] = {sys.path!r}",
        *(f"import {name}" for name in beyond),
        "old = set(sys.modules)",
        program,
        "print(*(set(sys.modules) - old))",
    ]
    # Without site, which may load anything: editable installs and coverage do.
    command = [sys.executable, "-I", "-S", "-c", "\n".join(lines)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


MAKE = "quorlock.Redlock(['redis://user:password@a:6379/1', 'rediss://b', 'unix:///run/c.sock'])"
MAKE_ASYNCIO = MAKE.replace("Redlock", "asyncio.Redlock")
# What the methods of the blocking `Redlock` load.
ON_USE = (
    *("quorlock._api.health", "quorlock._api.inspection", "quorlock._sync.election"),
    *("quorlock._sync.once", "quorlock._sync.rlock", "quorlock._sync.semaphore"),
)


@pytest.mark.parametrize(
    ("program", "may_load"),
    [
        ("import quorlock", ()),
        ("from quorlock import *", ALWAYS),
        (f"import quorlock; {MAKE}", BLOCKING),
        ("import quorlock.asyncio", ASYNCIO),
        (f"import quorlock.asyncio; {MAKE_ASYNCIO}", ASYNCIO),
    ],
    ids=["quorlock", "all its names", "a Redlock", "quorlock.asyncio", "an asyncio Redlock"],
)
def test_nothing_is_loaded_that_is_not_used(program: str, may_load: tuple[str, ...]) -> None:
    """Nothing beyond the list but modules of our own."""
    loaded = brought(program, beyond=may_load)
    assert {name for name in loaded if name.partition(".")[0] != "quorlock"} == set()
    assert not any(name.startswith(("quorlock.testing", "quorlock._demo")) for name in loaded)


def test_every_name_is_there() -> None:
    for name in quorlock.__all__:
        assert getattr(quorlock, name).__name__ == name
    assert quorlock.errors.ConfigError is quorlock.ConfigError


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="module 'quorlock' has no attribute 'Redlok'"):
        quorlock.Redlok  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert set(quorlock.__all__) <= set(dir(quorlock))


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("import quorlock", "quorlock."),
        ("import quorlock; quorlock.ConfigError, quorlock.errors", "quorlock._"),
        ("import quorlock.asyncio", "quorlock._sync"),
        (f"import quorlock.asyncio; {MAKE_ASYNCIO}", "quorlock._sync"),
        ("from quorlock import Redlock", ON_USE),
        (f"import quorlock; {MAKE}", ON_USE),
    ],
    ids=["quorlock", "an error", "asyncio", "an asyncio Redlock", "Redlock", "a Redlock"],
)
def test_no_module_of_ours_is_loaded_that_is_not_used(
    program: str, unwanted: str | tuple[str, ...]
) -> None:
    assert [name for name in brought(program) if name.startswith(unwanted)] == []


def test_a_running_event_loop_loads_nothing() -> None:
    """Loading would block it, so all that the methods use comes with `quorlock.asyncio`."""
    calls = [
        f"redlock = {MAKE_ASYNCIO}",
        "redlock.lock('a'), redlock.rlock('a'), redlock.election('a'), redlock.once('a', every=1)",
        "redlock.semaphore('a', 2), redlock.any_of('a', 'b'), redlock.ready, redlock.nodes",
    ]
    assert brought("; ".join(calls), beyond=("quorlock.asyncio", "quorlock")) == set()


def test_threads_may_ask_for_the_first_name_at_once() -> None:
    program = """
import quorlock, threading
barrier, found = threading.Barrier(8), []
def ask(number):
    names = quorlock.__all__[number:] + quorlock.__all__[:number]
    barrier.wait()
    found.append({name: getattr(quorlock, name) for name in names})
threads = [threading.Thread(target=ask, args=(number * 4,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8 and all(names == found[0] for names in found)
"""
    for _ in range(3):
        brought(program)


@pytest.mark.parametrize("program", ["import quorlock", "import quorlock.asyncio"])
def test_the_blocking_driver_comes_with_the_first_redlock(program: str) -> None:
    """Programs for asyncio, or that only name an error, do not need it."""
    blocking = {
        "quorlock._drivers.sync.driver",
        "quorlock._drivers.sync.pool",
        "quorlock._sync.loss_event",
    }
    assert brought(program) & blocking == set()
    assert brought(f"import quorlock; {MAKE}") >= blocking - {"quorlock._sync.loss_event"}


def test_the_check_sees_what_is_loaded() -> None:
    """The check can fail: a module that is not in the list is found, with its own imports."""
    assert brought("import quorlock, json", beyond=ALWAYS) >= {"json", "json.decoder", "quorlock"}
    assert {"socket", "selectors"} <= brought("import quorlock, socket", beyond=ALWAYS)
    assert set(ON_USE) <= brought("from quorlock import *")
