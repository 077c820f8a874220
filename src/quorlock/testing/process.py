"""One client process of a simulated world: the driver that runs the shipped flows there.

It owes the flows what `_drivers/contract.py` says, over simulated connections and a clock of its
own.  The flows, the queue of each connection (`Conversation`), the reading of replies and the
debts are the very code that ships; sockets, threads and event loops are not here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core.commands import ACQUIRES, AnyAcquire, Command, Extend, Raise, Release
from quorlock._core.debts import Debts
from quorlock._core.effects import (
    Abandoned,
    Elapsed,
    Keep,
    Receipt,
    Receive,
    Replied,
    Send,
    SendAll,
    Sleep,
)
from quorlock._core.guard import VOTES, Guard, kept_out
from quorlock._core.outcomes import ABSENT, Answer, Cause, Vote
from quorlock._core.time import NS_PER_MS
from quorlock._wire.conversation import Question
from quorlock._wire.packing import MARKER, pack
from quorlock.testing.clock import Clock
from quorlock.testing.node import Error
from quorlock.testing.renewing import Renewer, check_sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from quorlock._core.effects import Effect, Flow
    from quorlock._core.guard import Quarantine
    from quorlock._core.policy import Policy
    from quorlock.testing.history import Call
    from quorlock.testing.network import Link, Message
    from quorlock.testing.node import Reply
    from quorlock.testing.world import World

T = TypeVar("T")

DOWN = Answer(Vote.UNKNOWN, Cause.DOWN)
LOST = Answer(Vote.UNKNOWN, Cause.LOST)
BACK_OFF_MIN = 50 * NS_PER_MS
BACK_OFF_MAX = 1_000 * NS_PER_MS


class Dicey:
    """The core's `Chance`, from the world's seed: tokens that a reader can follow."""

    def __init__(self, name: str, dice: Random) -> None:
        self._name = name
        self.dice = dice
        self._count = 0

    def token(self) -> bytes:
        """Fresh for every attempt, as rule 2 has it."""
        self._count += 1
        return b"%b.%d" % (self._name.encode(), self._count)

    def between(self, shortest: int, longest: int) -> int:
        """A random duration in ns."""
        return shortest + int(self.dice.random() * (longest - shortest))


class Process:
    """See the module.

    Attributes:
        elapsed: its clock of elapsed time, `clock` the one that it goes by: the same. `wall`
            is its wall clock, which the administrator steps, and which nothing of ours reads.
        cut_off: per node: bit 0 while requests, bit 1 while replies do not get through.
        paused: nothing of it runs; what comes waits for it.
        stall: it will freeze for so long (ns) in the midst of its next sending, before node
            `stalls_at`; `sending_late` is set while what comes after that is written.
        vanishes: its next caller will be gone at the very instant at which its lock is won.
    """

    def __init__(
        self, world: World, index: int, policy: Policy, clock: Clock, bundles: int, dice: Random
    ) -> None:
        self.world = world
        self.index = index
        self.policy = policy
        self.elapsed = clock
        self.wall = Clock(clock.pieces[0].reading, clock.pace)
        self.clock = clock
        self.dice = dice
        self.chance = Dicey(f"c{index}", dice)
        self.links: list[list[Link | None]] = [[None] * policy.n for _ in range(bundles)]
        self.debts = [Debts(policy.max_ttl) for _ in range(policy.n)]
        self.guards = [Guard(policy) for _ in range(policy.n)]
        self.cut_off = [0] * policy.n
        self.turns: list[Turn[Any]] = []
        self.paused = False
        self.dead = False
        self.stall = 0
        self.stalls_at = 0
        self.vanishes = False
        self.sending_late = 0
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []  # for the end of a pause
        self._late: list[tuple[Callable[[Any], None], Any]] = []  # timers, after the replies
        self._frozen_until = 0
        self._pauses: list[tuple[int, int]] = []
        self._back_off = [BACK_OFF_MIN] * policy.n
        self._paying: list[int | None] = [None] * policy.n
        self.renewer = Renewer(world, self)

    def now(self) -> int:
        """Its own clock."""
        return self.clock.read(self.world.now)

    # --- time --------------------------------------------------------------------------------

    def ring(self, until: int, bell: Callable[[Any], None], what: Any) -> None:
        """Call the bell when its clock shows `until`; a stopped clock is looked at now and then."""
        at = self.clock.when(until)
        if at is None:
            at = self.world.now + 1_000 * NS_PER_MS
        self.world.at(max(at, self.world.now), self._ring, (until, bell, what))

    def _ring(self, timer: tuple[int, Callable[[Any], None], Any]) -> None:
        if self.dead:
            return
        if self.paused:
            self._late.append((self._ring, timer))
        elif self.now() < timer[0]:
            self.ring(*timer)
        else:
            timer[1](timer[2])

    def later(self, delay: int, act: Callable[[Any], None], what: Any = None) -> None:
        """Act after so much true time, if it is alive then; after the pause, if it is paused."""
        self.world.at(self.world.now + delay, self._act, (act, what))

    def _act(self, deed: tuple[Callable[[Any], None], Any]) -> None:
        if self.dead:
            return
        if self.paused:
            self._waiting.append(deed)
        else:
            deed[0](deed[1])

    def stop(self) -> None:
        """From now on nothing of it runs."""
        self.paused = True
        self._pauses.append((self.world.now, 1 << 62))

    def delayed(self, since: int, until: int) -> int:
        """For how long (ns) it stood still between these two true instants."""
        spans = ((max(since, begin), min(until, end)) for begin, end in self._pauses)
        return sum(max(0, end - begin) for begin, end in spans)

    def go_on(self) -> None:
        """The pause is over: what came meanwhile first, then what should have rung."""
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

    def freeze(self, turn: Turn[Any], sent: Receipt | tuple[Receipt, ...]) -> None:
        """Stand still in the midst of sending."""
        self.stop()
        self._waiting.append((turn.thawed, sent))
        self._frozen_until = self.world.now + self.stall
        self.world.at(self._frozen_until, self._thaw, None)
        self.stall = 0

    def _thaw(self, _: None) -> None:
        if self.paused and not self.dead:
            self.go_on()

    # --- a round -----------------------------------------------------------------------------

    def send(self, effect: Send, turn: Turn[Any]) -> Receipt:
        """Ask all nodes at once, waiting for none (contract, 1)."""
        command, behind = effect.command, effect.behind
        data = pack(command)
        turn.round += 1
        turn.began(command)
        self.world.asks(command)
        started = self.now()
        question = Question(command, turn, turn.round, started)
        asked = 0
        # Who gives back for a caller that is gone does not freeze: nothing would wait for its end.
        left = self.world.plan.lasts - self.world.now - 1
        self.stall = max(0, min(self.stall, left))
        for index in range(self.policy.n):
            if index == self.stalls_at and not turn.cancelled:
                self.sending_late = self.stall
            refusal = self._ask(index, data, question, turn.bundle, behind)
            if refusal is None:
                asked |= 1 << index
            else:
                turn.mail.append(Replied(turn.round, index, refusal, started))
        self.sending_late = 0
        return Receipt(turn.round, started, self.now(), asked, turn.bundle)

    def send_all(self, effect: SendAll, turn: Turn[Any]) -> tuple[Receipt, ...]:
        """Several rounds, one behind the other."""
        check_sent(self.world, turn, effect)
        return tuple([self.send(send, turn) for send in effect.sends])

    def _ask(
        self, index: int, data: bytes, question: Question, bundle: int, behind: Receipt | None
    ) -> Answer | None:
        """Ask one node; the answer in its name if it can't be asked."""
        link = self.links[bundle][index]
        command = question.command
        is_kept = type(command) is Extend or (type(command) in ACQUIRES and behind is not None)
        if is_kept and self.debts[index].owes(getattr(command, "token", b""), question.asked_at):
            return ABSENT  # what may be there of ours is about to be deleted
        if behind is not None:
            if not behind.asked >> index & 1:
                return ABSENT  # it never had our key
            if behind.path != bundle:
                link = self._behind(index, command, behind) or link
        if link is not None:
            if isinstance(command, VOTES) and (kept := self._kept_out(link, question.asked_at)):
                return kept
            link.ask(data, question)
            return None
        if type(command) is Release:
            self.owe(index, command, "")
        return DOWN

    def _kept_out(self, link: Link, at: int) -> Answer | None:
        """The answer in the name of a node that must not vote yet."""
        return None if link.quarantine is None else kept_out(link.quarantine, at)

    def votes_at(self) -> int:
        """The true instant from which on none of its nodes is kept out, if no clock changes."""
        links = (link for ways in self.links for link in ways if link is not None)
        untils = (link.quarantine.until for link in links if link.quarantine is not None)
        return self.clock.when(max(untils, default=0)) or 0

    def _behind(self, index: int, command: Command, behind: Receipt) -> Link | None:
        """The connection on which the acquire is still unanswered (rule 3)."""
        token: bytes = getattr(command, "token", b"")
        for path in behind.paths:
            assert isinstance(path, int)
            link = self.links[path][index]
            if link is not None and link.conversation.awaits_acquire(token):
                return link
        return None

    def hears(self, link: Link, message: Message) -> None:
        """A reply has come."""
        if self.paused:
            self._waiting.append((self._hears, (link, message)))
        elif not self.dead:
            self._hears((link, message))

    def _hears(self, what: tuple[Link, Message]) -> None:
        link, message = what
        if link.lost:
            self.world.loses(message, "reply")
            return
        at = self.now()
        data = encoded(message.reply)
        link.conversation.feed(data, len(data))
        for question, answer in link.conversation.answers():
            asker = question.asker
            assert isinstance(asker, (Turn, Payment))
            self.world.heard(message, question, answer)
            if type(question.command) is Release and answer.is_fault and not answer.is_done:
                self._refused(link.server.index, question.command, link.run_id)
            if not asker.over:
                asker.hear(Replied(question.round, link.server.index, answer, at))
        if link.conversation.unsent:
            link.ask_again()

    # --- connections come and go -------------------------------------------------------------

    def connect(self, bundle: int, index: int) -> None:
        """Be connected from now on; debts are paid first thing (rule 3)."""
        link = self.links[bundle][index] = self.world.link(self, bundle, index)
        link.quarantine = self._greet(index)
        self._back_off[index] = BACK_OFF_MIN
        self.pay(index)

    def _greet(self, index: int) -> Quarantine | None:
        """What the first words on a connection tell of a restart (`_wire/handshake.py`)."""
        node, at, marked = self.world.servers[index].node, self.world.servers[index].at_ms(), None
        if self.policy.restart_guard == "marker":
            marked = node.guard(MARKER, node.run_id.encode(), b"nothing", at)
        marked_ms = marked if isinstance(marked, int) else 0  # it refuses: it is full, a replica
        guard = self.guards[index]
        return guard.met(node.run_id, node.uptime_s(at), self.now(), marked_ms=marked_ms)

    def loses(self, link: Link, survivors: int = 1000, late_by: int = 0) -> None:
        """A connection is gone: what it leaves open becomes debts, and the way is sought again."""
        if link.lost or self.dead:
            return
        index = link.server.index
        link.tear(survivors, late_by)
        self.world.disconnected(link)
        self.links[link.bundle][index] = None
        for command in link.conversation.owed_releases():
            self.owe(index, command, link.run_id)
        at = self.now()
        for question in link.conversation.questions:
            asker = question.asker
            assert isinstance(asker, (Turn, Payment))
            if not asker.over:
                asker.hear(Replied(question.round, index, LOST, at))
        self.later(self._wait(index), self._try, (link.bundle, index))

    def _wait(self, index: int) -> int:
        pause, self._back_off[index] = (
            self._back_off[index],
            min(2 * self._back_off[index], BACK_OFF_MAX),
        )
        return pause

    def _try(self, way: tuple[int, int]) -> None:
        """Connect, in one round trip, if the node can be reached."""
        bundle, index = way
        server = self.world.servers[index]
        if not server.up or server.hung or self.cut_off[index]:
            self.later(self._wait(index), self._try, way)
            return
        trip = 2 * self.world.weather.delay(self.dice)
        self.later(trip, self._arrive, (bundle, index, server.epoch))

    def _arrive(self, way: tuple[int, int, int]) -> None:
        bundle, index, epoch = way
        server = self.world.servers[index]
        if server.up and server.epoch == epoch and not self.cut_off[index]:
            self.connect(bundle, index)
        else:
            self._try((bundle, index))

    # --- debts -------------------------------------------------------------------------------

    def owe(self, index: int, command: AnyAcquire | Release, run_id: str) -> None:
        """A release must reach this node some other way."""
        self.debts[index].owe(command.key, command.token, run_id, self.now())
        self.world.at(self.world.now, self._act, (self.pay, index))

    def _refused(self, index: int, command: Release, run_id: str) -> None:
        """A node answered a release with an error: it is tried again."""
        self.debts[index].refused(command.key, command.token, run_id, self.now())
        self.world.at(self.world.now, self._act, (self.pay, index))

    def pay(self, index: int) -> None:
        """Send what is due, if there is a way, and come back when more is."""
        link = next((ways[index] for ways in self.links if ways[index] is not None), None)
        if link is None:
            return
        at = self.now()
        for release in self.debts[index].due(at):
            link.ask(pack(release), Question(release, Payment(self, link, release.token), 0, at))
        due = self.debts[index].next_due()
        if due is not None and due != self._paying[index]:
            self._paying[index] = due
            self.ring(due, self._pay_again, (index, due))

    def _pay_again(self, what: tuple[int, int]) -> None:
        index, due = what
        if self._paying[index] == due:
            self._paying[index] = None
        self.pay(index)

    # --- the end -----------------------------------------------------------------------------

    def crash(self, survivors: int, late_by: int) -> None:
        """The process is gone, as by SIGKILL, with all that it knew."""
        self.dead = True
        for ways in self.links:
            for link in ways:
                if link is not None:
                    link.tear(survivors, late_by)
        for turn in self.turns:
            turn.over = True
        self.turns.clear()


