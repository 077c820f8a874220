"""Gives servers a wall clock that can be moved while they run.

Owns the compiling of `clock_shim.c`, the program that starts a server with it, and the file that
says by how much. Leaves when to move it to `clock`. There is libfaketime for this, but under it a
server that is built with jemalloc hangs at its start: its wrapper of clock_gettime asks the linker,
which allocates, which asks for the time. Ours asks the kernel.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

OFFSET = "clock.offset"  # in a server's home: nanoseconds, eight bytes, native order
_SOURCE = Path(__file__).with_name("clock_shim.c")


@functools.cache
def compiler() -> str | None:
    """The path of a C compiler that finds the standard headers."""
    found = filter(None, map(shutil.which, ("cc", "gcc", "clang")))
    return next((program for program in found if _works(program)), None)


def available() -> bool:
    """Return whether clocks can be moved here: LD_PRELOAD is Linux's, and the shim must be
    compiled.
    """
    return sys.platform == "linux" and compiler() is not None


def wrapper(folder: Path, binary: str, *, ppm: int = 0) -> str:
    """A program in `folder` that becomes the server with the shim loaded. Its clock then obeys the
    file OFFSET of the directory that it was started in, and gains so many parts in a million.
    Asked for its version, in whatever directory, it loads no shim and makes no file.
    """
    library = _compile(folder)
    server = str(Path(shutil.which(binary) or binary).absolute())
    script = folder / "server"
    script.write_text(
        f'#!/bin/sh\nif [ "$*" != --version ]; then\n'
        f"    export LD_PRELOAD={shlex.quote(str(library))}\n"
        f'    export QUORLOCK_CLOCK_PPM={ppm} QUORLOCK_CLOCK_OFFSET="$PWD/{OFFSET}"\n'
        f'fi\nexec {shlex.quote(server)} "$@"\n'
    )
    script.chmod(0o700)
    return str(script)


def move(offset: Path, seconds: float) -> None:
    """Add so many seconds to the clock that this file speaks for, from now on; 0 makes it right."""
    # One write of eight bytes into the page that the server has mapped.
    with offset.open("r+b", buffering=0) as file:
        file.write(struct.pack("=q", round(seconds * 1e9)))


def _works(program: str) -> bool:
    trial = [program, "-x", "c", "-fsyntax-only", "-"]
    source = b"#include <stdlib.h>\n"
    return subprocess.run(trial, input=source, capture_output=True, check=False).returncode == 0


def _compile(folder: Path) -> Path:
    library = folder / "clock_shim.so"
    program = compiler()
    assert program is not None, "no C compiler: see available()"
    done = subprocess.run(
        [program, "-O2", "-Wall", "-shared", "-fPIC", "-o", library, _SOURCE],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program} does not compile {_SOURCE}:\n{done.stderr}")
    return library
