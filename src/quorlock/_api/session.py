"""The session: the state that a Redlock, its locks and its leases share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quorlock._api.lease_state import AdoptedLeaseState
from quorlock._api.ticket import Ticket, in_doubt_of, odd_field
from quorlock._core.claims import Shared
from quorlock._core.redlock import is_faulty, raise_no_quorum, time_until_free_ms
from quorlock._core.request import AcquireRequest, BaseRequest
from quorlock._core.resources import PermitName, as_resources, claim_on
from quorlock._core.results import ExtendFailed, LossReason
from quorlock._core.time import to_seconds
from quorlock._core.votes import node_votes
from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock.errors import ConfigError, LeaseLost, NodeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorlock._api.inspection import Inspection
    from quorlock._api.lease_options import LeaseOptions
    from quorlock._api.lease_state import Ending, LeaseState
    from quorlock._core.config import Policy, Seconds
    from quorlock._core.effects import Flow
    from quorlock._core.releases_in_doubt import InDoubt
    from quorlock._core.results import Extended, ReleaseResult
    from quorlock._core.rounds import Target
    from quorlock._core.time import Instant
    from quorlock._core.votes import Answer
    from quorlock._drivers.abc import AnyDriver
    from quorlock._drivers.entropy import SystemEntropy

D = TypeVar("D", bound="AnyDriver")


class Closable(Protocol):
    """A renewal manager as its session knows it."""

    def close(self) -> Any:
        """Stop renewing, without releasing; asyncio awaits the result."""
        ...


class Session(Generic[D]):
    """Policy, driver and leases; it lives as long as any object that refers to it."""

    def __init__(self, policy: Policy, driver: D, entropy: SystemEntropy) -> None:
        self.policy = policy
        self.driver = driver
        self.entropy = entropy
        # Every lease that is not over, by token: the code that removes one may end it.
        self.live: dict[bytes, LeaseState] = {}
        # Leases that a thread has removed from there and is about to release.  A concurrent `close`
        # releases them as well; releasing twice does no harm.  The keys are objects, one for each
        # call: a signal handler may release the same lease.
        self.releasing: dict[object, LeaseState] = {}
        self._adopting: dict[bytes, object] = {}
        # The renewal managers, once one is needed; in a list, for the finalizer that outlives the
        # session.
        self.renewers: list[Closable] = []
        fork.register(self)

    def add(self, lease_state: LeaseState) -> None:
        """Keep a lease in the session until it is over."""
        self.live[lease_state.token] = lease_state

    def end(self, lease_state: LeaseState, loss: Ending | None = None) -> bool:
        """End a lease, here and now; return False if it has been ended already.

        Of several threads, one removes it from the session and sends the release.
        """
        return ended(self.live, lease_state, loss)

    def lose(self, lease_state: LeaseState, loss: LossReason) -> bool:
        """End a lost lease; return whether it is released later, at `reported_until`.

        It stays in the session until then: a release by its holder is sent at once.
        """
        if self.live.get(lease_state.token) is not lease_state:
            return False
        lease_state.end(loss)
        return now() < lease_state.reported_until

    def take_back(self, lease_state: LeaseState) -> None:
        """End a lease that its caller does not get, before it is released."""
        self.end(lease_state)
        lease_state.stop_renewal()

    def release_and_remove(self, lease_state: LeaseState) -> Flow[None]:
        """Release a lease that is over, and keep it in the session until that is sent."""
        lease_state.stop_renewal()
        yield from lease_state.release_flow()
        self.end(lease_state, lease_state.loss)
        self.driver.on_lease_over(lease_state.claim)

    def request_for(self, resource: object, ttl: Seconds | None = None) -> AcquireRequest:
        """Return a request, about one resource or a tuple of them, that makes no lease."""
        ttl_ms = self.policy.checked_ttl_ms(ttl)
        name, claim = claim_on(as_resources(resource), self.policy)
        return AcquireRequest(name, claim, ttl_ms, now(), 0)

    @contextlib.contextmanager
    def adopting(self, ticket: Ticket) -> Generator[tuple[AcquireRequest, bytes, InDoubt]]:
        """Yield the request of a ticket; no other thread adopts the same lease here in that time.

        Raises ConfigError.
        """
        if not isinstance(ticket, Ticket):
            raise ConfigError("ticket", type(ticket).__name__, "give what hand_over() returned")
        if odd := odd_field(ticket):
            fix = "give what hand_over() returned"
            raise ConfigError(f"ticket.{odd}", getattr(ticket, odd), fix)
        request, token = (
            self.request_for(ticket.resources or ticket.resource, ticket.ttl),
            token_bytes(ticket.token),
        )
        if ticket.permit is not None:
            request = request._replace(resource=PermitName(request.resource, ticket.permit))
        if ticket.shared:
            request = request._replace(claim=Shared(request.key))
        in_doubt = in_doubt_of(ticket, request.asked_at, self.policy)
        mark = object()
        try:
            first = self._adopting.setdefault(token, mark) is mark
            if not first or token in self.live:
                fix = "this lease is held here already: a ticket moves a lease, it never copies it"
                raise ConfigError("ticket", ticket, fix)
            try:
                yield request, token, in_doubt
            except BaseException:
                # Interrupted after it was won: no caller has the lease, and the ticket stays good.
                if token in self.live:
                    self.take_back(self.live[token])
                raise
        finally:
            if self._adopting.get(token) is mark:
                del self._adopting[token]

    def adopted(
        self,
        request: AcquireRequest,
        ticket: Ticket,
        outcome: Extended | ExtendFailed,
        options: LeaseOptions,
    ) -> AdoptedLeaseState:
        """Return the state of a lease that another process handed over. Raises LeaseLost."""
        if isinstance(outcome, ExtendFailed):
            votes = node_votes(self.policy.addresses, outcome.answers)
            # Keys that are gone may have expired: this process does not know when they would have.
            expired = outcome.reason is LossReason.EXPIRED
            raise LeaseLost(
                request.resource, "gone" if expired else outcome.reason.value, votes=votes
            )
        in_doubt = in_doubt_of(ticket, request.asked_at, self.policy)
        token, fence = token_bytes(ticket.token), ticket.fence or 0
        return AdoptedLeaseState(request, token, outcome, fence, options, in_doubt)

    def check_release(
        self, lease_state: LeaseState, released: ReleaseResult, asked_at: Instant
    ) -> ReleaseResult:
        """Return the outcome of a release. Raises NodeError if the nodes' faults prevented it."""
        done = released.deleted or released.gone is not None
        if not done and is_faulty(released.answers, self.policy):
            votes = node_votes(self.policy.addresses, released.answers)
            elapsed = to_seconds(released.ended - asked_at)
            raise NodeError(lease_state.resource, votes, 1, elapsed)
        return released

    def inspection(self, request: BaseRequest, answers: tuple[Answer, ...]) -> Inspection:
        """Return the report of a round of Inspect."""
        from quorlock._api.inspection import inspection

        left = time_until_free_ms(answers, self.policy.quorum)
        return inspection(request.resource, self.policy.addresses, answers, left)

    def locked(self, request: BaseRequest, answers: tuple[Answer, ...]) -> bool:
        """Return whether the lock is held. Raises QuorumUnreachable, NodeError."""
        report = self.inspection(request, answers)
        if report.verdict == "unreachable":
            raise_no_quorum(answers, now(), request, self.policy)
        return report.verdict == "held"

    def end_by_token(
        self, request: AcquireRequest, token: bytes
    ) -> tuple[AcquireRequest, Target | None]:
        """End this session's lease with this token; return the round that set its keys.

        And the request with the lease's whole claim: a lease on several resources that is released
        at one of them is over.
        """
        lease_state = self.live.get(token)
        if lease_state is None or {*lease_state.claim.keys}.isdisjoint(request.claim.keys):
            return request, None
        self.end(lease_state)
        lease_state.stop_renewal()
        return request._replace(claim=lease_state.claim), lease_state.target

    def reset_after_fork(self) -> None:
        """Drop all leases, in a forked child: they belong to the parent."""
        self.live.clear()
        self.releasing.clear()


def ended(
    lease_states: dict[bytes, LeaseState],
    lease_state: LeaseState,
    loss: Ending | None,
) -> bool:
    """End a lease as `Session.end` does, for code that must not keep the session alive."""
    token = lease_state.token
    if lease_states.get(token) is not lease_state or lease_states.pop(token, None) is None:
        return False
    lease_state.end(loss)
    return True


def token_bytes(token: object) -> bytes:
    """Return a token as nodes store it. Raises ConfigError, without showing it."""
    if not isinstance(token, str) or not token or not token.isascii():
        raise ConfigError("token", "(not shown)", "give a lease's token: a non-empty ASCII str")
    return token.encode()
