"""Key tracking over one connection: the server reports changes of keys by other clients.

Two users: renewal tracks all keys that are read over a connection.  The first waiter in a queue
asks before each look (`commands.Look`), so that all other commands cost the server nothing more.
"""

from __future__ import annotations

from quorlock._core.commands import EnableTracking

# NOLOOP: no invalidations for changes that are made over this connection.
_ALL = EnableTracking(b"TRACKING ON NOLOOP")
_ASKED_FOR = EnableTracking(b"TRACKING ON OPTIN NOLOOP")
_OFF = EnableTracking(b"TRACKING OFF")  # the mode of a server that tracks cannot be changed
_NEXT = EnableTracking(b"CACHING YES")


class KeyTracking:
    """The mode of one connection, and the commands that change it.

    A server that refuses them sends no invalidations, and the commands that they precede are as
    good as without.

    Attributes:
        is_able: The server is known to track keys without harm, and can send pushes.
    """

    __slots__ = ("_is_refused", "_mode", "is_able")

    def __init__(self) -> None:
        self.is_able = False
        self._mode: EnableTracking | None = None
        self._is_refused = False  # what looks need

    @property
    def tracks_all(self) -> bool:
        """Return whether the server was asked to track all keys."""
        return self._mode is _ALL

    def before_extension(self) -> tuple[EnableTracking, ...]:
        """Return what to send before an extension, so that the server tracks all keys."""
        if not self.is_able or self._mode is _ALL:
            return ()
        was, self._mode = self._mode, _ALL
        return (_ALL,) if was is None else (_OFF, _ALL)

    def before_look(self) -> tuple[EnableTracking, ...]:
        """Return what to send before a look, so that the server tracks its key."""
        if not self.is_able or self._is_refused or self._mode is _ALL:
            return ()
        was, self._mode = self._mode, _ASKED_FOR
        return (_ASKED_FOR, _NEXT) if was is None else (_NEXT,)

    def on_refused(self, command: EnableTracking) -> None:
        """Record an error reply: no look asks again."""
        self._is_refused |= command in (_ASKED_FOR, _NEXT)
