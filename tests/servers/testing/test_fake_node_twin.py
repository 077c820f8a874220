"""The node in memory answers as real servers do: every reply, every error text, every millisecond.

The same random commands go to both (`twins.py`).  QUORLOCK_SEQUENCES=10000 plays more of them,
QUORLOCK_SEED=7 the same ones again, QUORLOCK_SEQUENCE=plain:17 that one alone.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from quorlock import scripts
from quorlock._core.commands import (
    LEAVE,
    Acquire,
    AcquireAny,
    Command,
    Extend,
    Inspect,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
    Share,
)
from quorlock._core.places import QUEUE, RESERVED
from quorlock._protocol.encoding import COUNTER, encode
from quorlock.testing.fake_commands import COMMANDS, ClientSession
from quorlock.testing.fake_keys import Places
from quorlock.testing.fake_node import (
    DAY_MS,
    FULL,
    OK,
    Entry,
    Error,
    FakeNode,
    Reply,
    Status,
    followed_by,
)
from quorlock.testing.servers import Servers, find_binary
from tests.harness.support.resp import pack
from tests.servers.testing.twins import (
    KEYS,
    WHOLE,
    Ask,
    Disagreement,
    Exchange,
    Real,
    Step,
    Transcript,
    Turn,
    Twin,
    Words,
    compare,
    content,
    sequence,
    shown,
    shrunk,
)

SEQUENCES = int(os.environ.get("QUORLOCK_SEQUENCES", "100"))
KEPT = 100  # transcripts that are kept for the broken twins
ENOUGH = 1000  # sequences in which a broken twin must be found; none takes 100 on average
PART = 1000  # sequences in one test: twenty seconds, so that a test that hangs is still noticed
ONLY = os.environ.get("QUORLOCK_SEQUENCE")
TRIES = 5  # of a shorter sequence: to fail it may need luck with the milliseconds


class Book:
    """Sequences played on one server; the first ones are kept."""

    def __init__(self, real: Real, seed: int) -> None:
        self.real = real
        self.seed = seed
        self.kept: dict[str, Transcript] = {}
        self.tally = Tally()

    def names(self, count: int) -> list[str]:
        """Three of five plain, one with a time as a replica, one with a time of no memory."""
        kinds = ("plain", "replica", "plain", "full", "plain")
        return [f"{kinds[n % 5]}:{self.seed + n}" for n in range(count)]

    def transcript(self, name: str) -> Transcript:
        if name in self.kept:
            return self.kept[name]
        played = self.real.play(sequence(name))
        if len(self.kept) < KEPT:
            self.kept[name] = played
        return played

    def judged(self, transcript: Transcript, session: ClientSession) -> Disagreement | None:
        return compare(transcript, session, old=self.real.old)


def program_of(which: str) -> str | None:
    """The servers that the twin is held against: the one we bring, and Redis where it is."""
    return find_binary() if which == "valkey" else shutil.which("redis-server")


NO_REDIS = "there is no redis-server on the PATH"


@pytest.fixture(scope="module")
def books() -> Iterator[dict[str, Book]]:
    """One of each server, shared by all tests, and so are the sequences that were played."""
    # pytest-randomly sets random's seed and prints it; so this one is new in every run.
    seed = int(os.environ.get("QUORLOCK_SEED", "0")) or random.randrange(1, 10**8)
    options = ("--databases", "1", "--enable-debug-command", "yes")
    with ExitStack() as stack:
        opened: dict[str, Book] = {}
        for which in ("valkey", "redis"):
            if program := program_of(which):
                servers = stack.enter_context(Servers(1, binary=program, options=options))
                real = stack.enter_context(closing(Real(servers[0])))
                opened[which] = Book(real, seed)
        yield opened


@pytest.fixture(params=["valkey", "redis"])
def book(request: pytest.FixtureRequest, books: dict[str, Book]) -> Book:
    return books.get(request.param) or pytest.skip(NO_REDIS)


@pytest.fixture
def first_book(books: dict[str, Book]) -> Book:
    return books["valkey"]


# --- the twin itself ------------------------------------------------------------------------------


class Asking(ClientSession):
    """Send quorlock's commands to `Node.ask`, as in simulated worlds."""

    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        command = as_command(tuple(words), self.node)
        if command is None:
            return super().execute(words, at)
        assert encode(command) == pack(*words)
        return self.node.ask(command, at)


