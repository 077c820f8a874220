"""The first words: who may vote, who may not and why, and never a password in the reason."""

from __future__ import annotations

import re

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorlock import scripts
from quorlock._core.agreement import ADMIT, Decision, Step
from quorlock._nodes.node import Node
from quorlock._protocol.encoding import encode_command
from quorlock._protocol.handshake import Handshake, NodeRejected, ServerInfo
from quorlock._protocol.reader import REPLY_BYTES_MAX
from quorlock.errors import VoteCode
from quorlock.testing.servers import Servers
from tests.harness.support.resp import bulk

PASSWORD = "canary-Pa55"
RUN_ID = "0123456789abcdef0123456789abcdef01234567"

SERVER = f"# Server\r\nredis_version:7.0.15\r\nrun_id:{RUN_ID}\r\ntcp_port:6379\r\n".encode()
MASTER = b"# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
NIL, NIL2 = b"_\r\n", b"$-1\r\n"
# With the answer to the next request: the server was not declared as born empty.
HELLO3 = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n" + NIL
NO_HELLO = b"-ERR unknown command `HELLO`, with args beginning with: `3`\r\n"
NOAUTH = b"-NOAUTH Authentication required.\r\n"
OK = b"+OK\r\n"
RAN = b":1\r\n" * 2  # both of the scripts that it tries


def verbatim(text: bytes) -> bytes:
    return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)


def handshake(db: int = 0, username: str | None = None, password: str | None = None) -> Handshake:
    return Handshake(Node(db=db, username=username, password=password), username, password)


def unfit(made: Handshake, *parts: bytes) -> NodeRejected:
    *first, last = parts
    for part in first:
        made.feed(part)
    with pytest.raises(NodeRejected) as caught:
        made.feed(last)
    assert made.server_info is None
    assert PASSWORD not in caught.value.text
    return caught.value


def sent(made: Handshake) -> list[list[bytes]]:
    """Return the sent commands as words."""
    reader = hiredis.Reader()
    reader.feed(made.to_send)
    words: list[list[bytes]] = []
    while isinstance(reply := reader.gets(), list):
        words.append(reply)
    return words


PROBES = [
    [b"EVAL", scripts.PROBE.text, b"1", b"quorlock:probe"],
    [b"EVALSHA", scripts.PROBE.sha, b"1", b"quorlock:probe"],
]
INFOS = [*PROBES, [b"INFO", b"server"], [b"INFO", b"replication"]]
BORN = [b"GET", b"quorlock:born-empty"]
NAMED = [b"SETNAME", b"quorlock"]


# --- fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "packet"),
    [
        (handshake(), [[b"HELLO", b"3", *NAMED], BORN, *INFOS]),
        (handshake(db=7), [[b"HELLO", b"3", *NAMED], BORN, [b"SELECT", b"7"], *INFOS]),
        (
            handshake(password="p w"),
            [[b"HELLO", b"3", b"AUTH", b"default", b"p w", *NAMED], BORN, *INFOS],
        ),
        (
            handshake(username="ü", password="ß"),
            [[b"HELLO", b"3", b"AUTH", "ü".encode(), "ß".encode(), *NAMED], BORN, *INFOS],
        ),
        (
            handshake(username="u", password=""),
            [[b"HELLO", b"3", b"AUTH", b"u", b"", *NAMED], BORN, *INFOS],
        ),
    ],
    ids=range(5),
)
def test_one_packet_says_all(made: Handshake, packet: list[list[bytes]]) -> None:
    """Protocol, user, name, database and both reports in one round trip."""
    assert sent(made) == packet


@pytest.mark.parametrize("db", [0, 3])
@pytest.mark.parametrize("text", [bulk, verbatim])
def test_a_master_is_accepted(db: int, text: type[bytes]) -> None:
    """The result has its run_id and version, over RESP3."""
    made = handshake(db=db)
    select = OK if db else b""
    made.feed(HELLO3 + select + RAN + text(SERVER) + text(MASTER))
    assert made.server_info == ServerInfo(RUN_ID, "7.0.15", resp3=True, tracks=True)


def test_valkey_reports_its_own_version() -> None:
    """Valkey also has a redis_version, for clients that look for one."""
    made = handshake()
    info = b"redis_version:7.2.4\r\nvalkey_version:9.1.0\r\nrun_id:abc\r\n"
    made.feed(HELLO3 + RAN + bulk(info) + bulk(MASTER))
    assert made.server_info == ServerInfo("abc", "9.1.0", resp3=True, tracks=True)


