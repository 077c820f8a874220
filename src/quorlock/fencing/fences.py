"""The values that are fences."""

from __future__ import annotations

from quorlock.errors import ConfigError

# The lock issues no larger one (docs/contributing/decisions), and Lua counts exactly up to here.
FENCE_MAX = 2**53 - 1


def as_fence(fence: object) -> int:
    """Return the fence if it is one: otherwise `None` would be written and refuse no writer."""
    if fence is None:
        raise ConfigError("fence", None, "this lease has none: ask for lock(..., fencing=True)")
    if not isinstance(fence, int) or isinstance(fence, bool) or not 0 < fence <= FENCE_MAX:
        raise ConfigError("fence", fence, "give lease.fence, an integer from 1 to 2**53 - 1")
    return fence
