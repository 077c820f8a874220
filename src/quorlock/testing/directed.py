"""Orders of events that matter and that chance rarely finds, each written down by hand.

Each is a small world (`choices`) and what happens in it, one choice after the other, as a reader
would tell it; from there on it goes to its end in fair weather.  `aimed_at` names the break
(`tests/simulation/mutations.py`) under which that very order breaks a promise; the tests play each
with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quorlock.testing.choices import TTL_MS, Choice, ChosenWorld, Small

if TYPE_CHECKING:
    from quorlock.testing.checker import Judgement
    from quorlock.testing.trace import Trace


class NoSuchChoice(LookupError):
    """What is written there cannot happen then."""


@dataclass(frozen=True, slots=True)
class Directed:
    """One order of events.

    Attributes:
        steps: choices in their own words ("request c0 n1"; "(1.0)" behind it is the connection:
            bundle and life). "?" before one: only if it may happen then.
        aimed_at: the break that this order shows; rule: the promise that is broken by it.
    """

    name: str
    summary: str
    small: Small
    steps: tuple[str, ...]
    aimed_at: str
    rule: str


def play(directed: Directed, trace: Trace | None = None) -> tuple[ChosenWorld, Judgement]:
    """What happens, and the judgement of it. Raises NoSuchChoice."""
    world = ChosenWorld(directed.small, trace, eager=False)
    for number, step in enumerate(directed.steps):
        choice = _named(world, step.removeprefix("?"))
        if choice is not None:
            world.perform(choice)
        elif not step.startswith("?"):
            there = ", ".join(map(str, world.choices()))
            raise NoSuchChoice(f"{directed.name}, step {number}: no {step!r} among {there}")
    judgement = world.conclude()
    if trace is not None:
        trace.finish(judgement)
    return world, judgement


def _named(world: ChosenWorld, words: str) -> Choice | None:
    return next((choice for choice in world.choices() if str(choice) == words), None)


def _asks(client: int, *nodes: int) -> tuple[str, ...]:
    """Requests arrive, and are answered at once."""
    return tuple(
        step
        for node in nodes
        for step in (f"request c{client} n{node}", f"reply c{client} n{node}")
    )


def _arrive(what: str, client: int, *nodes: int) -> tuple[str, ...]:
    return tuple(f"{what} c{client} n{node}" for node in nodes)


# --- late bytes ------------------------------------------------------------------------------


def late_set() -> Directed:
    """The SET of a closed connection arrives after its release over the next one was paid."""
    return Directed(
        "late_set",
        "a SET arrives after its release, which went over another connection",
        Small(nodes=1, clients=1, breaks=1),
        (
            *("begin c0", "break c0 n0", "connect c0 n0"),
            *("request c0 n0 (0.1)", "reply c0 n0 (0.1)", "request c0 n0"),
        ),
        "paid once is settled",
        "leftover",
    )


def reply_lost() -> Directed:
    """The key is set, the answer never comes, and the next connection pays the debt."""
    return Directed(
        "reply_lost",
        "the reply to a SET is lost with its connection, and another is made",
        Small(nodes=1, clients=1, breaks=1),
        ("begin c0", "request c0 n0", "break c0 n0", "connect c0 n0"),
        "debt not paid after a reconnect",
        "leftover",
    )


def reply_lost_unnoted() -> Directed:
    """The same, where a lost connection leaves nothing to pay."""
    same = reply_lost()
    return replace(same, name="reply_lost_unnoted", aimed_at="no debt for a lost connection")


def unanswered_give_back() -> Directed:
    """One node has set the key and was not heard in time: it must be told all the same."""
    return Directed(
        "unanswered_give_back",
        "a node that granted is not heard before the deadline",
        Small(nodes=3, clients=1, jumps=1),
        ("begin c0", "request c0 n0", "time"),
        "give-back only on nodes that said yes",
        "leftover",
    )


def overtaking_release() -> Directed:
    """The third SET is still under way when the lease is released over the other connection."""
    return Directed(
        "overtaking_release",
        "a release over another connection while a SET is under way",
        Small(nodes=3, clients=1, bundles=2),
        ("begin c0", *_asks(0, 0, 1), "go c0", "?request c0 n2 (1.0)", "request c0 n2"),
        "release overtaking acquire",
        "leftover",
    )


# --- votes -----------------------------------------------------------------------------------


def split_vote() -> Directed:
    """Two clients, two nodes, one each: half is no majority."""
    return Directed(
        "split_vote",
        "each of two clients gets one of two nodes",
        Small(nodes=2, clients=2),
        ("begin c0", "begin c1", *_asks(0, 0), *_asks(1, 1)),
        "quorum of N/2",
        "overlap",
    )


def split_vote_tie() -> Directed:
    """The same, seen by who goes on waiting for a vote that cannot come."""
    return Directed(
        "split_vote_tie",
        "a tie of two nodes is decided at once",
        Small(nodes=2, clients=2),
        ("begin c0", "begin c1", *_asks(0, 0), *_asks(1, 1), "request c0 n1", "reply c0 n1"),
        "even-N tie waits for ever",
        "endless",
    )


def late_reply() -> Directed:
    """The yes of a first attempt is heard in the second, when somebody else holds the lock."""
    nodes = (0, 1, 2)
    return Directed(
        "late_reply",
        "replies of round k arrive in round k + 1",
        Small(nodes=3, clients=2, attempts=2, jumps=2),
        (
            *("begin c0", *_arrive("request", 0, *nodes), "time"),  # set, unheard; gives back
            *_arrive("request", 0, *nodes),  # deleted, unheard; rests
            *("begin c1", *_asks(1, 0, 1)),  # the lock is another's
            *("time", "reply c0 n0", "reply c0 n1"),  # asks again, and hears the old yes
        ),
        "replies not tied to rounds",
        "overlap",
    )


def stolen() -> Directed:
    """A SET on a key that is there."""
    return Directed(
        "stolen",
        "a SET meets another's key",
        Small(nodes=3, clients=2),
        ("begin c0", *_asks(0, 0, 1), "begin c1", *_asks(1, 0, 1)),
        "SET without NX",
        "overlap",
    )


# --- tokens ----------------------------------------------------------------------------------


def old_release() -> Directed:
    """What was owed for a first attempt is paid once more while the second holds the lock."""
    return Directed(
        "old_release",
        "a late release of attempt 1 meets the key of attempt 2",
        Small(nodes=1, clients=2, attempts=2, breaks=1, jumps=2),
        (
            *("begin c0", "break c0 n0", "connect c0 n0"),
            *("request c0 n0 (0.1)", "reply c0 n0 (0.1)", "time"),  # paid; asks again
            *("request c0 n0 (0.1)", "reply c0 n0 (0.1)", "time"),  # won; owed once more
            *("request c0 n0 (0.1)", "begin c1", "request c1 n0", "reply c1 n0"),
        ),
        "token reused between attempts",
        "overlap",
    )


def foreign_give_back() -> Directed:
    """Who is refused gives back on all nodes: there it must not delete what is another's."""
    return Directed(
        "foreign_give_back",
        "the give-back of one who was refused meets the holder's keys",
        Small(nodes=3, clients=3),
        (
            *("begin c0", *_asks(0, 0, 1), "begin c1", *_asks(1, 0, 1)),
            *("request c1 n0", "request c1 n1", "begin c2", *_asks(2, 0, 1)),
        ),
        "release by plain DEL",
        "overlap",
    )


