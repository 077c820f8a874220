"""The command is dead before the lease is over, by the times in its own log; one that is renewed is
never overlapped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.support.pids import is_gone
from tests.harness.support.wait import until
from tests.servers.cli.command import PATIENCE
from tests.servers.cli.run.conftest import events

if TYPE_CHECKING:
    from quorlock import Redlock
    from tests.servers.cli.run.conftest import Runner

TTL = 4.0  # on a busy machine a command needs two seconds to begin
KILL_AFTER = TTL / 5


def stop_a_majority(run: Runner) -> None:
    for node in run.nodes[:3]:
        node.stop()


def last_alive(run: Runner) -> float:
    return run.log("alive")[-1][0]


@pytest.mark.parametrize("mode", ["term", "kill"])
def test_with_no_quorum_it_is_dead_before_validity_ends(mode: str, run: Runner) -> None:
    held = run.patient("x", "--json", "--ttl", f"{TTL}", "--on-lost", mode)
    stop_a_majority(run)
    done = held.end()
    reported = events(done)
    assert done.returncode == 79
    assert reported.keys() == {"acquired", "ended", "lost"}
    valid_until = reported["ended"]["valid_until"]
    assert last_alive(run) < valid_until
    assert [pid for pid in run.pids() if not is_gone(pid)] == []
    if mode == "term":
        ((number, at),) = run.log("got")
        assert number == signal.SIGTERM
        assert valid_until - KILL_AFTER <= at < last_alive(run) < valid_until
    else:
        assert run.log("got") == []
        assert last_alive(run) > valid_until - KILL_AFTER


def test_who_obeys_ends_by_itself_and_the_lease_was_lost_all_the_same(run: Runner) -> None:
    held = run.patient("x", "--ttl", f"{TTL}", does="obey")
    stop_a_majority(run)
    done = held.end()
    assert done.returncode == 79
    assert run.log("end")
    assert "no quorum" in done.stderr


def test_warn_leaves_it(run: Runner) -> None:
    held = run.patient("x", "--json", "--ttl", f"{TTL}", "--on-lost", "warn", does=f"{1.6 * TTL}")
    stop_a_majority(run)
    done = held.end()
    reported = events(done)
    assert done.returncode == 0
    assert run.log("got") == []
    assert run.log("end")[0][0] > reported["ended"]["valid_until"]
    assert "lost" in reported


def test_warn_does_not_say_that_the_command_was_ended(run: Runner) -> None:
    """The lease was to end, and the command went on."""
    arguments = ("--ttl", "2s", "--no-renew", "--on-lost", "warn", "-c", "sleep 2.5; exit 6")
    done = run("x", *arguments)
    assert done.returncode == 6
    assert "its time ran out" in done.stderr
    assert "so is the command" not in done.stderr


def test_a_lock_that_is_taken_away_ends_it(run: Runner) -> None:
    """The lock is broken by force: noticed at once if nodes push invalidations, otherwise at the
    next renewal. (Keys that are only deleted, node after node, come back one by one: renewal
    restores them.)
    """
    held = run.patient("x", "--ttl", f"{TTL}")
    for node in run.nodes:
        node.execute("SET", "x", "somebody else's", "PX", 60_000)
    done = held.end()
    assert done.returncode == 79
    assert [line[0] for line in run.log("got")] == [signal.SIGTERM]
    assert "the lease is lost" in done.stderr


@pytest.mark.parametrize("option", [["--no-renew"], ["--max-hold", f"{2 * TTL}"]])
def test_an_end_of_holding_ends_it(option: list[str], run: Runner, redlock: Redlock) -> None:
    held = run.patient("x", "--json", "--ttl", f"{TTL}", *option)
    done = held.end()
    reported = events(done)
    assert done.returncode == 79
    assert option[0] in reported["lost"]["message"]
    longest = TTL if option == ["--no-renew"] else 2 * TTL
    assert (
        reported["ended"]["valid_until"]
        <= reported["acquired"]["valid_until"] + longest - TTL + 0.1 * TTL
    )
    assert last_alive(run) < reported["ended"]["valid_until"]
    assert not redlock.lock("x").locked()


def test_ten_ttls_under_renewal_are_not_overlapped(run: Runner) -> None:
    ttl = 2.0
    held = run.patient("x", "--ttl", f"{ttl}", does=f"{10 * ttl}")
    next_one = run.start("x", "--ttl", f"{ttl}", "-c", "cp log seen")
    assert held.end().returncode == 0
    assert next_one.end().returncode == 0
    assert "end" in (run.folder / "seen").read_text()
    alive = run.log("alive")
    assert alive[-1][0] - alive[0][0] > 9 * ttl


def test_renewal_continues_while_the_command_is_stopped(run: Runner, redlock: Redlock) -> None:
    """Renewal does not wait for the command."""
    import os

    ttl = 2.0  # longer than other tests keep it from renewing
    held = run.patient("x", "--ttl", f"{ttl}", does="obey")
    os.kill(run.pids()[0], signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        redlock.lock("x", timeout=1.5 * ttl).acquire()
    os.kill(run.pids()[0], signal.SIGCONT)
    held.send(signal.SIGINT)
    assert until(lambda: run.log("end"), PATIENCE)
    assert held.end().returncode == 0
