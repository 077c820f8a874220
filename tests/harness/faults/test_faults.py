"""Every fault, by the table: it is in force when it says so, its proof can fail, its end heals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.harness.faults import FAULTS, Fault, Site
from tests.harness.faults.clock import TOLERANCE, clock_error
from tests.harness.faults.commands import ClientPause, DebugSleep
from tests.harness.faults.fault import SiteFault, await_that
from tests.harness.faults.site import PASSWORD, USER
from tests.harness.support.resp import Talk, info


def quick(fault: Fault) -> Fault:
    """Return a shorter form of faults that last for a second."""
    return type(fault)(0.5) if isinstance(fault, ClientPause | DebugSleep) else fault


every_fault = pytest.mark.parametrize(
    "fault", [quick(fault) for fault in FAULTS], ids=[fault.name for fault in FAULTS]
)
LOCK = ("SET", "lock", "token", "NX", "PX", "10000")
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"


@contextmanager
def healed(fault: Fault, site: Site) -> Iterator[None]:
    """Whatever a test finds, the next one gets the site whole."""
    try:
        yield
    finally:
        fault.end(site)


def settings(site: Site) -> dict[str, Any]:
    """Return all settings of a server that a client can change, and the permissions of its
    users.
    """
    pairs: list[bytes] = site.server.execute("CONFIG", "GET", "*")
    config = dict(zip(pairs[::2], pairs[1::2], strict=True))
    files = sorted(path.name for path in site.home.rglob("*"))
    return {"config": config, "users": site.server.execute("ACL", "LIST"), "files": files}


def serves(site: Site, *, tcp: bool) -> None:
    """A client of the proxy can do what a lock needs."""
    address = ("127.0.0.1", site.proxy.port) if tcp else site.proxy.path
    with Talk(address) as talk:
        assert talk.ask("AUTH", USER, PASSWORD) == b"OK"
        assert talk.ask(*LOCK) == b"OK"
        assert talk.ask(*LOCK) is None
        assert talk.ask("EVAL", RELEASE, 1, "lock", "token") == 1


def is_healthy(site: Site) -> None:
    assert site.server.alive
    assert not site.server.stopped
    assert info(site.server, "replication")["role"] == "master"
    assert abs(clock_error(site)) < TOLERANCE
    serves(site, tcp=False)
    serves(site, tcp=True)
    await_that(lambda: site.proxy.open_links == 0, "callers that left are forgotten")
    keys = site.server.keys()
    assert not [key for key in keys if not key.startswith(b"faults:probe:")]


@every_fault
def test_it_is_in_force_between_begin_and_end(site: Site, fault: Fault) -> None:
    """The fault works twice. The memory is kept, unless the fault declares otherwise; how much
    those lose is tested with each.
    """
    before = settings(site)
    for _ in range(2):
        site.server.execute("SET", "kept", "token", "PX", 60_000)
        with healed(fault, site):
            fault.begin(site)
            evidence = fault.proof(site)
            print(f"\n{fault.name}: {evidence}")
            assert evidence
            with pytest.raises(RuntimeError, match="is in force"):
                fault.begin(site)
        if not fault.loses_memory:
            assert site.server.execute("GET", "kept") == b"token"
            assert 0 < site.server.execute("PTTL", "kept") <= 60_000
        site.server.execute("DEL", "kept")
        is_healthy(site)
        assert settings(site) == before
        with pytest.raises(AssertionError, match="is not in force"):
            fault.proof(site)
        fault.end(site)


@every_fault
def test_the_proof_fails_on_a_healthy_site(site: Site, fault: SiteFault[Any]) -> None:
    """Seen by the proof itself, not by the book-keeping: it was begun, and nothing was done."""
    state = fault._before(site)
    with pytest.raises(AssertionError):
        fault._proof(site, state)


@every_fault
def test_an_end_without_a_beginning_changes_nothing(site: Site, fault: Fault) -> None:
    before = settings(site)
    fault.end(site)
    assert settings(site) == before
    is_healthy(site)


@every_fault
def test_it_ends_also_where_the_server_died_meanwhile(site: Site, fault: Fault) -> None:
    before = settings(site)
    with healed(fault, site):
        fault.begin(site)
        site.server.kill()
    is_healthy(site)
    assert settings(site) == before


@every_fault
def test_it_ends_also_where_its_beginning_failed(site: Site, fault: SiteFault[Any]) -> None:
    """The server dies between the look at what was before and what is done."""

    class Dying(type(fault)):  # type: ignore[misc]
        def _before(self, site: Site) -> Any:
            state = super()._before(site)
            site.server.kill()
            return state

    before = settings(site)
    ordinary = type(fault)
    fault.__class__ = Dying
    try:
        fault.begin(site)
    except (OSError, RuntimeError):
        pass  # most cannot begin on a dead server; those of the network and SIGKILL can
    finally:
        fault.__class__ = ordinary
        fault.end(site)
    is_healthy(site)
    assert settings(site) == before


def test_names_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
