"""A lease on its way to another process."""

from __future__ import annotations

from typing import ClassVar

from quorlock._core.values import Value
from quorlock.errors import ConfigError


class Ticket(Value):
    """What `Lease.hand_over` gives and `Redlock.adopt` takes.

    It is the lock itself: whoever has it can extend and release, so treat it as a secret, and
    give it to one process: two that adopt it both hold the lease, and no node can tell.  It says
    nothing of how long the lease is valid, since clocks of two machines do not compare.

    Attributes:
        resource: its name.
        token: the proof of ownership.
        ttl: the lease time in seconds.
        fence: its fencing token, which goes with it; None if it has none.
    """

    __slots__ = __match_args__ = ("resource", "token", "ttl", "fence")
    HIDDEN: ClassVar = frozenset({"token"})

    resource: str
    token: str
    ttl: float
    fence: int | None

    def __init__(self, resource: str, token: str, ttl: float, fence: int | None = None) -> None:
        self._fill(resource=resource, token=token, ttl=ttl, fence=fence)

    def to_json(self) -> str:
        """As text, for a queue or an argument."""
        import json  # here and below: few hand leases over

        return json.dumps(dict(zip(self.__match_args__, self.__getstate__(), strict=True)))

    @classmethod
    def from_json(cls, text: str) -> Ticket:
        """The reverse of `to_json`. Raises ConfigError if it is not such a text."""
        ticket = _parsed(text)
        if ticket is None:
            # Not the text itself, nor an error that quotes it: it may hold a token.
            fix = "give the text that Ticket.to_json made"
            raise ConfigError("ticket", "(not shown)", fix)
        return ticket


def _parsed(text: str) -> Ticket | None:
    import json

    try:
        facts = json.loads(text)
        resource, token, ttl = str(facts["resource"]), str(facts["token"]), float(facts["ttl"])
        fence = facts.get("fence")  # not there in texts from before there were fences
        whole = fence is None or type(fence) is int
        return Ticket(resource, token, ttl, fence) if whole else None
    except (ValueError, TypeError, KeyError):
        return None
