"""What is said about fences on the wire: replies of the two scripts, and scripts in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from quorlock import scripts
from quorlock._core.commands import AcquireByScript, Command, Raise, Release
from quorlock._core.outcomes import ABSENT, Answer, Cause, Vote
from quorlock._wire.answers import NONSENSE, interpret
from quorlock._wire.conversation import Conversation, Question
from quorlock._wire.packing import pack, pack_in_full

ACQUIRE = AcquireByScript(b"k", b"t", 1_000, 250, 0)
RAISE = Raise(b"k", b"t", 1_795_000_000_000_007, 500)
US = 1_795_000_000_000_000
COUNTER_OFF = "its fence counter is no number, or more than a day ahead of its clock"
NO_TTL = "held by another, by a key without ttl"

MEANT: list[tuple[Command, Any, Answer]] = [
    (ACQUIRE, [1, US, US + 7], Answer(Vote.GRANTED, Cause.YES, fence=US + 7, clock_us=US)),
    (ACQUIRE, [1, US, 0], Answer(Vote.GRANTED, Cause.YES, clock_us=US)),
    (ACQUIRE, [0, US, 900], Answer(Vote.REFUSED, Cause.HELD, "", 900, clock_us=US)),
    (ACQUIRE, [0, US, -1], Answer(Vote.REFUSED, Cause.HELD, NO_TTL, -1, clock_us=US)),
    (ACQUIRE, [0, US, -2], ABSENT._replace(clock_us=US)),
    (ACQUIRE, [-2, US, 0], Answer(Vote.REFUSED, Cause.SKEWED, COUNTER_OFF, clock_us=US)),
    (RAISE, [1, US, US + 7], Answer(Vote.GRANTED, Cause.YES, fence=US + 7, clock_us=US)),
    (RAISE, [0, US, 900], Answer(Vote.REFUSED, Cause.HELD, "", 900, clock_us=US)),
    (RAISE, [-1, US, 0], Answer(Vote.REFUSED, Cause.ABSENT, clock_us=US)),
    (RAISE, [-2, US, 0], Answer(Vote.REFUSED, Cause.UNFENCED, clock_us=US)),
    (RAISE, [-3, US, 0], Answer(Vote.REFUSED, Cause.SKEWED, clock_us=US)),
]


@pytest.mark.parametrize(("command", "reply", "answer"), MEANT, ids=range(len(MEANT)))
def test_every_reply_that_a_command_can_have(command: Command, reply: Any, answer: Answer) -> None:
    assert interpret(command, reply) == answer


@pytest.mark.parametrize(("left_ms", "seconds"), [(1, 1), (1_000, 1), (1_001, 2), (27_300, 28)])
def test_a_node_that_is_kept_out_says_for_how_long(left_ms: int, seconds: int) -> None:
    """It gave no vote, and no fault either."""
    answer = interpret(ACQUIRE, [-1, US, left_ms])
    assert (answer.vote, answer.cause) == (Vote.UNKNOWN, Cause.RESTARTED)
    assert answer.reason.endswith(f"votes again in {seconds} s")
    assert not answer.is_fault
    assert not answer.is_lock_answer


SHAPES: list[Any] = [
    *(None, 1, b"OK", [], [1], [1, US], [1, US, 7, 7], {1: US}, True),
    *([True, US, 7], [1, b"5", 7], [1, US, None], [1.0, US, 7], [1, 0, 7], [1, -5, 7]),
]
WRONG: list[tuple[Command, Any]] = [
    *((ACQUIRE, reply) for reply in [*SHAPES, [2, US, 7], [1, US, -7], [-1, US, 0], [-3, US, 0]]),
    *((ACQUIRE, reply) for reply in [[0, US, -3], [-2, US, 7]]),
    *((RAISE, reply) for reply in [*SHAPES, [2, US, 7], [1, US, 0], [-4, US, 0], [-2, US, 7]]),
]


@pytest.mark.parametrize(("command", "reply"), WRONG, ids=range(len(WRONG)))
def test_other_shapes_are_nonsense(command: Command, reply: Any) -> None:
    assert interpret(command, reply) == NONSENSE


# --- scripts in full --------------------------------------------------------------------------


@dataclass
class Asker:
    over: bool = False
    round: int = 1


def asked(conversation: Conversation, command: Command, asker: Asker) -> bytes:
    return conversation.ask(Question(command, asker, 1, 0), pack(command))


def heard(conversation: Conversation, reply: bytes) -> list[Answer]:
    conversation.feed(reply, len(reply))
    return [answer for _, answer in conversation.answers()]


@pytest.mark.parametrize("command", [ACQUIRE, RAISE])
def test_the_first_on_a_connection_goes_in_full(command: Command) -> None:
    """So that no second round trip is needed where nobody has used the script yet."""
    conversation = Conversation(None, 1)
    assert asked(conversation, command, Asker()) == pack_in_full(command)
    assert asked(conversation, command, Asker()) == pack(command)
    assert asked(conversation, Release(b"k", b"t"), Asker()).count(scripts.RELEASE.text) == 1


NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"


@pytest.mark.parametrize("command", [ACQUIRE, RAISE])
def test_a_forgotten_script_is_sent_again_while_its_round_is_on(command: Command) -> None:
    """Once; the release of its token, which comes later, goes behind it."""
    conversation = Conversation(None, 1)
    asked(conversation, command, Asker())
    assert len(heard(conversation, b"*3\r\n:1\r\n:5\r\n:7\r\n")) == 1
    asked(conversation, command, Asker())
    assert heard(conversation, NOSCRIPT) == []
    assert conversation.unsent == pack_in_full(command)
    assert conversation.awaits_acquire(b"t") is (command is ACQUIRE)
    (answer,) = heard(conversation, NOSCRIPT)
    assert answer.cause is Cause.FAILED


@pytest.mark.parametrize(
    ("command", "asker"),
    [(ACQUIRE, Asker(over=True)), (ACQUIRE, Asker(round=2)), (RAISE, Asker(over=True))],
)
def test_it_is_not_sent_again_when_the_round_is_over(command: Command, asker: Asker) -> None:
    """It would be a key that nobody gives back (rule 3); but the next one goes in full."""
    conversation = Conversation(None, 1)
    asked(conversation, command, Asker())
    heard(conversation, b"*3\r\n:1\r\n:5\r\n:7\r\n")
    asked(conversation, command, asker)
    (answer,) = heard(conversation, NOSCRIPT)
    assert answer.cause is Cause.FAILED
    assert conversation.unsent == b""
    assert not conversation.questions
    assert asked(conversation, command, Asker()) == pack_in_full(command)


def test_one_that_was_never_answered_leaves_a_debt() -> None:
    conversation = Conversation(None, 1)
    asked(conversation, ACQUIRE, Asker())
    asked(conversation, RAISE, Asker())
    assert list(conversation.owed_releases()) == [ACQUIRE]
