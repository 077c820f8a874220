"""A server of a simulated world: a node with its wall clock, its crashes and its restarts.

It executes requests in the order of their arrival, at the instant of its wall clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.commands import Keep, Publish, Release, ScriptedAcquire, Subscribe
from quorlock._core.owner import mark_of
from quorlock._core.places import QUEUE, channel_of, is_reservation
from quorlock._core.time import NS_PER_MS
from quorlock._protocol.encoding import MARKER, SCRIPTS
from quorlock.testing.fake_keys import NO_RIGHT
from quorlock.testing.fake_node import DELETED, Entry, Error, FakeNode, is_side_key
from quorlock_sim.clock import NEVER
from quorlock_sim.network import Push

if TYPE_CHECKING:
    from quorlock._core.claims import Claim
    from quorlock._core.commands import Command
    from quorlock.testing.fake_node import Reply
    from quorlock_sim.clock import Clock
    from quorlock_sim.network import Link, Message
    from quorlock_sim.world import World

# Grants of scripts/acquire.lua without a fence, the second half of an exchange.
_IN_TURN = (-3, -4, -5, -6)
_REPLACED = _IN_TURN[2:]
_LONG_MS = 30 * 86_400_000
NO_SCRIPT = Error("NOSCRIPT No matching script.")
NO_SUBSCRIBE = Error("NOPERM No permissions to access a channel")
_MARK_END = mark_of(b"")
NO_PERMISSION = Error("NOPERM No permissions to run the 'publish' command.")


def is_mark(value: bytes) -> bool:
    """Return whether a key's value is the mark of work that is done; no token here has an owner."""
    return value.endswith(_MARK_END)


def token_to_end(command: Command) -> bytes:
    """Return the token whose key the command frees, or replaces by another one."""
    if isinstance(command, ScriptedAcquire):
        return command.instead
    return command.token if type(command) is Release else b""


def ended_by(command: Command, reply: Reply) -> bytes:
    """Return the token whose key the command has freed or replaced; b"" if it has not."""
    code, *more = reply if isinstance(reply, list) else [reply]
    has_ended = code == DELETED
    if isinstance(command, ScriptedAcquire):
        has_ended = code in _REPLACED or (code == 1 and more[3:] == [1])
    return token_to_end(command) if has_ended else b""


def has_granted(reply: Reply) -> bool:
    """Return whether the reply to an acquire, or to an IssueFence, is a grant."""
    if isinstance(reply, list):
        return reply[0] == 1
    return reply == b"OK" or reply in _IN_TURN


def tokens_at(entry: Entry) -> dict[bytes, int | None]:
    """Return the tokens at a lock's key, of a holder or of readers, with their ends in ms."""
    if entry.value is not None:
        return {entry.value: entry.until}
    return {token: int(end) for end, token in entry.places}


class SimNode(FakeNode):
    """A node whose calls travel over simulated connections."""

    __slots__ = ("_server",)

    def __init__(self, server: SimServer, run_id: str, started: int) -> None:
        super().__init__(run_id, started)
        self._server = server

    def publish(self, channel: bytes, message: bytes) -> int:
        """Execute PUBLISH."""
        return self._server.call(channel, message)


