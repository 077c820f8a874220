"""Both faces have the same names, parameters, defaults, annotations and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock._api.misuse import AsyncioObject, BlockingObject

CLASSES = (
    *("Redlock", "Lock", "LockDecorator", "RLock", "Semaphore", "Election", "Once", "Lease"),
)

# Only in asyncio: a thread cannot be cancelled.
ONLY_ASYNCIO = {
    ("Redlock", name): {"on_lost"}
    for name in ("lock", "rlock", "semaphore", "any_of", "election", "once", "adopt")
}

# Python has two names for these.
SAME = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


@pytest.fixture(autouse=True)
def patient_default() -> None:
    """Leave the library's default of `node_timeout`, which is seen here."""


def public(kind: type) -> dict[str, Any]:
    """Return the public methods and attributes of a class, by their names in the blocking API."""
    refused = (vars(BlockingObject), vars(AsyncioObject))
    names = {
        SAME.get(name, name): name
        for name in dir(kind)
        if hasattr(kind, name)  # a hint is none
        and not any(inspect.getattr_static(kind, name) is part.get(name) for part in refused)
    }
    return {
        shown: inspect.getattr_static(kind, name)
        for shown, name in names.items()
        if not shown.startswith("_") or shown in ("__enter__", "__exit__", "__call__", "__init__")
    }


def methods(name: str) -> list[tuple[str, str]]:
    """Every public method and property of a class, by class and name."""
    return [(name, method) for method in sorted(public(getattr(quorlock, name)))]


def parameters(name: str, method: str, function: Any) -> list[tuple[str, object, object, str]]:
    """Name, kind, default and annotation of each, without those that one face has alone."""
    alone = ONLY_ASYNCIO.get((name, method), set())
    return [
        (parameter.name, parameter.kind, parameter.default, plain(parameter.annotation))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in alone
    ]


def plain(annotation: object) -> str:
    """An annotation without what async adds to it."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.replace("asyncio.Event", "threading.Event")
    text = re.sub(r"Coroutine\[Any, Any, (R|R \| None)\]", r"\1", text)
    text = text.replace("AsyncIterator", "Iterator")
    return text.replace("quorlock.asyncio.", "quorlock._sync.")


def prose(text: str | None) -> str:
    """A docstring without its asyncio words and without its line breaks."""
    assert text, "every public thing has a docstring"
    words = " ".join(text.split()).replace("async with", "with")
    return words.replace("coroutine function", "function").replace("tasks", "threads")


def function_of(found: Any) -> Callable[..., Any]:
    """Return the function behind a property or a method."""
    function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    assert callable(function)
    return function


def test_both_modules_export_the_same_names() -> None:
    """`__all__` is equal and complete, and everything but the three classes is the same object."""
    assert aio.__all__ == quorlock.__all__
    for name in quorlock.__all__:
        same = getattr(aio, name) is getattr(quorlock, name)
        assert same != (name in CLASSES), name


def test_nothing_public_is_left_out_of_all() -> None:
    """The public names of the modules are those of `__all__` (except submodules)."""
    for module in (quorlock, aio):
        found = {
            name
            for name in dir(module)  # `quorlock` loads them when they are asked for
            if not name.startswith("_")
            and not inspect.ismodule(getattr(module, name))
            and name not in {"annotations", "TYPE_CHECKING"}
        }
        assert found == set(module.__all__)


@pytest.mark.parametrize("name", CLASSES)
def test_both_classes_have_the_same_members(name: str) -> None:
    """No method, property or protocol is in one face alone; helpers of a face are not public."""
    assert set(public(getattr(aio, name))) == set(public(getattr(quorlock, name)))


@pytest.mark.parametrize("module", [quorlock, aio], ids=["blocking", "asyncio"])
def test_a_lease_shows_what_users_need_and_no_more(module: Any) -> None:
    """The methods that end a lease, and its state, have private names."""
    facts = {
        "fence",
        "held",
        "permit",
        "resource",
        "resources",
        "shared",
        "token",
        "ttl",
        "valid_until",
    }
    facts |= {"validity", "votes"}
    verbs = {"ensure", "extend", "hand_over", "keep", "lost", "release"}
    shown = {name for name in dir(module.Lease) if hasattr(module.Lease, name)}
    assert {name for name in shown if not name.startswith("_")} == facts | verbs


@pytest.mark.parametrize(
    ("name", "method"),
    [pair for name in CLASSES for pair in methods(name) if pair[1] != "__init__"],
    ids="{}".format,
)
def test_both_methods_read_the_same(name: str, method: str) -> None:
    """Kind, parameters, defaults, annotations and docstring, but for what async makes of them."""
    ours, theirs = (public(getattr(module, name))[method] for module in (quorlock, aio))
    assert isinstance(ours, property) == isinstance(theirs, property)
    blocking, asynchronous = function_of(ours), function_of(theirs)
    assert parameters(name, method, asynchronous) == parameters(name, method, blocking)
    returned = [plain(inspect.signature(f).return_annotation) for f in (blocking, asynchronous)]
    assert returned[0] == returned[1]
    if not method.startswith("__"):
        text, twin = prose(blocking.__doc__), prose(asynchronous.__doc__)
        for alone in ONLY_ASYNCIO.get((name, method), ()):
            # One sentence about it, no other difference.
            twin = re.sub(rf" {alone}: .*?\)\.(?= Raises)", "", twin)
        assert twin == text


@pytest.mark.parametrize("name", CLASSES)
def test_both_classes_say_the_same(name: str) -> None:
    """The classes' docstrings are equal."""
    ours, theirs = (prose(getattr(module, name).__doc__) for module in (quorlock, aio))
    assert theirs == ours


