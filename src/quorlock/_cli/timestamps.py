"""Times in JSON, in one form for all commands."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(at: datetime) -> str:
    """Return a time as RFC 3339 has it, in UTC and to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
