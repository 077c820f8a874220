"""A scripted driver: runs one flow on virtual time against a plan and records all that it asked.

A plan says, round by round and node by node, what the node answers and how many ms after the last
byte was sent: `[[yes(1), held(2), NEVER], ...]`; after its last round that one is repeated. Rounds
of Release that follow another command are not in it: there a node says the same again, or what
`backs` says. What a flow gets for what it asks is in `quorlock._drivers.abc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias, TypeVar

from quorlock._core.claims import Keys
from quorlock._core.commands import Command, Release
from quorlock._core.config import Policy, policy
from quorlock._core.effects import (
    Commit,
    Effect,
    Enlist,
    Flow,
    FlowCancelled,
    Receive,
    Send,
    SendBatch,
    Sleep,
    Timeout,
    Wait,
)
from quorlock._core.request import AcquireRequest
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.time import FOR_EVER, NS_PER_MS, Duration, Instant, from_seconds
from quorlock._core.votes import ABSENT, GRANTED, HELD, NOT_SET, Answer, Vote
from quorlock.errors import VoteCode

T = TypeVar("T")

START: Instant = 1_000_000 * NS_PER_MS


def ms(milliseconds: float) -> Duration:
    """Nanoseconds."""
    return round(milliseconds * NS_PER_MS)


class Say(NamedTuple):
    """A node's reply, and its delay after the last byte was sent."""

    answer: Answer
    after: Duration = ms(1)


def yes(after: float = 1) -> Say:
    return Say(GRANTED, ms(after))


def held(after: float = 1, *, left: int | None = None) -> Say:
    """Another's, whose key lives `left` ms more."""
    return Say(HELD if left is None else Answer(Vote.REFUSED, VoteCode.HELD, "", left), ms(after))


def absent(after: float = 1) -> Say:
    return Say(ABSENT, ms(after))


def not_set(after: float = 0) -> Say:
    """A node that was not asked to set the lock."""
    return Say(NOT_SET, ms(after))


def says(code: VoteCode, text: str = "", after: float = 1) -> Say:
    """A fault (a vote against), or no answer (an unknown vote)."""
    fault = Answer(Vote.REFUSED, code).is_fault
    return Say(Answer(Vote.REFUSED if fault else Vote.UNKNOWN, code, text), ms(after))


NEVER = Say(HELD, FOR_EVER)
DOWN = says(VoteCode.NOT_CONNECTED, "connection refused", after=0)
NO_ACL = says(VoteCode.ACCESS_DENIED, "NOPERM no")
LOADING = says(VoteCode.TRANSIENT_ERROR, "LOADING")
BROKEN = says(VoteCode.CONNECTION_LOST)
WRONG_TYPE = says(VoteCode.WRONG_TYPE)
# Numbers of nodes.
SIZES = [1, 2, 3, 4, 5, 9]

Round: TypeAlias = Sequence[Say]
Kind: TypeAlias = Say | Callable[[float], Say]


def spread(kinds: Iterable[Kind]) -> list[Say]:
    """A round in which each node answers a ms after the one before, where it answers at all."""
    return [k if isinstance(k, Say) else k(i) for i, k in enumerate(kinds, 1)]


def policy_of(n: int, **settings: Any) -> Policy:
    """A policy over n nodes named a, b, c, ..."""
    return policy_over("abcdefghi"[:n], **settings)


def policy_over(addresses: Iterable[str], **settings: Any) -> Policy:
    """A policy over these nodes; a setting that is not given is the default of a Redlock."""
    given: dict[str, Any] = {"ttl": 10.0, "max_ttl": 30.0, "node_timeout": 0.05}
    given |= {"connect_timeout": 1.0, "drift_factor": 0.01, "retry_delay": (0.05, 0.2)}
    given |= {"outage_timeout": 5.0, "prefix": ""}
    return policy(tuple(addresses), **given | settings)


def request_of(policy: Policy, timeout: float | None = None) -> AcquireRequest:
    """A call for the resource "r", made at START."""
    wait = None if timeout is None else from_seconds(timeout)
    return AcquireRequest("r", Keys(b"r"), policy.ttl_ms, START, wait)


