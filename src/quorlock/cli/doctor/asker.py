"""Finds out the facts about the nodes: the one module here that talks to them, all at once.

Each question may be refused (an ACL that gives quorlock no more than it needs refuses most), so a
refusal is a fact like others. What is written lives in keys of our own, for seconds.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quorlock import now
from quorlock._drivers.ask import Refused, Silent, Talk
from quorlock.cli.aside import each
from quorlock.cli.doctor.facts import Facts, NodeFacts, Reading

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from quorlock import Node
    from quorlock.cli.config import Settings

__all__ = ["Silent", "Talk", "connected", "find_out"]

_QUESTIONS_MAX = 100
_QUESTIONS_SECONDS = 1.0
_BETWEEN_READINGS = 0.5  # seconds: long enough to tell a drift of some percent from noise
_CONFIG = ("appendfsync", "bind", "protected-mode", "maxclients")
_KEY_MS = b"5000"
_SCRIPT = b"return 1"


def find_out(settings: Settings) -> Facts:
    """Ask all nodes. Takes a second or two, and for nodes that are silent `connect_timeout`."""
    seconds = _seconds(settings.argument("connect_timeout"))
    look = partial(_look, prefix=str(settings.argument("prefix")).encode(), seconds=seconds)
    return Facts(
        tuple(each(look, settings.nodes)),
        node_timeout=_seconds(settings.argument("node_timeout")),
        max_ttl=_seconds(settings.argument("max_ttl")),
        drift_factor=settings.argument("drift_factor"),
        restart_guard=settings.argument("restart_guard"),
    )


@contextmanager
def connected(nodes: Sequence[Node], seconds: float) -> Generator[list[Talk | Silent]]:
    """A connection to each, made at once, or why there is none; for `quorlock bench`."""
    with ExitStack() as open_ones:
        talks = each(partial(_connected, seconds=seconds), nodes)
        for talk in talks:
            if isinstance(talk, Talk):
                open_ones.enter_context(talk)
        yield talks


def _connected(node: Node, seconds: float) -> Talk | Silent:
    try:
        return Talk(node, seconds)
    except Silent as error:
        return error


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _look(node: Node, prefix: bytes, seconds: float) -> NodeFacts:
    try:
        with Talk(node, seconds) as talk:
            return _ask(talk, node, prefix, seconds)
    except Silent as error:
        return NodeFacts(node, silent=str(error), login=error.login)


def _ask(talk: Talk, node: Node, prefix: bytes, seconds: float) -> NodeFacts:
    refused: dict[str, str] = {}
    if node.db and isinstance(answer := talk.ask(b"SELECT", b"%d" % node.db), Refused):
        refused["select"] = answer
    first = _reading(talk)
    info = _info(talk.ask(b"INFO"))
    config = _config(talk)
    refused |= _try_out(talk, prefix)
    tracking = _tracking(talk)
    side_keys = [_text(talk.ask(b"GET", b"quorlock:" + name)) for name in (b"born-empty", b"guard")]
    latencies = _latencies(talk)
    if first is not None:
        time.sleep(max(0.0, first.after + _BETWEEN_READINGS - now()))
    return NodeFacts(
        node,
        peer=talk.peer,
        info=info,
        config=config,
        refused=refused,
        tracking=tracking,
        open_to_all=_lets_all_in(node, seconds),
        other_run_id=_second_look(node, seconds),
        readings=[reading for reading in (first, _reading(talk)) if reading],
        latencies=latencies,
        born_empty=side_keys[0],
        marker=side_keys[1],
    )


def _reading(talk: Talk) -> Reading | None:
    before = now()
    answer = talk.ask(b"TIME")
    after = now()
    if not isinstance(answer, list):
        return None
    whole, micro = cast("list[bytes]", answer)
    return Reading(int(whole) + int(micro) / 1e6, before, after)


def _info(answer: Any) -> dict[str, str] | None:
    """Its `name:value` lines."""
    if not isinstance(answer, bytes):
        return None
    lines = (line.partition(":") for line in _text(answer).splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _config(talk: Talk) -> dict[str, str]:
    # One by one: servers before 7 take one name at a time.
    told: dict[str, str] = {}
    for name in _CONFIG:
        answer = talk.ask(b"CONFIG", b"GET", name.encode())
        if isinstance(answer, list) and answer:
            told[name] = _text(cast("list[bytes]", answer)[1])
    return told


def _try_out(talk: Talk, prefix: bytes) -> dict[str, str]:
    """Every command that quorlock needs, on keys that nobody else has; scripts run as the user, so
    what he may do outside he may do inside. docs/acl.md has them all.
    """
    chance = secrets.token_hex(8).encode()
    key, side_key = prefix + b"quorlock-doctor:" + chance, b"quorlock:doctor:" + chance
    sha = hashlib.sha1(_SCRIPT, usedforsecurity=False).hexdigest().encode()
    questions = {
        "info": (b"INFO", b"server"),
        "set": (b"SET", key, b"1", b"NX", b"PX", _KEY_MS),
        "get": (b"GET", key),
        "pexpire": (b"PEXPIRE", key, _KEY_MS),
        "pttl": (b"PTTL", key),
        "eval": (b"EVAL", _SCRIPT, b"0"),
        "evalsha": (b"EVALSHA", sha, b"0"),
        "time": (b"TIME",),
        "del": (b"DEL", key),
        "set quorlock:*": (b"SET", side_key, b"1", b"PX", _KEY_MS),
        "get quorlock:*": (b"GET", side_key),
    }
    answers = {name: talk.ask(*words) for name, words in questions.items()}
    talk.ask(b"DEL", side_key)
    return {
        name: str(text)
        for name, text in answers.items()
        if isinstance(text, Refused) and not text.startswith("NOSCRIPT")  # EVAL was refused
    }


def _tracking(talk: Talk) -> bool | None:
    answer = talk.ask(b"CLIENT", b"TRACKING", b"OFF")
    if isinstance(answer, Refused):
        return None if answer.startswith("NOPERM") else False
    return True


def _latencies(talk: Talk) -> list[float]:
    began, taken = now(), list[float]()
    while len(taken) < _QUESTIONS_MAX and now() < began + _QUESTIONS_SECONDS:
        asked = now()
        talk.ask(b"PING")
        taken.append(now() - asked)
    return taken


def _lets_all_in(node: Node, seconds: float) -> bool:
    try:
        with Talk(node, seconds, anonymous=True):
            return True
    except Silent:
        return False


def _second_look(node: Node, seconds: float) -> str:
    try:
        with Talk(node, seconds) as talk:
            told = _info(talk.ask(b"INFO", b"server")) or {}
            return told.get("run_id", "")
    except Silent:
        return ""


def _text(answer: Any) -> str:
    if not isinstance(answer, bytes):
        return ""
    text = answer.decode(errors="replace")
    return "".join(c if c.isprintable() or c in "\r\n" else "?" for c in text)
