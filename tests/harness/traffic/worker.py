"""One process of the traffic: threads or tasks that take turns until the parent says stop.

`processes` runs it as `python -m tests.harness.traffic.worker SETTINGS`.  The end of standard
input means stop, whether the parent closed it or died.  It prints "ready" once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

from tests.harness.support.wait import until
from tests.harness.traffic import strikes
from tests.harness.traffic.asleep import Asleep
from tests.harness.traffic.faces import FACES
from tests.harness.traffic.records import Record
from tests.harness.traffic.settings import Settings
from tests.harness.traffic.stay import Stalls
from tests.harness.traffic.strikes import Threads
from tests.harness.traffic.turns import Worker

_GRACE = 2.0  # seconds for what is just ending


def main(text: str) -> None:
    """Run the worker process."""
    settings = Settings.from_json(text)
    asleep = Asleep()
    record = Record(settings.folder, settings.face, lambda: asleep.total)
    record.note("hello", face=settings.face, workers=settings.workers, seed=settings.seed)
    over = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(over,), name="stdin", daemon=True).start()
    stalls = Stalls()
    before = _possessions()
    face = FACES[settings.face]
    threads = Threads()
    face.run(lambda: _work(settings, record, over, stalls, threads))
    if left := _soon_given_up(before):
        record.note("defect", who="process", text=f"left behind by the library: {left}")
    record.note("bye", memory_kb=_memory_kb())
    record.close()


def _possessions() -> set[str]:
    """Our threads, and where our descriptors lead to."""
    found = {f"thread {thread.name}" for thread in threading.enumerate()}
    for number in Path("/proc/self/fd").glob("*"):  # nothing where there is no /proc
        with contextlib.suppress(OSError):  # the one by which we look
            found.add(f"descriptor {number.name}: {number.readlink()}")
    return found


def _memory_kb() -> int:
    """Return the maximum memory of this process; getrusage would include its parent's. 0:
    unknown.
    """
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    return 0


def _soon_given_up(before: set[str]) -> set[str]:
    """Return what is still left after a while; threads may be just ending."""
    until(lambda: _possessions() <= before, _GRACE)
    return _possessions() - before


async def _work(
    settings: Settings, record: Record, over: threading.Event, stalls: Stalls, threads: Threads
) -> None:
    face = FACES[settings.face]
    redlock = face.redlock(settings.urls, **settings.policy())
    workers = [
        Worker(number, settings, face, redlock, record, stalls)
        for number in range(settings.workers)
    ]
    strikes.install(threads, workers[0].struck)
    os.write(sys.stdout.fileno(), b"ready\n")
    try:
        await face.crowd(len(workers), lambda number: workers[number].work(over.is_set))
    finally:
        strikes.uninstall()
        await workers[0].ask("close", settings.closing(), redlock.close)


def _wait_for_the_end(over: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    over.set()


if __name__ == "__main__":
    main(sys.argv[1])
