"""All nodes asked together come to what each asked alone would: order, votes, verdicts, debts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hiredis
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock import Node
from quorlock._core.commands import Acquire, Command, Extend, Inspect, Release
from quorlock._core.effects import Receipt, Replied, Send
from quorlock._core.outcomes import GRANTED, HELD, Answer, Cause, Vote
from quorlock._core.quorum import PENDING, Tally, Verdict
from quorlock._core.redlock import _decide
from quorlock._core.time import NS_PER_S
from quorlock._drivers.asyncio import Turn
from quorlock._drivers.engine import Engine
from quorlock._drivers.link import Link
from quorlock._drivers.members import Members, Standing
from quorlock._wire.conversation import Question
from quorlock._wire.handshake import Handshake
from quorlock._wire.packing import pack
from tests.support.script import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Flow

ERROR = b"-ERR of some kind\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"
FAILED = Answer(Vote.REFUSED, Cause.FAILED, ERROR[1:-2].decode())
# What a node may say to each command, and what that is as an answer; None: it is asked again.
SAYS: dict[type[Command], list[tuple[bytes, Answer | None]]] = {
    Acquire: [(b"+OK\r\n", GRANTED), (b"$-1\r\n", HELD), (b"_\r\n", HELD), (ERROR, FAILED)],
    Extend: [(b":1\r\n", GRANTED), (b":0\r\n", HELD), (ERROR, FAILED), (NOSCRIPT, None)],
    Release: [
        (b":-3\r\n", GRANTED),
        (b":77\r\n", Answer(Vote.REFUSED, Cause.HELD, "", 77)),
        (ERROR, FAILED),
        (NOSCRIPT, None),
    ],
    Inspect: [
        (b"*2\r\n$2\r\n\r\n\r\n:5\r\n", Answer(Vote.REFUSED, Cause.HELD, "", 5, b"\r\n")),
        (ERROR, FAILED),
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

    def abort(self) -> None:
        self.aborted = True


@dataclass
class Round:
    """One asking of all nodes: what the flow made of it, and what it should have."""

    command: Command
    expected: Tally
    turn: Turn[tuple[Verdict, tuple[Answer, ...]]] | None = None
    outcome: tuple[Verdict, tuple[Answer, ...]] | None = None
    silent: bool = False  # nobody waits for its outcome

    def told(self, node: int, answer: Answer) -> None:
        """A node has said this: counted one by one, as ever, until it is decided."""
        if self.outcome is None and self.expected.count(Replied(1, node, answer, 0)) is not PENDING:
            self.outcome = self.expected.verdict, self.expected.closed()

    def check(self) -> None:
        if self.silent:
            return
        assert self.turn is not None
        assert self.turn.future.done() is (self.outcome is not None), self.command
        if self.outcome is not None:
            assert self.turn.future.result() == self.outcome, self.command


def hear(link: Link, data: bytes) -> None:
    """These bytes come from the node."""
    link.get_buffer(-1)[: len(data)] = data
    link.buffer_updated(len(data))


def asking(command: Command, n: int) -> Flow[tuple[Verdict, tuple[Answer, ...]]]:
    receipt: Receipt = yield Send(command)
    tally = Tally(n, receipt.round)
    yield from _decide(tally, receipt.sent + 3_600 * NS_PER_S)
    return tally.verdict, tally.closed()


@dataclass
class Net:
    """An engine whose nodes are this test's."""

    n: int
    rounds: dict[bytes, Round] = field(default_factory=dict[bytes, Round])

    def __post_init__(self) -> None:
        nodes = tuple(Node(f"node-{index}") for index in range(self.n))
        policy = policy_of(self.n)._replace(node_timeout=3_600 * NS_PER_S)
        self.members = Members(nodes, policy)
        loop = asyncio.get_running_loop()
        self.engine = Engine(loop, self.members, policy, lambda _engine: None)
        self.open: list[list[Command]] = [[] for _ in nodes]  # what each was asked, in order
        self.replies: list[bytes] = [b"" for _ in nodes]  # of which something is still to come
        for way in self.engine.ways:
            way._closed = True  # it does not connect by itself
            self.connect(way.member.index)

    def connect(self, index: int) -> None:
        way = self.engine.ways[index]
        if way.link is None:
            link = Link(
                way.member, Handshake(Node(), None, None), None, way._lost, self.engine.convoy
            )
            link.on_fit = self.engine._changed
            link.connection_made(Wire())
            link._handshake = None
            link.admitted = True
            way.member.standing = Standing.UP
            # The greeting is none of ours.
            wire: Any = link._transport
            wire.commands = hiredis.Reader()
            way.link = link
            self.engine._changed()

    def ask(self, kind: type[Command]) -> None:
        key = b"%d" % len(self.rounds)
        command: Command
        if kind is Acquire or kind is Extend:
            command = kind(key, key, 9)
        else:
            command = Release(key, key) if kind is Release else Inspect(key)
        this = self.rounds[key] = Round(command, Tally(self.n, 1))
        for way in self.engine.ways:
            if way.link is None:
                this.told(way.member.index, way.member.absence)
        this.turn = Turn(self.engine, asking(command, self.n))
        this.turn.begin()

    def pay(self, index: int) -> None:
        """Something of this node's own, to which nobody listens: as a debt that is paid."""
        link = self.engine.ways[index].link
        if link is not None:
            key = b"%d" % len(self.rounds)
            release = Release(key, key)
            turn: Turn[Any] = Turn(self.engine, asking(release, self.n))
            turn.over = True
            self.rounds[key] = Round(release, Tally(self.n, 1), turn, silent=True)
            link.ask(pack(release), Question(release, turn, 1, 0))

    def arrive(self, index: int) -> None:
        """What was sent comes to the node; it must be what was asked, and in that order."""
        link = self.engine.ways[index].link
        if link is None:
            return
        wire: Any = link._transport
        while (words := wire.commands.gets()) is not False:
            key = words[1] if words[0] == b"SET" else words[3]
            self.open[index].append(self.rounds[key].command)

    def answer(self, index: int, say: int, push: bool) -> None:
        """The node answers the oldest question."""
        if not self.open[index]:
            return
        command = self.open[index].pop(0)
        reply, _ = SAYS[type(command)][say % len(SAYS[type(command)])]
        self.replies[index] += PUSH * push + reply
        self.told.setdefault(index, []).append((command, reply))

    told: dict[int, list[tuple[Command, bytes]]] = field(default_factory=dict)

    def deliver(self, index: int, size: int) -> None:
        """So many bytes of the node's answers come to us."""
        link = self.engine.ways[index].link
        data, self.replies[index] = self.replies[index][:size], self.replies[index][size:]
        if link is None or not data:
            return
        self.heard[index] = self.heard.get(index, b"") + data
        self._note(index)
        hear(link, data)

    heard: dict[int, bytes] = field(default_factory=dict)

    def _note(self, index: int) -> None:
        """Count the answers that are whole now, as they would be one by one."""
        heard = self.heard[index]
        queue = self.told.get(index, [])
        while queue:
            while heard.startswith(PUSH):
                heard = heard[len(PUSH) :]
            command, reply = queue[0]
            if not heard.startswith(reply):
                break
            heard = heard[len(reply) :]
            queue.pop(0)
            answer = dict(SAYS[type(command)])[reply]
            this = self.rounds[command.key]
            if answer is None and command in self._again.setdefault(index, []):
                answer = Answer(Vote.REFUSED, Cause.FAILED, NOSCRIPT[1:-2].decode())
            if answer is None:
                assert this.turn is not None
                over = this.turn.over and not isinstance(command, Release)
                if not over and not self._in_full(index, command):
                    self._again[index].append(command)
                    continue
                answer = Answer(Vote.REFUSED, Cause.FAILED, NOSCRIPT[1:-2].decode())
            this.told(index, answer)
        if not queue:
            heard = b""
        self.heard[index] = heard

    _again: dict[int, list[Command]] = field(default_factory=dict)
    _first: dict[int, Command] = field(default_factory=dict)

    def _in_full(self, index: int, command: Command) -> bool:
        """The first release on a connection carries the script."""
        return self._first.get(index) == command

    def first_release(self, index: int) -> None:
        """Note it when it arrives."""
        for command in self.open[index]:
            if isinstance(command, Release):
                self._first.setdefault(index, command)
                return

    def lose(self, index: int) -> None:
        """The connection is gone; what was not answered on it is owed, or asked in vain."""
        link = self.engine.ways[index].link
        if link is None:
            return
        self.engine._flush()
        self.arrive(index)
        open_ = [command for command, _ in self.told.pop(index, [])] + self.open[index]
        self.open[index], self.replies[index], self.heard[index] = [], b"", b""
        self._again.pop(index, None)
        self._first.pop(index, None)
        for command in open_:
            self.rounds[command.key].told(index, Answer(Vote.UNKNOWN, Cause.LOST, LOST))
        link.connection_lost(None)
        self.members.all[index].standing = Standing.DOWN  # so that nobody waits for it
        owed = self.members.all[index].debts
        for command in open_:
            if isinstance(command, (Acquire, Release)):
                assert command.token in owed, command

    def close(self) -> None:
        """Leave nothing that the loop would wait for."""
        engine = self.engine
        engine._policy = engine._policy._replace(node_timeout=0)
        engine.turns.clear()
        engine.guardian.cancel()
        for handle in (engine._deadline, engine._recheck):
            if handle is not None:
                handle.cancel()


