"""One client process of a simulated world: the driver that runs the shipped flows there.

It fulfils the contract in `_drivers/abc.py` over simulated connections, with a separate clock.  The
flows, the connections' requests and replies (`Peer`, `RequestPipeline`), the pending releases and
the routing rule are the code that ships; sockets, threads and event loops are not simulated.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core.commands import (
    ACQUIRES,
    AnyAcquire,
    Command,
    Extend,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
    release_of,
)
from quorlock._core.effects import (
    CALL,
    Commit,
    Enlist,
    FlowCancelled,
    Receive,
    Send,
    SendBatch,
    Sleep,
    Timeout,
    Wait,
)
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.places import called
from quorlock._core.releases_in_doubt import merged, remaining
from quorlock._core.restart_guard import Guard
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.routing import Unsent, route
from quorlock._core.time import NS_PER_MS
from quorlock._core.votes import Answer, Vote
from quorlock._protocol.encoding import MARKER, encode
from quorlock._protocol.pipeline import PendingRequest
from quorlock._protocol.reader import ProtocolError
from quorlock.errors import VoteCode
from quorlock.testing.fake_node import Error
from quorlock_sim.client_renewal import Renewer, check_sent
from quorlock_sim.client_waiting import Waiting
from quorlock_sim.clock import NEVER, Clock
from quorlock_sim.network import Push

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from quorlock._core.config import Policy
    from quorlock._core.effects import Effect, Flow, ReplyObserver
    from quorlock._core.member import Member, News
    from quorlock._core.releases_in_doubt import ReleaseCopy, Remaining
    from quorlock._core.restart_guard import Quarantine
    from quorlock._protocol.peer import Peer
    from quorlock.testing.fake_node import Reply
    from quorlock_sim.history import CallRecord, LeaseRecord
    from quorlock_sim.network import Link, Message
    from quorlock_sim.world import World

T = TypeVar("T")

DOWN = Answer(Vote.UNKNOWN, VoteCode.NOT_CONNECTED)
LOST = Answer(Vote.UNKNOWN, VoteCode.CONNECTION_LOST)
BACK_OFF_MIN = 50 * NS_PER_MS
BACK_OFF_MAX = 1_000 * NS_PER_MS


class SeededEntropy:
    """The core's `Entropy`, from the world's seed, with readable tokens."""

    def __init__(self, name: str, dice: Random) -> None:
        self._name = name
        self.rng = dice
        self._count = 0

    def token(self) -> bytes:
        """Return a fresh token (rule 2)."""
        self._count += 1
        return b"%b.%d" % (self._name.encode(), self._count)

    def between(self, shortest: int, longest: int) -> int:
        """Return a random duration in ns."""
        return shortest + int(self.rng.random() * (longest - shortest))


class NodeRecord:
    """A node as one process knows it, for `route` and `Peer`.

    Attributes:
        run_id: of the latest connection.
        back_off: the pause before the next attempt to connect.
        send_at: when its pending releases are sent next; None: no timer is set.
        demoted_at: the true instant at which it last said that it is a replica.
    """

    is_healthy = False  # every reply is recorded

    def __init__(self, process: Process, index: int) -> None:
        policy = process.policy
        self.index = index
        self.pending_releases = PendingReleases(policy.max_ttl)
        self.guard = Guard(policy)
        self.run_id = ""
        self.latency: int | None = None
        self.back_off = BACK_OFF_MIN
        self.send_at: int | None = None
        self.demoted_at = -1
        self._process = process

    def on_answer(self, request: PendingRequest, answer: Answer, at: int) -> None:
        """Record a reply."""
        del answer
        self.latency = at - request.asked_at

    def on_release_refused(self, release: Release, run_id: str, at: int) -> None:
        """Retry a release that the node answered with an error."""
        self.pending_releases.add_refused(release, run_id, at)
        self._process.send_due_soon(self.index)

    def on_protocol_error(self, error: ProtocolError, peer: Peer) -> None:
        """Record that the server is a replica: simulated servers send no other such reply."""
        self.on_replica(peer.run_id, str(error), peer)

    def on_replica(self, run_id: str, why: str, but: Peer | None = None) -> None:
        """Record that this server is a replica, as a reply or a handshake has shown."""
        self.demoted_at = self._process.world.now
        found = [ways[self.index] for ways in self._process.links]
        links = [link for link in found if link is not None]
        self.guard.on_demoted(run_id, links, why, but=but)

    def on_connection_lost(self, answer: Answer) -> None:
        """Do nothing: the process connects again."""

    def on_alive(self, run_id: str, at: int) -> None:
        """Record that the server of a lost connection was alive at this instant."""
        self.guard.on_alive(run_id, at)

    def release_later(self, command: AnyAcquire | Release, run_id: str, at: int) -> None:
        """Register a pending release."""
        self.pending_releases.add(release_of(command), run_id, at)
        self._process.send_due_soon(self.index)


class Process:
    """One client process: its clocks, its connections and its pending releases.

    Attributes:
        elapsed: its monotonic clock.
        clock: the clock that the library reads, which is `elapsed`.
        wall: its wall clock, which the administrator steps, and which the library never reads.
        cut_off: per node: bit 0 while requests, bit 1 while replies do not get through.
        paused: the process does not run; events wait for it.
        stall: the duration (ns) of a pause during its next send, before node `stalls_at`;
            `sending_late` is set for the requests after it.
        vanishes: its next caller is cancelled at the very instant at which its lock is won.
        may_send_later: requests are given to other connection sets, as in the blocking driver
            (see `route`).
        runs_directly: calls run without a flow until one is needed (`usual_flow`). In every other
            process: in the rest, flows run from their beginning.
    """

    may_send_later = True

    def __init__(
        self,
        world: World,
        index: int,
        policy: Policy,
        clock: Clock,
        connection_sets: int,
        dice: Random,
        *,
        polls: bool = False,
    ) -> None:
        self.world = world
        self.index = index
        self.policy = policy
        self.elapsed = clock
        self.wall = Clock(clock.pieces[0].reading, clock.pace)
        self.clock = clock
        self.rng = dice
        self.entropy = SeededEntropy(f"c{index}", dice)
        self.links: list[list[Link | None]] = [[None] * policy.n for _ in range(connection_sets)]
        self.nodes = [NodeRecord(self, index) for index in range(policy.n)]
        self.cut_off = [0] * policy.n
        self.turns: list[SimFlow[Any]] = []
        self.paused = False
        self.dead = False
        self.stall = 0
        self.stalls_at = 0
        self.vanishes = False
        self.sending_late = 0
        self.has_lost = [False] * policy.n  # a connection to the node
        self.runs_directly = index % 2 == 0
        self._followed: list[int] = []  # other connections that a round was sent over
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []  # events during a pause
        self._late: list[tuple[Callable[[Any], None], Any]] = []  # timers during a pause
        self._frozen_until = 0
        self._pauses: list[tuple[int, int]] = []
        self.renewer = Renewer(world, self)
        self.waiting = Waiting(self, index, polls=polls)

    def now(self) -> int:
        """Return the reading of its clock."""
        return self.clock.read(self.world.now)

    # --- time --------------------------------------------------------------------------------

    def wake_at(self, until: int, act: Callable[[Any], None], what: Any) -> None:
        """Call `act` when the clock reads `until`; a stopped clock is polled every second."""
        at = self.clock.when(until)
        if at is None:
            at = self.world.now + 1_000 * NS_PER_MS
        at = self.turn_from(max(at, self.world.now))
        self.world.schedule(at, self._run_timers, (until, act, what))

    def _run_timers(self, timer: tuple[int, Callable[[Any], None], Any]) -> None:
        if self.dead:
            return
        if self.paused:
            self._late.append((self._run_timers, timer))
        elif self.now() < timer[0]:
            self.wake_at(*timer)
        else:
            timer[1](timer[2])

    def later(self, delay: int, act: Callable[[Any], None], what: Any = None) -> None:
        """Call `act` after a true duration, unless the process is dead; a pause delays it."""
        self.world.schedule(self.turn_from(self.world.now + delay), self._act, (act, what))

    def turn_from(self, at: int) -> int:
        """Return the instant at which its event loop handles what is due or arrives at `at`."""
        tick = self.world.plan.tick
        return (at // tick + 1) * tick if tick else at

    def _act(self, deed: tuple[Callable[[Any], None], Any]) -> None:
        if self.dead:
            return
        if self.paused:
            self._waiting.append(deed)
        else:
            deed[0](deed[1])

    def stop(self) -> None:
        """Pause the process."""
        self.paused = True
        self._pauses.append((self.world.now, NEVER))

    def delayed(self, since: int, until: int) -> int:
        """Return the duration (ns) of its pauses between two true instants."""
        spans = ((max(since, begin), min(until, end)) for begin, end in self._pauses)
        return sum(max(0, end - begin) for begin, end in spans)

    def go_on(self) -> None:
        """End a pause: handle the events that arrived, then the timers that were due."""
        if self.world.now < self._frozen_until:
            return
        self.paused = False
        self._pauses[-1] = (self._pauses[-1][0], self.world.now)
        while self._waiting and not self.paused and not self.dead:
            act, what = self._waiting.pop(0)
            act(what)
        while self._late and not self.paused and not self.dead:
            act, what = self._late.pop(0)
            act(what)

    def freeze(self, turn: SimFlow[Any], sent: SentRound | tuple[SentRound, ...]) -> None:
        """Pause during a send."""
        self.stop()
        self._waiting.append((turn.thawed, sent))
        self._frozen_until = self.world.now + self.stall
        self.world.schedule(self._frozen_until, self._thaw, None)
        self.stall = 0

    def _thaw(self, _: None) -> None:
        if self.paused and not self.dead:
            self.go_on()

    # --- a round -----------------------------------------------------------------------------

    def send(self, effect: Send, turn: SimFlow[Any]) -> SentRound:
        """Send a command to all nodes, without waiting for any (contract, 1)."""
        command = effect.command
        data = encode(command)
        turn.round += 1
        turn.began(command)
        self.world.asks(command)
        started = self.now()
        request = PendingRequest(command, turn, turn.round, started)
        asked = 0
        # A cancelled call does not pause: nothing would wait for the end of the pause.
        left = self.world.plan.lasts - self.world.now - 1
        self.stall = max(0, min(self.stall, left))
        for index in range(self.policy.n):
            if index == self.stalls_at and not turn.cancelled:
                self.sending_late = self.stall
            refusal = self._ask(index, data, request, turn.connection_set, effect)
            if refusal is None:
                asked |= 1 << index
            else:
                turn.inbox.append(NodeReply(turn.round, index, refusal, started))
        self.sending_late = 0
        path: int | tuple[int, ...] = turn.connection_set
        followed, self._followed = self._followed, []
        if followed and isinstance(command, ScriptedAcquire):
            path = (turn.connection_set, *dict.fromkeys(followed))  # as in the blocking driver
        return SentRound(turn.round, started, self.now(), Target(asked, path))

    def send_all(self, effect: SendBatch, turn: SimFlow[Any]) -> tuple[SentRound, ...]:
        """Send several rounds in sequence."""
        check_sent(self.world, turn, effect)
        return tuple([self.send(send, turn) for send in effect.sends])

    def _ask(
        self, index: int, data: bytes, request: PendingRequest, connection_set: int, effect: Send
    ) -> Answer | None:
        """Ask one node as `route` decides; return the reply in its name if it is not asked."""
        found = route(effect, index, connection_set, request.asked_at, self)
        if isinstance(found, Answer):
            return found
        command = request.command
        if isinstance(found, Unsent):
            if found.is_release:
                assert isinstance(command, Release)
                self.nodes[index].release_later(command, found.run_id, self.now())
            return DOWN
        if isinstance(found.paths, int):
            self._followed.append(found.paths)
            return self._ask(index, data, request, found.paths, effect)
        link = self.links[connection_set][index]
        assert link is not None
        link.send(data, request)
        return None

    def node(self, index: int) -> NodeRecord:
        """Return the state of a node, for `route`."""
        return self.nodes[index]

    def connection(self, path: object, index: int) -> Link | None:
        """Return the connection of this connection set to a node, for `route`."""
        return self.links[path][index] if isinstance(path, int) else None

    def votes_at(self) -> int:
        """Return the true instant at which all quarantines end, if no clock changes."""
        links = (link for ways in self.links for link in ways if link is not None)
        untils = (link.quarantine.until for link in links if link.quarantine is not None)
        return self.clock.when(max(untils, default=0)) or 0

    def hears(self, link: Link, message: Message) -> None:
        """Read a reply in the next turn of the loop, or keep it for the end of a pause."""
        deed = self._hears, (link, message)
        if self.world.plan.tick:
            self.world.schedule(self.turn_from(self.world.now), self._act, deed)
        else:
            self._act(deed)

    def _hears(self, what: tuple[Link, Message]) -> None:
        link, message = what
        if link.lost:
            self.world.loses(message, "reply")
            return
        link.read = message
        try:
            link.parse(encoded(message.reply), self.now())
        except ProtocolError:
            self.loses(link)
        else:
            if link.pipeline.outgoing:
                link.ask_again()
            if message.number == 0:
                self._answered(link, message)

    def _answered(self, link: Link, message: Message) -> None:
        """Report a call that was read."""
        kind, _, content = message.reply  # type: ignore[misc]
        if kind == b"message":
            place, _ = called(content)  # type: ignore[arg-type]
            self.world.queues.heard(self, link.server, place)

    # --- connecting and disconnecting --------------------------------------------------------

    def connect(self, connection_set: int, index: int) -> None:
        """Open a connection; pending releases are sent first (rule 3)."""
        link = self.links[connection_set][index] = self.world.link(self, connection_set, index)
        link.quarantine, link.alive_at = self._greet(index), self.now()
        self.nodes[index].run_id = link.run_id
        self.nodes[index].back_off = BACK_OFF_MIN
        self.waiting.connected(link)
        self.send_due(index)

    def _greet(self, index: int) -> Quarantine | None:
        """Return the quarantine that a handshake finds (`_protocol/handshake.py`)."""
        node, at, marked = self.world.servers[index].node, self.world.servers[index].at_ms(), None
        if self.policy.restart_guard == "marker":
            marked = node.guard(MARKER, node.run_id.encode(), b"nothing", at)
        marked_ms = marked if isinstance(marked, int) else 0  # refused: the node is full, a replica
        guard = self.nodes[index].guard
        return guard.on_connect(node.run_id, node.uptime_s(at), self.now(), marked_ms=marked_ms)

    def loses(self, link: Link, survivors: int = 1000, late_by: int = 0) -> None:
        """Close a lost connection; its open requests become pending releases; reconnect."""
        if link.lost or self.dead:
            return
        index = link.server.index
        self.has_lost[index] = True
        link.tear(survivors, late_by)
        self.world.disconnected(link)
        self.links[link.connection_set][index] = None
        at = self.now()
        link.register_loss(LOST, at)
        link.answer_open_requests(LOST, at)
        self.later(self._wait(index), self._try, (link.connection_set, index))

    def _wait(self, index: int) -> int:
        pause = self.nodes[index].back_off
        self.nodes[index].back_off = min(2 * pause, BACK_OFF_MAX)
        return pause

    def _try(self, way: tuple[int, int]) -> None:
        """Connect in one round trip, if the node is reachable."""
        connection_set, index = way
        server = self.world.servers[index]
        is_reached = server.up and not server.hung and not self.cut_off[index]
        if is_reached and server.node.read_only:
            self.nodes[index].on_replica(server.node.run_id, "is not a master")
        if not is_reached or server.node.read_only:
            self.later(self._wait(index), self._try, way)
            return
        trip = 2 * self.world.network_profile.delay(self.rng)
        self.later(trip, self._arrive, (connection_set, index, server.epoch))

    def _arrive(self, way: tuple[int, int, int]) -> None:
        connection_set, index, epoch = way
        server = self.world.servers[index]
        if server.up and server.epoch == epoch and not self.cut_off[index]:
            self.connect(connection_set, index)
        else:
            self._try((connection_set, index))

    # --- pending releases --------------------------------------------------------------------

    def send_due_soon(self, index: int) -> None:
        """Send the pending releases of a node that are due, after what happens now."""
        self.world.schedule(self.world.now, self._act, (self.send_due, index))

    def send_due(self, index: int) -> None:
        """Send the pending releases that are due, if connected, and schedule the next ones."""
        link = next((ways[index] for ways in self.links if ways[index] is not None), None)
        if link is None:
            return
        at, node = self.now(), self.nodes[index]
        for copy in node.pending_releases.due(at, link.run_id):
            receiver = ReleaseRequest(node.pending_releases, copy)
            link.send(encode(copy.release), PendingRequest(copy.release, receiver, 0, at))
        due = node.pending_releases.next_due()
        if due is not None and due != node.send_at:
            node.send_at = due
            self.wake_at(due, self._send_due_again, (node, due))

    def _send_due_again(self, what: tuple[NodeRecord, int]) -> None:
        node, due = what
        if node.send_at == due:
            node.send_at = None
        self.send_due(node.index)

    def suppress_releases(self, lease: LeaseRecord) -> Remaining:
        """Suppress releases of the lease's token; return the time each is still in doubt."""
        at, in_doubt = self.now(), lease.in_doubt or {}
        for node in self.nodes:
            carried = partial(self._carries, node.index)
            in_doubt = merged(in_doubt, node.pending_releases.suppress(lease.token, at, carried))
        return remaining(in_doubt, at)

    def allow_releases(self, token: bytes) -> None:
        """Allow releases of a token again, after its lease was adopted here."""
        for node in self.nodes:
            node.pending_releases.unsuppress(token, partial(self._carries, node.index))

    def _carries(self, index: int, token: bytes) -> bool:
        links = (ways[index] for ways in self.links)
        return any(x is not None and x.pipeline.has_pending_acquire(token) for x in links)

    # --- the end -----------------------------------------------------------------------------

    def crash(self, survivors: int, late_by: int) -> None:
        """Kill the process, as SIGKILL does."""
        self.dead = True
        for ways in self.links:
            for link in ways:
                if link is not None:
                    link.tear(survivors, late_by)
        for turn in self.turns:
            turn.over = True
        self.turns.clear()
        self.waiting.end()


