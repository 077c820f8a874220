"""The settings that all clients of a set of nodes share, and when a node may be given them.

Each node stores them as a text (`quorlock:config`).  A node without a text is new, or has lost it.
It gets one only if a quorum of the nodes agrees with the client or is empty too.  Otherwise any
client writes there what the other nodes store.  So a client with wrong settings cannot take over a
set whose nodes restart one by one.  The handshake reads and writes the text; `changes` has the
steps that change it while clients run (docs/contributing/decisions/0030-agreement.md).
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.tally import quorum

if TYPE_CHECKING:
    from quorlock._core.config import Policy

# The digits of a run_id that go into the name of a set.
_NAME_DIGITS = 8


class Agreement(NamedTuple):
    """The text of one node, parsed.

    sizes: how many nodes a client may list.  Two sizes while a node is being added or removed.
    max_ttl_ms: the longest ttl that a lease may ask for.
    guard_ms: the least `max_ttl` of a client: how long restarted nodes are kept out at least.
    guards: the restart guards that a client may have.
    version: rises by one with each change.
    name: the name of the set, made of the run_ids at the first contact with all of its nodes.
    """

    sizes: tuple[int, ...]
    max_ttl_ms: int
    guard_ms: int
    guards: tuple[str, ...]
    version: int = 1
    name: str = ""

    @property
    def text(self) -> str:
        """Return the text as nodes store it."""
        sizes, guards = ",".join(map(str, self.sizes)), ",".join(self.guards)
        words = [f"n={sizes}", f"max_ttl_ms={self.max_ttl_ms}", f"restart_guard={guards}"]
        if self.guard_ms != self.max_ttl_ms:
            words.append(f"guard_ms={self.guard_ms}")
        if self.version > 1:
            words.append(f"version={self.version}")
        if self.name:
            words.append(f"set={self.name}")
        return " ".join(words)

    @property
    def is_changing(self) -> bool:
        """Return whether a node is being added or removed."""
        return len(self.sizes) > 1

    def refusal(self, own: "Agreement") -> str:
        """Return why a client with these settings may not use the node, "" if it may."""
        if own.sizes[0] not in self.sizes:
            sizes = " or ".join(map(str, self.sizes))
            return f"list {sizes} nodes"
        if own.guards[0] not in self.guards:
            return f"give restart_guard={' or '.join(self.guards)}"
        if own.max_ttl_ms < self.guard_ms:
            return f"give max_ttl={self.guard_ms / 1000:g}"
        return ""


def own_agreement(policy: "Policy") -> Agreement:
    """Return the agreement that a client with these settings would write."""
    max_ttl_ms = policy.max_ttl_ms
    return Agreement((policy.n,), max_ttl_ms, max_ttl_ms, (str(policy.restart_guard),))


def parse(text: str) -> Agreement | None:
    """Return the agreement that a node stores; None if this version cannot parse it."""
    pairs = (word.partition("=") for word in text.split(" "))
    words = {name: value for name, _, value in pairs}
    known = {"n", "max_ttl_ms", "restart_guard", "guard_ms", "version", "set"}
    try:
        agreed = Agreement(
            sizes=tuple(int(size) for size in words["n"].split(",")),
            max_ttl_ms=int(words["max_ttl_ms"]),
            guard_ms=int(words.get("guard_ms", words["max_ttl_ms"])),
            guards=tuple(words["restart_guard"].split(",")),
            version=int(words.get("version", "1")),
            name=words.get("set", ""),
        )
    except (KeyError, ValueError):
        return None
    return agreed if set(words) <= known else None


class Reading(NamedTuple):
    """One node as a client read it: its process, and its agreement (None: it stores none).

    is_current: the process is connected now, not only a moment ago.
    """

    run_id: str
    agreed: Agreement | None
    text: str = ""
    is_current: bool = True


class Step(Enum):
    """The action for a node that was just read."""

    ADMIT = "admit"
    WRITE = "write"
    WAIT = "wait"  # until the other nodes have been read
    REFUSE = "refuse"


class Decision(NamedTuple):
    """A step and its details.

    text: what to write, or why the node is refused.  fix: what the user can do.  lasting: retrying
    cannot help.
    """

    step: Step
    text: str = ""
    fix: str = ""
    lasting: bool = False


ADMIT = Decision(Step.ADMIT)
_RESET = (
    "give all of them the same; once the old ones are gone, run `quorlock nodes reset-config`"
    " (DEL quorlock:config on each node)"
)
_RESET_HERE = "if it belongs to the set, run `quorlock nodes reset-config` for this node"


def decide(
    own: Agreement,
    here: Reading,
    others: Sequence[Reading | None],
    *,
    pending: bool,
    admitted: Sequence[str] = (),
) -> Decision:
    """Decide whether a node is admitted, written, read again later or refused.

    Args:
        own: the client's settings.
        here: the reading of this node.
        others: the readings of all other nodes of the client's list; None: not known at present.
        pending: some unknown readings may arrive soon; worth a short wait.
        admitted: the names of the sets whose nodes vote for this client already.
    """
    if here.agreed is None and here.text:
        return _refuse(f"keeps {here.text!r}, which this version cannot read", "update this client")
    if here.agreed is None:
        return _fill(own, here, others, pending=pending)
    if fix := here.agreed.refusal(own):
        text = f"serves clients with {here.agreed.text!r}, and this one has {own.text!r}"
        return _refuse(text, f"{fix}, as they do. Or {_RESET}")
    if here.agreed.name and any(name not in ("", here.agreed.name) for name in admitted):
        return _of_two_sets(own, here, others, pending=pending)
    known = [other.agreed for other in others if other is not None and other.agreed is not None]
    newer = [agreed for agreed in known if agreed.version > here.agreed.version]
    if len(newer) >= quorum(own.sizes[0]):
        text = f"missed a change: it keeps {here.agreed.text!r}, others {newer[0].text!r}"
        return _refuse(text, _RESET_HERE)
    return _named(own, here.agreed, here, others, pending=pending) or ADMIT


def _of_two_sets(
    own: Agreement, here: Reading, others: Sequence[Reading | None], *, pending: bool
) -> Decision:
    """Decide for a node with another name than a voting node: the name of a quorum counts."""
    name = "" if here.agreed is None else here.agreed.name
    if name_of_quorum(own, [here, *others]) == name:
        return ADMIT  # the other nodes are dropped
    if pending:
        return Decision(Step.WAIT)
    return _refuse(*of_another_set(name))


def of_another_set(name: str) -> tuple[str, str]:
    """Return what is wrong with a node of the set with that name, and the fix."""
    text = f"belongs to another set of nodes ({name}) than the others"
    return text, "list the nodes that the other clients list"


def name_of_quorum(own: Agreement, readings: Sequence[Reading | None]) -> str:
    """Return the name that a quorum of the client's nodes stores; "" if there is none."""
    names = [r.agreed.name for r in readings if r is not None and r.agreed is not None]
    most = max(names, key=names.count, default="")
    return most if names.count(most) >= quorum(own.sizes[0]) else ""


