"""Brings the scenario on the stage: servers, workers, faults, screen and, in the end, the judge.

Ctrl-C is a wish that is looked at between two steps, never an exception in the middle of one:
nothing is left half-done and nobody prints a traceback. A second Ctrl-C is an exception.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorlock.demo.counter import Counter
from quorlock.demo.crew import Crew
from quorlock.demo.scenario import TTL, Act, Fates, Settings, Step, plot
from quorlock.demo.screen import Screen
from quorlock.demo.witness import Judgement, Log, judge
from quorlock.testing.servers import Server, Servers

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

CONTENT, NOT_CONTENT = 0, 1
_BEAT = 0.03  # seconds between two looks at the clock
_READY_TIMEOUT = 30.0


class Interrupted(Exception):
    """Somebody wants us to end, by Ctrl-C or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def run(settings: Settings) -> int:
    """Play it; returns the exit status. Raises ServersUnavailable."""
    screen = Screen(settings)
    try:
        with wishes() as wished, Servers(settings.nodes) as servers, screen:
            show = Show(settings, servers, screen, wished)
            seconds, crew, fates, judgement = show.play()
    except Interrupted as error:
        screen.say("interrupted: workers and servers are ended, nothing is left behind")
        return error.status
    screen.conclude(seconds, crew, fates, judgement)
    return verdict(settings, crew, judgement, screen)


@contextmanager
def wishes() -> Generator[list[int]]:
    """Numbers of the signals that wish us to end, as they come in."""
    wished: list[int] = []

    def wish(number: int, _: FrameType | None) -> None:
        if wished and number == signal.SIGINT:
            raise KeyboardInterrupt
        wished.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, wish) for number in numbers}
    try:
        yield wished
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Show:
    """One performance."""

    def __init__(
        self, settings: Settings, servers: Servers, screen: Screen, wished: list[int]
    ) -> None:
        self._settings = settings
        self._servers = servers
        self._screen = screen
        self._wished = wished
        self._fates = Fates(settings)
        # In the servers' folder, which goes when we do, even by kill -9.
        self._folder = Path(servers.folder, "demo")
        self._folder.mkdir()
        self._log = str(self._folder / "log")
        self._counter = str(self._folder / "counter")
        self._started = time.monotonic()

    def play(self) -> tuple[float, Crew, Fates, Judgement]:
        """From the first turn to the last, and what the witness says."""
        Log.create(self._log)
        Counter.create(self._counter)
        urls = self._servers.urls if self._settings.locking else ()
        with Crew(self._settings.workers, len(urls), str(self._folder), urls) as crew:
            self._gather(crew)
            seconds = self._perform(crew)
            crew.stop(lambda: self._look(crew))  # it takes a second to pay what is owed to the dead
        return seconds, crew, self._fates, judge(self._log, self._counter)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started

    def _gather(self, crew: Crew) -> None:
        """Wait until all workers stand ready."""
        self._screen.say(opening(self._settings))
        waited_for = len(crew.members)
        while crew.ready < waited_for and crew.complete and self._now < _READY_TIMEOUT:
            crew.listen(_BEAT)
            self._heed()
            self._screen.gather(crew.ready)

    def _perform(self, crew: Crew) -> float:
        steps = list(plot(self._settings))
        self._started = time.monotonic()
        crew.go()
        self._screen.tell(0.0, f"{self._settings.workers} workers begin, all nodes are up")
        while crew.complete and (steps or self._now < self._settings.seconds):
            if steps and self._fates.may(steps[0], self._now):
                self._act(steps.pop(0))
            crew.listen(_BEAT)
            self._look(crew)
        return self._now

    def _heed(self) -> None:
        if self._wished:
            raise Interrupted(self._wished[0])

    def _look(self, crew: Crew) -> None:
        self._heed()
        self._screen.show(self._now, crew, self._fates)

    def _act(self, step: Step) -> None:
        for node in step.nodes:
            _ACTS[step.act](self._servers[node])
        bad = step.act in (Act.KILL, Act.STOP)
        self._screen.tell(
            self._now, self._fates.record(step, self._now), "yellow" if bad else "green"
        )


_ACTS = {
    Act.KILL: Server.kill,
    Act.RESTART: Server.restart,
    Act.STOP: Server.stop,
    Act.CONT: Server.cont,
}


def opening(settings: Settings) -> str:
    """What will be seen."""
    work = f"{settings.workers} processes add to one counter file that is not atomic"
    witness = "A witness logs who is inside and when, and reads the counter in the end."
    if not settings.locking:
        return f"{work}, without a lock.\n{witness}"
    nodes = f"{settings.nodes} local servers" if settings.nodes > 1 else "one local server"
    lock = f"each time under a lock on {nodes} (quorum {settings.quorum}, ttl {TTL:g} s)."
    spared = "" if settings.spare else " None can be spared, so nothing happens to them."
    return f"{work}, {lock}{spared}\n{witness}"


_NEXT = """\
The same without the lock: quorlock demo --no-lock
A lock of your own:        quorlock run demo --nodes local -- echo mine"""


def verdict(settings: Settings, crew: Crew, judgement: Judgement, screen: Screen) -> int:
    """The last words, and the exit status that goes with them."""
    if not settings.locking:
        return _contrast(judgement, screen)
    if judgement.content and not crew.died:
        screen.say("The witness is content: no addition lost, nobody met inside.", "bold green")
        screen.say(_NEXT)
        return CONTENT
    screen.say(f"The witness is NOT content: {complaint(crew, judgement)}.", "bold red")
    return NOT_CONTENT


def _contrast(judgement: Judgement, screen: Screen) -> int:
    lost, made, met = judgement.lost, judgement.additions, judgement.overlaps
    if lost > 0 and met > 0:
        text = f"Without the lock {lost:,} of {made:,} additions are lost ({lost / made:.0%})."
        screen.say(f"{text} With it: none.", "bold yellow")
        screen.say("The same with the lock: quorlock demo")
        return CONTENT
    screen.say("No contrast: nothing was lost this time; try more --workers.", "bold red")
    return NOT_CONTENT


def complaint(crew: Crew, judgement: Judgement) -> str:
    """All that is wrong, in words."""
    counts = {
        "additions lost": judgement.lost,
        "overlaps": judgement.overlaps,
        "unfinished additions": judgement.unfinished,
        "unreadable lines in its log": judgement.unreadable,
        "workers died": crew.died,
    }
    words = [f"{count:,} {what}" for what, count in counts.items() if count]
    return ", ".join(words) or "nothing was added"
