"""Fences in the protocol: replies of the two scripts, and scripts in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from quorlock import scripts
from quorlock._core.commands import Command, IssueFence, Release, ScriptedAcquire
from quorlock._core.rounds import NodeReply
from quorlock._core.votes import ABSENT, Answer, Vote
from quorlock._protocol.encoding import encode, encode_eval
from quorlock._protocol.pipeline import PendingRequest, RequestPipeline
from quorlock._protocol.replies import NONSENSE
from quorlock.errors import VoteCode
from tests.unit.protocol.test_answers import interpret

ACQUIRE = ScriptedAcquire(b"k", b"t", 1_000, 250, 0)
RAISE = IssueFence(b"k", b"t", 1_795_000_000_000_007, 500)
US = 1_795_000_000_000_000
COUNTER_OFF = "its fence counter is no number, or more than a day ahead of its clock"

MEANT: list[tuple[Command, Any, Answer]] = [
    (ACQUIRE, [1, US, US + 7], Answer(Vote.GRANTED, VoteCode.GRANTED, fence=US + 7, clock_us=US)),
    (ACQUIRE, [1, US, 0], Answer(Vote.GRANTED, VoteCode.GRANTED, clock_us=US)),
    (ACQUIRE, [0, US, 900], Answer(Vote.REFUSED, VoteCode.HELD, "", 900, clock_us=US)),
    (ACQUIRE, [0, US, -1], Answer(Vote.REFUSED, VoteCode.HELD_WITHOUT_TTL, "", -1, clock_us=US)),
    (ACQUIRE, [0, US, -2], ABSENT._replace(clock_us=US)),
    (ACQUIRE, [-2, US, 0], Answer(Vote.REFUSED, VoteCode.CLOCK_SKEW, COUNTER_OFF, clock_us=US)),
    (RAISE, [1, US, US + 7], Answer(Vote.GRANTED, VoteCode.GRANTED, fence=US + 7, clock_us=US)),
    (RAISE, [0, US, 900], Answer(Vote.REFUSED, VoteCode.HELD, "", 900, clock_us=US)),
    (RAISE, [-1, US, 0], Answer(Vote.REFUSED, VoteCode.KEY_MISSING, clock_us=US)),
    (RAISE, [-2, US, 0], Answer(Vote.REFUSED, VoteCode.FENCE_MISMATCH, clock_us=US)),
    (RAISE, [-3, US, 0], Answer(Vote.REFUSED, VoteCode.CLOCK_SKEW, clock_us=US)),
]


@pytest.mark.parametrize(("command", "reply", "answer"), MEANT, ids=range(len(MEANT)))
def test_every_reply_that_a_command_can_have(command: Command, reply: Any, answer: Answer) -> None:
    assert interpret(command, reply) == answer


@pytest.mark.parametrize(("left_ms", "seconds"), [(1, 1), (1_000, 1), (1_001, 2), (27_300, 28)])
def test_a_node_that_is_kept_out_says_for_how_long(left_ms: int, seconds: int) -> None:
    """The node gave no vote, and no error either."""
    answer = interpret(ACQUIRE, [-1, US, left_ms])
    assert (answer.vote, answer.code) == (Vote.UNKNOWN, VoteCode.QUARANTINED)
    assert answer.reason == f"started, emptied or first used, votes in {seconds} s"
    assert answer.quarantine == ("started, emptied or first used", None, left_ms / 1000)
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
def test_other_shapes_are_protocol_errors(command: Command, reply: Any) -> None:
    assert interpret(command, reply) == NONSENSE


# --- scripts in full --------------------------------------------------------------------------


@dataclass
class Asker:
    over: bool = False
    round: int = 1

    def deliver(self, reply: NodeReply) -> None: ...


def asked(pipeline: RequestPipeline, command: Command, receiver: Asker) -> bytes:
    return pipeline.append(PendingRequest(command, receiver, 1, 0), encode(command))


def parsed(pipeline: RequestPipeline, reply: bytes) -> list[Answer]:
    pipeline.feed(reply, len(reply))
    return [answer for _, answer in pipeline.parse_replies()]


@pytest.mark.parametrize("command", [ACQUIRE, RAISE])
def test_the_first_on_a_connection_goes_in_full(command: Command) -> None:
    """The full text saves a second round trip if the script is not loaded yet."""
    pipeline = RequestPipeline(None)
    assert asked(pipeline, command, Asker()) == encode_eval(command)
    assert asked(pipeline, command, Asker()) == encode(command)
    assert asked(pipeline, Release(b"k", b"t"), Asker()).count(scripts.RELEASE.text) == 1


NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"


@pytest.mark.parametrize("command", [ACQUIRE, RAISE])
def test_a_forgotten_script_is_sent_again_while_its_round_is_on(command: Command) -> None:
    """Once; the release of its token, which comes later, goes behind it."""
    pipeline = RequestPipeline(None)
    asked(pipeline, command, Asker())
    assert len(parsed(pipeline, b"*3\r\n:1\r\n:5\r\n:7\r\n")) == 1
    asked(pipeline, command, Asker())
    assert parsed(pipeline, NOSCRIPT) == []
    assert pipeline.outgoing == encode_eval(command)
    assert pipeline.has_pending_acquire(b"t") is (command is ACQUIRE)
    (answer,) = parsed(pipeline, NOSCRIPT)
    assert answer.code is VoteCode.TRANSIENT_ERROR


@pytest.mark.parametrize(
    ("command", "receiver"),
    [(ACQUIRE, Asker(over=True)), (ACQUIRE, Asker(round=2)), (RAISE, Asker(over=True))],
)
def test_it_is_not_sent_again_when_the_round_is_over(command: Command, receiver: Asker) -> None:
    """The key would never be released (rule 3); but the next one goes in full."""
    pipeline = RequestPipeline(None)
    asked(pipeline, command, Asker())
    parsed(pipeline, b"*3\r\n:1\r\n:5\r\n:7\r\n")
    asked(pipeline, command, receiver)
    (answer,) = parsed(pipeline, NOSCRIPT)
    assert answer.code is VoteCode.TRANSIENT_ERROR
    assert pipeline.outgoing == b""
    assert not pipeline.pending
    assert asked(pipeline, command, Asker()) == encode_eval(command)


def test_one_that_was_never_answered_leaves_a_pending_release() -> None:
    pipeline = RequestPipeline(None)
    asked(pipeline, ACQUIRE, Asker())
    asked(pipeline, RAISE, Asker())
    assert list(pipeline.keys_in_doubt()) == [ACQUIRE]
