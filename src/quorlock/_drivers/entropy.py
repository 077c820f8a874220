"""Tokens and random delays from the operating system, safe across fork and threads."""

from __future__ import annotations

import binascii
import os

from quorlock._core.owner import tail
from quorlock._drivers import fork

TOKEN_BYTES = 16  # 128 bits (rule 2); 32 hexadecimal digits on the wire


class SystemEntropy:
    """The core's `Entropy`, from `os.urandom`; every token ends in the owner."""

    def __init__(self, owner: str | None = None) -> None:
        self._owner = owner
        self._tail = _tail(owner)
        fork.register(self)

    def reset_after_fork(self) -> None:
        """Name the forked child as the owner, instead of its parent."""
        self._tail = _tail(self._owner)

    def token(self) -> bytes:
        """Return a fresh proof of ownership, in plain ASCII."""
        # The result of `secrets.token_hex`, in two calls instead of seven. Importing `secrets`
        # takes 9 ms, for OpenSSL and three modules of random numbers that are not used here.
        return binascii.hexlify(os.urandom(TOKEN_BYTES)) + self._tail

    def between(self, shortest: int, longest: int) -> int:
        """Return a random duration in ns, both ends included."""
        # With 128 bits the remainder favours no value by as much as one in 2**64.
        return shortest + int.from_bytes(os.urandom(16), "big") % (longest - shortest + 1)


def _tail(owner: str | None) -> bytes:
    if owner is None or owner == "":
        return b""
    from socket import gethostname  # here: the driver loads it, and it is a slow import

    return tail(owner, gethostname(), os.getpid())
