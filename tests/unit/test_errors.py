"""Errors say what happened, on which nodes and what to do, here and in another process."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import sys
from datetime import timedelta
from typing import Any

import pytest

import quorlock
from quorlock import HoldLimitReached, NodeVote, Ticket
from quorlock._core.resources import ResourceNames
from quorlock._core.votes import WORDS
from quorlock.errors import (
    AcquireError,
    AcquireStopped,
    AcquireTimeout,
    ConfigError,
    ConfigLimit,
    LeaseLost,
    NodeError,
    NodeQuarantine,
    QuorlockError,
    QuorumUnreachable,
    StaleFence,
    VoteCode,
    quarantine_words,
)


def said(node: str, vote: Any, cause: str, code: VoteCode, *, answered: bool = True) -> NodeVote:
    return NodeVote(node, vote, cause, answered, code)


def yes(node: str) -> NodeVote:
    return said(node, "granted", "granted", VoteCode.GRANTED)


def held(node: str) -> NodeVote:
    return said(node, "refused", "held by another", VoteCode.HELD)


def silent(node: str) -> NodeVote:
    return said(node, "unknown", "no answer in time", VoteCode.TIMED_OUT, answered=False)


def unheard(node: str) -> NodeVote:
    return said(node, "unknown", "not waited for", VoteCode.NOT_AWAITED, answered=False)


def down(node: str) -> NodeVote:
    return said(node, "unknown", "connection refused", VoteCode.NOT_CONNECTED, answered=False)


def kept_out(
    node: str, votes_in: float = 26.0, since: float | None = 4.0, event: str = "started"
) -> NodeVote:
    kept = NodeQuarantine(event, since, votes_in)
    cause = quarantine_words([kept])
    return NodeVote(node, "unknown", cause, False, VoteCode.QUARANTINED, kept)


def no_acl(node: str) -> NodeVote:
    return said(node, "refused", "NOPERM no permissions to run 'set'", VoteCode.ACCESS_DENIED)


def full(node: str) -> NodeVote:
    return said(node, "refused", "OOM", VoteCode.TRANSIENT_ERROR)


A, B, C, D, E = (f"{letter}:6379" for letter in "abcde")

# An error says what happened, on which nodes, and what to do.
DESIGN_EXAMPLE = (
    "'invoice:42' is held by another: 3 of 5 nodes refused (a:6379, c:6379, d:6379) after"
    " 7 attempts in 5.0 s; the holder's lease ends in at most 3.1 s"
)

SENTENCES: list[tuple[QuorlockError, str]] = [
    (
        AcquireTimeout("invoice:42", [held(A), yes(B), held(C), held(D), yes(E)], 7, 5.0, 3.1),
        DESIGN_EXAMPLE,
    ),
    (
        AcquireTimeout("r", [held(A), held(B), held(C)], 1, 0.002, 8.9, "web-3:4711 backup"),
        (
            "'r' is held by web-3:4711 backup: 3 of 3 nodes refused after 1 attempt in 2 ms; the"
            " holder's lease ends in at most 8.9 s"
        ),
    ),
    (
        AcquireTimeout("r", [held(A)], 1, 0.002, 8.9, "web-3", done=True),
        (
            "'r' was done by web-3: 1 of 1 nodes refused after 1 attempt in 2 ms; it counts as done"
            " for at most 8.9 s more"
        ),
    ),
    (
        AcquireTimeout("a + b", [held(A)], 1, 0.002, in_the_way="a", done=True),
        "'a + b': 'a' was done by another: 1 of 1 nodes refused after 1 attempt in 2 ms",
    ),
    (
        AcquireTimeout("r", [held(A)], 1, 0.00149),
        "'r' is held by another: 1 of 1 nodes refused after 1 attempt in 1 ms",
    ),
    (
        AcquireTimeout("r", [held(A), yes(B)], 2, 0.25, 0.5),
        (
            "'r' is held by another: 1 of 2 nodes refused (a:6379) after 2 attempts in 250 ms;"
            " the holder's lease ends in at most 500 ms"
        ),
    ),
    (
        AcquireTimeout("r", [yes(A), yes(B), yes(C), unheard(D), unheard(E)], 1, 10.0),
        "'r' was granted by 3 of 5 nodes, but too late to be valid after 1 attempt in 10.0 s",
    ),
    (
        AcquireTimeout("r", [yes(A), yes(B), held(C)], 1, 10.0),
        "'r' was granted by 2 of 3 nodes, but too late to be valid after 1 attempt in 10.0 s",
    ),
    (
        AcquireTimeout("a'b\n", [held(A), held(B), down(C)], 1, 1.0),
        (
            '"a\'b\\n" is held by another: 2 of 3 nodes refused (a:6379, b:6379)'
            " after 1 attempt in 1.0 s"
        ),
    ),
    (
        AcquireStopped("r", [held(A), held(B), held(C)], 7, 1.25),
        "acquire of 'r' was stopped by its event after 7 attempts in 1.2 s",
    ),
    (
        AcquireStopped("r", [], 0, 0.0),
        "acquire of 'r' was stopped by its event before the first attempt",
    ),
    (
        QuorumUnreachable("r", [down(A), silent(B), yes(C), down(D), held(E)], 12, 5.04),
        (
            "'r': 2 of 5 nodes answered, 3 are needed (a:6379, d:6379: connection refused; b:6379:"
            " no answer in time), after 12 attempts in 5.0 s; check"
            " these nodes"
        ),
    ),
    (
        QuorumUnreachable("r", [yes(A), yes(B), held(C), down(D), silent(E)], 1, 0.2),
        (
            "'r': 2 of 5 nodes granted it and 1 refused, 3 are needed; those that did not answer"
            " could decide it (d:6379: connection refused; e:6379: no answer in time), after 1"
            " attempt in 200 ms; check these nodes"
        ),
    ),
    (
        QuorumUnreachable("r", [yes(A), unheard(B), held(C), down(D), down(E)], 1, 0.2),
        (
            "'r': 1 of 5 nodes granted it and 1 refused, 3 are needed; those that did not answer"
            " could decide it (d:6379, e:6379: connection refused), after 1"
            " attempt in 200 ms; check these nodes"
        ),
    ),
    (
        QuorumUnreachable("r", [down(A)], 1, 0.0),
        (
            "'r': 0 of 1 nodes answered, 1 is needed (a:6379: connection refused), after 1 attempt"
            " in 0 ms; check these nodes"
        ),
    ),
    (
        QuorumUnreachable("x", [kept_out(A), kept_out(B, 26.0), kept_out(C)], 36, 4.9),
        (
            "'x': 3 of 3 nodes cast no vote for 26 s more and may have forgotten locks (restart"
            " guard: started 4 s ago), after 36 attempts in 4.9 s; wait, or mark nodes that are"
            " new: quorlock nodes fresh"
        ),
    ),
    (
        QuorumUnreachable("x", [kept_out(A, 26.2, 3.7), yes(B), kept_out(C, 24.0, 5.0)], 1, 0.1),
        (
            "'x': 2 of 3 nodes (a:6379, c:6379) cast no vote for 24 to 27 s more and may have"
            " forgotten locks (restart guard: started 3 to 5 s ago), after 1 attempt in 100 ms;"
            " wait, or mark nodes that are new: quorlock nodes fresh"
        ),
    ),
    (
        QuorumUnreachable("x", [kept_out(A, 9), kept_out(B, 26, 2, "restarted"), held(C)], 1, 0.1),
        (
            "'x': 2 of 3 nodes (a:6379, b:6379) cast no vote for 9 to 26 s more and may have"
            " forgotten locks (restart guard: a:6379: started 4 s ago, votes in 9 s; b:6379:"
            " restarted 2 s ago, votes in 26 s), after 1 attempt in 100 ms; wait, or mark nodes"
            " that are new: quorlock nodes fresh"
        ),
    ),
    (
        QuorumUnreachable(
            "x", [kept_out(A, 8, None, "gives no uptime"), kept_out(B, 7), down(C), down(D)], 2, 0.1
        ),
        (
            "'x': 0 of 4 nodes voted, 3 are needed (a:6379: gives no uptime, votes in 8 s; b:6379:"
            " started 4 s ago, votes in 7 s; c:6379, d:6379: connection refused), after 2 attempts"
            " in 100 ms; check these nodes"
        ),
    ),
    (
        QuorumUnreachable("x", [kept_out(A), held(B), kept_out(C), full(D), down(E)], 2, 0.1),
        (
            "'x': 1 of 5 nodes voted, 3 are needed (a:6379, c:6379: started 4 s ago, votes in 26 s;"
            " d:6379: OOM; e:6379: connection refused), after 2 attempts in 100 ms; wait, or mark"
            " nodes that are new: quorlock nodes fresh"
        ),
    ),
    (
        LeaseLost("r", "unreachable", votes=[kept_out(A, 25.5), kept_out(B, 26), yes(C)]),
        (
            "lease on 'r' is lost: no quorum of nodes confirmed it before its validity ended"
            " (a:6379, b:6379: started 4 s ago, votes in 26 s); stop the protected work, then"
            " acquire the lock again"
        ),
    ),
    (
        NodeError("r", [no_acl(A), yes(B), no_acl(C)], 1, 0.002),
        (
            "'r': 2 of 3 nodes cannot vote (a:6379, c:6379: NOPERM no permissions to"
            " run 'set'), after 1 attempt in 2 ms; fix these nodes or"
            " their configuration"
        ),
    ),
    (
        NodeError("r", [full(A), full(B), yes(C)], 9, 0.3),
        (
            "'r': 2 of 3 nodes cannot vote (a:6379, b:6379: OOM), after 9 attempts in 300 ms;"
            " this may pass: try again, or check these nodes"
        ),
    ),
    (
        NodeError("r", [full(A), no_acl(B), full(C), no_acl(D), yes(E)], 1, 0.002),
        (
            "'r': 4 of 5 nodes cannot vote (a:6379, c:6379: OOM; b:6379, d:6379: NOPERM no"
            " permissions to run 'set'), after 1 attempt in 2 ms; fix b:6379, d:6379, or the"
            " configuration; the other errors may pass"
        ),
    ),
    (
        LeaseLost("r", "expired"),
        (
            "lease on 'r' is lost: its time ran out; stop the protected"
            " work, then acquire the lock again"
        ),
    ),
    (
        LeaseLost("r", "taken", votes=[held(A), yes(B), held(C)]),
        (
            "lease on 'r' is lost: another client holds it (a:6379, c:6379: held by another);"
            " stop the protected work, then acquire the lock again"
        ),
    ),
    (
        LeaseLost("r", "unreachable", votes=[silent(A), silent(B), yes(C)]),
        (
            "lease on 'r' is lost: no quorum of nodes confirmed it before its validity ended"
            " (a:6379, b:6379: no answer in time); stop the protected"
            " work, then acquire the lock again"
        ),
    ),
    (
        StaleFence("invoice:42", 33, 34),
        (
            "'invoice:42' refuses fence 33: it has seen 34, of a later holder; stop the protected"
            " work, then acquire the lock again"
        ),
    ),
    (
        HoldLimitReached("r", 3600.0),
        (
            "lease on 'r' may be held for max_hold=3600 s in all, and this extension would pass"
            " that: release it, or give a longer max_hold (math.inf: no end)"
        ),
    ),
    (ConfigError("ttl", 0, "give seconds above 0"), "ttl=0: give seconds above 0"),
    (ConfigError("nodes[1]", "ftp://a", "give a URL"), "nodes[1]='ftp://a': give a URL"),
    (
        ConfigError("resource", "x" * 81, "shorter"),
        f"resource={'x' * 80!r}… (81 long): shorter",
    ),
    (ConfigError("resource", "x" * 80, "shorter"), f"resource={'x' * 80!r}: shorter"),
    (
        ConfigError("ttl", 60, "give less", limit=ConfigLimit("max_ttl", 30.0, is_most=True)),
        "ttl=60: give less",
    ),
    (QuorlockError("this Redlock is closed"), "this Redlock is closed"),
]
every = pytest.mark.parametrize(
    ("error", "sentence"),
    SENTENCES,
    ids=[f"{i}-{type(error).__name__}" for i, (error, _) in enumerate(SENTENCES)],
)


@every
def test_sentence(error: QuorlockError, sentence: str) -> None:
    """Word by word, since people read and search for it."""
    assert str(error) == sentence
    assert error.message in {"", sentence} or isinstance(error, LeaseLost)


# --- facts -----------------------------------------------------------------------------------


def test_facts_are_attributes() -> None:
    """A program needs no sentence: every fact can be asked for."""
    votes = [held(A), down(B)]
    timeout = AcquireTimeout("r", votes, 3, 1.5, 0.25)
    assert (timeout.resource, timeout.votes) == ("r", (held(A), down(B)))
    assert (timeout.attempts, timeout.elapsed, timeout.holder_ttl) == (3, 1.5, 0.25)
    votes.clear()
    assert len(timeout.votes) == 2, "its own copy"
    assert AcquireTimeout("r", [], 1, 0.0).holder_ttl is None
    assert AcquireTimeout("r", [], 1, 0.0).holder is None
    assert AcquireTimeout("r", votes, 3, 1.5, 0.25, "web-3").args[4:] == (0.25, "web-3")
    for error in (QuorumUnreachable("r", [down(A)], 2, 0.5), NodeError("r", [down(A)], 2, 0.5)):
        assert (error.resource, error.votes) == ("r", (down(A),))
        assert (error.attempts, error.elapsed) == (2, 0.5)
    lease = object()
    lost = LeaseLost("r", "taken", [held(A)], lease)
    assert (lost.resource, lost.reason, lost.lease, lost.votes) == ("r", "taken", lease, (held(A),))
    config = ConfigError("ttl", -1, "give more")
    assert (config.argument, config.value, config.fix) == ("ttl", -1, "give more")
    assert config.limit is None
    limit = ConfigLimit("max_ttl", 30.0, is_most=True)
    config = ConfigError("ttl", b"60", "give less", limit=limit)
    assert config.limit == ConfigError(*as_json(config.args)).limit == limit


@pytest.mark.parametrize("code", VoteCode, ids=str)
def test_codes_have_words_and_the_words_decide_nothing(code: VoteCode) -> None:
    """However a cause is worded, an error with that code says the same about the rest."""
    assert WORDS[code]
    for kind in (AcquireTimeout, AcquireStopped, QuorumUnreachable, NodeError):
        said_so, reworded = (
            str(kind("r", [said(A, "unknown", cause, code, answered=False)], 1, 1.0))
            for cause in ("in these words", "in other words")
        )
        assert said_so.replace("in these words", "in other words") == reworded


def test_codes_are_plain_json_where_errors_travel() -> None:
    """A string in `args`, the enum in `votes`, also at the other end."""
    error = AcquireTimeout("r", [held(A)], 1, 1.0)
    (vote,) = error.args[1]
    assert vote == [A, "refused", "held by another", True, "held"]
    assert type(vote[-1]) is str
    (back,) = AcquireTimeout(*as_json(error.args)).votes
    assert back.code is VoteCode.HELD
    assert pickle.loads(pickle.dumps(back)) == back
    assert json.loads(json.dumps(back._asdict()))["code"] == "held"


def test_errors_that_last_are_errors() -> None:
    """A program may retry on some, and never on others."""
    errors_ = {code for code in VoteCode if code.is_error}
    assert {code for code in VoteCode if code.is_permanent} < errors_
    assert VoteCode.TRANSIENT_ERROR in errors_
    assert VoteCode.HELD not in errors_


def test_a_key_without_ttl_is_reported() -> None:
    """The code shows it; no lease ends there."""
    vote = said(A, "refused", WORDS[VoteCode.HELD_WITHOUT_TTL], VoteCode.HELD_WITHOUT_TTL)
    assert str(AcquireTimeout("r", [vote], 1, 1.0)).endswith("delete it if no program needs it")
    assert "no ttl" not in str(AcquireTimeout("r", [vote], 1, 1.0, 2.0))


def test_nodes_that_issue_other_fences_are_reported() -> None:
    """A quorum granted, and no fence is the lease's."""
    vote = said(A, "refused", "another fence", VoteCode.FENCE_MISMATCH)
    assert "did not agree on a fence" in str(AcquireTimeout("r", [vote], 1, 1.0))


