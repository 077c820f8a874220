"""Tries every order of events in a small world: `python -m quorlock.testing.explore`.

    make explore                                   three nodes, two clients, every deadline
    make explore ARGS="--crashes 1"                and a crash: seven minutes on a quiet machine
    make explore ARGS="--crashes 1 --memory quarantine --jumps 1"    the same, of one that forgets
    make explore ARGS="--nodes 1 --timeouts 0 --jumps 3 --crashes 1"
    make explore ARGS="--replay 0,2,1"             one of those orders, drawn

Chance misses rare orders; here nothing is drawn.  There are two ways.

A `Survey` goes from state to state of a world that can be taken apart (`parts.suffice`): clients
and nodes know each other by messages only, so what each does in a given situation is found out
once, by running the flows, and then looked up.  `states` says what it takes for the same.

A `Search` is for all other worlds, and to check a survey against.  It runs a world (`choices`)
again from its start for each sequence of choices, since flows cannot be copied, depth first.  Not
every order is run, and these three need not be:

*The same state again.*  Two sequences that lead to one state (`frozen`) have one future.  Equal
digests of 128 bits are taken for equal states.  Nodes are all alike, so states that differ by
their names only are one state as well.

*Orders of what commutes.*  Requests at different nodes, replies at different clients, a request
and a reply: whichever comes first, the same state follows (`independent` says why, pair by pair).
Of such orders one is run, by *sleep sets*: what has been tried from a state sleeps in the states
after its siblings, until something happens that it does not commute with.  Where a known state is
reached with others asleep than before, those that slept then and do not now are tried after all.
Sleep sets: P. Godefroid, "Using partial orders to improve automatic verification methods", CAV
1990; with known states: his "Partial-order methods for the verification of concurrent systems",
LNCS 1032, 1996.  They leave out transitions and never a state, so nothing that a state shows is
lost, as long as what is looked for is to be seen in states: an overlap is, since a lease that ends
does not commute with a lease that is won.

*Replies that nobody waits for*, where no connection will break any more: they are read at once.

The tests show that surveys and searches, with and without all of that, end in the same outcomes,
and that without it they have the very same states (`tests/simulation/test_explore*.py`).  What is
not tried is said by the bounds (`choices.Small`): how often a client is out of time, how often
time moves on, and only to instants at which something is due (or half of the way there), how many
crashes and breaks.  A flow's random pauses are not tried: their length is fixed, they end when
time moves on.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quorlock.testing.choices import MEMORIES, Choice, ChosenWorld, Small
from quorlock.testing.frozen import Outcome, digest, outcome, rename
from quorlock.testing.parts import suffice
from quorlock.testing.states import Key, States, Step
from quorlock.testing.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock.testing.checker import Judgement
    from quorlock.testing.history import Violation
    from quorlock.testing.states import State

Path = tuple[Choice, ...]
_NONE: frozenset[Choice] = frozenset()
# How many violations are kept; each ends its branch.
FOUND_MAX = 5


class Found(NamedTuple):
    """A violation and the choices that lead to it. executions: worlds begun until then."""

    violation: Violation
    path: Path
    executions: int


@dataclass(slots=True)
class _Fork:
    """A state on the way: what is still to be tried there, and what need not be."""

    todo: list[Choice]
    asleep: set[Choice]


@dataclass(slots=True)
class Search:
    """One exploration: `run` it, then read what it counted.

    Attributes:
        sleeping, merging: the two reductions; `eager` the third.
        stop_after: so many violations are enough. most: so many executions are, 0: no limit.
        executions: worlds begun. transitions: choices tried, without those run again.
        endings: executions led to their end. outcomes: what they came to, each once.
    """

    small: Small
    sleeping: bool = True
    merging: bool = True
    eager: bool = True
    stop_after: int = FOUND_MAX
    most: int = 0
    progress: Callable[[Search], None] | None = None
    executions: int = 0
    transitions: int = 0
    endings: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    outcomes: set[Outcome] = field(default_factory=set[Outcome])
    found: list[Found] = field(default_factory=list[Found])
    _asleep_at: dict[bytes, frozenset[Choice]] = field(
        default_factory=dict[bytes, frozenset[Choice]]
    )

    @property
    def states(self) -> int:
        """How many different ones were seen."""
        return len(self._asleep_at)

    def run(self) -> Search:
        """Try everything, or as much as it takes; itself again."""
        began = time.monotonic()
        self.complete = self._run()
        self.seconds = time.monotonic() - began
        return self

    def _run(self) -> bool:
        path: list[Choice] = []
        start = self._begun(path)
        forks = [fork for fork in [self._arrived(start, _NONE, path)] if fork]
        world: ChosenWorld | None = start
        while forks:
            if not forks[-1].todo:
                forks.pop()
                if path:
                    path.pop()
                world = None
                continue
            if world is None:
                if len(self.found) >= self.stop_after or self.executions == self.most > 0:
                    return False
                world = self._begun(path)
            fork = self._step(world, forks[-1], path)
            if fork is not None:
                forks.append(fork)
            else:
                path.pop()
                world = None
        return not self.found

    def _begun(self, path: list[Choice]) -> ChosenWorld:
        """A world that has gone this way."""
        self.executions += 1
        if self.progress is not None:
            self.progress(self)
        world = ChosenWorld(self.small, eager=self.eager)
        for choice in path:
            world.perform(choice)
        return world

    def _step(self, world: ChosenWorld, fork: _Fork, path: list[Choice]) -> _Fork | None:
        choice = fork.todo.pop(0)
        world.perform(choice)
        path.append(choice)
        self.transitions += 1
        self.depth = max(self.depth, len(path))
        asleep = _NONE
        if self.sleeping:
            ends_by_reply = bool(self.small.extension_ms)
            asleep = frozenset(
                other
                for other in fork.asleep
                if independent(other, choice, ends_by_reply=ends_by_reply)
            )
            fork.asleep.add(choice)
        return self._arrived(world, asleep, path)

    def _arrived(
        self, world: ChosenWorld, asleep: frozenset[Choice], path: list[Choice]
    ) -> _Fork | None:
        """What to try in this state; None: nothing, it is known, an end, or wrong."""
        if world.history.found:
            self._wrong(world.history.found[0], path)
            return None
        choices = world.choices()
        if self.merging:
            left = self._to_do(world, choices, asleep)
        else:
            left = _Fork([choice for choice in choices if choice not in asleep], set(asleep))
        if choices:
            return left if left is not None and left.todo else None
        if left is not None:
            self._ended(world, path)
        return None

    def _to_do(
        self, world: ChosenWorld, choices: list[Choice], asleep: frozenset[Choice]
    ) -> _Fork | None:
        """None if the state is known, and nothing that slept when it was seen is awake now."""
        naming = rename(world)
        key = digest(world, naming)
        named = frozenset(map(naming.given, asleep))
        before = self._asleep_at.get(key)
        if before is None:
            self._asleep_at[key] = named
            return _Fork([choice for choice in choices if choice not in asleep], set(asleep))
        if before <= named:
            return None
        self._asleep_at[key] = both = before & named
        awake = frozenset(map(naming.taken, before - named))
        return _Fork([c for c in choices if c in awake], set(map(naming.taken, both)))

    def _ended(self, world: ChosenWorld, path: list[Choice]) -> None:
        self.endings += 1
        judgement = world.conclude()
        self.outcomes.add(outcome(world))
        if judgement.violations:
            self._wrong(judgement.violations[0], path)

    def _wrong(self, violation: Violation, path: list[Choice]) -> None:
        self.found.append(Found(violation, tuple(path), self.executions))


# --- by its parts ----------------------------------------------------------------------------


@dataclass(slots=True)
class Survey:
    """The same for a world that can be taken apart: all of its states, each once.

    Attributes as those of `Search`. most: so many states are enough. executions: how often a
    client was run from its beginning, to find out what it does next.
    """

    small: Small
    reduced: bool = True
    stop_after: int = FOUND_MAX
    most: int = 0
    progress: Callable[[Survey], None] | None = None
    transitions: int = 0
    endings: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    outcomes: set[Outcome] = field(default_factory=set[Outcome])
    found: list[Found] = field(default_factory=list[Found])
    _known: set[Key] = field(default_factory=set[Key])
    _world: States = field(init=False)

    def __post_init__(self) -> None:
        self._world = States(self.small, reduced=self.reduced)

    @property
    def states(self) -> int:
        """How many different ones were seen."""
        return len(self._known)

    @property
    def executions(self) -> int:
        """How often a client was run from its beginning."""
        return self._world.clients.runs

    def run(self) -> Survey:
        """Try everything, or as much as it takes; itself again."""
        began = time.monotonic()
        self.complete = self._run() and not self.found
        self.seconds = time.monotonic() - began
        return self

    def _run(self) -> bool:
        world, known, path = self._world, self._known, list[Step]()
        known.add(world.key(world.first))
        forks = [(world.first, world.steps(world.first))]
        while forks:
            state, todo = forks[-1]
            if not todo:
                forks.pop()
                del path[-1:]
                continue
            if len(self.found) >= self.stop_after or len(known) == self.most > 0:
                return False
            step = todo.pop(0)
            after = world.after(state, step)
            self.transitions += 1
            key = world.key(after)
            if self.progress is not None:
                self.progress(self)
            if key in known:
                continue
            known.add(key)
            path.append(step)
            steps = self._arrived(after, path)
            if steps:
                forks.append((after, steps))
                self.depth = max(self.depth, len(path))
            else:
                path.pop()
        return True

    def _arrived(self, state: State, path: list[Step]) -> list[Step]:
        """What to try in this state; nothing, if it is an end, or wrong."""
        rule = self._world.wrong(state)
        steps = [] if rule else self._world.steps(state)
        if not rule and not steps:
            self.endings += 1
            outcome = self._world.concluded(state)
            self.outcomes.add(outcome)
            rule = next(iter(outcome.wrong), "")
        if rule:
            self._wrong(rule, path)
        return steps

    def _wrong(self, rule: str, path: list[Step]) -> None:
        """What the parts show, the world itself must show as well."""
        chosen = self._world.retold(path)
        _, judgement, _ = replay(self.small, numbers(self.small, chosen, eager=False), eager=False)
        violation = next((one for one in judgement.violations if one.rule == rule), None)
        if violation is None:
            text = ", ".join(map(str, chosen))
            raise AssertionError(f"the parts show {rule}, the whole does not: {text}")
        self.found.append(Found(violation, chosen, self.executions))


# --- what commutes -------------------------------------------------------------------------------


def independent(one: Choice, other: Choice, *, ends_by_reply: bool = False) -> bool:
    """Whether two choices that may both be made now lead to one state in both orders.

    ends_by_reply: a reply may end a lease (a lost extension), which is to be seen in order.
    """
    first, second = sorted((one, other))
    kinds = (first.kind, second.kind)
    if kinds == ("reply", "reply") and ends_by_reply:
        return False
    rule = _COMMUTES.get(kinds)
    return rule is not None and rule(first, second)


def _always(_one: Choice, _other: Choice) -> bool:
    return True


def _elsewhere(one: Choice, other: Choice) -> bool:
    return one.node != other.node


def _by_another(one: Choice, other: Choice) -> bool:
    return one.client != other.client


# Pairs of kinds in the order of the alphabet; what is not here does not commute: time with
# anything, two things that draw on one bound, what changes one node or one client.
_COMMUTES: dict[tuple[str, str], Callable[[Choice, Choice], bool]] = {
    # A request changes its node and puts a reply at the end of a queue.
    ("request", "request"): _elsewhere,
    # What a client does takes from the heads of queues of replies and adds to the ends of queues
    # of requests: both heads stay what they are.
    ("reply", "request"): _always,
    ("begin", "request"): _always,
    ("go", "request"): _always,
    ("connect", "request"): _always,
    ("pause", "request"): _always,
    ("request", "resume"): _always,
    # After a break the reply is lost, whether it was under way already or not.
    ("break", "request"): _always,
    # Clients know nothing of each other. One that ends its lease, though, must be seen to do it
    # before or after another wins: so not ("go", "reply").
    ("reply", "reply"): _by_another,
    ("begin", "reply"): _by_another,
    ("begin", "go"): _by_another,
    ("connect", "reply"): _by_another,
    ("begin", "connect"): _by_another,
    ("connect", "go"): _by_another,
    ("connect", "connect"): _by_another,
    ("go", "go"): _by_another,
    # It is on the client's own clock.
    ("request", "timeout"): _always,
    ("crash", "timeout"): _always,
    ("restart", "timeout"): _always,
    ("reply", "timeout"): _by_another,
    ("begin", "timeout"): _by_another,
    ("go", "timeout"): _by_another,
    ("connect", "timeout"): _by_another,
    ("timeout", "timeout"): _by_another,
    # A crash loses what is or will be under way to the node, and puts the end of the connection
    # behind the replies.
    ("crash", "request"): _elsewhere,
    ("request", "restart"): _elsewhere,
    ("crash", "reply"): _always,
    ("begin", "crash"): _always,
    ("crash", "go"): _always,
    ("reply", "restart"): _always,
    ("begin", "restart"): _always,
    ("go", "restart"): _always,
}


# --- one of the orders ---------------------------------------------------------------------------


def numbers(small: Small, path: Sequence[Choice], *, eager: bool = True) -> list[int]:
    """The choices as numbers among those that there were: what `--replay` takes."""
    world = ChosenWorld(small, eager=eager)
    found: list[int] = []
    for choice in path:
        found.append(world.choices().index(choice))
        world.perform(choice)
    return found


def replay(
    small: Small, chosen: Sequence[int], *, eager: bool = True, trace: Trace | None = None
) -> tuple[ChosenWorld, Judgement, Path]:
    """Go one way, then on in fair weather to the end. Raises IndexError where there is none."""
    world = ChosenWorld(small, trace, eager=eager)
    path: list[Choice] = []
    for number in chosen:
        path.append(world.choices()[number])
        world.perform(path[-1])
    judgement = world.conclude()
    if trace is not None:
        trace.finish(judgement)
    return world, judgement, tuple(path)


# --- the command line ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, or replay. Returns the exit status: 1 if a promise was not kept."""
    options = _options(arguments)
    small = Small(**{name: getattr(options, name) for name in _NUMBERS}, memory=options.memory)
    in_parts = suffice(small) and not options.whole and not options.unreduced
    eager = not in_parts and not options.unreduced
    if options.replay is not None:
        return _show(small, options.replay, eager=eager)
    gc.set_threshold(50_000, 20, 100)
    search: Search | Survey
    if in_parts:
        search = Survey(small, most=options.most, progress=_Progress()).run()
    else:
        search = Search(
            small,
            sleeping=eager,
            merging=eager,
            eager=eager,
            most=options.most,
            progress=_Progress(),
        ).run()
    for line in table(search):
        print(line)
    for found in search.found:
        way = ",".join(map(str, numbers(small, found.path, eager=eager)))
        print(f"VIOLATION ({found.violation.rule}): {found.violation.text}")
        print(f"  after {found.executions:,} executions; add --replay {way}")
    return 1 if search.found else 0


