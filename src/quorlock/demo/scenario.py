"""What happens when: the settings of a demo and the faults of its nodes. Pure; `run` acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# One ttl for all, and no client uses a longer one: max_ttl. Short, because a node that comes back
# empty does not vote before every lease it had granted has ended: the clients' restart guard.
TTL = 2.0
RESTART_DELAY = 0.3
# Clients look for a node that is down once a second at the latest, and then keep it out for
# max_ttl and the drift. Until all of them let it vote, no other may go: a majority would be out.
REJOIN_DELAY = 1.3 + 1.05 * TTL


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    locking: bool
    seconds: float
    workers: int
    nodes: int
    killing: bool
    stopping: bool

    @classmethod
    def of(
        cls,
        *,
        locking: bool,
        seconds: float | None,
        workers: int,
        nodes: int,
        killing: bool,
        stopping: bool,
    ) -> Settings:
        """Without the lock nobody asks the nodes: nothing happens to them, and it is shorter."""
        if seconds is None:
            seconds = 10.0 if locking else 5.0
        return cls(locking, seconds, workers, nodes, locking and killing, locking and stopping)

    @property
    def quorum(self) -> int:
        """How many nodes must grant."""
        return self.nodes // 2 + 1

    @property
    def spare(self) -> int:
        """How many may be out at once."""
        return self.nodes - self.quorum


class Act(Enum):
    """What is done to a node."""

    KILL = "kill"
    RESTART = "restart"
    STOP = "stop"
    CONT = "cont"


@dataclass(frozen=True)
class Step:
    """Something that happens, so many seconds after the start, to nodes counted from 0."""

    at: float
    act: Act
    nodes: tuple[int, ...]


def plot(settings: Settings) -> tuple[Step, ...]:
    """The faults in their order; never more than a minority of the nodes is out at once."""
    if settings.spare == 0:
        return ()
    kill, restart, stop, cont = _instants(settings.seconds)
    # Of five: nodes 2 and 4 are killed, 2 comes back, 5 is stopped.
    killed = tuple(range(1, settings.nodes, 2))[: settings.spare]
    steps: list[Step] = []
    if settings.killing:
        steps += [Step(kill, Act.KILL, killed), Step(restart, Act.RESTART, killed[:1])]
    if settings.stopping:
        last = (settings.nodes - 1 if settings.nodes % 2 else 0,)
        steps += [Step(stop, Act.STOP, last), Step(cont, Act.CONT, last)]
    return tuple(steps)


def _instants(seconds: float) -> tuple[float, float, float, float]:
    """When to kill, restart, stop, continue: two fixed delays, and shares of what is left."""
    free = seconds - RESTART_DELAY - REJOIN_DELAY
    kill = 0.25 * free
    restart = kill + RESTART_DELAY + 0.1 * free
    stop = restart + REJOIN_DELAY + 0.1 * free
    return kill, restart, stop, stop + 0.3 * free


class Fates:
    """What has happened to every node, and what may happen now."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stories: list[list[str]] = [[] for _ in range(settings.nodes)]
        self._killed_at: dict[int, float] = {}
        self._restarted_at = -REJOIN_DELAY
        self._stopped: set[int] = set()

    def may(self, step: Step, now: float) -> bool:
        """Its time has come, and both delays, counted from what really happened, are over."""
        if now < step.at:
            return False
        if step.act is Act.RESTART:
            return all(now - self._killed_at[node] >= RESTART_DELAY for node in step.nodes)
        return step.act is not Act.STOP or now - self._restarted_at >= REJOIN_DELAY

    def record(self, step: Step, now: float) -> str:
        """It has been done; returns it as a sentence."""
        for node in step.nodes:
            self._tell(step.act, node, now)
        return _SENTENCES[step.act].format(
            nodes=_nodes(step.nodes),
            left=self._settings.nodes - len(self._killed_at) - len(self._stopped),
            all=self._settings.nodes,
            quorum=self._settings.quorum,
        )

    def state(self, node: int) -> str:
        """In one word."""
        if node in self._killed_at:
            return "killed"
        return "stopped" if node in self._stopped else "up"

    def story(self, node: int) -> str:
        """All that happened to it."""
        return ", ".join(self._stories[node]) or "nothing"

    def _tell(self, act: Act, node: int, now: float) -> None:
        if act is Act.KILL:
            self._killed_at[node] = now
        elif act is Act.RESTART:
            del self._killed_at[node]
            self._restarted_at = now
        elif act is Act.STOP:
            self._stopped.add(node)
        else:
            self._stopped.discard(node)
        self._stories[node].append(_WORDS[act].format(now))


_WORDS = {
    Act.KILL: "killed {:.1f} s",
    Act.RESTART: "back {:.1f} s",
    Act.STOP: "stopped {:.1f} s",
    Act.CONT: "on {:.1f} s",
}
_SENTENCES = {
    Act.KILL: "{nodes} killed (kill -9): {left} of {all} left, the quorum is {quorum}",
    Act.RESTART: f"{{nodes}} back, empty: keeps out until max_ttl ({TTL:g} s) has passed",
    Act.STOP: "{nodes} stopped (SIGSTOP): {left} of {all} answer",
    Act.CONT: "{nodes} continued (SIGCONT), with what it was sent meanwhile",
}


def _nodes(nodes: tuple[int, ...]) -> str:
    numbers = [str(node + 1) for node in nodes]
    if len(numbers) == 1:
        return f"node {numbers[0]}"
    return f"nodes {', '.join(numbers[:-1])} and {numbers[-1]}"
