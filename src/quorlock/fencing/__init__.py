"""Helpers by which what a lock protects refuses a late writer: docs/fencing.md tells how.

    fences.py    what a fence may be
    statements.py   SQL as text and parameters, for any driver
    sql.py       runs it over a DB-API connection
    redis.py     scripts, and what runs them through a client of yours
    files.py     files that are replaced as a whole

One rule everywhere: a fence is accepted if none above it was accepted before, and the record of it
is kept where the data is and changes with it.  quorlock.asyncio.fencing has the same names, with
`await`.  Nothing here needs a Redlock or is imported by it.
"""

from __future__ import annotations

from quorlock.fencing.files import FencedFile
from quorlock.fencing.redis import FENCED_CLAIM, FENCED_SET, FencedRedis, fenced
from quorlock.fencing.sql import FencedRows, FenceTable
from quorlock.fencing.statements import Statement

__all__ = [
    "FENCED_CLAIM",
    "FENCED_SET",
    "FenceTable",
    "FencedFile",
    "FencedRedis",
    "FencedRows",
    "Statement",
    "fenced",
]
