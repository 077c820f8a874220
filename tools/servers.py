"""Run every feature that a lock needs on each installed server program; print a table.

    python -m tools.server_binaries /tmp/servers > /tmp/servers.list
    QUORLOCK_SERVERS="$(cat /tmp/servers.list)" python -m tools.servers
    python -m tools.servers redis-7.0=/usr/bin/redis-server

Without arguments it uses the server that the tests use. The exit status is 1 if a feature fails.
`docs/reference/servers.md` has the table; `tests/servers/test_features.py` runs the same features.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trustme

from quorlock import Node, QuorlockError, QuorumUnreachable, Redlock
from quorlock import asyncio as aio
from quorlock.testing.servers import Servers, ServersUnavailable, find_binary

_PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "acl.md"
_SETTINGS: dict[str, Any] = {
    "ttl": 5.0,
    "max_ttl": 10.0,
    "node_timeout": 0.2,
    "outage_timeout": 2.0,
}
_AT_ONCE = 0.25  # seconds: less than the interval of renewal
_names = count(1)


class Lacking(Exception):
    """The server does not offer this, as documented; the text says what follows from that."""


Feature = Callable[[Servers], str]  # returns a note for the table, or ""


def lock(nodes: Servers) -> str:
    """Acquire, fail to acquire again, inspect and release a lock."""
    with Redlock(nodes.urls, **_SETTINGS) as redlock:
        with redlock.lock("x") as lease:
            assert lease.held
            assert redlock.lock("x").try_acquire() is None
            assert redlock.inspect("x").verdict == "held"
        assert not any(node.keys() for node in nodes)
    return ""


def extend(nodes: Servers) -> str:
    """Extend a lease by method, by bare token and by renewal."""
    with Redlock(nodes.urls, **_SETTINGS) as redlock:
        lease = redlock.lock("x").acquire()
        first = lease.valid_until
        for _ in range(2):  # EVAL, then EVALSHA
            time.sleep(0.01)
            lease.extend()
        assert lease.valid_until > first
        assert redlock.extend("x", lease.token)
        assert lease.release()
        renewed = redlock.lock("y", ttl=1.5, renew=True).acquire()
        time.sleep(1.6)
        renewed.ensure()
        assert renewed.release()
    return ""


def fence(nodes: Servers) -> str:
    """Check that fences rise."""
    with Redlock(nodes.urls, **_SETTINGS) as redlock:
        fences: list[int] = []
        for _ in range(5):
            with redlock.lock("x", fencing=True) as lease:
                fences.append(lease.fence or 0)
    assert fences == sorted(set(fences))
    assert fences[0] > 0
    return ""


def uptime_guard(nodes: Servers) -> str:
    """Check that a restarted majority is quarantined."""
    with Redlock(nodes.urls, **_SETTINGS) as redlock:
        redlock.lock("x").acquire().release()
        for node in nodes[:2]:
            node.restart()
        _assert_quarantined(redlock)
    return ""


def marker_guard(nodes: Servers) -> str:
    """Check that a flushed majority is quarantined, and votes again after max_ttl."""
    terms: dict[str, Any] = {
        "ttl": 1.0,
        "max_ttl": 1.5,
        "restart_guard": "marker",
        "outage_timeout": 5.0,
    }
    with Redlock(nodes.urls, **_SETTINGS | terms) as redlock:
        redlock.lock("x").acquire().release()
        for node in nodes:
            node.execute("FLUSHALL")
        _assert_quarantined(redlock)
        with redlock.lock("x", fencing=True, timeout=5.0):
            pass
    return ""


def _assert_quarantined(redlock: Redlock) -> None:
    try:
        redlock.lock("x").acquire(timeout=0.3)
    except QuorumUnreachable as error:
        message = str(error)
    else:
        message = "it votes"
    assert "cast no vote for" in message, message


def invalidations(nodes: Servers) -> str:
    """Check that a deleted key is noticed at once, long before the next renewal."""
    with Redlock(nodes.urls, **_SETTINGS) as redlock:
        lease = redlock.lock("x", renew=True, ttl=1.0).acquire()
        extended = lease.valid_until
        while lease.valid_until == extended:
            time.sleep(0.01)  # the key is tracked from the first extension on
        renewed = lease.valid_until
        began = time.monotonic()
        for node in nodes:
            node.execute("DEL", "x")
        assert lease.lost.wait(2.0)
        took = time.monotonic() - began
    if not _tracks(nodes):
        raise Lacking(f"no tracking; noticed by the next renewal ({took * 1000:.0f} ms, ttl 1 s)")
    assert took < _AT_ONCE, f"noticed after {took:.3f} s"
    assert renewed > extended
    return f"noticed after {took * 1000:.0f} ms"


def _tracks(nodes: Servers) -> bool:
    try:
        nodes[0].execute("CLIENT", "TRACKING", "OFF")
    except RuntimeError:
        return False
    return True


def hand_over(nodes: Servers) -> str:
    """Hand a lease over to another Redlock."""
    with Redlock(nodes.urls, **_SETTINGS) as one, Redlock(nodes.urls, **_SETTINGS) as other:
        adopted = other.adopt(one.lock("x").acquire().hand_over())
        assert adopted.held
        assert adopted.release()
    return ""


def script_flush(nodes: Servers) -> str:
    """Use a lease while scripts are flushed between any two steps."""
    with Redlock(nodes.urls, **_SETTINGS) as redlock:
        lease = redlock.lock("x", fencing=True).acquire()
        for step in (lease.extend, lease.extend, lease.release):
            for node in nodes:
                node.execute("SCRIPT", "FLUSH")
            assert step() is not False
    return ""


def asyncio_api(nodes: Servers) -> str:
    """Acquire, extend and release with quorlock.asyncio."""

    async def use() -> None:
        async with (
            aio.Redlock(nodes.urls, **_SETTINGS) as redlock,
            redlock.lock("x", renew=True, fencing=True) as lease,
        ):
            await lease.extend()
            assert lease.fence

    asyncio.run(use())
    return ""


def minimal_acl(nodes: Servers) -> str:
    """Use a lock as the user that docs/how-to/acl.md defines."""
    page = _PAGE.read_text(encoding="utf-8")
    line = re.search(r"^ACL SETUSER quorlock (.+)$", page, re.MULTILINE)
    assert line is not None
    name = f"user{next(_names)}"
    rules = [">canary" if word.startswith(">") else word for word in line[1].split()]
    try:
        for node in nodes:
            node.execute("ACL", "SETUSER", name, *rules)
    except RuntimeError as error:
        raise Lacking("no users, one password for all") from error
    users = [Node(path=node.path, username=name, password="canary") for node in nodes]
    settings: dict[str, Any] = {**_SETTINGS, "prefix": "app:", "restart_guard": "marker"}
    with Redlock(users, **settings) as redlock, redlock.lock("x", fencing=True) as lease:
        lease.extend()
    return ""


def doctor(nodes: Servers) -> str:
    """Check that the doctor finds no error."""
    words = ["doctor", "--json", "--nodes", ",".join(nodes.urls)]
    done = subprocess.run(
        [sys.executable, "-m", "quorlock", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"]
    warnings = {finding["check"] for finding in found if finding["level"] == "warning"}
    return f"warns of {', '.join(sorted(warnings))}" if warnings else ""


FEATURES: dict[str, Feature] = {
    "lock": lock,
    "extend, renew": extend,
    "fence": fence,
    "hand-over": hand_over,
    "SCRIPT FLUSH": script_flush,
    "asyncio": asyncio_api,
    "uptime guard": uptime_guard,
    "marker guard": marker_guard,
    "invalidations": invalidations,
    "minimal ACL": minimal_acl,
    "doctor": doctor,
}


def password(binary: str) -> str:
    """Use servers with one password for all clients."""
    with Servers(3, binary=binary, password="canary") as nodes:
        return extend(nodes)


def tls(binary: str) -> str:
    """Use a server over TLS, if it was built with it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    with TemporaryDirectory() as folder:
        chain, key, root = (str(Path(folder, name)) for name in ("chain", "key", "root"))
        certificate.private_key_pem.write_to_path(key)
        certificate.cert_chain_pems[0].write_to_path(chain)
        authority.cert_pem.write_to_path(root)
        files = ("--tls-cert-file", chain, "--tls-key-file", key, "--tls-ca-cert-file", root)
        options = (*files, "--tls-auth-clients", "no", "--tls-port", str(_free_port()))
        try:
            with Servers(1, binary=binary, options=options):
                url = f"rediss://127.0.0.1:{options[-1]}?ssl_ca_certs={root}"
                with Redlock([url], **_SETTINGS) as redlock:
                    assert redlock.lock("x").acquire().release()
        except ServersUnavailable as error:
            raise Lacking("not built in") from error
    return ""


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


