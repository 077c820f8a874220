"""Traces drawn by hand, for the tests of the pictures: a good world, a bad one, a long one.

A few scripted attempts over nodes that only know SET NX PX, extension and compare-and-delete:
enough to draw, too little to prove anything, and the same whatever becomes of the simulated world,
whose traces (quorlock_sim.trace) have this form.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

MS = 1_000_000
TTL = 1_000
DRIFT = 12 * MS
TIMEOUT = 50 * MS
KEY = "r0"

Event = dict[str, Any]
# How long a request and its reply are under way; "request" or "reply": that one is lost.
Trip = tuple[int, int] | str
STEADY: Trip = (400_000, 350_000)


@dataclass
class Round:
    """The known facts of one round while it runs."""

    number: int
    began: int
    votes: dict[int, str] = field(default_factory=dict)
    over: bool = False


class Sketch:
    """A world on paper: things that happen at instants, in order."""

    def __init__(self, seed: int, scenario: str, n: int, clients: int) -> None:
        self.events: list[Event] = []
        self.n = n
        self.at = 0
        self.keys: list[dict[str, tuple[str, int]]] = [{} for _ in range(n)]
        self.down: set[int] = set()
        self.leases: dict[str, Event] = {}
        self._schedule: list[tuple[int, int, Callable[[], None]]] = []
        self._attempts = [0] * clients
        self._rounds = [0] * clients
        self._whats: dict[int, str] = {}
        self._messages = 0
        self._ids = 0
        self.write(
            "world",
            version=1,
            seed=seed,
            scenario=scenario,
            n=n,
            clients=clients,
            resources=[KEY],
            ttl_ms=TTL,
            max_ttl_ms=TTL,
            node_timeout=TIMEOUT,
            drift_ppm=10_000,
            expiry_resolution=2 * MS,
        )
        for client in range(clients):
            for node in range(n):
                self.write("connect", client=client, node=node, connection=client * n + node)

    def write(self, kind: str, **facts: Any) -> None:
        self.events.append({"kind": kind, "at": self.at, **facts})

    def when(self, at: int, do: Callable[[], None]) -> None:
        self._ids += 1
        heappush(self._schedule, (at, self._ids, do))

    def run(self) -> None:
        while self._schedule:
            self.at, _, do = heappop(self._schedule)
            do()

    # --- calls -------------------------------------------------------------------------------

    def call(self, client: int, what: str, **facts: Any) -> int:
        number = len(self._whats)
        self._whats[number] = what
        self.write("call", client=client, call=number, what=what, resource=KEY, **facts)
        return number

    def _outcome(self, client: int, call: int, votes: list[str], **facts: Any) -> None:
        ids = {"client": client, "call": call, "what": self._whats[call]}
        self.write("outcome", **ids, votes=votes, **facts)

    def acquire(self, client: int, trips: Sequence[Trip], then: Callable[[str], None]) -> None:
        """One attempt now, and again after a pause until it wins; then `then(token)`."""
        call = self.call(client, "acquire", ttl_ms=TTL, timeout=10_000 * MS)
        self._attempt(client, call, trips, then)

    def _attempt(
        self, client: int, call: int, trips: Sequence[Trip], then: Callable[[str], None]
    ) -> None:
        token = f"c{client}.{self._attempts[client]}"
        self._attempts[client] += 1

        def decided(round_: Round, won: bool) -> None:
            if won:
                self._grant(client, call, token, round_, then)
                return
            self.ask(client, "release", token, trips)
            pause = 90 * MS + 7 * MS * (self._attempts[client] % 5)
            again = self.at + pause
            self.when(again, lambda: self._attempt(client, call, [STEADY] * self.n, then))

        self.ask(client, "acquire", token, trips, decided)

    def _grant(
        self, client: int, call: int, token: str, round_: Round, then: Callable[[str], None]
    ) -> None:
        until = round_.began + TTL * MS - DRIFT
        votes = self.votes(round_)
        facts = {"outcome": "granted", "token": token, "valid_until": until}
        self._outcome(client, call, votes, **facts)
        lease = {"client": client, "token": token, "resource": KEY, "since": self.at}
        self.leases[token] = lease | {"until": until, "why": "ran out"}
        then(token)

    def votes(self, round_: Round) -> list[str]:
        return [round_.votes.get(node, "unknown") for node in range(self.n)]

    def extend(self, client: int, token: str) -> None:
        call = self.call(client, "extend", token=token, ttl_ms=TTL)

        def decided(round_: Round, won: bool) -> None:
            if won:
                until = round_.began + TTL * MS - DRIFT
                self.leases[token]["until"] = until
                facts = {"outcome": "extended", "token": token, "valid_until": until}
                self._outcome(client, call, self.votes(round_), **facts)

        self.ask(client, "extend", token, [STEADY] * self.n, decided)

    def release(self, client: int, token: str) -> None:
        call = self.call(client, "release", token=token)
        self.end(client, token, "released")

        def decided(round_: Round, won: bool) -> None:
            outcome = "released" if won else "not_released"
            votes = self.votes(round_)
            self._outcome(client, call, votes, outcome=outcome)

        self.ask(client, "release", token, [STEADY] * self.n, decided)

    def end(self, client: int, token: str, why: str) -> None:
        self.write("end", client=client, token=token, why=why)
        lease = self.leases[token]
        lease["until"] = min(lease["until"], self.at)
        lease["why"] = why

    # --- messages ----------------------------------------------------------------------------

    def ask(
        self,
        client: int,
        command: str,
        token: str,
        trips: Sequence[Trip],
        decided: Callable[[Round, bool], None] = lambda *_: None,
    ) -> None:
        self._rounds[client] += 1
        round_ = Round(self._rounds[client], self.at)

        def count(node: int, vote: str) -> None:
            round_.votes[node] = vote
            granted = list(round_.votes.values()).count("granted")
            pending = self.n - len(round_.votes)
            quorum = self.n // 2 + 1
            if not round_.over and (granted >= quorum or granted + pending < quorum):
                round_.over = True
                decided(round_, granted >= quorum)

        for node, trip in enumerate(trips):
            self._send(client, node, command, token, round_, trip, count)

        def late() -> None:
            if not round_.over:
                round_.over = True
                decided(round_, False)

        self.when(self.at + TIMEOUT, late)

    def _send(
        self,
        client: int,
        node: int,
        command: str,
        token: str,
        round_: Round,
        trip: Trip,
        count: Callable[[int, str], None],
    ) -> None:
        self._messages += 1
        message = self._messages
        ttl_ms = 0 if command == "release" else TTL
        what = {"command": command, "key": KEY, "token": token, "ttl_ms": ttl_ms}
        ids = {"client": client, "node": node, "message": message}
        link = {"connection": client * self.n + node, "round": round_.number}
        self.write("send", **ids, **link, **what)
        skew = node * 90_000
        out, back = (700_000, 600_000) if isinstance(trip, str) else trip
        lost = trip if isinstance(trip, str) else ""

        def arrive() -> None:
            if node in self.down or lost == "request":
                self.write("lose", message=message, what="request")
                return
            reply, vote = self._execute(node, command, token)
            self.write("execute", **ids, **what, reply=reply, vote=vote, copy=False)
            fate = lose if lost == "reply" else lambda: read(vote)
            self.when(self.at + back + skew, fate)

        def lose() -> None:
            self.write("lose", message=message, what="reply")

        def read(vote: str) -> None:
            facts = {"round": round_.number, "vote": vote, "cause": vote}
            self.write("reply", **ids, **facts, heard=not round_.over)
            count(node, vote)

        self.when(self.at + out + skew, arrive)

    def _execute(self, node: int, command: str, token: str) -> tuple[str | int | None, str]:
        keys = self.keys[node]
        found = keys.get(KEY)
        if found is not None and found[1] < self.at:
            del keys[KEY]
            found = None
        if command == "acquire":
            if found is not None:
                return None, "refused"
            keys[KEY] = (token, self.at + TTL * MS)
            return "OK", "granted"
        if found is None:
            return (-1 if command == "extend" else -2), "refused"
        if found[0] != token:
            left = (found[1] - self.at) // MS
            return (0 if command == "extend" else left), "refused"
        if command == "extend":
            keys[KEY] = (token, self.at + TTL * MS)
            return 1, "granted"
        del keys[KEY]
        return -3, "granted"

    # --- what befalls it ---------------------------------------------------------------------

    def crash(self, node: int, *, kept: bool) -> None:
        self.write("fault", what="crash", node=node, memory="kept" if kept else "lost")
        self.down.add(node)

    def restart(self, node: int, *, kept: bool) -> None:
        self.down.discard(node)
        if not kept:
            self.keys[node].clear()
        memory = "kept" if kept else "lost"
        self.write("fault", what="restart", node=node, memory=memory)

    def close(self, intact: bool, why: list[str], violations: Sequence[Event] = ()) -> list[Event]:
        for lease in self.leases.values():
            self.write("lease", **lease)
        for violation in violations:
            self.write("violation", **violation)
        self.write("end_of_world", assumptions_intact=intact, why=why)
        return self.events


def good() -> list[Event]:
    """Contention, one lost reply, an extension, and a node that is away for a while."""
    world = Sketch(7, "mixed", n=3, clients=2)
    steady = [STEADY] * 3

    def first(token: str) -> None:
        world.when(world.at + 320 * MS, lambda: world.extend(0, token))
        world.when(world.at + 640 * MS, lambda: world.release(0, token))

    def second(token: str) -> None:
        world.when(world.at + 260 * MS, lambda: world.release(1, token))
        world.when(world.at + 300 * MS, lambda: world.acquire(0, steady, third))

    def third(token: str) -> None:
        world.when(world.at + 150 * MS, lambda: world.release(0, token))

    world.when(10 * MS, lambda: world.acquire(0, [STEADY, STEADY, "reply"], first))
    world.when(10 * MS + 200_000, lambda: world.acquire(1, steady, second))
    world.when(500 * MS, lambda: world.crash(2, kept=True))
    world.when(900 * MS, lambda: world.restart(2, kept=True))
    world.run()
    return world.close(intact=True, why=[])


def bad() -> list[Event]:
    """A node restarts empty inside the ttl and votes at once: two valid leases."""
    world = Sketch(4711, "restart_empty", n=3, clients=2)

    def first(token: str) -> None:
        world.when(world.at + 700 * MS, lambda: world.release(0, token))

    def second(token: str) -> None:
        world.when(world.at + 620 * MS, lambda: world.release(1, token))

    world.when(5 * MS, lambda: world.acquire(0, [STEADY, STEADY, "request"], first))
    world.when(180 * MS, lambda: world.crash(1, kept=False))
    world.when(260 * MS, lambda: world.restart(1, kept=False))
    world.when(300 * MS, lambda: world.acquire(1, [STEADY] * 3, second))
    world.run()
    leases = list(world.leases.values())
    since, until = leases[1]["since"], leases[0]["until"]
    text = f"two valid leases on {KEY}: c0.0 and c1.0"
    facts = {"rule": "overlap", "text": text, "tokens": ["c0.0", "c1.0"], "instant": since}
    return world.close(
        intact=False,
        why=["n1 lost its memory and voted within max_ttl"],
        violations=[facts | {"from": since, "until": until}],
    )


def busy(seconds: int = 20, clients: int = 3, nodes: int = 5) -> list[Event]:
    """A long world of contention: for the speed of the page, not for the story."""
    entropy = random.Random(1)
    world = Sketch(1, "busy", n=nodes, clients=clients)

    def trips() -> list[Trip]:
        return [(entropy.randint(2, 9) * 100_000, entropy.randint(2, 9) * 100_000)] * nodes

    def use(client: int, token: str) -> None:
        world.when(world.at + entropy.randint(60, 240) * MS, lambda: leave(client, token))

    def leave(client: int, token: str) -> None:
        world.release(client, token)
        if world.at < seconds * 1_000 * MS:
            world.when(world.at + entropy.randint(1, 90) * MS, lambda: enter(client))

    def enter(client: int) -> None:
        world.acquire(client, trips(), lambda token: use(client, token))

    for client in range(clients):
        world.when((client + 1) * MS, lambda client=client: enter(client))  # type: ignore[misc]
    world.run()
    return world.close(intact=True, why=[])
