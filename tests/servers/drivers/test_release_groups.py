"""Releases that are sent as one command have the outcomes of releases that are sent alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock import scripts
from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire
from quorlock._core.rounds import Target
from quorlock._core.tally import quorum
from quorlock._core.usual import usual_release
from quorlock._drivers.aio.direct_task import DirectTask
from quorlock._drivers.clock import now
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import PendingRequest
from tests.servers.drivers.test_shared_pipeline import ERROR, NOSCRIPT, Net, healthy, receive

if TYPE_CHECKING:
    from quorlock._core.results import ReleaseResult
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.batching import SharedPipeline

EACH = scripts.RELEASE_EACH
# What a node says to the release of one lock.
FREED, ABSENT, HELD = b":-3\r\n", b":-2\r\n", b":77\r\n"


class Crowd:
    """Releases of many tasks, and nodes that know what they say to each."""

    def __init__(self, n: int) -> None:
        self.net = Net(n)
        self.tasks: list[DirectTask[ReleaseResult]] = []
        self.said: dict[tuple[int, bytes], bytes] = {}  # by node and key, if not FREED
        self.sent: list[list[list[bytes]]] = [[] for _ in range(n)]
        self.knows = [False] * n  # the script for groups
        healthy(self.net)
        for connector in self.net.loop_driver.connectors:
            assert connector.connection is not None
            connector.connection.pipeline.sent_scripts.has_release = True
        self.net.loop_driver.shared_pipeline.refresh_scripts()

    def release(self, key: bytes, claim: Any = None) -> DirectTask[ReleaseResult]:
        here, policy = self.net.loop_driver, self.net.node_states.policy
        target = Target((1 << self.net.n) - 1, here)
        usual = usual_release(claim or Keys(key), b"token of " + key, target, policy, None)
        assert usual is not None
        task = DirectTask(here, usual)
        self.tasks.append(task)
        task.begin()
        return task

    def flush(self) -> None:
        self.net.loop_driver._flush()

    def read(self, index: int) -> list[list[bytes]]:
        """Return what the node has been sent since the last time."""
        connection = self.net.loop_driver.connectors[index].connection
        if connection is None:
            return []
        wire: Any = connection._transport
        found = list(iter(wire.commands.gets, False))
        self.sent[index] += found
        return found

    def reply(self, words: list[bytes], index: int) -> bytes:
        name, script, number = words[:3]
        keys = words[3 : 3 + int(number)]
        if script not in EACH:
            return self.said.get((index, keys[0]), FREED)
        if name == b"EVALSHA" and not self.knows[index]:
            return NOSCRIPT
        self.knows[index] = True
        freed = all((index, key) not in self.said for key in keys)
        return FREED if freed else b":0\r\n"

    def answer(self, index: int) -> bool:
        """The node replies to all that it was sent."""
        connection = self.net.loop_driver.connectors[index].connection
        replies = [self.reply(words, index) for words in self.read(index)]
        if connection is not None and replies:
            receive(connection, b"".join(replies))
        return bool(replies)

    def outcomes(self) -> list[bool | None]:
        return [t.future.result().deleted if t.future.done() else None for t in self.tasks]


def test_releases_of_one_tick_are_few_commands() -> None:
    """The first group brings the script. The first release is alone, as the others follow later."""

    async def scene() -> None:
        crowd = Crowd(5)
        try:
            for number in range(60):
                crowd.release(b"lock number %08d" % number)
            crowd.flush()
            for index in range(5):
                commands = crowd.read(index)
                assert [int(words[2]) for words in commands] == [1, 31, 28]
                assert [words[0] for words in commands] == [b"EVALSHA", b"EVAL", b"EVALSHA"]
                tokens = [word for words in commands for word in words[3 + int(words[2]) :]]
                assert tokens == [b"token of lock number %08d" % number for number in range(60)]
            for index in range(3):
                connection = crowd.net.loop_driver.connectors[index].connection
                assert connection is not None
                receive(connection, FREED * 3)
            assert crowd.outcomes() == [True] * 60
        finally:
            crowd.net.close()

    asyncio.run(scene())


def test_a_round_with_all_replies_is_not_kept() -> None:
    """A request holds its task, and with many tasks a later round is always open."""

    async def scene() -> None:
        crowd = Crowd(3)
        try:
            rounds = crowd.net.loop_driver.shared_pipeline._rounds
            for number in range(3):
                crowd.release(b"early %d" % number)
            crowd.flush()
            early = [crowd.read(index) for index in range(3)]
            crowd.release(b"late")
            crowd.flush()
            for index, sent in enumerate(early):
                assert len(rounds) == 3, "the first release alone, a group, and the late one"
                connection = crowd.net.loop_driver.connectors[index].connection
                assert connection is not None
                receive(connection, FREED * len(sent))
            assert crowd.outcomes() == [True, True, True, None]
            assert len(rounds) == 1
        finally:
            crowd.net.close()

    asyncio.run(scene())


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([1, 3, 5]),
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 7), min_size=5, max_size=5),  # a release, and what nodes say
            st.just("flush"),
            st.integers(0, 4),
        ),
        min_size=4,
        max_size=30,
    ),
    st.permutations(range(5)),
)
def test_each_has_the_outcome_of_a_release_alone(
    n: int, steps: list[Any], order: list[int]
) -> None:
    """Whatever nodes say to some of them, in whatever order they reply."""

    async def scene() -> None:
        crowd = Crowd(n)
        expected: list[bool] = []
        try:
            for step in steps:
                if step == "flush":
                    crowd.flush()
                elif isinstance(step, int):
                    if step < n:
                        crowd.answer(step)
                else:
                    key = b"lock %d" % len(expected)
                    says = [{5: ABSENT, 6: HELD, 7: ERROR}.get(say, FREED) for say in step[:n]]
                    for index, say in enumerate(says):
                        if say != FREED:
                            crowd.said[index, key] = say
                    expected.append(says.count(FREED) >= quorum(n))
                    crowd.release(key)
            crowd.flush()
            while sum([crowd.answer(index) for index in order if index < n]):
                pass
            assert crowd.outcomes() == expected
            assert not any(x.open_requests for x in healthy_connections(crowd))
        finally:
            crowd.net.close()

    asyncio.run(scene())


def healthy_connections(crowd: Crowd) -> list[Any]:
    return [x.connection for x in crowd.net.loop_driver.connectors if x.connection is not None]


def test_after_a_group_that_was_not_carried_out_each_is_sent_alone() -> None:
    """A lock that others wait for cannot be freed with others; so for a second none is."""

    async def scene() -> None:
        crowd = Crowd(3)
        outgoing = crowd.net.loop_driver.shared_pipeline.outgoing
        try:
            crowd.said[0, b"b"] = ABSENT
            for key in (b"-", b"a", b"b"):
                crowd.release(key)
            crowd.flush()
            for index in range(3):
                crowd.answer(index)
            assert outgoing.groups_from > now()
            for key in (b"c", b"d"):
                crowd.release(key)
            crowd.flush()
            assert [int(words[2]) for words in crowd.read(1)] == [1, 1]
            outgoing.groups_from = now()
            for key in (b"e", b"f"):
                crowd.release(key)
            crowd.flush()
            assert [int(words[2]) for words in crowd.read(1)] == [2]
        finally:
            crowd.net.close()

    asyncio.run(scene())


def test_locks_that_are_not_plain_have_a_command_of_their_own() -> None:
    """A lock of several keys, and one that others share, are freed in other ways."""
    from quorlock._core.claims import Shared

    async def scene() -> None:
        crowd = Crowd(3)
        try:
            crowd.release(b"a")
            crowd.release(b"b", Keys(b"b", (b"c",)))
            crowd.release(b"d", Shared(b"d"))
            crowd.release(b"e")
            crowd.flush()
            assert [int(words[2]) for words in crowd.read(0)] == [1, 2, 1, 1]
        finally:
            crowd.net.close()

    asyncio.run(scene())


def test_a_lost_connection_leaves_a_pending_release_for_each() -> None:
    """The node may or may not have carried out the group."""

    async def scene() -> None:
        crowd = Crowd(3)
        try:
            for key in (b"a", b"b", b"c"):
                crowd.release(key)
            crowd.flush()
            node_state = crowd.net.node_states.all[2]
            connection = crowd.net.loop_driver.connectors[2].connection
            assert connection is not None
            connection.connection_lost(None)
            due = node_state.pending_releases.due(now() + 10**9, connection.run_id)
            assert {copy.release.token for copy in due} == {
                b"token of " + k for k in (b"a", b"b", b"c")
            }
            for index in range(2):
                crowd.answer(index)
            assert crowd.outcomes() == [True] * 3
        finally:
            crowd.net.close()

    asyncio.run(scene())


@pytest.mark.parametrize("is_sent", [False, True])
def test_one_that_is_cancelled_leaves_the_others(is_sent: bool) -> None:
    """The others keep their outcomes, and that one is released once more."""

    async def scene() -> None:
        crowd = Crowd(3)
        try:
            for key in (b"-", b"a", b"b", b"c"):
                crowd.release(key)
            if is_sent:
                crowd.flush()
                crowd.answer(0)
            crowd.tasks[2].cancel()
            crowd.flush()
            for index in range(3):
                crowd.answer(index)
            assert crowd.outcomes() == [True, True, None, True]
            alone = [words for words in crowd.sent[1] if words[3] == b"b" and words[2] == b"1"]
            assert len(alone) == 1
        finally:
            crowd.net.close()

    asyncio.run(scene())


def test_a_group_that_is_won_continues_after_its_replies_are_delivered() -> None:
    """Another round of the same packet spells it out, in the middle of moving requests."""

    async def scene() -> None:
        crowd = Crowd(3)
        pipeline = crowd.net.loop_driver.shared_pipeline
        first = _Meddler(pipeline, crowd)
        try:
            crowd.release(b"-")
            acquire = Acquire(b"k", b"t", 9)
            request = PendingRequest(acquire, first, 1, now())
            pipeline.append(request, first, encode(acquire))
            for key in (b"a", b"b"):
                crowd.release(key)
            crowd.flush()
            for connector in crowd.net.loop_driver.connectors[:2]:
                assert connector.connection is not None
                receive(connector.connection, FREED + b"+OK\r\n" + FREED)
            assert first.outcomes == [True, None, None]
            assert crowd.outcomes() == [True] * 3
        finally:
            crowd.net.close()

    asyncio.run(scene())


class _Meddler:
    """The receiver of a round whose quorum has the group after it spelled out."""

    over = False
    round = 1
    shared_number = -1

    def __init__(self, pipeline: SharedPipeline, crowd: Crowd) -> None:
        self._pipeline = pipeline
        self._crowd = crowd
        self.outcomes: list[bool | None] = []

    def expect_quorum(self) -> None:
        """Be the first of the packet."""

    def deliver(self, reply: NodeReply) -> None:
        """Ignore the replies to the first round."""

    def deliver_quorum(self, nodes: int, last: int, at: Instant) -> None:
        del nodes, last, at
        self._pipeline.fall_back(self.shared_number + 1)
        self.outcomes = self._crowd.outcomes()
