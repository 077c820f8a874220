"""The base class of faults, with one state for each site that a fault is on.

Owns the order of things: what `end()` needs is taken down before anything is changed, and `end()`
first sees to it that the server runs. Leaves what is done to the subclasses.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from quorlock.testing.servers import Server
from tests.harness.faults.site import Site
from tests.harness.support.wait import until

PROBE_TTL_MS = 60_000  # of keys that a fault sets for its proof
_PATIENCE = 10.0  # seconds for a server to carry out a command

S = TypeVar("S")


class Fault(Protocol):
    """Something bad that can be done to a site, and undone.

    One object may be in force on several sites; on one site only one fault may be.
    """

    @property
    def name(self) -> str:
        """The name, such as `sigstop`."""
        ...

    @property
    def loses_memory(self) -> bool:
        """True if living keys may be gone or older afterwards. Redlock assumes that this does not
        happen inside a ttl, so a run that must be safe keeps such a site unreachable
        (`site.proxy.refuse()`) from before `begin()` until max_ttl after `end()`.
        """
        ...

    def begin(self, site: Site) -> None:
        """Do it. When this raises, `end()` is still to be called."""
        ...

    def end(self, site: Site) -> None:
        """Bring the site back to health. Twice, or without a beginning, does no harm."""
        ...

    def proof(self, site: Site) -> str:
        """Evidence that the fault is in force, from the server or the system, in a sentence. To be
        asked between `begin()` and `end()`; AssertionError when it is not in force.
        """
        ...


class SiteFault(ABC, Generic[S]):
    """A fault that keeps something of type S about each site that it is in force on."""

    name: str
    loses_memory: bool = False

    def __init__(self) -> None:
        self._states: dict[Site, S] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def begin(self, site: Site) -> None:
        """Do it."""
        if site in self._states:
            raise RuntimeError(f"{self.name} is in force on {site.server!r}: end() it first")
        state = self._states[site] = self._before(site)
        self._begin(site, state)

    def end(self, site: Site) -> None:
        """Undo it."""
        if site not in self._states:
            return
        revive(site.server)
        self._end(site, self._states[site])
        del self._states[site]

    def proof(self, site: Site) -> str:
        """Evidence that it is in force."""
        if site not in self._states:
            raise AssertionError(f"{self.name} is not in force on {site.server!r}")
        return self._proof(site, self._states[site])

    @abstractmethod
    def _before(self, site: Site) -> S:
        """Take down what the rest needs. Changes nothing."""

    @abstractmethod
    def _begin(self, site: Site, state: S) -> None:
        """Do it. May raise half way."""

    @abstractmethod
    def _end(self, site: Site, state: S) -> None:
        """Undo it, or the half of it that was done. The server is alive and runs."""

    @abstractmethod
    def _proof(self, site: Site, state: S) -> str:
        """Evidence, or AssertionError."""


def revive(server: Server) -> None:
    """Have the server run, whatever was done to its process."""
    if not server.alive:
        server.restart()
    elif server.stopped:
        server.cont()


def await_that(reached: Callable[[], bool], goal: str, *, seconds: float = _PATIENCE) -> None:
    """Return as soon as it is so; TimeoutError when it does not come to it."""
    if not until(reached, seconds):
        raise TimeoutError(f"after {seconds} s still waiting until {goal}")


def probe_key() -> str:
    """A key of our own, unlike all others."""
    return f"faults:probe:{secrets.token_hex(6)}"


def check(holds: object, otherwise: str) -> None:
    """Assert with a message in proofs, also under `python -O`."""
    if not holds:
        raise AssertionError(otherwise)
