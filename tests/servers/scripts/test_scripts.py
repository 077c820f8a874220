"""Each Lua script keeps the contract of its header, on a real server."""

from __future__ import annotations

import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from quorlock import scripts
from quorlock.scripts import Script
from quorlock.testing.servers import Server, ServerReplyError, Servers

KEY = b"resource"
TOKEN, OTHER = b"0123456789abcdef", b"fedcba9876543210"
MARK = b"0123456789abcdef@~web-3"
BINARY = [b"\x00", b"\xff\xfe\r\n", b"a\r\nb", bytes(range(256)), b" ", b"-1", b"1e3"]


@pytest.fixture
def node(nodes: Servers) -> Server:
    return nodes[0]


def run(node: Server, script: Script, *arguments: bytes | int, key: bytes = KEY) -> Any:
    """Run a script like a client: by text, with one key."""
    return node.execute("EVAL", script.text, 1, key, *arguments)


def pttl(node: Server, key: bytes = KEY) -> int:
    left: int = node.execute("PTTL", key)
    return left


def test_a_lock_with_a_waiter_is_not_released_with_others(node: Server) -> None:
    """0, and nothing is changed: release.lua hands that lock on."""
    for key in ("a", "b"):
        node.execute("SET", key, TOKEN, "PX", 5_000)
    node.execute("ZADD", "quorlock:queue:b", 1, "ab:1:1000")
    command = ("EVAL", scripts.RELEASE_EACH.text, 2, "a", "b", TOKEN, TOKEN)
    assert node.execute(*command) == 0
    assert node.execute("EXISTS", "a", "b") == 2
    node.execute("DEL", "quorlock:queue:b")
    assert node.execute(*command) == -3
    assert node.keys() == []


# --- release.lua: -3 deleted, -2 absent, -1 another's without ttl, n another's for n ms ---------


def test_release_deletes_what_is_ours(node: Server) -> None:
    """-3, and the key is gone, whether it expires or not."""
    for expiry in (("PX", 5_000), ()):
        node.execute("SET", KEY, TOKEN, *expiry)
        assert run(node, scripts.RELEASE, TOKEN) == -3
        assert node.keys() == []


def test_release_of_nothing(node: Server) -> None:
    """-2, also the second time and after expiry, and nothing is made."""
    assert run(node, scripts.RELEASE, TOKEN) == -2
    node.execute("SET", KEY, TOKEN, "PX", 1)
    time.sleep(0.005)
    assert run(node, scripts.RELEASE, TOKEN) == -2
    assert node.keys() == []


def test_release_leaves_anothers_key_alone(node: Server) -> None:
    """The rest of its life comes back, -1 if it has no end; value and ttl stay."""
    node.execute("SET", KEY, OTHER, "PX", 5_000)
    assert 4_000 < run(node, scripts.RELEASE, TOKEN) <= 5_000
    assert node.execute("GET", KEY) == OTHER
    assert 4_000 < pttl(node) <= 5_000
    node.execute("PERSIST", KEY)
    assert run(node, scripts.RELEASE, TOKEN) == -1
    assert (node.execute("GET", KEY), pttl(node)) == (OTHER, -1)


DIGITS = b"0123456789abcdef" * 2
OWNERLESS = [
    DIGITS,
    DIGITS + b"@",
    DIGITS[1:] + b"@web-3",
    DIGITS + b"0@web-3",
    b"g" + DIGITS[1:] + b"@web-3",
    DIGITS + b":web-3",
    DIGITS + b"@" + b"x" * 129,
    b"web-3@" + DIGITS,
    b"x" * 10_000_000,
]


