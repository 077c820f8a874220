"""One node in memory: a Python model of the Redis or Valkey master, for quorlock's commands.

The model matches the server for every command and script that quorlock sends, to the reply, the
error text and the millisecond; `tests/servers/testing/test_fake_node_twin.py` runs the same random
commands on both.  The time is an argument (the node's wall clock, in ms), so that the same node
serves simulated worlds and `memory://` addresses.  Error texts are those of Valkey 9.  Commands as
lists of words are in `fake_commands`, bytes and connections in `memory`.
"""

from __future__ import annotations

import re
from typing import Final

from quorlock import scripts
from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    Command,
    Extend,
    IssueFence,
    Release,
    ScriptedAcquire,
)
from quorlock._core.owner import owner_in
from quorlock._core.places import RESERVED
from quorlock._protocol.encoding import COUNTER, MARKER
from quorlock.testing.fake_keys import (
    FULL,
    OK,
    READ_ONLY,
    WRONG_TYPE,
    Entry,
    Error,
    FakeKeys,
    Reply,
    Status,
    ttl_left,
)
from quorlock.testing.fake_queue import FakeQueue

__all__ = [
    "DAY_MS",
    "DELETED",
    "FULL",
    "OK",
    "READ_ONLY",
    "WRONG_TYPE",
    "Entry",
    "Error",
    "FakeNode",
    "Reply",
    "Status",
    "in_script",
    "is_side_key",
    "ttl_left",
]

# A counter expires after a day without use; one that is a day ahead of the clock is an error.
DAY_MS: Final = 86_400_000


def in_script(error: Error, script: scripts.Script, at: bytes) -> Error:
    """Return the error as the server reports it from a script, raised in the line with `at`."""
    line = script.text[: script.text.index(at)].count(b"\n") + 1
    return Error(f"{error} script: on @user_script:{line}.")


DELETED = -3  # the reply of scripts/release.lua when the key was deleted
# The lines of the scripts in which they fail.
_GETS: Final = b"redis.call('GET'"
_GETS_LOCK, _GETS_COUNTER = b"local holder = redis", b"local last = redis"
_GETS_MARKER: Final = b"redis.call('GET', KEYS[3]"
_SETS_LOCK, _SETS_COUNTER, _SETS_MARKER = (b"redis.call('SET', KEYS[%d]" % n for n in (1, 2, 3))


