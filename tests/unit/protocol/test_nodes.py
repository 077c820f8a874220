"""Nodes are read as redis-py would read them, refused with what to do, and never show a secret."""

from __future__ import annotations

import copy
import pickle
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.credentials
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.asyncio.cluster
import valkey.asyncio.sentinel
import valkey.cluster
import valkey.sentinel
from hypothesis import assume, given
from hypothesis import strategies as st

from quorlock._nodes.node import Node, current_credentials
from quorlock._nodes.redact import redacted
from quorlock._nodes.resolve import as_node, as_nodes, identity
from quorlock._nodes.tls import Tls
from quorlock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "canary-Pa55"

# --- URLs that are read ----------------------------------------------------------------------

READ: list[tuple[str, Node]] = [
    ("redis://a", Node("a")),
    ("redis://a:6380", Node("a", 6380)),
    ("redis://a:", Node("a")),
    ("redis://a/", Node("a")),
    ("redis://a/3", Node("a", db=3)),
    ("redis://a/3/", Node("a", db=3)),
    ("redis://a?db=3", Node("a", db=3)),
    ("redis://a/3?db=3", Node("a", db=3)),
    ("redis://A.Example:1", Node("a.example", 1)),
    ("redis://10.0.0.7:65535", Node("10.0.0.7", 65535)),
    ("redis://[::1]:7000/1", Node("::1", 7000, db=1)),
    ("redis://[::1]", Node("::1")),
    ("redis://[FE80::1%25eth0]:1", Node("fe80::1%eth0", 1)),
    ("redis://u:p@a", Node("a", username="u", password="p")),
    ("redis://:p@a", Node("a", password="p")),
    ("redis://u:@a", Node("a", username="u")),
    ("redis://:@a", Node("a")),
    ("redis://@a", Node("a")),
    ("redis://u:p:q@a", Node("a", username="u", password="p:q")),
    ("redis://u:p%40%2F%23%3F%3A%25@a", Node("a", username="u", password="p@/#?:%")),
    ("redis://%C3%BC:%E2%82%AC@a", Node("a", username="ü", password="€")),
    ("redis://u:p+q@a", Node("a", username="u", password="p+q")),
    ("redis://:100%@a", Node("a", password="100%")),
    ("redis://a?username=u&password=p%40q", Node("a", username="u", password="p@q")),
    ("redis://a?password=p+q", Node("a", password="p q")),
    ("valkey://a:1/2", Node("a", 1, db=2)),
    ("REDIS://a", Node("a")),
    ("rediss://a", Node("a", tls=True)),
    ("valkeys://a", Node("a", tls=Tls())),
    ("rediss://u:p@a:1/2", Node("a", 1, db=2, username="u", password="p", tls=True)),
    ("rediss://a?ssl_cert_reqs=required", Node("a", tls=True)),
    ("rediss://a?ssl_cert_reqs=optional", Node("a", tls=Tls(verify="optional"))),
    ("rediss://a?ssl_cert_reqs=none", Node("a", tls=Tls(verify="none", check_hostname=False))),
    ("rediss://a?ssl_check_hostname=false", Node("a", tls=Tls(check_hostname=False))),
    ("rediss://a?ssl_check_hostname=N", Node("a", tls=Tls(check_hostname=False))),
    ("rediss://a?ssl_check_hostname=True", Node("a", tls=True)),
    ("rediss://a?ssl_ca_certs=/c.pem", Node("a", tls=Tls(ca_certs="/c.pem"))),
    ("rediss://a?ssl_ca_path=/c", Node("a", tls=Tls(ca_path="/c"))),
    ("rediss://a?ssl_ca_data=PEM", Node("a", tls=Tls(ca_data="PEM"))),
    (
        "rediss://a?ssl_certfile=/c&ssl_keyfile=/k&ssl_password=x",
        Node("a", tls=Tls(certfile="/c", keyfile="/k", keyfile_password="x")),
    ),
    ("rediss://a?ssl_min_version=772", Node("a", tls=Tls(min_version="TLSv1.3"))),
    ("rediss://a?ssl_min_version=TLSv1.2", Node("a", tls=Tls(min_version="TLSv1.2"))),
    ("unix:///run/redis.sock", Node(path="/run/redis.sock")),
    ("unix:///run/redis.sock?db=2", Node(path="/run/redis.sock", db=2)),
    ("unix:///run/my%20redis.sock", Node(path="/run/my redis.sock")),
    ("unix://u:p@/run/s?db=1", Node(path="/run/s", db=1, username="u", password="p")),
    ("memory://a", Node(memory="a")),
    ("memory://a/", Node(memory="a")),
    ("Memory://orders-1.test_2", Node(memory="orders-1.test_2")),
]


