"""The parts of a small world, each on its own: what a client or a node does next, found out once.

Clients and nodes know each other by messages only.  So what a client does depends on what it has
been given so far and on nothing else, and a node likewise.  Each situation of a part gets a number:
of a client (`Clients`) the shipped flows are run once for each situation and each thing that may
happen in it; a node with what is on the ways to it and from it (`Columns`) is carried on by the
same `Server` as ever.  From then on a step is looked up.  Leaves the world that they make up to
`states`.

Left out, since such a world has more than one way between a client and a node, or asks for what
only the whole of it knows: connections that break by themselves, several bundles, pauses, half
jumps of time, extensions.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quorlock._core.commands import Acquire, Release
from quorlock._core.time import NS_PER_MS
from quorlock.scripts import RELEASE
from quorlock.testing.choices import TTL_MS, Choice, ChosenWorld, Small, Way
from quorlock.testing.frozen import Naming, digest, digest_of_a_client, pays
from quorlock.testing.network import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorlock._core.commands import Command
    from quorlock.testing.history import Violation
    from quorlock.testing.node import Entry

# By each old name the new one.
Names = tuple[int, ...]
# What happens to a client: a kind, and what comes with it.
Event = tuple[Any, ...]
# In a queue of replies: the connection's end. A reply is ("reply", what the node says).
END: Final = ("end",)
_ABOUT_A_NODE: Final = frozenset(("reply", "end", "connection"))


def suffice(small: Small) -> bool:
    """Whether such a world can be taken apart."""
    others = (small.breaks, small.pauses, small.slips, small.extension_ms)
    return not any(others) and small.bundles == 1


# --- a client --------------------------------------------------------------------------------


class Order(NamedTuple):
    """A command on its way, and whether the script's text goes with it."""

    command: Command
    in_full: bool


Sent = tuple[tuple[int, Order], ...]


class Facts(NamedTuple):
    """What the rest of a world asks of a client; a bit for each node where it is about nodes.

    Attributes:
        work: "begin" or "go" if it may do that, else "". begun: it has asked for the lock.
        patient: it waits, and may be out of time.
        away: nodes to which it wants to connect.
        unheard: the next reply of these is thrown away. paid: nothing is owed to these.
        last: it has sent the last of its commands, apart from what it owes.
        quiet: it is done with all its work, and with these nodes: it owes and awaits nothing.
        held_until: the end of its lease. due: the next instant at which something of it ends.
        bell: its next timer that rings for something. 0: none.
        found: what is wrong. calls: what they were and came to.
    """

    work: str
    begun: bool
    patient: bool
    away: int
    unheard: int
    paid: int
    last: bool
    quiet: int
    held_until: int
    due: int
    bell: int
    found: tuple[Violation, ...]
    calls: tuple[tuple[str, str], ...]

    def renamed(self, naming: Names) -> Facts:
        """With the nodes under other names."""
        away, unheard = _mask(self.away, naming), _mask(self.unheard, naming)
        paid, quiet = _mask(self.paid, naming), _mask(self.quiet, naming)
        return self._replace(away=away, unheard=unheard, paid=paid, quiet=quiet)

    def towards(self, node: int) -> Attitude:
        """To one node."""
        bit = 1 << node
        silent = self.last and bool(self.paid & bit)
        return Attitude(bool(self.unheard & bit), silent, bool(self.quiet & bit))


class Attitude(NamedTuple):
    """Of a client to one node: see `Facts`. silent: it sends nothing more, unless it breaks."""

    unheard: bool
    silent: bool
    quiet: bool


