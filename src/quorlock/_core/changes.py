"""The steps that change the settings which all clients of a set of nodes share.

A change is a generator, as a flow is: it yields the steps below, and
`_drivers.change_agreement` carries them out.  A command may be interrupted between any two steps,
and another operator may give a command at the same time.  At every instant, the lists of nodes with
which clients are admitted have majorities that share a node, and no lease outlasts the quarantines
of any client (docs/contributing/decisions/0030-agreement.md).
"""

from collections.abc import Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from quorlock._core.agreement import Agreement, parse
from quorlock._core.tally import quorum
from quorlock.errors import QuorlockError

N = TypeVar("N")

# No list has this length: the node has left its set.
LEFT = (0,)
_END_IT = (
    "end that change first, with `quorlock nodes add URL --finish` if its node (URL) is to be in"
    " the set, else with `quorlock nodes remove URL --finish`"
)


class StoredSettings(NamedTuple):
    """The text that one node stores ("" if none), or the reason why it is not known."""

    address: str
    text: str
    why: str = ""

    @property
    def shown(self) -> str:
        """Return the text, fit for a terminal: any program may have written it."""
        return "".join(c if c.isprintable() else "?" for c in self.text) or "nothing"


class Read(NamedTuple, Generic[N]):
    """Read what these nodes store. The result is a `StoredSettings` for each."""

    nodes: tuple[N, ...]


class Write(NamedTuple, Generic[N]):
    """Replace the text of a node, and disconnect its clients, which read the new one then.

    before: The text that is replaced; if the node stores another one, the change has failed.
    """

    node: N
    before: str
    new: Agreement


class Disconnect(NamedTuple, Generic[N]):
    """Disconnect the clients of these nodes: an interrupted command may not have done so."""

    nodes: tuple[N, ...]


class WaitForLeases(NamedTuple):
    """Wait until every lease is over that was granted for this ttl until now."""

    ttl_ms: int


class ChangeError(QuorlockError):
    """A change that was not begun or that stopped half way; the text says where and what to do.

    Attributes:
        denied: A node refused the login or a command.
        silent: A node did not answer.
    """

    denied = False
    silent = False


Change: TypeAlias = Generator[Read[N] | Write[N] | Disconnect[N] | WaitForLeases, Any, None]


def change_max_ttl(nodes: Sequence[N], max_ttl_ms: int) -> Change[N]:
    """Set the longest ttl that clients may use. Raises ChangeError.

    At every instant all clients keep restarted nodes out for as long as any lease may last.  If
    leases are to become longer, clients with too short a `max_ttl` are refused first.  If they are
    to become shorter, such clients are admitted last, when the longer leases are over.
    """
    found: Sequence[StoredSettings] = yield Read(tuple(nodes))
    agreed = _unchanging(found)
    longest, shortest = max(max_ttl_ms, agreed.guard_ms), min(max_ttl_ms, agreed.max_ttl_ms)
    first = agreed._replace(max_ttl_ms=shortest, guard_ms=longest)
    texts = yield from _write_all(nodes, [there.text for there in found], [first] * len(nodes))
    if max_ttl_ms < longest:
        yield WaitForLeases(longest)
    last = first._replace(max_ttl_ms=max_ttl_ms, guard_ms=max_ttl_ms)
    yield from _write_all(nodes, texts, [last] * len(nodes))


def change_guards(nodes: Sequence[N], guards: tuple[str, ...]) -> Change[N]:
    """Set the restart guards that clients may use. Raises ChangeError."""
    found: Sequence[StoredSettings] = yield Read(tuple(nodes))
    new = _unchanging(found)._replace(guards=guards)
    yield from _write_all(nodes, [there.text for there in found], [new] * len(nodes))


def begin(members: Sequence[N], other: N, *, joins: bool) -> Change[N]:
    """Let clients list the members alone, or the members and the other node. Raises ChangeError.

    joins: The other node is being added. If false, it is a member until now and may be dead.
    """
    larger = len(members) + 1
    size = larger - 1 if joins else larger
    both = (larger - 1, larger)
    found: Sequence[StoredSettings] = yield Read((*members, other))
    *of_members, there = found
    agreed = _agreed(_agreements(of_members), (size,), both, f"these are {size} nodes")
    if joins and there.why:
        raise ChangeError(f"{there.address}: {there.why}")
    nodes, texts = [*members], [kept.text for kept in of_members]
    new = [agreed._replace(sizes=both)] * len(members)
    if not there.why:
        if agreed.sizes == both:
            _require_joined(there, agreed)
        elif joins:
            _require_free(there, agreed, larger)
        else:
            _require_member(there, agreed)
        # A member comes first: of two changes that begin at once, one fails there.  The other node
        # admits only clients that list it beside all members.
        nodes.insert(1, other)
        texts.insert(1, there.text)
        new.insert(1, agreed._replace(sizes=(larger,)))
    if agreed.sizes == (size,):
        # Majorities of lists that are two changes apart may be disjoint.
        yield Disconnect(tuple(nodes))
        yield WaitForLeases(agreed.guard_ms)
    yield from _write_all(nodes, texts, new)


