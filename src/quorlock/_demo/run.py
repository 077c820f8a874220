"""Run the scenario: servers, workers, faults, display and, at the end, the check."""

from __future__ import annotations

import time
from pathlib import Path

from quorlock._demo.checker import CheckResult, check_log
from quorlock._demo.counter import Counter
from quorlock._demo.scenario import TTL, Act, DemoSettings, DemoStep, FaultHistory, schedule
from quorlock._demo.screen import DemoScreen
from quorlock._demo.workers import Workers
from quorlock.testing.servers import Server, Servers

PASS, FAIL = 0, 1
_BEAT = 0.03  # seconds between two checks of the clock
_READY_TIMEOUT = 30.0


def run(settings: DemoSettings) -> int:
    """Run the demo and return the exit status. Raise ServersUnavailable."""
    screen = DemoScreen(settings)
    try:
        with Servers(settings.nodes) as servers, screen:
            seconds, workers, faults, result = DemoRun(settings, servers, screen).play()
    except KeyboardInterrupt:
        screen.say("interrupted: workers and servers are ended, nothing is left behind")
        raise
    screen.conclude(seconds, workers, faults, result)
    return verdict(settings, workers, result, screen)


class DemoRun:
    """One execution of the scenario."""

    def __init__(self, settings: DemoSettings, servers: Servers, screen: DemoScreen) -> None:
        self._settings = settings
        self._servers = servers
        self._screen = screen
        self._faults = FaultHistory(settings)
        # In the servers' folder, which is removed when this process ends, even by kill -9.
        self._folder = Path(servers.folder, "demo")
        self._folder.mkdir()
        self._log = str(self._folder / "log")
        self._counter = str(self._folder / "counter")
        self._started = time.monotonic()

    def play(self) -> tuple[float, Workers, FaultHistory, CheckResult]:
        """Run from the first turn to the last, and check the result."""
        Path(self._log).touch()
        Counter.create(self._counter)
        urls = self._servers.urls if self._settings.locking else ()
        with Workers(self._settings.workers, len(urls), str(self._folder), urls) as workers:
            self._gather(workers)
            seconds = self._perform(workers)
            # Pending releases at dead nodes take a second.
            workers.stop(lambda: self._look(workers))
        return seconds, workers, self._faults, check_log(self._log, self._counter)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started

    def _gather(self, workers: Workers) -> None:
        """Wait until all workers are ready."""
        self._screen.say(opening(self._settings))
        waited_for = len(workers.members)
        while workers.ready < waited_for and workers.complete and self._now < _READY_TIMEOUT:
            workers.listen(_BEAT)
            self._screen.gather(workers.ready)

    def _perform(self, workers: Workers) -> float:
        steps = list(schedule(self._settings))
        self._started = time.monotonic()
        workers.start()
        self._screen.report(0.0, f"{self._settings.workers} workers begin, all nodes are up")
        while workers.complete and (steps or self._now < self._settings.seconds):
            if steps and self._faults.is_due(steps[0], self._now):
                self._act(steps.pop(0))
            workers.listen(_BEAT)
            self._look(workers)
        return self._now

    def _look(self, workers: Workers) -> None:
        self._screen.show(self._now, workers, self._faults)

    def _act(self, step: DemoStep) -> None:
        for node in step.nodes:
            _ACTS[step.act](self._servers[node])
        bad = step.act in (Act.KILL, Act.STOP)
        self._screen.report(
            self._now, self._faults.record(step, self._now), "yellow" if bad else "green"
        )


_ACTS = {
    Act.KILL: Server.kill,
    Act.RESTART: Server.restart,
    Act.STOP: Server.stop,
    Act.CONT: Server.cont,
}


def opening(settings: DemoSettings) -> str:
    work = f"{settings.workers} processes add to one counter file that is not atomic"
    log = "An independent log records every critical section and is checked at the end."
    if not settings.locking:
        return f"{work}, without a lock.\n{log}"
    nodes = f"{settings.nodes} local servers" if settings.nodes > 1 else "one local server"
    lock = f"each time under a lock on {nodes} (quorum {settings.quorum}, ttl {TTL:g} s)."
    spared = "" if settings.spare else " None can be spared, so nothing happens to them."
    return f"{work}, {lock}{spared}\n{log}"


_NEXT = """\
The same without the lock: quorlock demo --no-lock
A lock of your own:        quorlock run demo --nodes local -- echo mine"""


def verdict(
    settings: DemoSettings, workers: Workers, result: CheckResult, screen: DemoScreen
) -> int:
    """Print the verdict and return its exit status."""
    if not settings.locking:
        return _contrast(result, screen)
    if result.passed and not workers.died:
        screen.say("PASS: no addition lost, no two workers inside at the same time.", "bold green")
        screen.say(_NEXT)
        return PASS
    screen.say(f"FAIL: {complaint(workers, result)}.", "bold red")
    return FAIL


def _contrast(result: CheckResult, screen: DemoScreen) -> int:
    lost, made, met = result.lost, result.additions, result.overlaps
    if lost > 0 and met > 0:
        text = f"Without the lock {lost:,} of {made:,} additions are lost ({lost / made:.0%})."
        screen.say(f"{text} With it: none.", "bold yellow")
        screen.say("The same with the lock: quorlock demo")
        return PASS
    screen.say("No contrast: nothing was lost this time; try more --workers.", "bold red")
    return FAIL


def complaint(workers: Workers, result: CheckResult) -> str:
    counts = {
        "additions lost": result.lost,
        "overlaps": result.overlaps,
        "unfinished additions": result.unfinished,
        "unreadable lines in the log": result.unreadable,
        "workers died": workers.died,
    }
    words = [f"{count:,} {what}" for what, count in counts.items() if count]
    return ", ".join(words) or "nothing was added"
