"""Three tables of errors and their messages, tested with both APIs.

CALLS    wrong arguments and uses, detected without a server
FAULTS   faulty nodes: all three, or one of three
SPOILED  keys of another type or owner: on a quorum, or on one node of three

docs/reference/errors.md has the same tables for users; a test at the end compares the two. In
messages `…` stands for any text. Every row also proves that nothing hangs and that no password is
leaked by an error, its chain, notes or traceback, a repr, a log line, a warning or the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import itertools
import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import pytest

from quorlock import (
    AcquireTimeout,
    ConfigError,
    Node,
    NodeError,
    NodeStatus,
    QuorlockError,
    QuorumUnreachable,
    Ticket,
)
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import (
    Behaviour,
    Caller,
    Impostor,
    TlsFront,
    answers,
    closes_at_once,
    deaf,
    echo,
    endless_bulk,
    garbage,
    half_reply,
    http_400,
    sends_banner,
    silent,
    wants_certificate,
)
from tests.harness.support.resp import bulk
from tests.harness.support.wait import until_async
from tests.servers.api.faces import FACES, Face, real

PASSWORD = "canary-p@ss/w:rd#?%41é"  # whatever comes out is searched for "canary"
QUOTED = quote(PASSWORD, safe="")
# Short, so that the suite is; with room for a machine that does other things too.
SETTINGS: dict[str, Any] = {
    "ttl": 1.0,
    "max_ttl": 2.0,
    "node_timeout": 0.2,
    "connect_timeout": 0.4,
    "outage_timeout": 0.8,
    "retry_delay": (0.02, 0.05),
}
# Where the answer does not depend on how long one waits, be the machine as busy as it may.
PATIENT: dict[str, Any] = {"connect_timeout": 5.0, "outage_timeout": 20.0}
# for calls that no node will answer anyway
HURRY: dict[str, Any] = {"node_timeout": 0.1, "connect_timeout": 0.3, "outage_timeout": 0.4}
SOON = 2.0  # seconds; at once, on a busy machine
HANGS = 20.0
URLS = ["redis://a:6379", "redis://b:6379", "redis://c:6379"]


def over(face: Face, nodes: object = URLS, **settings: object) -> Any:
    """A Redlock of that face, in a hurry."""
    return face.redlock(cast("list[object]", nodes), **(SETTINGS | settings))


async def ended(work: Any) -> Any:
    """Return the outcome in both APIs; an asyncio call that hangs is an error."""
    async with asyncio.timeout(HANGS):
        return await work if inspect.isawaitable(work) else work


@pytest.fixture(scope="module")
def own_servers() -> Iterator[Servers]:
    """Three servers of this module alone: it gives them users."""
    with Servers(3, tcp=True) as started:
        yield started


@pytest.fixture
def own(own_servers: Servers) -> Servers:
    """Return a handler without keys and scripts: EVALSHA must not be sent if EVAL is needed."""
    for server in own_servers:
        server.flush()
        server.execute("SCRIPT", "FLUSH")
    return own_servers


@pytest.fixture(autouse=True)
def nothing_is_betrayed(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    """Warnings are errors already (pyproject.toml); this is for what is logged and printed."""
    caplog.set_level(1)
    yield
    printed = capfd.readouterr()
    assert_no_secret(caplog.text, printed.out, printed.err)


def assert_no_secret(*texts: str) -> None:
    for text in texts:
        assert "canary" not in text.lower(), "a secret came out"
        assert QUOTED not in text


def all_messages(error: BaseException | None) -> Iterator[str]:
    """All that an error can say, and those that led to it."""
    if error is None:
        return
    yield from (str(error), repr(error), repr(vars(error)))
    yield from getattr(error, "__notes__", ())
    yield "".join(traceback.format_exception(error))
    yield from all_messages(error.__cause__)
    yield from all_messages(error.__context__)


def assert_redlock_is_discreet(redlock: Any) -> None:
    assert_no_secret(repr(redlock), str(redlock), repr(redlock.nodes), repr(redlock.lock("x")))


def matches(text: str, sentence: str) -> bool:
    """Is it this sentence, where `…` stands for anything?"""
    return re.fullmatch(re.escape(sentence).replace("…", ".*"), text, re.DOTALL) is not None


# --- CALLS: no node is asked ------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    what: str
    make: Callable[[Face], Any]
    error: type[Exception]
    says: str
    only: str = "both"

    def __str__(self) -> str:
        return self.what


def making(what: str, says: str, nodes: object = URLS, **settings: object) -> Call:
    """`Redlock(nodes, **settings)` is a ConfigError."""
    return Call(what, lambda face: over(face, nodes, **settings), ConfigError, says)


def locking(what: str, says: str, resource: object = "x", **settings: object) -> Call:
    """`redlock.lock(resource, **settings)` is a ConfigError."""
    return Call(what, lambda face: over(face).lock(resource, **settings), ConfigError, says)


def locking_all(what: str, says: str, *resources: object) -> Call:
    """`redlock.lock(*resources)` is a ConfigError."""
    return Call(what, lambda face: over(face).lock(*resources), ConfigError, says)


def calling(
    what: str,
    says: str,
    call: Callable[[Any], Any],
    error: type[Exception] = ConfigError,
    only: str = "both",
) -> Call:
    """Something done with a Redlock is refused before a node is asked."""
    return Call(what, lambda face: call(over(face)), error, says, only)


def closed(what: str, call: Callable[[Any], Any]) -> Call:
    """Something done with a Redlock that is closed."""

    async def make(face: Face) -> Any:
        redlock = over(face)
        await redlock.close()
        return await call(redlock)

    return Call(f"after close: {what}", make, QuorlockError, "this Redlock is closed…")


async def coroutine_function() -> None: ...


def function() -> None: ...


def without_guard(redlock: Any) -> Any:
    """A Redlock of the same face, without a restart guard."""
    return type(real(redlock))(URLS, **SETTINGS, restart_guard=None)


LONG = "prefix + resource may have 512 bytes"
SECONDS = "give seconds as a number or a timedelta"
FINITE = "give a finite number of seconds, 0 or more"
ABOVE_0 = "give seconds above 0"
ACCEPTED = "give a URL (redis://host:6379), a Node(...), or a redis-py or valkey-py client"
SHARE = "give a share of the ttl from 0 up to 1 (0.01)"
FLOOR = "give at least 0.6 s: a lease must outlive several answers of node_timeout=0.2 s…"
NUL = "leave out NUL bytes: other clients cut names there"
TOKEN = "token='(not shown)': give a lease's token: a non-empty ASCII str"
OWNER = "give text, or None for no owner"
HOLDER = "holder='(not shown)': give the holder that inspect showed, a str"
JSON = "ticket='(not shown)': give the text that Ticket.to_json made"
HUGE = 10_000_000
SECRET = "canary"  # in the place of a token
BAD_TICKET = '{"resource": "x", "token": "canary", "ttl": "canary"}'

CALLS = [
    # nodes
    making("no nodes", "nodes=(): give at least one node; five independent ones are usual", []),
    making(
        "one URL without a list",
        "nodes='redis://***@a': give a list, also for one node: nodes=[...]",
        f"redis://:{QUOTED}@a",
    ),
    making("bytes for a list", "nodes='<builtins.bytes>': give a list, also for one node…", b"x"),
    making("no list at all", "nodes=6379: give a list, also for one node: nodes=[...]", 6379),
    making("None among them", f"nodes[1]=None: {ACCEPTED}", ["redis://a", None]),
    making("an object among them", f"nodes[0]='<builtins.object>': {ACCEPTED}", [object()]),
    making(
        "the same server twice, by URL",
        "nodes[2]='a:6379': this is the same server as nodes[0] (a:6379), and its vote would count"
        " twice; every node must be a separate server (another db is none)",
        ["redis://a", "redis://b", "redis://A:6379/1"],
    ),
    making("the same socket twice", "nodes[1]='/s': this is the same server…", ["unix:///s"] * 2),
    # URLs
    making("wrong scheme", "nodes[0]='http://a': the scheme must be redis://…", ["http://a"]),
    making("no scheme", "nodes[0]='a': begin with the scheme: redis://…", ["a:6379"]),
    making("no host", "nodes[0]='redis://***': name the host…", ["redis://"]),
    making("port 0", "nodes[0]='redis://***': the port…", ["redis://a:0"]),
    making("a port of letters", "nodes[0]='redis://***': …port…", ["redis://a:port"]),
    making(
        "a db of letters",
        "nodes[0]='redis://a/***': what follows the host is the db's number: redis://host:6379/0",
        ["redis://a/zero"],
    ),
    making(
        "an unknown option",
        "nodes[0]='redis://a': the option passwort is unknown; did you mean password?",
        [f"redis://a?passwort={QUOTED}"],
    ),
    making(
        "an option of redis-py",
        "nodes[0]='redis://a': the option socket_timeout is node_timeout= of Redlock(...);"
        " leave it out here",
        ["redis://a?socket_timeout=1"],
    ),
    making(
        "an option given twice",
        "nodes[0]='redis://a': the option db is given twice",
        ["redis://a?db=1&db=1"],
    ),
    making(
        "a TLS option without TLS",
        "nodes[0]='redis://a': …rediss://…",
        ["redis://a?ssl_ca_certs=/x"],
    ),
    making(
        "a password with a slash in it",
        "nodes[0]='redis://***': percent-encode '@ / ? #' in user and password:"
        " urllib.parse.quote(password, safe='')",
        ["redis://:canary/secret@a"],
    ),
    making(
        "one word before the @",
        "nodes[0]='redis://***@a': write :password@ for a password alone, user:@ for a user"
        " without one",
        ["redis://canary@a"],
    ),
    Call(
        "a Node with a bad port",
        lambda _: Node("a", 70_000, password=PASSWORD),
        ConfigError,
        "port=70000: the port must be a whole number from 1 to 65535",
    ),
    # ttl
    making("ttl 0", f"ttl=0: {ABOVE_0}", ttl=0),
    making("ttl negative", f"ttl=-1: {FINITE}", ttl=-1),
    making("ttl NaN", f"ttl=nan: {FINITE}", ttl=float("nan")),
    making("ttl infinite", f"ttl=inf: {FINITE}", ttl=float("inf")),
    making("ttl a bool", f"ttl=True: {SECONDS}", ttl=True),
    making("ttl a string", f"ttl='10': {SECONDS}", ttl="10"),
    making("ttl a negative timedelta", f"ttl=…: {FINITE}", ttl=timedelta(seconds=-1)),
    making("ttl in ms", "ttl=1000000000: give seconds: this is more than ten years", ttl=10**9),
    making(
        "ttl above max_ttl",
        "ttl=3: give at most max_ttl=2 s…",
        ttl=3,
    ),
    making("ttl too near to node_timeout", f"ttl=0.59: {FLOOR}", ttl=0.59),
    locking("a lock's ttl above max_ttl", "ttl=60: give at most max_ttl=2 s, or raise…", ttl=60),
    locking("a lock's ttl 0", f"ttl=0: {ABOVE_0}", ttl=0),
    # the other numbers
    making("max_ttl 0", f"max_ttl=0: {ABOVE_0}", max_ttl=0),
    making("max_ttl too near to node_timeout", f"max_ttl=0.5: {FLOOR}", max_ttl=0.5),
    making("node_timeout 0", f"node_timeout=0: {ABOVE_0}", node_timeout=0),
    making("node_timeout below 1 ms", "node_timeout=0.0001: give at least…", node_timeout=0.0001),
    making("connect_timeout 0", f"connect_timeout=0: {ABOVE_0}", connect_timeout=0),
    making("connect_timeout None", f"connect_timeout=None: {SECONDS}", connect_timeout=None),
    making("drift_factor 1", f"drift_factor=1: {SHARE}", drift_factor=1),
    making("drift_factor negative", f"drift_factor=-0.01: {SHARE}", drift_factor=-0.01),
    making("drift_factor NaN", f"drift_factor=nan: {SHARE}", drift_factor=float("nan")),
    making("drift_factor a bool", f"drift_factor=False: {SHARE}", drift_factor=False),
    making(
        "retry_delay reversed",
        "retry_delay=(0.2, 0.1): give the shorter delay first",
        retry_delay=(0.2, 0.1),
    ),
    making(
        "retry_delay one number",
        "retry_delay=0.1: give (shortest, longest) in seconds",
        retry_delay=0.1,
    ),
    making("retry_delay from 0", f"retry_delay[0]=0: {ABOVE_0}", retry_delay=(0, 1)),
    making("outage_timeout negative", f"outage_timeout=-1: {FINITE}", outage_timeout=-1),
    locking("timeout negative", f"timeout=-1: {FINITE}", timeout=-1),
    locking("timeout NaN", f"timeout=nan: {FINITE}", timeout=float("nan")),
    calling(
        "timeout of a call negative",
        f"timeout=-0.5: {FINITE}",
        lambda redlock: redlock.lock("x").acquire(timeout=-0.5),
    ),
    calling(
        "timeout of a call a string",
        f"timeout='1': {SECONDS}",
        lambda redlock: redlock.lock("x").acquire(timeout="1"),
    ),
    making(
        "restart_guard another word",
        "restart_guard='off': give 'uptime', 'marker', or None where nodes are born empty (tests,"
        " CI)",
        restart_guard="off",
    ),
    making("waiting another word", "waiting='fair': give 'auto' …", waiting="fair"),
    making("waiting True", "waiting=True: give 'auto' …", waiting=True),
    making("restart_guard True", "restart_guard=True: give 'uptime', …", restart_guard=True),
    making("prefix a number", "prefix=1: give a string, '' for none", prefix=1),
    making("owner 0", f"owner=0: {OWNER}", owner=0),
    making("owner False", f"owner=False: {OWNER}", owner=False),
    making("owner of empty bytes", f"owner=b'': {OWNER}", owner=b""),
    making("owner an empty list", f"owner=[]: {OWNER}", owner=[]),
    making("prefix with NUL", f"prefix='a\\x00': {NUL}", prefix="a\0"),
    # the resource
    locking("an empty resource", "resource='': give a name that is not empty", ""),
    locking("empty bytes", "resource=b'': give a name that is not empty", b""),
    locking("a number", "resource=42: give the resource's name as str or bytes", 42),
    locking("None", "resource=None: give the resource's name as str or bytes", None),
    locking_all("no resource", "resources=(): give at least one"),
    locking_all("65 resources", "resources=65: give at most 64", *map(str, range(65))),
    locking_all(
        "resources too long together",
        "resources=3: their keys have 1515 bytes: give less or shorter ones, of 1200 in all",
        *[letter * 505 for letter in "abc"],
    ),
    locking_all(
        "a number among names", "resource=7: give the resource's name as str or bytes", "a", 7
    ),
    locking("bytes with NUL", f"resource=b'a\\x00b': {NUL}", b"a\0b"),
    locking("a str with NUL", f"resource='a\\x00b': {NUL}", "a\0b"),
    locking("a lone surrogate", "resource='a\\ud800': give text that UTF-8 can encode", "a\ud800"),
    locking("a str of 10 MB", f"resource='x…x'… ({HUGE} long): {LONG}", "x" * HUGE),
    locking("bytes of 10 MB", f"resource=b'x…x'… ({HUGE} long): {LONG}", b"x" * HUGE),
    locking("513 bytes in 300 letters", f"resource='é…: {LONG}, this has 600", "é" * 300),
    locking(
        "a name of our own",
        "resource='quorlock:x': keys that begin with 'quorlock:' are reserved",
        "quorlock:x",
    ),
    Call(
        "a name of our own, by the prefix",
        lambda face: over(face, prefix="quorlock").lock(":x"),
        ConfigError,
        "resource=':x': keys that begin with 'quorlock:' are reserved",
    ),
    # tokens and tickets
    calling("release by no token", TOKEN, lambda redlock: redlock.release("x", "")),
    calling("release by bytes", TOKEN, lambda redlock: redlock.release("x", SECRET.encode())),
    calling("extend by a number", TOKEN, lambda redlock: redlock.extend("x", 5)),
    calling("extend by letters", TOKEN, lambda redlock: redlock.extend("x", f"{SECRET}-é")),
    calling(
        "extend with a bad ttl",
        f"ttl=0: {ABOVE_0}",
        lambda redlock: redlock.extend("x", "abc", ttl=0),
    ),
    calling(
        "inspect a number",
        "resource=1: give the resource's name as str or bytes",
        lambda redlock: redlock.inspect(1),
    ),
    calling(
        "inspect several at once",
        "resource=('x', 'y'): give the resource's name as str or bytes",
        lambda redlock: redlock.inspect(("x", "y")),
    ),
    calling(
        "break the lease on several at once",
        "resource=['x', 'y']: give the resource's name as str or bytes",
        lambda redlock: redlock.break_lease(["x", "y"], "0" * 12),
    ),
    calling("break the lease of bytes", HOLDER, lambda r: r.break_lease("x", SECRET.encode())),
    calling("break the lease of a node", HOLDER, lambda redlock: redlock.break_lease("x", 0)),
    calling(
        "a ticket that is a token",
        "ticket='str': give what hand_over() returned",
        lambda redlock: redlock.adopt(SECRET),
    ),
    calling("a ticket without a token", TOKEN, lambda redlock: redlock.adopt(Ticket("x", "", 1))),
    calling(
        "a ticket with a NaN ttl",
        f"ttl=nan: {FINITE}",
        lambda redlock: redlock.adopt(Ticket("x", SECRET, float("nan"))),
    ),
    calling("a ticket from no JSON", JSON, lambda _: Ticket.from_json(SECRET)),
    calling("a ticket from other JSON", JSON, lambda _: Ticket.from_json(f'["{SECRET}"]')),
    calling(
        "a ticket from JSON with a bad ttl",
        JSON,
        lambda _: Ticket.from_json(BAD_TICKET),
    ),
    # decorators and options of one face
    calling(
        "a coroutine function under a blocking lock",
        "function=<function coroutine_function…>: decorate a …function; for a coroutine function"
        " take a lock of quorlock.asyncio",
        lambda redlock: real(redlock.lock("x"))(coroutine_function),
        only="blocking",
    ),
    calling(
        "something else under a blocking lock",
        "function=5: decorate a function",
        lambda redlock: real(redlock.lock("x"))(5),
        only="blocking",
    ),
    calling(
        "a function under an asyncio lock",
        "function=<function function…>: decorate a coroutine function; for a plain function take"
        " a lock of quorlock",
        lambda redlock: real(redlock.lock("x"))(function),
        only="asyncio",
    ),
    calling(
        "on_lost another word",
        "on_lost='ignore': give 'cancel' (end the block) or 'flag' (only set lease.lost)",
        lambda redlock: redlock.lock("x", on_lost="ignore"),
        only="asyncio",
    ),
    calling(
        "a Redlock copied",
        "a Redlock cannot be copied or pickled: make one in each process",
        lambda redlock: copy.copy(real(redlock)),
        TypeError,
    ),
    calling(
        "a lock copied",
        "a lock cannot be copied or pickled: make one in each process",
        lambda redlock: copy.deepcopy(real(redlock.lock("x"))),
        TypeError,
    ),
    # re-entrant locks, elections, once
    calling(
        "a re-entrant lock on a function",
        "resource=<function function…>: give the resource's name as str or bytes",
        lambda redlock: redlock.rlock(function),
    ),
    calling(
        "a re-entrant lock with a bad ttl",
        f"ttl=0: {ABOVE_0}",
        lambda redlock: redlock.rlock("x", ttl=0),
    ),
    calling(
        "a re-entrant lock that is not held",
        "'x' is not held by this …: release it where it was acquired, and as often",
        lambda redlock: redlock.rlock("x").release(),
        RuntimeError,
    ),
    calling(
        "an election without a restart guard",
        "restart_guard=None: an election needs 'uptime' or 'marker': its terms are fences",
        lambda redlock: without_guard(redlock).election("x"),
    ),
    calling(
        "an election with a bad timeout",
        f"timeout=-1: {FINITE}",
        lambda redlock: redlock.election("x").campaign(timeout=-1),
    ),
    calling(
        "an election led by a number",
        "lead=5: give a …function",
        lambda redlock: redlock.election("x").run(5),
    ),
    calling("every 0", f"every=0: {ABOVE_0}", lambda redlock: redlock.once("x", every=0)),
    calling("every a string", f"every='1h': {SECONDS}", lambda r: r.once("x", every="1h")),
    calling(
        "every below 1 ms",
        "every=0.0001: give at least 0.001 (1 ms)",
        lambda redlock: redlock.once("x", every=0.0001),
    ),
    calling(
        "once by a number",
        "work=5: give a …function",
        lambda redlock: redlock.once("x", every=1).run(5),
    ),
    # use after close
    closed("acquire", lambda redlock: redlock.lock("x").acquire()),
    closed("try_acquire", lambda redlock: redlock.lock("x").try_acquire()),
    closed("locked", lambda redlock: redlock.lock("x").locked()),
    closed("inspect", lambda redlock: redlock.inspect("x")),
    closed("extend", lambda redlock: redlock.extend("x", "abc")),
    closed("release", lambda redlock: redlock.release("x", "abc")),
    closed("rlock", lambda redlock: redlock.rlock("x").acquire()),
    closed("election", lambda redlock: redlock.election("x").leader()),
    closed("once", lambda redlock: redlock.once("x", every=1).try_acquire()),
    closed("adopt", lambda redlock: redlock.adopt(Ticket("x", "abc", 1.0))),
]


@pytest.mark.parametrize("call", [call for call in CALLS if call.only == "both"], ids=str)
async def test_call_is_refused(call: Call, face: Face) -> None:
    await assert_refused(call, face)


@pytest.mark.parametrize("call", [call for call in CALLS if call.only != "both"], ids=str)
async def test_call_is_refused_by_one_face(call: Call) -> None:
    (face,) = (face for face in FACES if face.name == call.only)
    await assert_refused(call, face)


async def assert_refused(call: Call, face: Face) -> None:
    began = time.monotonic()
    with pytest.raises(call.error) as caught:
        await ended(call.make(face))
    assert time.monotonic() - began < SOON
    error = caught.value
    assert type(error) is call.error
    assert matches(str(error), call.says), str(error)
    assert len(str(error)) < 400
    assert_no_secret(*all_messages(error))
    if isinstance(error, ConfigError):
        assert isinstance(error, ValueError)
        assert error.argument
        assert error.fix in str(error)


# --- FAULTS: nodes that cannot vote ----------------------------------------------------------


class Rig(ExitStack):
    """Builds nodes that are at fault; they end with it."""

    def __init__(self, own: Servers) -> None:
        super().__init__()
        self.own = own


Build: TypeAlias = Callable[[Rig, int], list[str]]  # so many URLs of nodes at fault
_numbers = itertools.count(1)


def logged_in(url: str, user: str = "", password: str = PASSWORD) -> str:
    """Return the URL with other credentials."""
    scheme, _, rest = url.partition("://")
    place = rest.rpartition("@")[2]
    return f"{scheme}://{user}:{quote(password, safe='')}@{place}"


def impostors(behaviour: Behaviour, *, tcp: bool = False) -> Build:
    def build(rig: Rig, count: int) -> list[str]:
        made = [rig.enter_context(Impostor(behaviour, tcp=tcp)) for _ in range(count)]
        return [logged_in(impostor.url) for impostor in made]

    return build


def servers(*options: str, settings: Mapping[str, str] = {}) -> Build:
    """Real ones, started like that, and set so afterwards."""

    def build(rig: Rig, count: int) -> list[str]:
        started = rig.enter_context(Servers(count, options=options))
        for server, (name, value) in itertools.product(started, settings.items()):
            server.execute("CONFIG", "SET", name, value)
        return [logged_in(url) for url in started.urls]

    return build


def locked(login: Callable[[str], str]) -> Build:
    """Real ones with a password, and the login that we try."""

    def build(rig: Rig, count: int) -> list[str]:
        started = rig.enter_context(Servers(count, password=PASSWORD))
        return [login(url) for url in started.urls]

    return build


def user(*rules: str, keys: Sequence[str] = ("~*",)) -> Build:
    """Real ones, and a user who has these rights alone."""

    def build(rig: Rig, count: int) -> list[str]:
        name = f"user{next(_numbers)}"
        for server in rig.own:
            server.execute("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *keys, *rules)
        return [logged_in(server.url, name) for server in rig.own[:count]]

    return build


RIGHTS = ("+info", "+set", "+eval", "+evalsha", "+get", "+del", "+pttl", "+pexpire")


def lacking(right: str) -> Build:
    return user(*(other for other in RIGHTS if other != right))


def other_db(rig: Rig, count: int) -> list[str]:
    return [logged_in(url).replace("db=0", "db=99") for url in rig.own.urls[:count]]


def full_house(rig: Rig, count: int) -> list[str]:
    """Real ones that take one client, and have it."""
    started = rig.enter_context(Servers(count, options=("--maxclients", "1"), tcp=True))
    for server in started:
        guest = rig.enter_context(socket.socket(socket.AF_UNIX))
        guest.settimeout(HANGS)
        answer = b""
        while answer != b"+PONG\r\n":  # the place may not be free again yet
            guest.close()
            guest = rig.enter_context(socket.socket(socket.AF_UNIX))
            guest.connect(server.path)
            guest.sendall(b"PING\r\n")
            answer = guest.recv(100)
    return [logged_in(url) for url in started.tcp_urls]


def no_node(rig: Rig, count: int) -> list[str]:
    return [f"unix://:{QUOTED}@/nowhere/{number}.sock" for number in range(count)]


def refusing(rig: Rig, count: int) -> list[str]:
    """Yield TCP ports on which no server listens."""
    made = [rig.enter_context(Impostor(silent, tcp=True)) for _ in range(count)]
    for impostor in made:
        impostor.refuse()
    return [logged_in(impostor.url) for impostor in made]


def tls_to_plain(rig: Rig, count: int) -> list[str]:
    return [logged_in(u).replace("redis://", "rediss://") for u in rig.own.tcp_urls[:count]]


def tls(*, trusted: bool, host: str = "127.0.0.1", scheme: str = "rediss") -> Build:
    """TLS fronts, and whether we know their authority."""

    def build(rig: Rig, count: int) -> list[str]:
        made = [rig.enter_context(TlsFront(url, names=(host,))) for url in rig.own.urls[:count]]
        urls = [logged_in(front.url).replace("rediss", scheme) for front in made]
        known = [f"?ssl_ca_certs={front.ca_file}" if trusted else "" for front in made]
        return [url + options for url, options in zip(urls, known, strict=True)]

    return build


def tls_impostors(behaviour: Behaviour) -> Build:
    """Impostors to which we speak TLS, and whose certificate we do not check."""

    def build(rig: Rig, count: int) -> list[str]:
        urls = impostors(behaviour, tcp=True)(rig, count)
        return [url.replace("redis://", "rediss://") + "?ssl_cert_reqs=none" for url in urls]

    return build


def server_info_then(reply: bytes | None) -> Build:
    """Yield nodes with a correct handshake that reply to everything else with `reply`; None
    closes.
    """

    def build(rig: Rig, count: int) -> list[str]:
        nodes = (impostors(_server_info_then(reply, next(_numbers))) for _ in range(count))
        return [url for node in nodes for url in node(rig, 1)]

    return build


def _server_info_then(reply: bytes | None, run_id: int) -> Behaviour:
    info = b"redis_version:7.0.0\r\nrun_id:%040d\r\n" % run_id
    info += b"uptime_in_seconds:1000\r\nrole:master\r\n"
    server_info = {b"HELLO": b"%1\r\n+proto\r\n:3\r\n", b"SELECT": b"+OK\r\n"}
    server_info[b"INFO"] = bulk(info)
    side_keys = {b"GET": b"_\r\n", b"SET": b"+OK\r\n"}
    side_keys |= dict.fromkeys((b"EVAL", b"EVALSHA"), b":1\r\n")

    def keep(command: list[bytes]) -> bytes:
        """Store quorlock's side keys like a server, so that the shared settings work."""
        if command[:2] == [b"SET", b"quorlock:config"]:
            side_keys[b"GET"] = bulk(command[2])
        elif command[0] == b"EVAL" and command[3] == b"quorlock:config":
            side_keys[b"GET"] = bulk(command[5])
            return side_keys[b"GET"]
        return side_keys[command[0]]

    def reply_to(command: list[bytes]) -> bytes | None:
        if any(word.startswith(b"quorlock:") for word in command[1:4:2]):
            return keep(command)
        return server_info.get(command[0], reply)

    return answers(reply_to)


