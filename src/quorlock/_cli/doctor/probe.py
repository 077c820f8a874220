"""Find out the facts about all nodes concurrently. No other module here talks to nodes.

Each command may be refused (an ACL with the minimum for quorlock refuses most), so a refusal is a
fact too. All keys that are written are the doctor's own, and expire within seconds.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

from quorlock import ConfigError, Node, now
from quorlock._cli.background import run_all
from quorlock._cli.config import FileSettings
from quorlock._cli.doctor.facts import ClockReading, Facts, NodeFacts, clock_rate
from quorlock._drivers.diagnostics import (
    DiagnosticConnection,
    ErrorReply,
    NoAnswer,
    info_fields,
)

__all__ = ["DiagnosticConnection", "NoAnswer", "connected", "find_out"]

_QUESTIONS_MAX = 100
_QUESTIONS_SECONDS = 1.0
# TIME is asked a few times in a row, at least twice, until the rate is known to a fraction of the
# drift that leases allow for. Half a second suffices for a node that replies in 0.1 ms.
_READINGS = 5
_BETWEEN_READINGS = 0.5  # seconds
_READINGS_SECONDS = 3.0
_RATE_SHARE = 0.1
_CONFIG = ("appendfsync", "bind", "protected-mode", "maxclients")
_KEY_MS = b"5000"
_SCRIPT = b"return 1"
# As decision 36 has them.
_QUEUE, _INBOX, _INBOX_BYTES = b"quorlock:queue:", b"quorlock:inbox:", 8


def find_out(settings: FileSettings) -> Facts:
    """Ask all nodes.

    This takes a second or two, longer for slow replies, and `connect_timeout` for silent nodes.
    """
    look = partial(
        _look,
        prefix=settings.prefix,
        seconds=settings.seconds("connect_timeout"),
        drift_factor=settings.argument("drift_factor"),
    )
    nodes = tuple(run_all(look, settings.nodes))
    return Facts(
        nodes,
        node_timeout=settings.seconds("node_timeout"),
        max_ttl=settings.seconds("max_ttl"),
        drift_factor=settings.argument("drift_factor"),
        restart_guard=settings.argument("restart_guard"),
        waiting=settings.argument("waiting"),
        # On nodes that store nothing a client would store its settings, and the doctor must not.
        refusal=_refusal(settings) if any(node.settings for node in nodes) else None,
    )


def _refusal(settings: FileSettings) -> tuple[str, str] | None:
    """Return why no client with these settings is let in, and the fix; None if one is."""
    with settings.redlock() as redlock:
        try:
            redlock.check()
        except ConfigError as error:
            why, _, fix = error.fix.partition(": ")
            return f"clients with these settings are refused: {error.value}: {why}", fix
    return None


@contextmanager
def connected(
    nodes: Sequence[Node], seconds: float
) -> Generator[list[DiagnosticConnection | NoAnswer]]:
    """Yield for each node a connection, or the error; for `quorlock bench`."""
    with ExitStack() as open_ones:
        connections = run_all(partial(_connected, seconds=seconds), nodes)
        for connection in connections:
            if isinstance(connection, DiagnosticConnection):
                open_ones.enter_context(connection)
        yield connections


def _connected(node: Node, seconds: float) -> DiagnosticConnection | NoAnswer:
    try:
        return DiagnosticConnection(node, seconds)
    except NoAnswer as error:
        return error


def _look(node: Node, prefix: bytes, seconds: float, drift_factor: float) -> NodeFacts:
    try:
        with DiagnosticConnection(node, seconds) as connection:
            return _ask(connection, node, prefix, seconds, drift_factor)
    except NoAnswer as error:
        return NodeFacts(node, silent=str(error), login=error.login)


def _ask(
    connection: DiagnosticConnection, node: Node, prefix: bytes, seconds: float, drift_factor: float
) -> NodeFacts:
    refused: dict[str, str] = {}
    if node.db and isinstance(answer := connection.ask(b"SELECT", b"%d" % node.db), ErrorReply):
        refused["select"] = answer
    readings = _readings(connection)
    info = _info(connection, connection.ask(b"INFO"))
    config = _config(connection)
    refused |= _try_out(connection, prefix)
    unshared = _try_sharing(connection, prefix)
    unqueued = _try_queue(node, prefix, seconds)
    tracking = _tracking(connection)
    side_keys = [
        _text(connection.ask(b"GET", b"quorlock:" + name))
        for name in (b"born-empty", b"guard", b"config")
    ]
    latencies = _latencies(connection)
    if readings:
        _read_on(connection, readings, drift_factor * _RATE_SHARE)
    return NodeFacts(
        node,
        peer=connection.peer,
        info=info,
        config=config,
        refused=refused,
        unqueued=unqueued,
        unshared=unshared,
        tracking=tracking,
        open_to_all=_lets_all_in(node, seconds),
        other_run_id=_second_look(node, seconds),
        readings=readings,
        latencies=latencies,
        born_empty=side_keys[0],
        marker=side_keys[1],
        settings=side_keys[2],
    )


def _readings(connection: DiagnosticConnection) -> list[ClockReading]:
    found = (_reading(connection) for _ in range(_READINGS))
    return [reading for reading in found if reading is not None]


def _read_on(
    connection: DiagnosticConnection, readings: list[ClockReading], error_max: float
) -> None:
    """Ask again until the rate of the node's clock is known well enough, or time is up."""
    began = readings[0].before
    while (last := readings[-1].after) < began + _READINGS_SECONDS:
        time.sleep(max(0.0, last + _BETWEEN_READINGS - now()))
        readings += _readings(connection)
        rate = clock_rate(readings)
        if rate is not None and rate.error <= error_max:
            return