@pytest.mark.parametrize(("url", "node"), READ, ids=[url for url, _ in READ])
def test_url_is_read(url: str, node: Node) -> None:
    assert Node.from_url(url) == node
    assert as_node(url) == node


def beyond_redis_py(url: str) -> bool:
    """Accepted by us alone: other schemes, and versions of TLS by name."""
    return url.startswith(("valkey", "REDIS", "memory", "Memory")) or "min_version=TLS" in url


@pytest.mark.parametrize("url", [url for url, _ in READ if not beyond_redis_py(url)])
def test_url_means_what_it_means_to_redis_py(url: str) -> None:
    parse_url: Any = redis.connection.parse_url
    theirs = parse_url(url)
    node = Node.from_url(url)
    names = ("host", "port", "db", "path", "username", "password")
    defaults = {"host": "localhost", "port": 6379, "db": 0}
    assert {name: theirs.get(name, defaults.get(name)) for name in names} == {
        name: getattr(node, name) for name in names
    }
    assert (theirs.get("connection_class") is redis.connection.SSLConnection) == bool(node.tls)


# --- URLs that are refused -------------------------------------------------------------------

QUOTE = "urllib.parse.quote"

REFUSED: list[tuple[str, str, str]] = [
    # url, what is shown of it, part of the advice
    ("", "***", "begin with the scheme"),
    ("a:6379", "a", "begin with the scheme"),
    ("http://a:80", "http://a:80", "the scheme must be redis://"),
    ("memory+x://a", "memory+x://a", "the scheme must be redis://"),
    ("unix+tls:///run/s", "unix+tls://***", "the scheme must be redis://"),
    ("redis:///0", "redis://***", "name the host"),
    ("redis://", "redis://***", "name the host"),
    ("redis://:6379", "redis://***", "name the host"),
    (f"redis://u:{CANARY}@", "redis://***@***", "name the host"),
    (f"redis://{CANARY}@a", "redis://***@a", ":password@ for a password alone"),
    ("redis://a b", "redis://***", "blank or a control"),
    (" redis://a", "***", "blank or a control"),
    ("redis://a\n", "redis://***", "blank or a control"),
    ("redis://a%20b", "redis://***", "blank or a control"),
    (f"redis://:{CANARY} x@a", "redis://***@a", "blank or a control"),
    (f"redis://:x@{CANARY}@a", "redis://***", QUOTE),
    (f"redis://:x/{CANARY}@a", "redis://***", QUOTE),
    (f"redis://:x#{CANARY}@a", "redis://***", QUOTE),
    (f"redis://:x?{CANARY}@a", "redis://***", QUOTE),
    (f"redis://:1?{CANARY}@a", "redis://***", QUOTE),
    (f"redis://a?password=x@{CANARY}", "redis://***", QUOTE),
    ("redis://a#0", "redis://***", QUOTE),
    ("redis://::1:6379", "redis://***", "IPv6 host stands in brackets"),
    (f"redis://:{CANARY}@::1:6379", "redis://***", "IPv6 host stands in brackets"),
    ("redis://[::1", "redis://***", "IPv6 host stands in brackets"),
    ("redis://[a]", "redis://***", "IPv6 host stands in brackets"),
    ("redis://a:0", "redis://***", "the port must be"),
    ("redis://a:65536", "redis://***", "the port must be"),
    ("redis://a:x", "redis://***", "the port must be"),
    ("redis://a:-1", "redis://***", "the port must be"),
    (f"redis://u:{CANARY}", "redis://***", "the port must be"),
    (f"redis://u:{CANARY}@a:x", "redis://***@***", "the port must be"),
    ("redis://a/x", "redis://a/***", "the db's number"),
    ("redis://a/-1", "redis://a/***", "the db's number"),
    ("redis://a/1/2", "redis://a/***", "the db's number"),
    ("redis://a/9999999999", "redis://a/***", "the db's number"),
    ("redis://a?db=x", "redis://a", "the db must be a whole number"),
    ("redis://a?db=-1", "redis://a", "the db must be a whole number"),
    ("redis://a?db=1.5", "redis://a", "the db must be a whole number"),
    ("redis://a/1?db=2", "redis://a/1", "given twice"),
    ("redis://a?db=1&db=1", "redis://a", "given twice"),
    ("redis://a?db=", "redis://a", "the option db is empty"),
    ("redis://a?db", "redis://a", "the option db is empty"),
    (f"redis://:{CANARY}@a?password=x", "redis://***@a", "given twice"),
    (f"redis://a?pasword={CANARY}", "redis://a", "did you mean password?"),
    ("rediss://a?ssl_ca_cert=/c", "rediss://a", "did you mean ssl_ca_certs?"),
    ("redis://a?sockt_timeout=1", "redis://a", "did you mean socket_timeout? It is node_timeout="),
    ("redis://a?zzz=1", "redis://a", "the option zzz is unknown; known are db"),
    (f"redis://a?{CANARY}=1", "redis://a", "an option's name is not one"),
    ("redis://a?socket_timeout=1", "redis://a", "socket_timeout is node_timeout="),
    ("redis://a?socket_connect_timeout=1", "redis://a", "is connect_timeout="),
    ("redis://a?max_connections=1", "redis://a", "not needed here, leave it out"),
    ("redis://a?decode_responses=1", "redis://a", "not needed here, leave it out"),
    ("redis://a?protocol=3", "redis://a", "not needed here, leave it out"),
    ("redis://a?health_check_interval=3", "redis://a", "not needed here, leave it out"),
    ("redis://a?retry_on_timeout=1", "redis://a", "not needed here, leave it out"),
    ("redis://a?host=b", "redis://a", "goes before the '?'"),
    ("redis://a?ssl=true", "redis://a", "write rediss://"),
    ("redis://a?ssl_cert_reqs=required", "redis://a", "write rediss://"),
    ("rediss://a?ssl_ciphers=X", "rediss://a", "make an ssl.SSLContext"),
    ("rediss://a?ssl_cert_reqs=CERT_NONE", "rediss://a", "required, optional or none"),
    (
        "rediss://a?ssl_cert_reqs=none&ssl_check_hostname=true",
        "rediss://a",
        "no host name is checked: leave out ssl_check_hostname",
    ),
    ("rediss://a?ssl_check_hostname=perhaps", "rediss://a", "must be true or false"),
    ("rediss://a?ssl_min_version=769", "rediss://a", "TLSv1.2 or TLSv1.3"),
    ("rediss://a?ssl_keyfile=/k", "rediss://a", "give certfile too"),
    ("redis://:%FF@a", "redis://***@a", "the password is not UTF-8"),
    ("redis://a?password=%FF", "redis://a", "not UTF-8"),
    ("unix://", "unix://", "name the socket's file"),
    ("unix:///", "unix:///", "name the socket's file"),
    ("unix://run/redis.sock", "unix://run/***", "third slash"),
    ("unix:///run/s?db=x", "unix:///run/s", "the db must be a whole number"),
    ("unix:///run/s?ssl_cert_reqs=none", "unix:///run/s", "not encrypted"),
    ("unix:///run/a%00b", "unix:///run/a%00b", "without control characters"),
    ("memory://", "memory://***", "a-z, 0-9"),
    ("memory:///", "memory://***", "a-z, 0-9"),
    ("memory://A", "memory://A", "a-z, 0-9"),
    ("memory://-a", "memory://-a", "a-z, 0-9"),
    ("memory://a%41", "memory://***", "a-z, 0-9"),
    ("memory://[::1]", "memory://[::1]", "a-z, 0-9"),
    (f"memory://{'a' * 65}", f"memory://{'a' * 65}", "up to 64"),
    ("memory:///a", "memory://***", "a name and nothing else"),
    ("memory://a/0", "memory://a/0", "a name and nothing else"),
    ("memory://a:6379", "memory://a:6379", "a name and nothing else"),
    ("memory://a:", "memory://***", "a name and nothing else"),
    ("memory://@a", "memory://***@a", "a name and nothing else"),
    ("memory://a?db=0", "memory://a", "a name and nothing else"),
    ("memory://a?password=x", "memory://a", "a name and nothing else"),
    (f"memory://u:{CANARY}@a", "memory://***@a", "a name and nothing else"),
    (f"memory://u:{CANARY}", "memory://***", "a name and nothing else"),
    (f"memory://a?{CANARY}=1", "memory://a", "an option's name is not one"),
]


