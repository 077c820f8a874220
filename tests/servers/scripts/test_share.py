"""share.lua and what the other scripts make of readers, on servers and on memory nodes."""

from __future__ import annotations

from typing import Any

import pytest

from quorlock._core.claims import Keys, Shared
from quorlock._core.commands import (
    JOIN,
    LEAVE,
    Acquire,
    AcquireAny,
    Command,
    Extend,
    Inspect,
    IssueFence,
    Keep,
    Release,
    ScriptedAcquire,
    Share,
)
from quorlock._core.places import QUEUE, RESERVED
from quorlock._protocol.encoding import MARKER
from quorlock._protocol.replies import READERS
from quorlock.errors import VoteCode
from tests.servers.scripts.test_queues import (
    INBOXES,
    KEY,
    OTHER,
    TOKEN,
    A,
    B,
    Client,
    OneNode,
    at,
    started,
)

__all__ = ["at", "started"]

FREED, ABSENT = -3, -2
SHARED_A = A + b":shared"


@pytest.fixture
def client(at: OneNode) -> Client:
    return at.client


def share(token: bytes, ttl_ms: int = 9_000, place: bytes = b"") -> Share:
    return Share(KEY, token, ttl_ms, 0, place)


def vote(client: Client, command: Command) -> Any:
    return READERS[type(command)](client.run(command))


def readers(client: Client) -> list[bytes]:
    return list(ends(client))


def ends(client: Client) -> dict[bytes, float]:
    """Return the readers with their ends, in ms of the node's clock."""
    return dict(client.ask(b"ZRANGE", KEY, b"0", b"-1", b"WITHSCORES"))


def clock_ms(client: Client) -> int:
    seconds, microseconds = client.ask(b"TIME")
    return int(seconds) * 1_000 + int(microseconds) // 1_000


def test_readers_join_and_others_find_it_held(client: Client) -> None:
    """None of the commands of a writer fails for the type of the key."""
    for token in (TOKEN, OTHER, TOKEN):
        assert vote(client, share(token)).code is VoteCode.GRANTED
    assert sorted(readers(client)) == sorted((TOKEN, OTHER))
    third = b"1" * 32
    for command in (
        Acquire(KEY, third, 5_000),
        ScriptedAcquire(KEY, third, 5_000, 1_000),
        ScriptedAcquire(b"other", third, 5_000, also=(KEY,)),
        AcquireAny(KEY, third, 5_000),
        Extend(KEY, third, 5_000),
        Extend(KEY, TOKEN, 5_000, (b"other",)),
        Keep(KEY, TOKEN, b"mark", 5_000),
        IssueFence(KEY, third, 7, 1_000),
        Release(KEY, third),
    ):
        assert vote(client, command).code is VoteCode.HELD, command
    assert sorted(readers(client)) == sorted((TOKEN, OTHER))


def test_each_ends_by_itself(client: Client) -> None:
    vote(client, share(TOKEN, 9_000))
    vote(client, share(OTHER, 2_000))
    assert client.ask(b"PTTL", KEY) > 8_000
    assert vote(client, Release(KEY, TOKEN)).code is VoteCode.GRANTED
    assert client.ask(b"PTTL", KEY) <= 2_000
    assert vote(client, Release(KEY, TOKEN)).code is VoteCode.HELD
    assert vote(client, Release(KEY, OTHER)).code is VoteCode.GRANTED
    assert client.run(Release(KEY, OTHER)) == ABSENT
    assert client.ask(b"EXISTS", KEY) == 0


def test_the_key_lives_as_long_as_the_last_of_them(client: Client) -> None:
    """Also if that one joins last; else a writer gets the lock while it still reads."""
    third = b"1" * 32
    vote(client, share(TOKEN, 2_000))
    vote(client, share(OTHER, 9_000))
    assert client.ask(b"PTTL", KEY) > 8_000
    vote(client, share(third, 3_000))
    assert client.ask(b"PTTL", KEY) > 8_000
    assert vote(client, Release(KEY, third)).code is VoteCode.GRANTED
    assert client.ask(b"PTTL", KEY) > 8_000


def test_an_extension_never_makes_a_reader_nor_shortens(client: Client) -> None:
    vote(client, share(TOKEN, 5_000))
    assert vote(client, Extend(KEY, OTHER, 9_000, shared=True)).code is VoteCode.KEY_MISSING
    assert vote(client, Extend(KEY, OTHER, 9_000)).code is VoteCode.HELD
    for ttl_ms in (9_000, 1_000):
        assert vote(client, Extend(KEY, TOKEN, ttl_ms, shared=True)).code is VoteCode.GRANTED
        assert client.ask(b"PTTL", KEY) > 8_000
    assert readers(client) == [TOKEN]


