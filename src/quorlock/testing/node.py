"""One node in memory: the Python twin of a Redis or Valkey master, as far as we use one.

It does what the server does for every command and script that quorlock sends, to the reply, the
error text and the millisecond; `tests/simulation/test_node_twin.py` runs the same random commands
on it and on real servers.  Time is told to it (its own wall clock, in ms), so that the same node
lives in simulated worlds and behind `memory://` addresses.  It speaks as Valkey 9 does.  Leaves
commands as words to `words.py`, bytes and connections to others.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias, Union

from quorlock import scripts
from quorlock._core.commands import Acquire, AcquireByScript, Command, Extend, Raise, Release
from quorlock._wire.packing import COUNTER, MARKER


class Error(str):
    """An error reply: the text that follows the minus sign (surrogates stand for stray bytes)."""

    __slots__ = ()


class Status(bytes):
    """A simple string such as OK; equal to the same bytes."""

    __slots__ = ()


Reply: TypeAlias = Union[int, bytes, Error, "list[Reply]", "dict[bytes, Reply]", None]

# A counter is forgotten after a day without use, and one that is a day ahead is not followed.
DAY_MS: Final = 86_400_000
OK: Final = Status(b"OK")
WRONG_TYPE: Final = Error("WRONGTYPE Operation against a key holding the wrong kind of value")
READ_ONLY: Final = Error("READONLY You can't write against a read only replica.")
FULL: Final = Error("OOM command not allowed when used memory > 'maxmemory'.")


def in_script(error: Error, script: scripts.Script, at: bytes) -> Error:
    """The error as it leaves a script, which it ends in the line that has `at`."""
    line = script.text[: script.text.index(at)].count(b"\n") + 1
    return Error(f"{error} script: on @user_script:{line}.")


_WRONG_TYPE_RELEASE: Final = in_script(WRONG_TYPE, scripts.RELEASE, b"redis.call('GET'")
_WRONG_TYPE_EXTEND: Final = in_script(WRONG_TYPE, scripts.EXTEND, b"redis.call('GET'")
_WRONG_TYPE_INSPECT: Final = in_script(WRONG_TYPE, scripts.INSPECT, b"redis.call('GET'")
_WRONG_TYPE_GUARD: Final = in_script(WRONG_TYPE, scripts.GUARD, b"redis.call('GET'")
_WRONG_TYPE_ACQUIRE: Final = in_script(WRONG_TYPE, scripts.ACQUIRE, b"local holder = redis")
_WRONG_TYPE_COUNTER: Final = in_script(WRONG_TYPE, scripts.ACQUIRE, b"local last = redis")
_WRONG_TYPE_MARKER: Final = in_script(WRONG_TYPE, scripts.ACQUIRE, b"local marker = redis")
_WRONG_TYPE_RAISE: Final = in_script(WRONG_TYPE, scripts.RAISE, b"local holder = redis")
_WRONG_TYPE_RAISED: Final = in_script(WRONG_TYPE, scripts.RAISE, b"local last = redis")
_READ_ONLY_RELEASE: Final = in_script(READ_ONLY, scripts.RELEASE, b"redis.call('DEL'")
_SETS_MARKER, _SETS_LOCK = b"redis.call('SET', KEYS[3]", b"redis.call('SET', KEYS[1]"
_SETS_COUNTER = b"redis.call('SET', KEYS[2]"
READ_ONLY_EXTEND: Final = in_script(READ_ONLY, scripts.EXTEND, b"redis.call('PEXPIRE'")


class Entry(NamedTuple):
    """A key's value, and the last instant (ms) at which it is there (None: it does not expire).

    No value: data of another type, a list's or a set's members.
    """

    value: bytes | None
    until: int | None
    members: tuple[bytes, ...] | frozenset[bytes] = ()


class Node:
    """See the module.

    Attributes:
        keys: what it holds, expired keys included until a command finds them.
        run_id: of its process: another one after every restart.
        read_only: it is a replica: it refuses to write.
        full: maxmemory is reached and nothing may be evicted: it refuses to take more.
        known: SHA-1 (hex) of the scripts that it remembers by name.
        started: when its process came up, by its own wall clock (ms).
    """

    __slots__ = ("_saved", "full", "keys", "known", "read_only", "run_id", "started")

    def __init__(self, run_id: str = "", started: int = 0) -> None:
        self.keys: dict[bytes, Entry] = {}
        self.run_id = run_id
        self.read_only = False
        self.full = False
        self.known: set[bytes] = set()
        self.started = started
        self._saved: dict[bytes, Entry] = {}

    # --- what we send ------------------------------------------------------------------------

    def ask(self, command: Command, at: int) -> Reply:
        """Carry out one of our commands, at this instant of its wall clock (ms)."""
        kind = type(command)
        if kind is Acquire:
            return self.set_nx_px(command.key, command.token, command.ttl_ms, at)  # type: ignore[union-attr]
        if kind is Release:
            return self.release(command.key, command.token, at)  # type: ignore[union-attr]
        if kind is AcquireByScript:
            return self.acquire(command, at)  # type: ignore[arg-type]
        if kind is Raise:
            return self.raise_fence(command, at)  # type: ignore[arg-type]
        if kind is Extend:
            return self.extend(command.key, command.token, command.ttl_ms, at)  # type: ignore[union-attr]
        return self.inspect(command.key, at)

    def set_nx_px(self, key: bytes, value: bytes, ttl_ms: int, at: int) -> Reply:
        """SET key value NX PX ttl_ms."""
        if self.read_only:
            return READ_ONLY
        if self.full:
            return FULL
        if self.alive(key, at) is not None:
            return None
        self.keys[key] = Entry(value, at + ttl_ms)
        return OK

    def acquire(self, command: AcquireByScript, at: int) -> Reply:
        """scripts/acquire.lua."""
        key, token, ttl_ms, grid_ms, marker_ms = command
        if marker_ms and (kept_out := self._kept_out(marker_ms, at)) is not None:
            return kept_out
        entry = self.alive(key, at)
        if entry is not None and entry.value is None:
            return _WRONG_TYPE_ACQUIRE
        if entry is not None and entry.value != token:
            return [0, at * 1_000, ttl_left(entry, at)]
        fence = self._next_fence(key, grid_ms, at) if grid_ms else 0
        if not isinstance(fence, int):
            return fence
        if (entry is None or fence) and (refusal := self._refusal()):
            first = _SETS_LOCK if entry is None else _SETS_COUNTER
            return in_script(refusal, scripts.ACQUIRE, first)
        if entry is None:
            self.expire_at(key, Entry(token, None), at + ttl_ms, at)
        if fence:
            self.expire_at(COUNTER + key, Entry(b"%d" % fence, None), at + DAY_MS, at)
        return [1, at * 1_000, fence]

    def _kept_out(self, marker_ms: int, at: int) -> Reply:
        """None: the marker is old enough."""
        entry = self.alive(MARKER, at)
        if entry is not None and entry.value is None:
            return _WRONG_TYPE_MARKER
        found = re.search(rb":([0-9]+)\Z", (entry and entry.value) or b"")
        since = int(found[1]) if found else None
        if since is None or since > at:
            if refusal := self._refusal():
                return in_script(refusal, scripts.ACQUIRE, _SETS_MARKER)
            self.keys[MARKER] = Entry(b"%b:%d" % (self.run_id.encode(), at), None)
            since = at
        left = since + marker_ms - at
        return [-1, at * 1_000, left] if left > 0 else None

    def _next_fence(self, key: bytes, grid_ms: int, at: int) -> Reply:
        """An int: what it may issue."""
        entry = self.alive(COUNTER + key, at) or Entry(b"0", None)
        if entry.value is None:
            return _WRONG_TYPE_COUNTER
        last = _whole(entry.value)
        if last is None or last > (at + DAY_MS) * 1_000:
            return [-2, at * 1_000, 0]
        return max(last + 1, (at // grid_ms + 1) * grid_ms * 1_000)

    def raise_fence(self, command: Raise, at: int) -> Reply:
        """scripts/raise.lua."""
        key, token, fence, ahead_ms = command
        entry = self.alive(key, at)
        if entry is None:
            return [-1, at * 1_000, 0]
        if entry.value is None:
            return _WRONG_TYPE_RAISE
        if entry.value != token:
            return [0, at * 1_000, ttl_left(entry, at)]
        if fence > (at + ahead_ms) * 1_000:
            return [-3, at * 1_000, 0]
        return self._raise_to(key, fence, at)

    def _raise_to(self, key: bytes, fence: int, at: int) -> Reply:
        counter = self.alive(COUNTER + key, at)
        if counter is not None and counter.value is None:
            return _WRONG_TYPE_RAISED
        last = None if counter is None else _whole(counter.value or b"")
        if last is None or last >= fence:
            return [-2, at * 1_000, 0]
        if refusal := self._refusal():
            return in_script(refusal, scripts.RAISE, _SETS_COUNTER)
        self.expire_at(COUNTER + key, Entry(b"%d" % fence, None), at + DAY_MS, at)
        return [1, at * 1_000, fence]

    def _refusal(self) -> Error | None:
        """Of a write that needs room."""
        return READ_ONLY if self.read_only else FULL if self.full else None

    def release(self, key: bytes, token: bytes | None, at: int) -> Reply:
        """scripts/release.lua."""
        entry = self.alive(key, at)
        if entry is None:
            return -2
        if entry.value is None:
            return _WRONG_TYPE_RELEASE
        if entry.value != token:
            return ttl_left(entry, at)
        if self.read_only:
            return _READ_ONLY_RELEASE
        del self.keys[key]
        return -3

    def extend(self, key: bytes, token: bytes | None, ttl_ms: int, at: int) -> Reply:
        """scripts/extend.lua."""
        entry = self.alive(key, at)
        if entry is None:
            return -1
        if entry.value is None:
            return _WRONG_TYPE_EXTEND
        if entry.value != token:
            return 0
        if ttl_left(entry, at) < ttl_ms:
            if self.read_only:
                return READ_ONLY_EXTEND
            self.expire_at(key, entry, at + ttl_ms, at)
        return 1

    def inspect(self, key: bytes, at: int) -> Reply:
        """scripts/inspect.lua."""
        entry = self.alive(key, at)
        if entry is None:
            return [None, -2]
        if entry.value is None:
            return _WRONG_TYPE_INSPECT
        return [entry.value, ttl_left(entry, at)]

    def guard(self, key: bytes, run_id: bytes, worth: bytes, at: int) -> Reply:
        """scripts/guard.lua."""
        entry = self.alive(key, at)
        if entry is not None and entry.value is None:
            return _WRONG_TYPE_GUARD
        marker = entry.value if entry is not None else None
        found = re.fullmatch(rb"(.+):([0-9]+)", marker or b"", re.DOTALL)
        since = int(found[2]) if found else None
        if found is None or found[1] != run_id:
            since = {b"all": 0, b"nothing": None}.get(worth, since)
        if since is None or since > at:
            since = at
        now = b"%b:%d" % (run_id, since)
        if now != marker:
            if self.read_only or self.full:
                refusal = READ_ONLY if self.read_only else FULL
                return in_script(refusal, scripts.GUARD, b"redis.call('SET'")
            self.keys[key] = Entry(now, None)
        return at - since

    def alive(self, key: bytes, at: int) -> Entry | None:
        """What the key holds, if it has not expired: that is, if its instant is not past."""
        entry = self.keys.get(key)
        if entry is None or entry.until is None or entry.until >= at:
            return entry
        if not self.read_only:  # a replica waits for its master to delete it, but hides it too
            del self.keys[key]
        return None

    def expire_at(self, key: bytes, entry: Entry, until: int, at: int) -> None:
        """Let the key live until then; one that would end now or in the past ends at once."""
        if until > at:
            self.keys[key] = Entry(entry.value, until, entry.members)
        else:
            del self.keys[key]

    def uptime_s(self, at: int) -> int:
        """As INFO tells it: whole seconds of the wall clock from whole seconds."""
        return at // 1000 - self.started // 1000

    # --- what befalls it ---------------------------------------------------------------------

    def save(self) -> None:
        """What it holds now is on disk."""
        self._saved = dict(self.keys)

    def restart(self, run_id: str, *, memory: str, started: int = 0) -> None:
        """Another process comes up: `memory` is "kept", "saved" (what was on disk) or "lost"."""
        self.run_id, self.started = run_id, started
        self.known.clear()
        if memory == "saved":
            self.keys = dict(self._saved)
        elif memory == "lost":
            self.keys = {}
            self._saved = {}

    def flush(self) -> None:
        """FLUSHALL."""
        self.keys.clear()

    def evict(self, key: bytes) -> None:
        """No memory is left, and the key goes, whatever its ttl."""
        self.keys.pop(key, None)


def _whole(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"[0-9]+", text) else None


def is_side_key(key: bytes) -> bool:
    """It is no lock, but something of quorlock's own."""
    return key.startswith(b"quorlock:")


def ttl_left(entry: Entry, at: int) -> int:
    """PTTL's number for a key that is there."""
    return -1 if entry.until is None else entry.until - at
