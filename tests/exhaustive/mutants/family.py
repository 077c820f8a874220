"""Mutants of the primitives that are built on locks: re-entrant locks, elections, once."""

from __future__ import annotations

from tests.exhaustive.mutants.mutant import Mutant

_RLOCK = "tests/servers/api/test_rlock.py"
_ELECTION = "tests/servers/api/test_election.py"
_ONCE = "tests/servers/api/test_once.py"

FAMILY = [
    # --- re-entrant locks ------------------------------------------------------------------------
    Mutant(
        "blocks-of-another-lease-count",
        "asyncio/rlock.py",
        "max(hold.blocks - 1, 0)",
        "hold.blocks - 1",
        ("tests/servers/api/test_rlock.py", "-k", "replaced"),
    ),
    Mutant(
        "nested-without-its-fence",
        "_api/rlock.py",
        "if self.fencing and lease.fence is None:",
        "if False:",
        (_RLOCK, "-k", "lacks_is_refused"),
    ),
    Mutant(
        "nested-never-extends",
        "_api/rlock.py",
        "return lease.validity < self.ttl / 2",
        "return False",
        (_RLOCK, "-k", "its_own_ttl"),
    ),
    Mutant(
        "held-in-a-fork",
        "_api/rlock.py",
        "hold if hold is not None and hold.generation == fork.generation else None",
        "hold",
        (_RLOCK, "-k", "forked_child"),
    ),
    Mutant(
        "nested-interrupt-keeps-the-level",
        "_api/rlock.py",
        "        hold.count = min(hold.count, count)\n",
        "",
        ("tests/exhaustive/test_interrupts.py", "-k", "reentrant"),
    ),
    Mutant(
        "threads-share-their-holds",
        "_sync/rlock.py",
        "class ThreadHolds(threading.local):",
        "class ThreadHolds:",
        (_RLOCK, "-k", "another_thread"),
    ),
    Mutant(
        "hold-outlives-its-task",
        "asyncio/rlock.py",
        "            task.add_done_callback(self._forget)\n",
        "            task.add_done_callback(repr)\n            self._kept = self._tasks[task]\n",
        (_RLOCK, "-k", "end_without_a_release"),
    ),
    Mutant(
        "inner-block-hides-the-loss",
        "_api/rlock.py",
        "        if error is None:\n            raise lost\n",
        "        if error is None:\n            return\n",
        (_RLOCK, "-k", "end_of_each_block"),
    ),
    # --- elections -------------------------------------------------------------------------------
    Mutant(
        "any-loss-ends-a-term",
        "_api/election.py",
        "error.lease is not lease:",
        "False:",
        (_ELECTION, "-k", "another_error"),
    ),
    Mutant(
        "a-group-is-no-loss",
        "_api/election.py",
        "return _without(error, is_loss) is None",
        "return False",
        (_ELECTION, "-k", "what_a_lost_leader_does"),
    ),
    Mutant(
        "an-outage-ends-run",
        "_sync/election.py",
        "                if lease is not None:\n                    raise\n",
        "                raise\n",
        (_ELECTION, "-k", "through_an_outage"),
    ),
    Mutant(
        "observers-report-the-same-again",
        "_api/election.py",
        "return (another and another.holder) == (before and before.holder)",
        "return False",
        (_ELECTION, "-k", "hurry"),
    ),
    Mutant(
        "observers-hurry",
        "_api/election.py",
        "return now() + min(max(pause, _LOOK_MIN), _LOOK_MAX)",
        "return now()",
        (_ELECTION, "-k", "hurry"),
    ),
    Mutant(
        "terms-have-a-hold-limit",
        "_sync/redlock.py",
        "lease_options(True, math.inf, on_warning)",
        "lease_options(True, 60.0, on_warning)",
        (_ELECTION, "-k", "outlives_its_ttl"),
    ),
    # --- once ------------------------------------------------------------------------------------
    Mutant(
        "kept-after-an-exception",
        "_sync/lease.py",
        "if was_held and error is None and keep_for is not None:",
        "if was_held and keep_for is not None:",
        (_ONCE, "-k", "an_exception_releases"),
    ),
    Mutant(
        "kept-after-the-validity",
        "_core/keeping.py",
        "if tally.verdict is WON and decided_at < facts.valid_until:",
        "if tally.verdict is WON:",
        ("tests/unit/core/test_keeping.py",),
    ),
    Mutant(
        "a-cancelled-keep-releases-nothing",
        "asyncio/lease.py",
        "self._keeping(facts, kept_ms))\n        except BaseException:",
        "self._keeping(facts, kept_ms))\n        except asyncio.CancelledError:\n"
        "            raise\n        except BaseException:",
        (f"{_ONCE}::test_a_cancelled_keep_of_an_adopted_lease_releases_it",),
    ),
    Mutant(
        "not-kept-not-released",
        "_core/keeping.py",
        "facts.target)\n    return result",
        "facts.target) if result.loss else ()\n    return result",
        ("tests/unit/core/test_keeping.py",),
    ),
    Mutant(
        "interrupted-keep-not-released",
        "_core/keeping.py",
        "    except BaseException:\n        yield from"
        " release_without_waiting(facts.claim, facts.token, facts.target)\n        raise",
        "    except BaseException:\n        raise",
        ("tests/unit/core/test_keeping.py",),
    ),
    Mutant(
        "renewal-goes-on-after-keep",
        "_sync/lease.py",
        "            lease_state.stop_renewal()\n            result =",
        "            result =",
        (f"{_ONCE}::test_nothing_of_its_renewal_follows_the_mark[blocking]",),
    ),
    Mutant(
        "renewal-goes-on-after-keep-in-asyncio",
        "asyncio/lease.py",
        "            lease_state.stop_renewal()\n            result =",
        "            result =",
        (f"{_ONCE}::test_nothing_of_its_renewal_follows_the_mark[asyncio]",),
    ),
    Mutant(
        "marks-overtake-restored-keys",
        "_api/lease.py",
        "        facts = facts._replace(target=self._state.target)\n",
        "",
        (_ONCE, "-k", "mark_follows"),
    ),
    Mutant(
        "quarantined-nodes-keep",
        "_core/restart_guard.py",
        "VOTES = (*ACQUIRES, Extend, Keep, IssueFence)",
        "VOTES = (*ACQUIRES, Extend, IssueFence)",
        ("tests/unit/core/test_routing.py",),
    ),
    Mutant(
        "mark-is-the-token",
        "_core/owner.py",
        "(_DONE + owner_in(token))",
        "(b'' + owner_in(token))",
        ("tests/unit/core/test_keeping.py",),
    ),
    Mutant(
        "keep-compares-nothing",
        "scripts/keep.lua",
        "if holder ~= ARGV[1] then\n  return 0\nend\n",
        "",
        ("tests/servers/scripts/test_scripts.py", "-k", "leaves_anothers_key_alone"),
    ),
]