@pytest.mark.parametrize(("url", "shown", "advice"), REFUSED, ids=[repr(r[0]) for r in REFUSED])
def test_url_is_refused_with_advice(url: str, shown: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Node.from_url(url)
    assert advice in caught.value.fix
    assert (caught.value.argument, caught.value.value) == ("url", shown)
    assert caught.value.__context__ is None
    assert_hides(caught.value, CANARY)


def assert_hides(error: BaseException | None, secret: str) -> None:
    """No text of the error, nor of what it hangs on to, holds the secret."""
    while error is not None:
        texts = [str(error), repr(error), repr([*vars(error).values()]), repr(error.args)]
        assert not [text for text in texts if secret in text]
        assert error.__cause__ is None
        error = error.__context__


@pytest.mark.parametrize("url", [None, 5, b"redis://a", ["redis://a"]])
def test_what_is_no_text_is_no_url(url: Any) -> None:
    with pytest.raises(ConfigError, match="a URL is a str"):
        Node.from_url(url)


# --- Secrets ---------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
hosts = st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,5})?", fullmatch=True) | st.just("::1")
ports = st.integers(1, 65535)
dbs = st.integers(0, 10_000)


def quoted(text: str) -> str:
    return quote(text, safe="")


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@given(texts, texts, hosts, ports, dbs)
def test_what_is_quoted_comes_back(
    username: str, password: str, host: str, port: int, db: int
) -> None:
    login = f"{quoted(username)}:{quoted(password)}"
    node = Node.from_url(f"redis://{login}@{bracketed(host)}:{port}/{db}")
    assert node == Node(host, port, db=db, username=username, password=password)
    assert current_credentials(node) == (username, password)


