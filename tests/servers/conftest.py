"""Patience with nodes, for all tests here, and a check for some."""

from tests.harness.support.ownership import owned_connections
from tests.harness.support.patience import patient_default

__all__ = ["owned_connections", "patient_default"]
