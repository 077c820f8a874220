"""Commands are RESP as encoded by hiredis, with any bytes in names and tokens."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorlock import scripts
from quorlock._core.commands import (
    Acquire,
    AcquireAny,
    Command,
    Extend,
    Inspect,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
)
from quorlock._core.resources import KEYS_BYTES_MAX, RESOURCES_MAX
from quorlock._protocol.encoding import encode, encode_command, encode_eval
from quorlock._protocol.pipeline import UNCOUNTED_MAX

WORDS = st.one_of(st.binary(max_size=600), st.sampled_from([b"", b"\r\n", b"*1\r\n$4\r\nPING\r\n"]))
TTLS = st.integers(1, 10**12)
FOLDER = Path(scripts.__file__).parent
STRINGS = re.compile(rb"'[^']*'")


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
        AcquireAny: scripts.ANY,
        IssueFence: scripts.RAISE,
        Release: scripts.RELEASE,
        Extend: scripts.EXTEND,
        Keep: scripts.KEEP,
        Inspect: scripts.INSPECT,
    }[type(command)]
    head = (b"EVAL", script.text) if in_full else (b"EVALSHA", script.sha)
    keys: tuple[bytes, ...] = (command.key,)
    said: tuple[bytes, ...] = ()
    counter = b"quorlock:fence:" + command.key
    if not isinstance(command, Inspect):
        said = (command.token,)
    if isinstance(command, ScriptedAcquire):
        numbers = (command.ttl_ms, command.grid_ms, command.marker_ms)
        keys += (counter, b"quorlock:guard")
        said += tuple(b"%d" % number for number in numbers)
        if command.place or command.instead:
            said += (command.place, command.instead)
    if isinstance(command, AcquireAny):
        keys += (b"quorlock:guard",)
        said += (b"%d" % command.ttl_ms, b"%d" % command.marker_ms)
    if isinstance(command, IssueFence):
        keys += (counter,)
        said += (b"%d" % command.fence, b"%d" % command.ahead_ms)
    if isinstance(command, Keep):
        said += (command.mark, b"%d" % command.kept_ms)
    if isinstance(command, Extend):
        said += (b"%d" % command.ttl_ms,)
    if isinstance(command, Release) and command.place:
        said += (command.place, b"%d" % command.ticket)
    keys += getattr(command, "also", ())
    return (*head, b"%d" % len(keys), *keys, *said)


@settings(deadline=None)
@given(WORDS, WORDS, TTLS)
@example(b"a\r\nb", b"\x00\xff\r\n", 10_000)
def test_every_command_is_packed_as_hiredis_does(key: bytes, token: bytes, ttl_ms: int) -> None:
    """The templates give the same bytes as hiredis.pack_command, for any key, token and ttl."""
    for command in (
        Acquire(key, token, ttl_ms),
        ScriptedAcquire(key, token, ttl_ms, 1_000, 30_000),
        AcquireAny(key, token, ttl_ms, 30_000, (token, key)),
        IssueFence(key, token, ttl_ms, 15_000),
        ScriptedAcquire(key, token, ttl_ms, 0, 0, b"place", token),
        ScriptedAcquire(key, token, ttl_ms, 0, 0, b"", b"instead"),
        Extend(key, token, ttl_ms),
        Keep(key, token, b"mark", ttl_ms),
        Release(key, token),
        Release(key, token, b"place", -ttl_ms),
        Release(key, token, b"", ttl_ms),
        Release(key, token, b"place", ttl_ms, (b"also", key)),
        Release(key, token, also=(b"also",)),
        Extend(key, token, ttl_ms, (b"also",)),
        ScriptedAcquire(key, token, ttl_ms, 1, 2, also=(b"also", b"more")),
        Inspect(key),
    ):
        assert encode(command) == packed_by_hiredis(*words(command))


@settings(deadline=None)
@given(WORDS, WORDS, TTLS)
def test_every_script_is_packed_in_full(key: bytes, token: bytes, ttl_ms: int) -> None:
    """A node that has lost a script is sent its text with the same arguments."""
    for command in (
        ScriptedAcquire(key, token, ttl_ms),
        AcquireAny(key, token, ttl_ms),
        IssueFence(key, token, ttl_ms, 1),
        ScriptedAcquire(key, token, ttl_ms, 0, 0, token, b"instead"),
        Extend(key, token, ttl_ms),
        Keep(key, token, b"mark", ttl_ms),
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
    "script", [each for each in vars(scripts).values() if isinstance(each, scripts.Script)]
)
def test_a_scripts_name_is_its_hash(script: scripts.Script) -> None:
    """The constants are the SHA-1 of the texts, as EVALSHA requires; these have no comments."""
    assert script.sha == hashlib.sha1(script.text).hexdigest().encode()
    assert b"--" not in script.text


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.lua")), ids=lambda path: path.name)
def test_a_scripts_strings_are_sent_as_written(path: Path) -> None:
    """Spaces are left out of the code alone."""
    lines = path.read_bytes().splitlines()
    code = b"\n".join([line for line in lines if not line.lstrip().startswith(b"--")])
    assert STRINGS.findall(scripts.as_sent(code)) == STRINGS.findall(code)


def test_a_few_of_the_longest_fit_into_what_a_hung_server_reads() -> None:
    """UNCOUNTED_MAX of them do, each with its release: see UNREAD_MAX."""
    size = KEYS_BYTES_MAX // RESOURCES_MAX
    key, *also = [b"%*d" % (size, number) for number in range(RESOURCES_MAX)]
    token, place = b"0" * 32 + b"@" + b"o" * 128, b"%016x:%d:%d" % (2**63, 10**9, 10**7)
    acquire = ScriptedAcquire(key, token, 10**8, 1_000, 10**8, place, also=tuple(also))
    release = Release(key, token, place, 10**9, tuple(also))
    assert UNCOUNTED_MAX * (len(encode(acquire)) + len(encode(release))) < 16 * 1024
