"""A whole world on virtual time: clients, nodes, network and what befalls them, from a seed.

One heap of events, one thread, no clock of the machine: the same plan gives the same history, to
the byte, everywhere.  Leaves what goes wrong to `faults`, and what is right or wrong to `checker`.
"""

from __future__ import annotations

import traceback
from copy import deepcopy
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import ACQUIRES, Acquire, AcquireByScript, Extend, Raise, Release
from quorlock._core.outcomes import Extended, Granted, Lost, Released, Vote
from quorlock._core.quorum import quorum
from quorlock._core.renewal import PAUSE_MIN
from quorlock._core.time import EXPIRY_RESOLUTION, FOR_EVER, NS_PER_MS
from quorlock.testing import faults
from quorlock.testing.checker import GUARDED
from quorlock.testing.clock import PPM, Clock
from quorlock.testing.fences import Issue, losses
from quorlock.testing.history import Call, History, Lease, Violation
from quorlock.testing.network import Link
from quorlock.testing.node import is_side_key
from quorlock.testing.process import Process, Turn
from quorlock.testing.server import Server
from quorlock.testing.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Command
    from quorlock._core.debts import Debts
    from quorlock._core.effects import Flow
    from quorlock._core.outcomes import Answer
    from quorlock._wire.conversation import Question
    from quorlock.testing.network import Message
    from quorlock.testing.node import Entry, Reply
    from quorlock.testing.plan import Fault, Plan
    from quorlock.testing.trace import Trace

# A world has a few hundred events; one with so many goes round in circles.
EVENTS_MAX = 200_000
# With a majority healthy, one of the contenders gets a free lock within so many attempts of each.
ROUNDS_MAX = 12
_CONTENDERS = 3
# Back-off of connecting goes up to a second; then what is owed is paid.
_SETTLE = 1_500 * NS_PER_MS