@pytest.mark.parametrize("module", [quorlock, aio], ids=["blocking", "asyncio"])
def test_a_redlock_takes_the_same_settings_in_both_faces(module: Any) -> None:
    """The constructor is one, in its order and with its defaults."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(module.Redlock).parameters.items()
    }
    assert defaults == {
        "nodes": inspect.Parameter.empty,
        "ttl": None,
        "max_ttl": 30.0,
        "node_timeout": 0.05,
        "connect_timeout": 1.0,
        "drift_factor": 0.01,
        "retry_delay": (0.05, 0.2),
        "outage_timeout": 5.0,
        "restart_guard": "uptime",
        "prefix": "",
        "owner": "{host}:{pid}",
        "waiting": "auto",
    }


def test_the_one_difference_is_a_difference() -> None:
    """`on_lost` is keyword-only, of asyncio's `lock` alone, and cancels by default."""
    assert "on_lost" not in inspect.signature(quorlock.Redlock.lock).parameters
    on_lost = inspect.signature(aio.Redlock.lock).parameters["on_lost"]
    assert (on_lost.kind, on_lost.default) == (inspect.Parameter.KEYWORD_ONLY, "cancel")


@pytest.mark.parametrize("name", CLASSES)
def test_what_waits_is_a_coroutine_function_in_asyncio(name: str) -> None:
    """Every verb that talks to nodes is awaited there, and nothing is in the blocking face."""
    verbs = {
        "Redlock": {
            *("adopt", "break_lease", "check", "close", "extend", "inspect", "release"),
            *("__enter__", "__exit__"),
        },
        "Lock": {"acquire", "locked", "try_acquire", "__enter__", "__exit__"},
        "LockDecorator": set[str](),
        "Semaphore": {"acquire", "locked", "try_acquire", "__enter__", "__exit__"},
        "RLock": {"acquire", "locked", "release", "try_acquire", "__enter__", "__exit__"},
        "Election": {"leader", "run"},
        "Once": {"run", "try_acquire"},
        "Lease": {"extend", "hand_over", "keep", "release", "__enter__", "__exit__"},
    }
    for module, wanted in ((quorlock, set[str]()), (aio, verbs[name])):
        found = {
            method
            for method, value in public(getattr(module, name)).items()
            if inspect.iscoroutinefunction(value)
        }
        assert found == wanted
