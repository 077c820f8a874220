"""The shared pipeline has the same results as asking each node alone: order, votes, verdicts,
pending releases.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hiredis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorlock import Node
from quorlock._core.claims import Keys
from quorlock._core.commands import (
    Acquire,
    Command,
    Extend,
    Inspect,
    Release,
    ScriptedAcquire,
)
from quorlock._core.effects import Send, Sleep
from quorlock._core.redlock import attempt, collect_until_decided
from quorlock._core.request import AcquireRequest
from quorlock._core.results import AttemptFailed, FailureReason
from quorlock._core.rounds import NodeReply, SentRound
from quorlock._core.tally import PENDING, Tally, Verdict
from quorlock._core.time import NS_PER_MS, NS_PER_S, Instant
from quorlock._core.votes import GRANTED, HELD, Answer, Vote
from quorlock._drivers.aio.connection import AsyncConnection
from quorlock._drivers.aio.flow_state import DONE, SLEEPING
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock._drivers.aio.loop_driver import LoopDriver
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import Reachability
from quorlock._drivers.node_states import NodeStates
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import PendingRequest
from quorlock.errors import VoteCode
from tests.harness.support.script import Dice, policy_of
from tests.harness.support.wait import until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Flow

ERROR = b"-ERR of some kind\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"
FAILED = Answer(Vote.REFUSED, VoteCode.TRANSIENT_ERROR, ERROR[1:-2].decode())
# What a node may say to each command, and what that is as an answer; None: it is asked again.
SAYS: dict[type[Command], list[tuple[bytes, Answer | None]]] = {
    Acquire: [(b"+OK\r\n", GRANTED), (b"$-1\r\n", HELD), (b"_\r\n", HELD), (ERROR, FAILED)],
    Extend: [(b":1\r\n", GRANTED), (b":0\r\n", HELD), (ERROR, FAILED), (NOSCRIPT, None)],
    Release: [
        (b":-3\r\n", GRANTED),
        (b":77\r\n", Answer(Vote.REFUSED, VoteCode.HELD, "", 77)),
        (ERROR, FAILED),
        (NOSCRIPT, None),
    ],
    Inspect: [
        (
            b"*3\r\n$2\r\n\r\n\r\n:5\r\n:0\r\n",
            Answer(Vote.REFUSED, VoteCode.HELD, "", 5, b"\r\n", ahead=0),
        ),
        (ERROR, FAILED),
        (NOSCRIPT, None),
    ],
    # Of a waiter: whether others wait, and whether it has replaced a token.
    ScriptedAcquire: [
        (b":-4\r\n", GRANTED._replace(ahead=1)),
        (b":-5\r\n", GRANTED._replace(ahead=0, replaced=True)),
        (b"*3\r\n:0\r\n:9\r\n:5\r\n", HELD._replace(ttl_left_ms=5, clock_us=9)),
        (NOSCRIPT, None),
    ],
}
PUSH = b">2\r\n+invalidate\r\n*1\r\n+k\r\n"
LOST = "connection lost: closed by the server"


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = hiredis.Reader()
        self.aborted = False

    def write(self, data: Any) -> None:
        assert not self.aborted, "written to a connection that is lost"
        self.commands.feed(bytes(data))

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True


@dataclass
class Round:
    """One asking of all nodes: what the flow made of it, and what it should have."""

    command: Command
    expected: Tally
    turn: FlowTask[tuple[Verdict, tuple[Answer, ...]]] | None = None
    outcome: tuple[Verdict, tuple[Answer, ...]] | None = None
    silent: bool = False  # its outcome is ignored

    def answered(self, node: int, answer: Answer) -> None:
        """A node has said this: counted one by one, as ever, until it is decided."""
        if (
            self.outcome is None
            and self.expected.count(NodeReply(1, node, answer, 0)) is not PENDING
        ):
            self.outcome = self.expected.verdict, self.expected.final_answers()

    def check(self) -> None:
        if self.silent:
            return
        assert self.turn is not None
        assert self.turn.future.done() is (self.outcome is not None), self.command
        if self.outcome is not None:
            assert self.turn.future.result() == self.outcome, self.command


def receive(connection: AsyncConnection, data: bytes) -> None:
    """Receive these bytes from the node."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def asking(command: Command, n: int) -> Flow[tuple[Verdict, tuple[Answer, ...]]]:
    sent_round: SentRound = yield Send(command)
    tally = Tally(n, sent_round.round)
    yield from collect_until_decided(tally, sent_round.sent_at + 3_600 * NS_PER_S)
    return tally.verdict, tally.final_answers()


