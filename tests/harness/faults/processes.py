"""Faults of a node's process: it stands still, it is gone, it was restarted.

Leaves the life of a server to `quorlock.testing.servers`; keeps what a restarted one reads (its
settings, its append-only file) in the site's own folder.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.faults.fault import PROBE_TTL_MS, SiteFault, await_that, check, probe_key
from tests.harness.faults.site import Site
from tests.harness.support.resp import info, is_silent, what_happens

_LOADED = "DB loaded from"  # what a server's log says when it has read an append-only file
_SETTINGS = "aof.conf"
_EXPOSED = 0.5  # seconds between the fsync that counts and the loss of power


class Sigstop(SiteFault[int]):
    """The process hangs: connections stay, bytes are taken by the kernel, nothing is answered."""

    name = "sigstop"

    def _before(self, site: Site) -> int:
        return site.server.pid

    def _begin(self, site: Site, state: int) -> None:
        site.server.stop()

    def _end(self, site: Site, state: int) -> None:
        pass  # it was revived

    def _proof(self, site: Site, state: int) -> str:
        check(site.server.pid == state, f"{site.server!r} is not the process {state} any more")
        check(site.server.stopped, f"{site.server!r} has threads that are not in state T")
        check(is_silent(site.server.path), f"{site.server!r} answers PING")
        return f"process {state}: every thread in state T, PING unanswered"


class Kill(SiteFault[int]):
    """SIGKILL; the node is away until the end and then comes back empty."""

    name = "kill"
    loses_memory = True

    def _before(self, site: Site) -> int:
        return site.server.pid

    def _begin(self, site: Site, state: int) -> None:
        site.server.kill()

    def _end(self, site: Site, state: int) -> None:
        pass  # it was revived

    def _proof(self, site: Site, state: int) -> str:
        check(site.server.pid == state, f"{site.server!r} is not the process {state} any more")
        check(not site.server.alive, f"{site.server!r} lives")
        answer = what_happens(site.server.path)
        check(answer == "ConnectionRefusedError", f"PING to {site.server!r} came to {answer}")
        return f"process {state} is gone, connecting is refused"


class RestartEmpty(SiteFault[str]):
    """SIGKILL and an immediate start: the node is back after some 50 ms, without its keys."""

    name = "restart-empty"
    loses_memory = True

    def _before(self, site: Site) -> str:
        return run_id(site)

    def _begin(self, site: Site, state: str) -> None:
        site.server.restart()

    def _end(self, site: Site, state: str) -> None:
        pass  # it is as good as new

    def _proof(self, site: Site, state: str) -> str:
        changed = _new_run_id(site, state)
        loaded = info(site.server, "persistence")["rdb_last_load_keys_loaded"]
        check(loaded == "0", f"{site.server!r} has loaded {loaded} keys")
        check(_LOADED not in site.server.log, f"{site.server!r} has read an append-only file")
        return f"{changed}, and nothing was loaded"


@dataclass
class Reading:
    """The start and the result of a restart from the append-only file."""

    run_id: str
    probe_synced: str = field(default_factory=probe_key)  # set before the fsync that counts
    probe_exposed: str = field(default_factory=probe_key)  # set after it
    bytes_lost: int = 0


class RestartFromAof(SiteFault[Reading]):
    """SIGKILL and an immediate start with the keys of the append-only file.

    With `appendfsync always` every acknowledged write is there. `fsync="everysec"` stands for a
    loss of power half a second after the last fsync: SIGKILL alone loses nothing that was written
    to the file, so what was written after that moment is cut off.
    """

    def __init__(self, fsync: str) -> None:
        super().__init__()
        self._fsync = fsync
        self.name = f"restart-aof-{fsync}"
        self.loses_memory = fsync != "always"

    def _before(self, site: Site) -> Reading:
        return Reading(run_id(site))

    def _begin(self, site: Site, state: Reading) -> None:
        self._turn_on(site)
        log = _newest_increment(site)
        site.server.execute("SET", state.probe_synced, "1", "PX", PROBE_TTL_MS)
        # A server may postpone its write while an earlier fsync is under way.
        probe = state.probe_synced.encode()
        await_that(lambda: probe in log.read_bytes(), "the file has what was written so far")
        synced = log.stat().st_size
        site.server.execute("SET", state.probe_exposed, "1", "PX", PROBE_TTL_MS)
        if self.loses_memory:
            time.sleep(_EXPOSED)
        site.server.kill()
        if self.loses_memory:
            state.bytes_lost = log.stat().st_size - synced
            os.truncate(log, synced)
        site.server.restart()

    def _end(self, site: Site, state: Reading) -> None:
        (site.settings / _SETTINGS).unlink(missing_ok=True)
        site.server.execute("DEL", state.probe_synced, state.probe_exposed)
        site.server.execute("CONFIG", "SET", "appendonly", "no")
        site.server.execute("CONFIG", "SET", "appendfsync", "everysec")
        shutil.rmtree(site.home / "appendonlydir", ignore_errors=True)

    def _proof(self, site: Site, state: Reading) -> str:
        changed = _new_run_id(site, state.run_id)
        check(info(site.server, "persistence")["aof_enabled"] == "1", "no append-only file is on")
        check(_LOADED in site.server.log, f"{site.server!r} has not read its append-only file")
        probes = (state.probe_synced, state.probe_exposed)
        kept = [bool(site.server.execute("EXISTS", probe)) for probe in probes]
        check(kept == [True, not self.loses_memory], f"of the keys {probes} it kept {kept}")
        lost = f"the last {state.bytes_lost} bytes of it" if self.loses_memory else "none of it"
        return f"{changed}, its append-only file was read, {lost} lost"

    def _turn_on(self, site: Site) -> None:
        settings = f"appendonly yes\nappendfsync {self._fsync}\n"
        (site.settings / _SETTINGS).write_text(settings)
        site.server.execute("CONFIG", "SET", "appendfsync", self._fsync)
        site.server.execute("CONFIG", "SET", "appendonly", "yes")
        # Until its first rewrite has ended, the file does not hold the keys of before.
        await_that(lambda: _is_complete(site), "the append-only file holds everything")


def run_id(site: Site) -> str:
    """Return the run_id, which changes with a restart."""
    return info(site.server, "server")["run_id"]


def _new_run_id(site: Site, old: str) -> str:
    new = run_id(site)
    check(new != old, f"{site.server!r} still has the run_id {old}")
    return f"run_id {old[:6]} became {new[:6]}"


def _is_complete(site: Site) -> bool:
    now = info(site.server, "persistence")
    busy = (now["aof_rewrite_in_progress"], now["aof_rewrite_scheduled"])
    return (
        now["aof_enabled"] == "1"
        and busy == ("0", "0")
        and now["aof_last_bgrewrite_status"] == "ok"
    )


def _newest_increment(site: Site) -> Path:
    """The file that writes go to now: names end in `.NUMBER.incr.aof`."""
    found = (site.home / "appendonlydir").glob("*.incr.aof")
    return max(found, key=lambda path: int(re.findall(r"\.(\d+)\.incr", path.name)[0]))
