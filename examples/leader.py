"""A service of which one process leads. Start it on every host."""

import math
import os
import signal
import time

from quorlock import AcquireStopped, Lease, LeaseLost, NodeError, QuorumUnreachable, Redlock


class Stop:
    """An event without a lock, for signal handlers: a second signal may interrupt the first."""

    requested = False

    def set(self, *_: object) -> None:
        self.requested = True

    def is_set(self) -> bool:
        return self.requested


stop = Stop()


def say(text: str) -> None:
    print(f"{os.getpid()}: {text}", flush=True)


def lead(lease: Lease) -> None:
    while not stop.is_set():
        lease.ensure(margin=0.5)  # LeaseLost unless it leads for half a second more
        say("works")  # stands for one short step of your work
        lease.lost.wait(0.2)  # a pause that a loss ends


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.set)
    with Redlock.from_env() as redlock:
        lock = redlock.lock("leader", ttl=3.0, renew=True, max_hold=math.inf, stop=stop)
        while not stop.is_set():
            try:
                with lock as lease:  # waits as long as another process leads
                    say("leads")
                    lead(lease)
            except LeaseLost as error:
                say(f"leads no longer: {error}")
            except AcquireStopped:
                pass
            except (QuorumUnreachable, NodeError) as error:
                say(f"cannot lead: {error}")
                time.sleep(0.5)
    say("ends")


if __name__ == "__main__":
    main()