@dataclass
class Net:
    """An engine whose nodes are this test's."""

    n: int
    rounds: dict[bytes, Round] = field(default_factory=dict[bytes, Round])

    def __post_init__(self) -> None:
        nodes = tuple(Node(f"node-{index}") for index in range(self.n))
        policy = policy_of(self.n)._replace(node_timeout=3_600 * NS_PER_S)
        self.node_states = NodeStates(nodes, policy)
        loop = asyncio.get_running_loop()
        self.loop_driver = LoopDriver(loop, self.node_states, policy, lambda _loop_driver: None)
        # What each was asked, in order, and whether it came with the script's text.
        self.open: list[list[tuple[Command, bool]]] = [[] for _ in nodes]
        self.replies: list[bytes] = [b"" for _ in nodes]  # of which something is still to come
        for connector in self.loop_driver.connectors:
            connector._closed = True  # it does not connect automatically
            self.connect(connector.node_state.index)

    def connect(self, index: int) -> None:
        connector = self.loop_driver.connectors[index]
        if connector.connection is None:
            connection = AsyncConnection(
                connector.node_state, None, None, connector, self.loop_driver.shared_pipeline
            )
            connection.connection_made(Wire())
            connection.admitted = True
            connector.node_state.reachability = Reachability.UP
            # The handshake is not tested here.
            wire: Any = connection._transport
            wire.commands = hiredis.Reader()
            connector.connection = connection
            self.loop_driver._changed()

    def ask(self, kind: type[Command]) -> None:
        key = b"%d" % len(self.rounds)
        command: Command
        if kind is Acquire or kind is Extend:
            command = kind(key, key, 9_000)
        elif kind is ScriptedAcquire:
            command = ScriptedAcquire(key, key, 9, place=b"00000000000000a1:1:100", instead=b"o")
        else:
            command = Release(key, key) if kind is Release else Inspect(key)
        this = self.rounds[key] = Round(command, Tally(self.n, 1))
        for connector in self.loop_driver.connectors:
            if connector.connection is None:
                this.answered(connector.node_state.index, connector.node_state.unavailable_answer)
        this.turn = FlowTask(self.loop_driver, asking(command, self.n))
        this.turn.begin()

    def confirm(self, index: int) -> None:
        """Send a command to this node alone whose reply is ignored, like a pending release."""
        connection = self.loop_driver.connectors[index].connection
        if connection is not None:
            key = b"%d" % len(self.rounds)
            release = Release(key, key)
            turn: FlowTask[Any] = FlowTask(self.loop_driver, asking(release, self.n))
            turn.state = DONE
            self.rounds[key] = Round(release, Tally(self.n, 1), turn, silent=True)
            connection.send(encode(release), PendingRequest(release, turn, 1, now()))

    def arrive(self, index: int) -> None:
        """Deliver the sent bytes to the node; they must be the expected ones, in order."""
        connection = self.loop_driver.connectors[index].connection
        if connection is None:
            return
        wire: Any = connection._transport
        while (words := wire.commands.gets()) is not False:
            key = words[1] if words[0] == b"SET" else words[3]
            self.open[index].append((self.rounds[key].command, words[0] == b"EVAL"))

    def answer(self, index: int, say: int, push: bool) -> None:
        """The node answers the oldest question."""
        if not self.open[index]:
            return
        command, in_full = self.open[index].pop(0)
        reply, _ = SAYS[type(command)][say % len(SAYS[type(command)])]
        self.replies[index] += PUSH * push + reply
        self.answered.setdefault(index, []).append((command, in_full, reply))

    answered: dict[int, list[tuple[Command, bool, bytes]]] = field(default_factory=dict)

    def deliver(self, index: int, size: int) -> None:
        """Deliver this many bytes of the node's replies to us."""
        connection = self.loop_driver.connectors[index].connection
        data, self.replies[index] = self.replies[index][:size], self.replies[index][size:]
        if connection is None or not data:
            return
        self.received[index] = self.received.get(index, b"") + data
        self._note(index)
        receive(connection, data)

    received: dict[int, bytes] = field(default_factory=dict)

    def _note(self, index: int) -> None:
        """Count the answers that are whole now, as they would be one by one."""
        received = self.received[index]
        queue = self.answered.get(index, [])
        while queue:
            while received.startswith(PUSH):
                received = received[len(PUSH) :]
            command, in_full, reply = queue[0]
            if not received.startswith(reply):
                break
            received = received[len(reply) :]
            queue.pop(0)
            answer = dict(SAYS[type(command)])[reply]
            if answer is None and self._is_asked_again(command, in_full):
                continue
            if answer is None:
                answer = Answer(Vote.REFUSED, VoteCode.TRANSIENT_ERROR, NOSCRIPT[1:-2].decode())
            self.rounds[command.key].answered(index, answer)
        if not queue:
            received = b""
        self.received[index] = received

    def _is_asked_again(self, command: Command, in_full: bool) -> bool:
        """Return whether a command is sent again after NOSCRIPT: always a release, others while
        their flow runs.

        Not if the script's text was already sent: then NOSCRIPT is wrong.
        """
        turn = self.rounds[command.key].turn
        assert turn is not None
        return not in_full and (isinstance(command, Release) or not turn.over)

    def lose(self, index: int) -> None:
        """Lose the connection; unanswered commands become pending releases or get no reply."""
        connection = self.loop_driver.connectors[index].connection
        if connection is None:
            return
        self.loop_driver._flush()
        self.arrive(index)
        open_ = [command for command, _, _ in self.answered.pop(index, [])]
        open_ += [command for command, _ in self.open[index]]
        self.open[index], self.replies[index], self.received[index] = [], b"", b""
        for command in open_:
            self.rounds[command.key].answered(
                index, Answer(Vote.UNKNOWN, VoteCode.CONNECTION_LOST, LOST)
            )
        connection.connection_lost(None)
        self.node_states.all[index].reachability = Reachability.DOWN  # so that nothing waits for it
        pending = self.node_states.all[index].pending_releases
        for command in open_:
            if isinstance(command, (Acquire, ScriptedAcquire, Release)):
                assert command.token in pending, command

    def close(self) -> None:
        """Leave nothing that the loop would wait for."""
        loop_driver = self.loop_driver
        loop_driver.deadlines.node_timeout = 0
        loop_driver.tasks.clear()
        loop_driver.shutdown.abandon()
        loop_driver.deadlines.stop()
        loop_driver.readiness.stop()


