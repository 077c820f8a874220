"""The context made from a `Tls` checks what it should, and says which file is at fault."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trustme

import quorlock
from quorlock._drivers import ssl_context
from quorlock._drivers.ssl_context import context
from quorlock._drivers.tls_errors import is_end, tls_reason
from quorlock._nodes.node import Node
from quorlock._nodes.tls import Tls
from quorlock.errors import ConfigError
from tests.harness.support.impostors import TlsFront

if TYPE_CHECKING:
    from pathlib import Path

    from quorlock.testing.servers import Servers

HOST = "node.test"
CANARY = "canary-Pa55"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, own.pem with own.key, locked.key, other.key, junk.pem."""
    folder = tmp_path_factory.mktemp("pki")
    own, other = authority.issue_cert("client.test"), authority.issue_cert("other.test")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    own.cert_chain_pems[0].write_to_path(folder / "own.pem")
    own.private_key_pem.write_to_path(folder / "own.key")
    other.private_key_pem.write_to_path(folder / "other.key")
    own.private_key_and_cert_chain_pem.write_to_path(folder / "both.pem")
    (folder / "locked.key").write_bytes(locked(own.private_key_pem.bytes()))
    (folder / "junk.pem").write_text("no certificate")
    return folder


def locked(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(CANARY.encode()),
    )


def server_context(authority: trustme.CA, host: str = HOST) -> ssl.SSLContext:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(server)
    return server


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = HOST) -> str | None:
    """Both sides in memory; the version of TLS, or the client's error."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=host)
    theirs = server.wrap_bio(there, back, server_side=True)
    for side in (ours, theirs) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ours.version()


def test_default_checks_everything() -> None:
    ssl_context._context.cache_clear()  # a handshake adds authorities of a folder to its context
    made = context(Tls())
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.check_hostname
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made.get_ca_certs() == ssl.create_default_context().get_ca_certs()


@pytest.mark.parametrize(
    ("tls", "mode", "hostname"),
    [
        (Tls(verify="optional"), ssl.CERT_OPTIONAL, True),
        (Tls(check_hostname=False), ssl.CERT_REQUIRED, False),
        (Tls(verify="none"), ssl.CERT_NONE, False),
        (Tls(verify="none", check_hostname=True), ssl.CERT_NONE, False),
    ],
)
def test_checks_are_loosened_only_when_asked(
    tls: Tls, mode: ssl.VerifyMode, hostname: bool
) -> None:
    made = context(tls)
    assert (made.verify_mode, made.check_hostname) == (mode, hostname)


def test_lowest_version() -> None:
    assert context(Tls(min_version="TLSv1.2")).minimum_version is ssl.TLSVersion.TLSv1_2
    assert context(Tls(min_version="TLSv1.3")).minimum_version is ssl.TLSVersion.TLSv1_3


def test_ready_context_is_taken_as_it_is() -> None:
    ready = ssl.create_default_context()
    node = Node(tls=ready)
    assert node.tls is not None
    assert context(node.tls) is ready


def test_named_authority_is_trusted_alone(files: Path) -> None:
    made = context(Tls(ca_certs=str(files / "ca.pem")))
    assert len(made.get_ca_certs()) == 1


def test_handshake_with_the_named_authority(authority: trustme.CA, files: Path) -> None:
    server = server_context(authority)
    pem = authority.cert_pem.bytes()
    for tls in (
        Tls(ca_certs=str(files / "ca.pem")),
        Tls(ca_data=pem.decode()),
        Tls(ca_data=ssl.PEM_cert_to_DER_cert(pem.decode())),
        Tls(ca_data=pem.decode(), verify="optional"),
        Tls(ca_data=pem.decode(), min_version="TLSv1.3"),
        Tls(verify="none"),
    ):
        assert shake_hands(context(tls), server) == "TLSv1.3"


def test_unknown_authority_is_refused(authority: trustme.CA) -> None:
    server = server_context(authority)
    stranger = trustme.CA().cert_pem.bytes().decode()
    for tls in (Tls(), Tls(ca_data=stranger), Tls(verify="optional", ca_data=stranger)):
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            shake_hands(context(tls), server)
        assert tls_reason(caught.value) == "unable to get local issuer certificate"


def test_reasons_have_no_source_positions() -> None:
    """OpenSSL's text ends with its own file and line."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context(Tls()).wrap_bio(back, there, server_hostname=HOST)
    back.write(b"no record of TLS")
    with pytest.raises(ssl.SSLError, match=r"_ssl\.c") as caught:
        ours.do_handshake()
    assert tls_reason(caught.value) == "wrong version number"
    assert not is_end(caught.value)


def test_the_end_of_a_stream_is_no_failure_of_tls() -> None:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context(Tls()).wrap_bio(back, there, server_hostname=HOST)
    back.write_eof()
    with pytest.raises(ssl.SSLEOFError) as caught:
        ours.do_handshake()
    assert is_end(caught.value)
    assert tls_reason(caught.value) == "closed by the server"
    assert not tls_reason(ConnectionResetError())


def test_other_host_is_refused_unless_allowed(authority: trustme.CA) -> None:
    server, pem = server_context(authority, "elsewhere.test"), authority.cert_pem.bytes().decode()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(context(Tls(ca_data=pem)), server)
    assert shake_hands(context(Tls(ca_data=pem, check_hostname=False)), server)
    assert shake_hands(context(Tls(verify="none")), server)


