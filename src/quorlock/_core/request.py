"""The request of a caller for a lock."""

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from quorlock._core.claims import AnyOf, BaseClaim, Claim
from quorlock._core.time import Duration, Instant


class StopEvent(Protocol):
    """An event that ends an acquire: a `threading.Event`, an `asyncio.Event`, or similar."""

    def is_set(self) -> bool:
        """Return whether the acquire is to end."""
        ...


C = TypeVar("C", bound=BaseClaim)
C_co = TypeVar("C_co", bound=BaseClaim, covariant=True)


class Request(NamedTuple, Generic[C_co]):
    """One call to acquire: the resource, the ttl, and how long the caller will wait."""

    resource: str
    claim: C_co
    ttl_ms: int
    asked_at: Instant
    timeout: Duration | None  # None: no limit; 0: one attempt
    fencing: bool = False
    stop: StopEvent | None = None  # ends the call when it is set

    @property
    def key(self) -> bytes:
        """The key of its claim."""
        return self.claim.key

    def on(self, claim: C) -> "Request[C]":
        """Return the same request with another claim."""
        resource, _, ttl_ms, asked_at, timeout, fencing, stop = self
        return Request(resource, claim, ttl_ms, asked_at, timeout, fencing, stop)


AcquireRequest: TypeAlias = Request[Claim]
AnyRequest: TypeAlias = Request[AnyOf]
BaseRequest: TypeAlias = Request[BaseClaim]

# As `Request(...)`, without the Python call of a named tuple; see `replied` in rounds.py.
requested: Callable[
    [tuple[str, Claim, int, Instant, Duration | None, bool, StopEvent | None]], AcquireRequest
] = partial(getattr(tuple, "__new__"), Request)  # noqa: B009
