"""Very many leases are given back at once: by garbage collection, by close."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock.testing.servers import Servers

MANY = 1_500


def keys_left(nodes: Servers, seconds: float = 20.0) -> int:
    """How many keys are on the nodes when no more disappear, or when the time is up."""
    end = time.monotonic() + seconds
    left = 1
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left = sum(len(node.keys()) for node in nodes)
    return left


def test_garbage_is_given_back_by_one_thread(nodes: Servers) -> None:
    """A thread for each lease killed the keeper of a node, and nobody connected it again."""
    with quorlock.Redlock(nodes.urls, node_timeout=0.5, ttl=60, max_ttl=60) as redlock:
        leases = [redlock.lock(f"r{index}").acquire(timeout=20) for index in range(MANY)]
        most = threading.active_count()
        for _ in range(MANY):
            del leases[-1]
            most = max(most, threading.active_count())
        gc.collect()
        assert keys_left(nodes) == 0
        assert most <= threading.active_count() + 12, "a thread for each"
        assert redlock.lock("after").acquire(timeout=5).release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_keeper_that_died_is_followed_by_another(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in its thread: the node is connected again when somebody wants it."""
    with quorlock.Redlock(nodes.urls, node_timeout=0.5) as redlock:
        keeper = redlock._session.driver._keepers[0]
        connect = keeper._connect

        def once() -> None:
            monkeypatch.setattr(keeper, "_connect", connect)
            message = "a defect of ours"
            raise RuntimeError(message)

        monkeypatch.setattr(keeper, "_connect", once)
        end = time.monotonic() + 10
        while not redlock.nodes[0].up and time.monotonic() < end:
            assert redlock.lock("any").acquire(timeout=5).release()
        assert redlock.nodes[0].up


def test_closing_with_much_unsent_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio: the end of a connection that was still writing is told to it once."""
    heard: list[str] = []

    async def main(node: Servers) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: heard.append(str(what)))
        redlock = aio.Redlock(node.urls, node_timeout=0.5, prefix="p" * 400, ttl=60, max_ttl=60)
        leases = [await redlock.lock(f"r{index}").acquire() for index in range(MANY)]
        node[0].stop()
        closing = asyncio.create_task(redlock.close())
        await asyncio.sleep(0.1)
        node[0].cont()
        await closing
        assert not any(lease.held for lease in leases)

    with Servers(1) as node:
        asyncio.run(main(node))
    assert not heard
    assert not caplog.records


def test_no_thread_can_be_had(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many processes, say: the error says so, at once, and it passes."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("quorlock keeper"):
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)

    with quorlock.Redlock(nodes.urls, node_timeout=0.5, outage_timeout=0.3) as redlock:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(quorlock.QuorumUnreachable, match="can't start new thread"):
                redlock.lock("a").acquire(timeout=5)
        end = time.monotonic() + 20
        while sum(node.up for node in redlock.nodes) < len(nodes) and time.monotonic() < end:
            with contextlib.suppress(quorlock.QuorumUnreachable):
                redlock.lock("a").acquire(timeout=0.1).release()
        assert redlock.lock("a").acquire(timeout=5).release()