@pytest.mark.parametrize("owner", [b"web-3:4711", b"x" * 128, b"a@b", b"\x1b\xff\0", b"%20"])
def test_release_tells_the_owner_in_anothers_token(node: Server, owner: bytes) -> None:
    """The reply has the rest of the key's life too, and never the digits."""
    node.execute("SET", KEY, DIGITS + b"@" + owner, "PX", 5_000)
    left, told = run(node, scripts.RELEASE, TOKEN)
    assert 4_000 < left <= 5_000
    assert told == owner
    node.execute("PERSIST", KEY)
    assert run(node, scripts.RELEASE, TOKEN) == [-1, owner]
    assert run(node, scripts.RELEASE, DIGITS) == [-1, owner], "the digits alone are another token"
    assert run(node, scripts.RELEASE, DIGITS + b"@" + owner) == -3
    assert node.keys() == []


@pytest.mark.parametrize("holder", OWNERLESS, ids=range(len(OWNERLESS)))
def test_release_tells_nothing_of_other_tokens(node: Server, holder: bytes) -> None:
    """Another library may have its secret anywhere."""
    node.execute("SET", KEY, holder, "PX", 5_000)
    assert 4_000 < run(node, scripts.RELEASE, TOKEN) <= 5_000


# --- extend.lua: 1 extended, 0 another's, -1 absent ---------------------------------------------


def test_extend_lets_what_is_ours_live_longer(node: Server) -> None:
    """1, and the ttl is the one asked for."""
    node.execute("SET", KEY, TOKEN, "PX", 1_000)
    assert run(node, scripts.EXTEND, TOKEN, 9_000) == 1
    assert 8_000 < pttl(node) <= 9_000
    assert node.execute("GET", KEY) == TOKEN


def test_a_shorter_extension_does_not_shorten(node: Server) -> None:
    """The reply is 1 as well: the key lives at least that long. A late, shorter one may arrive over
    another connection.
    """
    node.execute("SET", KEY, TOKEN, "PX", 9_000)
    for ttl_ms in (1, 1_000, 8_000):
        assert run(node, scripts.EXTEND, TOKEN, ttl_ms) == 1
        assert 8_000 < pttl(node) <= 9_000


def test_extend_makes_nothing(node: Server) -> None:
    """The reply is -1 if the key is absent or expired: extend never creates one (rule 4)."""
    assert run(node, scripts.EXTEND, TOKEN, 9_000) == -1
    node.execute("SET", KEY, TOKEN, "PX", 1)
    time.sleep(0.005)
    assert run(node, scripts.EXTEND, TOKEN, 9_000) == -1
    assert node.keys() == []


def test_extend_leaves_anothers_key_alone(node: Server) -> None:
    """0, and neither value nor ttl change."""
    node.execute("SET", KEY, OTHER, "PX", 5_000)
    assert run(node, scripts.EXTEND, TOKEN, 9_000) == 0
    assert 4_000 < pttl(node) <= 5_000
    node.execute("PERSIST", KEY)
    assert run(node, scripts.EXTEND, TOKEN, 9_000) == 0
    assert (node.execute("GET", KEY), pttl(node)) == (OTHER, -1)


def test_extend_of_our_key_without_ttl_gives_it_one(node: Server) -> None:
    """PTTL says -1 then, which is less than any ttl: it must not live for ever by our doing."""
    node.execute("SET", KEY, TOKEN)
    assert run(node, scripts.EXTEND, TOKEN, 9_000) == 1
    assert 8_000 < pttl(node) <= 9_000


def test_extend_by_the_longest_ttl(node: Server) -> None:
    """Ten years in ms, the longest that a policy takes, arrive undamaged."""
    node.execute("SET", KEY, TOKEN, "PX", 1_000)
    ttl_ms = 10 * 365 * 86_400_000
    assert run(node, scripts.EXTEND, TOKEN, ttl_ms) == 1
    assert ttl_ms - 1_000 < pttl(node) <= ttl_ms


# --- keep.lua: 1 kept, 0 another's, -1 absent ---------------------------------------------------


def test_keep_turns_what_is_ours_into_the_mark(node: Server) -> None:
    """The reply is 1, and the ttl is that of the mark: longer or shorter than before."""
    for kept_ms in (3_600_000, 1_000):
        node.execute("SET", KEY, TOKEN, "PX", 9_000)
        assert run(node, scripts.KEEP, TOKEN, MARK, kept_ms) == 1
        assert kept_ms - 500 < pttl(node) <= kept_ms
        assert node.execute("GET", KEY) == MARK


