"""Patience with nodes, for all tests here."""

from tests.harness.support.patience import patient_default

__all__ = ["patient_default"]