def test_the_tree() -> None:
    """The tree is that of errors.py; errors with a name in the standard library are that, too."""
    parents: dict[type[Exception], tuple[type[Exception], ...]] = {
        QuorlockError: (Exception,),
        AcquireError: (QuorlockError,),
        AcquireStopped: (AcquireError,),
        AcquireTimeout: (AcquireError, TimeoutError, OSError),
        QuorumUnreachable: (AcquireError,),
        LeaseLost: (QuorlockError,),
        StaleFence: (QuorlockError,),
        NodeError: (QuorlockError,),
        ConfigError: (QuorlockError, ValueError),
    }
    for kind, bases in parents.items():
        assert all(issubclass(kind, base) for base in bases)
        assert getattr(quorlock, kind.__name__) is kind
        assert kind.__doc__
    for kind in (QuorumUnreachable, LeaseLost, StaleFence, NodeError):
        assert not issubclass(kind, TimeoutError)
    for kind in (LeaseLost, StaleFence, NodeError):
        assert not issubclass(kind, AcquireError)
    assert not issubclass(AcquireTimeout, QuorumUnreachable)


def test_an_unknown_reason_is_no_loss() -> None:
    """Only three reasons exist."""
    with pytest.raises(KeyError):
        LeaseLost("r", "bored")  # type: ignore[arg-type]