def turned_away(text: bytes) -> Behaviour:
    """A server that says one line, whatever it is asked, and closes: Redis does so."""

    async def behaviour(caller: Caller) -> None:
        await caller.write(b"-%b\r\n" % text)

    return behaviour


@dataclass(frozen=True)
class Fault:
    what: str
    build: Build
    error: type[NodeError | QuorumUnreachable]
    cause: str  # said of every such node
    at_once: bool = True  # or after outage_timeout
    seen: str = ""  # what `redlock.nodes` says, where that is another word

    def __str__(self) -> str:
        return self.what


LOADING = b"LOADING Redis is loading the dataset in memory"
BUSY = b"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
MISCONF = b"MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk."
DENIED = (
    b"DENIED Redis is running in protected mode because protected mode is enabled and no password"
    b" is set for the default user."
)
NO_ANSWER = "no answer to connecting"
NO_SIDE_KEYS = "may not use the keys quorlock:* (grant ~quorlock:* +set +get)"
NO_SCRIPT = (
    "cannot run the scripts that release a lock: ERR …script… "
    "(grant the rights of docs/how-to/acl.md)"
)
NOT_REDIS = "does not speak the Redis protocol…"

FAULTS = [
    # who we are
    Fault(
        "wrong password",
        locked(lambda url: logged_in(url, password=f"not-{PASSWORD}")),
        NodeError,
        "WRONGPASS invalid username-password pair or user is disabled.",
    ),
    Fault(
        "no password", locked(lambda url: f"unix://{url.partition('@')[2]}"), NodeError, "NOAUTH …"
    ),
    Fault(
        "unknown user",
        locked(lambda url: logged_in(url, "nobody")),
        NodeError,
        "WRONGPASS invalid username-password pair or user is disabled.",
    ),
    Fault(
        "user without INFO",
        lacking("+info"),
        NodeError,
        "may not run INFO, which tells its run_id (grant +info)",
    ),
    Fault("user without SET", lacking("+set"), NodeError, "NOPERM … 'set' command"),
    Fault(
        "user of other keys",
        user(*RIGHTS, keys=("~other:*", "~quorlock:*")),
        NodeError,
        "NOPERM …key…",
    ),
    Fault("user without our side keys", user(*RIGHTS, keys=("~x",)), NodeError, NO_SIDE_KEYS),
    Fault(
        "user without EVALSHA",
        lacking("+evalsha"),
        NodeError,
        "cannot run the scripts that release a lock: …'evalsha'…",
    ),
    Fault(
        "user without EVAL",
        lacking("+eval"),
        NodeError,
        "cannot run the scripts that release a lock: …'eval'…",
    ),
    Fault("user without GET", lacking("+get"), NodeError, NO_SIDE_KEYS),
    Fault("user without DEL", lacking("+del"), NodeError, NO_SCRIPT),
    Fault("user without PTTL", lacking("+pttl"), NodeError, NO_SCRIPT),
    Fault("user without PEXPIRE", lacking("+pexpire"), NodeError, NO_SCRIPT),
    Fault("unknown db", other_db, NodeError, "ERR DB index is out of range"),
    # what kind of server, in which state
    Fault(
        "replica",
        servers("--replicaof", "127.0.0.1 1"),
        NodeError,
        "is not a master (role slave of 127.0.0.1)",
    ),
    Fault(
        "node of a Cluster",
        servers("--cluster-enabled", "yes"),
        NodeError,
        "is a member of a Redis Cluster, …",
    ),
    Fault(
        "node of a Cluster, elsewhere",
        server_info_then(b"-MOVED 3999 127.0.0.1:6381\r\n"),
        NodeError,
        "MOVED …",
    ),
    Fault(
        "memory full",
        servers("--maxmemory-policy", "noeviction", settings={"maxmemory": "1mb"}),
        NodeError,
        "OOM command not allowed when used memory > 'maxmemory'.",
        at_once=False,
    ),
    Fault(
        "too many clients",
        full_house,
        QuorumUnreachable,
        "ERR max number of clients reached",
        at_once=False,
    ),
    Fault(
        "protected mode", impostors(turned_away(DENIED), tcp=True), NodeError, "DENIED Redis is…"
    ),
    Fault(
        "loading its data",
        impostors(answers(b"-%b\r\n" % LOADING)),
        QuorumUnreachable,
        LOADING.decode(),
        at_once=False,
    ),
    Fault(
        "busy with a script",
        server_info_then(b"-%b\r\n" % BUSY),
        NodeError,
        BUSY.decode(),
        at_once=False,
    ),
    Fault(
        "cannot save to disk",
        server_info_then(b"-%b\r\n" % MISCONF),
        NodeError,
        MISCONF.decode(),
        at_once=False,
    ),
    # not one of our servers, or none
    Fault("no such socket", no_node, QuorumUnreachable, "no such file or directory", at_once=False),
    Fault("port closed", refusing, QuorumUnreachable, "connection refused", at_once=False),
    Fault("web server", impostors(http_400, tcp=True), NodeError, NOT_REDIS),
    Fault("ssh server", impostors(sends_banner(b"SSH-2.0-x\r\n"), tcp=True), NodeError, NOT_REDIS),
    Fault("garbage", impostors(garbage), NodeError, NOT_REDIS),
    Fault("echo of the password", impostors(echo), NodeError, NOT_REDIS),
    Fault("says yes to everything", impostors(answers(b"+OK\r\n")), NodeError, "is not a master…"),
    Fault("endless reply", impostors(endless_bulk), NodeError, "sends a reply without an end"),
    Fault(
        "closes at once",
        impostors(closes_at_once),
        QuorumUnreachable,
        "closes the connection at once",
        at_once=False,
    ),
    Fault(
        "half a reply, then closes",
        impostors(half_reply(then_closes=True)),
        QuorumUnreachable,
        "closes the connection at once",
        at_once=False,
    ),
    Fault(
        "half a reply, then silence",
        impostors(half_reply()),
        QuorumUnreachable,
        NO_ANSWER,
        at_once=False,
    ),
    Fault(
        "never answers",
        impostors(silent),
        QuorumUnreachable,
        NO_ANSWER,
        at_once=False,
    ),
    Fault(
        "never reads",
        impostors(deaf),
        QuorumUnreachable,
        NO_ANSWER,
        at_once=False,
    ),
    # encryption
    Fault(
        "TLS to a plain server",
        tls_to_plain,
        QuorumUnreachable,
        f"{NO_ANSWER} by TLS (a port without TLS?)",
        at_once=False,
    ),
    Fault(
        "plain to a TLS server",
        tls(trusted=False, scheme="redis"),
        QuorumUnreachable,
        "closes the connection at once",
        at_once=False,
    ),
    Fault(
        "TLS, authority not known",
        tls(trusted=False),
        NodeError,
        "TLS failed: unable to get local issuer certificate",
    ),
    Fault(
        "TLS, another's certificate",
        tls(trusted=True, host="other.test"),
        NodeError,
        "TLS failed: ip address mismatch, certificate is not valid for '127.0.0.1'.",
    ),
    Fault(
        "TLS, without a certificate of ours",
        tls_impostors(wants_certificate()),
        NodeError,
        "TLS failed: tlsv13 alert certificate required",
    ),
    Fault(
        "TLS, closes at once",
        tls_impostors(closes_at_once),
        QuorumUnreachable,
        "closes the connection at once",
        at_once=False,
    ),
    Fault(
        "TLS, closes in the middle",
        tls_impostors(half_reply(b"\x16\x03\x03\x00\x40\x02", then_closes=True)),
        QuorumUnreachable,
        "closes the connection at once",
        at_once=False,
    ),
    # well begun, then at fault
    Fault(
        "sends a banner, then silence",
        server_info_then(b""),
        QuorumUnreachable,
        "no answer in time",
        at_once=False,
        seen="no answer…",
    ),
    Fault(
        "sends a banner, then closes",
        server_info_then(None),
        QuorumUnreachable,
        "connection lost: …",
        at_once=False,
    ),
    Fault(
        "sends a banner, then garbage",
        server_info_then(b"\x16\x03\x01 garbage\r\n"),
        NodeError,
        NOT_REDIS,
    ),
    Fault(
        "sends a banner, then another kind of answer",
        server_info_then(b"$1\r\nx\r\n"),
        NodeError,
        "unexpected reply to …",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_all_nodes_at_fault(fault: Fault, face: Face, own: Servers) -> None:
    """The error is of the right kind, names nodes and causes, and comes within the deadlines."""
    with Rig(own) as rig:
        urls = fault.build(rig, 3)
        async with over(face, urls, **(PATIENT if fault.at_once else HURRY)) as redlock:
            began = time.monotonic()
            with pytest.raises(QuorlockError) as caught:
                await ended(use(redlock))
            took = time.monotonic() - began
            assert_names_the_fault(caught.value, fault, urls)
            assert_in_time(caught.value, fault, took)
            assert_no_secret(*all_messages(caught.value))
            assert_redlock_is_discreet(redlock)


async def test_closing_soon_leaves_a_node_that_talks_nonsense(face: Face) -> None:
    """Each new connection looks like one that can release the key: its handshake is answered."""
    nonsense = _server_info_then(b"\x16\x03\x01 garbage\r\n", next(_numbers))
    with Impostor(nonsense) as impostor:
        async with face.redlock([impostor.url], connect_timeout=20.0) as redlock:
            with pytest.raises(NodeError):
                await use(redlock)
            began = time.monotonic()
        assert time.monotonic() - began < 10.0


def assert_names_the_fault(error: Any, fault: Fault, urls: list[str]) -> None:
    assert type(error) is fault.error, repr(error)
    addresses = {Node.from_url(url).address for url in urls}
    # On a busy machine the caller's connect_timeout may end before the connector's does.
    causes = (
        fault.cause,
        "not connected yet" if fault.cause.startswith(NO_ANSWER) else fault.cause,
    )
    messages = {vote.node: vote.cause for vote in error.votes}
    named = {node: said for node, said in messages.items() if any(matches(said, c) for c in causes)}
    # The verdict may fall before the third node has reported its own failure.
    assert len(named) >= 2, str(error)
    assert named.keys() <= addresses
    for node, cause in named.items():
        assert node in str(error)
        assert str(error).count(f": {cause}") == 1, "each cause once, with its nodes"
    to_be_fixed = fault.error is NodeError and fault.at_once
    advice = "fix these nodes or their" if to_be_fixed else "check these nodes"
    assert advice in str(error)


def assert_in_time(error: Any, fault: Fault, took: float) -> None:
    if fault.at_once:
        assert error.attempts == 1
        assert took < PATIENT["outage_timeout"] / 2
    else:
        assert took < HURRY["outage_timeout"] + HURRY["connect_timeout"] + SOON


# Every fault by both faces is above; here they take turns.
@pytest.mark.parametrize(
    ("fault", "face"), [*zip(FAULTS, itertools.cycle(FACES), strict=False)], ids=str
)
async def test_one_node_of_three_at_fault(
    fault: Fault, face: Face, own: Servers, nodes: Servers
) -> None:
    """Acquire, extend and release work normally; `redlock.nodes` reports the fault."""
    with Rig(own) as rig:
        (bad,) = fault.build(rig, 1)
        # Patient with the good ones: on a busy machine they may be late as well.
        async with over(face, [nodes[0].url, bad, nodes[1].url], outage_timeout=5) as redlock:
            status = await ended(seen_at_work(redlock, fault.seen or fault.cause))
            assert status.address == Node.from_url(bad).address
            assert not status.up
            assert status.code is not None
            assert_redlock_is_discreet(redlock)
    assert nodes[0].keys() == nodes[1].keys() == []


async def seen_at_work(redlock: Any, cause: str) -> NodeStatus:
    """Use the lock, as one who suspects nothing, until the node in the middle is named."""
    lock = redlock.lock("x")
    seen = set()
    began = time.monotonic()
    while time.monotonic() - began < 2 * SOON:  # its connect_timeout, ten times
        lease = await lock.acquire(timeout=SOON)
        assert lease.held
        await asyncio.sleep(0.005)  # a key that lives long enough is not prolonged
        await lease.extend()
        assert await lease.release() is True
        good, status, also_good = redlock.nodes
        assert good.up
        assert also_good.up
        if matches(status.why, cause):
            assert isinstance(status, NodeStatus)
            return status
        seen.add(status.why)
        await asyncio.sleep(0.02)
    raise AssertionError(f"redlock.nodes says only {seen}")


# --- What needs its own build-up -------------------------------------------------------------


async def use(redlock: Any) -> None:
    lease = await redlock.lock("x").acquire()
    assert await lease.release() is True


@pytest.mark.parametrize("count", [3, 1])
async def test_masters_become_replicas(count: int, face: Face) -> None:
    """An unnoticed fail-over leaves the connections open, and every write is refused."""
    with Servers(3) as started:
        async with over(face, started.urls) as redlock:
            await use(redlock)
            for server in started[:count]:
                server.execute("REPLICAOF", "127.0.0.1", "1")
            if count == 1:
                await use(redlock)
                return
            with pytest.raises(NodeError, match="READONLY You can't write against a read only"):
                await redlock.lock("x").acquire()
            for server in started:
                server.execute("REPLICAOF", "NO", "ONE")

            # Their keys were another master's: they keep out until all leases of before are over.
            async def is_so() -> bool:
                with contextlib.suppress(QuorlockError):
                    await use(redlock)
                return all(node.up for node in redlock.nodes)

            assert await until_async(is_so, HANGS), redlock.nodes
            await use(redlock)


SAME = (
    "nodes[…]='…': it is the same server as … (run_id …): one crash would cost two votes;"
    " list every server once"
)


@pytest.mark.parametrize("call", ["acquire", "try_acquire", "locked"])
async def test_one_server_by_two_addresses(call: str, face: Face, own: Servers) -> None:
    """The run_id identifies it; every call raises, not only the first."""
    urls = [logged_in(own[0].url), logged_in(own[0].tcp_url), logged_in(own[1].url)]
    async with over(face, urls) as redlock:
        for _ in range(3):
            with pytest.raises(ConfigError) as caught:
                await getattr(redlock.lock("x"), call)()
            text = str(caught.value)
            assert matches(text, SAME), text
            assert own[0].path in text
            assert f"127.0.0.1:{own[0].port}" in text
            assert_no_secret(*all_messages(caught.value))
    assert own[0].keys() == own[1].keys() == []


async def test_authority_that_cannot_be_read(face: Face, own: Servers) -> None:
    urls = [f"{url}?ssl_ca_certs=/nowhere/ca.pem" for url in tls_to_plain(Rig(own), 3)]
    async with over(face, urls) as redlock:
        with pytest.raises(ConfigError) as caught:
            await redlock.lock("x").acquire()
        assert matches(
            str(caught.value),
            "…tls.ca_certs='/nowhere/ca.pem': this file cannot be read: No such file or directory",
        )
        assert_no_secret(*all_messages(caught.value))
        assert_redlock_is_discreet(redlock)
        assert any("cannot be read" in node.why for node in redlock.nodes), redlock.nodes


async def test_credentials_that_cannot_be_sent(face: Face, own: Servers) -> None:
    port = own[0].port
    node = Node("127.0.0.1", port, credentials=lambda: (None, f"{PASSWORD}\udce9"))
    async with over(face, [node]) as redlock:
        with pytest.raises(
            ConfigError, match=r"nodes\[0\].password='\*\*\*': give a pass"
        ) as caught:
            await redlock.lock("x").acquire()
        assert_no_secret(*all_messages(caught.value))
        assert_redlock_is_discreet(redlock)


async def test_no_lease_outlives_close(face: Face, nodes: Servers) -> None:
    redlock = over(face, nodes.urls)
    lease = await redlock.lock("x").acquire()
    await redlock.close()
    assert not lease.held
    assert await lease.release() is False
    with pytest.raises(QuorlockError, match="lease on 'x' was released"):
        lease.ensure()
    assert all(server.keys() == [] for server in nodes)


async def test_margin_that_is_none(face: Face, nodes: Servers) -> None:
    async with over(face, nodes.urls) as redlock:
        lease = await redlock.lock("x").acquire()
        for margin in (-1, float("nan"), "1"):
            with pytest.raises(ConfigError, match="margin="):
                lease.ensure(margin)
        assert lease.held


async def test_a_nested_acquire_with_bad_arguments(face: Face, nodes: Servers) -> None:
    """The nested acquire refuses them as the outermost one does; nothing is counted."""
    async with over(face, nodes.urls) as redlock:
        lock = redlock.rlock("x")
        await lock.acquire()
        for given in ({"timeout": -1}, {"timeout": "1"}, {"stop": 5}):
            with pytest.raises(ConfigError, match="|".join(given)):
                await lock.acquire(**given)
        assert await lock.release() is True
        with pytest.raises(RuntimeError):
            await lock.release()


async def test_ticket_of_a_lease_held_here(face: Face, nodes: Servers) -> None:
    async with over(face, nodes.urls) as redlock:
        lease = await redlock.lock("x").acquire()
        with pytest.raises(ConfigError, match="this lease is held here already") as caught:
            await redlock.adopt(Ticket("x", lease.token, 1.0))
        assert lease.token not in "".join(all_messages(caught.value))


# --- SPOILED: keys that are in the way -------------------------------------------------------


@dataclass(frozen=True)
class Spoiled:
    what: str
    commands: list[tuple[str, ...]]
    error: type[Exception]
    says: str
    found: str  # by `redlock.inspect`, on one node

    def __str__(self) -> str:
        return self.what


OTHER_TYPE = (
    NodeError,
    "'x': … of 3 nodes cannot vote (…the key holds another type of data…), after … in …; fix…",
    "the key holds another type of data",
)

SPOILED = [
    Spoiled("hash", [("HSET", "x", "field", PASSWORD)], *OTHER_TYPE),
    Spoiled("list", [("RPUSH", "x", PASSWORD)], *OTHER_TYPE),
    Spoiled("list that ends", [("RPUSH", "x", "1"), ("PEXPIRE", "x", "60000")], *OTHER_TYPE),
    Spoiled("key without ttl", [("SET", "x", PASSWORD)], AcquireTimeout, "…o ttl…", ""),
    Spoiled(
        "another's key",
        [("SET", "x", PASSWORD, "PX", "60000")],
        AcquireTimeout,
        "'x' is held by another: … of 3 nodes refused (…) after … in …; the holder's lease ends in"
        " at most …",
        "",
    ),
]


@pytest.mark.parametrize("spoiled", SPOILED, ids=str)
async def test_key_in_the_way_on_a_quorum(spoiled: Spoiled, face: Face, nodes: Servers) -> None:
    for server, command in itertools.product(nodes[:2], spoiled.commands):
        server.execute(*command)
    async with over(face, nodes.urls[:3]) as redlock:
        began = time.monotonic()
        with pytest.raises(spoiled.error) as caught:
            await redlock.lock("x").acquire(timeout=0.3)
        assert time.monotonic() - began < SOON
        assert matches(str(caught.value), spoiled.says), str(caught.value)
        assert_no_secret(*all_messages(caught.value), repr(await redlock.inspect("x")))
    # What is not ours is left alone; what we put beside it is gone.
    assert [server.keys() for server in nodes[:3]] == [[b"x"], [b"x"], []]


@pytest.mark.parametrize("spoiled", SPOILED, ids=str)
async def test_key_in_the_way_on_one_node(spoiled: Spoiled, face: Face, nodes: Servers) -> None:
    for command in spoiled.commands:
        nodes[0].execute(*command)
    async with over(face, nodes.urls[:3]) as redlock:
        lease = await redlock.lock("x").acquire(timeout=0)
        await lease.extend()
        report = await redlock.inspect("x")
        assert report.verdict == "held"
        assert report.nodes[0].error == spoiled.found
        assert await lease.release() is True
    assert [server.keys() for server in nodes[:3]] == [[b"x"], [], []]


async def test_other_calls_meet_another_type(face: Face, nodes: Servers) -> None:
    """The nodes are at fault, not the network: this is not QuorumUnreachable."""
    for server in nodes:
        server.execute("RPUSH", "x", "1")
    async with over(face, nodes.urls) as redlock:
        for call in (redlock.lock("x").locked, redlock.lock("x").try_acquire):
            with pytest.raises(NodeError, match="the key holds another type of data"):
                await call()
        # The token's own key is certainly gone, since another thing is in its place.
        assert await redlock.release("x", "abc") is False
        assert await redlock.extend("x", "abc") is False


# --- The page about it -----------------------------------------------------------------------


def test_the_page_names_every_fault() -> None:
    """docs/reference/errors.md has a line for every row here, with the words that are said."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    for fault in FAULTS:
        words = [part.strip() for part in fault.cause.split("…") if part.strip()]
        kind = fault.error.__name__
        found = [line for line in lines if all(word in line for word in words) and kind in line]
        assert found, f"errors.md does not tell of: {fault.what} ({fault.cause}, {kind})"


def test_the_tables_are_long_enough() -> None:
    assert len(CALLS) + len(FAULTS) + len(SPOILED) >= 40