STEPS = st.one_of(
    st.tuples(
        st.just("ask"), st.sampled_from([Acquire, Acquire, Release, Release, Extend, Inspect])
    ),
    st.tuples(st.just("flush")),
    st.tuples(st.just("answer"), st.integers(0, 4), st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3])),
    st.tuples(st.just("all"), st.integers(0, 4)),
    st.tuples(st.just("push"), st.integers(0, 4)),
    st.tuples(st.just("bytes"), st.integers(0, 4), st.integers(1, 23)),
    st.tuples(st.just("pay"), st.integers(0, 4)),
    st.tuples(st.just("lose"), st.integers(0, 4)),
    st.tuples(st.just("connect"), st.integers(0, 4)),
)


@settings(deadline=None, max_examples=150)
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
            net.engine._flush()
            link: Any = net.engine.ways[0].link
            wire = link._transport
            return [words[0] for words in iter(wire.commands.gets, False)]
        finally:
            net.close()

    return asyncio.run(scene())


def two_releases(net: Net) -> Link:
    """Sent over its link: the first carries the script, the second only its name."""
    net.pay(0)
    net.pay(0)
    link = net.engine.ways[0].link
    assert link is not None
    return link


def test_a_script_that_goes_again_goes_before_what_is_asked_meanwhile() -> None:
    """One packet says that a script was forgotten, and brings an answer upon which the flow asks
    on at once: the bytes go in the order in which the answers will be looked for.
    """

    def twice() -> Flow[tuple[Verdict, tuple[Answer, ...]]]:
        yield from asking(Acquire(b"a", b"a", 9), 1)
        return (yield from asking(Acquire(b"b", b"b", 9), 1))

    def play(net: Net) -> None:
        link = two_releases(net)
        turn = Turn(net.engine, twice())
        turn.begin()
        hear(link, b":-3\r\n" + NOSCRIPT + b"+OK\r\n")
        net.engine._flush()
        hear(link, b":-3\r\n+OK\r\n")
        assert turn.future.result()[0] is Verdict.WON

    assert sent_by(play) == [b"EVAL", b"EVALSHA", b"SET", b"EVAL", b"SET"]


