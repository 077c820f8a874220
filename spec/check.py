"""Check the model: cases of the table that must hold hold, and cases that must fail fail.

This module has the cases, their bounds and the text of the counterexamples. redlock.pml,
fence.pml, wait.pml, exchange.pml, several.pml, permits.pml and keep.pml define what can happen, and
spin searches.
Requires Python's standard library, `spin` and a C compiler.

    make spec                        the small table, about two minutes
    make spec ARGS=--full            larger bounds
    make spec ARGS="-k extend"       only cases whose name contains the word
    make spec ARGS=--write           the small table, and update spec/README.md with it
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

MODEL = Path(__file__).with_name("redlock.pml")
FENCE_MODEL = Path(__file__).with_name("fence.pml")
WAIT_MODEL = Path(__file__).with_name("wait.pml")
EXCHANGE_MODEL = Path(__file__).with_name("exchange.pml")
SEVERAL_MODEL = Path(__file__).with_name("several.pml")
PERMITS_MODEL = Path(__file__).with_name("permits.pml")
KEEP_MODEL = Path(__file__).with_name("keep.pml")
SHARED_MODEL = Path(__file__).with_name("shared.pml")
README = Path(__file__).with_name("README.md")

HOLDS, FAILS = "holds", "fails"

INSTALL = """\
The model requires programs that are not installed: {missing}.
  Debian and Ubuntu:  sudo apt-get install -y spin gcc libc6-dev
  macOS:              brew install spin
  elsewhere:          https://spinroot.com (one C program; we use version 6.5.2)"""

Flags = Mapping[str, int]


class Broken(Exception):
    """The compiler, spin or the search failed."""


@dataclass(frozen=True)
class Case:
    """One question to the model and its expected answer."""

    name: str
    says: str
    must: str
    flags: Flags = field(default_factory=dict)
    full: Flags | None = None  # different bounds for --full
    only_full: bool = False
    is_heavy: bool = False  # compile the search with optimization
    is_large: bool = False
    is_fence: bool = False  # uses fence.pml, which counts attempts and has no time
    is_wait: bool = False  # uses wait.pml
    is_exchange: bool = False  # uses exchange.pml
    is_several: bool = False  # uses several.pml
    is_permits: bool = False  # uses permits.pml
    is_keep: bool = False  # uses keep.pml
    is_shared: bool = False  # uses shared.pml

    @property
    def model(self) -> Path:
        """The file of the model."""
        models = (
            (self.is_wait, WAIT_MODEL),
            (self.is_exchange, EXCHANGE_MODEL),
            (self.is_several, SEVERAL_MODEL),
            (self.is_permits, PERMITS_MODEL),
            (self.is_keep, KEEP_MODEL),
            (self.is_shared, SHARED_MODEL),
            (self.is_fence, FENCE_MODEL),
        )
        return next((model for is_its, model in models if is_its), MODEL)

    @property
    def is_progress(self) -> bool:
        """The question is whether waiters wait for ever, not whether an assertion is violated."""
        return self.is_wait and not self.flags.get("HINTS", 0)

    @property
    def is_cyclic(self) -> bool:
        """The search looks for fair runs without end, not only for states without a next step."""
        return self.is_progress and (self.must == HOLDS or "LTL" in self.flags)

    @property
    def bounds(self) -> str:
        """The bounds, as the table shows them."""
        if self.is_fence:
            counts = {"N": 3, "CLIENTS": 2, "ATTEMPTS": 2} | dict(self.flags)
            return "{N:>2} {CLIENTS:>7} {ATTEMPTS:>6}   -".format(**counts)
        if self.is_wait or self.is_exchange:
            counts = {"N": 3, "WAITERS": 3 if self.is_exchange else 2} | dict(self.flags)
            return "{N:>2} {WAITERS:>7}      -   -".format(**counts)
        sizes = {"N": 3, "CLIENTS": 2, "SLOTS": 1, "TTL": 2 if self.is_keep else 3} | dict(
            self.flags
        )
        return "{N:>2} {CLIENTS:>7} {SLOTS:>6} {TTL:>3}".format(**sizes)

    @property
    def defines(self) -> list[str]:
        """The definitions for the preprocessor."""
        # Sorting exploits that nodes are interchangeable. Two that are the same server are not.
        flags = {"SORTED": int("LISTED_TWICE" not in self.flags)} | dict(self.flags)
        if self.is_cyclic:
            flags["LTL"] = 1
        return [f"-D{name}={value}" for name, value in flags.items()]

    def enlarged(self) -> Case:
        """Return this case with the bounds of --full."""
        return replace(
            self, flags={**self.flags, **(self.full or {})}, is_heavy=True, is_large=True
        )


@dataclass(frozen=True)
class Finding:
    """The result of a case."""

    case: Case
    found: str
    states: int
    seconds: float
    trace: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """The model gave the expected answer."""
        return self.found == self.case.must


# --- the cases -------------------------------------------------------------------------------

