"""Sites start together, take the options of `Servers`, serve quorlock, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quorlock import Redlock
from tests.harness.faults import sites
from tests.harness.faults.site import USER
from tests.harness.support.resp import Talk
from tests.harness.support.wait import until

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_quorlock_works_through_the_proxies(tcp: bool) -> None:
    with sites(3) as nodes:
        urls = [site.proxy.tcp_url if tcp else site.proxy.url for site in nodes]
        with Redlock(urls, node_timeout=1.0) as redlock, redlock.lock("a", ttl=20) as lease:
            assert lease.held
            tokens = [site.server.execute("GET", "a") for site in nodes]
            assert tokens == [lease.token.encode()] * 3
            clients = [site.server.execute("CLIENT", "LIST") for site in nodes]
            assert all(f"user={USER}".encode() in seen for seen in clients)
        assert [site.server.keys() for site in nodes] == [[], [], []]


def test_options_of_the_caller_win() -> None:
    with sites(1, tcp=True, options=("--maxmemory", "50mb", "--enable-debug-command", "no")) as (
        site,
    ):
        assert site.server.execute("CONFIG", "GET", "maxmemory")[1] == b"52428800"
        assert site.server.port
        with Talk(site.server.path) as talk:
            assert "DEBUG command not allowed" in str(talk.ask("DEBUG", "SLEEP", 0))


def test_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="without a password"), sites(1, password="x"):
        raise AssertionError("they started")


def test_a_failing_start_leaves_nothing() -> None:
    wrong = ("--no-such-option", "1")
    with pytest.raises(RuntimeError, match="no-such-option"), sites(2, options=wrong):
        raise AssertionError("they started")


def test_killed_with_sigkill_servers_and_sockets_go_all_the_same() -> None:
    """The soak may be killed at any moment."""
    script = (
        "import time\nfrom tests.harness.faults import sites\n"
        "with sites(2) as nodes:\n"
        "    print(*(s.server.pid for s in nodes), nodes[0].proxy.path, flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        *pids, path = process.stdout.readline().split()
        assert Path(path).exists()
        process.send_signal(signal.SIGKILL)
    left = [*(Path(f"/proc/{pid}") for pid in pids), Path(path)]
    assert until(lambda: not any(there.exists() for there in left), 10)
