"""The rounds that an event loop has not sent yet; releases that follow each other are one command.

A script that frees many locks takes a node less than a third of the time that one for each takes
(docs/contributing/decisions/0046-releases-in-groups.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from quorlock._core.time import NS_PER_S, PAST
from quorlock._drivers.clock import now
from quorlock._protocol.encoding import encode_group
from quorlock._protocol.requests import ReleaseGroup

if TYPE_CHECKING:
    from quorlock._core.commands import Release
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.abc import SharedReceiver
    from quorlock._protocol.pipeline import PendingRequest

# The bytes of the keys and tokens of a group. Less than `UNCOUNTED_MAX` groups fit into what a hung
# server reads, with an acquire and its release (`UNREAD_MAX`).
_BYTES_MAX = 1536
# For so long after a group that some node did not carry out, each release is sent alone.
_SEPARATE_FOR = NS_PER_S


class Outgoing:
    """The bytes of rounds that are not sent yet.

    Attributes:
        data: The bytes; of the open group, those of its first release.
        rounds: The number of rounds; each release of a group counts.
        last_release: The last round, if another release may be joined to it.
        group: The group that it is in.
        groups_from: No releases are grouped before.
        is_script_known: All nodes have the script for groups.
    """

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.rounds = 0
        self.last_release: PendingRequest | None = None
        self.group: Group | None = None
        self.groups_from: Instant = PAST
        self.is_script_known = False

    def close_group(self) -> None:
        """Join no more releases to the last ones."""
        group, self.group, self.last_release = self.group, None, None
        if group is not None:
            self.data[-1] = group.encoded(in_full=not self.is_script_known)
            self.is_script_known = True

    def take(self) -> bytes:
        """Return all bytes; they are sent now, or never."""
        if self.last_release is not None:
            self.close_group()
        data = b"".join(self.data)
        self.data.clear()
        self.rounds = 0
        return data


class Group(ReleaseGroup):
    """Releases of one tick that are one round of the shared pipeline."""

    __slots__ = ("_outgoing", "_room", "shared_number")

    def __init__(self, outgoing: Outgoing, number: int, first: PendingRequest) -> None:
        super().__init__([first])
        self.shared_number = number
        self._outgoing = outgoing
        self._room = _BYTES_MAX
        self.has_room_for(cast("Release", first.command))

    def has_room_for(self, release: Release) -> bool:
        """Take room for a release; return false if there is too little."""
        key, token, _, _, _ = release
        self._room -= len(key) + len(token)
        return self._room >= 0

    def encoded(self, *, in_full: bool) -> bytes:
        """Return the bytes of the command."""
        releases: list[Any] = [command for command, _, _, _, _ in self.requests]
        return encode_group(releases, in_full=in_full)

    def separate(self) -> list[PendingRequest]:
        outgoing = self._outgoing
        outgoing.groups_from, outgoing.is_script_known = now() + _SEPARATE_FOR, False
        return self.requests

    def deliver_quorum(self, nodes: int, last: int, at: Instant) -> None:
        """Pass a quorum on to each of the receivers."""
        for receiver in self._receivers():
            receiver.deliver_quorum(nodes, last, at)

    def expect_quorum(self) -> None:
        """Have each of the receivers continue at `deliver_quorum`."""
        for receiver in self._receivers():
            receiver.expect_quorum()

    def _receivers(self) -> list[SharedReceiver]:
        receivers: list[Any] = [receiver for _, receiver, _, _, _ in self.requests]
        return receivers
