"""The election of the blocking API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from quorlock._api.decorators import check_decorated, check_result
from quorlock._api.election import ElectionBase, Leader, ends_term, is_same
from quorlock._api.misuse import BlockingObject
from quorlock._core import redlock as flows
from quorlock._core.config import Seconds
from quorlock._core.request import StopEvent
from quorlock._drivers.clock import now
from quorlock._drivers.wait import Wakeup, is_stopped, next_look
from quorlock._sync.lease import Lease
from quorlock._sync.lock import Lock
from quorlock.errors import QuorumUnreachable

if TYPE_CHECKING:
    from quorlock._core.time import Instant

R = TypeVar("R")


class Election(BlockingObject, ElectionBase[Lock]):
    """A role that one process at a time has: the holder of a lock that is renewed without limit.

    Every term has a number, the `fence` of its lease, which rises from leader to leader.
    """

    __slots__ = ()

    def run(self, lead: Callable[[Lease], R]) -> R:
        """Campaign, call `lead` with the lease, and campaign again after a loss.

        If the nodes cannot be reached, the campaign is repeated, and the logger `quorlock` has the
        error.  A signal handler or another thread ends a campaign by the election's `stop`.

        Args:
            lead: a function that leads.  It must return soon after `lease.lost` is set.

        Returns:
            What `lead` returned while it held the lease.  If the lease was lost before `lead`
            returned, the campaign begins again.

        Raises:
            AcquireStopped: `stop` was set before this process led.
            ConfigError: `lead` is no function.
            NodeError: too many nodes reply with errors.
        """
        check_decorated(lead, "function", "lead", "give")
        while True:
            lease = None
            try:
                with self.campaign() as lease:
                    return check_result(lead(lease), lead, "lead")
            except QuorumUnreachable as error:
                if lease is not None:
                    raise
                pause(self._log_outage(error), self._stop)
            except BaseException as error:
                if not ends_term(error, lease):
                    raise

    def campaign(self, timeout: Seconds | None = None, stop: StopEvent | None = None) -> Lock:
        """Return a lock whose block leads: `with election.campaign() as lease:`.

        The end of the block resigns.  `lease.fence` is the term; `lease.release()` resigns earlier,
        and `lease.hand_over()` gives the term to another process.

        Args:
            timeout: how long to wait for the lead, in seconds; None without limit, 0 for one
                attempt.
            stop: an event that ends the wait when it is set; default: the election's.

        Raises:
            ConfigError: an argument cannot work.
        """
        return self._make(timeout, self._stop if stop is None else stop)

    def leader(self) -> Leader | None:
        """Return the leader, by a quorum of nodes; None if there is none.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        session, request = self._session, self._session.request_for(self._lock.resource)
        flow = flows.inspect(request.key, session.policy)
        return self._leader(request, session.driver.run(flow))

    def observe(self) -> Iterator[Leader | None]:
        """Iterate over the leaders: the present one or None, then each change that is seen.

        It asks the nodes when the lease could end, at least every 5 seconds and at most 20 times a
        second.  A term that begins and ends between two looks is not seen.  What is seen is past:
        only a fence at the protected resource stops an earlier leader.  The election's `stop` ends
        the iteration.

        Raises:
            QuorumUnreachable: too few nodes replied.
            NodeError: too many nodes reply with errors.
        """
        first, last = True, None
        while not is_stopped(self._stop):
            leader = self.leader()
            if first or not is_same(leader, last):
                yield leader
            first, last = False, leader
            pause(self._next_look(leader), self._stop)


def pause(until: Instant, stop: StopEvent | None) -> None:
    """Sleep until this instant, or until the event is set."""
    sleep = Wakeup()
    while now() < until and not is_stopped(stop):
        sleep.wait(next_look(until, stop))