_NUMBERS = {
    "nodes": "nodes",
    "clients": "clients",
    "attempts": "attempts of each for the lock: 1 or 2",
    "turns": "how often each client wants it",
    "bundles": "connections of each client to each node",
    "timeouts": "how often each client runs out of time in a round: 2 is every round's deadline",
    "jumps": "how often time moves on to the next instant at which something is due; where there"
    " are timeouts, to the end of a quarantine",
    "slips": "how often it moves half of the way there",
    "crashes": "nodes that crash",
    "breaks": "connections that break",
    "pauses": "clients that stand still for a while",
    "extension_ms": "extend each lease once by so much (0: do not)",
}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m quorlock.testing.explore", description="Every order in a small world."
    )
    usual = Small(crashes=0, jumps=0, timeouts=2)
    for name, what in _NUMBERS.items():
        option = f"--{name.replace('_', '-')}"
        value = getattr(usual, name)
        parser.add_argument(option, type=int, default=value, help=f"{what} ({value})")
    parser.add_argument(
        "--memory",
        choices=MEMORIES,
        default=usual.memory,
        help="a node restarts with its keys, without them after max_ttl, or without at any time",
    )
    parser.add_argument("--replay", type=_choices, help="go one way, and draw it")
    parser.add_argument("--whole", action="store_true", help="run the world as a whole each time")
    parser.add_argument("--unreduced", action="store_true", help="that, for every single order")
    parser.add_argument(
        "--most", type=int, default=0, help="stop after so many states, or executions of the whole"
    )
    options = parser.parse_args(arguments)
    least = {"nodes": 1, "clients": 1, "attempts": 1, "turns": 1, "bundles": 1}
    for name in _NUMBERS:
        if getattr(options, name) < least.get(name, 0):
            parser.error(f"--{name.replace('_', '-')} is at least {least.get(name, 0)}")
    if options.attempts > 2:  # noqa: PLR2004
        parser.error("--attempts is 1 or 2")
    return options