@pytest.mark.parametrize(
    ("info", "tracks"),
    [
        (b"redis_version:6.2.0", True),
        (b"redis_version:6.0.20", False),
        (b"redis_version:8.2.1\r\nexecutable:/usr/bin/redis-server", True),
        (b"redis_version:255.255.255", True),
        (b"redis_version:7.2.4\r\nvalkey_version:8.0.1", True),
        (b"valkey_version:9.1.0", True),
        (b"redis_version:6.3.4", False),
        (b"redis_version:6.2.2\r\nexecutable:/usr/bin/keydb-server", False),
        (b"redis_version:7.4.0\r\ndragonfly_version:df-v1.20.0", False),
        (b"redis_version:seven", False),
        (b"server_name:else", False),
    ],
)
def test_servers_that_track_keys(info: bytes, tracks: bool) -> None:
    """Valkey, and Redis from 6.2 on: some forks crash or hang."""
    made = handshake()
    made.feed(HELLO3 + RAN + bulk(info + b"\r\nrun_id:abc\r\n") + bulk(MASTER))
    assert made.server_info is not None
    assert made.server_info.tracks is tracks


@pytest.mark.parametrize(
    ("refusal", "made", "login"),
    [
        (NO_HELLO, handshake(), [b"PING"]),
        (b"-ERR unknown command 'HELLO'\r\n", handshake(), [b"PING"]),
        (b"-NOPROTO unsupported protocol version\r\n", handshake(), [b"PING"]),
        (b"-NOPERM u has no permissions to run 'hello'\r\n", handshake(), [b"PING"]),
        (NO_HELLO, handshake(password="p"), [b"AUTH", b"p"]),
        (NO_HELLO, handshake(username="u", password="p"), [b"AUTH", b"u", b"p"]),
    ],
    ids=range(6),
)
def test_a_server_without_hello_is_asked_in_resp2(
    refusal: bytes, made: Handshake, login: list[bytes]
) -> None:
    """Old servers, and users who may not say HELLO: AUTH or PING, and the rest again."""
    made.feed(refusal + NOAUTH * 5)
    assert made.server_info is None
    assert sent(made) == [login, BORN, *INFOS]
    made.feed(OK + NIL2 + RAN + bulk(SERVER) + bulk(MASTER))
    assert made.server_info == ServerInfo(RUN_ID, "7.0.15")


def test_the_database_is_selected_again_in_resp2() -> None:
    """Replies after the refused HELLO do not count."""
    made = handshake(db=2)
    made.feed(NO_HELLO + NOAUTH + b"-ERR DB index is out of range\r\n" + NOAUTH * 4)
    assert sent(made) == [[b"PING"], BORN, [b"SELECT", b"2"], *INFOS]
    made.feed(b"+PONG\r\n" + NIL2 + OK + RAN + bulk(SERVER) + bulk(MASTER))
    assert made.server_info is not None


FIRST = HELLO3 + OK + RAN + verbatim(SERVER) + verbatim(MASTER)
OLD = (
    NO_HELLO + NOAUTH + OK + NOAUTH * 4,
    b"+PONG\r\n" + NIL2 + OK + RAN + bulk(SERVER) + bulk(MASTER),
)


def test_split_at_every_byte() -> None:
    """The talk does not depend on how the bytes are cut, in RESP3 and in RESP2."""
    for cut in range(1, len(FIRST)):
        made = handshake(db=1)
        made.feed(FIRST[:cut])
        assert made.server_info is None
        made.feed(FIRST[cut:])
        assert made.server_info == ServerInfo(RUN_ID, "7.0.15", resp3=True, tracks=True)
    made = handshake(db=1)
    for data in OLD:
        for i in range(len(data)):
            assert made.server_info is None
            made.feed(data[i : i + 1])
    assert made.server_info == ServerInfo(RUN_ID, "7.0.15")


def test_pushes_between_are_skipped() -> None:
    """However many come in one packet."""
    push = b">2\r\n+invalidate\r\n*1\r\n+k\r\n"
    made = handshake()
    made.feed(
        push * 5_000 + HELLO3 + push + RAN + bulk(SERVER) + push * 2_000 + bulk(MASTER) + push
    )
    assert made.server_info is not None