def _reading(connection: DiagnosticConnection) -> ClockReading | None:
    before = now()
    answer = connection.ask(b"TIME")
    after = now()
    if not isinstance(answer, list):
        return None
    whole, micro = cast("list[bytes]", answer)
    return ClockReading(int(whole) + int(micro) / 1e6, before, after)


def _info(connection: DiagnosticConnection, answer: Any) -> dict[str, str] | None:
    return info_fields(connection.shown(_text(answer))) if isinstance(answer, bytes) else None


def _config(connection: DiagnosticConnection) -> dict[str, str]:
    # One at a time: servers before 7 accept a single name.
    values: dict[str, str] = {}
    for name in _CONFIG:
        answer = connection.ask(b"CONFIG", b"GET", name.encode())
        if isinstance(answer, list) and answer:
            values[name] = connection.shown(_text(cast("list[bytes]", answer)[1]))
    return values


def _try_out(connection: DiagnosticConnection, prefix: bytes) -> dict[str, str]:
    """Try every command that quorlock needs, on unused keys, and return the refusals.

    Scripts run with the user's permissions, so these also cover the commands in scripts.
    docs/how-to/acl.md lists all commands.
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
    refused = _refusals(connection, questions)
    connection.ask(b"DEL", side_key)
    # NOSCRIPT says that the EVAL before it was refused, which is reported already.
    return {name: text for name, text in refused.items() if not text.startswith("NOSCRIPT")}


def _try_sharing(connection: DiagnosticConnection, prefix: bytes) -> dict[str, str]:
    """Try every command by which nodes keep the readers of a lock, and return the refusals."""
    key = prefix + b"quorlock-doctor:" + secrets.token_hex(8).encode()
    questions = {
        "zadd": (b"ZADD", key, b"1", b"reader"),
        "pexpire": (b"PEXPIRE", key, _KEY_MS),
        "zscore": (b"ZSCORE", key, b"reader"),
        "zcard": (b"ZCARD", key),
        "zrange": (b"ZRANGE", key, b"0", b"-1"),
        "zremrangebyscore": (b"ZREMRANGEBYSCORE", key, b"-inf", b"(1"),
        "zrem": (b"ZREM", key, b"reader"),
        "time": (b"TIME",),
    }
    return _refusals(connection, questions)


def _try_queue(node: Node, prefix: bytes, seconds: float) -> dict[str, str]:
    """Try every command by which nodes queue waiters and call them, and return the refusals.

    Uses a separate connection, which can do nothing else once it has subscribed.
    """
    inbox = secrets.token_hex(_INBOX_BYTES).encode()
    channel, place = _INBOX + inbox, inbox + b":1:1"
    queue = _QUEUE + prefix + b"quorlock-doctor:" + inbox
    questions = {
        "hello": (b"HELLO",),  # without an argument it changes nothing
        "zadd": (b"ZADD", queue, b"NX", b"1", place),
        "pexpire": (b"PEXPIRE", queue, _KEY_MS),
        "zrange": (b"ZRANGE", queue, b"-1", b"-1", b"WITHSCORES"),
        "zrank": (b"ZRANK", queue, place),
        "zcard": (b"ZCARD", queue),
        "zrem": (b"ZREM", queue, b"none"),
        "zpopmin": (b"ZPOPMIN", queue),
        "publish": (b"PUBLISH", channel, place),
        "subscribe": (b"SUBSCRIBE", channel),
    }
    with DiagnosticConnection(node, seconds) as connection:
        if node.db:
            connection.ask(b"SELECT", b"%d" % node.db)
        return _refusals(connection, questions)


def _refusals(
    connection: DiagnosticConnection, questions: Mapping[str, tuple[bytes, ...]]
) -> dict[str, str]:
    answers = {name: connection.ask(*words) for name, words in questions.items()}
    return {name: str(text) for name, text in answers.items() if isinstance(text, ErrorReply)}


def _tracking(connection: DiagnosticConnection) -> bool | None:
    answer = connection.ask(b"CLIENT", b"TRACKING", b"OFF")
    if isinstance(answer, ErrorReply):
        return None if answer.startswith("NOPERM") else False
    return True


def _latencies(connection: DiagnosticConnection) -> list[float]:
    began, taken = now(), list[float]()
    while len(taken) < _QUESTIONS_MAX and now() < began + _QUESTIONS_SECONDS:
        asked = now()
        connection.ask(b"PING")
        taken.append(now() - asked)
    return taken


def _lets_all_in(node: Node, seconds: float) -> bool:
    try:
        with DiagnosticConnection(node, seconds, anonymous=True):
            return True
    except NoAnswer:
        return False


def _second_look(node: Node, seconds: float) -> str:
    try:
        with DiagnosticConnection(node, seconds) as connection:
            fields = _info(connection, connection.ask(b"INFO", b"server")) or {}
            return fields.get("run_id", "")
    except NoAnswer:
        return ""


def _text(answer: Any) -> str:
    if not isinstance(answer, bytes):
        return ""
    text = answer.decode(errors="replace")
    return "".join(c if c.isprintable() or c in "\r\n" else "?" for c in text)
