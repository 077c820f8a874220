"""The types as a user's checker and a user's program see them."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
USER = ROOT / "tests" / "tooling" / "project" / "typed_user.py"
MODULES = (
    *("quorlock", "quorlock.asyncio", "quorlock.errors"),
    *("quorlock.fencing", "quorlock.asyncio.fencing"),
    *("quorlock.testing", "quorlock.testing.memory", "quorlock.testing.servers"),
    "quorlock.testing.plugin",
)
PROTOCOLS = {"__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__"}


def public_names(module: Any) -> list[str]:
    """Return `__all__`, or what the module itself defines."""
    own = [name for name, thing in vars(module).items() if is_own(name, thing, module.__name__)]
    return list(getattr(module, "__all__", own))


def is_own(name: str, thing: object, module: str) -> bool:
    return not name.startswith("_") and getattr(thing, "__module__", None) == module


def functions_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, also inherited ones, by name."""
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        found = getattr(found, "fget", getattr(found, "__func__", found))
        if inspect.isfunction(found) and (name in PROTOCOLS or not name.startswith("_")):
            yield name, found


def annotated() -> Iterator[tuple[str, Any]]:
    """Yield everything public that may have annotations, by its place."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            thing = getattr(module, name)
            if inspect.isclass(thing):
                yield f"{module_name}.{name}", thing
                for method, function in functions_of(thing):
                    yield f"{module_name}.{name}.{method}", function
            elif inspect.isfunction(thing):
                yield f"{module_name}.{name}", thing


def test_get_type_hints_reads_everything_public() -> None:
    """Beartype, pydantic, cattrs and documentation tools evaluate annotations by it."""
    failed: dict[str, str] = {}
    places: list[str] = []
    for place, thing in annotated():
        places.append(place)
        try:
            typing.get_type_hints(thing)
        except Exception as error:  # noqa: BLE001 (whatever it is, it has a place)
            failed[place] = repr(error)
    assert failed == {}
    expected = {"quorlock.Lease.ensure", "quorlock.asyncio.Lock.__call__", "quorlock.now"}
    assert expected <= set(places)


def test_lazy_types_become_the_real_ones() -> None:
    """`datetime` and `ssl` are loaded by the question, not by the import."""
    program = (
        "import sys, typing, quorlock\n"
        "assert 'datetime' not in sys.modules and 'ssl' not in sys.modules\n"
        "print(typing.get_type_hints(quorlock.Lease.ensure)['margin'])\n"
        "print(typing.get_type_hints(quorlock.Tls)['context'])\n"
    )
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "datetime.timedelta" in said
    assert "ssl.SSLContext" in said


def test_a_user_names_everything_public() -> None:
    """The checkers see only what the program names."""
    text = USER.read_text()
    for module in ("quorlock", "quorlock.fencing"):
        missing = [name for name in importlib.import_module(module).__all__ if name not in text]
        assert missing == [], module


def checker(*arguments: str) -> Callable[[], subprocess.CompletedProcess[str]]:
    command = [sys.executable, "-m", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return lambda: subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


@pytest.mark.parametrize(
    "check",
    [
        checker("mypy", "--strict", str(USER)),
        checker("pyright", "--pythonpath", sys.executable, str(USER)),
        checker("pyright", "--verifytypes", "quorlock", "--ignoreexternal"),
    ],
    ids=["mypy", "pyright", "pyright --verifytypes"],
)
def test_the_checkers_accept_a_users_program(
    check: Callable[[], subprocess.CompletedProcess[str]],
) -> None:
    """Every public name is typed completely; the decorator keeps the function's type."""
    pytest.importorskip("mypy", reason="the checkers come with quorlock[dev]")
    ran = check()
    assert ran.returncode == 0, ran.stdout + ran.stderr
