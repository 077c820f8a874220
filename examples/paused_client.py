"""The paused client: a late write that lands, and the same one refused by its fence.

    python examples/paused_client.py
    python examples/paused_client.py --no-fencing

The scenario is from Martin Kleppmann's "How to do distributed locking": two clients add a line to a
shared document under the same lock. Client 1 reads the document and sees that its lease is held.
Then SIGSTOP pauses its process until the lease has expired and client 2 has written. When client 1
resumes, it writes. Without fencing it overwrites the document with the old text, and the line of
client 2 is lost. With fencing the document refuses the write and client 1 starts again.

The example starts three local nodes (`pip install quorlock[demo]`); --nodes takes others.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing

from quorlock import LeaseLost, Redlock, StaleFence
from quorlock.fencing import FenceTable
from quorlock.testing.servers import Servers

TTL = 1.0  # seconds: how long the audience waits for client 1's lease to run out
FENCES = FenceTable(sqlite3.paramstyle)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--no-fencing", dest="fencing", action="store_false")
    parser.add_argument("--nodes", nargs="+", metavar="URL")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--document", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        add_line(arguments.client, arguments.nodes, arguments.document, fencing=arguments.fencing)
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        nodes = arguments.nodes or stack.enter_context(Servers(3)).urls
        run_scenario(nodes, f"{folder}/document.sqlite", fencing=arguments.fencing)


# --- the parent process ---------------------------------------------------------------------


def run_scenario(nodes: list[str], document: str, *, fencing: bool) -> None:
    with closing(sqlite3.connect(document)) as storage, storage:
        FENCES.create(storage)
        storage.execute("CREATE TABLE document (text TEXT)")
        storage.execute("INSERT INTO document VALUES ('')")

    first = start("client 1", nodes, document, fencing=fencing)
    try:
        os.waitpid(first.pid, os.WUNTRACED)  # until it has sent itself SIGSTOP
        say("the world", "client 1 is paused; its lease expires")
        start("client 2", nodes, document, fencing=fencing).wait()
        say("the world", "client 1 resumes")
    finally:
        first.send_signal(signal.SIGCONT)
        first.wait()

    with closing(sqlite3.connect(document)) as storage:
        text = read(storage)
    lost = [name for name in ("client 1", "client 2") if name not in text]
    say(
        "the document",
        f"{text!r}: " + (f"the line of {lost[0]} is lost" if lost else "both lines are there"),
    )


def start(name: str, nodes: list[str], document: str, *, fencing: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--client", name, "--document", document]
    command += [] if fencing else ["--no-fencing"]
    return subprocess.Popen([*command, "--nodes", *nodes])


def say(who: str, what: str) -> None:
    print(f"{who + ':':<14}{what}", flush=True)


# --- a client, in a separate process ---------------------------------------------------------


def add_line(name: str, nodes: list[str], document: str, *, fencing: bool) -> None:
    """Read the document, add a line and write it back under the lock; retry until it succeeds."""
    pause = name == "client 1"
    with Redlock(nodes) as redlock, closing(sqlite3.connect(document)) as storage:
        lock = redlock.lock("document", ttl=TTL, timeout=30 * TTL, fencing=fencing)
        while True:
            try:
                with lock as lease:
                    if fencing:
                        with storage:
                            FENCES.claim(storage, "document", lease.fence)
                    text = read(storage)
                    say(name, f"has the lock, reads {text!r}")
                    lease.ensure()
                    if pause:
                        pause = False
                        os.kill(os.getpid(), signal.SIGSTOP)
                        say(name, f"writes without checking again (held is {lease.held})")
                    write(storage, f"{text}{name}\n", lease.fence)
                    say(name, "has written")
            except StaleFence as error:
                say(name, f"StaleFence: {error}")
            except LeaseLost as error:
                say(name, f"LeaseLost, but it has written: {error}")
                return
            else:
                return


def read(storage: sqlite3.Connection) -> str:
    ((text,),) = storage.execute("SELECT text FROM document")
    return str(text)


def write(storage: sqlite3.Connection, text: str, fence: int | None) -> None:
    with storage:  # one transaction
        if fence is not None:
            FENCES.claim(storage, "document", fence)
        storage.execute("UPDATE document SET text = ?", (text,))


if __name__ == "__main__":
    main()