class SimServer:
    """One node of a world.

    Attributes:
        up: the process runs.
        epoch: the number of crashes; a connection belongs to one epoch.
        died_at: the instant of the last crash.
        hung: the process runs and keeps its keys, but does not reply, as after SIGSTOP.
        slow_by: the extra delay of requests to it (ns).
        listeners: the connections that have subscribed to a channel.
        resp3: its connections can receive pushes.
        last_call: the last push that it sent, and to whom.
        denied: what users have no right to (`plan.RIGHTS`).
        mute: clients have no right to publish for a while.
        loses_calls: calls do not arrive.
        calls_late_by: the delay of calls (ns).
    """

    __slots__ = (
        "_unread",
        "calls_late_by",
        "denied",
        "died_at",
        "epoch",
        "hung",
        "index",
        "last_call",
        "listeners",
        "loses_calls",
        "memory",
        "mute",
        "node",
        "resp3",
        "slow_by",
        "up",
        "wall",
        "world",
    )

    def __init__(self, world: World, index: int, wall: Clock) -> None:
        self.world = world
        self.index = index
        self.wall = wall
        # At the start of the world it has been up for a long time.
        self.node = SimNode(self, f"n{index}.0", self.at_ms() - _LONG_MS)
        self.mark(b"all")
        self.up = True
        self.memory = "kept"
        self.epoch = 0
        self.died_at = 0
        self.hung = False
        self.slow_by = 0
        self.listeners: dict[bytes, dict[Link, None]] = {}  # by channel
        self.resp3 = index not in world.plan.deaf
        self.last_call: tuple[Link, Push] | None = None
        self.denied = {right for node, right in world.plan.denied if node == index}
        self.mute = False
        self.loses_calls = False
        self.calls_late_by = 0
        self.deny_queues()
        self._unread: list[Message] = []  # requests that arrived while it hung

    def at_ms(self) -> int:
        """Return the reading of its wall clock in ms, which keys expire by."""
        return self.wall.read(self.world.now) // NS_PER_MS

    def empty_at(self) -> int:
        """Return the true instant from which on all its present locks have expired."""
        locks = (entry for key, entry in self.node.keys.items() if not is_side_key(key))
        untils = (entry.until for entry in locks if entry.until is not None)
        last = (max(untils, default=0) + 1) * NS_PER_MS
        return self.wall.when(last) or 0

    def holds_until(self, claim: Claim, token: bytes) -> int:
        """Return the true instant at which the first key of the claim is not the token's.

        0 if one has another value now. A clock that stands still keeps the keys.
        """
        return min([self._holds_until(key, token) for key in claim.keys])

    def _holds_until(self, key: bytes, token: bytes) -> int:
        entry = self.node.keys.get(key)
        held = {} if entry is None else tokens_at(entry)
        if token not in held:
            return 0
        until = held[token]
        at = self.wall.when((until + 1) * NS_PER_MS) if until else None
        return NEVER if at is None else at

    def mark(self, worth: bytes = b"nothing") -> None:
        """Set the restart guard's marker, as after a client's handshake, if it is in use."""
        if self.world.policy.restart_guard == "marker":
            self.node.guard(MARKER, self.node.run_id.encode(), worth, self.at_ms())

    def arrive(self, message: Message) -> None:
        """Take in a request that has arrived."""
        if self.world.now > message.link.gone_by:
            self.world.loses(message, "request")
        else:
            self._let_in(message)

    def _let_in(self, message: Message) -> None:
        link = message.link
        if not link.still_arrives(message):
            self.world.loses(message, "request")
        elif self.world.now < link.late_until:
            self.world.schedule(link.late_until, self.arrive, message)
        elif self.hung:
            self._unread.append(message)
        else:
            self._carry_out(message)

    def _carry_out(self, message: Message) -> None:
        command = message.command
        rests_on = self.world.rests_on(self, command)
        if self.world.trace is not None:
            message.found = self._value(command.key)
        replaced = self._value(command.key) if type(command) is Keep else b""
        message.reply = self._reply(message)
        if rests_on is not None and ended_by(command, message.reply):
            self.world.undercut(self, rests_on)
        if type(command) is Keep and self._value(command.key) != replaced != command.token:
            self.world.overwritten(self, replaced)
        self.world.executed(self, message)
        if not message.copy:
            message.link.reply(message)

    def _value(self, key: bytes) -> bytes:
        entry = self.node.alive(key, self.at_ms())
        if entry is not None and entry.places:
            tokens = [
                token for token, end in tokens_at(entry).items() if (end or 0) >= self.at_ms()
            ]
            return min(tokens, key=is_reservation, default=b"")  # a reader, if there is one
        return (entry and entry.value) or b""

    def _reply(self, message: Message) -> Reply:
        command = message.command
        if type(command) is Subscribe:
            if "subscribe" in self.denied:
                return NO_SUBSCRIBE
            self.listeners.setdefault(command.key, {})[message.link] = None
            return Push([b"subscribe", command.key, 1])
        if type(command) is Publish:  # its empty message would be ignored
            return NO_PERMISSION if self.is_mute else len(self.listeners.get(command.key, {}))
        script = SCRIPTS.get(type(command))
        if script is not None:
            if message.in_full:
                self.node.known.add(script.sha)
            elif script.sha not in self.node.known:
                return NO_SCRIPT
        if type(command) is Release and message.link.process.index in self.world.plan.old:
            return self._delete(command)
        return self.node.ask(command, self.at_ms())

    def _delete(self, command: Release) -> Reply:
        """Execute the release of an older version, which calls no waiter."""
        entry = self.node.alive(command.key, self.at_ms())
        if entry is None or entry.value != command.token:
            return self.node.ask(command, self.at_ms())
        self.node.evict(command.key)
        return DELETED

    @property
    def is_mute(self) -> bool:
        """Users have no right to publish."""
        return self.mute or "publish" in self.denied

    @property
    def is_well(self) -> bool:
        """The node replies without delay, takes writes, and its calls arrive."""
        is_hindered = self.hung or self.slow_by or self.node.read_only or self.node.full
        is_silent = self.mute or self.loses_calls or self.calls_late_by or self.denied
        return self.up and self.resp3 and self.wall.pace > 0 and not (is_hindered or is_silent)

    def deny_queues(self) -> None:
        """Take away the right to the queues: they are as those of another type, out of reach."""
        if "queue" in self.denied:
            for resource in self.world.plan.resources:
                self.node.keys[QUEUE + resource.encode()] = Entry(None, None, (b"denied",))

    def call(self, channel: bytes, text: bytes) -> int:
        """Send a call to those who listen; return their number."""
        if self.is_mute:
            return NO_RIGHT
        links = self.listeners.get(channel, {})
        for link in links:
            self.last_call = link, Push([b"message", channel, text])
            if self.calls_late_by:
                late = self.world.now + self.calls_late_by
                self.world.schedule(late, link.push, self.last_call[1])
            elif not self.loses_calls:
                link.push(self.last_call[1])
        return len(links)

    def hears(self, place: bytes) -> bool:
        """Return whether a connection receives the calls of a place."""
        return bool(self.listeners.get(channel_of(place.partition(b":")[0])))

    def on_closed(self, link: Link) -> None:
        """End the subscriptions of a connection that its client has closed, once it is known."""
        is_cut_off = not self.world.in_recovery and link.process.cut_off[self.index] & 1
        if self.hung or is_cut_off:
            self.world.schedule(self.world.now + 5 * NS_PER_MS, self.on_closed, link)
            return
        for links in self.listeners.values():
            links.pop(link, None)

    # --- crash and restart -------------------------------------------------------------------

    def crash(self, memory: str) -> None:
        """End the process as SIGKILL does; `memory` says which keys a restart will find."""
        self.up = False
        self.died_at = self.world.now
        self.memory = memory
        self.epoch += 1
        self.hung = False
        self._unread.clear()
        self.listeners.clear()

    def restart(self, memory: str) -> None:
        """Start a new process, with the keys that the restart leaves (`FakeNode.restart`)."""
        self.up = True
        self.node.restart(f"n{self.index}.{self.epoch}", memory=memory, started=self.at_ms())
        self.deny_queues()

    def go_on(self) -> None:
        """End a hang: execute all requests that have arrived, in order."""
        self.hung = False
        unread, self._unread = self._unread, []
        for message in unread:
            self._let_in(message)