class Alone(ChosenWorld):
    """One client without its nodes: what it sends is put down, and it is told what comes back."""

    def __init__(self, small: Small) -> None:
        self.sent: list[tuple[int, Order]] = []
        super().__init__(replace(small, clients=1), eager=False)

    def _under_way(self, message: Message) -> None:
        self.ways[message.link].requests.append(message)
        node = message.link.server.index
        self.sent.append((node, Order(message.command, message.in_full)))

    def give(self, event: Event) -> Sent:
        """Let it happen; what the client sends thereupon."""
        self.sent.clear()
        getattr(self, f"_gets_{event[0]}")(*event[1:])
        self._settle()
        return tuple(self.sent)

    def _gets_work(self) -> None:
        self._go(Choice("begin", 0))

    def _gets_timeout(self) -> None:
        self._timeout(Choice("timeout", 0))

    def _gets_time(self, until: int) -> None:
        self._pass(until)

    def _gets_reply(self, node: int, reply: Any) -> None:
        way = self._way_to(node)
        message = way.requests.popleft()
        message.reply = reply
        if type(message.command) is Acquire and reply == b"OK":
            # As far as the client may know: a node that has not told it has not voted.
            token = message.command.token
            self.executed_on[token] = self.executed_on.get(token, 0) | 1 << node
        way.replies.append(message)
        self._deliver(way)

    def _gets_end(self, node: int) -> None:
        way = self._way_to(node)
        way.requests.clear()
        self._hang_up(way)

    def _gets_connection(self, node: int) -> None:
        server = self.servers[node]
        server.epoch += 1  # it has crashed, why else should it be another connection
        server.node.run_id = f"n{node}.{server.epoch}"
        self._connect(Choice("connect", 0, node, 0))

    def _way_to(self, node: int) -> Way:
        return next(way for way in self.ways.values() if way.at[1] == node)

    # --- what it is about --------------------------------------------------------------------

    def facts(self) -> Facts:
        """See there."""
        process, lease = self.processes[0], self.workers[0].lease
        ways = [(way, 1 << way.at[1]) for way in self.ways.values()]
        asks = sum(bit for way, bit in ways if way.link.conversation.questions)
        paid = sum(1 << node for node, debts in enumerate(process.debts) if not len(debts))
        owing = {node for node in range(self.small.nodes) if not paid >> node & 1}
        bells = [timer.at for timer in self.live_timers() if pays(timer) in (None, *owing)]
        is_done = self.workers[0].done and not process.turns
        quiet = paid & ~asks if is_done else 0
        return Facts(
            work=("begin" if lease is None else "go") if self.resting else "",
            begun=self.begun > 0,
            patient=bool(self.timeouts[0] and self._deadlines_of(process)),
            away=sum(1 << node for _, node, _ in self.away),
            unheard=sum(bit for way, bit in ways if _is_unheard(way)),
            paid=paid,
            last=is_done or self._is_at_the_end(),
            quiet=quiet,
            held_until=self.end_of(lease) if lease is not None and lease.ended is None else 0,
            due=self.next_due() or 0,
            bell=max(self.now, min(bells)) if bells else 0,
            found=tuple(self.history.found),
            calls=tuple((call.what, call.outcome) for call in self.history.calls),
        )

    def _is_at_the_end(self) -> bool:
        """In the round that gives back or releases, behind which nothing comes."""
        turns = self.processes[0].turns
        once = self.small.attempts == self.small.turns == 1
        return once and bool(turns) and type(turns[0].command) is Release

    def judged(self, left: Iterable[tuple[int, bytes, Entry]]) -> tuple[Violation, ...]:
        """What is wrong in the end, when keys of this client are left on nodes."""
        for node, key, entry in left:
            self.servers[node].node.keys[key] = entry
        return self.conclude().violations


def _is_unheard(way: Way) -> bool:
    questions = way.link.conversation.questions
    return bool(questions) and questions[0].asker.over