# --- time ------------------------------------------------------------------------------------


def slow_clock() -> Directed:
    """The holder's clock is as slow as clocks may be, the nodes' are true: the keys end first?"""
    return Directed(
        "slow_clock",
        "a lease is held to its end by a slow clock, and another asks at the end of the keys",
        Small(nodes=3, clients=2, jumps=2),
        ("begin c0", *_asks(0, 0, 1), "?time", "begin c1", *_asks(1, 0, 1)),
        "drift left out",
        "overlap",
    )


def pause_before_use() -> Directed:
    """A quorum has granted, but the client stands still until another has the lock."""
    return Directed(
        "pause_before_use",
        "a pause between the quorum's answers and their reading",
        Small(nodes=3, clients=2, jumps=3, pauses=1),
        (
            *("begin c0", *_arrive("request", 0, 0, 1), "pause c0"),
            *(*_arrive("reply", 0, 0, 1), "time", "time"),  # the deadline; the end of the keys
            *("begin c1", *_asks(1, 0, 1), "resume c0"),
        ),
        "elapsed time not subtracted",
        "overlap",
    )


def late_extension() -> Directed:
    """An extension is answered while its client stands still, and read when the lease is over."""
    return Directed(
        "late_extension",
        "an extension that is read after the old validity",
        Small(nodes=1, clients=1, jumps=2, slips=1, pauses=1, extension_ms=TTL_MS),
        (
            *("begin c0", *_asks(0, 0), "slip", "go c0", "request c0 n0"),
            *("pause c0", "reply c0 n0", "time", "time", "resume c0"),
        ),
        "extend counted after the old validity",
        "resurrection",
    )


def shorter_extension() -> Directed:
    """Over another connection: an extension by less than what is left."""
    return Directed(
        "shorter_extension",
        "an extension by a shorter ttl arrives over another connection",
        Small(nodes=1, clients=2, bundles=2, jumps=1, extension_ms=TTL_MS - 50),
        (
            *("begin c0", *_asks(0, 0), "go c0", "request c0 n0 (1.0)", "reply c0 n0 (1.0)"),
            *("time", "begin c1", *_asks(1, 0)),
        ),
        "extension that may shorten",
        "overlap",
    )


# --- nodes that forget -----------------------------------------------------------------------


def restart(memory: str) -> Directed:
    """One of two granting nodes crashes inside the ttl, and the third has not heard of the lock.

    It is sound with its memory, or empty after max_ttl; empty at once it is not.
    """
    waits = ("time",) * 3 if memory == "quarantine" else ()  # ends of the lease, the keys, the wait
    return Directed(
        f"restart_{memory}",
        f"a granting node crashes and comes back, memory {memory}",
        Small(nodes=3, clients=2, crashes=1, jumps=len(waits), memory=memory),
        (
            *("begin c0", *_asks(0, 0, 1), "crash n0", *waits, "restart n0"),
            *("begin c1", "reply c1 n0", "connect c1 n0", *_asks(1, 2)),
        )
        if memory == "quarantine"
        else (
            *(
                "begin c0",
                *_asks(0, 0, 1),
                "crash n0",
                "restart n0",
                "reply c0 n0",
                "connect c0 n0",
            ),
            *("reply c1 n0", "connect c1 n0", "begin c1"),
            *("request c1 n0 (0.1)", "reply c1 n0 (0.1)", *_asks(1, 2)),
        ),
        "restarted empty inside the ttl, votes at once",
        "overlap",
    )


ALL = (
    *(late_set(), reply_lost(), reply_lost_unnoted(), unanswered_give_back()),
    *(overtaking_release(), split_vote(), split_vote_tie(), late_reply(), stolen()),
    *(old_release(), foreign_give_back(), slow_clock(), pause_before_use()),
    *(late_extension(), shorter_extension(), restart("kept"), restart("quarantine")),
)
# What the assumptions of Redlock rule out: shown as what it is, a known limit.
BEYOND = (restart("lost"),)
