"""Commands are RESP as encoded by hiredis, with any bytes in names and tokens."""

from __future__ import annotations

import hashlib

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorlock import scripts
from quorlock._core.commands import (
    Acquire,
    Command,
    Extend,
    Inspect,
    IssueFence,
    Release,
    ScriptedAcquire,
)
from quorlock._protocol.encoding import encode, encode_command, encode_eval

WORDS = st.one_of(st.binary(max_size=600), st.sampled_from([b"", b"\r\n", b"*1\r\n$4\r\nPING\r\n"]))
TTLS = st.integers(1, 10**12)


def packed_by_hiredis(*said: bytes) -> bytes:
    """Encode with hiredis, whose type hints accept only one word."""
    packed: bytes = hiredis.pack_command(said)  # type: ignore[arg-type]
    return packed


def words(command: Command, *, in_full: bool = False) -> tuple[bytes, ...]:
    """Return the words of a command."""
    if isinstance(command, Acquire):
        return (b"SET", command.key, command.token, b"NX", b"PX", b"%d" % command.ttl_ms)
    script = {
        ScriptedAcquire: scripts.ACQUIRE,
        IssueFence: scripts.RAISE,
        Release: scripts.RELEASE,
        Extend: scripts.EXTEND,
        Inspect: scripts.INSPECT,
    }[type(command)]
    head = (b"EVAL", script.text) if in_full else (b"EVALSHA", script.sha)
    arguments: tuple[bytes, ...] = (command.key,)
    counter = b"quorlock:fence:" + command.key
    if isinstance(command, ScriptedAcquire):
        numbers = (command.ttl_ms, command.grid_ms, command.marker_ms)
        parameters = (command.token, *(b"%d" % number for number in numbers))
        if command.place or command.instead:
            parameters += (command.place, command.instead)
        return (*head, b"3", command.key, counter, b"quorlock:guard", *parameters)
    if isinstance(command, IssueFence):
        parameters = (command.token, b"%d" % command.fence, b"%d" % command.ahead_ms)
        return (*head, b"2", command.key, counter, *parameters)
    if isinstance(command, Extend | Release):
        arguments += (command.token,)
    if isinstance(command, Extend):
        arguments += (b"%d" % command.ttl_ms,)
    if isinstance(command, Release) and command.place:
        arguments += (command.place, b"%d" % command.ticket)
    return (*head, b"1", *arguments)


@settings(deadline=None)
@given(WORDS, WORDS, TTLS)
@example(b"a\r\nb", b"\x00\xff\r\n", 10_000)
def test_every_command_is_packed_as_hiredis_does(key: bytes, token: bytes, ttl_ms: int) -> None:
    """The templates give the same bytes as hiredis.pack_command, for any key, token and ttl."""
    for command in (
        Acquire(key, token, ttl_ms),
        ScriptedAcquire(key, token, ttl_ms, 1_000, 30_000),
        IssueFence(key, token, ttl_ms, 15_000),
        ScriptedAcquire(key, token, ttl_ms, 0, 0, b"place", token),
        ScriptedAcquire(key, token, ttl_ms, 0, 0, b"", b"instead"),
        Extend(key, token, ttl_ms),
        Release(key, token),
        Release(key, token, b"place", -ttl_ms),
        Release(key, token, b"", ttl_ms),
        Inspect(key),
    ):
        assert encode(command) == packed_by_hiredis(*words(command))


@settings(deadline=None)
@given(WORDS, WORDS, TTLS)
def test_every_script_is_packed_in_full(key: bytes, token: bytes, ttl_ms: int) -> None:
    """A node that has lost a script is sent its text with the same arguments."""
    for command in (
        ScriptedAcquire(key, token, ttl_ms),
        IssueFence(key, token, ttl_ms, 1),
        ScriptedAcquire(key, token, ttl_ms, 0, 0, token, b"instead"),
        Extend(key, token, ttl_ms),
        Release(key, token),
        Release(key, token, b"place", ttl_ms),
        Inspect(key),
    ):
        assert encode_eval(command) == packed_by_hiredis(*words(command, in_full=True))


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_any_words_are_packed_and_come_back(given_words: list[bytes]) -> None:
    """Lengths come first, so nothing in a word can be taken for another word."""
    packed = encode_command(*given_words)
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
    """The constants are the SHA-1 of the texts, as EVALSHA requires; these have no comments."""
    assert script.sha == hashlib.sha1(script.text).hexdigest().encode()
    assert b"--" not in script.text