STEPS = st.one_of(
    st.tuples(
        st.just("ask"),
        st.sampled_from([Acquire, Acquire, Release, Release, Extend, Inspect, ScriptedAcquire]),
    ),
    st.tuples(st.just("flush")),
    st.tuples(st.just("answer"), st.integers(0, 4), st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3])),
    st.tuples(st.just("all"), st.integers(0, 4)),
    st.tuples(st.just("push"), st.integers(0, 4)),
    st.tuples(st.just("bytes"), st.integers(0, 4), st.integers(1, 23)),
    st.tuples(st.just("confirm"), st.integers(0, 4)),
    st.tuples(st.just("lose"), st.integers(0, 4)),
    st.tuples(st.just("connect"), st.integers(0, 4)),
)


@settings(deadline=None, max_examples=150)
@example(1, [("ask", Extend), ("answer", 0, 3)])  # the first one brings its script, as releases do
@example(1, [("ask", Release), ("answer", 0, 3)])
@given(st.integers(1, 5), st.lists(STEPS, max_size=60))
def test_asked_together_is_asked_one_by_one(n: int, steps: list[tuple[Any, ...]]) -> None:
    """Whatever nodes say and in whatever order and pieces it comes, with refusals, errors, scripts
    that were forgotten, commands of a node's own, lost and new connections: every round has the
    verdict, at the very answer, with the votes, that counting one by one comes to.
    """

    async def scene() -> None:
        net = Net(n)
        try:
            for step in [*steps, *end_of(n)]:
                play(net, step)
                for this in net.rounds.values():
                    this.check()
            # Everybody was answered, also those whose script went again.
            assert all(this.silent or this.outcome for this in net.rounds.values())
        finally:
            net.close()

    asyncio.run(scene())


def sent_by(play: Callable[[Net], object]) -> list[bytes]:
    """The names of the commands that come to the one node of a net of which this is made use."""

    async def scene() -> list[bytes]:
        net = Net(1)
        try:
            play(net)
            net.loop_driver._flush()
            connection: Any = net.loop_driver.connectors[0].connection
            wire = connection._transport
            return [words[0] for words in iter(wire.commands.gets, False)]
        finally:
            net.close()

    return asyncio.run(scene())


