"""The built packages have everything that users need, and nothing else."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist; built without the net."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.Path:
    (path,) = built.glob("quorlock-*.whl")
    return zipfile.Path(path)


def source_files() -> set[str]:
    folder = ROOT / "src"
    paths = [p for p in (folder / "quorlock").rglob("*") if p.is_file() and p.suffix != ".pyc"]
    return {str(p.relative_to(folder)) for p in paths}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.Path) -> None:
    entries = [name for name in wheel.root.namelist() if ".dist-info/" not in name]
    names = {name for name in entries if not name.endswith("/")}
    assert names == source_files()
    assert not [name for name in names if "sim" in Path(name).parts[0]]
    assert "quorlock/py.typed" in names
    assert any(name.startswith("quorlock/scripts/") and name.endswith(".lua") for name in names)


def test_the_wheel_says_what_it_needs(wheel: zipfile.Path) -> None:
    (folder,) = {n.partition("/")[0] for n in wheel.root.namelist() if ".dist-info/" in n}
    metadata = (wheel / folder / "METADATA").read_text().splitlines()
    needed = [line for line in metadata if line.startswith("Requires-Dist:")]
    assert [line for line in needed if "extra ==" not in line] == ["Requires-Dist: hiredis>=3"]
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: MIT" in metadata
    assert (wheel / folder / "licenses" / "LICENSE").exists()


def test_the_sdist_can_be_tested(built: Path) -> None:
    (path,) = built.glob("quorlock-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in source_files()} <= names
    assert "sim/quorlock_sim/view/page.html" in names
    assert {"Makefile", "pyproject.toml", "tools/setup", "tests/conftest.py"} <= names
