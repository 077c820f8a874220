"""The entry point of the blocking API: nodes, settings, and operations on resources."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ForwardRef, Self, overload

from quorlock._api.decorators import ResourceFunction
from quorlock._api.lease import state_of
from quorlock._api.lease_options import MAX_HOLD, LeaseOptions, lease_options
from quorlock._api.lease_state import LeaseState
from quorlock._api.misuse import BlockingObject
from quorlock._api.redlock import RedlockBase
from quorlock._api.session import Closable, Session, token_bytes
from quorlock._api.ticket import Ticket
from quorlock._core import redlock as flows
from quorlock._core.config import Policy, Seconds
from quorlock._core.request import AcquireRequest, StopEvent
from quorlock._core.resources import Resource
from quorlock._core.results import Extended, ExtendFailed, is_unreachable
from quorlock._drivers import fork
from quorlock._sync.lease import Lease, release_in_background
from quorlock._sync.lock import Lock, LockDecorator
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from quorlock._api.health import Health
    from quorlock._api.inspection import Inspection
    from quorlock._drivers.sync.driver import Driver
    from quorlock._nodes.node import Node
    from quorlock._sync.election import Election
    from quorlock._sync.once import Once
    from quorlock._sync.rlock import RLock
    from quorlock._sync.semaphore import Semaphore
else:
    # What most programs do not use is loaded by its method, or by `typing.get_type_hints`.
    Election, Health, Inspection, Once, RLock, Semaphore = (
        ForwardRef(f"__import__('quorlock').{name}")
        for name in ("Election", "Health", "Inspection", "Once", "RLock", "Semaphore")
    )


class Redlock(BlockingObject, RedlockBase["Driver"]):
    __doc__ = RedlockBase.__doc__

    def _driver(self, nodes: tuple[Node, ...], policy: Policy) -> Driver:
        # Here: asyncio programs, and programs that only name a type or an error, do not need it.
        # It is a third of the import time, with sockets, threads and hiredis.
        from quorlock._drivers.sync.driver import Driver

        return Driver(nodes, policy)

    def _begin(self, session: Session[Driver]) -> None:
        # At the latest when the last lock and lease are garbage, or when the interpreter ends.
        weakref.finalize(
            session, _close, session.driver, session.live, session.releasing, session.renewers
        )
        _watch_exit()

    @overload
    def lock(
        self,
        *resources: str | bytes,
        shared: bool = ...,
        ttl: Seconds | None = ...,
        timeout: Seconds | None = ...,
        renew: bool = ...,
        max_hold: Seconds = ...,
        fencing: bool = ...,
        on_warning: Callable[[Lease], object] | None = ...,
        stop: StopEvent | None = ...,
    ) -> Lock: ...

    @overload
    def lock(
        self,
        resource: ResourceFunction,
        /,
        *,
        shared: bool = ...,
        ttl: Seconds | None = ...,
        timeout: Seconds | None = ...,
        renew: bool = ...,
        max_hold: Seconds = ...,
        fencing: bool = ...,
        on_warning: Callable[[Lease], object] | None = ...,
        stop: StopEvent | None = ...,
    ) -> LockDecorator: ...

    def lock(
        self,
        *resources: str | bytes | ResourceFunction,
        shared: bool = False,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        fencing: bool = False,
        on_warning: Callable[[Lease], object] | None = None,
        stop: StopEvent | None = None,
    ) -> Lock | LockDecorator:
        """Return a lock on the resource, or on several at once; no node is asked yet.

        Args:
            resources: the name of the protected resource; its Redis key is `prefix + resource`.  Of
                several, a lease has all or none.  Or one function that returns a name, or a tuple
                of names, for a decorator: every call of the decorated function passes its arguments
                to that function.
            shared: share the lock with others that do so too; no client that does not share it has
                it at the same time.  For one resource, and without a fence.
            ttl: the lease time in seconds; default: the Redlock's.
            timeout: how long to wait for the lock, in seconds; None without limit, 0 for one
                attempt.
            renew: extend the lease in the background, until it is released.
            max_hold: how long it may be held in all, in seconds, with extensions of either kind;
                math.inf for no limit.
            fencing: give every lease a `fence`, a number that only rises.
            on_warning: a plain function that is called with the lease when renewal fails and less
                than half of the ttl is left.  All renewal waits until it returns.
            stop: an event (threading.Event, asyncio.Event): if it is set while an acquire waits,
                the acquire raises AcquireStopped within about 0.1 s.

        Raises:
            ConfigError: an argument cannot work.
        """
        options = lease_options(renew, max_hold, on_warning)
        if len(resources) == 1 and callable(first := resources[0]):
            make = partial(
                Lock,
                self._session,
                ttl=ttl,
                timeout=timeout,
                fencing=fencing,
                options=options,
                stop=stop,
                shared=shared,
            )
            return LockDecorator(make, first)
        return Lock(self._session, resources, ttl, timeout, fencing, options, stop, shared)

    def rlock(
        self,
        resource: str | bytes,
        *,
        shared: bool = False,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        fencing: bool = False,
        on_warning: Callable[[Lease], object] | None = None,
        stop: StopEvent | None = None,
    ) -> RLock:
        """Return a lock that its thread (asyncio: its task) may acquire again.

        No node is asked yet.  This process counts: a nested acquire sends nothing, and the last
        release frees the lock.  For other clients it is an ordinary lock on the resource.

        Args:
            resource: as for `lock`; a name.
            shared: as for `lock`.  A nested acquire that does not share it is a ConfigError.
            ttl: as for `lock`.
            timeout: as for `lock`.
            renew: as for `lock`.
            max_hold: as for `lock`.
            fencing: as for `lock`.
            on_warning: as for `lock`.
            stop: as for `lock`.

        Raises:
            ConfigError: an argument cannot work.
        """
        from quorlock._sync.rlock import RLock, ThreadHolds

        session, options = self._session, lease_options(renew, max_hold, on_warning)
        lock = Lock(session, (resource,), ttl, timeout, fencing, options, stop, shared)
        # All re-entrant locks have the same; `setdefault` is one step for threads and signals.
        holds: ThreadHolds = vars(self).setdefault("_holds", ThreadHolds())
        return RLock(lock, session.policy.key(resource), renew, holds)

    def election(
        self,
        resource: str | bytes,
        *,
        ttl: Seconds | None = None,
        on_warning: Callable[[Lease], object] | None = None,
        stop: StopEvent | None = None,
    ) -> Election:
        """Return an election: a role that one process has at a time; no node is asked yet.

        The leader holds the lock on the resource, which is renewed without limit and has a fence.

        Args:
            resource: as for `lock`; a name.
            ttl: the lease time in seconds, and so the longest time without a leader after a crash;
                default: the Redlock's.
            on_warning: as for `lock`.
            stop: an event that ends campaigns and observers when it is set, as for `lock`.

        Raises:
            ConfigError: an argument cannot work.
        """
        from quorlock._sync.election import Election

        session, options = self._session, lease_options(True, math.inf, on_warning)

        def make(timeout: Seconds | None, stop: StopEvent | None) -> Lock:
            return Lock(session, (resource,), ttl, timeout, True, options, stop)

        return Election(session, make, stop)

    def once(
        self,
        resource: str | bytes,
        *,
        every: Seconds,
        ttl: Seconds | None = None,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        fencing: bool = False,
        on_warning: Callable[[Lease], object] | None = None,
    ) -> Once:
        """Return work that is done at most once per interval; no node is asked yet.

        Args:
            resource: as for `lock`; a name.
            every: for how long the work counts as done, in seconds from its end.  It may exceed
                max_ttl: see docs/how-to/once.md.
            ttl: the lease time in seconds: how long after a crash the work may be done again;
                default: the Redlock's.
            renew: as for `lock`.
            max_hold: as for `lock`.
            fencing: as for `lock`.
            on_warning: as for `lock`.

        Raises:
            ConfigError: an argument cannot work.
        """
        from quorlock._sync.once import Once

        options = lease_options(renew, max_hold, on_warning)
        return Once(Lock(self._session, (resource,), ttl, 0, fencing, options, None), every)

    def semaphore(
        self,
        resource: str | bytes,
        permits: int,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        fencing: bool = False,
        on_warning: Callable[[Lease], object] | None = None,
        stop: StopEvent | None = None,
    ) -> Semaphore:
        """Return a semaphore: so many leases may be held at once; no node is asked yet.

        Each has its own number, `Lease.permit`.  Permit 2 of `pool` is the resource `pool#2`.

        Args:
            resource: the name of what is shared.
            permits: how many, from 1 to 1024.  If two clients give different numbers, the larger
                one holds.
            ttl: as for `lock`, and so are the others.
            timeout: how long to wait until one is free.
            renew: extend the lease in the background.
            max_hold: how long it may be held in all.
            fencing: not possible yet: permits have no fences.
            on_warning: called when renewal fails.
            stop: an event that ends a waiting acquire.

        Raises:
            ConfigError: an argument cannot work.
        """
        from quorlock._sync.semaphore import Semaphore

        options = lease_options(renew, max_hold, on_warning)
        return Semaphore(self._session, resource, permits, ttl, timeout, fencing, options, stop)

    def any_of(
        self,
        *resources: str | bytes,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        fencing: bool = False,
        on_warning: Callable[[Lease], object] | None = None,
        stop: StopEvent | None = None,
    ) -> Lock:
        """Return a lock on any one of these resources; no node is asked yet.

        `Lease.resource` is the one that it got.

        Args:
            resources: their names, up to 1024.
            ttl: as for `lock`, and so are the others.
            timeout: how long to wait until one is free.
            renew: extend the lease in the background.
            max_hold: how long it may be held in all.
            fencing: not possible yet: permits have no fences.
            on_warning: called when renewal fails.
            stop: an event that ends a waiting acquire.

        Raises:
            ConfigError: an argument cannot work.
        """
        from quorlock._sync.semaphore import AnyLock

        options = lease_options(renew, max_hold, on_warning)
        return AnyLock(self._session, resources, ttl, timeout, fencing, options, stop)

    def adopt(
        self,
        ticket: Ticket,
        *,
        renew: bool = False,
        max_hold: Seconds = MAX_HOLD,
        on_warning: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """Take over a lease that another process handed over; held once an extension has won.

        While too few nodes reply it tries again, for `max_ttl` at most.  In that time, and for a
        ttl after it, nodes that do reply keep the key, so other clients may not get the lock.

        Args:
            ticket: the ticket that `Lease.hand_over` returned.
            renew: as for `lock`.
            max_hold: as for `lock`; counts from now.
            on_warning: as for `lock`.

        Raises:
            LeaseLost: a quorum no longer has its key, or did not reply while it could be saved.
            ConfigError: an argument cannot work, or this process holds the lease already.
        """
        session = self._session
        options = lease_options(renew, max_hold, on_warning)
        with session.adopting(ticket) as (request, token, in_doubt):
            flow = flows.adopt(request, token, session.policy, session.entropy, in_doubt)
            options.checked(request.ttl_ms)
            return session.driver.run_and_claim(
                flow, partial(_adopted, session, request, ticket, options)
            )

    def extend(self, resource: Resource, token: str, *, ttl: Seconds | None = None) -> bool:
        """Extend by bare token, in one round.

        No lease is made here.  True excludes every other client from now on.  It does not prove
        that no other client held the lock in between, if the lease had expired before.

        Args:
            resource: the name of the protected resource; of a lease on several, all of them as a
                tuple.
            token: the lease's token.
            ttl: the lease time in seconds; default: the Redlock's.

        Returns:
            True if a quorum extended it, False if it is gone or another's.

        Raises:
            QuorumUnreachable: too few nodes replied to decide it.
            NodeError: too many nodes reply with errors.
            ConfigError: an argument cannot work.
        """
        session, request = self._session, self._session.request_for(resource, ttl)
        flow = flows.extend_by_token(request, token_bytes(token), session.policy)
        return session.driver.run(flow)

    def release(self, resource: Resource, token: str) -> bool:
        """Release by bare token.

        Args:
            resource: the name of the protected resource; of a lease on several, all of them as a
                tuple.
            token: the lease's token.

        Returns:
            True if a quorum deleted it, False if it is gone or another's.

        Raises:
            QuorumUnreachable: too few nodes replied to decide it.
            NodeError: too many nodes reply with errors.
            ConfigError: an argument cannot work.
        """
        return self._release(self._session.request_for(resource), token_bytes(token))

    def _release(self, request: AcquireRequest, token: bytes) -> bool:
        session = self._session
        ours = session.live.get(token)
        try:
            request, target = session.end_by_token(request, token)
            flow = flows.release_by_token(request, token, session.policy, target)
            return session.driver.run(flow)
        except QuorlockError:
            raise
        except BaseException:  # interrupted, perhaps before anything was sent
            if ours is not None and session.live.get(token) is not ours:
                release_in_background(session, ours)
            raise
        finally:
            session.driver.on_lease_over(request.claim)

    def break_lease(self, resource: str | bytes, holder: str) -> bool:
        """Release by force the lease of `holder`, and no other.

        The process that holds it continues until it next asks the nodes (renewal does soon), so end
        that process first.

        Args:
            resource: the name of the protected resource.
            holder: a digest from `inspect`.

        Returns:
            True if a quorum deleted it, False if it was gone or another's.

        Raises:
            QuorumUnreachable: too few nodes replied to decide it.
            NodeError: too many nodes reply with errors.
            ConfigError: an argument cannot work.
        """
        from quorlock._api.inspection import check_holder, token_of

        session, request = self._session, self._session.request_for((resource,))
        check_holder(holder)
        answers = session.driver.run(flows.inspect(request.key, session.policy))
        token = token_of(holder, answers, request, session.policy)
        return token is not None and self._release(request, token)

    def inspect(self, resource: str | bytes) -> Inspection:
        """Return the holder of the resource on every node, and the verdict of all.

        Args:
            resource: the name of the protected resource.

        Raises:
            ConfigError: the name cannot be used.
        """
        session, request = self._session, self._session.request_for((resource,))
        flow = flows.inspect(request.key, session.policy)
        return session.inspection(request, session.driver.run(flow))

    def check(self) -> Health:
        """Connect to all nodes now, ask each of them, and report which would vote.

        For health checks and start-up.  Takes at most connect_timeout and a little more, and raises
        no error for nodes that are down: see `Health.ready`.

        Raises:
            ConfigError: the settings do not fit those of the other clients.
        """
        from quorlock._api.health import check, health

        session = self._session
        answers = session.driver.run(check(session.policy, session.driver.node_states.all))
        return health(session.driver.statuses(), answers, session.policy)

    def close(self) -> None:
        """Release all leases that are held, and close all connections.

        Waits a bounded time for nodes that do not reply.  Closing twice does no harm.
        """
        session = self._session
        _close(session.driver, session.live, session.releasing, session.renewers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@functools.cache
def _watch_exit() -> None:
    from quorlock._drivers.sync.driver import interpreter_ends

    # Registered after the first finalizer, so that it runs before all of them: last in, first out.
    atexit.register(interpreter_ends)


def _close(
    driver: Driver,
    lease_states: dict[bytes, LeaseState],
    ending: dict[object, LeaseState],
    renewers: list[Closable],
) -> None:
    if fork.is_new_child():
        return  # called by the finalizer: the parent's Redlock stays open
    driver.stop()  # first: no lock may be won after this
    held = [*list(ending.values()), *list(lease_states.values())]
    for lease_state in held:
        lease_state.end()
    for renewer in renewers:
        renewer.close()
    for lease_state in held:
        with contextlib.suppress(Exception):
            driver.run(lease_state.release_flow())
        lease_states.pop(lease_state.token, None)
    driver.close()


def _adopted(
    session: Session[Driver],
    request: AcquireRequest,
    ticket: Ticket,
    options: LeaseOptions,
    outcome: Extended | ExtendFailed,
) -> Lease:
    if not is_unreachable(outcome):  # else the ticket stays good, for another process as well
        session.driver.node_states.allow_releases(token_bytes(ticket.token))
    lease = Lease(session, session.adopted(request, ticket, outcome, options))
    session.add(state_of(lease))
    if session.driver.closed:
        # Closed by a signal handler before it could find the lease.  The ticket stays good.
        from quorlock._drivers.node_state import CLOSED_MEANWHILE  # loaded by the driver

        raise QuorlockError(CLOSED_MEANWHILE)
    if options.renew:
        from quorlock._sync.renewal import renewer  # here: most locks are not renewed

        renewer(session).add(lease, options.on_warning)
    return lease
