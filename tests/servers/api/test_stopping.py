"""Blocking: a lease is released at every instant at which its renewal may begin (rule 13).

The two threads are interleaved by the read of the lease's deadline, which `begin` does between its
record that a request is in flight and its sending.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
from quorlock._api.lease_options import lease_options
from quorlock._api.lease_state import LeaseState
from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire
from quorlock._core.rounds import SentRound, Target
from quorlock._core.time import FOR_EVER, NS_PER_S
from quorlock._core.votes import GRANTED
from quorlock._drivers import clock
from quorlock._drivers.clock import now
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._sync.lease import Lease
from quorlock._sync.renewal import RenewalThread, _ThreadRenewedLease, renewer
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock._core.effects import SendBatch
    from quorlock._drivers.sync.connection import Inbox
    from quorlock.testing.servers import Servers


class Scene:
    """A renewal about to begin, and a thread that releases the lease at that moment."""

    def __init__(self, redlock: quorlock.Redlock, monkeypatch: pytest.MonkeyPatch) -> None:
        session = redlock._session
        self.loop_driver: RenewalThread = renewer(session)
        sent_round = SentRound(1, now(), now(), Target(1, object()))
        valid_until, options = now() + 9 * NS_PER_S, lease_options(True, 60.0, None)
        self.lease_state = LeaseState(
            "a", Keys(b"a"), b"t", 9_000, valid_until, (GRANTED,), sent_round, 0, options
        )
        self.lease = Lease(session, self.lease_state)
        self.renewal = _ThreadRenewedLease(
            self.loop_driver, self.lease, None, now(), session.entropy
        )
        self.stopping = threading.Thread(target=self.loop_driver.stop, args=(self.renewal,))
        read: Callable[[LeaseState], int] = vars(LeaseState)["deadline"].fget

        def deadline(lease_state: LeaseState) -> int:
            self.before()
            value = read(lease_state)
            self.after()
            return value

        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        monkeypatch.setattr(LeaseState, "deadline", property(deadline))

    def end(self) -> None:
        self.before = self.after = lambda: None
        self.lease_state.end()

    def release(self) -> None:
        """End it, and stop renewal: return when that waits, or has not waited."""
        self.end()
        self.stopping.start()
        assert until(lambda: self.loop_driver.settled.waiting or not self.stopping.is_alive())


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Who waits is woken; it does not find out by looking now and then.
    monkeypatch.setattr(clock, "SLEEP_MAX", FOR_EVER // 1_000)
    with quorlock.Redlock(["redis://127.0.0.1:1"], connect_timeout=30.0) as redlock:
        yield Scene(redlock, monkeypatch)


def test_released_after_the_check(scene: Scene) -> None:
    """The lease was valid when checked, so a request is sent: the release waits for it."""
    scene.after = scene.release
    assert scene.renewal.mark_in_flight(now()) is not None
    assert scene.stopping.is_alive(), "a release would overtake what renewal sends"
    scene.renewal.clear_in_flight()
    scene.stopping.join(10)
    assert not scene.stopping.is_alive()


def test_released_before_the_check(scene: Scene) -> None:
    """The lease is over when checked: nothing is sent, and the release does not wait."""
    scene.before = scene.release
    assert scene.renewal.mark_in_flight(now()) is None
    scene.stopping.join(10)
    assert not scene.stopping.is_alive()


def test_released_before_it_begins(scene: Scene) -> None:
    """No thread waits."""
    scene.release()
    scene.stopping.join(10)
    assert not scene.stopping.is_alive()
    assert scene.renewal.mark_in_flight(now()) is None


# --- keys that renewal restores at that moment ---------------------------------------------------


@pytest.mark.parametrize("how", ["release", "by token", "dropped"])
def test_a_release_overtakes_no_key_that_is_restored(
    nodes: Servers, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewal has found the lease valid, and sends the key while the release waits."""
    waits: list[bool] = []
    restores, ends = threading.Event(), threading.Event()
    send_all = ConnectionSet.send_all

    def send_late(self: ConnectionSet, effect: SendBatch, receiver: Inbox) -> Any:
        if any(isinstance(send.command, Acquire) for send in effect.sends):
            restores.set()
            assert ends.wait(10)
            until(lambda: thread.settled.waiting or not nodes[1].execute("EXISTS", "a"))
            waits.append(bool(thread.settled.waiting))
        return send_all(self, effect, receiver)

    with quorlock.Redlock(nodes.urls, ttl=8.0, restart_guard=None) as redlock:
        held = [redlock.lock("a", renew=True).acquire(timeout=5.0)]
        thread: RenewalThread = renewer(redlock._session)
        monkeypatch.setattr(ConnectionSet, "send_all", send_late)
        nodes[0].execute("DEL", "a")
        assert restores.wait(10)
        ends.set()
        if how == "release":
            assert held[0].release()
        elif how == "by token":
            assert redlock.release("a", held[0].token)
        held.clear()
        assert until(lambda: not redlock._session.live)
        assert until(lambda: not any(node.execute("EXISTS", "a") for node in nodes))
        assert waits == [True]
