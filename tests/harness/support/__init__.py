"""Helpers of several tests that users do not need: misbehaving nodes."""