def test_what_was_kept_before_counts_from_then(node: Server) -> None:
    """A request that is sent again, since its reply was lost, changes nothing."""
    node.execute("SET", KEY, TOKEN, "PX", 9_000)
    assert run(node, scripts.KEEP, TOKEN, MARK, 5_000) == 1
    assert run(node, scripts.KEEP, TOKEN, MARK, 3_600_000) == 1
    assert 4_000 < pttl(node) <= 5_000


def test_late_commands_of_the_token_find_the_mark(node: Server) -> None:
    """A release, an extension and an acquire change nothing."""
    node.execute("SET", KEY, TOKEN, "PX", 9_000)
    run(node, scripts.KEEP, TOKEN, MARK, 5_000)
    assert run(node, scripts.RELEASE, TOKEN) > 0
    assert run(node, scripts.EXTEND, TOKEN, 60_000) == 0
    assert node.execute("SET", KEY, TOKEN, "NX", "PX", 60_000) is None
    assert node.execute("GET", KEY) == MARK
    assert 4_000 < pttl(node) <= 5_000


def test_keep_makes_nothing(node: Server) -> None:
    """The reply is -1 if the key is absent or expired."""
    assert run(node, scripts.KEEP, TOKEN, MARK, 9_000) == -1
    node.execute("SET", KEY, TOKEN, "PX", 1)
    time.sleep(0.005)
    assert run(node, scripts.KEEP, TOKEN, MARK, 9_000) == -1
    assert node.keys() == []


def test_keep_leaves_anothers_key_alone(node: Server) -> None:
    """Value and ttl stay, also those of another's mark."""
    for other in (OTHER, OTHER + b"@~"):
        node.execute("SET", KEY, other, "PX", 5_000)
        assert run(node, scripts.KEEP, TOKEN, MARK, 9_000) == 0
        assert 4_000 < pttl(node) <= 5_000
        assert node.execute("GET", KEY) == other


def test_keep_for_the_longest_time(node: Server) -> None:
    """Ten years in ms arrive undamaged."""
    node.execute("SET", KEY, TOKEN, "PX", 1_000)
    kept_ms = 10 * 365 * 86_400_000
    assert run(node, scripts.KEEP, TOKEN, MARK, kept_ms) == 1
    assert kept_ms - 1_000 < pttl(node) <= kept_ms


# --- inspect.lua: {token, ttl, waiters}, {false, -2, waiters} when absent -----------------------


def test_inspect_returns_token_and_ttl(node: Server) -> None:
    """Both in one reply; -1 for a key without end; nothing changes."""
    node.execute("SET", KEY, OTHER, "PX", 5_000)
    holder, left, _ = run(node, scripts.INSPECT)
    assert holder == OTHER
    assert 4_000 < left <= 5_000
    node.execute("PERSIST", KEY)
    assert run(node, scripts.INSPECT) == [OTHER, -1, 0]
    assert node.execute("GET", KEY) == OTHER


def test_inspect_cuts_what_is_longer_than_any_token(node: Server) -> None:
    """A reply of 10 MB would cost the connection."""
    node.execute("SET", KEY, b"x" * 10_000_000)
    assert run(node, scripts.INSPECT) == [b"x" * 4_096, -1, 0]


def test_inspect_of_nothing(node: Server) -> None:
    """None and -2, also for what has just expired: never a token with the ttl of nothing."""
    assert run(node, scripts.INSPECT) == [None, -2, 0]
    node.execute("SET", KEY, TOKEN, "PX", 1)
    time.sleep(0.005)
    assert run(node, scripts.INSPECT) == [None, -2, 0]


# --- all of them ------------------------------------------------------------------------------

