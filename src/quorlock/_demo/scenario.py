"""The settings of a demo and the schedule of its faults. `run` executes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# One ttl for all clients, which is also their max_ttl. It is short because of the clients' restart
# guard: a node that comes back empty does not vote before every lease that it had granted has
# ended.
TTL = 2.0
RESTART_DELAY = 0.3
# Clients reconnect to a node at least once a second, and then keep it out for max_ttl and the
# drift. Until all of them let it vote, no other node may fail: a majority would be out.
REJOIN_DELAY = 1.3 + 1.05 * TTL


@dataclass(frozen=True)
class DemoSettings:
    """The options. Without the lock the nodes are unused, so they do not fail."""

    locking: bool
    seconds: float
    workers: int
    nodes: int
    killing: bool
    stopping: bool

    @property
    def quorum(self) -> int:
        return self.nodes // 2 + 1

    @property
    def spare(self) -> int:
        """Return the number of nodes that may be out at once."""
        return self.nodes - self.quorum


class Act(Enum):
    """An action on a node."""

    KILL = "kill"
    RESTART = "restart"
    STOP = "stop"
    CONT = "cont"


@dataclass(frozen=True)
class DemoStep:
    """An action on some nodes (counted from 0), seconds after the start."""

    at: float
    act: Act
    nodes: tuple[int, ...]


def schedule(settings: DemoSettings) -> tuple[DemoStep, ...]:
    """Return the faults in order. At most a minority of the nodes is out at once."""
    if settings.spare == 0 or not settings.locking:
        return ()
    kill, restart, stop, cont = _instants(settings.seconds)
    # Of five: nodes 2 and 4 are killed, 2 comes back, 5 is stopped.
    killed = tuple(range(1, settings.nodes, 2))[: settings.spare]
    steps: list[DemoStep] = []
    if settings.killing:
        steps += [DemoStep(kill, Act.KILL, killed), DemoStep(restart, Act.RESTART, killed[:1])]
    if settings.stopping:
        last = (settings.nodes - 1 if settings.nodes % 2 else 0,)
        steps += [DemoStep(stop, Act.STOP, last), DemoStep(cont, Act.CONT, last)]
    return tuple(steps)


def _instants(seconds: float) -> tuple[float, float, float, float]:
    """Return when to kill, restart, stop and continue: two fixed delays, and shares of the rest."""
    free = seconds - RESTART_DELAY - REJOIN_DELAY
    kill = 0.25 * free
    restart = kill + RESTART_DELAY + 0.1 * free
    stop = restart + REJOIN_DELAY + 0.1 * free
    return kill, restart, stop, stop + 0.3 * free


class FaultHistory:
    """The history of each node, which decides when the next step may happen."""

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = settings
        self._pasts: list[list[tuple[Act, float]]] = [[] for _ in range(settings.nodes)]

    def is_due(self, step: DemoStep, now: float) -> bool:
        """Return whether the step is due, and both delays since the actual steps are over."""
        earlier, delay = _DELAYS.get(step.act, (None, 0.0))
        instants = [at for past in self._pasts for act, at in past if act is earlier]
        return now >= step.at and now - max(instants, default=-delay) >= delay

    def record(self, step: DemoStep, now: float) -> str:
        """Record the step, and return it as a sentence."""
        for node in step.nodes:
            self._pasts[node].append((step.act, now))
        states = list(map(self.state, range(self._settings.nodes)))
        return _SENTENCES[step.act].format(
            nodes=_nodes(step.nodes),
            left=states.count("up"),
            all=self._settings.nodes,
            quorum=self._settings.quorum,
        )

    def state(self, node: int) -> str:
        past = self._pasts[node]
        return _STATES[past[-1][0]] if past else "up"

    def history(self, node: int) -> str:
        return ", ".join(_WORDS[act].format(at) for act, at in self._pasts[node]) or "nothing"


# A step waits for this time after the last one of another kind.
_DELAYS = {Act.RESTART: (Act.KILL, RESTART_DELAY), Act.STOP: (Act.RESTART, REJOIN_DELAY)}
_STATES = {Act.KILL: "killed", Act.RESTART: "up", Act.STOP: "stopped", Act.CONT: "up"}
_WORDS = {
    Act.KILL: "killed {:.1f} s",
    Act.RESTART: "back {:.1f} s",
    Act.STOP: "stopped {:.1f} s",
    Act.CONT: "on {:.1f} s",
}
_SENTENCES = {
    Act.KILL: "{nodes} killed (kill -9): {left} of {all} left, the quorum is {quorum}",
    Act.RESTART: f"{{nodes}} back, empty: casts no vote until max_ttl ({TTL:g} s) has passed",
    Act.STOP: "{nodes} stopped (SIGSTOP): {left} of {all} answer",
    Act.CONT: "{nodes} continued (SIGCONT), and replies to what it was sent",
}


def _nodes(nodes: tuple[int, ...]) -> str:
    numbers = [str(node + 1) for node in nodes]
    if len(numbers) == 1:
        return f"node {numbers[0]}"
    return f"nodes {', '.join(numbers[:-1])} and {numbers[-1]}"
