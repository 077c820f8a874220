"""The packages have all that users need and nothing else, and work without the checkout.

They are built once, and nothing here uses the network: `build` runs without isolation, and an
environment for an extra gets copies of the packages that its metadata names, from the one that runs
the tests. The release workflow installs them from the index.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.metadata import absolute

ROOT = Path(__file__).parents[3]
ADDRESS = "https://example.org/owner/name"
PYENV = Path.home() / ".pyenv" / "versions"
PURE = "import quorlock, quorlock.errors, quorlock.fencing, quorlock.testing"


def run(*command: str | Path, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Return a finished process. No environment variable leads it to the checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("QUORLOCK", "PYTHON", "XDG"))}
    return subprocess.run(
        command, cwd=cwd, env=kept | more, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it; the processes share it."""
    ours = tmp_path_factory.getbasetemp()
    folder = (ours.parent if os.environ.get("PYTEST_XDIST_WORKER") else ours) / "dist"
    with (folder.parent / "dist.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def wheel(built: Path) -> Path:
    (path,) = built.glob("quorlock-*.whl")
    return path


@pytest.fixture
def sdist(built: Path) -> Path:
    (path,) = built.glob("quorlock-*.tar.gz")
    return path


def metadata_of(wheel: Path) -> Message:
    """Return what a wheel says of itself; the body is the page on the index."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def source_files() -> set[str]:
    folder = ROOT / "src"
    paths = [p for p in (folder / "quorlock").rglob("*") if p.is_file() and p.suffix != ".pyc"]
    return {str(p.relative_to(folder)) for p in paths}


# --- contents --------------------------------------------------------------------------------


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if not n.endswith("/")}
    assert {name for name in names if ".dist-info/" not in name} == source_files()
    assert "quorlock/py.typed" in names
    assert any(name.startswith("quorlock/scripts/") and name.endswith(".lua") for name in names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    told = metadata_of(wheel)
    needed = told.get_all("Requires-Dist", [])
    assert [line for line in needed if "extra ==" not in line] == ["hiredis>=3"]
    assert told.get_all("Provides-Extra") == ["cli", "demo"]  # what only tests need is in no wheel
    assert told["Requires-Python"] == ">=3.11"
    assert told["License-Expression"] == "MIT"


def test_the_sdist_can_be_tested(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in source_files()} <= names
    assert "sim/quorlock_sim/view/page.html" in names
    assert {"Makefile", "pyproject.toml", "tools/setup", "tests/conftest.py"} <= names
    assert {"tools/constraints.txt", "tools/metadata.py", "bench/results/README.md"} <= names
    assert not [name for name in names if re.match(r"bench/results/.*\.json$", name)]


def test_the_index_takes_them(wheel: Path, sdist: Path) -> None:
    pytest.importorskip("twine", reason="twine is in the group dev")
    done = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the address of the repository -----------------------------------------------------------


def test_the_address_is_in_one_place_and_makes_the_urls(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    settings = folder / "pyproject.toml"
    text, count = re.subn(
        r'^repository = ".*"$',
        f'repository = "{ADDRESS}"',
        settings.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    settings.write_text(text)
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", ".", cwd=folder)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    told = metadata_of(wheel)
    addresses = [url.partition(", ") for url in told.get_all("Project-URL", [])]
    assert [name for name, _, _ in addresses] == [
        *("Homepage", "Documentation", "Changelog", "Issues")
    ]
    assert all(url.startswith(ADDRESS) for _, _, url in addresses)
    targets = re.findall(r"\]\(([^)\s]+)\)", str(told.get_payload()))
    assert targets
    assert not [target for target in targets if not target.startswith(("https://", "#"))]


def test_links_become_absolute_and_pictures_are_raw() -> None:
    page = "[a](docs/a.md#b) ![c](d.svg) [e](https://e.org) [f](#f) [![g](h.svg)](i.md)"
    at = ADDRESS
    assert absolute(page, at, "v1") == (
        f"[a]({at}/blob/v1/docs/a.md#b) ![c]({at}/raw/v1/d.svg) [e](https://e.org) [f](#f) "
        f"[![g]({at}/raw/v1/h.svg)]({at}/blob/v1/i.md)"
    )


def test_without_an_address_there_are_no_urls_of_the_project(wheel: Path) -> None:
    """The repository has the address, or a build invents none."""
    told = metadata_of(wheel)
    given = re.search(r'^repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert given is not None
    assert bool(told.get_all("Project-URL")) == bool(given[1])
    assert told["Description-Content-Type"] == "text/markdown"
    assert str(told.get_payload()).startswith("# quorlock\n")


# --- installed -------------------------------------------------------------------------------


def closure(requirements: list[str], extra: str) -> set[str]:
    """Return the installed packages that these requirements name, and those that they need."""
    found: set[str] = set()
    ahead = [(line, extra) for line in requirements]
    while ahead:
        requirement = Requirement(ahead[-1][0])
        wanted = ahead.pop()[1]
        if requirement.marker and not requirement.marker.evaluate({"extra": wanted}):
            continue
        extras = requirement.extras or {""}
        if requirement.name == "quorlock":
            ahead += [(line, one) for one in extras for line in requirements]
        elif requirement.name not in found:
            found.add(requirement.name)
            needed = metadata.requires(requirement.name) or []
            ahead += [(line, one) for one in extras for line in needed]
    return found


def provide(programs: Path, wheel: Path, extra: str) -> None:
    """Copy into an environment the packages that the wheel with this extra asks for."""
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    for name in closure(metadata_of(wheel).get_all("Requires-Dist", []), extra):
        for file in metadata.files(name) or []:
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.suffix != ".pyc" and source.exists():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, packages / file)


LOCKED = """
import asyncio, quorlock, quorlock.asyncio
nodes = ["memory://a", "memory://b", "memory://c"]
with quorlock.Redlock(nodes) as redlock, redlock.lock("r") as lease:
    lease.ensure()
async def main():
    async with quorlock.asyncio.Redlock(nodes) as redlock, redlock.lock("r") as lease:
        lease.ensure()
asyncio.run(main())
print(quorlock.__file__)
"""


def test_each_extra_brings_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    programs = tmp_path / "env" / "bin"
    venv.create(programs.parent, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    done = run(*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", wheel)
    assert done.returncode == 0, done.stderr

    provide(programs, wheel, "")
    done = run(programs / "python", "-W", "error", "-c", LOCKED, cwd=tmp_path)
    assert done.stdout.startswith(str(tmp_path)), done.stdout + done.stderr
    done = run(programs / "quorlock", "--version", cwd=tmp_path)
    assert done.returncode == 69
    assert "pip install 'quorlock[cli]'" in done.stderr

    provide(programs, wheel, "cli")
    done = run(programs / "quorlock", "--version", cwd=tmp_path)
    assert metadata_of(wheel)["Version"] in done.stdout, done.stderr
    unreachable = ("--nodes", "redis://127.0.0.1:1", "--nonblock")
    done = run(programs / "quorlock", "run", *unreachable, "r", "--", "true", cwd=tmp_path)
    assert done.returncode == 69, done.stdout + done.stderr
    assert "Traceback" not in done.stderr

    provide(programs, wheel, "demo")
    home = {"HOME": str(tmp_path), "PATH": f"{programs}:/usr/bin:/bin"}
    done = run(programs / "quorlock", "demo", "--seconds", "5", cwd=tmp_path, **home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout


def pythons() -> list[str]:
    """Return the other supported Pythons of this machine, one of each version."""
    found: dict[str, str] = {}
    named = [f"python3.{minor}" for minor in range(11, 20)]
    places = [place for name in named if (place := shutil.which(name))]
    for place in [*places, *map(str, PYENV.glob("3.1[1-9].*/bin/python"))]:
        done = run(place, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), place)
    found.pop(f"{sys.version_info[0]}.{sys.version_info[1]}", None)
    return list(found.values())


def test_every_other_python_here_imports_it(wheel: Path, tmp_path: Path) -> None:
    """All modules compile; those that need no other package are imported."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    if not (tried := pythons()):
        pytest.skip("there is no other Python here")
    for python in tried:
        compiled = run(python, "-W", "error", "-m", "compileall", "-q", "quorlock", cwd=tmp_path)
        assert compiled.returncode == 0, compiled.stdout
        done = run(python, "-W", "error", "-c", PURE, cwd=tmp_path)
        assert done.returncode == 0, f"{python}: {done.stderr}"
