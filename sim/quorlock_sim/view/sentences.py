"""One sentence for each event of a trace; the views choose the events to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock_sim.clock import PPM
from quorlock_sim.view.story import ALL_CLIENTS, ENDS, ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock_sim.view.story import Event

_KNOWN = frozenset({"at", "index", "kind", "what", "client", "node"})
_DURATIONS = frozenset({"lasts", "by", "late_by"})


def sentence(event: Event) -> str:
    """Return the event in words; an event of unknown kind is printed as its fields."""
    say = _SENTENCES.get(str(event.get("kind")), _as_it_is)
    return say(event)


def votes(event: Event) -> str:
    """Return the votes of an outcome: "n0 granted, n1 refused, n2 unknown"."""
    found: list[str] = event.get("votes", [])
    return ", ".join(f"n{node} {vote}" for node, vote in enumerate(found))


def facts(event: Event) -> str:
    """Return the details of a fault, without kind and place: "by 3,000 ms, memory lost"."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_value(name, value)}"
        for name, value in event.items()
        if name not in _KNOWN
    )


def place(event: Event) -> str:
    """Return the place of an event: "n1", "c0", "c0 and n1", "all clients and n1" or ""."""
    client, node = event.get("client"), event.get("node")
    parts = [] if client is None else ["all clients" if client == ALL_CLIENTS else f"c{client}"]
    parts += [] if node is None else [f"n{node}"]
    return " and ".join(parts)


def pace_words(pace: int) -> str:
    """Return the clock's rate against true time: "+0.49 %" is faster."""
    return f"{(pace - PPM) / 10_000:+.2f} %" if pace else "0: it stands still"


def reply_words(event: Event) -> str:
    """Return a node's vote in words, with the meaning of the reply for this command."""
    reply, command = event.get("reply"), event["command"]
    if isinstance(reply, str) and reply != "OK":
        return f"error: {reply.partition(' ')[0]}"
    if command == "release":
        return _release_words(reply)
    told: Any = reply
    words = ""
    if type(reply) is list:
        words = _fence_words(command, *told[:3])
    elif event["vote"] == "granted":
        words = "granted"
    if words:
        return f"{words}, in place of {event['instead']}" if is_exchanged(event) else words
    return _REFUSALS.get((command, told), str(event["vote"]))


_REFUSALS: dict[tuple[str, Any], str] = {
    ("acquire", None): "refused",
    ("extend", 0): "refused (held by another)",
    ("extend", -1): "refused (the key is gone)",
}


def _fence_words(command: str, what: int, _clock: int, number: int) -> str:
    """Return the meaning of a reply of scripts/acquire.lua or raise.lua."""
    if what == 1:
        return f"granted, fence {number}"
    words = {
        -1: "the key is gone" if command == "raise" else f"quarantined for {number:,} ms",
        0: "held by another",
        -2: "its counter cannot be used",
        -3: "too far ahead of its clock",
    }
    return f"refused ({words[what]})"


_DELETED, _ABSENT = -3, -2  # see scripts/release.lua


def is_exchanged(event: Event) -> bool:
    """Return whether the node has exchanged one token for another."""
    return bool(event.get("instead")) and event.get("found") == "instead"


def _release_words(reply: Any) -> str:
    if isinstance(reply, list):
        told: list[Any] = reply  # pyright: ignore[reportUnknownVariableType]
        queued = f", {told[3]} ahead in its queue" if told[3:] and told[3] >= 0 else ""
        return f"{_release_words(told[0])}{queued}"
    if reply == _DELETED:
        return "deleted"
    if reply == _ABSENT:
        return "no key"
    if isinstance(reply, int):
        return f"held by another, {reply:,} ms left" if reply >= 0 else "held by another, no ttl"
    return str(reply)


def _value(name: str, value: Any) -> str:
    if name in _DURATIONS:
        return f"{ms(value)} ms"
    return pace_words(value) if name == "pace" else str(value)


def _world(event: Event) -> str:
    return (
        f"a world begins: seed {event.get('seed')}, scenario {event.get('scenario')},"
        f" {event.get('n')} nodes, {event.get('clients')} clients"
    )


def _call(event: Event) -> str:
    where = f" {event['resource']}" if event.get("resource") else ""
    token = f" as {event['token']}" if event.get("token") else ""
    return f"c{event['client']} calls {event['what']}{where}{token}"


def _send(event: Event) -> str:
    pending_release = ", a pending release" if event["round"] == 0 else ""
    return f"c{event['client']} to n{event['node']}: {_order(event)}{pending_release}"


