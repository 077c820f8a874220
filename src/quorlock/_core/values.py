"""Facts that are no tuples: read-only, compared, hashed, copied and pickled by what they hold.

For what must not be iterable, nor equal to a plain tuple, as a named tuple is: a `Node` in a list
of nodes, a `Ticket` with its secret.  To `dataclasses` they are dataclasses, but who never calls
that module does not load it: it takes as long as half of quorlock, and a millisecond for every
class.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field
    from typing import Self


class _Fields:
    """`__dataclass_fields__`: made when `dataclasses.replace`, `asdict` or `fields` look at it."""

    def __get__(self, value: object, kind: type[Value]) -> dict[str, Field[Any]]:
        return _fields(kind.__match_args__, kind.HIDDEN)


@cache
def _fields(names: tuple[str, ...], hidden: frozenset[str]) -> dict[str, Field[Any]]:
    from dataclasses import field, make_dataclass

    made: Any = make_dataclass("_", [(name, Any, field(repr=name not in hidden)) for name in names])
    return made.__dataclass_fields__  # type: ignore[no-any-return]


@dataclass_transform(frozen_default=True)
class Value:
    """A class of such facts names them, in order, in `__slots__` and in `__match_args__`.

    Its `__init__` takes all of them by name, and gives them to `_fill`.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    HIDDEN: ClassVar[frozenset[str]] = frozenset()  # secrets, which the repr leaves out
    if not TYPE_CHECKING:  # checkers know it by dataclass_transform
        __dataclass_fields__ = _Fields()

    def _fill(self, **facts: object) -> None:
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._fill(**dict(zip(self.__match_args__, state, strict=True)))

    def __replace__(self, /, **changes: Any) -> Self:
        make: Callable[..., Self] = type(self)
        return make(**dict(zip(self.__match_args__, self.__getstate__(), strict=True)) | changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.__getstate__())

    def __repr__(self) -> str:
        shown = [name for name in self.__match_args__ if name not in self.HIDDEN]
        facts = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
        return f"{type(self).__name__}({facts})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        from dataclasses import FrozenInstanceError  # an AttributeError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")
