"""A simulated world on virtual time: clients, nodes, network and faults, from a plan.

There is one heap of events, one thread, and no use of the machine's clock. So the same plan gives
the same history everywhere, to the byte.  The faults are in `faults`, the judgement in `oracle`.
"""

from __future__ import annotations

import traceback
from copy import deepcopy
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import (
    ACQUIRES,
    Acquire,
    Extend,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
    Share,
)
from quorlock._core.keeping import KeepResult
from quorlock._core.places import is_reservation
from quorlock._core.renewal_schedule import PAUSE_MIN
from quorlock._core.results import Acquired, Extended, ExtendFailed, ReleaseResult
from quorlock._core.tally import quorum
from quorlock._core.time import EXPIRY_RESOLUTION, FOR_EVER, NS_PER_MS
from quorlock._core.votes import Vote
from quorlock.errors import QuorlockError, VoteCode
from quorlock.testing.fake_node import is_side_key
from quorlock_sim import faults
from quorlock_sim.aims import Aimed
from quorlock_sim.client import Process, SimFlow
from quorlock_sim.clock import PPM, Clock
from quorlock_sim.history import CallRecord, History, LeaseRecord, Violation
from quorlock_sim.idle import IdleWatch
from quorlock_sim.network import Link
from quorlock_sim.oracle import GUARDED
from quorlock_sim.oracle_fences import Issue, losses
from quorlock_sim.queues import Queues
from quorlock_sim.server import SimServer, ended_by, has_granted, is_mark, token_to_end, tokens_at
from quorlock_sim.workload import SimWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Command
    from quorlock._core.effects import Flow
    from quorlock._core.pending_releases import PendingReleases
    from quorlock._core.rounds import NodeReply
    from quorlock._core.votes import Answer
    from quorlock._protocol.pipeline import PendingRequest
    from quorlock.errors import NodeVote, QuorumUnreachable
    from quorlock.testing.fake_node import Entry
    from quorlock_sim.network import Message
    from quorlock_sim.plan import Fault, Plan
    from quorlock_sim.trace import Trace

# A world has a few hundred events; one with this many does not end.
EVENTS_MAX = 200_000
# If a majority is healthy, a contender gets a free lock within this number of attempts of each.
ROUNDS_MAX = 12
_CONTENDERS = 3
# Ends of a lease by its holder, who relies on no earlier promise after that.
GIVEN_UP = ("released", "released by token", "handed over", "kept")
# The state of a record that is no lease, but the mark of work that is done; it outlives its client.
MARK = "mark"
# The back-off of connecting is at most a second; then pending releases are sent.
_SETTLE = 1_500 * NS_PER_MS