BROKEN: list[Callable[[str, str, str], str]] = [
    lambda login, place, _: f"redis://{login}@{place}/x",
    lambda login, place, _: f"redis://{login}@{place}:x",
    lambda login, place, _: f"redis://{login}@{place}?nothing=1",
    lambda login, place, _: f"redis://{login}@{place}?socket_timeout=1",
    lambda login, place, _: f"redis://{login}@{place}?ssl_cert_reqs=none",
    lambda login, place, _: f"http://{login}@{place}",
    lambda login, place, _: f"redis:/{login}@{place}",
    lambda login, place, _: f"{login}@{place}",
    lambda login, place, _: f" redis://{login}@{place}",
    lambda login, _, __: f"redis://{login}@",
    lambda login, _, __: f"redis://{login}@:0",
    lambda login, place, _: f"unix://{login}@{place}/s",
    lambda login, place, _: f"memory://{login}@{place}",
    lambda login, _, __: f"memory://{login}",
    lambda login, place, _: f"rediss://{login}@{place}?ssl_cert_reqs=perhaps",
    lambda login, place, _: f"redis://{login}@@{place}",
    lambda login, place, _: f"redis://x@{login}@{place}",
    lambda login, _, __: f"redis://{login}",
    lambda login, _, __: f"redis://{login}/0",
    lambda login, _, __: f"redis://{login}?db=x",
    lambda login, _, __: login,
    lambda _, place, password: f"redis://{place}?passwort={password}",
    lambda _, place, password: f"redis://{place}?db=x&password={password}",
    lambda _, place, password: f"redis://u:x@{place}?password={password}",
    lambda _, place, password: f"redis://{place}?{password}",
    lambda _, place, password: f"redis://{place}#{password}",
    lambda _, place, password: f"redis://{password}@{place}",
    lambda _, place, password: f"unix://{place}/{password}@",
]


@given(texts, st.text(st.characters(codec="utf-8"), min_size=4, max_size=20), hosts, ports)
def test_password_never_shows(username: str, password: str, host: str, port: int) -> None:
    node = Node(host, port, username=username, password=password)
    place = f"{bracketed(host)}:{port}"
    assume(password not in repr(node.__replace__(password="x")))
    assert password not in repr(node)
    assert password not in str(node)
    # A number as password of a URL without a host is its port; the two cannot be distinguished.
    assume(not password.isdigit())
    # So is "redis://u:@secret", which is a user without a password at the host "secret".
    codings = (quoted,) if password.startswith("@") else (quoted, str)
    for broken in BROKEN:
        for coded in codings:
            url = broken(f"{coded(username)}:{coded(password)}", place, coded(password))
            refused_without(url, password)


def refused_without(url: str, secret: str) -> None:
    """The error for `url`, if there is one, says nothing that holds more than its advice."""
    try:
        as_nodes(["redis://first", url])
    except ConfigError as error:
        # Not a password like "must be" or "/***", which our own words contain.
        assume(
            secret not in f"{error.fix} None"
            and not set(secret) <= set("nodes[1]='unix/redis/http://***@")
        )
        assert_hides(error, secret)