class Clients:
    """Every situation that a client may be in, by number; all clients are alike, and all nodes.

    Attributes:
        facts: by situation. attitudes: and by node.
        renamed: by situation and naming: the number that it has with its nodes under other names.
        like: by situation: the first that differs by names only.
        paths: by situation: a way to the first that is like it.
        found_out: by situation and event: what comes of it.
        runs: how often the flows were run from their beginning to find something out.
    """

    def __init__(self, small: Small, *, reduced: bool) -> None:
        self.facts: list[Facts] = []
        self.attitudes: list[tuple[Attitude, ...]] = []
        self.renamed: list[tuple[int, ...]] = []
        self.like: list[int] = []
        self.paths: list[tuple[Event, ...]] = []
        self.found_out: dict[tuple[int, Event], tuple[int, Sent]] = {}
        self.runs = 0
        self.namings: list[Names] = list(permutations(range(small.nodes)))
        self.number_of = {naming: number for number, naming in enumerate(self.namings)}
        self._small = small
        self._digest = digest_of_a_client if reduced else digest
        self._ids: dict[bytes, int] = {}
        self._named: list[int] = []  # under which naming the first like it is this one
        self._last: tuple[int, Alone] | None = None
        self.first = self._arrived(self.alone(()), ())

    def after(self, client: int, event: Event) -> tuple[int, Sent]:
        """The situation after this has happened, and what is sent to which node."""
        known = self.found_out.get((client, event))
        if known is None:
            known = self.found_out[client, event] = self._find_out(client, event)
        return known

    def _find_out(self, client: int, event: Event) -> tuple[int, Sent]:
        like, number = self.like[client], self._named[client]
        if like != client:
            naming = self.namings[number]
            after, sent = self.after(like, _renamed(event, inverse(naming)))
            return self.renamed[after][number], tuple((naming[node], order) for node, order in sent)
        path = (*self.paths[client], event)
        last, self._last = self._last, None
        alone = last[1] if last is not None and last[0] == client else self.alone(path[:-1])
        sent = alone.give(event)
        after = self._arrived(alone, path)
        self._last = after, alone
        return after, sent

    def judged(
        self, client: int, left: Iterable[tuple[int, bytes, Entry]]
    ) -> tuple[Violation, ...]:
        """See `Alone`."""
        naming = inverse(self.namings[self._named[client]])
        alone = self.alone(self.paths[client])
        return alone.judged((naming[node], key, entry) for node, key, entry in left)

    def alone(self, path: tuple[Event, ...]) -> Alone:
        """One that has come this way."""
        self.runs += 1
        alone = Alone(self._small)
        for event in path:
            alone.give(event)
        return alone

    def number(self, alone: Alone) -> int | None:
        """Of the situation that it is in; None: a new one."""
        return self._ids.get(self._digest(alone, Naming(list(self.namings[0]))))

    def _arrived(self, alone: Alone, path: tuple[Event, ...]) -> int:
        known = self.number(alone)
        return self._new(alone, path) if known is None else known

    def _new(self, alone: Alone, path: tuple[Event, ...]) -> int:
        """A situation never seen before, under all the names that its nodes may have."""
        like, facts = len(self.facts), alone.facts()
        alike: list[int] = []
        for number, naming in enumerate(self.namings):
            key = self._digest(alone, Naming(list(inverse(naming))))
            client = self._ids.setdefault(key, len(self.facts))
            if client == len(self.facts):
                mine = facts.renamed(naming)
                self.facts.append(mine)
                self.attitudes.append(tuple(map(mine.towards, range(len(naming)))))
                self.like.append(like)
                self._named.append(number)
                self.paths.append(path)
            alike.append(client)
        for number in self._named[like:]:
            naming = self.namings[number]
            self.renamed.append(tuple(alike[self._then(naming, other)] for other in self.namings))
        return like

    def _then(self, first: Names, second: Names) -> int:
        return self.number_of[tuple(second[name] for name in first)]


def inverse(naming: Names) -> Names:
    """By each new name the old one."""
    return tuple(sorted(range(len(naming)), key=naming.__getitem__))


def _renamed(event: Event, naming: Names) -> Event:
    if event[0] not in _ABOUT_A_NODE:
        return event
    named: list[Any] = list(event)
    named[1] = naming[named[1]]
    return tuple(named)


def _mask(bits: int, naming: Names) -> int:
    return sum(1 << new for old, new in enumerate(naming) if bits >> old & 1)


# --- a node, and the ways to it --------------------------------------------------------------


class Ends(NamedTuple):
    """What is on the connection of one client to one node.

    dead: its node has crashed, which the client does not know yet.
    """

    requests: tuple[Order, ...] = ()
    replies: tuple[Event, ...] = ()
    dead: bool = False


class Column(NamedTuple):
    """A node, and by client the way to it, if there is one.

    back_from: when it may be up again; -1: it is up.
    """

    back_from: int
    keys: tuple[tuple[bytes, Entry], ...]
    known: frozenset[bytes]
    ways: tuple[Ends | None, ...]

    def way(self, client: int) -> Ends:
        """The one to a client that has one."""
        way = self.ways[client]
        assert way is not None
        return way

    def but(self, client: int, way: Ends | None) -> Column:
        """With another way to one client."""
        return self._replace(ways=(*self.ways[:client], way, *self.ways[client + 1 :]))