CRASH = {"CRASH": 1, "QUARANTINE": 3}
DRIFTING = {"DRIFT": 1, "ALLOWANCE": 1}
EXTEND = {"EXTEND": 1}
CONTINUED = {"EXTEND": 1, "CONTINUITY": 1}
ADOPTED = {**CONTINUED, "HAND_OVER": 1}
PENDING = {"PENDING_RELEASES": 1, "REPLIES": 1}
QUICK = {"TTL": 2}
HANDED_ON = {
    "EXTEND": 1,
    "PENDING_RELEASES": 1,
    "REPLIES": 1,
    "TTL": 2,
    "LATE": 0,
    "LONE": 1,
    "HAND_OVER": 1,
}
MARKER = {"MARKER": 1, "QUARANTINE": 3}
ALL_LOSSES = {"CRASH": 1, "FLUSH": 1, "STALE": 1, "PROMOTED": 1}
RESTORED = {**CONTINUED, **QUICK, "RESTORE": 1}
# Memory is lost and no guard notices, so two clients may hold the lock. Even then, an extension of
# an interrupted lease never succeeds.
UNNOTICED = {"EXCLUSION": 0, "FLUSH": 1, "QUIET_LOSS": 1}
# Three clients with one attempt each, and keys that may be free at any moment.
ANY = {"CLIENTS": 3, "ATTEMPTS": 1, "ANY": 1}
PAIR = {"ATTEMPTS": 1, "ANY": 1}
FORGETS = {**ANY, "CRASHES": 1}
BY_ANY_CLIENT = {**PAIR, "WHILE_OURS": 0}
# Nodes forget any number of times.
FORGETTING = {"TTL": 1, "KEPT": 1, "CRASHES": 9}
DONE = {"TTL": 2, "KEPT": 2}
# The mark lives longer than the quarantine.
BEYOND = {"TTL": 1, "KEPT": 2}


def fence(
    name: str, says: str, must: str, flags: Flags, full: Flags | None = None, **more: bool
) -> Case:
    """Return a case of fence.pml."""
    return Case(name, says, must, flags, full, is_fence=True, **more)


def wait(
    name: str, says: str, must: str, flags: Flags, full: Flags | None = None, **more: bool
) -> Case:
    """Return a case of wait.pml."""
    return Case(name, says, must, flags, full, is_wait=True, **more)


def exchange(name: str, says: str, must: str, flags: Flags) -> Case:
    """Return a case of exchange.pml."""
    return Case(name, says, must, flags, is_exchange=True)


def several(
    name: str, says: str, must: str, flags: Flags, full: Flags | None = None, **more: bool
) -> Case:
    """Return a case of several.pml."""
    return Case(name, says, must, flags, full, is_several=True, **more)


def permits(
    name: str, says: str, must: str, flags: Flags, full: Flags | None = None, **more: bool
) -> Case:
    """Return a case of permits.pml."""
    return Case(name, says, must, flags, full, is_permits=True, **more)


def keep(
    name: str, says: str, must: str, flags: Flags, full: Flags | None = None, **more: bool
) -> Case:
    """Return a case of keep.pml."""
    return Case(name, says, must, flags, full, is_keep=True, **more)


def shared(
    name: str, says: str, must: str, flags: Flags, full: Flags | None = None, **more: bool
) -> Case:
    """Return a case of shared.pml."""
    return Case(name, says, must, flags, full, is_shared=True, **more)


