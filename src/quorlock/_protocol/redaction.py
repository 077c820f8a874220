"""Removal of secrets from the texts that a server sends, before they are shown.

A server may play back what it was sent: `ERR unknown command 'EVALSHA', with args beginning with:
...` quotes a lock's token, which is the right to release the lock.  Runs for error texts only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_HIDDEN = "***"
# More than is ever shown; a server's text may have a megabyte.
_TEXT_MAX = 2_048
# A piece of a secret is taken out from this length on: servers cut what they play back.
PIECE_MIN = 6
# Redis and Valkey: "ERR unknown command 'X', with args beginning with: 'a' 'b' ".  What we sent
# is of no use to the reader, and may have been cut anywhere.
_ARGUMENTS = ", with args beginning with:"
# Tokens of others: quorlock's own are 32 hexadecimal digits, many libraries take a UUID.  Numbers
# stay, and so do 40 digits: names of scripts, run_ids.  Not compiled here, which would cost every
# program a millisecond at its start: `re` keeps it once it was needed.
_TOKEN = (
    r"(?i)(?<![0-9a-f])"
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?![0-9a-f]{40}(?![0-9a-f]))(?=\d*[a-f])[0-9a-f]{9,})"
    r"(?![0-9a-f])"
)


def redacted(text: str, secrets: Iterable[str | None] = ()) -> str:
    """Return a server's text without these secrets, and without whatever looks like a token."""
    text = text[:_TEXT_MAX].partition(_ARGUMENTS)[0]
    return re.sub(_TOKEN, _HIDDEN, without(text, secrets))


def without(text: str, secrets: Iterable[str | None]) -> str:
    """Return the text without these secrets and without every longer piece of one."""
    for secret in secrets:
        if secret:
            text = _without_pieces(text.replace(secret, _HIDDEN), secret)
    return text


def _without_pieces(text: str, secret: str) -> str:
    kept: list[str] = []
    start = 0
    while start < len(text):
        end = start + PIECE_MIN
        if end > len(text) or text[start:end] not in secret:
            kept.append(text[start])
            start += 1
            continue
        while end < len(text) and text[start : end + 1] in secret:
            end += 1
        kept.append(_HIDDEN)
        start = end
    return "".join(kept)