class World:
    """See the module. `run` leads it to its end and returns the history.

    Attributes:
        now: true time (ns), which only the judge knows.
        healed: everything that went wrong is mended, and no new work begins.
    """

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.trace = trace
        self.now = 0
        self.messages = 0
        self.healed = False
        self.history = History()
        self.weather = plan.weather
        self.policy = plan.settings.policy()
        self.resources = plan.resources
        self.executed_on: dict[bytes, int] = {}  # by token: nodes that carried out its SET
        self.extended_at: dict[tuple[bytes, int], int] = {}  # by token and node: when last
        self.asked_at: dict[bytes, int] = {}  # by token: when its attempt began, if it is fenced
        self.handed_over: set[bytes] = set()  # their old owner owes them to nobody any more
        # Keys that may stay until their ttl: a duplicate set them or a restart brought them back,
        # of which nobody can know.
        self.unowed: set[tuple[bytes, int]] = set()
        # Keys set by bytes of a connection that had broken: what covers them counts max_ttl.
        self.set_late: set[tuple[bytes, int]] = set()
        self.leases: dict[bytes, Lease] = {}
        self.topped_up = 0  # keys that renewal has set anew
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._links = 0
        self.dice = Random(plan.seed)
        self.servers = [self._server(index) for index in range(plan.settings.n)]
        self.processes = [self._process(index) for index in range(len(plan.careers))]
        self.workers = [
            Worker(self, process, jobs)
            for process, jobs in zip(self.processes, plan.careers, strict=True)
        ]

    def _server(self, index: int) -> Server:
        plan = self.plan
        return Server(self, index, Clock(plan.node_offsets[index], plan.node_paces[index]))

    def _process(self, index: int) -> Process:
        plan = self.plan
        clock = Clock(plan.client_offsets[index], plan.client_paces[index])
        # Chance of its own for every client, so that taking one away leaves the others as they are.
        dice = Random(plan.seed * 1_000_003 + index)
        return Process(self, index, self.policy, clock, plan.bundles[index], dice)

    # --- time --------------------------------------------------------------------------------

    def at(self, instant: int, act: Callable[[Any], None], what: Any) -> None:
        """Do something at a true instant; what is due at once comes in the order of asking."""
        self._serial += 1
        heappush(self._heap, (instant, self._serial, act, what))

    def run(self) -> History:
        """From the beginning to the end."""
        self._begin()
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001 (a defect is what worlds are run to find)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
            self.violated("exception", text)
        self.history.messages = self.messages
        return self.history

    def _go_on(self) -> None:
        heap, events = self._heap, 0
        while heap and events < EVENTS_MAX:
            self.now, _, act, what = heappop(heap)
            act(what)
            events += 1
        self.history.events = events
        if heap:
            text = f"{events} events, and no end: somebody goes round in circles"
            self.violated("endless", text)

    def _begin(self) -> None:
        if self.trace is not None:
            self.trace.begin(self)
        for process in self.processes:
            for bundle in range(len(process.links)):
                for index in range(self.policy.n):
                    process.connect(bundle, index)
        for fault in self.plan.faults:
            self.at(fault.at, self._strike, fault)
        self.at(self.plan.lasts, self._heal, None)
        for worker in self.workers:
            worker.begin()

    # --- what goes wrong ---------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        phases = self._phases(fault)
        if not faults.strike(self, fault):
            return  # nothing to hit: that client is gone, that node is down already
        seen = self.history.phases
        for phase in phases:
            seen[fault.kind, phase] = seen.get((fault.kind, phase), 0) + 1
        self.history.faults_during_an_attempt += "acquiring" in phases

    def _phases(self, fault: Fault) -> list[str]:
        if fault.client >= 0:
            return [self.workers[fault.client].phase]
        return [worker.phase for worker in self.workers]

    def tell(self, what: str, **facts: Any) -> None:
        """Write a fault, or the end of one, into the trace."""
        if self.trace is not None:
            self.trace.fault(what, facts)

    def _heal(self, _: None) -> None:
        """Everything is mended; who waits may go on waiting, but nobody begins anew."""
        self.healed = True
        self.weather = self.weather.calmed(self.policy.node_timeout)
        faults.heal(self)
        for server in self.servers:
            server.mark()  # else those who contend in the end would be the first to miss it
        settled = self.now + _SETTLE + 2 * self.plan.weather.tail_until
        self.at(settled, self._look_for_leftovers, None)
        jobs = [job for career in self.plan.careers for job in career]
        longest = max((job.timeout + job.hold for job in jobs), default=0)
        self.at(settled + longest + 2 * self.policy.max_ttl, self._contest, None)

    def forgot(self, server: Server, before: dict[bytes, Entry], how: str) -> None:
        """Compare what a node holds with what it held: nothing alive may be gone or shorter."""
        at = server.at_ms()
        # What a restart has not brought back was lost when the process before it ended.
        since = server.died_at if how.startswith("restart") else self.now
        self.history.losses += losses(since, server.index, server.node, before)
        for key, entry in before.items():
            if is_side_key(key) or (entry.until is not None and entry.until < at):
                continue
            after = server.node.alive(key, at)
            if after is None or after.value != entry.value or _shorter(after, entry):
                self.history.forgotten.append((self.now, server.index, how))
        for key, entry in server.node.keys.items():
            old = before.get(key)
            if is_side_key(key):
                continue
            if entry.value is not None and (old is None or old.value != entry.value):
                self.unowed.add((entry.value, server.index))  # deleted, and back from the disk

    # --- what the parts report ---------------------------------------------------------------

    def link(self, process: Process, bundle: int, index: int) -> Link:
        """A new connection."""
        self._links += 1
        link = Link(self._links, process, bundle, self.servers[index])
        if self.trace is not None:
            self.trace.connected(link)
        return link

    def disconnected(self, link: Link) -> None:
        """A client has lost a connection."""
        if self.trace is not None:
            self.trace.disconnected(link)

    def loses(self, message: Message, what: str) -> None:
        """A request or a reply will never arrive."""
        if self.trace is not None:
            self.trace.loses(message, what)

    def executed(self, server: Server, message: Message) -> None:
        """A node has carried out a command."""
        command, reply = message.command, message.reply
        if isinstance(command, ACQUIRES):
            if has_granted(reply):
                if message.copy:
                    self.unowed.add((command.token, server.index))
                if message.link.lost:
                    self.set_late.add((command.token, server.index))
                mask = self.executed_on.get(command.token, 0)
                self.executed_on[command.token] = mask | 1 << server.index
        elif type(command) is Extend and reply == 1:
            self.extended_at[command.token, server.index] = self.now
        if isinstance(command, (AcquireByScript, Raise)) and has_granted(reply):
            assert isinstance(reply, list)
            issue = Issue(self.now, server.index, command.key, command.token, reply[2])  # type: ignore[arg-type] # its fence
            self.history.issues.append(issue)
        if self.trace is not None:
            self.trace.executed(server, message)

    def heard(self, message: Message, question: Question, answer: Answer) -> None:
        """A client has read a reply."""
        if self.trace is not None:
            self.trace.heard(message, question, answer)

    def asks(self, command: Command) -> None:
        """A client begins a round."""
        if isinstance(command, AcquireByScript):
            self.asked_at[command.token] = self.now

    def elapsed(self, turn: Turn[Any]) -> None:
        """A deadline has passed in a flow."""
        if self.trace is not None:
            self.trace.elapsed(turn)

    def vanished(self, turn: Turn[Any]) -> None:
        """The caller is gone at the instant at which its lock is won."""
        self.workers[turn.process.index].cancel()

    def violated(self, rule: str, text: str, **facts: Any) -> None:
        """Something that can be seen to be wrong on the spot."""
        self.history.found.append(Violation(rule, text, self.now, facts))

    # --- rounds: verdicts must agree with the votes ------------------------------------------

    def round_ended(self, turn: Turn[Any]) -> None:
        """A flow goes on to its next round: it had better not have won this one."""
        command, receipt = turn.command, turn.receipt
        if type(command) is not Acquire or turn.cancelled or receipt is None:
            return
        process = turn.process
        if not self._won(turn.votes):
            return
        if process.now() < receipt.started + self._validity(command.ttl_ms):
            text = f"c{process.index} gave back a lock that a majority had granted it in time"
            self.violated("verdict", text, client=process.index, token=command.token)

    def _won(self, votes: dict[int, Vote]) -> bool:
        return 2 * sum(vote is Vote.GRANTED for vote in votes.values()) > self.plan.settings.n

    def _validity(self, ttl_ms: int) -> int:
        """What the Redlock page leaves of a ttl, by a formula of our own."""
        ttl = ttl_ms * NS_PER_MS
        return ttl - ttl * self.plan.settings.drift_ppm // PPM - EXPIRY_RESOLUTION - 1

    def check_granted(self, turn: Turn[Any], granted: Granted) -> None:
        """A majority must have set this very token, and have said so in this very round."""
        nodes = self.executed_on.get(granted.token, 0)
        if not self._won(turn.votes) or nodes.bit_count() < quorum(self.policy.n):
            text = (
                f"c{turn.process.index} counts {granted.token.decode()} as won: {len(turn.votes)}"
                f" nodes answered that round, {nodes.bit_count()} had set the key"
            )
            self.violated("verdict", text, client=turn.process.index, token=granted.token)

    def check_extended(self, turn: Turn[Any], lease: Lease, began: int) -> None:
        """A majority must have extended since the call began, and the lease not have been over."""
        marks = (self.extended_at.get((lease.token, i), -1) for i in range(self.policy.n))
        if not self._won(turn.votes) or 2 * sum(mark >= began for mark in marks) <= self.policy.n:
            text = f"{lease.token.decode()} counts as extended without a majority"
            self.violated("verdict", text, client=lease.client, token=lease.token)
        if turn.process.now() >= lease.promises[-1][1]:
            text = f"{lease.token.decode()} was over, and came back by an extension"
            self.violated("resurrection", text, client=lease.client, token=lease.token)

    def check_renewed(self, lease: Lease, began: int) -> None:
        """A majority must have extended it since the pass began: a key set anew does not count."""
        marks = (self.extended_at.get((lease.token, i), -1) for i in range(self.policy.n))
        if 2 * sum(mark >= began for mark in marks) <= self.policy.n:
            text = f"{lease.token.decode()} counts as renewed without a majority"
            self.violated("verdict", text, client=lease.client, token=lease.token)

    def check_covered(self, lease: Lease, promise: int) -> None:
        """What is promised must not outlast the keys on a majority of the nodes."""
        end = self.processes[lease.client].clock.when(promise) or 0
        lasting = sum(
            server.holds_until(lease.key, lease.token) >= end
            or self._keeps_out_until(server, lease.token) >= end
            for server in self.servers
        )
        if 2 * lasting <= self.policy.n:
            text = f"{lease.token.decode()} is promised to last longer than its keys on a majority"
            facts = {"client": lease.client, "token": lease.token}
            self.history.uncovered.append(Violation("cover", text, self.now, facts))

    def _keeps_out_until(self, server: Server, token: bytes) -> int:
        """Until when nobody gets the vote of a node that forgot the key after it extended it."""
        extended_at = self.extended_at.get((token, server.index))
        caught = GUARDED[self.policy.restart_guard]
        forgotten = (
            at
            for at, node, how in self.history.forgotten
            if node == server.index and how.startswith(caught)
        )
        last = max(forgotten, default=0)
        return last + self.policy.max_ttl if extended_at is not None and last > extended_at else 0

    def check_released(self, turn: Turn[Any], token: bytes, released: Released) -> None:
        """`deleted` must be what a majority said."""
        if released.deleted != self._won(turn.votes):
            text = f"the release of {token.decode()} says deleted={released.deleted}"
            self.violated("verdict", text, client=turn.process.index, token=token)

    # --- calls -------------------------------------------------------------------------------

    def call(
        self,
        process: Process,
        what: str,
        flow: Flow[Any],
        done: Callable[[Any], None],
        *,
        resource: str,
        token: bytes = b"",
        allowed: int | None = None,
        owner: Worker | None = None,
    ) -> Turn[Any]:
        """A client calls; `done` gets the outcome, and the record of the call is kept."""
        record = Call(
            len(self.history.calls),
            *(process.index, what, resource, token, self.now, process.now(), allowed),
        )
        self.history.calls.append(record)
        if self.trace is not None:
            self.trace.called(record)

        def finished(outcome: Any) -> None:
            self.returned(record, process, outcome)
            done(outcome)

        bundle = int(process.dice.random() * len(process.links))
        turn: Turn[Any] = Turn(process, flow, bundle, record, finished)
        if owner is not None:
            owner.turn = turn
        turn.begin()
        return turn

    def returned(self, record: Call, process: Process, outcome: Any) -> None:
        """A call has come back, or its caller has gone."""
        record.ended = self.now
        record.outcome = _word(outcome)
        if record.allowed is not None:
            record.late_by = process.now() - record.read - record.allowed
        if self.trace is not None:
            self.trace.returned(record, outcome)

    def lease(self, process: Process, granted: Granted, resource: str) -> Lease:
        """A client has won a lock."""
        promise = (self.now, granted.valid_until)
        who, what = process.index, (granted.token, resource, granted.key, granted.ttl_ms)
        lease = Lease(who, *what, self.now, granted.receipt, [promise])
        lease.fence, lease.asked_at = granted.fence, self.asked_at.get(granted.token, 0)
        return self._keep(lease)

    def lease_again(self, old: Lease, process: Process, valid_until: int) -> Lease:
        """A token that is extended without its lease: adopted, or by a caller who knows it."""
        what = (old.token, old.resource, old.key, old.ttl_ms)
        return self._keep(Lease(process.index, *what, self.now, None, [(self.now, valid_until)]))

    def _keep(self, lease: Lease) -> Lease:
        self.history.leases.append(lease)
        self.leases[lease.token] = lease
        return lease

    def end(self, lease: Lease, why: str) -> None:
        """A lease ends locally, before any byte about it is sent."""
        if lease.ended is None:
            lease.ended, lease.why = self.now, why
            lease.told = self.now if why == "lost" else None
            if self.trace is not None:
                self.trace.ended(lease)

    # --- the end -----------------------------------------------------------------------------

    def _look_for_leftovers(self, _: None) -> None:
        """Nothing of a client that is done may be left on a node that lives."""
        for server in self.servers:
            at = server.at_ms()
            for key in list(server.node.keys):
                entry = server.node.alive(key, at)
                if entry is not None and entry.value is not None and not is_side_key(key):
                    self._judge_leftover(server, entry.value)

    def _judge_leftover(self, server: Server, token: bytes) -> None:
        lease = self.leases.get(token)
        owner = int(token[1 : token.index(b".")]) if lease is None else lease.client
        process = self.processes[owner]
        if process.dead or token in self.handed_over or (token, server.index) in self.unowed:
            return
        if lease is not None and lease.why in ("", "abandoned"):
            return
        if lease is not None and self._was_just_lost(lease):
            self.at(self.now + self._given_back_within, self._look_for_leftovers, None)
            return
        if any(_is_at(turn.command, token) for turn in process.turns):
            return
        if _pays_later(process.debts[server.index], token, process.now()):
            return  # paid once, and once more in a while, since old bytes may still come
        if (token, server.index) in self.set_late and process.elapsed.steps()[1] > 0:
            return  # by a clock that jumped ahead the last payment came too early
        text = f"{token.decode()} is over and given back, but its key is left on n{server.index}"
        self.violated("leftover", text, client=process.index, node=server.index, token=token)

    @property
    def _given_back_within(self) -> int:
        """So soon after its loss (ns): a pass under way, a pause, and the way to the node."""
        return 4 * self.policy.node_timeout + 4 * PAUSE_MIN

    def _was_just_lost(self, lease: Lease) -> bool:
        """Whoever renews it gives it back when it looks at it again."""
        if lease.ended is None or not lease.renewed or lease.why != "lost":
            return False
        return self.now - lease.ended < self._given_back_within

    def _contest(self, _: None) -> None:
        """Those who are left ask for the same lock at once: one of them must get it."""
        votes_at = [process.votes_at() for process in self.processes if not process.dead]
        free_at = max([*votes_at, *(server.empty_at() for server in self.servers)])
        if free_at > self.now:  # a clock that was set back keeps its keys for longer
            self.at(free_at, self._contest, None)
            return
        ready = [w for w in self.workers if w.done and not w.process.dead]
        for worker in ready[:_CONTENDERS]:
            worker.contend(ROUNDS_MAX)


