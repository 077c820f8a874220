"""What one client of a simulated world does: its jobs, one after the other.

A career is a generator, like a flow: it yields how long to wait, or a call, and is sent what came
of it.  What the two faces do around the flows (a lease ends locally before it is released, a lost
one is given back) is done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorlock._core import redlock
from quorlock._core.outcomes import Extended, Granted, Lost, is_unreachable
from quorlock._core.redlock import Holding, Request
from quorlock._core.time import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorlock._core.effects import Flow
    from quorlock._core.renewal import Renewal
    from quorlock.testing.history import Lease
    from quorlock.testing.plan import Job
    from quorlock.testing.process import Process, Turn
    from quorlock.testing.world import World

CANCELLED = "cancelled"
# What a call may take beyond its own deadlines: the resolution of a timer.
_SLACK = 1 * NS_PER_MS


@dataclass(slots=True)
class Wish:
    """A call that the career wants to make. allowed: how long it may take (ns)."""

    what: str
    flow: Flow[Any]
    resource: str
    token: bytes = b""
    allowed: int | None = None
    cancel_after: int | None = None


class Worker:
    """See the module."""

    def __init__(self, world: World, process: Process, jobs: tuple[Job, ...]) -> None:
        self.world = world
        self.process = process
        self.turn: Turn[Any] | None = None
        self.lease: Lease | None = None
        self.renewal: Renewal | None = None
        self.done = False  # with all its work
        self._jobs = jobs
        self._career: Generator[int | Wish, Any, None] = self._work()

    def begin(self) -> None:
        """Start work."""
        self._go_on(None)

    @property
    def phase(self) -> str:
        """What it is about at this moment, for the table of faults and phases."""
        if self.process.dead:
            return "gone"
        turn = self.turn
        if turn is not None and not turn.over:
            return turn.phase
        if any(len(debts) for debts in self.process.debts):
            return "owing"
        return "holding" if self.lease is not None and self.lease.ended is None else "idle"

    def cancel(self) -> bool:
        """Whoever waits for its call has gone. False: nobody calls."""
        turn = self.turn
        if turn is None or turn.over:
            return False
        turn.abandon()
        self.world.returned(turn.call, self.process, CANCELLED)
        self._go_on(CANCELLED)
        return True

    def crash(self, survivors: int, late_by: int) -> None:
        """The process is gone, and its leases with it."""
        for lease in self.world.history.leases:
            if lease.client == self.process.index:
                self.world.end(lease, "crashed")
        for turn in self.process.turns:
            self.world.returned(turn.call, self.process, "crashed")
        self.process.crash(survivors, late_by)
        self._career.close()

    def contend(self, rounds: int) -> None:
        """The last contest: ask for the first resource, for so many attempts' time at the most."""
        policy = self.process.policy
        patience = rounds * (policy.retry_delay[1] + 2 * policy.node_timeout)
        self._career = self._compete(patience)
        self._go_on(None)

    # --- leading a career --------------------------------------------------------------------

    def _go_on(self, value: Any) -> None:
        try:
            wish = self._career.send(value)
        except StopIteration:
            self.done = True
            return
        if isinstance(wish, int):
            self.process.later(wish, self._go_on)
            return
        turn = self.world.call(
            self.process,
            wish.what,
            wish.flow,
            self._go_on,
            resource=wish.resource,
            token=wish.token,
            allowed=wish.allowed,
            owner=self,
        )
        if wish.cancel_after is not None:
            self.process.later(wish.cancel_after, self._cancel_this, turn)

    def _cancel_this(self, turn: Turn[Any]) -> None:
        if self.turn is turn:
            self.cancel()

    # --- careers -----------------------------------------------------------------------------

    def _work(self) -> Generator[int | Wish, Any, None]:
        for job in self._jobs:
            yield job.after
            if self.world.healed:
                return
            lease = yield from self._acquire(job)
            if lease is None:
                continue
            self.lease = lease
            if job.renew:
                self.renewal = self.process.renewer.add(lease, job.ttl_ms, job.max_hold)
            yield from self._hold(lease, job)
            yield from self._end(lease, job)

    def _compete(self, patience: int) -> Generator[int | Wish, Any, None]:
        resource = self.world.resources[0]
        request = self._request(resource, self.process.policy.max_ttl_ms, patience)
        flow = redlock.acquire(request, self.process.policy, self.process.chance)
        won = yield Wish("contest", flow, resource)
        if isinstance(won, Granted):
            lease = self.world.lease(self.process, won, resource)
            yield from self._release(lease)
        if any(job.fencing for job in self._jobs):
            # When every node has been long enough out: what is issued now must be the largest.
            yield from self._take_fence(resource)

    def _take_fence(self, resource: str) -> Generator[int | Wish, Any, None]:
        process = self.process
        request = self._request(resource, process.policy.max_ttl_ms, 0)._replace(fencing=True)
        flow = redlock.try_acquire(request, process.policy, process.chance)
        won = yield Wish("fence", flow, resource)
        if isinstance(won, Granted):
            yield from self._release(self.world.lease(process, won, resource))

    def _acquire(self, job: Job) -> Generator[int | Wish, Any, Lease | None]:
        process, policy = self.process, self.process.policy
        resource = self.world.resources[job.resource]
        request = self._request(resource, job.ttl_ms, 0 if job.once else job.timeout)
        request = request._replace(fencing=job.fencing)
        ask = redlock.try_acquire if job.once else redlock.acquire
        rounds = redlock.rounds(request) * policy.node_timeout + _SLACK
        won = yield Wish(
            "try_acquire" if job.once else "acquire",
            ask(request, policy, process.chance),
            resource,
            allowed=rounds if job.once else job.timeout + rounds,
            cancel_after=job.cancel_after,
        )
        if not isinstance(won, Granted):
            return None
        assert self.turn is not None
        self.world.check_granted(self.turn, won)
        return self.world.lease(process, won, resource)

    def _hold(self, lease: Lease, job: Job) -> Generator[int | Wish, Any, None]:
        left = job.hold
        for after, ttl_ms in job.extensions:
            yield after
            left -= after
            if lease.ended is None and self._may_extend(lease, ttl_ms):
                yield from self._extend(lease, ttl_ms)
        if left > 0:
            yield left

    def _may_extend(self, lease: Lease, ttl_ms: int) -> bool:
        """It is held, and would not be held beyond its max_hold."""
        at, limit = self.process.now(), lease.hold_until
        return at < lease.valid_until and (limit is None or at + ttl_ms * NS_PER_MS <= limit)

    def _extend(self, lease: Lease, ttl_ms: int) -> Generator[int | Wish, Any, None]:
        process, policy = self.process, self.process.policy
        while True:
            now, began = process.now(), self.world.now
            holding = self._holding(lease)
            flow = redlock.extend(holding, ttl_ms, now, policy, process.chance)
            allowed = lease.valid_until - now + _SLACK
            outcome = yield Wish("extend", flow, lease.resource, lease.token, allowed)
            # Renewal may have extended it meanwhile: then it is not over.
            again = isinstance(outcome, Lost) and is_unreachable(outcome)
            if not again or process.now() >= lease.valid_until:
                break
        if isinstance(outcome, Extended):
            assert self.turn is not None
            self.world.check_extended(self.turn, lease, began)
            limit = outcome.valid_until if lease.hold_until is None else lease.hold_until
            promise = max(lease.valid_until, min(outcome.valid_until, limit))
            lease.promises.append((self.world.now, promise))
        elif outcome != CANCELLED and not isinstance(outcome, Exception):
            self.world.end(lease, "lost")
            flow_back = redlock.give_back(lease.key, lease.token, lease.receipt)
            yield Wish("give_back", flow_back, lease.resource, lease.token, _SLACK)

    def _end(self, lease: Lease, job: Job) -> Generator[int | Wish, Any, None]:
        if job.ending == "abandon" and lease.ended is None:
            if self.renewal is not None:
                self.process.renewer.drop(self.renewal)
            lease.why = "abandoned"
        elif job.ending == "by_token" and lease.ended is None:
            yield from self._by_token(lease)
        elif job.ending == "hand_over" and lease.ended is None:
            yield from self._hand_over(lease)
        elif lease.ended is None:
            yield from self._release(lease)
        self.lease = None

    def _release(self, lease: Lease) -> Generator[int | Wish, Any, None]:
        policy = self.process.policy
        self.world.end(lease, "released")
        yield from self._stop_renewal()
        flow = redlock.release(lease.key, lease.token, lease.receipt, policy)
        allowed = policy.node_timeout + _SLACK
        released = yield Wish("release", flow, lease.resource, lease.token, allowed)
        if released != CANCELLED:
            assert self.turn is not None
            self.world.check_released(self.turn, lease.token, released)

    def _stop_renewal(self) -> Generator[int | Wish, Any, None]:
        """After the end and before anything is sent: nothing is in flight any more (rule 13)."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            self.process.renewer.drop(renewal)
            while renewal.in_flight:
                yield NS_PER_MS // 10

    def _by_token(self, lease: Lease) -> Generator[int | Wish, Any, None]:
        """Extend, after it may have run out, and release: both by the bare token.

        Whoever is told yes may hold for as long as an extension is good from when it was asked.
        """
        process, policy = self.process, self.process.policy
        asked_at, receipt = process.now(), lease.receipt
        request = self._request(lease.resource, lease.ttl_ms, 0)
        flow = redlock.extend_by_token(request, lease.token, policy)
        allowed = policy.node_timeout + _SLACK
        yes = yield Wish("extend_by_token", flow, lease.resource, lease.token, allowed)
        self.world.end(lease, "released by token")
        if yes is True:
            good_until = policy.valid_until(asked_at, lease.ttl_ms)
            lease = self.world.lease_again(lease, process, good_until)
            yield policy.node_timeout
            self.world.end(lease, "released by token")
        request = self._request(lease.resource, lease.ttl_ms, 0)
        flow = redlock.release_by_token(request, lease.token, policy, receipt)
        yield Wish("release_by_token", flow, lease.resource, lease.token, allowed)

    def _hand_over(self, lease: Lease) -> Generator[int | Wish, Any, None]:
        """End it here without giving it back; the next client adopts it."""
        process = self.process
        if process.now() >= lease.valid_until:
            yield from self._release(lease)
            return
        self.world.end(lease, "handed over")
        yield from self._stop_renewal()
        for debts in process.debts:
            debts.forgive(lease.token, process.now())
        self.world.handed_over.add(lease.token)
        others = [w for w in self.world.workers if w is not self and not w.process.dead]
        if others:
            heir = others[lease.client % len(others)]
            heir.process.later(process.policy.node_timeout // 4, heir.adopt, lease)

    def adopt(self, lease: Lease) -> None:
        """Take over a lease that another process handed over, beside one's own work."""
        process, policy = self.process, self.process.policy
        request = self._request(lease.resource, lease.ttl_ms, 0)
        flow = redlock.adopt(request, lease.token, policy, process.chance)

        def done(outcome: Any) -> None:
            if isinstance(outcome, Extended):
                mine = self.world.lease_again(lease, process, outcome.valid_until)
                process.later(policy.node_timeout, self._give_up, mine)

        self.world.call(process, "adopt", flow, done, resource=lease.resource, token=lease.token)

    def _give_up(self, lease: Lease) -> None:
        """Release what was adopted."""
        self.world.end(lease, "released")
        flow = redlock.release(lease.key, lease.token, None, self.process.policy)
        allowed = self.process.policy.node_timeout + _SLACK
        self.world.call(
            self.process,
            "release",
            flow,
            _nothing,
            resource=lease.resource,
            token=lease.token,
            allowed=allowed,
        )

    # --- small things ------------------------------------------------------------------------

    def _request(self, resource: str, ttl_ms: int, timeout: int) -> Request:
        return Request(resource, resource.encode(), ttl_ms, self.process.now(), timeout)

    def _holding(self, lease: Lease) -> Holding:
        valid_until = lease.valid_until
        return Holding(lease.resource, lease.key, lease.token, valid_until, lease.receipt)


def _nothing(outcome: Any) -> None:
    del outcome