def test_real_servers_are_accepted(nodes: Servers) -> None:
    """A real server's bytes yield the run_id that it reports elsewhere."""
    for node in nodes:
        reader = hiredis.Reader()
        made = handshake(db=1)
        reader.feed(made.to_send)
        commands = [reader.gets() for _ in range(7)]
        assert commands[2] == [b"SELECT", b"1"]
        replies = [node.execute(*words) for words in commands[5:]]
        made.feed(HELLO3 + OK + RAN + b"".join(map(bulk, replies)))
        assert made.server_info is not None
        assert made.server_info.run_id.encode() in node.execute("INFO", "server")
        assert re.fullmatch(r"[0-9a-f]{40}", made.server_info.run_id)


# --- unfit -----------------------------------------------------------------------------------

REFUSED: list[tuple[bytes, str, bool]] = [
    (
        b"-NOAUTH HELLO must be called with the client already authenticated\r\n",
        "NOAUTH HELLO must be called with the client already authenticated",
        True,
    ),
    (
        b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        "WRONGPASS invalid username-password pair or user is disabled.",
        True,
    ),
    (
        b"-DENIED Redis is running in protected mode\r\n",
        "DENIED Redis is running in protected mode",
        True,
    ),
    (b"-ERR max number of clients reached\r\n", "ERR max number of clients reached", False),
    (b"-LOADING Redis is loading\r\n", "LOADING Redis is loading", False),
    (b"-BUSY Redis is busy running a script\r\n", "BUSY Redis is busy running a script", False),
    (b"-ERR \x1b[31m\r\n", "ERR ?[31m", False),
]


@pytest.mark.parametrize(("reply", "text", "lasting"), REFUSED, ids=range(len(REFUSED)))
def test_a_refused_first_command_is_reported_at_once(
    reply: bytes, text: str, lasting: bool
) -> None:
    """A server that refuses may hang up behind its words: they are the reason, with or without
    answers to the rest of the packet.
    """
    for rest in (b"", NOAUTH * 5, OK + NIL + RAN + bulk(SERVER) + bulk(MASTER)):
        error = unfit(handshake(password=PASSWORD), reply + rest)
        assert (error.text, error.code.is_permanent) == (text, lasting)
        assert str(error) == text


@pytest.mark.parametrize(
    ("login", "text", "lasting"),
    [
        (b"-ERR invalid password\r\n", "ERR invalid password", True),
        (
            b"-ERR Client sent AUTH, but no password is set\r\n",
            "ERR Client sent AUTH, but no password is set",
            True,
        ),
        (
            b"-ERR AUTH <password> called without any password configured\r\n",
            "ERR AUTH <password> called without any password configured",
            True,
        ),
        (b"-WRONGPASS invalid\r\n", "WRONGPASS invalid", True),
        (
            b"-ERR wrong number of arguments for 'auth' command\r\n",
            "ERR wrong number of arguments for 'auth' command",
            False,
        ),
    ],
    ids=range(5),
)
def test_a_refused_login_in_resp2(login: bytes, text: str, lasting: bool) -> None:
    """Servers without HELLO have older messages."""
    made = handshake(username="u", password=PASSWORD)
    error = unfit(made, NO_HELLO + NOAUTH * 5, login + NOAUTH * 5)
    assert (error.text, error.code.is_permanent) == (text, lasting)


def test_no_password_where_one_is_needed_in_resp2() -> None:
    """PING is answered by NOAUTH."""
    error = unfit(handshake(), NO_HELLO + NOAUTH * 5, NOAUTH * 6)
    assert (error.text, error.code.is_permanent) == ("NOAUTH Authentication required.", True)


@pytest.mark.parametrize(
    ("select", "text"),
    [
        (b"-ERR DB index is out of range\r\n", "ERR DB index is out of range"),
        (b"-ERR invalid DB index\r\n", "ERR invalid DB index"),
        (b"-NOPERM no permissions to run 'select'\r\n", "NOPERM no permissions to run 'select'"),
    ],
)
def test_a_database_that_is_not_there(select: bytes, text: str) -> None:
    """Lasting: no lock can ever be in it."""
    error = unfit(handshake(db=99), HELLO3 + select + RAN + bulk(SERVER) + bulk(MASTER))
    assert (error.text, error.code.is_permanent) == (text, True)


