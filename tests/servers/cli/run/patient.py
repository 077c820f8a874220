"""A command that ends only by a signal. Writes what happens to it to the file `log`, as lines:

    begun PID GRANDCHILD    it has started another, which ignores all that it can and waits for ever
    alive TIME              every few milliseconds, in seconds of quorlock.now()
    got N TIME              signal N
    end TIME                it ends, because its argument says so

Its argument: "obey", end when a signal has come; a number of seconds, end after them; else neither.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from quorlock import now

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main(does: str) -> None:
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    got: list[int] = []

    def note(number: int, _: object) -> None:
        got.append(number)
        os.write(log, f"got {number} {now():.6f}\n".encode())

    signals = [
        number
        for number in (getattr(signal, name) for name in SIGNALS)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in signals:
        signal.signal(number, signal.SIG_IGN)  # before the fork: never is one noted by both
    grandchild = os.fork()
    if grandchild == 0:
        while True:
            time.sleep(3600)
    for number in signals:
        signal.signal(number, note)
    os.write(log, f"begun {os.getpid()} {grandchild}\n".encode())
    until = now() + float(does) if does.replace(".", "").isdigit() else float("inf")
    while now() < until and not (got and does == "obey"):
        os.write(log, f"alive {now():.6f}\n".encode())
        time.sleep(0.002)
    os.kill(grandchild, signal.SIGKILL)
    os.waitpid(grandchild, 0)
    os.write(log, f"end {now():.6f}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
