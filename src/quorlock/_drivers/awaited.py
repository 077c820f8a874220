"""Who waits for a release that is owed to one node: they hear what becomes of it.

A lease on a bare majority needs every one of its nodes to release it.  Where one has just been cut
off (a Ctrl-C in an extension, a server that hung up), what is owed is paid a moment later, and that
answer counts like any other.  Leaves paying to the keepers and ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core.effects import replied
from quorlock._drivers.members import Standing

if TYPE_CHECKING:
    from quorlock._core.outcomes import Answer
    from quorlock._core.time import Instant
    from quorlock._drivers.members import Member
    from quorlock._wire.conversation import Question


class Awaited:
    """See the module. Each question is answered once, by whoever takes it out first."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._by_token: dict[bytes, Question] = {}

    def owe(self, question: Question, *, closing: bool) -> bool:
        """Owe the node this release; True: its asker hears, False: nothing is to be hoped for."""
        member, command = self._member, question.command
        token: bytes = getattr(command, "token", b"")
        self._by_token[token] = question  # first: another thread may pay at once
        member.owe(command, "", question.asked_at)  # type: ignore[arg-type]
        if token in member.debts and member.standing is not Standing.DOWN and not closing:
            return True
        return self._by_token.pop(token, None) is None

    def answer(self, token: bytes, answer: Answer, at: Instant) -> None:
        """The node has said this."""
        question = self._by_token.pop(token, None)
        if question is None:
            return
        asker: Any = question.asker
        if not asker.over:
            asker.hear(replied((question.round, self._member.index, answer, at)))

    def give_up(self, at: Instant) -> None:
        """The node can't be reached: answer in its name."""
        for token in list(self._by_token):
            self.answer(token, self._member.absence, at)
