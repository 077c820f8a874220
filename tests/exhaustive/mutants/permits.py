"""Mutants of locks on any one of several resources, and of semaphores."""

from __future__ import annotations

from tests.exhaustive.mutants.mutant import Mutant

_UNIT = ("tests/unit/core/test_any_of.py",)
_SCRIPT = ("tests/servers/scripts/test_any.py",)


def _lua(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"lua-any-{name}", "scripts/any.lua", old, new, _SCRIPT)


def _part(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"lua-kept-out-{name}", "scripts/kept_out.lua", old, new, _SCRIPT)


def _flow(name: str, old: str, new: str) -> Mutant:
    return Mutant(f"any-{name}", "_core/any_of.py", old, new, _UNIT)


PERMITS = [
    # --- the script ------------------------------------------------------------------------------
    _lua("gives-the-last", "    free = free or i\n", "    free = i\n"),
    _lua("grants-a-second", "if ours then\n", "if false then\n"),
    _lua("names-the-first-for-ours", "    ours = ours or i\n", "    ours = 1\n"),
    _lua("takes-what-is-held", "  elseif not value then\n", "  else\n"),
    _lua("sets-without-ttl", "locks[free], ARGV[1], 'PX', ARGV[2])", "locks[free], ARGV[1])"),
    _lua("counts-from-one", "return { 1, us, 0, free - 1 }", "return { 1, us, 0, free }"),
    _lua("names-the-last-to-expire", "ttl < left)", "ttl > left)"),
    _lua("names-what-never-expires", "if ttl >= 0 and (left", "if (left"),
    _lua("without-its-marker", "kept_out(KEYS[2], ARGV[3], ms)", "kept_out(KEYS[2], '0', ms)"),
    _lua("with-another-marker", "kept_out(KEYS[2], ", "kept_out(KEYS[1], "),
    _part("lets-a-new-marker-in", "  if ms - since < tonumber(wanted) then\n", "  if false then\n"),
    # --- the count -------------------------------------------------------------------------------
    _flow(
        "counts-grants-of-different-ones",
        "self._masks.get(answer.before, 0) | 1 << node",
        "self.granted_mask | 1 << node",
    ),
    _flow("counts-a-node-twice", " or self.answers[node] is not None:", ":"),
    _flow("counts-another-round", "if round_ != self.round or ", "if "),
    _flow(
        "waits-for-what-cannot-win",
        "elif self.granted + self.pending < self.quorum:",
        "elif not self.pending:",
    ),
    _flow(
        "reports-another-as-granted",
        "            return _GAVE_ANOTHER._replace(before=answer.before)\n",
        "            return answer\n",
    ),
    # --- the lease -------------------------------------------------------------------------------
    _flow("wins-the-first-key", "Keys(claim.keys[tally.place])", "Keys(claim.keys[0])"),
    _flow("strays-stay", "    if others and doubtful:\n", "    if False:\n"),
    _flow(
        "strays-include-the-lease",
        "tuple([key for key in keys if key != won.claim.key])",
        "tuple([key for key in keys if key])",
    ),
    _flow(
        "silent-nodes-keep-strays",
        "if answer is not None and answer.is_held:\n            settled",
        "if answer is None or answer.is_held:\n            settled",
    ),
    _flow(
        "releases-where-nothing-is",
        "            settled |= 1 << node\n",
        "            settled |= 0\n",
    ),
    _flow(
        "strays-overtake",
        "Target(doubtful, won.sent_round.target.path)",
        "Target(doubtful, ())",
    ),
    _flow(
        "abandoned-not-released",
        "        yield Send(claim.release(token), sent.target if sent else None)\n",
        "",
    ),
    _flow(
        "abandoned-overtakes",
        "yield Send(claim.release(token), sent.target if sent else None)",
        "yield Send(claim.release(token), None)",
    ),
    # --- windows, pauses and reports -------------------------------------------------------------
    _flow("same-order", "index = entropy.between(0, len(left) - 1)", "index = 0"),
    _flow("long-windows", "min(WINDOW, KEYS_BYTES_MAX // max(map(len, keys)))", "WINDOW"),
    _flow("next-round-in-any-case", "last.reason is not FailureReason.HELD or ", ""),
    _flow("next-window-late", "return not is_late and ", "return "),
    _flow(
        "next-round-waits-again",
        "return not any(answer.code is VoteCode.TIMED_OUT for answer in answers)",
        "return bool(answers)",
    ),
    _flow("first-attempt-goes-on", "is_worth = not is_first and ", "is_worth = "),
    _flow(
        "rounds-without-an-end", "keys and is_worth and outcome.ended < until", "keys and is_worth"
    ),
    _flow("hides-what-was-found", "        elif is_worth:\n", "        else:\n"),
    _flow("every-attempt-is-the-first", "not failures.count and request.timeout != 0", "True"),
    _flow("leaves-out-what-is-free", "[needed - 1]", "[-1]"),
    _flow(
        "leaves-out-what-is-not-known",
        "0 if answer.code is VoteCode.NOT_AWAITED else count",
        "count",
    ),
    _flow(
        "leaves-out-what-was-given",
        "        return answer.before  # it",
        "        return count  # it",
    ),
    _flow(
        "next-window-after-stop",
        " or (stop is not None and stop.is_set())",
        "",
    ),
    _flow(
        "forgets-attempts",
        "failed._replace(attempts=sum([window.attempts for window in found]))",
        "failed",
    ),
    _flow(
        "reports-the-last-window", "failed._replace(answers=first.answers, key=first.key)", "failed"
    ),
    _flow(
        "reports-an-earlier-window",
        "    if failed.reason is FailureReason.HELD:\n",
        "    if True:\n",
    ),
    _flow(
        "free-when-different-ones-are",
        "answer.is_held and answer.before == first]",
        "answer.is_held]",
    ),
    _flow(
        "reports-what-the-release-found",
        "failed._replace(answers=answers, key=key_in_the_way(claim, answers))",
        "failed",
    ),
    # --- the faces -------------------------------------------------------------------------------
    Mutant(
        "permits-have-fences",
        "_core/resources.py",
        "    if fencing is True:\n",
        "    if False:\n",
        ("tests/servers/api/test_semaphore.py",),
    ),
    Mutant(
        "permits-are-one-less",
        "_core/resources.py",
        "for permit in range(permits)]))",
        "for permit in range(max(1, permits - 1))]))",
        ("tests/servers/api/test_semaphore.py",),
    ),
]