@pytest.mark.parametrize(
    "text",
    ["secret", "redis://:12345@", "u:12345@a", f"redis://:{CANARY}", f"unix://u:{CANARY}/run/x"],
)
def test_what_may_be_a_secret_is_not_shown(text: str) -> None:
    shown = redacted(text)
    assert CANARY not in shown
    assert "12345" not in shown


def test_repr_has_everything_but_the_secrets() -> None:
    node = Node("a", username="app", password=CANARY, tls=True)
    assert repr(node) == "Node('a:6379', db=0, username='app', password=***, tls=required)"
    assert repr(Node("::1", db=2)) == "Node('[::1]:6379', db=2)"
    assert repr(Node(path="/run/s")) == "Node('/run/s', db=0)"
    assert repr(Node(memory="a")) == "Node('memory://a', db=0)"
    assert repr(Node(credentials=lambda: (None, CANARY))).endswith("db=0, credentials=***)")
    loose = Node(tls=Tls(check_hostname=False, keyfile_password=CANARY))
    assert repr(loose) == "Node('localhost:6379', db=0, tls=required, any host name)"
    assert repr(Node(tls=ssl.create_default_context())).endswith("tls=context)")
    assert CANARY not in repr(loose.tls)


def test_node_is_a_value(capfd: pytest.CaptureFixture[str]) -> None:
    node = Node("a", username="u", password=CANARY, tls=Tls(ca_certs="/c"))
    for twin in (copy.copy(node), copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert twin == node
        assert hash(twin) == hash(node)
    assert node.__replace__(db=1) == Node(
        "a", db=1, username="u", password=CANARY, tls=Tls(ca_certs="/c")
    )
    assert vars(node)["tls"].ca_certs == "/c"
    assert capfd.readouterr() == ("", "")
    with pytest.raises(AttributeError, match="a Node is read-only"):
        node.db = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# --- Node(...) and Tls(...) in code ----------------------------------------------------------

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("host", {"host": ""}, "name the host"),
    ("host", {"host": None}, "must be a str"),
    ("host", {"host": b"a"}, "must be a str"),
    ("host", {"host": "a b"}, "blank"),
    ("host", {"host": "a\x00"}, "control"),
    ("host", {"host": "a:6379"}, "the port is a separate argument"),
    ("host", {"host": "[::1]"}, "without brackets"),
    ("host", {"host": f"redis://u:{CANARY}@a"}, "Node.from_url"),
    ("port", {"port": 0}, "1 to 65535"),
    ("port", {"port": 65536}, "1 to 65535"),
    ("port", {"port": -1}, "1 to 65535"),
    ("port", {"port": True}, "1 to 65535"),
    ("port", {"port": "6379"}, "1 to 65535"),
    ("port", {"port": 6379.0}, "1 to 65535"),
    ("host", {"host": "a..b"}, "1 to 63"),
    ("host", {"host": "."}, "1 to 63"),
    ("host", {"host": f"{'a' * 64}.b"}, "1 to 63"),
    ("host", {"host": f"{'a.' * 126}bc"}, "at most 253"),
    ("port", {"port": None}, "1 to 65535"),
    ("db", {"db": -1}, "0 or more"),
    ("db", {"db": False}, "0 or more"),
    ("db", {"db": "0"}, "0 or more"),
    ("path", {"path": ""}, "name the unix socket's file"),
    ("path", {"path": "/a\nb"}, "control"),
    ("path", {"path": 5}, "must be a str"),
    ("path", {"path": f"unix://:{CANARY}@/run/s"}, "Node.from_url"),
    ("path", {"path": "/run/s", "host": "a"}, "no host"),
    ("path", {"path": "/run/s", "port": 7}, "no port"),
    ("path", {"path": "/run/s", "tls": True}, "not encrypted"),
    ("memory", {"memory": 5}, "must be a str"),
    ("memory", {"memory": ""}, "a-z, 0-9"),
    ("memory", {"memory": "A"}, "a-z, 0-9"),
    ("memory", {"memory": f"memory://u:{CANARY}@a"}, "a-z, 0-9"),
    ("memory", {"memory": "a", "host": "b"}, "nothing else"),
    ("memory", {"memory": "a", "port": 7}, "nothing else"),
    ("memory", {"memory": "a", "db": 1}, "nothing else"),
    ("memory", {"memory": "a", "path": "/s"}, "nothing else"),
    ("memory", {"memory": "a", "tls": True}, "nothing else"),
    ("memory", {"memory": "a", "username": "u"}, "nothing else"),
    ("memory", {"memory": "a", "password": CANARY}, "nothing else"),
    ("memory", {"memory": "a", "credentials": lambda: ("u", CANARY)}, "nothing else"),
    ("username", {"username": 5}, "must be a str"),
    ("password", {"password": CANARY.encode()}, "must be a str"),
    ("username", {"username": f"{CANARY}\udce9"}, "UTF-8 can encode"),
    ("password", {"password": f"{CANARY}\udce9"}, "UTF-8 can encode"),
    ("credentials", {"credentials": (CANARY, CANARY)}, "function"),
    ("credentials", {"credentials": lambda: ("u", "p"), "password": CANARY}, "either"),
    ("tls", {"tls": "yes"}, "ssl.SSLContext"),
    ("tls", {"tls": 1}, "ssl.SSLContext"),
]


