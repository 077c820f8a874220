"""The node-side actions, one Lua file each; the header of the file is its contract.

Some begin with parts that they share.

The texts are constant: whatever varies goes through KEYS and ARGV.  They are sent without comments
and without spaces that Lua does not need: less than half as many bytes.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script's text as it is sent, and its name on the nodes: its SHA-1."""

    text: bytes
    sha: bytes


_SPACED = (b", ", b" .. ", b" = ", b" == ", b" ~= ", b" > ", b" >= ", b" < ", b" + ", b" - ")


def _load(sha: bytes, *names: str) -> Script:
    return Script(b"\n".join(map(_read, names)), sha)


def _read(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return as_sent(file.read())


def as_sent(text: bytes) -> bytes:
    """Return the text of a file without comment lines, indentation, and spaces at operators."""
    lines = [line.strip() for line in text.splitlines()]
    code = b"\n".join([line for line in lines if line and not line.startswith(b"--")])
    for spaced in _SPACED:
        code = code.replace(spaced, spaced.strip())
    return code


# Written down, and compared by a test: hashlib loads OpenSSL, 5 ms of every program's start.
ACQUIRE: Final = _load(
    b"28c371acdc54899a74d1510e8ebe171fbbe639ce", "kept_out.lua", "holder_of.lua", "acquire.lua"
)
ANY: Final = _load(
    b"9ac05b5d0d215810ff0ecf6b910510c5125a9dc2", "kept_out.lua", "holder_of.lua", "any.lua"
)
CONFIG: Final = _load(b"669a8040f95b3bfb67edffff7160819f37d746fc", "config.lua")
EXTEND: Final = _load(b"fc7acb1afb38dcbf27b4e5fcb4be399ddecfe313", "extend.lua")
GUARD: Final = _load(b"637aa00e948dc7acde1175fe2aa99126e71946e6", "guard.lua")
INSPECT: Final = _load(b"4b0d947f95ab8e645a44ee921aeee02edcdea302", "inspect.lua")
KEEP: Final = _load(b"11196d16b637c6d094b79ed0ba00732ca4bc296f", "holder_of.lua", "keep.lua")
PROBE: Final = _load(b"3a9b19ce41abaec9560e01c4bd4bae472c27693a", "probe.lua")
RAISE: Final = _load(b"4801219269189c5ff0c061b8ff0a22df113d417b", "holder_of.lua", "raise.lua")
RELEASE: Final = _load(b"598eb75b8db52f50e938305ab3c69587eeda5752", "release.lua")
RELEASE_EACH: Final = _load(b"5265e5b867a2878d646d8afa4d12d7b6863ad4aa", "release_each.lua")
SHARE: Final = _load(b"244c529c006ca7ad9c17b524170ed51786ecbe7f", "kept_out.lua", "share.lua")
