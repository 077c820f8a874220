"""Values that users make are read-only and compared by what they hold, and no tuples."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import pytest

from quorlock import Node, Ticket, Tls

SECRET = "correct-horse"
# Of each kind one, the arguments of another that differs by one field, and the fields in order.
VALUES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "Node": (
        Node("a", 1, username="u", password=SECRET, tls=True),
        {"host": "b"},
        [
            *("host", "port", "db", "path", "username", "password", "credentials", "tls"),
            *("durable", "memory"),
        ],
    ),
    "Tls": (
        Tls(certfile="c", keyfile_password=SECRET, ca_data=SECRET),
        {"certfile": "d"},
        [
            *("verify", "check_hostname", "ca_certs", "ca_path", "ca_data", "certfile", "keyfile"),
            *("keyfile_password", "min_version", "context"),
        ],
    ),
    "Ticket": (
        Ticket("r", SECRET, 1.0, 7, (("run-id", 0.5),)),
        {"fence": 8},
        ["resource", "token", "ttl", "fence", "in_doubt", "resources", "permit", "shared"],
    ),
}
pytestmark = pytest.mark.parametrize(("value", "change", "names"), VALUES.values(), ids=VALUES)


def test_it_is_compared_and_hashed_by_what_it_holds(
    value: Any, change: dict[str, Any], names: list[str]
) -> None:
    twin, other = value.__replace__(), value.__replace__(**change)
    assert twin == value is not twin
    assert other != value
    assert {value, twin, other} == {value, other}
    for name in names:
        assert getattr(twin, name) == getattr(value, name)


def test_another_kind_is_never_equal(value: Any, change: dict[str, Any], names: list[str]) -> None:
    del change
    facts = tuple(getattr(value, name) for name in names)
    kind: type[Any] = type("Another", (type(value),), {})
    others: list[Any] = [facts, list(facts), repr(value), None]
    if not isinstance(value, Tls):
        others.append(kind(**dict(zip(names, facts, strict=True))))
    for other in others:
        assert value != other
        assert other != value


def test_it_is_no_tuple(value: Any, change: dict[str, Any], names: list[str]) -> None:
    """Iteration does not unpack it, and nothing shows its secret by accident."""
    del change, names
    assert not isinstance(value, Iterable)
    for shown in (repr(value), "{}".format(value), "%s" % value, f"{[value]}"):  # noqa: UP031, UP032
        assert type(value).__name__ in shown
        assert SECRET not in shown


def test_it_cannot_be_changed(value: Any, change: dict[str, Any], names: list[str]) -> None:
    del change
    before = [getattr(value, name) for name in names]
    for name in (*names, "other"):
        with pytest.raises(AttributeError, match=f"{name!r}.* read-only"):
            setattr(value, name, "b")
        with pytest.raises(AttributeError, match=f"{name!r}.* read-only"):
            delattr(value, name)
    assert [getattr(value, name) for name in names] == before


def test_it_is_copied_and_pickled_whole(
    value: Any, change: dict[str, Any], names: list[str]
) -> None:
    del change
    pickled = [
        pickle.loads(pickle.dumps(value, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    ]
    for twin in (copy.copy(value), copy.deepcopy(value), *pickled):
        assert twin == value
        assert hash(twin) == hash(value)
        assert [getattr(twin, name) for name in names] == [getattr(value, name) for name in names]


def test_a_copy_has_other_fields(value: Any, change: dict[str, Any], names: list[str]) -> None:
    """`copy.replace` of Python 3.13 makes one, and so does the constructor."""
    assert list(vars(value)) == names
    replace: Any = getattr(copy, "replace", type(value).__replace__)
    for made in (type(value)(**vars(value) | change), replace(value, **change)):
        assert vars(made) == vars(value) | change
    with pytest.raises(TypeError, match="nome"):
        replace(value, nome="b")


def test_it_can_be_matched(value: Any, change: dict[str, Any], names: list[str]) -> None:
    del change, names
    match value:
        case Node("a", 1) | Tls(certfile="c") | Ticket("r", _, 1.0, 7):
            pass
        case _:
            pytest.fail(f"{value!r} matches no pattern")