def test_an_extension_moves_the_end_of_a_reader(client: Client) -> None:
    """A reader that has ended by the clock of the node does not count, though the key is there."""
    vote(client, share(TOKEN, 5_000))
    vote(client, share(OTHER, 60_000))
    began = clock_ms(client)
    assert vote(client, Extend(KEY, TOKEN, 9_000, shared=True)).code is VoteCode.GRANTED
    end = ends(client)[TOKEN]
    assert began + 9_000 <= end <= clock_ms(client) + 9_000
    vote(client, Extend(KEY, TOKEN, 1_000, shared=True))
    assert ends(client)[TOKEN] == end


def test_a_holder_keeps_readers_out(client: Client) -> None:
    client.run(Acquire(KEY, TOKEN, 5_000))
    found = vote(client, share(OTHER))
    assert (found.code, 0 < found.ttl_left_ms <= 5_000) == (VoteCode.HELD, True)
    assert vote(client, Extend(KEY, OTHER, 9_000, shared=True)).code is VoteCode.HELD


def test_the_data_of_others_is_left_alone(client: Client) -> None:
    """A sorted set without a ttl is no set of readers; other types are errors as ever."""
    client.ask(b"ZADD", KEY, b"7", b"ann")
    for command in (share(TOKEN), Release(KEY, TOKEN, SHARED_A), Release(KEY, TOKEN)):
        assert vote(client, command).code is VoteCode.HELD_WITHOUT_TTL
    assert "WRONGTYPE" in client.run(Inspect(KEY))
    assert (readers(client), client.ask(b"PTTL", KEY)) == ([b"ann"], -1)
    client.ask(b"DEL", KEY)
    client.ask(b"RPUSH", KEY, b"x")
    for refused in (share(TOKEN), Release(KEY, TOKEN), Extend(KEY, TOKEN, 9)):
        assert "WRONGTYPE" in client.run(refused)


def persisted(client: Client, *members: bytes) -> None:
    """Have these be readers until the year 2286, of a key without a ttl."""
    for member in members:
        client.ask(b"ZADD", KEY, b"9999999999999", member)


def test_readers_whose_key_lost_its_ttl_leave_all_the_same(client: Client) -> None:
    """An administrator's PERSIST: one that leaves removes itself alone."""
    persisted(client, TOKEN, OTHER, RESERVED + SHARED_A)
    assert client.ask(b"PTTL", KEY) == -1
    client.run(Release(KEY, b"", SHARED_A, LEAVE))
    assert sorted(readers(client)) == sorted((TOKEN, OTHER))
    client.ask(b"DEL", KEY)
    persisted(client, TOKEN, OTHER)
    assert vote(client, Release(KEY, TOKEN)).code is VoteCode.GRANTED
    assert (readers(client), client.ask(b"PTTL", KEY) > 0) == ([OTHER], True)
    client.ask(b"DEL", KEY)
    persisted(client, TOKEN)
    assert vote(client, Release(KEY, TOKEN)).code is VoteCode.GRANTED
    assert client.ask(b"PTTL", KEY) == ABSENT


def test_the_first_that_waits_alone_keeps_newcomers_out(client: Client) -> None:
    """Only while its process is there; a reader that is in is granted again."""
    vote(client, share(TOKEN))
    client.ask(b"SUBSCRIBE", b"quorlock:inbox:" + INBOXES[0])
    client.run(Release(KEY, b"", A, JOIN))
    assert vote(client, share(OTHER)).code is VoteCode.HELD
    assert vote(client, share(TOKEN)).code is VoteCode.GRANTED
    client.ask(b"UNSUBSCRIBE", b"quorlock:inbox:" + INBOXES[0])
    assert vote(client, share(OTHER)).code is VoteCode.GRANTED
    assert client.ask(b"ZCARD", QUEUE + KEY) == 0


def test_a_reader_that_waits_keeps_its_place_when_another_passes_it(client: Client) -> None:
    client.run(Acquire(KEY, TOKEN, 5_000))
    client.run(Release(KEY, b"", SHARED_A, JOIN))
    client.ask(b"DEL", KEY)
    assert vote(client, share(OTHER)).code is VoteCode.GRANTED
    assert client.ask(b"ZCARD", QUEUE + KEY) == 1


def test_a_reader_leaves_the_queue_when_it_is_granted(client: Client) -> None:
    """The first of it is granted though the next one wants the lock alone."""
    assert vote(client, share(TOKEN, place=SHARED_A)).code is VoteCode.GRANTED
    client.ask(b"DEL", KEY)
    client.run(Acquire(KEY, TOKEN, 5_000))
    client.ask(b"SUBSCRIBE", b"quorlock:inbox:" + INBOXES[1])
    for place in (SHARED_A, B):
        client.run(Release(KEY, b"", place, JOIN))
    client.ask(b"DEL", KEY)
    assert vote(client, share(OTHER, place=SHARED_A)).code is VoteCode.GRANTED
    assert client.ask(b"ZCARD", QUEUE + KEY) == 1


