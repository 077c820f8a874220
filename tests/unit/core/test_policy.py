"""Settings of users: every wrong value is reported with the fix, every right one is kept
exactly.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from quorlock._core.config import KEY_BYTES_MAX, LONGEST, Policy, non_negative, timeout_of
from quorlock._core.time import NS_PER_MS, NS_PER_S
from quorlock.errors import ConfigError
from tests.harness.support.script import policy_of

NAN, INF = float("nan"), float("inf")

NUMBER = "give seconds as a number or a timedelta"
FINITE = "give a finite number of seconds, 0 or more"
ABOVE = "give seconds above 0"
DECADE = "give seconds: this is more than ten years"
SHARE = "give a share of the ttl from 0 up to 1 (0.01)"
PAIR = "give (shortest, longest) in seconds"
FLOOR = (
    "give at least 0.15 s: a lease must outlive several answers of node_timeout=0.05 s,"
    " and the drift"
)
NUL = "leave out NUL bytes: other clients cut names there"
NAME = "give the resource's name as str or bytes"

WRONG: list[tuple[str, Any, str]] = [
    ("ttl", 0, f"ttl=0: {ABOVE}"),
    ("ttl", 0.0, f"ttl=0.0: {ABOVE}"),
    ("ttl", 1e-10, f"ttl=1e-10: {ABOVE}"),
    ("ttl", -1, f"ttl=-1: {FINITE}"),
    ("ttl", -1e-12, f"ttl=-1e-12: {FINITE}"),
    ("ttl", NAN, f"ttl=nan: {FINITE}"),
    ("ttl", INF, f"ttl=inf: {FINITE}"),
    ("ttl", -INF, f"ttl=-inf: {FINITE}"),
    ("ttl", LONGEST + 1, f"ttl=315360001.0: {DECADE}"),
    ("ttl", 30.001, "ttl=30.001: give at most max_ttl=30 s, or raise it for all clients"),
    ("ttl", 31, "ttl=31: give at most max_ttl=30 s, or raise it for all clients"),
    ("ttl", 0.1499, f"ttl=0.1499: {FLOOR}"),
    ("ttl", 0.001, f"ttl=0.001: {FLOOR}"),
    ("ttl", True, f"ttl=True: {NUMBER}"),
    ("ttl", "10", f"ttl='10': {NUMBER}"),
    ("ttl", b"10", f"ttl=b'10': {NUMBER}"),
    ("ttl", Decimal(10), f"ttl=Decimal('10'): {NUMBER}"),
    ("ttl", 10j, f"ttl=10j: {NUMBER}"),
    ("ttl", [10], f"ttl=[10]: {NUMBER}"),
    ("max_ttl", 0, f"max_ttl=0: {ABOVE}"),
    ("max_ttl", INF, f"max_ttl=inf: {FINITE}"),
    ("max_ttl", 0.1, f"max_ttl=0.1: {FLOOR}"),
    ("max_ttl", "30", f"max_ttl='30': {NUMBER}"),
    ("node_timeout", 0, f"node_timeout=0: {ABOVE}"),
    ("node_timeout", -0.05, f"node_timeout=-0.05: {FINITE}"),
    ("node_timeout", 0.0009, "node_timeout=0.0009: give at least 0.001 (1 ms)"),
    ("node_timeout", NAN, f"node_timeout=nan: {FINITE}"),
    ("node_timeout", None, f"node_timeout=None: {NUMBER}"),
    ("connect_timeout", 0, f"connect_timeout=0: {ABOVE}"),
    ("connect_timeout", INF, f"connect_timeout=inf: {FINITE}"),
    ("connect_timeout", "1", f"connect_timeout='1': {NUMBER}"),
    ("outage_timeout", -1, f"outage_timeout=-1: {FINITE}"),
    ("outage_timeout", INF, f"outage_timeout=inf: {FINITE}"),
    ("outage_timeout", None, f"outage_timeout=None: {NUMBER}"),
    ("drift_factor", 1, f"drift_factor=1: {SHARE}"),
    ("drift_factor", 1.0, f"drift_factor=1.0: {SHARE}"),
    ("drift_factor", -0.01, f"drift_factor=-0.01: {SHARE}"),
    ("drift_factor", NAN, f"drift_factor=nan: {SHARE}"),
    ("drift_factor", False, f"drift_factor=False: {SHARE}"),
    ("drift_factor", "0.01", f"drift_factor='0.01': {SHARE}"),
    ("drift_factor", None, f"drift_factor=None: {SHARE}"),
    ("retry_delay", 0.1, f"retry_delay=0.1: {PAIR}"),
    ("retry_delay", None, f"retry_delay=None: {PAIR}"),
    ("retry_delay", (), f"retry_delay=(): {PAIR}"),
    ("retry_delay", (0.1,), f"retry_delay=(0.1,): {PAIR}"),
    ("retry_delay", (1, 2, 3), f"retry_delay=(1, 2, 3): {PAIR}"),
    ("retry_delay", (0.2, 0.1), "retry_delay=(0.2, 0.1): give the shorter delay first"),
    ("prefix", None, "prefix=None: give a string, '' for none"),
    ("prefix", 5, "prefix=5: give a string, '' for none"),
    ("prefix", "a\0", f"prefix='a\\x00': {NUL}"),
    ("prefix", "\ud800", "prefix='\\ud800': give text that UTF-8 can encode"),
    (
        "prefix",
        "quorlock:x",
        "prefix='quorlock:x': give less than 512 bytes that do not begin with 'quorlock:'",
    ),
]


@pytest.mark.parametrize(("argument", "value", "text"), WRONG, ids=[row[2] for row in WRONG])
def test_wrong_setting(argument: str, value: Any, text: str) -> None:
    """A wrong setting is refused with its name, what was given, and what to give."""
    with pytest.raises(ConfigError) as caught:
        policy_of(5, **{argument: value})
    assert str(caught.value) == text
    assert caught.value.argument == argument
    assert caught.value.fix == text.partition(": ")[2]


@pytest.mark.parametrize(
    ("delays", "argument", "fix"),
    [
        ((0, 0.1), "retry_delay[0]", ABOVE),
        ((0.1, 0), "retry_delay[1]", ABOVE),
        (("a", 0.1), "retry_delay[0]", NUMBER),
        ((0.1, NAN), "retry_delay[1]", FINITE),
        ((-1, 1), "retry_delay[0]", FINITE),
        ((0.1, LONGEST * 2), "retry_delay[1]", DECADE),
    ],
)
def test_wrong_one_of_two_delays(delays: Any, argument: str, fix: str) -> None:
    """The error names the wrong one of the pair."""
    with pytest.raises(ConfigError) as caught:
        policy_of(5, retry_delay=delays)
    assert (caught.value.argument, caught.value.fix) == (argument, fix)


@pytest.mark.parametrize("delta", [timedelta(0), timedelta(seconds=-1), timedelta.max])
def test_wrong_timedelta(delta: timedelta) -> None:
    """A timedelta is held to the same limits."""
    with pytest.raises(ConfigError, match=f"^ttl=.*: ({ABOVE}|{FINITE}|{DECADE})$"):
        policy_of(5, ttl=delta)


@pytest.mark.parametrize("value", [10**400, 10**5_000], ids=["10**400", "10**5000"])
@pytest.mark.parametrize("argument", ["ttl", "outage_timeout", "drift_factor"])
def test_a_number_too_large_for_a_float_is_a_config_error(argument: str, value: int) -> None:
    """A whole number that no float can hold is refused like any other, whatever its length."""
    with pytest.raises(ConfigError):
        policy_of(5, **{argument: value})


def test_settings_are_kept_in_their_units() -> None:
    """Durations become whole ns, ttls whole ms rounded down as nodes count them."""
    made = policy_of(
        5,
        ttl=timedelta(seconds=1, microseconds=1_999),
        max_ttl=2.0009,
        node_timeout=timedelta(milliseconds=50),
        connect_timeout=0.25,
        drift_factor=0,
        retry_delay=[0.05, timedelta(seconds=1)],
        outage_timeout=0,
        prefix="p:",
        restart_guard="marker",
    )
    assert made == Policy(
        addresses=("a", "b", "c", "d", "e"),
        ttl_ms=1_001,
        max_ttl_ms=2_000,
        node_timeout=50 * NS_PER_MS,
        connect_timeout=250 * NS_PER_MS,
        drift_factor=0.0,
        retry_delay=(50 * NS_PER_MS, NS_PER_S),
        outage_timeout=0,
        prefix=b"p:",
        restart_guard="marker",
        n=5,
        quorum=3,
    )
    assert (made.n, made.quorum, made.max_ttl) == (5, 3, 2 * NS_PER_S)
    with pytest.raises(AttributeError):
        made.ttl_ms = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("max_ttl", "ttl_ms"), [(30, 10_000), (10, 10_000), (5, 5_000)])
def test_the_default_ttl_is_ten_seconds_or_max_ttl(max_ttl: float, ttl_ms: int) -> None:
    """A shorter max_ttl alone is a valid setting."""
    assert policy_of(5, ttl=None, max_ttl=max_ttl).ttl_ms == ttl_ms


@pytest.mark.parametrize(
    "settings",
    [
        {"ttl": 0.15},
        {"ttl": 30},
        {"ttl": 30.0009, "max_ttl": 30.0001},
        {"ttl": 0.15, "max_ttl": 0.15},
        {"ttl": LONGEST, "max_ttl": LONGEST},
        {"node_timeout": 0.001, "ttl": 0.006},
        {"outage_timeout": 0},
        {"outage_timeout": LONGEST},
        {"connect_timeout": 1e-9},
        {"drift_factor": 0},
        {"drift_factor": 0.5},
        {"retry_delay": (0.1, 0.1)},
        {"retry_delay": [1e-9, 5]},
        {"prefix": ""},
        {"prefix": b"\xff"},
    ],
    ids=str,
)
def test_boundary_values_are_valid(settings: dict[str, Any]) -> None:
    """The last value on the right side of every limit is accepted."""
    policy_of(5, **settings)


@settings(deadline=None)
@given(st.integers(1_000, 500_000), st.integers(0, 10**6))
@example(50_500, 0)
@example(123_457, 0)
def test_advice_can_be_followed(node_timeout_us: int, ttl_us: int) -> None:
    """The least ttl and the most ttl that an error names are accepted when they are given."""
    node_timeout = node_timeout_us / 1e6
    for wrong, maximum in ((ttl_us % node_timeout_us / 1e6, 1e4), (2e6, 1_234.567)):
        with pytest.raises(ConfigError) as caught:
            policy_of(3, ttl=wrong, max_ttl=maximum, node_timeout=node_timeout)
        advised = re.search(r"(?:at least |max_ttl=)([0-9.e+]+) ", caught.value.fix)
        assume(advised is not None)  # a ttl of 0 has another message
        assert advised is not None
        ttl = float(advised[1])
        assert policy_of(3, ttl=ttl, max_ttl=maximum, node_timeout=node_timeout).ttl_ms > 0


@settings(deadline=None)
@given(
    st.integers(1, 1_000), st.integers(1, 100_000), st.sampled_from([0, 0.01, 0.3, 0.5, 0.9, 0.99])
)
@example(1, 3, 0.5)
@example(50, 150, 0.9)
def test_an_accepted_ttl_leaves_validity_for_a_round(
    node_timeout_ms: int, ttl_ms: int, drift_factor: float
) -> None:
    """Whatever the settings, a lease that a node grants at its last moment can still be valid:
    else every attempt would be too late, for ever.
    """
    try:
        made = policy_of(
            3,
            ttl=ttl_ms / 1e3,
            max_ttl=1e3,
            node_timeout=node_timeout_ms / 1e3,
            drift_factor=drift_factor,
        )
    except ConfigError:
        return
    assert made.valid_until(0, made.ttl_ms) > made.node_timeout


def test_validity_is_ttl_minus_drift_from_the_start_of_the_round() -> None:
    """Redlock page, step 4, as an instant: started + ttl - (ttl * drift_factor + 2 ms)."""
    made = policy_of(5)
    assert made.valid_until(1_000, 10_000) == 1_000 + 10 * NS_PER_S - 102 * NS_PER_MS
    assert policy_of(5, drift_factor=0).valid_until(0, 10_000) == 10 * NS_PER_S - 2 * NS_PER_MS


# --- what is checked at every call -----------------------------------------------------------


def test_the_ttl_of_one_call() -> None:
    """The argument defaults to the setting, and has the same limits."""
    made = policy_of(5, ttl=7)
    assert made.checked_ttl_ms(None) == 7_000
    assert made.checked_ttl_ms(0.15) == 150
    assert made.checked_ttl_ms(timedelta(seconds=30)) == 30_000
    wrongs: list[Any] = [0, -1, NAN, INF, 0.149, 30.001, "7", False]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=r"^ttl="):
            made.checked_ttl_ms(wrong)


def test_the_timeout_of_one_call() -> None:
    """None is for ever, 0 one attempt; what is no duration is refused under its name."""
    assert timeout_of(None) is None
    assert timeout_of(0) == 0
    assert timeout_of(2.5) == 2_500_000_000
    assert timeout_of(timedelta(minutes=1)) == 60 * NS_PER_S
    wrongs: list[Any] = [-1, NAN, INF, "1", True, [], LONGEST * 2]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=r"^timeout="):
            timeout_of(wrong)


def test_a_margin_may_be_zero() -> None:
    """`non_negative` names whatever argument it was asked about."""
    assert non_negative("margin", 0) == 0
    with pytest.raises(ConfigError, match=f"^margin=-1: {FINITE}$"):
        non_negative("margin", -1)


# --- keys ------------------------------------------------------------------------------------

KEYS: list[tuple[str | bytes, str | bytes, bytes]] = [
    ("", "r", b"r"),
    ("", b"r", b"r"),
    ("redlock:", "r", b"redlock:r"),
    (b"p\xff", b"\xfe", b"p\xff\xfe"),
    ("", "Zürich 🔒", "Zürich 🔒".encode()),
    ("", " \r\n*1", b" \r\n*1"),
    ("", "{tag}x", b"{tag}x"),
    ("", "x" * KEY_BYTES_MAX, b"x" * KEY_BYTES_MAX),
    ("p" * 12, "x" * 500, b"p" * 12 + b"x" * 500),
    ("my", "quorlock:x", b"myquorlock:x"),
    ("", "quorlock", b"quorlock"),
    ("", "Quorlock:x", b"Quorlock:x"),
]


@pytest.mark.parametrize(("prefix", "resource", "key"), KEYS, ids=range(len(KEYS)))
def test_a_key_is_prefix_and_resource(
    prefix: str | bytes, resource: str | bytes, key: bytes
) -> None:
    """Nothing is added to the name: other Redlock clients must find the same key."""
    assert policy_of(3, prefix=prefix).key(resource) == key


OWN_KEYS = "keys that begin with 'quorlock:' are reserved"
TOO_LONG = "prefix + resource may have 512 bytes"

WRONG_NAMES: list[tuple[str, Any, str]] = [
    ("", "", "resource='': give a name that is not empty"),
    ("", b"", "resource=b'': give a name that is not empty"),
    ("p", "", "resource='': give a name that is not empty"),
    ("", None, f"resource=None: {NAME}"),
    ("", 5, f"resource=5: {NAME}"),
    ("", True, f"resource=True: {NAME}"),
    ("", ["r"], f"resource=['r']: {NAME}"),
    ("", bytearray(b"r"), f"resource=bytearray(b'r'): {NAME}"),
    ("", "a\0b", f"resource='a\\x00b': {NUL}"),
    ("", b"a\0b", f"resource=b'a\\x00b': {NUL}"),
    ("", "\ud800", "resource='\\ud800': give text that UTF-8 can encode"),
    ("", "quorlock:x", f"resource='quorlock:x': {OWN_KEYS}"),
    ("", b"quorlock:", f"resource=b'quorlock:': {OWN_KEYS}"),
    ("quor", "lock:x", f"resource='lock:x': {OWN_KEYS}"),
    ("", "x" * 513, f"resource={'x' * 80!r}… (513 long): {TOO_LONG}"),
    ("", "ü" * 257, f"resource={'ü' * 80!r}… (257 long): {TOO_LONG}, this has 514"),
    ("p" * 13, "x" * 500, f"resource={'x' * 80!r}… (500 long): {TOO_LONG}, this has 513"),
    ("", "x" * 10_000_000, f"resource={'x' * 80!r}… (10000000 long): {TOO_LONG}"),
    ("", b"x" * 10_000_000, f"resource={b'x' * 80!r}… (10000000 long): {TOO_LONG}"),
]


@pytest.mark.parametrize(("prefix", "resource", "text"), WRONG_NAMES, ids=range(len(WRONG_NAMES)))
def test_wrong_resource(prefix: str, resource: Any, text: str) -> None:
    """A name that cannot be a key is refused, shortened when it is long."""
    with pytest.raises(ConfigError) as caught:
        policy_of(3, prefix=prefix).key(resource)
    assert str(caught.value) == text
    assert caught.value.argument == "resource"
