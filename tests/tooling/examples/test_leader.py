"""examples/leader.py: real processes, of which one leads."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Thread

import pytest

from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.tooling.examples.programs import PATIENCE, environment, started

Start = Callable[[], "Candidate"]


class Candidate:
    """One process, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip().partition(": ")[2])

    def said(self, start: str) -> int:
        """Return how many lines begin like this."""
        return sum(line.startswith(start) for line in self.lines)

    def leads(self) -> bool:
        """Return whether the last line about the lead says so."""
        about = [line for line in self.lines if line != "works"]
        return about[-1:] == ["leads"]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Return the status, when all its lines are here."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def kill(self) -> None:
        self.process.kill()
        self.ended()


@pytest.fixture
def start(mortal_nodes: Servers) -> Iterator[Start]:
    """Start a candidate."""
    with ExitStack() as stack:

        def begin() -> Candidate:
            process = stack.enter_context(
                started("leader.py", env=environment(mortal_nodes.urls[:3]), stdout=subprocess.PIPE)
            )
            candidate = Candidate(process)
            stack.callback(candidate.kill)
            return candidate

        yield begin


def leader_of(candidates: list[Candidate], within: float = PATIENCE) -> Candidate:
    """Wait until one leads, and return it; no other does."""
    assert until(lambda: any(one.leads() for one in candidates), within)
    (leader,) = [one for one in candidates if one.leads()]
    assert until(lambda: leader.said("works"), within)
    return leader


def test_term_hands_over(start: Start, mortal_nodes: Servers) -> None:
    """The lock is released: the next leader does not wait for the ttl. The last leaves no key."""
    candidates = [start() for _ in range(3)]
    while candidates:
        leader = leader_of(candidates)
        candidates.remove(leader)
        leader.send(signal.SIGTERM)
        assert leader.ended() == 0
        assert leader.lines[-1] == "ends"
        assert leader.said("leads no longer") == 0
    assert not any(node.keys() for node in mortal_nodes)


def test_term_ends_a_candidate_that_waits(start: Start) -> None:
    """Check that it never led, and that the leader stays."""
    leader = start()
    assert until(leader.leads, PATIENCE)
    waiting = start()
    assert not until(waiting.leads, 1.0)
    waiting.send(signal.SIGTERM)
    assert waiting.ended() == 0
    assert waiting.lines == ["ends"]
    assert leader.leads()


def test_a_paused_leader_stops_when_it_resumes(start: Start) -> None:
    """Another took over; at most the step that was begun is completed."""
    candidates = [start(), start()]
    paused = leader_of(candidates)
    (other,) = [one for one in candidates if one is not paused]
    paused.send(signal.SIGSTOP)
    os.waitid(os.P_PID, paused.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert until(other.leads, PATIENCE)
    before = paused.said("works")
    paused.send(signal.SIGCONT)
    assert until(lambda: paused.said("leads no longer: "), PATIENCE)
    assert paused.said("works") <= before + 1
    assert leader_of(candidates) is other


def test_a_majority_is_away(start: Start, mortal_nodes: Servers) -> None:
    """The leader stops before its lease ends, and one of them leads when the nodes are back."""
    candidates = [start(), start()]
    leader = leader_of(candidates)
    for node in mortal_nodes[:2]:
        node.stop()
    assert until(lambda: leader.said("leads no longer: "), PATIENCE)
    assert until(lambda: all(one.said("cannot lead: ") for one in candidates), PATIENCE)
    assert not any(one.leads() for one in candidates)
    for node in mortal_nodes[:2]:
        node.cont()
    leader_of(candidates)


def test_the_nodes_forget_the_leader(start: Start, mortal_nodes: Servers) -> None:
    """Whichever process leads then, the first one has noticed."""
    candidates = [start(), start()]
    leader = leader_of(candidates)
    for node in mortal_nodes:
        node.flush()
    assert until(lambda: leader.said("leads no longer: "), PATIENCE)
    leader_of(candidates)
