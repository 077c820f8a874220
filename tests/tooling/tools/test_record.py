"""tools.record with a real terminal: what is typed is seen, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.harness.support.pids import is_gone
from tests.harness.support.wait import until
from tools import record, record_terminal
from tools.record import Failed, Script, Step
from tools.record_svg import Size
from tools.record_terminal import Missing, Terminal

ROOT = Path(__file__).parents[3]
needs_tmux = pytest.mark.skipif(
    not (shutil.which("tmux") and shutil.which("bash")),
    reason="tmux or bash is not installed: recordings are made in them",
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that no process names in its command line in the end, as a tmux server does."""
    yield tmp_path
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert [line for line in listing.stdout.splitlines() if str(tmp_path) in line] == []


def _pid(folder: Path, pattern: str) -> int:
    """Return the process id in a file, once it is there."""
    found = until(lambda: "".join(path.read_text() for path in folder.glob(pattern)), 30)
    return int(found)


def _start(folder: Path, script: str) -> subprocess.Popen[str]:
    (folder / "script.toml").write_text(script)
    return subprocess.Popen(
        [sys.executable, "-m", "tools.record", f"{folder}/script.toml", f"{folder}/out.svg"],
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_tmux
def test_what_is_typed_and_what_it_does_is_seen(folder: Path) -> None:
    steps = [Step("printf '\\033[31mred\\n%s\\n' \"a;\";", pause=0.3), Step("echo two", clear=True)]
    frames = record.record(Script(steps, before=("echo 1 > x",)), folder, Size())
    screens = [frame.screen for frame in frames]
    assert any("printf" in screen and "\x1b[31mred" not in screen for screen in screens)
    assert any("\x1b[31mred" in screen and "a;" in screen for screen in screens)
    assert "echo two" in screens[-1]
    assert "red" not in screens[-1]
    assert [frame.at for frame in frames] == sorted(frame.at for frame in frames)
    assert frames[-1].cursor == (2, 2)


@needs_tmux
def test_a_file_says_it_and_a_file_is_written(folder: Path) -> None:
    done = _start(folder, 'title = "a title"\nsteps = [{ type = "echo $((6 * 7))", pause = 0.3 }]')
    out, errors = done.communicate(timeout=60)
    assert (done.returncode, errors) == (0, ""), errors
    assert "out.svg" in out
    svg = ElementTree.parse(folder / "out.svg")
    assert "42" in [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert not list(folder.glob("rec-*"))


@needs_tmux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_behind(number: int, folder: Path) -> None:
    """No terminal, no folder, no recording; what was to be done at the end is done."""
    typed = 'steps = [{ type = "echo $$ > pid; exec sleep 1000" }]'
    recorder = _start(folder, f'{typed}\nafter = ["touch {folder}/after"]')
    pid = _pid(folder, "rec-*/pid")
    recorder.send_signal(number)
    _, errors = recorder.communicate(timeout=60)
    assert (recorder.returncode, errors) == (130, "")
    assert is_gone(pid)
    assert not list(folder.glob("rec-*"))
    assert (folder / "after").exists()
    assert not (folder / "out.svg").exists()


@needs_tmux
@pytest.mark.parametrize(
    "typed", ["trap '' HUP; echo $$ > pid; exec sleep 1000", "nohup sleep 1000 & echo $! > pid"]
)
def test_a_program_that_ignores_a_hangup_is_killed(
    typed: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_terminal, "END_TIMEOUT", 0.2)
    with Terminal(folder, Size()) as terminal:
        terminal.type(typed)
        terminal.press("Enter")
        pid = _pid(folder, "pid")
        assert not is_gone(pid)
    assert is_gone(pid)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("", "'steps'"),
        ("steps = [{ typ = 'x' }]", "'typ'"),
        ("steps = []\nspeed = 3", "'speed'"),
        ("steps = [", "Invalid"),
    ],
)
def test_an_error_in_the_script_is_reported(script: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(script)
    with pytest.raises(Failed, match=why):
        Script.read(path)


@needs_tmux
def test_a_required_command_that_fails_is_reported(folder: Path) -> None:
    with pytest.raises(Failed, match="status 3: not here"):
        record.record(Script([], before=("echo not here >&2; exit 3",)), folder, Size())


def test_without_tmux_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing):
        Terminal(tmp_path, Size())
    (tmp_path / "x.toml").write_text("steps = []")
    assert record.main([f"{tmp_path}/x.toml", f"{tmp_path}/x.svg"]) == 1
    assert capsys.readouterr().err == ("record: tmux is not installed: a recording is made in it\n")


def test_the_recordings_of_the_project_can_be_read() -> None:
    scripts = sorted((ROOT / "tools" / "recordings").glob("*.toml"))
    assert scripts
    for path in scripts:
        script = Script.read(path)
        assert script.steps
        # What a script leaves in the background is ended by its last words.
        assert any("local down" in line for line in script.after)
