"""Watches that no test leaves anything behind: threads, processes, descriptors, temporary files.

A handled exception that stays on the thread's stack counts as well: it would be the context of
every later exception in this process.

A pytest plugin (loaded by conftest.py). Around each test it compares what there was after the
fixtures of wider scope were set up with what there is after the test's own were torn down; what a
session's fixture started is therefore no business of a test. At the end of the session nothing may
be left at all. Threads are seen everywhere, the rest on Linux, which has /proc.

With pytest-xdist (`pytest -n 2`) there are several processes of tests. Each looks after its own
tests; the one that started them looks at the end after what all of them left.
"""

import ctypes
import gc
import multiprocessing.resource_tracker
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.support.wait import until

GRACE = float(os.environ.get("QUORLOCK_TEST_GRACE", "2"))  # seconds for what is just ending

PROC = Path("/proc")
MARK = "QUORLOCK_TEST_SESSION"  # our descendants inherit it, however far they are removed


@dataclass(frozen=True)
class Process:
    """One process, from /proc."""

    pid: int
    parent: int
    group: int

    def __str__(self) -> str:
        command = self.read("cmdline").replace("\0", " ").strip()
        return f"process {self.pid}: " + (command or "ended, but nobody has waited for it")

    def read(self, name: str) -> str:
        """A file about it; empty once it is gone."""
        with suppress(OSError):
            return (PROC / str(self.pid) / name).read_text(errors="replace")
        return ""

    @property
    def of_python(self) -> bool:
        """Is it the one that multiprocessing starts once and keeps until we end?"""
        return "multiprocessing.resource_tracker" in self.read("cmdline")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails the test that leaves a thread, a child process or a descriptor."""
    before, handled = Present.now(), handled_exception()
    yield
    left = what_stays(lambda: Present.now().beyond(before))
    if (stays := handled_exception()) is not handled:
        left.append(f"handled exception {stays!r}")
        ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(handled))
    if left:
        pytest.fail("left behind by this test:\n  " + "\n  ".join(left), pytrace=False)


def handled_exception() -> BaseException | None:
    """Return the exception that a new one would get as its context."""
    try:
        raise LookupError
    except LookupError as error:
        return error.__context__


def is_running(thread: threading.Thread) -> bool:
    """Return whether it has not ended.

    One that logs something as the last it does, as garbage is collected there, is listed once more
    and for ever.
    """
    is_listed_late = isinstance(thread, threading._DummyThread) and PROC.exists()
    if is_listed_late and not (PROC / "self" / "task" / str(thread.native_id)).exists():
        return False
    return thread.is_alive()


def what_stays(look: Callable[[], list[str]]) -> list[str]:
    """Return what `look` still sees after a grace for ending threads and processes."""
    if look():
        gc.collect()  # a socket in a cycle is closed late, not never
        return [] if until(lambda: not look(), GRACE) else look()
    return []


@dataclass(frozen=True)
class Present:
    """The resources of this process at one moment."""

    threads: frozenset[threading.Thread]
    children: dict[int, Process]
    descriptors: dict[str, str]

    @classmethod
    def now(cls) -> "Present":
        return cls(frozenset(threading.enumerate()), children(), descriptors())

    def beyond(self, before: "Present") -> list[str]:
        """Describe the resources that were not there before."""
        threads = [f"thread {t.name!r}" for t in self.threads - before.threads if is_running(t)]
        # A process in the group of an older one is that one's business: a shared server restarted.
        processes = [
            str(child)
            for child in self.children.values()
            if not {child.pid, child.group} & before.children.keys()
        ]
        descriptors = [
            f"descriptor {number}: {what}"
            for number, what in self.descriptors.items()
            if before.descriptors.get(number) != what
        ]
        return threads + processes + descriptors


def children() -> dict[int, Process]:
    """Our children, by pid.

    A process that is not our child does not become one (an orphan may, where we adopt orphans: the
    end of the session sees it). It is therefore read once: this runs twice for every test, and
    other workers and their servers are most of all processes.
    """
    _others.intersection_update(present := pids())
    ours: dict[int, Process] = {}
    for pid in present - _others:
        if (process := process_of(pid)) is None:
            continue
        if process.parent != os.getpid():
            _others.add(pid)
        elif not process.of_python:
            ours[pid] = process
    return ours


_others: set[int] = set()  # the processes alive at the last look that are not our children


def descendants(mark: str, folder: Path) -> list[str]:
    """Everything alive that came of this session, us excepted.

    Known by the session's mark in its environment or, since Valkey and Redis write their titles
    over theirs, by the session's folder in its title: their sockets are there.
    """
    others = (p for p in processes() if p.pid != os.getpid() and not p.of_python)
    sought = f"{MARK}={mark}"
    return [str(p) for p in others if sought in p.read("environ") or str(folder) in str(p)]


def processes() -> Iterator[Process]:
    return filter(None, map(process_of, pids()))


def pids() -> set[int]:
    """Return the pids of all processes of the machine."""
    names = os.listdir(PROC) if PROC.exists() else ()  # noqa: PTH208
    return {int(name) for name in names if name.isdecimal()}


def process_of(pid: int) -> Process | None:
    """Return the process with this pid, None if it is gone."""
    try:
        # The name in parentheses may hold anything, spaces and parentheses too.
        _, parent, group = start_of(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):  # it ended before or while it was read
        return None
    return Process(pid, int(parent), int(group))


def start_of(path: str) -> bytes:
    """Return the beginning of a file, by raw system calls: this runs around every test for each
    new process of the machine, and a file object or a Path takes three times as long.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def descriptors() -> dict[str, str]:
    """Return the target of every descriptor of this process, except the resource tracker's pipe."""
    found: dict[str, str] = {}
    tracker = getattr(multiprocessing.resource_tracker, "_resource_tracker", None)
    kept = str(getattr(tracker, "_fd", None))
    # By raw system calls, as `start_of`: this runs twice for every test.
    for name in os.listdir("/proc/self/fd") if PROC.exists() else ():  # noqa: PTH208
        with suppress(OSError):  # the descriptor of this very listing
            if name != kept:
                found[name] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
    return found


session_mark = pytest.StashKey[str]()
session_folder = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Marks our descendants, and gives temporary files one folder so that all can be seen."""
    if is_worker(config):  # it has inherited both, and what it leaves is seen at the end
        return
    temporary = tempfile.gettempdir()
    # tmp_path keeps its folders for a later look, and elsewhere.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", temporary)
    folder = tempfile.mkdtemp(prefix="q-", dir=temporary)
    config.stash[session_folder] = Path(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ[MARK] = config.stash[session_mark] = f"{os.getpid()}-{time.monotonic_ns()}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a session that leaves a process or a temporary file behind."""
    if is_worker(session.config):
        return
    stash = session.config.stash
    folder = stash[session_folder]
    left = what_stays(lambda: descendants(stash[session_mark], folder) + files(folder))
    if left:
        print("\nleft behind by this session:", *left, sep="\n  ", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the folder, also after a session that never began."""
    if folder := config.stash.get(session_folder, None):
        shutil.rmtree(folder, ignore_errors=True)


def is_worker(config: pytest.Config) -> bool:
    """Is this a process of tests that pytest-xdist has started?"""
    return hasattr(config, "workerinput")


def files(folder: Path) -> list[str]:
    return [f"temporary file {path}" for path in folder.iterdir()]
