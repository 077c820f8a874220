"""Keeping replaces the token by the mark on a quorum, within the validity, or the lease is over."""

from __future__ import annotations

import pytest

from quorlock._core.claims import Keys
from quorlock._core.commands import Keep, Release
from quorlock._core.effects import FlowCancelled
from quorlock._core.keeping import KeepResult, keep
from quorlock._core.owner import OWNER_BYTES_MAX, is_done, mark_of, owner_in, readable, secret_of
from quorlock._core.redlock import LeaseFacts
from quorlock._core.results import LossReason
from quorlock._core.rounds import Target
from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_S
from quorlock.errors import NodeError
from tests.harness.support.script import (
    DOWN,
    NEVER,
    NO_ACL,
    SIZES,
    START,
    Dice,
    Script,
    absent,
    held,
    ms,
    policy_of,
    yes,
)

KEEP = Keep(b"r", b"t", b"mark", 3_600_000)
BACK = Release(b"r", b"t")
DIGITS = b"0123456789abcdef" * 2


def kept(script: Script, left: int = 5 * NS_PER_S, target: Target | None = None) -> KeepResult:
    """Keep a lease that is valid for `left` ns more."""
    facts = LeaseFacts("r", Keys(b"r"), b"t", START + left, target)
    flow = keep(facts, b"mark", 3_600_000, START, policy_of(script.n), Dice())
    return script.run(flow)


@pytest.mark.parametrize("n", SIZES)
def test_a_majority_keeps(n: int) -> None:
    """The token is released where it still is: the others find the mark."""
    others = [NEVER, held(0), absent(0), DOWN]
    script = Script([[yes(1)] * quorum(n) + others[: n - quorum(n)]])
    assert kept(script).loss is None
    assert script.commands == [KEEP, BACK]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("say", "loss"), [(held(1), "taken"), (absent(1), "evicted")])
def test_a_lock_that_is_gone_is_not_kept(n: int, say: object, loss: str) -> None:
    """A quorum without the token: the rest is released, and nothing is tried again."""
    gone = n - quorum(n) + 1
    script = Script([[say] * gone + [yes(2)] * (n - gone)])  # type: ignore[list-item]
    assert kept(script).loss is LossReason(loss)
    assert script.commands == [KEEP, BACK]


@pytest.mark.parametrize("early", [1, 0, -1])
def test_it_counts_only_before_the_validity_ends(early: int) -> None:
    """Another client may have the lock from then on."""
    script = Script([[yes(10)] * 3])
    assert (kept(script, left=ms(10) + early).loss is None) == (early > 0)
    assert script.commands == [KEEP, BACK]


def test_it_waits_no_longer_than_the_validity_lasts() -> None:
    script = Script([[yes(1), NEVER, NEVER]])
    assert kept(script, left=ms(20)).loss is LossReason.UNREACHABLE
    assert script.now == START + ms(20)


def test_it_is_tried_again_while_validity_remains() -> None:
    """The first quorum did not reply; the second one counts, with nodes that kept it before."""
    script = Script([[NEVER, NEVER, yes(1)], [yes(1)] * 3])
    assert kept(script).loss is None
    assert script.commands == [KEEP, KEEP, BACK]


def test_a_lease_that_is_over_sends_its_release_only() -> None:
    """No round would count."""
    script = Script([[yes(1)] * 3])
    assert kept(script, left=0).loss is LossReason.EXPIRED
    assert script.commands == [BACK]


def test_it_follows_the_acquire_of_its_lease() -> None:
    """Nodes that were never asked for the key are not asked to keep it."""
    target = Target(0b011, None)
    script = Script([[yes(1)] * 3])
    kept(script, target=target)
    assert script.sends[0].behind is target


def test_refused_for_good_is_an_error_and_releases() -> None:
    script = Script([[NO_ACL, NO_ACL, yes(1)]])
    with pytest.raises(NodeError) as refused:
        kept(script)
    assert (refused.value.resource, refused.value.elapsed) == ("r", 0.001)
    assert script.commands == [KEEP, BACK]


def test_interrupted_it_releases() -> None:
    """The token, not the mark: where the mark is set, the work is done."""
    facts = LeaseFacts("r", Keys(b"r"), b"t", START + NS_PER_S, None)
    flow = keep(facts, b"mark", 1_000, START, policy_of(3), Dice())
    next(flow)
    effect = flow.throw(FlowCancelled())
    assert getattr(effect, "command", None) == BACK
    with pytest.raises(FlowCancelled):
        next(flow)


# --- the mark ---------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [b"", b"@web-3", b"@%7E", b"@" + b"x" * OWNER_BYTES_MAX])
def test_a_mark_names_the_owner_and_is_no_token(owner: bytes) -> None:
    """No owner of a token begins as that of a mark; a release of the token does not match it."""
    token = DIGITS + owner
    mark = mark_of(token)
    assert mark != token
    assert is_done(owner_in(mark))
    assert not is_done(owner_in(token))
    assert len(owner_in(mark)) <= OWNER_BYTES_MAX
    shown = readable(owner_in(mark))
    assert shown == (readable(owner[1:OWNER_BYTES_MAX]) if owner else None)
    assert secret_of(mark) == secret_of(token) == DIGITS


def test_a_mark_of_another_librarys_token_is_another_value() -> None:
    assert mark_of(b"theirs") == b"theirs@~"


def test_a_keep_equals_no_other_command() -> None:
    """A named tuple equals any tuple with the same fields."""
    assert Keep(b"a", b"b", b"c", 1) == Keep(b"a", b"b", b"c", 1)
    assert Keep(b"a", b"b", b"c", 1) != (b"a", b"b", b"c", 1)
    assert len({KEEP, Keep(*KEEP), (*KEEP,)}) == 2
