"""Files refuse an old fence, are replaced as a whole, and do so between processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any, TypeAlias

import pytest

import quorlock.asyncio.fencing as aio
from quorlock import ConfigError, QuorlockError, StaleFence
from quorlock.fencing import FencedFile, files
from tests.servers.fencing.awaited import Awaited

Made: TypeAlias = Callable[[Path], Any]


@pytest.fixture(params=["blocking", "asyncio"])
def made(request: pytest.FixtureRequest) -> Made:
    """Makes a FencedFile of one face."""
    if request.param == "asyncio":
        return aio.FencedFile
    return lambda path: Awaited(FencedFile(path), aio.FencedFile)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_late_write_is_refused(made: Made, tmp_path: Path) -> None:
    """Equal and larger fences write; a smaller one changes nothing; a claim alone counts."""

    async def scenario() -> None:
        path = tmp_path / "report"
        file = made(path)
        for data, fence in ((b"a", 33), (b"b", 33), (b"c" * 100_000, 34)):
            await file.write(data, fence)
            assert path.read_bytes() == data
        with pytest.raises(StaleFence) as refused:
            await file.write(b"late", 33)
        assert (refused.value.resource, refused.value.fence) == (str(path), 33)
        assert refused.value.seen == 34
        await made(path).claim(35)
        with pytest.raises(StaleFence):
            await file.write(b"late", 34)
        assert path.read_bytes() == b"c" * 100_000

    run(scenario())
    assert {path.name for path in tmp_path.iterdir()} == {"report", "report.fence", "report.lock"}


def test_one_file_has_one_fence_whatever_it_is_called(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link or a relative path leads to the same fence; the link stays one. Permissions stay,
    too.
    """
    (tmp_path / "real").write_bytes(b"a")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")

    async def scenario() -> None:
        await made(tmp_path / "link").write(b"b", 34)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(StaleFence):
            await made(Path("real")).write(b"late", 33)

    run(scenario())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"b"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["report.fence", "report.fence.new", "report.new", "report.lock"])
def test_what_is_kept_beside_a_file_is_no_file(made: Made, tmp_path: Path, name: str) -> None:
    """A write there replaced the record of the largest fence, and an older one passed."""

    async def scenario() -> None:
        await made(tmp_path / "report").write(b"new", 7)
        with pytest.raises(ConfigError, match="give another name"):
            await made(tmp_path / name).write(b"0", 8)
        with pytest.raises(StaleFence):
            await made(tmp_path / "report").write(b"old", 1)

    run(scenario())


def test_writers_that_race_leave_the_last_fence(tmp_path: Path) -> None:
    """Threads that write their fence into the file: what a reader sees only rises, and is whole."""
    path = tmp_path / "report"

    def write(seed: int) -> None:
        for fence in random.Random(seed).sample(range(1, 25), 24):
            try:
                FencedFile(path).write(b"%d\n" % fence * 100_000, fence)
            except StaleFence:
                continue

    def read() -> list[int]:
        seen: list[int] = []
        while not seen or seen[-1] < 24:
            lines = set(path.read_bytes().split()) if path.exists() else {b"0"}
            assert len(lines) == 1, "half of a write"
            seen.append(int(lines.pop()))
        return seen

    with ThreadPoolExecutor(5) as pool:
        reading = pool.submit(read)
        list(pool.map(write, range(4)))
        seen = reading.result()
    assert seen == sorted(seen)


WRITER = """
import os, signal, sys
from quorlock.fencing import files
replace = files._replace
def stopped(path, data):
    if path.name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGSTOP)
    replace(path, data)
files._replace = stopped
files.FencedFile(sys.argv[1]).write(b"first", 33)
"""


@pytest.mark.parametrize("at", ["report.fence", "report"])
def test_a_writer_that_stops_half_way_keeps_its_place(at: str, tmp_path: Path) -> None:
    """A later holder waits for a writer that is stopped inside the call, before or after its fence
    was recorded, and writes after it. A writer that is killed there has written nothing and blocks
    no other.
    """
    for end in (signal.SIGCONT, signal.SIGKILL):
        path = tmp_path / end.name / "report"
        path.parent.mkdir()
        path.write_bytes(b"old")
        process = subprocess.Popen([sys.executable, "-c", WRITER, path, at])
        os.waitpid(process.pid, os.WUNTRACED)
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(FencedFile(path).claim, 34)
            with pytest.raises(TimeoutError):
                later.result(0.1)
            process.send_signal(end)
            process.wait()
            later.result()
        assert path.read_bytes() == (b"first" if end is signal.SIGCONT else b"old")
        with pytest.raises(StaleFence):
            FencedFile(path).write(b"late", 33)
        FencedFile(path).write(b"second", 34)
        assert path.read_bytes() == b"second"


