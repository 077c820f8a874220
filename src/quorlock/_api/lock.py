"""The part of a lock that both APIs share: a resource, how to acquire it, and its leases.

The blocking and the asyncio `Lock` add what waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypeVar,
)

from quorlock._api.lease import LeaseBase
from quorlock._api.lease_options import LeaseOptions
from quorlock._api.lease_state import LeaseState
from quorlock._api.misuse import HintedNames
from quorlock._api.open_blocks import OpenBlocks
from quorlock._api.session import Session
from quorlock._core.claims import Shared
from quorlock._core.config import Seconds, timeout_of
from quorlock._core.request import AcquireRequest, StopEvent, requested
from quorlock._core.resources import claim_on, claim_shared, names_of
from quorlock._core.results import Acquired
from quorlock._drivers.clock import now
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from quorlock._api.renewal import RenewalManager
    from quorlock._drivers.abc import AnyDriver

D = TypeVar("D", bound="AnyDriver")
L = TypeVar("L", bound=LeaseBase[Any])


class Own(Enum):
    """The value of an argument that was not given."""

    TIMEOUT = "the lock's own timeout"

    def __repr__(self) -> str:
        return "OWN_TIMEOUT"


OWN_TIMEOUT: Final = Own.TIMEOUT
Timeout: TypeAlias = Seconds | Literal[Own.TIMEOUT] | None

_ON_LEASE = "of the lease that acquire() returned"


class LockBase(HintedNames, ABC, Generic[D, L]):
    """A resource and how to acquire it; immutable, to be shared by threads and tasks."""

    __slots__ = (
        "_claim",
        "_entered",
        "_fencing",
        "_options",
        "_resource",
        "_session",
        "_stop",
        "_timeout",
        "_ttl_ms",
        "_wait",
    )

    _HINTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("release", "unlock"), f"use `release` {_ON_LEASE}"),
        **dict.fromkeys(("extend", "renew", "reacquire"), f"use `extend` {_ON_LEASE}"),
        **dict.fromkeys(("owned", "held", "valid", "validity"), f"see `held` {_ON_LEASE}"),
    }

    def __init__(
        self,
        session: Session[D],
        resources: tuple[object, ...],
        ttl: Seconds | None,
        timeout: Seconds | None,
        fencing: bool,  # noqa: FBT001 (not public: `Redlock.lock` takes it by name)
        options: LeaseOptions,
        stop: StopEvent | None,
        shared: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        policy = session.policy
        self._fencing = fencing if fencing is False else policy.checked_fencing(fencing)
        self._wait = timeout if timeout is None else timeout_of(timeout)
        self._session = session
        self._resource, self._claim = (
            claim_on(resources, policy)
            if shared is False
            else claim_shared(resources, policy, shared=shared, fencing=fencing)
        )
        self._ttl_ms = policy.ttl_ms if ttl is None else policy.checked_ttl_ms(ttl)
        self._options = options.checked(self._ttl_ms)
        self._timeout = timeout
        self._stop = stop if stop is None else checked_stop(stop)
        self._entered: OpenBlocks[L] = {}

    @property
    def resource(self) -> str:
        """The name of the protected resource; of several, their names joined by " + "."""
        return self._resource

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all protected resources, sorted."""
        return names_of(self._resource)

    @property
    def shared(self) -> bool:
        """True if its leases share the lock with others that do so too."""
        return type(self._claim) is Shared

    @property
    def ttl(self) -> float:
        """The lease time in seconds."""
        return self._ttl_ms / 1000

    @property
    def fencing(self) -> bool:
        """True if its leases have a `fence`."""
        return self._fencing

    @property
    def timeout(self) -> Seconds | None:
        """The time to wait for the lock: seconds, None without limit, 0 for one attempt."""
        return self._timeout

    def _request(self, timeout: Timeout, stop: StopEvent | None = None) -> AcquireRequest:
        wait = self._wait if timeout is OWN_TIMEOUT else timeout_of(timeout)
        return requested(
            (self._resource, self._claim, self._ttl_ms, now(), wait, self._fencing, stop)
        )

    def _lease(self, granted: Acquired) -> L:
        session, options = self._session, self._options
        lease_state = LeaseState(self._resource, *granted, options)
        lease = self._new_lease(lease_state)
        try:
            session.live[lease_state.token] = lease_state
            if options.renew:
                self._renewer().add(lease, options.on_warning)
        except BaseException:
            session.take_back(lease_state)  # then the flow releases it
            raise
        return lease

    def _lease_or_none(self, granted: Acquired | None) -> L | None:
        return None if granted is None else self._lease(granted)

    @abstractmethod
    def _new_lease(self, lease_state: LeaseState) -> L:
        """Return the lease object of this API."""

    @abstractmethod
    def _renewer(self) -> RenewalManager[Any]:
        """Return the renewal manager of this API."""

    def __repr__(self) -> str:
        return f"<Lock on {self._resource!r}, ttl {self.ttl:g} s>"

    def __reduce__(self) -> NoReturn:
        message = "a lock cannot be copied or pickled: make one in each process"
        raise TypeError(message)


def check_wait(timeout: Timeout, stop: StopEvent | None) -> None:
    """Raise ConfigError if an acquire that waits would refuse these arguments."""
    if timeout is not OWN_TIMEOUT:
        timeout_of(timeout)
    if stop is not None:
        checked_stop(stop)


def checked_stop(stop: StopEvent) -> StopEvent:
    """Return the event. Raises ConfigError."""
    # A class of events is the likeliest mistake: its `is_set` is a function, and needs an object.
    if isinstance(stop, type) or not callable(getattr(stop, "is_set", None)):
        fix = "give an event with is_set(): a threading.Event or an asyncio.Event"
        raise ConfigError("stop", stop, fix)
    return stop
