"""One event loop's share of the asyncio driver: a way to every node, and rounds over them.

Leaves flows to `asyncio`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    ACQUIRES,
    SPARED,
    Acquire,
    AcquireByScript,
    Extend,
    Raise,
    Release,
)
from quorlock._core.effects import Receipt, receipt_of, replied
from quorlock._core.guard import VOTES, kept_out
from quorlock._core.outcomes import ABSENT, Answer
from quorlock._core.time import FOR_EVER
from quorlock._drivers.clock import now
from quorlock._drivers.convoy import Convoy
from quorlock._drivers.members import BACKLOG
from quorlock._drivers.way import Way, silence
from quorlock._wire.conversation import questioned
from quorlock._wire.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Command
    from quorlock._core.effects import Send, SendAll
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._drivers.asyncio import Turn
    from quorlock._drivers.link import Link
    from quorlock._drivers.members import Members
    from quorlock._wire.conversation import Hint, Question


# So many acquire at once, the others queue before their time begins to run: beyond it every round
# takes longer, until none is answered within node_timeout.  At 128 the nodes are busy all the time.
ACQUIRING_MAX = 128


class Engine:
    """See the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        members: Members,
        policy: Policy,
        on_end: Callable[[Engine], None],
    ) -> None:
        self.loop = loop
        self.ending = False  # nothing but releases from now on
        self.closing = False  # not even these
        self.turns: set[Turn[Any]] = set()  # flows whose callers have no outcome yet
        self.convoy = Convoy(policy.quorum, self._flush)
        self.ways = tuple(
            Way(member, members, policy, self._changed, self.convoy) for member in members.all
        )
        self.members = members
        self._policy = policy
        self._on_end = on_end
        self._fresh = True
        self._grace: Instant | None = None
        self._give_up: Instant | None = None
        self._waiting: list[Callable[[], None]] = []
        self._recheck: asyncio.TimerHandle | None = None
        self._corked = False
        self._lonely = True  # what was sent last was one round alone
        # What `Receipt.asked` is when all were asked.
        self._everywhere = (1 << len(members.all)) - 1
        self._acquiring = 0
        self.queue: deque[Turn[Any]] = deque()  # those that want to, beyond ACQUIRING_MAX
        self._sending: list[Turn[Any]] = []  # their time to answer has not begun
        self._deadline: asyncio.TimerHandle | None = None
        self._end: asyncio.Future[None] = loop.create_future()
        # It is cancelled with all other tasks when asyncio.run ends: our sign to give back
        # what is still held, as an interpreter's exit is for threads.
        self.guardian = loop.create_task(self._guard(), name="quorlock guardian")
        silence(self.guardian)

    # --- a round -----------------------------------------------------------------------------

    def send(self, effect: Send, turn: Turn[Any]) -> Receipt:
        """Ask all nodes at once, waiting for none."""
        command, behind, _ = effect
        convoy = self.convoy
        if turn.round:
            convoy.spell_out(turn.number)
        data = pack(command)
        turn.round += 1
        started = now()
        question = questioned((command, turn, turn.round, started, False))
        asked = 0
        if convoy.asked and self._is_for_all(command, behind, started):
            asked = convoy.asked
            convoy.ask(question, turn, data)
        if asked != self._everywhere:
            for way in self.ways:
                if not asked & way.bit:
                    index = way.member.index
                    refusal = self._ask(index, data, question, behind)
                    if refusal is None:
                        asked |= way.bit
                    else:
                        turn.mail.append(replied((turn.round, index, refusal, started)))
            convoy.greet()
        # With company it goes out at the end of the tick: without that, a thousand tasks spend
        # their time in send() and miss their deadlines.
        if self._lonely and len(self.turns) <= 1:
            self._flush()
        elif not self._corked:
            self._corked = True
            self.loop.call_soon(self._flush)
        sent = now()
        turn.sent = sent
        return receipt_of((turn.round, started, sent, asked, self))

    def _is_for_all(self, command: Command, behind: Receipt | None, at: Instant) -> bool:
        """Nearly always there is nothing to look into, and the convoy just gets the bytes."""
        if type(command) is Acquire:
            return behind is None  # else it is for those that lack the key
        if behind is not None and self.convoy.asked & ~behind.asked:
            return False
        if type(command) is Release:
            return self.convoy.knows_release
        if isinstance(command, (AcquireByScript, Raise)):
            return self.convoy.knows(command)
        return type(command) is not Extend or (
            self.convoy.knows_extend
            and not any(way.member.debts.owes(command.token, at) for way in self.ways)
        )

    def send_all(self, effect: SendAll, turn: Turn[Any]) -> tuple[Receipt, ...]:
        """Several rounds, in one packet to each node: at the end of this tick."""
        self._lonely = False
        return tuple([self.send(send, turn) for send in effect.sends])

    def _ask(
        self, index: int, data: bytes, question: Question, behind: Receipt | None
    ) -> Answer | None:
        """Ask one node; the answer in its name if it can't be asked."""
        if behind is not None and not behind.asked >> index & 1:
            return ABSENT  # it never had our key
        way = self.ways[index]
        link, command = way.link, question.command
        is_kept = type(command) is Extend or (type(command) in ACQUIRES and behind is not None)
        if is_kept and way.member.debts.owes(getattr(command, "token", b""), question.asked_at):
            return ABSENT  # what may be there of ours is about to be deleted
        if link is not None:
            if isinstance(command, VOTES) and (kept := self._kept_out(link, question)):
                return kept
            if type(command) in SPARED and link.conversation.backlogged(question.asked_at):
                return BACKLOG
            if link.ask(data, question):
                return None
        promised = type(command) is Release and way.owe(question)
        way.want()
        return None if promised else way.member.absence

    def _kept_out(self, link: Link, question: Question) -> Answer | None:
        """The answer in the name of a node that must not vote yet."""
        kept = link.quarantine
        answer = None if kept is None else kept_out(kept, question.asked_at)
        if kept is not None and answer is None:
            link.quarantine = None
            self.loop.call_soon(self._regroup)
        return answer

    def _flush(self) -> None:
        """Send what was gathered; the time to answer begins now."""
        self._corked = False
        unsent = len(self.convoy.unsent)
        if not unsent:
            return
        self._lonely = unsent == 1
        at = now()
        if self.convoy.send(at):
            self.loop.call_soon(self._regroup)
        if self._sending:
            due = now() + self._policy.node_timeout
            for turn in self._sending:
                turn.due = due
            self._sending.clear()
            if self._deadline is None:
                self._ring_at(due)

    def _regroup(self) -> None:
        """Ask those together that can be asked at all."""
        self._flush()
        links = [way.link for way in self.ways if way.link is not None]
        self.convoy.regroup(
            [link for link in links if not (link.apart or link.lost or link.quarantine)]
        )

    def watch(self, on_hint: Hint) -> None:
        """Have hints given from the next extension on."""
        for way in self.ways:
            way.watch(on_hint)
        self.convoy.greet()

    # --- places ------------------------------------------------------------------------------

    def has_place(self) -> bool:
        """One more may acquire now, and does."""
        if self._acquiring >= ACQUIRING_MAX:
            return False
        self._acquiring += 1
        return True

    def free_place(self) -> None:
        """One has done; the next in the queue, if there is one, gets its turn soon."""
        self._acquiring -= 1
        if self.queue:
            self.loop.call_soon(self._call_next)

    def _call_next(self) -> None:
        while self.queue and self.has_place():
            if not self.queue.popleft().called():
                self._acquiring -= 1

    def not_asked(self, turn: Turn[Any], answer: Answer) -> Receipt:
        """A round in which nobody was asked."""
        turn.round += 1
        at = now()
        for way in self.ways:
            turn.mail.append(replied((turn.round, way.member.index, answer, at)))
        return Receipt(turn.round, at, at, 0)

    # --- deadlines ---------------------------------------------------------------------------

    def wait_until(self, until: Instant, turn: Turn[Any]) -> None:
        """Tell the turn when it is `until` and it still waits for that.

        One timer for all: rounds have equally long to answer, and mostly none of those that were
        there when it was set is left when it rings.  A timer for each costs a tenth of a cycle;
        a queue of them would keep what has ended alive for the garbage collector to look at.
        """
        if until < turn.sent + self._policy.node_timeout:
            turn.due = FOR_EVER
            turn.set_timer(until)  # a round that may not outlive a lease
        elif self.convoy.unsent:
            # A node's time begins when its bytes are sent, as late as that may be in this tick.
            turn.due = FOR_EVER
            self._sending.append(turn)
        else:
            turn.due = until
            if self._deadline is None:
                self._ring_at(until)

    def _ring_at(self, until: Instant) -> None:
        self._deadline = self.loop.call_later(max(0, until - now()) / 1e9, self._ring)

    def _ring(self) -> None:
        self._deadline = None
        at = now()
        late: list[Turn[Any]] = []
        next_due = FOR_EVER
        for turn in self.turns:
            if turn.due <= at:
                late.append(turn)
            elif turn.due < next_due:
                next_due = turn.due
        if late:
            self.look_once_more(late, at)
        if next_due < FOR_EVER:
            self._ring_at(next_due)

    def look_once_more(self, turns: list[Turn[Any]], until: Instant) -> None:
        """Tell them that their time is up, after one last look at the sockets.

        What has come while this tick was busy is read in the next one, before its timers.
        """
        self.loop.call_later(0, self._elapsed, turns, until)

    def _elapsed(self, turns: list[Turn[Any]], until: Instant) -> None:
        for turn in turns:
            turn.elapsed(until)

    # --- connections come and go -------------------------------------------------------------

    def ready(self) -> bool:
        """A quorum is connected, or there is no hope that it soon will be."""
        if self.convoy.asked == self._everywhere:
            return True
        missing = False
        for way in self.ways:
            if way.link is None:
                missing = True
                way.want()
        return not missing or self._settled()

    def when_ready(self, go_on: Callable[[], None]) -> None:
        """Call back when `ready` would say yes."""
        self._waiting.append(go_on)
        self._look_again()

    def _settled(self) -> bool:
        if not any(way.hopeful for way in self.ways):
            return True
        at = now()
        connected = sum(way.link is not None for way in self.ways)
        if connected < self._policy.quorum:
            # A little longer than connecting may take, so as to learn why it failed.
            patience = self._policy.connect_timeout + self._policy.node_timeout
            self._give_up = self._give_up or at + patience
            return at >= self._give_up
        if not self._fresh:
            return True
        # For the rest, once, a short while.
        self._grace = self._grace or at + self._policy.node_timeout
        return at >= self._grace

    def _changed(self) -> None:
        self._regroup()
        if self._waiting:
            self._look_again()

    def _look_again(self) -> None:
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None
        if not self._settled():
            limit = self._grace or self._give_up or 0
            self._recheck = self.loop.call_later(max(0, limit - now()) / 1e9, self._look_again)
            return
        self._fresh, self._grace, self._give_up = False, None, None
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    # --- the end -----------------------------------------------------------------------------

    async def _guard(self) -> None:
        try:
            await self._end
        except GeneratorExit:
            raise  # the loop is gone
        except BaseException:
            await self._finish()
            raise
        await self._finish()

    async def close(self) -> None:
        """Give back, hear what can be heard in a bounded time, close everything.

        The guardian does it, so that it is done in any case when the caller is cancelled.
        """
        self._let_go()
        await asyncio.wait([self.guardian])

    def end_soon(self) -> None:
        """The last reference to the Redlock is gone; safe from any thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        self.ending = True
        if not self._end.done():
            self._end.set_result(None)

    async def _finish(self) -> None:
        until = now() + 2 * self._policy.node_timeout
        self.ending = True
        for turn in list(self.turns):
            turn.turn_out()
        await self._drained(until)  # others may be giving back at this moment
        self.closing = True
        self._on_end(self)
        await self._drained(until)
        give_up = (until + self._policy.node_timeout) / 1e9
        await asyncio.gather(*(way.close(give_up) for way in self.ways))
        if self._recheck is not None:
            self._recheck.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    async def _drained(self, until: Instant) -> None:
        while now() < until and (self.turns or self._owes()):  # noqa: ASYNC110 (rare, bounded)
            await asyncio.sleep(0.001)

    def _owes(self) -> bool:
        return any(
            (way.link is not None and way.link.owes) or way.member.debts.unpaid()
            for way in self.ways
        )