class Payment:
    """Hears what became of a release that was owed."""

    over = False
    round = 0

    def __init__(self, process: Process, link: Link, token: bytes) -> None:
        self._process = process
        self._link = link
        self._token = token

    def hear(self, reply: Replied) -> None:
        """Settles the debt, if the node carried the release out."""
        if reply.answer.is_done:
            deleted = reply.answer.vote is Vote.GRANTED
            debts = self._process.debts[reply.node]
            debts.answered(self._token, self._link.run_id, deleted=deleted)


class Turn(Generic[T]):
    """One flow on its way, and its letter box.

    done: called with the outcome, or with the exception that ended the flow.
    """

    def __init__(
        self,
        process: Process,
        flow: Flow[T],
        bundle: int,
        call: Call,
        done: Callable[[Any], None],
    ) -> None:
        self.process = process
        self.call = call
        self.bundle = bundle
        self.over = False
        self.cancelled = False
        self.round = 0
        self.mail: deque[Replied] = deque()
        self.command: Command | None = None  # of its last round
        self.receipt: Receipt | None = None
        self.votes: dict[int, Vote] = {}  # what its present round has heard, for the judge
        self._flow = flow
        self._done = done
        self._timer = 0  # counts, so that an old timer is known when it rings
        self._timer_until: int | None = None
        self._until: int | None = None  # set while the flow waits for a reply
        self._sleeping = False

    @property
    def phase(self) -> str:
        """What it is about, for the table of faults and phases."""
        if self._sleeping:
            return "waiting"
        if type(self.command) is Release:
            return "giving back" if "acquire" in self.call.what else "releasing"
        return "extending" if type(self.command) is Extend else "acquiring"

    def begin(self) -> None:
        """Lead the flow as far as it goes."""
        self.process.turns.append(self)
        self._go_on(None)

    def began(self, command: Command) -> None:
        """A round begins; the one before it is over."""
        if self.command is not None:
            self.process.world.round_ended(self)
        self.command = command
        if type(command) is not Raise:  # the second round of an acquire adds to its first
            self.votes.clear()

    def hear(self, reply: Replied) -> None:
        """A connection brings an answer."""
        if reply.round == self.round:
            self.votes.setdefault(reply.node, reply.answer.vote)
        if self._until is None:
            self.mail.append(reply)
        else:
            self._until = None
            self._go_on(reply)

    def abandon(self) -> None:
        """The caller is gone: let the flow give back (contract, 5)."""
        self.cancelled = True
        self._finish()
        try:
            effect = self._flow.throw(Abandoned())
            # An acquire of which nothing was sent leaves nothing to give back.
            while type(effect) is Send and self.round:
                effect = self._flow.send(self.process.send(effect, self))
            self._flow.close()
        except (StopIteration, Abandoned):
            pass

    def _go_on(self, value: Any) -> None:
        """Give the flow what it asked for, until it has to wait or ends."""
        try:
            effect: Effect = self._flow.send(value)
            while True:
                kind = type(effect)
                if kind is Receive:
                    if not self.mail:
                        self._listen(effect.until)  # type: ignore[union-attr]
                        return
                    effect = self._flow.send(self.mail.popleft())
                elif kind is Send or kind is SendAll:
                    sent = self._send(effect)  # type: ignore[arg-type]
                    if sent is None:
                        return
                    effect = self._flow.send(sent)
                elif kind is Sleep:
                    self._sleeping = True
                    self._wait_until(effect.until)  # type: ignore[union-attr]
                    return
                else:
                    assert isinstance(effect, Keep)
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

    def _send(self, effect: Send | SendAll) -> Receipt | tuple[Receipt, ...] | None:
        """Send it; None: it froze in the midst of that."""
        sent: Receipt | tuple[Receipt, ...]
        if isinstance(effect, Send):
            sent = self.receipt = self.process.send(effect, self)
        else:
            sent = self.process.send_all(effect, self)
        if self.process.stall:
            self.process.freeze(self, sent)
            return None
        return sent

    def thawed(self, what: Receipt | tuple[Receipt, ...]) -> None:
        """It had frozen in the midst of sending: the time to answer counts from now."""
        at = self.process.now()
        if self.over:
            return
        if isinstance(what, Receipt):
            self._go_on(what._replace(sent=at))
        else:
            self._go_on(tuple([receipt._replace(sent=at) for receipt in what]))

    def _finish(self) -> None:
        self.over = True
        self._timer += 1
        if self in self.process.turns:
            self.process.turns.remove(self)

    def _listen(self, until: int) -> None:
        self._until = until
        if self._timer_until != until:
            self._wait_until(until)

    def _wait_until(self, until: int) -> None:
        self._timer += 1
        self._timer_until = until
        self.process.ring(until, self._ring, self._timer)

    def _ring(self, timer: int) -> None:
        if timer != self._timer or self.over:
            return
        self._timer_until = None
        at = self.process.now()
        if self._sleeping:
            self._sleeping = False
            self._go_on(at)
        elif self._until is not None:
            self._until = None
            self.process.world.elapsed(self)
            self._go_on(Elapsed(at))


_OFTEN: dict[Any, bytes] = {None: b"_\r\n", b"OK": b"+OK\r\n"}


def encoded(reply: Reply) -> bytes:
    """The bytes of a reply (RESP3)."""
    if type(reply) is int:
        return b":%d\r\n" % reply
    if isinstance(reply, Error):
        return b"-%b\r\n" % reply.encode()
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))
    known = _OFTEN.get(reply)
    if known is not None:
        return known
    assert isinstance(reply, bytes)
    return b"$%d\r\n%b\r\n" % (len(reply), reply)