def as_command(words: Words, node: FakeNode) -> Command | None:
    """Return these words as one of quorlock's commands, if they are one with a valid ttl."""
    match words:
        case (b"SET", key, token, b"NX", b"PX", ttl) if is_ttl(ttl):
            return Acquire(key, token, int(ttl))
        case (b"EVALSHA", sha, *_) if sha not in node.known:
            return None
        case (b"EVALSHA", sha, count, *rest) if count.isdigit():
            return by_script(sha, tuple(rest[: int(count)]), tuple(rest[int(count) :]))
        case _:
            return None


def by_script(sha: bytes, keys: Words, said: Words) -> Command | None:  # noqa: PLR0911 (a table)
    key, also = keys[0], keys[1:]
    match (sha, *said):
        case (scripts.RELEASE.sha, token, *queue):
            place, ticket = queue or (b"", b"0")
            return Release(key, token, place, int(ticket), also)
        case (scripts.EXTEND.sha, token, ttl) if is_ttl(ttl):
            return Extend(key, token, int(ttl), also)
        case (scripts.EXTEND.sha, token, ttl, b"1") if is_ttl(ttl):
            return Extend(key, token, int(ttl), also, shared=True)
        case (scripts.SHARE.sha, token, ttl, marker, *queue):
            return Share(key, token, int(ttl), int(marker), *queue)
        case (scripts.INSPECT.sha,):
            return Inspect(key)
        case (scripts.ACQUIRE.sha, token, ttl, grid, marker, *queue):
            place, instead = queue or (b"", b"")
            numbers = int(ttl), int(grid), int(marker)
            return ScriptedAcquire(key, token, *numbers, place, instead, also[2:])
        case (scripts.KEEP.sha, token, mark, ttl) if is_ttl(ttl):
            return Keep(key, token, mark, int(ttl))
        case (scripts.ANY.sha, token, ttl, marker):
            return AcquireAny(key, token, int(ttl), int(marker), also[1:])
        case (scripts.RAISE.sha, token, fence, ahead):
            return IssueFence(key, token, int(fence), int(ahead), also[1:])
        case _:
            return None


def is_ttl(word: bytes) -> bool:
    return word.isdigit() and word == b"%d" % int(word) and 0 < int(word) < 2**53


