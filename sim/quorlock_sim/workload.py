"""The workload of one client of a simulated world: its jobs, in sequence.

A career is a generator, like a flow: it yields a duration to wait, or a call, and is sent the
outcome.  It does what both APIs do around the flows: a lease ends locally before it is released,
and a lost one is released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorlock._core import acquiring, any_of, handing_on, keeping, redlock
from quorlock._core.claims import AnyOf, Keys, Shared
from quorlock._core.owner import mark_of
from quorlock._core.releases_in_doubt import counted_from
from quorlock._core.request import AcquireRequest
from quorlock._core.results import (
    Acquired,
    Extended,
    ExtendFailed,
    ReleaseResult,
    is_unreachable,
)
from quorlock._core.time import NS_PER_MS
from quorlock._core.usual import usual_acquire, usual_release
from quorlock.errors import QuorumUnreachable
from quorlock_sim.client_renewal import facts_of
from quorlock_sim.plan import ANY
from quorlock_sim.usual_flow import directly

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorlock._core.effects import Flow
    from quorlock._core.releases_in_doubt import Remaining
    from quorlock._core.renewal_schedule import RenewalEntry
    from quorlock_sim.client import Process, SimFlow
    from quorlock_sim.history import LeaseRecord
    from quorlock_sim.plan import Job
    from quorlock_sim.world import World

CANCELLED = "cancelled"
# The time that a call may take beyond its deadlines: the resolution of a timer.
_SLACK = 1 * NS_PER_MS


@dataclass(slots=True)
class CallRequest:
    """A call for the driver to make; `allowed` is its longest duration (ns)."""

    what: str
    flow: Flow[Any]
    resource: str
    token: bytes = b""
    allowed: int | None = None
    cancel_after: int | None = None


@dataclass(frozen=True, slots=True)
class _Heritage:
    """A lease that is handed over, with its job and the number of hand-overs left."""

    lease: LeaseRecord
    job: Job
    hops: int
    in_doubt: Remaining


class SimWorker:
    """One client's jobs, and the lease that it holds."""

    def __init__(self, world: World, process: Process, jobs: tuple[Job, ...]) -> None:
        self.world = world
        self.process = process
        self.turn: SimFlow[Any] | None = None
        self.lease: LeaseRecord | None = None
        self.renewal: RenewalEntry | None = None
        self.done = False  # with all its work
        self._jobs = jobs
        self._workload: Generator[int | CallRequest, Any, None] = self._work()

    def begin(self) -> None:
        """Start work."""
        self._go_on(None)

    @property
    def phase(self) -> str:
        """The present phase of its work, for the table of faults by phase."""
        if self.process.dead:
            return "gone"
        turn = self.turn
        if turn is not None and not turn.over:
            return turn.phase
        if any(len(node.pending_releases) for node in self.process.nodes):
            return "pending"
        return "holding" if self.lease is not None and self.lease.ended is None else "idle"

    def cancel(self) -> bool:
        """Cancel the present call; return False if there is none."""
        turn = self.turn
        if turn is None or turn.over:
            return False
        turn.cancel()
        self.world.returned(turn.call, self.process, CANCELLED)
        self._go_on(CANCELLED)
        return True

    @property
    def is_calling(self) -> bool:
        """Return whether a call has not returned."""
        return self.turn is not None and not self.turn.over

    def close(self) -> None:
        """End: the process is dead."""
        self._workload.close()

    def contend(self, rounds: int) -> None:
        """Contend for the first resource, for the time of this number of attempts at most."""
        policy = self.process.policy
        patience = rounds * (policy.retry_delay[1] + 2 * policy.node_timeout)
        self._workload = self._compete(patience)
        self._go_on(None)

    # --- running a career --------------------------------------------------------------------

    def _go_on(self, value: Any) -> None:
        try:
            wish = self._workload.send(value)
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

    def _cancel_this(self, turn: SimFlow[Any]) -> None:
        if self.turn is turn:
            self.cancel()

    # --- careers -----------------------------------------------------------------------------

    def _work(self) -> Generator[int | CallRequest, Any, None]:
        for job in self._jobs:
            yield job.after
            if self.world.in_recovery:
                return
            lease = yield from self._acquire(job)
            if lease is None:
                continue
            self.lease = lease
            if job.renew:
                self.renewal = self.process.renewer.add(lease, job.ttl_ms, job.max_hold)
            yield from self._hold(lease, job)
            yield from self._end(lease, job)

    def _compete(self, patience: int) -> Generator[int | CallRequest, Any, None]:
        resource = self.world.resources[0]
        request = self._request(resource, self.process.policy.max_ttl_ms, patience)
        process = self.process
        flow = acquiring.acquire(request, process.policy, process.entropy, process.waiting.lines)
        won = yield CallRequest("contest", flow, resource)
        if isinstance(won, Acquired):
            lease = self.world.lease(self.process, won, resource)
            yield from self._release(lease)
        if any(job.fencing for job in self._jobs):
            # All quarantines are over: a fence that is issued now must be the largest.
            yield from self._take_fence(resource)

    def _take_fence(self, resource: str) -> Generator[int | CallRequest, Any, None]:
        process = self.process
        request = self._request(resource, process.policy.max_ttl_ms, 0)._replace(fencing=True)
        flow = acquiring.try_acquire(request, process.policy, process.entropy)
        won = yield CallRequest("fence", flow, resource)
        if isinstance(won, Acquired):
            yield from self._release(self.world.lease(process, won, resource))

    def _acquire(self, job: Job) -> Generator[int | CallRequest, Any, LeaseRecord | None]:
        process, policy = self.process, self.process.policy
        # Of several, their names joined: the history and the calls name them so.
        resource = "+".join(self.world.resources[n] for n in sorted({job.resource, *job.also}))
        request = self._request(resource, job.ttl_ms, 0 if job.once else job.timeout)
        request = request._replace(fencing=job.fencing)
        rounds = acquiring.max_rounds(request) * policy.node_timeout + _SLACK
        if job.any_of:
            resource = ANY
            request = request._replace(resource=resource)
        if job.shared:
            request = request.on(Shared(request.key))
        won = yield CallRequest(
            "try_acquire" if job.once else "acquire",
            self._acquires(request, job),
            resource,
            allowed=rounds * self._windows(request, job) + (request.timeout or 0),
            cancel_after=job.cancel_after,
        )
        if isinstance(won, QuorumUnreachable) and request.timeout:  # else it was one attempt
            self.world.check_patience(process, won, request.asked_at + request.timeout)
        if not isinstance(won, Acquired):
            return None
        assert self.turn is not None
        self.world.check_granted(self.turn, won)
        held = won.claim.key.decode() if job.any_of else resource
        return self.world.lease(process, won, held)

    def _windows(self, request: AcquireRequest, job: Job) -> int:
        """Return in how many parts it asks for the locks when the time is up; each has its rounds.

        A single attempt asks for all of them, and has no time to lose.
        """
        if request.timeout or not job.any_of:
            return 1
        keys = [name.encode() for name in self.world.resources]
        return -(-len(keys) // any_of.window_of(keys))

    def _acquires(self, request: AcquireRequest, job: Job) -> Flow[Acquired | None]:
        process, policy = self.process, self.process.policy
        if job.any_of:
            any_request = request.on(AnyOf(tuple([r.encode() for r in self.world.resources])))
            flow = any_of.try_acquire if job.once else any_of.acquire
            return flow(any_request, policy, process.entropy)
        if job.once:
            return acquiring.try_acquire(request, policy, process.entropy)
        call = request, policy, process.entropy, process.waiting.lines
        usual = usual_acquire(*call) if process.runs_directly else None
        return directly(usual, policy) if usual else acquiring.acquire(*call)

    def _hold(self, lease: LeaseRecord, job: Job) -> Generator[int | CallRequest, Any, None]:
        left = job.hold
        for after, ttl_ms in job.extensions:
            yield after
            left -= after
            if lease.ended is None and self._may_extend(lease, ttl_ms):
                yield from self._extend(lease, ttl_ms)
        if left > 0:
            yield left

    def _may_extend(self, lease: LeaseRecord, ttl_ms: int) -> bool:
        """Return whether the lease is held, and an extension would not exceed its max_hold."""
        at, limit = self.process.now(), lease.hold_until
        return at < lease.valid_until and (limit is None or at + ttl_ms * NS_PER_MS <= limit)

    def _extend(self, lease: LeaseRecord, ttl_ms: int) -> Generator[int | CallRequest, Any, None]:
        process, policy = self.process, self.process.policy
        while True:
            now, began = process.now(), self.world.now
            facts = facts_of(lease)
            flow = redlock.extend(facts, ttl_ms, now, policy, process.entropy)
            allowed = lease.valid_until - now + _SLACK
            outcome = yield CallRequest("extend", flow, lease.resource, lease.token, allowed)
            # Renewal may have extended the lease during the call: then it is not over.
            again = isinstance(outcome, ExtendFailed) and is_unreachable(outcome)
            if not again or process.now() >= lease.valid_until:
                break
        if isinstance(outcome, Extended):
            assert self.turn is not None
            self.world.check_extended(self.turn, lease, began)
            limit = outcome.valid_until if lease.hold_until is None else lease.hold_until
            promise = max(lease.valid_until, min(outcome.valid_until, limit))
            lease.promises.append((self.world.now, promise))
        elif outcome != CANCELLED and not isinstance(outcome, Exception):
            yield from self._slip(lease)

    def _slip(self, lease: LeaseRecord) -> Generator[int | CallRequest, Any, None]:
        """End a lease that is observed to be lost; release it when its last promise is over."""
        self.world.end(lease, "lost")
        if self.process.now() >= lease.promises[-1][1]:
            flow = redlock.release_without_waiting(lease.claim, lease.token, lease.target)
            yield CallRequest("give_back", flow, lease.resource, lease.token, _SLACK)
        elif self.renewal is None:
            self.renewal = self.process.renewer.add(lease, lease.ttl_ms, None)

    def _end(self, lease: LeaseRecord, job: Job) -> Generator[int | CallRequest, Any, None]:
        if job.ending == "abandon" and lease.ended is None:
            if self.renewal is not None:
                self.process.renewer.drop(self.renewal)
            lease.why = "abandoned"
        elif job.ending == "by_token" and lease.ended is None:
            yield from self._by_token(lease)
        elif job.ending == "hand_over" and lease.ended is None:
            yield from self._hand_over(lease, job)
        elif job.ending == "keep" and lease.ended is None:
            yield from self._keep_done(lease)
        elif lease.ended is None or self._may_release(lease):
            yield from self._release(lease)
        self.lease = self.renewal = None

    def _may_release(self, lease: LeaseRecord) -> bool:
        """Return whether the holder of a lost lease may release it before its last promise ends."""
        return lease.why == "lost" and self.process.now() < lease.promises[-1][1]

    def _release(self, lease: LeaseRecord) -> Generator[int | CallRequest, Any, None]:
        self.world.end(lease, "released")
        yield from self._stop_renewal()
        flow, allowed = self._releases(lease)
        released = yield CallRequest("release", flow, lease.resource, lease.token, allowed)
        if released != CANCELLED:
            assert self.turn is not None
            self.world.check_released(self.turn, lease.token, released)

    def _releases(self, lease: LeaseRecord) -> tuple[Flow[ReleaseResult], int]:
        """Return what releases a lease, or hands the lock on, and its longest duration."""
        process, lines = self.process, self.process.waiting.lines
        what = (lease.claim, lease.token, lease.target, process.policy)
        usual = usual_release(*what, lines) if process.runs_directly else None
        if usual:
            flow = directly(usual, process.policy)
        else:
            flow = handing_on.release(*what, process.entropy, lines, process.now())
        # Handing on may take an acquire's rounds in vain, and then the lock is released.
        rounds = 1 if lines is None else 3
        return flow, rounds * process.policy.node_timeout + _SLACK

    def _stop_renewal(self) -> Generator[int | CallRequest, Any, None]:
        """Stop renewal and wait for it, before the release is sent (rule 13)."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            self.process.renewer.drop(renewal)
            while renewal.in_flight:
                yield NS_PER_MS // 10

    def _by_token(self, lease: LeaseRecord) -> Generator[int | CallRequest, Any, None]:
        """Extend by the bare token, perhaps after the lease expired, and release by token.

        A caller that gets True may hold the lock for the validity of an extension from its start.
        """
        process, policy = self.process, self.process.policy
        asked_at, target = process.now(), lease.target
        request = self._request(lease.resource, lease.ttl_ms, 0)
        flow = redlock.extend_by_token(request, lease.token, policy)
        allowed = policy.node_timeout + _SLACK
        yes = yield CallRequest("extend_by_token", flow, lease.resource, lease.token, allowed)
        self.world.end(lease, "released by token")
        if yes is True:
            good_until = policy.valid_until(asked_at, lease.ttl_ms)
            lease = self.world.lease_again(lease, process, good_until)
            yield policy.node_timeout
            self.world.end(lease, "released by token")
        request = self._request(lease.resource, lease.ttl_ms, 0)
        flow = redlock.release_by_token(request, lease.token, policy, target)
        yield CallRequest("release_by_token", flow, lease.resource, lease.token, allowed)

    def _hand_over(self, lease: LeaseRecord, job: Job) -> Generator[int | CallRequest, Any, None]:
        """End the lease without releasing it; the next client adopts it."""
        if self.process.now() >= lease.valid_until:
            yield from self._release(lease)
            return
        self.world.end(lease, "handed over")
        yield from self._stop_renewal()
        self._pass_on(lease, job, job.hops)

    def _keep_done(self, lease: LeaseRecord) -> Generator[int | CallRequest, Any, None]:
        """End the lease, and keep it as done for max_ttl."""
        process, policy = self.process, self.process.policy
        facts, asked_at = facts_of(lease), process.now()
        if asked_at >= facts.valid_until:
            yield from self._release(lease)
            return
        self.world.end(lease, "kept")
        yield from self._stop_renewal()
        flow = keeping.keep(
            facts, mark_of(lease.token), policy.max_ttl_ms, asked_at, policy, process.entropy
        )
        allowed = max(0, facts.valid_until - process.now()) + _SLACK
        outcome = yield CallRequest("keep", flow, lease.resource, lease.token, allowed)
        if isinstance(outcome, keeping.KeepResult) and outcome.loss is None:
            self.world.kept(lease, process, policy.valid_until(asked_at, policy.max_ttl_ms))

    def _pass_on(self, lease: LeaseRecord, job: Job, hops: int) -> None:
        """Send the contents of a ticket to the next client."""
        process = self.process
        self.world.handed_over.add(lease.token)
        others = [w for w in self.world.workers if w is not self and not w.process.dead]
        if others:
            heir = others[lease.client % len(others)]
            way = _Heritage(lease, job, hops, process.suppress_releases(lease))
            heir.process.later(process.policy.node_timeout // 4, heir.adopt, way)

    def adopt(self, way: _Heritage) -> None:
        """Adopt a lease that another process handed over, in parallel to the own jobs."""
        process, policy, lease = self.process, self.process.policy, way.lease
        request = self._request(lease.resource, lease.ttl_ms, 0)._replace(claim=lease.claim)
        in_doubt = counted_from(request.asked_at, way.in_doubt, policy)
        flow = redlock.adopt(request, lease.token, policy, process.entropy, in_doubt)

        def done(outcome: Any) -> None:
            if isinstance(outcome, Extended):
                process.allow_releases(lease.token)
                mine = self.world.lease_again(lease, process, outcome.valid_until)
                mine.in_doubt = in_doubt
                self._keep(mine, way)

        self.world.call(process, "adopt", flow, done, resource=lease.resource, token=lease.token)

    def _keep(self, lease: LeaseRecord, way: _Heritage) -> None:
        """Hold an adopted lease for a while."""
        process, renewal = self.process, None
        if way.job.successor_renews:
            renewal = process.renewer.add(lease, lease.ttl_ms, None)
        holds = way.job.successor_holds or process.policy.node_timeout
        process.later(holds, self._give_up, (lease, way, renewal))

    def _give_up(self, what: tuple[LeaseRecord, _Heritage, RenewalEntry | None]) -> None:
        """Hand the lease on, or release it, after its renewal has stopped."""
        lease, way, renewal = what
        if renewal is not None and lease.ended is not None and lease.why == "lost":
            return
        hands_on = way.hops > 1 and self.process.now() < lease.valid_until
        self.world.end(lease, "handed over" if hands_on else "released")
        if renewal is not None:
            self.process.renewer.drop(renewal)
            if renewal.in_flight:
                self.process.later(NS_PER_MS // 10, self._give_up, what)
                return
        if lease.why == "handed over":
            self._pass_on(lease, way.job, way.hops - 1)
        else:
            self._release_adopted(lease)

    def _release_adopted(self, lease: LeaseRecord) -> None:
        flow, allowed = self._releases(lease)
        self.world.call(
            self.process,
            "release",
            flow,
            _nothing,
            resource=lease.resource,
            token=lease.token,
            allowed=allowed,
        )

    # --- helpers -----------------------------------------------------------------------------

    def _request(self, resource: str, ttl_ms: int, timeout: int) -> AcquireRequest:
        key, *also = [name.encode() for name in resource.split("+")]
        claim = Keys(key, tuple(also))
        return AcquireRequest(resource, claim, ttl_ms, self.process.now(), timeout)


def _nothing(outcome: Any) -> None:
    del outcome
