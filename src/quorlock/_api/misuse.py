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
    """An object that names the right attribute where another library has another name.

    Each of those names is an attribute of the class that cannot be read: with a `__getattr__`,
    Python would take three times as long to read any attribute of the object.
    """

    __slots__ = ()

    _HINTS: ClassVar[dict[str, str]] = {}

    if not TYPE_CHECKING:

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            for name, hint in vars(cls).get("_HINTS", {}).items():
                setattr(cls, name, _Hint(name, hint))

        def __dir__(self) -> list[str]:
            return [name for name in super().__dir__() if name not in self._HINTS]


class _Hint:
    """A name that the object has no attribute of."""

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, thing: object, kind: type) -> NoReturn:
        message = f"{kind.__name__!r} object has no attribute {self._name!r}: {self._hint}"
        raise AttributeError(message, name=self._name, obj=thing)


def _wrong_api(thing: object, this: str, other: str, module: str, statement: str) -> str:
    name = type(thing).__name__
    here = "quorlock" if this == "blocking" else "quorlock.asyncio"
    return (
        f"this is {here}.{name}, of the {this} API: use `{statement}`, or import Redlock from"
        f" {module} for the {other} API"
    )
