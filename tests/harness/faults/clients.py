"""Faults of a client's process: paused, forked, killed, each with its proof.

Each function does one thing to a process and returns the evidence in a sentence; AssertionError
when the system shows something else. `fork()` needs the client to have called `fork_on_command()`.
Leaves starting clients, and what they should make of it, to its callers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.harness.faults.fault import await_that, check
from tests.harness.support.pids import children, is_gone, is_paused, ps, states

FORK = signal.SIGUSR1
Process = subprocess.Popen[Any] | int


def pause(process: Process) -> str:
    """SIGSTOP; returns when every thread stands still."""
    pid = _pid(process)
    os.kill(pid, signal.SIGSTOP)
    await_that(lambda: is_paused(pid), f"process {pid} stands still")
    return f"process {pid}: every thread in state T"


def resume(process: Process) -> str:
    """SIGCONT; returns when it runs again."""
    pid = _pid(process)
    check(is_paused(pid), f"process {pid} was not paused: {states(pid)}")
    os.kill(pid, signal.SIGCONT)
    await_that(lambda: not is_paused(pid), f"process {pid} runs again")
    check(not is_gone(pid), f"process {pid} has died")
    return f"process {pid} runs again"


def pause_for(process: Process, seconds: float) -> str:
    """Pause for so long, then resume. It stood still all the while: it used no time of the CPU."""
    pid = _pid(process)
    pause(pid)
    try:
        began, used = time.monotonic(), cpu_seconds(pid)
        time.sleep(seconds)
        lasted = time.monotonic() - began
        check(is_paused(pid), f"process {pid} was resumed by another process")
        check(cpu_seconds(pid) == used, f"process {pid} ran while it was paused")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return f"process {pid} stood still for {lasted:.3f} s"


def kill(process: Process) -> str:
    """SIGKILL; returns when it is gone. A Popen is reaped, a bare pid is its parent's to reap."""
    pid = _pid(process)
    os.kill(pid, signal.SIGKILL)
    if isinstance(process, int):
        await_that(lambda: is_gone(pid), f"process {pid} is gone")
        return f"process {pid} is gone"
    code = process.wait(timeout=10)
    check(code == -signal.SIGKILL, f"process {pid} ended with {code}, not by SIGKILL")
    return f"process {pid} ended by SIGKILL"


def fork(process: Process) -> tuple[int, str]:
    """Have the client fork; the child's pid, and the evidence."""
    pid = _pid(process)
    before = children(pid)
    os.kill(pid, FORK)
    await_that(lambda: bool(children(pid) - before) or is_gone(pid), f"process {pid} forks")
    born = children(pid) - before
    check(born, f"process {pid} died instead of forking: did it call fork_on_command()?")
    child = min(born)
    return child, f"process {child} is a child of {pid}"


def fork_on_command(body: Callable[[], object]) -> None:
    """Prepare a fork in the main thread of a client: `fork()` makes this process fork, and the
    child runs `body` and ends. Its exit status is 1 if `body` raised.

    The child stays a zombie until the next fork or the client's end, so that it is visible.
    """
    born: list[int] = []

    def handle(_number: int, _frame: object) -> None:
        while born:
            os.waitpid(born.pop(), os.WNOHANG)
        child = os.fork()
        if child == 0:
            _live_as_child(body)
        born.append(child)

    signal.signal(FORK, handle)


def cpu_seconds(pid: int) -> str:
    """The time of the CPU that it has used, as `ps` writes it or in ticks."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{stat[11]}+{stat[12]} ticks"
    return " ".join(ps("-o", "time=", "-p", str(pid)))


def _live_as_child(body: Callable[[], object]) -> None:
    status = 1
    try:
        body()
        status = 0
    except BaseException:  # noqa: BLE001  # whatever it was, the child must end here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _pid(process: Process) -> int:
    return process if isinstance(process, int) else process.pid
