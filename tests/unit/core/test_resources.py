"""The claim on one resource: made once for a name and a prefix, and never for another one."""

from __future__ import annotations

from enum import StrEnum

import pytest

from quorlock._core.claims import Keys
from quorlock._core.resources import PermitName, claim_on
from quorlock.errors import ConfigError
from tests.harness.support.script import policy_of

POLICY = policy_of(3)


class Job(StrEnum):
    """Names that are equal to those of type str."""

    NIGHTLY = "nightly"


def test_locks_on_a_name_share_its_claim() -> None:
    name, claim = claim_on(("invoice:42",), POLICY)
    assert (name, claim) == ("invoice:42", Keys(b"invoice:42"))
    assert claim_on(("invoice:" + "42",), POLICY)[1] is claim


def test_each_prefix_has_its_own_claim() -> None:
    """Two Redlocks of one process, with the same names."""
    for prefix in (b"", b"shop:", b"bank:", b"shop:"):
        _, claim = claim_on(("a",), POLICY._replace(prefix=prefix))
        assert claim.keys == (prefix + b"a",)


@pytest.mark.parametrize("first", ["str", "other"])
def test_a_name_of_another_type_is_not_taken_for_the_str(first: str) -> None:
    """The types are equal as keys of a cache, whichever comes first."""
    other = PermitName(f"pool of {first}#0", 0)
    names = [str(other), other] if first == "str" else [other, str(other)]
    for name in names:
        text, claim = claim_on((name,), POLICY)
        assert claim.keys == (str(name).encode(),)
        assert text == str(name)
    assert claim_on((Job.NIGHTLY,), POLICY)[0] == "nightly"
    assert claim_on((b"nightly",), POLICY)[0] == "nightly"


@pytest.mark.parametrize(
    "resource", ["", "a\0b", "n" * 513, "quorlock:fence", "\ud800", 7, None, []]
)
def test_a_name_that_cannot_be_used_is_refused_each_time(resource: object) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError):
            claim_on((resource,), POLICY)
