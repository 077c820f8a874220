"""Critical orders of events that chance rarely finds, each written down by hand.

Each has a small world (`choices`) and a sequence of choices. After them the world runs to its end
without further faults.  `aimed_at` names the mutation (`tests/sim/mutations.py`) under which
this order breaks a promise; the tests run each with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quorlock_sim.choices import TTL_MS, Choice, ChosenWorld, SmallWorld

if TYPE_CHECKING:
    from quorlock_sim.oracle import Judgement
    from quorlock_sim.trace import Trace


class NoSuchChoice(LookupError):
    """A step is not among the possible choices."""


@dataclass(frozen=True, slots=True)
class Directed:
    """One order of events.

    Attributes:
        name: a short name.
        summary: one line.
        small: the bounds of the world.
        steps: choices as text, such as "request c0 n1"; "(1.0)" after it is the connection:
            connection set and life. A choice with "?" before it is skipped if it is not possible.
        aimed_at: the mutation that this order reveals.
        rule: the promise that is broken under the mutation.
    """

    name: str
    summary: str
    small: SmallWorld
    steps: tuple[str, ...]
    aimed_at: str
    rule: str


def play(directed: Directed, trace: Trace | None = None) -> tuple[ChosenWorld, Judgement]:
    """Run the steps and judge the world.

    Raises:
        NoSuchChoice: a step is not possible.
    """
    world = ChosenWorld(directed.small, trace)
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
    """Return the steps that deliver a client's requests and their replies."""
    return tuple(
        step
        for node in nodes
        for step in (f"request c{client} n{node}", f"reply c{client} n{node}")
    )


def _arrive(what: str, client: int, *nodes: int) -> tuple[str, ...]:
    return tuple(f"{what} c{client} n{node}" for node in nodes)


# --- late bytes ------------------------------------------------------------------------------


def late_set() -> Directed:
    """Deliver the SET of a closed connection after its release over the next one."""
    return Directed(
        "late_set",
        "a SET arrives after its release, which went over another connection",
        SmallWorld(nodes=1, clients=1, breaks=1),
        (
            *("begin c0", "break c0 n0", "connect c0 n0"),
            *("request c0 n0 (0.1)", "reply c0 n0 (0.1)", "request c0 n0"),
        ),
        "sent once is confirmed",
        "leftover",
    )


def reply_lost() -> Directed:
    """Lose the reply of a node that has set the key; the next connection sends the release."""
    return Directed(
        "reply_lost",
        "the reply to a SET is lost with its connection, and another is made",
        SmallWorld(nodes=1, clients=1, breaks=1),
        ("begin c0", "request c0 n0", "break c0 n0", "connect c0 n0"),
        "pending releases not sent after a reconnect",
        "leftover",
    )


def reply_lost_unnoted() -> Directed:
    """Aim `reply_lost` at a lost connection that leaves no pending release."""
    same = reply_lost()
    return replace(
        same, name="reply_lost_unnoted", aimed_at="no pending release for a lost connection"
    )


def unanswered_give_back() -> Directed:
    """Delay the reply of a node that granted: it must still be sent the release."""
    return Directed(
        "unanswered_give_back",
        "the reply of a node that granted arrives after the deadline",
        SmallWorld(nodes=3, clients=1, jumps=1),
        ("begin c0", "request c0 n0", "time"),
        "give-back only on nodes that said yes",
        "leftover",
    )


def overtaking_release() -> Directed:
    """Release a lease over one connection while a SET is in flight on another."""
    return Directed(
        "overtaking_release",
        "a release over another connection while a SET is in flight",
        SmallWorld(nodes=3, clients=1, connection_sets=2),
        ("begin c0", *_asks(0, 0, 1), "go c0", "?request c0 n2 (1.0)", "request c0 n2"),
        "release overtaking acquire",
        "leftover",
    )


# --- votes -----------------------------------------------------------------------------------


def split_vote() -> Directed:
    """Give two clients one vote each of two nodes; half is no majority."""
    return Directed(
        "split_vote",
        "each of two clients gets one of two nodes",
        SmallWorld(nodes=2, clients=2),
        ("begin c0", "begin c1", *_asks(0, 0), *_asks(1, 1)),
        "quorum of N/2",
        "overlap",
    )


def split_vote_tie() -> Directed:
    """Tie the votes of two nodes: a client must not wait for a third vote."""
    return Directed(
        "split_vote_tie",
        "a tie of two nodes is decided at once",
        SmallWorld(nodes=2, clients=2),
        ("begin c0", "begin c1", *_asks(0, 0), *_asks(1, 1), "request c0 n1", "reply c0 n1"),
        "even-N tie waits for ever",
        "endless",
    )


def late_reply() -> Directed:
    """Deliver grants of the first attempt in the second, while another client holds the lock."""
    nodes = (0, 1, 2)
    return Directed(
        "late_reply",
        "replies of round k arrive in round k + 1",
        SmallWorld(nodes=3, clients=2, attempts=2, jumps=2),
        (
            *("begin c0", *_arrive("request", 0, *nodes), "time"),  # set, not read; releases
            *_arrive("request", 0, *nodes),  # deleted, not read; waits
            *("begin c1", *_asks(1, 0, 1)),  # another client has the lock
            *("time", "reply c0 n0", "reply c0 n1"),  # second attempt, reads the old grants
        ),
        "replies not tied to rounds",
        "overlap",
    )


def stolen() -> Directed:
    """Send a SET of a key that exists."""
    return Directed(
        "stolen",
        "a SET of a key that another client has set",
        SmallWorld(nodes=3, clients=2),
        ("begin c0", *_asks(0, 0, 1), "begin c1", *_asks(1, 0, 1)),
        "SET without NX",
        "overlap",
    )


