"""The account that a Redlock, its locks and its leases keep together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from quorlock._core.outcomes import Lost, node_votes
from quorlock._core.policy import Policy, Seconds, timeout_of
from quorlock._core.redlock import Request, holder_ttl_ms
from quorlock._core.time import to_seconds
from quorlock._drivers import fork
from quorlock._drivers.chance import SystemChance
from quorlock._drivers.clock import now
from quorlock._face.holding import Holding
from quorlock._face.inspection import Inspection, inspection
from quorlock._face.ticket import Ticket
from quorlock.errors import ConfigError, LeaseLost, QuorumUnreachable

if TYPE_CHECKING:
    from quorlock._core.outcomes import Answer, Extended, Granted, Loss

D = TypeVar("D")


class Session(Generic[D]):
    """Policy, driver and leases. It lives as long as anything that refers to it."""

    def __init__(self, policy: Policy, driver: D) -> None:
        self.policy = policy
        self.driver = driver
        self.chance = SystemChance()
        # Every lease that is not over, by token: whoever takes it out of here may end it.
        self.holdings: dict[bytes, Holding] = {}
        fork.register(self)

    def request(self, resource: str, key: bytes, ttl_ms: int, timeout: Seconds | None) -> Request:
        """One call to acquire, stamped with the time."""
        return Request(resource, key, ttl_ms, now(), timeout_of(timeout))

    def hold(self, resource: str, granted: Granted) -> Holding:
        """Keep account of a lease that was won."""
        return self._account(
            Holding(
                resource,
                granted.key,
                granted.token,
                granted.ttl_ms,
                granted.valid_until,
                granted.answers,
                granted.receipt,
            )
        )

    def _account(self, holding: Holding) -> Holding:
        self.holdings[holding.token] = holding
        return holding

    def end(self, holding: Holding, loss: Loss | None = None) -> bool:
        """End a lease, here and now; False if somebody has done so already.

        Of several threads, one takes it out of the account and sends what is to be sent.
        """
        if self.holdings.get(holding.token) is not holding:
            return False
        if self.holdings.pop(holding.token, None) is None:
            return False
        holding.end(loss)
        return True

    def by_token(self, resource: str | bytes, ttl: Seconds | None = None) -> Request:
        """One call about a resource that makes no lease."""
        ttl_ms = self.policy.checked_ttl_ms(ttl)
        return self.request(shown(resource), self.policy.key(resource), ttl_ms, 0)

    def ticket_request(self, ticket: Ticket) -> Request:
        """What a ticket asks for. Raises ConfigError if its lease is held here already."""
        if not isinstance(ticket, Ticket):
            raise ConfigError("ticket", type(ticket).__name__, "give what hand_over() returned")
        if token_bytes(ticket.token) in self.holdings:
            fix = "this lease is held here already: a ticket moves a lease, it does not copy it"
            raise ConfigError("ticket", ticket, fix)
        return self.by_token(ticket.resource, ticket.ttl)

    def adopted(self, request: Request, token: bytes, outcome: Extended | Lost) -> Holding:
        """Keep account of a lease that another process handed over. Raises LeaseLost."""
        if isinstance(outcome, Lost):
            votes = node_votes(self.policy.addresses, outcome.answers)
            raise LeaseLost(request.resource, outcome.loss.value, votes=votes)
        return self._account(
            Holding(
                request.resource,
                request.key,
                token,
                request.ttl_ms,
                outcome.valid_until,
                outcome.answers,
                None,
            )
        )

    def inspection(self, request: Request, answers: tuple[Answer, ...]) -> Inspection:
        """The report of a round of Inspect."""
        left = holder_ttl_ms(answers, self.policy.quorum)
        return inspection(request.resource, self.policy.addresses, answers, left)

    def locked(self, request: Request, answers: tuple[Answer, ...]) -> bool:
        """Whether the report says held. Raises QuorumUnreachable."""
        report = self.inspection(request, answers)
        if report.verdict == "unreachable":
            votes = node_votes(self.policy.addresses, answers)
            elapsed = to_seconds(now() - request.asked_at)
            raise QuorumUnreachable(request.resource, votes, 1, elapsed)
        return report.verdict == "held"

    def forget(self) -> None:
        """In a forked child: the leases are the parent's."""
        self.holdings.clear()


def shown(resource: str | bytes) -> str:
    """A resource's name for people."""
    return resource.decode(errors="backslashreplace") if isinstance(resource, bytes) else resource


def token_bytes(token: object) -> bytes:
    """A token as the nodes know it. Raises ConfigError, without showing it."""
    if not isinstance(token, str) or not token or not token.isascii():
        raise ConfigError("token", "(not shown)", "give a lease's token: a non-empty ASCII str")
    return token.encode()