CASES = (
    # The lock.
    Case("base", "late SETs, any number of attempts", HOLDS, {}, {"TTL": 5}),
    Case("base, nodes not sorted", "sorting hides nothing", HOLDS, {"SORTED": 0}, {"TTL": 4}),
    Case("base, replies", "replies as messages: no difference", HOLDS, {"REPLIES": 1}),
    Case("base, sent twice", "a SET may arrive again and again", HOLDS, {"TWICE_SENT": 1}),
    Case(
        "base, two attempts",
        "an older attempt of each client is not forgotten",
        HOLDS,
        {"SLOTS": 2, "TTL": 2, "LATE": 0},
        {"LATE": 1},
    ),
    Case("base, three clients", "", HOLDS, {"CLIENTS": 3, "TTL": 2}, {"TTL": 3}, is_heavy=True),
    Case("one node", "", HOLDS, {"N": 1}, {"TTL": 5}),
    Case("two nodes", "quorum 2", HOLDS, {"N": 2}, {"TTL": 5}),
    Case("five nodes", "quorum 3", HOLDS, {"N": 5, "TTL": 2}, {"TTL": 3}),
    Case("four nodes, quorum 3", "", HOLDS, {"N": 4}, {"TTL": 4}),
    Case("four nodes, quorum 2", "N/2 is no majority", FAILS, {"N": 4, "QUORUM": 2}),
    Case("token used again", "one token for all attempts", FAILS, {"FRESH": 0}),
    # Time.
    Case("drift", "1 tick either way, allowance 1", HOLDS, DRIFTING, {"TTL": 5}),
    Case("drift, no allowance", "", FAILS, {"DRIFT": 1, "ALLOWANCE": 0}),
    Case("elapsed not subtracted", "validity counted from the reply", FAILS, {"ELAPSED": 0}),
    Case("clock jump", "one node's clock steps forward", FAILS, {"JUMP": 1}),
    # Nodes that lose their memory, any number of times.
    Case("crash, votes at once", "", FAILS, {"CRASH": 1}),
    Case("crash, quarantine ttl-2", "", FAILS, {"CRASH": 1, "QUARANTINE": 1}),
    Case("crash, quarantine ttl-1", "one tick too short", FAILS, {"CRASH": 1, "QUARANTINE": 2}),
    Case("crash, quarantine ttl", "any number of crashes", HOLDS, CRASH, {"N": 4}, is_heavy=True),
    Case(
        "crash, drift, quarantine = validity",
        "ttl-allowance on a true clock",
        HOLDS,
        {**DRIFTING, "CRASH": 1, "QUARANTINE": 2},
        {"TTL": 4, "QUARANTINE": 3},
    ),
    Case(
        "crash, drift, one tick less",
        "so that bound is tight",
        FAILS,
        {**DRIFTING, "CRASH": 1, "QUARANTINE": 1},
    ),
    Case(
        "crash, drift, quarantine drifts too",
        "timed by the node's clock: ttl",
        HOLDS,
        {**DRIFTING, **CRASH, **QUICK, "QUARANTINE": 2, "QUARANTINE_DRIFT": 1},
        {"TTL": 4, "QUARANTINE": 4},
    ),
    Case(
        "crash, drift, one tick less of that",
        "so that bound is tight too",
        FAILS,
        {**DRIFTING, "CRASH": 1, **QUICK, "QUARANTINE": 1, "QUARANTINE_DRIFT": 1},
    ),
    # Extension, any number of times.
    Case("extend", "", HOLDS, EXTEND, {"TTL": 4}),
    Case("extend, continuity", "no other holder in between", HOLDS, CONTINUED, {"TTL": 4}),
    Case("extend, drift, continuity", "", HOLDS, {**CONTINUED, **DRIFTING}, {"TTL": 4}),
    Case(
        "extend, two attempts",
        "",
        HOLDS,
        {**EXTEND, "SLOTS": 2, "LATE": 0, **QUICK},
        only_full=True,
    ),
    Case(
        "extend late, exclusion", "counted after the old validity", HOLDS, {**EXTEND, "IN_TIME": 0}
    ),
    Case("extend late, continuity", "the same", FAILS, {**CONTINUED, **QUICK, "IN_TIME": 0}),
    Case(
        "extend from its end",
        "validity counted from the end",
        FAILS,
        {**EXTEND, **QUICK, "FROM_START": 0},
    ),
    # A lease that is lost before its end stays valid until the instant that its holder was given.
    Case(
        "promise",
        "released at the end of the promised validity",
        HOLDS,
        {**EXTEND, "PROMISE": 1},
        {"TTL": 4},
    ),
    Case(
        "promise, crash, quarantine ttl",
        "",
        HOLDS,
        {**EXTEND, **CRASH, **QUICK, "QUARANTINE": 2, "PROMISE": 1},
        {"TTL": 3, "QUARANTINE": 3},
        is_heavy=True,
    ),
    Case(
        "promise, released when lost",
        "as soon as the loss is reported",
        FAILS,
        {**EXTEND, **QUICK, "PROMISE": 1, "RELEASED_WHEN_LOST": 1},
    ),
    Case(
        "extend, crash, quarantine ttl",
        "",
        HOLDS,
        {**CONTINUED, **CRASH, **QUICK, "QUARANTINE": 2},
        {"TTL": 3, "QUARANTINE": 3},
        is_heavy=True,
    ),
    Case(
        "extend, quarantined nodes count",
        "a restarted node's vote in extensions",
        FAILS,
        {**EXTEND, **CRASH, **QUICK, "QUARANTINE": 2, "EXTEND_COUNTS_QUARANTINED": 1},
        is_heavy=True,
    ),
    Case(
        "extend, memory lost within its round",
        "no guard: a vote may be older than the loss",
        FAILS,
        {**CONTINUED, **QUICK, "EXCLUSION": 0, "FLUSH": 1},
    ),
    # The kinds of memory loss that each guard notices, any number of times.
    Case("durable, but does not sync", "no quarantine, old keys", FAILS, {"STALE": 1, **QUICK}),
    Case(
        "uptime guard, old keys",
        "from disk: it has restarted, so it waits",
        HOLDS,
        {"STALE": 1, "QUARANTINE": 2, **QUICK},
        {"TTL": 3, "QUARANTINE": 3},
        only_full=True,
    ),
    Case("uptime guard, FLUSHALL", "no trace of it", FAILS, {"FLUSH": 1, "QUARANTINE": 3}),
    Case(
        "uptime guard, replica promoted",
        "it lags, and has run for long",
        FAILS,
        {"PROMOTED": 1, "QUARANTINE": 2, **QUICK},
    ),
    Case(
        "marker guard, FLUSHALL",
        "it goes with the keys",
        HOLDS,
        {**MARKER, "FLUSH": 1, "QUARANTINE": 2, **QUICK},
        {"TTL": 3, "QUARANTINE": 3},
    ),
    Case(
        "marker guard, one tick less",
        "so that bound is tight",
        FAILS,
        {**MARKER, "FLUSH": 1, "QUARANTINE": 1, **QUICK},
    ),
    Case(
        "marker guard, every loss",
        "crash, FLUSHALL, old keys, old replica",
        HOLDS,
        {**MARKER, **ALL_LOSSES, "QUARANTINE": 2, **QUICK, "LATE": 0},
        {"LATE": 1},
        only_full=True,
    ),
    Case(
        "marker guard, no run_id",
        "the old keys bring an old marker",
        FAILS,
        {**MARKER, "STALE": 1, "QUARANTINE": 2, **QUICK, "RUN_ID": 0},
    ),
    Case(
        "marker guard, extend, FLUSHALL",
        "",
        HOLDS,
        {**CONTINUED, **MARKER, "FLUSH": 1, "QUARANTINE": 2, **QUICK},
        {"TTL": 3, "QUARANTINE": 3},
        is_heavy=True,
    ),
    # Renewal that restores missing keys.
    Case("restore", "after a round that was won", HOLDS, RESTORED, {"TTL": 3}),
    Case(
        "restore, crash, quarantine ttl",
        "",
        HOLDS,
        {**RESTORED, **CRASH, "QUARANTINE": 2},
        only_full=True,
    ),
    Case(
        "restore, memory lost between rounds",
        "no guard: still no holder in between",
        HOLDS,
        {**RESTORED, **UNNOTICED},
        {"TTL": 3},
        is_heavy=True,
    ),
    Case(
        "restore, counted in its own round",
        "a key that was set again",
        FAILS,
        {**RESTORED, **UNNOTICED, "RESTORE_COUNTS": 1},
    ),
    Case(
        "restore, after a round not won",
        "the next one finds its keys",
        FAILS,
        {**RESTORED, **UNNOTICED, "RESTORE_UNWON": 1},
    ),
    # Handing over, and adopting by token.
    Case(
        "adopt, exclusion",
        "by token, with no old validity",
        HOLDS,
        {**EXTEND, "HAND_OVER": 1},
        is_heavy=True,
    ),
    Case(
        "adopt, continuity", "another holder may have been in between", FAILS, {**ADOPTED, **QUICK}
    ),
    Case(
        "adopt, only nodes that granted",
        "counting only those is enough",
        HOLDS,
        {**ADOPTED, "ONLY_WHO_GRANTED": 1, **QUICK},
        {"TTL": 3},
    ),
    # The same server twice among three nodes.
    Case("listed twice", "", HOLDS, {"LISTED_TWICE": 1}),
    Case("listed twice, idempotent", "", HOLDS, {"LISTED_TWICE": 1, "IDEMPOTENT": 1}),
    Case(
        "listed twice, idempotent, crash",
        "votes at once",
        FAILS,
        {"LISTED_TWICE": 1, "IDEMPOTENT": 1, "CRASH": 1},
    ),
    Case(
        "listed twice, idempotent, quarantine",
        "a guard closes it",
        HOLDS,
        {"LISTED_TWICE": 1, "IDEMPOTENT": 1, "CRASH": 1, "QUARANTINE": 2, **QUICK},
        {"TTL": 3, "QUARANTINE": 3},
    ),
    # A connection is lost before the reply to a SET: a release is pending, the lease stays held.
    Case(
        "pending release",
        "never counted again, sent at once",
        HOLDS,
        {**PENDING, **QUICK},
        is_heavy=True,
    ),
    Case("pending, extend", "", HOLDS, {**EXTEND, **PENDING, **QUICK}, only_full=True),
    Case(
        "pending, extension counts it",
        "nodes with a pending release",
        FAILS,
        {**EXTEND, **PENDING, **QUICK, "LATE": 0, "EXTEND_COUNTS_PENDING": 1},
        only_full=True,
    ),
    Case(
        "pending, confirmed, restored",
        "counted again when the key is there again",
        HOLDS,
        {**EXTEND, **PENDING, **QUICK, "LATE": 0, "RESTORE": 1, "LONE": 1, "CONFIRMED": 1},
        only_full=True,
    ),
    Case(
        "pending, a copy under way, restored",
        "of the release, over a connection that broke",
        FAILS,
        {
            **EXTEND,
            **PENDING,
            **QUICK,
            "LATE": 0,
            "RESTORE": 1,
            "LONE": 1,
            "CONFIRMED": 1,
            "COPIES": 1,
        },
        only_full=True,
    ),
    # The same, with a lease that is handed over to another process.
    Case(
        "hand-over, releases under way",
        "the adopter knows of them and leaves those nodes alone",
        HOLDS,
        HANDED_ON,
        {"RESTORE": 1},
        is_heavy=True,
    ),
    Case(
        "hand-over, doubts not sent",
        "the adopter does not know of a release under way",
        FAILS,
        {**HANDED_ON, "COPIES": 1, "DOUBT_TRAVELS": 0},
        is_heavy=True,
    ),
    Case(
        "hand-over, doubts not sent, restored",
        "the key set again, counted, deleted",
        FAILS,
        {**HANDED_ON, "COPIES": 1, "DOUBT_TRAVELS": 0, "RESTORE": 1},
        only_full=True,
    ),
    Case(
        "hand-over, suppression forgotten",
        "a SET is unanswered, and its connection breaks",
        FAILS,
        {**HANDED_ON, "COPIES": 1, "SUPPRESSED": 0},
        is_heavy=True,
    ),
    Case(
        "extend by token",
        "from any process, at any time",
        HOLDS,
        {**CONTINUED, "BY_TOKEN": 1},
        {"TTL": 4},
    ),
    # A SET that arrives after its own release.
    Case("orphan", "release over another connection", FAILS, {"ORPHANS": 1}),
    Case("orphan, in order", "release behind its SET", HOLDS, {"ORPHANS": 1, "IN_ORDER": 1}),
    Case("orphan, tombstones", "the node remembers", HOLDS, {"ORPHANS": 1, "TOMBSTONES": 1}),
    # Fences: unique, and larger than any fence issued before the attempt began.
    fence("fence", "keys free at any moment", HOLDS, ANY, {"CLIENTS": 2, "ATTEMPTS": 2}),
    fence(
        "fence, keys honoured",
        "then in the order of holders, too",
        HOLDS,
        {"CLIENTS": 3, "ATTEMPTS": 1},
        {"CLIENTS": 2, "ATTEMPTS": 2},
    ),
    fence("fence, five nodes", "", HOLDS, {**PAIR, "N": 5}, {"UNEVEN": 1}),
    fence(
        "fence, counters follow clocks",
        "and leave numbers out",
        HOLDS,
        {**PAIR, "JUMPS": 1},
        {"CLIENTS": 3},
    ),
    fence("fence, counters begin apart", "", HOLDS, {**PAIR, "UNEVEN": 1}, {"CLIENTS": 3}),
    fence(
        "fence, raised by any client",
        "again and again: rising is enough",
        HOLDS,
        {**BY_ANY_CLIENT, "TWICE_SENT": 1},
        {"CLIENTS": 3},
    ),
    fence(
        "fence, largest + 1, if it rises", "holds, costs a round", HOLDS, {**PAIR, "PLUS_ONE": 1}
    ),
    fence("fence, largest, not written back", "", FAILS, {"WRITTEN_BACK": 0}),
    fence("fence, quorum-th largest", "not written back", FAILS, {"MIDDLE": 1}),
    fence(
        "fence, largest + 1, blind",
        "the raise sets, and says yes",
        FAILS,
        {**BY_ANY_CLIENT, "PLUS_ONE": 1, "BLIND": 1},
    ),
    fence(
        "fence, largest + 1, merged",
        "the raise keeps the larger, and says yes",
        FAILS,
        {**BY_ANY_CLIENT, "PLUS_ONE": 1, "MERGE": 1},
    ),
    fence(
        "fence, largest, merged",
        "the raise always says yes",
        FAILS,
        {**BY_ANY_CLIENT, "MERGE": 1},
    ),
    # A node loses its counter.
    fence(
        "fence, crash, seeded above",
        "by a clock: above all that it issued",
        HOLDS,
        {**PAIR, "CRASHES": 1, "JUMPS": 1, "RESTORE": 1},
        {"CLIENTS": 3, "JUMPS": 0},
    ),
    fence(
        "fence, counter lost alone",
        "evicted, or run out",
        HOLDS,
        {**FORGETS, "KEY_STAYS": 1},
        only_full=True,
    ),
    fence(
        "fence, two crashes",
        "",
        HOLDS,
        {**FORGETS, "CRASHES": 2, "AHEAD": 0},
        only_full=True,
    ),
    fence("fence, crash, from 0", "", FAILS, {**FORGETS, "RESEED": 0}),
    fence("fence, crash, clock set back", "", FAILS, {**FORGETS, "BEHIND": 1}),
    fence("fence, one node, clock set back", "", FAILS, {**FORGETS, "N": 1, "BEHIND": 1}),
    fence(
        "fence, crash, abstains",
        "until a holder gives it a fence",
        FAILS,
        {**FORGETS, "ABSTAIN": 1},
        is_heavy=True,
    ),
    fence(
        "fence, crash, raise accepted",
        "although it has no counter",
        FAILS,
        {**FORGETS, "AHEAD": 0, "WHILE_OURS": 0, "RAISE_ABSENT": 1},
        is_heavy=True,
    ),
    fence(
        "fence, crash, seeded by its holder",
        "a restored key begins from an old fence",
        FAILS,
        {**FORGETS, "AHEAD": 0, "RESTORE": 1, "SEED_FROM_FENCE": 1},
        is_heavy=True,
    ),
    # Waiting: exclusion, whatever the queues, calls and reservations say.
    wait("hints", "at any time, any of them", HOLDS, {"HINTS": 1}),
    wait(
        "hints, three waiters",
        "",
        HOLDS,
        {"HINTS": 1, "WAITERS": 3, "ROOM": 2},
        only_full=True,
    ),
    wait(
        "hints, holder overwritten",
        "by a waiter that was called",
        FAILS,
        {"HINTS": 1, "HOLDER_RESPECTED": 0},
    ),
    wait(
        "hints, reservation is a vote",
        "counted without an acquire",
        FAILS,
        {"HINTS": 1, "CALLS_ARE_VOTES": 1},
    ),
    # Waiting: progress. Every waiter holds, leaves or crashes, and every key goes.
    wait("queue", "", HOLDS, {}),
    wait("queue, two nodes", "as if one of three hangs", HOLDS, {"N": 2}),
    wait("queue, a fault", "call, place, acquire, queue lost", HOLDS, {"FAULTS": 1}),
    wait(
        "queue, a fault and a crash",
        "of a waiter or holder",
        HOLDS,
        {"FAULTS": 1, "CRASHES": 1},
        only_full=True,
    ),
    wait(
        "queue, two nodes, fault and crash",
        "",
        HOLDS,
        {"N": 2, "FAULTS": 1, "CRASHES": 1},
    ),
    wait("queue, waiters leave", "", HOLDS, {"QUITS": 1}),
    wait(
        "queue, the key is deleted",
        "or expires; no release passes it on",
        HOLDS,
        {"N": 2, "HELD": 1, "DELETED": 1},
        {"N": 3},
    ),
    wait("queue, no place stays", "", HOLDS, {"HELD": 1, "CLEAN": 1, "ROOM": 4}),
    wait(
        "queue, three waiters",
        "commands of two under way",
        HOLDS,
        {"WAITERS": 3, "HELD": 1, "ROOM": 2, "PARALLEL": 2},
    ),
    wait("queue, three waiters, two nodes", "", HOLDS, {"WAITERS": 3, "N": 2}, {"FAULTS": 1}),
    wait("queue, no looks, no faults", "looks are for faults", HOLDS, {"LOOKS": 0}),
    wait(
        "queue, no looks",
        "two calls are lost",
        FAILS,
        {"N": 2, "FAULTS": 2, "LOOKS": 0},
    ),
    wait(
        "queue, no expiry",
        "a reservation for a dead waiter stays",
        FAILS,
        {"CRASHES": 1, "EXPIRY": 0},
    ),
    wait(
        "queue, correction adds a place",
        "ZADD without XX",
        FAILS,
        {"HELD": 1, "CLEAN": 1, "ROOM": 4, "ONLY_QUEUED": 0},
    ),
    wait(
        "queue, not queued again",
        "after a lost round (no looks, no faults)",
        FAILS,
        {"LOOKS": 0, "QUEUES_AGAIN": 0},
    ),
    wait(
        "queue, joined while free",
        "and not called (no looks, no faults)",
        FAILS,
        {"LOOKS": 0, "JOIN_PASSES": 0},
    ),
    wait(
        "queue, no patience",
        "split calls, and no waiter asks",
        FAILS,
        {"N": 2, "PATIENCE": 0},
    ),
    wait(
        "queue, patience without chance",
        "rounds collide for ever",
        FAILS,
        {"N": 2, "IN_TURN": 0, "LTL": 1},
    ),
    # One process hands the lock over from thread to thread, or from task to task.
    exchange("exchange", "two connections break", HOLDS, {}),
    exchange("exchange, lease not over", "before it is sent", FAILS, {"LEASE_OVER": 0}),
    exchange("exchange, any token", "replaced, not only the old one", FAILS, {"ONLY_OLD": 0}),
    exchange("exchange, old not released", "where it was lost", FAILS, {"OLD_RELEASED": 0}),
    exchange("exchange, new not released", "where it arrives late", FAILS, {"NEW_RELEASED": 0}),
    exchange("exchange, another connection", "overtakes, or is overtaken", FAILS, {"FOLLOWS": 0}),
    # Locks on several keys: sets of two keys.
    several("several keys", "", HOLDS, {}),
    several("several keys, drift 1", "and its allowance", HOLDS, {**QUICK, "DRIFT": 1}, {"TTL": 3}),
    several(
        "several keys, no allowance", "the same drift", FAILS, {**QUICK, "DRIFT": 1, "ALLOWANCE": 0}
    ),
    several("several keys, first looked at", "the others are set too", FAILS, {"PARTIAL": 1}),
    several("several keys, crash", "votes at once", FAILS, {**QUICK, "CRASH": 1}),
    several(
        "several keys, crash, quarantine",
        "",
        HOLDS,
        {**QUICK, "CRASH": 1, "QUARANTINE": 2},
        is_heavy=True,
    ),
    several("several keys, extended", "", HOLDS, {**QUICK, "EXTEND": 1}, is_heavy=True),
    several("several keys, three clients", "", HOLDS, {"CLIENTS": 3, "TTL": 1}, only_full=True),
    several("several keys, five nodes", "", HOLDS, {**QUICK, "N": 5}, only_full=True),
    # Permits of a semaphore: a quorum gives the same one of two.
    permits("permits", "each node gives any that is free", HOLDS, QUICK, {"TTL": 3}, is_heavy=True),
    permits("permits, one", "a semaphore of one is a lock", HOLDS, {"K": 1}),
    permits("permits, five nodes", "", HOLDS, {"N": 5, "TTL": 1}, is_heavy=True),
    permits("permits, drift", "", HOLDS, {**QUICK, "DRIFT": 1}, {"TTL": 3}, is_heavy=True),
    permits("permits, drift, no allowance", "", FAILS, {**QUICK, "DRIFT": 1, "ALLOWANCE": 0}),
    permits("permits, crash, votes at once", "", FAILS, {**QUICK, "CRASH": 1}),
    permits(
        "permits, crash, quarantine ttl",
        "",
        HOLDS,
        {**QUICK, "CRASH": 1, "QUARANTINE": 2},
        only_full=True,
    ),
    permits("permits, extended", "", HOLDS, {**QUICK, "EXTEND": 1}, only_full=True),
    permits("permits, three clients", "", HOLDS, {"CLIENTS": 3, "TTL": 1}, only_full=True),
    permits(
        "permits, two attempts",
        "an older attempt of each client is not forgotten",
        HOLDS,
        {"K": 1, "SLOTS": 2, "TTL": 1},
        only_full=True,
    ),
    permits("permits, a quorum of any", "perhaps different ones", FAILS, {**QUICK, "ANY_PLACE": 1}),
    permits(
        "permits, counted",
        "two of three nodes admit each of three",
        FAILS,
        {"CLIENTS": 3, "TTL": 1, "COUNTED": 1},
        {"TTL": 2},
        is_heavy=True,
    ),
    permits(
        "permits, counted, five nodes",
        "three of five",
        FAILS,
        {"N": 5, "CLIENTS": 3, "TTL": 1, "COUNTED": 1},
        only_full=True,
    ),
    permits(
        "permits, counted by all nodes",
        "no fault is tolerated",
        HOLDS,
        {"QUORUM": 3, "CLIENTS": 3, "TTL": 1, "COUNTED": 1},
        only_full=True,
    ),
    # Once: the lock is kept as done, within max_ttl (the ttl of the model) and beyond it.
    keep("kept", "for max_ttl, nodes forget", HOLDS, FORGETTING, {"TTL": 2, "KEPT": 2}),
    keep("kept, quarantine ttl - 1", "", FAILS, {**FORGETTING, "QUARANTINE": 0}),
    keep("kept, drift", "", HOLDS, {**DONE, "DRIFT": 1}, {"TTL": 3, "KEPT": 4}),
    keep("kept, drift, no allowance", "", FAILS, {"TTL": 2, "KEPT": 3, "DRIFT": 1, "ALLOWANCE": 0}),
    keep("kept, nothing compared", "the mark replaces any token", FAILS, {**DONE, "COMPARE": 0}),
    keep("kept, counted late", "after the validity", FAILS, {**DONE, "IN_TIME": 0}),
    keep("kept, mark is the token", "its release is late", FAILS, {**DONE, "MARK_IS_TOKEN": 1}),
    keep("kept beyond max_ttl", "no node forgets", HOLDS, BEYOND, {"TTL": 2, "KEPT": 5}),
    keep("kept beyond, bare quorum", "one of it forgets", FAILS, {**BEYOND, "CRASHES": 1}),
    keep(
        "kept beyond, everywhere",
        "a minority forgets",
        HOLDS,
        {**BEYOND, "EVERYWHERE": 1, "CRASHES": 1},
        {"TTL": 2, "KEPT": 5},
    ),
    keep(
        "kept beyond, quorum forgets",
        "it was everywhere",
        FAILS,
        {**BEYOND, "EVERYWHERE": 1, "CRASHES": 2},
    ),
    keep("kept, five nodes", "", HOLDS, {"TTL": 1, "KEPT": 1, "N": 5}, only_full=True),
    # Readers that share a lock, and writers.
    shared("shared", "each attempt reads or writes", HOLDS, QUICK, {"TTL": 3}, is_heavy=True),
    shared("shared, drift", "", HOLDS, {**QUICK, "DRIFT": 1}, {"TTL": 3}, is_heavy=True),
    shared("shared, drift, no allowance", "", FAILS, {**QUICK, "DRIFT": 1, "ALLOWANCE": 0}),
    shared("shared, crash, votes at once", "", FAILS, {**QUICK, "CRASH": 1}),
    shared("shared, crash, quarantine ttl-1", "", FAILS, {**QUICK, "CRASH": 1, "QUARANTINE": 1}),
    shared(
        "shared, crash, quarantine ttl",
        "",
        HOLDS,
        {**QUICK, "CRASH": 1, "QUARANTINE": 2},
        only_full=True,
    ),
    shared("shared, extended", "", HOLDS, {**QUICK, "EXTEND": 1}, only_full=True),
    shared("shared, three clients", "", HOLDS, {"CLIENTS": 3, "TTL": 1}, only_full=True),
    shared("shared, five nodes", "", HOLDS, {**QUICK, "N": 5}, only_full=True),
    shared(
        "shared, two attempts",
        "an older attempt of each client is not forgotten",
        HOLDS,
        {"SLOTS": 2, "TTL": 1},
        only_full=True,
    ),
    shared("shared, beside a writer", "a node grants readers always", FAILS, {**QUICK, "LAX": 1}),
    shared(
        "shared, readers are counted",
        "a release takes one away, wherever it arrives",
        FAILS,
        {"CLIENTS": 3, "TTL": 1, "COUNTING": 1},
        {"TTL": 2},
        is_heavy=True,
    ),
    shared(
        "shared, upgrade, key released",
        "a reader becomes the writer; where no quorum agreed, its key is released",
        FAILS,
        {**QUICK, "UPGRADE": 1},
        is_heavy=True,
    ),
    shared(
        "shared, upgrade, a reader again",
        "the same; it is made a reader again",
        FAILS,
        {**QUICK, "UPGRADE": 2},
        is_heavy=True,
    ),
    shared(
        "shared, upgrade, lease ends",
        "the same; it is a reader no more",
        HOLDS,
        {**QUICK, "UPGRADE": 3},
        is_heavy=True,
    ),
)


