"""Faults by command: a server pauses, sleeps, forgets, is full, or becomes a replica.

Owns the commands and the settings that are put back after; leaves the process to `processes`, the
connections to `network`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from quorlock.testing.servers import ServerReplyError
from tests.harness.faults.fault import PROBE_TTL_MS, SiteFault, await_that, check, probe_key
from tests.harness.faults.site import PASSWORD, USER, Site
from tests.harness.support.resp import Talk, info, is_silent

_SLACK = 10.0  # seconds that a server may wake later than it said
_BALLAST_BYTES = 1024
_BALLAST_MAX = 4096  # keys; some 5 MB
_PROBES = 20


class ClientPause(SiteFault[float]):
    """`CLIENT PAUSE … ALL`: no command of anybody is served for `seconds`; then all are, late.

    It cannot be ended early: CLIENT UNPAUSE would have to wait like all others. `end()` waits.
    """

    name = "client-pause"

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__()
        self._seconds = seconds

    def _before(self, site: Site) -> float:
        return time.monotonic() + self._seconds

    def _begin(self, site: Site, state: float) -> None:
        site.server.execute("CLIENT", "PAUSE", round(self._seconds * 1000), "ALL")

    def _end(self, site: Site, state: float) -> None:
        site.server.execute("PING", timeout=self._seconds + _SLACK)

    def _proof(self, site: Site, state: float) -> str:
        check(not site.server.stopped, f"{site.server!r} does not pause, it was stopped")
        check(is_silent(site.server.path), f"{site.server!r} answers PING")
        left = state - time.monotonic()
        return f"PING unanswered by a process that runs, {left:.2f} s of the pause left"


class PausedWrites(SiteFault[None]):
    """`CLIENT PAUSE … WRITE`: reading is served; writing waits for the end, and so do scripts."""

    name = "paused-writes"

    def _before(self, site: Site) -> None:
        return None

    def _begin(self, site: Site, state: None) -> None:
        site.server.execute("CLIENT", "PAUSE", 3_600_000, "WRITE")

    def _end(self, site: Site, state: None) -> None:
        site.server.execute("CLIENT", "UNPAUSE")

    def _proof(self, site: Site, state: None) -> str:
        site.server.execute("GET", "faults:probe")
        silent = is_silent(site.server.path, "DEL", "faults:probe")
        check(silent, f"{site.server!r} serves DEL")
        return "GET answered, DEL not"


class DebugSleep(SiteFault[list[Talk]]):
    """`DEBUG SLEEP`: the server's only thread that serves sleeps for `seconds`. `end()` waits."""

    name = "debug-sleep"

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__()
        self._seconds = seconds

    def _before(self, site: Site) -> list[Talk]:
        return []

    def _begin(self, site: Site, state: list[Talk]) -> None:
        talk = Talk(site.server.path, timeout=self._seconds + _SLACK)
        state.append(talk)
        talk.ask("PING")  # from here on the server knows us, and serves us before any newcomer
        talk.send("DEBUG", "SLEEP", self._seconds)

    def _end(self, site: Site, state: list[Talk]) -> None:
        while state:
            state.pop().close()
        site.server.execute("PING", timeout=self._seconds + _SLACK)

    def _proof(self, site: Site, state: list[Talk]) -> str:
        check(not site.server.stopped, f"{site.server!r} does not sleep, it was stopped")
        check(is_silent(site.server.path), f"{site.server!r} answers PING")
        return f"PING unanswered by a process that runs and was sent DEBUG SLEEP {self._seconds}"


class ScriptFlush(SiteFault[list[str]]):
    """`SCRIPT FLUSH`: the server knows no script any more, until clients bring theirs again."""

    name = "script-flush"

    def _before(self, site: Site) -> list[str]:
        return []

    def _begin(self, site: Site, state: list[str]) -> None:
        sha: bytes = site.server.execute("SCRIPT", "LOAD", f"return '{probe_key()}'")
        state.append(sha.decode())
        check(site.server.execute("SCRIPT", "EXISTS", sha) == [1], "SCRIPT LOAD did nothing")
        site.server.execute("SCRIPT", "FLUSH")

    def _end(self, site: Site, state: list[str]) -> None:
        pass  # clients load what they need

    def _proof(self, site: Site, state: list[str]) -> str:
        check(state, "no script was there to be flushed")
        known = site.server.execute("SCRIPT", "EXISTS", *state)
        check(known == [0], f"{site.server!r} still knows the script {state}")
        return f"the script {state[0][:6]}, loaded before the flush, is not known any more"