def _present(reading: Reading) -> Agreement | None:
    """Return the agreement, without its name if the process that stored it may be gone."""
    if reading.is_current or reading.agreed is None:
        return reading.agreed
    return reading.agreed._replace(name="")


def _fill(
    own: Agreement, here: Reading, others: Sequence[Reading | None], *, pending: bool
) -> Decision:
    """Decide for a node that stores nothing: it is new, or has lost its data."""
    known = [other for other in others if other is not None]
    kept = [other.agreed for other in known if other.agreed is not None]
    present = [agreed for agreed in map(_present, known) if agreed is not None]
    agreeing = [agreed for agreed in present if not agreed.refusal(own)]
    refusing = [agreed for agreed in kept if agreed.refusal(own)]
    empty = sum(other.agreed is None and not other.text for other in known)
    newest = max(agreeing, key=_version, default=None)
    if refusing and (newest is None or max(map(_version, refusing)) > newest.version):
        # Not this client's settings, but those of a quorum of the set: they must not be lost when
        # the nodes restart one by one while their clients are idle.
        theirs = max(refusing, key=_version)
        if 1 + refusing.count(theirs) >= quorum(own.sizes[0]) and not theirs.is_changing:
            return Decision(Step.WRITE, theirs.text)
        return _refuse(f"is empty, and others serve clients with {theirs.text!r}", _RESET)
    if 1 + len(agreeing) + empty < quorum(own.sizes[0]):
        wait = Decision(Step.REFUSE, "is empty; too few of the others are there to agree")
        return Decision(Step.WAIT) if pending else wait
    if newest is not None and newest.is_changing:
        return Decision(Step.REFUSE, "is empty, and the nodes are being changed; finish that first")
    agreed = newest or own
    return _named(own, agreed, here, others, pending=pending) or Decision(Step.WRITE, agreed.text)


def _named(
    own: Agreement,
    agreed: Agreement,
    here: Reading,
    others: Sequence[Reading | None],
    *,
    pending: bool,
) -> Decision | None:
    """Return a step that writes the set's name once all of its nodes are known; else None."""
    if agreed.name or agreed.is_changing:
        return None
    readings = [here, *[other for other in others if other is not None]]
    kept = [a for a in map(_present, readings) if a is not None]
    names = {a.name for a in kept} - {""}
    if len(names) > 1 or any(a.refusal(own) for a in kept):
        return None
    if not names and sum(reading.is_current for reading in readings) < own.sizes[0]:
        return Decision(Step.WAIT) if pending else None
    name = names.pop() if names else name_of([reading.run_id for reading in readings])
    return Decision(Step.WRITE, agreed._replace(name=name).text)


def name_of(run_ids: Sequence[str]) -> str:
    """Return the name of the set of these processes; every client computes the same."""
    return "-".join(sorted(map(_part, run_ids)))


def is_named_after(name: str, run_id: str) -> bool:
    """Return whether this process was among those at the first contact with the set."""
    return _part(run_id) in name.split("-")


def _part(run_id: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in run_id[:_NAME_DIGITS])


def _version(agreed: Agreement) -> int:
    return agreed.version


def _refuse(text: str, fix: str) -> Decision:
    return Decision(Step.REFUSE, text, fix, lasting=True)


# --- limits --------------------------------------------------------------------------------------


def ttl_ms_max(agreed: Agreement | None, own: Agreement) -> int:
    """Return the longest ttl that this client may ask of the node; 0: no limit is needed."""
    if agreed is None or agreed.max_ttl_ms >= own.max_ttl_ms:
        return 0
    return agreed.max_ttl_ms
