"""Record a terminal session as an animated SVG: `python -m tools.record SCRIPT.toml OUT.svg`.

The commands of a script are typed into a real shell, and its screen is drawn with the real
timing. `record_terminal` drives the terminal and `record_svg` draws.

A script (tools/recordings/):

    title = "quorlock"
    before = ["quorlock local up"]           # set up, not recorded
    after = ["quorlock local down --force"]  # clean up, also after a failure

    [[steps]]
    type = "quorlock status nightly"  # typed, then Enter
    pause = 2.0                       # seconds to record after the command has finished
    clear = true                      # clear the screen first

The shell's home is a temporary folder; `quorlock` is the one of the running Python.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.record_svg import Frame, Size, drawn
from tools.record_terminal import Missing, Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

LOOK = 0.1  # seconds between two frames
KEYS = 6  # typed between two frames
THINK = 0.15  # seconds before and after a command is typed
STEP_TIMEOUT = 60.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failed(Exception):
    """The session could not be recorded."""


@dataclass(frozen=True)
class Step:
    """One command, and for how many seconds its result is recorded."""

    type: str
    pause: float = 1.0
    clear: bool = False


@dataclass(frozen=True)
class Script:
    """The commands of a recording, in the format that the module describes."""

    steps: list[Step]
    title: str = "quorlock"
    rest: float = 4.0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Script:
        """Read a script from a file; raise Failed if it is not valid."""
        try:
            content: dict[str, Any] = tomllib.loads(path.read_text())
            content["steps"] = [Step(**step) for step in content["steps"]]
            return cls(**content)
        except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise Failed(f"{path}: {error}") from None


class Recorder:
    """Types commands and records frames."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._began = time.monotonic()
        self._looked_at = -LOOK
        self.frames: list[Frame] = []

    def play(self, step: Step) -> None:
        """Type one command and record it until it has finished."""
        if step.clear:
            self._terminal.press("C-l")
        self._watch(THINK)
        for first in range(0, len(step.type), KEYS):
            self._terminal.type(step.type[first : first + KEYS])
            self._watch(LOOK)
        self._watch(THINK)
        self._terminal.press("Enter")
        self.await_prompt(f"not finished after {STEP_TIMEOUT:g} s: {step.type}")
        self._watch(step.pause)

    def await_prompt(self, otherwise: str) -> None:
        """Record until the shell waits for a command."""
        deadline = time.monotonic() + STEP_TIMEOUT
        while not self._terminal.is_waiting():
            if time.monotonic() > deadline:
                raise Failed(otherwise)
            self._watch(LOOK / 2)

    def _watch(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if now - self._looked_at >= LOOK:
                self._looked_at = now
                self.frames.append(Frame(now - self._began, *self._terminal.screen()))
            time.sleep(max(0.0, min(until, self._looked_at + LOOK) - time.monotonic()))


def record(script: Script, folder: Path, size: Size) -> list[Frame]:
    """Run the script and return its frames; raise Failed or Missing."""
    with Terminal(folder, size) as terminal:
        try:
            _run(script.before, terminal)
            recorder = Recorder(terminal)
            recorder.await_prompt("the shell did not start")
            for step in script.steps:
                recorder.play(step)
        finally:
            _run(script.after, terminal)
    return recorder.frames


def _run(commands: Sequence[str], terminal: Terminal) -> None:
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            env=terminal.environment,
            cwd=terminal.environment["HOME"],
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # a second Ctrl-C does not interrupt the clean-up
        )
        if done.returncode:
            raise Failed(f"{command}: status {done.returncode}: {done.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record a session and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.record", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("script", type=Path)
    parser.add_argument("svg", type=Path)
    chosen = parser.parse_args(arguments)
    for number in _INTERRUPTS:
        signal.signal(number, _interrupt)
    size = Size()
    try:
        script = Script.read(chosen.script)
        with tempfile.TemporaryDirectory(prefix="rec-") as folder:
            frames = record(script, Path(folder), size)
    except (Failed, Missing) as error:
        print(f"record: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    svg = drawn(frames, title=script.title, size=size, rest=script.rest)
    chosen.svg.write_text(svg)
    lasts = frames[-1].at - frames[0].at
    print(f"{chosen.svg}: {lasts:.0f} s, {len(frames)} frames, {len(svg.encode()) / 1000:.0f} kB")
    return 0


def _interrupt(number: int, _: FrameType | None) -> None:
    """Interrupt once: further signals do not interrupt the clean-up."""
    for other in _INTERRUPTS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
