"""Real servers on TCP, as the benchmark has them."""

from collections.abc import Iterator

import pytest

from bench.fleet import Fleet


@pytest.fixture(scope="session")
def fleet_of_five() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def fleet(fleet_of_five: Fleet) -> Fleet:
    """Five servers without keys."""
    fleet_of_five.clear()
    return fleet_of_five
