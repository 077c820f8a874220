"""The README's console blocks show real output: its commands are run, and print the lines that are
shown, except for numbers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.cli.command import environment
from tools.snippets import Block, read_blocks

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
LEFT_OUT = "…"
OWNER = "web-3:4711 sleep"
AWAIT_GO = "sh -c 'until [ -e go ]; do sleep 0.1; done'"
AWAIT_HELD = "until quorlock status nightly | grep -q held; do :; done"
# Numbers, digests of holders and the folder of local nodes differ from run to run.
VARIES = re.compile(r"\b[0-9a-f]{12}\b|(?<=/quorlock/)[0-9a-f]{8}(?=/)|\d+(?:[.,]\d+)*")
# Who refused is named where not all had by the time that it was decided.
REFUSING = re.compile(r"(?<=nodes refused) \([^)]*\)")


def block(command: str) -> Block:
    """The console block of the first half that has a command."""
    first_half = [
        block
        for block in read_blocks(README)
        if block.line < README.read_text().splitlines().index("## Run it on three nodes")
    ]
    (found,) = [block for block in first_half if f"$ {command}" in block.source]
    return found


def pattern(shown: str) -> str:
    """A shown line as a pattern: what varies may be another, what is left out may be anything."""
    words = " ".join(shown.split()).replace(OWNER, LEFT_OUT)
    words = words.replace("~/", f"{LEFT_OUT}/").replace(f" {LEFT_OUT}", LEFT_OUT)
    return ".*".join(map(re.escape, VARIES.sub("0", words).split(LEFT_OUT)))


def missing(shown: list[str], printed: str) -> list[str]:
    """The lines that were not printed."""
    lines = [
        VARIES.sub("0", " ".join(line.split())) for line in REFUSING.sub("", printed).splitlines()
    ]
    return [line for line in shown if not any(re.fullmatch(pattern(line), real) for real in lines)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for unix sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def run(script: str, folder: Path) -> str:
    """Return the output of a shell in which `quorlock` is installed."""
    quorlock = folder / "bin" / "quorlock"
    quorlock.parent.mkdir(exist_ok=True)
    quorlock.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quorlock "$@"\n')
    quorlock.chmod(0o755)
    variables = {"PATH": f"{quorlock.parent}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    done = subprocess.run(
        ["sh", "-c", script],
        env=environment(folder, **variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return done.stdout


def test_the_demo_is_what_make_runs() -> None:
    """tests/servers/demo/test_demo.py::test_nothing_is_lost_while_nodes_fail checks its output."""
    assert block("make demo").source.startswith("$ make demo\n")
    target = re.search(
        r"^demo:.*\n\t@\$\(python\) -m (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert target is not None
    assert target[1] == "quorlock demo $(ARGS)"


def test_a_second_run_is_refused_as_is_shown(folder: Path) -> None:
    lines = block("quorlock run nightly").source.splitlines()
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert typed[0] == ". .venv/bin/activate"
    script = "\n".join(typed[1:])
    # One who types is slower than a script, and a busy machine slower than both: the first one
    # has the lock when the others ask, and until the last one waits for it.
    for line, instead in {
        "-- sleep 8 &": f"-- {AWAIT_GO} &\n{AWAIT_HELD}",
        "quorlock run nightly -- echo": "touch go; quorlock run nightly -- echo",
    }.items():
        assert script.count(line) == 1
        script = script.replace(line, instead)
    try:
        printed = run(script, folder)
    finally:
        run("quorlock local down --force", folder)
    shown = [line for line in lines if not line.startswith("$ ")]
    assert missing(shown, printed) == [], printed


def test_a_line_that_is_not_printed_is_missing() -> None:
    assert missing(["a  1,5 b", "x (…) y", "z …", "~/a", "7"], "a 22 b\nx (any) y\nz\n/h/a\n") == [
        "7"
    ]
    assert missing(["x (…) y", "z …", "~/a"], "x y\nz\nb/a") == ["x (…) y"]
    assert missing(["held by c3418c899628 on 5"], "held by 60ff9d5c682a on 3\n") == []
    assert missing(["held by c3418c899628"], "held by nobody\nnot held by c3418c899628") == [
        "held by c3418c899628"
    ]


def test_the_recording_is_the_one_that_is_made() -> None:
    """The file exists and is small, and its script has the commands of the README."""
    svg = ROOT / "docs" / "images" / "demo.svg"
    assert f"]({svg.relative_to(ROOT)})" in README.read_text()
    assert svg.stat().st_size < 300_000
    makefile = (ROOT / "Makefile").read_text()
    assert "-m tools.record tools/recordings/demo.toml docs/images/demo.svg" in makefile