ALL: list[tuple[Script, tuple[bytes | int, ...]]] = [
    (scripts.RELEASE, (TOKEN,)),
    (scripts.EXTEND, (TOKEN, 9_000)),
    (scripts.KEEP, (TOKEN, MARK, 9_000)),
    (scripts.INSPECT, ()),
]
NAMES = ["release", "extend", "keep", "inspect"]
each = pytest.mark.parametrize(("script", "arguments"), ALL, ids=NAMES)


@each
def test_another_type_is_an_error_and_left_alone(
    node: Server, script: Script, arguments: tuple[bytes | int, ...]
) -> None:
    """WRONGTYPE, as the headers say, and the list is still there."""
    node.execute("RPUSH", KEY, TOKEN)
    with pytest.raises(ServerReplyError, match="WRONGTYPE"):
        run(node, script, *arguments)
    assert node.execute("LRANGE", KEY, 0, -1) == [TOKEN]


@each
def test_by_name_a_script_is_known_after_its_text(
    node: Server, script: Script, arguments: tuple[bytes | int, ...]
) -> None:
    """The name that we compute is the server's; unknown it is NOSCRIPT, and nothing happens."""
    node.execute("SCRIPT", "FLUSH")
    node.execute("SET", KEY, TOKEN, "PX", 5_000)
    with pytest.raises(ServerReplyError, match=r"^NOSCRIPT") as caught:
        node.execute("EVALSHA", script.sha, 1, KEY, *arguments)
    assert caught.value.code == "NOSCRIPT"
    assert node.execute("GET", KEY) == TOKEN
    assert node.execute("SCRIPT", "LOAD", script.text) == script.sha
    node.execute("EVALSHA", script.sha, 1, KEY, *arguments)


@pytest.mark.parametrize("binary", BINARY, ids=range(len(BINARY)))
def test_names_and_tokens_are_bytes(node: Server, binary: bytes) -> None:
    """Any bytes are compared and returned unchanged, as key and as token."""
    node.execute("SET", binary, binary, "PX", 5_000)
    assert run(node, scripts.INSPECT, key=binary)[0] == binary
    assert run(node, scripts.EXTEND, binary, 9_000, key=binary) == 1
    assert run(node, scripts.EXTEND, binary + b"x", 9_000, key=binary) == 0
    assert run(node, scripts.RELEASE, binary + b"x", key=binary) > 0
    assert run(node, scripts.RELEASE, binary, key=binary) == -3
    assert node.keys() == []


def header_of(script: Script) -> str:
    """Return the comment at the beginning of its file; the text that is sent has none."""
    (name,) = [name for name in vars(scripts) if getattr(scripts, name) is script]
    lines = Path(scripts.__file__).with_name(f"{name.lower()}.lua").read_text().splitlines()
    return "\n".join(takewhile(lambda line: line.startswith("--"), lines))


@each
def test_a_header_names_every_return_value(script: Script, arguments: object) -> None:
    """KEYS, returns and errors are said before the first statement."""
    text = header_of(script)
    assert "KEYS[1] lock key" in text
    assert "returns" in text
    assert "errors  WRONGTYPE" in text


# --- config.lua: what was there, which is replaced if it is what was expected ---------------------


def test_config_is_replaced_by_who_knows_what_is_there(node: Server) -> None:
    steps = (
        (b"", b"first", b"", b"first"),
        (b"", b"late", b"first", b"first"),
        (b"first", b"second", b"first", b"second"),
        (b"first", b"late", b"second", b"second"),
    )
    for expected, new, before, after in steps:
        assert run(node, scripts.CONFIG, expected, new) == before
        assert node.execute("GET", KEY) == after


# --- guard.lua: how old the marker is, in ms ------------------------------------------------------

MARKER = b"quorlock:guard"
OURS, THEIRS = b"0a" * 20, b"f9" * 20


def guard(node: Server, worth: str = "nothing", run_id: bytes = OURS) -> int:
    age: int = run(node, scripts.GUARD, run_id, worth.encode(), key=MARKER)
    return age


def written(node: Server) -> tuple[bytes, int]:
    run_id, _, since = node.execute("GET", MARKER).partition(b":")
    return run_id, int(since)