NO_INFO = b"-NOPERM User u has no permissions to run the 'info' command\r\n"
INFO_HINT = "may not run INFO, which tells its run_id (grant +info)"
NO_RUN_ID = "does not report its run_id in INFO"
NO_TEXT = "does not speak the Redis protocol: INFO is not a text"


def replication(*lines: bytes) -> bytes:
    return bulk(b"# Replication\r\n" + b"".join(line + b"\r\n" for line in lines))


REPORTS: list[tuple[bytes, bytes, str, bool]] = [
    (NO_INFO, NO_INFO, INFO_HINT, True),
    (bulk(SERVER), NO_INFO, INFO_HINT, True),
    (NOAUTH, NOAUTH, "NOAUTH Authentication required.", True),
    (b"-BUSY script\r\n", bulk(MASTER), "BUSY script", False),
    (
        bulk(SERVER),
        replication(b"role:slave", b"master_host:10.0.0.1", b"master_port:6379"),
        "is not a master (role slave of 10.0.0.1)",
        True,
    ),
    (bulk(SERVER), replication(b"role:slave"), "is not a master (role slave)", True),
    (bulk(SERVER), bulk(b""), "is not a master (role none)", True),
    (bulk(b"# Server\r\n"), bulk(MASTER), NO_RUN_ID, True),
    (bulk(b"run_id:\r\n"), bulk(MASTER), NO_RUN_ID, True),
    (b"$-1\r\n", bulk(MASTER), NO_TEXT, True),
    (b":5\r\n", bulk(MASTER), NO_TEXT, True),
    (b"#f\r\n", b"#f\r\n", NO_TEXT, True),
    (b"*1\r\n+a\r\n", bulk(MASTER), NO_TEXT, True),
    (bulk(SERVER), replication(b"role:\x1b[1m"), "is not a master (role ?[1m)", True),
]


def test_a_replica_is_named() -> None:
    """The restart guard keeps it out for a while when it is a master again."""
    error = unfit(handshake(), HELLO3 + RAN + bulk(SERVER) + replication(b"role:slave"))
    assert error.replica == RUN_ID


@pytest.mark.parametrize(("server", "replica", "text", "lasting"), REPORTS, ids=range(len(REPORTS)))
def test_a_report_that_is_refused(server: bytes, replica: bytes, text: str, lasting: bool) -> None:
    """Users without INFO, replicas, sentinels (they have no role there), servers without a
    run_id, servers whose report is none.
    """
    error = unfit(handshake(), HELLO3 + RAN + server + replica)
    assert (error.text, error.code.is_permanent) == (text, lasting)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\x15\x03\x01\x00\x02\x02",
        b"\x00" * 8,
        b"%1\r\n*0\r\n:1\r\n",
        b"!5\r\nERR x\r\n",
        b"*99999999999999999999\r\n",
    ],
    ids=range(7),
)
def test_garbage(data: bytes) -> None:
    """Another protocol lasts, and its bytes are not quoted."""
    error = unfit(handshake(password=PASSWORD), data)
    assert (error.text, error.code.is_permanent) == ("does not speak the Redis protocol", True)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_arbitrary_bytes_are_refused_or_incomplete(parts: list[bytes]) -> None:
    """Only NodeRejected is raised, and no handshake completes without a run_id."""
    made = handshake()
    try:
        for part in parts:
            made.feed(part)
    except NodeRejected:
        pass
    assert made.server_info is None


