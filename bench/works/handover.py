"""Work 4: single hand-overs, in which a holder or a waiter is of another library, dies or freezes.

Holder and waiters are processes. In each pair of hand-overs the first is undisturbed and the second
has the event. The time is that from the beginning of the release until the acquire of the next
waiter has returned. For a holder that dies it starts when the ttl after the beginning of the
holder's acquire has passed: the key cannot expire earlier.

An acquire that takes longer than PATIENCE counts with PATIENCE, and the row says so.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.aims import Aim
from bench.crew import Member, with_api
from bench.plan import Case, Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from bench.crew import Api
    from bench.results import Figure, Found, Results

RESOURCE = "bench:handover"
PAIRS, QUICK_PAIRS = 4, 1
PATIENCE = 5.0
SETTLE = (0.1, 0.2)  # seconds until a waiter certainly waits; random, because others poll
TTL = 10.0
SHORT = 1.0  # the ttl of a holder that dies: the least that python-redis-lock can do
MS = 1e6  # ns
REDLOCK_PY = "redlock-py.tuned"

OURS = ("quorlock", "quorlock.asyncio")
PEERS = ("pottery.tuned", REDLOCK_PY, "redis-py.Lock.tuned", "python-redis-lock")
EVENTS = {
    "foreign": "the holder is redlock-py",
    "expiry": "the holder is killed, and its key expires",
    "killed": "a waiter ahead is killed",
    "frozen": "three waiters ahead are in SIGSTOP",
}


def _name(event: str) -> str:
    return f"hand-over, N = 5: {EVENTS[event]}"


PLAN = [
    Case(
        "handover",
        _name(event),
        OURS if event == "foreign" else (*OURS, *PEERS),
        {"event": event},
        deadline=60.0,
        rounds=3,
        quick=("quorlock",) if event in {"expiry", "killed"} else (),
    )
    for event in EVENTS
]


def columns(found: Found) -> tuple[Column, ...]:
    """Return the columns: the undisturbed hand-over and that with the event."""
    undisturbed = (
        Column("undisturbed p50 ms", "none_ms", "{:.1f}"),
        Column("× undisturbed", "to_none", "{:.2f}"),
    )
    return (
        Column("p50 ms", "event_ms", "{:.1f}"),
        *(() if found.params.get("event") == "expiry" else undisturbed),
        Column("slowest ms", "worst_ms", "{:.1f}", worst=True),
        Column("no lock within 5 s", "late", worst=True),
    )


def _aims() -> Iterator[Aim]:
    def of(who: str, event: str, key: str) -> Callable[[Results], Figure]:
        return lambda results: results.figure(_name(event), who, key)

    for who in OURS:
        what = {event: f"{who}: hand-over, {text}" for event, text in EVENTS.items()}
        yield Aim(what["foreign"], "≤ 3 × undisturbed", 3, of(who, "foreign", "to_none"))
        yield Aim(what["expiry"], "≤ 5 ms after the expiry", 5, of(who, "expiry", "event_ms"))
        yield Aim(what["killed"], "≤ 1.5 × undisturbed", 1.5, of(who, "killed", "to_none"))
        yield Aim(what["frozen"], "≤ 1,000 ms", 1000, of(who, "frozen", "event_ms"))


AIMS = list(_aims())

# --- the child -------------------------------------------------------------------------------


def run(contestant: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Measure the pairs of one event."""
    pairs = QUICK_PAIRS if params["quick"] else PAIRS
    start = partial(_start, params["deadline"], urls)
    if params["event"] == "expiry":
        return figures([], [_expiry(start, contestant, number) for number in range(pairs)])
    holder, following = start(contestant), start(contestant)
    foreign = start(REDLOCK_PY) if params["event"] == "foreign" else holder
    ahead_count = {"foreign": 0, "killed": 1, "frozen": 3}[params["event"]]
    numbers = count()
    without, with_event = list[float](), list[float]()
    for _ in range(pairs):
        without.append(_hand_over(holder, following, [], Member.kill, next(numbers)))
        ahead = [start(contestant) for _ in range(ahead_count)]
        act = Member.freeze if params["event"] == "frozen" else Member.kill
        with_event.append(_hand_over(foreign, following, ahead, act, next(numbers)))
        for member in ahead:
            member.kill()
        if with_event[-1] >= PATIENCE * 1000:
            break  # the waiter still waits
    for member in {holder, following, foreign}:
        member.kill()
    return figures(without, with_event)


def figures(without: Sequence[float], with_event: Sequence[float]) -> dict[str, Any]:
    """Return the figures of undisturbed hand-overs and of those with the event, in ms."""
    event_ms = median(with_event)
    none_ms = median(without) if without else None
    return {
        "cycles": len(without) + len(with_event),
        "event_ms": event_ms,
        "worst_ms": max(with_event),
        "none_ms": none_ms,
        "to_none": event_ms / none_ms if none_ms else None,
        "late": sum(one >= PATIENCE * 1000 for one in with_event),
        "errors": 0,
    }


def _start(seconds: float, urls: list[str], contestant: str, ttl: float = TTL) -> Member:
    """Return a process that has connected and waits for words."""
    member = Member(seconds, _obey, contestant, urls, ttl)
    member.answer()
    return member


def _hand_over(
    holder: Member,
    following: Member,
    ahead: Sequence[Member],
    act: Callable[[Member], None],
    number: int,
) -> float:
    """Return the time of one hand-over in ms; `act` is done to the waiters ahead."""
    resource = f"{RESOURCE}:{number}"
    holder.ask("acquire", resource)
    holder.answer()
    for waiter in (*ahead, following):
        waiter.ask("acquire", resource)
        _settle()
    for waiter in ahead:
        act(waiter)
    if ahead:
        _settle()
    holder.ask("release")
    giving, _ = holder.answer()
    return _time_from(giving, following)


def _expiry(start: Callable[..., Member], contestant: str, number: int) -> float:
    """Return the time from the expiry of a dead holder's key to the next acquire, in ms."""
    resource = f"{RESOURCE}:{number}"
    holder, following = start(contestant, SHORT), start(contestant, SHORT)
    holder.ask("acquire", resource)
    asked, _ = holder.answer()
    following.ask("acquire", resource)
    holder.kill()
    found = _time_from(asked + int(SHORT * 1e9), following)
    following.kill()
    return found


def _time_from(instant: int, following: Member) -> float:
    """Return the ms from an instant to the next acquire, and release the lock."""
    late = PATIENCE + max(0.0, instant / 1e9 - time.monotonic())
    answer = following.answer(late)
    if answer is None:
        return PATIENCE * 1000
    following.ask("release")
    following.answer()
    got: int = answer[1]
    return (got - instant) / MS


def _settle() -> None:
    time.sleep(random.uniform(*SETTLE))


def _obey(pipe: Connection, contestant: str, urls: list[str], ttl: float) -> None:
    with_api(contestant, urls, partial(_acquire_and_release, pipe), ttl)


async def _acquire_and_release(pipe: Connection, api: Api) -> None:
    """Connect; then obey each word, and answer when the acquire or release began and ended (ns)."""
    lock = api.lock
    await lock.release(await lock.wait(f"{RESOURCE}:{os.getpid()}"))
    pipe.send("ready")
    held: Any = None
    while True:
        word, *names = await api.apart(pipe.recv)
        began = time.monotonic_ns()
        if word == "acquire":
            held = await lock.wait(*names)
        else:
            await lock.release(held)
        pipe.send((began, time.monotonic_ns()))