def two_releases(net: Net) -> AsyncConnection:
    """Sent over its link: the first carries the script, the second only its name."""
    net.confirm(0)
    net.confirm(0)
    connection = net.loop_driver.connectors[0].connection
    assert connection is not None
    return connection


def test_a_script_that_goes_again_goes_before_what_is_asked_meanwhile() -> None:
    """One packet says that a script was forgotten, and brings an answer upon which the flow asks
    on at once: the bytes go in the order in which the answers will be looked for.
    """

    def twice() -> Flow[tuple[Verdict, tuple[Answer, ...]]]:
        yield from asking(Acquire(b"a", b"a", 9), 1)
        return (yield from asking(Acquire(b"b", b"b", 9), 1))

    def play(net: Net) -> None:
        connection = two_releases(net)
        turn = FlowTask(net.loop_driver, twice())
        turn.begin()
        receive(connection, b":-3\r\n" + NOSCRIPT + b"+OK\r\n")
        net.loop_driver._flush()
        receive(connection, b":-3\r\n+OK\r\n")
        assert turn.future.result()[0] is Verdict.WON

    assert sent_by(play) == [b"EVAL", b"EVALSHA", b"SET", b"EVAL", b"SET"]


def test_a_script_that_was_forgotten_goes_again_by_itself() -> None:
    """Nothing else needs to be sent for that."""
    sent = sent_by(lambda net: receive(two_releases(net), b":-3\r\n" + NOSCRIPT))
    assert sent == [b"EVAL", b"EVALSHA", b"EVAL"]


def test_what_was_asked_together_goes_before_what_a_node_is_asked_alone() -> None:
    """Also when it has not been sent yet: its answer is looked for first."""

    def play(net: Net) -> None:
        net.loop_driver._private = False  # so it is sent at the end of the tick
        net.ask(Acquire)
        net.confirm(0)

    assert sent_by(play) == [b"SET", b"EVAL"]


def test_a_round_that_each_node_has_in_its_own_queue_is_dropped() -> None:
    """No reply to it is looked for here. They were kept while this went on, and memory grew."""

    async def scene() -> None:
        net = Net(3)
        try:
            for _ in range(3):
                net.ask(Acquire)
                for index in range(3):
                    net.confirm(index)
            assert net.loop_driver.shared_pipeline._rounds == []
        finally:
            net.close()

    asyncio.run(scene())


def healthy(net: Net) -> list[AsyncConnection]:
    """The connections of a net whose plain grants are counted without parsing."""
    for node_state in net.node_states.all:
        node_state.is_healthy = True
    connections = [connector.connection for connector in net.loop_driver.connectors]
    return [connection for connection in connections if connection is not None]


def locking(name: str, cycles: int) -> Flow[int]:
    """Ask for one lock after another, as a task does; return how many were granted."""
    for number in range(cycles):
        command = Acquire(f"{name:_<100}:{number}".encode(), b"%040d" % number, 9)
        verdict, _ = yield from asking(command, 5)
        if verdict is not Verdict.WON:
            return number
    return cycles


def begun(net: Net, tasks: int, cycles: int = 1_000) -> list[FlowTask[int]]:
    flows = [FlowTask(net.loop_driver, locking(f"task {task}", cycles)) for task in range(tasks)]
    for flow in flows:
        flow.begin()
    net.loop_driver._flush()
    return flows


def lag(net: Net, prompt: list[AsyncConnection], last: AsyncConnection, rounds: int) -> None:
    """Forty tasks get so many locks; the last node is a round behind the others, and stays."""
    for _ in range(rounds):
        for connection in prompt:
            receive(connection, b"+OK\r\n" * 40)
        net.loop_driver._flush()
        assert not last.is_private
        receive(last, b"+OK\r\n" * 40)


def test_a_node_that_is_a_round_behind_stays() -> None:
    """The nodes of one machine take turns. One that falls further behind is excluded."""

    async def scene() -> None:
        net = Net(5)
        try:
            *prompt, last = healthy(net)
            begun(net, 40)
            lag(net, prompt, last, 12)
            for _ in range(2):
                assert not last.is_private
                for connection in prompt:
                    receive(connection, b"+OK\r\n" * 40)
                net.loop_driver._flush()
            assert last.is_private
            assert not any(connection.is_private for connection in prompt)
        finally:
            net.close()

    asyncio.run(scene())


