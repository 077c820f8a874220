"""The usual case: one round, which a quorum of nodes grants plainly.

Nearly every acquire and every release is of this kind.  A driver may run it without the flow: it
sends `send`, and takes the `outcome` when a quorum has granted.  For anything else (a refusal, the
end of the nodes' time, a cancelled caller) it makes the flow, which continues after the round that
was sent.  So a flow decides everything but a plain quorum, and both take the meaning of that from
the same functions of `redlock`.  It saves an eighth of an asyncio
cycle, and a fourteenth of a blocking one
(docs/contributing/decisions/0044-a-flow-when-it-is-needed.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quorlock._core import redlock
from quorlock._core.acquiring import acquire, joins_line
from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire, Release
from quorlock._core.effects import Send
from quorlock._core.handing_on import free_line_after, line_of
from quorlock._core.tally import granted_by
from quorlock._core.time import PAST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.claims import Claim
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.line import Line, Lines
    from quorlock._core.request import AcquireRequest
    from quorlock._core.results import Acquired, ReleaseResult
    from quorlock._core.rounds import NodeReply, SentRound, Target
    from quorlock._core.time import Instant

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def itself(outcome: T) -> T:
    """Return the outcome as the caller's result."""
    return outcome


def _no_flow() -> Flow[Any]:
    yield from ()


# In place of a flow until one is made.
NO_FLOW = _no_flow()
NO_FLOW.close()


class UsualCase(Protocol[T_co]):
    """A call whose first round may decide it."""

    @property
    def command(self) -> Acquire | Release:
        """The command of its round."""
        ...

    @property
    def behind(self) -> Target | None:
        """The target that the command must follow, as in `Send`."""
        ...

    @property
    def is_plain(self) -> bool:
        """The command only frees one lock, which is not shared, and has no line here."""
        ...

    @property
    def send(self) -> Send:
        """The round."""
        ...

    def outcome(
        self,
        nodes: int,
        sent_round: SentRound,
        at: Instant,
        not_asked: Sequence[NodeReply] = (),
    ) -> T_co | None:
        """Return the outcome if plain grants of these nodes decide it, at this instant.

        not_asked: the replies in the name of nodes that the round was not sent to.
        """
        ...

    def flow(self, sent_round: SentRound | None) -> Flow[T_co]:
        """Return the flow, which continues after this round; None: it was not sent."""
        ...

    def cancelled(self, sent_round: SentRound | None) -> Send:
        """Return what a cancelled call sends, as its flow would."""
        ...


class UsualAcquire:
    """An acquire that begins with an attempt."""

    behind = None  # it goes to all nodes
    is_plain = False

    __slots__ = ("_entropy", "_lines", "_policy", "_request", "command")

    def __init__(
        self,
        request: AcquireRequest,
        policy: Policy,
        entropy: Entropy,
        lines: Lines | None,
        command: Acquire,
    ) -> None:
        self._request = request
        self._policy = policy
        self._entropy = entropy
        self._lines = lines
        self.command = command

    @property
    def send(self) -> Send:
        """Return the round."""
        return redlock.send_acquire(self.command, self._request, self._policy)

    def outcome(
        self,
        nodes: int,
        sent_round: SentRound,
        at: Instant,
        not_asked: Sequence[NodeReply] = (),
    ) -> Acquired | None:
        """Return the lease, if a quorum granted it in time."""
        _, token, _ = self.command
        return redlock.lease_by_grants(
            self._request, token, nodes, sent_round, at, self._policy, not_asked
        )

    def flow(self, sent_round: SentRound | None) -> Flow[Acquired]:
        """Return the flow of the acquire."""
        begun = None if sent_round is None else (self.command.token, sent_round)
        return acquire(self._request, self._policy, self._entropy, self._lines, begun)

    def cancelled(self, sent_round: SentRound | None) -> Send:
        """Return the release."""
        target = None if sent_round is None else sent_round.target
        return Send(self._request.claim.release(self.command.token), target)


def usual_acquire(
    request: AcquireRequest, policy: Policy, entropy: Entropy, lines: Lines | None
) -> UsualAcquire | None:
    """Return the usual case of `acquire`; None if it may begin in another way."""
    _, claim, ttl_ms, _, _, fencing, stop = request
    if stop is not None or fencing or joins_line(request, lines):
        return None
    command = claim.acquire(entropy.token(), ttl_ms, policy)
    if type(command) is not Acquire:
        return None
    return UsualAcquire(request, policy, entropy, lines, command)


class UsualRelease:
    """A release of a lease that no caller of this process waits for."""

    __slots__ = ("_claim", "_line", "_policy", "behind", "command", "is_plain")

    def __init__(
        self, claim: Claim, token: bytes, target: Target | None, policy: Policy, line: Line | None
    ) -> None:
        self._line = line
        self._claim = claim
        self._policy = policy
        self.behind: Target | None = target
        self.command: Release = claim.release(token)
        self.is_plain = line is None and type(claim) is Keys and not claim.also

    @property
    def send(self) -> Send:
        """Return the round."""
        return redlock.send_release(self.command, self.behind)

    def outcome(
        self,
        nodes: int,
        sent_round: SentRound,
        at: Instant,
        not_asked: Sequence[NodeReply] = (),
    ) -> ReleaseResult | None:
        """Return the result, if a quorum deleted the key."""
        del sent_round
        n = self._policy.n
        released = redlock.release_by_grants(nodes, n, self._policy.quorum)
        if released is None:
            return None
        if self._line is not None:
            self._line.on_released(at)
        if not_asked:
            return released._replace(answers=granted_by(n, nodes, not_asked))
        return released

    def flow(self, sent_round: SentRound | None) -> Flow[ReleaseResult]:
        """Return the flow of the release."""
        token = self.command.token
        flow = redlock.release(self._claim, token, self.behind, self._policy, sent_round)
        return flow if self._line is None else free_line_after(flow, self._line)

    def cancelled(self, sent_round: SentRound | None) -> Send:
        """Return the release again."""
        del sent_round
        if self._line is not None:
            self._line.on_released(PAST)
        return self.send


def usual_release(
    claim: Claim, token: bytes, target: Target | None, policy: Policy, lines: Lines | None
) -> UsualRelease | None:
    """Return the usual case of `handing_on.release`; None if it may hand the lock on."""
    line = line_of(claim, lines)
    if line is not None and line.has_waiters:
        return None
    return UsualRelease(claim, token, target, policy, line)