# --- one case --------------------------------------------------------------------------------


def check(case: Case, folder: Path) -> Finding:
    """Check one case in an empty folder."""
    # Breadth first finds the shortest counterexample.
    started = time.monotonic()
    search = ["-DBFS"] if case.must == FAILS and not case.is_cyclic else ["-DNOREDUCE"]
    search += [] if case.is_cyclic else ["-DSAFETY"]
    optimized = "-O2" if case.is_heavy else "-O0"
    compile_model(case.defines, [*search, optimized], folder, case.model)
    output = run(["./pan", *looked_for(case), *room(case)], folder)
    states = number(r"^\s*(\d+) states, stored", output)
    if re.search(r"errors: 0\b", output):
        no_gap(output)
        return Finding(case, HOLDS, states, time.monotonic() - started)
    trace = tuple(counterexample(case, folder))
    return Finding(case, FAILS, states, time.monotonic() - started, trace)


def looked_for(case: Case) -> list[str]:
    """Return the options for what is an error, in addition to assertions."""
    if case.is_cyclic:
        return ["-a", "-f"]  # runs without end in which each process takes its turn
    return [] if case.is_progress else ["-E"]  # states that have no next step


def room(case: Case) -> list[str]:
    """Return the depth limit of the search and the initial size of its table."""
    if case.is_cyclic and case.must == FAILS:
        return ["-m95", "-w20"]  # the search is not breadth first, so this keeps the example short
    return ["-m20000000", "-w22"] if case.is_large else ["-m2000000", "-w20"]


