"""The limit is honest: it does what it is said to do, and notices every wrong answer."""

from __future__ import annotations

import pytest

from bench import limit
from bench.contestants import NAMES
from bench.fleet import Fleet
from quorlock import scripts

BOTH = pytest.mark.parametrize("kind", [limit.All, limit.Quorum])
TTL = 10.0


@BOTH
def test_it_takes_the_lock_on_every_node(
    fleet: Fleet, kind: type[limit.All] | type[limit.Quorum]
) -> None:
    """The token and the ttl are there, on all nodes once all have answered."""
    lock = kind(fleet.urls(), TTL)
    lock.acquire("a")
    lock.close()
    for server in fleet.servers:
        assert server.execute("GET", "a") == limit.TOKEN
        assert 9_000 < server.execute("PTTL", "a") <= 10_000


@BOTH
def test_it_frees_the_lock_on_every_node(
    fleet: Fleet, kind: type[limit.All] | type[limit.Quorum]
) -> None:
    """Late replies after many cycles must not be taken for those of the next."""
    lock = kind(fleet.urls(), TTL)
    for turn in range(300):
        lock.release(lock.acquire(f"a{turn % 7}"))
    lock.close()
    assert fleet.leftovers() == 0
    calls = [str(server.execute("INFO", "commandstats")) for server in fleet.servers]
    assert all("cmdstat_evalsha" in info and "cmdstat_set" in info for info in calls)


def test_all_detects_that_one_node_did_not_grant(fleet: Fleet) -> None:
    """The key is held already, on the last node only."""
    fleet.servers[4].execute("SET", "a", "another's")
    lock = limit.All(fleet.urls(), TTL)
    with pytest.raises(limit.WrongAnswer, match=r"\$-1"):
        lock.acquire("a")
    lock.close()


def test_all_detects_that_one_node_did_not_release(fleet: Fleet) -> None:
    """The key is gone when it is to be released."""
    lock = limit.All(fleet.urls(), TTL)
    held = lock.acquire("a")
    fleet.servers[2].execute("DEL", "a")
    with pytest.raises(limit.WrongAnswer, match=":-2"):
        lock.release(held)
    lock.close()


def test_quorum_detects_a_wrong_reply_that_comes_late(fleet: Fleet) -> None:
    """One node of five refuses: noticed at the latest when the other replies are read."""
    fleet.servers[4].execute("SET", "a", "another's")
    with pytest.raises(limit.WrongAnswer, match=r"\$-1"):
        take_and_close(limit.Quorum(fleet.urls(), TTL))


def take_and_close(lock: limit.Quorum) -> None:
    try:
        lock.acquire("a")
    finally:
        lock.close()


def test_a_node_that_is_gone_is_a_wrong_answer(fleet: Fleet) -> None:
    with Fleet(1) as mortal:
        lock = limit.All(mortal.urls(), TTL)
        lock.release(lock.acquire("a"))
        mortal.servers[0].kill()
        with pytest.raises((limit.WrongAnswer, OSError)):
            lock.acquire("a")
        lock.close()


@pytest.mark.parametrize("in_flight", [1, 100, NAMES])
def test_saturation_counts_whole_cycles_and_leaves_no_key(fleet: Fleet, in_flight: int) -> None:
    """Every node has executed as many SETs as releases, at least as many as were counted."""
    seconds, found = 0.025, {"cycles": 0}
    while not found["cycles"]:  # as long as this machine takes for some
        seconds *= 2
        for server in fleet.servers:
            server.execute("CONFIG", "RESETSTAT")
        found = limit.saturate(fleet.urls(), seconds, in_flight, TTL)
    assert fleet.leftovers() == 0
    for server in fleet.servers:
        info = server.execute("INFO", "commandstats").decode()
        sets = calls_of("set", info)
        assert sets == calls_of("evalsha", info)
        assert found["cycles"] <= sets <= found["cycles"] + in_flight


def test_saturation_detects_a_wrong_reply(fleet: Fleet) -> None:
    fleet.servers[1].execute("SET", "saturate:3", "another's")
    with pytest.raises(limit.WrongAnswer, match=r"\$-1"):
        limit.saturate(fleet.urls(), 0.05, 10, TTL)


def test_its_script_is_the_one_that_ships() -> None:
    """Both have the same bytes, to do the same work."""
    _, release = limit.pair("a", TTL)
    assert scripts.RELEASE.sha in release
    assert release.startswith(b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n")


def calls_of(command: str, info: str) -> int:
    line = next(line for line in info.splitlines() if line.startswith(f"cmdstat_{command}:"))
    return int(line.partition("calls=")[2].partition(",")[0])