# --- to another process ----------------------------------------------------------------------


def facts(error: QuorlockError) -> dict[str, str]:
    """All attributes but a lease, which stays; a wrong value goes by its repr, the sentence
    shows how much of it.
    """
    kept = {name: repr(value) for name, value in vars(error).items() if name != "lease"}
    if len(kept.get("value", "")) > 82:
        kept.pop("value")
    return kept


def same(error: QuorlockError, other: object) -> None:
    """Return whether two errors have the same type, message and attributes."""
    assert type(other) is type(error)
    assert isinstance(other, QuorlockError)
    assert str(other) == str(error)
    ours, theirs = facts(error), facts(other)
    assert theirs == ours


@every
def test_pickled_and_back(error: QuorlockError, sentence: str) -> None:
    """Twice, in every protocol: kind, sentence and facts stay."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        once = pickle.loads(pickle.dumps(error, protocol))
        same(error, once)
        same(error, pickle.loads(pickle.dumps(once, protocol)))


def fail(index: int) -> None:
    """Raise in a worker process."""
    raise SENTENCES[index][0]


def as_json(args: tuple[Any, ...]) -> list[Any]:
    """Return a value as it arrives at the other end of a queue; strictly JSON, so no NaN."""
    back: list[Any] = json.loads(json.dumps(args, allow_nan=False))
    return back


@every
def test_rebuilt_from_args(error: QuorlockError, sentence: str) -> None:
    """Rebuild an error from its type and args alone: directly, or through JSON, and from there once
    more.
    """
    same(error, type(error)(*error.args))
    once = type(error)(*as_json(error.args))
    same(error, once)
    same(error, type(once)(*as_json(once.args)))
    assert as_json(once.args) == as_json(error.args)


def test_several_names_become_one_text_by_json() -> None:
    """JSON knows no `ResourceNames`: the message quotes them as one name.  Pickle keeps them."""
    error = AcquireStopped(ResourceNames(("a", "b")), (), 1, 0.0)
    sentence = "acquire of %s was stopped by its event after 1 attempt in 0 ms"
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == sentence % "'a' + 'b'"
    assert str(AcquireStopped(*as_json(error.args))) == sentence % "'a + b'"


@every
def test_copied(error: QuorlockError, sentence: str) -> None:
    """A copy is the same error; notes go along."""
    error = copy.copy(error)
    error.add_note("in the nightly job")
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        same(error, other)
        assert other.__notes__ == ["in the nightly job"]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_through_celery(serializer: str) -> None:
    """Compare the stored result of a failed task with the exception of `result.get()`."""
    celery = pytest.importorskip("celery")
    app = celery.Celery(backend="cache+memory://", set_as_current=False)
    app.conf.result_serializer = serializer
    app.conf.accept_content = ["json", "pickle"]
    backend = app.backend
    for error, _ in SENTENCES:
        stored = backend.decode(backend.encode(backend.prepare_exception(error)))
        same(error, backend.exception_to_python(stored))


def test_args_hold_no_secret() -> None:
    """Neither a lease nor what a value has inside."""
    token = "5ec3e7" * 6
    ticket = Ticket("r", token, 10.0, None)
    errors_with_it: list[QuorlockError] = [
        LeaseLost("r", "taken", [held(A)], lease=ticket),
        ConfigError("ticket", ticket, "give what hand_over() returned"),
    ]
    for error in errors_with_it:
        assert token not in json.dumps(error.args)
        assert token.encode() not in pickle.dumps(error)


STRANGE: list[Any] = [
    timedelta(seconds=3),
    float("nan"),
    float("inf"),
    2**63,
    b"bytes",
    ["a", "list"],
    {"a": "dict"},
    None,
    True,
    1.5,
    "\udcff",
]


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_any_value_travels(value: Any) -> None:
    """A value that JSON cannot represent arrives as text, in the same message."""
    error = ConfigError("ttl", value, "give seconds")
    there = ConfigError(*as_json(error.args))
    assert str(there) == str(error)
    assert repr(there.value) == repr(value) or there.value == repr(value)
    assert str(ConfigError(*as_json(there.args))) == str(error)


def test_raised_in_a_worker_process() -> None:
    """multiprocessing hands the error to the parent as it was."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for index, (error, _) in enumerate(SENTENCES):
            with pytest.raises(type(error)) as caught:
                pool.apply(fail, (index,))
            same(error, caught.value)
        pool.close()
        pool.join()