def clock_ms(node: Server) -> int:
    seconds, microseconds = map(int, node.execute("TIME"))
    return seconds * 1000 + microseconds // 1000


@pytest.mark.parametrize("worth", ["nothing", "the same"])
@pytest.mark.parametrize("before", [None, b"", b"words", b"abc:", b":5", b"a:-5"])
def test_guard_marks_a_node_that_has_no_marker(
    before: bytes | None, worth: str, node: Server
) -> None:
    """The marker is from now on, without a ttl."""
    if before is not None:
        node.execute("SET", MARKER, before, "PX", 60_000)
    first = clock_ms(node)
    assert guard(node, worth) == 0
    assert written(node)[0] == OURS
    assert first <= written(node)[1] <= clock_ms(node)
    assert pttl(node, MARKER) == -1


@pytest.mark.parametrize("worth", ["nothing", "the same", "all"])
def test_guard_leaves_our_own_marker_alone(worth: str, node: Server) -> None:
    """The reply has its age, also with digits that Lua does not print for numbers."""
    for since in (0, 1_234_567_890_123):
        node.execute("SET", MARKER, b"%b:%d" % (OURS, since))
        first = clock_ms(node)
        assert first - since <= guard(node, worth) <= clock_ms(node) - since
        assert written(node) == (OURS, since)


@pytest.mark.parametrize("worth", ["nothing", "the same", "all"])
def test_guard_of_a_process_that_was_a_replica_meanwhile(worth: str, node: Server) -> None:
    """All its keys are another master's: the marker is from now on, whatever it was."""
    node.execute("SET", MARKER, OURS + b"." + THEIRS + b":1234567890123")
    first = clock_ms(node)
    assert guard(node, worth) == 0
    assert written(node)[0] == OURS
    assert first <= written(node)[1] <= clock_ms(node)


@pytest.mark.parametrize(
    ("worth", "since"), [("nothing", None), ("the same", 1_234_567_890_123), ("all", 0)]
)
def test_guard_of_another_process(worth: str, since: int | None, node: Server) -> None:
    """The reply has its age; from now on the marker is ours."""
    node.execute("SET", MARKER, THEIRS + b":1234567890123")
    first = clock_ms(node)
    age = guard(node, worth)
    then = first if since is None else since
    assert written(node)[0] == OURS
    assert written(node)[1] == then or (since is None and written(node)[1] >= first)
    assert age <= clock_ms(node) - then
    assert since is None or age >= first - since


def test_guard_of_a_node_that_was_born_empty(node: Server) -> None:
    """The node had nothing to forget: the marker is from the beginning of time."""
    first = clock_ms(node)
    assert guard(node, "all") >= first
    assert written(node) == (OURS, 0)


@pytest.mark.parametrize("whose", [OURS, THEIRS])
def test_guard_after_the_clock_was_set_back(whose: bytes, node: Server) -> None:
    """A marker from the future says nothing: it is replaced by one from now on."""
    node.execute("SET", MARKER, b"%b:%d" % (whose, clock_ms(node) + 60_000))
    first = clock_ms(node)
    assert guard(node, "the same") == 0
    assert first <= written(node)[1] <= clock_ms(node)


def test_guard_leaves_another_type_alone(node: Server) -> None:
    node.execute("RPUSH", MARKER, "1")
    with pytest.raises(ServerReplyError, match="WRONGTYPE"):
        guard(node)
    assert node.execute("LLEN", MARKER) == 1


# --- probe ----------------------------------------------------------------------------------------


def test_probe_changes_nothing(node: Server) -> None:
    """The script sets no key, and writes nothing that is saved or replicated."""
    before = node.execute("INFO", "persistence").split(b"rdb_changes_since_last_save:")[1][:9]
    assert run(node, scripts.PROBE, key=b"quorlock:probe") == 1
    after = node.execute("INFO", "persistence").split(b"rdb_changes_since_last_save:")[1][:9]
    assert (before, node.execute("EXISTS", "quorlock:probe")) == (after, 0)
