"""All kinds of exits release a program's locks, silently and in a bounded time.

Each program below runs in a separate process with `-X dev -W error`: warnings about open sockets,
tasks and threads appear on stderr, which must be empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

import quorlock
import quorlock.asyncio
from quorlock import QuorlockError
from tests.harness.support.program import Ended, Program
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import keys_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorlock.testing.servers import Server, Servers

STRICT = ("-X", "dev", "-W", "error")
TIMEOUT = 30.0
CLEAN_WITHIN = 2.0

# What all programs begin with.
HEAD = """
import asyncio, gc, logging, os, signal, sys, threading, time
import quorlock, quorlock.asyncio
from quorlock import QuorlockError

urls = sys.argv[1:]
# That a callback took 100 ms is no noise of ours: on a busy machine any may.
logging.getLogger("asyncio").addFilter(lambda said: not said.msg.startswith("Executing %s took"))

def blocking(**settings):
    return quorlock.Redlock(urls, **settings)

def for_asyncio(**settings):
    return quorlock.asyncio.Redlock(urls, **settings)

def ready(*leases):
    assert all(lease.held for lease in leases)
    print("ready", flush=True)
    sys.stdin.readline()

"""


def started(nodes: Servers, source: str, flags: tuple[str, ...] = STRICT) -> Program:
    return Program(*flags, "-c", HEAD + dedent(source), *nodes.urls, timeout=TIMEOUT)


def run(nodes: Servers, source: str) -> Ended:
    with started(nodes, source) as program:
        return program.go_on()


def clean(nodes: Iterable[Server]) -> None:
    """No key is left on any of them, within a bounded time."""
    assert until(lambda: not keys_on(nodes), CLEAN_WITHIN), keys_on(nodes)


def quiet(ended: Ended, status: int = 0) -> None:
    assert ended.noise == ""
    assert ended.status == status


QUIET_ENDS = {
    "falls off its end, holding": """
        redlock = blocking()
        leases = [redlock.lock(f"r{n}").acquire() for n in range(3)]
        ready(*leases)
    """,
    "sys.exit, holding": """
        leases = [blocking().lock("r").acquire()]
        ready(*leases)
        sys.exit(0)
    """,
    "sys.exit inside a block": """
        with blocking().lock("r") as lease:
            ready(lease)
            sys.exit(0)
    """,
    "sys.exit in a thread that holds": """
        redlock = blocking()
        def work():
            global lease
            lease = redlock.lock("r").acquire()
            sys.exit(3)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        ready(lease)
    """,
    "a daemon thread sits in its block": """
        redlock = blocking()
        inside = threading.Event()
        def work():
            with redlock.lock("r"):
                inside.set()
                time.sleep(1000)
        threading.Thread(target=work, daemon=True).start()
        inside.wait()
        ready()
    """,
    "daemon threads wait for a lock": """
        redlock = blocking()
        lease = redlock.lock("r").acquire()
        for _ in range(20):
            threading.Thread(target=redlock.lock("r").acquire, daemon=True).start()
        time.sleep(0.1)
        ready(lease)
    """,
    # The exit waits for their rounds twice node_timeout, before it freezes them.
    "daemon threads take turns": """
        redlock = blocking(retry_delay=(0.001, 0.003), node_timeout=0.5)
        def work(number):
            while True:
                with redlock.lock("shared"):
                    redlock.lock(f"r{number}").acquire().release()
        for number in range(6):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        time.sleep(0.1)
        ready()
        time.sleep(0.02)
    """,
    "two Redlocks, one of them garbage": """
        first, second = blocking(), blocking()
        kept = first.lock("r1").acquire()
        dropped = second.lock("r2").acquire()
        del second
        ready(kept, dropped)
    """,
    "closed before": """
        redlock = blocking()
        lease = redlock.lock("r").acquire()
        redlock.close()
        redlock.close()
        assert not lease.held
        ready()
    """,
    "lost watched": """
        redlock = blocking()
        lease = redlock.lock("r").acquire()
        assert not lease.lost.is_set()
        ready(lease)
    """,
    "renewed": """
        redlock = blocking(ttl=1.0)
        leases = [redlock.lock(f"r{n}", renew=True).acquire() for n in range(3)]
        time.sleep(0.5)
        ready(*leases)
    """,
    "renewed, in the midst of it": """
        redlock = blocking(ttl=0.4)
        leases = [redlock.lock(f"r{n}", renew=True).acquire() for n in range(200)]
        time.sleep(0.1)
        ready()
    """,
    "asyncio.run ends, renewed": """
        async def main():
            redlock = for_asyncio(ttl=1.0)
            leases = [await redlock.lock(f"r{n}", renew=True).acquire() for n in range(3)]
            await asyncio.sleep(0.5)
            ready(*leases)
        asyncio.run(main())
    """,
    "a loop closed by hand, renewed": """
        async def main():
            redlock = for_asyncio(ttl=1.0)
            lease = await redlock.lock("r", renew=True).acquire()
            await asyncio.sleep(0.5)
            ready(lease)
            await redlock.close()
        loop = asyncio.new_event_loop()
        loop.slow_callback_duration = 10  # it waits for our word in there
        loop.run_until_complete(main())
        loop.close()
    """,
    "leases in module globals and a cycle": """
        class Holder: pass
        holder = Holder()
        holder.me = holder
        holder.redlock = blocking()
        holder.lease = holder.redlock.lock("r").acquire()
        ready(holder.lease)
    """,
    "asyncio.run ends, holding": """
        async def main():
            redlock = for_asyncio()
            leases = [await redlock.lock(f"r{n}").acquire() for n in range(3)]
            ready(*leases)
        asyncio.run(main())
    """,
    "asyncio.run ends, held by a global": """
        redlock = for_asyncio()
        async def main():
            global lease
            lease = await redlock.lock("r").acquire()
            ready(lease)
        asyncio.run(main())
        assert not lease.held
    """,
    "asyncio.run ends with tasks in their blocks": """
        redlock = for_asyncio()
        async def work(n):
            async with redlock.lock(f"r{n % 5}"):
                await asyncio.sleep(1000)
        async def main():
            global tasks
            tasks = [asyncio.create_task(work(n)) for n in range(10)]
            await asyncio.sleep(0.2)
            ready()
        asyncio.run(main())
    """,
    "asyncio.run ends with tasks that take turns": """
        redlock = for_asyncio(retry_delay=(0.001, 0.003))
        async def work(number):
            while True:
                async with redlock.lock("shared"):
                    await (await redlock.lock(f"r{number}").acquire()).release()
        async def main():
            global tasks
            tasks = [asyncio.create_task(work(number)) for number in range(20)]
            await asyncio.sleep(0.1)
            ready()
            await asyncio.sleep(0.02)
        asyncio.run(main())
    """,
    "asyncio closed with await": """
        async def main():
            async with for_asyncio() as redlock:
                lease = await redlock.lock("r").acquire()
                ready(lease)
            assert not lease.held
            assert len(asyncio.all_tasks()) == 1
        asyncio.run(main())
    """,
    "asyncio Redlock is garbage in a running loop": """
        async def main():
            redlock = for_asyncio()
            lease = await redlock.lock("r").acquire()
            ready(lease)
            del redlock, lease
            gc.collect()
            await asyncio.sleep(0.3)
            assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()
        asyncio.run(main())
    """,
    "asyncio, two loops one after the other": """
        redlock = for_asyncio()
        async def main(name):
            async with redlock.lock(name) as lease:
                assert lease.held
            await redlock.lock(name).acquire()
        for number in range(5):
            asyncio.run(main(f"r{number}"))
        ready()
    """,
    "asyncio, four loops at once": """
        redlock = for_asyncio(retry_delay=(0.001, 0.01))
        failures = []
        async def main(name):
            for number in range(50):
                async with redlock.lock("shared" if number % 2 else name, timeout=10) as lease:
                    assert lease.held
            kept = await redlock.lock(name).acquire()
        def work(name):
            try:
                asyncio.run(main(name))
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(f"r{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        ready()
    """,
    "asyncio, loop closed without a word": """
        loop = asyncio.new_event_loop()
        redlock = for_asyncio()
        async def main():
            lease = await redlock.lock("r").acquire()
            await lease.release()
        loop.run_until_complete(main())
        ready()
        loop.run_until_complete(redlock.close())
        loop.close()
    """,
    "blocking beside asyncio": """
        both = blocking()
        async def main():
            redlock = for_asyncio()
            first = await redlock.lock("r1").acquire()
            second = await asyncio.to_thread(both.lock("r2").acquire)
            ready(first, second)
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("program", QUIET_ENDS, ids=lambda name: name.replace(" ", "-"))
def test_quiet_end(nodes: Servers, program: str) -> None:
    """Nothing is left on the nodes, nothing on stderr, status 0, in well under two seconds."""
    ended = run(nodes, QUIET_ENDS[program])
    quiet(ended)
    assert ended.seconds < 2.0, ended
    clean(nodes)


@pytest.mark.parametrize(
    "program",
    ["falls off its end, holding", "asyncio.run ends, holding", "asyncio closed with await"],
    ids=lambda name: name.replace(" ", "-"),
)
def test_end_with_one_node_hung_and_one_dead(nodes: Servers, program: str) -> None:
    """The exit is bounded and quiet, and the hung node processes its commands in order when it
    resumes.
    """
    with started(nodes, QUIET_ENDS[program]) as running:
        nodes[3].kill()
        nodes[4].stop()
        ended = running.go_on()
    quiet(ended)
    assert ended.seconds < 3.0, ended
    nodes[4].cont()
    clean([*nodes[:3], nodes[4]])


@pytest.mark.parametrize(
    "program",
    ["falls off its end, holding", "asyncio.run ends, holding", "asyncio closed with await"],
    ids=lambda name: name.replace(" ", "-"),
)
def test_end_with_all_nodes_hung(nodes: Servers, program: str) -> None:
    with started(nodes, QUIET_ENDS[program]) as running:
        for server in nodes:
            server.stop()
        ended = running.go_on()
    quiet(ended)
    assert ended.seconds < 4.0, ended
    for server in nodes:
        server.cont()
    clean(nodes)


def test_unhandled_exception(nodes: Servers) -> None:
    """Only its traceback is printed."""
    ended = run(
        nodes,
        """
        redlock = blocking()
        kept = redlock.lock("r1").acquire()
        with redlock.lock("r2") as lease:
            ready(kept, lease)
            raise ZeroDivisionError("the program's own")
        """,
    )
    assert ended.status == 1
    assert ended.noise.count("Traceback") == 1
    assert ended.noise.endswith("ZeroDivisionError: the program's own\n")
    clean(nodes)


def test_unhandled_exception_in_asyncio(nodes: Servers) -> None:
    ended = run(
        nodes,
        """
        async def main():
            redlock = for_asyncio()
            kept = await redlock.lock("r1").acquire()
            async with redlock.lock("r2") as lease:
                ready(kept, lease)
                raise ZeroDivisionError("the program's own")
        asyncio.run(main())
        """,
    )
    assert ended.status == 1
    assert ended.noise.count("Traceback") == 1
    assert ended.noise.endswith("ZeroDivisionError: the program's own\n")
    clean(nodes)


INTERRUPTED = {
    "in a block": """
        with blocking().lock("r") as lease:
            ready(lease)
            time.sleep(1000)
    """,
    "waiting for a lock": """
        redlock = blocking()
        lease = redlock.lock("r").acquire()
        ready(lease)
        redlock.lock("r").acquire()
    """,
    "in an asyncio block": """
        async def main():
            async with for_asyncio().lock("r") as lease:
                ready(lease)
                await asyncio.sleep(1000)
        asyncio.run(main())
    """,
    "waiting for an asyncio lock": """
        async def main():
            redlock = for_asyncio()
            lease = await redlock.lock("r").acquire()
            ready(lease)
            await redlock.lock("r").acquire()
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("program", INTERRUPTED, ids=lambda name: name.replace(" ", "-"))
def test_ctrl_c(nodes: Servers, program: str) -> None:
    """The program prints only its traceback, and dies of SIGINT."""
    with started(nodes, INTERRUPTED[program]) as running:
        running.begin()
        time.sleep(0.3)
        running.process.send_signal(signal.SIGINT)
        ended = running.end()
    assert ended.seconds < 2
    assert ended.status == -signal.SIGINT
    assert ended.noise.rstrip().endswith("KeyboardInterrupt"), ended.noise
    assert "Exception ignored" not in ended.noise
    assert "Warning" not in ended.noise
    clean(nodes)


def test_loop_closed_without_close(nodes: Servers) -> None:
    """A loop that cancels no tasks and closes no sockets causes no warnings from quorlock; the ttl
    applies.

    This runs without `-X dev`, which warns of every transport that a closed loop leaves open.
    """
    source = """
        loop = asyncio.new_event_loop()
        redlock = for_asyncio(ttl=1.0)
        async def main():
            global lease
            lease = await redlock.lock("r").acquire()
            ready(lease)
        loop.run_until_complete(main())
        loop.close()
        del lease
        gc.collect()
        del redlock
        gc.collect()
    """
    with started(nodes, source, flags=()) as program:
        quiet(program.go_on())


def test_os_exit(nodes: Servers) -> None:
    """Nothing is promised but that the ttl frees it."""
    ended = run(
        nodes,
        """
        lease = blocking(ttl=1.0).lock("r").acquire()
        ready(lease)
        os._exit(7)
        """,
    )
    quiet(ended, status=7)
    clean(nodes)


# --- in this process -------------------------------------------------------------------------


def threads_of_ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("quorlock")]


def test_garbage_lease(nodes: Servers) -> None:
    with quorlock.Redlock(nodes.urls) as redlock:
        lease = redlock.lock("r").acquire()
        assert nodes[0].keys() == [b"r"]
        del lease
        clean(nodes)
        assert redlock.lock("r").acquire().release()


def test_garbage_lease_in_a_cycle_collected_anywhere(nodes: Servers) -> None:
    """The collector may run inside our own code, in any thread."""
    with quorlock.Redlock(nodes.urls) as redlock:
        before = gc.get_threshold()
        gc.set_threshold(5, 2, 2)
        try:
            for number in range(100):
                cycle: list[object] = [redlock.lock(f"r{number}").acquire()]
                cycle.append(cycle)
                del cycle
        finally:
            gc.set_threshold(*before)
        # While another thread collects, `gc.collect` returns without having collected anything
        # (CPython's Modules/gcmodule.c), so once may be too few.

        def is_collected() -> bool:
            gc.collect()
            return not redlock._session.live

        assert until(is_collected, CLEAN_WITHIN)
        clean(nodes)


def test_garbage_redlock(nodes: Servers) -> None:
    """A collected Redlock releases, disconnects and ends its threads; a lease or a lock keeps it
    alive.
    """
    redlock = quorlock.Redlock(nodes.urls)
    lock = redlock.lock("r")
    lease = lock.acquire()
    del redlock
    gc.collect()
    assert lease.held
    assert lease.release()
    lease = lock.acquire()
    del lock
    gc.collect()
    lease.extend()
    del lease
    gc.collect()
    clean(nodes)


async def drop_a_lease(nodes: Servers) -> None:
    """A dropped lease is soon released by its loop."""
    redlock = quorlock.asyncio.Redlock(nodes.urls)
    lease = await redlock.lock("r").acquire()
    del lease
    gc.collect()
    assert await until_async(lambda: not keys_on(nodes), CLEAN_WITHIN)
    await redlock.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_garbage_lease_in_asyncio(nodes: Servers) -> None:
    asyncio.run(drop_a_lease(nodes))


def test_nothing_is_left_after_close(nodes: Servers) -> None:
    """No thread and no connection is left; later calls raise."""
    nodes[4].kill()
    redlock = quorlock.Redlock(nodes.urls)
    lease = redlock.lock("r").acquire()
    threads = [threading.Thread(target=attempt, args=(redlock,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    redlock.close()
    assert time.monotonic() - began < 2.5
    assert not lease.held
    assert lease.release() is False
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive(), "a waiter is told that it was closed"
    assert until(lambda: not threads_of_ours(), 2), threads_of_ours()
    with pytest.raises(QuorlockError, match="closed"):
        redlock.lock("r").acquire()
    for server in nodes[:4]:
        assert b"name=quorlock" not in server.execute("CLIENT", "LIST")
    clean(nodes[:4])


def attempt(redlock: quorlock.Redlock) -> None:
    with pytest.raises(QuorlockError, match="closed"):
        redlock.lock("r").acquire()


TURNS = 20


def test_closed_while_threads_take_turns(nodes: Servers) -> None:
    """A call that is acquiring or releasing completes or releases: no key stays."""
    for _ in range(TURNS):
        redlock = quorlock.Redlock(nodes.urls, retry_delay=(0.001, 0.003))
        threads = [threading.Thread(target=take_turns, args=(redlock, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        redlock.close()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        clean(nodes)


def take_turns(redlock: quorlock.Redlock, number: int) -> None:
    with contextlib.suppress(Closed):
        while True:
            with telling_closed():
                redlock.lock("shared").acquire().release()
                redlock.lock(f"r{number}").acquire().release()


class Closed(Exception):
    """The Redlock is closed; calls raise this."""


@contextlib.contextmanager
def telling_closed() -> Iterator[None]:
    try:
        yield
    except QuorlockError as error:
        if "closed" not in str(error):
            raise
        raise Closed from error


def test_closed_while_tasks_take_turns(nodes: Servers) -> None:
    async def work(redlock: quorlock.asyncio.Redlock, number: int) -> None:
        with contextlib.suppress(Closed):
            while True:
                with telling_closed():
                    await (await redlock.lock("shared").acquire()).release()
                    await (await redlock.lock(f"r{number}").acquire()).release()

    async def main() -> None:
        redlock = quorlock.asyncio.Redlock(nodes.urls, retry_delay=(0.001, 0.003))
        tasks = [asyncio.create_task(work(redlock, number)) for number in range(20)]
        await asyncio.sleep(0.02)
        await redlock.close()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)

    for _ in range(TURNS):
        asyncio.run(main())
        clean(nodes)


def test_nothing_is_left_after_close_in_asyncio(nodes: Servers) -> None:
    nodes[4].kill()

    async def main() -> None:
        redlock = quorlock.asyncio.Redlock(nodes.urls)
        lease = await redlock.lock("r").acquire()
        waiters = [asyncio.create_task(redlock.lock("r").acquire()) for _ in range(5)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await redlock.close()
        assert time.monotonic() - began < 2.5
        assert not lease.held
        assert await lease.release() is False
        done, waiting = await asyncio.wait(waiters, timeout=5)
        assert not waiting, "a waiter is told that it was closed"
        assert all(isinstance(task.exception(), QuorlockError) for task in done)
        with pytest.raises(QuorlockError, match="closed"):
            await redlock.lock("r").acquire()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    for server in nodes[:4]:
        assert b"name=quorlock" not in server.execute("CLIENT", "LIST")
    clean(nodes[:4])
