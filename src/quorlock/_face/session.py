"""The account that a Redlock, its locks and its leases keep together."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quorlock._core.outcomes import Lost, node_votes
from quorlock._core.redlock import Request, fail_unanswered, holder_ttl_ms, is_faulty
from quorlock._core.time import to_seconds
from quorlock._drivers import fork
from quorlock._drivers.chance import SystemChance
from quorlock._drivers.clock import now
from quorlock._face.holding import Holding
from quorlock._face.inspection import Inspection, inspection
from quorlock._face.ticket import Ticket
from quorlock.errors import ConfigError, LeaseLost, NodeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorlock._core.effects import Receipt
    from quorlock._core.outcomes import Answer, Extended, Loss, Released
    from quorlock._core.policy import Policy, Seconds
    from quorlock._core.time import Duration, Instant
    from quorlock._face.renewing import Renewer

D = TypeVar("D")


class Holds(Protocol):
    """A lease, as far as the account is concerned."""

    @property
    def holding(self) -> Holding: ...


L = TypeVar("L", bound=Holds)


class Session(Generic[D]):
    """Policy, driver and leases. It lives as long as anything that refers to it."""

    def __init__(self, policy: Policy, driver: D) -> None:
        self.policy = policy
        self.driver = driver
        self.chance = SystemChance()
        # Every lease that is not over, by token: whoever takes it out of here may end it.
        self.holdings: dict[bytes, Holding] = {}
        # Those that a thread has taken out of there and is about to give back: whoever closes
        # meanwhile gives them back as well, and twice does no harm.
        self.ending: dict[bytes, Holding] = {}
        self._adopting: dict[bytes, object] = {}
        # What renews them, once something does; in a list, for who ends it after us.
        self.renewers: list[Renewer[Any]] = []
        fork.register(self)

    def account(self, lease: L) -> L:
        """Keep account of a lease from now on, until it is over."""
        holding = lease.holding
        self.holdings[holding.token] = holding
        return lease

    def end(self, holding: Holding, loss: Loss | None = None) -> bool:
        """End a lease, here and now; False if somebody has done so already.

        Of several threads, one takes it out of the account and sends what is to be sent.
        """
        return ended(self.holdings, holding, loss)

    def by_token(self, resource: str | bytes, ttl: Seconds | None = None) -> Request:
        """One call about a resource that makes no lease."""
        ttl_ms = self.policy.checked_ttl_ms(ttl)
        return Request(name_of(resource), self.policy.key(resource), ttl_ms, now(), 0)

    @contextlib.contextmanager
    def adopting(self, ticket: Ticket) -> Generator[tuple[Request, bytes]]:
        """What a ticket asks for; nobody else adopts the same lease here meanwhile.

        Raises ConfigError.
        """
        if not isinstance(ticket, Ticket):
            raise ConfigError("ticket", type(ticket).__name__, "give what hand_over() returned")
        request, token = self.by_token(ticket.resource, ticket.ttl), token_bytes(ticket.token)
        mark = object()
        try:
            first = self._adopting.setdefault(token, mark) is mark
            if not first or token in self.holdings:
                fix = "this lease is held here already: a ticket moves a lease, it never copies it"
                raise ConfigError("ticket", ticket, fix)
            try:
                yield request, token
            except BaseException:
                # Interrupted after it was won: nobody has the lease, the ticket stays good.
                holding = self.holdings.pop(token, None)
                if holding is not None:
                    holding.end()
                raise
        finally:
            if self._adopting.get(token) is mark:
                del self._adopting[token]

    def adopted(
        self,
        request: Request,
        token: bytes,
        outcome: Extended | Lost,
        fence: int | None,
        max_hold: Duration,
    ) -> Holding:
        """The state of a lease that another process handed over. Raises LeaseLost.

        max_hold counts anew: clocks of two machines do not compare.
        """
        if isinstance(outcome, Lost):
            votes = node_votes(self.policy.addresses, outcome.answers)
            raise LeaseLost(request.resource, outcome.loss.value, votes=votes)
        holding = Holding(
            request.resource,
            request.key,
            token,
            request.ttl_ms,
            outcome.valid_until,
            outcome.answers,
            None,
            fence or 0,
            max_hold,
        )
        holding.hold_until = request.asked_at + max_hold
        return holding

    def settled(self, holding: Holding, released: Released, asked_at: Instant) -> Released:
        """The outcome of a release, unless the nodes' faults kept it from being carried out."""
        done = released.deleted or released.gone is not None
        if not done and is_faulty(released.answers, self.policy):
            votes = node_votes(self.policy.addresses, released.answers)
            elapsed = to_seconds(released.ended - asked_at)
            raise NodeError(holding.resource, votes, 1, elapsed)
        return released

    def inspection(self, request: Request, answers: tuple[Answer, ...]) -> Inspection:
        """The report of a round of Inspect."""
        left = holder_ttl_ms(answers, self.policy.quorum)
        return inspection(request.resource, self.policy.addresses, answers, left)

    def locked(self, request: Request, answers: tuple[Answer, ...]) -> bool:
        """Whether the report says held. Raises QuorumUnreachable, NodeError."""
        report = self.inspection(request, answers)
        if report.verdict == "unreachable":
            fail_unanswered(answers, now(), request, self.policy)
        return report.verdict == "held"

    def end_by_token(self, key: bytes, token: bytes) -> Receipt | None:
        """A release by bare token ends the lease, if it is one of ours; how that was acquired."""
        holding = self.holdings.get(token)
        if holding is None or holding.key != key:
            return None
        self.end(holding)
        holding.stop_renewal()
        return holding.receipt

    def forget(self) -> None:
        """In a forked child: the leases are the parent's."""
        self.holdings.clear()
        self.ending.clear()


def ended(holdings: dict[bytes, Holding], holding: Holding, loss: Loss | None) -> bool:
    """What `Session.end` does, for who must not keep the session alive."""
    if holdings.get(holding.token) is not holding:
        return False
    if holdings.pop(holding.token, None) is None:
        return False
    holding.end(loss)
    return True


def name_of(resource: str | bytes) -> str:
    """A resource's name as text; bytes that are no UTF-8 survive it (as in os.fsdecode)."""
    return resource.decode(errors="surrogateescape") if isinstance(resource, bytes) else resource


def token_bytes(token: object) -> bytes:
    """A token as the nodes know it. Raises ConfigError, without showing it."""
    if not isinstance(token, str) or not token or not token.isascii():
        raise ConfigError("token", "(not shown)", "give a lease's token: a non-empty ASCII str")
    return token.encode()
