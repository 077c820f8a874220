"""Runs mutants: a copy of the tree, the change, the tests that must notice it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from quorlock.scripts import as_sent
from tests.exhaustive.mutants.mutant import ROOT, Mutant

COPIED = ("src", "sim", "tests", "tools", "spec", "bench", "docs", "examples", "pyproject.toml")
NS_PER_S = 10**9
SECONDS_MAX = 600.0  # a mutant that makes a test hang is killed as well
_SCRIPTS = "src/quorlock/scripts/__init__.py"
_LOADED = re.compile(r'_load\(\s*b"(\w+)"[^)]*')  # the SHA-1 of a script, and its files


def run(mutant: Mutant) -> str:
    """Run the tests and return "killed" or "survived". Raises ValueError if they fail without the
    mutant.
    """
    with copied_tree() as tree:
        if not passes(tree, mutant.tests):
            raise ValueError(f"{mutant.name}: its tests are red without it")
        plant(mutant, tree)
        return "survived" if passes(tree, mutant.tests) else "killed"


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of what the tests need, gone afterwards."""
    ignored = shutil.ignore_patterns("__pycache__", ".venv", "node_modules", "results")
    with tempfile.TemporaryDirectory(prefix="quorlock-mutant-") as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        yield Path(folder)


def plant(mutant: Mutant, tree: Path) -> None:
    """Change the copy. The SHA-1 of a script is written down in another file, and goes along."""
    path = tree / mutant.path
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its old text is {text.count(mutant.old)} times there")
    rewrite(path, text.replace(mutant.old, mutant.new))
    if path.suffix == ".lua":
        scripts = tree / _SCRIPTS
        rewrite(scripts, _LOADED.sub(partial(_with_new_sha, path.parent), scripts.read_text()))


def rewrite(path: Path, text: str) -> None:
    """Write a file that counts as newer: Python runs what it compiled of a file of the same size
    and second.
    """
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 10 * NS_PER_S, before + 10 * NS_PER_S))


def _with_new_sha(folder: Path, loaded: re.Match[str]) -> str:
    names = re.findall(r'"(\w+\.lua)"', loaded[0])
    text = b"\n".join([as_sent((folder / name).read_bytes()) for name in names])
    return loaded[0].replace(loaded[1], hashlib.sha1(text, usedforsecurity=False).hexdigest())


def passes(tree: Path, tests: tuple[str, ...]) -> bool:
    """Return whether these tests pass in that tree. Raises ValueError if they cannot be run."""
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", *tests]
    places = (tree / "src", tree / "sim", tree)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode in (0, 1):
        return done.returncode == 0
    if "faulthandler" in done.stdout or "Timeout (" in done.stdout:
        return False  # a test hung
    if "error" in done.stdout.lower() and "no tests ran" not in done.stdout:
        return False  # the library does not even come up
    raise ValueError(f"{' '.join(tests)} cannot be run:\n{done.stdout[-2000:]}")
