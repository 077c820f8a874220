"""The options of a lease while it is held: its renewal, and what a loss does to its block."""

import math
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from quorlock._api.decorators import kind_of
from quorlock._core.config import RENEWED_TTL_MS_MIN, Seconds, positive
from quorlock._core.time import FOR_EVER, NS_PER_MS, Duration, from_seconds
from quorlock.errors import ConfigError, ConfigLimit

Warns: TypeAlias = Callable[[Any], object]
OnLost: TypeAlias = Literal["cancel", "flag"]

# An hour: unlimited re-acquisition would let one client starve all others (Redlock page, "Extending
# the lock"), so a hold without limit must be requested.
MAX_HOLD: Final = 3600.0


class LeaseOptions(NamedTuple):
    """The options of a lease while it is held.

    renew: whether it is extended in the background.
    max_hold: how long it may be held in all, with extensions.
    on_warning: called when renewal fails.
    on_lost: whether a loss cancels the body of its block; in asyncio alone.
    keep_for: for how long its block keeps it at a clean end; None: the block releases it.
    """

    renew: bool
    max_hold: Duration
    on_warning: Warns | None
    on_lost: OnLost
    keep_for: Seconds | None = None

    def checked(self, ttl_ms: int) -> "LeaseOptions":
        """Return the options if they fit the ttl. Raises ConfigError."""
        if not self.renew:
            return self
        if ttl_ms < RENEWED_TTL_MS_MIN:
            fix = f"give at least {RENEWED_TTL_MS_MIN / 1000:g} s to a lease that is to be renewed"
            limit = ConfigLimit("renew", RENEWED_TTL_MS_MIN / 1000, is_most=False)
            raise ConfigError("ttl", ttl_ms / 1000, fix, limit=limit)
        if self.max_hold < ttl_ms * NS_PER_MS:
            fix = f"give at least the ttl of {ttl_ms / 1000:g} s, or no renew=True"
            limit = ConfigLimit("ttl", ttl_ms / 1000, is_most=False)
            raise ConfigError("max_hold", self.max_hold / 1e9, fix, limit=limit)
        return self


def lease_options(
    renew: object, max_hold: Seconds, on_warning: Warns | None, on_lost: OnLost = "cancel"
) -> LeaseOptions:
    """Return a user's arguments, validated. Raises ConfigError."""
    if renew is False and max_hold == MAX_HOLD and on_warning is None and on_lost == "cancel":
        return _USUAL
    if not isinstance(renew, bool):
        raise ConfigError("renew", renew, "give True or False")
    if on_warning is not None:
        _check_warning(on_warning, renew=renew)
    if on_lost not in ("cancel", "flag"):
        fix = "give 'cancel' (end the block) or 'flag' (only set lease.lost)"
        raise ConfigError("on_lost", on_lost, fix)
    longest = FOR_EVER if max_hold == math.inf else positive("max_hold", max_hold)
    return LeaseOptions(renew, longest, on_warning, on_lost)


_USUAL = LeaseOptions(
    renew=False, max_hold=from_seconds(MAX_HOLD), on_warning=None, on_lost="cancel"
)


def _check_warning(on_warning: object, *, renew: bool) -> None:
    if kind_of(on_warning) != "function":
        fix = "give a plain function that takes the lease and returns soon"
        raise ConfigError("on_warning", on_warning, fix)
    if not renew:
        raise ConfigError("on_warning", on_warning, "give renew=True as well: it warns of renewal")