def finish(members: Sequence[N], other: N, *, joins: bool) -> Change[N]:
    """Let clients list the new set only. Raises ChangeError.

    joins: As in `begin`. A node that does not join is given settings that admit no client, unless
        it is dead.
    """
    larger = len(members) + 1
    size = larger if joins else larger - 1
    both = (larger - 1, larger)
    found: Sequence[StoredSettings] = yield Read((*members, other))
    *of_members, there = found
    agreed = _agreed(_agreements(of_members), both, (size,), "begin the change first")
    nodes, texts = [*members], [kept.text for kept in of_members]
    new = [agreed._replace(sizes=(size,))] * len(members)
    if joins or not there.why:
        if joins or agreed.is_changing:
            _require_joined(there, agreed, *(() if joins else (LEFT,)))
        elif there.text:
            _require_left(there)
        # First, so that it is never older than the members.
        nodes.insert(0, other)
        texts.insert(0, there.text)
        new.insert(0, new[0] if joins else new[0]._replace(sizes=LEFT))
    yield from _write_all(nodes, texts, new)


def _agreements(found: Sequence[StoredSettings]) -> list[Agreement]:
    """Return what nodes store, without those that store nothing. Raises ChangeError."""
    lacking = [f"{kept.address}: {kept.why}" for kept in found if kept.why]
    if lacking:
        raise ChangeError("a change needs all nodes; " + "; ".join(lacking))
    agreements = [agreed for kept in found if (agreed := parse(kept.text)) is not None]
    names = {agreed.name for agreed in agreements}
    unread = sum(bool(kept.text) for kept in found) - len(agreements)
    if unread or len(agreements) < quorum(len(found)) or len(names) > 1:
        texts = "; ".join(f"{kept.address}: {kept.shown}" for kept in found)
        raise ChangeError(f"these nodes do not keep the same: {texts}")
    return agreements


def _agreed(
    kept: Sequence[Agreement], before: tuple[int, ...], after: tuple[int, ...], fix: str
) -> Agreement:
    """Return the settings that the nodes share; during a change, those before it.

    The limits are such that no lease outlasts a quarantine, also where the nodes differ.  Raises
    ChangeError unless the nodes are those of a change of the sizes of lists, not begun, under way
    or done.
    """
    oldest = min(kept, key=lambda one: one.version)
    newest = max(kept, key=lambda one: one.version)
    for one in kept:
        if one.sizes not in (before, after):
            raise ChangeError(f"clients list {one.text!r}: {fix}")
        if one.sizes != newest.sizes and (one.sizes, newest.sizes) != (before, after):
            raise ChangeError(f"another change is under way: {_END_IT}")
        if one.sizes != newest.sizes and one.version == newest.version:
            raise ChangeError(f"one of these nodes is being added or removed: {_END_IT}")
    return oldest._replace(
        max_ttl_ms=min(one.max_ttl_ms for one in kept), guard_ms=max(one.guard_ms for one in kept)
    )


def _unchanging(found: Sequence[StoredSettings]) -> Agreement:
    """Return the settings that all nodes share. Raises ChangeError if a node comes or goes."""
    kept, size = _agreements(found), (len(found),)
    if len({one.sizes for one in kept}) > 1 or kept[0].is_changing:
        raise ChangeError(f"a node is being added or removed: {_END_IT}")
    return _agreed(kept, size, size, f"these are {len(found)} nodes")


def _require_joined(
    there: StoredSettings, agreed: Agreement, *other_sizes: tuple[int, ...]
) -> None:
    """Raise ChangeError unless this node is the one of the change under way.

    If two nodes are added or removed at once, the lists with one of them and with the other may
    have majorities that share no node.

    other_sizes: What it may keep beside the longer list.
    """
    if there.why:
        raise ChangeError(f"{there.address}: {there.why}")
    kept = parse(there.text)
    of_this_change = (
        kept is not None
        and kept.name == agreed.name
        and kept.sizes in (agreed.sizes[-1:], *other_sizes)
        and kept.version >= agreed.version
    )
    if not of_this_change:
        fix = _END_IT if there.text else "if it has restarted empty, stop it, and remove it then"
        raise ChangeError(f"{there.address} is not part of the change that is under way: {fix}")


def _require_member(there: StoredSettings, agreed: Agreement) -> None:
    """Raise ChangeError unless this node belongs to the set."""
    kept = parse(there.text)
    if kept is None or (kept.name, kept.sizes) != (agreed.name, agreed.sizes):
        raise ChangeError(f"{there.address} is no member of the set: it keeps {there.text!r}")


def _require_left(there: StoredSettings) -> None:
    """Raise ChangeError unless this node has left its set."""
    kept = parse(there.text)
    if kept is None or kept.sizes != LEFT:
        raise ChangeError(f"{there.address} keeps {there.text!r}: begin the change first")


def _require_free(there: StoredSettings, agreed: Agreement, larger: int) -> None:
    """Raise ChangeError if this node belongs to a set.

    It may have been given the settings of this set by this change, or by a client that lists it too
    early.
    """
    kept = parse(there.text)
    if not there.text or (kept is not None and kept.sizes == LEFT):
        return
    if kept is None or kept.name != agreed.name or kept.sizes not in (agreed.sizes, (larger,)):
        fix = "if it is to leave that, run `quorlock nodes reset-config` for this node alone"
        raise ChangeError(f"{there.address} belongs to a set ({there.text!r}): {fix}")


def _write_all(
    nodes: Sequence[N], texts: Sequence[str], new: Sequence[Agreement]
) -> Generator[Write[N] | Disconnect[N], Any, list[str]]:
    """Replace these texts, with one new version, unless the nodes store the settings already.

    Returns what the nodes store then.
    """
    kept = [parse(text) for text in texts]
    version = max((one.version for one in kept if one is not None), default=0)
    if kept == [one._replace(version=version) for one in new]:
        yield Disconnect(tuple(nodes))
        return list(texts)
    written = [one._replace(version=version + 1) for one in new]
    for node, before, after in zip(nodes, texts, written, strict=True):
        yield Write(node, before, after)
    return [one.text for one in written]
