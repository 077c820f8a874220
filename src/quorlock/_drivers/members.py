"""What a driver knows of each node: up or down and why, who it is, when to try it again.

Shared by both drivers; opens no sockets.
"""

from __future__ import annotations

import os
import re
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import Release
from quorlock._core.debts import Debts
from quorlock._core.guard import Guard, kept_out
from quorlock._core.outcomes import GRANTED, Answer, Cause, NodeStatus, Vote
from quorlock._core.time import NS_PER_MS, to_seconds
from quorlock._wire.answers import printable
from quorlock._wire.handshake import Greeting, Unfit
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import AnyAcquire, Command
    from quorlock._core.guard import Quarantine
    from quorlock._core.policy import Policy
    from quorlock._core.time import Duration, Instant
    from quorlock._wire.conversation import Question
    from quorlock._wire.nodes import Node

BACK_OFF_MIN: Duration = 50 * NS_PER_MS
BACK_OFF_MAX: Duration = 1_000 * NS_PER_MS

BACKLOG = Answer(Vote.UNKNOWN, Cause.BACKLOG)
CROWDED = Answer(Vote.UNKNOWN, Cause.CROWDED)

CLOSED = "this Redlock is closed"
CLOSED_MEANWHILE = "this Redlock was closed while somebody waited for a lock"


class Standing(Enum):
    """What is known of the way to a node."""

    UNTRIED = "untried"  # nobody has failed to connect since it was last up
    UP = "up"
    DOWN = "down"  # the last attempt to connect failed


_UP = Standing.UP  # read at every answer (see _core/quorum.py)


class Member:
    """One node of the set."""

    def __init__(self, index: int, node: Node, policy: Policy) -> None:
        self.index = index
        self.node = node
        self.address = node.address
        self.standing = Standing.UNTRIED
        self.greeting: Greeting | None = None
        # Up, and no trouble: a plain yes tells nothing new but how long it took.
        self.is_calm = False
        self.guard = Guard(policy)
        self.latency: Duration | None = None
        self.misconfigured: ConfigError | None = None
        self.max_ttl_ms = policy.max_ttl_ms
        self.patience: Duration = 2 * policy.node_timeout
        self.debts = Debts(policy.max_ttl)
        self.on_debt: Callable[[], None] = lambda: None  # wakes who pays
        self.on_unsent: Callable[[Any], None] = lambda _connection: None  # and who sends
        self.retry_at: Instant = 0
        self._back_off = BACK_OFF_MIN
        self._unanswered = _down("not connected yet")
        # Errors that it last answered with, by kind of command; None: it spoke nonsense.
        self._troubles: dict[type[Command] | None, str] = {}

    @property
    def run_id(self) -> str:
        """Of the process that was last spoken to; "" before that."""
        return self.greeting.run_id if self.greeting else ""

    @property
    def absence(self) -> Answer:
        """The vote of a node to which nothing can be sent."""
        return self._unanswered

    def met(self, greeting: Greeting, at: Instant) -> Quarantine | None:
        """Connecting succeeded; how long the server keeps out."""
        exempt = self.node.durable or greeting.born_empty == greeting.run_id.encode()
        kept = self.guard.met(
            greeting.run_id, greeting.uptime_s, at, exempt=exempt, marked_ms=greeting.marked_ms
        )
        self.greeting = greeting
        self.misconfigured = None
        self.standing = Standing.UP
        self.is_calm = not self._troubles
        self._back_off = BACK_OFF_MIN
        self.retry_at = 0
        return kept

    def lost(self, text: str, cause: Cause) -> None:
        """A connection broke; the node may well be there."""
        self.is_calm = False
        if self.standing is Standing.UP:
            self.standing = Standing.UNTRIED
        self._unanswered = _down(text)
        if cause is Cause.NONSENSE:
            self._troubles[None] = text  # connecting again does not show that it is mended

    @property
    def is_in_trouble(self) -> bool:
        """Something was wrong with it, and an answer may show that it no longer is."""
        return not self.is_calm

    def answered(self, question: Question, answer: Answer, at: Instant) -> None:
        """A connection brought an answer."""
        self.latency = at - question.asked_at
        self.standing = _UP  # perhaps by another connection than the one that broke
        if answer is not GRANTED or self._troubles:
            self._note(question.command, answer, at)
        self.is_calm = not self._troubles

    def _note(self, command: Command, answer: Answer, at: Instant) -> None:
        if answer.cause is Cause.FAILED or answer.cause is Cause.FORBIDDEN:
            if not answer.text.startswith("NOSCRIPT"):
                self._troubles[type(command)] = answer.reason
            if type(command) is Release:
                self.debts.refused(command.key, command.token, self.run_id, at)
                self.on_debt()
        elif self._troubles:
            # What was refused is mended only when the same is granted again.
            self._troubles.pop(type(command), None)
            self._troubles.pop(None, None)

    def failed(self, error: Exception, now: Instant) -> None:
        """Connecting failed; the next attempt waits twice as long as this one did."""
        self.standing = Standing.DOWN
        self.is_calm = False
        self.retry_at = now + self._back_off
        self._back_off = min(2 * self._back_off, BACK_OFF_MAX)
        if isinstance(error, ConfigError):
            name = f"nodes[{self.index}].{error.argument}"
            self.misconfigured = ConfigError(name, error.value, error.fix)
            self._unanswered = _down(str(error), lasting=True)
        elif isinstance(error, Unfit):
            self._unanswered = _down(error.text, lasting=error.lasting, faulty=error.faulty)
        else:
            self._unanswered = _down(_os_words(error))

    def owe(self, command: AnyAcquire | Release, run_id: str, at: Instant) -> None:
        """A release must reach this node some other way (rule 3)."""
        self.debts.owe(command.key, command.token, run_id, at)
        self.on_debt()

    def status(self, silent_for: Duration, at: Instant) -> NodeStatus:
        """For the user. silent_for: how long its oldest open question has been waiting."""
        why = next(iter(self._troubles.values()), "")
        kept = self.guard.quarantine
        if kept is not None and (answer := kept_out(kept, at)) is not None:
            why = answer.reason
        if self.standing is not Standing.UP:
            why = self._unanswered.reason
        elif silent_for > self.patience:
            why = f"no answer for {to_seconds(silent_for):.1f} s"
        return NodeStatus(
            address=self.address,
            up=not why,
            why=why,
            latency=None if self.latency is None else to_seconds(self.latency),
            version=self.greeting.version if self.greeting else "",
        )


