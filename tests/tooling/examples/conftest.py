"""The PostgreSQL of the fencing tests."""

from tests.servers.fencing.conftest import postgres

__all__ = ["postgres"]