def compile_model(defines: Sequence[str], search: Sequence[str], folder: Path, model: Path) -> None:
    """Compile `pan`, the search program of this case."""
    run(["spin", "-a", *defines, str(model)], folder)
    if not (folder / "pan.c").exists():
        raise Broken(f"spin made no search program of {model}")
    options = ["-w", "-DMEMLIM=8000", *search]
    run(["gcc", *options, "-o", "pan", "pan.c"], folder)


def no_gap(output: str) -> None:
    """Raise Broken if the search was not exhaustive: it would prove nothing."""
    for sign in ("max search depth too small", "out of memory", "Search not completed"):
        if sign in output:
            raise Broken(f"the search was not exhaustive: {sign}\n{output}")


def counterexample(case: Case, folder: Path) -> Iterator[str]:
    """Yield the steps to the violation, in words."""
    trail = next(folder.glob("*.trail"), None)
    if trail is None:
        raise Broken("a violation without a trail")
    replay = ["spin", "-t", "-T", "-k", trail.name, *case.defines, str(case.model)]
    steps = run(replay, folder, may_fail=True).splitlines()
    yield from merged(named(steps))


def named(steps: Sequence[str]) -> Iterator[str]:
    """Yield the steps that the model describes, with the node numbers from before its sorting."""
    names = list(range(10))
    for step in steps:
        if swap := re.fullmatch(r"\s*swap (\d)", step):
            here = int(swap[1])
            names[here], names[here + 1] = names[here + 1], names[here]
        elif "START OF CYCLE" in step:
            yield "  ! from here again and again:"
        elif re.match(r"[A-C]: |   [a-z]|  ! ", step):
            yield re.sub(r"node (\d)", lambda match: f"node {names[int(match[1])]}", step.rstrip())


