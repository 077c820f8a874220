"""The scripts that a node was sent over one connection."""

from __future__ import annotations

from quorlock._core.commands import Command, Extend, Release


class SentScripts:
    """The scripts that are sent by name from now on: each was sent in full the first time.

    Attributes:
        has_release: The script of releases and looks was sent.
        has_extend: That of extensions, after what tracks the keys that they read.
        kinds: The kinds of other commands whose scripts were sent.
    """

    __slots__ = ("has_extend", "has_release", "kinds")

    def __init__(self) -> None:
        self.has_release = False
        self.has_extend = False
        self.kinds: set[type[Command]] = set()

    def all_kinds(self) -> set[type[Command]]:
        """Return the kinds of all commands whose scripts were sent, but looks."""
        kinds = self.kinds.copy()
        if self.has_release:
            kinds.add(Release)
        if self.has_extend:
            kinds.add(Extend)
        return kinds

    def add(self, command: Command) -> bool:
        """Record that the script of this command is sent; return whether it must be in full."""
        kind = type(command)
        if isinstance(command, Release):
            was_sent, self.has_release = self.has_release, True
        elif isinstance(command, Extend):
            was_sent, self.has_extend = self.has_extend, True
        else:
            was_sent = kind in self.kinds
            self.kinds.add(kind)
        return not was_sent

    def forget(self, command: Command) -> None:
        """Have the next command of this kind sent in full, unless it is an extension."""
        if isinstance(command, Release):
            self.has_release = False
        self.kinds.discard(type(command))