class Columns:
    """Every situation that a node may be in, by number; all nodes are alike, and all clients.

    Where all is told, a node's scripts are too; else not: the first release on a connection
    brings the script along, so that each later one finds it.
    """

    def __init__(self, small: Small, *, reduced: bool) -> None:
        self.all: list[Column] = []
        self._small = small
        self._reduced = reduced
        self._ids: dict[Column, int] = {}
        self._after: dict[tuple[Any, ...], int] = {}
        self._swapped: dict[tuple[int, Names], int] = {}
        self._desk = ChosenWorld(replace(small, nodes=1, clients=1), eager=False)
        known = frozenset((RELEASE.sha,)) if reduced else frozenset[bytes]()
        self.first = self._number(Column(-1, (), known, (Ends(),) * small.clients))

    def _number(self, column: Column) -> int:
        known = self._ids.setdefault(column, len(self.all))
        if known == len(self.all):
            self.all.append(column)
        return known

    def after(self, column: int, *deed: Any) -> int:
        """What becomes of it: a kind of deed, and what comes with it."""
        known = self._after.get((column, *deed))
        if known is None:
            after = getattr(self, f"_{deed[0]}")(self.all[column], *deed[1:])
            known = self._after[column, *deed] = self._number(after)
        return known

    def swapped(self, column: int, order: Names) -> int:
        """With the clients in another order: by each new name the old one."""
        known = self._swapped.get((column, order))
        if known is None:
            after = self._in_order(self.all[column], order)
            known = self._swapped[column, order] = self._number(after)
        return known

    def ends_of_keys(self, column: int) -> Iterator[int]:
        """When each is over."""
        wall = self._desk.servers[0].wall
        for _, entry in self.all[column].keys:
            assert entry.until is not None
            yield wall.when((entry.until + 1) * NS_PER_MS) or 0

    def _request(self, column: Column, client: int, now: int) -> Column:
        """The node carries out the oldest request, and its reply is on its way."""
        way = column.way(client)
        order, *rest = way.requests
        server = self._desk.servers[0]
        node, link = server.node, self._desk.processes[0].links[0][0]
        assert link is not None
        self._desk.now, node.keys, node.known = now, dict(column.keys), set(column.known)
        message = Message(0, link, order.command, 0, 0)
        message.in_full = order.in_full
        server.arrive(message)
        self._desk.ways[link].replies.clear()
        known = column.known if self._reduced else frozenset(node.known)
        after = column._replace(keys=tuple(sorted(node.keys.items())), known=known)
        replies = (*way.replies, ("reply", message.reply))
        return after.but(client, way._replace(requests=tuple(rest), replies=replies))

    def _reply(self, column: Column, client: int) -> Column:
        way = column.way(client)
        rest = way._replace(replies=way.replies[1:])
        return column.but(client, None if way.replies[0] == END else rest)

    def _sent(self, column: Column, client: int, order: Order) -> Column:
        way = column.way(client)
        if way.dead:
            return column
        return column.but(client, way._replace(requests=way.requests + _by(client, (order,))))

    def _connect(self, column: Column, client: int) -> Column:
        return column.but(client, Ends())

    def _crash(self, column: Column, now: int) -> Column:
        memory = self._small.memory
        back_from = now + (TTL_MS + 1) * NS_PER_MS if memory == "quarantine" else 0
        keys = column.keys if memory == "kept" else ()
        known = column.known if self._reduced else frozenset[bytes]()
        ways = (way and Ends((), (*way.replies, END), dead=True) for way in column.ways)
        return Column(back_from, keys, known, tuple(ways))

    def _restart(self, column: Column) -> Column:
        return column._replace(back_from=-1)

    def _time(self, column: Column, now: int) -> Column:
        self._desk.now = now
        at = self._desk.servers[0].at_ms()
        keys = (key for key in column.keys if key[1].until is None or key[1].until >= at)
        return column._replace(keys=tuple(keys))

    def _in_order(self, column: Column, order: Names) -> Column:
        ways = [column.ways[old] for old in order]
        named = [
            way and way._replace(requests=_by(new, way.requests)) for new, way in enumerate(ways)
        ]
        keys = [
            (key, entry._replace(value=token_of(order.index(owner(entry)), entry.value or b"")))
            for key, entry in column.keys
        ]
        return column._replace(keys=tuple(keys), ways=tuple(named))


def owner(entry: Entry) -> int:
    """The client whose token this is."""
    token = entry.value
    assert token is not None
    return int(token[1 : token.index(b".")])


def token_of(client: int, token: bytes) -> bytes:
    """A token, had another client made it."""
    return b"c%d%b" % (client, token[token.index(b".") :])


def _by(client: int, orders: tuple[Order, ...]) -> tuple[Order, ...]:
    return tuple(Order(_command_by(client, order.command), order.in_full) for order in orders)


def _command_by(client: int, command: Command) -> Command:
    assert isinstance(command, (Acquire, Release))
    token = token_of(client, command.token)
    if isinstance(command, Release):
        return Release(command.key, token)
    return Acquire(command.key, token, command.ttl_ms)
