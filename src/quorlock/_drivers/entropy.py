"""Tokens and random delays from the operating system, safe across fork and threads."""

from __future__ import annotations

import binascii
import os
import sys
from typing import TYPE_CHECKING

from quorlock._core.owner import tail
from quorlock._drivers import fork

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_BYTES = 16  # 128 bits (rule 2); 32 hexadecimal digits on the wire


def _source() -> Callable[[int], bytes]:
    """Return the function that gets random bytes from the kernel.

    `os.urandom` releases the interpreter lock for that: if other threads want it, this one has to
    wait for all of them. `os.getrandom` makes the same system call, and keeps the lock.
    """
    if sys.platform == "linux":
        try:
            os.getrandom(TOKEN_BYTES, os.GRND_NONBLOCK)
        except OSError:  # a kernel that has just started, or a sandbox
            pass
        else:
            return os.getrandom
    return os.urandom


random_bytes = _source()


class SystemEntropy:
    """The core's `Entropy`, from the kernel; every token ends in the owner."""

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
        return binascii.hexlify(random_bytes(TOKEN_BYTES)) + self._tail

    def between(self, shortest: int, longest: int) -> int:
        """Return a random duration in ns, both ends included."""
        # With 128 bits the remainder favours no value by as much as one in 2**64.
        return shortest + int.from_bytes(random_bytes(16), "big") % (longest - shortest + 1)


def _tail(owner: str | None) -> bytes:
    if owner is None or owner == "":
        return b""
    from socket import gethostname  # here: the driver loads it, and it is a slow import

    return tail(owner, gethostname(), os.getpid())
