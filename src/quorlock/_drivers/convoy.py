"""What all nodes of a loop are asked together: one queue of rounds, and how far each has answered.

Nearly always every node gets the same bytes and says yes.  Then a round is one entry for all
nodes, its bytes are put together once, and an answer only moves its node's mark on; a round is
won when a quorum of marks has passed it.  Whatever is not so is *spelled out*: from then on the
answers to that round are read and delivered one by one, as they are on a link of its own.  So a
node costs next to nothing where many tasks ask: a third of a cycle's instructions is left with
N = 5 (docs/performance.md).  Leaves sockets and the reading of replies to `link`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quorlock._core.commands import Acquire, Command, Release
from quorlock._core.effects import replied
from quorlock._core.outcomes import GRANTED
from quorlock._wire.conversation import ANSWERS_OWED_MAX, Asker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.effects import Replied
    from quorlock._core.time import Instant
    from quorlock._drivers.link import Link
    from quorlock._wire.conversation import Question

# The answers that are counted without being read: both kinds of round that every lock makes are
# answered yes in as many bytes, so the n-th answer hoped for stands at n times that.
_HOPED: dict[type[Command], bytes] = {Acquire: b"+OK\r\n", Release: b":-3\r\n"}
_SIZE = 5
_NONE = b"\0" * _SIZE  # no server says that
_TRIM = 256  # rounds that all have answered, at most, are kept while others have not been


class Rider(Asker, Protocol):
    """Whose round it is.

    Of all its rounds at most the last is counted by marks.
    """

    number: int  # of its last round in the convoy

    def hear(self, reply: Replied) -> None:
        """Take one answer."""
        ...

    def won(self, nodes: int, last: int, at: Instant) -> None:
        """Just these nodes (bit i: node i) have said yes: a quorum. `last` was the last."""
        ...


class Convoy:
    """See the module.

    links: its nodes' connections; they change by `regroup` only, and then every open round is
    spelled out: so each round has been asked of all of them.
    """

    def __init__(self, quorum: int, flush: Callable[[], None]) -> None:
        self.links: Sequence[Link] = ()
        self.asked = 0  # bit i: node i is in it
        self.knows_release = False  # all of its nodes have the script
        self.knows_extend = False
        self.unsent: list[bytes] = []
        self.flush = flush  # sees to it that nothing is unsent
        self._quorum = quorum
        self._first = 0  # the number of the first round below
        self._rounds: list[Question] = []
        self._riders: list[Rider | None] = []  # None: spelled out
        self._hoped = bytearray()
        self._marks: list[int] = []  # how many of the rounds each link has answered
        self._decided = 0  # how many of them a quorum has
        self._before = 0  # how many were there when bytes were sent last

    # --- asking ------------------------------------------------------------------------------

    def ask(self, question: Question, rider: Rider, data: bytes) -> None:
        """Ask all of its nodes; the bytes go with the next `send`."""
        rider.number = self._first + len(self._rounds)
        hoped = _HOPED.get(type(question.command))
        self._rounds.append(question)
        self._riders.append(rider if hoped else None)
        self._hoped += hoped or _NONE
        self.unsent.append(data)

    def send(self, at: Instant) -> bool:
        """Send what was asked since; True if a node owes too much for too long (`backlogged`)."""
        data, before, backlogged = b"".join(self.unsent), self._before, False
        self.unsent.clear()
        self._before = asked = len(self._rounds)
        for link, mark in zip(self.links, self._marks, strict=True):
            link.write(data)
            conversation = link.conversation
            if mark >= before and not conversation.questions:
                conversation.silent_since = at  # it owed nothing
            elif (
                asked - mark >= ANSWERS_OWED_MAX
                and at - conversation.silent_since > conversation.patience
            ):
                link.apart = backlogged = True
        return backlogged

    # --- hearing -----------------------------------------------------------------------------

    def hear(self, link: Link, data: bytes, at: Instant) -> int:
        """Count the answers at the beginning that are as hoped; how many bytes they are."""
        seat, size = link.seat, len(data)
        mark = self._marks[seat]
        if size % _SIZE or not self._hoped.startswith(data, _SIZE * mark):
            size = self._as_hoped(data, _SIZE * mark)
            if not size:
                return 0
        self._marks[seat] = mark = mark + size // _SIZE
        link.member.latency = at - self._rounds[mark - 1].asked_at
        self._look(link, at)
        return size

    def _as_hoped(self, data: bytes, start: int) -> int:
        size = 0
        while size + _SIZE <= len(data) and self._hoped.startswith(
            data[size : size + _SIZE], start + size
        ):
            size += _SIZE
        return size

    def _look(self, link: Link, at: Instant) -> None:
        """A link's mark has moved on: which rounds are won by that?"""
        marks = self._marks
        if len(marks) >= self._quorum:
            won = sorted(marks)[-self._quorum]
            if won > self._decided:
                # The same nodes for all of them: of each, one answer was missing until now, so
                # the others that had answered the last had answered the first, and none besides.
                nodes = sum(
                    [x.bit for x, mark in zip(self.links, marks, strict=True) if mark >= won]
                )
                riders = self._riders[self._decided : won]
                self._decided = won
                for rider in riders:
                    if rider is not None and not rider.over:
                        rider.won(nodes, link.member.index, at)
        answered = min(marks)
        if answered == len(self._rounds) or answered >= _TRIM:
            self._drop(answered)

    def _drop(self, count: int) -> None:
        """Forget the first rounds: nobody owes anything on them."""
        self._first += count
        self._decided = max(0, self._decided - count)
        self._before = max(0, self._before - count)
        self._marks = [mark - count for mark in self._marks]
        del self._rounds[:count], self._riders[:count], self._hoped[: _SIZE * count]

    # --- what is not as hoped ----------------------------------------------------------------

    def next_of(self, link: Link) -> Question:
        """The oldest round that the link has not answered, spelled out.

        IndexError: it has answered everything.
        """
        index = self._marks[link.seat]
        question = self._rounds[index]
        self.spell_out(self._first + index)
        self._marks[link.seat] = index + 1
        return question

    def spell_out(self, number: int) -> None:
        """Deliver the answers to this round one by one, those that have come at once.

        They decide nothing: else it were won.
        """
        index = number - self._first
        if index < 0 or (rider := self._riders[index]) is None:
            return
        self._riders[index] = None
        self._hoped[_SIZE * index : _SIZE * (index + 1)] = _NONE
        if rider.over:
            return
        round_ = self._rounds[index].round
        for link, mark in zip(self.links, self._marks, strict=True):
            if mark > index:
                at = link.conversation.silent_since
                rider.hear(replied((round_, link.member.index, GRANTED, at)))

    def waits_for(self, link: Link) -> bool:
        """It has not answered everything."""
        return self._marks[link.seat] < len(self._rounds)

    def oldest(self, link: Link, at: Instant) -> Instant:
        """When its oldest open round was asked; `at` if there is none. Safe from any thread."""
        try:
            return self._rounds[self._marks[link.seat]].asked_at
        except IndexError:
            return at

    def settle(self, link: Link) -> None:
        """Put what the link has not answered into its own queue: something of its own follows."""
        index, end = self._marks[link.seat], len(self._rounds)
        for number in range(self._first + index, self._first + end):
            self.spell_out(number)
        self._marks[link.seat] = end
        link.conversation.questions.extend(self._rounds[index:end])

    def regroup(self, links: Sequence[Link]) -> None:
        """From now on these; nothing must be unsent."""
        for link in self.links:
            self.settle(link)
            link.seat = -1
        self._drop(len(self._rounds))
        self.links = links
        self._marks = [0] * len(links)
        self._decided = self._before = 0
        self.asked = 0
        for seat, link in enumerate(links):
            link.seat = seat
            self.asked |= link.bit
        self.greet()

    def greet(self) -> None:
        """Look who knows the scripts."""
        self.knows_release = all(link.conversation.knows_release for link in self.links)
        self.knows_extend = all(link.conversation.knows_extend for link in self.links)

    def knows(self, command: Command) -> bool:
        """All of its nodes have been sent the script of such a command."""
        name = type(command).__name__
        return all(name in link.conversation.known for link in self.links)
