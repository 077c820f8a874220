"""No password and no token comes out of a server's text, whole or cut, wherever it stands."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock._core.commands import Acquire, Command, Extend, IssueFence, Release, ScriptedAcquire
from quorlock._drivers.entropy import SystemEntropy
from quorlock._protocol.redaction import redacted, without
from quorlock._protocol.replies import error_answer
from tests.unit.protocol.test_pipeline import Talk

PIECE = 6
HEX = "0123456789abcdef"
tokens = st.text(HEX, min_size=32, max_size=32)
# What a server may put around it, digits that continue it included.
words = st.text(st.sampled_from([*HEX, *"xyz '`\",:-\\…\n"]), max_size=60)


def pieces(secret: str, length: int = PIECE) -> set[str]:
    return {secret[i : i + length] for i in range(len(secret) - length + 1)}


@given(words, tokens, words, st.data())
def test_no_piece_of_a_known_secret_is_left(
    before: str, secret: str, after: str, data: st.DataObject
) -> None:
    """Servers cut what they play back, at either end."""
    start = data.draw(st.integers(0, 31))
    end = data.draw(st.integers(start + 1, 32))
    shown = without(before + secret[start:end] + after, [secret])
    assert not [piece for piece in pieces(secret) if piece in shown]


@given(words, tokens, words)
def test_an_unknown_token_is_recognised_by_its_shape(before: str, secret: str, after: str) -> None:
    """Another client's; digits beside it may make it longer, letters and signs do not."""
    shown = redacted(f"{before.strip(HEX)} {secret} {after}")
    if re.search("[a-f]", secret):
        assert secret not in shown


@given(st.text(min_size=PIECE, max_size=40), words, words)
def test_any_password(secret: str, before: str, after: str) -> None:
    """The password has any characters; three stars in it look like ours."""
    if "*" not in secret:
        assert secret not in without(before + secret + after, [secret])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "ERR unknown command 'EVALSHA', with args beginning with: '679f' '1' 'y' 'canary",
            "ERR unknown command 'EVALSHA'",
        ),
        (
            "ERR unknown command `EVALSHA`, with args beginning with: ",
            "ERR unknown command `EVALSHA`",
        ),
        (f"ERR lock {uuid.UUID(int=0xABCDEF)} is held", "ERR lock *** is held"),
        (f"ERR lock {'AB12' * 8} is held", "ERR lock *** is held"),
        ("ERR lock ab12ab12ab12 is", "ERR lock *** is"),
        # Not secret, and of use to who reads it.
        (f"ERR Error running script (call to f_{'679fe6e0' * 5})", None),
        (f"NOSCRIPT no {'0123456789' * 4}", None),
        ("MOVED 15470 127.0.0.1:17404", None),
        ("LOADING 1795310992000000 bytes of deadbeef", None),
        ("is not a master (role slave of fe80:0000:0000:abcd::1)", None),
    ],
    ids=range(10),
)
def test_what_is_taken_out_and_what_stays(text: str, shown: str | None) -> None:
    assert redacted(text) == (text if shown is None else shown)


def test_a_short_password_is_taken_out() -> None:
    """Wherever and however often it is; without a password nothing changes."""
    assert redacted("ERR pw and pw", ["pw"]) == "ERR *** and ***"
    assert redacted("ERR pw", [None, ""]) == "ERR pw"


def test_what_a_text_means_does_not_depend_on_the_secret() -> None:
    """A password that is a server's own word."""
    answer = error_answer("NOPERM you may not", ["NOPERM"])
    assert answer.is_lasting
    assert answer.text == "*** you may not"


def test_an_owner_may_be_shown_but_nothing_before_it() -> None:
    """The words of an owner may be those of the error: only the digits are secret."""
    ours = b"f3" * 16 + b"@web-3:4711"
    talk = Talk.that_released()
    talk.ask(Release(b"k", ours))
    ((_, answer),) = talk.deliver(b"-ERR web-3:4711 sent '" + ours + b"', '" + ours[20:] + b"'\r\n")
    assert answer.text == "ERR web-3:4711 sent '***@web-3:4711', '***@web-3:4711'"


def command(kind: type[Command], token: bytes) -> Command:
    if kind is Release:
        return Release(b"k", token)
    if kind is IssueFence:
        return IssueFence(b"k", token, 1, 1)
    assert kind in (Acquire, ScriptedAcquire, Extend)
    return kind(b"k", token, 1_000)


@pytest.mark.parametrize("kind", [Acquire, ScriptedAcquire, IssueFence, Extend, Release])
@pytest.mark.parametrize("cut", [None, 9, -9, 15])
def test_a_node_that_plays_back_our_token_or_anothers(kind: type[Command], cut: int | None) -> None:
    """The token of the same command, and of a later one over the same connection."""
    for _ in range(20):
        ours, theirs = SystemEntropy().token(), b"token-of-another-library"
        talk = Talk.that_released()
        talk.ask(command(kind, ours))
        talk.ask(Release(b"k", theirs))
        said = b"".join([ours[:cut], b"' '", theirs[:cut], b"' '", ours[cut or 0 :]])
        ((_, answer),) = talk.deliver(b"-ERR whatever you say '" + said + b"'\r\n")
        for token in (ours, theirs):
            left = [piece for piece in pieces(token.decode()) if piece in answer.text]
            assert not left, (answer.text, token)
