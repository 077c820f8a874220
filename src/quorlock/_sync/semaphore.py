"""The semaphore of the blocking API, and the lock on any one of several resources."""

from __future__ import annotations

from typing import Any

from quorlock._api.lease_options import LeaseOptions
from quorlock._api.lease_state import LeaseState
from quorlock._api.lock import OWN_TIMEOUT, Timeout, checked_stop
from quorlock._api.session import Session
from quorlock._core import any_of
from quorlock._core import redlock as flows
from quorlock._core.config import Seconds
from quorlock._core.request import StopEvent
from quorlock._core.resources import (
    check_no_fences,
    claim_on_any,
    claim_on_permits,
    permit_of,
)
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock


class AnyLock(Lock):
    """Any one of several locks: a lease is on one of them, which `Lease.resource` names."""

    __slots__ = ("_choice",)

    def __init__(
        self,
        session: Session[Any],
        resources: tuple[object, ...],
        ttl: Seconds | None,
        timeout: Seconds | None,
        fencing: bool,  # noqa: FBT001 (see LockBase)
        options: LeaseOptions,
        stop: StopEvent | None,
    ) -> None:
        check_no_fences(fencing)
        super().__init__(session, resources[:1], ttl, timeout, fencing, options, stop)
        self._resource, self._choice = claim_on_any(resources, session.policy)

    def acquire(self, timeout: Timeout = OWN_TIMEOUT, stop: StopEvent | None = None) -> Lease:
        """Wait until one of them is free, and return a new Lease on it.

        It waits by trying again after random pauses, which does not keep the order of arrival.

        Args:
            timeout: seconds, None without limit, 0 for one attempt; default: the lock's own.
            stop: an event that ends the wait when it is set; default: the lock's own.

        Raises:
            AcquireStopped: `stop` was set before one was granted.
            AcquireTimeout: all were held until the timeout.
            QuorumUnreachable: too few nodes replied for the Redlock's outage_timeout.
            NodeError: too many nodes reply with errors.
            ConfigError: an argument cannot work, or the nodes do not belong together.
        """
        session = self._session
        stop = self._stop if stop is None else checked_stop(stop)
        request = self._request(timeout, stop).on(self._choice)
        flow = any_of.acquire(request, session.policy, session.entropy)
        return session.driver.run_and_claim(flow, self._lease)

    def try_acquire(self) -> Lease | None:
        """Make one attempt: return a Lease, or None if all are held.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
            ConfigError: the nodes do not belong together.
        """
        session = self._session
        request = self._request(0).on(self._choice)
        flow = any_of.try_acquire(request, session.policy, session.entropy)
        return session.driver.run_and_claim(flow, self._lease_or_none)

    def locked(self) -> bool:
        """Return whether all are held.  The nodes are asked about one after the other.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        session = self._session
        for key in self._choice.keys:
            request = self._request(0)
            answers = session.driver.run(flows.inspect(key, session.policy))
            if not session.locked(request, answers):
                return False
        return True

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all resources of which it gets one."""
        return tuple(map(self._name_of, self._choice.keys))

    def _new_lease(self, lease_state: LeaseState) -> Lease:
        lease_state.resource = self._name_of(lease_state.claim.key)
        return super()._new_lease(lease_state)

    def _name_of(self, key: bytes) -> str:
        return self._session.policy.resource_of(key)


class Semaphore(AnyLock):
    """A number of permits, of which each is held by one lease at most.

    `Lease.permit` is the number of the permit, from 0: exclusive, so it can stand for a worker, a
    port or a device.  Permit 2 of `pool` is the lock on the resource `pool#2`.
    """

    __slots__ = ()

    def __init__(
        self,
        session: Session[Any],
        resource: str | bytes,
        permits: int,
        ttl: Seconds | None,
        timeout: Seconds | None,
        fencing: bool,  # noqa: FBT001 (see LockBase)
        options: LeaseOptions,
        stop: StopEvent | None,
    ) -> None:
        super().__init__(session, (resource,), ttl, timeout, fencing, options, stop)
        self._resource = str(self._resource)  # one name, of permits
        self._choice = claim_on_permits(resource, permits, session.policy)

    @property
    def permits(self) -> int:
        """The number of permits, as far as this process knows."""
        return len(self._choice.keys)

    def _name_of(self, key: bytes) -> str:
        return permit_of(key, self._session.policy)

    def __repr__(self) -> str:
        return f"<Semaphore of {self.permits} on {self._resource!r}, ttl {self.ttl:g} s>"
