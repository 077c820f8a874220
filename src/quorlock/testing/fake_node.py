"""One node in memory: a Python model of the Redis or Valkey master, for quorlock's commands.

The model matches the server for every command and script that quorlock sends, to the reply, the
error text and the millisecond; `tests/servers/testing/test_fake_node_twin.py` runs the same random
commands on both.  The time is an argument (the node's wall clock, in ms), so that the same node
serves simulated worlds and `memory://` addresses.  Error texts are those of Valkey 9.  Commands as
lists of words are in `fake_commands`, bytes and connections in `memory`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

from quorlock import scripts
from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    AcquireAny,
    Command,
    Extend,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
    Share,
)
from quorlock._core.owner import owner_in
from quorlock._core.places import QUEUE, RESERVED
from quorlock._protocol.encoding import COUNTER, MARKER
from quorlock.testing.fake_keys import (
    BAD_TTL,
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
from quorlock.testing.fake_readers import FakeReaders, is_other_type, is_read_at, is_shared

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
    line = script.text[: script.text.index(scripts.as_sent(at))].count(b"\n") + 1
    return Error(f"{error} script: on @user_script:{line}.")


def _first_set(command: ScriptedAcquire, missing: dict[bytes, Any], *, is_in_turn: bool) -> bytes:
    """Return what the line of scripts/acquire.lua begins with that sets a key first."""
    if is_in_turn and not (command.also or command.grid_ms or command.marker_ms):
        return _SETS_IN_TURN
    return _SETS_LOCK if missing else _SETS_COUNTER


DELETED = -3  # the reply of scripts/release.lua when the key was deleted
# The lines of the scripts in which they fail.
_GETS: Final = b"redis.call('GET'"
_GETS_LOCK, _GETS_COUNTER = b"redis.call('GET', key)", b"local last = redis"
_SETS_LOCK, _SETS_COUNTER = b"redis.call('SET', key", b"redis.call('SET', counter"
_SETS_IN_TURN: Final = b"redis.call('SET', KEYS[1]"
_NO_LIFE: Final = Error("ERR invalid expire time in 'set' command")
_EXPIRES: Final = b"redis.call('PEXPIRE', key, ARGV[2])\nredis.call('PTTL'"
_GETS_MARKER, _SETS_MARKER = b"redis.call('GET', marker", b"redis.call('SET', marker"


class FakeNode(FakeKeys):
    """One node: its keys, and the scripts and commands that quorlock sends."""

    __slots__ = ()

    # --- the commands that quorlock sends ----------------------------------------------------

    def ask(self, command: Command, at: int) -> Reply:  # noqa: PLR0911 (one for each command)
        """Execute one of quorlock's commands at this instant of the node's wall clock (ms)."""
        kind = type(command)
        if kind is Acquire:
            return self.set_nx_px(command.key, command.token, command.ttl_ms, at)  # type: ignore[union-attr]
        if isinstance(command, Release):
            key, token, place, ticket, also = command
            return self.release(key, token, at, place, ticket, also)
        if kind is ScriptedAcquire:
            return self.acquire(command, at)  # type: ignore[arg-type]
        if kind is AcquireAny:
            return self.acquire_any(command, at)  # type: ignore[arg-type]
        if kind is Share:
            return self.share(command, at)  # type: ignore[arg-type]
        if kind is Extend:
            extend = cast("Extend", command)
            return self.extend(*extend[:3], at, *extend[3:])
        if isinstance(command, IssueFence):
            return self.raise_fence(command, at)
        keeps = type(command) is Keep
        return self.keep(command, at) if keeps else self.inspect(command.key, at)  # type: ignore[arg-type]

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
        key, token, ttl_ms, grid_ms, marker_ms, place, instead, also = command
        queue = FakeQueue(self, key, at)
        if place:
            queue.remove(place)
        refusal = self._refusal(has_written=bool(place))
        if marker_ms:
            kept_out = self._kept_out(marker_ms, refusal, at, scripts.ACQUIRE)
            if kept_out is not None:
                return kept_out
        ours = {token, *([instead] if instead else []), *([RESERVED + place] if place else [])}
        replaced = bool(instead) and self._value(key, at) == instead
        missing = self._missing((key, *also), token, ours, at)
        if not isinstance(missing, dict):
            return missing
        fence = self._next_fence((key, *also), grid_ms, at) if grid_ms else 0
        if not isinstance(fence, int):
            return fence
        if (missing or fence) and refusal:
            is_in_turn = self._value(key, at) in ours - {token}
            first = _first_set(command, missing, is_in_turn=is_in_turn)
            return in_script(refusal, scripts.ACQUIRE, first)
        for lock in missing:
            self.expire_at(lock, Entry(token, None), at + ttl_ms, at)
        if fence:
            self._issue((key, *also), fence, at)
        if not (place or instead):
            return [1, at * 1_000, fence]
        in_turn = int(bool(queue.places)), int(replaced)
        return [1, at * 1_000, fence, *in_turn] if fence else -3 - in_turn[0] - 2 * in_turn[1]

    def _value(self, key: bytes, at: int) -> bytes | None:
        entry = self.alive(key, at)
        return None if entry is None else entry.value

    def _missing(
        self, keys: tuple[bytes, ...], token: bytes, ours: set[bytes], at: int
    ) -> dict[bytes, None] | Reply:
        """Return the keys that are to be set, or the script's reply if one is another's.

        ours: the values that count as free at the first key.
        """
        missing: dict[bytes, None] = {}
        for before, key in enumerate(keys):
            entry = self.alive(key, at)
            if is_other_type(entry):
                return in_script(WRONG_TYPE, scripts.ACQUIRE, _GETS_LOCK)
            if entry is not None and entry.value not in ({token} if before else ours):
                which = [before] if keys[1:] else []
                return [0, at * 1_000, ttl_left(entry, at), *which]
            if entry is None or entry.value != token:
                missing[key] = None
        return missing

    def _issue(self, keys: tuple[bytes, ...], fence: int, at: int) -> None:
        for key in keys:
            self.expire_at(COUNTER + key, Entry(b"%d" % fence, None), at + DAY_MS, at)

    def acquire_any(self, command: AcquireAny, at: int) -> Reply:
        """Run scripts/any.lua."""
        key, token, ttl_ms, marker_ms, also = command
        refusal = self._refusal()
        if marker_ms:
            kept_out = self._kept_out(marker_ms, refusal, at, scripts.ANY)
            if kept_out is not None:
                return kept_out
        entries = [self.alive(lock, at) for lock in (key, *also)]
        if any(map(is_other_type, entries)):
            return in_script(WRONG_TYPE, scripts.ANY, _GETS_LOCK)
        values = [None if entry is None else (entry.value, entry.places) for entry in entries]
        if (token, ()) in values:
            return [1, at * 1_000, 0, values.index((token, ()))]
        if None in values:
            if refusal:
                return in_script(refusal, scripts.ANY, b"redis.call('SET', locks")
            free = values.index(None)
            self.expire_at((key, *also)[free], Entry(token, None), at + ttl_ms, at)
            return [1, at * 1_000, 0, free]
        lives = [ttl_left(entry, at) for entry in entries if entry is not None]
        left = min([life for life in lives if life >= 0], default=-1)
        return [0, at * 1_000, left, lives.index(left)]

    def share(self, command: Share, at: int) -> Reply:  # noqa: C901, PLR0911 (as the script)
        """Run scripts/share.lua."""
        key, token, ttl_ms, marker_ms, place = command
        readers, queue = FakeReaders(self, key, at), FakeQueue(self, key, at)
        is_next = bool(place) and queue.reader_is_first
        if place:
            queue.remove(place)
        if marker_ms:
            refusal = self._refusal(has_written=bool(place))
            kept_out = self._kept_out(marker_ms, refusal, at, scripts.SHARE)
            if kept_out is not None:
                return kept_out
        entry = self.alive(key, at)
        if entry is not None and entry.value is not None:
            return [0, at * 1_000, ttl_left(entry, at)]
        if is_other_type(entry):
            return in_script(WRONG_TYPE, scripts.SHARE, b"call('ZSCORE'")
        if entry is not None and entry.until is None:
            return [0, at * 1_000, -1]
        is_called = bool(place) and RESERVED + place in readers.ends
        is_kept = has_removed = False
        if not (readers.has(token) or is_called or is_next):
            is_kept, has_removed = queue.alone_is_first()
        if is_kept:
            return [0, at * 1_000, max(self._pttl(key, at), 0)]
        if readers.ends.get(token, -1) < at + ttl_ms:
            if refusal := self._refusal(has_written=has_removed or bool(place)):
                return in_script(refusal, scripts.SHARE, b"redis.call('ZADD'")
            readers.add(token, ttl_ms)
        elif self.read_only:
            removes = b"redis.call('ZREM', " if place else b"redis.call('ZREMRANGEBYSCORE'"
            return in_script(READ_ONLY, scripts.SHARE, removes)
        if place:
            readers.remove(RESERVED + place)
        readers.purge()
        readers.keep_for(ttl_ms)
        return [1, at * 1_000, 0]

    def _kept_out(
        self, marker_ms: int, refusal: Error | None, at: int, script: scripts.Script
    ) -> Reply:
        """Return the script's reply if the marker is too recent; None if it is old enough."""
        entry = self.alive(MARKER, at)
        if entry is not None and entry.value is None:
            return in_script(WRONG_TYPE, script, _GETS_MARKER)
        found = re.fullmatch(rb"(.*):([0-9]+)", (entry and entry.value) or b"", re.DOTALL)
        # A marker of another owner was replicated, with the keys of another master.
        is_own = found is not None and followed_by(found[1]) == self.followed
        since = int(found[2]) if found and is_own else None
        if since is None or since > at:
            if refusal:
                return in_script(refusal, script, _SETS_MARKER)
            owner = self.run_id.encode() + self.followed
            self.keys[MARKER] = Entry(b"%b:%d" % (owner, at), None)
            since = at
        left = since + marker_ms - at
        return [-1, at * 1_000, left] if left > 0 else None

    def _next_fence(self, keys: tuple[bytes, ...], grid_ms: int, at: int) -> Reply:
        """Return the next fence that may be issued, or the script's reply if there is none."""
        fence = (at // grid_ms + 1) * grid_ms * 1_000
        for key in keys:
            entry = self.alive(COUNTER + key, at) or Entry(b"0", None)
            if entry.value is None:
                return in_script(WRONG_TYPE, scripts.ACQUIRE, _GETS_COUNTER)
            last = _whole(entry.value)
            if last is None or last > (at + DAY_MS) * 1_000:
                return [-2, at * 1_000, 0]
            fence = max(last + 1, fence)
        return fence

    def raise_fence(self, command: IssueFence, at: int) -> Reply:
        """Run scripts/raise.lua."""
        key, token, fence, ahead_ms, also = command
        for lock in (key, *also):
            entry = self.alive(lock, at)
            if entry is None:
                return [-1, at * 1_000, 0]
            if is_other_type(entry):
                return in_script(WRONG_TYPE, scripts.RAISE, _GETS_LOCK)
            if entry.value != token:
                return [0, at * 1_000, ttl_left(entry, at)]
        if fence > (at + ahead_ms) * 1_000:
            return [-3, at * 1_000, 0]
        return self._raise_to((key, *also), fence, at)

    def _raise_to(self, keys: tuple[bytes, ...], fence: int, at: int) -> Reply:
        for key in keys:
            counter = self.alive(COUNTER + key, at)
            if counter is not None and counter.value is None:
                return in_script(WRONG_TYPE, scripts.RAISE, _GETS_COUNTER)
            last = None if counter is None else _whole(counter.value or b"")
            if last is None or last >= fence:
                return [-2, at * 1_000, 0]
        if refusal := self._refusal():
            return in_script(refusal, scripts.RAISE, _SETS_COUNTER)
        self._issue(keys, fence, at)
        return [1, at * 1_000, fence]

    def _refusal(self, *, has_written: bool = False) -> Error | None:
        """Return the error of a write that needs memory; None if it is allowed.

        has_written: it is in a script that has written something, which may continue.
        """
        return READ_ONLY if self.read_only else FULL if self.full and not has_written else None

    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = JOIN,
        also: tuple[bytes, ...] = (),
    ) -> Reply:
        """Run scripts/release.lua. action: its ARGV[3]."""
        is_ours = bool(token) and self._value(key, at) == token
        if is_ours and self.read_only and not (place or also):
            return in_script(READ_ONLY, scripts.RELEASE, b"call('DEL', KEYS")
        if place or also or not is_ours or self.alive(QUEUE + key, at) is not None:
            return self._release(key, token, at, place, action, also)
        del self.keys[key]
        return DELETED

    def release_each(self, locks: Sequence[tuple[bytes, bytes]], at: int) -> Reply:
        """Run scripts/release_each.lua on these keys with their tokens."""
        if any(
            self._value(key, at) != token or self.alive(QUEUE + key, at) is not None
            for key, token in locks
        ):
            return 0
        if self.read_only:
            return in_script(READ_ONLY, scripts.RELEASE_EACH, b"redis.call('DEL'")
        for key, _ in locks:
            self.keys.pop(key, None)
        return DELETED

    def _release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes,
        action: int,
        also: tuple[bytes, ...],
    ) -> Reply:
        """Run the script if it frees more than one lock, or passes one on."""
        keys = (key, *also)
        entries = [self.alive(k, at) for k in keys]
        if any(map(is_other_type, entries)):
            return in_script(WRONG_TYPE, scripts.RELEASE, b"call('ZSCORE'")
        queue = FakeQueue(self, key, at)
        is_called = RESERVED + place in FakeReaders(self, key, at).ends
        is_reserved = bool(place) and (is_called or self._value(key, at) == RESERVED + place)
        if is_reserved and action > JOIN and not token and queue.call(place)[1] > 0:
            return [self._pttl(key, at), b"", action, 0, *([0] if also else [])]
        ticket = queue.act(place, action) if place else 0
        reported: tuple[int, bytes] = (DELETED, b"")
        before = 0
        for index, lock in enumerate(keys):
            holder, readers = self._value(lock, at), FakeReaders(self, lock, at)
            is_reader = is_shared(entries[index]) and readers.has(token)
            has_us = is_shared(entries[index]) and (is_reader or is_called)
            was_shared = has_us or is_read_at(entries[index], at)
            is_ours = (bool(holder) and holder == token) or is_reader
            is_ours |= is_reserved and not index and action >= LEAVE
            queues = bool(place) and not index and action >= JOIN
            tokens = (token or b"", RESERVED + place if is_reserved and not index else b"")
            is_deaf, error = self._free(
                lock, tokens, place, at, is_ours=is_ours, was_shared=was_shared, queues=queues
            )
            if error is not None:
                return error
            ticket = 0 if is_deaf else ticket
            left = DELETED if is_ours else self._pttl(lock, at)
            if left == -2 and self.read_only:  # noqa: PLR2004
                return READ_ONLY
            if not is_ours and (reported[0] == DELETED or reported[0] == -2 < left):  # noqa: PLR2004
                owner = readers.report() if was_shared else owner_in(holder or b"")
                reported, before = (left, owner), index
        left, owner = reported
        of_several = [before] if also else []
        if not place:
            return [left, owner, *of_several] if owner or also else left
        ahead = queue.ahead(place)
        ticket = -action if ahead >= 0 and action < LEAVE else ticket
        return [left, owner, ticket, ahead, *of_several]

    def _free(
        self,
        key: bytes,
        members: tuple[bytes, bytes],
        place: bytes,
        at: int,
        *,
        is_ours: bool,
        was_shared: bool,
        queues: bool,
    ) -> tuple[bool, Error | None]:
        """Pass a lock on, or delete it; return whether the place cannot be called, and an error.

        members: of the readers, those that leave.
        """
        entry, is_read, is_deaf, passed = self.alive(key, at), was_shared, False, False
        if is_ours and was_shared:
            if self.read_only:
                return False, in_script(READ_ONLY, scripts.RELEASE, b"call('ZREM'")
            readers = FakeReaders(self, key, at)
            for member in members:
                readers.remove(member)
            is_read = readers.end_with_last()
        to_readers = is_read and queues
        if to_readers or (not is_read and (is_ours or (queues and entry is None))):
            queue = FakeQueue(self, key, at)
            passed, is_deaf = queue.pass_on(place, is_read=is_read, to_readers=to_readers)
        if is_ours and not was_shared and not passed:
            if self.read_only:
                return is_deaf, in_script(READ_ONLY, scripts.RELEASE, b"call('DEL', key")
            del self.keys[key]
        return is_deaf, None

    def _pttl(self, key: bytes, at: int) -> int:
        entry = self.alive(key, at)
        return -2 if entry is None else ttl_left(entry, at)

    def extend(  # noqa: C901, PLR0911 (as the script)
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: tuple[bytes, ...] = (),
        shared: bool = False,  # noqa: FBT001, FBT002 (in the order of `Extend`)
    ) -> Reply:
        """Run scripts/extend.lua."""
        entries = [(k, self.alive(k, at)) for k in (key, *also)]
        for lock, entry in entries:
            if is_other_type(entry):
                return in_script(WRONG_TYPE, scripts.EXTEND, _GETS)
            if is_shared(entry):
                readers = FakeReaders(self, lock, at)
                if also or not readers.has(token):
                    return -1 if shared else 0
                return self._extend_reader(readers, token or b"", ttl_ms, at)
            if entry is not None and entry.value != token:
                return 0
            if entry is None and self.read_only:
                return READ_ONLY
        if any(entry is None for _, entry in entries):
            return -1
        for lock, entry in entries:
            if entry is not None and ttl_left(entry, at) < ttl_ms:
                if self.read_only:
                    return in_script(READ_ONLY, scripts.EXTEND, _EXPIRES)
                self.expire_at(lock, entry, at + ttl_ms, at)
        return 1

    def _extend_reader(self, readers: FakeReaders, token: bytes, ttl_ms: int, at: int) -> Reply:
        refusal = self._refusal()
        if readers.ends[token] < at + ttl_ms:
            if refusal:
                return in_script(refusal, scripts.EXTEND, b"redis.call('ZADD'")
            readers.add(token, ttl_ms)
        if readers.ends and self.read_only and readers.ttl_left < ttl_ms:
            return in_script(READ_ONLY, scripts.EXTEND, b"redis.call('PEXPIRE'")
        readers.keep_for(ttl_ms)
        return 1

    def keep(self, command: Keep, at: int) -> Reply:  # noqa: PLR0911 (as the script)
        """Run scripts/keep.lua."""
        key, token, mark, kept_ms = command
        entry = self.alive(key, at)
        if entry is None:
            return -1
        if is_other_type(entry):
            return in_script(WRONG_TYPE, scripts.KEEP, _GETS)
        if entry.value == mark:
            return 1
        if entry.value != token:
            return 0
        refusal = self._refusal() or (BAD_TTL if kept_ms <= 0 else None)
        if refusal:
            return in_script(refusal, scripts.KEEP, b"redis.call('SET'")
        if kept_ms <= 0:
            return in_script(_NO_LIFE, scripts.KEEP, b"redis.call('SET'")
        self.set_value(key, mark, at + kept_ms, at)
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
        if entry.value is not None:
            return [entry.value[:4_096], ttl_left(entry, at), waiters]
        if not entry.places:
            return in_script(WRONG_TYPE, scripts.INSPECT, b"redis.call('ZRANGE'")
        shown = FakeReaders(self, key, at).shown()
        if not shown:
            return in_script(WRONG_TYPE, scripts.INSPECT, b"redis.call('GET'")
        return [None, ttl_left(entry, at), waiters, *shown]

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
        return entry.value


def followed_by(owner: bytes) -> bytes:
    """Return the replication id at the end of a marker's owner, with its dot; "" if none."""
    found = re.search(rb"\.[0-9a-f]{40}\Z", owner)
    return found[0] if found else b""


def _whole(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"[0-9]+", text) else None


def is_side_key(key: bytes) -> bool:
    """Return whether the key is reserved for quorlock's metadata, and thus no lock."""
    return key.startswith(b"quorlock:")
