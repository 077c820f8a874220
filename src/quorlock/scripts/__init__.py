"""The node-side actions, one Lua file each; the header of the file is its contract.

The texts are constant: whatever varies goes through KEYS and ARGV.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script's text and its name on the nodes: its SHA-1."""

    text: bytes
    sha: bytes


def _load(name: str, sha: bytes) -> Script:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return Script(file.read(), sha)


# Written down, and compared by a test: hashlib loads OpenSSL, 5 ms of every program's start.
ACQUIRE: Final = _load("acquire.lua", b"87b46b00450cede737f59cdeb9e064e107f29775")
CONFIG: Final = _load("config.lua", b"1853c850793ade3f4beef58362eb95723896c938")
EXTEND: Final = _load("extend.lua", b"679fe6e009fd2a6f275596b00537eb454afa5704")
GUARD: Final = _load("guard.lua", b"8d0c6b5a7b5971d8644c40d3527eb1e2303f4e13")
INSPECT: Final = _load("inspect.lua", b"64345a835ebaba7965801b1c849003a1747aefa9")
PROBE: Final = _load("probe.lua", b"c5c0e1b4a075da358a4ca27fa7510b9173efceac")
RAISE: Final = _load("raise.lua", b"6ce25a38b5f118916d8b27677df414d287cda960")
RELEASE: Final = _load("release.lua", b"06a665b819b4d329637f43e355fd2cd7c1e191cb")