class ReleaseRequest:
    """The receiver of the reply to a pending release."""

    over = False
    round = 0

    def __init__(self, pending_releases: PendingReleases, copy: ReleaseCopy) -> None:
        self._pending_releases = pending_releases
        self._copy = copy

    def deliver(self, reply: NodeReply) -> None:
        """Record the reply to the pending release."""
        release, run_id = self._copy
        self._pending_releases.on_connection_lost(self._copy, reply.at)
        self._pending_releases.on_reply(release, run_id, reply.answer)


class SimFlow(Generic[T]):
    """One running flow, and its queue of replies.

    Args:
        process: the process that runs it.
        flow: the flow.
        connection_set: the connections that it uses.
        call: the record of the call.
        done: called with the outcome, or with the exception that ended the flow.
    """

    def __init__(
        self,
        process: Process,
        flow: Flow[T],
        connection_set: int,
        call: CallRecord,
        done: Callable[[Any], None],
    ) -> None:
        self.process = process
        self.call = call
        self.connection_set = connection_set
        self.over = False
        self.cancelled = False
        self.round = 0
        self.inbox: deque[NodeReply] = deque()
        self.command: Command | None = None  # of its last round
        self.sent_round: SentRound | None = None
        self.votes: dict[int, Vote] = {}  # the votes of its present round, for the oracle
        self._flow = flow
        self._done = done
        self._timer = 0  # a number, so that an old timer is recognised when it fires
        self._timer_until: int | None = None
        self._until: int | None = None  # set while the flow waits for a reply
        self._member: Member | None = None  # set while it waits for news, too
        self._observer: ReplyObserver | None = None  # of replies in that wait
        self._sleeping = False

    @property
    def phase(self) -> str:
        """The present phase, for the table of faults by phase."""
        if self._sleeping or self._member is not None:
            return "waiting"
        if isinstance(self.command, Release):
            return "cleaning up" if "acquire" in self.call.what else "releasing"
        return "extending" if isinstance(self.command, (Extend, Keep)) else "acquiring"

    @property
    def is_between_attempts(self) -> bool:
        """The flow pauses before it tries again."""
        return self._sleeping

    def begin(self) -> None:
        """Run the flow until it waits or ends."""
        self.process.turns.append(self)
        self._run(None)

    def began(self, command: Command) -> None:
        """Begin a round; the previous one is over."""
        if self.command is not None:
            self.process.world.round_ended(self)
        self.command = command
        if type(command) is not IssueFence:  # the second round of an acquire adds to its first
            self.votes.clear()

    def deliver(self, reply: NodeReply) -> None:
        """Take a reply from a connection, or a call."""
        if reply.round == self.round != CALL:
            self.votes.setdefault(reply.node, reply.answer.vote)
            if isinstance(self.command, ACQUIRES):
                self.process.world.voted(self.command.token, reply)
        if self._until is None:
            self.inbox.append(reply)
        elif self._member is None or (self._observer and self._observer.on_reply(reply)):
            self._go_on(reply)

    def cancel(self) -> None:
        """Cancel the flow, and carry out its release (contract, 5)."""
        self.cancelled = True
        self._finish()
        try:
            effect = self._flow.throw(FlowCancelled())
            while type(effect) is Send:
                # An acquire that was never sent needs no release.
                is_due = self.round or effect.behind is not None
                effect = self._flow.send(self.process.send(effect, self) if is_due else None)
            self._flow.close()
        except (StopIteration, FlowCancelled):
            pass
        self.process.waiting.forget(self)

    def _run(self, value: Any) -> None:  # noqa: C901, PLR0912 (one branch for each effect)
        """Perform the flow's effects, until it waits or ends."""
        try:
            effect: Effect = self._flow.send(value)
            while True:
                kind = type(effect)
                if kind is Receive:
                    if not self.inbox:
                        self._wait_for_reply(effect.until)  # type: ignore[union-attr]
                        return
                    effect = self._flow.send(self.inbox.popleft())
                elif kind is Send or kind is SendBatch:
                    sent = self._send(effect)  # type: ignore[arg-type]
                    if sent is None:
                        return
                    effect = self._flow.send(sent)
                elif kind is Enlist:
                    effect = self._flow.send(self.process.waiting.enlist(self))
                elif kind is Wait:
                    event = self._news(effect)  # type: ignore[arg-type]
                    if event is None:
                        return
                    effect = self._flow.send(event)
                elif kind is Sleep:
                    self._sleeping = True
                    self._wait_until(effect.until)  # type: ignore[union-attr]
                    return
                else:
                    assert isinstance(effect, Commit)
                    if self.process.vanishes:
                        self.process.vanishes = False
                        self.process.world.vanished(self)
                        return
                    self._finish()
                    self._flow.close()
                    self._done(effect.granted)
                    return
        except StopIteration as stop:
            self._finish()
            self._done(stop.value)
        except Exception as error:  # noqa: BLE001 (the caller gets it)
            self._finish()
            self._done(error)

    def _news(self, effect: Wait) -> News | NodeReply | None:
        """Return news, or a reply that the flow acts on; None if it waits for one."""
        member, observer = effect.member, effect.observer
        member.wake = self._wake
        if member.news:
            return member.news.popleft()
        while self.inbox:
            reply = self.inbox.popleft()
            if observer is not None and observer.on_reply(reply):
                return reply
        self._member, self._observer = member, observer
        self._wait_for_reply(effect.until)
        return None

    def _wake(self) -> None:
        """Read news soon: another flow of the process runs at this moment."""
        self.process.later(0, self._on_news)

    def _on_news(self, _: None) -> None:
        if self._member is not None and self._member.news and not self.over:
            self._go_on(self._member.news.popleft())

    def _go_on(self, event: Any) -> None:
        """Continue after a wait."""
        self._until = self._member = None
        self._run(event)

    def _send(self, effect: Send | SendBatch) -> SentRound | tuple[SentRound, ...] | None:
        """Send one round or several; return None if the process was paused during the send."""
        sent: SentRound | tuple[SentRound, ...]
        if isinstance(effect, Send):
            sent = self.sent_round = self.process.send(effect, self)
        else:
            sent = self.process.send_all(effect, self)
        if self.process.stall:
            self.process.freeze(self, sent)
            return None
        return sent

    def thawed(self, what: SentRound | tuple[SentRound, ...]) -> None:
        """Continue after a pause during a send: the nodes' time counts from now."""
        at = self.process.now()
        if self.over:
            return
        if isinstance(what, SentRound):
            self._run(what._replace(sent_at=at))
        else:
            self._run(tuple([sent_round._replace(sent_at=at) for sent_round in what]))

    def _finish(self) -> None:
        self.over = True
        self._timer += 1
        if self in self.process.turns:
            self.process.turns.remove(self)
        if not self.cancelled:
            self.process.waiting.forget(self)

    def _wait_for_reply(self, until: int) -> None:
        self._until = until
        if self._timer_until != until:
            self._wait_until(until)

    def _wait_until(self, until: int) -> None:
        self._timer += 1
        self._timer_until = until
        self.process.wake_at(until, self._on_timer, self._timer)

    def _on_timer(self, timer: int) -> None:
        if timer != self._timer or self.over:
            return
        self._timer_until = None
        at = self.process.now()
        if self._sleeping:
            self._sleeping = False
            self._run(at)
        elif self._until is not None:
            self.process.world.elapsed(self)
            self._go_on(Timeout(at))


_OFTEN: dict[Any, bytes] = {None: b"_\r\n", b"OK": b"+OK\r\n"}


def encoded(reply: Reply) -> bytes:
    """Return the bytes of a reply (RESP3)."""
    if type(reply) is int:
        return b":%d\r\n" % reply
    if isinstance(reply, Error):
        return b"-%b\r\n" % reply.encode()
    if isinstance(reply, Push):
        return b">%d\r\n" % len(reply) + b"".join(map(encoded, reply))
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))
    known = _OFTEN.get(reply)
    if known is not None:
        return known
    assert isinstance(reply, bytes)
    return b"$%d\r\n%b\r\n" % (len(reply), reply)
