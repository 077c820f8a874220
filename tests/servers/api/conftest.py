"""Coroutine tests, and the two faces for those that ask for `face`."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.servers.api.faces import FACES, Face


@pytest.fixture(params=FACES, ids=repr)
def face(request: pytest.FixtureRequest) -> Face:
    """The blocking face, then asyncio's."""
    chosen = request.param
    assert isinstance(chosen, Face)
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a fresh event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
