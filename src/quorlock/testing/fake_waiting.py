"""Commands of a memory node about queues and channels: sorted sets, SUBSCRIBE and PUBLISH."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quorlock.testing.fake_keys import WRONG_TYPE, Entry, Error, Push, with_place, without

if TYPE_CHECKING:
    from quorlock.testing.fake_call import CommandCall
    from quorlock.testing.fake_keys import Places, Reply

_SYNTAX: Final = Error("ERR syntax error")
_NO_FLOAT: Final = Error("ERR value is not a valid float")


def zadd(call: CommandCall) -> Reply:
    """Execute ZADD with one score and member."""
    key, score, member = call.words
    try:
        ticket = float(score)
    except ValueError:
        return _NO_FLOAT
    places = _places(call)
    if places is None:
        return WRONG_TYPE
    call.node.set_places(key, with_place(places, ticket, member), call.at)
    return int(all(known != member for _, known in places))


def zrem(call: CommandCall) -> Reply:
    """Execute ZREM with one member."""
    key, member = call.words
    places = _places(call)
    if places is None:
        return WRONG_TYPE
    left = without(places, member)
    call.node.set_places(key, left, call.at)
    return len(places) - len(left)


def zcard(call: CommandCall) -> Reply:
    """Execute ZCARD."""
    places = _places(call)
    return WRONG_TYPE if places is None else len(places)


def zrange(call: CommandCall) -> Reply:
    """Execute ZRANGE key 0 -1 WITHSCORES."""
    key, first, last, option = call.words
    del key
    if (first, last, option.lower()) != (b"0", b"-1", b"withscores"):
        return _SYNTAX
    places = _places(call)
    if places is None:
        return WRONG_TYPE
    return [[member, float(score)] for score, member in places]


def publish(call: CommandCall) -> Reply:
    """Execute PUBLISH."""
    channel, message = call.words
    return call.node.publish(channel, message)


def subscribe(call: CommandCall) -> Reply:
    """Execute SUBSCRIBE with one channel."""
    session, (channel,) = call.session, call.words
    call.node.subscribe(channel, session.hear)
    if channel not in session.channels:
        session.channels.append(channel)
    return Push([b"subscribe", channel, len(session.channels)])


def unsubscribe(call: CommandCall) -> Reply:
    """Execute UNSUBSCRIBE with one channel."""
    session, (channel,) = call.session, call.words
    call.node.unsubscribe(channel, session.hear)
    if channel in session.channels:
        session.channels.remove(channel)
    return Push([b"unsubscribe", channel, len(session.channels)])


def _places(call: CommandCall) -> Places | None:
    """Return the members of the set; None if the key has another type of data."""
    entry = call.alive() or Entry(None, None)
    return None if entry.value is not None or entry.members else entry.places