@pytest.mark.parametrize(
    "more", [b"x" * 10_000, b":1\r\n" * 2_500, b">1\r\n+x\r\n" * 1_000], ids=range(3)
)
def test_words_without_an_end(more: bytes) -> None:
    """A stranger cannot make us read for ever."""
    made = handshake()
    made.feed(b"$999999999\r\n" if more[:1] == b"x" else b"*1000000\r\n")
    for _ in range((REPLY_BYTES_MAX - 20) // len(more)):
        made.feed(more)
    with pytest.raises(NodeRejected, match="sends a reply without an end") as caught:
        made.feed(more)
    assert caught.value.code.is_permanent


# --- secrets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("username", [None, "u"])
@pytest.mark.parametrize("db", [0, 3])
def test_an_echo_never_shows_the_password(db: int, username: str | None) -> None:
    """A server that sends our own bytes back, whole, in part or as an error."""
    made = handshake(db, username, PASSWORD)
    error = unfit(made, made.to_send)
    assert error.code.is_permanent
    assert error.text.startswith("does not speak the Redis protocol")
    words = encode_command(b"AUTH", PASSWORD.encode())
    for data in (b"+" + words, words * 6, b"-ERR " + made.to_send.replace(b"\r\n", b" ") + b"\r\n"):
        unfit(handshake(db, username, PASSWORD), data + NOAUTH * 6)


@pytest.mark.parametrize("password", [PASSWORD, "tab\tand\x1bescape", "ß€🔑 pass", "a b", "\x7f"])
def test_a_server_that_plays_the_password_back(password: str) -> None:
    """Taken out before the text is cut and cleaned, so that no part of it is left."""
    for padding in (0, 100, *range(140, 165)):
        plays_back(password, padding)


def plays_back(password: str, padding: int) -> None:
    words = f"-ERR {'x' * padding}{password}\r\n".encode()
    role = replication(f"role:{'x' * padding}{password}".encode())
    for data in (words, HELLO3 + words * 4, HELLO3 + RAN + bulk(SERVER) + role):
        made = handshake(password=password)
        with pytest.raises(NodeRejected) as caught:
            made.feed(data)
        assert password not in caught.value.text
        text = caught.value.text.partition("x" * padding)[2] if padding else caught.value.text
        assert password[:3] not in text
        assert re.sub(r"[\x00-\x1f\x7f]", "?", password)[:3] not in text


# --- the restart guard, and what all agree on --------------------------------------------------

AGREED = b"n=3 max_ttl_ms=30000 restart_guard=uptime"
NOPERM_KEY = b"-NOPERM No permissions to access a key\r\n"
HINT = "may not use the keys quorlock:* (grant ~quorlock:* +set +get)"


def agreeing(
    *steps: Decision, marks: bool = False, node: Node | None = None
) -> tuple[Handshake, list[bytes]]:
    """Decides so, one after the other, and admits in the end; what the node kept each time."""
    kept: list[bytes] = []
    left = [*steps]

    def consider(server_info: ServerInfo) -> Decision:
        kept.append(server_info.agreed)
        return left.pop(0) if left else ADMIT

    return Handshake(node or Node(), None, None, consider, marks=marks), kept


def server_reply(*, born: bytes = NIL, uptime: bytes = b"", agreed: bytes = NIL) -> bytes:
    """All answers to the first packet."""
    server = bulk(SERVER[: SERVER.index(b"tcp_port")] + uptime)
    return HELLO3.removesuffix(NIL) + born + RAN + server + bulk(MASTER) + agreed


WRITE = Decision(Step.WRITE, AGREED.decode())


def test_what_all_agree_on_is_read_in_the_same_packet() -> None:
    made, kept = agreeing()
    assert sent(made)[-1] == [b"GET", b"quorlock:config"]
    made.feed(
        server_reply(
            born=bulk(RUN_ID.encode()), uptime=b"uptime_in_seconds:7\r\n", agreed=bulk(AGREED)
        )
    )
    facts = ServerInfo(RUN_ID, "7.0.15", 7, RUN_ID.encode(), AGREED, resp3=True, tracks=True)
    assert made.server_info == facts
    assert kept == [AGREED]


def test_it_is_written_where_nothing_is_kept_after_a_wait_for_the_others() -> None:
    """Compared and set: what is there afterwards is looked at again."""
    made, kept = agreeing(Decision(Step.WAIT), Decision(Step.WAIT), WRITE)
    made.feed(server_reply())
    for _ in range(2):
        made.go_on()
    assert sent(made) == [
        [b"SET", b"quorlock:config", AGREED, b"NX"],
        [b"GET", b"quorlock:config"],
    ]
    made.feed(NIL + bulk(b"of another"))
    assert made.server_info is not None
    assert made.server_info.agreed == b"of another"
    assert kept == [b"", b"", b"", b"of another"]


def test_a_wait_ends_as_the_node_is_admitted() -> None:
    made, _ = agreeing(Decision(Step.WAIT))
    made.feed(server_reply(agreed=bulk(AGREED)))
    assert made.is_waiting
    made.go_on()
    assert made.server_info is not None
    assert not made.is_waiting


def test_what_is_kept_is_compared_and_set() -> None:
    """Another client may have changed it since it was read."""
    made, kept = agreeing(*[Decision(Step.WRITE, "named")] * 2)
    made.feed(server_reply(agreed=bulk(AGREED)))
    compare = [b"EVAL", scripts.CONFIG.text, b"1", b"quorlock:config", AGREED, b"named"]
    assert sent(made) == [compare]
    made.feed(bulk(b"of another"))
    assert sent(made) == [[*compare[:4], b"of another", b"named"]]
    made.feed(bulk(b"of another"))
    assert made.server_info is not None
    assert kept == [AGREED, b"of another", b"named"]


@pytest.mark.parametrize(
    ("reply", "text", "lasting"),
    [
        (b"-OOM command not allowed\r\n", "OOM command not allowed", False),
        (b"-NOPERM no 'set' command\r\n", "NOPERM no 'set' command", True),
        (b"-ERR unknown command 'SET', with args beginning with: 'n=3' 'NX'\r\n", "…'SET'", True),
        (OK, "does not keep quorlock:config", False),
    ],
    ids=range(4),
)
def test_who_cannot_keep_it_does_not_vote(reply: bytes, text: str, lasting: bool) -> None:
    made, _ = agreeing(WRITE)
    made.feed(server_reply())
    error = unfit(made, reply + NIL)
    assert error.text.endswith(text.removeprefix("…"))
    assert error.code.is_permanent is lasting


@pytest.mark.parametrize(
    ("line", "uptime_s"),
    [
        (b"uptime_in_seconds:0\r\n", 0),
        (b"uptime_in_seconds:-3600\r\n", -3600),
        (b"uptime_in_seconds:1795310992\r\n", 1_795_310_992),
        (b"uptime_in_seconds:\r\n", None),
        (b"uptime_in_seconds:soon\r\n", None),
        (b"uptime_in_seconds:" + b"9" * 5_000 + b"\r\n", None),
        (b"", None),
    ],
    ids=range(7),
)
def test_the_uptime(line: bytes, uptime_s: int | None) -> None:
    made, _ = agreeing()
    made.feed(server_reply(uptime=line))
    assert made.server_info is not None
    assert made.server_info.uptime_s == uptime_s


@pytest.mark.parametrize(
    ("reply", "text", "code"),
    [
        (NOPERM_KEY, HINT, VoteCode.ACCESS_DENIED),
        (b"-LOADING Redis is loading\r\n", "LOADING Redis is loading", VoteCode.TRANSIENT_ERROR),
        (b"-MOVED 1 127.0.0.1:6381\r\n", "MOVED 1 127.0.0.1:6381", VoteCode.PERMANENT_ERROR),
        (
            b":1\r\n",
            "does not speak the Redis protocol: GET is not a text",
            VoteCode.PROTOCOL_ERROR,
        ),
    ],
    ids=range(4),
)
def test_side_keys_that_cannot_be_read(reply: bytes, text: str, code: VoteCode) -> None:
    for data in (server_reply(born=reply), server_reply(agreed=reply)):
        error = unfit(agreeing()[0], data)
        assert (error.text, error.code) == (text, code)


@pytest.mark.parametrize(
    ("born", "durable", "worth"),
    [
        (NIL, False, b"nothing"),
        (NIL, True, b"the same"),
        (bulk(RUN_ID.encode()), False, b"all"),
        (bulk(b"another's"), False, b"nothing"),
    ],
    ids=range(4),
)
def test_a_marker_is_one_packet_more(born: bytes, durable: bool, worth: bytes) -> None:
    """The packet has the run_id of the node, and how another process's marker counts."""
    made, _ = agreeing(marks=True, node=Node(durable=durable))
    made.feed(server_reply(born=born, agreed=bulk(AGREED)))
    run_id = RUN_ID.encode()
    assert sent(made) == [[b"EVAL", scripts.GUARD.text, b"1", b"quorlock:guard", run_id, worth]]
    made.feed(b":1234\r\n")
    assert made.server_info is not None
    assert made.server_info.marked_ms == 1234


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (b"-ERR ACL failure in script: User u has no permissions\r\n", "ERR ACL failure in …"),
        (b"$1\r\n1\r\n", "does not speak the Redis protocol: EVAL is not a number"),
    ],
    ids=range(2),
)
def test_a_marker_that_is_refused(reply: bytes, text: str) -> None:
    error = unfit(agreeing(marks=True)[0], server_reply(agreed=bulk(AGREED)), reply)
    assert error.text.startswith(text.removesuffix("…"))
    assert error.code.is_permanent
