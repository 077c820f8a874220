"""The settings of a set of nodes, validated once and frozen."""

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Union

from quorlock._core.tally import quorum
from quorlock._core.time import (
    EXPIRY_RESOLUTION,
    NS_PER_MS,
    NS_PER_S,
    Duration,
    Instant,
    interned,
    validity,
)
from quorlock.errors import ConfigError, ConfigLimit

if TYPE_CHECKING:
    from datetime import timedelta

    Seconds: TypeAlias = float | timedelta
else:
    # Loads datetime when `typing.get_type_hints` reads it: few programs need either.
    Seconds = Union[float, "__import__('datetime').timedelta"]

RestartGuard: TypeAlias = Literal["uptime", "marker"] | None
Waiting: TypeAlias = Literal["auto", "poll"]

# The default ttl, unless max_ttl is shorter.
TTL_DEFAULT = 10.0
# A lease must outlive at least one round to acquire it, one to extend it and some use between.
TTL_PER_NODE_TIMEOUT = 3
# A shorter ttl is over after a few of the shortest pauses of renewal (renewal_schedule.PAUSE_MIN).
RENEWED_TTL_MS_MIN = 30
# The longest wait for replies to an extension, if node_timeout is shorter: a release of the lease,
# and other leases of the process, wait for it.
EXTENSION_WAIT_MAX: Duration = 500 * NS_PER_MS
# Long enough for any name, short enough that a thousand keys never fill a socket buffer.
KEY_BYTES_MAX = 512
# The prefix of quorlock's side keys: a lock may not use such a key.
SIDE_KEYS = b"quorlock:"
_GRID_MS_MAX = 1_000
# Ten years: a longer duration is a mistake of units, and floats lose their nanoseconds.
LONGEST = 10 * 365 * 86_400.0


