"""Tokens and random pauses, from the operating system: safe across fork and threads."""

from __future__ import annotations

import binascii
import os

TOKEN_BYTES = 16  # 128 bits (rule 2); 32 hexadecimal digits on the wire


class SystemChance:
    """The core's `Chance`, for real."""

    def token(self) -> bytes:
        """A fresh proof of ownership, plain ASCII."""
        # As secrets.token_hex does it, in two calls where that takes seven; and to import secrets
        # takes 9 ms, for OpenSSL and three modules of random numbers that nobody uses here.
        return binascii.hexlify(os.urandom(TOKEN_BYTES))

    def between(self, shortest: int, longest: int) -> int:
        """A random duration in ns, both ends included."""
        # Of so many bits that the remainder favours no value by as much as one in 2**64.
        return shortest + int.from_bytes(os.urandom(16), "big") % (longest - shortest + 1)
