"""The resources of a call: their names as one text, and the claim on their keys."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias, cast

from quorlock._core.claims import AnyOf, Keys, Shared, keys_of
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from typing import Self

    from quorlock._core.claims import Claim
    from quorlock._core.config import Policy

# One resource, or several.
Resource: TypeAlias = (
    str | bytes | tuple[str | bytes, ...] | list[str] | list[bytes] | list[str | bytes]
)
RESOURCES_MAX = 64
# Of a semaphore, and resources of which any one will do.
PERMITS_MAX = 1024
# A hung server reads 16 KiB more at once (`UNREAD_MAX` in _protocol/pipeline.py): `UNCOUNTED_MAX`
# acquires of so many bytes fit into it, with their releases.
KEYS_BYTES_MAX = 1200
# So many claims are remembered for each prefix.
KNOWN_MAX = 1024


class ResourceNames(str):
    """The names of several resources as one text; its repr has each of them in quotes."""

    __slots__ = ("names",)
    names: tuple[str, ...]

    def __new__(cls, names: tuple[str, ...]) -> Self:
        self = super().__new__(cls, " + ".join(names))
        self.names = names
        return self

    def __getnewargs__(self) -> tuple[tuple[str, ...]]:  # type: ignore[override]
        return (self.names,)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.names))


class PermitName(str):
    """The name of the resource that a permit is, with the number of the permit."""

    __slots__ = ("permit",)
    permit: int

    def __new__(cls, name: str, permit: int) -> Self:
        self = super().__new__(cls, name)
        self.permit = permit
        return self

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        return (str(self), self.permit)


class AnyNames(ResourceNames):
    """The names of resources of which any one will do, as one text."""

    __slots__ = ()

    def __new__(cls, names: tuple[str, ...]) -> Self:
        self = str.__new__(cls, " or ".join(names))
        self.names = names
        return self

    def __repr__(self) -> str:
        return " or ".join(map(repr, self.names))


def names_of(resource: str) -> tuple[str, ...]:
    """Return the names in the text of one resource or several."""
    return resource.names if isinstance(resource, ResourceNames) else (resource,)


def claim_on(resources: tuple[object, ...], policy: Policy) -> tuple[str, Claim]:
    """Return the names of these resources as one text, and the claim on their keys.

    They are sorted, and each counts once.  Raises ConfigError.
    """
    if len(resources) == 1:
        resource = resources[0]
        if type(resource) is str:
            known = _known_claims(policy.prefix)
            return resource, known.get(resource) or _remember(known, resource, policy)
        key = policy.key(resource)
        return policy.resource_of(key), keys_of((key, ()))
    keys = sorted({policy.key(resource) for resource in resources})
    if not keys:
        raise ConfigError("resources", (), "give at least one")
    if len(keys) > RESOURCES_MAX:
        raise ConfigError("resources", len(keys), f"give at most {RESOURCES_MAX}")
    size = sum(map(len, keys))
    if len(keys) > 1 and size > KEYS_BYTES_MAX:
        fix = f"their keys have {size} bytes: give less or shorter ones, of {KEYS_BYTES_MAX} in all"
        raise ConfigError("resources", len(keys), fix)
    names = tuple([policy.resource_of(key) for key in keys])
    text = names[0] if len(names) == 1 else ResourceNames(names)
    return text, keys_of((keys[0], tuple(keys[1:])))


@functools.lru_cache(maxsize=16)
def _known_claims(prefix: bytes) -> dict[str, Keys]:
    """Return the claims that were made last: most programs lock the same names again and again.

    An entry has a fifth of the bytes that it would have in an `lru_cache`.
    """
    del prefix  # each has its own
    return {}


def _remember(known: dict[str, Keys], name: str, policy: Policy) -> Keys:
    claim = keys_of((policy.key(name), ()))
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[name] = claim
    return claim


def claim_on_permits(resource: str | bytes, permits: object, policy: Policy) -> AnyOf:
    """Return the claim on any one permit of a semaphore: permit 2 of `pool` is `pool#2`.

    Raises ConfigError.
    """
    if type(permits) is not int or not 1 <= permits <= PERMITS_MAX:
        raise ConfigError("permits", permits, f"give a whole number from 1 to {PERMITS_MAX}")
    start = policy.key(resource) + b"#"
    policy.key(start.removeprefix(policy.prefix) + b"%d" % (permits - 1))  # not too long
    return AnyOf(tuple([b"%b%d" % (start, permit) for permit in range(permits)]))


def permit_of(key: bytes, policy: Policy) -> PermitName:
    """Return the name of the permit with this key."""
    return PermitName(policy.resource_of(key), int(key.rpartition(b"#")[2]))


def claim_on_any(resources: tuple[object, ...], policy: Policy) -> tuple[str, AnyOf]:
    """Return the names of these resources as one text, and the claim on any one of them.

    Each counts once.  Raises ConfigError.
    """
    keys = tuple(dict.fromkeys([policy.key(resource) for resource in resources]))
    if len(keys) > PERMITS_MAX:
        raise ConfigError("resources", len(keys), f"give at most {PERMITS_MAX}")
    names = tuple([policy.resource_of(key) for key in keys])
    return AnyNames(names), AnyOf(keys)


def claim_shared(
    resources: tuple[object, ...], policy: Policy, *, shared: object, fencing: object
) -> tuple[str, Claim]:
    """Return the name of the resource, and the claim on it that others may share.

    Raises ConfigError.
    """
    if not isinstance(shared, bool):
        raise ConfigError("shared", shared, "give True or False")
    name, claim = claim_on(resources, policy)
    if claim.keys[1:]:
        fix = "a lock on several resources cannot be shared: share one after the other"
        raise ConfigError("shared", shared, fix)
    if fencing:
        fix = "leases that are shared have no fence, since those that share a lock do not write"
        raise ConfigError("fencing", fencing, fix)
    return name, Shared(claim.key)


def check_no_fences(fencing: object) -> None:
    """Raise ConfigError if a semaphore is to issue fences."""
    if fencing is True:
        raise ConfigError("fencing", fencing, "permits have no fences yet")


def as_resources(resource: object) -> tuple[object, ...]:
    """Return one name, or the names in a tuple or list, as a tuple."""
    if isinstance(resource, (tuple, list)):
        return tuple(cast("list[object]", resource))
    return (resource,)
