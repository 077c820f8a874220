"""A blocking call that runs without its flow has the outcome of the flow, and sends the same."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorlock._core.acquiring import acquire
from quorlock._core.claims import Keys
from quorlock._core.redlock import release
from quorlock._core.request import AcquireRequest
from quorlock._core.results import Acquired
from quorlock._core.rounds import Target
from quorlock._core.time import NS_PER_MS
from quorlock._core.usual import usual_acquire, usual_release
from quorlock._drivers.node_state import Reachability
from quorlock._drivers.node_states import NodeStates
from quorlock._drivers.sync import (
    connection,
    connection_set,
    direct_runner,
    flow_runner,
    set_connections,
)
from quorlock._drivers.sync.connection import Connection
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._drivers.sync.direct_runner import DirectRunner
from quorlock._drivers.sync.driver import Driver
from quorlock._drivers.sync.flow_runner import FlowRunner, WaitingFlows
from quorlock._nodes.node import Node
from quorlock.errors import QuorlockError
from tests.harness.support.script import START, Dice, policy_of
from tests.servers.drivers.test_direct_task import ACQUIRED, RELEASED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._core.results import ReleaseResult
    from quorlock._core.time import Instant
    from quorlock._core.usual import UsualCase

KEY, TOKEN = b"r", b"token"


class Clock:
    """The time, as every part of the driver reads it."""

    def __init__(self) -> None:
        self.at: Instant = START

    def __call__(self) -> Instant:
        return self.at


class PlayedSet(ConnectionSet):
    """A connection set whose nodes do the next step of a play each time that it waits for them."""

    play: Iterator[Any]

    def _poll_replies(self, timeout_ms: int) -> None:
        del timeout_ms
        next(self.play)
        super()._poll_replies(0)


class Side:
    """One call over its own nodes, with or without a flow."""

    def __init__(
        self, n: int, ttl_ms: int, clock: Clock, missing: set[int], *, is_direct: bool
    ) -> None:
        self.clock, self.is_direct, self.ttl_ms = clock, is_direct, ttl_ms
        clock.at = START
        self.policy = policy_of(n)
        nodes = tuple(Node(f"node-{index}") for index in range(n))
        self.node_states = NodeStates(nodes, self.policy)
        connectors: Any = SimpleNamespace(
            policy=self.policy,
            node_mask=(1 << n) - 1,
            changed=SimpleNamespace(wake_all=lambda: None),
            may_connect=lambda _: False,
            all=[
                SimpleNamespace(
                    node_state=state,
                    request_connection=lambda _: None,
                    withdraw=lambda _: None,
                    release_later=lambda _: False,
                )
                for state in self.node_states.all
            ],
        )
        self.connectors = connectors
        self.connection_set = PlayedSet(connectors)
        self.wires: list[socket.socket] = []
        self.sent: list[list[list[bytes]]] = [[] for _ in range(n)]
        self.answered = [0] * n
        self.in_error: set[int] = set()  # nodes that have sent the first half of an error
        for state in self.node_states.all:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            self.wires.append(theirs)
            if state.index in missing:
                state.reachability = Reachability.DOWN
                ours.close()
            else:
                state.reachability, state.is_healthy = Reachability.UP, True
                self.connection_set.add(Connection(ours, state, (BlockingIOError,), None, "run"))
        self.readers = [hiredis.Reader() for _ in range(n)]

    def close(self) -> None:
        self.connection_set.discard()
        for wire in self.wires:
            wire.close()

    def read(self) -> None:
        """Read what the nodes have been sent."""
        for wire, reader, sent in zip(self.wires, self.readers, self.sent, strict=True):
            with contextlib.suppress(OSError):
                while data := wire.recv(65536):
                    reader.feed(data)
            sent.extend(iter(reader.gets, False))

    def playing(self, steps: list[tuple[Any, ...]]) -> Iterator[None]:
        for name, *arguments in steps:
            self.clock.at += NS_PER_MS
            self.read()
            getattr(self, name)(*arguments)
            yield
        while True:
            self.end_of_time()
            yield

    def begin_error(self, index: int) -> None:
        """Have a node send the first half of an error: the other half looks like a grant."""
        if index < len(self.wires) and self.answered[index] < len(self.sent[index]):
            self.end_error(index)
            self.in_error.add(index)
            with contextlib.suppress(OSError):
                self.wires[index].send(b"-ERR not ")

    def end_error(self, index: int) -> None:
        """Have it send the other half."""
        if index in self.in_error:
            self.in_error.remove(index)
            self.answer(index, 0)

    def answer(self, index: int, say: int) -> None:
        """Have a node reply to its oldest request."""
        self.end_error(index)
        if index < len(self.wires) and self.answered[index] < len(self.sent[index]):
            words = self.sent[index][self.answered[index]]
            self.answered[index] += 1
            replies = ACQUIRED if words[0] == b"SET" else RELEASED
            with contextlib.suppress(OSError):
                self.wires[index].send(replies[say % len(replies)])

    def grant_all(self, index: int) -> None:
        """Have a node reply to all its open requests in one packet, as it usually does."""
        self.end_error(index)
        if index < len(self.wires):
            open_ = self.sent[index][self.answered[index] :]
            self.answered[index] += len(open_)
            usual = [ACQUIRED[0] if words[0] == b"SET" else RELEASED[0] for words in open_]
            with contextlib.suppress(OSError):
                self.wires[index].send(b"".join(usual))

    def lose(self, index: int) -> None:
        if index < len(self.wires):
            self.wires[index].close()

    def end_of_time(self) -> None:
        self.clock.at += self.policy.node_timeout

    def interrupt(self) -> None:
        self.connection_set.is_busy = False  # as an interrupt while it sleeps
        raise KeyboardInterrupt

    def outcome(self, kind: str, steps: list[tuple[Any, ...]], *, is_cut: bool) -> object:
        """Run the call; is_cut: its caller is interrupted before it has the result."""
        pool: Any = SimpleNamespace(
            borrow=lambda *_: self.connection_set,
            give_back=lambda _: None,
            give_back_all=lambda _: None,
        )
        self.connection_set.play = self.playing(steps)
        driver: Any = SimpleNamespace(_closed=SimpleNamespace(up=False))
        what = (pool, self.node_states, WaitingFlows())
        runner: FlowRunner[Any]
        if kind == "acquire":
            request = AcquireRequest("r", Keys(KEY), self.ttl_ms, self.clock.at, 0)
            call = (request, self.policy, Dice(), None)
            if self.is_direct:
                runner = DirectRunner(*what, usual(usual_acquire(*call)))
            else:
                runner = FlowRunner(*what, acquire(*call))
        else:
            target = Target(self.connectors.node_mask, self.connection_set)
            ended = (Keys(KEY), TOKEN, target, self.policy)
            if self.is_direct:
                runner = DirectRunner(*what, usual(usual_release(*ended, None)))
            else:
                runner = FlowRunner(*what, release(*ended))

        def claim(outcome: Any) -> object:
            if is_cut:
                raise KeyboardInterrupt
            return outcome

        try:
            outcome: Any = Driver._complete(driver, runner, claim)
        except (QuorlockError, KeyboardInterrupt) as error:
            return type(error), getattr(error, "votes", None), self.clock.at
        if isinstance(outcome, Acquired):
            sent_round = outcome.sent_round
            path = sent_round.target.path is self.connection_set
            target = sent_round.target._replace(path=path)
            facts = outcome._replace(sent_round=sent_round._replace(target=target))
            return facts, self.clock.at
        return outcome, self.clock.at


def usual(case: UsualCase[Any] | None) -> UsualCase[Any]:
    assert case is not None
    return case


NODE = st.integers(0, 4)
USUALLY = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 3, 4])
STEPS = st.one_of(
    *[st.tuples(st.just("answer"), NODE, USUALLY)] * 8,
    *[st.tuples(st.just("grant_all"), NODE)] * 2,
    st.tuples(st.just("begin_error"), NODE),
    st.tuples(st.just("end_error"), NODE),
    st.tuples(st.just("lose"), NODE),
    st.tuples(st.just("end_of_time")),
    st.tuples(st.just("interrupt")),
)
OK = [("answer", index, 0) for index in range(5)]
# The first call, and another one over the same connections, on which replies may be pending.
CALLS = [("acquire", "release"), ("acquire", "acquire"), ("release", "acquire")]


@settings(deadline=None, max_examples=300)
@example(5, 9_000, CALLS[0], [OK, OK], False, set())
@example(5, 9_000, CALLS[0], [OK, OK], True, set())
@example(5, 9_000, CALLS[0], [[*OK[:2], ("interrupt",)], OK], False, set())
@example(5, 9_000, CALLS[0], [[*OK[:2], ("answer", 2, 1), *OK], OK], False, set())
@example(5, 9_000, CALLS[0], [[*OK[:2], ("end_of_time",), *OK], OK], False, set())
@example(5, 1, CALLS[0], [OK, OK], False, set())  # its validity is over at once
@example(5, 9_000, CALLS[2], [OK, OK], False, set())
@example(5, 9_000, CALLS[2], [OK, OK], True, set())
@example(5, 9_000, CALLS[2], [[*OK[:2], ("answer", 2, 1), ("interrupt",)], OK], False, set())
@example(3, 9_000, CALLS[2], [[("lose", 0), ("lose", 1), *OK], OK], False, set())
@example(5, 9_000, CALLS[0], [[("answer", 4, 0), *OK], OK], False, {0, 1})
@example(5, 9_000, CALLS[2], [OK, OK], False, {3})
@example(5, 9_000, CALLS[1], [OK[:3], [*OK[3:], *OK]], False, set())
@example(5, 9_000, CALLS[0], [OK[:3], [("grant_all", 4), ("grant_all", 3), OK[0]]], False, set())
# A node is missing, one grants, and the loss of the third ends the round: the grant is reported.
@example(
    5, 9_000, CALLS[0], [[*OK[:2], ("begin_error", 2), ("end_error", 2), *OK], OK], False, set()
)
@example(3, 9_000, CALLS[0], [[], [("grant_all", 1), ("lose", 2)]], False, {0})
@given(
    st.integers(1, 5),
    st.sampled_from([9_000, 9_000, 9_000, 1]),
    st.sampled_from(CALLS),
    st.lists(st.lists(STEPS, min_size=5, max_size=30), min_size=2, max_size=2),
    st.sampled_from([False, False, False, True]),
    st.one_of(st.just(set()), st.sets(NODE, max_size=2)),
)
def test_with_and_without_a_flow(
    n: int,
    ttl_ms: int,
    calls: tuple[str, str],
    steps: list[list[tuple[Any, ...]]],
    is_cut: bool,
    missing: set[int],
) -> None:
    """Whatever nodes say, in whatever order, with lost connections and interrupted callers."""
    outcomes: list[object] = []
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        for module in (connection, connection_set, direct_runner, flow_runner, set_connections):
            patched.setattr(module, "now", clock)
        for is_direct in (True, False):
            side = Side(n, ttl_ms, clock, missing, is_direct=is_direct)
            try:
                outcome = [
                    side.outcome(kind, play, is_cut=is_cut)
                    for kind, play in zip(calls, steps, strict=True)
                ]
                side.read()
                left = [len(state.pending_releases) for state in side.node_states.all]
                outcomes.append((outcome, side.sent, left))
            finally:
                side.close()
    assert outcomes[0] == outcomes[1]


def test_the_first_release_of_a_connection_has_its_script() -> None:
    """A node refuses the name of a script that it does not have, which costs a round trip."""
    side = Side(5, 9_000, Clock(), set(), is_direct=True)
    try:
        for sent_as in (b"EVAL", b"EVALSHA"):
            side.outcome("release", OK, is_cut=False)
            side.read()
            assert [sent[-1][0] for sent in side.sent] == [sent_as] * 5
    finally:
        side.close()


def test_a_grant_behind_a_late_one_needs_no_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both nearly always come in one packet: a node that was late for one round has the next."""
    side = Side(5, 9_000, Clock(), set(), is_direct=True)
    try:
        side.outcome("release", OK, is_cut=False)
        monkeypatch.setattr(FlowRunner, "_run_from", lambda *_: pytest.fail("a flow was made"))
        side.outcome("release", OK[:3], is_cut=False)
        late = [("grant_all", index) for index in (4, 3, 2)]
        released, _ = cast(
            "tuple[ReleaseResult, Instant]", side.outcome("release", late, is_cut=False)
        )
        assert released.deleted
    finally:
        side.close()
