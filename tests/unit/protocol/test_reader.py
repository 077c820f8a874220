"""ReplyReader gives replies as they are, whatever parts they come in, and bounds each one."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quorlock
from quorlock._protocol.reader import (
    NEED_DATA,
    REPLY_BYTES_MAX,
    ProtocolError,
    PushNotification,
    ReplyError,
    ReplyReader,
)

SECRET = b"canary-Pa55"


def fed(*parts: bytes) -> ReplyReader:
    reader = ReplyReader()
    for part in parts:
        reader.feed(part, len(part))
    return reader


def replies(reader: ReplyReader) -> list[Any]:
    found = []
    while (reply := reader.next_reply()) is not NEED_DATA:
        found.append(reply)
    return found


@given(st.lists(st.integers(0, 60)))
def test_parts_make_no_difference(cuts: list[int]) -> None:
    """Replies of every kind are the same in one piece and in many; #f and nil are replies."""
    data = b"+OK\r\n:-3\r\n$-1\r\n#f\r\n*2\r\n$2\r\nab\r\n:1\r\n>1\r\n+x\r\n_\r\n"
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader, found = ReplyReader(), []
    for start, end in pairwise(bounds):
        reader.feed(data[start:end], end - start)
        found += replies(reader)
    assert found == [b"OK", -3, None, False, [b"ab", 1], [b"x"], None]
    assert isinstance(found[5], PushNotification)
    assert not reader.has_data()


def test_only_the_first_bytes_are_taken() -> None:
    """A driver reads into one buffer, which is longer than what came; any buffer will do."""
    for buffer in (b"+OK\r\n:1\r\n", bytearray(b"+OK\r\n:1\r\n"), memoryview(b"+OK\r\n:1\r\n")):
        reader = ReplyReader()
        reader.feed(buffer, 5)
        assert replies(reader) == [b"OK"]


def test_an_error_reply_is_a_reply() -> None:
    (reply,) = replies(fed(b"-ERR no\r\n"))
    assert isinstance(reply, ReplyError)
    assert str(reply) == "ERR no"


def test_the_bound_is_for_one_reply() -> None:
    """Many replies may have any number of bytes; one has at most REPLY_BYTES_MAX."""
    part = b"$9990\r\n" + b"x" * 9_990 + b"\r\n"
    reader = ReplyReader()
    for _ in range(2 * REPLY_BYTES_MAX // len(part)):
        reader.feed(part[:5_000], 5_000)
        reader.feed(part[5_000:], len(part) - 5_000)
        assert len(replies(reader)) == 1
    reader.feed(b"$999999999\r\n", 12)
    reader.feed(b"x" * (REPLY_BYTES_MAX - 12), REPLY_BYTES_MAX - 12)
    assert replies(reader) == []
    with pytest.raises(ProtocolError, match="sends a reply without an end"):
        reader.feed(b"x", 1)


@pytest.mark.parametrize("data", [SECRET, b"HTTP/1.1 " + SECRET, b":" + SECRET + b"\r\n"])
def test_bytes_of_another_protocol_are_not_quoted(data: bytes) -> None:
    """An echo server sends our password back: no part of the error has it."""
    with pytest.raises(ProtocolError, match=r"^does not speak the Redis protocol$") as caught:
        fed(data + b"\r\n").next_reply()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_exception_of_a_signal_handler_passes() -> None:
    """A soft time limit that is raised while the parser runs does not become a ProtocolError."""

    class SoftTimeLimit(Exception):
        pass

    def interrupted(*_: object) -> Any:
        raise SoftTimeLimit

    reader = fed(b"+OK\r\n")
    reader.gets = interrupted
    with pytest.raises(SoftTimeLimit):
        reader.next_reply()


def test_hiredis_is_imported_once() -> None:
    """`ReplyReader` is the library's one way to hiredis; what tests need of it stays there."""
    package = Path(quorlock.__file__).parent
    importing = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import|from) hiredis\b", path.read_text(), re.MULTILINE)
    }
    library = {name for name in importing if not name.startswith("testing/")}
    assert library == {"_protocol/reader.py"}
