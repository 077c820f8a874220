"""Run the child process of one slice: command line, messages, deadline and exit.

A library that hangs is killed at the deadline. A child that cannot exit after its result is killed
a moment later, and the result says so. No child outlives the call, nor a process that it forked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, TYPE_CHECKING, Any

from bench.contestants import CONTESTANTS, NODE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[1]
EXIT_GRACE = 2.0  # seconds to exit after the result


def run_child(
    contestant: str,
    work: str,
    params: Mapping[str, Any],
    urls: Sequence[str],
    *,
    deadline: float,
    on_word: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure in a fresh process and return its result, or `{"failed": reason}`.

    `on_word` is called with every word that the child sends; the child waits until it returns.
    """
    line = command(contestant, work, {**params, "deadline": deadline}, urls)
    # A child starts faster with cached bytecode, so the caller's environment does not prevent it.
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, "pycache"))
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            line,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
        ) as process:
            try:
                result = _listen(process, on_word, time.monotonic() + deadline)
                _end(process, result)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if not result:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            result = {"failed": " ".join([f"exit code {process.returncode}", *tail])[:300]}
    return result


def command(
    contestant: str, work: str, params: Mapping[str, Any], urls: Sequence[str]
) -> list[str]:
    """Return the child's command line."""
    if CONTESTANTS[contestant].api == "program":
        start = ["node", str(NODE_FOLDER / "one.js")]
    else:
        start = [sys.executable, "-m", "bench.one"]
    return [*start, contestant, work, json.dumps(params), ",".join(urls)]


def _listen(
    process: subprocess.Popen[bytes], on_word: Callable[[str], None] | None, until: float
) -> dict[str, Any]:
    """Answer the child's words until its result; return {} if it sends none."""
    assert process.stdout is not None
    lines = _lines(process.stdout, until)
    try:
        for line in lines:
            if line.startswith("@") and on_word is not None:
                on_word(line[1:])
                assert process.stdin is not None
                process.stdin.write(b"now\n")
                process.stdin.flush()
            elif line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
    except TimeoutError:
        return {"failed": "no result before the deadline", "late": True}
    except BrokenPipeError:
        pass  # the child died: stderr says why
    return {}


def _lines(stream: IO[bytes], until: float) -> Any:
    """Yield lines as they arrive; raise TimeoutError if none arrives in time."""
    waiting = b""
    with DefaultSelector() as selector:
        selector.register(stream, EVENT_READ)
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
            data = os.read(stream.fileno(), 65536)
            if not data:
                return
            *complete, waiting = (waiting + data).split(b"\n")
            yield from (line.decode() for line in complete)


def _end(process: subprocess.Popen[bytes], result: dict[str, Any]) -> None:
    """Wait for the child to exit; note it if it does not."""
    if result.get("late"):
        return
    try:
        process.wait(EXIT_GRACE)
    except subprocess.TimeoutExpired:
        result["could_not_exit"] = True