@dataclass
class Emptied:
    """A key that was there before the flush, and how many there were."""

    probe: str
    keys: int = 0


class FlushAll(SiteFault[Emptied]):
    """`FLUSHALL`: all keys are gone, connections and run_id stay."""

    name = "flushall"
    loses_memory = True

    def _before(self, site: Site) -> Emptied:
        return Emptied(probe_key())

    def _begin(self, site: Site, state: Emptied) -> None:
        site.server.execute("SET", state.probe, "1", "PX", PROBE_TTL_MS)
        state.keys = site.server.execute("DBSIZE")
        site.server.execute("FLUSHALL")

    def _end(self, site: Site, state: Emptied) -> None:
        pass  # nothing brings them back

    def _proof(self, site: Site, state: Emptied) -> str:
        there = site.server.execute("EXISTS", state.probe)
        check(state.keys > 0 and not there, f"{state.probe} is still on {site.server!r}")
        return f"{state.keys} keys were flushed, one set a moment before among them"


@dataclass
class Full:
    """The settings of before, and what was done to fill the memory."""

    settings: dict[str, str]
    evicted_before: int
    probes: list[str]
    ballast: str = field(default_factory=probe_key)


class Eviction(SiteFault[Full]):
    """`maxmemory` is reached and keys that expire soon are evicted first: locks. A cache that
    shares the node does it: here ballast that expires in an hour fills the memory, and from then on
    each new lock drives out another.
    """

    name = "eviction"
    loses_memory = True

    def _before(self, site: Site) -> Full:
        settings = _settings(site, "maxmemory", "maxmemory-policy", "maxmemory-samples")
        return Full(settings, _evicted(site), [probe_key() for _ in range(_PROBES)])

    def _begin(self, site: Site, state: Full) -> None:
        for probe in state.probes:
            site.server.execute("SET", probe, "1", "PX", PROBE_TTL_MS)
        used = int(info(site.server, "memory")["used_memory"])
        limit = {"maxmemory": str(used + _BALLAST_MAX * _BALLAST_BYTES // 4)}
        # The more samples, the surer is it that the first to expire is the first to go.
        _set(site, {"maxmemory-policy": "volatile-ttl", "maxmemory-samples": "64"} | limit)
        self._fill(site, state)

    def _end(self, site: Site, state: Full) -> None:
        _set(site, state.settings)
        with Talk(site.server.path) as talk:
            for number in range(_BALLAST_MAX):
                talk.send("UNLINK", f"{state.ballast}:{number}")
            for _ in range(_BALLAST_MAX):
                talk.read()
            talk.ask("DEL", *state.probes)

    def _proof(self, site: Site, state: Full) -> str:
        evicted = _evicted(site) - state.evicted_before
        gone = _PROBES - site.server.execute("EXISTS", *state.probes)
        check(evicted > 0, f"{site.server!r} has evicted nothing")
        check(gone > 0, f"of {_PROBES} keys that expire within the minute none was evicted")
        return f"{evicted} keys evicted, {gone} of {_PROBES} like locks among them"

    def _fill(self, site: Site, state: Full) -> None:
        value = "x" * _BALLAST_BYTES
        with Talk(site.server.path) as talk:
            for number in range(_BALLAST_MAX):
                reply = talk.ask("SET", f"{state.ballast}:{number}", value, "EX", 3600)
                check(reply == b"OK", f"ballast was answered {reply!r}")
                if number % 16 == 0 and not talk.ask("EXISTS", *state.probes):
                    return
        raise TimeoutError(f"{_BALLAST_MAX} KB of ballast did not fill {site.server!r}")


class OutOfMemory(SiteFault[dict[str, str]]):
    """`maxmemory` is reached and nothing may be evicted: SET is refused, DEL and PEXPIRE work."""

    name = "oom"

    def _before(self, site: Site) -> dict[str, str]:
        return _settings(site, "maxmemory", "maxmemory-policy")

    def _begin(self, site: Site, state: dict[str, str]) -> None:
        _set(site, {"maxmemory-policy": "noeviction", "maxmemory": "1"})

    def _end(self, site: Site, state: dict[str, str]) -> None:
        _set(site, state)

    def _proof(self, site: Site, state: dict[str, str]) -> str:
        return _refusal(site, "OOM")


class Demoted(SiteFault[None]):
    """The node obeys a master that is not there: it serves what it has and takes no write. Promoted
    again at the end, with its keys.
    """

    name = "demoted"

    def _before(self, site: Site) -> None:
        return None

    def _begin(self, site: Site, state: None) -> None:
        # Port 1: no server listens there.
        site.server.execute("REPLICAOF", "127.0.0.1", 1)

    def _end(self, site: Site, state: None) -> None:
        site.server.execute("REPLICAOF", "NO", "ONE")

    def _proof(self, site: Site, state: None) -> str:
        role = info(site.server, "replication")["role"]
        check(role == "slave", f"{site.server!r} is a {role}")
        return f"INFO says role:slave; {_refusal(site, 'READONLY')}"


class Replica(SiteFault[str]):
    """The node becomes a read-only replica of another server, and is promoted again at the end. Its
    keys are then the other's: those that it had are gone, as after a failover to a replica that
    lagged. Connections and run_id stay.
    """

    name = "replica"
    loses_memory = True

    def _before(self, site: Site) -> str:
        return probe_key()

    def _begin(self, site: Site, state: str) -> None:
        site.spare.execute("SET", state, "1", "PX", PROBE_TTL_MS)
        site.server.execute("REPLICAOF", "127.0.0.1", site.spare.port)
        await_that(lambda: _is_linked(site), f"{site.server!r} has its master's keys")

    def _end(self, site: Site, state: str) -> None:
        site.server.execute("REPLICAOF", "NO", "ONE")
        site.server.execute("DEL", state)
        site.spare.execute("DEL", state)

    def _proof(self, site: Site, state: str) -> str:
        check(_is_linked(site), f"{site.server!r} is no replica, or not linked to its master")
        check(site.server.execute("EXISTS", state), "the master's key did not come over")
        return f"a linked replica with its master's key; {_refusal(site, 'READONLY')}"


class WrongAcl(SiteFault[None]):
    """The clients' user loses a right, on open connections too, and gets it back at the end."""

    def __init__(self, name: str, take: str, give_back: str) -> None:
        super().__init__()
        self.name = name
        self._take = take
        self._give_back = give_back

    def _before(self, site: Site) -> None:
        return None

    def _begin(self, site: Site, state: None) -> None:
        site.server.execute("ACL", "SETUSER", USER, self._take)

    def _end(self, site: Site, state: None) -> None:
        site.server.execute("ACL", "SETUSER", USER, self._give_back)

    def _proof(self, site: Site, state: None) -> str:
        with Talk(site.server.path) as talk:
            talk.ask("AUTH", USER, PASSWORD)
            reply = talk.ask("SET", probe_key(), "1", "PX", 1)
        check("NOPERM" in repr(reply), f"SET as {USER} was answered {reply!r}")
        return f"SET as {USER}: {reply}"


def _settings(site: Site, *names: str) -> dict[str, str]:
    replies = {name: site.server.execute("CONFIG", "GET", name) for name in names}
    return {name: value.decode() for name, (_, value) in replies.items()}


def _set(site: Site, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        site.server.execute("CONFIG", "SET", name, value)


def _evicted(site: Site) -> int:
    return int(info(site.server, "stats")["evicted_keys"])


def _refusal(site: Site, code: str) -> str:
    """The error that a SET is answered, which must be of this code."""
    try:
        site.server.execute("SET", probe_key(), "1", "PX", 1)
    except ServerReplyError as error:
        check(error.code == code, f"SET was answered {error}")
        return f"SET is answered {error}"
    raise AssertionError(f"{site.server!r} took a SET")


def _is_linked(site: Site) -> bool:
    return info(site.server, "replication").get("master_link_status") == "up"