class World:
    """One simulated world; `run` runs it to its end and returns the history.

    Attributes:
        now: true time (ns), which only the oracle may use.
        healed: all faults have ended, and no new jobs begin.
    """

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.trace = trace
        self.now = 0
        self.messages = 0
        self.in_recovery = False
        self.history = History()
        self.network_profile = plan.network_profile
        self.policy = plan.settings.policy()
        self.resources = plan.resources
        self.executed_on: dict[bytes, int] = {}  # by token: nodes that executed its SET
        self.extended_at: dict[tuple[bytes, int], int] = {}  # by token and node: last extension
        self.votes: dict[bytes, int] = {}  # by token: nodes whose grant its round has counted
        self.freed_on: dict[bytes, int] = {}  # by token: nodes that exchanged or released it
        self.asked_at: dict[bytes, int] = {}  # by token: the start of a fenced attempt
        self.handed_over: set[bytes] = set()  # their old owner need not release them
        # Keys that may stay until their ttl ends: no client can know that a duplicate set them,
        # that a restart brought them back, or that they were set after their lease was handed over.
        self.unowed: set[tuple[bytes, int]] = set()
        # Keys set by bytes of a broken connection: their pending releases last for max_ttl.
        self.set_late: set[tuple[bytes, int]] = set()
        self.leases: dict[bytes, LeaseRecord] = {}
        self.queues = Queues(self)
        self.idle_max: int | None = None  # how long a lock may be free; None: `queues` says it
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._links = 0
        self.rng = Random(plan.dice)
        self.servers = [self._server(index) for index in range(plan.settings.n)]
        self.foreign: set[bytes] = set()  # tokens of other libraries
        self.processes = [self._process(index) for index in range(plan.clients)]
        self.workers = [
            SimWorker(self, self.processes[plan.host(caller)], jobs)
            for caller, jobs in enumerate(plan.workloads)
        ]
        self.aimed = None if plan.aim is None else Aimed(self)
        self.idle_watch = IdleWatch(self)

    def _server(self, index: int) -> SimServer:
        plan = self.plan
        return SimServer(self, index, Clock(plan.node_offsets[index], plan.node_paces[index]))

    def _process(self, index: int) -> Process:
        plan = self.plan
        clock = Clock(plan.client_offsets[index], plan.client_paces[index])
        # Each client has a separate generator, so that removing one leaves the others unchanged.
        dice = Random(plan.dice * 1_000_003 + index)
        sets = plan.connection_sets[index]
        return Process(self, index, self.policy, clock, sets, dice, polls=index in plan.pollers)

    # --- time --------------------------------------------------------------------------------

    def schedule(self, instant: int, act: Callable[[Any], None], what: Any) -> None:
        """Schedule an action at a true instant; actions of one instant keep their order."""
        self._serial += 1
        heappush(self._heap, (instant, self._serial, act, what))

    def run(self) -> History:
        """Run the world to its end and return its history."""
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
        heap, events, aimed = self._heap, 0, self.aimed
        watch = self.idle_watch
        while heap and events < EVENTS_MAX:
            self.now, _, act, what = heappop(heap)
            watch.look()
            if aimed is not None:
                aimed.before(act, what)
            act(what)
            events += 1
        self.history.events = events
        watch.end()
        if heap:
            text = f"{events} events without an end"
            self.violated("endless", text)

    def _begin(self) -> None:
        if self.trace is not None:
            self.trace.begin(self)
        for process in self.processes:
            for connection_set in range(len(process.links)):
                for index in range(self.policy.n):
                    process.connect(connection_set, index)
        for fault in self.plan.faults:
            self.schedule(fault.at, self._strike, fault)
        self.schedule(self.plan.lasts, self._heal, None)
        for worker in self.workers:
            worker.begin()

    # --- faults ------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        self.strike(fault)

    def strike(self, fault: Fault) -> bool:
        """Inject a fault; return False if there was nothing to hit."""
        phases = self._phases(fault)
        if not faults.strike(self, fault):
            return False  # the client is dead, or the node is down already
        seen = self.history.phases
        for phase in phases:
            seen[fault.kind, phase] = seen.get((fault.kind, phase), 0) + 1
        self.history.faults_during_an_attempt += "acquiring" in phases
        return True

    def _phases(self, fault: Fault) -> list[str]:
        if fault.client >= 0:
            return [self.workers[fault.client].phase]
        return [worker.phase for worker in self.workers]

    def tell(self, what: str, **facts: Any) -> None:
        """Write a fault, or the end of one, into the trace."""
        if self.trace is not None:
            self.trace.fault(what, facts)

    def _heal(self, _: None) -> None:
        """End all faults; calls continue, but no new jobs begin."""
        self.in_recovery = True
        self.network_profile = self.network_profile.calmed(self.policy.node_timeout)
        faults.heal(self)
        for server in self.servers:
            server.mark()  # otherwise the final contenders would be the first to set it
        settled = self.now + _SETTLE + 2 * self.plan.network_profile.tail_until
        self.schedule(settled, self._look_for_leftovers, None)
        jobs = [job for workload in self.plan.workloads for job in workload]
        longest = max((job.timeout + job.hold for job in jobs), default=0)
        self.schedule(settled + longest + 2 * self.policy.max_ttl, self._contest, None)

    def cancel(self, client: int, number: int) -> bool:
        """Cancel a call of one of the client's callers; return False if there is none."""
        callers = [w for w in self.workers if w.process.index == client and w.is_calling]
        return bool(callers) and callers[number % len(callers)].cancel()

    def crash(self, client: int, survivors: int, late_by: int) -> None:
        """Kill a client with all its callers; its leases end."""
        process = self.processes[client]
        for lease in self.history.leases:
            if lease.client == client and lease.why != MARK:
                self.end(lease, "crashed")
        for turn in process.turns:
            self.returned(turn.call, process, "crashed")
        process.crash(survivors, late_by)
        for worker in self.workers:
            if worker.process is process:
                worker.close()

    def forgot(self, server: SimServer, before: dict[bytes, Entry], how: str) -> None:
        """Record the keys that a node lost or shortened, compared with those before."""
        at = server.at_ms()
        # Keys that a restart has not restored were lost at the end of the process before.
        since = server.died_at if how.startswith("restart") else self.now
        self.history.losses += losses(since, server.index, server.node, before)
        for key, entry in before.items():
            if is_side_key(key) or (entry.until is not None and entry.until < at):
                continue
            after = server.node.alive(key, at)
            if after is None or _has_lost(after, entry):
                self.history.forgotten.append((self.now, server.index, how))
        for key, entry in server.node.keys.items():
            old = before.get(key)
            if is_side_key(key):
                continue
            known = {} if old is None else tokens_at(old)
            for token in tokens_at(entry).keys() - known.keys():
                self.unowed.add((token, server.index))  # deleted, and restored from disk

    # --- reports of the components -----------------------------------------------------------

    def link(self, process: Process, connection_set: int, index: int) -> Link:
        """Return a new connection."""
        self._links += 1
        link = Link(self._links, process, connection_set, self.servers[index])
        if self.trace is not None:
            self.trace.connected(link)
        return link

    def disconnected(self, link: Link) -> None:
        """Record that a client has lost a connection."""
        if self.trace is not None:
            self.trace.disconnected(link)

    def loses(self, message: Message, what: str) -> None:
        """Record that a request or a reply will never arrive."""
        if self.trace is not None:
            self.trace.loses(message, what)

    def executed(self, server: SimServer, message: Message) -> None:
        """Record that a node has executed a command."""
        command, reply = message.command, message.reply
        if token := ended_by(command, reply):
            self.freed_on[token] = self.freed_on.get(token, 0) | 1 << server.index
        if isinstance(command, ACQUIRES):
            if has_granted(reply):
                if message.copy or command.token in self.handed_over:
                    self.unowed.add((command.token, server.index))
                if message.link.lost:
                    self.set_late.add((command.token, server.index))
                mask = self.executed_on.get(command.token, 0)
                self.executed_on[command.token] = mask | 1 << server.index
        elif type(command) is Extend and reply == 1:
            self.extended_at[command.token, server.index] = self.now
        # A grant in turn issues no fence, and is a number.
        may_issue = isinstance(reply, list) and has_granted(reply)
        if isinstance(command, (ScriptedAcquire, IssueFence)) and may_issue:
            assert isinstance(reply, list)
            for key in (command.key, *command.also):
                issue = Issue(self.now, server.index, key, command.token, reply[2])  # type: ignore[arg-type] # its fence
                self.history.issues.append(issue)
        self.queues.executed(server, message)
        if self.trace is not None:
            self.trace.executed(server, message)

    def heard(self, message: Message, request: PendingRequest, answer: Answer) -> None:
        """Record that a client has read a reply."""
        if self.trace is not None:
            self.trace.heard(message, request, answer)

    def asks(self, command: Command) -> None:
        """Record that a client begins a round."""
        self.queues.asks(command)
        if isinstance(command, ScriptedAcquire):
            self.asked_at[command.token] = self.now

    def voted(self, token: bytes, reply: NodeReply) -> None:
        """Record a vote in the round of an acquire."""
        if reply.answer.vote is Vote.GRANTED:
            self.votes[token] = self.votes.get(token, 0) | 1 << reply.node

    def enlisted(self, process: Process, place: bytes, call: CallRecord) -> None:
        """Record that a flow has got a place."""
        self.queues.enlisted(process, place, call)

    def elapsed(self, turn: SimFlow[Any]) -> None:
        """Record that a deadline in a flow has passed."""
        if self.trace is not None:
            self.trace.elapsed(turn)

    def vanished(self, turn: SimFlow[Any]) -> None:
        """Cancel a caller at the instant at which its lock is won."""
        next(worker for worker in self.workers if worker.turn is turn).cancel()

    def violated(self, rule: str, text: str, **facts: Any) -> None:
        """Record a violation that shows at this instant."""
        self.history.found.append(Violation(rule, text, self.now, facts))

    # --- rounds: verdicts must agree with the votes ------------------------------------------

    def round_ended(self, turn: SimFlow[Any]) -> None:
        """Check that a flow which begins another round had not won this one."""
        command, sent_round = turn.command, turn.sent_round
        if not isinstance(command, (Acquire, Share)) or turn.cancelled or sent_round is None:
            return
        if isinstance(command, Share) and command.place:
            return  # after a grant, its place leaves the queues
        process = turn.process
        if not self._won(turn.votes):
            return
        if process.now() < sent_round.started_at + self._validity(command.ttl_ms):
            text = f"c{process.index} released a lock that a majority had granted it in time"
            self.violated("verdict", text, client=process.index, token=command.token)

    def _won(self, votes: dict[int, Vote]) -> bool:
        return 2 * sum(vote is Vote.GRANTED for vote in votes.values()) > self.plan.settings.n

    def _validity(self, ttl_ms: int) -> int:
        """Return the validity of a ttl (ns), computed independently of the library."""
        ttl = ttl_ms * NS_PER_MS
        return ttl - ttl * self.plan.settings.drift_ppm // PPM - EXPIRY_RESOLUTION - 1

    def check_granted(self, turn: SimFlow[Any], granted: Acquired) -> None:
        """Check that a majority has set this token, and has replied so in this round."""
        nodes = self.executed_on.get(granted.token, 0)
        counted = self.votes.get(granted.token, 0).bit_count()
        if counted < quorum(self.policy.n) or nodes.bit_count() < quorum(self.policy.n):
            text = (
                f"c{turn.process.index} counts {granted.token.decode()} as won: {counted}"
                f" nodes granted it in that round, {nodes.bit_count()} had set the key"
            )
            self.violated("verdict", text, client=turn.process.index, token=granted.token)

    def check_patience(self, process: Process, error: QuorumUnreachable, until: int) -> None:
        """Check that an acquire gave up no quarantine before its timeout."""
        there = sum(
            self._is_kept_out(process, node, vote) or (vote.answered and not vote.code.is_error)
            for node, vote in enumerate(error.votes)
        )
        if 2 * there > self.policy.n and process.now() < until:
            text = f"c{process.index} gave up a quarantine before its timeout"
            self.violated("patience", text, client=process.index)

    def _is_kept_out(self, process: Process, node: int, vote: NodeVote) -> bool:
        """Return whether a node votes again when its quarantine is over.

        A clock that is set makes a restarted server look like a second one beside the first: then
        its quarantine has no end.
        """
        clocks = (process.elapsed, self.servers[node].wall)
        is_endless = vote.quarantine is None and any(len(clock.pieces) > 1 for clock in clocks)
        return vote.code is VoteCode.QUARANTINED and not is_endless

    def check_extended(self, turn: SimFlow[Any], lease: LeaseRecord, began: int) -> None:
        """Check that a majority has extended since the call began, before the lease was over."""
        marks = (self.extended_at.get((lease.token, i), -1) for i in range(self.policy.n))
        if not self._won(turn.votes) or 2 * sum(mark >= began for mark in marks) <= self.policy.n:
            text = f"{lease.token.decode()} counts as extended without a majority"
            self.violated("verdict", text, client=lease.client, token=lease.token)
        if turn.process.now() >= lease.promises[-1][1]:
            text = f"{lease.token.decode()} had ended, and became valid again by an extension"
            self.violated("resurrection", text, client=lease.client, token=lease.token)

    def check_renewed(self, lease: LeaseRecord, began: int) -> None:
        """Check that a majority has extended since the pass began; restored keys do not count."""
        marks = (self.extended_at.get((lease.token, i), -1) for i in range(self.policy.n))
        if 2 * sum(mark >= began for mark in marks) <= self.policy.n:
            text = f"{lease.token.decode()} counts as renewed without a majority"
            self.violated("verdict", text, client=lease.client, token=lease.token)

    def check_covered(self, lease: LeaseRecord, promise: int) -> None:
        """Check that keys on a majority of the nodes last as long as the promise."""
        end = self.processes[lease.client].clock.when(promise) or 0
        lasting = sum(
            server.holds_until(lease.claim, lease.token) >= end
            or self._keeps_out_until(server, lease.token) >= end
            for server in self.servers
        )
        if 2 * lasting <= self.policy.n:
            text = f"{lease.token.decode()} is promised for longer than its keys last on a majority"
            facts = {"client": lease.client, "token": lease.token}
            self.history.uncovered.append(Violation("cover", text, self.now, facts))

    def rests_on(self, server: SimServer, command: Command) -> LeaseRecord | None:
        """Return the valid lease that needs this node's key for its majority, if any."""
        lease = self.leases.get(token_to_end(command))
        if lease is None or lease.ended is not None:
            return None
        process, promise = self.processes[lease.client], lease.promises[-1][1]
        end = process.clock.when(promise) or 0
        lasting = [
            s
            for s in self.servers
            if s.holds_until(lease.claim, lease.token) >= end
            or self._kept_out_since(s, lease.since) >= end
        ]
        needed = server in lasting and len(lasting) == quorum(self.policy.n)
        return lease if needed and process.now() < promise else None

    def undercut(self, server: SimServer, lease: LeaseRecord) -> None:
        """Record that a release has deleted a key which a lease needs."""
        text = f"a release deleted a key on n{server.index} that {lease.token.decode()} needs"
        facts = {"client": lease.client, "token": lease.token, "node": server.index}
        self.history.uncovered.append(Violation("deletion", text, self.now, facts))

    def overwritten(self, server: SimServer, token: bytes) -> None:
        """Record that a mark has replaced another client's key, or an absent one."""
        text = f"a mark has replaced {token.decode() or 'nothing'} of another on n{server.index}"
        self.violated("deletion", text, node=server.index, token=token)

    def _keeps_out_until(self, server: SimServer, token: bytes) -> int:
        """Return the end of the quarantine of a node that forgot the key after its extension."""
        extended_at = self.extended_at.get((token, server.index))
        return 0 if extended_at is None else self._kept_out_since(server, extended_at)

    def _kept_out_since(self, server: SimServer, since: int) -> int:
        """Return the end of the quarantine of a node that forgot keys since; 0 if it did not."""
        caught = GUARDED[self.policy.restart_guard]
        forgotten = (
            at
            for at, node, how in self.history.forgotten
            if node == server.index and how.startswith(caught)
        )
        last = max(forgotten, default=0)
        return last + self.policy.max_ttl if last > since else 0

    def check_released(self, turn: SimFlow[Any], token: bytes, released: ReleaseResult) -> None:
        """Check that `deleted` agrees with the replies of a majority."""
        if token in self.queues.handed_on:
            gone = self.freed_on.get(token, 0).bit_count()
            if released.deleted and gone < quorum(self.policy.n):
                text = f"{token.decode()} counts as handed on, and {gone} nodes have done so"
                self.violated("verdict", text, client=turn.process.index, token=token)
        elif released.deleted != self._won(turn.votes):
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
        owner: SimWorker | None = None,
    ) -> SimFlow[Any]:
        """Begin and record a call of a client; `done` gets the outcome."""
        record = CallRecord(
            len(self.history.calls),
            *(process.index, what, resource, token, self.now, process.now(), allowed),
        )
        self.history.calls.append(record)
        if self.trace is not None:
            self.trace.called(record)

        def finished(outcome: Any) -> None:
            self.returned(record, process, outcome)
            done(outcome)

        connection_set = int(process.rng.random() * len(process.links))
        turn: SimFlow[Any] = SimFlow(process, flow, connection_set, record, finished)
        if owner is not None:
            owner.turn = turn
        turn.begin()
        return turn

    def returned(self, record: CallRecord, process: Process, outcome: Any) -> None:
        """Record that a call has returned, or that its caller is gone."""
        record.ended = self.now
        record.outcome = _word(outcome)
        if isinstance(outcome, Exception) and not isinstance(outcome, QuorlockError):
            text = f"{record.what} of c{record.client} raises {type(outcome).__name__}: {outcome}"
            self.violated("exception", text, client=record.client)
        if record.allowed is not None:
            record.late_by = process.now() - record.read - record.allowed
        if self.trace is not None:
            self.trace.returned(record, outcome)

    def lease(self, process: Process, granted: Acquired, resource: str) -> LeaseRecord:
        """Record the lease of a lock that a client has won."""
        promise = (self.now, granted.valid_until)
        who, what = process.index, (granted.token, resource, granted.claim, granted.ttl_ms)
        sent_round = granted.sent_round
        lease = LeaseRecord(who, *what, self.now, sent_round.target, [promise])
        lease.started_at = sent_round.started_at
        lease.fence, lease.asked_at = granted.fence, self.asked_at.get(granted.token, 0)
        return self._keep(lease)

    def lease_again(self, old: LeaseRecord, process: Process, valid_until: int) -> LeaseRecord:
        """Record the lease of a token that was adopted, or extended by token."""
        what = (old.token, old.resource, old.claim, old.ttl_ms)
        return self._keep(
            LeaseRecord(process.index, *what, self.now, None, [(self.now, valid_until)])
        )

    def kept(self, old: LeaseRecord, process: Process, valid_until: int) -> None:
        """Record the mark of work that is done: nothing is granted before it ends."""
        mark = self.lease_again(old, process, valid_until)
        mark.why, mark.ttl_ms = MARK, self.policy.max_ttl_ms

    def _keep(self, lease: LeaseRecord) -> LeaseRecord:
        self.history.leases.append(lease)
        self.idle_watch.on_granted(lease.resource)
        self.leases[lease.token] = lease
        return lease

    def end(self, lease: LeaseRecord, why: str) -> None:
        """Record the local end of a lease, before any byte about it is sent."""
        if why in GIVEN_UP and lease.given_up is None:
            lease.given_up = self.now  # also after it was lost
        if lease.ended is None:
            lease.ended, lease.why = self.now, why
            lease.told = self.now if why == "lost" else None
            if self.trace is not None:
                self.trace.ended(lease)

    # --- the end -----------------------------------------------------------------------------

    def _look_for_leftovers(self, _: None) -> None:
        """Check that finished leases and attempts have left no keys on running nodes."""
        too_soon = False
        for server in self.servers:
            at = server.at_ms()
            for key in list(server.node.keys):
                entry = server.node.alive(key, at)
                for token, end in tokens_at(entry).items() if entry is not None else ():
                    if is_held(key, token) and (end is None or end >= at):
                        too_soon |= self._is_too_soon(server, token)
        if not too_soon:
            self.queues.look_for_orphans()
        else:
            self.schedule(self.now + self._given_back_within, self._look_for_leftovers, None)

    def _is_too_soon(self, server: SimServer, token: bytes) -> bool:
        """Return whether a key is still to be released; a violation if it never will be."""
        lease = self.leases.get(token)
        if token in self.foreign:
            return False
        if lease is not None and self._was_just_lost(lease):
            return True
        owner = int(token[1 : token.index(b".")]) if lease is None else lease.client
        if self._is_being_released(server, token, self.processes[owner]):
            return True
        if not self._is_excused(server, token, self.processes[owner]):
            text = f"{token.decode()} is over and released, but its key is left on n{server.index}"
            self.violated("leftover", text, client=owner, node=server.index, token=token)
        return False

    def _is_being_released(self, server: SimServer, token: bytes, process: Process) -> bool:
        """Return whether a release or an exchange is in flight: its node has not replied yet."""
        links = [links[server.index] for links in process.links]
        return any(
            token_to_end(request.command) == token
            for link in links
            if link is not None
            for request in link.pipeline.pending
        )

    def _is_excused(self, server: SimServer, token: bytes, process: Process) -> bool:
        """Return whether a key may stay until its ttl ends, or a request for it is pending."""
        lease = self.leases.get(token)
        if process.dead or token in self.handed_over or (token, server.index) in self.unowed:
            return True
        if lease is not None and lease.why in ("", "abandoned", MARK):
            return True
        if any(_is_at(turn.command, token) for turn in process.turns):
            return True
        if _pays_later(process.nodes[server.index].pending_releases, token, process.now()):
            return True  # the release is sent again later, since an old SET may still arrive
        # If the client's clock jumped ahead, the last release was sent too early.
        return (token, server.index) in self.set_late and process.elapsed.steps()[1] > 0

    @property
    def _given_back_within(self) -> int:
        """The longest time (ns) from a loss to the release: a pass, a pause, and delays."""
        return 4 * self.policy.node_timeout + 4 * PAUSE_MIN

    def _was_just_lost(self, lease: LeaseRecord) -> bool:
        """Return whether the keys of a lost lease may wait for the end of its last promise."""
        process = self.processes[lease.client]
        if lease.ended is None or not lease.renewed or lease.why != "lost" or process.dead:
            return False
        clock, promise = process.clock, lease.promises[-1][1]
        # The timer was set at the loss: a later jump of the clock does not shorten it.
        left = max(0, promise - clock.read_back(lease.ended))
        slept = lease.ended + left * PPM // max(1, clock.paces()[0])
        return self.now < max(slept, clock.when(promise) or 0) + self._given_back_within

    def _contest(self, _: None) -> None:
        """Let the remaining clients contend for one lock: one of them must get it."""
        votes_at = [process.votes_at() for process in self.processes if not process.dead]
        free_at = max([*votes_at, *(server.empty_at() for server in self.servers)])
        if free_at > self.now:  # keys last longer on a clock that was set back
            self.schedule(free_at, self._contest, None)
            return
        ready = [w for w in self.workers if w.done and not w.process.dead]
        for worker in ready[:_CONTENDERS]:
            worker.contend(ROUNDS_MAX)


