"""Changes to shared settings, in every order and interrupted anywhere, on nodes in memory.

The commands of two operators alternate at random.  After each step, the leases that clients may
have are compared: those of any two must share a node, whatever lists the clients have, and none may
outlast the quarantine of any client that is admitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, TypeAlias

import pytest

from quorlock._core import agreement
from quorlock._core.agreement import Agreement, Reading, decide, parse
from quorlock._core.changes import (
    Change,
    ChangeError,
    Disconnect,
    Read,
    StoredSettings,
    WaitForLeases,
    Write,
    begin,
    change_guards,
    change_max_ttl,
    finish,
)
from quorlock._core.tally import quorum

TTLS = (10, 20, 40)
GUARDS = ("uptime", "marker")
NODES = 5
Members: TypeAlias = list[int]


class Lease(NamedTuple):
    """A lease that some client may have: its nodes, as bits, and how long it lasts."""

    nodes: int
    ttl_ms: int


class Step(NamedTuple):
    """A running command, and what it is about to do."""

    change: Change[int]
    effect: Read[int] | Write[int] | Disconnect[int] | WaitForLeases
    began: int


class World:
    """Nodes with their settings, and the leases of clients that follow what the nodes allow.

    lists: The nodes that clients may list, since a command that named them has ended.
    texts: What each node stores.  served: The settings with which clients are connected to a node;
    more than one, if a command was interrupted before it disconnected them.
    """

    def __init__(self, random: Random, members: int, *, restarts: bool) -> None:
        self.random = random
        self.restarts = restarts
        self.lists = {frozenset(range(members))}
        first = Agreement((members,), 20, 20, GUARDS[:1], name="set")
        self.texts = [first.text] * members + [""] * (NODES - members)
        self.served: list[list[Agreement]] = [[first] if text else [] for text in self.texts]
        self.leases: dict[Lease, int] = {}  # when each could still be granted
        self.now = 0
        self.restarted: int | None = None
        self.log: list[str] = []
        self.look()

    def clients(self) -> Iterator[tuple[int, list[Lease]]]:
        """Yield the max_ttl of every client that a quorum admits, and the leases it may get."""
        for listed, max_ttl_ms, guard in itertools.product(self.lists, TTLS, GUARDS):
            own = Agreement((len(listed),), max_ttl_ms, max_ttl_ms, (guard,))
            limits = {
                node: max(one.max_ttl_ms for one in admitting)
                for node in listed
                if (admitting := [one for one in self.served[node] if not one.refusal(own)])
            }
            leases = [
                Lease(
                    sum(1 << node for node in nodes),
                    min(max_ttl_ms, *[limits[node] for node in nodes]),
                )
                for nodes in itertools.combinations(limits, quorum(len(listed)))
            ]
            if leases:
                yield max_ttl_ms, leases

    def look(self) -> None:
        """Grant every lease that is possible now, and compare all that are not over."""
        self.now += 1
        clients = list(self.clients())
        for _, leases in clients:
            self.leases |= dict.fromkeys(leases, self.now)
        for one, other in itertools.combinations({lease.nodes for lease in self.leases}, 2):
            assert one & other, ("two holders", f"{one:b} {other:b}", *self.log)
        longest = max(lease.ttl_ms for lease in self.leases) if self.leases else 0
        for max_ttl_ms, _ in clients:
            assert longest <= max_ttl_ms, ("too short a quarantine", longest, *self.log)

    def perform(self, step: Step) -> list[StoredSettings] | None:
        """Carry out a step. Raises ChangeError if another command has changed the node."""
        effect = step.effect
        if isinstance(effect, Read):
            return [StoredSettings(str(node), self.texts[node]) for node in effect.nodes]
        if isinstance(effect, WaitForLeases):
            for lease, at in list(self.leases.items()):
                if at <= step.began and lease.ttl_ms <= effect.ttl_ms:
                    del self.leases[lease]
            return None
        if isinstance(effect, Disconnect):
            return None
        if self.texts[effect.node] != effect.before:
            raise ChangeError("changed")
        self.texts[effect.node] = effect.new.text
        self.log.append(f"{effect.node}: {effect.new.text}")
        self.served[effect.node].append(effect.new)
        return None

    def restart(self, node: int) -> None:
        """Restart a node without its data; no client counts it before its leases are over."""
        self.texts[node] = ""
        self.served[node] = []
        self.log.append(f"{node} restarts empty")

    def restart_one(self) -> None:
        """Restart one of three or more nodes, unless one has restarted and stores nothing yet."""
        known = members_of(self)
        if len(known) > 2 and (self.restarted is None or self.texts[self.restarted]):
            self.restarted = self.random.choice(known)
            self.restart(self.restarted)

    def connect(self) -> None:
        """Have a client connect to all nodes of its list, of which it may not know all others."""
        random = self.random
        listed = sorted(random.choice(sorted(self.lists, key=sorted)))
        ttl = random.choice(TTLS)
        own = Agreement((len(listed),), ttl, ttl, (random.choice(GUARDS),))
        readings = {
            node: Reading(f"{node}" * 8, parse(self.texts[node]), self.texts[node])
            for node in listed
        }
        for node in listed:
            others = [
                readings[other] if random.random() < 0.7 else None
                for other in listed
                if other != node
            ]
            decision = decide(own, readings[node], others, pending=False)
            agreed = parse(decision.text) if decision.step is agreement.Step.WRITE else None
            if agreed is None:
                continue
            self.log.append(f"client {listed} {ttl} writes on {node}: {decision.text}")
            self.texts[node] = decision.text
            self.served[node].append(agreed)

    def disconnect(self, step: Step) -> None:
        """Disconnect the clients of the node that a step has written."""
        nodes = step.effect.nodes if isinstance(step.effect, Disconnect) else ()
        for node in (step.effect.node,) if isinstance(step.effect, Write) else nodes:
            del self.served[node][:-1]


def members_of(world: World) -> Members:
    """Return the nodes that an operator takes for members: mostly all that store the settings."""
    known = [
        node for node, text in enumerate(world.texts) if (a := parse(text)) and a.sizes != (0,)
    ]
    if known and not world.restarts and world.random.random() < 0.3:
        known.remove(world.random.choice(known))
    return known


def command(world: World) -> tuple[str, Change[int]]:
    """Draw a command that an operator may give at any time."""
    random, members = world.random, members_of(world)
    kind = random.choice(["begin", "begin", "finish", "finish", "max_ttl", "guards"])
    if kind == "max_ttl" and members:
        ttl_ms = random.choice(TTLS)
        return f"max-ttl {ttl_ms} on {members}", change_max_ttl(members, ttl_ms)
    if kind == "guards" and members:
        guards = random.choice([GUARDS, GUARDS[:1]])
        return f"guards {guards} on {members}", change_guards(members, guards)
    joins, other = random.random() < 0.5, random.randrange(NODES)
    rest = [node for node in members if node != other] or [(other + 1) % NODES]
    act: Callable[..., Change[int]] = finish if kind == "finish" else begin
    change = act(rest, other, joins=joins)
    return f"{kind} {other} {joins=} of {rest}", named(world, change, {*rest}, {*rest, other})


def named(world: World, change: Change[int], *lists: set[int]) -> Change[int]:
    """Run a command; then clients may have these lists."""
    yield from change
    world.lists |= set(map(frozenset[int], lists))


def advance(world: World, change: Change[int], value: Any) -> Step | None:
    """Let a command continue to its next step; None: it has ended."""
    try:
        return Step(change, change.send(value), world.now)
    except StopIteration:
        return None
    except ChangeError as error:
        world.log.append(f"refused: {str(error)[:60]}")
        return None


def walk(seed: int, commands: int = 12, at_once: int = 2, *, restarts: bool = False) -> World:
    """Give commands, some at the same time, and check the leases after every step.

    restarts: Members restart empty in between, one of three or more at a time: one that is alone
        admits any client then. Operators do not forget a member.
    """
    random = Random(seed)
    world = World(random, random.randint(3 if restarts else 1, 4), restarts=restarts)
    running: list[Step] = []
    while commands or running:
        if commands and (not running or (len(running) < at_once and random.random() < 0.2)):
            commands -= 1
            name, change = command(world)
            world.log.append(name)
            step = advance(world, change, None)
        elif restarts and random.random() < 0.2:
            world.restart_one()
            world.connect()
            step = None
        else:
            step = running.pop(random.randrange(len(running)))
            try:
                value = world.perform(step)
            except ChangeError:
                world.log.append("lost a race")
                continue
            world.look()
            if random.random() < 0.06:
                world.log.append("interrupted")
                continue
            world.disconnect(step)
            step = advance(world, step.change, value)
        world.look()
        if step is not None:
            running.append(step)
    return world


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(
    ("at_once", "restarts"), [(1, False), (2, False), (1, True)], ids=["one", "two", "restarts"]
)
def test_no_two_leases_without_a_common_node(part: int, at_once: int, restarts: bool) -> None:
    for seed in range(part * 100, part * 100 + 100):
        walk(seed, at_once=at_once, restarts=restarts)


@pytest.mark.parametrize(("seed", "at_once"), [(1223, 1), (2921, 1)])
def test_kept_seeds(seed: int, at_once: int) -> None:
    """Clients that an interrupted command had left connected, before the next change waited."""
    walk(seed, at_once=at_once)


def test_a_node_from_a_backup_shortens_no_quarantine() -> None:
    """A backup has the oldest settings, and leases of the newer ones may be held."""
    old = Agreement((2,), 20, 20, GUARDS[:1], version=1, name="set")
    new = old._replace(max_ttl_ms=40, guard_ms=40, version=5)
    change = change_guards([0, 1], GUARDS)
    next(change)
    step = change.send([StoredSettings("0", old.text), StoredSettings("1", new.text)])
    assert isinstance(step, Write)
    assert (step.new.max_ttl_ms, step.new.guard_ms, step.new.version) == (20, 40, 6)
