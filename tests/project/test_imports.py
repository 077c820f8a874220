"""What an import loads: what every program needs. The rest comes when it is used.

docs/decisions/0011-named-tuples-for-facts.md has the figures. No time is asserted here: what a
module loads is the same on every machine, what it costs is not.
"""

import subprocess
import sys

import pytest

import quorlock

# All that `from quorlock import Redlock` may load of the standard library, with what these load
# themselves. Not among them, and dear: dataclasses and inspect, asyncio, ssl, socket, json,
# secrets, hashlib, random, urllib, difflib, ipaddress, datetime.
ALWAYS = (
    *("__future__", "abc", "atexit", "binascii", "collections.abc", "contextlib", "enum"),
    *("functools", "math", "os", "re", "threading", "time", "types", "typing", "weakref"),
)
# What talking to nodes takes on top, by sockets or by asyncio.
BLOCKING = (*ALWAYS, "hiredis", "select", "socket")
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
        ("import quorlock", ("__future__",)),
        ("from quorlock import *", ALWAYS),
        (f"import quorlock; {MAKE}", BLOCKING),
        ("import quorlock.asyncio", ASYNCIO),
        (f"import quorlock.asyncio; {MAKE.replace('Redlock', 'asyncio.Redlock')}", ASYNCIO),
    ],
    ids=["quorlock", "all names", "a Redlock", "quorlock.asyncio", "an asyncio Redlock"],
)
def test_nothing_is_loaded_that_is_not_used(program: str, may_load: tuple[str, ...]) -> None:
    """Nothing beyond the list but modules of our own."""
    loaded = brought(program, beyond=may_load)
    assert {name for name in loaded if name.partition(".")[0] != "quorlock"} == set()
    assert not any(name.startswith(("quorlock.testing", "quorlock.demo")) for name in loaded)


def test_every_name_is_loaded_when_it_is_asked_for() -> None:
    """As `dir` says, and once; what is not there is not there."""
    assert set(quorlock.__all__) | {"errors"} <= set(dir(quorlock))
    for name in quorlock.__all__:
        value = getattr(quorlock, name)
        assert value.__name__ == name
        assert vars(quorlock)[name] is value
    assert quorlock.errors.ConfigError is quorlock.ConfigError
    with pytest.raises(AttributeError, match="'quorlock' has no attribute 'Redlok'"):
        getattr(quorlock, "Redlok")  # noqa: B009 (a name that type checkers know to be wrong)


def test_each_face_leaves_the_other_alone() -> None:
    """asyncio does not load the blocking face."""
    assert not any("_sync" in name for name in brought("import quorlock.asyncio"))


@pytest.mark.parametrize("program", ["from quorlock import *", "import quorlock.asyncio"])
def test_the_blocking_driver_comes_with_the_first_redlock(program: str) -> None:
    """Who uses asyncio, or only names an error, has no use for it."""
    blocking = {"quorlock._drivers.blocking", "quorlock._drivers.pool", "quorlock._sync.alarm"}
    assert brought(program) & blocking == set()
    assert brought(f"import quorlock; {MAKE}") >= blocking - {"quorlock._sync.alarm"}


def test_the_check_sees_what_is_loaded() -> None:
    """It can fail: what is not in the list is found, with what it loads itself."""
    assert brought("import quorlock, json", beyond=ALWAYS) >= {"json", "json.decoder", "quorlock"}
    assert {"socket", "selectors"} <= brought("import quorlock, socket", beyond=ALWAYS)