# Features that need specially configured servers.
ALONE: dict[str, Callable[[str], str]] = {"password": password, "TLS": tls}


def check(binary: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each feature, its cell of the table and whether it works as promised."""
    for name, feature in FEATURES.items():
        with Servers(3, binary=binary) as nodes:
            yield name, *outcome(partial(feature, nodes))
    for name, alone in ALONE.items():
        yield name, *outcome(partial(alone, binary))


def outcome(use: Callable[[], str]) -> tuple[str, bool]:
    """Return the cell of the table, and whether the feature works as promised."""
    try:
        note = use()
    except Lacking as lacking:
        return f"no: {lacking}", True
    except (AssertionError, QuorlockError, RuntimeError, OSError) as error:
        return f"**FAILED** {type(error).__name__}: {error}", False
    return f"yes ({note})" if note else "yes", True


def version(binary: str) -> str:
    """Return the name and version that the server reports."""
    with Servers(1, binary=binary) as (node,):
        info: bytes = node.execute("INFO", "server")
    fields = dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(), re.MULTILINE))
    name = "Valkey" if "valkey_version" in fields else "Redis"
    return f"{name} {fields.get('valkey_version') or fields['redis_version']}"


def main(arguments: list[str]) -> int:
    """Print the table and return the exit status."""
    named = arguments or re.split(r"[\s,]+", os.environ.get("QUORLOCK_SERVERS", "").strip())
    binaries = [word.rpartition("=")[2] for word in named if word] or [find_binary()]
    table: dict[str, list[str]] = {}
    heads: list[str] = []
    all_ok = True
    for binary in binaries:
        heads.append(version(binary))
        print(f"# {heads[-1]}: {binary}", file=sys.stderr, flush=True)
        for name, cell, is_ok in check(binary):
            table.setdefault(name, []).append(cell)
            all_ok &= is_ok
            print(f"#   {name}: {cell}", file=sys.stderr, flush=True)
    print(f"| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name, row in table.items():
        print(f"| {name} | {' | '.join(row)} |")
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
