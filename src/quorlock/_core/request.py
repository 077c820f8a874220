"""The request of a caller for a lock."""

from typing import NamedTuple, Protocol

from quorlock._core.time import Duration, Instant


class StopEvent(Protocol):
    """An event that ends an acquire: a `threading.Event`, an `asyncio.Event`, or similar."""

    def is_set(self) -> bool:
        """Return whether the acquire is to end."""
        ...


class AcquireRequest(NamedTuple):
    """One call to acquire: the resource, the ttl, and how long the caller will wait."""

    resource: str
    key: bytes
    ttl_ms: int
    asked_at: Instant
    timeout: Duration | None  # None: no limit; 0: one attempt
    fencing: bool = False
    stop: StopEvent | None = None  # ends the call when it is set
