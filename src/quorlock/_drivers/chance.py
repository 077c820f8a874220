"""Tokens and random pauses, from the operating system: safe across fork and threads."""

from __future__ import annotations

import secrets

TOKEN_BYTES = 16  # 128 bits (rule 2); 32 hexadecimal digits on the wire


class SystemChance:
    """The core's `Chance`, for real."""

    def token(self) -> bytes:
        """A fresh proof of ownership, plain ASCII."""
        return secrets.token_hex(TOKEN_BYTES).encode()

    def between(self, shortest: int, longest: int) -> int:
        """A random duration in ns, both ends included."""
        return shortest + secrets.randbelow(longest - shortest + 1)
