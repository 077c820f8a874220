"""A call that runs without its flow has the outcome of the flow, and sends the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorlock._core.acquiring import acquire
from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire
from quorlock._core.redlock import release
from quorlock._core.request import AcquireRequest
from quorlock._core.results import Acquired
from quorlock._core.rounds import Target
from quorlock._core.time import NS_PER_S
from quorlock._core.usual import usual_acquire, usual_release
from quorlock._core.votes import GRANTED, NO_REPLY
from quorlock._drivers.aio import admission
from quorlock._drivers.aio.direct_task import DirectTask
from quorlock._drivers.aio.flow_state import CONNECTING, QUEUED, RECEIVING
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import Reachability
from quorlock._protocol.pipeline import NO_RECEIVER, PendingRequest
from quorlock.errors import ConfigError, QuorlockError, VoteCode
from tests.harness.support.script import Dice, policy_of
from tests.servers.drivers.test_shared_pipeline import ERROR, NOSCRIPT, Net, healthy, receive

if TYPE_CHECKING:
    from collections.abc import Callable

# What a node may say to an acquire and to a release; the first reply is the usual one.
ACQUIRED = [b"+OK\r\n", b"_\r\n", b"$-1\r\n", ERROR]
RELEASED = [b":-3\r\n", b":-2\r\n", b":77\r\n", ERROR, NOSCRIPT]


class Tokens(Dice):
    """The tokens of one call."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def token(self) -> bytes:
        return b"token of %b: %b" % (self._name.encode(), super().token())


class Side:
    """Calls and their nodes; all calls run in the same way."""

    def __init__(self, n: int, ttl_ms: int, *, is_direct: bool) -> None:
        self.net = Net(n)
        healthy(self.net)  # a quorum of plain grants is counted without parsing
        self.tasks: list[FlowTask[Any]] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.claimed: set[int] = set()
        self.sent: list[list[tuple[bytes, ...]]] = [[] for _ in range(n)]
        self._open: list[list[tuple[bytes, ...]]] = [[] for _ in range(n)]
        self._policy = policy_of(n)._replace(node_timeout=3_600 * NS_PER_S)
        self._ttl_ms = ttl_ms
        self._is_direct = is_direct
        self._tokens: dict[bytes, bytes] = {}  # by their order: one side may draw more of them

    def acquire(self) -> None:
        name = f"r{len(self.tasks)}"
        request = AcquireRequest(name, Keys(name.encode()), self._ttl_ms, now(), 0)
        call, here = (request, self._policy, Tokens(name), None), self.net.loop_driver
        if self._is_direct:
            usual = usual_acquire(*call)
            assert usual is not None
            self._begin(DirectTask(here, usual))
        else:
            self._begin(FlowTask(here, acquire(*call)))

    def release(self, nodes: int) -> None:
        name, here = b"r%d" % len(self.tasks), self.net.loop_driver
        what = Keys(name), b"t-" + name, Target(nodes, here), self._policy
        if self._is_direct:
            usual = usual_release(*what, None)
            assert usual is not None
            self._begin(DirectTask(here, usual))
        else:
            self._begin(FlowTask(here, release(*what)))

    def _begin(self, task: FlowTask[Any]) -> None:
        self.tasks.append(task)
        self.futures.append(task.future)
        task.begin()

    def flush(self) -> None:
        """Have the nodes receive what was sent."""
        self.net.loop_driver._flush()
        for index, connector in enumerate(self.net.loop_driver.connectors):
            if connector.connection is not None:
                wire: Any = connector.connection._transport
                for words in iter(wire.commands.gets, False):
                    named = tuple([self._named(word) for word in words])
                    self.sent[index].append(named)
                    self._open[index].append(named)

    def _named(self, word: bytes) -> bytes:
        if not word.startswith(b"token of "):
            return word
        return self._tokens.setdefault(word, b"token %d" % len(self._tokens))

    def answer(self, index: int, say: int) -> None:
        """Receive a node's reply to its oldest request."""
        connection = self.net.loop_driver.connectors[index].connection
        if connection is not None and self._open[index]:
            words = self._open[index].pop(0)
            replies = ACQUIRED if words[0] == b"SET" else RELEASED
            receive(connection, replies[say % len(replies)])

    def grant_all(self, index: int) -> None:
        """Receive the usual replies to all that this node was sent, at once."""
        connection = self.net.loop_driver.connectors[index].connection
        words, self._open[index] = self._open[index], []
        if connection is not None and words:
            usual = [ACQUIRED[0] if one[0] == b"SET" else RELEASED[0] for one in words]
            receive(connection, b"".join(usual))

    def lose(self, index: int) -> None:
        connector = self.net.loop_driver.connectors[index]
        if connector.connection is not None:
            self._open[index].clear()
            connector.connection.connection_lost(None)
            connector.node_state.reachability = Reachability.DOWN

    def connect(self, index: int) -> None:
        self.net.connect(index)

    def cancel(self, number: int) -> None:
        """The caller is gone, perhaps with an outcome that it did not read."""
        if number < len(self.tasks):
            self.tasks[number].cancel()

    def claim(self, number: int) -> None:
        """The caller has its result."""
        if number < len(self.tasks) and self.futures[number].done() and number not in self.claimed:
            self.claimed.add(number)
            self.tasks[number].end()

    def end_of_time(self, number: int) -> None:
        """The nodes' time to reply is over, or that in the queue of acquires."""
        if number < len(self.tasks) and self.tasks[number].state in (QUEUED, RECEIVING):
            self.tasks[number].reply_deadline = 0
            self.tasks[number].on_deadline(now())

    def outcomes(self) -> list[object]:
        return list(map(self._outcome, self.tasks, self.futures))

    def _outcome(self, task: FlowTask[Any], future: asyncio.Future[Any]) -> object:
        if not future.done():
            return task.state
        error = future.exception()
        if error is not None:
            assert isinstance(error, QuorlockError)
            return type(error), getattr(error, "votes", None)
        outcome = future.result()
        if isinstance(outcome, Acquired):
            left = outcome.valid_until - outcome.sent_round.started_at
            token = self._named(outcome.token)
            return token, outcome.ttl_ms, left, outcome.answers, outcome.sent_round.target.nodes
        return outcome.deleted, outcome.gone, outcome.answers