class FakeNode(FakeKeys):
    """One node: its keys, and the scripts and commands that quorlock sends."""

    __slots__ = ()

    # --- the commands that quorlock sends ----------------------------------------------------

    def ask(self, command: Command, at: int) -> Reply:
        """Execute one of quorlock's commands at this instant of the node's wall clock (ms)."""
        kind = type(command)
        if kind is Acquire:
            return self.set_nx_px(command.key, command.token, command.ttl_ms, at)  # type: ignore[union-attr]
        if isinstance(command, Release):
            key, token, place, ticket = command
            return self.release(key, token, at, place, ticket)
        if kind is ScriptedAcquire:
            return self.acquire(command, at)  # type: ignore[arg-type]
        if kind is IssueFence:
            return self.raise_fence(command, at)  # type: ignore[arg-type]
        if kind is Extend:
            return self.extend(command.key, command.token, command.ttl_ms, at)  # type: ignore[union-attr]
        return self.inspect(command.key, at)

    def set_nx_px(self, key: bytes, value: bytes, ttl_ms: int, at: int) -> Reply:
        """Execute SET key value NX PX ttl_ms."""
        if self.read_only:
            return READ_ONLY
        if self.full:
            return FULL
        if self.alive(key, at) is not None:
            return None
        self.keys[key] = Entry(value, at + ttl_ms)
        return OK

    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        """Run scripts/acquire.lua."""
        key, token, ttl_ms, grid_ms, marker_ms, place, instead = command
        queue = FakeQueue(self, key, at)
        if place:
            queue.remove(place)
        refusal = self._refusal(has_written=bool(place))
        if marker_ms and (kept_out := self._kept_out(marker_ms, refusal, at)) is not None:
            return kept_out
        entry = self.alive(key, at)
        if entry is not None and entry.value is None:
            return in_script(WRONG_TYPE, scripts.ACQUIRE, _GETS_LOCK)
        holder = b"" if entry is None else entry.value
        replaced = bool(instead) and holder == instead
        is_free = entry is None or replaced or (bool(place) and holder == RESERVED + place)
        if entry is not None and holder != token and not is_free:
            return [0, at * 1_000, ttl_left(entry, at)]
        fence = self._next_fence(key, grid_ms, at) if grid_ms else 0
        if not isinstance(fence, int):
            return fence
        sets = entry is None or holder != token
        if (sets or fence) and refusal:
            first = _SETS_LOCK if sets else _SETS_COUNTER
            return in_script(refusal, scripts.ACQUIRE, first)
        if sets:
            self.expire_at(key, Entry(token, None), at + ttl_ms, at)
        if fence:
            self.expire_at(COUNTER + key, Entry(b"%d" % fence, None), at + DAY_MS, at)
        more = [len(queue.places), int(replaced)] if place or instead else []
        return [1, at * 1_000, fence, *more]

    def _kept_out(self, marker_ms: int, refusal: Error | None, at: int) -> Reply:
        """Return the script's reply if the marker is too recent; None if it is old enough."""
        entry = self.alive(MARKER, at)
        if entry is not None and entry.value is None:
            return in_script(WRONG_TYPE, scripts.ACQUIRE, _GETS_MARKER)
        found = re.fullmatch(rb"(.*):([0-9]+)", (entry and entry.value) or b"", re.DOTALL)
        # A marker of another owner was replicated, with the keys of another master.
        is_own = found is not None and followed_by(found[1]) == self.followed
        since = int(found[2]) if found and is_own else None
        if since is None or since > at:
            if refusal:
                return in_script(refusal, scripts.ACQUIRE, _SETS_MARKER)
            owner = self.run_id.encode() + self.followed
            self.keys[MARKER] = Entry(b"%b:%d" % (owner, at), None)
            since = at
        left = since + marker_ms - at
        return [-1, at * 1_000, left] if left > 0 else None

    def _next_fence(self, key: bytes, grid_ms: int, at: int) -> Reply:
        """Return the next fence that may be issued, or the script's reply if there is none."""
        entry = self.alive(COUNTER + key, at) or Entry(b"0", None)
        if entry.value is None:
            return in_script(WRONG_TYPE, scripts.ACQUIRE, _GETS_COUNTER)
        last = _whole(entry.value)
        if last is None or last > (at + DAY_MS) * 1_000:
            return [-2, at * 1_000, 0]
        return max(last + 1, (at // grid_ms + 1) * grid_ms * 1_000)

    def raise_fence(self, command: IssueFence, at: int) -> Reply:
        """Run scripts/raise.lua."""
        key, token, fence, ahead_ms = command
        entry = self.alive(key, at)
        if entry is None:
            return [-1, at * 1_000, 0]
        if entry.value is None:
            return in_script(WRONG_TYPE, scripts.RAISE, _GETS_LOCK)
        if entry.value != token:
            return [0, at * 1_000, ttl_left(entry, at)]
        if fence > (at + ahead_ms) * 1_000:
            return [-3, at * 1_000, 0]
        return self._raise_to(key, fence, at)

    def _raise_to(self, key: bytes, fence: int, at: int) -> Reply:
        counter = self.alive(COUNTER + key, at)
        if counter is not None and counter.value is None:
            return in_script(WRONG_TYPE, scripts.RAISE, _GETS_COUNTER)
        last = None if counter is None else _whole(counter.value or b"")
        if last is None or last >= fence:
            return [-2, at * 1_000, 0]
        if refusal := self._refusal():
            return in_script(refusal, scripts.RAISE, _SETS_COUNTER)
        self.expire_at(COUNTER + key, Entry(b"%d" % fence, None), at + DAY_MS, at)
        return [1, at * 1_000, fence]

    def _refusal(self, *, has_written: bool = False) -> Error | None:
        """Return the error of a write that needs memory; None if it is allowed.

        has_written: it is in a script that has written something, which may continue.
        """
        return READ_ONLY if self.read_only else FULL if self.full and not has_written else None

    def release(
        self, key: bytes, token: bytes | None, at: int, place: bytes = b"", action: int = JOIN
    ) -> Reply:
        """Run scripts/release.lua. action: its ARGV[3]."""
        entry = self.alive(key, at)
        if entry is not None and entry.value is None:
            return in_script(WRONG_TYPE, scripts.RELEASE, _GETS)
        holder = (entry and entry.value) or b""
        queue, ticket = FakeQueue(self, key, at), 0
        is_ours = bool(holder) and holder == token
        if place:
            ticket = queue.act(place, action)
            is_ours = is_ours or (action >= LEAVE and holder == RESERVED + place)
        reserved = False
        if is_ours or (place and action >= JOIN and entry is None):
            reserved, is_deaf = queue.pass_on(place)
            ticket = 0 if is_deaf else ticket
        if is_ours and not reserved:
            if self.read_only:
                return in_script(READ_ONLY, scripts.RELEASE, b"redis.call('DEL'")
            del self.keys[key]
        found = self.alive(key, at)
        left = DELETED if is_ours else -2 if found is None else ttl_left(found, at)
        owner = b"" if is_ours else owner_in(holder)
        if not place:
            return [left, owner] if owner else left
        ahead = queue.ahead(place)
        if ahead >= 0 and action < LEAVE:
            ticket = -action
        return [left, owner, ticket, ahead]

    def extend(self, key: bytes, token: bytes | None, ttl_ms: int, at: int) -> Reply:
        """Run scripts/extend.lua."""
        entry = self.alive(key, at)
        if entry is None:
            return -1
        if entry.value is None:
            return in_script(WRONG_TYPE, scripts.EXTEND, _GETS)
        if entry.value != token:
            return 0
        if ttl_left(entry, at) < ttl_ms:
            if self.read_only:
                return in_script(READ_ONLY, scripts.EXTEND, b"redis.call('PEXPIRE'")
            self.expire_at(key, entry, at + ttl_ms, at)
        return 1

    def probe(self, key: bytes) -> Reply:
        """Run scripts/probe.lua."""
        if self.read_only:
            return in_script(READ_ONLY, scripts.PROBE, b"redis.call('DEL'")
        self.keys.pop(key, None)
        return 1

    def inspect(self, key: bytes, at: int) -> Reply:
        """Run scripts/inspect.lua."""
        entry, waiters = self.alive(key, at), len(FakeQueue(self, key, at).places)
        if entry is None:
            return [None, -2, waiters]
        if entry.value is None:
            return in_script(WRONG_TYPE, scripts.INSPECT, _GETS)
        return [entry.value[:4_096], ttl_left(entry, at), waiters]

    def guard(self, key: bytes, run_id: bytes, worth: bytes, at: int) -> Reply:
        """Run scripts/guard.lua."""
        entry = self.alive(key, at)
        if entry is not None and entry.value is None:
            return in_script(WRONG_TYPE, scripts.GUARD, _GETS)
        marker = entry.value if entry is not None else None
        found = re.fullmatch(rb"(.+):([0-9]+)", marker or b"", re.DOTALL)
        since = int(found[2]) if found else None
        owner = found[1] if found else b""
        if owner.removesuffix(followed_by(owner)) != run_id:
            since = {b"all": 0, b"nothing": None}.get(worth, since)
        elif owner != run_id + self.followed:
            since = None  # the marker dates from a time as a replica; a memory node never is one
        if since is None or since > at:
            since = at
        now = b"%b%b:%d" % (run_id, self.followed, since)
        if now != marker:
            if refusal := self._refusal():
                return in_script(refusal, scripts.GUARD, b"redis.call('SET'")
            self.keys[key] = Entry(now, None)
        return at - since

    def compare_and_set(self, key: bytes, expected: bytes, new: bytes, at: int) -> Reply:
        """Run scripts/config.lua."""
        entry = self.alive(key, at) or Entry(b"", None)
        if entry.value is None:
            return in_script(WRONG_TYPE, scripts.CONFIG, _GETS)
        if entry.value == expected:
            if refusal := self._refusal():
                return in_script(refusal, scripts.CONFIG, b"redis.call('SET'")
            self.keys[key] = Entry(new, None)
            return new
        return entry.value or None


def followed_by(owner: bytes) -> bytes:
    """Return the replication id at the end of a marker's owner, with its dot; "" if none."""
    found = re.search(rb"\.[0-9a-f]{40}\Z", owner)
    return found[0] if found else b""


def _whole(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"[0-9]+", text) else None


def is_side_key(key: bytes) -> bool:
    """Return whether the key is reserved for quorlock's metadata, and thus no lock."""
    return key.startswith(b"quorlock:")
