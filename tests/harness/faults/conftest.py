"""One site for the tests of a module, whole and empty at the start of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.harness.faults import Site, sites
from tests.harness.faults.fault import revive
from tests.harness.faults.network import Refuse

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
def open_sites(binary: str | None) -> Iterator[Site]:
    with sites(1, binary=binary) as (site,):
        yield site


@pytest.fixture
def site(request: pytest.FixtureRequest, binary: str | None, open_sites: Site) -> Iterator[Site]:
    """Return the module's site, or a separate one for a test that refuses: its proxy then gets
    other sockets, which the guards would report as left behind.
    """
    if "fault" in request.fixturenames and isinstance(request.getfixturevalue("fault"), Refuse):
        with sites(1, binary=binary) as (own,):
            yield own
        return
    revive(open_sites.server)
    open_sites.proxy.transparent()
    open_sites.proxy.cut()
    open_sites.server.flush()
    yield open_sites