def test_a_lease_stays_where_it_is() -> None:
    """The lease of a LeaseLost cannot be pickled, and must not keep the error from travelling."""
    lost = LeaseLost("r", "taken", lease=open)  # an object of this process
    assert pickle.loads(pickle.dumps(lost)).lease is None
    assert lost.lease is open


# --- large and strange values ----------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


LARGE: list[Any] = [
    "x" * 10_000_000,
    b"x" * 10_000_000,
    bytearray(10_000_000),
    ["x" * 10_000_000],
    10**5_000,
    -(10**5_000),
]


@pytest.mark.parametrize("value", LARGE, ids=range(len(LARGE)))
def test_no_sentence_is_endless(value: Any) -> None:
    """Neither the sentence nor the pickle of a 10 MB value has 10 MB; nothing else is raised."""
    error = ConfigError("resource", value, "shorter")
    assert len(str(error)) < 500
    assert len(repr(error)) < 500
    assert len(pickle.dumps(error)) < 2_000
    assert len(as_json(error.args)) == 4
    same_sentence = str(pickle.loads(pickle.dumps(error)))
    assert same_sentence == str(error)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_large_string_is_not_copied() -> None:
    """Sliced before repr: the making of the sentence does not take the value's size again."""
    import tracemalloc

    value = "x" * 10_000_000
    tracemalloc.start()
    try:
        error = ConfigError("resource", value, "shorter")
        str(error), repr(error), pickle.dumps(error)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_value_that_cannot_be_shown() -> None:
    """An object with a broken repr is still reported."""
    error = ConfigError("ttl", Unprintable(), "give seconds")
    assert str(error) == "ttl=<Unprintable>: give seconds"