def test_a_node_is_not_late_because_most_tasks_have_ended() -> None:
    """But one task does not send on and on to a node that does not reply."""

    async def scene() -> None:
        net = Net(5)
        try:
            *prompt, last = healthy(net)
            begun(net, 1)
            begun(net, 39, cycles=13)
            lag(net, prompt, last, 12)
            for connection in prompt:
                receive(connection, b"+OK\r\n" * 40)
            for number in range(60):
                net.loop_driver._flush()
                assert number > 0 or not last.is_private
                for connection in prompt:
                    receive(connection, b"+OK\r\n")
            assert last.is_private
        finally:
            net.close()

    asyncio.run(scene())


def test_many_rounds_are_sent_before_the_tick_ends() -> None:
    """The nodes work while the other tasks are still about to ask."""

    async def scene() -> None:
        net = Net(5)
        try:
            flows = [FlowTask(net.loop_driver, locking(f"task {task}", 1)) for task in range(70)]
            for flow in flows:
                flow.begin()
            # The first is alone, so it is sent at once; then nothing until there are 64.
            assert net.loop_driver.shared_pipeline.outgoing.rounds == 70 - 1 - 64
            net.loop_driver._flush()
            for connection in healthy(net):
                wire: Any = connection._transport
                assert sum(1 for _ in iter(wire.commands.gets, False)) == 70
        finally:
            net.close()

    asyncio.run(scene())


def test_a_flow_that_goes_on_does_not_answer_for_another() -> None:
    """Two flows win by one packet, and each has a further round, for which it asks each node alone.
    The first one's request moves the open rounds of a node that lags to the queue of that node. No
    further round is won without replies, and the replies of that node find their requests.
    """

    def going_on(name: bytes) -> Flow[tuple[Verdict, tuple[Answer, ...]]]:
        yield from asking(Acquire(name, name, 9), 3)
        return (yield from asking(Release(name, name), 3))  # the first ones: with the script

    async def scene() -> None:
        net = Net(3)
        try:
            prompt, prompt_too, late = healthy(net)
            flows = [FlowTask(net.loop_driver, going_on(name)) for name in (b"a", b"b")]
            for flow in flows:
                flow.begin()
            receive(prompt, b"+OK\r\n+OK\r\n")
            receive(prompt_too, b"+OK\r\n+OK\r\n")
            assert not any(flow.future.done() for flow in flows)
            receive(prompt, b":77\r\n:77\r\n")
            receive(late, b"+OK\r\n+OK\r\n:77\r\n:77\r\n")
            assert (late.lost, late.open_requests) == (False, 0)
            assert [flow.future.result()[0] for flow in flows] == [Verdict.LOST] * 2
        finally:
            net.close()

    asyncio.run(scene())


def test_attempts_that_are_won_too_late_release_in_order() -> None:
    """The process stood still for longer than the leases, before the first release on these
    connections. The replies of the node that lags find their requests.
    """

    async def scene() -> None:
        net = Net(3)
        try:
            prompt, prompt_too, late = healthy(net)
            requests = [AcquireRequest(name, Keys(name.encode()), 9, now(), 0) for name in "ab"]
            flows = [
                FlowTask(net.loop_driver, attempt(r, net.node_states.policy, Dice()))
                for r in requests
            ]
            for flow in flows:
                flow.begin()
            assert await until_async(lambda: now() > requests[1].asked_at + 9 * NS_PER_MS)
            receive(prompt, b"+OK\r\n+OK\r\n")
            receive(prompt_too, b"+OK\r\n+OK\r\n")
            receive(late, b"+OK\r\n+OK\r\n:-3\r\n:-3\r\n")
            assert (late.lost, late.open_requests) == (False, 0)
            receive(prompt, b":-3\r\n:-3\r\n")
            for flow in flows:
                outcome = flow.future.result()
                assert isinstance(outcome, AttemptFailed)
                assert outcome.reason is FailureReason.LATE
        finally:
            net.close()

    asyncio.run(scene())


