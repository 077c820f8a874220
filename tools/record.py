"""Records a terminal session as an SVG that moves: `python -m tools.record SCRIPT.toml OUT.svg`.

What is recorded is real: the script says what is typed into a real shell, and what that shows is
drawn at the instants at which it was there. Owns the script and the pace. Leaves the terminal to
`record_terminal` and the drawing to `record_svg`.

A script (tools/recordings/):

    title = "quorlock"
    before = ["quorlock local up"]           # run unseen: what has to be there
    after = ["quorlock local down --force"]  # and in any case at the end

    [[steps]]
    type = "quorlock status nightly"  # typed, then Enter
    pause = 2.0                       # so long is looked at what it did, once it is done
    clear = true                      # on an empty screen

The shell's home is a temporary folder; `quorlock` is the one beside the Python that runs this.
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

LOOK = 0.1  # seconds between two looks at the screen
KEYS = 6  # are typed between two looks
THINK = 0.15  # seconds before and after a command is typed
STEP_TIMEOUT = 60.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failed(Exception):
    """There is no recording, and why."""


@dataclass(frozen=True)
class Step:
    """One command: what is typed, and how long its end is looked at, in seconds."""

    type: str
    pause: float = 1.0
    clear: bool = False


@dataclass(frozen=True)
class Script:
    """What a recording is made of; see the module."""

    steps: list[Step]
    title: str = "quorlock"
    rest: float = 4.0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Script:
        """That of a file. Raises Failed."""
        try:
            told: dict[str, Any] = tomllib.loads(path.read_text())
            told["steps"] = [Step(**step) for step in told["steps"]]
            return cls(**told)
        except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise Failed(f"{path}: {error}") from None


class Recorder:
    """Types, and looks."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._began = time.monotonic()
        self._looked_at = -LOOK
        self.frames: list[Frame] = []

    def play(self, step: Step) -> None:
        """One command, to its end."""
        if step.clear:
            self._terminal.press("C-l")
        self._watch(THINK)
        for first in range(0, len(step.type), KEYS):
            self._terminal.type(step.type[first : first + KEYS])
            self._watch(LOOK)
        self._watch(THINK)
        self._terminal.press("Enter")
        self.await_prompt(f"not done after {STEP_TIMEOUT:g} s: {step.type}")
        self._watch(step.pause)

    def await_prompt(self, otherwise: str) -> None:
        """Look on until the shell waits for a command."""
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
    """What a session showed. Raises Failed, Missing."""
    with Terminal(folder, size) as terminal:
        try:
            _run(script.before, terminal)
            recorder = Recorder(terminal)
            recorder.await_prompt("the shell does not begin")
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
            start_new_session=True,  # the last words are not for a second Ctrl-C to cut off
        )
        if done.returncode:
            raise Failed(f"{command}: status {done.returncode}: {done.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; returns the exit status."""
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
    print(f"{chosen.svg}: {lasts:.0f} s, {len(frames)} looks, {len(svg.encode()) / 1000:.0f} kB")
    return 0


def _interrupt(number: int, _: FrameType | None) -> None:
    """Once: what cleans up is not interrupted."""
    for other in _INTERRUPTS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
