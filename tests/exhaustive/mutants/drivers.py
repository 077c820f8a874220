"""Mutants of the drivers: connections, sets of them, event loops, threads."""

from __future__ import annotations

from tests.exhaustive.mutants.mutant import Mutant

DRIVERS = [
    Mutant(
        "42-asked-together-though-a-release-is-pending",
        "_drivers/aio/loop_driver.py",
        "        if relies_on_key(effect) and any(\n"
        "            is_forbidden(effect, x.node_state, at) for x in self.connectors\n"
        "        ):\n"
        "            return False\n",
        "        del at\n",
        ("tests/servers/api/test_hand_over_in_doubt.py", "-k", "at_once_spare"),
    ),
    Mutant(
        "34-twin-only-while-up",
        "_drivers/node_states.py",
        "others = (other for other in self.all if other is not node_state)",
        "others = (o for o in self.all if o is not node_state and o.reachability is Standing.UP)",
        ("tests/servers/api/test_addresses.py", "-k", "while_one_connection_is_broken"),
    ),
    Mutant(
        "36-clock-without-suspended-time",
        "_drivers/clock.py",
        "return partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)",
        "return partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)",
        ("tests/servers/api/test_suspend.py",),
    ),
    Mutant(
        "38-uptime-from-the-question",
        "_drivers/sync/connect.py",
        "admission.admit(server_info, ended, connection)",
        "admission.admit(server_info, began, connection)",
        ("tests/servers/api/test_addresses.py", "-k", "from_the_arrival"),
    ),
    Mutant(
        "53-uptime-from-the-question",
        "_drivers/aio/connect.py",
        "admission.admit(server_info, ended, connection)",
        "admission.admit(server_info, began, connection)",
        ("tests/servers/api/test_addresses.py", "-k", "from_the_arrival"),
    ),
    Mutant(
        "release-passes-its-acquire-in-another-loop",
        "_drivers/aio/loop_driver.py",
        "return path.connectors[index].connection if isinstance(path, LoopDriver) else None",
        "return self.connectors[index].connection",
        ("tests/servers/drivers/test_several_loops.py",),
    ),
    Mutant(
        "two-servers-behind-one-address",
        "_drivers/node_state.py",
        "        return any(are_open)\n",
        "        return False\n",
        ("tests/servers/api/test_addresses.py",),
    ),
    Mutant(
        "rivals-go-on-voting",
        "_drivers/node_state.py",
        "            connection.supersede(why)\n",
        "",
        ("tests/servers/api/test_addresses.py",),
    ),
    Mutant(
        "last-contact-not-noted",
        "_drivers/node_state.py",
        "        self.guard.on_alive(run_id, at)\n",
        "",
        ("tests/servers/api/test_addresses.py",),
    ),
    Mutant(
        "places-lost-by-an-interrupt",
        "_drivers/aio/admission.py",
        "        self.queue.clear()\n        self.acquiring = 0\n",
        "        self.queue.clear()\n",
        ("tests/exhaustive/test_cancellation.py", "-k", "cuts_our_own_code"),
    ),
    Mutant(
        "connections-kept-after-an-interrupt",
        "_drivers/aio/loop_driver.py",
        "        for connector in self.connectors:\n            connector.discard()\n",
        "",
        ("tests/exhaustive/test_cancellation.py", "-k", "cuts_our_own_code"),
    ),
    Mutant(
        "deserted-sets-lost",
        "_drivers/sync/pool.py",
        "            if (not thread or owner.thread == thread) and _is_abandoned(owner):",
        "            if False:",
        ("tests/servers/drivers/test_pool.py",),
    ),
    Mutant(
        "followers-not-called",
        "_drivers/sync/pool.py",
        "        if connection_set.followers:\n"
        "            self._call_follower(connection_set)\n"
        "        if self.closing:  # checked last",
        "        if self.closing:  # checked last",
        ("tests/servers/drivers/test_pool.py",),
    ),
    Mutant(
        "releases-overtake-submitted-acquires",
        "_drivers/sync/connection_set.py",
        "            self._send_submissions()  # an acquire of this thread may be among it\n",
        "            pass\n",
        ("tests/servers/drivers/test_shared_connections.py",),
    ),
    Mutant(
        "submitted-to-nodes-with-a-backlog",
        "_drivers/sync/connection_set.py",
        "            nodes = self._open_nodes(at)\n",
        "            pass\n",
        ("tests/servers/drivers/test_shared_connections.py",),
    ),
    Mutant(
        "backlog-tolerated-without-followers",
        "_drivers/sync/connection_set.py",
        "                    connection.pipeline.max_silence = 0\n",
        "                    pass\n",
        ("tests/servers/drivers/test_shared_connections.py",),
    ),
    Mutant(
        "backlog-tolerated-after-the-last-follower",
        "_drivers/sync/connection_set.py",
        "        self._check_tolerance()  # the last follower may lead now, with a round here\n",
        "",
        ("tests/servers/drivers/test_shared_connections.py", "-k", "last_follower"),
    ),
    Mutant(
        "batch-to-nodes-that-must-not-vote",
        "_drivers/sync/connection_set.py",
        "            and not self.membership.has_limits\n",
        "",
        ("tests/servers/drivers/test_shared_connections.py", "-k", "vote"),
    ),
    Mutant(
        "batch-overtaken-by-others",
        "_drivers/sync/connection_set.py",
        "            self._send_batch(batch, uncounted)\n            batch = []\n",
        "",
        ("tests/servers/drivers/test_shared_connections.py", "-k", "order"),
    ),
    Mutant(
        "exchanges-submitted",
        "_core/commands.py",
        '    return not (getattr(command, "place", b"") or replaced_token(command))\n',
        "    return True\n",
        ("tests/unit/core/test_commands.py",),
    ),
    # --- background threads -----------------------------------------------------------------------
    Mutant(
        "thread-ends-though-woken",
        "_drivers/threads.py",
        "if not (self._woken or (self._is_overlooked and self._is_overlooked())):",
        "if not (self._is_overlooked and self._is_overlooked()):",
        ("tests/servers/drivers/test_threads.py",),
    ),
    Mutant(
        "exit-in-a-step-ends-the-work",
        "_drivers/threads.py",
        "        except BaseException as error:  # noqa: BLE001 (no exception may end the work)",
        "        except Exception as error:  # noqa: BLE001 (no exception may end the work)",
        ("tests/servers/drivers/test_threads.py", "tests/servers/api/test_renewal.py"),
    ),
    Mutant(
        "refused-start-forgotten",
        "_drivers/threads.py",
        "            _refused[self] = None  # too many threads, or at interpreter exit\n",
        "",
        ("tests/servers/drivers/test_threads.py",),
    ),
    Mutant(
        "work-needs-threading",
        "_drivers/threads.py",
        "    except BaseException:  # noqa: BLE001 (the work has to be done in any case)\n"
        "        run()\n",
        "    except BaseException:  # noqa: BLE001 (the work has to be done in any case)\n"
        "        pass\n",
        ("tests/servers/drivers/test_threads.py",),
    ),
    Mutant(
        "sleeps-past-a-suspend",
        "_drivers/clock.py",
        "    return max(0, min(until - now(), SLEEP_MAX)) / NS_PER_S",
        "    return max(0, min(until - now(), 10**18)) / NS_PER_S",
        ("tests/servers/api/test_suspend.py",),
    ),
    Mutant(
        "poll-sleeps-past-a-suspend",
        "_drivers/clock.py",
        "    return -(-max(0, min(until - now(), SLEEP_MAX)) // NS_PER_MS)",
        "    return -(-max(0, min(until - now(), 10**15)) // NS_PER_MS)",
        ("tests/servers/api/test_suspend.py",),
    ),
    # --- names ------------------------------------------------------------------------------------
    Mutant(
        "a-lookup-for-each-that-wants-one",
        "_drivers/resolve.py",
        "    if found is not None:\n        return found\n    begun",
        "    begun",
        ("tests/servers/drivers/test_resolve.py",),
    ),
    Mutant(
        "last-addresses-forgotten",
        "_drivers/resolve.py",
        "found = self.addresses or _known.get(self.host)",
        "found = self.addresses",
        ("tests/servers/drivers/test_resolve.py",),
    ),
    Mutant(
        "names-kept-without-bound",
        "_drivers/resolve.py",
        "    for oldest in list(_known)[:-NAMES_MAX]:\n        _known.pop(oldest, None)\n",
        "",
        ("tests/servers/drivers/test_resolve.py",),
    ),
    Mutant(
        "lookups-of-the-parent-awaited",
        "_drivers/resolve.py",
        "        _under_way.clear()\n",
        "        pass\n",
        ("tests/servers/drivers/test_resolve.py",),
    ),
    # --- rounds and connections -------------------------------------------------------------------
    Mutant(
        "39-won-while-nobody-listens",
        "_drivers/aio/flow_task.py",
        "if self.state is RECEIVING and (tally := self._effect.tally) is not None:",
        "if (tally := self._effect.tally) is not None:",
        ("tests/servers/drivers/test_shared_pipeline.py",),
    ),
    Mutant(
        "direct-cancelled-and-not-released",
        "_drivers/aio/direct_task.py",
        "            self._loop_driver.send(self._usual.cancelled(self._sent_round), self)\n",
        "            pass\n",
        ("tests/servers/drivers/test_direct_task.py",),
    ),
    Mutant(
        "direct-flow-asks-again",
        "_drivers/aio/direct_task.py",
        "self._flow = self._usual.flow(self._sent_round)",
        "self._flow = self._usual.flow(None)",
        ("tests/servers/drivers/test_direct_task.py",),
    ),
    Mutant(
        "direct-late-quorum-ignored",
        "_drivers/aio/direct_task.py",
        "            self._run_flow()\n        super().deliver_quorum(nodes, last, at)",
        "            self._run_flow()\n            return\n"
        "        super().deliver_quorum(nodes, last, at)",
        ("tests/servers/drivers/test_direct_task.py",),
    ),
    Mutant(
        "blocking-direct-interrupted-and-not-released",
        "_drivers/sync/direct_runner.py",
        "        return usual.cancelled(self._sent_round)\n",
        "        return super()._cancel_flow()\n",
        ("tests/servers/drivers/test_direct_runner.py",),
    ),
    Mutant(
        "blocking-direct-flow-goes-on-after-an-interrupt",
        "_drivers/sync/direct_runner.py",
        "        self._flow = NO_FLOW  # also if one was about to begin\n",
        "",
        ("tests/exhaustive/test_interrupts.py", "-k", "where_a_flow_begins"),
    ),
    Mutant(
        "blocking-direct-flow-asks-again",
        "_drivers/sync/direct_runner.py",
        "self._flow = flow = usual.flow(sent_round)",
        "self._flow = flow = usual.flow(None)",
        ("tests/servers/drivers/test_direct_runner.py",),
    ),
    Mutant(
        "blocking-direct-refusal-counts",
        "_drivers/sync/direct_runner.py",
        "            if answer is not GRANTED:\n",
        "            if answer is None:\n",
        ("tests/servers/drivers/test_direct_runner.py",),
    ),
    Mutant(
        "blocking-direct-waits-for-a-quorum-of-any",
        "_drivers/sync/direct_runner.py",
        "self._await_replies(number + 1, until)",
        "self._await_replies(policy.quorum, until)",
        ("tests/servers/drivers/test_direct_runner.py",),
    ),
    Mutant(
        "asyncio-late-loop-no-grace",
        "_drivers/aio/deadlines.py",
        "self._loop.call_later(extra / 1e9, self._guarded, _elapsed, tasks, at)",
        "self._loop.call_later(0, self._guarded, _elapsed, tasks, at)",
        ("tests/servers/api/test_busy_loop.py",),
    ),
    Mutant(
        "asyncio-long-wait-cut",
        "_drivers/aio/deadlines.py",
        "                if until > due:\n                    task.reply_deadline = until\n",
        "",
        ("tests/servers/api/test_renewal.py", "-k", "reply_after_node_timeout"),
    ),
    Mutant(
        "asyncio-deadline-behind-a-longer-one",
        "_drivers/aio/deadlines.py",
        "            if self._timer_at <= until:\n                return\n",
        "            return\n",
        ("tests/servers/drivers/test_deadlines.py",),
    ),
    Mutant(
        "queue-after-send",
        "_drivers/sync/connection.py",
        "        data = self.pipeline.append(request, data)\n        if self.holds_back:\n",
        "        if not self.holds_back and not self.unsent and not data.startswith(b'*0'):\n"
        "            data = data[self.sock.send(data) :]\n"
        "        data = self.pipeline.append(request, data)\n"
        "        if self.holds_back:\n",
        (
            "tests/exhaustive/test_interrupts.py",
            "tests/exhaustive/test_order_and_pending_releases.py",
        ),
    ),
    Mutant(
        "partial-send-overtaken",
        "_drivers/sync/connection.py",
        "            data = self.unsent + data  # a partly sent command is completed first\n",
        "            data = data + self.unsent\n",
        ("tests/exhaustive/test_order_and_pending_releases.py", "-k", "partial"),
    ),
    Mutant(
        "fork-keeps-drivers",
        "_drivers/fork.py",
        "    for thing in list(_registered):\n        thing.reset_after_fork()\n",
        "",
        ("tests/exhaustive/test_fork.py",),
    ),
    Mutant(
        "fork-keeps-leases",
        "_drivers/fork.py",
        "    generation += 1\n",
        "    generation += 0\n",
        ("tests/exhaustive/test_fork.py",),
    ),
    Mutant(
        "lost-connection-unnoticed-in-quarantine",
        "_drivers/sync/connection_set.py",
        "_MAY_CHANGE = (VoteCode.BACKLOG, VoteCode.PERMANENT_ERROR, VoteCode.QUARANTINED)",
        "_MAY_CHANGE = (VoteCode.BACKLOG, VoteCode.PERMANENT_ERROR)",
        ("tests/servers/api/test_first_start.py", "-k", "die"),
    ),
]
