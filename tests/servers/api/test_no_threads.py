"""No thread can be had for a while, by the system's own limits: nothing ends for good.

In a child process, by RLIMIT_AS: there is no room for another thread's stack. A stack is asked
to be far larger than what is left for everything else, so that memory is not short as well.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorlock.testing.servers import Servers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux counts it")

PRELUDE = """
    import contextlib, gc, resource, sys, threading, time
    import quorlock
    from quorlock import QuorlockError, QuorumUnreachable, Redlock

    TTL = 0.9
    SETTINGS = dict(ttl=TTL, max_ttl=30.0, node_timeout=0.25, restart_guard=None)

    def alone():
        while threading.active_count() > 1:
            time.sleep(0.01)

    @contextlib.contextmanager
    def no_threads():
        gc.collect()
        alone()  # a thread that starts after the look at the memory would take all that is left
        threading.stack_size(1 << 30)  # more than what is left, and than any stack that is kept
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), hard))
        try:
            try:
                threading.Thread(target=int).start()
            except RuntimeError:
                pass
            else:
                raise AssertionError("there is room for a thread")
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            threading.stack_size(0)

    def warm(redlock):
        while not all(node.up for node in redlock.nodes):
            redlock.lock("warm").acquire().release()

    def outlives(lease):
        first = lease.valid_until
        while quorlock.now() < first + 0.1:
            time.sleep(0.01)
        assert lease.held
"""

RENEWAL = """
    with Redlock(sys.argv[1:], **SETTINGS) as redlock:
        warm(redlock)
        with no_threads():
            for _ in range(3):
                try:
                    redlock.lock("a", renew=True).acquire()
                except QuorlockError as error:
                    assert "no thread" in str(error), error
                    assert "can't start new thread" in str(error), error
                    assert isinstance(error.__cause__, RuntimeError)
                else:
                    raise AssertionError("a lease that nothing renews")
                assert redlock.inspect("a").verdict == "free"
        lease = redlock.lock("a", renew=True).acquire()
        outlives(lease)
        assert lease.release()
"""

ADOPTION = """
    with Redlock(sys.argv[1:], **{**SETTINGS, "ttl": 20.0}) as redlock:
        warm(redlock)
        ticket = redlock.lock("a").acquire().hand_over()
        with no_threads():
            for _ in range(2):
                try:
                    redlock.adopt(ticket, renew=True)
                except QuorlockError as error:
                    assert "no thread" in str(error), error
                else:
                    raise AssertionError("a lease that nothing renews")
        lease = redlock.adopt(ticket, renew=True)  # the ticket stays good
        assert lease.held
        assert lease.release()
"""

LOSS = """
    with Redlock(sys.argv[1:], **SETTINGS) as redlock:
        warm(redlock)
        # 100 ms before its end; a machine with other work may let us sleep past that, not always.
        before = []
        while True not in before:
            with no_threads():
                lease = redlock.lock("a", ttl=2).acquire()
                lost, ends = lease.lost, lease.valid_until
                assert not lost.is_set()
                assert lost.wait(30)
                before.append(quorlock.now() < ends)
            assert len(before) <= 3, "reported before its end"
"""

COLD = """
    with Redlock(sys.argv[1:], **SETTINGS, outage_timeout=0.3) as redlock:
        with no_threads():
            try:
                redlock.lock("a").acquire(timeout=5)
            except QuorumUnreachable as error:
                assert "can't start new thread" in str(error), error
            else:
                raise AssertionError("no keeper can have connected it")
        until = time.monotonic() + 10
        while True:
            try:
                assert redlock.lock("a").acquire().release()
                break
            except QuorumUnreachable:  # a node is tried again after a pause
                assert time.monotonic() < until
"""

GARBAGE = """
    with Redlock(sys.argv[1:], **{**SETTINGS, "ttl": 20.0}) as redlock:
        warm(redlock)
        leases = [redlock.lock(name).acquire() for name in "ab"]
        with no_threads():
            del leases[0]
            gc.collect()
            assert redlock.inspect("a").verdict == "held", "there is nobody to release it"
        del leases[0]  # the next that is released so takes the first along
        until = time.monotonic() + 10
        while {redlock.inspect(name).verdict for name in "ab"} != {"free"}:
            assert time.monotonic() < until
"""

CLOSING = """
    redlock = Redlock(sys.argv[1:], **{**SETTINGS, "ttl": 20.0})
    warm(redlock)
    lease = redlock.lock("a").acquire()
    with no_threads():
        redlock.close()
    assert not lease.held
    with Redlock(sys.argv[1:], **SETTINGS) as other:
        assert other.inspect("a").verdict == "free"
"""

SHARED = """
    with Redlock(sys.argv[1:], **{**SETTINGS, "ttl": 20.0}) as redlock:
        warm(redlock)
        reader = redlock.lock("a", shared=True).acquire()
        alone()
        with no_threads():
            try:
                redlock.lock("a", shared=True, renew=True).acquire()
            except QuorlockError as error:
                assert "no thread" in str(error), error
            else:
                raise AssertionError("a lease that nothing renews")
            (left,) = redlock.inspect("a").readers
        assert reader.held
        assert reader.release()
        assert redlock.inspect("a").verdict == "free"
"""

PROGRAMS = [RENEWAL, ADOPTION, LOSS, COLD, GARBAGE, CLOSING, SHARED]
NAMES = ["renewal", "adoption", "loss", "cold", "garbage", "closing", "shared"]


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_no_thread_can_be_had(nodes: Servers, program: str) -> None:
    """Operations that are impossible are reported, or done once threads can be started again."""
    source = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
    command = [sys.executable, "-c", source, *nodes.urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
