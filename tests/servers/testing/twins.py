"""Random commands, what a real server answers to them, and whether the twin would have as well.

A sequence is made from its name alone (`plain:17`: a kind and a seed), played on a real server and
written down: every command between two readings of the server's own TIME, so that its millisecond
is known, or, rarely, one of two or more.  A transcript can then be compared with any twin, and so
against broken ones.  Leaves to the tests which servers, how many sequences and what must be found.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, count, pairwise
from random import Random
from typing import Any, NamedTuple

from quorlock import scripts
from quorlock._core.places import QUEUE, RESERVED, channel_of
from quorlock._protocol.encoding import COUNTER, MARKER
from quorlock.testing.fake_commands import ClientSession
from quorlock.testing.fake_info import Text
from quorlock.testing.fake_keys import Push
from quorlock.testing.fake_node import Entry, Error, FakeNode, Reply, Status
from quorlock.testing.servers import Server
from tests.harness.support.resp import pack

Words = tuple[bytes, ...]


class Ask(NamedTuple):
    """One command; those that follow one another go out in one packet."""

    words: Words


class Wait(NamedTuple):
    """Nothing for so long."""

    seconds: float


class Watch(NamedTuple):
    """One command, repeated for a while and alone, to find the exact ms of a change."""

    words: Words
    seconds: float


class Turn(NamedTuple):
    """The node becomes a replica, a master, full, or gets room again.

    In transcripts also: it saves, or comes up again with its memory kept, saved or lost.
    """

    into: str


Step = Ask | Wait | Watch | Turn


class Exchange(NamedTuple):
    """A command with the real reply, carried out at one of these ms of the server's clock.

    pushed: the messages that came with it, on channels with subscribers.
    """

    words: Words
    first: int
    last: int
    reply: Any
    pushed: tuple[Any, ...] = ()


Transcript = list[Exchange | Turn]


# --- making sequences -----------------------------------------------------------------------------

KINDS = ("plain", "replica", "full")
KEYS = (b"a", b"lock:b", b"\x00\xff\r\n", b"[a*]")
_DIGITS = b"0123456789abcdef" * 2
OWNED = tuple(
    digits + rest
    for digits in (_DIGITS, _DIGITS[1:], b"g" + _DIGITS[1:])
    for rest in (b"@web-3:1", b"@", b"@\xff\0@", b"@" + b"x" * 128, b"@" + b"x" * 129, b"x" * 5_000)
)
TOKENS = (b"0123456789abcdef", b"fedcba9876543210", b"\x00\x80\r\n'", b"17", b"", *OWNED)
SHORT = tuple(b"%d" % ms for ms in (1, 2, 3, 4, 6, 9))
# No longer than Lua's numbers can count exactly: beyond 2^53 ms a script sees rounded ones.
LONG = (b"40", b"1000", b"9999", b"60000", b"315360000000")
ODD = (
    *(b"0", b"-1", b"-5", b"x", b"", b"1.5", b"1e3", b" 7", b"7 ", b"+7", b"07", b"0x10", b"inf"),
    *(b"nan", b"-inf", b"2\x003", b"9223372036854775807", b"-9223372036854775808"),
    *(b"9223372036854775808", b"99999999999999999999"),
)
# Of a script's ttl the twin knows the integers that Lua counts exactly.
WHOLE = (b"0", b"-1", b"-5")
JUNK = (*ODD, b"NX", b"xx", b"PX", b"ex", b"FOO", b"it's\r\nso")
PATTERNS = (b"*", b"a*", b"?", b"*b", b"lock:?", b"[a-c]", b"[^a]", b"[[]a[*]]", b"", b"*:*")


def sequence(name: str) -> list[Step]:
    """The steps that this name stands for, the same on every machine."""
    rng = Random(name)
    steps: list[Step] = [Ask((b"HELLO", b"3"))]
    guard = (b"EVAL", GUARD.text, b"1", KEYS[2], b"r1", b"the same")
    for part in _parts(name.partition(":")[0]):
        if part:
            held = [(b"SET", key, token) for key, token in zip(KEYS, TOKENS[:2], strict=False)]
            steps += [*map(Ask, (*held, guard)), Turn(part)]
        for _ in range(rng.randint(5, 25)):
            steps += _step(rng)
        steps += [Ask(guard), *content()] if part == "master" else content()
    return steps


def _parts(kind: str) -> tuple[str, ...]:
    return {
        "plain": ("",),
        "replica": ("", "replica", "master"),
        "full": ("", "full", "roomy"),
    }[kind]


def content() -> list[Step]:
    """All that a node holds, with its value and remaining life."""
    asked = [(name, key) for key in (*KEYS, b"") for name in (b"GET", b"PTTL")]
    sides = [(name, COUNTER + key) for key in KEYS for name in (b"GET", b"PTTL")]
    queues: list[Words] = [(b"PTTL", QUEUE + key) for key in KEYS]
    sets = (*KEYS, *(QUEUE + key for key in KEYS))
    queues += [(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES") for key in sets]
    all_words = ((b"KEYS", b"*"), *asked, *sides, *queues, (b"EXISTS", MARKER))
    return [Ask(words) for words in all_words]


def _step(rng: Random) -> list[Step]:
    entropy = rng.random()
    if entropy < 0.10:
        return [Wait(rng.uniform(0.0002, 0.006))]
    if entropy < 0.13:
        key = rng.choice(KEYS)
        born = Ask((b"SET", key, rng.choice(TOKENS), b"PX", rng.choice(SHORT[:4])))
        return [born, Watch(_watched(rng, key), 0.005)]
    return [Ask(words) for words in _commands(rng)]


def _watched(rng: Random, key: bytes) -> Words:
    plain: list[Words] = [(name, key) for name in (b"GET", b"PTTL", b"EXISTS")]
    acquire = (b"SET", key, rng.choice(TOKENS), b"NX", b"PX", rng.choice(SHORT))
    scripted = (*(_script(rng, s, key) for s in SCRIPTS), _fencing(rng, key), _queue(rng, key))
    return rng.choice([*plain, acquire, *scripted])


NAMES = ("ACQUIRE", "ANY", "SHARE", "RAISE", "RELEASE", "EXTEND", "KEEP", "INSPECT", "PROBE")
SCRIPTS = (scripts.RELEASE, scripts.EXTEND, scripts.KEEP, scripts.INSPECT)
GUARD = scripts.GUARD
MARKERS = (b"r1:0", b"r1:5", b"r2:5", b"r1:99999999999999", b"r1:", b":5", b"r1", b"r-1:5", b"")
WORTH = (b"nothing", b"the same", b"all")


def _guard(rng: Random, key: bytes) -> Words:
    run_id = rng.choice((b"r1", b"r2"))
    return (b"EVAL", GUARD.text, b"1", key, run_id, rng.choice(WORTH))


def _script(rng: Random, script: scripts.Script, key: bytes) -> Words:
    arguments: Words = ()
    if script not in (scripts.INSPECT, scripts.PROBE):
        arguments = (rng.choice(TOKENS[:2]),)
    if script is scripts.KEEP:
        arguments += (rng.choice(TOKENS[:3]),)
    if script in (scripts.EXTEND, scripts.KEEP):
        arguments += (rng.choice((*SHORT, *LONG, *WHOLE)),)
    keys: Words = (key,)
    if script in (scripts.EXTEND, scripts.RELEASE):
        keys += _also(rng, key)
    if script is scripts.EXTEND and len(keys) == 1 and rng.random() < 0.4:
        arguments += (b"1",)
    said = (b"%d" % len(keys), *keys, *arguments)
    if rng.random() < 0.5:
        return (b"EVAL", script.text, *said)
    return (b"EVALSHA", script.sha, *said)


def _also(rng: Random, key: bytes) -> Words:
    """Draw the further keys of a claim on several."""
    others = [other for other in KEYS if other != key]
    return tuple(rng.sample(others, rng.choice((0, 0, 0, 0, 1, 1, 2))))


FENCING = (scripts.ACQUIRE, scripts.RAISE, scripts.RAISE, scripts.ANY, scripts.SHARE)
# Small enough for any clock, unlike those that nodes begin with, which depend on theirs. The last
# one is often further ahead than an argument allows.
FENCES = (b"5", b"6", b"7", b"1000", b"1001", *[b"9007199254740991"] * 4)


def _fencing(rng: Random, key: bytes) -> Words:
    """Send it as quorlock does: the fake node accepts these scripts in no other form."""
    script, token = rng.choice(FENCING), rng.choice(TOKENS[:2])
    keys: Words = (key, COUNTER + key)
    if script is scripts.RAISE:
        numbers: Words = (rng.choice(FENCES), rng.choice((b"1", b"15000")))
    elif script in (scripts.ANY, scripts.SHARE):
        keys = (key, MARKER)
        numbers = (rng.choice((*SHORT, *LONG)), rng.choice((b"0", b"0", *SHORT)))
        if script is scripts.SHARE:
            numbers += rng.choice(((), *((place,) for place in SHARED_PLACES)))
            return _called(rng, script, (*keys, token, *numbers), 2)
    else:
        keys = (*keys, MARKER)
        grid, marker = rng.choice((b"0", b"1", b"7", b"1000")), rng.choice((b"0", b"0", *SHORT))
        numbers = (rng.choice((*SHORT, *LONG)), grid, marker)
        numbers += rng.choice(((), *((place, b"") for place in PLACES), *EXCHANGES))
    keys += _also(rng, key)
    return _called(rng, script, (*keys, token, *numbers), len(keys))


def _called(rng: Random, script: scripts.Script, words: Words, keys: int) -> Words:
    if rng.random() < 0.5:
        return (b"EVAL", script.text, b"%d" % keys, *words)
    return (b"EVALSHA", script.sha, b"%d" % keys, *words)


def _readers(rng: Random, key: bytes) -> Words:
    """Draw an acquire of a reader, more often of one that lives for a while."""
    ttl = rng.choice((*SHORT, *LONG[:4], *LONG[:4]))
    words: Words = (key, MARKER, rng.choice((*TOKENS[:3], *OWNED)), ttl, b"0")
    if rng.random() < 0.3:
        words += (rng.choice(SHARED_PLACES),)
    return _called(rng, scripts.SHARE, words, 2)


INBOXES = (b"00000000000000a1", b"00000000000000b2")
# The third is of an inbox that never listens, the rest cannot be called.
PLACES = (
    *(INBOXES[0] + rest for rest in (b":1:30", b":2:4", b":3:5000")),
    *(INBOXES[1] + rest for rest in (b":1:9", b":2:2000", b":3:0", b":4:9223372036854775807")),
    *(b"00000000000000c3:1:50", b"00000000000000A1:1:30", b"a1:1:30 ", b"junk", b"::"),
)
SHARED_PLACES = tuple(place + b":shared" for place in (*PLACES[:2] * 3, *PLACES))
EXCHANGES = tuple(
    (place, token) for place in (PLACES[0], b"") for token in (*TOKENS[:3], b"") if place or token
)
TICKETS = (*[b"0"] * 6, *(b"-1", b"-1", b"1", b"2", b"3", b"7", b"-2", b"-3", b"-9"))


def _queue(rng: Random, key: bytes) -> Words:
    """Draw a release with a place: to join, to look, to leave, a correction."""
    token = rng.choice((*TOKENS[:2], b"", b""))
    place = rng.choice((*PLACES[:2] * 14, *PLACES, *SHARED_PLACES))
    keys = (key, *_also(rng, key))
    said = (b"%d" % len(keys), *keys, token, place, rng.choice(TICKETS))
    if rng.random() < 0.5:
        return (b"EVAL", scripts.RELEASE.text, *said)
    return (b"EVALSHA", scripts.RELEASE.sha, *said)


def _reserve(rng: Random, key: bytes) -> Words:
    return (b"SET", key, RESERVED + rng.choice(PLACES[:2]), b"PX", rng.choice((b"5", b"5000")))


def _listen(rng: Random, key: bytes) -> Words:
    channel = channel_of(rng.choice(INBOXES))
    names = (b"SUBSCRIBE", b"SUBSCRIBE", b"SUBSCRIBE", b"UNSUBSCRIBE")
    published = (b"PUBLISH", channel, rng.choice(TOKENS[:4]))
    return rng.choice([*((name, channel) for name in names), published])


def _queue_key(rng: Random, key: bytes) -> Words:
    """Draw what others may do to a queue."""
    queue, place = QUEUE + key, rng.choice((*PLACES, *SHARED_PLACES))
    score = rng.choice((b"0", b"1", b"5", b"7.5", b"-3", b"inf", b"9007199254740993", b"x"))
    return rng.choice(
        (
            (b"ZADD", queue, score, place),
            (b"ZREM", queue, place),
            (b"ZCARD", queue),
            (b"ZRANGE", queue, b"0", b"-1", b"WITHSCORES"),
            (b"DEL", queue),
            (b"RPUSH", queue, b"x"),
            (b"SET", queue, b"x"),
            (b"ZADD", key, b"1", b"x"),
        )
    )


def _side_keys(rng: Random, key: bytes) -> Words:
    """Draw changes of a counter and the marker; the value of the marker itself is not tested."""
    side = rng.choice((COUNTER + key, MARKER))
    number = rng.choice((*FENCES, *ODD))
    return rng.choice(
        (
            (b"SET", side, number if side != MARKER else b"run:" + number),
            (b"SET", side, rng.choice(FENCES) if side != MARKER else b"run:1000"),
            (b"DEL", side),
            (b"PTTL", side),
            (b"GET", COUNTER + key),
            (b"RPUSH", side, b"x"),
        )
    )


def _ttl(rng: Random) -> bytes:
    return rng.choice(rng.choices((SHORT, LONG, ODD), (8, 4, 1))[0])


def _commands(rng: Random) -> list[Words]:
    """One command, or some that belong together."""
    (make,) = rng.choices(MAKERS, WEIGHTS)
    made = make(rng, rng.choice(KEYS))
    if make in FOLLOWED and rng.random() < 0.5:
        return [made, *FOLLOWED[make](rng, made)]
    if rng.random() < 0.08 and made[0] not in UNMANGLED:
        made = _mangled(rng, made)
    return [made]


def _after_reservation(rng: Random, reservation: Words) -> list[Words]:
    """Draw what the one whose turn it is may send: it looks, leaves or acquires."""
    _, key, value, *_ = reservation
    place = value.removeprefix(RESERVED)
    if rng.random() < 0.4:
        return [_acquire(rng, key, rng.choice(TOKENS[:2]), rng.choice((b"0", b"7")), place, b"")]
    look_or_leave = rng.choice((b"1", b"1", b"-1"))
    return [(b"EVAL", scripts.RELEASE.text, b"1", key, b"", place, look_or_leave)]


def _after_no_ttl(rng: Random, plain_set: Words) -> list[Words]:
    """Draw an end of a lock that has none."""
    _, key, token = plain_set
    ttl = rng.choice((b"0", b"0", *WHOLE, *SHORT))
    if rng.random() < 0.5:
        return [(b"EVAL", scripts.EXTEND.text, b"1", key, token, ttl)]
    return [(b"EVAL", scripts.KEEP.text, b"1", key, token, TOKENS[2], ttl)]


def _after_acquire(rng: Random, acquire: Words) -> list[Words]:
    """Draw the same acquire again, or one that takes its token's place."""
    _, script, count, key, *rest = acquire
    if script not in (scripts.ACQUIRE.text, scripts.ACQUIRE.sha) or rng.random() < 0.5:
        return [(b"DEL", key), acquire, acquire, (b"GET", COUNTER + key)]
    token = rest[int(count) - 1]
    return [_acquire(rng, key, rng.choice(TOKENS[:2]), b"0", rng.choice(PLACES[:2]), token)]