def test_own_certificate_is_shown(authority: trustme.CA, files: Path) -> None:
    server = server_context(authority)
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)
    own, ca = str(files / "own.pem"), str(files / "ca.pem")
    for tls in (
        Tls(ca_certs=ca, certfile=own, keyfile=str(files / "own.key")),
        Tls(ca_certs=ca, certfile=own, keyfile=str(files / "locked.key"), keyfile_password=CANARY),
        Tls(ca_certs=ca, certfile=str(files / "both.pem")),
    ):
        assert shake_hands(context(tls), server)
    with pytest.raises(ssl.SSLError):
        shake_hands(context(Tls(ca_certs=ca)), server)


def test_a_locked_key_is_never_asked_for_on_the_terminal(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda *given: asked.append(given[-1]))
    context(Tls(certfile=str(files / "own.pem"), keyfile=str(files / "locked.key")))
    ssl_context._context.cache_clear()
    assert asked == [""]  # None would make OpenSSL ask


def test_nodes_share_a_context_until_a_file_changes(
    authority: trustme.CA, files: Path, tmp_path: Path
) -> None:
    """Certificates are renewed while programs run, and each connect would read them for long."""
    pem, ca = tmp_path / "own.pem", str(files / "ca.pem")
    authority.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(pem)

    def made() -> ssl.SSLContext:
        return context(Tls(ca_certs=ca, certfile=str(pem)))

    first = made()
    assert made() is first
    assert context(Tls(ca_certs=ca)) is not first
    authority.issue_cert("renewed.test").private_key_and_cert_chain_pem.write_to_path(pem)
    renewed = made()
    assert renewed is not first
    assert made() is renewed
    pem.unlink()
    with pytest.raises(ConfigError):
        made()


def test_authorities_are_read_only_if_certificates_are_checked() -> None:
    """The system's take a tenth of a second."""
    assert context(Tls(verify="none")).cert_store_stats()["x509_ca"] == 0


# argument, the options ("@" is the folder of the files), what is said
AT_FAULT: list[tuple[str, dict[str, str], str]] = [
    ("ca_certs", {"ca_certs": "@/none.pem"}, "No such file"),
    ("ca_certs", {"ca_certs": "@"}, "Is a directory"),
    ("ca_certs", {"ca_certs": "@/junk.pem"}, "must be a PEM file"),
    ("ca_certs", {"ca_certs": "@/own.key"}, "must be a PEM file"),
    ("ca_certs", {"ca_certs": "\x00"}, "not a path"),
    ("ca_path", {"ca_path": "@/none"}, "does not exist"),
    ("ca_path", {"ca_path": "@/ca.pem"}, "does not exist"),
    ("ca_data", {"ca_data": CANARY}, "PEM text or DER bytes"),
    ("ca_data", {"ca_data": "\u20ac"}, "PEM text or DER bytes"),
    ("certfile", {"certfile": "@/none.pem"}, "No such file"),
    ("certfile", {"certfile": "@/junk.pem"}, "not a PEM certificate"),
    ("certfile", {"certfile": "@/own.pem"}, "in the same file"),
    ("keyfile", {"certfile": "@/own.pem", "keyfile": "@/none.key"}, "No such file"),
    ("certfile", {"certfile": "@/own.pem", "keyfile": "@/other.key"}, "other.key"),
    ("certfile", {"certfile": "@/own.pem", "keyfile": "@/locked.key"}, "locked"),
    (
        "certfile",
        {"certfile": "@/own.pem", "keyfile": "@/locked.key", "keyfile_password": f"x{CANARY}"},
        "does not unlock",
    ),
    (
        "certfile",
        {"certfile": "@/own.pem", "keyfile": "@/locked.key", "keyfile_password": CANARY * 200},
        "does not unlock",
    ),
]


@pytest.mark.parametrize(("argument", "options", "said"), AT_FAULT)
def test_file_at_fault_is_named(
    files: Path, argument: str, options: dict[str, Any], said: str
) -> None:
    options = {name: value.replace("@", str(files)) for name, value in options.items()}
    with pytest.raises(ConfigError) as caught:
        context(Tls(**options))
    assert caught.value.argument == f"tls.{argument}"
    assert caught.value.value == ("..." if argument == "ca_data" else options[argument])
    assert said in caught.value.fix
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_connection_that_is_given_up_stays_encrypted(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread gives it up, and its owner may send at every instant of that."""
    versions: list[str | None] = []
    shutdown = socket.socket.shutdown

    def noted(self: socket.socket, how: int) -> None:
        if isinstance(self, ssl.SSLSocket):
            versions.append(self.version())
        shutdown(self, how)

    with TlsFront(nodes[0].url) as front:
        node = Node("localhost", front.port, tls=front.client_context())
        with quorlock.Redlock([node], restart_guard=None) as redlock:
            assert redlock.lock("a").acquire(timeout=5.0).release()
            (connection,) = redlock._session.driver._pool.all()[0].connections
            assert connection is not None
            monkeypatch.setattr(socket.socket, "shutdown", noted)
            connection.supersede("the address leads to another server")
            monkeypatch.undo()
            assert versions[0] == "TLSv1.3"
            assert redlock.lock("a").acquire(timeout=5.0).release()
