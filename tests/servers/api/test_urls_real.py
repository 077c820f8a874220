"""Every way to name a node leads to the right server, user and db. Real servers, both faces."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from quorlock import ConfigError, Node, NodeError, Tls
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import TlsFront
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, all_up, raises

USER = "app-ü:1"
# All that a URL has a meaning for, and more.
PASSWORD = "canary p@ss:w/or#d?&=%41+é\"'\\\n🔒"
DB = 7
# All of these nodes answer, and faults are reported at once: a long timeout costs nothing.
SETTINGS: dict[str, Any] = {
    "ttl": 10.0,
    "node_timeout": 0.3,
    "connect_timeout": 5.0,
    "outage_timeout": 20.0,
}

LOGIN = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}"


@pytest.fixture(scope="module")
def homes() -> Iterator[Servers]:
    """Three servers that let one user in, by unix socket and TCP."""
    with Servers(3, tcp=True) as started:
        for server in started:
            server.execute("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "+@all")
        yield started


@pytest.fixture(autouse=True)
def empty(homes: Servers) -> None:
    for server in homes:
        server.flush()


def keys_in(servers: Servers, db: int) -> list[list[bytes]]:
    """Return the keys of this database, read by another client."""
    found = []
    for server in servers:
        with redis.Redis(unix_socket_path=server.path, db=db) as client:
            keys = client.keys()
            assert isinstance(keys, list)
            found.append([key for key in keys if not key.startswith(b"quorlock:")])
    return found


def users_of(servers: Servers) -> list[set[str]]:
    """Return the users of our connections."""
    return [
        {
            word.removeprefix("user=")
            for line in server.execute("CLIENT", "LIST").decode().splitlines()
            if "name=quorlock " in line
            for word in line.split()
            if word.startswith("user=")
        }
        for server in servers
    ]


async def lands(
    face: Face, nodes: list[Any], servers: Servers, *, db: int = 0, user: str = "default"
) -> None:
    """Acquire, extend and release over them; the key is in that database of each, and no other."""
    async with face.redlock(nodes, **SETTINGS) as redlock:
        assert await all_up(redlock, "who", 10), redlock.nodes
        lease = await redlock.lock("who").acquire(timeout=10.0)
        await lease.extend()
        assert [vote.node for vote in lease.votes] == [node.address for node in redlock.nodes]
        # All three, in the end: who came too late for the verdict has the key nevertheless.
        assert (await redlock.inspect("who")).verdict == "held"
        assert await until_async(lambda: keys_in(servers, db) == [[b"who"]] * 3), keys_in(
            servers, db
        )
        assert [server.keys() for server in servers] == [[b"who"]] * 3
        assert users_of(servers) == [{user}] * 3
        assert all(node.up and node.version for node in redlock.nodes), redlock.nodes
        assert "canary" not in repr((redlock, redlock.nodes, lease))
        assert await lease.release() is True
        assert (await redlock.inspect("who")).verdict == "free"
    assert [server.keys() for server in servers] == [[]] * 3


# --- URLs ------------------------------------------------------------------------------------


async def test_tcp_url(face: Face, homes: Servers) -> None:
    await lands(face, homes.tcp_urls, homes)


async def test_unix_url(face: Face, homes: Servers) -> None:
    await lands(face, homes.urls, homes)


@pytest.mark.parametrize("form", ["redis://127.0.0.1:{}/7", "valkey://127.0.0.1:{}?db=7"])
async def test_tcp_url_with_db(form: str, face: Face, homes: Servers) -> None:
    await lands(face, [form.format(server.port) for server in homes], homes, db=DB)


async def test_unix_url_with_db(face: Face, homes: Servers) -> None:
    await lands(face, [f"unix://{quote(s.path)}?db={DB}" for s in homes], homes, db=DB)


async def test_host_by_name(face: Face, homes: Servers) -> None:
    """localhost has two addresses, and the servers listen on one of them."""
    await lands(face, [f"redis://localhost:{server.port}" for server in homes], homes)


@pytest.mark.parametrize(
    "form",
    [
        "redis://{login}@127.0.0.1:{port}/7",
        "unix://{login}@{path}?db=7",
        "redis://127.0.0.1:{port}/7?username={user}&password={password}",
        "unix://{path}?password={password}&db=7&username={user}",
    ],
)
async def test_user_and_password_in_url(form: str, face: Face, homes: Servers) -> None:
    user, _, password = LOGIN.partition(":")
    urls = [
        form.format(login=LOGIN, user=user, password=password, port=s.port, path=quote(s.path))
        for s in homes
    ]
    await lands(face, urls, homes, db=DB, user=USER)


async def test_password_of_the_default_user(face: Face) -> None:
    secret = "canary-only/@:"
    with Servers(3, password=secret, tcp=True) as servers:
        for urls in (servers.urls, servers.tcp_urls):
            async with face.redlock(urls, **SETTINGS) as redlock:
                lease = await redlock.lock("who").acquire(timeout=10.0)
                assert await lease.release() is True


async def test_three_ways_in_one_list(face: Face, homes: Servers) -> None:
    nodes = [homes[0].url, Node("127.0.0.1", homes[1].port), redis.Redis(port=homes[2].port)]
    await lands(face, nodes, homes)


# --- Node(...) -------------------------------------------------------------------------------


async def test_node_by_tcp(face: Face, homes: Servers) -> None:
    nodes = [Node("127.0.0.1", s.port, db=DB, username=USER, password=PASSWORD) for s in homes]
    await lands(face, nodes, homes, db=DB, user=USER)


async def test_node_by_path(face: Face, homes: Servers) -> None:
    nodes = [Node(path=s.path, db=DB, username=USER, password=PASSWORD) for s in homes]
    await lands(face, nodes, homes, db=DB, user=USER)


async def test_node_with_credentials(face: Face, homes: Servers) -> None:
    """Asked at every connect."""
    asked = []

    def credentials() -> tuple[str | None, str]:
        asked.append(1)
        return USER, PASSWORD

    nodes = [Node(path=server.path, credentials=credentials) for server in homes]
    await lands(face, nodes, homes, user=USER)
    assert len(asked) >= 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((USER, "canary-wrong"), NodeError),
        (("canary", None), ConfigError),
        ("canary", ConfigError),
        (None, ConfigError),
    ],
)
async def test_credentials_that_do_not_do(
    answer: Any, error: type[Exception], face: Face, homes: Servers
) -> None:
    nodes = [Node(path=server.path, credentials=lambda: answer) for server in homes]
    async with face.redlock(nodes, **SETTINGS) as redlock:
        said = str(await raises(error, redlock.lock("who").acquire()))
    assert "canary" not in said
    assert "WRONGPASS" in said or "the function must return (username or None, password)" in said


async def test_credentials_that_fail(face: Face, homes: Servers) -> None:
    """Another's function: the node is down for that reason, and its words, which may quote
    anything, are not repeated."""

    def credentials() -> tuple[str | None, str]:
        raise LookupError("canary")

    nodes = [Node(path=server.path, credentials=credentials) for server in homes]
    async with face.redlock(nodes, **SETTINGS | {"outage_timeout": 2.0}) as redlock:
        said = str(await raises(Exception, redlock.lock("who").acquire()))
        assert "lookuperror" in said.lower()
        assert "canary" not in said + repr(redlock.nodes)


# --- TLS -------------------------------------------------------------------------------------


@pytest.fixture
def fronts(homes: Servers) -> Iterator[list[TlsFront]]:
    with ExitStack() as stack:
        yield [stack.enter_context(TlsFront(server.url)) for server in homes]


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
async def test_tls_by_url(scheme: str, face: Face, homes: Servers, fronts: list[TlsFront]) -> None:
    urls = [
        f"{scheme}://{LOGIN}@127.0.0.1:{front.port}/{DB}?ssl_ca_certs={quote(front.ca_file)}"
        for front in fronts
    ]
    await lands(face, urls, homes, db=DB, user=USER)


async def test_tls_by_node(face: Face, homes: Servers, fronts: list[TlsFront]) -> None:
    nodes = [Node("localhost", f.port, tls=Tls(ca_certs=f.ca_file)) for f in fronts]
    await lands(face, nodes, homes)


async def test_tls_by_context(face: Face, homes: Servers, fronts: list[TlsFront]) -> None:
    nodes = [Node("127.0.0.1", front.port, tls=front.client_context()) for front in fronts]
    await lands(face, nodes, homes)


async def test_tls_that_checks_nothing(face: Face, homes: Servers, fronts: list[TlsFront]) -> None:
    urls = [f"rediss://127.0.0.1:{front.port}?ssl_cert_reqs=none" for front in fronts]
    await lands(face, urls, homes)


async def test_tls_with_our_own_certificate(face: Face, homes: Servers) -> None:
    with ExitStack() as stack:
        strict = [
            stack.enter_context(TlsFront(server.url, client_certificates=True)) for server in homes
        ]
        urls = [f"rediss://127.0.0.1:{f.port}?ssl_ca_certs={f.ca_file}" for f in strict]
        shown = [
            f"{url}&ssl_certfile={front.client_file}"
            for url, front in zip(urls, strict, strict=True)
        ]
        await lands(face, shown, homes)
        async with face.redlock(urls, **SETTINGS | {"outage_timeout": 0.8}) as redlock:
            error = await raises(Exception, redlock.lock("who").acquire())
            assert all(f"127.0.0.1:{front.port}" in str(error) for front in strict)


# --- Clients ---------------------------------------------------------------------------------


CLIENTS: dict[str, Any] = {
    "redis": redis.Redis,
    "redis.asyncio": redis.asyncio.Redis,
    "valkey": valkey.Valkey,
    "valkey.asyncio": valkey.asyncio.Valkey,
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_client_by_tcp(kind: str, face: Face, homes: Servers) -> None:
    clients = [
        CLIENTS[kind](host="127.0.0.1", port=s.port, db=DB, username=USER, password=PASSWORD)
        for s in homes
    ]
    await lands(face, clients, homes, db=DB, user=USER)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_client_by_path(kind: str, face: Face, homes: Servers) -> None:
    clients = [CLIENTS[kind](unix_socket_path=s.path, db=DB) for s in homes]
    await lands(face, clients, homes, db=DB)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_client_from_url(kind: str, face: Face, homes: Servers) -> None:
    """The client and we read the same URL alike."""
    urls = [f"unix://{LOGIN}@{quote(server.path)}?db={DB}" for server in homes]
    await lands(face, [CLIENTS[kind].from_url(u) for u in urls], homes, db=DB, user=USER)
    await lands(face, urls, homes, db=DB, user=USER)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_client_with_tls(
    kind: str, face: Face, homes: Servers, fronts: list[TlsFront]
) -> None:
    clients = [
        CLIENTS[kind](host="localhost", port=f.port, ssl=True, ssl_ca_certs=f.ca_file)
        for f in fronts
    ]
    await lands(face, clients, homes)


async def test_client_with_tls_that_does_not_trust(face: Face, fronts: list[TlsFront]) -> None:
    clients = [redis.Redis(host="localhost", port=front.port, ssl=True) for front in fronts]
    async with face.redlock(clients, **SETTINGS) as redlock:
        error = await raises(NodeError, redlock.lock("who").acquire())
    assert "TLS failed: unable to get local issuer certificate" in str(error)
    assert ssl.OPENSSL_VERSION not in str(error)


async def test_client_with_a_credential_provider(face: Face, homes: Servers) -> None:
    provider = redis.UsernamePasswordCredentialProvider(USER, PASSWORD)
    clients = [
        redis.Redis(unix_socket_path=server.path, credential_provider=provider) for server in homes
    ]
    await lands(face, clients, homes, user=USER)
