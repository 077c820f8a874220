"""Diagnostic connections, and nodes that misbehave. None of its words shows our password."""

from __future__ import annotations

import pytest

from quorlock import Node
from quorlock._drivers.diagnostics import DiagnosticConnection, ErrorReply, NoAnswer
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import (
    Behaviour,
    Caller,
    Impostor,
    answers,
    closes_at_once,
    endless_bulk,
    wants_certificate,
)

PASSWORD = "pass-word"


def why(data: bytes | Behaviour, *, password: str | None = None) -> NoAnswer:
    behaviour = answers(data) if isinstance(data, bytes) else data
    with Impostor(behaviour) as impostor:
        node = Node.from_url(impostor.url).__replace__(password=password)
        with pytest.raises(NoAnswer) as caught, DiagnosticConnection(node, 0.3):
            pass
    assert PASSWORD not in str(caught.value)
    return caught.value


def test_a_stranger_does_not_speak_the_protocol() -> None:
    assert str(why(b"HTTP/1.1 400 Bad Request\r\n")) == "it does not speak the Redis protocol"


@pytest.mark.parametrize("data", [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*1\r\n+PONG\r\n"])
def test_nor_does_one_that_answers_something_else(data: bytes) -> None:
    """A server of another kind may say the same to each question."""
    assert str(why(data)) == "it does not speak the Redis protocol"


WRONG_FORMS: dict[bytes, tuple[bytes, ...]] = {
    b"GET x": (b":1", b"*0"),
    b"INFO": (b"$-1", b":1"),
    b"CLIENT LIST": (b"$-1", b"*0"),
    b"TIME": (b":1", b"*1\r\n+1", b"*2\r\n+a\r\n+b", b"*2\r\n:1\r\n:2"),
    b"CONFIG GET x": (b"$-1", b"*1\r\n+x", b"*2\r\n+x\r\n:1"),
    b"SCAN 0": (b":1", b"*2\r\n+0\r\n:1", b"*2\r\n:0\r\n*0", b"*2\r\n+0\r\n*1\r\n:1", b"*1\r\n+0"),
}


@pytest.mark.parametrize(
    ("words", "reply"), [(words, it) for words, forms in WRONG_FORMS.items() for it in forms]
)
def test_a_reply_of_another_form_is_no_reply(words: bytes, reply: bytes) -> None:
    """A server of another kind that knows PING: the commands of the CLI ended with a traceback."""

    async def knows_ping(caller: Caller) -> None:
        while data := await caller.read():
            await caller.write(b"+PONG\r\n" if b"PING" in data else reply + b"\r\n")

    with (
        Impostor(knows_ping) as impostor,
        DiagnosticConnection(Node.from_url(impostor.url), 5.0) as talk,
        pytest.raises(NoAnswer, match="does not speak the Redis protocol"),
    ):
        talk.ask(*words.split())


def test_an_answer_without_an_end() -> None:
    assert str(why(endless_bulk)) == "it does not speak the Redis protocol"


def test_who_hangs_up() -> None:
    assert str(why(closes_at_once)) == "it closes the connection at once"


def test_who_wants_a_certificate_of_ours() -> None:
    with Impostor(wants_certificate(), tcp=True) as impostor:
        url = impostor.url.replace("redis://", "rediss://") + "?ssl_cert_reqs=none"
        with pytest.raises(NoAnswer) as caught:
            DiagnosticConnection(Node.from_url(url), 5.0)
    assert str(caught.value) == "TLS failed: tlsv13 alert certificate required"


def test_half_an_answer_is_waited_for_so_long() -> None:
    assert str(why(b"+PO")) == "no answer within 0.3 s"


def test_an_echo_of_the_password_is_cut_out() -> None:
    error = why(b"-WRONGPASS who says pass-word?\r\n", password=PASSWORD)
    assert (str(error), error.login) == ("WRONGPASS who says ***?", True)


def test_a_node_that_loads_is_no_login_that_fails() -> None:
    error = why(b"-LOADING Redis is loading the dataset in memory\r\n")
    assert (str(error), error.login) == ("LOADING Redis is loading the dataset in memory", False)


def test_an_answer_is_as_it_is(nodes: Servers) -> None:
    with DiagnosticConnection(Node.from_url(nodes.urls[0]), 5.0) as talk:
        assert talk.peer == ""
        assert talk.ask(b"SET", b"a", b"1") == b"OK"
        assert talk.ask(b"GET", b"b") is None
        assert len(talk.ask(b"TIME")) == 2
        assert isinstance(talk.ask(b"NO-SUCH"), ErrorReply)
    with pytest.raises(NoAnswer):
        talk.ask(b"PING")


# --- what comes without being asked for --------------------------------------------------------


def test_commands_of_other_clients_are_received(mortal_nodes: Servers) -> None:
    """Other clients' commands arrive after MONITOR; silence yields nothing, and the end of the
    connection is reported.
    """
    server = mortal_nodes[0]
    with DiagnosticConnection(Node.from_url(server.url), 5.0) as talk:
        assert talk.ask(b"MONITOR") == b"OK"
        assert list(talk.receive(0.01)) == []
        server.execute("GET", "a")
        (line,) = talk.receive(0.3)
        assert line.endswith(b'"GET" "a"')
        server.kill()
        with pytest.raises(NoAnswer, match="closes the connection"):
            list(talk.receive(5))


async def babble(caller: Caller) -> None:
    """Answers what logs us in, and then never ends."""
    await caller.read()
    await caller.write(b"+PONG\r\n")
    while True:
        await caller.write(b"+words\r\n" * 1000)


def test_a_node_that_never_ends_is_read_up_to_the_limit() -> None:
    """The limit holds however much can be read at once."""
    with (
        Impostor(babble) as impostor,
        DiagnosticConnection(Node.from_url(impostor.url), 5.0) as talk,
    ):
        assert set(talk.receive(0.2)) == {b"words"}


def test_a_monitored_node_speaks_the_protocol() -> None:
    strange = answers(b"+PONG\r\nwords\r\n")
    match = "does not speak the Redis protocol"
    with (
        Impostor(strange) as impostor,
        DiagnosticConnection(Node.from_url(impostor.url), 5.0) as talk,
        pytest.raises(NoAnswer, match=match),
    ):
        list(talk.receive(5))
