"""The part of `once` that both APIs share: a lock, and for how long the work counts as done."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from quorlock._api.lock import LockBase
from quorlock._api.misuse import HintedNames
from quorlock._core.config import Seconds, positive
from quorlock._core.time import NS_PER_MS
from quorlock.errors import ConfigError

K = TypeVar("K", bound=LockBase[Any, Any])


class OnceBase(HintedNames, Generic[K]):
    """Work that is done at most once per interval, in both APIs."""

    __slots__ = ("_every", "_lock")

    _HINTS: ClassVar[dict[str, str]] = {
        "acquire": "use `try_acquire` or `run`: it does not wait",
        **dict.fromkeys(("release", "keep"), "use those of the lease that try_acquire() returned"),
    }

    def __init__(self, lock: K, every: Seconds) -> None:
        if positive("every", every) < NS_PER_MS:
            raise ConfigError("every", every, "give at least 0.001 (1 ms)")
        self._lock = lock
        self._every = every

    @property
    def resource(self) -> str:
        """The name of the work."""
        return self._lock.resource

    @property
    def ttl(self) -> float:
        """The lease time in seconds: after a crash the work may be done again so much later."""
        return self._lock.ttl

    @property
    def every(self) -> Seconds:
        """The time for which the work counts as done, from its end."""
        return self._every

    def __repr__(self) -> str:
        return f"<Once {self.resource!r}, every {self._every} s>"

    def __reduce__(self) -> NoReturn:
        message = "a Once cannot be copied or pickled: make one in each process"
        raise TypeError(message)
