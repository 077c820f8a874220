"""A small world as numbers: its states, and the steps from one to the next.

A state is made of the situations of its parts (`parts`), so a step is some looking up: a hundred
times quicker than to run the world again.  Leaves to `explore` which states are visited.

Where `reduced`, what comes to the same is one:

*Names.*  Clients are alike, and so are nodes: states that differ by names only have one key.

*What cannot matter any more* is left out of a client (`frozen.digest_of_a_client`).

*Steps that disturb nobody* are taken at once (`States.undisturbing`).  Each of them stays possible
until it is taken, commutes with all that may happen before, and shows in no promise.  So whatever
can be seen in a state can be seen in one where they have been taken: they are persistent sets of
one step each (P. Godefroid, LNCS 1032, 1996), and since nothing goes round in circles here none is
put off for ever.  They are:

- a node that may come back does: only who connects to it can tell, and may take its time;
- a reply that nobody waits for is read: replies that were sent come before the end of their
  connection, so not even a crash makes a difference;
- who is done with its work, and owes a node nothing, hears that the connection has ended, and
  makes no other;
- a request is carried out that no other request can meet at its node: all others have sent it
  their last, and it has been carried out.  Only where no node will crash and no time pass.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

from quorlock.testing.choices import Choice, ChosenWorld, Small
from quorlock.testing.frozen import Outcome
from quorlock.testing.node import Error
from quorlock.testing.parts import END, Clients, Columns, Names, inverse, owner, token_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorlock.testing.node import Entry
    from quorlock.testing.parts import Attitude, Column, Event

# What may happen next: its kind, client and node; -1 where that does not apply.
Step = tuple[str, int, int]
Key = tuple[int, ...]
# The last steps of a world are few; so many go round in circles.
_STEPS_MAX = 200


class State(NamedTuple):
    """Of a world. crashes, jumps: how many there may still be."""

    now: int
    crashes: int
    jumps: int
    columns: tuple[int, ...]
    clients: tuple[int, ...]


class _Draft:
    """A state that is being changed."""

    __slots__ = ("clients", "columns", "crashes", "jumps", "now")

    def __init__(self, state: State) -> None:
        self.now, self.crashes, self.jumps, columns, clients = state
        self.columns, self.clients = list(columns), list(clients)

    def state(self) -> State:
        """As it is now."""
        return State(self.now, self.crashes, self.jumps, tuple(self.columns), tuple(self.clients))


class States:
    """All states of a small world: `first`, and what comes after."""

    def __init__(self, small: Small, *, reduced: bool = True) -> None:
        self.small = small
        self.reduced = reduced
        self.clients = Clients(small, reduced=reduced)
        self.columns = Columns(small, reduced=reduced)
        self._undisturbing: dict[tuple[int, int, tuple[Attitude, ...], bool], tuple[str, int]] = {}
        # Orders of nodes: by each new name the old one; and the number of that naming.
        number_of = self.clients.number_of
        self._namings = [(order, number_of[inverse(order)]) for order in self.clients.namings]
        self._orders: dict[tuple[int, ...], list[Names]] = {}
        columns = (self.columns.first,) * small.nodes
        clients = (self.clients.first,) * small.clients
        self.first = State(0, small.crashes, small.jumps, columns, clients)

    # --- what may happen ---------------------------------------------------------------------

    def steps(self, state: State) -> list[Step]:
        """Everything that may happen now."""
        columns = [self.columns.all[column] for column in state.columns]
        found: list[Step] = []
        for node, column in enumerate(columns):
            found += _steps_at(node, column, state)
        found += self._steps_of_clients(state, columns)
        if state.jumps and self._next_due(state):
            found.append(("time", -1, -1))
        return found

    def _steps_of_clients(self, state: State, columns: list[Column]) -> Iterator[Step]:
        may_begin = True
        for client, number in enumerate(state.clients):
            facts = self.clients.facts[number]
            if facts.work and may_begin:
                yield facts.work, client, -1
            if facts.patient:
                yield "timeout", client, -1
            # Who is done with a node may stay without a connection.
            away = facts.away & ~facts.quiet if self.reduced else facts.away
            for node, column in enumerate(columns):
                if away >> node & 1 and column.back_from < 0:
                    yield "connect", client, node
            # Who begins first is a name, if nothing else: so it goes by order, or has no name.
            may_begin = facts.begun or self.reduced

    def _next_due(self, state: State | _Draft) -> int:
        """As `ChosenWorld.next_due`; 0: nothing is."""
        instants = [self.columns.all[column].back_from for column in state.columns]
        if not self.small.timeouts:
            instants += [self.clients.facts[client].due for client in state.clients]
            for column in state.columns:
                instants += self.columns.ends_of_keys(column)
        return min((instant for instant in instants if instant > state.now), default=0)

    # --- and happens -------------------------------------------------------------------------

    def after(self, state: State, step: Step, told: list[Step] | None = None) -> State:
        """Let it happen, and what follows from it at once; all of it is `told`."""
        draft = _Draft(state)
        next_: Step | None = step
        while next_ is not None:
            self._take(draft, next_)
            if told is not None:
                told.append(next_)
            next_ = self.undisturbing(draft) if self.reduced else None
        return draft.state()

    def _take(self, draft: _Draft, step: Step) -> None:
        kind, client, node = step
        if kind == "reply":
            # The oldest one, or the end.
            what, *reply = self.columns.all[draft.columns[node]].way(client).replies[0]
            self._turn(draft, node, "reply", client)
            self._give(draft, client, (what, node, *reply))
        elif kind == "request":
            self._turn(draft, node, "request", client, draft.now)
        elif kind == "connect":
            self._turn(draft, node, "connect", client)
            self._give(draft, client, ("connection", node))
        elif kind == "crash":
            draft.crashes -= 1
            self._turn(draft, node, "crash", draft.now)
        elif kind == "restart":
            self._turn(draft, node, "restart")
        elif kind == "time":
            draft.jumps -= 1
            self._pass(draft, self._next_due(draft))
        else:
            self._give(draft, client, ("timeout" if kind == "timeout" else "work",))

    def _turn(self, draft: _Draft, node: int, *deed: object) -> None:
        draft.columns[node] = self.columns.after(draft.columns[node], *deed)

    def _give(self, draft: _Draft, client: int, event: Event) -> None:
        draft.clients[client], sent = self.clients.after(draft.clients[client], event)
        for node, order in sent:
            self._turn(draft, node, "sent", client, order)

    def _pass(self, draft: _Draft, until: int) -> None:
        draft.now = until
        for node in range(len(draft.columns)):
            self._turn(draft, node, "time", until)
        for client in range(len(draft.clients)):
            self._give(draft, client, ("time", until))

    # --- what disturbs nobody ----------------------------------------------------------------

    def undisturbing(self, state: State | _Draft) -> Step | None:
        """A step that commutes with all that may come before it; None: there is none."""
        calm = self._is_calm(state)
        for node, column in enumerate(state.columns):
            # Looked up by all that it depends on: this is asked after every step.
            attitudes = tuple([self.clients.attitudes[c][node] for c in state.clients])
            question = (column, state.now, attitudes, calm)
            known = self._undisturbing.get(question)
            if known is None:
                known = _undisturbing(self.columns.all[column], state.now, attitudes, calm=calm)
                self._undisturbing[question] = known
            if known[0]:
                return (*known, node)
        return None

    def _is_calm(self, state: State | _Draft) -> bool:
        """No node will crash, and no time pass."""
        if state.crashes:
            return False
        if not state.jumps:
            return True
        all_ = self.columns.all
        return bool(self.small.timeouts) and all(all_[c].back_from < 0 for c in state.columns)

    # --- keys --------------------------------------------------------------------------------

    def key(self, state: State) -> Key:
        """The same for states that differ by names only."""
        now, crashes, jumps, columns, clients = state
        if not self.reduced:
            return (now, crashes, jumps, *columns, *clients)
        # Of all names those that put like before like: clients first, then nodes.
        forms: list[Key] = []
        for order in self._orders_of(clients):
            named = [self.columns.swapped(column, order) for column in columns]
            least = sorted(named)
            for nodes, naming in self._namings:
                if [named[old] for old in nodes] == least:
                    renamed = [self.clients.renamed[clients[old]][naming] for old in order]
                    forms.append((now, crashes, jumps, *least, *renamed))
        return min(forms)

    def _orders_of(self, clients: tuple[int, ...]) -> list[Names]:
        like = tuple([self.clients.like[client] for client in clients])
        known = self._orders.get(like)
        if known is None:
            least = sorted(like)
            every = permutations(range(len(like)))
            known = [order for order in every if [like[old] for old in order] == least]
            self._orders[like] = known
        return known

    def retold(self, path: list[Step]) -> tuple[Choice, ...]:
        """The same way as choices of a `ChosenWorld` that is not eager, whose clients begin in
        their order.
        """
        told: list[Step] = []
        state = self.first
        for step in path:
            state = self.after(state, step, told)
        first = [client for kind, client, _ in told if kind == "begin"]
        order = list(dict.fromkeys((*first, *range(self.small.clients))))
        world, chosen = ChosenWorld(self.small, eager=False), list[Choice]()
        for kind, client, node in told:
            place = -1 if client < 0 else order.index(client)
            wanted = (kind, place, node)
            chosen.append(next(choice for choice in world.choices() if choice[:3] == wanted))
            world.perform(chosen[-1])
        return tuple(chosen)

    # --- what is right or wrong --------------------------------------------------------------

    def wrong(self, state: State) -> str:
        """The rule that is broken; "": none."""
        facts = [self.clients.facts[client] for client in state.clients]
        for fact in facts:
            if fact.found:
                return fact.found[0].rule
        return "overlap" if sum(fact.held_until > state.now for fact in facts) > 1 else ""

    def concluded(self, state: State) -> Outcome:
        """The rest in fair weather, from a state in which nothing is to be chosen any more."""
        draft = _Draft(state._replace(crashes=0, jumps=0))
        for _ in range(_STEPS_MAX):
            state = draft.state()
            step = next((step for step in self.steps(state) if step[0] != "timeout"), None)
            if step is not None:
                draft = _Draft(self.after(state, step))
                continue
            instants = [self.clients.facts[client].bell for client in draft.clients]
            instants += [self.columns.all[column].back_from for column in draft.columns]
            instants = [instant for instant in instants if instant > 0]
            if not instants:
                return self._judged(state)
            self._pass(draft, max(draft.now, min(instants)))
        return Outcome((), 0, ("endless",))

    def _judged(self, state: State) -> Outcome:
        left: list[list[tuple[int, bytes, Entry]]] = [[] for _ in state.clients]
        for node, column in enumerate(state.columns):
            for key, entry in self.columns.all[column].keys:
                mine = entry._replace(value=token_of(0, entry.value or b""))
                left[owner(entry)].append((node, key, mine))
        wrong: set[str] = set()
        for client, keys in zip(state.clients, left, strict=True):
            wrong |= {found.rule for found in self.clients.judged(client, keys)}
        calls = sorted(self.clients.facts[client].calls for client in state.clients)
        return Outcome(tuple(calls), sum(map(len, left)), tuple(sorted(wrong)))


def _steps_at(node: int, column: Column, state: State) -> Iterator[Step]:
    for client, way in enumerate(column.ways):
        if way is not None and way.replies:
            yield "reply", client, node
        if way is not None and way.requests:
            yield "request", client, node
    if column.back_from < 0:
        if state.crashes:
            yield "crash", -1, node
    elif column.back_from <= state.now:
        yield "restart", -1, node


def _undisturbing(
    column: Column, now: int, attitudes: Sequence[Attitude], *, calm: bool
) -> tuple[str, int]:
    """What disturbs nobody at one node: its kind and client; "": nothing does."""
    # Who is up shows to those only who connect, and they may take their time.
    if 0 <= column.back_from <= now:
        return "restart", -1
    for client, way in enumerate(column.ways):
        if way is None:
            continue
        # To hear it changes nothing but the queue of replies, whenever it is heard.
        if way.replies and _is_idle(way.replies[0], attitudes[client]):
            return "reply", client
        # Nobody else asks that node for anything any more, and nothing befalls it.
        others = (other for other in range(len(attitudes)) if other != client)
        if calm and way.requests and all(_is_silent(column, o, attitudes[o]) for o in others):
            return "request", client
    return "", -1


def _is_idle(reply: Event, attitude: Attitude) -> bool:
    if reply == END:
        return attitude.quiet
    return attitude.unheard and not isinstance(reply[1], Error)


def _is_silent(column: Column, client: int, attitude: Attitude) -> bool:
    """It has sent this node the last of its commands, and the node has carried it out."""
    way = column.ways[client]
    return attitude.silent and (way is None or not (way.requests or way.dead))
