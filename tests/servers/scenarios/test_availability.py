"""A majority of nodes is away: calls end in time and name the nodes, then work continues.

Nothing is assumed: no lock can be granted without a majority. Nodes that died without their memory
come back only when no earlier key can be alive (see `scenario`), so no two holders overlap here
either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorlock import NodeError, QuorumUnreachable
from tests.harness.faults import FAULTS, Fault, sites
from tests.harness.traffic.faces import FACES, Face, call
from tests.harness.traffic.records import instant
from tests.harness.traffic.settings import ASYNCIO, BLOCKING
from tests.servers.scenarios.scenario import Scenario, started

SETTINGS: dict[str, Any] = {
    "ttl": 1.0,
    "max_ttl": 1.0,
    "node_timeout": 0.1,
    "connect_timeout": 0.3,
    "outage_timeout": 0.8,
}
# Connecting, and two rounds of the last attempt; then a busy machine.
LAST_ATTEMPT = 0.3 + 3 * 0.1
SLACK = 5.0
# A round that was won just before the fault may come to its caller a little later.
IN_FLIGHT = 1.0
MAJORITY = 3
BOTH = {BLOCKING, ASYNCIO}

BY_NAME = {fault.name: fault for fault in FAULTS}
SILENT = ("sigstop", "kill", "delay-long")
UNFIT = ("oom", "acl-no-set", "demoted")
Kind = type[QuorumUnreachable | NodeError]


@pytest.mark.parametrize(
    ("names", "kind"), [(SILENT, QuorumUnreachable), (UNFIT, NodeError)], ids=["silent", "unfit"]
)
def test_a_majority_is_away(names: tuple[str, ...], kind: Kind, tmp_path: Path, seed: int) -> None:
    """Three of five: every call ends at its deadline with an error that names the three, no lock is
    granted, and both APIs get locks soon after.
    """
    with sites(5) as five, started(five, tmp_path, seed) as scenario:
        scenario.expects_grants = False
        for name in names:
            suffers(scenario, BY_NAME[name], kind)
        verdict = scenario.finish()
    assert verdict.content, str(verdict)


def suffers(scenario: Scenario, fault: Fault, kind: Kind) -> None:
    """One majority away, and back."""
    away = scenario.sites[:MAJORITY]
    urls, names = [site.proxy.url for site in scenario.sites], {site.proxy.path for site in away}
    print(f"--- {fault.name}")
    with scenario.inflicted(*((fault, site) for site in away)):
        since = instant()
        with ThreadPoolExecutor(len(FACES)) as threads:
            probes = [
                threads.submit(face.run, partial(fails_in_time, face, urls, names, kind))
                for face in FACES.values()
            ]
        for probe in probes:
            probe.result()
        since += round(IN_FLIGHT * 1e9)
        assert scenario.until(lambda _: failing(scenario, since) == BOTH)
        until = instant()
    grants = scenario.history.follow().grants(since, until)
    print(f"in {(until - since) / 1e9:.2f} s: grants {dict(grants)}")
    assert not grants
    comes_back(scenario)


async def fails_in_time(face: Face, urls: list[str], away: set[str], kind: Kind) -> None:
    """A client that comes during the outage: its calls end in time and name the nodes."""
    redlock = face.redlock(urls, **SETTINGS)
    try:
        for timeout in (0.0, 0.3, None):
            lock = redlock.lock("probe", timeout=timeout)
            allowed = SETTINGS["outage_timeout"] if timeout is None else timeout
            error, took = await failure(lock.acquire)
            print(f"{face.name}, timeout={timeout}: {took:.3f} s: {type(error).__name__}: {error}")
            assert isinstance(error, kind), repr(error)
            assert took < allowed + LAST_ATTEMPT + SLACK
            assert took >= (timeout or 0.0) or isinstance(error, NodeError)
            assert {v.node for v in error.votes if not v.answered or v.code.is_error} >= away
        lock = redlock.lock("probe")
        # A node that is unfit to be written to may still be read.
        readable = kind is NodeError
        for verb in (lock.try_acquire,) if readable else (lock.try_acquire, lock.locked):
            error, took = await failure(verb)
            assert isinstance(error, kind), repr(error)
            assert took < LAST_ATTEMPT + SLACK
    finally:
        await call(redlock.close)


async def failure(verb: Callable[[], Any]) -> tuple[Any, float]:
    """Return the exception and the seconds until it."""
    began = time.monotonic()
    try:
        outcome = await call(verb)
    except (QuorumUnreachable, NodeError) as error:
        return error, time.monotonic() - began
    raise AssertionError(f"{verb} gave {outcome!r} with a majority away")


def failing(scenario: Scenario, since: int) -> set[str]:
    """Return the APIs whose traffic got errors since then."""
    history = scenario.history
    return {
        history.processes[call.pid].face
        for call in history.calls.values()
        if call.returned and call.returned > since and call.outcome in RAISED
    }


RAISED = ("QuorumUnreachable", "NodeError")


def comes_back(scenario: Scenario) -> None:
    healed = instant()
    assert scenario.until(lambda history: set(history.grants(healed, instant())) == BOTH)
    print(f"locks again {(instant() - healed) / 1e9:.2f} s after the nodes came back")
