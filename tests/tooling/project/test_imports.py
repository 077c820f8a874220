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
# themselves. Not among them, and dear: asyncio, ssl, socket, json, secrets, hashlib, random,
# urllib, difflib, ipaddress, datetime.
ALWAYS = (
    *("__future__", "abc", "atexit", "binascii", "collections.abc", "contextlib", "enum"),
    *("dataclasses", "functools", "math", "os", "re", "threading", "time", "types", "typing"),
    "weakref",
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


@pytest.mark.parametrize(
    ("program", "may_load"),
    [
        ("import quorlock", ALWAYS),
        (f"import quorlock; {MAKE}", BLOCKING),
        ("import quorlock.asyncio", ASYNCIO),
        (f"import quorlock.asyncio; {MAKE.replace('Redlock', 'asyncio.Redlock')}", ASYNCIO),
    ],
    ids=["quorlock", "a Redlock", "quorlock.asyncio", "an asyncio Redlock"],
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
