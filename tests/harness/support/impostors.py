"""Nodes that misbehave, for tests: impostors, a proxy in front of a real server, a TLS front.

Owns listening sockets, one thread with an event loop for each, and what they do to the bytes.
Leaves real servers to `quorlock.testing.servers`, and what a lock should make of it all to the
tests. All are context managers that leave no thread, socket or file behind:

    with Impostor(answers(b"-LOADING Redis is loading the dataset in memory\\r\\n")) as node: ...
    with Proxy(server.url) as proxy: ...
    with TlsFront(server.url) as front: ...
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

import hiredis
import trustme

_CALL_TIMEOUT = 10.0  # seconds until a listener's thread must have executed a call


class Listener:
    """A listening address with a thread and an event loop; subclasses implement `serve`."""

    def __init__(self, *, tcp: bool = False) -> None:
        self._tcp = tcp
        self._tls: ssl.SSLContext | None = None
        self._userinfo = ""
        self._address: str | tuple[str, int] = ("127.0.0.1", 0)
        self._listener: socket.socket | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.accepted = 0  # connections so far

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk to one caller; the connection is closed when this returns."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="quorlock-impostor-")
        if not self._tcp:
            self._address = f"{self._folder}/sock"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=f"{self!r}", daemon=True)
        self._thread.start()
        try:
            self.accept_again()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    @property
    def url(self) -> str:
        """`unix://`, `redis://` or `rediss://` URL, with the target's password if it has one."""
        if not self._tcp:
            return f"unix://{self._userinfo}{quote(self.path)}?db=0"
        scheme = "redis" if self._tls is None else "rediss"
        return f"{scheme}://{self._userinfo}127.0.0.1:{self.port}"

    @property
    def path(self) -> str:
        """Path of the unix socket."""
        assert isinstance(self._address, str), f"{self!r} listens on TCP: ask for port"
        return self._address

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1."""
        assert isinstance(self._address, tuple), f"{self!r} listens on a path: ask for path"
        return self._address[1]

    @property
    def open_connections(self) -> int:
        """Return the number of current connections."""
        return len(self._handlers)

    def cut(self) -> None:
        """End all connections at once, unsent bytes lost; new ones are still taken."""
        self._call(self._cut())

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED); open ones live on."""
        self._call(self._refuse())

    def accept_again(self) -> None:
        """Undo `refuse()`, at the same address."""
        self._call(self._listen())

    def close(self) -> None:
        """End everything; twice does no harm."""
        if self._loop.is_closed():
            return
        self._call(self._refuse())
        self._call(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT)
        assert not self._thread.is_alive(), f"{self!r}: its thread did not end"
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT)

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        self._listener = self._bind()
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET if self._tcp else socket.AF_UNIX)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if isinstance(self._address, str):
                Path(self._address).unlink(missing_ok=True)
            listener.bind(self._address)
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._address = listener.getsockname()
        return listener

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        handlers = list(self._handlers)
        # A task that is cancelled before its first step would never close its socket.
        await asyncio.sleep(0)
        for writer in self._writers:
            writer.transport.abort()
        for handler in handlers:
            handler.cancel()
        if handlers:
            await asyncio.wait(handlers)
        await asyncio.sleep(0)  # transports close their sockets one turn of the loop later

    def _accept(self, listener: socket.socket) -> None:
        # Not loop.sock_accept: cancelled at the wrong moment, it loses an accepted connection.
        with suppress(BlockingIOError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self.accepted += 1
            handler = self._loop.create_task(self._handle(connection))
            self._handlers.add(handler)
            handler.add_done_callback(self._handlers.discard)

    async def _handle(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls
            )
        except OSError:  # it left, or did not like our certificate: no news
            connection.close()
            return
        await self._attend(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError):  # a caller may leave at any moment
                await self.serve(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._writers.discard(writer)


class Caller:
    """One connection as a behaviour sees it: read, write, and what was read is kept."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytearray
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._received = received

    async def read(self) -> bytes:
        """Some bytes, as they arrive; empty when the caller has closed."""
        data = await self._reader.read(65536)
        self._received += data
        return data

    async def write(self, data: bytes) -> None:
        """Send, waiting while the caller does not read. ConnectionError when it has left."""
        self._writer.write(data)
        await self._writer.drain()


Behaviour = Callable[[Caller], Awaitable[None]]


class Impostor(Listener):
    """A fake node with programmed behaviour; the connection closes when the behaviour returns.
    `received` has the bytes of each connection, in order of arrival.
    """

    def __init__(self, behaviour: Behaviour, *, tcp: bool = False) -> None:
        super().__init__(tcp=tcp)
        self._behaviour = behaviour
        self._received: list[bytearray] = []

    @property
    def received(self) -> list[bytes]:
        """The bytes of every connection so far."""
        return [bytes(data) for data in self._received]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let the behaviour talk."""
        received = bytearray()
        self._received.append(received)
        await self._behaviour(Caller(reader, writer, received))


async def closes_at_once(_: Caller) -> None:
    """Accepts and hangs up."""


async def silent(caller: Caller) -> None:
    """Reads everything, never answers."""
    while await caller.read():
        pass


async def deaf(_: Caller) -> None:
    """Never reads: after some 200 KB the caller cannot even send."""
    await asyncio.Event().wait()


async def echo(caller: Caller) -> None:
    """Sends back whatever it gets: an error message that quotes it would betray a password."""
    while data := await caller.read():
        await caller.write(data)


async def http_400(caller: Caller) -> None:
    """A web server that was asked in RESP."""
    await caller.read()
    await caller.write(
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Connection: close\r\n\r\n400 Bad Request"
    )


async def garbage(caller: Caller) -> None:
    """Answers with bytes that begin like a TLS record and are RESP in no version."""
    while await caller.read():
        await caller.write(b"\x16\x03\x01\x00\xa5\xff\xfe garbage \r\n\x00\r\n" * 3)


async def endless_bulk(caller: Caller) -> None:
    """Announces a string of 8 GB and sends for ever."""
    await caller.read()
    await caller.write(b"$%d\r\n" % 2**33)
    while True:
        await caller.write(b"x" * 65536)


def sends_banner(data: bytes) -> Behaviour:
    """Speaks first, as SSH, SMTP and MySQL servers do, then is silent."""

    async def behaviour(caller: Caller) -> None:
        await caller.write(data)
        await silent(caller)

    return behaviour


def half_reply(data: bytes = b"$5\r\nhel", *, then_closes: bool = False) -> Behaviour:
    """Answers the first bytes with half a reply; then is silent, or closes."""

    async def behaviour(caller: Caller) -> None:
        await caller.read()
        await caller.write(data)
        if not then_closes:
            await silent(caller)

    return behaviour


def answers(reply: bytes | Callable[[list[bytes]], bytes | None]) -> Behaviour:
    """Answers every command with these bytes, or with what a function makes of its arguments: None
    closes the connection.
    """

    async def behaviour(caller: Caller) -> None:
        commands = hiredis.Reader(notEnoughData=None)
        while data := await caller.read():
            commands.feed(data)
            while (command := commands.gets()) is not None:
                words = reply(command) if callable(reply) else reply
                if words is None:
                    return
                await caller.write(words)

    return behaviour


def wants_certificate() -> Behaviour:
    """Speaks TLS, and says in an alert why it refuses a caller without a certificate. Servers want
    one by default (tls-auth-clients).
    """
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def behaviour(caller: Caller) -> None:
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, to_send, server_side=True)
        refused = False
        while not refused:
            received.write(await caller.read())
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                refused = True
            await caller.write(to_send.read())

    return behaviour


class Proxy(Listener):
    """Stands in front of a real server (`unix://` or `redis://` URL) and spoils the traffic.

    Without orders it is transparent. When the server cannot be reached, a caller sees its
    connection close. A caller that leaves while requests are held has them delivered at `resume()`,
    as a network would.
    """

    def __init__(self, target: str, *, tcp: bool = False) -> None:
        super().__init__(tcp=tcp)
        user, at, _ = urlsplit(target).netloc.rpartition("@")
        self._userinfo = user + at
        self.lead_to(target)
        self._requests_flow = asyncio.Event()
        self._replies_flow = asyncio.Event()
        self._requests_flow.set()
        self._replies_flow.set()
        self.delay = 0.0  # seconds by which every reply comes later; may be set at any time
        self.requests: list[list[bytes]] = []  # every command of every caller, as it arrived

    def lead_to(self, target: str) -> None:
        """Lead new connections to that server; those that are open stay where they are."""
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port, unquote(parts.path))

    def hold(self, *, requests: bool = True, replies: bool = True) -> None:
        """Let nothing through until `resume()`. With `requests=False` the server still acts."""
        self._call(self._set_flow(requests=not requests, replies=not replies))

    def resume(self) -> None:
        """Deliver what was held, and all that follows."""
        self._call(self._set_flow(requests=True, replies=True))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until one side has closed and what it sent is delivered."""
        server_reader, server_writer = await self._dial()
        replies: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
        workers = [
            asyncio.create_task(self._carry_requests(reader, server_writer)),
            asyncio.create_task(self._collect_replies(server_reader, replies)),
        ]
        try:
            await self._deliver_replies(replies, writer)
        finally:
            server_writer.transport.abort()
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)  # an error of theirs stays unread, so that asyncio logs it

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port, path = self._target
        if host is None:
            return await asyncio.open_unix_connection(path)
        return await asyncio.open_connection(host, port or 6379)

    async def _carry_requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter
    ) -> None:
        commands = hiredis.Reader(notEnoughData=None)
        with suppress(OSError):  # either side may be gone; the replies then end too
            while data := await reader.read(65536):
                self._record(data, commands)
                server.write(await self.forward(data))
                await server.drain()
            server.write_eof()  # replies to what was sent still come

    async def forward(self, data: bytes) -> bytes:
        """Return the bytes to send for these of one caller, when they may be sent; subclasses do
        otherwise.
        """
        await self._requests_flow.wait()
        return data

    def _record(self, data: bytes, commands: hiredis.Reader) -> None:
        with suppress(hiredis.ProtocolError):  # inline commands pass, but are not recognised
            commands.feed(data)
            while (command := commands.gets()) is not None:
                self.requests.append(command)

    async def _collect_replies(
        self, server: asyncio.StreamReader, replies: asyncio.Queue[tuple[float, bytes] | None]
    ) -> None:
        try:
            while data := await server.read(65536):
                replies.put_nowait((self._loop.time() + self.delay, data))
        except ConnectionError:
            pass  # the server was killed: for the caller the same as an orderly end
        finally:
            replies.put_nowait(None)

    async def _deliver_replies(
        self, replies: asyncio.Queue[tuple[float, bytes] | None], writer: asyncio.StreamWriter
    ) -> None:
        while (entry := await replies.get()) is not None:
            due, data = entry
            await asyncio.sleep(due - self._loop.time())
            await self._replies_flow.wait()
            writer.write(data)
            await writer.drain()

    async def _set_flow(self, *, requests: bool, replies: bool) -> None:
        for event, flows in ((self._requests_flow, requests), (self._replies_flow, replies)):
            if flows:
                event.set()
            else:
                event.clear()


class TlsFront(Proxy):
    """A proxy on 127.0.0.1 that speaks TLS to its callers and plain bytes to its server.

    The certificate is good for `names` and signed by an authority made for this front, whose
    certificate is in `ca_file`. With `client_certificates` it asks callers for one of the same
    authority, such as `client_file` (key and certificates in one PEM file).
    """

    def __init__(
        self,
        target: str,
        *,
        names: tuple[str, ...] = ("localhost", "127.0.0.1"),
        client_certificates: bool = False,
    ) -> None:
        super().__init__(target, tcp=True)
        self._authority = trustme.CA()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(self._tls)
        if client_certificates:
            self._tls.verify_mode = ssl.CERT_REQUIRED
            self._authority.configure_trust(self._tls)

    def __enter__(self) -> Self:
        super().__enter__()
        self.ca_file = f"{self._folder}/ca.pem"
        self._authority.cert_pem.write_to_path(self.ca_file)
        self.client_file = f"{self._folder}/client.pem"
        client = self._authority.issue_cert("client@quorlock.test")
        client.private_key_and_cert_chain_pem.write_to_path(self.client_file)
        return self

    def client_context(self) -> ssl.SSLContext:
        """A context that trusts this front and checks its name."""
        return ssl.create_default_context(cafile=self.ca_file)