@pytest.mark.parametrize(("argument", "given", "advice"), WRONG)
def test_wrong_argument_is_refused(argument: str, given: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Node(**given)
    assert caught.value.argument == argument
    assert advice in caught.value.fix
    assert_hides(caught.value, CANARY)


@pytest.mark.parametrize("host", ["a" * 63, f"{'a.' * 126}b", "a.example.", "10.0.0.7", "::1"])
def test_names_that_python_looks_up_are_taken(host: str) -> None:
    assert Node(host).host == host


WRONG_TLS: list[tuple[str, dict[str, Any]]] = [
    ("tls.verify", {"verify": "CERT_NONE"}),
    ("tls.verify", {"verify": ssl.CERT_NONE}),
    ("tls.check_hostname", {"check_hostname": "no"}),
    ("tls.ca_certs", {"ca_certs": 5}),
    ("tls.ca_data", {"ca_data": 5}),
    ("tls.keyfile", {"keyfile": "/k"}),
    ("tls.keyfile_password", {"keyfile_password": CANARY.encode()}),
    ("tls.min_version", {"min_version": "TLSv1.1"}),
    ("tls.min_version", {"min_version": ssl.TLSVersion.TLSv1_2}),
    ("tls.context", {"context": "yes"}),
    ("tls.context", {"context": ssl.create_default_context(), "ca_certs": "/c"}),
    ("tls.context", {"context": ssl.create_default_context(), "verify": "none"}),
]


@pytest.mark.parametrize(("argument", "given"), WRONG_TLS)
def test_wrong_tls_is_refused(argument: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Tls(**given)
    assert caught.value.argument == argument
    assert_hides(caught.value, CANARY)


def test_tls_in_its_short_forms() -> None:
    context = ssl.create_default_context()
    assert Node(tls=True).tls == Tls()
    assert Node(tls=False).tls is None
    assert Node(tls=context).tls == Tls(context=context)
    assert Tls(min_version="1.3") == Tls(min_version="TLSv1.3")
    assert not Tls(verify="none").check_hostname


@pytest.mark.parametrize(
    ("node", "address", "same"),
    [
        (Node("Host"), "Host:6379", ("host", 6379)),
        (Node("host", db=3), "host:6379", ("host", 6379)),
        (Node("::1"), "[::1]:6379", ("::1", 6379)),
        (Node("0:0:0:0:0:0:0:1"), "[0:0:0:0:0:0:0:1]:6379", ("::1", 6379)),
        (Node(path="/run/S", db=1), "/run/S", ("/run/S", None)),
        (Node(memory="a"), "memory://a", ("memory://a", None)),
    ],
)
def test_address_and_identity(node: Node, address: str, same: object) -> None:
    assert (node.address, identity(node)) == (address, same)


@pytest.mark.parametrize(
    ("node", "credentials"),
    [
        (Node(), (None, None)),
        (Node(password="p"), (None, "p")),
        (Node(username="u", password="p"), ("u", "p")),
        (Node(username="u"), ("u", "")),
        (Node(username="", password=""), (None, None)),
        (Node(credentials=lambda: ("u", "p")), ("u", "p")),
        (Node(credentials=lambda: (None, "p")), (None, "p")),
        (Node(credentials=lambda: ("u", "")), ("u", "")),
    ],
)
def test_current_credentials(node: Node, credentials: object) -> None:
    assert current_credentials(node) == credentials


def test_credentials_are_asked_at_every_connect() -> None:
    passwords = iter(["first", "second"])
    node = Node(credentials=lambda: ("u", next(passwords)))
    assert [current_credentials(node), current_credentials(node)] == [
        ("u", "first"),
        ("u", "second"),
    ]


@pytest.mark.parametrize("answer", [None, CANARY, (CANARY,), (CANARY, None), (5, CANARY)])
def test_wrong_credentials_are_refused(answer: Any) -> None:
    with pytest.raises(ConfigError, match=r"must return \(username or None, password\)") as caught:
        current_credentials(Node(credentials=lambda: answer))
    assert_hides(caught.value, CANARY)


# --- Lists -----------------------------------------------------------------------------------


def test_nodes_keep_their_order() -> None:
    things = ["redis://b", Node("a"), redis.Redis("c")]
    assert as_nodes(things) == (Node("b"), Node("a"), Node("c"))
    assert as_nodes(thing for thing in things) == as_nodes(tuple(things))


@pytest.mark.parametrize(
    ("things", "argument", "advice"),
    [
        ([], "nodes", "at least one"),
        ("redis://a", "nodes", "give a list"),
        (b"redis://a", "nodes", "give a list"),
        (Node("a"), "nodes", "give a list"),
        (redis.Redis(password=CANARY), "nodes", "give a list"),
        (None, "nodes", "give a list"),
        ({"redis://a": 1}, "nodes", "give a list"),
        (["redis://a", None], "nodes[1]", "give a URL"),
        (["redis://a", {"host": "b", "password": CANARY}], "nodes[1]", "give a URL"),
        (["redis://a", ("b", 6379)], "nodes[1]", "give a URL"),
        (["redis://a", f"redis://:{CANARY}@b/x"], "nodes[1]", "the db's number"),
        (["redis://a", "redis://b", "redis://A:6379/1"], "nodes[2]", "nodes[0] (a:6379)"),
        (["redis://[::1]", Node("0::1")], "nodes[1]", "nodes[0] ([::1]:6379)"),
        (["unix:///s", f"unix://:{CANARY}@/s"], "nodes[1]", "nodes[0] (/s)"),
        (["memory://a", "memory://b", Node(memory="a")], "nodes[2]", "nodes[0] (memory://a)"),
    ],
    ids=range(15),
)
def test_list_is_refused(things: Any, argument: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_nodes(things)
    assert caught.value.argument == argument
    assert advice in caught.value.fix
    assert_hides(caught.value, CANARY)


# --- Clients ---------------------------------------------------------------------------------

CLIENTS: list[Any] = [redis.Redis, redis.asyncio.Redis, valkey.Valkey, valkey.asyncio.Valkey]
every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.__module__)

SETTINGS: list[tuple[dict[str, Any], Node]] = [
    ({}, Node()),
    ({"host": "a", "port": 1, "db": 2}, Node("a", 1, db=2)),
    ({"host": "a", "port": "1", "db": "2"}, Node("a", 1, db=2)),
    ({"username": "u", "password": CANARY}, Node(username="u", password=CANARY)),
    ({"unix_socket_path": "/run/s", "db": 1}, Node(path="/run/s", db=1)),
    ({"ssl": True, "ssl_check_hostname": True}, Node(tls=True)),
    ({"ssl": True, "ssl_check_hostname": False}, Node(tls=Tls(check_hostname=False))),
    ({"ssl": True, "ssl_cert_reqs": "none"}, Node(tls=Tls(verify="none"))),
    ({"ssl": True, "ssl_cert_reqs": ssl.CERT_NONE}, Node(tls=Tls(verify="none"))),
    ({"ssl": True, "ssl_cert_reqs": None}, Node(tls=Tls(verify="none"))),
    (
        {
            "ssl": True,
            "ssl_check_hostname": True,
            "ssl_cert_reqs": ssl.CERT_OPTIONAL,
            "ssl_ca_certs": "/ca.pem",
            "ssl_certfile": "/c.pem",
            "ssl_keyfile": "/k.pem",
            "ssl_min_version": ssl.TLSVersion.TLSv1_3,
        },
        Node(
            tls=Tls(
                verify="optional",
                ca_certs="/ca.pem",
                certfile="/c.pem",
                keyfile="/k.pem",
                min_version="TLSv1.3",
            )
        ),
    ),
]


@every_client
@pytest.mark.parametrize(("settings", "node"), SETTINGS, ids=range(len(SETTINGS)))
def test_client_is_read(client: Any, settings: dict[str, Any], node: Node) -> None:
    assert as_node(client(**settings)) == node


@every_client
def test_client_made_from_a_url_is_read(client: Any) -> None:
    for url in ("redis://u:p@a:1/2", "rediss://a", "unix:///run/s?db=1", "redis://?db=2"):
        expected = Node(db=2) if url == "redis://?db=2" else Node.from_url(url)
        assert as_node(client.from_url(url)) == expected


@every_client
def test_tls_files_of_a_client_are_read(client: Any) -> None:
    made = client.from_url("rediss://a?ssl_ca_path=/ca&ssl_ca_data=PEM&ssl_check_hostname=yes")
    assert as_node(made).tls == Tls(ca_path="/ca", ca_data="PEM")
    locked = client.from_url("rediss://a", ssl_certfile=Path("/c"), ssl_password=CANARY)
    assert as_node(locked).tls == Tls(certfile="/c", keyfile_password=CANARY)


class Provider(redis.credentials.CredentialProvider):
    def __init__(self, *answer: str) -> None:
        self.answer = answer

    def get_credentials(self) -> Any:
        return self.answer


@every_client
def test_credential_provider_is_asked(client: Any) -> None:
    both = as_node(client(credential_provider=Provider("u", CANARY)))
    alone = as_node(client(credential_provider=Provider(CANARY)))
    assert current_credentials(both) == ("u", CANARY)
    assert current_credentials(alone) == (None, CANARY)
    assert CANARY not in repr(both) + repr(both.credentials)


def sentinel_clients() -> list[Any]:
    kinds: list[Any] = [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel]
    kinds += [valkey.sentinel.Sentinel, valkey.asyncio.sentinel.Sentinel]
    watching = [kind([("s", 26379)], password=CANARY) for kind in kinds]
    return [
        *watching,
        *(sentinel.master_for("m") for sentinel in watching),
        *(sentinel.master_for("m", ssl=True) for sentinel in watching),
    ]


def cluster_clients() -> list[Any]:
    # The blocking ones ask the cluster in their constructor, so they are made without it.
    blocking: list[Any] = [redis.cluster.RedisCluster, valkey.cluster.ValkeyCluster]
    node: Any = redis.cluster.ClusterNode
    return [
        *(kind.__new__(kind) for kind in blocking),
        redis.asyncio.cluster.RedisCluster(host="a", password=CANARY),
        valkey.asyncio.cluster.ValkeyCluster(host="a", password=CANARY),
        node("a", 6379),
    ]


@pytest.mark.parametrize("client", [*sentinel_clients(), *cluster_clients()], ids=range(17))
def test_what_is_no_independent_master_is_refused(client: Any) -> None:
    with pytest.raises(ConfigError, match="Redlock needs independent masters") as caught:
        as_nodes([client])
    assert caught.value.argument == "nodes[0]"
    assert_hides(caught.value, CANARY)


class OwnConnection(redis.Connection):
    """A connection class like that of fakeredis: it may not connect to its host."""


@pytest.mark.parametrize(
    ("client", "advice"),
    [
        (redis.Redis(ssl=True, ssl_ciphers="X", password=CANARY), "its ssl_ciphers cannot"),
        (redis.Redis(ssl=True, ssl_cert_reqs="perhaps", password=CANARY), "ssl_cert_reqs must"),
        (redis.Redis(port=0, password=CANARY), "the port must be"),
        (redis.Redis(db=-1, password=CANARY), "the db must be"),
        (redis.Redis(host="", password=CANARY), "name the host"),
        (redis.Redis(redis_connect_func=print, password=CANARY), "its connect function"),
        (
            redis.Redis(connection_pool=redis.ConnectionPool(OwnConnection, password=CANARY)),
            "its connection class",
        ),
        (object(), "give a URL"),
        (redis.ConnectionPool(password=CANARY), "give a URL"),
    ],
    ids=range(9),
)
def test_client_is_refused(client: Any, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_node(client)
    assert advice in caught.value.fix
    assert caught.value.argument == "node"
    assert_hides(caught.value, CANARY)


def test_neither_ssl_nor_a_client_library_is_imported() -> None:
    code = (
        "import sys; from quorlock._nodes.resolve import as_nodes;"
        "import quorlock._drivers.ssl_context;"
        "as_nodes(['rediss://u:p@a', 'unix:///s']);"
        "print([n for n in ('ssl', 'redis', 'valkey') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stdout