def test_a_record_that_is_no_fence_refuses_everybody(made: Made, tmp_path: Path) -> None:
    """An unrelated file of that name does not count as fence 0."""
    (tmp_path / "report.fence").write_bytes(b"")

    async def scenario() -> None:
        with pytest.raises(QuorlockError, match="holds no fence"):
            await made(tmp_path / "report").write(b"a", 33)

    run(scenario())
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("fence", [None, 0, True, 2**53, "7"])
def test_what_is_no_fence_is_refused(made: Made, tmp_path: Path, fence: Any) -> None:
    async def scenario() -> None:
        for write in (made(tmp_path / "x").claim(fence), made(tmp_path / "x").write(b"", fence)):
            with pytest.raises(ConfigError):
                await write

    run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_what_a_failed_write_leaves_is_as_private_as_the_file(made: Made, tmp_path: Path) -> None:
    """A disk that is full: here, a limit of the size of files."""
    path = tmp_path / "report"
    path.write_bytes(b"a")
    path.chmod(0o600)
    soft, hard = getrlimit(RLIMIT_FSIZE)

    async def scenario() -> None:
        await made(path).claim(33)
        setrlimit(RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(OSError, match="too large"):
                await made(path).write(b"secret" * 100_000, 33)
        finally:
            setrlimit(RLIMIT_FSIZE, (soft, hard))

    run(scenario())
    left = tmp_path / "report.new"
    assert left.read_bytes().startswith(b"secret")
    assert left.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_permissions_stay_whatever_the_umask_and_a_crash_have_left(
    made: Made, tmp_path: Path, mode: int
) -> None:
    path, rest = tmp_path / "report", tmp_path / "report.new"
    for file, permissions in ((path, mode), (rest, 0o644)):
        file.write_bytes(b"old")
        file.chmod(permissions)

    async def scenario() -> None:
        await made(path).write(b"new", 1)

    run(scenario())
    assert path.stat().st_mode & 0o777 == mode


def test_an_interrupted_call_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C just as the lock's file is being unlocked."""
    unlocked, before = fcntl.flock, {*Path("/dev/fd").iterdir()}

    def interrupted(file: Any, operation: int) -> None:
        unlocked(file, operation)
        if operation == fcntl.LOCK_UN:
            raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        FencedFile(tmp_path / "report").claim(33)
    assert {*Path("/dev/fd").iterdir()} == before


def test_a_process_that_was_forked_inside_a_write_keeps_nobody_waiting(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has the lock's file open, and the write unlocks that file before it closes it."""
    path = tmp_path / "report"
    children: list[int] = []
    end, keep_open = os.pipe()

    def forked_before(data: Any, fence: Any = None) -> None:
        if not children:
            child = os.fork()
            if not child:
                os.close(keep_open)
                os.read(end, 1)
                os._exit(0)
            children.append(child)
        replace(data, fence)

    replace = files._replace
    monkeypatch.setattr(files, "_replace", forked_before)
    try:
        asyncio.run(made(path).write(b"a", 33))
        probe = os.open(f"{path}.lock", os.O_RDWR)
        try:
            flock(probe, LOCK_EX | LOCK_NB)  # BlockingIOError: the child has it
        finally:
            os.close(probe)
    finally:
        os.close(keep_open)
        for child in children:
            os.waitpid(child, 0)
        os.close(end)


@pytest.mark.parametrize("data", ["text", None, 7, ["text"]])
def test_what_is_no_data_is_refused(made: Made, tmp_path: Path, data: Any) -> None:
    """Nothing is written: the fence is not accepted, and no NAME.new is left."""

    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"data='.*': give bytes"):
            await made(tmp_path / "x").write(data, 33)

    run(scenario())
    assert list(tmp_path.iterdir()) == []
