"""The decorator in both APIs: which functions it takes, and a resource that the call names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import AcquireTimeout, ConfigError
from quorlock.testing.servers import Servers
from tests.servers.api.faces import Face, keys_on, raises, real


def by_number(number: int, *, currency: str = "EUR") -> str:
    return f"invoice:{number}:{currency}"


def decorated(face: Face, decorator: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that runs the body under the lock, in either face."""

    async def asynchronous(number: int, *, currency: str = "EUR") -> Any:
        return body(number, currency)

    def blocking(number: int, *, currency: str = "EUR") -> Any:
        return body(number, currency)

    if face.name == "asyncio":
        charge: Callable[..., Any] = decorator(asynchronous)
        return charge
    locked = real(decorator)(blocking)

    async def call(*args: Any, **kwargs: Any) -> Any:
        return locked(*args, **kwargs)

    return call


async def test_the_call_names_the_resource(face: Face, nodes: Servers) -> None:
    """Positional and named arguments reach it, and different resources do not exclude."""
    async with face.redlock(nodes.urls) as redlock:
        seen: list[dict[str, list[bytes]]] = []
        charge = decorated(
            face, redlock.lock(by_number, timeout=0), lambda *_: seen.append(keys_on(nodes))
        )
        await charge(42)
        await charge(7, currency="SEK")
        names = [{key for keys in found.values() for key in keys} for found in seen]
        assert [{name for name in found if b"invoice" in name} for found in names] == [
            {b"invoice:42:EUR"},
            {b"invoice:7:SEK"},
        ]
        async with redlock.lock("invoice:42:EUR"):
            assert (await raises(AcquireTimeout, charge(42))).resource == "invoice:42:EUR"
            await charge(43)
    assert keys_on(nodes) == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (lambda number, **_: number, "it returned 5; return the resource's name as str or bytes"),
        (lambda number, **_: None, "it returned None; return the resource's name"),
        (lambda number, **_: "", "resource='': give a name that is not empty"),
        (lambda number, **_: "quorlock:x", "keys that begin with 'quorlock:' are reserved"),
        (lambda number, **_: "x" * 513, "prefix + resource may have 512 bytes"),
    ],
)
async def test_every_call_is_validated(face: Face, nodes: Servers, name: Any, said: str) -> None:
    async with face.redlock(nodes.urls) as redlock:
        ran: list[object] = []
        charge = decorated(face, redlock.lock(name), lambda *_: ran.append(1))
        error = await raises(ConfigError, charge(5))
        assert said in str(error)
        assert str(error).startswith("resource=")
        assert ran == []


async def test_an_error_of_the_name_comes_out(face: Face, nodes: Servers) -> None:
    """Arguments that do not fit are an error of the call, as without the lock."""
    async with face.redlock(nodes.urls) as redlock:
        charge = decorated(face, redlock.lock(lambda: "a"), lambda *_: None)
        assert "positional argument" in str(await raises(TypeError, charge(5)))


async def test_the_other_arguments_are_checked_at_once(face: Face, nodes: Servers) -> None:
    async def name() -> str:
        return "a"

    async with face.redlock(nodes.urls) as redlock:
        for wrong in ({"ttl": 0}, {"timeout": -1}, {"fencing": 1}, {"renew": 2}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                redlock.lock(by_number, **wrong)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match=r"resource=.*a plain function of the call's"):
            redlock.lock(name)  # type: ignore[arg-type]


async def test_it_can_only_decorate(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        decorator: Any = real(redlock.lock(by_number))
        assert repr(decorator).startswith("<LockDecorator by <function by_number")
        for name in ("acquire", "try_acquire", "locked", "resource", "release"):
            with pytest.raises(AttributeError, match="can only decorate that function"):
                getattr(decorator, name)
        with pytest.raises(TypeError, match="for `with`, acquire and others give the"), decorator:
            raise AssertionError("entered")
        with pytest.raises(TypeError, match="can only decorate"):
            async with decorator:
                raise AssertionError("entered")


def plain(number: int = 1) -> int:
    return number


async def coroutine_function(number: int = 1) -> int:
    return number


def generator_function() -> Iterator[int]:
    yield 1


async def async_generator_function() -> AsyncIterator[int]:
    yield 1


class AsyncCallable:
    async def __call__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        (coroutine_function, "for a coroutine function take a lock of quorlock.asyncio"),
        (functools.partial(coroutine_function, 1), "take a lock of quorlock.asyncio"),
        (AsyncCallable(), "for a coroutine function take a lock of quorlock.asyncio"),
        (generator_function, "use `with lock:` inside it: its body runs while it is iterated"),
        (async_generator_function, "use `async with lock:` inside it"),
        (5, "decorate a function"),
    ],
)
@pytest.mark.parametrize("resource", ["a", by_number])
def test_functions_that_run_later_are_refused(
    nodes: Servers, wrong: Any, fix: str, resource: Any
) -> None:
    with quorlock.Redlock(nodes.urls) as redlock:
        with pytest.raises(ConfigError) as raised:
            redlock.lock(resource)(wrong)
        assert raised.value.argument == "function"
        assert f"decorate a function; {fix}" in str(raised.value) or fix in raised.value.fix


def test_a_coroutine_that_a_function_returns_is_refused(nodes: Servers) -> None:
    """A decorator below may hide that a function is async.  Nothing counts as done."""

    def hidden(*_: object) -> Any:
        return coroutine_function()

    with quorlock.Redlock(nodes.urls) as redlock:
        once = redlock.once("b", every=60.0)
        calls: dict[str, Callable[[], object]] = {
            "function": redlock.lock("a")(hidden),
            "work": lambda: once.run(hidden),
            "lead": lambda: redlock.election("c").run(hidden),
        }
        for argument, call in calls.items():
            with pytest.raises(ConfigError, match="it returned a coroutine, which would") as raised:
                call()
            assert raised.value.argument == argument
        assert once.run(lambda _: 7) == 7


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        (plain, "for a plain function take a lock of quorlock"),
        (generator_function, "use `with lock:` inside it"),
        (async_generator_function, "use `async with lock:` inside it"),
        (None, "decorate a coroutine function"),
    ],
)
async def test_asyncio_takes_coroutine_functions(nodes: Servers, wrong: Any, fix: str) -> None:
    async with aio.Redlock(nodes.urls) as redlock:
        with pytest.raises(ConfigError, match="decorate a coroutine function") as raised:
            redlock.lock("a")(wrong)
        assert fix in raised.value.fix
        decorator: Any = redlock.lock("a")
        assert await decorator(AsyncCallable())() == 7


async def test_the_wrapper_is_a_coroutine_function(nodes: Servers) -> None:
    """asyncio: frameworks look for that."""
    async with aio.Redlock(nodes.urls) as redlock:
        charge = redlock.lock(by_number)(coroutine_function)
        assert inspect.iscoroutinefunction(charge)
        assert (charge.__name__, await charge(3)) == ("coroutine_function", 3)