class Dice:
    """Chance that can be foretold: numbered tokens, and pauses at `share` of their range."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self.tokens: list[bytes] = []
        self.ranges: list[tuple[Duration, Duration]] = []

    def token(self) -> bytes:
        self.tokens.append(b"token-%d" % len(self.tokens))
        return self.tokens[-1]

    def between(self, shortest: Duration, longest: Duration) -> Duration:
        self.ranges.append((shortest, longest))
        return shortest + round((longest - shortest) * self.share)


@dataclass
class Script:
    """One run. `sending`: how long the bytes take to leave, from `started` to `sent`.

    place: What the flow gets when it enlists.
    """

    plan: Sequence[Round]
    backs: Round | None = None
    sending: Duration = 0
    now: Instant = START
    place: bytes = b""
    effects: list[tuple[Instant, Effect]] = field(default_factory=list)
    _mail: list[tuple[Instant, int, NodeReply]] = field(default_factory=list)
    _rounds: int = 0
    _planned: int = 0

    @property
    def n(self) -> int:
        return len(self.plan[0])

    @property
    def sends(self) -> list[Send]:
        return [effect for _, effect in self.effects if isinstance(effect, Send)]

    @property
    def commands(self) -> list[Command]:
        return [send.command for send in self.sends]

    def at(self, kind: type[Effect]) -> list[Instant]:
        """Return when the flow yielded effects of this kind."""
        return [at for at, effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[Command]) -> list[Instant]:
        """Return when the flow sent commands of this kind."""
        sends = [(at, effect) for at, effect in self.effects if isinstance(effect, Send)]
        return [at for at, send in sends if isinstance(send.command, kind)]

    def run(self, flow: Flow[T], *, abandon_at: int = -1) -> T:
        """The flow's result. Abandons it at its nth effect: from then on it may only send."""
        event: Any = None
        try:
            while True:
                abandoned = 0 <= abandon_at < len(self.effects)
                thrown = len(self.effects) == abandon_at + 1 and abandoned
                effect = flow.throw(FlowCancelled()) if thrown else flow.send(event)
                assert isinstance(effect, Send) or not abandoned, f"{effect} after Abandoned"
                self.effects.append((self.now, effect))
                assert len(self.effects) < 5_000, "it goes round for ever"
                if isinstance(effect, Commit) and len(self.effects) != abandon_at + 1:
                    flow.close()  # the caller has its lease
                    return effect.granted  # type: ignore[return-value]
                event = None if isinstance(effect, Commit) else self._perform(effect)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, SendBatch):
            return tuple([self._send(send) for send in effect.sends])
        if isinstance(effect, Send):
            return self._send(effect)
        if isinstance(effect, Enlist):
            return self.place
        assert not isinstance(effect, Commit)
        if isinstance(effect, Wait) and effect.member.news:
            return effect.member.news.popleft()
        while isinstance(effect, (Receive, Wait)) and self._mail:
            if self._mail[0][0] > effect.until:
                break
            at, _, replied = heappop(self._mail)
            self.now = max(self.now, at)
            reply = replied._replace(at=self.now)
            observer = effect.observer if isinstance(effect, Wait) else None
            if isinstance(effect, Receive) or (observer and observer.on_reply(reply)):
                return reply
        self.now = max(self.now, effect.until)
        return self.now if isinstance(effect, Sleep) else Timeout(self.now)

    def _send(self, send: Send) -> SentRound:
        self._rounds += 1
        started, self.now = self.now, self.now + self.sending
        asked = 0
        for node, said in enumerate(self._says(send)):
            never_asked = send.behind is not None and not send.behind.nodes >> node & 1
            say = Say(NOT_SET, 0) if never_asked else said
            asked |= (not never_asked and say.answer.code is not VoteCode.NOT_CONNECTED) << node
            if say.after != FOR_EVER:
                reply = NodeReply(self._rounds, node, say.answer, self.now + say.after)
                heappush(self._mail, (reply.at, self._rounds << 8 | node, reply))
        return SentRound(self._rounds, started, self.now, Target(asked, None))

    def _says(self, send: Send) -> Round:
        back = isinstance(send.command, Release) and self._planned
        if back and self.backs is not None:
            return self.backs
        self._planned += not back
        return self.plan[min(self._planned, len(self.plan)) - 1]
