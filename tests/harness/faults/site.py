"""The nodes of a run, each a real server with a proxy in front, on which faults act.

This module starts and stops them, with everything that faults need: a folder whose settings a
server reads at each start, a separate user for the clients, DEBUG, a clock that can be moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorlock.testing.servers import Server, Servers, find_binary
from tests.harness.faults import shim
from tests.harness.faults.proxy import Proxy
from tests.harness.faults.relay import Relay

USER = "worker"  # whom the clients log in as: its rights can be taken without taking ours
PASSWORD = "faults"
SETTINGS = "settings"  # the folder in a server's home whose *.conf it reads at each start


@dataclass(frozen=True, eq=False)
class Site:
    """One node of a run: its real server and the proxy in front of it.

    Clients connect to the proxy, as `worker`; `server.execute()` and `server.url` go past it, with
    all rights.
    """

    server: Server
    proxy: Proxy
    home: Path  # the server's own folder: data and settings
    spare: Server  # no node, but a server of the same kind with a TCP port: to be replicated

    @property
    def settings(self) -> Path:
        """The folder whose `*.conf` files are read at each start of the server."""
        return self.home / SETTINGS

    @property
    def clock(self) -> Path:
        """The file whose number is added to the server's wall clock (see `shim`)."""
        return self.home / shim.OFFSET


@contextmanager
def sites(count: int, **server_options: Any) -> Iterator[list[Site]]:
    """Start `count` nodes and end them, with all that was made for them. What else `Servers` takes
    may be given, but no `password`: the proofs come as the default user, without. `options` come
    after ours, so they win.
    """
    if server_options.get("password") is not None:
        raise ValueError("sites() start servers without a password; clients log in as " + USER)
    options = (*_OPTIONS, *server_options.pop("options", ()))
    binary = server_options.pop("binary", None) or find_binary()
    with Servers(1, tcp=True, binary=binary, options=_SPARE_OPTIONS) as (spare,):
        # The shim is in the spare's folder, which goes when it does, even where we are killed.
        folder = Path(spare.path).parent
        program = shim.wrapper(folder, binary) if shim.available() else binary
        started = Servers(count, options=options, binary=program, **server_options)
        with started as servers, Relay() as relay, ExitStack() as stack:
            yield [_site(stack, relay, servers, number, spare) for number in range(count)]


_OPTIONS = (
    *("--enable-debug-command", "yes"),
    *("--user", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all"),
    # A pattern may match nothing, so that a server starts without any.
    *("--include", f"{SETTINGS}/*.conf"),
)


# At once: by default a master waits five seconds for more replicas to come.
_SPARE_OPTIONS = ("--repl-diskless-sync-delay", "0")


def _site(stack: ExitStack, relay: Relay, servers: Servers, number: int, spare: Server) -> Site:
    server = servers[number]
    # In the servers' folder, for the same reason.
    path = f"{servers.folder}/proxy-{number}.sock"
    proxy = stack.enter_context(Proxy(relay, server.path, path, login=f"{USER}:{PASSWORD}"))
    home = Path(server.execute("CONFIG", "GET", "dir")[1].decode())
    site = Site(server, proxy, home, spare)
    site.settings.mkdir()
    return site
