"""What is sent is RESP as hiredis packs it, whatever bytes are in names and tokens."""

from __future__ import annotations

import hashlib

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorlock import scripts
from quorlock._core.commands import (
    Acquire,
    AcquireByScript,
    Command,
    Extend,
    Inspect,
    Raise,
    Release,
)
from quorlock._wire.packing import pack, pack_in_full, pack_words

WORDS = st.one_of(st.binary(max_size=600), st.sampled_from([b"", b"\r\n", b"*1\r\n$4\r\nPING\r\n"]))
TTLS = st.integers(1, 10**12)


def packed_by_hiredis(*said: bytes) -> bytes:
    """Its type hints know one word only."""
    packed: bytes = hiredis.pack_command(said)  # type: ignore[arg-type]
    return packed


def words(command: Command, *, in_full: bool = False) -> tuple[bytes, ...]:
    """What a node is to be told, word by word (DESIGN section 5)."""
    if isinstance(command, Acquire):
        return (b"SET", command.key, command.token, b"NX", b"PX", b"%d" % command.ttl_ms)
    script = {
        AcquireByScript: scripts.ACQUIRE,
        Raise: scripts.RAISE,
        Release: scripts.RELEASE,
        Extend: scripts.EXTEND,
        Inspect: scripts.INSPECT,
    }[type(command)]
    head = (b"EVAL", script.text) if in_full else (b"EVALSHA", script.sha)
    arguments: tuple[bytes, ...] = (command.key,)
    counter = b"quorlock:fence:" + command.key
    if isinstance(command, AcquireByScript):
        numbers = (command.ttl_ms, command.grid_ms, command.marker_ms)
        told = (command.token, *(b"%d" % number for number in numbers))
        return (*head, b"3", command.key, counter, b"quorlock:guard", *told)
    if isinstance(command, Raise):
        told = (command.token, b"%d" % command.fence, b"%d" % command.ahead_ms)
        return (*head, b"2", command.key, counter, *told)
    if isinstance(command, Extend | Release):
        arguments += (command.token,)
    if isinstance(command, Extend):
        arguments += (b"%d" % command.ttl_ms,)
    return (*head, b"1", *arguments)


@settings(deadline=None)
@given(WORDS, WORDS, TTLS)
@example(b"a\r\nb", b"\x00\xff\r\n", 10_000)
def test_every_command_is_packed_as_hiredis_does(key: bytes, token: bytes, ttl_ms: int) -> None:
    """The templates give the same bytes as hiredis.pack_command, for any key, token and ttl."""
    for command in (
        Acquire(key, token, ttl_ms),
        AcquireByScript(key, token, ttl_ms, 1_000, 30_000),
        Raise(key, token, ttl_ms, 15_000),
        Extend(key, token, ttl_ms),
        Release(key, token),
        Inspect(key),
    ):
        assert pack(command) == packed_by_hiredis(*words(command))


@settings(deadline=None)
@given(WORDS, WORDS, TTLS)
def test_every_script_is_packed_in_full(key: bytes, token: bytes, ttl_ms: int) -> None:
    """For a node that has forgotten a script, its text goes with the same arguments."""
    for command in (
        AcquireByScript(key, token, ttl_ms),
        Raise(key, token, ttl_ms, 1),
        Extend(key, token, ttl_ms),
        Release(key, token),
        Inspect(key),
    ):
        assert pack_in_full(command) == packed_by_hiredis(*words(command, in_full=True))


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_any_words_are_packed_and_come_back(given_words: list[bytes]) -> None:
    """Lengths come first, so nothing in a word can be taken for another word."""
    packed = pack_words(*given_words)
    assert packed == packed_by_hiredis(*given_words)
    reader = hiredis.Reader()
    reader.feed(packed)
    assert reader.gets() == given_words
    assert not reader.has_data()


@pytest.mark.parametrize(
    "script",
    [scripts.ACQUIRE, scripts.EXTEND, scripts.INSPECT, scripts.RAISE, scripts.RELEASE],
)
def test_a_scripts_name_is_its_hash(script: scripts.Script) -> None:
    """What is written down is the SHA-1 of the file, as EVALSHA expects it."""
    assert script.sha == hashlib.sha1(script.text).hexdigest().encode()
    assert script.text.startswith(b"-- "), "a script opens with its contract"
