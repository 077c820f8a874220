"""Checks of a server's replies at connect: whether it can keep a lock and release it.

Each returns a reason that is fit for an error message and says what to do, or "".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from quorlock import scripts
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Mapping

# A key that is never set: the scripts are tried on it.
PROBE_KEY = b"quorlock:probe"
# By both names: EVALSHA may be refused where EVAL is not.
PROBES = (
    (b"EVAL", scripts.PROBE.text, b"1", PROBE_KEY),
    (b"EVALSHA", scripts.PROBE.sha, b"1", PROBE_KEY),
)

_MODES = {
    "sentinel": "is a Sentinel, not a data node: name the servers themselves",
    "cluster": (
        "is a member of a Redis Cluster, which fails over automatically and spreads a lock's keys:"
        " run it with cluster-enabled no, or name other servers"
    ),
}
# The fields of INFO which only servers have that are neither Redis nor Valkey.
_PRODUCTS = {
    "dragonfly_version": "Dragonfly",
    "garnet_version": "Garnet",
    "kvrocks_version": "Kvrocks",
}
_TRACKING_SINCE = (6, 2)
_NEVER_WAS = (6, 3)
# What servers say where scripts are refused for good, the remedy, and the code of that.  ACL
# failures have other words outside of a script, inside of one, and inside of one before Redis 7.
_REFUSALS = {
    "unknown (redis )?command": ("give the command its name back", VoteCode.PERMANENT_ERROR),
    "noperm|acl failure|user executing the script|can't run this command|no permissions"
    "|can't access at least one of the keys": (
        "grant the rights of docs/how-to/acl.md",
        VoteCode.ACCESS_DENIED,
    ),
    "non deterministic": ("set lua-replicate-commands yes", VoteCode.PERMANENT_ERROR),
    r"\b(lua|scripting)\b": ("turn Lua scripts on", VoteCode.PERMANENT_ERROR),
}


def unfit_mode(info: Mapping[str, str]) -> str:
    """Return why a server that runs in this mode is no node for locks."""
    # Valkey says server_mode where it does not pretend to be Redis.
    return _MODES.get(info.get("redis_mode") or info.get("server_mode", ""), "")


def product(info: Mapping[str, str]) -> str:
    """Return the name and version of a server that is neither Redis nor Valkey."""
    names = (f"{name} {info[field]}" for field, name in _PRODUCTS.items() if field in info)
    return next(names, "")


def tracks_keys(info: Mapping[str, str]) -> bool:
    """Return whether a server is known to track keys without harm (CLIENT TRACKING).

    Some forks crash or hang on it.  KeyDB says that it is Redis 6.3, which never was, or 6.2.
    """
    if product(info) or "keydb" in info.get("executable", "").lower():
        return False
    if "valkey_version" in info:
        return True
    found = re.match(r"([0-9]{1,9})\.([0-9]{1,9})\.", info.get("redis_version", ""))
    if found is None:
        return False
    version = int(found[1]), int(found[2])
    return version >= _TRACKING_SINCE and version != _NEVER_WAS


def refused_script(text: str) -> tuple[str, VoteCode]:
    """Return what to do about a script that was refused for good, and the refusal's code.

    "" and a transient error: it may be run another time.
    """
    fixes = (fix for words, fix in _REFUSALS.items() if re.search(words, text, re.IGNORECASE))
    return next(fixes, ("", VoteCode.TRANSIENT_ERROR))