class Members:
    """All nodes of the set, and the check that they are different servers."""

    def __init__(self, nodes: tuple[Node, ...], policy: Policy) -> None:
        self.all = tuple(Member(index, node, policy) for index, node in enumerate(nodes))
        # What all clients of these nodes must have in common; b"": is not compared.
        self.agreement = policy.agreement
        self.marks = policy.restart_guard == "marker"
        self._lock = threading.Lock()  # the blocking driver connects nodes in parallel

    def admit(self, member: Member, greeting: Greeting, at: Instant) -> Quarantine | None:
        """Let a freshly made connection vote, if its server is no other member's (rule 14).

        Compared on every connection: an address can move to another server at any time.
        Returns how long it must not vote yet; at: when the greeting was there.  Raises Unfit.
        """
        self._compare(member, greeting.agreed)
        with self._lock:
            twin = self._twin(member, greeting.run_id)
            if twin is None:
                return member.met(greeting, at)
        text = f"is the same server as {twin.address} (run_id {greeting.run_id[:8]}…)"
        raise _refusal(member, text, "one crash would cost two votes; list every server once")

    def _compare(self, member: Member, agreed: bytes) -> None:
        ours = self.agreement
        if agreed in (b"", ours):
            return
        theirs = printable(agreed.decode(errors="replace"))
        text = f"serves clients with {theirs!r}, and this one has {ours.decode()!r}"
        fix = "give all of them the same; once the old ones are gone, DEL quorlock:config there"
        raise _refusal(member, text, fix)

    def forgive(self, token: bytes, now: Instant) -> None:
        """No node is owed a release of this token any more: its lease has moved away."""
        for member in self.all:
            member.debts.forgive(token, now)

    def resume(self, token: bytes) -> None:
        """The lease has come back to this process."""
        for member in self.all:
            member.debts.resume(token)

    def check(self) -> None:
        """Raise what connecting found out about the configuration."""
        for member in self.all:
            if member.misconfigured is not None:
                raise member.misconfigured

    def _twin(self, member: Member, run_id: str) -> Member | None:
        others = (other for other in self.all if other is not member)
        return next((other for other in others if other.run_id == run_id), None)


def _refusal(member: Member, text: str, fix: str) -> Unfit:
    if member.greeting is None:
        # Never seen as anything else: not a moved address but a wrong configuration.
        member.misconfigured = ConfigError(
            f"nodes[{member.index}]", member.address, f"it {text}: {fix}"
        )
    return Unfit(text, lasting=True)


def _down(text: str, *, lasting: bool = False, faulty: bool = False) -> Answer:
    cause = Cause.FAILED if faulty else Cause.DOWN
    return Answer(Vote.UNKNOWN, Cause.FORBIDDEN if lasting else cause, text)


def _os_words(error: Exception) -> str:
    """The operating system's words alone: exception texts may quote a whole address."""
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"\[Errno (\d+)\]", str(error))):
        number = int(found[1])  # asyncio's "Multiple exceptions" when a name has many addresses
    if number is not None and number > 0:
        return os.strerror(number).lower()
    if isinstance(error, TimeoutError):
        return "no answer to connecting"
    return str(getattr(error, "strerror", None) or type(error).__name__).lower()