NODE, CALL = st.integers(0, 4), st.integers(0, 5)
USUALLY = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 3, 4])
STEPS = st.one_of(
    st.tuples(st.just("acquire")),
    st.tuples(st.just("release"), st.sampled_from([31, 31, 31, 7, 0])),
    st.tuples(st.just("flush")),
    st.tuples(st.just("answer"), NODE, USUALLY),
    st.tuples(st.just("answer"), NODE, USUALLY),
    st.tuples(st.just("answer"), NODE, USUALLY),
    st.tuples(st.just("grant_all"), NODE),
    st.tuples(st.just("grant_all"), NODE),
    st.tuples(st.just("grant_all"), NODE),
    st.tuples(st.just("lose"), NODE),
    st.tuples(st.just("connect"), NODE),
    st.tuples(st.just("cancel"), CALL),
    st.tuples(st.just("claim"), CALL),
    st.tuples(st.just("end_of_time"), CALL),
)
ALL = [("grant_all", index) for index in range(5)]
OK = [("flush",), *[("answer", index, 0) for index in range(5)]]


@settings(deadline=None, max_examples=300)
@example(5, 9_000, [("acquire",), *OK], 128)
@example(5, 1, [("acquire",), *OK, *OK], 128)  # its validity is over at once
@example(3, 9_000, [("acquire",), *OK, ("cancel", 0), *OK], 128)
@example(5, 9_000, [("release", 31), *OK, ("release", 31), *OK, ("release", 31), *OK], 128)
@example(3, 9_000, [("acquire",), ("acquire",), ("flush",), ("end_of_time", 0), *OK, *OK], 128)
@example(3, 9_000, [("acquire",), ("acquire",), ("acquire",), ("end_of_time", 1), *OK, *OK], 1)
# Both are won by one packet; the first one is too late, and its release spells the second one out.
@example(5, 1, [("acquire",), ("acquire",), *ALL, *OK, *OK], 128)
@given(
    st.integers(1, 5),
    st.sampled_from([9_000, 9_000, 9_000, 1]),
    st.lists(STEPS, min_size=12, max_size=60),
    st.sampled_from([128, 128, 2, 1]),
)
def test_with_and_without_a_flow(
    n: int, ttl_ms: int, steps: list[tuple[Any, ...]], slots: int
) -> None:
    """Whatever nodes say, in whatever order, with lost connections and callers that leave.

    slots: how many acquires run at the same time.
    """

    async def scene() -> None:
        direct, by_flow = (Side(n, ttl_ms, is_direct=is_direct) for is_direct in (True, False))
        try:
            for name, *arguments in steps:
                if name in {"answer", "grant_all", "lose", "connect"} and arguments[0] >= n:
                    continue
                for side in (direct, by_flow):
                    play: Callable[..., None] = getattr(side, name)
                    play(*arguments)
                    await asyncio.sleep(0)  # a slot that is free is given on
                    side.flush()
                assert direct.sent == by_flow.sent
                assert direct.outcomes() == by_flow.outcomes()
        finally:
            direct.net.close()
            by_flow.net.close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(admission, "ACQUIRING_MAX", slots)
        asyncio.run(scene())


