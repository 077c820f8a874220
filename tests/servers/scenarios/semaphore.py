"""Contention for permits on five real nodes, of which one at a time is stopped or killed.

    python -m tests.servers.scenarios.semaphore [--seconds 60] [--control]

Four processes with three threads each take one of three permits.  The witness needs no node: every
process writes down when it held which permit, by a clock that all processes of a machine share.
No two such times of one permit may overlap, and no four of any.

With --control the permits are counted: each node admits three, and a holder needs a quorum of
nodes.  The witness must find more than three holders then, without any fault.
"""

from __future__ import annotations

import random
import secrets
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import redis

from quorlock import Redlock, now
from tests.servers.scenarios.witness import (
    PATIENCE,
    SETTINGS,
    Held,
    observe,
    parser,
    turns,
    work,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock import Lease

PERMITS = 3
# The control: what a node does that counts.
ADMIT = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return 1
"""


class Report(NamedTuple):
    """The result of a run."""

    held: list[Held]
    most: int  # how many held one at the same time
    too_many: int  # how often one more than there are permits began
    twice: int  # how often a permit was given that was held
    stops: int
    kills: int
    left: dict[str, list[bytes]]

    def __str__(self) -> str:
        return (
            f"{len(self.held):,} grants of {PERMITS} permits, at most {self.most} at once,"
            f" {self.too_many} too many, {self.twice} twice, {self.stops} stops, {self.kills}"
            f" kills, {len(self.left)} nodes with keys"
        )


def run(seconds: float, *, control: bool = False, faults: bool = True) -> Report:
    """Run the processes and the faults; return what the witness has seen."""
    seen = observe("semaphore", seconds, control=control, faults=faults)
    return witness(seen.held)._replace(stops=seen.stops, kills=seen.kills, left=seen.left)


def witness(held: list[Held]) -> Report:
    """Return how many held a permit at once, and how often one was held twice."""
    most = too_many = twice = 0
    inside: list[Held] = []
    for one in sorted(held):
        inside = [other for other in inside if one.begin < other.end]
        twice += any(other.resources == one.resources for other in inside)
        inside.append(one)
        most = max(most, len(inside))
        too_many += len(inside) > PERMITS
    return Report(held, most, too_many, twice, 0, 0, {})


# --- a process ------------------------------------------------------------------------------------


def take_permits(redlock: Redlock, _: list[str], until: float) -> Iterator[Held]:
    """Take permits until the time is up; yield when each was held."""
    semaphore = redlock.semaphore("pool", PERMITS, timeout=PATIENCE)

    def acquire() -> tuple[Lease, tuple[str, ...]]:
        lease = semaphore.acquire()
        assert lease.resource == f"pool#{lease.permit}"
        return lease, (lease.resource,)

    return turns(acquire, until)


def count_permits(_: Redlock, urls: list[str], until: float) -> Iterator[Held]:
    """Take permits that the nodes count; without faults, every node replies."""
    entropy = random.Random()
    clients = [redis.Redis.from_url(url) for url in urls]
    scripts = [client.register_script(ADMIT) for client in clients]
    while now() < until:
        token, at = secrets.token_hex(8), now()
        nodes = entropy.sample(range(len(urls)), len(urls))
        numbers = [token, at, at + SETTINGS["ttl"], PERMITS]
        granted = sum(scripts[node](keys=["pool"], args=numbers) for node in nodes)
        begin = now()
        if granted > len(urls) // 2:
            time.sleep(entropy.uniform(0, 0.01))
            yield Held(begin, now(), (token,), "")
        for client in clients:
            client.zrem("pool", token)
        time.sleep(entropy.uniform(0, 0.005))


def main() -> int:
    """Run as a program: the whole, or one process of it."""
    given = parser().parse_args()
    if given.worker:
        work(given, count_permits if given.control else take_permits)
        return 0
    report = run(given.seconds, control=given.control, faults=not given.control)
    print(report)
    return bool(report.too_many or report.twice or report.left)


if __name__ == "__main__":
    sys.exit(main())