class Policy(NamedTuple):
    """The settings of one set of nodes: durations in ns, ttls in whole ms as nodes count."""

    addresses: tuple[str, ...]
    ttl_ms: int
    max_ttl_ms: int
    node_timeout: Duration
    connect_timeout: Duration
    drift_factor: float
    retry_delay: tuple[Duration, Duration]
    outage_timeout: Duration
    prefix: bytes
    restart_guard: RestartGuard
    n: int  # nodes configured, not nodes up
    quorum: int  # nodes that must agree
    waiting: Waiting = "auto"

    @property
    def max_ttl(self) -> Duration:
        """Return the longest life that a key of these nodes can have."""
        return self.max_ttl_ms * NS_PER_MS

    @property
    def fence_grid_ms(self) -> int:
        """Return what fences are rounded up to on a node's clock; it is below `fence.ahead_ms`.

        A node issues at least the next multiple of it.  So nodes whose clocks agree issue the same
        number, also after a counter was lost, and one round trip is nearly always enough.
        """
        return max(1, min(_GRID_MS_MAX, self.max_ttl_ms // 4))

    def valid_until(self, started: Instant, ttl_ms: int) -> Instant:
        """Return the instant up to which a lease may be trusted, given the start of its round.

        Redlock page, "The Redlock algorithm", step 4: ttl - elapsed - drift, as an instant.
        """
        return started + validity(ttl_ms * NS_PER_MS, self.drift_factor)

    def extension_until(self, sent: Instant, valid_until: Instant) -> Instant:
        """Return the deadline for the replies to an extension of a lease that is still valid.

        At least node_timeout after `sent_at`.  If much validity is left, up to half of it: a quorum
        that replies late has extended the lease.  Asking again is not faster, because a node
        replies in order. The other half is for trying again: an unavailable node may be back by
        then.
        """
        return sent + max(self.node_timeout, min((valid_until - sent) // 2, EXTENSION_WAIT_MAX))

    def key(self, resource: object) -> bytes:
        """Return the Redis key of a resource; raise ConfigError if the name cannot be used."""
        return key_of(resource, self.prefix)

    def resource_of(self, key: bytes) -> str:
        """Return the name of the resource with this key."""
        return name_of(key.removeprefix(self.prefix))

    def checked_ttl_ms(self, ttl: Seconds | None) -> int:
        """Return the ttl of one call in milliseconds; None takes the default."""
        if ttl is None:
            return self.ttl_ms
        return _ttl_ms("ttl", ttl, self.node_timeout, self.drift_factor, self.max_ttl_ms)

    def checked_fencing(self, fencing: object) -> bool:
        """Return whether leases get fences; raise ConfigError where fences could not be trusted."""
        if not isinstance(fencing, bool):
            raise ConfigError("fencing", fencing, "give True or False")
        if fencing and self.restart_guard is None:
            fix = (
                "needs restart_guard='uptime' or 'marker': a node that forgot what it issued must"
                " keep out for a while, or it issues the same again"
            )
            raise ConfigError("fencing", fencing, fix)
        return fencing


def policy(
    addresses: tuple[str, ...],
    *,
    ttl: Seconds | None,
    max_ttl: Seconds,
    node_timeout: Seconds,
    connect_timeout: Seconds,
    drift_factor: float,
    retry_delay: tuple[Seconds, Seconds],
    outage_timeout: Seconds,
    prefix: str | bytes,
    restart_guard: RestartGuard = "uptime",
    waiting: Waiting = "auto",
) -> Policy:
    """Validate a user's settings; raise ConfigError with the argument, the value and the fix."""
    per_node = positive("node_timeout", node_timeout)
    if per_node < NS_PER_MS:
        raise ConfigError("node_timeout", node_timeout, "give at least 0.001 (1 ms)")
    drift_share = _drift_factor(drift_factor)
    max_ttl_ms = _ttl_ms("max_ttl", max_ttl, per_node, drift_share)
    return Policy(
        addresses=addresses,
        ttl_ms=(
            min(int(TTL_DEFAULT * 1000), max_ttl_ms)
            if ttl is None
            else _ttl_ms("ttl", ttl, per_node, drift_share, max_ttl_ms)
        ),
        max_ttl_ms=max_ttl_ms,
        node_timeout=per_node,
        connect_timeout=positive("connect_timeout", connect_timeout),
        drift_factor=drift_share,
        retry_delay=_retry_delay(retry_delay),
        outage_timeout=non_negative("outage_timeout", outage_timeout),
        prefix=_prefix(prefix),
        restart_guard=_restart_guard(restart_guard),
        n=len(addresses),
        quorum=quorum(len(addresses)),
        waiting=_waiting(waiting),
    )


def positive(argument: str, value: object) -> Duration:
    """Return a finite duration above zero, in ns."""
    duration = non_negative(argument, value)
    if duration == 0:
        raise ConfigError(argument, value, "give seconds above 0")
    return duration


def non_negative(argument: str, value: object) -> Duration:
    """Return a finite duration of zero or more, in ns."""
    if type(value) is float or type(value) is int:
        return _in_ns(argument, value)
    return _in_ns(argument, _number(argument, value))


# Most calls of a program give the same few timeouts.
@functools.lru_cache(maxsize=64, typed=True)
def _in_ns(argument: str, seconds: float) -> Duration:
    if not 0 <= seconds <= LONGEST:  # NaN is neither
        if LONGEST < seconds < math.inf:
            raise ConfigError(argument, seconds, "give seconds: this is more than ten years")
        raise ConfigError(argument, seconds, "give a finite number of seconds, 0 or more")
    return round(seconds * NS_PER_S)


def _number(argument: str, value: object) -> float:
    from datetime import timedelta  # a caller with a timedelta has it loaded already

    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(argument, value, "give seconds as a number or a timedelta")
    return value


def timeout_of(value: Seconds | None) -> Duration | None:
    """Return how long to wait for a lock, in ns: None is no limit, 0 is one attempt."""
    return None if value is None else non_negative("timeout", value)


def _ttl_ms(
    argument: str,
    value: object,
    node_timeout: Duration,
    drift_factor: float,
    max_ttl_ms: int | None = None,
) -> int:
    # Whole ms, rounded down: the node counts in them, so the validity must too.
    ttl_ms = positive(argument, value) // NS_PER_MS
    floor_ms = _shortest_ttl_ms(node_timeout, drift_factor)
    if ttl_ms < floor_ms:
        fix = (
            f"give at least {_in_seconds(floor_ms)} s: a lease must outlive several answers of"
            f" node_timeout={node_timeout / NS_PER_S:g} s, and the drift"
        )
        limit = ConfigLimit("node_timeout", floor_ms / 1000, is_most=False)
        raise ConfigError(argument, value, fix, limit=limit)
    if max_ttl_ms is not None and ttl_ms > max_ttl_ms:
        fix = f"give at most max_ttl={_in_seconds(max_ttl_ms)} s, or raise it for all clients"
        limit = ConfigLimit("max_ttl", max_ttl_ms / 1000, is_most=True)
        raise ConfigError(argument, value, fix, limit=limit)
    return interned(ttl_ms)


def _shortest_ttl_ms(node_timeout: Duration, drift_factor: float) -> int:
    """Return the least ttl: three replies fit into it, two into what the drift leaves of it."""
    validity = 2 * node_timeout + EXPIRY_RESOLUTION
    floor = max(TTL_PER_NODE_TIMEOUT * node_timeout, validity / (1 - drift_factor))
    return math.ceil(floor / NS_PER_MS)


def _in_seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


def _drift_factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ConfigError("drift_factor", value, "give a share of the ttl from 0 up to 1 (0.01)")
    return float(value)


def _retry_delay(value: Any) -> tuple[Duration, Duration]:
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ConfigError("retry_delay", value, "give (shortest, longest) in seconds") from None
    shortest = positive("retry_delay[0]", first)
    longest = positive("retry_delay[1]", second)
    if shortest > longest:
        raise ConfigError("retry_delay", value, "give the shorter delay first")
    return shortest, longest


def _restart_guard(value: RestartGuard) -> RestartGuard:
    if value not in ("uptime", "marker", None):
        fix = "give 'uptime', 'marker', or None where nodes are born empty (tests, CI)"
        raise ConfigError("restart_guard", value, fix)
    return value


def _waiting(value: Waiting) -> Waiting:
    if value not in ("auto", "poll"):
        fix = "give 'auto' (in order, called by the nodes) or 'poll' (at random times)"
        raise ConfigError("waiting", value, fix)
    return value


def _prefix(value: object) -> bytes:
    if not isinstance(value, (str, bytes)):
        raise ConfigError("prefix", value, "give a string, '' for none")
    prefix = _name_bytes("prefix", value)
    if len(prefix) >= KEY_BYTES_MAX or prefix.startswith(SIDE_KEYS):
        fix = f"give less than {KEY_BYTES_MAX} bytes that do not begin with 'quorlock:'"
        raise ConfigError("prefix", value, fix)
    return prefix


def name_of(resource: str | bytes) -> str:
    """Return a resource's name as text; bytes that are not UTF-8 survive (as in os.fsdecode)."""
    return resource.decode(errors="surrogateescape") if isinstance(resource, bytes) else resource


def key_of(resource: object, prefix: bytes) -> bytes:
    """Return the Redis key of a resource; raise ConfigError if the name cannot be used."""
    if not (isinstance(resource, (str, bytes)) and 0 < len(resource) <= KEY_BYTES_MAX):
        raise _unusable(resource)
    key = prefix + _name_bytes("resource", resource)
    if len(key) > KEY_BYTES_MAX:
        fix = f"prefix + resource may have {KEY_BYTES_MAX} bytes, this has {len(key)}"
        raise ConfigError("resource", resource, fix)
    if key.startswith(SIDE_KEYS):
        raise ConfigError("resource", resource, "keys that begin with 'quorlock:' are reserved")
    return key


def _unusable(resource: object) -> ConfigError:
    if not isinstance(resource, (str, bytes)):
        fix = "give the resource's name as str or bytes"
    elif not resource:
        fix = "give a name that is not empty"
    else:
        fix = f"prefix + resource may have {KEY_BYTES_MAX} bytes"
    return ConfigError("resource", resource, fix)


def _name_bytes(argument: str, value: str | bytes) -> bytes:
    try:
        name = value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError as error:
        raise ConfigError(argument, value, "give text that UTF-8 can encode") from error
    if b"\0" in name:
        raise ConfigError(argument, value, "leave out NUL bytes: other clients cut names there")
    return name