@pytest.mark.parametrize("code", [VoteCode.NOT_CONNECTED, VoteCode.BACKLOG])
def test_a_node_that_is_not_asked_needs_no_flow(
    code: VoteCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The votes name it. With too few nodes, the flow decides."""
    flows: list[object] = []
    run_flow = DirectTask._run_flow

    def noted(self: DirectTask[Any]) -> None:
        flows.append(self)
        run_flow(self)

    monkeypatch.setattr(DirectTask, "_run_flow", noted)

    async def scene() -> None:
        side = Side(5, 9_000, is_direct=True)
        driver = side.net.loop_driver
        try:
            side.release(31)  # the first ones bring the script
            side.flush()
            for index in range(5):
                side.answer(index, 0)
            flows.clear()
            if code is VoteCode.NOT_CONNECTED:
                side.lose(4)
            else:
                connection = driver.connectors[4].connection
                assert connection is not None
                connection.is_private = True
                pending = [PendingRequest(Acquire(b"k", b"t", 1), NO_RECEIVER, 1, now())] * 64
                connection.pipeline.pending.extend(pending)
                driver._regroup()
            side.acquire()
            side.release(31)
            side.flush()
            for index in range(3):
                side.answer(index, 0)
                side.answer(index, 0)
            acquired, released = [future.result() for future in side.futures[1:]]
            assert acquired.answers[:4] == (GRANTED, GRANTED, GRANTED, NO_REPLY)
            assert acquired.answers[4].code is code
            assert released.deleted
            assert flows == []
            for index in (2, 3):
                side.lose(index)
            side.acquire()
            assert flows == side.tasks[3:]
        finally:
            side.net.close()

    asyncio.run(scene())


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_node_that_is_not_asked_may_be_misconfigured(is_direct: bool) -> None:
    """Acquires are refused with the error of the node, and releases are sent."""
    trouble = ConfigError("nodes[4]", "node-4", "it belongs to another set of nodes")

    async def scene() -> None:
        side = Side(5, 9_000, is_direct=is_direct)
        try:
            side.lose(4)
            side.net.node_states.all[4].misconfigured = trouble
            side.acquire()
            assert side.futures[0].exception() is trouble
            side.release(31)
            side.flush()
            for index in range(4):
                side.answer(index, 0)
            assert side.futures[1].result().deleted
            assert side.sent[0] != []
        finally:
            side.net.close()

    asyncio.run(scene())


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_node_that_is_about_to_be_connected_is_awaited(is_direct: bool) -> None:
    """The call waits for a moment, so that its acquire reaches all nodes."""

    async def scene() -> None:
        side = Side(5, 9_000, is_direct=is_direct)
        try:
            side.lose(4)
            side.net.node_states.all[4].reachability = Reachability.UNTRIED
            side.acquire()
            assert side.tasks[0].state is CONNECTING
            side.connect(4)
            assert side.tasks[0].state is RECEIVING
            side.flush()
            assert all(side.sent)
        finally:
            side.net.close()

    asyncio.run(scene())