def merged(steps: Iterator[str]) -> Iterator[str]:
    """Merge consecutive ticks into one line."""
    ticks = 0
    for step in steps:
        if step == "   a tick passes":
            ticks += 1
            continue
        if ticks:
            yield f"   {ticks} ticks pass" if ticks > 1 else "   a tick passes"
        ticks = 0
        yield step


def run(command: Sequence[str], folder: Path, *, may_fail: bool = False) -> str:
    """Run a command and return its output, including stderr."""
    done = subprocess.run(
        command, cwd=folder, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    output = done.stdout + done.stderr
    if done.returncode and not may_fail:
        raise Broken(f"{' '.join(command)}: exit {done.returncode}\n{output}")
    return output


def number(pattern: str, output: str) -> int:
    """Return the number that the pattern finds in the output."""
    if match := re.search(pattern, output, re.MULTILINE):
        return int(match[1])
    raise Broken(f"no {pattern!r} in\n{output}")


# --- all cases -------------------------------------------------------------------------------


def check_in_folder(case: Case) -> Finding:
    """Check one case in a temporary folder; an error becomes a finding."""
    with tempfile.TemporaryDirectory(prefix="quorlock-spec-") as folder:
        try:
            return check(case, Path(folder))
        except Broken as error:
            return Finding(case, "broken", 0, 0.0, tuple(str(error).splitlines()))


def check_all(cases: Sequence[Case], jobs: int) -> Iterator[Finding]:
    """Check the cases, `jobs` at a time, and yield the findings in the order of the cases."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(check_in_folder, cases)


def chosen(word: str, *, full: bool) -> list[Case]:
    """Return the cases to check, with their bounds."""
    cases = [case for case in CASES if word in case.name]
    if full:
        return [case.enlarged() for case in cases]
    return [case for case in cases if not case.only_full]


# --- what is shown ---------------------------------------------------------------------------

HEAD = (
    f"{'case':<37} {'N':>2} clients tokens ttl  {'must':<5}  {'found':<6}"
    f" {'states':>11} {'seconds':>8}"
)


def row(finding: Finding) -> str:
    """Return one line of the table."""
    case = finding.case
    wrong = "" if finding.is_right else "  <-- WRONG"
    return (
        f"{case.name:<37} {case.bounds}  {case.must:<5}  {finding.found:<6}"
        f" {finding.states:>11,} {finding.seconds:>8.1f}{wrong}"
    )


def described(finding: Finding) -> str:
    """Return a failing case with its shortest counterexample."""
    says = f": {finding.case.says}" if finding.case.says else ""
    return "\n".join([f"{finding.case.name}{says}", *(f"    {step}" for step in finding.trace)])


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """Return the last line of the output."""
    wrong = [finding.case.name for finding in findings if not finding.is_right]
    states = sum(finding.states for finding in findings)
    verdict = f"WRONG: {', '.join(wrong)}" if wrong else "all as expected"
    return f"{len(findings)} cases, {states:,} states, {seconds:.0f} s: {verdict}"


def missing() -> list[str]:
    """Return the missing programs: spin, gcc (which spin calls) and the headers of C."""
    lacks = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if "gcc" not in lacks:
        probe = ["gcc", "-fsyntax-only", "-x", "c", "-"]
        done = subprocess.run(probe, input=b"#include <stdio.h>", capture_output=True, check=False)
        lacks += ["libc6-dev"] if done.returncode else []
    return lacks


# --- the page --------------------------------------------------------------------------------


def with_blocks(page: str, findings: Sequence[Finding]) -> str:
    """Return the page with the blocks that are generated from these findings."""
    table = "\n".join([HEAD, *(row(finding) for finding in findings)])
    traces = "\n\n".join(described(finding) for finding in findings if finding.trace)
    for name, text in (("table", table), ("counterexamples", traces)):
        mark = f"<!-- {name}: written by check.py --write -->\n"
        before, rest = page.split(mark)
        after = rest.split("<!-- end -->", 1)[1]
        page = f"{before}{mark}```text\n{text}\n```\n<!-- end -->{after}"
    return page


# --- the command -----------------------------------------------------------------------------


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="spec/check.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="small bounds (the default)")
    parser.add_argument("--full", action="store_true", help="larger bounds: minutes, gigabytes")
    parser.add_argument("--write", action="store_true", help="update spec/README.md")
    parser.add_argument("-k", metavar="WORD", default="", help="only cases whose name contains it")
    parser.add_argument("-j", metavar="JOBS", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(given)


def main(given: Sequence[str] = tuple(sys.argv[1:])) -> int:
    """Check the cases and print the findings; return 0 if all are as expected."""
    asked = arguments(given)
    if lacks := missing():
        print(INSTALL.format(missing=", ".join(lacks)), file=sys.stderr)
        return 2
    started = time.monotonic()
    print(HEAD, flush=True)
    findings = []
    for finding in check_all(chosen(asked.k, full=asked.full), asked.j):
        findings.append(finding)
        print(row(finding), flush=True)
    print("\nthe shortest counterexample of each case that fails:\n")
    for finding in findings:
        if finding.trace:
            print(described(finding), end="\n\n")
    print(summary(findings, time.monotonic() - started))
    if asked.write:
        README.write_text(with_blocks(README.read_text(), findings))
    return 0 if findings and all(finding.is_right for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
