"""Tests of the simulated world, and of its parts against the real thing."""
