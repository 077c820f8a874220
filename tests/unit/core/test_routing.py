"""The routing rule: every command at every kind of node, over every kind of connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import pytest

from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    Command,
    Extend,
    Inspect,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
)
from quorlock._core.effects import Send
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.restart_guard import Quarantine
from quorlock._core.rounds import Target
from quorlock._core.routing import HERE, Over, Unsent, plain_nodes, reaches_all, route, unsent
from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._core.votes import BACKLOG, NOT_SET, RELEASING, TIMED_OUT, Answer
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from quorlock._core.routing import Route

NOW = 10**12
NODE = 1  # bit 0b010
MINE, THEIRS = "mine", "theirs"

ACQUIRE = Acquire(b"k", b"t", 1_000)
SCRIPTED = ScriptedAcquire(b"k", b"t", 1_000)
FENCE = IssueFence(b"k", b"t", 1, 1)
EXTEND = Extend(b"k", b"t", 1_000)
KEEP = Keep(b"k", b"t", b"mark", 3_600_000)
RELEASE = Release(b"k", b"t")
INSPECT = Inspect(b"k")
COMMANDS: tuple[Command, ...] = (ACQUIRE, SCRIPTED, FENCE, EXTEND, KEEP, RELEASE, INSPECT)
VOTING: tuple[Command, ...] = (ACQUIRE, SCRIPTED, FENCE, EXTEND, KEEP)
KEPT_OUT = Quarantine(NOW, NOW + 1, "restarted")
OVER = Quarantine(NOW, NOW, "restarted")


@dataclass
class Link:
    """A connection."""

    quarantine: Quarantine | None = None
    ttl_ms_max: int = 0
    awaits: bytes | None = None
    full: bool = False
    silent_for: int = 0

    def has_pending_acquire(self, token: bytes) -> bool:
        return token == self.awaits

    def is_backlogged(self, at: int) -> bool:
        assert at == NOW
        return self.full

    def silence(self, at: int) -> int:
        assert at == NOW
        return self.silent_for


@dataclass
class Facts:
    """A driver whose paths have these connections to NODE; it knows one server there."""

    links: dict[object, Link | None] = field(default_factory=lambda: {MINE: Link()})
    may_send_later: bool = True
    run_id: str = "run"
    pending_releases: PendingReleases = field(
        default_factory=lambda: PendingReleases(30_000 * NS_PER_MS)
    )

    def node(self, index: int) -> Facts:
        assert index == NODE
        return self

    def connection(self, path: object, index: int) -> Link | None:
        assert index == NODE
        return self.links.get(path)


def behind(*paths: object, asked: int = 0b111) -> Target:
    return Target(asked, paths if len(paths) > 1 else paths[0])


def decide(facts: Facts, command: Command, after: Target | None = None) -> Route:
    return route(Send(command, after), NODE, MINE, NOW, facts)


# --- over which connection ----------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_goes_over_its_callers_own_connection(command: Command) -> None:
    after = (None, behind(MINE), behind(THEIRS), behind(MINE, THEIRS))
    assert {decide(Facts(), command, round_) for round_ in after} == {HERE}


@pytest.mark.parametrize("command", [FENCE, EXTEND, RELEASE, SCRIPTED])
def test_no_command_overtakes_its_acquire(command: Command) -> None:
    """The command takes the route whose connection has the acquire, the first of several; no
    other.
    """
    waits, others = Link(awaits=b"t"), Link(awaits=b"another")
    for paths in (behind(THEIRS), behind(MINE, THEIRS), behind(THEIRS, "third")):
        for own in (Link(), None, others):
            facts = Facts({MINE: own, THEIRS: waits, "third": waits})
            assert decide(facts, command, paths) == Over(THEIRS)
    facts = Facts({MINE: Link(), THEIRS: others, "third": None})
    assert decide(facts, command, behind(THEIRS, "third", "unknown")) == HERE


EXCHANGE = ScriptedAcquire(b"k", b"new", 1_000, instead=b"t")
JOINS = Release(b"k", b"", b"place", JOIN)


@pytest.mark.parametrize("may_send_later", [False, True])
def test_an_exchange_does_not_overtake_the_acquire_of_its_old_token(may_send_later: bool) -> None:
    """An exchange is not left to that path either: commands for its token would overtake it."""
    facts = Facts({MINE: Link(), THEIRS: Link(awaits=b"t")}, may_send_later)
    assert decide(facts, EXCHANGE, behind(THEIRS)) is TIMED_OUT
    facts = Facts({MINE: Link(), THEIRS: Link(awaits=b"new")})
    assert decide(facts, EXCHANGE, behind(THEIRS)) == HERE


def test_an_exchange_relies_on_no_key() -> None:
    """A release of the old token may still be carried out, before it or after it."""
    facts = Facts()
    facts.pending_releases.add(RELEASE, "run", NOW)
    assert decide(facts, EXCHANGE, behind(MINE)) == HERE
    assert decide(facts, SCRIPTED, behind(MINE)) is RELEASING
    assert plain_nodes(Send(EXCHANGE, behind(MINE)), 0b010, MINE) == 0b010


def test_what_only_concerns_a_place_is_never_sent_later() -> None:
    """A look frees no key, and is not sent with a backlog; a place is removed nevertheless."""
    assert decide(Facts({MINE: Link(full=True)}), JOINS) is BACKLOG
    leaves = JOINS._replace(ticket=LEAVE)
    assert decide(Facts({MINE: Link(full=True)}), leaves) == HERE
    assert decide(Facts({MINE: None}), JOINS) == Unsent(is_release=False)
    assert unsent(JOINS) == Unsent(is_release=False)
    assert unsent(Release(b"k", b"t", b"place", 4)) == Unsent(is_release=True)


def test_a_command_stays_on_the_connection_that_has_its_acquire() -> None:
    facts = Facts({MINE: Link(awaits=b"t"), THEIRS: Link()})
    assert decide(facts, RELEASE, behind(THEIRS, MINE)) == HERE
    assert decide(facts, RELEASE, behind(MINE)) == HERE


def test_a_path_that_takes_no_requests_keeps_a_command_from_being_sent() -> None:
    """A release becomes pending for the process that may get the acquire; no other one is sent."""
    facts = Facts({MINE: Link(), THEIRS: Link(awaits=b"t")}, may_send_later=False)
    assert decide(facts, RELEASE, behind(THEIRS)) == Unsent(is_release=True, run_id="run")
    for command in (EXTEND, FENCE, SCRIPTED):
        assert decide(facts, command, behind(THEIRS)) is TIMED_OUT
        assert decide(facts, command, behind(MINE)) == HERE


@pytest.mark.parametrize("command", COMMANDS)
def test_where_there_is_no_connection_only_a_release_becomes_pending(command: Command) -> None:
    for after, may_send_later in product((None, behind(MINE), behind(THEIRS)), (True, False)):
        found = decide(Facts({MINE: None, THEIRS: Link()}, may_send_later), command, after)
        assert found == Unsent(command is RELEASE, "") == unsent(command)


# --- may the node be asked ----------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_outside_the_acquires_round_gets_nothing(command: Command) -> None:
    for link, path in product((Link(), Link(awaits=b"t"), None), (MINE, THEIRS)):
        facts = Facts({MINE: link, THEIRS: link})
        assert decide(facts, command, behind(path, asked=0b101)) is NOT_SET


@pytest.mark.parametrize("command", COMMANDS)
def test_what_relies_on_a_key_is_not_sent_where_a_release_is_pending(command: Command) -> None:
    """Whatever connections there are: extensions, and acquires that restore a key."""
    for link, path, asked in product((Link(), Link(KEPT_OUT), None), (MINE, THEIRS), (0, 0b111)):
        facts = Facts({MINE: link, THEIRS: Link(awaits=b"t")})
        facts.pending_releases.add(RELEASE, "run", NOW)
        found = decide(facts, command, behind(path, asked=asked))
        assert (found is RELEASING) is (command in (ACQUIRE, SCRIPTED, EXTEND))
        assert (decide(facts, command) is RELEASING) is (command is EXTEND)


def test_a_release_of_an_earlier_holder_counts_for_the_server_that_it_went_to() -> None:
    send = Send(EXTEND, behind(MINE), in_doubt={"run": NOW + 1})
    facts = Facts()
    assert route(send, NODE, MINE, NOW, facts) is RELEASING
    assert route(send, NODE, MINE, NOW, Facts({})) is RELEASING
    facts.run_id = "another"
    assert route(send, NODE, MINE, NOW, facts) == HERE


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_in_quarantine_gets_what_is_no_vote(command: Command) -> None:
    found = decide(Facts({MINE: Link(KEPT_OUT)}), command)
    if command in VOTING:
        assert isinstance(found, Answer)
        assert found.code is VoteCode.QUARANTINED
    else:
        assert found == HERE
    assert decide(Facts({MINE: Link(OVER)}), command) == HERE


def test_the_quarantine_of_a_connection_that_is_not_used_does_not_count() -> None:
    """Another path's owner looks at its connection when it sends."""
    facts = Facts({MINE: Link(KEPT_OUT), THEIRS: Link(KEPT_OUT, awaits=b"t")})
    assert decide(facts, EXTEND, behind(THEIRS)) == Over(THEIRS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_refuses_longer_leases_than_its_clients_agreed_on(command: Command) -> None:
    for quarantine in (None, OVER):
        found = decide(Facts({MINE: Link(quarantine, ttl_ms_max=999)}), command)
        if command in (ACQUIRE, SCRIPTED, EXTEND):
            assert isinstance(found, Answer)
            assert found.code is VoteCode.PERMANENT_ERROR
        else:
            assert found == HERE
        assert decide(Facts({MINE: Link(quarantine, ttl_ms_max=1_000)}), command) == HERE


@pytest.mark.parametrize("command", COMMANDS)
def test_a_backlogged_node_gets_what_others_depend_on(command: Command) -> None:
    found = decide(Facts({MINE: Link(full=True)}), command)
    assert found == (BACKLOG if command in (ACQUIRE, SCRIPTED, INSPECT) else HERE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_that_is_silent_for_longer_than_a_ttl_gets_no_extension(command: Command) -> None:
    """All other commands are sent.  The path over which it would go makes no difference."""
    ttl = EXTEND.ttl_ms * NS_PER_MS
    for silent_for in (0, ttl, ttl + 1):
        own = Facts({MINE: Link(silent_for=silent_for)})
        carried = Facts({MINE: Link(), THEIRS: Link(awaits=b"t", silent_for=silent_for)})
        in_vain = command is EXTEND and silent_for > ttl
        assert (decide(own, command) is BACKLOG) is in_vain
        assert (decide(carried, command, behind(THEIRS)) is BACKLOG) is in_vain


def test_refusals_come_in_this_order() -> None:
    link = Link(KEPT_OUT, ttl_ms_max=1, awaits=b"t", full=True)
    facts = Facts({MINE: link})
    facts.pending_releases.add(RELEASE, "run", NOW)
    order: list[tuple[int, VoteCode]] = []
    for asked in (0, 0, 0b111, 0b111, 0b111):
        found = decide(facts, ACQUIRE, behind(MINE, asked=asked))
        assert isinstance(found, Answer)
        order.append((asked, found.code))
        if found is RELEASING:
            facts.pending_releases = PendingReleases(FOR_EVER)
        elif found.code is VoteCode.QUARANTINED:
            link.quarantine = None
        elif found.code is VoteCode.PERMANENT_ERROR:
            link.ttl_ms_max = 0
    assert order == [
        (0, VoteCode.RELEASE_PENDING),
        (0, VoteCode.NOT_SET),
        (0b111, VoteCode.QUARANTINED),
        (0b111, VoteCode.PERMANENT_ERROR),
        (0b111, VoteCode.BACKLOG),
    ]


# --- all nodes at once --------------------------------------------------------------------------

AFTER = [None, *(behind(*p, asked=a) for p in ((MINE,), (THEIRS,)) for a in (0, 0b010, 0b111))]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("after", [*AFTER, behind(MINE, THEIRS)])
def test_what_is_for_all_would_go_to_each(command: Command, after: Target | None) -> None:
    """The rule lets it through wherever the connection is there and nothing forbids it.

    What is plain goes through also where a release is pending.
    """
    facts = Facts({MINE: Link(), THEIRS: Link(awaits=b"t")})
    send = Send(command, after)
    if reaches_all(send.behind, 0b010, MINE):
        assert decide(facts, command, after) == HERE
        facts.pending_releases.add(RELEASE, "run", NOW)
        is_here = decide(facts, command, after) == HERE
        assert plain_nodes(send, 0b010, MINE) == (0b010 if is_here else 0)
    else:
        assert after is not None
        assert after.path != MINE or not after.nodes & 0b010
        assert plain_nodes(send, 0b010, MINE) == 0