def _shorter(after: Entry, before: Entry) -> bool:
    if after.until is None or before.until is None:
        return after.until is not None
    return after.until < before.until


def _is_at(command: object, token: bytes) -> bool:
    return isinstance(command, (*ACQUIRES, Extend, Release)) and command.token == token


def has_granted(reply: Reply) -> bool:
    """What a node said to an acquire, or to a raise."""
    return reply == b"OK" or (isinstance(reply, list) and reply[0] == 1)


def _pays_later(debts: Debts, token: bytes, now: int) -> bool:
    """The release of this token is not due, and will be. Asked of a copy: asking changes it."""
    copy = deepcopy(debts)
    overdue = any(release.token == token for release in copy.due(now))
    return not overdue and any(release.token == token for release in copy.due(FOR_EVER))


def _word(outcome: object) -> str:
    if isinstance(outcome, Granted):
        return "granted"
    if isinstance(outcome, Extended):
        return "extended"
    if isinstance(outcome, Lost):
        return "lost"
    if isinstance(outcome, Released):
        return "released" if outcome.deleted else "not_released"
    if isinstance(outcome, Exception):
        return type(outcome).__name__
    return {None: "none", True: "yes", False: "no"}.get(outcome, str(outcome))  # type: ignore[call-overload, no-any-return]