def _has_lost(after: Entry, before: Entry) -> bool:
    """Return whether a token is gone or ends sooner; readers may have ended themselves."""
    if before.value is not None or after.value is not None:
        return after.value != before.value or _shorter(after, before)
    left = tokens_at(after)
    return any((left.get(token) or 0) < (end or 0) for token, end in tokens_at(before).items())


def _shorter(after: Entry, before: Entry) -> bool:
    if after.until is None or before.until is None:
        return after.until is not None
    return after.until < before.until


def _is_at(command: object, token: bytes) -> bool:
    return isinstance(command, (*ACQUIRES, Extend, Keep, Release)) and command.token == token


def is_held(key: bytes, value: bytes) -> bool:
    """Return whether this is a lock's key with a token: no metadata, no reservation, no mark."""
    return not (is_side_key(key) or is_reservation(value) or is_mark(value))


def _pays_later(pending_releases: PendingReleases, token: bytes, now: int) -> bool:
    """Return whether a release of this token will be due later, but is not now."""
    copy = deepcopy(pending_releases)
    overdue = any(sent.release.token == token for sent in copy.due(now, ""))
    return not overdue and any(sent.release.token == token for sent in copy.due(FOR_EVER, ""))


def _word(outcome: object) -> str:
    if isinstance(outcome, KeepResult):
        return "kept" if outcome.loss is None else f"not kept: {outcome.loss.value}"
    if isinstance(outcome, (Acquired, Extended)):
        return "granted" if isinstance(outcome, Acquired) else "extended"
    if isinstance(outcome, ExtendFailed):
        return "lost"
    if isinstance(outcome, ReleaseResult):
        return "released" if outcome.deleted else "not_released"
    if isinstance(outcome, Exception):
        return type(outcome).__name__
    return {None: "none", True: "yes", False: "no"}.get(outcome, str(outcome))  # type: ignore[call-overload, no-any-return]