@pytest.mark.parametrize("part", range(0, SEQUENCES, PART))
def test_the_twin_answers_as_the_server_does(
    part: int, book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reply for reply, by words and by `Node.ask`; and in the end both hold the same."""
    tally = Tally()
    for name in [ONLY] if ONLY else book.names(SEQUENCES)[part : part + PART]:
        played = book.transcript(name)
        tally.add(played)
        for session in (ClientSession(made(Twin, tally.seen)), Asking(made())):
            if found := book.judged(played, session):
                pytest.fail(explained(book, name, session, found), pytrace=False)
    book.tally += tally
    with capsys.disabled():
        print(f"\nnode twin: {book.real.version}, seed {book.seed}: {book.tally}")
    if tally.sequences >= 100:
        # Else it proves little: keys expired, some were met in the very last ms of their life and
        # some in the next, and not all commands were to the server's liking.  Usual are twice
        # to ten times as many.
        assert tally.seen["expired"] > tally.sequences / 2
        assert tally.seen["at their last ms"] > tally.sequences / 2
        assert tally.seen["a ms later"] > tally.sequences / 10
        assert len(tally.errors) >= 20


@pytest.mark.parametrize("ttl", WHOLE)
@pytest.mark.parametrize("held", [(), (b"token",), (b"mark",), (b"another",)])
def test_a_mark_needs_a_time_to_live(book: Book, ttl: bytes, held: Words) -> None:
    """Only where it would be set: the same holds for the twin, which once set it and agreed."""
    sets = [Ask((b"SET", KEYS[0], token)) for token in held]
    keeps = Ask((b"EVAL", scripts.KEEP.text, b"1", KEYS[0], b"token", b"mark", ttl))
    played = book.real.play([*sets, keeps, Ask((b"GET", KEYS[0]))])
    assert book.judged(played, ClientSession(made())) is None
    replies = [exchange.reply for exchange in played if isinstance(exchange, Exchange)]
    assert isinstance(replies[-2], Error) == (held == (b"token",))
    assert replies[-1] == (held[0] if held else None)


@dataclass
class Tally:
    """The counts of played sequences."""

    sequences: int = 0
    spanned: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    asked: Counter[bytes] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, played: Transcript) -> None:
        self.sequences += 1
        for exchange in played:
            if isinstance(exchange, Exchange):
                self.asked[exchange.words[0].upper()] += 1
                self.spanned += exchange.first < exchange.last
                if isinstance(exchange.reply, Error):
                    self.errors[exchange.reply] += 1

    def __iadd__(self, other: Tally) -> Tally:
        self.sequences += other.sequences
        self.spanned += other.spanned
        self.seen += other.seen
        self.asked += other.asked
        self.errors += other.errors
        return self

    def __str__(self) -> str:
        seen = ", ".join(f"{number:,} {what}" for what, number in sorted(self.seen.items()))
        return (
            f"{self.sequences:,} sequences, {self.asked.total():,} replies ({self.spanned:,} of two"
            f" ms), of them {self.errors.total():,} errors with {len(self.errors):,} texts;"
            f" keys met: {seen}"
        )


def made(kind: type[Twin] = Twin, seen: Counter[str] | None = None) -> Twin:
    twin = kind()
    twin.seen = Counter() if seen is None else seen
    return twin


def explained(book: Book, name: str, session: ClientSession, found: Disagreement) -> str:
    """Describe the compare, the shortest sequence that shows it, and how to repeat it."""
    first = type(session), type(session.node)

    def fails(steps: list[Step]) -> bool:
        return any(book.judged(book.real.play(steps), newborn(*first)) for _ in range(TRIES))

    short = shrunk(sequence(name), fails)
    lines = [f"  {shown(step)}" for step in short]
    replay = (
        f"QUORLOCK_SEQUENCE={name} python -m pytest tests/servers/testing/test_fake_node_twin.py"
    )
    if not fails(short):
        lines.append("  (which did not fail again: it takes luck with the milliseconds)")
    return "\n".join(
        [
            f"{book.real.version} and the twin ({first[0].__name__}) disagree in {name}:",
            str(found),
            f"the shortest that failed, {len(short)} of {len(sequence(name))} steps:",
            *lines,
            f"again: {replay}",
        ]
    )


def newborn(session: type[ClientSession], node: type[FakeNode]) -> ClientSession:
    return session(made(node) if issubclass(node, Twin) else node())


# --- broken twins are found -----------------------------------------------------------------------


class ExpiresEarly(Twin):
    def alive(self, key: bytes, at: int) -> Entry | None:
        return super().alive(key, at + 1)


class ExpiresLate(Twin):
    def alive(self, key: bytes, at: int) -> Entry | None:
        return super().alive(key, at - 1)


class ReleasesAnothers(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        entry = self.alive(key, at)
        return super().release(key, entry.value if entry else token, at, place, action, also)


class ReleasesNothing(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        entry, reply = self.keys.get(key), super().release(key, token, at, place, action, also)
        if reply == -3 and entry:
            self.keys[key] = entry
        return reply


class ReleaseHidesTheTtl(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        reply = super().release(key, token, at, place, action, also)
        return 0 if type(reply) is int and reply > 0 else reply


class ReleasesOtherTypes(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        reply = super().release(key, token, at, place, action, also)
        return -2 if isinstance(reply, Error) and reply.startswith("WRONGTYPE") else reply


class ExtendShortens(Twin):
    def extend(
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: Words = (),
        shared: bool = False,
    ) -> Reply:
        reply = super().extend(key, token, ttl_ms, at, also, shared)
        if reply == 1 and not self.read_only and key in self.keys:
            self.expire_at(key, self.keys[key], at + ttl_ms, at)
        return reply


class ExtendCreates(Twin):
    def extend(
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: Words = (),
        shared: bool = False,
    ) -> Reply:
        if self.alive(key, at) is None and not self.read_only and ttl_ms > 0:
            self.keys[key] = Entry(token, at + ttl_ms)
        return super().extend(key, token, ttl_ms, at, also, shared)


class ExtendsAnothers(Twin):
    def extend(
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: Words = (),
        shared: bool = False,
    ) -> Reply:
        entry = self.alive(key, at)
        return super().extend(key, entry.value if entry else token, ttl_ms, at, also, shared)


class ExtendsByOneMore(Twin):
    def extend(
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: Words = (),
        shared: bool = False,
    ) -> Reply:
        return super().extend(key, token, ttl_ms + 1, at, also, shared)


class ExpireOfZeroLingers(Twin):
    def expire_at(self, key: bytes, entry: Entry, until: int, at: int) -> None:
        self.keys[key] = entry._replace(until=until)


class ReplicaReleases(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        was, self.read_only = self.read_only, False
        reply = super().release(key, token, at, place, action, also)
        self.read_only = was
        return reply


class BeginsAtZero(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        self.keys.setdefault(COUNTER + command.key, Entry(b"0", None))
        return super().acquire(command, at)


class IssuesTheSameAgain(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        entry = self.alive(command.key, at)
        again = entry is not None and entry.value == command.token
        before, reply = self.keys.get(COUNTER + command.key), super().acquire(command, at)
        if again and before is not None and isinstance(reply, list) and reply[0] == 1:
            self.keys[COUNTER + command.key] = before
        return reply


class LooksAtNoMarker(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        return super().acquire(command._replace(marker_ms=0), at)


class RaisesAlways(Twin):
    def raise_fence(self, command: IssueFence, at: int) -> Reply:
        reply = super().raise_fence(command, at)
        return [1, at * 1_000, command.fence] if isinstance(reply, list) else reply


class RaisesWhatIsAnothers(Twin):
    def raise_fence(self, command: IssueFence, at: int) -> Reply:
        entry = self.alive(command.key, at)
        token = command.token if entry is None or entry.value is None else entry.value
        return super().raise_fence(command._replace(token=token), at)


class RaisesAnyDistance(Twin):
    def raise_fence(self, command: IssueFence, at: int) -> Reply:
        return super().raise_fence(command._replace(ahead_ms=2**53), at)


class KeepsAnothers(Twin):
    def keep(self, command: Keep, at: int) -> Reply:
        entry = self.alive(command.key, at)
        token = entry.value if entry is not None and entry.value else command.token
        return super().keep(command._replace(token=token), at)


class KeepsAgain(Twin):
    def keep(self, command: Keep, at: int) -> Reply:
        key, _, mark, kept_ms = command
        entry = self.alive(key, at)
        if entry is not None and entry.value == mark and not self.read_only and not self.full:
            self.set_value(key, mark, at + kept_ms, at)
        return super().keep(command, at)


class KeepMakesTheKey(Twin):
    def keep(self, command: Keep, at: int) -> Reply:
        reply = super().keep(command, at)
        if reply == -1 and not self.read_only and not self.full:
            self.set_value(command.key, command.mark, at + command.kept_ms, at)
        return reply


class KeepsForNoTime(Twin):
    def keep(self, command: Keep, at: int) -> Reply:
        return super().keep(command._replace(kept_ms=max(1, command.kept_ms)), at)


class InspectIsOffByOne(Twin):
    def inspect(self, key: bytes, at: int) -> Reply:
        reply = super().inspect(key, at)
        if isinstance(reply, list) and isinstance(reply[1], int) and reply[1] > 0:
            return [reply[0], reply[1] - 1, *reply[2:]]
        return reply


class PttlIsOffByOne(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        reply = super().execute(words, at)
        is_ttl = words[0].upper() == b"PTTL" and type(reply) is int and reply > 0
        return reply - 1 if is_ttl and isinstance(reply, int) else reply


class SetIgnoresNx(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        if words[0] == b"SET":
            words = [word for word in words if word != b"NX"]
        return super().execute(words, at)


class AskTakesWhatIsHeld(Asking):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        command = as_command(tuple(words), self.node)
        if isinstance(command, Acquire) and not self.node.read_only and not self.node.full:
            self.node.evict(command.key)
        return super().execute(words, at)


class SetKeepsTheTtl(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        old, reply = (
            self.node.alive(words[1], at) if words[1:] else None,
            super().execute(words, at),
        )
        if old is not None and words[0] == b"SET" and len(words) == 3 and reply == OK:
            self.node.keys[words[1]] = self.node.keys[words[1]]._replace(until=old.until)
        return reply


class KnowsEveryScript(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        self.node.known.update(script.sha for script in (scripts.EXTEND, scripts.RELEASE))
        return super().execute(words, at)


class EvalIsForgotten(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        known = set(self.node.known)
        reply = super().execute(words, at)
        if words[0] == b"EVAL":
            self.node.known &= known
        return reply


class FullRefusesDeletions(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        if self.node.full and words[0] == b"DEL" and len(words) > 1:
            return FULL
        return super().execute(words, at)


class FullTakesMore(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        self.node.full = False
        return super().execute(words, at)


class ReplicaTakesWrites(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        self.node.read_only = False
        return super().execute(words, at)


class ErrorsLackTheirTail(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        reply = super().execute(words, at)
        return Error(reply.partition(" script: ")[0]) if isinstance(reply, Error) else reply


class StatusIsAString(ClientSession):
    def execute(self, words: Sequence[bytes], at: int) -> Reply:
        reply = super().execute(words, at)
        return bytes(reply) if isinstance(reply, Status) else reply


class HearsTheDead(Twin):
    def publish(self, channel: bytes, message: bytes) -> int:
        return super().publish(channel, message) or 1


class CallsNothing(Twin):
    def publish(self, channel: bytes, message: bytes) -> int:
        return len(self.subscribers.get(channel, ()))


class ForgetsTheQueue(Twin):
    def set_places(self, key: bytes, places: Places, at: int, keep_ms: int = 0) -> None:
        super().set_places(key, places[:1], at, keep_ms)


class QueuesForEver(Twin):
    def set_places(self, key: bytes, places: Places, at: int, keep_ms: int = 0) -> None:
        super().set_places(key, places, at)


class ExchangesNothing(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        return super().acquire(command._replace(instead=b"?"), at)


class GrantsNoReservation(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        return super().acquire(command._replace(place=b"?"), at)


class LeavesTheReservation(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        before, reply = self.keys.get(key), super().release(key, token, at, place, action, also)
        if action == LEAVE and before and before.value == RESERVED + place:
            self.keys[key] = before
        return reply


class LookGivesTheTurnAway(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        entry = self.alive(key, at)
        is_called = bool(place) and entry is not None and entry.value == RESERVED + place
        passed = entry.value if entry and is_called and action > 0 and not token else token
        return super().release(key, passed, at, place, action, also)


class ReadersKeepOutNone(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        entry = self.alive(command.key, at)
        if entry is not None and entry.places:
            del self.keys[command.key]
        return super().acquire(command, at)


class JoinsThoughAnotherWaits(Twin):
    def share(self, command: Share, at: int) -> Reply:
        queue = self.keys.pop(QUEUE + command.key, None)
        reply = super().share(command, at)
        if queue is not None:
            self.keys[QUEUE + command.key] = queue
        return reply


class ReleasesAllReaders(Twin):
    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        entry = self.alive(key, at)
        if entry is not None and token in [member for _, member in entry.places]:
            del self.keys[key]
            return -3
        return super().release(key, token, at, place, action, also)


class ExtendMakesReaders(Twin):
    def extend(
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: Words = (),
        shared: bool = False,
    ) -> Reply:
        entry = self.alive(key, at)
        if shared and token and ttl_ms > 0 and entry is not None and entry.places:
            return int(bool(self.share(Share(key, token, ttl_ms), at)))
        return super().extend(key, token, ttl_ms, at, also, shared)


class LeavesReadersTheirEnd(Twin):
    def extend(
        self,
        key: bytes,
        token: bytes | None,
        ttl_ms: int,
        at: int,
        also: Words = (),
        shared: bool = False,
    ) -> Reply:
        before = self.alive(key, at)
        reply = super().extend(key, token, ttl_ms, at, also, shared)
        if before is not None and before.places and key in self.keys:
            self.keys[key] = self.keys[key]._replace(places=before.places)
        return reply


class TakesTheNextForGone(Twin):
    """The next behind one that is gone bars no readers."""

    was_gone = False

    def release(
        self,
        key: bytes,
        token: bytes | None,
        at: int,
        place: bytes = b"",
        action: int = 0,
        also: Words = (),
    ) -> Reply:
        self.was_gone = False
        return super().release(key, token, at, place, action, also)

    def publish(self, channel: bytes, message: bytes) -> int:
        heard = 0 if self.was_gone and not message else super().publish(channel, message)
        self.was_gone = not (message or heard)
        return heard


class SetsTheReservedOneAlone(Twin):
    def acquire(self, command: ScriptedAcquire, at: int) -> Reply:
        entry = self.alive(command.key, at)
        if command.place and entry is not None and entry.value == RESERVED + command.place:
            command = command._replace(also=())
        return super().acquire(command, at)


class KeepsTheMarkerOfBefore(Twin):
    """The marker is older than its time as a replica."""

    def guard(self, key: bytes, run_id: bytes, worth: bytes, at: int) -> Reply:
        found, followed = self.alive(key, at), self.followed
        owner = ((found and found.value) or b"").rpartition(b":")[0]
        self.followed = followed_by(owner) or followed
        try:
            return super().guard(key, run_id, worth, at)
        finally:
            self.followed = followed


class GivesTheLast(Twin):
    def acquire_any(self, command: AcquireAny, at: int) -> Reply:
        key, *also = (command.key, *command.also)[::-1]
        return super().acquire_any(command._replace(key=key, also=tuple(also)), at)


class GivesAnother(Twin):
    def acquire_any(self, command: AcquireAny, at: int) -> Reply:
        return super().acquire_any(command._replace(token=b"?"), at)


NODES: list[type[Twin]] = [
    *(GivesTheLast, GivesAnother),
    *(LeavesReadersTheirEnd, TakesTheNextForGone, SetsTheReservedOneAlone, KeepsTheMarkerOfBefore),
    *(ReadersKeepOutNone, JoinsThoughAnotherWaits, ReleasesAllReaders, ExtendMakesReaders),
    *(HearsTheDead, CallsNothing, ForgetsTheQueue, QueuesForEver),
    *(ExchangesNothing, GrantsNoReservation, LeavesTheReservation, LookGivesTheTurnAway),
    *(ExpiresEarly, ExpiresLate, ExpireOfZeroLingers, InspectIsOffByOne),
    *(ReleasesAnothers, ReleasesNothing, ReleaseHidesTheTtl, ReleasesOtherTypes),
    *(ExtendShortens, ExtendCreates, ExtendsAnothers, ExtendsByOneMore),
    *(KeepsAnothers, KeepsAgain, KeepMakesTheKey, KeepsForNoTime),
    *(ReplicaReleases, BeginsAtZero, IssuesTheSameAgain, LooksAtNoMarker),
    *(RaisesAlways, RaisesWhatIsAnothers, RaisesAnyDistance),
]
SESSIONS: list[type[ClientSession]] = [
    *(PttlIsOffByOne, SetIgnoresNx, AskTakesWhatIsHeld, SetKeepsTheTtl),
    *(KnowsEveryScript, EvalIsForgotten, FullRefusesDeletions),
    *(FullTakesMore, ReplicaTakesWrites, ErrorsLackTheirTail, StatusIsAString),
]
BROKEN: dict[str, tuple[type[ClientSession], type[Twin]]] = {
    **{node.__name__: (ClientSession, node) for node in NODES},
    **{session.__name__: (session, Twin) for session in SESSIONS},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_twin_is_found(name: str, first_book: Book) -> None:
    """Within a small part of a full run, or agreement would mean little."""
    if caught := first_caught(first_book, name):
        print(f"{name}: caught in sequence {caught.tried}, {caught.name}, by\n{caught.found}")
        return
    pytest.fail(f"{name} was not found in {ENOUGH} sequences from seed {first_book.seed}")


class Caught(NamedTuple):
    tried: int
    name: str
    found: Disagreement


def first_caught(book: Book, broken: str) -> Caught | None:
    for tried, name in enumerate(book.names(ENOUGH), 1):
        if found := book.judged(book.transcript(name), newborn(*BROKEN[broken])):
            return Caught(tried, name, found)
    return None


# --- the proof's own parts ------------------------------------------------------------------------


def test_either_ms_will_do_where_it_is_not_known() -> None:
    """But one of them, and time does not go back afterwards."""
    born = Exchange((b"SET", b"k", b"v", b"PX", b"3"), 100, 100, OK)

    def verdict(*exchange: tuple[int, int, int]) -> Disagreement | None:
        asked = [Exchange((b"PTTL", b"k"), *each) for each in exchange]
        return compare([born, *asked], newborn(ClientSession, Twin))

    assert verdict((101, 102, 2)) is None
    assert verdict((101, 102, 1)) is None
    assert verdict((101, 101, 1)) is not None
    found = verdict((101, 102, 3))
    assert found is not None
    assert found.twin == {101: 2, 102: 1}
    assert verdict((103, 104, 0)) is None
    assert verdict((103, 104, -2)) is None
    assert verdict((103, 104, -1)) is not None
    assert verdict((101, 102, 1), (101, 102, 2)) is not None
    assert verdict((101, 102, 2), (101, 102, 1)) is None


def test_an_instant_that_was_not_known_may_show_later() -> None:
    """Both courses are followed until one of them is refuted."""
    born = Exchange((b"SET", b"k", b"v", b"PX", b"3"), 100, 101, OK)
    for left, fits in ((2, True), (3, True), (4, False), (1, False)):
        asked = [Exchange((b"PTTL", b"k"), 101, 101, left)] * 2
        assert (compare([born, *asked], newborn(ClientSession, Twin)) is None) is fits
    both = [Exchange((b"PTTL", b"k"), 101, 101, left) for left in (2, 3)]
    assert compare([born, *both], newborn(ClientSession, Twin)) is not None


def test_two_expiries_of_one_script_may_be_set_in_two_ms() -> None:
    """Servers before 7.2 do so, in that order; later ones read the clock once for a script."""
    counter = b"quorlock:fence:k"
    words = (b"EVAL", scripts.ACQUIRE.text, b"3", b"k", counter, b"quorlock:guard")
    fence = 1_000 * 1_000  # the next full grid after the 100th ms
    born = Exchange((*words, b"token", b"9", b"1000", b"0"), 100, 101, [1, 100_000, fence])

    def fits(lock_left: int, counter_left: int, *, old: bool) -> bool:
        lock = Exchange((b"PTTL", b"k"), 101, 101, lock_left)
        fences = Exchange((b"PTTL", counter), 101, 101, DAY_MS + counter_left)
        return compare([born, lock, fences], newborn(ClientSession, Twin), old=old) is None

    assert fits(8, -1, old=True)
    assert fits(9, 0, old=True)
    assert fits(8, 0, old=True)
    assert not fits(9, -1, old=True)
    assert not fits(8, 1, old=True)
    assert fits(8, -1, old=False)
    assert not fits(8, 0, old=False)


def test_a_reply_of_another_type_is_another_reply() -> None:
    """OK as a string is not the status OK; 1 is not a text."""
    words = (b"SET", b"k", b"v")
    assert compare([Exchange(words, 1, 1, Status(b"OK"))], newborn(ClientSession, Twin)) is None
    assert compare([Exchange(words, 1, 1, b"OK")], newborn(ClientSession, Twin)) is not None
    assert (
        compare([Exchange((b"EXISTS", b"k"), 1, 1, b"0")], newborn(ClientSession, Twin)) is not None
    )


def test_a_name_makes_the_same_sequence_in_every_process() -> None:
    """A sequence that failed elsewhere can be played here."""
    code = "from tests.servers.testing.twins import sequence; print(repr(sequence('plain:7')))"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, env=environment, check=True
        )
        assert run.stdout.decode().strip() == repr(sequence("plain:7"))


def test_every_command_that_the_twin_knows_is_played() -> None:
    asked: set[bytes] = set()
    for seed in range(1500):
        steps = sequence(f"plain:{seed}")
        asked |= {step.words[0].lower() for step in steps if isinstance(step, Ask)}
    assert set(COMMANDS) <= asked


def test_what_fails_is_made_short() -> None:
    """Down to the steps that it takes."""
    steps: list[Step] = [Ask((b"%d" % number,)) for number in range(40)]
    needed = {steps[3], steps[17], steps[18]}
    assert shrunk(steps, lambda some: needed <= set(some)) == [steps[3], steps[17], steps[18]]


def test_a_failure_says_how_to_reproduce_it(first_book: Book) -> None:
    """The name, the replies and the few steps that are left."""
    caught = first_caught(first_book, "ReleasesAnothers")
    assert caught
    broken = newborn(*BROKEN["ReleasesAnothers"])
    text = explained(first_book, caught.name, broken, caught.found)
    assert f"QUORLOCK_SEQUENCE={caught.name} " in text
    assert "real:" in text
    assert "twin at" in text
    steps = text.partition("steps:\n")[2].splitlines()[:-1]
    assert 2 <= len(steps) <= 6
    assert "release.lua" in text or scripts.RELEASE.sha.decode() in text


# --- restarts -------------------------------------------------------------------------------------

LASTING: dict[str, tuple[str, ...]] = {
    "kept": ("--appendonly", "yes", "--appendfsync", "always"),
    "saved": (),
    "lost": (),
}


@pytest.mark.parametrize("memory", LASTING)
@pytest.mark.parametrize("which", ["valkey", "redis"])
def test_a_restart_brings_back_what_the_twin_says(which: str, memory: str) -> None:
    """An append-only file everything, a dump what was there when it was made, neither nothing."""
    program = program_of(which) or pytest.skip(NO_REDIS)
    options = ("--databases", "1", "--enable-debug-command", "yes", *LASTING[memory])
    with Servers(1, binary=program, options=options) as servers:
        played: Transcript = []
        servers[0].execute("DEL", "quorlock:born-empty")  # the twin was not, as far as it knows
        with closing(Real(servers[0])) as real:
            played += real.asked(BEFORE)
            if memory == "saved":
                assert real.talk((b"SAVE",)) == [OK]
                played.append(Turn("save"))
            played += real.asked(BETWEEN)
            run_id = real.info["run_id"]
        servers[0].restart()
        with closing(Real(servers[0])) as real:
            assert real.info["run_id"] != run_id
            played += [Turn(memory), *real.asked(AFTER)]
        assert compare(played, newborn(ClientSession, Twin), old=real.old) is None
    assert [exchange.reply for exchange in played[-3:] if isinstance(exchange, Exchange)] == {
        "kept": [b"2", None, b"1"],
        "saved": [b"1", b"1", None],
        "lost": [None, None, None],
    }[memory]


BEFORE: list[Words] = [
    (b"SET", KEYS[0], b"1", b"PX", b"60000"),
    (b"SET", KEYS[1], b"1", b"PX", b"1"),  # which ends while the server is down
    (b"RPUSH", KEYS[2], b"1", b"2"),
    (b"SET", b"deleted later", b"1"),
    (b"EVAL", scripts.INSPECT.text, b"1", KEYS[0]),
]
BETWEEN: list[Words] = [
    (b"SET", KEYS[0], b"2", b"PX", b"90000"),
    (b"DEL", b"deleted later"),
    (b"SET", b"new", b"1", b"PX", b"60000"),
    (b"EVALSHA", scripts.INSPECT.sha, b"1", KEYS[0]),
]
AFTER: list[Words] = [
    *(step.words for step in content() if isinstance(step, Ask)),
    (b"PTTL", b"new"),
    (b"EVALSHA", scripts.INSPECT.sha, b"1", KEYS[0]),
    *((b"GET", key) for key in (KEYS[0], b"deleted later", b"new")),
]


# --- many releases at once ------------------------------------------------------------------------

EACH = (b"EVAL", scripts.RELEASE_EACH.text, b"3", b"a", b"b", b"c", b"t1", b"t2", b"t3")


@pytest.mark.parametrize(
    "before",
    [
        [],
        [(b"DEL", b"b")],
        [(b"SET", b"c", b"another's")],
        [(b"ZADD", b"quorlock:queue:b", b"1", b"place")],
        [(b"DEL", b"a"), (b"RPUSH", b"a", b"data")],
        [(b"RPUSH", b"quorlock:queue:a", b"data")],
    ],
    ids=[
        "all ours",
        "one is gone",
        "one is another's",
        "one has a waiter",
        "data",
        "data of others",
    ],
)
def test_releases_of_several_locks_free_all_or_none(book: Book, before: list[Words]) -> None:
    """A real server and its twin reply the same, and have the same keys afterwards."""
    locks: list[Words] = [
        (b"SET", key, token) for key, token in zip(EACH[3:6], EACH[6:], strict=True)
    ]
    words = [(b"FLUSHALL",), *locks, *before, EACH, (b"EXISTS", *EACH[3:6]), (b"GET", b"c")]
    session = ClientSession(FakeNode())
    twin = [session.execute(one, 1) for one in words]
    assert [*book.real.talk(*words)] == twin
    assert twin[-3] == (0 if before else -3)
    assert (twin[-2] == 0) is (not before)


# --- what differs between servers -----------------------------------------------------------------


def test_they_identify_themselves(book: Book) -> None:
    """Every line of the twin's INFO is one of the server's."""
    session = ClientSession(FakeNode("f" * 40))
    own_names = {"server_name", *({"server_mode"} if book.real.old else ())}
    for words in ((b"INFO", b"server"), (b"INFO", b"replication", b"foo"), (b"INFO", b"foo")):
        (_, real) = book.real.talk((b"HELLO", b"3"), words)
        twin = session.execute(words, 1_000)
        assert isinstance(twin, bytes)
        assert type(twin) is type(real)
        assert info_names(twin) - info_names(real) <= own_names
        assert twin.splitlines()[:1] == real.splitlines()[:1]


def info_names(text: bytes) -> set[str]:
    return {line.partition(":")[0] for line in text.decode().splitlines() if ":" in line}


def test_another_script_is_refused_in_plain_words() -> None:
    """The twin runs no Lua: it says so instead of a wrong answer, also to a script of quorlock with
    other keys or arguments than quorlock's.
    """
    release, acquire = (script.text for script in (scripts.RELEASE, scripts.ACQUIRE))
    for words in (
        (b"return 1", b"1", b"a"),
        (release, b"1", b"a"),
        (release, b"2", b"a", b"token"),
        (acquire, b"3", b"a", b"b", b"c", b"token", b"9", b"0", b"0"),
        (scripts.EXTEND.text, b"1", b"a", b"token", b"1.5"),
        (release, b"1", b"a", b"token", b"", b"0"),
        (release, b"1", b"a", b"token", b"place", b"x"),
        (scripts.GUARD.text, b"1", b"a", b"run_id"),
        (scripts.RELEASE_EACH.text, b"2", b"a", b"b", b"token"),
    ):
        reply = ClientSession(FakeNode()).execute((b"EVAL", *words), 1)
        assert isinstance(reply, Error)
        assert "quorlock's own scripts only" in reply
