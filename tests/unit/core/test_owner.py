"""Owners: what may be given, what a token says of its holder, and what is safe to show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock._core.owner import (
    DEFAULT_OWNER,
    OWNER_BYTES_MAX,
    owner_in,
    readable,
    secret_of,
    tail,
)
from quorlock._core.redlock import common_owner, common_readers
from quorlock._core.votes import HELD
from quorlock.errors import ConfigError

DIGITS = b"0123456789abcdef" * 2


def shown(owner: str, host: str = "web-3", pid: int = 4711) -> str | None:
    return readable(owner_in(DIGITS + tail(owner, host, pid)))


def test_the_default_is_host_and_pid() -> None:
    assert tail(DEFAULT_OWNER, "web-3", 4711) == b"@web-3:4711"
    assert shown(DEFAULT_OWNER) == "web-3:4711"


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_owner_leaves_the_token_alone(nothing: str | None) -> None:
    assert tail(nothing, "web-3", 4711) == b""
    assert owner_in(DIGITS) == b""
    assert readable(b"") is None


# Both are replaced by their values.
FIELDS = ("{host}", "{pid}")
SHORT_TEXT = st.text(max_size=10).filter(
    lambda text: text.isprintable() and text != "" and not any(field in text for field in FIELDS)
)


@given(SHORT_TEXT)
def test_any_printable_text_comes_back(owner: str) -> None:
    """Also %, @, spaces and letters beyond ASCII; a token remains one plain word of a shell."""
    token = DIGITS + tail(owner, "h", 1)
    assert readable(owner_in(token)) == owner
    assert token.isascii()
    assert not set(token) & set(b" \t\n'\"`$&|;<>(){}[]*?!~#\\")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("h" * 300, "h" * 64 + ":4711"),
        ("evil\x1b[31m\n", "evil?[31m?:4711"),
        ("wébßerver", "w?b?erver:4711"),
        ("", ":4711"),
    ],
)
def test_no_host_name_makes_the_default_fail(host: str, expected: str) -> None:
    assert shown(DEFAULT_OWNER, host) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        b"web",
        True,
        ["a"],
        "two\nlines",
        "\x1b[2J",
        "a\0b",
        "\u202eabc",
        "\ud800",
        "x" * 129,
        "é" * 22,
    ],
)
def test_what_cannot_be_shown_on_one_line_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        tail(wrong, "web-3", 4711)
    assert (caught.value.argument, caught.value.value) == ("owner", wrong)
    assert caught.value.fix


def test_the_longest_owner() -> None:
    """The limit is that of the encoded bytes, and counts the longest pid, for forked children."""
    assert len(tail("x" * OWNER_BYTES_MAX, "h", 1)) == 1 + OWNER_BYTES_MAX
    assert shown("x" * OWNER_BYTES_MAX) == "x" * OWNER_BYTES_MAX
    tail("x" * 121 + "{pid}", "h", 1)
    with pytest.raises(ConfigError, match="may take 128 bytes, and takes 129"):
        tail("x" * 122 + "{pid}", "h", 1)


OTHERS = [
    b"",
    DIGITS,
    DIGITS + b"@",
    DIGITS[1:] + b"@web-3:1",
    DIGITS + b"0@web-3:1",
    b"g" + DIGITS[1:] + b"@web-3:1",
    DIGITS + b":web-3:1",
    DIGITS + b"@" + b"x" * 129,
    b"7f0c9a0e-6a3b-4a57-9d3c-0d5e8a3c2b11:42",
    b"host-7@7f0c9a0e6a3b4a579d3c0d5e8a3c2b11",
    b"x" * 10_000_000,
]


@pytest.mark.parametrize("token", OTHERS, ids=range(len(OTHERS)))
def test_tokens_of_another_form_have_no_owner(token: bytes) -> None:
    """Tokens of other libraries may have their secret anywhere."""
    assert owner_in(token) == b""
    assert secret_of(token) == token


def test_only_the_digits_are_secret() -> None:
    assert secret_of(DIGITS + b"@web-3:1") == DIGITS


HOSTILE = [
    (b"\x1b[2J\x07", "?[2J?"),
    (b"%1B%5B2J%0A", "?[2J?"),
    (b"\xff\xfe", "\ufffd\ufffd"),
    (b"%E2%80%AEabc", "?abc"),
    (b"%", "%"),
    (b"%4", "%4"),
    (b"%zz%41", "%zzA"),
    (b"a\r\nSet-Cookie: x", "a??Set-Cookie: x"),
]


@pytest.mark.parametrize(("owner", "expected"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_another_client_wrote_is_fit_for_a_terminal(owner: bytes, expected: str) -> None:
    assert readable(owner) == expected


@given(st.binary(min_size=1, max_size=400).filter(lambda owner: owner != b"~"))
def test_anything_is_readable_on_one_line(owner: bytes) -> None:
    """All but the mark of a client without an owner, which names none."""
    text = readable(owner)
    assert text is not None
    assert text.isprintable()
    assert len(text) <= OWNER_BYTES_MAX


def test_readers_and_the_holder_are_those_that_a_quorum_names() -> None:
    """A node names a few of the readers; the others may be there for a moment only."""
    said = (b"*3 a b", b"*2 c a", b"", b"*9 b c a", b"a")
    answers = tuple([HELD._replace(owner=owner) for owner in said])
    assert common_readers(answers, 3) == (2, [b"a"])
    assert common_readers(answers, 2) == (3, [b"a", b"b", b"c"])
    assert common_readers(answers, 4) == (0, [])
    assert common_owner(answers[3:], 1) == b"*9 b c a"
    assert common_owner(answers[3:], 2) == b""