def test_who_is_gone_neither_bars_readers_nor_gets_the_lock(client: Client) -> None:
    """A waiter that wants the lock alone bars those that come, also behind one that is gone."""
    for inbox in INBOXES:
        client.ask(b"SUBSCRIBE", b"quorlock:inbox:" + inbox)
    vote(client, share(TOKEN))
    comes = INBOXES[2] + b":8:5000:shared"
    for place in (A, B, comes):
        client.run(Release(KEY, b"", place, JOIN))
    for gone, left, found in (
        (INBOXES[0], 2, [TOKEN]),
        (INBOXES[1], 0, [TOKEN, RESERVED + comes]),
    ):
        client.ask(b"UNSUBSCRIBE", b"quorlock:inbox:" + gone)
        client.run(Release(KEY, b"", comes, JOIN))
        assert sorted(readers(client)) == sorted(found)
        assert client.ask(b"ZCARD", QUEUE + KEY) == left


def test_a_reader_that_is_gone_is_not_called(client: Client) -> None:
    client.run(Acquire(KEY, TOKEN, 5_000))
    client.ask(b"SUBSCRIBE", b"quorlock:inbox:" + INBOXES[1])
    for place in (SHARED_A, B + b":shared"):
        client.run(Release(KEY, b"", place, JOIN))
    client.run(Release(KEY, TOKEN))
    assert readers(client) == [RESERVED + B + b":shared"]


def test_the_last_reader_passes_the_lock_on(client: Client) -> None:
    client.ask(b"SUBSCRIBE", b"quorlock:inbox:" + INBOXES[0])
    vote(client, share(TOKEN))
    vote(client, share(OTHER))
    client.run(Release(KEY, b"", A, JOIN))
    client.run(Release(KEY, TOKEN))
    assert client.ask(b"ZCARD", QUEUE + KEY) == 1
    client.run(Release(KEY, OTHER))
    assert client.ask(b"GET", KEY) == RESERVED + A


def test_readers_in_a_row_are_called_together(client: Client) -> None:
    """Up to the first that wants it alone, and each is granted what is reserved for it."""
    for inbox in INBOXES:
        client.ask(b"SUBSCRIBE", b"quorlock:inbox:" + inbox)
    client.run(Acquire(KEY, TOKEN, 5_000))
    places = [SHARED_A, B + b":shared", INBOXES[2] + b":9:5000", INBOXES[2] + b":8:5000:shared"]
    for place in places:
        client.run(Release(KEY, b"", place, JOIN))
    client.run(Release(KEY, TOKEN))
    assert sorted(readers(client)) == sorted(RESERVED + place for place in places[:2])
    assert vote(client, share(OTHER, place=SHARED_A)).code is VoteCode.GRANTED
    assert sorted(readers(client)) == sorted((OTHER, RESERVED + places[1]))
    assert vote(client, share(TOKEN, place=places[3])).code is VoteCode.HELD
    client.run(Release(KEY, b"", places[1], LEAVE))
    assert readers(client) == [OTHER]
    client.run(Release(KEY, OTHER))
    assert client.ask(b"GET", KEY) == RESERVED + places[2]


def test_inspection_and_reports_name_readers(client: Client) -> None:
    vote(client, share(TOKEN + b"@web-1", 5_000))
    vote(client, share(OTHER, 9_000))
    found = vote(client, Inspect(KEY))
    assert [token for token, _ in found.readers] == [OTHER, TOKEN + b"@web-1"]
    assert vote(client, Release(KEY, b"?")).owner == b"*2 web-1 "


@pytest.mark.parametrize("marker_ms", [0, 30_000])
def test_the_marker_keeps_readers_out(client: Client, marker_ms: int) -> None:
    """No reader gets in until it is old enough; nothing but the marker is set before that."""
    client.ask(b"DEL", MARKER)
    command = Share(KEY, TOKEN, 9_000, marker_ms)
    if marker_ms:
        assert vote(client, command).code is VoteCode.QUARANTINED
        assert (client.ask(b"EXISTS", KEY), client.ask(b"EXISTS", MARKER)) == (0, 1)
        client.ask(b"SET", MARKER, b"run:1000")
    assert vote(client, command).code is VoteCode.GRANTED


def test_a_claim_that_is_shared_has_neither_fence_nor_exchange() -> None:
    claim = Shared(KEY)
    assert claim.led_by(KEY) == claim
    assert claim.keys == Keys(KEY).keys
    for refused in (
        lambda: claim.issue_fence(TOKEN, 1, 1),
        lambda: claim.acquire(TOKEN, 1, None, fenced=True),  # type: ignore[arg-type]
        lambda: claim.acquire(TOKEN, 1, None, instead=OTHER),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="shared"):
            refused()
