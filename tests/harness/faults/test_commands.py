"""The remaining functions of a faulty node, and its keys afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import pytest

from tests.harness.faults import Fault, Site
from tests.harness.faults.commands import (
    ClientPause,
    DebugSleep,
    Demoted,
    Eviction,
    FlushAll,
    OutOfMemory,
    PausedWrites,
    Replica,
    ScriptFlush,
    WrongAcl,
)
from tests.harness.faults.processes import run_id
from tests.harness.faults.site import PASSWORD, USER
from tests.harness.support.resp import Talk, info, is_silent

LOCKS = [f"lock:{number}" for number in range(200)]


@contextmanager
def in_force(fault: Fault, site: Site) -> Iterator[None]:
    try:
        fault.begin(site)
        print(f"\n{fault.proof(site)}")
        yield
    finally:
        fault.end(site)


@contextmanager
def client(site: Site) -> Iterator[Talk]:
    """A connection as the clients have them."""
    with Talk(site.proxy.path) as talk:
        assert talk.ask("AUTH", USER, PASSWORD) == b"OK"
        yield talk


def code(reply: Any) -> str:
    """The first word of an error."""
    assert isinstance(reply, hiredis.ReplyError), reply
    return str(reply).partition(" ")[0]


def set_locks(site: Site) -> None:
    with client(site) as talk:
        for lock in LOCKS:
            assert talk.ask("SET", lock, "token", "NX", "PX", 60_000) == b"OK"


@pytest.mark.parametrize("kind", [ClientPause, DebugSleep])
def test_what_was_asked_in_a_pause_is_served_after_it(
    site: Site, kind: type[ClientPause | DebugSleep]
) -> None:
    with client(site) as talk:
        with in_force(kind(0.5), site):
            talk.send("SET", "a", 1)
        assert talk.read() == b"OK"


def test_debug_sleep_is_a_sleep(site: Site) -> None:
    """The command really blocks the server, which replies OK when it has slept."""
    fault = DebugSleep(0.5)
    with in_force(fault, site):
        (talk,) = fault._states[site]
        assert talk.read() == b"OK"
        assert not is_silent(site.server.path, seconds=5)


def test_paused_writes(site: Site) -> None:
    site.server.execute("SET", "a", 1)
    with client(site) as reader, client(site) as writer:
        with in_force(PausedWrites(), site):
            assert reader.ask("GET", "a") == b"1"
            writer.send("EVAL", "return redis.call('set', KEYS[1], 2)", 1, "a")
            assert is_silent(site.proxy.path, "SET", "a", "3")
            assert reader.ask("GET", "a") == b"1"
        assert writer.read() == b"OK"
        assert reader.ask("GET", "a") == b"2"


def test_script_flush_is_noscript_for_clients(site: Site) -> None:
    with client(site) as talk:
        sha = talk.ask("SCRIPT", "LOAD", "return 7")
        assert talk.ask("EVALSHA", sha, 0) == 7
        with in_force(ScriptFlush(), site):
            assert code(talk.ask("EVALSHA", sha, 0)) == "NOSCRIPT"
            assert talk.ask("EVAL", "return 7", 0) == 7
            assert talk.ask("EVALSHA", sha, 0) == 7


def test_flushall_leaves_connections_and_run_id(site: Site) -> None:
    set_locks(site)
    before = run_id(site)
    with client(site) as talk, in_force(FlushAll(), site):
        assert talk.ask("EXISTS", *LOCKS) == 0
    assert run_id(site) == before


def test_eviction_takes_locks_first(site: Site) -> None:
    """All existing ones are evicted, while the ballast that caused it stays; new ones evict older
    ones. No SET is refused.
    """
    set_locks(site)
    with client(site) as talk, in_force(Eviction(), site):
        left = talk.ask("EXISTS", *LOCKS)
        ballast = talk.ask("DBSIZE")
        print(f"{left} of {len(LOCKS)} locks left beside {ballast} keys of ballast")
        assert left <= len(LOCKS) // 10
        assert ballast > 100
        for number in range(2000):
            assert talk.ask("SET", f"new:{number}", "token", "NX", "PX", 60_000) == b"OK"
        survivors = talk.ask("EXISTS", *(f"new:{number}" for number in range(2000)))
        print(f"of 2000 new locks {survivors} survive")
        assert survivors < 2000
    left_over = site.server.keys()
    assert not [key for key in left_over if b"faults" in key]


def test_out_of_memory_refuses_set_and_lets_release(site: Site) -> None:
    set_locks(site)
    evicted_before = info(site.server, "stats")["evicted_keys"]
    release = "return redis.call('del', KEYS[1])"
    with client(site) as talk:
        sha = talk.ask("SCRIPT", "LOAD", release)
        with in_force(OutOfMemory(), site):
            assert code(talk.ask("SET", "a", 1, "NX", "PX", 1000)) == "OOM"
            assert talk.ask("EXISTS", *LOCKS) == len(LOCKS)
            assert talk.ask("PEXPIRE", LOCKS[0], 50_000) == 1
            assert talk.ask("DEL", LOCKS[0]) == 1
            assert talk.ask("EVALSHA", sha, 1, LOCKS[1]) == 1
        assert talk.ask("SET", "a", 1, "NX", "PX", 1000) == b"OK"
    assert info(site.server, "stats")["evicted_keys"] == evicted_before


def test_demotion_keeps_connections_run_id_and_keys(site: Site) -> None:
    set_locks(site)
    before = run_id(site)
    with client(site) as talk:
        with in_force(Demoted(), site):
            assert code(talk.ask("SET", "a", 1)) == "READONLY"
            assert code(talk.ask("EVAL", "return redis.call('del', KEYS[1])", 1, "a")) == "READONLY"
            assert talk.ask("GET", LOCKS[0]) == b"token"
        assert talk.ask("EXISTS", *LOCKS) == len(LOCKS)
        assert talk.ask("SET", "a", 1) == b"OK"
    assert run_id(site) == before


def test_a_replica_has_its_masters_keys_when_it_is_promoted(site: Site) -> None:
    """The locks are gone, and nothing that a client could see says so: the run_id and its
    connection are the same."""
    set_locks(site)
    before = run_id(site)
    with client(site) as talk:
        with in_force(Replica(), site):
            assert code(talk.ask("SET", "a", 1)) == "READONLY"
            assert talk.ask("EXISTS", *LOCKS) == 0
        assert talk.ask("SET", LOCKS[0], "other", "NX", "PX", 60_000) == b"OK"
    assert run_id(site) == before


@pytest.mark.parametrize(
    ("fault", "denied", "allowed"),
    [
        (
            WrongAcl("no-set", take="-set", give_back="+@all"),
            ("SET", "lock", "token", "NX", "PX", 1000),
            ("DEL", "lock"),
        ),
        (WrongAcl("no-keys", take="resetkeys", give_back="~*"), ("DEL", "lock"), ("PING",)),
    ],
    ids=["no-set", "no-keys"],
)
def test_a_right_is_lost_on_open_connections_too(
    site: Site, fault: WrongAcl, denied: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    with client(site) as talk:
        with in_force(fault, site):
            assert code(talk.ask(*denied)) == "NOPERM"
            assert not isinstance(talk.ask(*allowed), hiredis.ReplyError)
        assert not isinstance(talk.ask(*denied), hiredis.ReplyError)