def test_a_script_that_was_forgotten_goes_again_by_itself() -> None:
    """Nothing else needs to be sent for that."""
    sent = sent_by(lambda net: hear(two_releases(net), b":-3\r\n" + NOSCRIPT))
    assert sent == [b"EVAL", b"EVALSHA", b"EVAL"]


def test_what_was_asked_together_goes_before_what_a_node_is_asked_alone() -> None:
    """Also when it has not been sent yet: its answer is looked for first."""

    def play(net: Net) -> None:
        net.engine._lonely = False  # so it is sent at the end of the tick
        net.ask(Acquire)
        net.pay(0)

    assert sent_by(play) == [b"SET", b"EVAL"]


def end_of(n: int) -> list[tuple[Any, ...]]:
    """All that is open is answered, in the end."""
    return [("flush",), *[("all", index) for index in range(n)] * 2]


def play(net: Net, step: tuple[Any, ...]) -> None:
    """One step."""
    name, *arguments = step
    if name == "ask":
        net.ask(arguments[0])
    elif name == "flush":
        net.engine._flush()
    else:
        index = arguments[0] % net.n
        net.arrive(index)
        net.first_release(index)
        if name == "answer":
            net.answer(index, arguments[1], push=False)
            net.deliver(index, 1_000_000)
        elif name == "all":
            while net.open[index] or net.replies[index]:
                while net.open[index]:
                    net.answer(index, 0, push=False)
                net.deliver(index, 1_000_000)
                net.engine._flush()
                net.arrive(index)
        elif name == "push":
            net.answer(index, 0, push=True)
        elif name == "bytes":
            net.answer(index, 0, push=False)
            net.deliver(index, arguments[1])
        elif name in ("pay", "lose", "connect"):
            getattr(net, name)(index)
