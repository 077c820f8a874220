"""The node-side actions, one Lua file each; the header of the file is its contract.

The texts are constant: whatever varies goes through KEYS and ARGV.  They are sent without comments
and indentation: half as many bytes.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script's text as it is sent, and its name on the nodes: its SHA-1."""

    text: bytes
    sha: bytes


def _load(name: str, sha: bytes) -> Script:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return Script(as_sent(file.read()), sha)


def as_sent(text: bytes) -> bytes:
    """Return the text of a file without comment lines and indentation."""
    lines = [line.strip() for line in text.splitlines()]
    return b"\n".join([line for line in lines if line and not line.startswith(b"--")])


# Written down, and compared by a test: hashlib loads OpenSSL, 5 ms of every program's start.
ACQUIRE: Final = _load("acquire.lua", b"61dfa07ea5e82fcddb6ccd85e68a59988c24de76")
CONFIG: Final = _load("config.lua", b"a9add594b3396e5c6f8998cac3fc3dad399a009d")
EXTEND: Final = _load("extend.lua", b"cfa22c28230aeca2a8a9195bbd5ad119771f8036")
GUARD: Final = _load("guard.lua", b"4cab6a184b8aa578dc1b406d873fad31a28a68d8")
INSPECT: Final = _load("inspect.lua", b"2919e1de5c4fcc18c3099728c8ed27d00221d187")
PROBE: Final = _load("probe.lua", b"408cefde37e2e2a56bc62aa2945f11adccf7a183")
RAISE: Final = _load("raise.lua", b"b969503021c76e524b7fc879a4023fa876a91585")
RELEASE: Final = _load("release.lua", b"4da46b4061a8b750a7a8e62ac85f1bbc005c6437")
