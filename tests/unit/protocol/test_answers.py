"""Every reply and every error text means what shared/faults.md says; other shapes are nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock._core.commands import (
    Acquire,
    Command,
    Extend,
    Inspect,
    Keep,
    Release,
    ScriptedAcquire,
)
from quorlock._core.votes import ABSENT, GRANTED, HELD, Answer, Vote
from quorlock._protocol.replies import NONSENSE, READERS, error_answer, printable
from quorlock.errors import VoteCode

ACQUIRE, EXTEND = Acquire(b"k", b"t", 1_000), Extend(b"k", b"t", 1_000)
RELEASE, INSPECT = Release(b"k", b"t"), Inspect(b"k")
KEEP = Keep(b"k", b"t", b"mark", 1_000)
SCRIPTED = ScriptedAcquire(b"k", b"t", 1_000)
OWNED = b"0123456789abcdef0123456789abcdef@web:1"
COMMANDS: list[Command] = [ACQUIRE, EXTEND, KEEP, RELEASE, INSPECT]


def interpret(command: Command, reply: Any) -> Answer:
    return READERS[type(command)](reply)


def found(ttl_left_ms: int, holder: bytes | None = None, owner: bytes = b"") -> Answer:
    code = VoteCode.HELD_WITHOUT_TTL if ttl_left_ms == -1 else VoteCode.HELD
    return Answer(Vote.REFUSED, code, "", ttl_left_ms, holder, owner=owner)


MEANT: list[tuple[Command, Any, Answer]] = [
    (ACQUIRE, b"OK", GRANTED),
    (ACQUIRE, None, HELD),
    (EXTEND, 1, GRANTED),
    (EXTEND, 0, HELD),
    (EXTEND, -1, ABSENT),
    (KEEP, 1, GRANTED),
    (KEEP, 0, HELD),
    (KEEP, -1, ABSENT),
    (RELEASE, -3, GRANTED),
    (RELEASE, -2, ABSENT),
    (RELEASE, [-3, b"", 0], GRANTED),
    (RELEASE, [-2, b"", 1], ABSENT._replace(before=1)),
    (RELEASE, [5, b"", 0], found(5)),
    (RELEASE, [5, b"o", 2], found(5, owner=b"o")._replace(before=2)),
    (RELEASE, [-3, b"", 4, 0, 0], GRANTED._replace(ticket=4, ahead=0)),
    (RELEASE, [5, b"o", 4, 1, 2], found(5, owner=b"o")._replace(ticket=4, ahead=1, before=2)),
    (SCRIPTED, [0, 77, 5, 0], found(5)._replace(clock_us=77)),
    (SCRIPTED, [0, 77, 5, 3], found(5)._replace(clock_us=77, before=3)),
    (RELEASE, -1, found(-1)),
    (RELEASE, 0, found(0)),
    (RELEASE, 1, found(1)),
    (RELEASE, 30_000, found(30_000)),
    (RELEASE, [30_000, b"web:1"], found(30_000, owner=b"web:1")),
    (RELEASE, [-1, b"\xff"], found(-1, owner=b"\xff")),
    (RELEASE, [-2, b"web:1"], ABSENT),
    (RELEASE, [-3, b"", 7, 0], GRANTED._replace(ticket=7, ahead=0)),
    (RELEASE, [-2, b"", 0, -1], ABSENT),
    (RELEASE, [90, b"", 7, -1], found(90)._replace(ticket=7)),
    (RELEASE, [90, b"web:1", 7, 3], found(90, owner=b"web:1")._replace(ticket=7, ahead=3)),
    (INSPECT, [None, -2, 0], ABSENT._replace(ahead=0)),
    (INSPECT, [None, -2, 3], ABSENT._replace(ahead=3)),
    (INSPECT, [b"t", -1, 0], found(-1, b"t")._replace(ahead=0)),
    (INSPECT, [b"t", 0, 1], found(0, b"t")._replace(ahead=1)),
    (INSPECT, [b"\xff", 5, 0], found(5, b"\xff")._replace(ahead=0)),
    (INSPECT, [b"", 5, 0], found(5, b"")._replace(ahead=0)),
    (INSPECT, [OWNED, 5, 0], found(5, OWNED, b"web:1")._replace(ahead=0)),
    (INSPECT, [OWNED[1:], 5, 0], found(5, OWNED[1:])._replace(ahead=0)),
    (SCRIPTED, [1, 9, 0], Answer(Vote.GRANTED, VoteCode.GRANTED, clock_us=9)),
    (
        SCRIPTED,
        [1, 9, 8, 1, 1],
        Answer(Vote.GRANTED, VoteCode.GRANTED, fence=8, clock_us=9, ahead=1, replaced=True),
    ),
    (SCRIPTED, -3, GRANTED._replace(ahead=0)),
    (SCRIPTED, -4, GRANTED._replace(ahead=1)),
    (SCRIPTED, -5, GRANTED._replace(ahead=0, replaced=True)),
    (SCRIPTED, -6, GRANTED._replace(ahead=1, replaced=True)),
]


@pytest.mark.parametrize(("command", "reply", "answer"), MEANT, ids=range(len(MEANT)))
def test_every_reply_that_a_command_can_have(command: Command, reply: Any, answer: Answer) -> None:
    """The scripts' headers, read from the client's side."""
    assert interpret(command, reply) == answer
    assert not answer.is_fault


NO_ACQUIRED: list[Any] = [b"ok", b"QUEUED", b"", 1, 0, True, False, [], [b"OK"], 1.0]
NO_EXTENDED: list[Any] = [2, -2, -3, True, False, 1.0, None, b"1", b"OK", [1], {}]
NO_RELEASED: list[Any] = [
    -4,
    True,
    False,
    -3.0,
    None,
    b"-3",
    b"OK",
    [-3],
    [],
    [-3, b"o"],
    [5, None],
    [5, 5],
    [b"o", 5],
    [5, b"o", -5],
    [5, b"o", None],
    [-4, b"", 0],
    [5, b"o", -1, 0],
    [5, b"o", 1, -2],
    [5, b"o", 1.0, 0],
    [5, b"o", 1, None],
    [5, b"o", 1, 0, -1],
    [5, b"o", 1, 0, 0, 0],
    [-4, b"", 1, 0],
    [-3, b"o", 1, 0],
    [5, None, 1, 0],
]
NO_SCRIPTED: list[Any] = [
    -2,
    -7,
    0,
    1,
    [1, 9, 0, 0, 0],
    [1, 9, 8, 2, 0],
    [1, 9, 0, 0],
    [1, 9, 0, 0, 0, 0],
    [0, 9, 5, 0, 0],
    [1, 9, 8, -1, 0],
    [1, 9, 8, None, 0],
    [1, 9, 8, 0, b"1"],
    [1, 0, 8, 0, 0],
    [1, 9, -1, 0, 0],
]
NO_INSPECTED: list[Any] = [
    None,
    b"t",
    5,
    [],
    [b"t"],
    [b"t", 5],
    {b"t": 5},
    [1, 5, 0],
    [False, 5, 0],
]
NO_INSPECTED += [[b"t", 5, n] for n in (-1, None, b"1", True)]
NO_TTL: list[Any] = [None, True, b"5", 5.0, -3, [5]]

WRONG: list[tuple[Command, Any]] = [
    *((ACQUIRE, reply) for reply in NO_ACQUIRED),
    *((command, reply) for command in (EXTEND, KEEP) for reply in NO_EXTENDED),
    *((RELEASE, reply) for reply in NO_RELEASED),
    *((INSPECT, reply) for reply in NO_INSPECTED),
    *((SCRIPTED, reply) for reply in NO_SCRIPTED),
    *((INSPECT, [b"t", ttl, 0]) for ttl in NO_TTL),
]


@pytest.mark.parametrize(("command", "reply"), WRONG, ids=range(len(WRONG)))
def test_other_shapes_are_protocol_errors(command: Command, reply: Any) -> None:
    """An impossible reply to the command is not a vote: the lock may be granted."""
    assert interpret(command, reply) == NONSENSE
    assert (NONSENSE.vote, NONSENSE.is_lasting) == (Vote.UNKNOWN, True)


SHAPES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(deadline=None)
@given(st.sampled_from(COMMANDS), SHAPES)
def test_no_shape_is_granted_by_accident(command: Command, reply: Any) -> None:
    """Whatever comes is an answer, never an exception; granted only as the contract says."""
    answer = interpret(command, reply)
    if answer is GRANTED:
        said = {Acquire: b"OK", Extend: 1, Release: -3}[type(command)]
        assert type(reply) is type(said) or command is RELEASE
        assert reply in (said, [-3, b"", 0])  # the second of several keys


FAILED, FORBIDDEN = VoteCode.TRANSIENT_ERROR, VoteCode.PERMANENT_ERROR
DENIED = VoteCode.ACCESS_DENIED
SCRIPT = "script: 0123, on @user_script:5."
NESTED = "@user_script:5: The user executing the script can't run this command or subcommand"
READ_ONLY = "@user_script: 1: -READONLY You can't write against a read only replica."

# The texts of Redis 5 to 7 and Valkey 8 and 9 (faults.md, rows 8 and 21 to 25).
ERRORS: list[tuple[str, VoteCode]] = [
    ("LOADING Redis is loading the dataset in memory", FAILED),
    ("LOADING Valkey is loading the dataset in memory", FAILED),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", FAILED),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.", FAILED),
    ("CLUSTERDOWN Hash slot not served", FAILED),
    ("MISCONF Redis is configured to save RDB snapshots, but it's unable to persist", FAILED),
    ("NOREPLICAS Not enough good replicas to write.", FAILED),
    ("OOM command not allowed when used memory > 'maxmemory'.", FAILED),
    ("ERR max number of clients reached", FAILED),
    ("ERR Protocol error: invalid bulk length", FAILED),
    ("TRYAGAIN Multiple keys request during rehashing of slot", FAILED),
    ("UNKILLABLE Sorry the script already executed write commands", FAILED),
    ("NOSCRIPT No matching script. Please use EVAL.", FAILED),
    ("", FAILED),
    ("READONLY You can't write against a read only replica.", FORBIDDEN),
    (f"READONLY You can't write against a read only replica. {SCRIPT}", FORBIDDEN),
    (f"ERR Error running script (call to f_0): {READ_ONLY}", FORBIDDEN),
    ("NOAUTH Authentication required.", DENIED),
    ("WRONGPASS invalid username-password pair or user is disabled.", DENIED),
    ("NOPERM User u has no permissions to run the 'set' command", DENIED),
    ("NOPERM this user has no permissions to access one of the keys", DENIED),
    ("DENIED Redis is running in protected mode because", DENIED),
    ("MOVED 3999 127.0.0.1:6381", FORBIDDEN),
    ("ASK 3999 127.0.0.1:6381", FORBIDDEN),
    ("CROSSSLOT Keys in request don't hash to the same slot", FORBIDDEN),
    ("ERR unknown command 'EVALSHA'", FORBIDDEN),
    ("ERR unknown command `SET`", FORBIDDEN),
    ("ERR DB index is out of range", FORBIDDEN),
    ("ERR invalid DB index", FORBIDDEN),
    ("ERR AUTH <password> called without any password configured", DENIED),
    ("ERR Client sent AUTH, but no password is set", DENIED),
    ("ERR invalid password", DENIED),
    (f"ERR The user executing the script can't run this command or subcommand {SCRIPT}", DENIED),
    ("ERR The user executing the script can't access at least one of the keys", DENIED),
    (f"ERR ACL failure in script: User u has no permissions to run the 'get' {SCRIPT}", DENIED),
    (f"ERR Error running script (call to f_0): {NESTED}", DENIED),
]


@pytest.mark.parametrize(("text", "code"), ERRORS, ids=range(len(ERRORS)))
def test_every_error_text_passes_or_lasts(text: str, code: VoteCode) -> None:
    """An error is a vote against; permanent and transient errors are distinguished, missing
    permissions or logins from others, and the server's words are kept.
    """
    answer = error_answer(text)
    assert answer == Answer(Vote.REFUSED, code, text)
    assert answer.is_fault
    assert not answer.is_lock_answer
    assert answer.is_lasting is (code is not FAILED)


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        f"WRONGTYPE Operation against a key holding the wrong kind of value {SCRIPT}",
        "ERR Error running script (call to f_0123): @user_script:5: WRONGTYPE Operation against",
    ],
)
def test_wrong_type_has_our_own_message(text: str) -> None:
    """Also where an old server wraps it into its own."""
    assert error_answer(text) == Answer(Vote.REFUSED, VoteCode.WRONG_TYPE)
    assert error_answer(text).reason == "the key holds another type of data"


@settings(deadline=None)
@given(st.text(max_size=500))
def test_a_servers_words_are_fit_for_a_log(text: str) -> None:
    """One line, nothing that a terminal obeys, not endless; harmless texts are kept."""
    clean = printable(text)
    assert clean.isprintable()
    assert len(clean) <= 161
    if text.isprintable() and len(text) <= 160:
        assert clean == text
    assert error_answer(text).text in {clean, ""}


def test_a_long_text_is_cut() -> None:
    """160 characters and an ellipsis; escape sequences and bidi marks become question marks."""
    assert printable("x" * 160) == "x" * 160
    assert printable("x" * 161) == "x" * 160 + "…"
    assert printable("a\x1b[31m\r\n\u202eb\x00") == "a?[31m???b?"
