"""Coroutine tests and both faces, as in tests/api."""

from tests.api.conftest import face, mortal_nodes, pytest_pyfunc_call

__all__ = ["face", "mortal_nodes", "pytest_pyfunc_call"]