def test_a_quorum_that_comes_while_a_flow_sleeps_is_not_for_it() -> None:
    """An attempt ends without replies, its release is sent, and the flow sleeps until the next one.
    Then the nodes resume: a quorum confirms the release, for which nothing waits.
    """

    def resting() -> Flow[Instant]:
        sent_round: SentRound = yield Send(Acquire(b"a", b"a", 9))
        tally = Tally(3, sent_round.round)
        yield from collect_until_decided(tally, sent_round.sent_at + NS_PER_MS)
        yield Send(Release(b"a", b"a"))
        woken: Instant = yield Sleep(now() + 3_600 * NS_PER_S)
        return woken

    async def scene() -> None:
        net = Net(3)
        try:
            net.ask(
                Release
            )  # so that the nodes know the script, and are asked together from now on
            turn = FlowTask(net.loop_driver, resting())
            turn.begin()
            assert await until_async(lambda: turn.state is SLEEPING)
            net.loop_driver._flush()
            for connector in net.loop_driver.connectors:
                assert connector.connection is not None
                for data in (b":-3\r\n", b"+OK\r\n", b":-3\r\n"):
                    receive(connector.connection, data)
            assert not turn.future.done()
            assert turn.state is SLEEPING
            turn.cancel()
        finally:
            net.close()

    asyncio.run(scene())


def end_of(n: int) -> list[tuple[Any, ...]]:
    """All that is open is answered, in the end."""
    return [("flush",), *[("all", index) for index in range(n)] * 2]


def play(net: Net, step: tuple[Any, ...]) -> None:
    """One step."""
    name, *arguments = step
    if name == "ask":
        net.ask(arguments[0])
    elif name == "flush":
        net.loop_driver._flush()
    else:
        index = arguments[0] % net.n
        net.arrive(index)
        if name == "answer":
            net.answer(index, arguments[1], push=False)
            net.deliver(index, 1_000_000)
        elif name == "all":
            while net.open[index] or net.replies[index]:
                while net.open[index]:
                    net.answer(index, 0, push=False)
                net.deliver(index, 1_000_000)
                net.loop_driver._flush()
                net.arrive(index)
        elif name == "push":
            net.answer(index, 0, push=True)
        elif name == "bytes":
            net.answer(index, 0, push=False)
            net.deliver(index, arguments[1])
        elif name in ("confirm", "lose", "connect"):
            getattr(net, name)(index)


def test_a_grant_of_a_waiter_means_nothing_to_other_commands() -> None:
    """A server that says so speaks nonsense: no vote is counted for it."""

    async def scene() -> VoteCode:
        net = Net(1)
        try:
            for reply in (b":1\r\n", b":-4\r\n"):
                net.ask(Extend)
                net.loop_driver._flush()
                connection = net.loop_driver.connectors[0].connection
                assert connection is not None
                receive(connection, reply)
            turn = net.rounds[b"1"].turn
            assert turn is not None
            return turn.future.result()[1][0].code
        finally:
            net.close()

    assert asyncio.run(scene()) is VoteCode.PROTOCOL_ERROR


def test_a_part_of_a_reply_is_not_taken_for_a_grant() -> None:
    """The owner of another's key may be any bytes, and a packet may begin with them."""

    async def scene() -> tuple[Verdict, tuple[Answer, ...]]:
        net = Net(1)
        try:
            (connection,) = healthy(net)
            for reply in (b":-3\r\n", b"*2\r\n:5000\r\n$5\r\n"):
                net.ask(Release)
                net.loop_driver._flush()
                receive(connection, reply)
            assert connection.shared_index >= 0, "the second one is in the shared pipeline"
            receive(connection, b":-3\r\n\r\n")
            assert not connection.lost
            turn = net.rounds[b"1"].turn
            assert turn is not None
            return turn.future.result()
        finally:
            net.close()

    verdict, (answer,) = asyncio.run(scene())
    assert (verdict, answer.code, answer.ttl_left_ms) == (Verdict.LOST, VoteCode.HELD, 5_000)


def test_a_quorum_for_a_round_that_a_flow_did_not_wait_for_is_not_for_its_next_one() -> None:
    """A lost exchange sends such rounds: it releases the waiter's token, then the old one."""

    def both() -> Flow[tuple[Verdict, tuple[Answer, ...]]]:
        yield Send(Release(b"a", b"a"))
        return (yield from asking(Release(b"b", b"b"), 3))

    async def scene() -> Verdict:
        net = Net(3)
        try:
            connections = healthy(net)
            net.ask(Release)  # with the script
            for connection in connections:
                receive(connection, b":-3\r\n")
            flow = FlowTask(net.loop_driver, both())
            flow.begin()
            net.loop_driver._flush()
            for reply in (b":-3\r\n", b":77\r\n"):
                assert not flow.future.done()
                for connection in connections[:2]:
                    receive(connection, reply)
            return flow.future.result()[0]
        finally:
            net.close()

    assert asyncio.run(scene()) is Verdict.LOST
