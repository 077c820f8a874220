"""One site for the tests of a module, whole and empty at the start of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.servers.faults import Site, sites
from tests.servers.faults.fault import revive
from tests.servers.faults.network import Refuse

REDIS = pytest.param(
    "redis-server",
    marks=pytest.mark.skipif(
        shutil.which("redis-server") is None,
        reason="no redis-server: apt-get install redis-server",
    ),
)


BINARIES = [pytest.param(None, id="ours"), REDIS]


@pytest.fixture(scope="module", params=BINARIES)
def binary(request: pytest.FixtureRequest) -> str | None:
    """Our own Valkey and, where it is installed, Redis."""
    found: str | None = request.param
    return found


@pytest.fixture(scope="module")
def standing(binary: str | None) -> Iterator[Site]:
    with sites(1, binary=binary) as (site,):
        yield site


@pytest.fixture
def site(request: pytest.FixtureRequest, binary: str | None, standing: Site) -> Iterator[Site]:
    """The module's one; its own for a test that refuses, since the proxy then gets other sockets
    than it had before, which the guards would tell as left behind.
    """
    if "fault" in request.fixturenames and isinstance(request.getfixturevalue("fault"), Refuse):
        with sites(1, binary=binary) as (own,):
            yield own
        return
    revive(standing.server)
    standing.proxy.transparent()
    standing.proxy.cut()
    standing.server.flush()
    yield standing