def _after_reader(rng: Random, share: Words) -> list[Words]:
    """Draw what a writer, or another reader, may send."""
    key, token, other = share[3], share[5], rng.choice(TOKENS[:2])
    entropy, either = rng.random(), rng.choice((token, other))
    if entropy < 0.4:
        return [_acquire(rng, key, other, b"0")]
    if entropy < 0.6:
        return [_readers(rng, key), (b"EVAL", scripts.RELEASE.text, b"1", key, either)]
    if entropy < 0.7:
        return [_joins(key, rng.choice(PLACES[:2])), _readers(rng, key)]
    if entropy < 0.8:
        # Two want it alone; the first goes, and a reader comes.
        gone, stays = map(channel_of, INBOXES)
        waiters = [_joins(key, place) for place in (PLACES[1], PLACES[4], PLACES[3] + b":shared")]
        waiters.insert(2, (b"UNSUBSCRIBE", gone))
        return [(b"SUBSCRIBE", gone), (b"SUBSCRIBE", stays), *waiters]
    ttl, ends = rng.choice((*SHORT, *LONG)), (b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")
    return [(b"EVAL", scripts.EXTEND.text, b"1", key, either, ttl, b"1"), ends]


def _joins(key: bytes, place: bytes) -> Words:
    return (b"EVAL", scripts.RELEASE.text, b"1", key, b"", place, b"0")


def _acquire(rng: Random, key: bytes, token: bytes, grid: bytes, *place: bytes) -> Words:
    keys = (key, COUNTER + key, MARKER, *_also(rng, key))
    ttl, count = rng.choice((*SHORT, *LONG)), b"%d" % len(keys)
    return (b"EVAL", scripts.ACQUIRE.text, count, *keys, token, ttl, grid, b"0", *place)


def _mangled(rng: Random, words: Words) -> Words:
    """Another number of words, another word, or another case."""
    place = rng.randrange(1, max(len(words), 2))
    return rng.choice(
        (
            words[:-1] or words,
            (*words, rng.choice(JUNK)),
            (*words[:place], rng.choice(JUNK), *words[place + 1 :]),
            (words[0].lower(), *words[1:]),
        )
    )


# The twin knows scripts in no other form than quorlock's, fewer options of these than the servers,
# and two of INFO's sections.
UNMANGLED: Words = (b"HELLO", b"EVAL", b"EVALSHA", b"INFO", b"PING", b"FLUSHALL", b"KEYS")
UNMANGLED += (b"SUBSCRIBE", b"UNSUBSCRIBE", b"PUBLISH", b"ZADD", b"ZREM", b"ZCARD", b"ZRANGE")


def _set(rng: Random, key: bytes) -> Words:
    options: list[bytes] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        option = rng.choice((b"NX", b"XX", b"PX", b"PX", b"EX", b"px", b"nx"))
        options.append(option)
        if option.upper() in (b"PX", b"EX"):
            options.append(_ttl(rng) if option != b"EX" else rng.choice((b"1", b"100", *ODD)))
    return (b"SET", key, rng.choice(TOKENS), *options)


def _many(rng: Random, key: bytes) -> Words:
    return (rng.choice((b"DEL", b"EXISTS")), *rng.choices(KEYS, k=rng.choice((1, 1, 2, 3))))


def _other_type(rng: Random, key: bytes) -> Words:
    return (b"RPUSH", key, *rng.choices(TOKENS, k=rng.randint(1, 3)))


def _about_all(rng: Random, key: bytes) -> Words:
    return rng.choice(((b"KEYS", rng.choice(PATTERNS)), (b"FLUSHALL",)))


def _about_us(rng: Random, key: bytes) -> Words:
    return rng.choice(
        (
            (b"PING",),
            (b"TIME",),
            (b"HELLO", *rng.choice(HELLOS)),
            (b"INFO", b"replication"),
            (
                rng.choice((b"FOO", b"", b"script|load", b"NO\r\nSUCH", b"x" * 130)),
                *rng.choices(JUNK, k=2),
                b"y" * 200,
            ),
            (b"FOO", b"\xc3\xa4" * 63, b"\xc3\xa4\x00z"),
        )
    )


HELLOS: tuple[Words, ...] = (
    *((), (b"3",), (b"4",), (b"x",)),
    *((b"3", b"SETNAME", b"me"), (b"3", b"SETNAME"), (b"3", b"FOO")),
)


def _no_ttl(rng: Random, key: bytes) -> Words:
    return (b"SET", key, rng.choice(TOKENS[:2]))


Maker = Callable[[Random, bytes], Words]
WEIGHED: tuple[tuple[int, Maker], ...] = (
    (20, lambda rng, key: (b"SET", key, rng.choice(TOKENS), b"NX", b"PX", _ttl(rng))),
    (12, lambda rng, key: _script(rng, scripts.RELEASE, key)),
    (14, lambda rng, key: _script(rng, scripts.EXTEND, key)),
    (10, lambda rng, key: _script(rng, scripts.KEEP, key)),
    (8, lambda rng, key: _script(rng, scripts.INSPECT, key)),
    (3, lambda rng, key: _script(rng, scripts.PROBE, key)),
    (3, lambda rng, key: (b"SET", key, rng.choice(MARKERS))),
    (6, _guard),
    (16, _fencing),
    (34, _queue),
    (14, _reserve),
    (16, _readers),
    (8, _listen),
    (6, _queue_key),
    (8, _side_keys),
    (8, _set),
    (6, _no_ttl),
    (5, lambda rng, key: (b"GET", key)),
    (5, lambda rng, key: (b"PTTL", key)),
    (6, _many),
    (3, _other_type),
    (4, _about_all),
    (4, _about_us),
)
FOLLOWED: dict[Maker, Callable[[Random, Words], list[Words]]] = {
    _reserve: _after_reservation,
    _no_ttl: _after_no_ttl,
    _fencing: _after_acquire,
    _readers: _after_reader,
}
WEIGHTS, MAKERS = [weight for weight, _ in WEIGHED], [make for _, make in WEIGHED]


# --- playing them on a real server ----------------------------------------------------------------


class Real:
    """One connection to a real server, on which sequences are played and written down."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(server.path)
        self.file = self.socket.makefile("rb")
        self.talk((b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"))  # keys go when a command finds them
        info_text = self.talk((b"INFO", b"server"))[0].decode()
        self.info = dict(line.split(":", 1) for line in info_text.splitlines() if ":" in line)
        valkey = self.info.get("valkey_version")
        self.version = f"Valkey {valkey}" if valkey else f"Redis {self.info['redis_version']}"
        self.old = "valkey_version" not in self.info and self.info["redis_version"] < "7.2"

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def talk(self, *packet: Words) -> list[Any]:
        """Send commands together and await their replies."""
        return [reply for reply, _ in self.talk_and_hear(*packet)]

    def talk_and_hear(self, *packet: Words) -> list[tuple[Any, list[Any]]]:
        """Send commands together; await their replies, and messages before each of them."""
        self.socket.sendall(b"".join(pack(*words) for words in packet))
        replies: list[tuple[Any, list[Any]]] = []
        for _ in packet:
            pushed: list[Any] = []
            while isinstance(reply := read(self.file), Push) and reply[0] == b"message":
                pushed.append(reply)
            replies.append((reply, pushed))
        return replies

    def play(self, steps: Sequence[Step]) -> Transcript:
        """Play a sequence from the state of a new node."""
        # A replica for a moment: whatever it was before, it has followed another from now on.
        self.talk(TURNS["replica"], TURNS["master"], (b"CONFIG", b"SET", b"maxmemory", b"0"))
        self.talk((b"HELLO", b"3"), (b"FLUSHALL",), (b"SCRIPT", b"FLUSH"))
        self.talk(*((b"UNSUBSCRIBE", channel_of(inbox)) for inbox in INBOXES))
        written: Transcript = []
        packet: list[Words] = []
        for step in steps:
            if isinstance(step, Ask):
                packet.append(step.words)
                continue
            written += self.asked(packet)
            packet = []
            written += self.done(step)
        return written + self.asked(packet)

    def done(self, step: Wait | Watch | Turn) -> Iterator[Exchange | Turn]:
        if isinstance(step, Wait):
            time.sleep(step.seconds)
        elif isinstance(step, Turn):
            (reply,) = self.talk(TURNS[step.into])
            assert reply == b"OK", reply
            yield step
        else:
            until = time.monotonic() + step.seconds
            while time.monotonic() < until:
                yield from self.asked([step.words])

    def asked(self, packet: Sequence[Words]) -> list[Exchange | Turn]:
        if not packet:
            return []
        bracketed = [word for words in packet for word in ((b"TIME",), words)]
        replies = self.talk_and_hear(*bracketed, (b"TIME",))
        instants = [int(s) * 1000 + int(us) // 1000 for (s, us), _ in replies[::2]]
        # Redis 7.0 sends messages to itself before the reply, Valkey after it.
        pushed = [
            (*own, *after)
            for (_, own), (_, after) in zip(replies[1::2], replies[2::2], strict=True)
        ]
        # Sorted: the machine's clock may be set back in between.
        between = [sorted(pair) for pair in pairwise(instants)]
        exchange = zip(packet, between, replies[1::2], pushed, strict=True)
        return [
            Exchange(words, first, last, reply, messages)
            for words, (first, last), (reply, _), messages in exchange
        ]


TURNS: dict[str, Words] = {
    "replica": (b"REPLICAOF", b"127.0.0.1", b"1"),  # where no master is
    "master": (b"REPLICAOF", b"NO", b"ONE"),
    "full": (b"CONFIG", b"SET", b"maxmemory", b"1"),
    "roomy": (b"CONFIG", b"SET", b"maxmemory", b"0"),
}


def read(file: Any) -> Any:
    """One reply, with the server's own difference between texts, statuses and strings."""
    line: bytes = file.readline()
    kind, body = line[:1], line[1:-2]
    if kind == b"_" or (body == b"-1" and kind in b"$*"):
        return None
    return _READERS[kind](body, file)


def _data(size: bytes, file: Any) -> bytes:
    data: bytes = file.read(int(size) + 2)
    return data[:-2]


# What RESP2 (before HELLO) and RESP3 have; with another reply we do not know what to do.
_READERS: dict[bytes, Callable[[bytes, Any], Any]] = {
    b"+": lambda text, _: Status(text),
    b"-": lambda text, _: Error(text.decode("utf-8", "surrogateescape")),
    b":": lambda number, _: int(number),
    b"$": _data,
    b"=": lambda size, file: Text(_data(size, file).removeprefix(b"txt:")),
    b"*": lambda count, file: [read(file) for _ in range(int(count))],
    b">": lambda count, file: Push(read(file) for _ in range(int(count))),
    b",": lambda number, _: float(number),
    b"%": lambda count, file: {read(file): read(file) for _ in range(int(count))},
}


# --- judging the twin -----------------------------------------------------------------------------


# Replication ids as no server has them; `comparable` takes the server's for these.
_FOLLOWED = (b".%040x" % number for number in count(1))
_ANY_ID = re.compile(rb"\.[0-9a-f]{40}:")


class Twin(FakeNode):
    """The node itself; it only counts what it meets."""

    def __init__(self, run_id: str = "", started: int = 0) -> None:
        super().__init__(run_id, started)
        self.followed = next(_FOLLOWED)

    seen: Counter[str]
    late: tuple[int, ...] = (0,)  # ms by which a script's expiries are set after its begin, each

    def alive(self, key: bytes, at: int) -> Entry | None:
        entry = self.keys.get(key)
        found = super().alive(key, at)
        if entry is not None and entry.until is not None:
            self.seen["expired"] += found is None
            self.seen["a ms later"] += at == entry.until + 1
            self.seen["at their last ms"] += at == entry.until
        return found

    def expire_at(self, key: bytes, entry: Entry, until: int, at: int) -> None:
        late, self.late = self.late[0], self.late[1:] or self.late
        super().expire_at(key, entry, until + late, at)

    def guard(self, key: bytes, run_id: bytes, worth: bytes, at: int) -> Reply:
        # Before 7.2 TIME advances within a script, expiry does not.
        found = self.alive(key, at)
        if found is not None:
            self.keys[key] = found._replace(until=None)
        reply = super().guard(key, run_id, worth, at + self.late[0])
        if found is not None and self.keys[key].value == found.value:
            self.keys[key] = found
        return reply


@dataclass
class Course:
    """One possible course: a fake node, and the last instant that it was given."""

    session: ClientSession
    at: int = 0

    def copy(self) -> Course:
        old, node = self.session, type(self.session.node)()
        node.keys, node.known = dict(old.node.keys), set(old.node.known)
        node.read_only, node.full = old.node.read_only, old.node.full
        node._saved, node.followed = old.node._saved, old.node.followed
        if isinstance(node, Twin) and isinstance(old.node, Twin):
            node.seen = old.node.seen
        session = type(old)(node)
        for channel in old.channels:
            node.subscribe(channel, session.hear)
        session.channels = list(old.channels)
        return Course(session, self.at)

    def turn(self, into: str) -> None:
        node = self.session.node
        if into in {"replica", "master"}:
            if node.read_only and into == "master":
                node.followed = next(_FOLLOWED)
            node.read_only = into == "replica"
        elif into in {"full", "roomy"}:
            node.full = into == "full"
        elif into == "save":
            node.save()
        else:
            node.restart("another", memory=into)
            self.session = type(self.session)(node)

    def facts(self) -> object:
        node = self.session.node
        return (
            frozenset(node.keys.items()),
            frozenset(node.known),
            node.followed,
            tuple(self.session.channels),
            self.at,
        )


class Disagreement(NamedTuple):
    """The server's reply, and the possible ones of the fake node, by the ms."""

    place: int
    exchange: Exchange
    twin: dict[int, Any]

    def __str__(self) -> str:
        said = [f"    twin at {at}: {reply!r}" for at, reply in self.twin.items()]
        words = shown(self.exchange.words)
        return "\n".join(
            [
                f"  {words}",
                f"    real:  {self.exchange.reply!r} {self.exchange.pushed or ''}",
                *said,
            ]
        )


def compare(
    transcript: Transcript, first: ClientSession, *, old: bool = False
) -> Disagreement | None:
    """Return the first reply that the fake node would not have given, whichever ms it was.

    old: a server before 7.2, whose clock may advance to the next ms within one command, also
    between the two expiries that an acquire with a fence sets.
    """
    courses = [Course(first)]
    for place, exchange in enumerate(transcript):
        if isinstance(exchange, Turn):
            for course in courses:
                course.turn(exchange.into)
            continue
        real = comparable(exchange.words, exchange.reply)
        following: dict[object, Course] = {}
        said: dict[int, Any] = {}
        for course, at, late in instants(courses, exchange, old=old):
            pushed: list[Push] = []
            course.session.on_push = pushed.append
            reply = answer(course, exchange.words, at, late)
            said[at] = (reply, *pushed) if pushed else reply
            if same(reply, real) and pushed == list(exchange.pushed):
                following[course.facts() if exchange.first < exchange.last else id(course)] = course
        if not following:
            return Disagreement(place, exchange, said)
        courses = list(following.values())
    return None


def instants(
    courses: list[Course], exchange: Exchange, *, old: bool
) -> Iterator[tuple[Course, int, tuple[int, ...]]]:
    """Yield every course with every ms to which it may advance, and the delay of its second
    expiry.
    """
    if exchange.first == exchange.last:
        yield from ((course, exchange.last, (0,)) for course in courses)
        return
    for course in courses:
        for at in range(max(course.at, exchange.first), exchange.last + 1):
            lates = range(exchange.last - at + 1) if old else (0,)
            for late in combinations_with_replacement(lates, 2):
                yield course.copy(), at, late


def answer(course: Course, words: Words, at: int, late: tuple[int, ...]) -> Any:
    """The twin's reply as it would come off the wire."""
    course.at = at
    node = course.session.node
    if isinstance(node, Twin):
        node.late = late
    reply = course.session.execute(words, at)
    return comparable(words, reply)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


CLOCKED = tuple(word for script in FENCING for word in (script.text, script.sha))
# Redis 7.0 in the words of Valkey 9.
TONGUE = {
    **{
        f" script: {s.sha.decode()}, on @": " script: on @"
        for s in (*SCRIPTS, GUARD, scripts.PROBE, *FENCING)
    },
    "No matching script. Please use EVAL.": "No matching script.",
    "Lua redis lib command arguments must": "Command arguments must",
}


def comparable(words: Words, reply: Any) -> Any:
    """The reply without what may differ: order, who is who, and the servers' tongues."""
    reply = without_ids(reply)
    if isinstance(reply, Error):
        return in_valkeys_words(reply)
    if (
        words[0].upper() in (b"EVAL", b"EVALSHA")
        and words[1] in CLOCKED
        and isinstance(reply, list)
    ):
        return [reply[0], *reply[2:]]  # its clock may be of the ms before, on servers before 7.2
    essence = _ESSENCES.get(words[0].upper())
    return essence(reply) if essence else reply


def without_ids(reply: Any) -> Any:
    if isinstance(reply, list):
        return [without_ids(part) for part in reply]
    return _ANY_ID.sub(b".id:", reply) if type(reply) is bytes else reply


def in_valkeys_words(error: Error) -> Error:
    text = str(error)
    for redis, valkey in TONGUE.items():
        text = text.replace(redis, valkey)
    return Error(text)


def _server_info(reply: Any) -> Any:
    ours = (b"proto", b"mode", b"role")
    return {key: reply[key] if key in ours else None for key in reply}


_ESSENCES: dict[bytes, Callable[[Any], Any]] = {
    b"TIME": lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000,
    b"KEYS": sorted,
    b"INFO": lambda reply: (type(reply), [x for x in reply.splitlines() if x[:5] == b"role:"]),
    b"HELLO": _server_info,
}


# --- making them short ----------------------------------------------------------------------------


def shrunk(steps: list[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Remove every step, or run of steps, without which it still fails."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            without = steps[:start] + steps[start + size :]
            if fails(without):
                steps = without
            else:
                start += size
        size //= 2
    return steps


def shown(step: Step | Words) -> str:
    """One line for people."""
    if isinstance(step, Ask):
        return shown(step.words)
    if isinstance(step, Wait):
        return f"({step.seconds * 1000:.1f} ms)"
    if isinstance(step, Watch):
        return f"for {step.seconds * 1000:.1f} ms: {shown(step.words)}"
    if isinstance(step, Turn):
        return f"({step.into})"
    return " ".join(_shown_word(word) for word in step)


def _shown_word(word: bytes) -> str:
    names = {getattr(scripts, name).text: name.lower() for name in NAMES}
    return f"<{names[word]}.lua>" if word in names else repr(word)[1:]