def _order(event: Event) -> str:
    ttl = f" for {event['ttl_ms']:,} ms" if event["ttl_ms"] else ""
    token = f" as {event['token']}" if event["token"] or "place" not in event else ""
    instead = f" in place of {event['instead']}" if event.get("instead") else ""
    return f"{event['command']} {event['key']}{token}{instead}{ttl}{_place(event)}"


def _place(event: Event) -> str:
    """Return what becomes of the sender's place in the queue."""
    if not event.get("place") or "ticket" not in event:
        return f" at place {event['place']}" if event.get("place") else ""
    ticket = event["ticket"]
    words = {0: "queues place", -1: "leaves place"}.get(ticket, f"ticket {abs(ticket)} for place")
    return f", {words} {event['place']}"


def _execute(event: Event) -> str:
    return f"n{event['node']} does {event['command']} {event['token']}: {reply_words(event)}"


def _reply(event: Event) -> str:
    late = "" if event.get("heard", True) else ", too late: no flow waits for it"
    cause = event.get("cause")
    why = f", {cause}" if cause and cause != event["vote"] else ""
    return f"n{event['node']} to c{event['client']}: {event['vote']}{why}{_about(event)}{late}"


def _lose(event: Event) -> str:
    if "token" not in event:
        return f"the {event['what']} of message {event['message']} is lost"
    ends = [f"c{event['client']}", f"n{event['node']}"]
    source, target = ends if event["what"] == "request" else reversed(ends)
    return f"{source} to {target}: the {event['what']} is lost{_about(event)}"


def _about(event: Event) -> str:
    """Return the message's command and token, if a story has added them."""
    return f" ({event['command']} {event['token']})" if "token" in event else ""


def _outcome(event: Event) -> str:
    token = f" {event['token']}" if event.get("token") else ""
    until = f", {_valid(event['valid_until'])}" if "valid_until" in event else ""
    error = f": {event['error']}" if event.get("error") else ""
    said = votes(event)
    why = f" ({said})" if said else ""
    outcome = str(event["outcome"]).replace("_", " ")
    if outcome in _BARE:
        outcome = f"{event['what'].replace('_', ' ')}: {outcome}"
    return f"c{event['client']} gets: {outcome}{token}{error}{until}{why}"


def _valid(until: int | None) -> str:
    return (
        "valid forever: its clock stands still" if until is None else f"valid until {ms(until)} ms"
    )


_BARE = frozenset({"none", "yes", "no", "cancelled", "crashed"})  # these need the call's name


def _fault(event: Event) -> str:
    more = facts(event)
    why = f" ({more})" if more else ""
    where = place(event)
    if event["what"] in ENDS:
        return f"{where} {_ENDINGS[event['what']]}{why}"
    named = str(event["what"]).replace("_", " ") + (f" of {where}" if where else "")
    return f"FAULT: {named}{why}"


_ENDINGS = {
    "restart": "is back",
    "resume": "continues",
    "go_on": "continues",
    "rejoin": "reach each other again",
}


def _lease(event: Event) -> str:
    span = f"from {ms(event['since'])} to {ms(event['until'])} ms"
    return f"lease {event['token']} on {event['resource']} could be trusted {span}"


def _end_of_world(event: Event) -> str:
    why = "; ".join(event.get("why", []))
    kept = "assumptions intact" if event["assumptions_intact"] else "assumptions broken"
    return f"the world ends, {kept}" + (f": {why}" if why else "")


def _as_it_is(event: Event) -> str:
    told = (f"{name}={value}" for name, value in event.items() if name not in ("at", "index"))
    return " ".join(told)


_SENTENCES: dict[str, Callable[[Event], str]] = {
    "world": _world,
    "connect": lambda e: f"c{e['client']} is connected to n{e['node']}",
    "disconnect": lambda e: f"c{e['client']} loses its connection to n{e['node']}",
    "call": _call,
    "send": _send,
    "execute": _execute,
    "reply": _reply,
    "push": lambda e: f"n{e['node']} calls c{e['client']}, place {e['place']}",
    "lose": _lose,
    "elapsed": lambda e: f"c{e['client']} waits no longer: a deadline has passed",
    "outcome": _outcome,
    "end": lambda e: f"c{e['client']} no longer holds {e['token']}: {e['why']}",
    "fault": _fault,
    "lease": _lease,
    "violation": lambda e: f"VIOLATION ({e['rule']}): {e['text']}",
    "end_of_world": _end_of_world,
}