# --- tokens ----------------------------------------------------------------------------------


def old_release() -> Directed:
    """Send the pending release of attempt 1 again while attempt 2 holds the lock."""
    return Directed(
        "old_release",
        "a late release of attempt 1 reaches a node with the key of attempt 2",
        SmallWorld(nodes=1, clients=2, attempts=2, breaks=1, jumps=2),
        (
            *("begin c0", "break c0 n0", "connect c0 n0"),
            *("request c0 n0 (0.1)", "reply c0 n0 (0.1)", "time"),  # released; second attempt
            *("request c0 n0 (0.1)", "reply c0 n0 (0.1)", "time"),  # won; release due again
            *("request c0 n0 (0.1)", "begin c1", "request c1 n0", "reply c1 n0"),
        ),
        "token reused between attempts",
        "overlap",
    )


def foreign_give_back() -> Directed:
    """Release a refused attempt on all nodes: it must not delete others' keys."""
    return Directed(
        "foreign_give_back",
        "the release of a refused attempt reaches nodes with the holder's keys",
        SmallWorld(nodes=3, clients=3),
        (
            *("begin c0", *_asks(0, 0, 1), "begin c1", *_asks(1, 0, 1)),
            *("request c1 n0", "request c1 n1", "begin c2", *_asks(2, 0, 1)),
        ),
        "release by plain DEL",
        "overlap",
    )


# --- time ------------------------------------------------------------------------------------


def slow_clock() -> Directed:
    """Slow the holder's clock by the drift bound, and let another client ask near the end."""
    return Directed(
        "slow_clock",
        "a lease is held to its end on a slow clock, and another client asks when the keys end",
        SmallWorld(nodes=3, clients=2, jumps=2),
        ("begin c0", *_asks(0, 0, 1), "?time", "begin c1", *_asks(1, 0, 1)),
        "drift left out",
        "overlap",
    )


def pause_before_use() -> Directed:
    """Pause a client that a quorum has granted the lock, until another has it."""
    return Directed(
        "pause_before_use",
        "a pause between the quorum's replies and their reading",
        SmallWorld(nodes=3, clients=2, jumps=3, pauses=1),
        (
            *("begin c0", *_arrive("request", 0, 0, 1), "pause c0"),
            *(*_arrive("reply", 0, 0, 1), "time", "time"),  # the deadline; the end of the keys
            *("begin c1", *_asks(1, 0, 1), "resume c0"),
        ),
        "elapsed time not subtracted",
        "overlap",
    )


def late_extension() -> Directed:
    """Pause a client, so that it reads the replies to an extension when the lease is over."""
    return Directed(
        "late_extension",
        "an extension that is read after the old validity",
        SmallWorld(nodes=1, clients=1, jumps=2, slips=1, pauses=1, extension_ms=TTL_MS),
        (
            *("begin c0", *_asks(0, 0), "slip", "go c0", "request c0 n0"),
            *("pause c0", "reply c0 n0", "time", "time", "resume c0"),
        ),
        "extend counted after the old validity",
        "resurrection",
    )


def shorter_extension() -> Directed:
    """Extend over another connection by less than the time left."""
    return Directed(
        "shorter_extension",
        "an extension by a shorter ttl arrives over another connection",
        SmallWorld(nodes=1, clients=2, connection_sets=2, jumps=1, extension_ms=TTL_MS - 50),
        (
            *("begin c0", *_asks(0, 0), "go c0", "request c0 n0 (1.0)", "reply c0 n0 (1.0)"),
            *("time", "begin c1", *_asks(1, 0)),
        ),
        "extension that may shorten",
        "overlap",
    )


# --- nodes that forget -----------------------------------------------------------------------


def restart(memory: str) -> Directed:
    """Crash one of two granting nodes within the ttl; the third node has no key.

    This is safe if the node keeps its keys, or restarts empty after max_ttl. It is unsafe if the
    node restarts empty within the ttl.
    """
    waits = ("time",) * 3 if memory == "quarantine" else ()  # ends of lease, keys and quarantine
    return Directed(
        f"restart_{memory}",
        f"a granting node crashes and restarts, memory {memory}",
        SmallWorld(nodes=3, clients=2, crashes=1, jumps=len(waits), memory=memory),
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


# --- waiting ---------------------------------------------------------------------------------


def calls_in_a_round() -> Directed:
    """Call a waiter on all nodes while its attempt is lost: the next attempt follows at once.

    One node calls it first, so that it makes the attempt when its patience ends.
    """
    nodes = (0, 1, 2)
    return Directed(
        "calls_in_a_round",
        "all nodes call a waiter before it knows that its attempt was lost",
        SmallWorld(nodes=3, clients=2, attempts=2, jumps=1, timeout_ms=900, idle_ms=15),
        (
            *("begin c0", *_asks(0, *nodes)),
            *("begin c1", *_asks(1, *nodes) * 5),  # refused, released, and queued
            *("go c0", "request c0 n0", "reply c1 n0", "time", *_asks(1, *nodes)),
            *(*_arrive("request", 0, 1, 2), *_arrive("request", 1, *nodes)),
            *_arrive("reply", 1, *nodes),  # the calls
        ),
        "calls dropped while a round is decided",
        "idle",
    )


ALL = (
    *(late_set(), reply_lost(), reply_lost_unnoted(), unanswered_give_back()),
    *(overtaking_release(), split_vote(), split_vote_tie(), late_reply(), stolen()),
    *(old_release(), foreign_give_back(), slow_clock(), pause_before_use()),
    calls_in_a_round(),
    *(late_extension(), shorter_extension(), restart("kept"), restart("quarantine")),
)
# The assumptions of Redlock rule this out: a known limit.
BEYOND = (restart("lost"),)
