"""Inspections: the holder of a resource, node by node, and the verdict."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeGuard

from quorlock._core.owner import is_done, owner_in, readable
from quorlock._core.places import is_reservation
from quorlock._core.redlock import raise_no_quorum
from quorlock._core.tally import quorum
from quorlock._core.votes import Answer
from quorlock._drivers.clock import now
from quorlock.errors import ConfigError, VoteCode

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.request import BaseRequest

Verdict: TypeAlias = Literal["held", "free", "passing", "split", "unreachable"]


class Reader(NamedTuple):
    """A lease that shares the lock.

    Attributes:
        holder: a digest of its token.
        owner: who has it, as it says itself; None if it does not.
        ttl_left: seconds until it expires.
    """

    holder: str
    owner: str | None
    ttl_left: float


class NodeView(NamedTuple):
    """The state of a resource on one node.

    Attributes:
        node: its address.
        holder: a digest of the token there (tokens are secrets); None if there is none.
        ttl_left: seconds until the key expires; None if absent or without expiry.
        error: why the node gave no answer about the lock; "" if it did.
        code: the reason, for programs; None if it did.
        owner: who the holder is, as it says itself: the `owner` of its `Redlock`; None if its token
            has none, as those of other libraries.
        reserved: the node keeps the lock for a waiter that it has called; it has no holder there.
        done: the key is no lock, but the mark of work that `owner` has done (`Lease.keep`).
        readers: the leases that share the lock there, 100 at most; those that end last come first.
            Then `holder` is None.
    """

    node: str
    holder: str | None
    ttl_left: float | None
    error: str
    code: VoteCode | None = None
    owner: str | None = None
    reserved: bool = False
    done: bool = False
    readers: tuple[Reader, ...] = ()


class Inspection(NamedTuple):
    """The state of a resource on all nodes.

    Attributes:
        resource: its name.
        verdict: "held" (one holder on a quorum, or a lease that shares the lock), "free" (a quorum
            has no key), "passing" (a quorum has no holder, and nodes keep the lock for the next
            waiter), "split" (none of these: leftovers or contenders), "unreachable" (fewer than a
            quorum answered).
        ttl_left: seconds until the keys of a quorum have expired; None if free or never.
        nodes: the view of each node.
        owner: who holds it, if one holder has a quorum and says it.
        waiters: how many wait in the queues of a quorum of nodes: one for each process, or rather
            `Redlock`, whatever number of threads or tasks wait there.  Clients that poll are not
            seen.
        done: it is "held" by the mark of work that `owner` has done, which ends in `ttl_left`.
        readers: the leases that share the lock and have a quorum, with the ttl left on it.
    """

    resource: str
    verdict: Verdict
    ttl_left: float | None
    nodes: tuple[NodeView, ...]
    owner: str | None = None
    waiters: int = 0
    done: bool = False
    readers: tuple[Reader, ...] = ()

    @property
    def shared(self) -> bool:
        """True if leases that share the lock hold it."""
        return bool(self.readers)


def inspection(
    resource: str, addresses: tuple[str, ...], answers: tuple[Answer, ...], ttl_left_ms: int | None
) -> Inspection:
    """Return the report of a round of Inspect."""
    views = tuple(map(_view, addresses, answers))
    readers = _readers(views)
    verdict = "held" if readers else _verdict(views)
    left = ttl_left_ms / 1000 if ttl_left_ms and verdict != "free" else None
    is_alone = verdict == "held" and not readers
    holder = _holder(views) if is_alone else NodeView("", None, None, "")
    waiters = _waiters(answers)
    return Inspection(resource, verdict, left, views, holder.owner, waiters, holder.done, readers)


def check_holder(holder: object) -> None:
    """Raise ConfigError unless it is what `inspect` may have shown: a digest, or None."""
    if not isinstance(holder, (str, type(None))):
        # It may be a token, which is a secret.
        raise ConfigError("holder", "(not shown)", "give the holder that inspect showed, a str")


def token_of(
    holder: str, answers: tuple[Answer, ...], request: BaseRequest, policy: Policy
) -> bytes | None:
    """Return the token among these answers that has this digest; None if a quorum lacks it.

    Raises QuorumUnreachable or NodeError if no node has shown it, and too few can deny it.
    """
    tokens = {answer.holder for answer in answers if _is_token(answer.holder)}
    tokens.update(token for answer in answers for token, _ in answer.readers if _is_token(token))
    found = next((token for token in tokens if digest(token) == holder), None)
    if found is None and sum(answer.denies_ownership for answer in answers) < policy.quorum:
        raise_no_quorum(answers, now(), request, policy)
    return found


def _is_token(holder: bytes | None) -> TypeGuard[bytes]:
    return holder is not None and not is_reservation(holder)


def digest(token: bytes) -> str:
    """Return a digest that identifies a token without revealing it."""
    from hashlib import sha256  # here: most programs never inspect, and it loads all of OpenSSL

    return sha256(token).hexdigest()[:12]


def _view(address: str, answer: Answer) -> NodeView:
    is_reserved = answer.holder is not None and is_reservation(answer.holder)
    left, is_told = answer.ttl_left_ms, answer.is_held or answer.code is VoteCode.KEY_MISSING
    return NodeView(
        node=address,
        holder=digest(answer.holder) if _is_token(answer.holder) else None,
        ttl_left=left / 1000 if left is not None and left >= 0 else None,
        error="" if is_told else answer.reason,
        code=None if is_told else answer.code,
        owner=readable(answer.owner),
        reserved=is_reserved or any(is_reservation(token) for token, _ in answer.readers),
        done=is_done(answer.owner),
        readers=tuple(
            [
                Reader(digest(token), readable(owner_in(token)), left / 1000)
                for token, left in answer.readers
                if _is_token(token)
            ]
        ),
    )


def _readers(views: tuple[NodeView, ...]) -> tuple[Reader, ...]:
    """Return the readers that a quorum of nodes has, with the ttl left there."""
    found: dict[str, list[Reader]] = {}
    for view in views:
        for reader in view.readers:
            found.setdefault(reader.holder, []).append(reader)
    needed = quorum(len(views))
    # Once fewer than a quorum are left, it is over.
    return tuple(
        [
            reader._replace(ttl_left=sorted([each.ttl_left for each in seen])[-needed])
            for seen in found.values()
            for reader in seen[:1]
            if len(seen) >= needed
        ]
    )


def _waiters(answers: tuple[Answer, ...]) -> int:
    """Return the largest number that a quorum of nodes has at least in its queues."""
    counts = sorted((max(0, answer.ahead) for answer in answers), reverse=True)
    return counts[quorum(len(counts)) - 1]


def _holder(views: tuple[NodeView, ...]) -> NodeView:
    """Return a view of the holder that most nodes show."""
    holders = Counter(view.holder for view in views if view.holder is not None)
    ((most, _),) = holders.most_common(1)
    return next(view for view in views if view.holder == most)


def _verdict(views: tuple[NodeView, ...]) -> Verdict:
    needed = quorum(len(views))
    told = [view for view in views if view.code is None]
    if len(told) < needed:
        return "unreachable"
    # Readers that have no quorum hold nothing, and keep out those that want the lock alone.
    holders = Counter("readers" if view.readers else view.holder for view in told)
    without = holders.pop(None, 0)
    if without >= needed:
        # Where a minority keeps it for a waiter, the others can still be won.
        reserved = sum(view.reserved for view in told)
        return "free" if without - reserved >= needed else "passing"
    holders.pop("readers", None)
    return "held" if holders and max(holders.values()) >= needed else "split"