def _choices(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def table(search: Search | Survey) -> list[str]:
    """What a search has come to."""
    small = search.small
    bounds = (
        f"N = {small.nodes}, {small.clients} clients, {small.turns} turn(s) of {small.attempts}"
        f" attempt(s), {small.bundles} connection(s) to each node; at most {small.timeouts}"
        f" timeouts of each, {small.jumps} jumps of time, {small.slips} half ones,"
        f" {small.crashes} crashes (memory {small.memory}), {small.breaks} breaks,"
        f" {small.pauses} pauses"
    )
    whole = "all of it" if search.complete else "NOT all of it: stopped"
    rows = {
        "executions": search.executions,
        "transitions": search.transitions,
        "states": search.states,
        "led to their end": search.endings,
        "distinct outcomes": len(search.outcomes),
        "longest": search.depth,
        "violations": len(search.found),
    }
    return [
        bounds,
        *(f"{name:<18} {count:>12,}" for name, count in rows.items() if count or name != "states"),
        f"{'seconds':<18} {search.seconds:>12,.1f}   {whole}",
    ]


class _Progress:
    """A line on stderr now and then."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def __call__(self, search: Search | Survey) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        line = (
            f"{search.executions:,} executions, {search.states:,} states,"
            f" {len(search.outcomes):,} outcomes, {len(search.found)} violations"
        )
        if sys.stderr.isatty():
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
            self._next = now + 1
        else:
            print(line, file=sys.stderr, flush=True)
            self._next = now + 30


def _show(small: Small, chosen: Sequence[int], *, eager: bool) -> int:
    from quorlock.testing.diagram import diagram

    trace = Trace()
    try:
        _, judgement, path = replay(small, chosen, eager=eager, trace=trace)
    except IndexError:
        print("there is no such choice: give the same bounds as the search had", file=sys.stderr)
        return 2
    print(diagram(trace.lines))
    print("chosen: " + ", ".join(map(str, path)))
    for violation in judgement.violations:
        print(f"VIOLATION ({violation.rule}): {violation.text}")
    return 1 if judgement.violations else 0


if __name__ == "__main__":
    sys.exit(main())
