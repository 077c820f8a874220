"""Lets one test run for both faces: it is written with `await`, as for quorlock.asyncio.fencing."""

from __future__ import annotations

import inspect
from typing import Any


class Awaited:
    """An object of quorlock.fencing, used as if it were of its twin."""

    def __init__(self, real: Any, twin: type) -> None:
        self.real = real
        self._twin = twin

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not inspect.iscoroutinefunction(getattr(self._twin, name)):
            return found

        async def verb(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return verb
