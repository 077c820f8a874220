"""What a lock is before anybody asks for it: a resource and how to acquire it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from quorlock._core.policy import Seconds, timeout_of
from quorlock._core.redlock import Request
from quorlock._drivers.clock import now
from quorlock._face.arguments import OWN_TIMEOUT, Timeout
from quorlock._face.entered import Entered
from quorlock._face.session import Session, name_of

if TYPE_CHECKING:
    from quorlock._face.terms import Terms

D = TypeVar("D")
L = TypeVar("L")


class LockBase(Generic[D, L]):
    """Immutable; to be shared by threads and tasks."""

    __slots__ = (
        "_entered",
        "_fencing",
        "_key",
        "_resource",
        "_session",
        "_terms",
        "_timeout",
        "_ttl_ms",
        "_wait",
    )

    def __init__(
        self,
        session: Session[D],
        resource: str | bytes,
        ttl: Seconds | None,
        timeout: Seconds | None,
        fencing: bool,  # noqa: FBT001 (not public: `Redlock.lock` takes it by name)
        terms: Terms,
    ) -> None:
        self._fencing = session.policy.checked_fencing(fencing)
        self._wait = timeout_of(timeout)
        self._session = session
        self._key = session.policy.key(resource)
        self._resource = name_of(resource)
        self._ttl_ms = session.policy.checked_ttl_ms(ttl)
        self._terms = terms.checked(self._ttl_ms)
        self._timeout = timeout
        self._entered: Entered[L] = Entered()

    @property
    def resource(self) -> str:
        """The name of what is protected."""
        return self._resource

    @property
    def ttl(self) -> float:
        """The lease time in seconds."""
        return self._ttl_ms / 1000

    @property
    def fencing(self) -> bool:
        """Whether its leases have a `fence`."""
        return self._fencing

    @property
    def timeout(self) -> Seconds | None:
        """How long to wait for the lock: seconds, None for ever, 0 for one attempt."""
        return self._timeout

    def _request(self, timeout: Timeout) -> Request:
        wait = self._wait if timeout is OWN_TIMEOUT else timeout_of(timeout)
        return Request(self._resource, self._key, self._ttl_ms, now(), wait, self._fencing)

    def __repr__(self) -> str:
        return f"<Lock on {self._resource!r}, ttl {self.ttl:g} s>"

    def __reduce__(self) -> NoReturn:
        message = "a lock cannot be copied or pickled: make one in each process"
        raise TypeError(message)
