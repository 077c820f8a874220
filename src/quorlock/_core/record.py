"""The base class of values that must not be tuples, as a `Node`, a `Tls` or a `Ticket`.

A frozen dataclass would do, but to load `dataclasses`, and to decorate these classes, takes as long
as half of quorlock (docs/contributing/decisions/0011-named-tuples-for-facts.md).
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Record:
    """A value that is read-only, and equal to a value of the same type with equal fields.

    A subclass annotates its fields, in the order of its `__init__`.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()
    _SECRET: ClassVar[tuple[str, ...]] = ()  # fields that the repr leaves out

    def __init_subclass__(cls) -> None:
        setattr(cls, "__match_args__", (*cls.__match_args__, *cls.__annotations__))  # noqa: B010

    def _fill(self, arguments: dict[str, Any]) -> None:
        """Set the fields, from the `locals()` of `__init__`."""
        vars(self).update({name: arguments[name] for name in self.__match_args__})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set {name!r}: a {type(self).__name__} is read-only")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r}: a {type(self).__name__} is read-only")

    def __replace__(self, /, **changes: Any) -> Self:
        return type(self)(**vars(self) | changes)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        shown = [name for name in self.__match_args__ if name not in self._SECRET]
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
        return f"{type(self).__name__}({fields})"
