"""Hints for objects that are used as those of the other API, or of another library.

Type checkers report such a use, so these methods are hidden from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn


class BlockingObject:
    """A Redlock, lock or lease of the blocking API, which refuses `async with`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise TypeError(_wrong_api(self, "blocking", "asyncio", "quorlock.asyncio", "with"))

        def __aexit__(self, *_: object) -> NoReturn:  # Python looks both up before it calls one
            self.__aenter__()


class AsyncioObject:
    """A Redlock, lock or lease of the asyncio API, which refuses `with`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(_wrong_api(self, "asyncio", "blocking", "quorlock", "async with"))

        def __exit__(self, *_: object) -> NoReturn:
            self.__enter__()


class HintedNames:
    """An object that names the right attribute where another library has another name."""

    __slots__ = ()

    _HINTS: ClassVar[dict[str, str]] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            hint = self._HINTS.get(name)
            raise AttributeError(f"{message}: {hint}" if hint else message, name=name, obj=self)


def _wrong_api(thing: object, this: str, other: str, module: str, statement: str) -> str:
    name = type(thing).__name__
    here = "quorlock" if this == "blocking" else "quorlock.asyncio"
    return (
        f"this is {here}.{name}, of the {this} API: use `{statement}`, or import Redlock from"
        f" {module} for the {other} API"
    )
