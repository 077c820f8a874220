"""The node-side actions, one Lua file each; the header of the file is its contract.

Some begin with parts that they share.

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


def _load(sha: bytes, *names: str) -> Script:
    return Script(b"\n".join(map(_read, names)), sha)


def _read(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return as_sent(file.read())


def as_sent(text: bytes) -> bytes:
    """Return the text of a file without comment lines and indentation."""
    lines = [line.strip() for line in text.splitlines()]
    return b"\n".join([line for line in lines if line and not line.startswith(b"--")])


# Written down, and compared by a test: hashlib loads OpenSSL, 5 ms of every program's start.
ACQUIRE: Final = _load(
    b"03a2c459b6aa4181728996573dc753bc7fed928e", "kept_out.lua", "holder_of.lua", "acquire.lua"
)
ANY: Final = _load(
    b"f00f5dc8bfa9425ed60073896f85d77e77c3c634", "kept_out.lua", "holder_of.lua", "any.lua"
)
CONFIG: Final = _load(b"a9add594b3396e5c6f8998cac3fc3dad399a009d", "config.lua")
EXTEND: Final = _load(b"8d66c36e9086cfa8d1756d6605608c879fbbce00", "extend.lua")
GUARD: Final = _load(b"4cab6a184b8aa578dc1b406d873fad31a28a68d8", "guard.lua")
INSPECT: Final = _load(b"40468ea27c559bd687ea49b94ed76732b9374b22", "inspect.lua")
KEEP: Final = _load(b"02655b805d09794ffa362bfa1ddfb9f642b3f688", "holder_of.lua", "keep.lua")
PROBE: Final = _load(b"408cefde37e2e2a56bc62aa2945f11adccf7a183", "probe.lua")
RAISE: Final = _load(b"f48512cf1f7952dbaca29392da6ff36d2cde7fad", "holder_of.lua", "raise.lua")
RELEASE: Final = _load(b"81af3e790953e63dcfb7924ee5a889660c0eadc5", "release.lua")
SHARE: Final = _load(b"1530681d3c8e249dd6fa4d8d0d02df674fb6f501", "kept_out.lua", "share.lua")
