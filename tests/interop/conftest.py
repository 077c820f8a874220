"""Coroutine tests and both faces, as in tests/api."""

from tests.api.conftest import face, pytest_pyfunc_call

__all__ = ["face", "pytest_pyfunc_call"]
