"""The node-side actions, one Lua file each; the file's header is its contract.

Constant texts: whatever varies goes through KEYS and ARGV.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script's text and the name under which nodes remember it: its SHA-1."""

    text: bytes
    sha: bytes


def _load(name: str, sha: bytes) -> Script:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return Script(file.read(), sha)


# Written down, and compared by a test: hashlib loads OpenSSL, 5 ms of every program's start.
ACQUIRE: Final = _load("acquire.lua", b"c6e98c4fe1a06a03854a976d7db2ed45acebc1e9")
EXTEND: Final = _load("extend.lua", b"679fe6e009fd2a6f275596b00537eb454afa5704")
GUARD: Final = _load("guard.lua", b"ba0ac10f8c69e182a22d0bfd85b57043cbe26f9d")
INSPECT: Final = _load("inspect.lua", b"0bf204f9c37261805f2495aeb253c3049c82d4d6")
RAISE: Final = _load("raise.lua", b"6ce25a38b5f118916d8b27677df414d287cda960")
RELEASE: Final = _load("release.lua", b"393feee7b698768a9a9555c81efc56053d0ea8e8")
