"""Coroutine tests and both faces, as in tests/servers/api."""

from tests.servers.api.conftest import face, pytest_pyfunc_call

__all__ = ["face", "pytest_pyfunc_call"]
