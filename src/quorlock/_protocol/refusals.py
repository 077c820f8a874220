"""The answers that the errors of a server are, without the secrets that their texts may show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.commands import replaced_token
from quorlock._core.owner import secret_of
from quorlock._protocol.redaction import PIECE_MIN
from quorlock._protocol.replies import error_answer
from quorlock._protocol.requests import each_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock._core.votes import Answer
    from quorlock._protocol.requests import PendingRequest

# So many texts are kept: a server has few, and may refuse thousands of requests with one.
_KEPT_MAX = 8


class Refusals:
    """The errors that came over one connection.

    Each new text is searched for the tokens of all pending requests.  To do so for each request
    would take time in the square of their number.
    """

    __slots__ = ("_answers", "_secret")

    def __init__(self, secret: str | None) -> None:
        self._secret = secret
        self._answers: dict[str, Answer] = {}

    def answer(
        self, error: str, request: PendingRequest, pending: Iterable[PendingRequest]
    ) -> Answer:
        """Return the answer that an error is, without the tokens of these requests in its text."""
        answer = self._answers.get(error)
        if answer is None:
            if len(self._answers) >= _KEPT_MAX:
                self._answers.clear()
            answer = self._answers[error] = error_answer(error, self._secrets((request, *pending)))
        return answer

    def _secrets(self, requests: Iterable[PendingRequest]) -> list[str | None]:
        """Return what an error text must not show: the password, and the tokens that were sent."""
        commands = [q.command for q in each_of(requests)]
        tokens = [secret_of(getattr(command, "token", b"")) for command in commands]
        tokens += [secret_of(replaced_token(command)) for command in commands]
        # A shorter one is a user's own: it proves nothing, and is part of many words.
        long_enough = [token for token in tokens if len(token) >= PIECE_MIN]
        return [self._secret, *[token.decode(errors="replace") for token in long_enough]]
