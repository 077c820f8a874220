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


_SPACED = (
    *(b", ", b" .. ", b" = ", b" == ", b" ~= ", b" > ", b" >= ", b" < ", b" <= ", b" + ", b" - "),
    *(b" * ", b" / ", b" ^ ", b" (", b") ", b" {", b"{ ", b" }", b"] "),
)


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
    b"b400089d30b7a0a574d095ff13b14b088b34c20d", "kept_out.lua", "holder_of.lua", "acquire.lua"
)
ANY: Final = _load(
    b"e76733608f33df69b908d33bb7eda9a260e3a9a3", "kept_out.lua", "holder_of.lua", "any.lua"
)
CONFIG: Final = _load(b"364cc1f7272304a966aa3ce186c348309d922d4d", "config.lua")
EXTEND: Final = _load(b"5eb3c7c59aff012b2594959eb4a0dd20e6a1ad54", "extend.lua")
GUARD: Final = _load(b"d1b9577c14e7bbc69fbaffd3a786048aa3fcc468", "guard.lua")
INSPECT: Final = _load(b"761ff615e3d7bca433c9ede4ee11d61e61f0da6f", "inspect.lua")
KEEP: Final = _load(b"e939bdb93b8a1d2b9cfdf9fb8a412cc743a0778f", "holder_of.lua", "keep.lua")
PROBE: Final = _load(b"3a9b19ce41abaec9560e01c4bd4bae472c27693a", "probe.lua")
RAISE: Final = _load(b"65ac3d267c7bee253a0e909fa4b522e5d694941d", "holder_of.lua", "raise.lua")
RELEASE: Final = _load(b"9ef878556f77685b97b64d941cf2a32238a0d764", "release.lua")
RELEASE_EACH: Final = _load(b"54baa54f2cadeaaa83bd03dc5aaf08092553e2c3", "release_each.lua")
SHARE: Final = _load(b"a65053bb7519dbf9efb9dc75c44d858b91237a68", "kept_out.lua", "share.lua")
