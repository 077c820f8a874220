"""The node-side actions, one Lua file each; the file's header is its contract.

Constant texts: whatever varies goes through KEYS and ARGV.
"""

from __future__ import annotations

import os
from hashlib import sha1
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script's text and the name under which nodes remember it."""

    text: bytes
    sha: bytes


def _load(name: str) -> Script:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        text = file.read()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


EXTEND: Final = _load("extend.lua")
INSPECT: Final = _load("inspect.lua")
RELEASE: Final = _load("release.lua")
