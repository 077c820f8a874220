"""A node's process in a simulated world: the twin of `node`, its wall clock, its ups and downs.

Carries requests out in the order in which they reach its door, at the instant that its own wall
clock shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS
from quorlock._wire.packing import MARKER, SCRIPTS
from quorlock.testing.node import Error, Node, is_side_key

if TYPE_CHECKING:
    from quorlock.testing.clock import Clock
    from quorlock.testing.network import Message
    from quorlock.testing.node import Reply
    from quorlock.testing.world import World

_LONG_MS = 30 * 86_400_000
NO_SCRIPT = Error("NOSCRIPT No matching script.")


class Server:
    """One node of a world.

    Attributes:
        up: it runs. epoch: how often it has been started; connections belong to one epoch.
        died_at: when it ended last.
        hung: it runs, answers nothing and forgets nothing, as after SIGSTOP.
        slow_by: how much longer everything takes to reach it (ns).
    """

    __slots__ = (
        "_door",
        "died_at",
        "epoch",
        "hung",
        "index",
        "memory",
        "node",
        "slow_by",
        "up",
        "wall",
        "world",
    )

    def __init__(self, world: World, index: int, wall: Clock) -> None:
        self.world = world
        self.index = index
        self.wall = wall
        # When the world begins it has been up for long.
        self.node = Node(f"n{index}.0", self.at_ms() - _LONG_MS)
        self.mark(b"all")
        self.up = True
        self.memory = "kept"
        self.epoch = 0
        self.died_at = 0
        self.hung = False
        self.slow_by = 0
        self._door: list[Message] = []  # what came while it hung

    def at_ms(self) -> int:
        """What its wall clock shows, in the milliseconds that keys expire by."""
        return self.wall.read(self.world.now) // NS_PER_MS

    def empty_at(self) -> int:
        """The true instant from which on nothing that it holds now is alive."""
        locks = (entry for key, entry in self.node.keys.items() if not is_side_key(key))
        untils = (entry.until for entry in locks if entry.until is not None)
        last = (max(untils, default=0) + 1) * NS_PER_MS
        return self.wall.when(last) or 0

    def holds_until(self, key: bytes, token: bytes) -> int:
        """The true instant from which on the key does not hold the token any more, as it is now."""
        entry = self.node.keys.get(key)
        if entry is None or entry.value != token:
            return 0
        return (self.wall.when((entry.until + 1) * NS_PER_MS) or 0) if entry.until else 1 << 62

    def mark(self, worth: bytes = b"nothing") -> None:
        """Have its marker, where there are any, as after the greeting of a client."""
        if self.world.policy.restart_guard == "marker":
            self.node.guard(MARKER, self.node.run_id.encode(), worth, self.at_ms())

    def arrive(self, message: Message) -> None:
        """A request has reached the door."""
        if self.world.now > message.link.gone_by:
            self.world.loses(message, "request")
        else:
            self._let_in(message)

    def _let_in(self, message: Message) -> None:
        link = message.link
        if not link.still_arrives(message):
            self.world.loses(message, "request")
        elif self.world.now < link.late_until:
            self.world.at(link.late_until, self.arrive, message)
        elif self.hung:
            self._door.append(message)
        else:
            self._carry_out(message)

    def _carry_out(self, message: Message) -> None:
        message.reply = self._reply(message)
        self.world.executed(self, message)
        if not message.copy:
            message.link.reply(message)

    def _reply(self, message: Message) -> Reply:
        command = message.command
        script = SCRIPTS.get(type(command))
        if script is not None:
            if message.in_full:
                self.node.known.add(script.sha)
            elif script.sha not in self.node.known:
                return NO_SCRIPT
        return self.node.ask(command, self.at_ms())

    # --- its life ----------------------------------------------------------------------------

    def crash(self, memory: str) -> None:
        """It ends as by SIGKILL; what a restart will find of its `memory` is known then."""
        self.up = False
        self.died_at = self.world.now
        self.memory = memory
        self.epoch += 1
        self.hung = False
        self._door.clear()

    def restart(self, memory: str) -> None:
        """It is up again, with the memory that a restart leaves it (`Node.restart`)."""
        self.up = True
        self.node.restart(f"n{self.index}.{self.epoch}", memory=memory, started=self.at_ms())

    def go_on(self) -> None:
        """It hung, and does not any more: everything at its door is carried out, in order."""
        self.hung = False
        door, self._door = self._door, []
        for message in door:
            self._let_in(message)
