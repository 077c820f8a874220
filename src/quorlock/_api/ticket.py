"""Tickets: leases on their way to another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from quorlock._core.claims import Shared
from quorlock._core.record import Record
from quorlock._core.releases_in_doubt import counted_from, merged, remaining
from quorlock._core.resources import names_of
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from quorlock._api.lease_state import LeaseState
    from quorlock._core.config import Policy
    from quorlock._core.releases_in_doubt import InDoubt
    from quorlock._core.time import Instant


class Ticket(Record):
    """A lease on its way to another process, from `Lease.hand_over` to `Redlock.adopt`.

    A ticket is the lock itself: every process that has it can extend and release.  Treat it as a
    secret, and give it to one process.  Two processes that adopt it both hold the lease, and no
    node can detect that.  A ticket does not state how long the lease is valid, since clocks of two
    machines do not compare.

    Attributes:
        resource: the name of the protected resource.
        token: the proof of ownership.
        ttl: the lease time in seconds.
        fence: the fencing token, which moves with the lease; None if it has none.
        in_doubt: servers (by the run_id in their INFO) on which a release by the earlier process
            may still delete the lease's key, each with the seconds for which it may; None: as long
            as the lease lasts.  The adopting process does not count these servers.
        resources: the names of all protected resources, of a lease on several; else empty.
        permit: the number of the permit; None if it is no permit.
        shared: whether other leases may share the lock.
    """

    resource: str
    token: str
    ttl: float
    fence: int | None
    in_doubt: tuple[tuple[str, float | None], ...]
    resources: tuple[str, ...]
    permit: int | None
    shared: bool

    _SECRET = ("token",)

    def __init__(
        self,
        resource: str,
        token: str,
        ttl: float,
        fence: int | None = None,
        in_doubt: tuple[tuple[str, float | None], ...] = (),
        resources: tuple[str, ...] = (),
        permit: int | None = None,
        shared: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self._fill(locals())

    def __setstate__(self, state: dict[str, Any] | tuple[Any, ...]) -> None:
        # From an earlier version it may be a tuple, or lack fields, which then have their defaults.
        given = state if isinstance(state, dict) else vars(Ticket(*state))
        vars(self).update(vars(Ticket("", "", 0.0)) | given)

    def to_json(self) -> str:
        """Return the ticket as text, for a queue or an argument."""
        import json  # here and below: few programs hand leases over

        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Ticket:
        """Parse the text that `to_json` made. Raises ConfigError if it is another text."""
        ticket = _parsed(text)
        if ticket is None:
            # Without the text, and without an error that quotes it: it may hold a token.
            fix = "give the text that Ticket.to_json made"
            raise ConfigError("ticket", "(not shown)", fix)
        return ticket


def _parsed(text: str) -> Ticket | None:
    import json

    try:
        facts: dict[str, Any] = json.loads(text)
        resource, token, ttl = str(facts["resource"]), str(facts["token"]), float(facts["ttl"])
        fence = facts.get("fence")  # absent in texts from before fences existed
        in_doubt = tuple([(run_id, left) for run_id, left in facts.get("in_doubt", ())])
        resources = tuple(map(str, facts.get("resources", ())))
        permit, shared = facts.get("permit"), facts.get("shared", False)
        ticket = Ticket(resource, token, ttl, fence, in_doubt, resources, permit, shared)
        return ticket if _is_sound(in_doubt) and odd_field(ticket) is None else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def odd_field(ticket: Ticket) -> str | None:
    """Return the name of a field whose value no ticket has, and which no node would refuse."""
    for name in ("fence", "permit"):
        number = getattr(ticket, name)
        if number is not None and (type(number) is not int or number < 0):
            return name
    return None if isinstance(cast("object", ticket.shared), bool) else "shared"


def _is_sound(in_doubt: Any) -> bool:
    """Return whether it is pairs of a run_id and seconds, or None."""
    return isinstance(in_doubt, tuple) and all(
        isinstance(run_id, str)
        and (left is None or (type(left) in (int, float) and 0 <= left < float("inf")))
        for run_id, left in cast("tuple[tuple[Any, Any], ...]", in_doubt)
    )


def ticket_of(lease_state: LeaseState, in_doubt: InDoubt, at: Instant) -> Ticket:
    """Return the ticket of a lease, with the doubts of this process and of those before it."""
    left = remaining(merged(lease_state.in_doubt or {}, in_doubt), at)
    token, ttl, fence = (
        lease_state.token.decode(),
        lease_state.ttl_ms / 1000,
        lease_state.fence or None,
    )
    resource, names = str(lease_state.resource), names_of(lease_state.resource)
    several = names if names[1:] else ()
    permit = getattr(lease_state.resource, "permit", None)
    shared = type(lease_state.claim) is Shared
    return Ticket(resource, token, ttl, fence, tuple(left.items()), several, permit, shared)


def in_doubt_of(ticket: Ticket, at: Instant, policy: Policy) -> InDoubt:
    """Return the doubts of a ticket, by this process's clock. Raises ConfigError."""
    try:
        if _is_sound(ticket.in_doubt):
            return counted_from(at, dict(ticket.in_doubt), policy)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError("ticket.in_doubt", ticket.in_doubt, "give what hand_over() returned")
