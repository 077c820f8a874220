"""examples/health.py, and the commands of its page."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.tooling.examples.programs import PATIENCE, environment, started
from tools.snippets import read_blocks

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "health-checks.md"


@pytest.fixture
def port(mortal_nodes: Servers) -> Iterator[int]:
    """The port of the program, which has taken no lock yet."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    urls = mortal_nodes.urls[:3]
    with started("health.py", env=environment(urls, PORT="0"), **options) as process:
        yield int(process.stdout.readline().rpartition(":")[2])  # type: ignore[union-attr]


def get(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_it_reports_the_nodes(port: int, mortal_nodes: Servers) -> None:
    """Report them before the first lock, with a node down, without a quorum, and afterwards."""
    # `until`: on a busy machine a node may reply late once.
    ready = (200, {"ready": True, "quorum": 2, "nodes": dict.fromkeys(paths(mortal_nodes), "up")})
    assert until(lambda: asked(port) == ready, PATIENCE)
    assert until(lambda: "locks_ready 1" in measured(port), PATIENCE)

    mortal_nodes[0].stop()
    assert until(lambda: asked(port)[0] == 200, PATIENCE)
    down, *up = (f'locks_node_up{{node="{path}"}} ' for path in paths(mortal_nodes))
    expected = {"locks_ready 1", "locks_quorum 2", f"{down}0", *(f"{node}1" for node in up)}
    assert until(lambda: expected <= set(measured(port)), PATIENCE)
    assert sum(line.startswith("locks_node_latency_seconds") for line in measured(port)) <= 2

    mortal_nodes[1].stop()
    status, body = asked(port)
    assert (status, body["ready"]) == (503, False)
    assert "locks_ready 0" in measured(port)
    assert get(port, "/live")[0] == 200

    for node in mortal_nodes[:2]:
        node.cont()
    assert until(lambda: asked(port)[0] == 200, PATIENCE)


def paths(servers: Servers) -> list[str]:
    return [server.path for server in servers[:3]]


def asked(port: int) -> tuple[int, Any]:
    """Return the reply of /ready."""
    status, text = get(port, "/ready")
    return status, json.loads(text)


def measured(port: int) -> list[str]:
    """Return the lines of /metrics."""
    return get(port, "/metrics")[1].splitlines()


def test_another_path(port: int) -> None:
    """The reply names those that exist."""
    assert get(port, "/health") == (404, "try /live, /ready or /metrics\n")


def block(title: str) -> Any:
    return yaml.safe_load(next(b.source for b in read_blocks(PAGE) if b.title == title))


def test_the_service_that_waits_for_the_nodes(nodes: Servers) -> None:
    """The command ends with 0 as soon as a quorum votes."""
    services = block("compose.yaml")["services"]
    assert services["app"]["depends_on"].keys() == services.keys() - {"app"}
    program, *words = services["locks-ready"]["command"]
    ended = subprocess.run(
        [sys.executable, "-m", program, *words], env=environment(nodes.urls), check=False
    )
    assert ended.returncode == 0


def test_the_probes_ask_for_paths_that_exist(port: int) -> None:
    """Neither is answered with 404."""
    probes = block("pod.yaml")
    expected = {probe["httpGet"]["path"]: 200 for probe in probes.values()}
    assert until(lambda: {path: get(port, path)[0] for path in expected} == expected, PATIENCE)
