"""Mutants of the pure parts: `_core`, `_protocol` and the scripts."""

from __future__ import annotations

from tests.exhaustive.mutants.mutant import Mutant

CORE = [
    # --- votes and validity ----------------------------------------------------------------------
    Mutant(
        "01-grant-without-mask",
        "_core/tally.py",
        "            nodes &= ~sum([1 << node for node, said in enumerate(self.answers)"
        " if said is not None])\n",
        "",
        ("tests/unit/core/test_quorum.py",),
    ),
    Mutant(
        "count-any-round",
        "_core/tally.py",
        "if round_ == self.round and self.answers[node] is None:",
        "if self.answers[node] is None:",
        ("tests/unit/core/test_quorum.py",),
    ),
    Mutant(
        "even-split-wins",
        "_core/tally.py",
        "return n // 2 + 1",
        "return (n + 1) // 2",
        ("tests/unit/core/test_quorum.py",),
    ),
    Mutant(
        "boundary-of-validity",
        "_core/redlock.py",
        "if tally.verdict is WON and decided_at < valid_until:",
        "if tally.verdict is WON and decided_at <= valid_until:",
        ("tests/unit/core/test_acquire.py",),
    ),
    Mutant(
        "extension-own-validity-only",
        "_core/redlock.py",
        "if tally.verdict is WON and decided_at < min(facts.valid_until, valid_until):",
        "if tally.verdict is WON and decided_at < valid_until:",
        ("tests/unit/core/test_extend.py",),
    ),
    Mutant(
        "extension-old-validity-only",
        "_core/redlock.py",
        "if tally.verdict is WON and decided_at < min(facts.valid_until, valid_until):",
        "if tally.verdict is WON and decided_at < facts.valid_until:",
        ("tests/unit/core/test_extend.py",),
    ),
    Mutant(
        "renewal-own-validity-only",
        "_core/renewal.py",
        "decided_at < min(facts.valid_until, valid_until)",
        "decided_at < valid_until",
        ("tests/unit/core/test_renewal.py",),
    ),
    Mutant(
        "token-once-for-all-attempts",
        "_core/redlock.py",
        "        outcome = yield from attempt(request, policy, entropy)\n"
        "        if isinstance(outcome, Acquired):\n"
        "            return outcome\n"
        "        last = outcome\n"
        "        attempts += 1\n",
        "        token_of = entropy.token() if not attempts else token_of\n"
        "        entropy.token = lambda: token_of  # type: ignore[method-assign]\n"
        "        outcome = yield from attempt(request, policy, entropy)\n"
        "        if isinstance(outcome, Acquired):\n"
        "            return outcome\n"
        "        last = outcome\n"
        "        attempts += 1\n",
        ("tests/unit/core/test_acquire.py",),
    ),
    Mutant(
        "the-timeout-hides-the-event",
        "_core/redlock.py",
        "        elif stop is None or not stop.is_set():\n",
        "        else:\n",
        ("tests/unit/core/test_acquire.py",),
    ),
    Mutant(
        "drift-forgotten",
        "_core/config.py",
        "return started + ttl - drift(ttl, self.drift_factor)",
        "return started + ttl",
        ("tests/unit/core/test_acquire.py", "tests/unit/core/test_policy.py"),
    ),
    Mutant(
        "47-begins-unseen",
        "_core/renewal_schedule.py",
        "        self.in_flight = True\n"
        "        self._sent_at, self._is_expedited = at, False\n"
        "        if at < self.lease.deadline:\n"
        "            return self.lease.facts()\n",
        "        self._sent_at, self._is_expedited = at, False\n"
        "        if at < self.lease.deadline:\n"
        "            self.in_flight = True\n"
        "            return self.lease.facts()\n",
        ("tests/servers/api/test_stopping.py",),
    ),
    Mutant(
        "lost-lease-released-at-once",
        "_core/renewal_schedule.py",
        "                renewal.due = renewal.lease.told_until\n",
        "                renewal.due = at\n",
        ("tests/unit/core/test_renewal.py", "tests/servers/api/test_renewal.py"),
    ),
    # --- renewal ---------------------------------------------------------------------------------
    Mutant(
        "restored-for-the-whole-ttl",
        "_core/renewal.py",
        "left_ms = round_.ttl_ms - spent_ms",
        "left_ms = round_.ttl_ms",
        ("tests/unit/core/test_renewal.py",),
    ),
    Mutant(
        "restored-after-lost-rounds",
        "_core/renewal.py",
        "self.rounds = {number: r for number, r in self.rounds.items() if r.is_extended}",
        "self.rounds = dict(self.rounds)",
        ("tests/unit/core/test_renewal.py",),
    ),
    Mutant(
        "renewal-ignores-max-hold",
        "_core/renewal_schedule.py",
        "return max(0, min(self._ttl_ms, (self.lease.hold_until - at) // NS_PER_MS))",
        "return self._ttl_ms",
        ("tests/unit/core/test_renewal.py",),
    ),
    Mutant(
        "renewal-waits-node-timeout-only",
        "_core/config.py",
        "max(self.node_timeout, min((valid_until - sent) // 2, EXTENSION_WAIT_MAX))",
        "self.node_timeout",
        ("tests/unit/core/test_renewal.py", "tests/unit/core/test_extend.py"),
    ),
    Mutant(
        "renewal-waits-for-ever",
        "_core/config.py",
        "max(self.node_timeout, min((valid_until - sent) // 2, EXTENSION_WAIT_MAX))",
        "max(self.node_timeout, valid_until - sent)",
        ("tests/unit/core/test_renewal.py",),
    ),
    Mutant(
        "renewal-ignores-other-leases",
        "_core/renewal.py",
        "until = min(policy.extension_until(sent, first_end), free_until)",
        "until = policy.extension_until(sent, first_end)",
        ("tests/unit/core/test_renewal.py",),
    ),
    Mutant(
        "renewal-shortens",
        "_api/lease_state.py",
        "self._valid_until = max(self._valid_until, min(valid_until, self.hold_until))",
        "self._valid_until = min(valid_until, self.hold_until)",
        ("tests/unit/core/test_extend.py", "tests/servers/api/test_lease.py"),
    ),
    # --- pending releases ------------------------------------------------------------------------
    Mutant(
        "debt-settled-by-any-reply",
        "_core/pending_releases.py",
        "        if answer.vote is Vote.GRANTED or pending_release.run_id != run_id:\n",
        "        if True:\n",
        ("tests/unit/core/test_pending_releases.py",),
    ),
    Mutant(
        "debt-without-last-payment",
        "_core/pending_releases.py",
        "    pending_release.last = now >= pending_release.until\n",
        "    pending_release.last = now + pending_release.pause >= pending_release.until\n",
        ("tests/unit/core/test_pending_releases.py",),
    ),
    Mutant(
        "debt-without-doubt",
        "_core/pending_releases.py",
        "return token in self._by_token or self._doubts.are_about(token, now)",
        "return token in self._by_token",
        ("tests/unit/core/test_pending_releases.py",),
    ),
    Mutant(
        "09-pending-release-survives-hand-over",
        "_core/pending_releases.py",
        "        pending_release = self._by_token.pop(token, None)\n        in_doubt",
        "        pending_release = self._by_token.get(token)\n        in_doubt",
        ("tests/unit/core/test_pending_releases.py",),
    ),
    Mutant(
        "doubt-begins-at-the-sending",
        "_core/releases_in_doubt.py",
        "        self.note(copy.release.token, copy.run_id, now)\n"
        "        if copy in self._under_way:",
        "        if copy in self._under_way:",
        ("tests/unit/core/test_pending_releases.py", "tests/unit/core/test_doubts.py"),
    ),
    Mutant(
        "doubt-of-copies-under-way-ends",
        "_core/releases_in_doubt.py",
        "| {copy.run_id: FOR_EVER for copy in under_way}",
        "| {copy.run_id: now for copy in under_way if copy.run_id not in self._until}",
        ("tests/unit/core/test_pending_releases.py", "tests/unit/core/test_doubts.py"),
    ),
    Mutant(
        "doubt-about-pending-ones-not-told",
        "_core/pending_releases.py",
        "        if pending_release is not None and pending_release.run_id:",
        "        if False and pending_release is not None and pending_release.run_id:",
        (
            "tests/unit/core/test_pending_releases.py",
            "tests/servers/api/test_hand_over_in_doubt.py",
        ),
    ),
    Mutant(
        "suppression-ends-though-carried",
        "_core/pending_releases.py",
        "                if self._is_carried(old, carried):",
        "                if False:",
        ("tests/unit/core/test_pending_releases.py",),
    ),
    Mutant(
        "suppression-lifted-though-carried",
        "_core/pending_releases.py",
        "        if not self._is_carried(token, carried):\n",
        "",
        ("tests/unit/core/test_pending_releases.py",),
    ),
    Mutant(
        "doubt-of-the-ticket-ignored",
        "_core/pending_releases.py",
        "        if in_doubt is not None and in_doubt.get(run_id, PAST) > at:",
        "        if False:",
        (
            "tests/unit/core/test_pending_releases.py",
            "tests/servers/api/test_hand_over_in_doubt.py",
        ),
    ),
    Mutant(
        "doubt-not-adopted",
        "_core/redlock.py",
        "facts = LeaseFacts(request.resource, request.key, token, FOR_EVER, None, in_doubt)",
        "facts = LeaseFacts(request.resource, request.key, token, FOR_EVER, None)",
        ("tests/unit/core/test_extend.py", "tests/servers/api/test_hand_over_in_doubt.py"),
    ),
    Mutant(
        "doubt-forgotten-by-renewal",
        "_core/renewal.py",
        "                    facts.valid_until,\n                    facts.in_doubt,\n",
        "                    facts.valid_until,\n",
        ("tests/unit/core/test_renewal.py", "tests/servers/api/test_hand_over_in_doubt.py"),
    ),
    Mutant(
        "doubt-forgotten-by-restored-keys",
        "_core/renewal.py",
        "            send = Send(acquire, lacking, FOR_EVER, facts.valid_until, facts.in_doubt)",
        "            send = Send(acquire, lacking, FOR_EVER, facts.valid_until)",
        ("tests/unit/core/test_renewal.py", "tests/servers/api/test_hand_over_in_doubt.py"),
    ),
    Mutant(
        "doubt-without-drift",
        "_core/releases_in_doubt.py",
        "    return left + drift(left, policy.drift_factor)",
        "    del policy\n    return left",
        ("tests/unit/core/test_doubts.py",),
    ),
    Mutant(
        "doubts-merged-to-the-shorter",
        "_core/releases_in_doubt.py",
        "{r: max(end, first.get(r, end)) for",
        "{r: min(end, first.get(r, end)) for",
        ("tests/unit/core/test_doubts.py",),
    ),
    # --- the guard -------------------------------------------------------------------------------
    Mutant(
        "guard-without-drift",
        "_core/restart_guard.py",
        "return told_at + max_ttl + drift(max_ttl, drift_factor) - known",
        "return told_at + max_ttl - known",
        ("tests/unit/core/test_guard.py",),
    ),
    Mutant(
        "guard-believes-1970",
        "_core/restart_guard.py",
        "if uptime is None or not 0 <= uptime < UPTIME_BELIEVED:",
        "if uptime is None or uptime < 0:",
        ("tests/unit/core/test_guard.py",),
    ),
    Mutant(
        "guard-without-resolution",
        "_core/restart_guard.py",
        "return max(0, (_uptime(uptime_s) or 0) - UPTIME_RESOLUTION)",
        "return max(0, _uptime(uptime_s) or 0)",
        ("tests/unit/core/test_guard.py",),
    ),
    Mutant(
        "guard-lets-extensions-pass",
        "_core/restart_guard.py",
        "VOTES = (*ACQUIRES, Extend, IssueFence)",
        "VOTES = (*ACQUIRES, IssueFence)",
        ("tests/servers/api/test_restart_guard.py", "-k", "count_for_extensions"),
    ),
    Mutant(
        "guard-forgets-former-processes",
        "_core/restart_guard.py",
        "return run_id in self._former or up_since < self._replied_at",
        "return up_since < self._replied_at",
        ("tests/unit/core/test_guard.py",),
    ),
    Mutant(
        "guard-forgets-last-contact",
        "_core/restart_guard.py",
        "return run_id in self._former or up_since < self._replied_at",
        "return run_id in self._former",
        ("tests/unit/core/test_guard.py",),
    ),
    Mutant(
        "guard-ignores-open-rivals",
        "_core/restart_guard.py",
        "if open_rivals or self._lived_beside(run_id, uptime_s, told_at):",
        "if self._lived_beside(run_id, uptime_s, told_at):",
        ("tests/unit/core/test_guard.py", "tests/servers/api/test_addresses.py"),
    ),
    Mutant(
        "agreement-not-compared",
        "_core/agreement.py",
        "    if fix := here.agreed.refusal(own):",
        "    if False and (fix := here.agreed.refusal(own)):",
        ("tests/unit/core/test_agreement.py",),
    ),
    Mutant(
        "agreement-filled-by-a-minority",
        "_core/agreement.py",
        "    if 1 + len(agreeing) + empty < quorum(own.sizes[0]):",
        "    if False:",
        ("tests/unit/core/test_agreement.py",),
    ),
    Mutant(
        "nodes-of-two-sets-vote-together",
        "_core/agreement.py",
        "    if here.agreed.name and any(",
        "    if False and any(",
        ("tests/unit/core/test_agreement.py",),
    ),
    Mutant(
        "node-that-missed-a-change-votes",
        "_core/agreement.py",
        "    if len(newer) >= quorum(own.sizes[0]):",
        "    if False:",
        ("tests/unit/core/test_agreement.py",),
    ),
    # --- fences ----------------------------------------------------------------------------------
    Mutant(
        "late-fence",
        "_core/fence.py",
        "    if at >= valid_until:\n        return 0\n",
        "",
        ("tests/unit/core/test_fencing.py",),
    ),
    Mutant(
        "lua-fence-without-clock",
        "scripts/acquire.lua",
        "  fence = math.max(last + 1, (math.floor(ms / ARGV[3]) + 1) * ARGV[3] * 1000)\n",
        "  fence = last + 1\n",
        ("tests/servers/scripts/test_fencing.py",),
    ),
    Mutant(
        "lua-fence-raised-to-an-old-one",
        "scripts/raise.lua",
        "tonumber(last) >= fence then",
        "tonumber(last) > fence then",
        ("tests/servers/scripts/test_fencing.py",),
    ),
    Mutant(
        "lua-extension-shortens",
        "scripts/extend.lua",
        "if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then",
        "if true then",
        ("tests/servers/scripts/test_scripts.py",),
    ),
    Mutant(
        "lua-release-of-anybody",
        "scripts/release.lua",
        "local ours = holder == ARGV[1] and holder ~= ''",
        "local ours = holder ~= ''",
        ("tests/servers/scripts/test_scripts.py",),
    ),
    Mutant(
        "lua-release-tells-the-token",
        "scripts/release.lua",
        "string.sub(holder, 34)",
        "holder",
        ("tests/servers/scripts/test_scripts.py", "tests/servers/api/test_owner.py"),
    ),
    Mutant(
        "owner-shown-as-it-came",
        "_core/owner.py",
        """return "".join(c if c.isprintable() else "?" for c in text)""",
        "return text",
        ("tests/unit/core/test_owner.py", "tests/servers/api/test_owner.py"),
    ),
    # --- what a server says -----------------------------------------------------------------------
    Mutant(
        "pieces-of-secrets-shown",
        "_protocol/redaction.py",
        "text = _without_pieces(text.replace(secret, _HIDDEN), secret)",
        "text = text.replace(secret, _HIDDEN)",
        ("tests/unit/protocol/test_redaction.py",),
    ),
    Mutant(
        "tokens-of-others-shown",
        "_protocol/redaction.py",
        "return re.sub(_TOKEN, _HIDDEN, without(text, secrets))",
        "return without(text, secrets)",
        ("tests/unit/protocol/test_redaction.py", "tests/servers/api/test_secrets.py"),
    ),
    Mutant(
        "scripts-not-tried",
        "_protocol/handshake.py",
        "    for reply in probes:\n        _check_script(reply, password)\n",
        "",
        ("tests/unit/protocol/test_handshake.py", "tests/servers/api/test_strange_servers.py"),
    ),
    # --- one node's conversation -----------------------------------------------------------------
    Mutant(
        "noscript-of-a-dead-round",
        "_protocol/pipeline.py",
        "if not isinstance(command, Release) and _is_over(request):",
        "if False:",
        ("tests/unit/protocol/test_pipeline.py", "tests/servers/drivers/test_shared_pipeline.py"),
    ),
    Mutant(
        "noscript-for-ever",
        "_protocol/pipeline.py",
        'if not error.startswith("NOSCRIPT") or request.in_full:',
        'if not error.startswith("NOSCRIPT"):',
        ("tests/unit/protocol/test_pipeline.py", "tests/servers/drivers/test_shared_pipeline.py"),
    ),
    Mutant(
        "nonsense-is-answered",
        "_protocol/pipeline.py",
        "                        requests.appendleft(request)"
        "  # not answered: it may have been granted\n",
        "",
        ("tests/unit/protocol/test_pipeline.py",),
    ),
    Mutant(
        "midway-forgotten",
        "_protocol/pipeline.py",
        "        if self.has_partial_reply or not self.pending:\n            return None\n",
        "        if not self.pending:\n            return None\n",
        ("tests/unit/protocol/test_pipeline.py",),
    ),
    Mutant(
        "replica-votes",
        "_protocol/handshake.py",
        'if role != "master":',
        "if not role:",
        ("tests/unit/protocol/test_handshake.py",),
    ),
    # --- routing: the drivers' tests or a simulated world finds each -----------------------------
    Mutant(
        "22-restored-though-a-release-is-pending",
        "_core/routing.py",
        "    if is_forbidden(send, node, at):\n",
        "    if type(command).__name__ == 'Extend' and is_forbidden(send, node, at):\n",
        ("tests/servers/api/test_hand_over_in_doubt.py", "-k", "no_key_is_restored"),
    ),
    Mutant(
        "quarantine-is-an-outage",
        "_core/redlock.py",
        "        if outcome.reason in _NO_OUTAGE:\n",
        "        if outcome.reason in _WORTH_RETRYING:\n",
        ("tests/sim/test_workload.py", "-k", "just_started"),
    ),
    Mutant(
        "quarantine-without-a-known-end-is-waited-for",
        "_core/restart_guard.py",
        "    if not kept.is_endless:\n",
        "    if kept.until:\n",
        ("tests/unit/core/test_guard.py", "-k", "older_process"),
    ),
    Mutant(
        "backlog-without-bound",
        "_core/routing.py",
        "return BACKLOG if type(command) in SPARED and connection.is_backlogged(at) else None",
        "return None",
        ("tests/exhaustive/test_order_and_pending_releases.py", "-k", "backlog"),
    ),
    Mutant(
        "routing-extends-though-a-release-is-pending",
        "_core/routing.py",
        "    if is_forbidden(send, node, at):\n        return RELEASING\n",
        "",
        ("tests/sim/test_mutations.py", "-k", "though"),
    ),
    Mutant(
        "routing-overtakes-the-acquire",
        "_core/routing.py",
        "        if connection is not None and connection.has_pending_acquire(token):\n"
        "            return other\n",
        "        del connection\n",
        ("tests/sim/test_mutations.py", "-k", "overtaking"),
    ),
    Mutant(
        "routing-forgets-releases",
        "_core/routing.py",
        "return Unsent(type(command) is Release)",
        "return Unsent(is_release=False)",
        ("tests/sim/test_mutations.py", "-k", "forgotten"),
    ),
    Mutant(
        "routing-lets-quarantined-nodes-extend",
        "_core/routing.py",
        "    if isinstance(command, VOTES):\n",
        "    if isinstance(command, VOTES) and type(command) is not Extend:\n",
        ("tests/sim/test_mutations.py", "-k", "guarded"),
    ),
]
