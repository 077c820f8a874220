"""The decorators of both APIs: which functions they take, and resources named by arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar

from quorlock._core.resources import Resource, as_resources
from quorlock.errors import ConfigError

K = TypeVar("K")
R = TypeVar("R")
ResourceFunction: TypeAlias = Callable[..., Resource]

_USE_IN_BODY = "use `{}` inside it: its body runs while it is iterated, after the call has returned"
_ASYNC = "coroutine function"
_FIXES = {
    _ASYNC: "for a coroutine function take a lock of quorlock.asyncio",
    "async generator function": _USE_IN_BODY.format("async with lock:"),
    "generator function": _USE_IN_BODY.format("with lock:"),
    "function": "for a plain function take a lock of quorlock",
}


def check_decorated(
    function: object, wanted: str, argument: str = "function", verb: str = "decorate"
) -> None:
    """Raise ConfigError unless the function is of the wanted kind: a call of it runs its body."""
    kind = kind_of(function)
    if kind != wanted:
        fix = f"; {_FIXES[kind]}" if kind else ""
        raise ConfigError(argument, function, f"{verb} a {wanted}{fix}")


def check_result(result: R, function: object, argument: str = "function") -> R:
    """Return what a call returned. Raises ConfigError for a coroutine, whose body has not run."""
    if isinstance(result, CoroutineType):
        result.close()
        fix = f"it returned a coroutine, which would run without the lock; {_FIXES[_ASYNC]}"
        raise ConfigError(argument, function, fix)
    return result


def kind_of(function: object) -> str:
    """Return what this is: "function" if a call of it runs its body; "" if it cannot be called."""
    # Here: it takes a third of the import time of quorlock, and few programs decorate.
    from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

    if not callable(function):
        return ""
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004 (it may be async)
        if iscoroutinefunction(one):
            return _ASYNC
        if isasyncgenfunction(one):
            return "async generator function"
        if isgeneratorfunction(one):
            return "generator function"
    return "function"


class ResourceOfCall(Generic[K]):
    """A lock for each call of a decorated function, named by the call's arguments."""

    __slots__ = ("_make", "_name")

    def __init__(self, make: Callable[[tuple[object, ...]], K], name: ResourceFunction) -> None:
        if kind_of(name) != "function":
            raise ConfigError("resource", name, "give a plain function of the call's arguments")
        make(("x",))  # the other arguments are checked now
        self._make = make
        self._name = name

    def _lock_for(self, *args: Any, **kwargs: Any) -> K:
        """Return the lock for a call with these arguments. Raises ConfigError."""
        resource: object = self._name(*args, **kwargs)
        names = as_resources(resource)
        if not names or not all(isinstance(name, (str, bytes)) for name in names):
            what = "return the resource's name as str or bytes, or a tuple of names"
            fix = f"it returned {resource!r}; {what}"
            raise ConfigError("resource", self._name, fix)
        return self._make(names)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} by {self._name!r}>"

    if not TYPE_CHECKING:  # checkers report these uses

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}: {_ONLY}"
            raise AttributeError(message, name=name, obj=self)

        def __enter__(self) -> NoReturn:
            raise TypeError(_ONLY)

        def __exit__(self, *_: object) -> NoReturn:
            raise TypeError(_ONLY)

        __aenter__, __aexit__ = __enter__, __exit__


_ONLY = (
    "a lock whose resource comes from the arguments of a function can only decorate that function;"
    " for `with`, acquire and others give the resource's name"
)
