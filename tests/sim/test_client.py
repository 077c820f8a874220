"""The simulator's driver keeps the drivers' contract with the flows (_drivers/abc.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire, Extend, Release
from quorlock._core.effects import Commit, Receive, Send, Sleep, Timeout
from quorlock._core.results import Acquired
from quorlock._core.rounds import Target
from quorlock._core.votes import NOT_SET, Vote
from quorlock.testing.fake_node import OK, Error
from quorlock_sim.client import DOWN, LOST, SeededEntropy, SimFlow, encoded
from quorlock_sim.world import World
from tests.sim.small import MS, TRIP, fault, job, plan, see

if TYPE_CHECKING:
    from quorlock._core.effects import Flow
    from quorlock_sim.client import Process

ACQUIRE = Acquire(b"r0", b"c0.1", 900)
RELEASE = Release(b"r0", b"c0.1")


class Scene:
    """A world that runs a flow, and its result."""

    def __init__(self, *, n: int = 3, connection_sets: int = 1, **facts: Any) -> None:
        self.world = World(plan([], n=n, connection_sets=connection_sets, **facts))
        self.process: Process = self.world.processes[0]
        self.outcomes: list[Any] = []
        self.turn: SimFlow[Any] | None = None

    def lead(self, flow: Flow[Any], at: int = MS) -> Scene:
        """Begin it then, and run the world to its end."""
        self.world.schedule(at, self._begin, flow)
        self.world.run()
        return self

    def _begin(self, flow: Any) -> None:
        self.turn = self.world.call(
            self.process, "acquire", flow, self.outcomes.append, resource="r0"
        )

    def act(self, at: int, deed: Any) -> Scene:
        self.world.schedule(at, lambda _: deed(), None)
        return self


# --- requests and replies -----------------------------------------------------------------------


def test_a_round_asks_all_nodes_at_once_and_receives_each_reply() -> None:
    seen: list[Any] = []

    def flow() -> Any:
        sent_round = yield Send(ACQUIRE)
        assert sent_round == (1, MS, MS, Target(0b111, 0))
        for _ in range(3):
            seen.append((yield Receive(50 * MS)))  # noqa: PERF401
        return "done"

    assert Scene().lead(flow()).outcomes == ["done"]
    assert sorted(reply.node for reply in seen) == [0, 1, 2]
    assert {reply.round for reply in seen} == {1}
    assert {reply.answer.vote for reply in seen} == {Vote.GRANTED}
    assert {reply.at for reply in seen} == {MS + 2 * TRIP}


def test_a_reply_names_its_round() -> None:
    """A late reply arrives in the next round, with the number of the previous one."""
    received: list[tuple[int, int]] = []

    def flow() -> Any:
        yield Send(ACQUIRE)
        yield Send(RELEASE)
        for _ in range(6):
            reply = yield Receive(50 * MS)
            received.append((reply.node, reply.round))

    Scene().lead(flow())
    assert sorted(received) == [(node, round_) for node in range(3) for round_ in (1, 2)]
    assert [round_ for node, round_ in received if node == 0] == [1, 2], "in order from each"


def test_a_deadline_is_on_its_own_clock() -> None:
    """40 ms on a clock at half its pace are 80 ms."""
    ends: list[Any] = []

    def flow() -> Any:
        ends.append((yield Receive(40 * MS)))
        ends.append(scene.world.now)

    scene = Scene(client_paces=(500_000,))
    scene.lead(flow(), at=2 * MS)
    assert ends == [Timeout(40 * MS), 80 * MS]


def test_a_deadline_in_the_past_elapses_at_once_but_not_before_what_came() -> None:
    order: list[Any] = []

    def flow() -> Any:
        yield Send(ACQUIRE)
        yield Sleep(10 * MS)
        for _ in range(4):
            event = yield Receive(5 * MS)
            order.append(type(event).__name__)

    Scene().lead(flow())
    assert order == ["NodeReply", "NodeReply", "NodeReply", "Timeout"]


def test_a_sleep_receives_nothing_and_ends_in_time() -> None:
    def flow() -> Any:
        yield Send(ACQUIRE)
        woke = yield Sleep(33 * MS)
        return woke

    assert Scene().lead(flow()).outcomes == [33 * MS]


def test_a_node_that_cannot_be_asked_answers_at_once() -> None:
    answers: list[Any] = []

    def flow() -> Any:
        sent_round = yield Send(ACQUIRE)
        answers.append(sent_round.target.nodes)
        for _ in range(3):
            answers.append((yield Receive(50 * MS)).answer)  # noqa: PERF401

    scene = Scene()
    scene.act(MS // 2, lambda: scene.process.loses(scene.process.links[0][2]))  # type: ignore[arg-type]
    scene.lead(flow())
    assert answers[:2] == [0b011, DOWN]


def test_a_connection_that_is_lost_answers_for_its_node() -> None:
    answers: list[Any] = []

    def flow() -> Any:
        yield Send(ACQUIRE)
        for _ in range(3):
            answers.append((yield Receive(50 * MS)).answer)  # noqa: PERF401

    scene = Scene()
    scene.act(MS + TRIP // 2, lambda: scene.process.loses(scene.process.links[0][1]))  # type: ignore[arg-type]
    scene.lead(flow())
    assert answers[0] == LOST
    assert [answer.vote for answer in answers[1:]] == [Vote.GRANTED] * 2


def test_what_a_flow_raises_reaches_the_caller() -> None:
    def flow() -> Any:
        yield Sleep(3 * MS)
        raise ValueError("sooner or later")

    (error,) = Scene().lead(flow()).outcomes
    assert isinstance(error, ValueError)


def test_keep_ends_the_flow_with_the_lock() -> None:
    def flow() -> Any:
        sent_round = yield Send(ACQUIRE)
        yield Commit(Acquired(Keys(b"r0"), b"c0.1", 900, 5, (), sent_round))
        raise AssertionError("the flow is closed")

    (outcome,) = Scene().lead(flow()).outcomes
    assert outcome.token == b"c0.1"


# --- order (rule 3) -----------------------------------------------------------------------------


def test_a_release_follows_its_acquire_on_the_same_connection() -> None:
    """A release takes that connection until the acquire has its reply, and afterwards any."""
    world = World(plan([], connection_sets=2))
    process = world.processes[0]
    taken: list[int] = []

    def acquire() -> Any:
        sent_round = yield Send(ACQUIRE)
        release(sent_round)
        yield Sleep(10 * MS)
        release(sent_round)

    def release(sent_round: Any) -> None:
        for path in (0, 1):
            no_client: Any = None
            turn: SimFlow[Any] = SimFlow(process, iter(()), path, no_client, lambda _: None)  # type: ignore[arg-type]
            before = [ways[0].sent for ways in process.links if ways[0]]
            process.send(Send(RELEASE, sent_round.target), turn)
            after = [ways[0].sent for ways in process.links if ways[0]]
            changed = [one for one in (0, 1) if after[one] != before[one]]
            taken.extend(changed)

    def begin(_: object) -> None:
        world.call(process, "acquire", acquire(), lambda _: None, resource="r0")

    world.schedule(MS, begin, None)
    world.run()
    (path,) = set(taken[:2])
    assert taken == [path, path, 0, 1]


def test_who_was_not_asked_for_the_key_is_not_asked_to_release_it() -> None:
    answers: list[Any] = []

    def flow() -> Any:
        sent_round = yield Send(ACQUIRE)
        back = yield Send(RELEASE, sent_round.target._replace(nodes=0b101))
        answers.append(back.target.nodes)
        while len(answers) < 4:
            reply = yield Receive(50 * MS)
            if reply.round == back.round:
                answers.append((reply.node, reply.answer.code))

    Scene().lead(flow())
    assert answers[0] == 0b101
    assert (1, NOT_SET.code) in answers


# --- pending releases ---------------------------------------------------------------------------


def test_a_release_that_cannot_be_sent_becomes_pending_and_is_sent_later() -> None:
    seen = see(plan([job(hold=5 * MS)], faults=[fault("break", 2 * MS, client=0, node=1)]))
    released = seen.all("execute", node=1, token="c0.1", command="release")
    assert [line["vote"] for line in released] == ["granted"]
    assert seen.world.processes[0].nodes[1].pending_releases.next_due() is None
    (sent,) = seen.all("send", message=released[0]["message"])
    assert sent["round"] == 0, "which says that it is a debt"


def test_no_extension_counts_a_node_with_a_pending_release() -> None:
    """The key there may count, and then be deleted by ourselves."""
    answers: list[Any] = []

    def flow() -> Any:
        sent_round = yield Send(Extend(b"r0", b"c0.1", 900))
        answers.append(sent_round.target.nodes)

    scene = Scene()
    scene.act(MS // 2, lambda: scene.process.nodes[1].release_later(RELEASE, "n1.0", 0))
    scene.lead(flow())
    assert answers == [0b101]


# --- cancelled, paused, killed --------------------------------------------------------------------


def test_a_cancelled_caller_leaves_nothing() -> None:
    """The keys are released at any instant of its work, and the caller gets no result."""
    for at in range(30):
        struck = fault("cancel", at * TRIP // 4, client=0)
        seen = see(plan([job(hold=0)], faults=[struck]))
        assert seen.rules == set()
        left = [server.node.keys for server in seen.world.servers]
        assert left == [{}, {}, {}], f"cancelled at {struck.at} ns"


def test_a_paused_client_reads_the_replies_before_the_deadlines() -> None:
    """Like a process that was stopped: what came is in its buffers, and is read first."""
    pause = fault("pause", TRIP, client=0, lasts=200 * MS)
    seen = see(plan([job(), job(after=MS)], faults=[pause], lasts=400 * MS))
    first = seen.all("outcome", client=0)[0]
    assert first["at"] == TRIP + 200 * MS
    assert first["outcome"] == "granted", "its ttl is a second"
    assert seen.before(first["at"] + 1, "elapsed", client=0) == []


def test_a_pause_beyond_the_validity_wins_nothing() -> None:
    pause = fault("pause", TRIP, client=0, lasts=1_500 * MS)
    seen = see(plan([job()], faults=[pause], lasts=2_000 * MS))
    assert seen.all("outcome", client=0)[0]["outcome"] != "granted"
    assert seen.rules == set()


def test_two_pauses_are_counted_for_the_oracle() -> None:
    world = World(plan([]))
    process = world.processes[0]
    for since, until in ((10, 30), (50, 60)):
        world.now = since
        process.stop()
        world.now = until
        process.go_on()
    assert [process.delayed(0, 100), process.delayed(20, 55), process.delayed(31, 49)] == [
        30,
        15,
        0,
    ]


def test_a_dead_process_does_nothing_more() -> None:
    world = World(plan([job(hold=50 * MS, extensions=((20 * MS, 1000),))]))
    world.schedule(10 * MS, lambda _: world.crash(0, 1000, 0), None)
    world.run()
    process = world.processes[0]
    assert process.dead
    assert process.turns == []
    assert all(call.ended is None or call.ended <= 10 * MS for call in world.history.calls)
    assert world.messages == 3, "the acquire; neither the extension nor the release"


def test_a_stopped_clock_does_not_stop_the_world() -> None:
    struck = fault("client_drift", MS // 2, client=0, amount=0)
    seen = see(plan([job(after=MS, hold=MS)], [job()], faults=[struck]))
    assert seen.rules == set()
    assert seen.world.now < 60_000 * MS


# --- small things ---------------------------------------------------------------------------------


def test_tokens_are_fresh_for_every_attempt() -> None:
    entropy = SeededEntropy("c7", World(plan([])).rng)
    assert [entropy.token() for _ in range(3)] == [b"c7.1", b"c7.2", b"c7.3"]


@given(shortest=st.integers(0, 10**9), more=st.integers(0, 10**9))
def test_entropy_is_between_its_ends(shortest: int, more: int) -> None:
    entropy = SeededEntropy("c0", World(plan([])).rng)
    for _ in range(5):
        drawn = entropy.between(shortest, shortest + more)
        assert type(drawn) is int
        assert shortest <= drawn <= shortest + more


@pytest.mark.parametrize(
    ("reply", "data"),
    [
        (1, b":1\r\n"),
        (-3, b":-3\r\n"),
        (OK, b"+OK\r\n"),
        (None, b"_\r\n"),
        (b"c0.1", b"$4\r\nc0.1\r\n"),
        (Error("OOM no"), b"-OOM no\r\n"),
        ([b"c0.1", 20], b"*2\r\n$4\r\nc0.1\r\n:20\r\n"),
    ],
)
def test_replies_travel_as_the_bytes_that_a_server_sends(reply: Any, data: bytes) -> None:
    assert encoded(reply) == data
