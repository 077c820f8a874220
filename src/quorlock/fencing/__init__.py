"""Helpers that let a protected resource refuse a late writer (docs/how-to/fencing.md).

    fences.py       which values are fences
    statements.py   SQL as text and parameters, for any driver
    connections.py  the connections that statements run over, and their transactions
    sql.py          runs statements over a connection
    redis.py        scripts, run through the user's client
    files.py        files that are replaced as a whole

One rule everywhere: a fence is accepted if no larger one was accepted before.  The record of it is
kept with the data and changes with it.  quorlock.asyncio.fencing has the same names, with `await`.
This package neither needs nor imports a Redlock.
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
