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
ACQUIRE: Final = _load("acquire.lua", b"6f19d9754c5f773786c2d1a11cc42c8b5c0e7265")
ANY: Final = _load("any.lua", b"c21d37c8f6653dcf0d4f29277f1cdf276b0f3dff")
CONFIG: Final = _load("config.lua", b"a9add594b3396e5c6f8998cac3fc3dad399a009d")
EXTEND: Final = _load("extend.lua", b"8d66c36e9086cfa8d1756d6605608c879fbbce00")
GUARD: Final = _load("guard.lua", b"4cab6a184b8aa578dc1b406d873fad31a28a68d8")
INSPECT: Final = _load("inspect.lua", b"40468ea27c559bd687ea49b94ed76732b9374b22")
KEEP: Final = _load("keep.lua", b"02655b805d09794ffa362bfa1ddfb9f642b3f688")
PROBE: Final = _load("probe.lua", b"408cefde37e2e2a56bc62aa2945f11adccf7a183")
RAISE: Final = _load("raise.lua", b"02af04d7f501f6f704b2a1166d1cbfdd88bfb794")
RELEASE: Final = _load("release.lua", b"81af3e790953e63dcfb7924ee5a889660c0eadc5")
SHARE: Final = _load("share.lua", b"293b28411e229153b8be0de146901c2352dcd091")
