"""Mutants of the two faces, and of what they have in common."""

from __future__ import annotations

from tests.exhaustive.mutants.mutant import Mutant

FACES = [
    Mutant(
        "autocommit-unnoticed",
        "fencing/connections.py",
        "return None if not isinstance(autocommit, bool) else not autocommit",
        "return None",
        ("tests/servers/fencing",),
    ),
    Mutant(
        "54-renewal-goes-on-after-hand-over",
        "_api/lease.py",
        "            lease_state.stop_renewal()\n            at = now()\n",
        "            at = now()\n",
        ("tests/servers/api/test_hand_over_in_doubt.py", "-k", "follows_the_ticket"),
    ),
    Mutant(
        "55-hand-over-suppresses-nothing",
        "_api/lease.py",
        "node_states.suppress_releases(token, at)",
        "{}",
        (
            "tests/servers/api/test_hand_over_in_doubt.py",
            "tests/servers/drivers/test_extend_and_pending_releases.py",
        ),
    ),
    Mutant(
        "lost-at-the-deadline-not-waited-for",
        "_sync/loss_event.py",
        "until if is_over else min(until, self._lease_state.deadline)",
        "until",
        ("tests/servers/api/test_lease.py",),
    ),
    Mutant(
        "told-until-in-the-past",
        "_api/lease_state.py",
        "        if self.was_released or self._generation != fork.generation:\n"
        "            return PAST\n"
        "        return self._started_at + self._valid_for\n",
        "        return self.valid_until\n",
        ("tests/servers/api/test_renewal.py",),
    ),
    Mutant(
        "prolonged-though-over",
        "_api/lease_state.py",
        "        if not self.held:\n            return False\n        # Capped",
        "        # Capped",
        ("tests/unit/core/test_extend.py", "tests/servers/api/test_lease.py"),
    ),
    Mutant(
        "loss-told-at-the-end",
        "_api/lease_state.py",
        "return self.valid_until - notice(self.ttl_ms)",
        "return self.valid_until",
        ("tests/servers/api/test_lease.py", "tests/servers/api/test_renewal.py"),
    ),
    Mutant(
        "targets-not-joined",
        "_api/lease_state.py",
        "        self.target = joined(",
        "        self.target or joined(",
        (
            "tests/servers/drivers/test_extend_and_pending_releases.py",
            "tests/servers/api/test_renewal.py",
        ),
    ),
    Mutant(
        "run-starts-after-the-lease",
        "_cli/run/guard.py",
        'if now() >= (self._valid_until if orders.on_lost == "warn" else self._end_at):',
        "if False:",
        ("tests/servers/cli/run/test_run_paused.py",),
    ),
    Mutant(
        "run-leaves-sigchld-ignored",
        "_cli/run/child.py",
        "        signal.signal(signal.SIGCHLD, signal.SIG_DFL)\n",
        "",
        ("tests/servers/cli/run/test_run_signals.py", "-k", "sigchld"),
    ),
    Mutant(
        "acquire-interrupted-after-its-token",
        "_cli/acquire_release.py",
        "                signal.signal(number, signal.SIG_IGN)\n",
        "                pass\n",
        ("tests/servers/cli/test_acquire_release.py", "-k", "signal"),
    ),
    Mutant(
        "run-drops-what-its-guard-got",
        "_cli/run/guard.py",
        "_KEYS.intersection(self._signals.taken())",
        "self._signals.taken()",
        ("tests/servers/cli/run/test_run_signals.py", "-k", "us_and_the_guard"),
    ),
    Mutant(
        "run-drops-an-early-ctrl-c",
        "_cli/run/guard.py",
        "        self._signals.taken()\n        self._channel.send(",
        "        self._channel.send(",
        ("tests/servers/cli/run/test_run_signals.py", "-k", "early_ctrl_c"),
    ),
    Mutant(
        "run-leaves-ctrl-c-to-the-terminal",
        "_cli/run/process_tree.py",
        "            if os.getpgid(pid) != group:\n                yield pid\n",
        "            if os.getpgid(pid) != group:\n                pass\n",
        ("tests/servers/cli/run/test_run_signals.py", "-k", "left_the_group"),
    ),
    Mutant(
        "node-error-asks-to-fix-what-passes",
        "errors.py",
        "stays = [vote.node for vote in faulty if vote.code is not VoteCode.TRANSIENT_ERROR]",
        "stays = [vote.node for vote in faulty]",
        ("tests/unit/test_errors.py",),
    ),
    Mutant(
        "ctrl-c-shows-what-is-being-loaded",
        "__main__.py",
        "        signal.signal(signal.SIGINT, signal.SIG_DFL)\n",
        "        pass\n",
        ("tests/servers/cli/test_exit_status.py", "-k", "ctrl_c"),
    ),
    Mutant(
        "run-says-that-a-warned-command-was-ended",
        "_cli/run/session.py",
        "lost if ended.in_time and lost else self._ending(lost)",
        "self._ending(lost)",
        ("tests/servers/cli/run/test_run_lost.py", "-k", "does_not_say"),
    ),
    Mutant(
        "a-piece-of-a-password-is-shown-as-a-host",
        "_settings/reader.py",
        'if "@" in "".join(bare) and "@" not in bare[0]:',
        "if False:",
        ("tests/servers/api/test_from_env.py",),
    ),
    Mutant(
        "a-huge-ttl-in-a-ticket-overflows",
        "_api/ticket.py",
        "(ValueError, TypeError, KeyError, OverflowError, RecursionError)",
        "(ValueError, TypeError, KeyError)",
        ("tests/servers/api/test_hand_over.py", "-k", "no_ticket"),
    ),
    Mutant(
        "a-huge-doubt-in-a-ticket-overflows",
        "_api/ticket.py",
        "(TypeError, ValueError, OverflowError)",
        "(TypeError, ValueError)",
        ("tests/servers/api/test_hand_over.py", "-k", "no_ticket"),
    ),
    Mutant(
        "blocking-a-second-keep-releases-the-token",
        "_sync/lease.py",
        "ended_here = False  # another call keeps it, or releases it",
        "pass",
        ("tests/servers/api/test_once.py", "-k", "kept_by_another"),
    ),
    Mutant(
        "asyncio-a-second-keep-releases-the-token",
        "asyncio/lease.py",
        "ended_here = False  # another call keeps it, or releases it",
        "pass",
        ("tests/servers/api/test_once.py", "-k", "kept_by_another"),
    ),
]
